"""The progress of a study in single lines, while it runs."""

from collections import Counter

from phyla.formatting import duration, fitness, format_count
from phyla.records import summarize_error
from phyla.study.results.pages.study import completed_words, final_words
from phyla.study.results.progress import Progress


def progress_line(progress: Progress) -> str:
    """Return the progress of a study on one line."""
    counts = progress.counts
    parts = [f"{completed_words(progress)} trials"]
    parts += [f"{counts[state]} {state}" for state in ("failed", "cancelled") if counts.get(state)]
    parts += [f"final: {final_words(progress)}"] if progress.final is not None else []
    best = progress.best
    if best is not None:
        parts += [f"front {len(progress.front)}"] if progress.aim.tradeoffs else []
        parts.append(f"best score {fitness(best)} (member {best.member}, step {best.reached_step})")
    parts += [] if progress.left_s is None else [f"{duration(progress.left_s)} left"]
    return "  ".join(parts)


def waiting_line(progress: Progress, since: float) -> str:
    """Return which trials were requeued, why, and when the next try is due; empty without any."""
    from phyla.worker.loop import MOST_PAUSE_S

    returned = [attempt for attempt in progress.given_back if attempt.claimed_at >= since]
    if not returned:
        return ""
    counts = Counter(attempt.worker for attempt in returned)
    last = {attempt.worker: attempt.ended_at or 0.0 for attempt in returned}
    next_s = min(at + min(MOST_PAUSE_S, 2.0 ** (counts[worker] - 1)) for worker, at in last.items()) - progress.now
    trials = ", ".join(map(str, sorted({attempt.job for attempt in returned})))
    return (
        f"trial {trials}: {format_count(len(returned), 'time')} back in the queue; next try within "
        f"{duration(next_s)}; the last time: {summarize_error(returned[-1].error)}"
    )


def workers_line(progress: Progress) -> str:
    """Return how many workers train, evaluate, or are gone."""
    gone = sum(attempt.job in progress.gone for attempt in progress.running)
    longest = [progress.now - attempt.claimed_at for attempt in progress.running]
    parts = [f"{len(progress.running) - gone} training"]
    parts += [f"{progress.evaluating} evaluating"] if progress.evaluating else []
    parts += [f"{gone} held by workers that are gone"] if gone else []
    parts += [f"the longest for {duration(max(longest))}"] if longest else []
    return f"workers: {', '.join(parts)}"
