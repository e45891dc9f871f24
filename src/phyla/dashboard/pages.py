"""The context of each page, read from the store, for the templates."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from starlette.requests import Request

from phyla.errors import StudyNotFound
from phyla.formatting import fitness
from phyla.pages import Page, Row
from phyla.records import Attempt, StudyRecord, StudyState, TrialRecord, summarize_error
from phyla.report.page import PLOTLY
from phyla.report.page import environment as templates
from phyla.report.sections import COMPARISON_SECTIONS
from phyla.store import Store
from phyla.strategies import describe
from phyla.study.places import Places, check_kept, where_of
from phyla.study.results.evaluations import Evaluations
from phyla.study.results.pages.evaluations import evaluations_page, run_page
from phyla.study.results.pages.studies import job_rows, machine_row, studies_page, workers_page
from phyla.study.results.pages.study import study_page
from phyla.study.results.pages.trials import ROWS, later_link, links_around, trials_page, trials_table
from phyla.study.results.progress import mark_lost_workers, progress_of
from phyla.study.results.results import Results
from phyla.study.results.watched_runs import read_run_status

if TYPE_CHECKING:
    import jinja2

HERE = Path(__file__).parent / "static"
REPORT = PLOTLY.parents[1] / "templates"
FILES = {"page.css": REPORT, "page.js": REPORT}
FILES |= {"dashboard.css": HERE, "dashboard.js": HERE, "plotly.js": PLOTLY.parent}
ANCESTORS = 12
ENDED = (StudyState.COMPLETED, StudyState.DELETING)
DIGITS = 18
"""The most digits of an id."""
LOG_BYTES = 16 * 1024


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
        progress = [Results(self._store, study, self._places).progress(0) for study in page if not study.watched]
        runs = [read_run_status(Evaluations(self._store, study, self._places)) for study in page if study.watched]
        return _page(studies_page(progress, runs, self._store.url, links=links))

    def study(self, request: Request) -> dict[str, Any]:
        """Read one study, or one watched run."""
        study, first = self._find(request), _number(request.query_params.get("from"))
        if study.watched:
            return _page(run_page(Evaluations(self._store, study, self._places)))
        return _page(study_page(Results(self._store, study, self._places), first=first))

    def evaluations(self, request: Request) -> dict[str, Any]:
        """Read the evaluations of a study's newest checkpoints."""
        return _page(evaluations_page(Evaluations(self._store, self._find(request), self._places)))

    def trials(self, request: Request) -> dict[str, Any]:
        """Read a page of the trials of a study: the newest, or those after an id."""
        study, after = self._find(request), _number(request.query_params.get("after"))
        with self._store.reader(study.id) as reader:
            first = "after" in request.query_params
            rows = reader.trials(after=after, limit=ROWS) if first else reader.newest_trials(ROWS)
            return _page(trials_page(study, rows, sum(reader.counts().values())))

    def member(self, request: Request) -> dict[str, Any]:
        """Read one member, and a page of its trials."""
        study, index = self._find(request), _number(request.path_params["member"])
        after = _number(request.query_params.get("after"))
        with self._store.reader(study.id) as reader:
            if study.watched or not 0 <= index < study.population_size:
                raise StudyNotFound(f"study {study.name!r} has no member {index}")
            member = reader.member(index)
            progress = mark_lost_workers(progress_of(reader, [member]), self._places.locks)
            rows = [*reader.trials(member=index, after=after, limit=ROWS)]
        return {
            "title": f"Member {index} of {study.name}",
            "study": study,
            "member": member,
            "progress": progress,
            "at": progress.trials.get(index),
            "trials": trials_table(rows, "history", "Trials", links=later_link(rows)),
        }

    def trial(self, request: Request) -> dict[str, Any]:
        """Read one trial with its attempts, relatives, evaluations and log."""
        study, key = self._find(request), _number(request.path_params["trial"])
        with self._store.reader(study.id) as reader:
            trial = reader.job(key)
            if not isinstance(trial, TrialRecord):
                raise StudyNotFound(f"study {study.name!r} has no trial {key}")
            attempts = [*reader.attempts(trial.id)]
            row = None if trial.checkpoint is None else reader.checkpoint(trial.checkpoint)
            seen = None if row is None else reader.find_seen(row.name, trial.checkpoint_index)
            return {
                "title": f"Trial {trial.id} of {study.name}",
                "study": study,
                "trial": trial,
                "attempts": attempts,
                "ancestors": trials_table(
                    reader.ancestry(trial.id, 1 + ANCESTORS)[1:],
                    "lineage",
                    "Parents",
                    lead="The origin of its weights, nearest first.",
                    empty="It started fresh.",
                ),
                "children": trials_table(
                    reader.children(trial.id)[:ROWS],
                    "children",
                    "Children",
                    lead="Trials that started from its weights.",
                    empty="None.",
                ),
                "reported": [*reader.reports(trial.id)[-1:]],
                "checkpoint": row,
                "path": row and where_of(row, self._places.checkpoints(study.name, study.config)),
                "seen": seen,
                "groups": [] if seen is None else reader.groups_of(seen.id),
                "now": reader.now(),
                "log": _end_of_log(self._places, study.name, trial, attempts),
            }

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


def _end_of_log(
    places: Places, study: str, trial: TrialRecord, attempts: Sequence[Attempt]
) -> tuple[str, str] | None:
    """Return the path of the log of a trial's newest attempt, and its end; None if it is not on this machine.

    Nothing from the store becomes part of a path, except the number of a worker.
    """
    if not attempts:
        return None
    token, slot = attempts[-1].token, attempts[-1].worker.split(":")[1:2]
    work = places.folder("work", study) / f"trial-{trial.id}"
    files = [work / f"{name}-{token}.txt" for name in ("stderr", "stdout")]
    if slot and slot[0].isdecimal():
        files.append(places.folder("logs", study) / f"worker-{slot[0]}.log")
    for file in files:
        if file.is_file() and not file.is_symlink() and file.stat().st_size:
            with file.open("rb") as opened:
                opened.seek(max(0, file.stat().st_size - LOG_BYTES))
                return str(file), opened.read(LOG_BYTES).decode("utf-8", "replace")
    return None


@cache
def environment() -> "jinja2.Environment":
    """Return the templates of the dashboard, with their own filters."""
    pages = templates("phyla.dashboard")
    pages.filters.update({function.__name__: function for function in (describe, fitness, summarize_error)})
    pages.globals.update(static=_static_address)
    return pages


def static_file(name: str) -> Path:
    """Return the file of a script or style; reports share some of them."""
    return FILES[name] / name if name != "plotly.js" else PLOTLY


@cache
def _static_address(name: str) -> str:
    """Return the address of a script or style, with a digest of its content."""
    return f"/static/{name}?v={hashlib.sha256(static_file(name).read_bytes()).hexdigest()[:12]}"
