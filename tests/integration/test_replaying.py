"""What a study found is trained again, bit for bit, and trained on."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from facts import check_facts, raises
from phyla import study_modules
from phyla.cli.app import run_app
from phyla.errors import ConfigurationError, StudyChanged, StudyNotFound
from phyla.records import CheckpointState, JobKind, TrialRecord
from phyla.settings import child_environment

pytestmark = pytest.mark.xdist_group("replay")
"""Its studies are made once, not by each process of tests."""

SOURCE = Path(phyla.__file__).parents[1]

STUDY_FILE = '''
import json
from pathlib import Path

import numpy as np

import phyla


def setup(worker):
    return {"scale": 2.0}


def train(trial):
    """Noisy descent: everything comes from the parent, the hyperparameters and the trial's seed."""
    rng = np.random.default_rng(trial.seed)
    weights = np.zeros(3)
    if trial.source:
        weights = np.load(trial.source.path / "weights.npy")
    for step in trial.steps():
        noise = rng.normal(size=3) / (1 + step)
        weights = weights + trial.params["lr"] * (1 - weights + noise) / trial.worker["scale"]
        if trial.params["lr"] < 0.03 and step % 7 == 6:
            break
    np.save(trial.checkpoint_dir / "weights.npy", weights)
    trial.report(score=-float(np.square(weights - 1).sum()))


study = phyla.Study(
    "found",
    {"lr": phyla.Float(0.001, 1.0, log=True)},
    phyla.Maximize("score"),
    phyla.PBT(population_size=6, steps_per_trial=5, total_steps=40, exploit=phyla.Truncation(0.4)),
    train,
    setup=setup,
    retention=phyla.Retention(every_steps=10),
    home=Path(__file__).parent / "home",
)
if __name__ == "__main__":
    study.run()
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay")
    (path / "found.py").write_text(STUDY_FILE)
    forked.run(["found.py"], cwd=path, check=True)
    return path


@pytest.fixture
def home(folder: Path) -> Path:
    return folder / "home"


@pytest.fixture
def found(folder: Path) -> phyla.Study:
    """The study, as its file defines it."""
    study = study_modules.load(folder / "found.py").study
    assert isinstance(study, phyla.Study)
    return study


@pytest.fixture
def results(home: Path) -> phyla.Results:
    return phyla.load_study("found", home=home)


def environment() -> dict[str, str]:
    return child_environment({"PYTHONPATH": str(SOURCE)})


def digests(results: phyla.Results) -> dict[str, str]:
    return {row.name: row.digest for row in results.checkpoints()}


def final(results: phyla.Results) -> str:
    (member,) = results.members()
    assert member.head is not None
    return digests(results)[member.head.checkpoint]


def test_the_winner_is_trained_again_bit_for_bit(results: phyla.Results, home: Path, found: phyla.Study) -> None:
    best = results.best
    assert best is not None
    path = results.lineage().ancestry(best.trial)
    assert len({row.member for row in path}) > 1, "the study has to have exploits for this test to say something"
    again = phyla.replay(found, home=home)
    assert final(again) == best.checkpoint.digest
    rows = again.trials()
    assert [row.digest for row in again.checkpoints()] == [digests(results)[row.checkpoint or ""] for row in path]
    for row, original in zip(rows, path, strict=True):
        for name in ("params", "seed", "start_step", "end_step", "reached_step", "fitness"):
            assert getattr(row, name) == getattr(original, name), name
        assert row.reason["trial"] == original.id
    assert {row.member for row in rows} == {0}
    assert all(row.parent == before.id for before, row in itertools.pairwise(rows))
    assert again.name == "found-replay"
    assert again.schedule(rows[-1].id)(7) == results.schedule()(7)


def test_any_trial_is_trained_again_by_worker_processes(results: phyla.Results, folder: Path, home: Path) -> None:
    early = next(
        row for row in results.trials() if row.reached_step is not None and row.reached_step < row.end_step
    )
    code = (
        f"import found, phyla; phyla.replay(found.study, trial={early.id}, name='early', workers=2, home='home')"
    )
    forked.run(["-c", code], cwd=folder, check=True, spares=2)
    again = phyla.load_study("early", home=home)
    assert final(again) == digests(results)[early.checkpoint or ""]


def kept(results: phyla.Results) -> list[TrialRecord]:
    """Ancestors of the best trial whose checkpoints are kept."""
    best = results.best
    assert best is not None
    live = {row.name for row in results.checkpoints() if row.state is CheckpointState.LIVE}
    return [row for row in results.lineage().ancestry(best.trial)[:-1] if row.checkpoint in live]


def test_a_suffix_starts_from_a_kept_ancestor(results: phyla.Results, home: Path, found: phyla.Study) -> None:
    ancestor = kept(results)[0]
    step = ancestor.reached_step
    assert step is not None
    again = phyla.replay(found, from_step=step, name="suffix", home=home)
    assert results.best is not None
    assert final(again) == results.best.checkpoint.digest
    first, second = again.trials()[:2]
    assert first.kind is JobKind.IMPORT
    assert digests(again)[first.checkpoint or ""] == digests(results)[ancestor.checkpoint or ""]
    assert (second.parent, second.start_step) == (first.id, step)


