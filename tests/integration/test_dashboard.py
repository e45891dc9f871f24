"""The dashboard in a real browser, and what it refuses over plain HTTP."""

import gzip
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

import dashboard_study
from dashboard_study import MARKUP
from effort import rarely, thorough
from evaluation_simulation import WatchedRun, evaluated, failed, suite_of
from forked import Forked
from phyla import plugins
from phyla.controller import StudyRecords
from phyla.dashboard import dashboard_of
from phyla.dashboard.routes import COOKIE
from phyla.records import JobState, Role
from phyla.report.page import PLOTLY
from phyla.service.tokens import create
from phyla.store import open_store
from phyla.study import Places, Results, load_study
from serving import served

pytestmark = pytest.mark.xdist_group("dashboard")

STUDY_FILE = Path(dashboard_study.__file__)
BAD = ("error", "warning", "trace")
MARKED = "window.neverReloaded = true"
FIGURES = re.compile(r"/static/plotly\.js|/figures/(?!causes)")
"""What Plotly draws, which takes a browser a second for each page."""


@dataclass
class Shown:
    """A dashboard in a browser: a study that is over, and one that waits for the file `most`."""

    url: str
    home: Path
    token: str
    browser: Browser
    live: Forked
    requested: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)

    def context(self, scheme: str = "light", width: int = 1280, height: int = 900) -> BrowserContext:
        context = self.browser.new_context(
            color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": height}
        )
        context.set_default_timeout(120_000)
        context.on("request", lambda request: self.requested.add(urlsplit(request.url).netloc))
        context.on("console", self.heard)
        context.on("weberror", lambda error: self.said.append(str(error.error)))
        return context

    def signed_in(self, scheme: str = "light", width: int = 1280, height: int = 900) -> Page:
        context = self.context(scheme, width, height)
        context.add_cookies([{"name": COOKIE, "value": self.token, "url": self.url}])
        return context.new_page()

    def close(self, page: Page) -> None:
        """Close a page that was told nothing wrong, and asked nobody else."""
        page.context.close()
        assert self.said == []
        assert self.requested == {urlsplit(self.url).netloc}

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in BAD:
            self.said.append(f"{message.type}: {message.text}")

    def results(self, name: str) -> Results:
        return load_study(name, home=self.home)


def start(home: Path, name: str, workers: int = 0) -> Forked:
    return Forked([STUDY_FILE, home, name, workers], spares=workers)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    home = tmp_path_factory.mktemp("dashboard") / "home"
    home.mkdir()
    (home / "broken").touch()
    assert start(home, "done").wait() == 0
    (home / "most").write_text("1")
    store = open_store(f"sqlite:///{home / 'phyla.db'}")
    token = create(store, "me", Role.OPERATOR)
    store.close()
    live = start(home, "live", workers=1)
    dashboard = Forked(["-m", "phyla.cli", "dashboard", "--home", home, "--port", 0])
    found = re.search(r"http://\S+", dashboard.read_until("\n"))
    assert found
    expect.set_options(timeout=120_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield Shown(found[0], home, token, browser, live)
        browser.close()
    (home / "most").unlink(missing_ok=True)
    for process in (live, dashboard):
        process.terminate()
        process.wait()


def test_a_study_is_followed_walked_through_stopped_and_resumed(shown: Shown) -> None:
    page = shown.context().new_page()
    page.goto(f"{shown.url}/sign-in")
    page.get_by_label("Token").fill(shown.token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="live").click()
    completed = page.locator("dl div", has_text="trials completed")
    expect(completed).to_contain_text("4 of")
    page.evaluate(MARKED)
    scores = page.locator("#score-picture").get_by_role("img")
    expect(scores).to_have_accessible_name(re.compile("at step 5, "))
    # The next trials arrive by themselves, and the last member's break.
    (shown.home / "most").write_text("2")
    expect(completed).to_contain_text("7 of")
    expect(scores).to_have_accessible_name(re.compile("at step 10, "))
    expect(page.locator("#feed")).to_contain_text(f"RuntimeError: {MARKUP} the loss")
    expect(page.get_by_role("row", name="given up")).to_be_visible()
    assert page.evaluate("window.neverReloaded")
    expect(page.locator("[data-figure] .main-svg").first).to_be_visible()
    page.route(FIGURES, lambda _: None)  # from here on they never come

    failed = next(one for one in shown.results("live").trials() if one.state is JobState.FAILED)
    page.goto(f"{shown.url}/studies/live/trials/{failed.id}")
    line = 1 + next(
        at for at, text in enumerate(STUDY_FILE.read_text().splitlines()) if "raise RuntimeError" in text
    )
    expect(page.locator("#errors")).to_contain_text(f"{STUDY_FILE}, line {line}")
    expect(page.locator("#log")).to_contain_text(f"trial {failed.id} began with skill")

    # From a trial to its parent, its checkpoint, and what was found on it.
    best = shown.results("live").best
    assert best is not None
    page.goto(f"{shown.url}/studies/live")
    page.locator("#head").get_by_role("link", name=str(best.trial), exact=True).click()
    expect(page.locator("#values")).to_contain_text("batch")
    expect(page.locator("#metrics")).to_contain_text(MARKUP)
    expect(page.locator("#checkpoint")).to_contain_text(best.checkpoint.where)
    parent = page.locator("#lineage").get_by_role("link").first
    key = parent.text_content()
    parent.click()
    expect(page.get_by_role("heading", name=f"Trial {key} ")).to_be_visible()
    expect(page.locator("#story")).to_contain_text(str(best.trial))
    page.locator("#evaluations").get_by_role("link", name="school").click()
    expect(page.locator("#suite-1")).to_contain_text("moody")
    expect(page.locator("#causes")).to_contain_text(f"{MARKUP} not today")

    # A member that was given up tries again; the study is stopped, resumed, and evaluated again.
    (shown.home / "broken").unlink()
    page.goto(f"{shown.url}/studies/live")
    page.get_by_role("link", name="Retry given-up members").click()
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#record")).to_contain_text("me retried 1 member that had been given up: 3")
    page.get_by_role("link", name="Stop").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("h1")).to_contain_text("stopped")
    expect(page.locator("#record")).to_contain_text("me stopped the study")
    (shown.home / "most").unlink()
    assert shown.live.wait() == 0
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("h1")).to_contain_text("running")
    expect(page.locator("#record")).to_contain_text("me resumed the study")
    page.get_by_role("link", name="Evaluations", exact=True).click()
    evaluated = page.locator("#suite-1").get_by_role("row").filter(has_text="0.5").last
    evaluated.get_by_role("link", name="evaluate again").click()
    page.get_by_role("button", name="Evaluate").click()
    expect(page.locator("#record")).to_contain_text("me requested another evaluation of checkpoint")
    # A further worker does all of it.
    assert start(shown.home, "live").wait() == 0
    expect(page.locator("h1")).to_contain_text("completed")
    results = shown.results("live")
    assert {member.generation for member in results.members()} == {dashboard_study.TRIALS}
    assert any(group.replicate == 1 and group.values for group in results.evaluations().groups())
    shown.close(page)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), rarely("dark", 375)])
