"""Watching training jobs with real processes: `phyla watch` and `phyla worker`."""

import json
import os
import select
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

import forked
from facts import check_facts
from phyla.controller import Sightings
from phyla.records import Checkpoint, CheckpointKind, CheckpointState, GroupState, JobKind, StudyState
from phyla.store import open_store
from phyla.terminal import STOPPING
from waiting import until
from watching import (
    Look,
    check_whole,
    command,
    environment,
    has_run,
    kill,
    pids,
    run,
    start,
    watch_words,
    write,
)


def writes(root: Path, steps: list[int], pause_s: float) -> threading.Thread:
    """Write checkpoints in a thread, and say at the end that training is over."""

    def work() -> None:
        for step in steps:
            write(root, step)
            time.sleep(pause_s)
        (root / "FINISHED").write_text("")

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_slow_writer_is_followed_to_its_end(tmp_path: Path) -> None:
    steps = list(range(0, 60, 10))
    process = start(tmp_path, watch_words(tmp_path))
    writer = writes(tmp_path / "ckpt", steps, 0.3)
    output, _ = process.communicate(timeout=180)
    writer.join()
    assert process.returncode == 0, output
    assert output.count(" heldout complete: ") == len(steps)
    check_facts(output, "FINISHED")
    look = check_whole(tmp_path, steps)
    assert not [group for group in look.groups if group.priority > 2 and group.started is False]


@pytest.mark.thorough  # above: workers that are killed and replaced
def test_workers_that_come_later_take_their_share_and_end_with_the_run(tmp_path: Path) -> None:
    steps = list(range(0, 120, 10))
    for step in steps:
        write(tmp_path / "ckpt", step)
    go = tmp_path / "go"
    watcher = start(tmp_path, watch_words(tmp_path, "--once", workers=1), EVAL_UNTIL=str(go))
    until(lambda: has_run(tmp_path) and Look(tmp_path).running, "running eval task", process=watcher)
    late = start(tmp_path, command("worker", "suites.py:heldout", "--workers", 1), EVAL_UNTIL=str(go))
    until(lambda: len(Look(tmp_path).running) == 2, "a task for each worker", process=late)
    go.touch()
    for process in (watcher, late):
        output, _ = process.communicate(timeout=180)
        assert process.returncode == 0, output
    look = check_whole(tmp_path, steps)
    workers = {entry.worker for entries in look.results.values() for entry in entries}
    assert len(workers) == 2


def test_an_interrupted_watcher_is_resumed(tmp_path: Path) -> None:
    steps = [0, 10, 20]
    for step in steps:
        write(tmp_path / "ckpt", step)
    words = watch_words(tmp_path, workers=1)
    process = start(tmp_path, words, EVAL_S="20")
    until(lambda: has_run(tmp_path) and Look(tmp_path).running, "running eval task", process=process)
    process.send_signal(signal.SIGINT)
    # Two signals at the same moment would be one.
    process.read_until(STOPPING.strip())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    look = Look(tmp_path)
    assert look.run.state is StudyState.RUNNING
    assert not look.running
    assert sum(task.failures for task in look.tasks) == 0
    (tmp_path / "ckpt" / "FINISHED").write_text("")
    run(tmp_path, watch_words(tmp_path))
    check_whole(tmp_path, steps)


@pytest.mark.thorough  # below: a worker by the suite file; test_pools.py: pools
def test_a_pool_for_a_suite_file_works_for_its_watched_run(tmp_path: Path) -> None:
    steps = [0, 10]
    for step in steps:
        write(tmp_path / "ckpt", step)
    words = watch_words(tmp_path, "--once", workers=1)
    process = start(tmp_path, words, EVAL_S="20")
    until(lambda: has_run(tmp_path) and Look(tmp_path).running, "running eval task", process=process)
    process.send_signal(signal.SIGINT)
    process.read_until(STOPPING.strip())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    run(tmp_path, command("up", "suites.py", "--workers", 1))
    until(lambda: Look(tmp_path).run.state is StudyState.COMPLETED, "end of the run")
    pool = tmp_path / ".phyla" / "pools" / "suites"
    until(lambda: "job completed" in next(pool.glob("worker-*.log")).read_text(), "end of the worker")
    run(tmp_path, command("down", "suites"))
    assert Look(tmp_path).values() == {"step_0": -0.5, "step_10": 9.5}


