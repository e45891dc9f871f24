"""Training that changes its process spoils neither the trials after it nor their results."""

from pathlib import Path

import forked
import phyla

HABITS = (
    "os.chdir('/')",
    "os.environ.clear()",
    "sys.path.clear()",
    "[sys.modules.pop(name) for name in list(sys.modules) if name.startswith('phyla')]",
    "sys.stdout = sys.stderr = None",
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "gc.disable(); gc.freeze()",
    "asyncio.run(asyncio.sleep(0))",
    "trial.report(loss=9.0)",  # the last report of a trial counts, and none after its end:
    "ended.clear(); late.append(threading.Thread(target=report_late, args=[trial])); late[-1].start()",
    "(trial.checkpoint_dir / ('n' * 250)).write_text('x')",
    "(trial.checkpoint_dir / '/'.join('d' * 20)).mkdir(parents=True)",
    "open(trial.checkpoint_dir / 'sparse', 'wb').truncate(2**26)",
    "more.update({'é/ö': 1.0, 'x' * 500: 1.0, 'none': float('nan')})",
)
STUDY = """
import asyncio, gc, os, resource, signal, sys, threading

import phyla


ended, late, HERE = threading.Event(), [], os.getcwd()


def report_late(trial):
    ended.wait()
    trial.report(loss=-1.0)


def train(trial):
    assert os.getcwd() == HERE
    ended.set()  # the trial before, if there was one in this process
    while late:
        late.pop().join()
    more = {}
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "x").write_text("x")
    exec(HABITS[trial.member], {**globals(), "trial": trial, "more": more})
    trial.report(loss=trial.params["lr"], **more)


HABITS = %r
strategy = phyla.RandomSearch(members=len(HABITS), steps_per_trial=1, total_steps=2)
study = phyla.Study("habits", {"lr": phyla.Float(0, 1)}, phyla.Minimize("loss"), strategy, train)
"""


def test_one_worker_trains_all_and_every_result_is_right(tmp_path: Path) -> None:
    (tmp_path / "habits.py").write_text(STUDY % (HABITS,))
    words = ["-m", "phyla.cli", "run", "habits.py", "--workers", "1"]
    done = forked.run(words, cwd=tmp_path, spares=1)
    assert done.returncode == 0, done.stdout + done.stderr
    results = phyla.load_study("habits", home=tmp_path / ".phyla")
    trials = results.trials()
    assert len(trials) == 2 * len(HABITS) == results.counts()["completed"]
    assert [trial.fitness for trial in trials] == [trial.params["lr"] for trial in trials]
