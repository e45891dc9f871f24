"""Draw the figures of the docs from what comparisons found: `python bench/quality/figures.py`."""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import published_figure
import published_page
from comparing import RESULTS
from contenders import BASELINE
from drawing import COLORS, Line, dots, draw, lines, ranks, svg
from early_stopping import CHANCE, LATE
from matplotlib.figure import Figure
from several_metrics import BASELINE as PARETO
from several_metrics import FAR, front
from summaries import read
from winner import ESTIMATE, FIRST_SEED, MEMBERS, RULES, Study, record
from winner_tasks import QUADRATIC

DOCS = Path(__file__).resolve().parents[2] / "docs" / "figures"
QUORUM = DOCS.parent / "strategies" / "quorum.md"
TOTAL_STEPS = 200
QUORUM_TASKS = {
    "learning rate; 16, 16": "16 members, 16 workers",
    "the same, one worker 4 times slower": "one worker is 4 times slower",
    "learning rate; 16, 4": "16 members, 4 workers",
}
"""Rows of its table that are drawn, with their titles."""


def curve_figure(title: str, table: dict[str, Any], labels: Sequence[str], what: str) -> str:
    """Return the best fitness so far over steps, median and quartiles over seeds; losses on a log scale."""
    found = [(label, table["curves"][label]) for label in labels if label in table["curves"]]
    drawn = [
        Line(label=label, x=curve["steps"], y=curve["median"], low=curve["low"], high=curve["high"])
        for label, curve in found
    ]
    return lines(title, drawn, "training steps of all members", what, log_y=not table["maximize"])


def rows_figure(title: str, table: dict[str, Any], what: str) -> str:
    """Return the medians and quartiles of a table."""
    rows = [(row["label"], row["low"], row["median"], row["high"]) for row in table["rows"]]
    return dots(title, rows, what, first=table["baseline"])


def interval_figure(table: dict[str, Any], what: str) -> str:
    """Return what each ready interval came to."""
    found = sorted((int(row["label"].split()[1]), row) for row in table["rows"])
    line = Line(
        label="median and quartiles",
        x=[steps for steps, _ in found],
        y=[row["median"] for _, row in found],
        low=[row["low"] for _, row in found],
        high=[row["high"] for _, row in found],
    )
    return lines("Ready interval, on the digits", [line], "steps between two decisions", what, log_x=True)


def schedule_figure(schedules: Sequence[Any], name: str = "lr") -> str:
    """Return one hyperparameter along the winning schedules of several seeds."""
    drawn = []
    for seed, schedule in schedules[:6]:
        segments = schedule["segments"]
        x = [segment["start_step"] for segment in segments] + [segments[-1]["end_step"]]
        y = [segment["params"][name] for segment in segments]
        drawn.append(Line(label=f"seed {seed}", x=x, y=[*y, y[-1]], step=True))
    return lines("Learning rates that populations found", drawn, "training step", "learning rate", log_y=True)


def front_figure(points: Sequence[Sequence[float]]) -> str:
    """Return the trials of a study with two goals, what it found of the front, and the true one."""
    edge = 1.05
    near = [one for one in points if max(one[:2]) <= edge]

    def marks(label: str, found: Sequence[Sequence[float]], color: str) -> Line:
        return Line(
            label=label, x=[one[0] for one in found], y=[one[1] for one in found], dotted=True, color=color
        )

    at = [FAR * (k / 50) ** 2 for k in range(51)]
    drawn = [
        marks("a trial", [one for one in near if one[2]], "#bbbbbb"),
        marks("a trial that is too far", [one for one in near if not one[2]], COLORS[1]),
        Line(label="the limit", x=[FAR, FAR], y=[0.0, edge], color=COLORS[5]),
        Line(label="the true front", x=at, y=[(1 - f1**0.5) ** 2 for f1 in at], color="#222222"),
        marks("the front that was found", front(near), COLORS[0]),
    ]
    title = "Two goals at odds: the trials of one population"
    x, y = "f1, squared distance from (0, 0)", "f2, squared distance from (1, 0)"
    return lines(title, drawn, x, y, within=(0.0, edge, 0.0, edge))