def test_workers_join_the_run_with_the_suites_of_their_file(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", 0)
    words = watch_words(tmp_path, "--once")
    names = ("mine", "other", "copied")
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        text = (tmp_path / "suites.py").read_text()
        (folder / "suites.py").write_text(text.replace("shards=2", "shards=3") if name == "other" else text)
        words[words.index("--name") + 1] = name
        words[words.index("--suite") + 1] = f"{name}/suites.py:heldout"
        run(tmp_path, words)
    for name in names:
        output = run(tmp_path, command("worker", f"{name}/suites.py"))
        assert [each for each in names if f"{each} completed" in output] == [name]
    file = tmp_path / "mine" / "suites.py"
    file.write_text(file.read_text().replace("shards=2", "shards=4"))
    output = run(tmp_path, command("worker", "mine/suites.py"), expect=2)
    check_facts(" ".join(output.split()), "mine", "other", "copied")
    assert "--study NAME" in output


def test_killed_workers_watchers_and_everything(tmp_path: Path) -> None:
    steps, go = list(range(0, 40, 10)), tmp_path / "go"
    words = watch_words(tmp_path, workers=1)
    for step in steps[:3]:
        write(tmp_path / "ckpt", step)
    process = start(tmp_path, words, EVAL_S="0.3")
    until(lambda: has_run(tmp_path) and Look(tmp_path).states()["complete"], "group complete")
    kill(pids(process)[0])
    until(lambda: Look(tmp_path).states()["complete"] >= 2, "second group complete")
    workers = [psutil.Process(pid) for pid in pids(process)]
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=180)
    assert not alive, "a worker outlived its supervisor"
    writer = writes(tmp_path / "ckpt", steps[3:], 0.4)
    process = start(tmp_path, words, EVAL_UNTIL=str(go))
    until(lambda: pids(process) and Look(tmp_path).running, "an eval task is running", process=process)
    for pid in [*pids(process), process.pid]:
        kill(pid)
    process.communicate()
    go.touch()
    run(tmp_path, watch_words(tmp_path))
    writer.join()
    check_whole(tmp_path, steps)


@pytest.mark.thorough  # test_evaluated_study.py: the same in a study; test_evaluator.py: each kind
def test_a_poisoned_eval_task_delays_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", 0)
    words = watch_words(tmp_path, "--suite", "suites.py:heldout", "--once", suite="suites.py:poisoned", workers=1)
    output = run(tmp_path, words, expect=1)
    look = Look(tmp_path)
    assert look.states("heldout") == {"complete": 1}
    assert look.states("poisoned") == {"partial": 1}
    why = next(group.why or "" for group in look.groups if group.suite == "poisoned")
    assert all(text in why for text in ("poisoned", "exit status 9", "timeout_s"))
    shifted = [task for task in look.tasks if task.task == "shifted"]
    assert all(task.state == "completed" for task in shifted)
    assert {task.task: task.failures for task in look.tasks if task.state == "failed"} == {
        "raises": 3,
        "dies": 3,
        "hangs": 2,
    }
    assert "1 evaluation is missing or partial" in output
    assert "phyla evaluations NAME --retry" in output
    assert "Traceback" not in output


def test_a_checkpoint_that_is_deleted_during_its_evaluation_survives_in_its_snapshot(tmp_path: Path) -> None:
    folder = write(tmp_path / "ckpt", 10)
    go = tmp_path / "go"
    process = start(tmp_path, watch_words(tmp_path, workers=1), EVAL_UNTIL=str(go))
    until(lambda: has_run(tmp_path) and Look(tmp_path).running, "running eval task", process=process)
    shutil.rmtree(folder)
    write(tmp_path / "ckpt", 20)
    (tmp_path / "ckpt" / "FINISHED").write_text("")
    go.touch()
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    look = Look(tmp_path)
    assert look.values() == {"step_10": 9.5, "step_20": 19.5}
    first = min(look.seen)
    assert look.seen[first].state is CheckpointState.GONE, "its snapshot is not needed any more"


@pytest.mark.thorough  # unit/watcher: the same in this process
def test_without_snapshots_deleted_and_overwritten_checkpoints_are_told_apart_from_others(tmp_path: Path) -> None:
    folder = write(tmp_path / "ckpt", 10)
    process = start(tmp_path, watch_words(tmp_path, "--snapshots", "none", workers=1), EVAL_S="1.5")
    until(lambda: has_run(tmp_path) and Look(tmp_path).running, "running eval task", process=process)
    shutil.rmtree(folder)
    until(lambda: Look(tmp_path).states()["gone"], "group gone")
    write(tmp_path / "ckpt", 20)
    # What runs may still be the eval task of the first one.
    until(lambda: "step_20" in {seen.name for seen in Look(tmp_path).seen.values()}, "second checkpoint")
    write(tmp_path / "ckpt", 20, 25.0)
    until(lambda: Look(tmp_path).states()["gone"] == 2, "overwritten group gone")
    (tmp_path / "ckpt" / "FINISHED").write_text("")
    output, _ = process.communicate(timeout=180)
    look = Look(tmp_path)
    assert [seen.name for seen in look.seen.values()] == ["step_10", "step_20", "step_20"]
    assert look.values() == {"step_20": 24.5}
    assert Counter(group.state for group in look.groups) == {GroupState.GONE: 2, GroupState.COMPLETE: 1}
    assert process.returncode in (0, 1), output


