"""The report in a browser: it draws all figures by itself, without a request or an error."""

from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from phyla.pages import Later, Page
from phyla.report import study_sections, write_pages
from report_study import simulated


def test_the_report_draws_its_figures_offline(tmp_path: Path) -> None:
    sections = [*study_sections(simulated(members=4, generations=8))]
    page = Page(study="digits", title="digits", sections=[Later(one.name) for one in sections])
    path = write_pages(tmp_path / "report.html", [page], sections, 0.0)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        tab = browser.new_page(color_scheme="dark", viewport={"width": 390, "height": 800})
        tab.set_default_timeout(120_000)
        said: list[str] = []
        asked: list[str] = []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri())
        expect(tab.locator(".drawn .plot-container")).to_have_count(6)
        # The menu colours the points of the phylogeny by a hyperparameter.
        tab.locator(".updatemenu-header").click()
        tab.locator(".updatemenu-dropdown-button", has_text="layers").click()
        expect(tab.locator(".colorbar")).to_contain_text("layers")
        expect(tab.locator(".updatemenu-header")).to_contain_text("layers")
        tab.locator("summary").first.click()
        assert tab.get_by_role("columnheader", name="best so far").is_visible()
        # The page scrolls to the side only within figures and tables.
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
