"""Actions of operators in the dashboard: those of the command line, recorded with the name of the token."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from phyla import plugins
from phyla.configuration import suites_from
from phyla.controller import Sightings
from phyla.errors import StateError, UsageError
from phyla.formatting import format_count
from phyla.records import StudyRecord
from phyla.store import Store
from phyla.study.maintaining.maintain import Maintenance
from phyla.study.places import Places, check_kept

Arguments = Mapping[str, str]


@final
@dataclass(frozen=True, slots=True)
class Action:
    """An action on a study."""

    title: str  # precedes the name of the study
    text: str  # its consequences, shown for confirmation
    run: Callable[
        [Store, Places, StudyRecord, Arguments], str
    ]  # executes it and returns a description for the record

    def do(self, store: Store, places: Places, name: str, user: str, arguments: Arguments) -> None:
        """Execute the action and record the user; `PhylaError` if it is not possible."""
        study = store.find_study(name)
        if study is None:
            raise UsageError(f"there is no study {name!r}")
        check_kept(study)
        done = self.run(store, places, study, arguments)
        Maintenance(store, study, places).note(user, done)


def _stop(store: Store, places: Places, study: StudyRecord, arguments: Arguments) -> str:
    Maintenance(store, study, places).stop("stopped from the dashboard")
    return "stopped the study"


def _resume(store: Store, places: Places, study: StudyRecord, arguments: Arguments) -> str:
    if not Maintenance(store, study, places).resume():
        raise StateError(f"study {study.name!r} is already running")
    return "resumed the study"


def _retry(store: Store, places: Places, study: StudyRecord, arguments: Arguments) -> str:
    members = Maintenance(store, study, places).retry()
    listed = ", ".join(map(str, members[:20])) + (" and others" if len(members) > 20 else "")
    return f"retried {format_count(len(members), 'member')} that had been given up: {listed}"


def _evaluate(store: Store, places: Places, study: StudyRecord, arguments: Arguments) -> str:
    seen, suite = arguments.get("checkpoint", ""), arguments.get("suite", "")
    if not seen.isdecimal() or len(seen) > 18:
        raise UsageError(f"checkpoint {seen!r}: pass the id of a registered checkpoint, a number")
    with store.reader(study.id) as reader:
        try:
            checkpoint = reader.seen(int(seen))
        except KeyError as error:
            raise UsageError(f"study {study.name!r} has no registered checkpoint {seen}") from error
    Sightings(store, study, suites_from(study.config, plugins.absent)).evaluate_again(checkpoint.id, suite)
    return f"requested another evaluation of checkpoint {checkpoint.name} by suite {suite}"


ACTIONS: Mapping[str, Action] = {
    "stop": Action(
        "Stop", "Workers finish their trials and exit. Results are kept, and the study can be resumed.", _stop
    ),
    "resume": Action(
        "Resume",
        "The study continues, and members that were given up try again. Waiting workers start at once; "
        "if there are none, run the study file again.",
        _resume,
    ),
    "retry": Action(
        "Retry given-up members of",
        "Members that were given up after repeated failures start a new trial. Failed trials are kept.",
        _retry,
    ),
    "evaluate": Action(
        "Evaluate again in",
        "Eval tasks that failed or were skipped run again. If all have results, the suite runs once more with "
        "other seeds; the first results are kept.",
        _evaluate,
    ),
}
