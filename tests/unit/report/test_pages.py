"""Pages in one file: it needs nothing else, shows what users wrote as they wrote it, and stays small."""

import gzip
import re
from base64 import b64decode
from pathlib import Path

import pytest

import phyla
from evaluated_run import HELDOUT, EvaluatedRun, eventful
from facts import raises
from page_text import PageText
from phyla.errors import UsageError
from phyla.pages import Drawing, Fact, Later, Page, Row, Span, Table
from phyla.report import study_sections, write_pages
from phyla.report.page import PLOTLY
from phyla.study.results.pages.evaluations import FEW
from phyla.study.results.pages.study import study_page
from phyla.study.results.pages.trials import ROWS, trials_page
from report_study import empty, large, simulated

pytestmark = pytest.mark.xdist_group("figures")  # Plotly and SciPy are imported in one process

HOSTILE = "<script>alert('x')</script> \"quoted\" & </script>"
GOLDEN = Path(__file__).parent / "golden.html"
MOST_BYTES = 1_500_000


def study(home: Path, metric: str = "score", members: int = 4) -> phyla.Study:
    return phyla.Study(
        "drawn",
        {"lr": phyla.Float(0.1, 1.0, log=True), "kind": phyla.Choice(["a", HOSTILE])},
        phyla.Maximize(metric),
        phyla.PBT(population_size=members, steps_per_trial=5, total_steps=20, exploit=phyla.Truncation(0.25)),
        home=home,
        storage="memory://",
        retries=phyla.Retries(attempts=1),
    )


def train(made: phyla.Study, rounds: int, metric: str = "score") -> None:
    """Train each member some times: the first trial of all fails, a score of the last round is nan."""
    for number in range(rounds):
        for place, trial in enumerate(made.ask(4)):
            (trial.checkpoint_dir / "weights").write_text(str(trial.id))
            if not number and not place:
                made.tell(trial, error=f"ValueError: {HOSTILE}")
            else:
                odd = number == rounds - 1 and place == 1
                made.tell(trial, metrics={metric: float("nan") if odd else trial.id + trial.params["lr"]})


def parts(text: str) -> str:
    """Return what a page has between header and footer."""
    return text[text.index("<main>") : text.index("<footer>")]


