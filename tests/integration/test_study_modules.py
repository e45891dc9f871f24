"""Study files are modules under their own names, in workers and in the processes that training starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forked
from effort import rarely
from facts import check_facts

HEAD = """
import json, os, pickle, sys, phyla

class Net:
    def __init__(self, weight):
        self.weight = weight

def double(net):
    return Net(2 * net.weight)

class Data:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, at):
        return Net(at).weight
"""
WORK = {
    "alone": """
    value = 42.0
""",
    "spawn": """
    import multiprocessing
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        value = pool.map(double, [Net(21)])[0].weight
""",
    "forkserver": """
    import multiprocessing
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        value = pool.map(double, [Net(21)])[0].weight
""",
    "process": """
    import multiprocessing
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=put, args=(answers, Net(21)))
    child.start()
    value = answers.get().weight
    child.join()
""",
    "executor": """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        value = pool.submit(double, Net(21)).result().weight
""",
    "joblib": """
    import joblib
    value = joblib.Parallel(2)(joblib.delayed(double)(Net(weight)) for weight in (21, 1))[0].weight
""",
    "loader": """
    from torch.utils.data import DataLoader
    loader = DataLoader(Data(7), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    value = 2 * sum(loader)
""",
    "environments": """
    import gymnasium
    from stable_baselines3.common.vec_env import SubprocVecEnv
    environments = SubprocVecEnv([make, make])
    value = 14 * environments.num_envs + 7 * environments.reset().shape[0]
    environments.close()
""",
}
BODY = """
def put(answers, net):
    answers.put(double(net))

def make():
    import gymnasium
    return gymnasium.make("CartPole-v1")

def train(trial):
{work}
    if trial.parent:
        assert pickle.loads((trial.parent.path / "net").read_bytes()).weight == 42
    for step in trial.steps():
        pass
    (trial.checkpoint_dir / "net").write_bytes(pickle.dumps(Net(value)))
    (trial.checkpoint_dir / "step").write_text(str(trial.end_step))
    (trial.checkpoint_dir / "words").write_text(json.dumps(sys.argv[1:]))
    trial.report(loss=value + trial.params["lr"])

study = phyla.Study(
    "found", {{"lr": phyla.Float(0.1, 0.9)}}, phyla.Minimize("loss"),
    phyla.RandomSearch(members=1, total_steps=2), train,
)
"""
RUN = """
if __name__ == "__main__":
    study.run(workers=int(os.environ["WORKERS"]))
"""
UNGUARDED = """
study.run(workers=int(os.environ["WORKERS"]))
"""

ALIKE = [rarely(how) for how in ("forkserver", "joblib", "process", "executor", "loader", "environments")]


def write(folder: Path, how: str, *, end: str = RUN, name: str = "study.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(HEAD + BODY.format(work=WORK[how]) + end)
    return file


def python(
    folder: Path, *words: object, workers: int = 1, code: int = 0, fresh: bool = False, spares: int = 1
) -> str:
    """Run a program.

    Args:
        folder: where it runs.
        words: what follows `python`.
        workers: how many it starts.
        code: its exit status.
        fresh: whether an interpreter is started for it, since it starts processes itself.
        spares: how many of its workers are forked; none that starts processes itself.
    """
    options: dict[str, Any] = {"cwd": folder, "env": {**os.environ, "WORKERS": str(workers)}, "timeout": 240}
    if fresh:
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    else:
        done = forked.run(words, spares=spares, **options)
    logs = "".join(path.read_text() for path in folder.glob(".phyla/logs/*/*.log"))
    assert done.returncode == code, done.stdout + done.stderr + logs
    return f"{done.stdout}{done.stderr}"


def phyla(folder: Path, *words: object, **how: Any) -> str:
    return python(folder, Path(sys.executable).with_name("phyla"), *words, **how)


def checkpoints(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(".phyla/checkpoints/*/*/net"))


def read_by(folder: Path, module: str) -> list[float]:
    """Return the weights of the nets in checkpoints, as a process finds them that imports a module."""
    code = (
        f"import pickle, sys, {module}\n"
        "for file in sys.argv[1:]:\n"
        "    with open(file, 'rb') as f:\n"
        f"        net = pickle.load(f)\n"
        f"    assert type(net) is sys.modules['{module}'].Net\n"
        "    print(net.weight)"
    )
    found = python(folder, "-c", code, *(path / "net" for path in checkpoints(folder)))
    return [float(line) for line in found.splitlines()]


@pytest.mark.parametrize("how", ["spawn", *ALIKE])
def test_what_training_pickles_is_found_by_the_processes_that_it_starts(tmp_path: Path, how: str) -> None:
    write(tmp_path, how)
    python(tmp_path, "study.py", workers=1, spares=0)
    assert read_by(tmp_path, "study") == [42]


@pytest.mark.thorough  # below: a file that runs its study at once
def test_a_command_that_trains_by_itself_and_a_file_that_runs_its_study_at_once(tmp_path: Path) -> None:
    write(tmp_path, "forkserver", end=UNGUARDED)
    phyla(tmp_path, "run", "study.py", "--workers", 0, workers=0, fresh=True)
    assert len(checkpoints(tmp_path)) == 1
    phyla(tmp_path, "run", "study.py", "--workers", 1, "--overwrite", "found", fresh=True)
    assert len(checkpoints(tmp_path)) == 1


@pytest.mark.parametrize(("first", "then"), [(0, 1), rarely(1, 0)])
def test_a_study_goes_on_with_workers_and_without(tmp_path: Path, first: int, then: int) -> None:
    longer = BODY.replace(
        "RandomSearch(members=1, total_steps=2)", "PBT(population_size=1, steps_per_trial=1, {total})"
    )
    for total, workers in ((1, first), (2, then)):
        text = HEAD + longer.replace("{total}", f"total_steps={total}").format(work=WORK["alone"]) + RUN
        (tmp_path / "study.py").write_text(
            text.replace("study.run", "study.change() if sys.argv[1:] else study.run")
        )
        if total == 2:
            python(tmp_path, "study.py", "change", workers=workers)
        python(tmp_path, "study.py", workers=workers)
    assert len(checkpoints(tmp_path)) == 2


def test_a_module_of_a_package(tmp_path: Path) -> None:
    write(tmp_path / "pkg", "spawn", name="study.py")
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "helper.py").write_text("VALUE = 1\n")
    text = (tmp_path / "pkg" / "study.py").read_text()
    (tmp_path / "pkg" / "study.py").write_text("from . import helper\n" + text)
    python(tmp_path, "-m", "pkg.study", workers=1)
    assert read_by(tmp_path, "pkg.study") == [42]


@pytest.mark.parametrize("tool", [["cProfile", "-o", "profile"], rarely(["trace", "--count", "-C", "counts"])])
def test_a_script_under_a_tool_that_runs_it_as_main(tmp_path: Path, tool: list[str]) -> None:
    write(tmp_path, "alone")
    python(tmp_path, "-m", *tool, "study.py", workers=1)
    assert read_by(tmp_path, "study") == [42]


@pytest.mark.parametrize("name", ["queue.py", rarely("my-study.py"), rarely("my.study.v2.py")])
def test_names_that_are_taken_or_no_words(tmp_path: Path, name: str) -> None:
    write(tmp_path, "spawn", name=name)
    if name != "queue.py":  # which hides that of Python where it is a script
        python(tmp_path, name, workers=1)
    phyla(tmp_path, "run", name, "--workers", 1, "--home", tmp_path / "other")


def test_a_pool_of_workers_and_further_workers_get_the_command_line(tmp_path: Path) -> None:
    write(tmp_path, "alone")
    words = ["--batch", "64", "a b", "--home", "x"]
    phyla(tmp_path, "run", "study.py", "--launcher", "local", "--workers", 1, "--", *words)
    assert [json.loads((each / "words").read_text()) for each in checkpoints(tmp_path)] == [words]


def test_workers_see_the_command_line_of_the_script(tmp_path: Path) -> None:
    write(tmp_path, "alone")
    python(tmp_path, "study.py", "--batch", "64", workers=1)
    assert [json.loads((each / "words").read_text()) for each in checkpoints(tmp_path)] == [["--batch", "64"]]
    told = phyla(tmp_path, "run", "study.py", "--workers", 1, "--overwrite", "found", "--", "--batch", "7")
    assert [json.loads((each / "words").read_text()) for each in checkpoints(tmp_path)] == [["--batch", "7"]]
    check_facts(told, "phyla check study.py -- --batch 7")


def test_a_worker_whose_words_give_other_settings_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "alone")
    file.write_text(
        file.read_text().replace("total_steps=2", "total_steps=int(sys.argv[1] if sys.argv[1:] else 2)")
    )
    phyla(tmp_path, "run", "study.py", "--workers", 0, "--", "3")
    assert "steps" in phyla(tmp_path, "worker", "study.py", code=2)
    phyla(tmp_path, "worker", "study.py", "--", "3")


def test_words_that_the_file_refuses_are_its_error(tmp_path: Path) -> None:
    file = write(tmp_path, "alone")
    file.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n" + file.read_text())
    told = phyla(tmp_path, "run", "study.py", "--", "--nothing", code=2)
    assert "unrecognized arguments: --nothing" in told
    check_facts(told, "study.py", "line 2", "status 2")
    assert not (tmp_path / ".phyla").exists()
    phyla(tmp_path, "run", "study.py", "--workers", 1)


def test_a_file_without_a_command_line_takes_no_words(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("")
    check_facts(phyla(tmp_path, "run", "study.toml", "--", "--batch", "7", code=2), "study.toml")


@pytest.mark.thorough  # test_replaying.py and test_checking.py load study files as runs do
def test_replay_and_check_find_what_training_pickles(tmp_path: Path) -> None:
    write(tmp_path, "alone")
    python(tmp_path, "study.py", workers=0)
    phyla(tmp_path, "replay", "found", "--file", "study.py", "--workers", 0)
    told = phyla(tmp_path, "check", "study.py", "--steps", 1)
    assert "ok        complete" in told


@pytest.mark.thorough  # above: scripts that start processes; test_attach.py: attached ones
def test_an_attached_script_starts_processes(tmp_path: Path) -> None:
    loop = """
if __name__ == "__main__":
    with phyla.attach(study) as job:
        for trial in job.trials():
            train(trial)
"""
    write(tmp_path, "process", end=loop)
    python(tmp_path, "study.py", fresh=True)
    assert len(checkpoints(tmp_path)) == 1


def test_a_process_that_imports_the_file_and_would_run_it_says_what_to_change(tmp_path: Path) -> None:
    file = write(tmp_path, "joblib", end=UNGUARDED)
    # It is stopped by the first failure.
    once = " train, retries=phyla.Retries(attempts=1, broken=1),\n)"
    file.write_text(file.read_text().replace(" train,\n)", once))
    told = python(tmp_path, "study.py", workers=1, code=1, spares=0)
    assert 'put that under `if __name__ == "__main__":`' in told + "".join(
        path.read_text() for path in tmp_path.glob(".phyla/logs/*/*.log")
    )


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    write(tmp_path / "a", "alone")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "study.py").write_text("VALUE = 1")
    code = (
        "from pathlib import Path\nfrom phyla import study_modules\n"
        "a, b = (study_modules.load(Path(f'{name}/study.py')) for name in 'ab')\n"
        "assert a.__name__ == 'study' and b.VALUE and a is study_modules.load(Path('a/study.py'))\n"
        "import importlib\nassert importlib.import_module(b.__name__) is b"
    )
    python(tmp_path, "-c", code)


def test_a_script_is_the_module_of_its_name(tmp_path: Path) -> None:
    end = "study.run(workers=0)\nimport study as it\nassert it is sys.modules['__main__'] and it.Net is Net\n"
    write(tmp_path, "alone", end=end)
    python(tmp_path, "study.py", fresh=True)