def test_pages_can_be_used_by_everybody(shown: Shown, scheme: str, width: int) -> None:
    results = shown.results("done")
    assert results.best is not None
    failed = next(one for one in results.trials() if one.state is JobState.FAILED)
    page = shown.signed_in(scheme, width)
    some = ["/", "/studies/done", f"/studies/done/trials/{failed.id}", "/compare?study=done&study=live"]
    others = [f"/studies/done/trials/{results.best.trial}", "/studies/done/members/3", "/studies/done/evaluations"]
    others += ["/studies/done/trials", "/workers", "/studies/live/do/stop", "/sign-in"]
    # All pages have one style sheet, so that on a landing each page is looked at once.
    for path in [*some, *others] if thorough() else others if scheme == "light" else some:
        page.goto(shown.url + path)
        for figure in page.locator("[data-figure]").all():
            expect(figure).to_have_attribute("data-tag", re.compile(".+"))
        for details in page.locator("details:visible").all():
            details.locator("summary").click()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
        assert dark == (scheme == "dark")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        # A page updates what has an id, so each id may be there once.
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
        assert len(ids) == len({*ids}), (path, ids)
        found = Axe().run(page, options={"resultTypes": ["violations"]})
        serious = [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]
        assert not serious, (path, [(one["id"], one["nodes"][0]["html"]) for one in serious])
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement !== document.body"), path
    shown.close(page)


