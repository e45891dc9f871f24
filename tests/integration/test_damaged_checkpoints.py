"""Checkpoints whose files are not what was committed: nobody trains from them, and everybody is told."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import phyla
from command_line import Phyla
from damage import WAYS, cut, delete, flip, overwrite, swap
from effort import rarely
from facts import check_facts, raises
from phyla.checkpoints import MANIFEST_NAME, manifest
from phyla.checkpoints.manifest import Entry, digests
from phyla.errors import CheckpointCorrupt, StudyFailed
from phyla.records import CheckpointState, GroupState, JobState, StudyState, TrialRecord
from phyla.store import open_store
from phyla.study import Results
from phyla.study.maintaining.doctor import CheckResult, examine
from phyla.worker import Trial

STEPS = 5


def train(trial: Trial) -> None:
    """Append this trial to the chain of trials that the parent's weights hold."""
    chain = json.loads((trial.source.path / "chain.json").read_text()) if trial.source else []
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "chain.json").write_text(json.dumps([*chain, trial.id]))
    (trial.checkpoint_dir / "optimizer").mkdir()
    (trial.checkpoint_dir / "optimizer" / "state").write_bytes(b"state" * 100)
    trial.report(score=len(chain) + trial.params["lr"])


def study(home: Path, trials: int, *, members: int = 3, train: Any = train, **options: Any) -> phyla.Study:
    # Every member needs its own newest checkpoint.
    strategy = phyla.PBT(population_size=members, steps_per_trial=STEPS, total_steps=STEPS * trials, exploit=None)
    space = {"lr": phyla.Float(0.1, 1.0)}
    return phyla.Study("bytes", space, phyla.Maximize("score"), strategy, train, home=home, **options)


def extended(home: Path, trials: int, **options: Any) -> phyla.Study:
    made = study(home, trials, **options)
    made.change()
    return made


def heads(results: Results) -> dict[int, str]:
    """Name of the newest checkpoint of each member."""
    return {member.index: member.head.checkpoint for member in results.members() if member.head is not None}


def directory(results: Results, name: str) -> Path:
    return Path(str(results.places.checkpoints(results.name))) / name


def check(results: Results, damaged: Sequence[str], *, completed: int) -> None:
    """The study is whole, and what it trained on the way is what its lineage says."""
    assert results.state is StudyState.COMPLETED
    assert results.counts()["completed"] == completed
    assert "failed" not in results.counts(), "damage is no failure of the training function"
    assert {row.name for row in results.damaged()} == set(damaged)
    trials = {trial.id: trial for trial in results.trials()}
    rows = {row.name: row for row in results.checkpoints()}
    for trial in trials.values():
        if trial.parent_checkpoint in damaged:
            assert trial.state in (JobState.CANCELLED, JobState.COMPLETED)
        checkpoint = rows.get(trial.checkpoint or "")
        if checkpoint is not None and checkpoint.state is CheckpointState.LIVE:
            chain = json.loads((directory(results, checkpoint.name) / "chain.json").read_text())
            assert chain == ancestry(trial, trials), "weights of another trial"
    for name in damaged:
        assert directory(results, name).is_dir(), "the damaged bytes are kept"


def ancestry(trial: TrialRecord, trials: dict[int, TrialRecord]) -> list[int]:
    path = [trial.id]
    while (parent := trials[path[-1]].parent) is not None:
        path.append(parent)
    return path[::-1]


def completed_since(results: Results, before: int) -> list[TrialRecord]:
    return [trial for trial in results.trials() if trial.id > before and trial.state is JobState.COMPLETED]


def test_missing_checkpoints_are_not_told_as_bad_scores(tmp_path: Path, cli: Phyla) -> None:
    results = study(tmp_path, trials=2).run()
    kept = [directory(results, row.name) for row in results.checkpoints() if row.state is CheckpointState.LIVE]
    (tmp_path / "aside").mkdir()
    for path in kept:
        path.rename(tmp_path / "aside" / path.name)
    study(tmp_path, trials=2).run()
    assert results.best is None
    told = cli("best", "bytes", "--home", tmp_path, code=2)
    check_facts(told, "6 completed")
    check_facts(told, "phyla doctor bytes")
    assert "of which 0 are there again" in cli("doctor", "bytes", "--home", tmp_path)
    for path in kept:
        (tmp_path / "aside" / path.name).rename(path)
    assert "found missing when the study used them: 6, of which 6 are there again" in cli(
        "doctor", "bytes", "--home", tmp_path
    )
    assert study(tmp_path, trials=2).run().best is not None
    assert "found missing" not in cli("doctor", "bytes", "--home", tmp_path)