@pytest.mark.thorough  # unit/watcher: scans of a thousand; unit/machine: which are skipped
def test_a_thousand_checkpoints_within_a_minute_all_get_a_fate(tmp_path: Path) -> None:
    process = start(tmp_path, watch_words(tmp_path, suite="suites.py:newest", workers=1))
    until(lambda: has_run(tmp_path), "run")
    began = time.monotonic()
    for step in range(1000):
        write(tmp_path / "ckpt", step)
    (tmp_path / "ckpt" / "FINISHED").write_text("")
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output[-3000:]
    print(f"all ended {time.monotonic() - began:.1f} s after the first was written")
    look = Look(tmp_path)
    assert len(look.seen) == 1000
    states = look.states("newest")
    assert set(states) == {"complete", "skipped"}
    assert sum(states.values()) == 1000
    final = next(group for group in look.groups if look.seen[group.seen].step == 999)
    assert final.state is GroupState.COMPLETE
    assert {group.why for group in look.groups if group.state is GroupState.SKIPPED} == {
        "a newer checkpoint came before its evaluation began (latest)"
    }


def test_several_runs_share_the_workers_and_get_their_turn(tmp_path: Path) -> None:
    for step in range(6):
        write(tmp_path / "a", step)
    for step in range(2):
        write(tmp_path / "b", step)
    words = watch_words(tmp_path, "--once", workers=1)
    words[words.index(tmp_path / "ckpt")] = tmp_path / "a"
    words.insert(words.index("--suite"), tmp_path / "b")
    at = words.index("--name")
    del words[at : at + 2]
    run(tmp_path, words)
    one, other = Look(tmp_path, "a"), Look(tmp_path, "b")
    assert (one.states()["complete"], other.states()["complete"]) == (6, 2)
    ends = sorted((group.ended_at or 0.0, look.run.name) for look in (one, other) for group in look.groups)
    assert {name for _, name in ends[:5]} == {"a", "b"}, "the long one did not keep the short one waiting"


def test_a_run_is_followed_by_one_watcher_only(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", 1)
    words = watch_words(tmp_path)
    process = start(tmp_path, words)
    until(lambda: has_run(tmp_path) and Look(tmp_path).states()["complete"], "group complete")
    output = run(tmp_path, words, expect=2)
    assert f"process {process.pid} on" in output
    assert " worker SUITES.py --study job" in output
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=180)
    assert process.returncode == 75


