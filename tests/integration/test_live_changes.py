"""A study that exists is changed: extended, resized, with other settings; also when it is killed meanwhile."""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from durability import miscounted
from effort import rarely
from facts import check_facts, raises
from forked import Forked
from phyla.cli.app import run_app
from phyla.errors import ConfigurationError, StudyChanged
from phyla.records import JobKind, JobState, StudyState
from phyla.settings import child_environment
from phyla.study.running.open import join_study
from waiting import until

STEPS = 5
SPACE = phyla.Space(lr=phyla.Float(0.01, 1.0, log=True))


def train(trial: phyla.Trial) -> None:
    value = json.loads((trial.source.path / "value.json").read_text()) if trial.source else 0.0
    hold = Path(trial.worker or "/nowhere") / "hold"
    for _ in trial.steps():
        value += trial.params["lr"]
        while hold.exists() and not trial.should_stop:
            time.sleep(0.005)
    (trial.checkpoint_dir / "value.json").write_text(json.dumps(value))
    trial.report(score=value)


def setup(worker: phyla.WorkerContext) -> str:
    return str(worker.working_dir.parents[3])


def pbt(size: int, trials: int = 4, **more: Any) -> phyla.PBT:
    return phyla.PBT(population_size=size, steps_per_trial=STEPS, total_steps=trials * STEPS, **more)


def study(folder: Path, strategy: Any, **options: Any) -> phyla.Study:
    return phyla.Study(
        "live",
        options.pop("space", SPACE),
        phyla.Maximize("score"),
        strategy,
        train,
        setup=setup,
        home=folder / "home",
        **options,
    )


def changed(folder: Path, strategy: Any, **options: Any) -> phyla.Study:
    made = study(folder, strategy, **options)
    made.change()
    return made


def spent(results: phyla.Results) -> list[int]:
    return [member.progress for member in results.members() if not member.retired]


def completed(results: phyla.Results) -> int:
    return sum(row.state is JobState.COMPLETED and row.kind is JobKind.TRAIN for row in results.trials())


@pytest.mark.parametrize("kind", ["pbt", "sync", "initiator", "initiator without gate"])
def test_a_finished_study_is_extended(tmp_path: Path, kind: str) -> None:
    def strategy(trials: int) -> Any:
        if kind.startswith("initiator"):
            return phyla.InitiatorPBT(
                population_size=3, steps_per_trial=STEPS, total_steps=trials * STEPS, gate=kind == "initiator"
            )
        return pbt(3, trials, quorum=1.0 if kind == "sync" else 0.8)

    first = study(tmp_path, strategy(2)).run()
    rows = {row.id: row for row in first.trials()}
    assert first.state is StudyState.COMPLETED
    results = changed(tmp_path, strategy(5)).run()
    assert spent(results) == [5 * STEPS] * 3
    assert completed(results) == 15
    assert {row.id: row for row in results.trials() if row.id in rows} == rows, "what was is untouched"
    (change,) = results.changes()
    assert (change.name, change.before, change.after) == ("strategy.total_steps", 2 * STEPS, 5 * STEPS)
    assert change.at >= max(row.ended_at or 0.0 for row in rows.values())


@pytest.mark.parametrize("quorum", [0.0, 1.0])
def test_a_complete_study_that_has_nothing_left_stays_complete(tmp_path: Path, quorum: float) -> None:
    first = study(tmp_path, pbt(3, 2, quorum=quorum)).run()
    other = phyla.PBT(population_size=3, steps_per_trial=2, total_steps=2 * STEPS, quorum=quorum)
    (change,) = study(tmp_path, other).change()
    assert change.name == "strategy.steps_per_trial"
    assert study(tmp_path, replace(other, population_size=2)).change()
    assert first.study().state is StudyState.COMPLETED
    assert {member.state for member in first.members()} == {"done"}
    more = replace(other, population_size=2, total_steps=3 * STEPS)
    assert study(tmp_path, more).change()
    assert first.study().state is StudyState.RUNNING
    assert spent(study(tmp_path, more).run()) == [3 * STEPS] * 2


