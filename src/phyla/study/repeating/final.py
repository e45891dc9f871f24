"""A final of a study that has ended."""

from dataclasses import replace

from phyla.errors import StateError
from phyla.records import StudyState
from phyla.strategies import Final
from phyla.study.places import find_study
from phyla.study.study import Study


def with_final(study: Study, final: Final) -> Study:
    """Return a completed study with a final, which running it holds.

    Raises:
        StudyNotFound: there is no such study.
        StateError: it has not ended; nothing was changed.
        ConfigurationError: its objective has trade-offs.
    """
    store, record = find_study(study.name, study.places)
    store.close()
    if record.state is not StudyState.COMPLETED and record.config.get("final") is None:
        raise StateError(
            f"study {study.name!r} is {record.state}, and a final comes after training: run it to its end first, "
            "or add final=phyla.Final() to its file, which holds one then"
        )
    study.declared = replace(study.declared, rules=replace(study.rules, final=final))
    return study
