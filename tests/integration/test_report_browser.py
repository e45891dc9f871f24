"""The report in a browser: it draws all figures by itself, without a request or an error."""

from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from phyla.report import write_report
from report_study import simulated


def test_the_report_draws_its_figures_offline(tmp_path: Path) -> None:
    path = write_report(simulated(), tmp_path / "report.html")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(color_scheme="dark", viewport={"width": 390, "height": 800})
        page.set_default_timeout(120_000)
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        expect(page.locator("[data-figure] .plot-container")).to_have_count(6)
        # The menu colours the points of the phylogeny by a hyperparameter.
        page.locator(".updatemenu-header").click()
        page.locator(".updatemenu-dropdown-button", has_text="layers").click()
        expect(page.locator(".colorbar")).to_contain_text("layers")
        expect(page.locator(".updatemenu-header")).to_contain_text("layers")
        page.locator("summary").first.click()
        assert page.get_by_role("columnheader", name="best so far").is_visible()
        # The page scrolls to the side only within figures and tables.
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
