"""Whole studies whose diverging trials are stopped early."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import phyla
from diverging_study import STEPS, TOO_HIGH, diverging
from effort import rarely
from facts import raises
from phyla.cli.app import run_app
from phyla.errors import StudyChanged
from phyla.records import JobState, StudyState

SPACE = {"lr": phyla.Float(0.1, 1.0)}


@pytest.mark.parametrize("workers", [0, rarely(2)])
def test_diverging_trials_are_stopped_before_their_end(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = diverging(tmp_path)
    results = study.run(workers=workers)
    assert results.state is StudyState.COMPLETED
    assert results.counts()["completed"] == 4 * 3
    trials = {trial.id: trial for trial in results.trials()}
    stopped = [trial for trial in trials.values() if trial.stop_reason is not None]
    assert len(stopped) == results.counts()["cancelled"] > 0
    work = study.places.folder("work", "diverging")
    saved = 0
    for trial in stopped:
        assert trial.state is JobState.CANCELLED
        assert float(str(trial.params["lr"])) > TOO_HIGH
        done = int((work / f"trial-{trial.id}" / "steps.txt").read_text())
        assert done < STEPS
        saved += STEPS - done
        replacement = next(t for t in trials.values() if t.replaces == trial.id)
        head = [t for t in trials.values() if t.member == trial.member and t.state is JobState.COMPLETED]
        ancestor = next((t.id for t in head if t.generation == trial.generation - 1), None)
        assert ancestor in (replacement.parent, replacement.jump_from)
        assert trial.checkpoint is None
    assert saved > 0
    assert not any(
        (Path(str(study.places.checkpoints("diverging"))) / f"{trial.id}.1").exists() for trial in stopped
    )

    _shown(tmp_path, monkeypatch, capsys, len(stopped))


def _shown(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stopped: int) -> None:
    """See what the command line says about them."""

    def said(command: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["phyla", command, "diverging", "--home", str(home), *words])
        with pytest.raises(SystemExit) as ended:
            run_app()
        printed = capsys.readouterr()
        assert not ended.value.code, printed.err
        return printed.out

    assert f"{stopped} cancelled" in said("status")
    assert json.loads(said("status", "--json"))["cancelled_trials"] == stopped
    rows = json.loads(said("trials", "--json", "--state", "cancelled"))
    assert len(rows) == stopped
    assert all("above 1.5" in row["stop_reason"] or "was nan" in row["stop_reason"] for row in rows)
    assert "stopped at step" in said("trials")
    file = home / "report.html"
    said("report", "--output", str(file))
    assert f"{stopped} cancelled" in file.read_text()


def study(home: Path, train: Any, *stopping: Any, **options: Any) -> phyla.Study:
    return phyla.Study(
        "short",
        SPACE,
        phyla.Maximize("score"),
        phyla.PBT(population_size=2, steps_per_trial=5, total_steps=10, exploit=phyla.Truncation(0.5)),
        train,
        home=home,
        stopping=stopping,
        **options,
    )


def diverges(reported: Any) -> str | None:
    """A rule of one's own: every first try is hopeless."""
    return "hopeless" if reported.trial.replaces is None and reported.values("score") == [0.0, 0.0] else None


def test_trials_that_are_over_before_their_reports_are_sent_are_judged_too(tmp_path: Path) -> None:
    left: list[Path] = []

    def train(trial: phyla.Trial) -> None:
        for step in trial.steps():
            trial.report(score=0.0, step=step)
        (trial.checkpoint_dir / "a").write_text("a")
        left.append(trial.checkpoint_dir)

    results = study(tmp_path, train, phyla.strategies.StopWith(diverges, history=2)).run()
    assert results.counts() == {"completed": 4, "cancelled": 4}
    reasons = [trial.stop_reason for trial in results.trials() if trial.stop_reason]
    assert {(reason["rule"], reason["why"]) for reason in reasons} == {("diverges", "hopeless")}
    kept = {path.name for path in Path(str(results.places.checkpoints("short"))).iterdir() if path.is_dir()}
    assert not kept & {f"{trial.id}.1" for trial in results.trials() if trial.stop_reason}


def test_the_median_rule_gives_the_same_study_every_time(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        chain = json.loads((trial.source.path / "chain.json").read_text()) if trial.source else []
        chain.append(trial.params["lr"])
        for step in trial.steps():
            trial.report(score=sum(chain) + (trial.seed % 100) / 100, step=step)
        (trial.checkpoint_dir / "chain.json").write_text(json.dumps(chain))

    def ran(home: Path) -> list[Any]:
        rule = phyla.MedianStopping(min_steps=2, min_trials=2)
        strategy = phyla.PBT(population_size=6, steps_per_trial=8, total_steps=24, quorum=1.0)
        made = phyla.Study(
            "m",
            SPACE,
            phyla.Maximize("score"),
            strategy,
            train,
            home=home,
            stopping=rule,
            retries=phyla.Retries(stops=2),
        )
        results = made.run()
        assert results.counts()["completed"] == 6 * 3
        return [(t.member, t.parent, t.state.value, dict(t.params), t.stop_reason) for t in results.trials()]

    first = ran(tmp_path / "a")
    assert ran(tmp_path / "b") == first
    reasons = [row[-1] for row in first if row[-1]]
    assert reasons
    assert all(reason["rule"] == "median" and reason["best"] < reason["median"] for reason in reasons)


def test_a_function_that_ignores_the_stop_leaves_nothing(tmp_path: Path) -> None:
    seen: list[Any] = []
    begun: set[tuple[int, int]] = set()

    def train(trial: phyla.Trial) -> None:
        first = (trial.member, trial.generation) not in begun
        begun.add((trial.member, trial.generation))
        trial.report(score=float("nan") if first else 1.0, step=trial.start_step + 1)
        waited = threading.Event()
        for _ in range(60_000):
            if not first or trial.should_stop:
                break
            waited.wait(0.001)
        seen.append((first, trial.stop_reason and dict(trial.stop_reason), list(trial.steps())))
        (trial.checkpoint_dir / "a").write_text("a")
        trial.report(score=1.0, step=trial.end_step)

    results = study(tmp_path, train, phyla.strategies.Divergence()).run()
    assert results.counts() == {"completed": 4, "cancelled": 4}
    for first, reason, steps in seen:
        assert (reason is not None) == first
        # The loop over the steps ends at once, too.
        assert (steps == []) == first


def test_told_trials_are_judged_when_they_are_told(tmp_path: Path) -> None:
    made = study(tmp_path, None, phyla.strategies.Divergence())
    for value in (float("nan"), 1.0, float("nan"), 1.0, 1.0, 1.0):
        trial = made.ask()
        assert trial is not None
        (trial.checkpoint_dir / "a").write_text("a")
        made.tell(trial, metrics={"score": value})
    assert made.finished
    assert made.results().counts() == {"completed": 4, "cancelled": 2}


def test_rules_are_changed_by_change_only(tmp_path: Path) -> None:
    def train(trial: phyla.Trial) -> None:
        for _ in trial.steps():
            pass
        (trial.checkpoint_dir / "a").write_text("a")
        trial.report(score=1.0)

    study(tmp_path, train).run()
    changed = study(tmp_path, train, phyla.strategies.Divergence(above=2.0))
    with raises(StudyChanged, "stopping.rules.0.above", "2.0"):
        changed.run()
    changed.change()
    changed.run()
    with raises(StudyChanged, "stopping.max_stops", "3", "7"):
        study(tmp_path, train, phyla.strategies.Divergence(above=2.0), retries=phyla.Retries(stops=7)).run()
    study(tmp_path, train).change()
    study(tmp_path, train).run()