def test_nobody_trains_from_a_damaged_checkpoint_and_everybody_sees_it(tmp_path: Path, cli: Phyla) -> None:
    first = study(tmp_path, 2).run()
    before = max(trial.id for trial in first.trials())
    bad = heads(first)[1]
    cut(directory(first, bad))
    results = extended(tmp_path, 4).run()
    check(results, [bad], completed=12)
    assert all(trial.parent_checkpoint != bad for trial in completed_since(results, before))
    (row,) = results.damaged()
    assert row.error is not None
    check_facts(row.error, bad)
    check_facts(row.error, "499 bytes, the manifest says 500 bytes")
    assert "1 damaged checkpoint" in cli("status", "--home", tmp_path)
    shown = cli("status", "bytes", "--home", tmp_path)
    check_facts(shown, "1 damaged checkpoint")
    assert row.error in shown
    listed = cli("trials", "bytes", "--home", tmp_path)
    assert re.search(rf"took over member \d's weights at step \d+, since checkpoint {bad} was damaged", listed)
    told = json.loads(cli("status", "bytes", "--home", tmp_path, "--json"))["damaged"]
    assert told == [{"checkpoint": bad, "trial": row.trial, "step": row.step, "damage": row.error}]
    assert row.error in cli("doctor", "--home", tmp_path)
    report = results.write_report(tmp_path / "report.html").read_text()
    assert "<h2>Damaged checkpoints</h2>" in report
    assert f"<td>{bad}</td>" in report


def test_worker_processes_find_every_kind_of_damage(tmp_path: Path) -> None:
    first = study(tmp_path, 2, members=len(WAYS) + 1).run()
    before = max(trial.id for trial in first.trials())
    names = heads(first)
    bad = [names[member] for member in range(len(WAYS))]
    # Swapped first, with one that is sound.
    for name, damage in zip(bad, reversed([*WAYS.values()]), strict=True):
        damage(directory(first, name))
    results = extended(tmp_path, 3, members=len(WAYS) + 1).run(workers=1)
    check(results, bad, completed=3 * (len(WAYS) + 1))
    assert not {trial.parent_checkpoint for trial in completed_since(results, before)} & set(bad)
    assert [row.name for row in results.damaged() if row.name not in str(row.error)] == []


def test_if_all_are_damaged_members_start_fresh_and_the_study_goes_on(tmp_path: Path) -> None:
    first = study(tmp_path, 2, members=4).run()
    before = max(trial.id for trial in first.trials())
    bad = [row.name for row in first.checkpoints() if row.state is CheckpointState.LIVE]
    for name in bad:
        flip(directory(first, name))
    needed = set(heads(first).values())
    # Were these failures of training, the study would have stopped.
    results = extended(tmp_path, 4, members=4, retries=phyla.Retries(broken=2, attempts=1)).run()
    found = [row.name for row in results.damaged()]
    assert set(found) >= needed
    check(results, found, completed=15)
    fresh = [trial for trial in completed_since(results, before) if trial.parent is None]
    assert fresh
    assert all(trial.reason["decision"] == "recover" for trial in fresh)


def test_asking_gives_out_no_damaged_checkpoint(tmp_path: Path) -> None:
    first = study(tmp_path, 2).run()
    bad = heads(first)[0]
    flip(directory(first, bad))
    made = extended(tmp_path, 4)
    asked = made.ask(3)
    assert {trial.member for trial in asked} == {0, 1, 2}
    assert bad not in {trial.parent.name for trial in asked if trial.parent is not None}
    for trial in asked:
        train(trial)
    made.tell(asked)
    while (following := made.ask()) is not None:
        train(following)
        made.tell(following)
    check(made.results(), [bad], completed=12)


def test_damaged_progress_sends_the_retry_back_to_the_parent(tmp_path: Path) -> None:
    begun: list[tuple[int, int]] = []

    def saving(trial: Trial) -> None:
        if trial.generation == 1:
            begun.append((trial.id, trial.source.step if trial.source else 0))
            if len(begun) == 1:
                (trial.checkpoint_dir / "chain.json").write_text("[]")
                trial.save_progress(step=trial.start_step + 2)
                raise KeyboardInterrupt
        train(trial)

    with pytest.raises(KeyboardInterrupt):
        study(tmp_path, 2, members=1, train=saving).run()
    (progress,) = [row for row in study(tmp_path, 2, members=1).results().checkpoints() if ".p" in row.name]
    overwrite(Path(str(study(tmp_path, 2).places.checkpoints("bytes"))) / progress.name / "chain.json", b"{}")
    results = study(tmp_path, 2, members=1, train=saving).run()
    check(results, [progress.name], completed=2)
    assert begun == [(begun[0][0], STEPS), (begun[0][0], STEPS)], "the same trial, from its parent"
    assert results.trials()[-1].failures == 0


