"""`phyla best`: the best trial of a study."""

from typing import TYPE_CHECKING

from phyla.cli import options

if TYPE_CHECKING:
    from phyla.study import Results


def best(
    study: options.StudyName,
    home: options.Home = None,
    storage: options.Storage = None,
    checkpoints: options.Checkpoints = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the best trial: fitness, checkpoint, hyperparameters and how they changed on the way."""
    from phyla.cli.output import print_json
    from phyla.errors import StudyNotFound
    from phyla.study import load_study

    results = load_study(study, home=home, storage=storage, checkpoints=checkpoints)
    found = results.best
    if as_json:
        if found is None:
            print_json(None)
            return
        where = found.checkpoint
        print_json(
            {
                "study": study,
                "metric": results.metric,
                "fitness": found.fitness,
                "trial": found.trial,
                "member": found.member,
                "checkpoint": {
                    "name": where.name,
                    "path": str(where.path),
                    "index": where.index,
                    "step": where.step,
                    "digest": where.digest,
                    "size_bytes": where.size_bytes,
                },
                "params": found.params.flat(),
                "metrics": dict(found.metrics),
                "schedule": results.schedule(found.trial).to_json(),
            }
        )
        return
    if found is None:
        raise StudyNotFound(f"study {study!r} has no completed trial with a finite fitness yet")
    print("\n".join(best_lines(results)))


def best_lines(results: "Results") -> list[str]:
    """Return the best trial of a study and the schedule that led to it as lines of text."""
    from phyla.cli.words import number, size

    found = results.best
    if found is None:
        return ["no trial completed with a finite fitness"]
    where = found.checkpoint
    index = f", index {where.index}" if where.index else ""
    return [
        f"best {results.metric}  {number(found.fitness)}",
        f"trial       {found.trial} of member {found.member}, step {where.step}",
        f"checkpoint  {where.path}{index} ({size(where.size_bytes)})",
        "schedule",
        *(f"  {line}" for line in results.schedule(found.trial).table().splitlines()),
    ]
