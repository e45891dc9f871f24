"""The report of a comparison of studies."""

import os
from html import escape
from pathlib import Path

from phyla.report.comparison import StudyComparison, StudyGroup
from phyla.report.comparison_figures import curves_figure, finals_figure, sensitivity_figure
from phyla.report.page import ROWS, Cell, document, figure_section, section, table, write_page
from phyla.report.times import time_figure
from phyla.report.words import counted, duration, number, score, short

ALPHA = 0.05
"""Adjusted p below which a difference is set in bold."""


def write_comparison_report(
    comparison: StudyComparison, path: str | os.PathLike[str], *, title: str | None = None
) -> Path:
    """Write a comparison as one HTML file that works offline.

    The file appears complete or not at all; folders on the way are created.

    Args:
        comparison: what was compared.
        path: the file; one that exists is replaced.
        title: heading of the report; the default names the groups.

    Returns:
        The file.

    Raises:
        OSError: the file cannot be written.
    """
    names = [group.name for group in comparison.groups]
    heading = title or (" and ".join(names) if len(names) < 4 else f"{len(names)} studies compared")
    times = time_figure(
        {group.name: group.time for group in comparison.groups},
        "Seconds of all workers and replicates, failed attempts too",
    )
    body = (
        _header(comparison, heading),
        figure_section("curves", curves_figure(comparison)),
        figure_section("finals", finals_figure(comparison)),
        _tests(comparison),
        figure_section("sensitivity", sensitivity_figure(comparison)),
        figure_section("times", times),
        _studies(comparison),
    )
    now = max(one.data.last_moment for group in comparison.groups for one in group.studies)
    return write_page(Path(path), document(heading, body, now))


def _header(comparison: StudyComparison, title: str) -> str:
    aim = f"{'maximise' if comparison.maximize else 'minimise'} {comparison.metric}"
    notes = "".join(f'<p class="message">{escape(note)}</p>' for note in comparison.notes)
    head = [
        "",
        f"final {comparison.metric}, median",
        "quartiles",
        "mean",
        "replicates",
        _reached_words(comparison),
    ]
    best = _best(comparison)
    rows = [_summary(comparison, group, best=group is best) for group in comparison.groups]
    return f"""<header>
<p class="kind">comparison of studies, {escape(aim)}</p>
<h1>{escape(short(title, 200))}</h1>
{notes}
{table(head, ["", "n", "n", "n", "n", "n"], rows)}
</header>"""


def _best(comparison: StudyComparison) -> StudyGroup | None:
    if len(comparison.groups) < 2:
        return None
    choose = max if comparison.maximize else min
    return choose(comparison.groups, key=lambda group: group.final.median)


def _reached_words(comparison: StudyComparison) -> str:
    return f"{'steps' if comparison.by == 'steps' else 'time'} until {score(comparison.target)}, median"


def _summary(comparison: StudyComparison, group: StudyGroup, *, best: bool) -> list[Cell]:
    final = group.final
    count, work = comparison.reached(group)
    shown = "never" if work is None else f"{work:,.0f}" if comparison.by == "steps" else duration(work)
    if count < len(group.studies):
        shown += f" ({count} of {len(group.studies)} did)"
    return [
        (group.name, "winner" if best else ""),
        (score(final.median), "n winner" if best else "n"),
        (f"{score(final.low)} to {score(final.high)}" if len(final.values) > 1 else "-", "n"),
        (score(final.mean), "n"),
        (f"{len(final.values)}", "n"),
        (shown, "n"),
    ]


def _tests(comparison: StudyComparison) -> str:
    if len(comparison.groups) < 2:
        return ""
    rows: list[list[Cell]] = []
    for test in comparison.tests[:ROWS]:
        sure = test.p_holm is not None and test.p_holm < ALPHA
        counts = counted(test.count[0], "pair") if test.paired else f"{test.count[0]} and {test.count[1]}"
        rows.append(
            [
                (test.first, ""),
                (test.second, ""),
                (number(test.difference), "n"),
                (test.test, ""),
                (counts, "n"),
                (p_words(test.p), "n"),
                (p_words(test.p_holm), "n changed" if sure else "n"),
                ("-" if test.p is None else p_words(test.smallest), "n"),
            ]
        )
    lead = (
        "p is the chance of such a difference, or a larger one, in either direction if there were none; tests are "
        "exact. Groups whose replicates share seeds are compared in pairs. Adjusted by Holm for the number of "
        f"rows; below {ALPHA} in bold. The last column is the smallest p that so few replicates can give."
    )
    head = ["", "against", "difference of medians", "test", "replicates", "p", "p adjusted", "smallest p"]
    return section(
        "Is the difference real?", table(head, ["", "", "n", "", "n", "n", "n", "n"], rows), escape(lead)
    )


def p_words(p: float | None) -> str:
    """Return a probability with two digits; `too few` for none."""
    if p is None:
        return "too few"
    return f"{p:.2g}" if p >= 0.001 else f"{p:.0e}"


def _studies(comparison: StudyComparison) -> str:
    rows: list[list[Cell]] = []
    for row in comparison.rows()[:ROWS]:
        work = row["reached_target_at"]
        reached = "never" if work is None else f"{work:,.0f}" if comparison.by == "steps" else duration(work)
        rows.append(
            [
                (row["study"], ""),
                (row["state"], ""),
                (str(row["seed"]), "n"),
                (score(row["final"]), "n"),
                (f"{row['steps']:,}", "n"),
                (duration(row["wall_s"]), "n"),
                (reached, "n"),
            ]
        )
    head = [
        "study",
        "state",
        "seed",
        f"final {comparison.metric}",
        "steps",
        "wall time",
        _reached_words(comparison),
    ]
    head[-1] = head[-1].removesuffix(", median")
    return section("Studies", table(head, ["", "", "n", "n", "n", "n", "n"], rows))
