"""What an operator may do from the dashboard: what the command line does, with a record of who did it."""

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

Given = Mapping[str, str]


@final
@dataclass(frozen=True, slots=True)
class Action:
    """Something that an operator may do to a study."""

    title: str  # what it is, before the name of the study
    text: str  # what follows from it, to be confirmed
    run: Callable[[Store, Places, StudyRecord, Given], str]  # does it, and returns in words what was done

    def do(self, store: Store, places: Places, name: str, who: str, given: Given) -> None:
        """Do it, and remember who did; `PhylaError` if it cannot be done."""
        study = store.find_study(name)
        if study is None:
            raise UsageError(f"there is no study {name!r}")
        check_kept(study)
        done = self.run(store, places, study, given)
        Maintenance(store, study, places).note(who, done)


def _stop(store: Store, places: Places, study: StudyRecord, given: Given) -> str:
    Maintenance(store, study, places).stop("stopped from the dashboard")
    return "stopped the study"


def _resume(store: Store, places: Places, study: StudyRecord, given: Given) -> str:
    if not Maintenance(store, study, places).resume():
        raise StateError(f"study {study.name!r} is running already")
    return "let the study go on"


def _retry(store: Store, places: Places, study: StudyRecord, given: Given) -> str:
    members = Maintenance(store, study, places).retry()
    listed = ", ".join(map(str, members[:20])) + (" and others" if len(members) > 20 else "")
    were = "was" if len(members) == 1 else "were"
    return f"let {format_count(len(members), 'member')} try again that {were} given up: {listed}"


def _evaluate(store: Store, places: Places, study: StudyRecord, given: Given) -> str:
    seen, suite = given.get("checkpoint", ""), given.get("suite", "")
    if not seen.isdecimal() or len(seen) > 18:
        raise UsageError(f"checkpoint {seen!r}: give its number")
    with store.reader(study.id) as reader:
        try:
            checkpoint = reader.seen(int(seen))
        except KeyError as error:
            raise UsageError(f"{study.name!r} has seen no checkpoint {seen}") from error
    Sightings(store, study, suites_from(study.config, plugins.absent)).evaluate_again(checkpoint.id, suite)
    return f"had suite {suite} evaluate checkpoint {checkpoint.name} again"


ACTIONS: Mapping[str, Action] = {
    "stop": Action(
        "Stop", "Its workers finish their trial and end. What it has found stays, and it can go on later.", _stop
    ),
    "resume": Action(
        "Resume",
        "It may go on, and members that were given up try again. Workers that wait for it begin at once; "
        "without any, run its study file again.",
        _resume,
    ),
    "retry": Action(
        "Retry what was given up in",
        "Members whose trials kept breaking decide again. Their failed trials stay as they are.",
        _retry,
    ),
    "evaluate": Action(
        "Evaluate again in",
        "Eval tasks that failed, or were skipped, run once more. Where all have results, the suite runs with "
        "other seeds, beside the first results.",
        _evaluate,
    ),
}