def test_who_runs_a_study_with_settings_that_it_can_never_have_is_not_sent_to_change_it(tmp_path: Path) -> None:
    study(tmp_path, pbt(3, 2)).run()
    other = study(tmp_path, pbt(3, 2), seed=7)
    with raises(StudyChanged, "seed") as told:
        other.run()
    assert "phyla change" not in str(told.value)


@pytest.mark.parametrize("quorum", [0.8, 1.0])
def test_a_study_is_extended_with_another_population_size(tmp_path: Path, quorum: float) -> None:
    study(tmp_path, pbt(4, 2, quorum=quorum)).run()
    with raises(StudyChanged, "population_size", "4", "6", "phyla change FILE"):
        study(tmp_path, pbt(6, 4, quorum=quorum)).run()
    with raises(ConfigurationError, "6 members", "total_steps"):
        changed(tmp_path, pbt(6, 2, quorum=quorum))
    grown = changed(tmp_path, pbt(6, 4, quorum=quorum)).run()
    assert spent(grown) == [4 * STEPS] * 6
    assert not miscounted(grown, 4 * STEPS)
    assert grown.progress().active == 6
    if quorum == 1:
        # Four trained 4 trials each; two joined after 2 of them.
        assert completed(grown) == 4 * 4 + 2 * 2
        progress = grown.progress()
        assert (progress.completed, progress.planned_trials) == (20, 20)
        assert (progress.spent_steps, progress.total_steps) == (20 * STEPS, 20 * STEPS)
    before = completed(grown)
    shrunk = changed(tmp_path, pbt(3, 5, quorum=quorum)).run()
    assert spent(shrunk) == [5 * STEPS] * 3
    assert completed(shrunk) == before + 3
    assert shrunk.write_report(tmp_path / "report.html").exists()


def test_running_trials_are_untouched_by_other_settings(tmp_path: Path) -> None:
    first = study(tmp_path, pbt(2, exploit=None, explore=None))
    trial = first.ask()
    assert trial is not None
    other = changed(tmp_path, phyla.PBT(population_size=2, steps_per_trial=10, total_steps=40))
    longer = other.ask()
    assert longer is not None
    (trial.checkpoint_dir / "value.json").write_text("1.0")
    first.tell(trial, metrics={"score": 1.0})
    rows = {row.id: row for row in other.results().trials()}
    assert rows[trial.id].end_step == STEPS
    assert rows[trial.id].state is JobState.COMPLETED
    assert rows[longer.id].end_step == 10
    names = [change.name for change in other.results().changes()]
    assert "strategy.steps_per_trial" in names
    assert "strategy.exploit.plugin" in names
    at = other.results().changes()[0].at
    assert rows[trial.id].created_at <= at <= rows[longer.id].created_at


@pytest.mark.parametrize("size", [2, rarely(6)])
def test_a_study_is_resized_while_workers_run_and_goes_on_with_new_ones(tmp_path: Path, size: int) -> None:
    (tmp_path / "hold").touch()
    # Three workers, and those that replace them until their settings are those of the study.
    running = Forked(["-c", PROGRAM, tmp_path, 4, 4, "run", 3], env=environment(), spares=12)

    def held() -> bool:
        try:
            return len(phyla.load_study("live", home=tmp_path / "home").progress().running) == 3
        except phyla.PhylaError:
            return False

    until(held, "three trials run", process=running)
    assert [one.after for one in study(tmp_path, pbt(size, quorum=1.0)).change()] == [size]
    (tmp_path / "hold").unlink()
    forked.run(["-c", PROGRAM, tmp_path, size, 4, "run", 1], env=environment(), check=True, spares=1)
    assert running.wait(180) == 0, "the study that it supervised is complete"
    results = phyla.load_study("live", home=tmp_path / "home")
    assert results.state is StudyState.COMPLETED
    assert spent(results) == [4 * STEPS] * size
    assert completed(results) == 4 * size
    cancelled = [row for row in results.trials() if row.state is JobState.CANCELLED]
    assert len(cancelled) <= 2
    assert bool(cancelled) == (size == 2)