def test_a_checkpoint_that_is_damaged_while_training_reads_it(tmp_path: Path) -> None:
    bad: list[str] = []

    def damaging(trial: Trial) -> None:
        if trial.generation == 2 and trial.parent is not None and not bad:
            # The process has verified these bytes.
            bad.append(trial.parent.name)
            overwrite(trial.parent.path / "chain.json", b"[")
        train(trial)

    results = study(tmp_path, 4, train=damaging, retries=phyla.Retries(attempts=1, broken=1)).run()
    check(results, bad, completed=12)
    (cancelled,) = [trial for trial in results.trials() if trial.state is JobState.CANCELLED]
    assert cancelled.failures == 0
    assert "JSONDecodeError" in (cancelled.error or "")
    assert "chain.json is not what was committed" in (cancelled.error or "")
    assert "training may have written into the checkpoint that it loads ({source}," in (cancelled.error or "")


def test_what_is_sound_is_read_once_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    real = digests

    def counting(entries: Sequence[Entry]) -> list[str]:
        # A commit reads what is staged; verification reads what is committed.
        read.extend(entry.path for entry in entries if ".staging" not in entry.path.parts)
        return real(entries)

    monkeypatch.setattr(manifest, "digests", counting)
    attempts: list[int] = []

    def failing_once(trial: Trial) -> None:
        attempts.append(trial.id)
        if attempts.count(trial.id) == 1:
            raise ValueError("tried again")
        train(trial)

    results = study(tmp_path, 3, train=failing_once).run()
    parents = {trial.parent_checkpoint for trial in results.trials()} - {None}
    assert results.best is not None
    best = results.best.checkpoint.name
    # Once before the first attempt, and once more since that failed; the best one again before the run ends.
    times = {name: 2 * (name in parents) + (name == best) for name in (*parents, best)}
    assert Counter(path.parent.name for path in read if path.name == "chain.json") == times
    assert len(read) == 2 * sum(times.values())
    assert results.damaged() == []


@pytest.mark.parametrize("way", ["flipped bit", rarely("deleted file"), "vanished"])
def test_the_best_checkpoint_is_verified_before_the_run_ends(tmp_path: Path, way: str) -> None:
    scores: dict[int, float] = {}

    def hurting(trial: Trial) -> None:
        train(trial)
        chain = json.loads((trial.checkpoint_dir / "chain.json").read_text())
        # The first trial is the best; its checkpoint is kept for that, and nobody loads it again.
        scores[trial.id] = 100.0 if trial.id == 1 else float(len(chain))
        trial.report(score=scores[trial.id])
        if trial.generation == 3 and trial.member == 0:
            best = phyla.load_study("bytes", home=tmp_path).best
            assert best is not None
            assert best.trial == 1
            shutil.rmtree(best.checkpoint.path) if way == "vanished" else WAYS[way](best.checkpoint.path)

    results = study(tmp_path, 4, train=hurting).run()
    best = results.best
    assert best is not None
    assert best.trial != 1
    assert best.fitness == 4.0
    assert (best.checkpoint.path / "chain.json").exists()
    (first,) = [row for row in results.checkpoints() if row.trial == 1]
    assert first.state is (CheckpointState.LOST if way == "vanished" else CheckpointState.DAMAGED)


# --- evaluation


EVALUATED: list[str] = []


@phyla.eval_task
def measure(evaluation: phyla.Evaluation) -> None:
    """Read the weights."""
    chain = json.loads((evaluation.checkpoint.path / "chain.json").read_text())
    EVALUATED.append(evaluation.checkpoint.name)
    evaluation.record(length=len(chain))


SPOILED: list[str] = []


@phyla.eval_task
def spoil(evaluation: phyla.Evaluation) -> None:
    """Read the weights, and damage one checkpoint of the second generation while it is evaluated."""
    chain = json.loads((evaluation.checkpoint.path / "chain.json").read_text())
    if len(chain) == 2 and not SPOILED:
        SPOILED.append(evaluation.checkpoint.name)
        delete(evaluation.checkpoint.path)
    evaluation.record(length=len(chain))


SUITE = phyla.Suite("length", [measure], objective=phyla.Maximize("length_mean"))


def test_a_damaged_checkpoint_that_waits_for_evaluation_is_gone_and_not_scored(
    tmp_path: Path,
) -> None:
    def interrupted(trial: Trial) -> None:
        if trial.generation == 1:
            raise KeyboardInterrupt
        train(trial)

    EVALUATED.clear()
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path, 4, train=interrupted, suites=[SUITE]).run(kinds=["train"])
    first = phyla.load_study("bytes", home=tmp_path)
    bad = heads(first)[1]
    flip(directory(first, bad))
    results = study(tmp_path, 4, suites=[SUITE]).run()
    # The member that lost its weights took over others that had been trained as long.
    check(results, [bad], completed=12)
    assert bad not in EVALUATED
    (gone,) = _groups(results, GroupState.GONE)
    assert f"checkpoint {bad}" in (gone.why or "")
    assert "is not what was committed" in (gone.why or "")
    assert not _groups(results, GroupState.QUEUED)