def why_figure(table: dict[str, Any], schedules: Sequence[Any]) -> str:
    """Return the figure of the README: a population against random search, and the learning rates it found."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = {BASELINE: "population based training", "random search": "random search"}
    curves = {label: table["curves"][label] for label in names if label in table["curves"]}
    draw(
        left,
        [
            Line(label=names[label], x=curve["steps"], y=curve["median"], low=curve["low"], high=curve["high"])
            for label, curve in curves.items()
        ],
    )
    left.set(title="Same number of steps, better model", xlabel="training steps of all members", yscale="log")
    left.set_ylabel("loss of the best model so far")
    left.legend()
    for index, schedule in enumerate(schedules[:6]):
        segments = schedule["segments"]
        x = [segment["start_step"] for segment in segments] + [segments[-1]["end_step"]]
        y = [segment["params"]["lr"] for segment in segments]
        color, width = (COLORS[0], 2.5) if not index else ("#bbbbbb", 1.0)
        right.step(x, [*y, y[-1]], where="post", color=color, linewidth=width, zorder=10 - index)
    right.set(title="The schedules that winners followed", xlabel="training step", yscale="log")
    right.set_ylabel("learning rate")
    return svg(figure)


def quorum_figure(page: str) -> str:
    """Return best score and time of each way to wait, from the table of the page on the quorum."""
    rows = re.findall(r"^\| (.+?) \| (\d.*?) \|$", page, re.MULTILINE)
    header = re.search(r"^\| task; members, workers \| (.+) \|$", page, re.MULTILINE)
    assert header is not None
    ways = header[1].split(" | ")
    chosen = [(task, cells) for task, cells in rows if task in QUORUM_TASKS]
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    for axes, (task, cells) in zip(figure.subplots(1, len(chosen)), chosen, strict=True):
        for way, cell, color in zip(
            ways, cells.split(" | "), (COLORS[1], COLORS[5], COLORS[0], COLORS[2]), strict=True
        ):
            score, age, time = map(float, cell.split(" / "))
            axes.plot(
                [time], [score], "o", color=color, markersize=9, label=f"quorum {way}" if way[0].isdigit() else way
            )
            if age > TOTAL_STEPS:
                axes.annotate(
                    f"weights {age:.0f} steps old",
                    (time, score),
                    (0, -14),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                )
        axes.margins(0.45)
        axes.set_title(QUORUM_TASKS[task], fontsize=10)
        axes.set_xlabel("time")
    figure.axes[0].set_ylabel("best score")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper")
    return svg(figure)


def luck_figure(study: Study) -> str:
    """Return the scores and true losses of a population with noisy scores, and what the best score hides."""
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    axes = figure.subplots()
    losses, true = ([-value for value in values] for values in (study.scores, study.true))
    x = [1 + place // MEMBERS + (place % MEMBERS / MEMBERS - 0.5) * 0.6 for place in range(len(losses))]
    axes.plot(x, losses, ".", color="#c4c4c4", label="score of a trial")
    axes.plot(x, true, ".", color=COLORS[0], markersize=4, label="its true loss")
    lucky, named = study.luckiest, RULES[ESTIMATE](study)
    for place, color, label in (
        (lucky, COLORS[1], "best score"),
        (named, COLORS[2], "score of the best by estimate"),
    ):
        axes.plot([x[place]] * 2, [losses[place], true[place]], color=color, linewidth=1.5)
        axes.plot([x[place]], [losses[place]], "o", color=color, label=f"{label}: {losses[place]:.2f}")
        axes.plot([x[place]], [true[place]], "D", color=color, label=f"its true loss: {true[place]:.2f}")
    axes.set(title="The best score is a lucky one", xlabel="trial of each member", ylabel="loss")
    axes.set(xticks=range(0, 21, 5), ylim=(min(losses) - 0.5, 5))
    figure.legend(loc="outside right upper")
    return svg(figure)


def figures(folder: Path) -> dict[str, str]:
    """Return every figure that can be drawn, by the name of its file."""
    found = read(folder)
    drawn: dict[str, str] = {}
    for name in [name for name in ("digits", "cartpole", "ring") if name in found]:
        table = found[name]["tables"][0]
        drawn[f"{name}.svg"] = rows_figure(found[name]["title"], table, table["caption"].split(";")[0])
    if "ablations" in found:
        summary = found["ablations"]
        at, what = summary["places"], "negative log-likelihood, test"
        drawn["interval.svg"] = interval_figure(summary["tables"][at["interval"]], what)
    if "replay" in found:
        drawn["schedules.svg"] = schedule_figure(found["replay"]["schedules"])
    if "tradeoff" in found:
        summary = found["tradeoff"]
        drawn["front.svg"] = front_figure(summary["scattered"][PARETO])
    if "stopping" in found:
        summary = found["stopping"]
        table = summary["tables"][summary["places"]["digits"]]
        # The other two run along with random search.
        labels = [label for label in table["curves"] if label not in (LATE, CHANCE)]
        title = f"Best so far: {table['caption'].split(', after')[0]}"
        drawn["stopping-digits.svg"] = curve_figure(title, table, labels, "negative log-likelihood, validation")
    if "digits" in found:
        drawn["why.svg"] = why_figure(found["digits"]["tables"][0], found["digits"]["schedules"])
    schedules = folder / "schedules.json"
    if schedules.exists():
        document = json.loads(schedules.read_text())
        title = "Populations and decays: mean rank of the median over tasks"
        drawn["ranks.svg"] = ranks(title, document["ranks"], document["critical_difference"])
    published = folder / "published.json"
    if published.exists():
        drawn[published_page.FIGURE] = published_figure.figure(json.loads(published.read_text()))
    drawn["luck.svg"] = luck_figure(record(QUADRATIC, 1.0, FIRST_SEED))
    drawn["quorum.svg"] = quorum_figure(QUORUM.read_text())
    return drawn


def main() -> None:
    """Draw what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument("--out", type=Path, default=DOCS, help="where figures go")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, text in figures(options.folder).items():
        (options.out / name).write_text(text)
        print(f"wrote {options.out / name}")


if __name__ == "__main__":
    main()