PROGRAM = """
import sys
from pathlib import Path
from test_live_changes import pbt, study

made = study(Path(sys.argv[1]), pbt(int(sys.argv[2]), int(sys.argv[3]), quorum=1.0))
if sys.argv[4] == "change":
    made.change()
made.run(workers=int(sys.argv[5]))
"""


def environment(failpoint: str = "") -> dict[str, str]:
    path = f"{Path(__file__).parent}{os.pathsep}{forked.HELPERS}"
    return child_environment({"PYTHONPATH": path, "PHYLA_FAILPOINT": failpoint})


@pytest.mark.parametrize("size", [2, rarely(6)])
@pytest.mark.parametrize("name", [rarely("change.before_commit"), "change.after_commit"])
def test_killed_while_it_changes_and_run_again(tmp_path: Path, name: str, size: int) -> None:
    def run(size: int, trials: int, failpoint: str = "", *, how: str = "change") -> int:
        words = ["-c", PROGRAM, tmp_path, size, trials, how, 0]
        return forked.run(words, env=environment(failpoint)).returncode

    assert run(4, 2, how="run") == 0
    assert run(size, 3, f"{name}=kill") == -signal.SIGKILL
    assert run(size, 3) == 0
    results = phyla.load_study("live", home=tmp_path / "home")
    assert spent(results) == [3 * STEPS] * size
    assert completed(results) == 4 * 2 + size
    assert len(results.changes()) == 2
    assert results.state is StudyState.COMPLETED


@pytest.mark.parametrize("how", [StudyState.STOPPED, StudyState.FAILED])
def test_a_study_that_ended_before_its_time_goes_on_after_a_change(tmp_path: Path, how: StudyState) -> None:
    made = study(tmp_path, pbt(2, 2))
    assert made.ask() is not None
    opened = made._open()
    opened.store.set_state(opened.record.id, how, "for a test")
    if how is StudyState.STOPPED:
        assert made.ask() is None
    assert made.change() == []
    assert made.ask() is not None


def test_workers_that_join_hold_leases_as_long_as_those_of_the_run(tmp_path: Path) -> None:
    study(tmp_path, pbt(2, 2)).ask(lease_s=7.0)
    joining = study(tmp_path, pbt(2, 2))
    joined, client = join_study(joining.declared, joining.config())
    client.store.close()
    assert joined.rules.lease_s == 7.0


def test_newcomers_that_make_no_sense(tmp_path: Path) -> None:
    newcomers: Any = "elite"
    with raises(ConfigurationError, "newcomers=", "elite", "best", "fresh"):
        study(tmp_path, pbt(2)).change(newcomers=newcomers)


def phyla_command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    capsys.readouterr()  # what was shown while studies ran
    before, sys.argv = sys.argv, ["phyla", *map(str, words)]
    try:
        with pytest.raises(SystemExit) as ended:
            run_app()
    finally:
        sys.argv = before
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    return int(ended.value.code or 0), out.out + out.err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(tmp_path, pbt(3, 2)).ask(lease_s=0.01)
    home = ("--home", tmp_path / "home")
    code, text = phyla_command(capsys, "change", "live", *home)
    assert code == 0
    check_facts(text, "live", "running")
    code, text = phyla_command(capsys, "change", "other", *home)
    assert (code, "there is no study 'other'" in text) == (2, True)
    study(tmp_path, pbt(5, 2)).change()
    code, text = phyla_command(capsys, "status", "live", *home)
    assert code == 0
    check_facts(text, "strategy.population_size", "3", "5")
    study(tmp_path, pbt(2, 2)).change(newcomers="fresh")
    assert "retired" in phyla_command(capsys, "status", "live", *home)[1]
    results = study(tmp_path, pbt(2, 2)).run()
    assert spent(results) == [2 * STEPS] * 2