def test_a_suffix_of_a_replay_and_a_replay_of_it(results: phyla.Results, home: Path, found: phyla.Study) -> None:
    """A chain that began with an import begins with the same import again."""
    step = kept(results)[0].reached_step
    phyla.replay(found, from_step=step, name="once", home=home)
    again = phyla.replay("once", name="twice", train=found.train, setup=found.declared.setup, home=home)
    assert results.best is not None
    assert final(again) == results.best.checkpoint.digest


def test_steps_that_are_not_kept_are_refused_with_those_that_are(
    results: phyla.Results, home: Path, found: phyla.Study
) -> None:
    steps = ", ".join(str(row.reached_step) for row in kept(results))
    with raises(ConfigurationError, "step 3", f"step {steps}"):
        phyla.replay(found, from_step=3, home=home)


def test_an_interrupted_replay_goes_on(results: phyla.Results, home: Path, folder: Path) -> None:
    program = "import phyla, found; phyla.replay(found.study, name='killed')"
    for failpoint, code in (("job.before_complete=exit:3", 17), ("", 0)):
        done = forked.run(["-c", program], cwd=folder, env=child_environment({"PHYLA_FAILPOINT": failpoint}))
        assert done.returncode == code
    assert results.best is not None
    assert final(phyla.load_study("killed", home=home)) == results.best.checkpoint.digest


def test_the_best_is_trained_on(results: phyla.Results, home: Path, found: phyla.Study) -> None:
    best = results.best
    assert best is not None
    on = phyla.continue_training(found, 12, home=home)
    rows = [row for row in on.trials() if row.kind is JobKind.TRAIN]
    start = best.checkpoint.step
    assert [(row.start_step, row.reached_step) for row in rows] == [
        (start, start + 5),
        (start + 5, start + 10),
        (start + 10, start + 12),
    ]
    assert all(dict(row.params) == best.params.flat() for row in rows)
    assert on.trials()[0].origin == str(best.checkpoint.path)
    assert on.name == "found-continued"


def test_training_on_sees_new_random_numbers_each_time(
    results: phyla.Results, home: Path, found: phyla.Study
) -> None:
    on = phyla.continue_training(found, 12, name="on", home=home)
    setup = found.declared.setup
    further = phyla.continue_training("on", 12, name="further", train=found.train, setup=setup, home=home)
    elsewhere = phyla.continue_training(found, 12, trial=kept(results)[0].id, name="elsewhere", home=home)
    seeds = [
        row.seed
        for each in (results, on, further, elsewhere)
        for row in each.trials()
        if row.kind is JobKind.TRAIN and row.replaces is None
    ]
    assert len(set(seeds)) == len(seeds)
    assert len({each.study().seed for each in (results, on, further, elsewhere)}) == 4


def test_training_on_again_resumes(results: phyla.Results, home: Path, found: phyla.Study) -> None:
    first = phyla.continue_training(found, 12, name="same", home=home)
    again = phyla.continue_training(found, 12, name="same", home=home)
    assert [row.seed for row in again.trials()] == [row.seed for row in first.trials()]
    assert final(again) == final(first)
    other = phyla.continue_training(found, 12, name="same-again", home=home)
    assert final(other) == final(first)


def test_a_complete_replay_names_only_what_a_replay_can_take(
    home: Path, found: phyla.Study, caplog: pytest.LogCaptureFixture
) -> None:
    phyla.replay(found, name="twice-the-same", home=home)
    phyla.replay(found, name="twice-the-same", home=home)
    check_facts(caplog.text, "nothing to do", "twice-the-same", "--name", "name=")
    assert not any(other in caplog.text for other in ("total_steps", "--overwrite", "phyla change"))
    caplog.clear()
    phyla.continue_training(found, 1, name="one-more", home=home)
    phyla.continue_training(found, 1, name="one-more", home=home)
    check_facts(caplog.text, "nothing to do", "its trial was completed", "total_steps")


@pytest.mark.parametrize("steps", [0, -1, True, 1.5])
def test_steps_to_train_on_that_make_no_sense(home: Path, steps: Any, found: phyla.Study) -> None:
    with raises(ConfigurationError, "steps="):
        phyla.continue_training(found, steps, home=home)


def test_names_that_are_taken_and_trials_that_are_not_there(
    results: phyla.Results, home: Path, found: phyla.Study
) -> None:
    phyla.replay(found, trial=1, name="taken", home=home)
    assert phyla.replay(found, trial=1, name="taken", home=home).counts() == {"completed": 1}
    with raises(StudyChanged, "taken"):
        phyla.replay(found, trial=2, name="taken", home=home)
    with raises(StudyNotFound, "trial 9999"):
        phyla.replay(found, trial=9999, home=home)
    with raises(StudyNotFound, "other"):
        phyla.replay("other", home=home)


