"""The context of each page, read from the store, for the templates."""

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from starlette.requests import Request

from phyla.errors import StudyNotFound
from phyla.pages import Page, Row
from phyla.records import StudyRecord, StudyState, TrialRecord
from phyla.report.page import PLOTLY
from phyla.report.page import environment as templates
from phyla.report.sections import COMPARISON_SECTIONS
from phyla.store import Store
from phyla.study.places import Places, check_kept
from phyla.study.results.evaluations import Evaluations
from phyla.study.results.pages.evaluations import evaluations_page, run_page
from phyla.study.results.pages.studies import job_rows, machine_row, studies_page, workers_page
from phyla.study.results.pages.study import study_page
from phyla.study.results.pages.trials import ROWS, links_around, member_page, trial_page, trials_page
from phyla.study.results.results import Results
from phyla.study.results.watched_runs import read_run_status

if TYPE_CHECKING:
    import jinja2

HERE = Path(__file__).parent / "static"
REPORT = PLOTLY.parents[1] / "templates"
FILES = {"page.css": REPORT, "page.js": REPORT}
FILES |= {"dashboard.css": HERE, "dashboard.js": HERE, "plotly.js": PLOTLY.parent}
ENDED = (StudyState.COMPLETED, StudyState.DELETING)
POINTS = 16
"""Points of the line that shows the best score of a study so far."""
DIGITS = 18
"""The most digits of an id."""


@final
class Pages:
    """Reads the contexts of pages.

    Args:
        store: the store of the studies.
        places: the places of their files, as far as this machine can reach them.
    """

    def __init__(self, store: Store, places: Places) -> None:
        self._store = store
        self._places = places

    def _find(self, request: Request) -> StudyRecord:
        name = request.path_params["name"]
        study = self._store.find_study(name)
        if study is None:
            raise StudyNotFound(f"no study {name!r} in {self._store.url}")
        check_kept(study)
        return study

    def studies(self, request: Request) -> dict[str, Any]:
        """Read the list of studies and watched runs, newest first."""
        known = [study for study in reversed(self._store.studies()) if study.state is not StudyState.DELETING]
        first = _number(request.query_params.get("from"))
        page, links = known[first : first + ROWS], links_around(first, first + ROWS, len(known))
        populations = [Results(self._store, study, self._places) for study in page if not study.watched]
        progress = [results.progress(0) for results in populations]
        courses = {results.name: [best for best, *_ in results.course(POINTS)] for results in populations}
        runs = [read_run_status(Evaluations(self._store, study, self._places)) for study in page if study.watched]
        return _page(studies_page(progress, runs, self._store.url, links=links, courses=courses))

    def study(self, request: Request) -> dict[str, Any]:
        """Read one study, or one watched run."""
        study, first = self._find(request), _number(request.query_params.get("from"))
        if study.watched:
            return _page(run_page(Evaluations(self._store, study, self._places), pictures=True))
        return _page(study_page(Results(self._store, study, self._places), first=first, pictures=True))

    def evaluations(self, request: Request) -> dict[str, Any]:
        """Read the evaluations of a study's newest checkpoints."""
        return _page(evaluations_page(Evaluations(self._store, self._find(request), self._places)))

    def trials(self, request: Request) -> dict[str, Any]:
        """Read a page of the trials of a study: the newest, or those after an id."""
        study, after = self._find(request), _number(request.query_params.get("after"))
        with self._store.reader(study.id) as reader:
            newest = "after" not in request.query_params
            rows = reader.newest_trials(ROWS) if newest else reader.trials(after=after, limit=ROWS)
            return _page(trials_page(study, rows, sum(reader.counts().values()), newest=newest))

    def member(self, request: Request) -> dict[str, Any]:
        """Read one member, and a page of its trials."""
        study, index = self._find(request), _number(request.path_params["member"])
        after = _number(request.query_params.get("after"))
        with self._store.reader(study.id) as reader:
            if study.watched or not 0 <= index < study.population_size:
                raise StudyNotFound(f"study {study.name!r} has no member {index}")
            return _page(member_page(reader, index, after, self._places))

    def trial(self, request: Request) -> dict[str, Any]:
        """Read one trial."""
        study, key = self._find(request), _number(request.path_params["trial"])
        with self._store.reader(study.id) as reader:
            trial = reader.job(key)
            if not isinstance(trial, TrialRecord):
                raise StudyNotFound(f"study {study.name!r} has no trial {key}")
            return _page(trial_page(reader, trial, self._places))

    def workers(self, request: Request) -> dict[str, Any]:
        """Read the current jobs of workers, and the machines on which studies were started."""
        jobs, machines = list[Row](), list[Row]()
        for study in self._store.studies():
            if study.state in ENDED:
                continue
            gone = frozenset[int]()
            if not study.watched:
                gone = Results(self._store, study, self._places).progress(0).gone
            with self._store.reader(study.id) as reader:
                jobs += job_rows(reader, study, gone)
                machines += [machine_row(study, start) for start in reader.starts()[-1:]]
        return _page(workers_page(jobs, machines))

    def comparison(self, request: Request) -> dict[str, Any]:
        """Read the chosen studies of a comparison; its results are figures."""
        known = [
            study
            for study in reversed(self._store.studies())
            if not study.watched and study.state not in ENDED[1:]
        ]
        chosen = [
            name
            for name in dict.fromkeys(request.query_params.getlist("study"))
            if any(study.name == name for study in known)
        ]
        return {
            "title": " and ".join(chosen) if 1 < len(chosen) < 4 else "Compare studies",
            "known": known[:ROWS],
            "chosen": chosen,
            "drawings": COMPARISON_SECTIONS if len(chosen) > 1 else (),
        }


# Helpers of pages


def _number(text: str | None) -> int:
    """Return a number of an address; 0 if it is missing or not a valid id."""
    return int(text) if text and text.isdecimal() and len(text) <= DIGITS else 0


def _page(page: Page) -> dict[str, Any]:
    return {"title": page.title, "page": page}


@cache
def environment() -> "jinja2.Environment":
    """Return the templates of the dashboard, with their own filters."""
    pages = templates("phyla.dashboard")
    pages.globals.update(static=_static_address)
    return pages


def static_file(name: str) -> Path:
    """Return the file of a script or style; reports share some of them."""
    return FILES[name] / name if name != "plotly.js" else PLOTLY


@cache
def _static_address(name: str) -> str:
    """Return the address of a script or style, with a digest of its content."""
    return f"/static/{name}?v={hashlib.sha256(static_file(name).read_bytes()).hexdigest()[:12]}"
