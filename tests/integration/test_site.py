"""The documentation site builds, asks no other host for anything, and has the whole reference."""

import functools
import inspect
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer.main
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from playwright.sync_api import sync_playwright

import phyla
import phyla.evaluation
import phyla.strategies
from phyla import errors, plugins
from phyla.cli.app import app

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "srcset", "link": "href"}
"""What a browser loads without being asked, by tag."""

MKDOCS = "import gc; gc.disable(); from mkdocs.__main__ import cli; cli()"
"""Builds a site, without the tenth of the time that goes into garbage collections."""

pytestmark = pytest.mark.xdist_group("site")


class Page(HTMLParser):
    """What a page loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        if tag == "link" and found.get("rel") in ("canonical", "next", "prev"):
            return
        self.loads.append(found.get(LOADED.get(tag, "")) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", MKDOCS, "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_load_nothing_from_another_host(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 50
    for path in pages:
        for url in Page(path).loads:
            assert "//" not in url, f"{path.relative_to(site)} loads {url}"
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)[^;)]*//", path.read_text()), path


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_browser_finds_its_way_and_asks_nobody_else(address: str) -> None:
    requests: list[str] = []
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="dark")
        page.set_default_timeout(120_000)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"
        figure = page.locator(".grid img:visible").last.bounding_box()
        snippet = page.locator(".grid pre").bounding_box()
        assert figure is not None
        assert snippet is not None
        assert max(one["y"] + one["height"] for one in (figure, snippet)) <= 900, "more than one screen"
        # Typed, since the search listens for keys.
        page.get_by_placeholder("Search").press_sequentially("quorum")
        page.locator(".md-search-result__link").first.click()
        page.wait_for_url("**/*quorum*")
        page.goto(f"{address}design.html")
        browser.close()
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
    assert complaints == []


def test_the_reference_has_every_name_command_and_key(site: Path) -> None:
    def anchors(name: str) -> set[str]:
        return Page(site / f"reference/{name}.html").ids

    for module, page in ((phyla, "phyla"), (phyla.strategies, "strategies"), (phyla.evaluation, "evaluation")):
        found = {name: getattr(module, name) for name in module.__all__}
        wanted = {f"{module.__name__}.{name}" for name, one in found.items() if inspect.isclass(one)}
        assert wanted - anchors(page) == set()
    tree = {
        f"phyla.errors.{name}"
        for name, one in vars(errors).items()
        if isinstance(one, type) and one.__module__ == errors.__name__
    }
    assert tree - anchors("errors") == set()
    names = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {f"phyla-{name}" for name in names} - anchors("commands") == set()
    shown = anchors("study-file")
    for name, point in plugins.list_plugins().items():
        group, _, short = name.partition("/")
        if point.value.startswith("phyla.") and group == "phyla.strategies":
            assert short in shown, name
        elif point.value.startswith("phyla.") and group in ("phyla.exploit", "phyla.explore", "phyla.stopping"):
            assert f"{group.removeprefix('phyla.')}-{short}" in shown, name


@pytest.mark.parametrize(
    "page", ["[a page](absent.md)", "[a heading](index.md#absent)", "[a place](/absent)", "fine"]
)
def test_a_broken_link_or_a_page_that_nothing_leads_to_ends_the_build(page: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Home\n\n{page}\n")
    if page == "fine":
        (docs / "orphan.md").write_text("# Orphan\n")
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(docs),
        site_dir=str(tmp_path / "site"),
        nav=["index.md"],
        plugins=[],
        hooks=[],
    )
    with pytest.raises(Abort, match="in strict mode"):
        build(config)