def test_a_study_that_was_asked_and_told_needs_the_function(tmp_path: Path) -> None:
    def loop(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "weights").write_text(f"{trial.seed} {trial.params['lr']}")
        trial.report(score=1.0)

    space, strategy = {"lr": phyla.Float(0.1, 1.0)}, phyla.RandomSearch(1, 4)
    study = phyla.Study("told", space, phyla.Maximize("score"), strategy, home=tmp_path)
    trial = study.ask()
    assert trial is not None
    loop(trial)
    study.tell(trial)
    with raises(ConfigurationError, "train=function"):
        phyla.replay("told", home=tmp_path)
    with raises(ConfigurationError, "train=function"):
        phyla.replay(study)
    again = phyla.replay("told", train=loop, home=tmp_path)
    assert [final(again)] == [*digests(study.results()).values()]


def test_a_changed_training_function_is_told(tmp_path: Path) -> None:
    (tmp_path / "found.py").write_text(STUDY_FILE)
    forked.run(["found.py"], cwd=tmp_path, check=True)
    (tmp_path / "found.py").write_text(STUDY_FILE.replace("1 - weights", "2 - weights"))
    done = command(tmp_path, "replay", "found", "--file", "found.py", "--home", "home", "--workers", 0)
    assert done.returncode == 0, done.stderr
    check_facts(done.stderr, "found")


# The commands


def command(folder: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    return forked.run(["-m", "phyla.cli", *words], cwd=folder, spares=2)


def test_the_commands(folder: Path, results: phyla.Results) -> None:
    done = command(folder, "replay", "found", "--file", "found.py", "--home", "home", "--name", "by-command")
    assert done.returncode == 0, done.stderr
    assert results.best is not None
    assert final(phyla.load_study("by-command", home=folder / "home")) == results.best.checkpoint.digest
    on = command(folder, "replay", "by-command", "--continue", 7, "--file", "found.py", "--home", "home")
    assert on.returncode == 0, on.stderr
    assert "2 trials completed" in on.stdout
    found = phyla.load_study("by-command-continued", home=folder / "home")
    assert found.members()[0].progress == 7


def test_without_the_study_file_nothing_is_imported_and_the_way_out_is_told(tmp_path: Path) -> None:
    (tmp_path / "found.py").write_text(STUDY_FILE)
    forked.run(["found.py"], cwd=tmp_path, check=True)
    for words in (("replay", "found"), ("replay", "found", "--continue", 5)):
        done = command(tmp_path, *words, "--home", "home", "--workers", 0)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        check_facts(done.stderr, f"{tmp_path / 'found.py'}:train")
        check_facts(done.stderr, "--home", "--file", "FILE")
        assert "phyla.replay(study)" in done.stderr
    # Where the file is, or what it is called, does not matter.
    (tmp_path / "found.py").rename(tmp_path / "moved.py")
    code = "import moved, phyla; phyla.replay('found', train=moved.train, setup=moved.setup, home='home')"
    forked.run(["-c", code], cwd=tmp_path, check=True)
    assert phyla.load_study("found-replay", home=tmp_path / "home").state == "completed"
    done = command(tmp_path, "replay", "found", "--file", "moved.py", "--home", "home", "--name", "again")
    assert done.returncode == 0, done.stderr
    again, before = (phyla.load_study(name, home=tmp_path / "home") for name in ("again", "found-replay"))
    assert final(again) == final(before)


@pytest.fixture
def phyla_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    def run(*words: object) -> str:
        given = [folder / "found.py" if word == "FILE" else word for word in words]
        sys.argv = ["phyla", *map(str, given), "--home", str(folder / "home")]
        with pytest.raises(SystemExit) as ended:
            run_app()
        assert ended.value.code == 2
        text = capsys.readouterr().err
        assert "Traceback" not in text
        return text

    before = sys.argv
    yield run
    sys.argv = before


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("replay", "nobody"), "nobody"),
        (("replay", "found", "--trial", 9999), "trial 9999"),
        (("replay", "found", "--from", 3), "step 3"),
        (("replay", "found", "--file", "FILE", "--name", "found"), "another name"),
        (("replay", "found", "--file", "FILE", "--name", "a/b"), "a/b"),
        (("replay", "nobody", "--continue", 5), "nobody"),
        (("replay", "found", "--continue", 0), "--continue"),
        (("replay", "found", "--continue", 5, "--trial", 9999), "trial 9999"),
    ],
)
def test_wrong_inputs_get_one_sentence(phyla_fails: Any, words: tuple[object, ...], match: str) -> None:
    check_facts(phyla_fails(*words), *match.split())


def test_schedules_of_both_agree(results: phyla.Results, home: Path, found: phyla.Study) -> None:
    again = phyla.replay(found, name="agree", home=home)
    ours, theirs = again.schedule(again.trials()[-1].id), results.schedule()
    assert [ours(step) for step in range(40)] == [theirs(step) for step in range(40)]
    assert json.dumps(ours(0)) == json.dumps(theirs(0))