def test_a_study_opens_with_its_scores_and_schedule_before_plotly_is_there(shown: Shown) -> None:
    page = shown.signed_in()
    page.goto(shown.url)
    expect(page.get_by_role("row", name="done").get_by_role("img")).to_have_accessible_name(
        re.compile("^best score of done so far: .* to ")
    )
    page.route(FIGURES, lambda _: None)  # they never come
    best = shown.results("done").best
    assert best is not None
    for width, height in ((1440, 900), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        page.goto(f"{shown.url}/studies/done", wait_until="commit")
        scores, schedule = page.locator("#score-picture"), page.locator("#schedule-picture")
        expect(scores.get_by_role("img")).to_have_accessible_name(
            re.compile(f"Best score .* by member {best.member};")
        )
        expect(schedule.get_by_role("img")).to_have_count(2)
        assert page.evaluate("typeof Plotly") == "undefined"
        loaded = "[...document.querySelectorAll('link[rel=stylesheet]')].every(link => link.sheet)"
        page.wait_for_function(loaded)
        # All at once, because the page may update itself in between.
        first, second, *plots = page.evaluate(
            "[...document.querySelectorAll('.picture, .plot > svg')].sort((a, b) => b.matches('.picture') - "
            "a.matches('.picture')).map(element => element.getBoundingClientRect().toJSON())"
        )
        for box in (first, second):
            assert box["bottom"] <= height
            assert box["right"] <= width
        beside = first["top"] == second["top"] and second["left"] > first["left"]
        assert beside == (width > 1000), "beside, or below on a phone"
        assert len(plots) == 3
        assert all(plot["height"] > 30 for plot in plots)
    shown.close(page)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.of(tmp_path)


def test_without_tokens_this_machine_reads_and_nobody_changes_anything(places: Places) -> None:
    store = open_store("memory://")
    store.create_study("wild", {"options": {"lease_s": 60}, "strategy": {"plugin": "?"}, "aim": None}, 0, 0)
    with served(store, pages=dashboard_of(places)) as url, httpx.Client(base_url=url) as http:
        answer = http.get("/compare")
        assert answer.status_code == 200
        assert "wild" in answer.text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        (exponent,) = set(re.findall('sup:"(font[^"]+)"', gzip.decompress(PLOTLY.read_bytes()).decode()))
        assert f"'sha256-{b64encode(sha256(exponent.encode()).digest()).decode()}'" in policy
        assert "<script>" not in answer.text
        assert "style=" not in answer.text
        assert answer.headers["cache-control"] == "no-store"
        assert http.get("/compare", headers={"Host": "evil.example"}).status_code == 400
        assert http.get("/studies/wild/do/stop").status_code in (303, 401)
        assert http.post("/studies/wild/do/stop", headers={"Origin": url}).status_code == 401
        assert http.get("/studies/nothing").status_code == 404
        assert http.get("/studies/nothing/figures/progress").status_code == 404
        assert http.get("/static/..%2Froutes.py").status_code == 404


def test_roles_and_origins_decide_what_a_browser_may_do(places: Places) -> None:
    store = open_store("memory://")
    study = store.create_study("wild", {}, 0, 0)
    secrets = {role: create(store, role, role) for role in Role}
    stop = "/studies/wild/do/stop"
    with served(store, pages=dashboard_of(places)) as url:
        with httpx.Client(base_url=url) as http:
            assert http.get("/compare").headers["location"] == "/sign-in"
            assert http.get("/events").status_code == 401
            assert http.get("/sign-in").status_code == 200
            same = {"Origin": url}
            wrong = http.post("/sign-in", data={"token": "wrong"}, headers=same)
            assert (wrong.status_code, wrong.cookies) == (401, httpx.Cookies())
            elsewhere: list[dict[str, str]] = [{}, {"Origin": "https://evil.example"}, {"Origin": "null"}]
            for origin in elsewhere:
                assert (
                    http.post("/sign-in", data={"token": secrets[Role.VIEWER]}, headers=origin).status_code == 401
                )
            assert http.post("/sign-in", data={"token": "x" * 5000}, headers=same).status_code == 401
            cookie = http.post("/sign-in", data={"token": secrets[Role.VIEWER]}, headers=same).headers[
                "set-cookie"
            ]
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert http.get("/compare").status_code == 200
            # The cookie opens the pages, and nothing of the service.
            assert http.post("/v1/calls/0/store/studies", json={}).status_code == 401
            assert http.post(stop, headers=same).status_code == 403
            assert http.post("/sign-out", headers=same).status_code == 303
            assert http.get("/compare").status_code == 303
        cookies = {"phyla_token": secrets[Role.OPERATOR]}
        with httpx.Client(base_url=url, cookies=cookies) as http:
            assert http.post(stop).status_code == 403
            assert http.post(stop, headers={"Origin": "https://evil.example"}).status_code == 403
            assert http.post(stop, headers={**same, "Sec-Fetch-Site": "cross-site"}).status_code == 403
            with store.reader(study.id) as reader:
                assert reader.study().state == "running"
            assert http.get(stop).status_code == 200
            assert http.post(stop, headers=same).status_code == 303
            with store.reader(study.id) as reader:
                assert reader.study().state == "stopped"
                assert [event.message for event in reader.events()] == ["operator stopped the study"]
            again = http.post(stop, headers=same)
            assert again.status_code == 409
            assert "nothing to stop" in again.text


def test_watched_runs_have_pages_too(places: Places) -> None:
    run = WatchedRun([suite_of("good", "bad")])
    run.observe(100)
    while (work := run.claim()) is not None:
        if work.job.task == "bad":
            run.controller.fail(failed(work, f"Traceback\nValueError: {MARKUP}", retryable=False))
        else:
            run.hand_in(evaluated(work))
    (study,) = run.store.studies()
    suites = [plugins.encode(suite, plugins.reference) for suite in run.suites]
    StudyRecords(run.store, study.id).store_config({**study.config, "suites": suites}, study.config)
    home = f"/studies/{study.name}"
    with served(run.store, pages=dashboard_of(places)) as url, httpx.Client(base_url=url) as http:
        assert study.name in http.get("/").text
        assert "checkpoints seen" in http.get(home).text
        page = http.get(f"{home}/evaluations").text
        assert "100" in page
        assert "bad" in page
        causes = http.get(f"{home}/figures/causes").text
        assert escape(f"ValueError: {MARKUP}") in causes
        assert MARKUP not in page + causes
        assert "Which checkpoint is good at what?" in http.get(f"{home}/figures/matrix").text
        assert http.get("/workers").status_code == 200
        assert http.get(f"{home}/members/0").status_code == 404
        assert http.get(f"{home}/trials/{'9' * 5000}").status_code == 404