def test_wrong_uses_are_told_in_one_paragraph(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    words = watch_words(tmp_path, "--once")
    run(tmp_path, words)
    population = [("status", "job", "--watch"), ("export", "job", "--what", "trials")]
    population += [(name, "job") for name in ("stop", "trials", "gc")]
    for of_study in population:
        output = " ".join(run(tmp_path, command(*of_study), expect=2).split())
        assert "is a watched run, and this is for studies with a population" in output
        check_facts(output, "phyla export job")
    moved = [tmp_path / "other" if word == tmp_path / "ckpt" else word for word in words]
    wrong = {
        "is that of": moved,
        f"neither a directory {tmp_path}/nothing nor a study 'nothing'": command(
            "watch", "nothing", "--suite", "suites.py", "--once"
        ),
        f"there is no directory {tmp_path}/nothing/deep ({tmp_path} is there)": command(
            "watch", "./nothing/deep", "--suite", "suites.py", "--once"
        ),
        f"there is no directory {tmp_path}/nothing (": command(
            "watch", "./nothing", "--suite", "suites.py", "--plan"
        ),
        "suites.py is a file": command("watch", "./suites.py", "--suite", "suites.py"),
        "no suite 'x'": command("watch", "ckpt", "--suite", "suites.py:x"),
        "there is no file": command("watch", "ckpt", "--suite", "nothing.py"),
        "checkpoint format 'nothing'; choose from 'auto'": command(
            "watch", "ckpt", "--suite", "suites.py", "--format", "nothing"
        ),
        "there is no watched run": command("worker", "nothing"),
    }
    for message, each in wrong.items():
        output = run(tmp_path, each, expect=2)
        assert message in output
        assert "Traceback" not in output


def test_a_watch_may_start_before_training_makes_its_directory(tmp_path: Path) -> None:
    words = [tmp_path / "runs" / "ckpt" if word == tmp_path / "ckpt" else word for word in watch_words(tmp_path)]
    process = start(tmp_path, words)
    until(lambda: has_run(tmp_path), "the watch has begun")
    write(tmp_path / "runs" / "ckpt", 1)
    (tmp_path / "runs" / "ckpt" / "FINISHED").touch()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count("there is no directory") <= 1
    check_whole(tmp_path, [1])


def planned(tmp_path: Path, words: list[object]) -> dict[str, tuple[int, int]]:
    """Return how many shards of each eval task a plan would compute, and how many it knows."""
    rows = (line.split() for line in run(tmp_path, [*words, "--plan"]).splitlines() if line.startswith("job "))
    return {f"{suite} {task}": (int(cells), int(known)) for _, suite, task, cells, known, *_ in rows}


def test_a_plan_says_what_is_missing_and_changes_nothing(tmp_path: Path) -> None:
    for step in (0, 10):
        write(tmp_path / "ckpt", step)
    words = watch_words(tmp_path, "--once")
    assert planned(tmp_path, words) == {"heldout accuracy": (4, 0), "heldout shifted": (2, 0)}
    assert not (tmp_path / ".phyla").exists()
    run(tmp_path, words)
    write(tmp_path / "ckpt", 20)
    before = Look(tmp_path)
    assert planned(tmp_path, words) == {"heldout accuracy": (2, 4), "heldout shifted": (1, 2)}
    last = run(tmp_path, [*words, "--plan"]).splitlines()[-1]
    assert last.startswith("3 shards would be computed, about ")
    assert "what never ran" not in last
    assert Look(tmp_path).groups == before.groups


def test_a_plan_says_what_to_do_where_nothing_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    output = run(tmp_path, [*watch_words(tmp_path), "--plan"])
    assert f"no finished checkpoint in {tmp_path}/ckpt: is it the right directory? --format" in output
    write(tmp_path / "ckpt", 0)
    assert "no finished checkpoint" not in run(tmp_path, [*watch_words(tmp_path), "--plan"])


def test_a_plan_takes_every_nth_checkpoint_as_the_suite_does(tmp_path: Path) -> None:
    for step in (0, 10, 20):
        write(tmp_path / "ckpt", step)
    (tmp_path / "some.py").write_text(
        "import phyla\ndef good(evaluation): evaluation.record(x=1)\n"
        "s = phyla.Suite('s', [phyla.EvalTask('a', good)], policy=phyla.Policy(every=2))\n"
    )
    words = watch_words(tmp_path, "--once", suite="some.py")
    assert planned(tmp_path, words) == {"s a": (2, 0)}
    run(tmp_path, words)
    assert [group.state.value for group in Look(tmp_path).groups] == ["complete", "skipped", "complete"]


def test_a_plan_counts_what_failed_for_good_and_not_what_has_other_shards(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", 0)
    words = watch_words(tmp_path, "--once", suite="flaky.py")
    suites = tmp_path / "flaky.py"
    text = """
import phyla
def good(evaluation): evaluation.record(x=1)
def odd(evaluation):
    1 / (evaluation.shard.index % 2)
    good(evaluation)
s = phyla.Suite("s", [phyla.EvalTask("a", odd, shards=4), phyla.EvalTask("b", good, shards=2)])
"""
    suites.write_text(text)
    run(tmp_path, words, expect=1)
    suites.write_text(text.replace("shards=2", "shards=3"))
    assert planned(tmp_path, words) == {"s a": (2, 2), "s b": (0, 2)}
    before = {task.id: task.token for task in Look(tmp_path).tasks}
    run(tmp_path, words, expect=1)
    after = [task for task in Look(tmp_path).tasks if task.kind is JobKind.EVALUATE]
    assert [task.task for task in after if task.token != before.get(task.id)] == ["a", "a"], "the plan was true"


def test_a_failed_eval_task_is_shown_with_its_line_and_its_traceback_is_in_the_log(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", 0)
    words = watch_words(tmp_path, "--once", suite="broken.py", workers=1)
    suites = tmp_path / "broken.py"
    suites.write_text(
        "import phyla\ndef bad(_):\n    1 / 0\nbroken = phyla.Suite('b', [phyla.EvalTask('a', bad)])\n"
    )
    log = tmp_path / ".phyla" / "logs" / "job" / "worker-0.log"
    said = f"ZeroDivisionError: division by zero ({suites}, line 3); the full traceback is in {log}"
    assert said in run(tmp_path, words, expect=1)
    for each in ("evaluations", "status"):
        assert "".join(said.split()) in "".join(run(tmp_path, command(each, "job")).split())  # a table wraps it
    assert log.read_text().count("    1 / 0\n") == 3, "one for each attempt"


def test_a_changed_suite_is_filled_in(tmp_path: Path) -> None:
    for step in (0, 10):
        write(tmp_path / "ckpt", step)
    words = watch_words(tmp_path, "--once")
    run(tmp_path, words)
    suites = tmp_path / "suites.py"
    changed = suites.read_text().replace('["out"])', '["out"], version="2")').replace("- 1.0", "- 2.0")
    suites.write_text(changed)
    run(tmp_path, words)
    look = Look(tmp_path)
    assert look.values() == {"step_0": -1.0, "step_10": 9.0}
    assert look.states() == {"complete": 2}
    assert len([task for task in look.tasks if task.task == "accuracy"]) == 4, "these were not computed again"


def test_a_suite_that_is_left_out_is_skipped_and_filled_in_when_it_is_back(tmp_path: Path) -> None:
    for step in (0, 10, 20):
        write(tmp_path / "ckpt", step)
    quick = watch_words(tmp_path, "--once", suite="suites.py:quick")
    both = [*quick, "--suite", "suites.py:heldout"]
    suites = tmp_path / "suites.py"
    suites.write_text(suites.read_text() + '\nquick = phyla.Suite("quick", [shifted])\n')
    process = start(tmp_path, both, EVAL_S="20")
    until(lambda: has_run(tmp_path) and Look(tmp_path).running, "running eval task", process=process)
    process.send_signal(signal.SIGINT)
    process.read_until(STOPPING.strip())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    run(tmp_path, quick)
    look = Look(tmp_path)
    assert (look.states("quick"), look.states("heldout")) == ({"complete": 3}, {"skipped": 3})
    assert not [task for task in look.tasks if task.failures]
    assert planned(tmp_path, both)["heldout accuracy"][0] == 6
    run(tmp_path, both)
    assert Look(tmp_path).values() == {"step_0": -0.5, "step_10": 9.5, "step_20": 19.5}


def test_what_a_suite_lacks_that_was_taken_out_is_not_missing(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", 0)
    words = watch_words(tmp_path, "--once")
    suites = tmp_path / "suites.py"
    broken = 'phyla.Suite("broken", [phyla.EvalTask("no", command="false", max_attempts=1)])'
    suites.write_text(f"{suites.read_text()}\nbroken = {broken}\n")
    assert "partial" in run(tmp_path, [*words, "--suite", "suites.py:broken"], expect=1)
    assert "partial" not in run(tmp_path, words)


def test_workers_end_when_suites_change_under_them(tmp_path: Path) -> None:
    for step in (0, 10):
        write(tmp_path / "ckpt", step)
    words = watch_words(tmp_path, workers=0)
    suites = tmp_path / "suites.py"
    sign = "open(f'imported-{os.getpid()}', 'w').close()\n"
    suites.write_text(suites.read_text() + sign)
    process = start(tmp_path, words)
    until(lambda: has_run(tmp_path) and Look(tmp_path).states()["complete"] == 2, "groups complete")
    late = start(tmp_path, command("worker", "suites.py:heldout", "--workers", 1))
    until(lambda: any((tmp_path / f"imported-{pid}").exists() for pid in pids(late)), "worker")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    suites.write_text(suites.read_text().replace('["out"])', '["out"], version="2")').replace("- 1.0", "- 2.0"))
    steps = [20, 30, 40]
    for step in steps:
        write(tmp_path / "ckpt", step)
    # While it is busy with what did not change, the other worker gets what did.
    process = start(tmp_path, words, EVAL_S="1.0")
    output, _ = late.communicate(timeout=180)
    assert late.returncode == 2, output
    assert "suite file" in output
    assert "Traceback" not in output
    (tmp_path / "ckpt" / "FINISHED").write_text("")
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    look = Look(tmp_path)
    assert look.values() == {"step_0": -1.0, "step_10": 9.0, **{f"step_{step}": step - 1.0 for step in steps}}
    assert not [task for task in look.tasks if task.failures]


def test_checkpoints_of_a_study_are_watched(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(
        """
import json
import phyla

def train(trial):
    (trial.checkpoint_dir / "weights.json").write_text(json.dumps({"value": trial.end_step}))
    trial.report(score=float(trial.end_step))

study = phyla.Study(
    "toy", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"),
    phyla.PBT(population_size=2, steps_per_trial=5, total_steps=20), train,
)
"""
    )
    run(tmp_path, command("run", "study.py", "--workers", 0))
    words = watch_words(tmp_path, suite="suites.py:heldout")
    words[words.index(tmp_path / "ckpt")] = "toy"
    output = run(tmp_path, words)
    look = Look(tmp_path)
    assert look.states()["complete"] == len(look.groups) > 0
    assert "the study is completed" in output


def test_live_lines_on_a_terminal(tmp_path: Path) -> None:
    import pty

    write(tmp_path / "ckpt", 10)
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stdout:
        words = watch_words(tmp_path, "--once")
        process = forked.Forked(words, cwd=tmp_path, env=environment(TERM="xterm"), stdout=stdout)
    shown = b""
    while process.poll() is None or select.select([main], [], [], 0)[0]:
        if select.select([main], [], [], 0.1)[0]:
            shown += os.read(main, 65536)
    os.close(main)
    assert process.wait(180) == 0
    assert b"1 checkpoint seen" in shown
    assert b"complete" in shown


def odd_names() -> list[bytes]:
    """Names that a file system can hold, of one step each."""
    return [
        b"step_2\xff",
        b"step_3\n",
        b"-step_4",
        "step_5\U0001f600".encode(),
        "step_6\u05d0\u202e".encode(),
        b"step_7\x1b[31m",
        b"e" * 249 + b"step_8",
        b"step_9\\xff",
        b"step_11 'x' \"$(y)\"",
    ]


def write_odd(root: Path, name: bytes, text: str) -> None:
    folder = os.path.join(os.fsencode(root), name)  # noqa: PTH118 -- bytes
    os.mkdir(folder)  # noqa: PTH102
    for file, content in ((b"weights.json", text), (b"DONE", "")):
        with open(os.path.join(folder, file), "w") as opened:  # noqa: PTH118
            opened.write(content)


def phyla(folder: Path, *words: object) -> bytes:
    """Return what a command prints, to a pipe whose encoding cannot write most names."""
    done = forked.run(
        command(*words),
        cwd=folder,
        env=environment(PYTHONIOENCODING="ascii:strict", COLUMNS="400"),
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    return os.fsencode(done.stdout)


@pytest.mark.thorough  # below: names that are no text; unit/cli: how commands print them
def test_any_name_is_evaluated_and_what_cannot_be_used_is_quarantined(tmp_path: Path) -> None:
    words = watch_words(tmp_path, "--snapshots", "copy")
    process = start(tmp_path, words)
    # It says what it waits for, and then goes on while names come that nobody expects.
    process.read_until(f"no checkpoint in {tmp_path / 'ckpt'} is finished yet; waiting for any file or directory")
    for name in odd_names():
        write_odd(tmp_path / "ckpt", name, '{"value": 1.0}')
    write_odd(tmp_path / "ckpt", b"step_100\xfe", "torn")
    until(lambda: Look(tmp_path).states()["complete"] == len(odd_names()), "evaluations")
    write(tmp_path / "ckpt", 20)
    (tmp_path / "ckpt" / "FINISHED").write_text("")
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 1, output
    assert "Traceback" not in output.replace("Traceback (most recent call last):\\n", "")
    assert r"step_2\xff (step 2) heldout complete" in output
    assert r"step_3\x0a (step 3) heldout complete" in output
    check_facts(output, "--step")
    look = Look(tmp_path)
    assert {os.fsencode(seen.name) for seen in look.seen.values()} == {
        *odd_names(),
        b"step_100\xfe",
        b"step_20",
    }
    assert look.states() == {"complete": len(odd_names()) + 1, "partial": 1}
    for told in (
        ("status",),
        ("status", "job"),
        ("best", "job"),
        ("doctor", "job"),
        ("report", "job"),
        ("export", "job", "--what", "evaluations", "--format", "csv", "-o", "points.csv"),
        ("export", "job", "--format", "tensorboard", "-o", "logs"),
    ):
        phyla(tmp_path, *told)
    assert rb"step_2\xff" in phyla(tmp_path, "evaluations", "job")
    assert r"step_2\\xff" in (tmp_path / "job.html").read_text(encoding="utf-8")
    rows = json.loads(phyla(tmp_path, "evaluations", "job", "--json"))["cells"]
    assert {os.fsencode(row["checkpoint"]) for row in rows} >= set(odd_names())


def test_names_that_no_event_can_tell_wake_the_watcher_all_the_same(tmp_path: Path) -> None:
    words = [*watch_words(tmp_path), "--poll", "600"]
    process = start(tmp_path, words)
    process.read_until("\n")
    for name in (b"step_1\xff", b"step_2\xff"):
        write_odd(tmp_path / "ckpt", name, '{"value": 1.0}')
        before = name
        until(
            lambda name=before: any(os.fsencode(seen.name) == name for seen in Look(tmp_path).seen.values()),
            "checkpoint seen",
        )
    (tmp_path / "ckpt" / "FINISHED").write_text("")
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "Traceback" not in output


def test_a_watched_run_stands_in_status_best_and_doctor(tmp_path: Path) -> None:
    words = watch_words(tmp_path)
    write(tmp_path / "ckpt", 10)
    process = start(tmp_path, words)
    until(lambda: has_run(tmp_path) and Look(tmp_path).states()["complete"] == 1, "evaluation")
    listed = phyla(tmp_path, "status").decode().replace("|", " ").split("\n")[1:]
    assert listed[0].split()[:3] == ["run", "state", "directory"]
    assert listed[2].split()[:5] == ["job", "running", str(tmp_path / "ckpt"), "1", "10"]
    assert "heldout/accuracy_mean 9.5 at step 10" in listed[2]
    (told,) = json.loads(phyla(tmp_path, "status", "--json"))
    assert (told["run"], told["checkpoints"], told["newest"]["step"]) == ("job", 1, 10)
    assert told["newest"]["step_from"] == "the number after 'step' in the name"
    assert told["suites"][0]["counts"] == {"complete": 1}
    assert f"process {process.pid} on" in told["watcher"]
    detail = phyla(tmp_path, "status", "job").decode()
    assert f"job: running; evaluation of checkpoints: {tmp_path / 'ckpt'}" in detail
    assert f"watched by process {process.pid} on" in detail
    assert "checkpoints seen: 1, the newest is step_10 at step 10, the number after 'step' in the name" in detail
    assert "evaluation of heldout: up to date at step 10" in detail
    process.kill()
    process.communicate()
    assert "running, not watched here" in phyla(tmp_path, "status").decode()

    best = phyla(tmp_path, "best", "job").decode().splitlines()
    assert best[0] == "best heldout/accuracy_mean  9.5"
    path = Path(best[1].removeprefix("checkpoint  "))
    assert path.is_dir()
    assert best[2] == "            step 10"
    assert "watched run job directory" in phyla(tmp_path, "doctor", "job").decode()
    shutil.rmtree(path)
    shutil.rmtree(tmp_path / "ckpt")
    (gone,) = json.loads(phyla(tmp_path, "best", "job", "--json"))
    assert (gone["value"], gone["checkpoint"]["gone"]) == (9.5, True)
    assert "(not found on this machine)" in phyla(tmp_path, "best", "job").decode()
    ill = run(tmp_path, command("doctor", "job"), expect=1)
    check_facts(ill, tmp_path / "ckpt")
    check_facts(ill, "1 of 1 checkpoints")
    assert "versions" not in ill
    for name in ("status", "best", "doctor"):
        assert "watched runs: 'job'" in run(tmp_path, command(name, "odd"), expect=2)


def test_quarantined_ones_are_told_with_their_reasons(tmp_path: Path) -> None:
    watch_words(tmp_path)
    write(tmp_path / "ckpt", 10)
    how = 'name="job", format="marker", options={"quiet_s": 0.5}, poll_s=0.2, lease_s=1.0'
    program = f'import phyla; phyla.watch("ckpt", "suites.py:heldout", 1, {how})'
    process = start(tmp_path, ["-c", program], EVAL_S="600")
    until(lambda: has_run(tmp_path) and Look(tmp_path).running, "running eval task", process=process)
    for pid in [*pids(process), process.pid]:
        kill(pid)
    process.communicate()
    store = open_store(f"sqlite:///{tmp_path / '.phyla' / 'phyla.db'}")
    record = store.find_study("job")
    assert record is not None
    Sightings(store, record, ()).observe(
        [
            Checkpoint(
                study=record.id,
                kind=CheckpointKind.SEEN,
                name="step_7\udcff",
                step=7,
                identity="x",
                error="the file ends early",
            )
        ]
    )
    store.close()
    detail = phyla(tmp_path, "status", "job").decode()
    assert [line.replace("|", " ").split() for line in detail.splitlines() if "ends early" in line] == [
        [r"step_7\xff", "7", "the", "file", "ends", "early"]
    ]
    (told,) = json.loads(phyla(tmp_path, "status", "--json"))
    assert told["quarantined"][0]["why"] == "the file ends early"


def test_an_objective_that_no_eval_task_records_is_said_at_once(tmp_path: Path) -> None:
    for step in (0, 10, 20):
        write(tmp_path / "ckpt", step)
    words = watch_words(tmp_path, suite="suites.py:wrong")
    suites = (tmp_path / "suites.py").read_text()

    def name(objective: str) -> None:
        wrong = f'wrong = phyla.Suite("wrong", [accuracy, shifted], objective=phyla.Maximize("{objective}"))\n'
        (tmp_path / "suites.py").write_text(suites + wrong)

    # What can be known beforehand is an error before anything is evaluated.
    name("accuracy")
    refused = run(tmp_path, words, expect=2)
    check_facts(refused, "wrong", "accuracy")
    check_facts(refused, "accuracy_mean")
    assert not has_run(tmp_path)
    # What only results tell is said with the first one.
    name("acuracy_mean")
    process = start(tmp_path, words, EVAL_S="0.5")
    process.read_until("no aggregate 'acuracy_mean', which its objective names; did you mean 'accuracy_mean'?")
    assert Look(tmp_path).states("wrong")["queued"] > 0
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    # Once it is corrected, the same command aggregates what is known, and computes nothing twice.
    before = {task.id for task in Look(tmp_path).tasks if task.state == "completed"}
    name("accuracy_mean")
    (tmp_path / "ckpt" / "FINISHED").write_text("")
    run(tmp_path, words)
    look = Look(tmp_path)
    assert look.states("wrong") == {"complete": 3}
    assert look.values("wrong") == {f"step_{step}": step - 0.5 for step in (0, 10, 20)}
    assert before <= {task.id for task in look.tasks if task.state == "completed"}


def test_runs_of_one_name_in_two_homes_keep_their_snapshots_apart(tmp_path: Path) -> None:
    for project in (tmp_path / "one", tmp_path / "two"):
        project.mkdir()
        folder = write(project / "ckpt", 10)
        run(project, watch_words(project, "--once", "--snapshots", f"link={tmp_path / 'kept'}", workers=0))
        shutil.rmtree(folder)
    # The best one of each is all that there is of it now.
    for project in (tmp_path / "one", tmp_path / "two"):
        (seen,) = Look(project).seen.values()
        assert Path(seen.path).is_dir()


NEEDS_DATA = """
import phyla
from pathlib import Path
DATA = Path(__file__).parent / "data.txt"
def good(evaluation): evaluation.record(x=1.0)
def reads(evaluation):
    assert DATA.exists(), f"no data for {evaluation.checkpoint.path}"
    evaluation.record(x=2.0)
needs = phyla.Suite("needs", [phyla.EvalTask("good", good), phyla.EvalTask("reads", reads)])
"""


def needing(folder: Path, *more: object) -> list[object]:
    words = watch_words(folder, *more, suite="needs.py:needs")
    (folder / "needs.py").write_text(NEEDS_DATA)
    return words


def tried(folder: Path, task: str) -> int:
    """Return on how many checkpoints an eval task was tried."""
    return len({job.seen for job in Look(folder).tasks if job.task == task and job.token})


def test_a_broken_suite_spares_most_checkpoints_and_is_whole_once_it_is_repaired(tmp_path: Path) -> None:
    steps = list(range(0, 80, 10))
    for step in steps:
        write(tmp_path / "ckpt", step)
    words = needing(tmp_path, "--once")
    output = run(tmp_path, words, expect=1)
    assert output.count(" rests, since it failed with the same error on 2 checkpoints") == 1
    assert "not tried: it failed with the same error on 3 other checkpoints" in output
    assert (tried(tmp_path, "reads"), tried(tmp_path, "good")) == (3, 8)
    before = {job.id: job.token for job in Look(tmp_path).tasks if job.task == "good"}
    (tmp_path / "data.txt").touch()
    output = run(tmp_path, words)
    look = Look(tmp_path)
    assert look.states("needs") == {"complete": 8}
    assert {job.id: job.token for job in look.tasks if job.task == "good"} == before
    assert all(job.token == 1 for job in look.tasks if job.task == "reads" and job.state == "completed")


def test_what_failed_is_tried_again_while_a_watch_goes_on(tmp_path: Path) -> None:
    for step in (0, 10, 20):
        write(tmp_path / "ckpt", step)
    process = start(tmp_path, needing(tmp_path))
    until(lambda: has_run(tmp_path) and Look(tmp_path).states("needs")["partial"] == 2, "rest", process=process)
    (tmp_path / "data.txt").touch()
    output = run(tmp_path, command("evaluations", "job", "--retry"))
    check_facts(output, "job", "2 evaluations")
    until(lambda: Look(tmp_path).states("needs") == {"complete": 3}, "all evaluated", process=process)
    assert json.loads(run(tmp_path, command("evaluations", "job", "--retry", "--json"))) == {"retried": 0}
    (tmp_path / "ckpt" / "FINISHED").write_text("")
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    output = run(tmp_path, command("evaluations", "job", "--retry"), expect=1)
    check_facts(output, "job")
    assert "Traceback" not in output