def section(text: str, name: str) -> str:
    found = text[text.index(f'<section id="{name}"') :]
    return found[: found.index("</section>")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> phyla.Results:
    made = study(tmp_path_factory.mktemp("drawn"))
    train(made, 4)
    return made.results()


@pytest.fixture(scope="module")
def written(results: phyla.Results, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "new" / "report.html"
    return results.write_report(path).read_text(encoding="utf-8")


def test_a_page_reads_as_the_golden_one(tmp_path: Path) -> None:
    """After a change that is meant: copy the page that the assertion names over the golden one."""
    rows: list[Row] = [
        (Span("3", "members/3", "winner"), "0.5", Span("again", "do/retry")),
        (Span("4", "members/4"), "-", ""),
    ]
    members = Table(
        name="members",
        title="Members & more",
        lead="<i>lead</i>",
        columns=(">member", "=words", ""),
        rows=rows,
        note="2 of 9",
        links=[Span("after", "?from=2")],
        anchors=True,
    )
    behind = Table(name="", title="line", columns=(">x", ">y"), rows=[("1", "2")])
    page = Page(
        study="a",
        title=f"a {HOSTILE}",
        state="running",
        kind="maximize",
        messages=["warning: <b>bold</b>"],
        score="0.5",
        lines=[("best: ", Span("trial 7", "trials/7"), " of ", Span("member 3", "members/3"))],
        facts=[Fact("trials", "1 of 2", "3 <failed>"), Fact("steps", "5")],
        actions=[Span("Trials", "trials"), Span("Compare", "/compare"), Span("Stop", "do/stop")],
        sections=[
            members,
            Later("figure"),
            Later("not made"),
            Table(name="running", title="Running", columns=("a",), rows=()),
            Table(name="feed", title="Decisions", columns=("a",), rows=(), empty="None yet."),
            Later("nothing"),
        ],
    )
    later = [
        Drawing(name="figure", title="Is it?", lead="yes", figure='{"data":["</script>"]}', tables=[behind]),
        Drawing(name="nothing", title="What?", lead="No trial has completed."),
    ]
    second = Page(study="a", title="Trials", key="trials", sections=[])
    text = parts(write_pages(tmp_path / "page.html", [page, second], later, 0.0).read_text())
    (tmp_path / "golden.html").write_text(text)
    assert text == GOLDEN.read_text(), tmp_path / "golden.html"


@pytest.mark.parametrize(
    ("newest", "rows", "places"),
    [
        (True, ROWS, ["?after=0"]),
        (False, ROWS, ["?after=0", "?after={}", "?"]),
        (False, ROWS - 1, ["?after=0", "?"]),
    ],
)
def test_the_list_of_trials_leads_to_later_ones_where_there_may_be_any(
    results: phyla.Results, newest: bool, rows: int, places: list[str]
) -> None:
    trial = results.trials()[0]
    (listed,) = trials_page(results.study(), [trial] * rows, 3 * ROWS, newest=newest).sections
    assert isinstance(listed, Table)
    assert [link.link for link in listed.links] == [place.format(trial.id) for place in places]


def test_a_file_loads_nothing_and_its_links_lead_into_it(written: str) -> None:
    page = PageText(written)
    assert page.loads
    assert {link.removeprefix("#") for link in page.loads} <= {*page.ids}
    assert all(link.startswith("#") for link in page.loads)
    assert len(page.ids) == len({*page.ids})
    assert not {"link", "iframe", "img", "form"} & {*page.tags}
    without = re.sub(r'<script type="text/plain" id="plotly">.*?</script>', "", written)
    assert "default-src 'none'" in without
    assert not re.findall(r"https?://|@import", without)


def test_plotly_is_in_it_once_and_figures_have_tables(written: str) -> None:
    (packed,) = re.findall(r'<script type="text/plain" id="plotly">(.*?)</script>', written)
    assert b64decode(packed) == PLOTLY.read_bytes()
    assert b"Licensed under the MIT license" in gzip.decompress(b64decode(packed))[:300]
    figures = written.count('<script type="application/json">')
    assert figures == written.count("<summary>The same as tables</summary>") == 6
    assert '<th scope="col" class="n">best so far</th>' in section(written, "progress")


def test_the_page_of_a_study_says_what_matters(results: phyla.Results, written: str) -> None:
    best, text = results.best, " ".join(PageText(written).text.split())
    assert best is not None
    assert "drawn running" in text or "drawn completed" in text
    assert f"trial {best.trial} of member {best.member}, step {best.checkpoint.step}" in text
    assert best.checkpoint.where in text
    assert section(written, "members").count("<tr") == 5
    assert "took over member" in section(written, "feed")
    assert re.search(r'<td class="n odd">nan</td>', section(written, "trials-table") + section(written, "members"))
    (failed,) = results.failed()
    assert f">{failed.id}</a>" in section(written, "failed")
    schedule = results.schedule()
    assert section(written, "schedule").count("<tr") == 1 + len(schedule.changes())


def test_what_users_wrote_is_shown_as_they_wrote_it(tmp_path: Path) -> None:
    made = study(tmp_path, metric=HOSTILE)
    train(made, 3, HOSTILE)
    text = made.results().write_report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    page = PageText(text)
    assert page.tags.count("script") == 2 + text.count('<script type="application/json">')
    assert page.text.count("<script>alert('x')") > 8


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_study_of_any_length_has_a_report(rounds: int, tmp_path: Path) -> None:
    made = study(tmp_path)
    train(made, rounds)
    results = made.results()
    text = results.write_report(tmp_path / "report.html").read_text()
    assert ("has a finite fitness yet" in text) == (results.best is None)
    assert study_page(results).facts[0].value == f"{results.counts().get('completed', 0)} of 16"


def test_many_members_are_cut_and_that_is_said(tmp_path: Path) -> None:
    made = study(tmp_path, members=ROWS + 7)
    train(made, 1)
    for first, note in (
        (0, f"the best {ROWS} of {ROWS + 7} members"),
        (ROWS, "101 to 107, by fitness, of 107 members"),
    ):
        members = next(one for one in study_page(made.results(), first=first).sections if one.name == "members")
        assert isinstance(members, Table)
        assert members.note.startswith(note)
        assert [link.text for link in members.links] == (["before"] if first else ["after"])


def test_it_appears_complete_or_not_at_all(results: phyla.Results, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with raises(UsageError, tmp_path / "taken", "directory"):
        results.write_report(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    path = tmp_path / "report.html"
    path.write_text("old")
    assert results.write_report(path) == path
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "taken"]


@pytest.mark.thorough  # test_figures.py: a thousand members; test_columns.py: memory
def test_twenty_thousand_trials_stay_small(results: phyla.Results, tmp_path: Path) -> None:
    for data in (simulated(members=20, generations=20), large(100, 200), empty()):
        path = write_pages(tmp_path / "report.html", [study_page(results)], study_sections(data), 0.0)
        assert path.stat().st_size < MOST_BYTES


def test_the_page_of_a_watched_run(tmp_path: Path) -> None:
    found = eventful(tmp_path).evaluations
    page = found.write_report(tmp_path / "deep" / "page.html").read_text()
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert [one for one in titles if one.endswith("?")] == [
        "Is it getting better?",
        "How do the evaluations look?",
        "Which checkpoint is good at what?",
        "How far is evaluation behind training?",
    ]
    assert "heldout: 2 checkpoints and 400 steps behind" in page
    assert "ValueError: the model gave [nan]" in section(page, "causes")
    assert "regression: heldout" in section(page, "warnings")
    assert "the file ends early" in section(page, "quarantined")
    assert section(page, "suites").count("<td>heldout</td>") == 1
    assert section(page, "suite-1").count("<tr") == 1 + FEW


def test_a_run_that_has_seen_nothing_has_a_page_and_names_are_no_markup(tmp_path: Path) -> None:
    run = EvaluatedRun(tmp_path, [HELDOUT])
    assert "checkpoints seen" in run.evaluations.write_report(tmp_path / "page.html").read_text()
    run.sees("<b>a</b><script>1</script>", 100, error="<i>torn</i>")
    run.sees("<u>b</u>", 200)
    run.work()
    page = run.evaluations.write_report(tmp_path / "page.html").read_text()
    for markup in ("<script>1", "<i>torn", "<u>b"):
        assert markup not in page


def test_a_figure_without_data_says_why() -> None:
    found = [one for one in study_sections(empty()) if isinstance(one, Drawing)]
    assert [(one.figure, one.lead[:3]) for one in found] == [(None, "No ")] * 6


def test_no_character_turns_around_the_text_that_follows_it(tmp_path: Path) -> None:
    table = Table(name="odd", title="\u202etitle", lead="\u2066lead", columns=["שלום"], rows=[["\u202ecell 0.1"]])
    page = Page(study="s", title="\u202es", messages=["\u202e6.5"], sections=[table])
    text = write_pages(tmp_path / "report.html", [page], [], 0.0).read_text(encoding="utf-8")
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", parts(text))
    assert PageText(text).text.count("\\u202e") >= 4
    assert "שלום" in text
