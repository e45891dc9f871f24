"""Replicates: the same study with other seeds."""

from typing import Any

from phyla.records import StudyState
from phyla.study.results.results import Results
from phyla.study.study import Study
from phyla.validation import check_integer


def replicates(study: Study, count: int) -> list[Study]:
    """Return the first replicates of a study, as studies: `NAME-r0`, `NAME-r1`, ... with seeds of their own."""
    count = check_integer("replicates", count)
    return [study.replicate(index) for index in range(count)]


def run_replicates(study: Study, count: int, workers: int = 0, **options: Any) -> list[Results]:
    """Run a study several times, one replicate after the other, each with a seed of its own.

    Run again, it resumes: replicates that are complete stay as they are. Replicate i is the study `NAME-r{i}` with
    `replicate_seed(seed, i)`, and remembers that it is one; `phyla.compare` puts replicates together.

    Args:
        study: the study to repeat; it does not run itself.
        count: how many replicates.
        workers: worker processes to start for each; 0 works in this process.
        **options: as `Study.run` takes them.

    Returns:
        The results of the replicates; when one was stopped with `phyla stop`, up to that one.

    Raises:
        ConfigurationError: an argument is invalid.
        StudyFailed: a replicate stopped itself; the ones after it were not run. The rest is as for `Study.run`.
    """
    done: list[Results] = []
    for replicate in replicates(study, count):
        done.append(replicate.run(workers, **options))
        if done[-1].state is StudyState.STOPPED:
            # A person stopped this one with `phyla stop`, and meant what follows too.
            break
    return done
