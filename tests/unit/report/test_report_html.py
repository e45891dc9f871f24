"""The report: one file that needs nothing else and shows what users wrote as they wrote it."""

import gzip
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from phyla.records import StudyState
from phyla.report import STUDY_FIGURES, StudyData, write_report
from phyla.report.page import PLOTLY
from report_study import columns, empty, large, records_of, simulated

HOSTILE = "<script>alert('x')</script> \"quoted\" & </script>"


class Page(HTMLParser):
    """Collects tags, text outside of scripts and styles, and everything that could be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "data")
        ]
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.text += data


@pytest.fixture(scope="module")
def study() -> StudyData:
    return simulated(failing=0.1)


@pytest.fixture(scope="module")
def written(study: StudyData, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(study, tmp_path_factory.mktemp("report") / "report.html").read_text(encoding="utf-8")


def without_plotly(text: str) -> str:
    """Return a page without Plotly's script."""
    return re.sub(r'<script type="text/plain" id="plotly">.*?</script>', "", text)


def test_it_loads_nothing_from_anywhere(written: str) -> None:
    page = Page(written)
    assert page.loads == []
    assert "link" not in page.tags
    assert "iframe" not in page.tags
    assert "default-src 'none'" in unescape(written)
    assert not re.findall(r"https?://", without_plotly(written))
    assert "@import" not in without_plotly(written)


def test_plotly_is_in_it_once(study: StudyData, written: str) -> None:
    (packed,) = re.findall(r'<script type="text/plain" id="plotly">(.*?)</script>', written)
    assert b64decode(packed) == PLOTLY.read_bytes()
    assert b"Licensed under the MIT license" in gzip.decompress(b64decode(packed))[:300]
    drawn = sum(bool(draw(study).data) for draw in STUDY_FIGURES.values())
    assert written.count("data-figure=") == written.count('type="application/json"') == drawn == 6


def test_behind_every_figure_are_tables(written: str) -> None:
    assert written.count("<summary>The same as tables</summary>") == written.count("data-figure=")
    table = written[written.index("<summary>") : written.index("</details>")]
    assert '<th class="n">best so far</th>' in table
    assert '<td class="n">5,000</td>' in table


def test_figures_with_nothing_to_show_say_why(written: str) -> None:
    text = " ".join(Page(written).text.split())
    assert "What are the trade-offs? The objective has one goal." in text


def test_the_header_says_what_matters(study: StudyData, written: str) -> None:
    text = " ".join(Page(written).text.split())
    best = study.best
    assert best is not None
    assert "digits, small network completed" in text
    assert "maximize accuracy" in text
    assert f"by trial {best.id} of member {best.member} at step {best.reached_step:,}" in text
    assert f"/data/runs/digits/checkpoints/{best.checkpoint}" in text
    assert re.search(r"trials completed ?160 ?trials failed", text)
    assert "40,000" in text


def test_the_winners_schedule_is_a_table_of_changes(study: StudyData, written: str) -> None:
    assert study.schedule is not None
    section = written[written.index("<h2>The winner") :]
    rows = section[: section.index("</table>")].count("<tr>") - 1
    assert rows == len(study.schedule.changes()) < len(study.schedule.segments)
    assert 'class="n changed"' in section


def test_every_member_has_a_row_with_its_last_decision(written: str) -> None:
    section = written[written.index("<h2>Members") :]
    section = section[: section.index("</table>")]
    assert section.count("<tr>") == 9
    assert "took over member" in section


def test_what_users_wrote_is_shown_as_they_wrote_it(study: StudyData, tmp_path: Path) -> None:
    trials = [replace(t, params={HOSTILE: HOSTILE}, error=HOSTILE) for t in records_of(study)]
    hostile = replace(
        study,
        study=replace(study.study, name=HOSTILE, message=HOSTILE, state=StudyState.FAILED, config={}),
        trials=columns(trials),
        attempts=replace(study.attempts, workers=[f"{HOSTILE} {name}" for name in study.attempts.workers]),
        aim=replace(study.aim, name=HOSTILE, description=HOSTILE),
        path_of=lambda name: HOSTILE,
    )
    path = write_report(hostile, tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    page = Page(text)
    assert page.tags.count("script") == 2 + text.count("data-figure=")
    assert page.text.count("<script>alert('x')</script>") > 8


def test_where_a_checkpoint_is_may_be_unknown(study: StudyData, tmp_path: Path) -> None:
    best = study.best
    assert best is not None
    name = best.checkpoint or ""
    for place, shown in (("s3://bucket/best", "s3://bucket/best"), (None, name)):
        path = write_report(replace(study, path_of={name: place}.get), tmp_path / "report.html")
        assert f"<code>{shown}</code>" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("make", [empty, partial(simulated, until=12)], ids=["empty", "unfinished"])
def test_a_study_that_has_not_ended_has_a_report(make: Callable[[], StudyData], tmp_path: Path) -> None:
    data = make()
    text = Page(write_report(data, tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "running" in text
    assert ("no finite fitness yet" in text) == (not len(data.trials))


def test_it_appears_complete_or_not_at_all(study: StudyData, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_report(study, tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    path = tmp_path / "report.html"
    path.write_text("old")
    assert write_report(study, path) == path
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "taken"]


def test_twenty_thousand_trials_stay_small(tmp_path: Path) -> None:
    path = write_report(large(100, 200), tmp_path / "report.html")
    assert path.stat().st_size < 1_500_000