def test_a_space_is_widened_and_a_parameter_added(tmp_path: Path) -> None:
    narrow = phyla.Space(lr=phyla.Float(0.1, 0.2))
    old = study(tmp_path, pbt(4, 3), space=narrow).run()
    before = {row.id: row for row in old.trials()}
    wide = phyla.Space(lr=phyla.Float(0.1, 1.0), decay=phyla.Float(0.0, 1.0, default=0.25))
    with raises(StudyChanged, "space.parameters.decay"):
        study(tmp_path, pbt(4, 6), space=wide).run()
    results = changed(tmp_path, pbt(4, 6), space=wide).run()
    assert spent(results) == [6 * STEPS] * 4
    later = [row for row in results.trials() if row.id not in before]
    assert all(wide.contains(row.params) and "decay" in row.params for row in later)
    firsts = [row for row in later if row.parent in before]
    continued = [row for row in firsts if row.reason["decision"] == "continue"]
    assert continued
    assert {row.params["decay"] for row in continued} == {0.25}
    assert {row.id: row for row in results.trials() if row.id in before} == before
    assert {change.name for change in results.changes()} >= {"strategy.total_steps", "space.parameters.lr.high"}
    again = phyla.replay("live", train=train, home=tmp_path / "home")
    assert results.best is not None
    assert again.best is not None
    assert again.best.fitness == results.best.fitness


@pytest.mark.parametrize("strategy", ["initiator", "backtrack"])
def test_older_trials_that_are_chosen_again_get_the_default(tmp_path: Path, strategy: str) -> None:
    def made(trials: int) -> Any:
        if strategy == "initiator":
            return phyla.InitiatorPBT(population_size=4, steps_per_trial=STEPS, total_steps=trials * STEPS)
        return pbt(4, trials, exploit=phyla.strategies.Backtrack(quantile=0.5, pool=0.5))

    study(tmp_path, made(3)).run()
    wide = phyla.Space(lr=phyla.Float(0.01, 1.0, log=True), mode=phyla.Choice(["a", "b"], default="a"))
    results = changed(tmp_path, made(8), space=wide).run()
    assert spent(results) == [8 * STEPS] * 4
    assert all(wide.contains(row.params) for row in results.trials())


@pytest.mark.parametrize(
    ("space", "match"),
    [
        (phyla.Space(lr=phyla.Float(0.02, 1.0, log=True)), "0.01 0.02 low"),
        (phyla.Space(rate=phyla.Float(0.01, 1.0)), "default"),
        (phyla.Space({"lr": phyla.Float(0.01, 1.0, log=True)}, constraints=[bool]), "space.constraints"),
    ],
)
def test_a_space_that_is_not_wider_is_refused(tmp_path: Path, space: phyla.Space, match: str) -> None:
    study(tmp_path, pbt(2, 2)).ask(lease_s=0.01)
    with raises((ConfigurationError, phyla.PhylaError), *match.split()):
        changed(tmp_path, pbt(2, 2), space=space)
    assert study(tmp_path, pbt(2, 2)).run().changes() == []


def test_the_status_for_programs_tells_changes_and_who_is_retired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study(tmp_path, pbt(3, 2)).ask()
    study(tmp_path, pbt(2, 2)).change()
    code, text = phyla_command(capsys, "status", "live", "--json", "--home", tmp_path / "home")
    assert code == 0
    told = json.loads(text)
    (change,) = told["changes"]
    assert (change["name"], change["before"], change["after"]) == ("strategy.population_size", 3, 2)
    assert [member["retired"] for member in told["members"]] == [False, False, True]


def test_the_status_shows_the_last_score_of_a_retired_member(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = study(tmp_path, pbt(3, 2)).run()
    study(tmp_path, pbt(2, 2)).change()
    _, text = phyla_command(capsys, "status", "live", "--json", "--home", tmp_path / "home")
    (member,) = (one for one in json.loads(text)["members"] if one["retired"])
    last = [row for row in results.trials() if row.member == member["member"]][-1]
    assert (member["trial"], member["fitness"], member["params"]) == (last.id, last.fitness, last.params)
    assert member["fitness"] is not None