@pytest.mark.parametrize("quorum", [0.0, 1.0])
def test_a_population_does_not_wait_for_the_score_of_a_damaged_checkpoint(tmp_path: Path, quorum: float) -> None:
    SPOILED.clear()
    strategy = phyla.PBT(
        population_size=3,
        steps_per_trial=STEPS,
        total_steps=STEPS * 4,
        quorum=quorum,
        fitness=phyla.FromSuite("length", "length_mean"),
    )
    made = phyla.Study(
        "bytes",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        strategy,
        train,
        suites=[phyla.Suite("length", [spoil], objective=phyla.Maximize("length_mean"))],
        home=tmp_path,
    )
    results = made.run()
    check(results, SPOILED, completed=11 if quorum == 0 else 12)
    (gone,) = _groups(results, GroupState.GONE)
    assert "found nothing" in (gone.why or "")
    unscored = [trial.checkpoint for trial in results.trials() if trial.fitness is None]
    assert [name for name in unscored if name] == SPOILED


def _groups(results: Results, state: GroupState) -> list[Any]:
    store = open_store(results.places.storage)
    run = store.find_study(results.name)
    assert run is not None
    with store.reader(run.id) as reader:
        return [group for group in reader.groups() if group.state is state]


# --- doctor, replay


def test_doctor_compares_recorded_digests_and_reads_bytes_if_asked_to(tmp_path: Path, cli: Phyla) -> None:
    first = study(tmp_path, 2).run()
    check_facts(cli("doctor", "--home", tmp_path), "6 checkpoints")
    check_facts(cli("doctor", "--home", tmp_path, "--digests"), "6 checkpoints")
    flipped, swapped = heads(first)[0], heads(first)[1]
    flip(directory(first, flipped))
    check_facts(cli("doctor", "--home", tmp_path), "6 checkpoints")
    found = _failed(first, digests=True)
    check_facts(found, "1 of 6 checkpoints")
    check_facts(found, f"{flipped}/optimizer/state")
    swap(directory(first, swapped))
    found = _failed(first)
    check_facts(found, swapped)
    check_facts(found, "1 of 6 checkpoints")
    states = {row.state for row in first.checkpoints() if row.name in (flipped, swapped)}
    assert states == {CheckpointState.LIVE}, "doctor only reports"


def _failed(results: Results, *, digests: bool = False) -> str:
    """What doctor fails at, with exit status 1."""
    found = [one.text for one in examine(results.places, digests=digests) if one.verdict is CheckResult.FAIL]
    return "\n".join(found)


def test_training_is_not_continued_from_a_damaged_checkpoint(tmp_path: Path) -> None:
    first = study(tmp_path, 2).run()
    assert first.best is not None
    flip(first.best.checkpoint.path)
    with raises(CheckpointCorrupt, first.best.checkpoint.name):
        phyla.continue_training("bytes", STEPS, home=tmp_path, train=train)


# --- mistakes of the training function


def test_progress_beyond_the_end_of_a_trial_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    refused: list[str] = []

    def training(trial: Trial) -> None:
        for step in (trial.end_step + 1, trial.start_step - 1, 10**9):
            (trial.checkpoint_dir / "chain.json").write_text("[]")
            with pytest.raises(phyla.errors.UsageError) as caught:
                trial.save_progress(step=step)
            refused.append(str(caught.value))
        train(trial)

    results = study(tmp_path, 3, members=1, train=training).run()
    check(results, [], completed=3)
    assert [trial.reached_step for trial in results.trials()] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert not [row for row in results.checkpoints() if ".p" in row.name]
    assert refused[0].startswith(f"save_progress(step={STEPS + 1}): trial 1 trains from step 0 to step {STEPS};")


def test_a_file_with_the_manifests_name_fails_its_trial_and_not_the_study(tmp_path: Path) -> None:
    def training(trial: Trial) -> None:
        if trial.member == 1 and trial.generation == 1 and trial.token == 1:
            (trial.checkpoint_dir / MANIFEST_NAME).write_text("my own manifest")
        train(trial)

    results = study(tmp_path, 3, train=training).run()
    assert results.counts() == {"completed": 9}
    (attempt,) = [attempt for attempt in results.attempts() if attempt.error]
    assert f"{MANIFEST_NAME} was saved under the name of phyla's own manifest" in (attempt.error or "")

    def always(trial: Trial) -> None:
        (trial.checkpoint_dir / MANIFEST_NAME).mkdir()
        train(trial)

    with pytest.raises(StudyFailed, match="save it under another name"):
        study(tmp_path / "other", 3, train=always, retries=phyla.Retries(broken=2)).run()
