"""The studies of a home, for tests that count them."""

from pathlib import Path

from phyla.study import Places, Results
from phyla.study.results.load import list_all


def list_studies(home: Path, checkpoints: Path | None = None) -> list[Results]:
    """Return the studies with a population, oldest first."""
    return [one for one in list_all(Places.of(home, None, checkpoints)) if isinstance(one, Results)]
