"""What evaluation code gets and gives, in process: shards, seeds, arrays, commands, bindings, errors."""

import asyncio
import gc
import importlib
import json
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation_simulation import WatchedRun
from facts import check_facts, raises
from phyla.client import Client
from phyla.errors import CheckpointGone, ConfigurationError
from phyla.evaluation import Estimate, EvalTask, Maximum, Mean, Moments, Suite, TaskResult
from phyla.evaluation.recorder import decode
from phyla.machine import ClaimedEvaluation, Evaluated, Failure, WatchRules
from phyla.records import Checkpoint, EvalResult, Group, GroupState, Maximize, summarize_error
from phyla.worker import EvaluatedStudy, Evaluation, Evaluator, Worker
from simulation import VirtualClock

SAMPLES = np.random.default_rng(0).normal(1e6, 1.0, 1000)


class Files:
    """Checkpoints that are single JSON files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changed: set[str] = set()

    def path(self, seen: Checkpoint) -> Path:
        path = self.root / seen.name
        if not path.exists():
            raise CheckpointGone(f"{seen.name} was deleted")
        return path

    def check(self, seen: Checkpoint, *, again: bool = False) -> None:
        self.path(seen)


class Bench:
    """A watched run with one evaluator in this process."""

    def __init__(self, root: Path, *suites: Suite, gin_root: Path = Path()) -> None:
        self.run = WatchedRun(suites, VirtualClock())
        self.root = root
        self.files = Files(root)
        self.ticks = iter(range(1_000_000))
        self.outputs = root / "outputs"
        self.gin_root = gin_root
        self.restart(*suites)

    def restart(self, *suites: Suite) -> None:
        """Start the worker anew, with these suites."""
        self.client = Client(self.run.store, self.run.run, WatchRules(suites=suites))
        evaluated = EvaluatedStudy(
            suites=suites, sources=self.files, outputs=self.outputs / "run", gin_root=self.gin_root
        )
        self.evaluator = Evaluator(
            self.client,
            {self.run.run.id: evaluated},
            work_root=self.root / "work",
            name="w",
            clock=self.run.clock,
            timer=lambda: float(next(self.ticks)),
            log=self.root / "logs" / "worker-0.log",
        )

    def checkpoint(self, step: int, content: object = None) -> None:
        (self.files.root / f"step-{step}").write_text(json.dumps(content))
        self.run.observe(step)

    def work(self) -> list[Evaluated | Failure | None]:
        outcomes = []
        while (work := self.run.claim(holding=self.evaluator.holding)) is not None:
            outcomes.append(self.do(work))
        return outcomes

    def do(self, work: ClaimedEvaluation) -> Evaluated | Failure | None:
        outcome = self.evaluator.run(work)
        if isinstance(outcome, Failure):
            self.run.controller.fail(outcome)
        elif outcome is not None:
            self.run.hand_in(outcome)
        return outcome

    def group(self) -> Group:
        return self.run.groups()[-1]

    def results(self, task: EvalTask) -> Sequence[EvalResult]:
        return self.run.reader().ledger(self.run.reader().all_seen()[-1].identity, task.identity, 0, task.shards)

    def value(self, name: str) -> float:
        estimate: Any = self.group().values[name]
        return float(estimate["value"])


def metric(result: EvalResult, name: str) -> Any:
    return decode(result.statistics[name], lambda kind: Moments)


def suite(*tasks: EvalTask, **settings: Any) -> Suite:
    return replace(Suite("s", tasks), **settings)


def spread(evaluation: Evaluation) -> None:
    part = evaluation.shard.of(SAMPLES)
    for batch in np.array_split(part, 3):
        evaluation.record(x=batch)


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_any_number_of_shards_gives_the_same_statistics(tmp_path: Path, shards: int) -> None:
    task = EvalTask("a", spread, shards=shards, samples=1000)
    bench = Bench(tmp_path, suite(task))
    bench.checkpoint(100)
    assert len(bench.work()) == shards + 1
    assert bench.group().state is GroupState.COMPLETE
    estimate: Any = bench.group().values["x_mean"]
    assert estimate["value"] == pytest.approx(SAMPLES.mean(), rel=1e-12)
    assert estimate["stderr"] == pytest.approx(SAMPLES.std(ddof=1) / 1000**0.5, rel=1e-12)


def test_shards_that_count_another_number_of_samples_are_no_result(tmp_path: Path) -> None:
    def twice(evaluation: Evaluation) -> None:
        evaluation.record(x=SAMPLES[:600])

    bench = Bench(tmp_path, suite(EvalTask("a", twice, shards=2, samples=1000)))
    bench.checkpoint(100)
    bench.work()
    assert bench.group().state is GroupState.PARTIAL
    assert "1200" in (bench.group().why or "")
    assert "1000" in (bench.group().why or "")


def test_a_wrong_number_of_samples_fails_that_eval_task_only(tmp_path: Path) -> None:
    def short(evaluation: Evaluation) -> None:
        evaluation.record(loss=[1.0, 2.0])

    good = EvalTask("good", spread)
    bench = Bench(tmp_path, suite(good, EvalTask("short", short, samples=5)))
    bench.checkpoint(100)
    bench.work()
    assert bench.group().state is GroupState.PARTIAL
    check_facts(bench.group().why or "", "SamplesDiffer", "loss", "2")
    assert list(bench.group().values) == ["x_mean"]
    corrected = suite(good, EvalTask("short", short, samples=2))
    bench.restart(corrected)
    bench.run.suites = [corrected]
    bench.run.restart()
    bench.run.sightings.backfill()
    assert len(bench.work()) == 1, "only its aggregation"
    assert bench.group().state is GroupState.COMPLETE
    assert bench.value("loss_mean") == 1.5


def test_load_is_called_once_per_checkpoint_and_shared(tmp_path: Path) -> None:
    calls: list[str] = []

    def load(checkpoint: Any) -> Any:
        calls.append(checkpoint.name)
        return json.loads(checkpoint.path.read_text())

    def value(evaluation: Evaluation) -> None:
        evaluation.record(x=evaluation.loaded["x"])

    bench = Bench(tmp_path, suite(EvalTask("a", value), EvalTask("b", value), load=load))
    bench.checkpoint(100, {"x": 5})
    bench.work()
    bench.checkpoint(200, {"x": 7})
    bench.work()
    assert calls == ["step-100", "step-200"]
    assert bench.value("x_mean") == 7


def test_what_was_loaded_is_freed_before_the_next_checkpoint_is_loaded(tmp_path: Path) -> None:
    """Two models at once may be more than a GPU holds."""

    class Model:
        pass

    models: list[weakref.ref[Model]] = []
    alive: list[bool] = []

    def load(checkpoint: Any) -> Model:
        alive.extend(model() is not None for model in models)
        model = Model()
        models.append(weakref.ref(model))
        return model

    def value(evaluation: Evaluation) -> None:
        evaluation.record(x=len(models))

    bench = Bench(tmp_path, suite(EvalTask("a", value), load=load))
    gc.disable()
    try:
        for step in (100, 200):
            bench.checkpoint(step)
            bench.work()
    finally:
        gc.enable()
    assert alive == [False]


def test_the_seed_is_the_same_for_all_checkpoints_and_another_for_a_repetition(tmp_path: Path) -> None:
    seeds: list[int] = []

    def note(evaluation: Evaluation) -> None:
        seeds.append(evaluation.seed)
        evaluation.record(x=0)

    bench = Bench(tmp_path, suite(EvalTask("a", note, seed=11)))
    for step in (100, 200):
        bench.checkpoint(step)
    bench.work()
    assert seeds == [11, 11]
    bench.checkpoint(300)
    work = bench.run.claim()
    assert work is not None
    again = replace(work, job=replace(work.job, replicate=1))
    bench.evaluator.run(again)
    assert seeds[-1] not in (11, seeds[0])


def test_arrays_and_files_are_kept_beside_the_result(tmp_path: Path) -> None:
    def save(evaluation: Evaluation) -> None:
        file = evaluation.working_dir / "sample.png"
        file.write_bytes(b"png")
        evaluation.save(curves=np.arange(6).reshape(2, 3), text="hello", raw=b"\0", sample=file)
        evaluation.record(x=1.0)

    def last(results: Sequence[TaskResult]) -> Mapping[str, float]:
        return {"final": float(np.concatenate(results[0].arrays["curves"])[:, -1].mean())}

    task = EvalTask("a", save, shards=2)
    bench = Bench(tmp_path, suite(task, aggregates=(last,)))
    bench.checkpoint(100)
    bench.work()
    assert bench.value("final") == 3.5
    files = bench.results(task)[0].files
    assert sorted(files) == ["curves", "raw", "sample", "text"]
    assert (bench.outputs / str(files["sample"])).read_bytes() == b"png"
    assert not list((tmp_path / "work").iterdir())


def test_what_a_failed_attempt_saved_is_removed_and_never_counted(tmp_path: Path) -> None:
    tries: list[int] = []

    def flaky(evaluation: Evaluation) -> None:
        evaluation.record(x=100.0)
        evaluation.save(curves=np.zeros(3))
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("lost the connection")

    task = EvalTask("a", flaky)
    bench = Bench(tmp_path, suite(task))
    bench.checkpoint(100)
    outcomes = bench.work()
    assert sum(isinstance(outcome, Failure) for outcome in outcomes) == 2
    (result,) = bench.results(task)
    assert metric(result, "x").n == 1
    assert len(list((bench.outputs / "run").iterdir())) == 1


@pytest.mark.parametrize("kind", [KeyError, asyncio.CancelledError])
def test_an_error_says_where_it_was_raised_and_its_traceback_is_in_the_log(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    def bad(_evaluation: Evaluation) -> None:
        raise kind("weights")

    bench = Bench(tmp_path, suite(EvalTask("a", bad, max_attempts=1)))
    bench.checkpoint(100)
    (outcome,) = bench.work()
    assert isinstance(outcome, Failure)
    log = tmp_path / "logs" / "worker-0.log"
    place = f"{__file__}, line {bad.__code__.co_firstlineno + 1}"
    said, *trace = outcome.error.splitlines()
    check_facts(said, kind.__name__, "weights", place, log)
    assert "in bad" in "".join(trace)
    assert "eval task 'a' of suite 's' on step-100, attempt 1 failed\nTraceback" in log.read_text()
    assert str(kind("weights")) in log.read_text().splitlines()[-1]
    assert bench.group().state is GroupState.PARTIAL
    assert said in (bench.group().why or "")


def test_an_aggregate_that_raises_says_where(tmp_path: Path) -> None:
    def nothing_there(results: Sequence[TaskResult]) -> Mapping[str, float]:
        return {"best": float(str(results[0].config["best"]))}

    bench = Bench(tmp_path, suite(EvalTask("a", spread), aggregates=(nothing_there,)))
    bench.checkpoint(100)
    bench.work()
    line = nothing_there.__code__.co_firstlineno + 1
    why = bench.group().why or ""
    check_facts(why, "KeyError", "best", __file__, f"line {line}")
    assert "\n" not in why
    check_facts((tmp_path / "logs" / "worker-0.log").read_text(), "s", "step-100", "attempt 1")


def test_an_eval_task_that_records_nothing_is_told_so_and_not_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, suite(EvalTask("a", lambda evaluation: None)))
    bench.checkpoint(100)
    (outcome,) = bench.work()
    assert isinstance(outcome, Failure)
    assert not outcome.retryable
    assert "recorded nothing" in outcome.error


def test_a_checkpoint_deleted_during_its_evaluation_is_recorded_as_such(tmp_path: Path) -> None:
    def slow(evaluation: Evaluation) -> None:
        evaluation.checkpoint.path.unlink()
        evaluation.record(x=1.0)

    bench = Bench(tmp_path, suite(EvalTask("a", slow)))
    bench.checkpoint(100)
    (outcome,) = bench.work()
    assert isinstance(outcome, Failure)
    assert outcome.gone
    assert bench.group().state is GroupState.GONE
    assert not bench.results(EvalTask("a", slow))


def test_a_command_in_any_language(tmp_path: Path) -> None:
    program = tmp_path / "evaluate.py"
    program.write_text(
        "import json, sys\n"
        "checkpoint, config, shard, shards, seed, results = sys.argv[1:]\n"
        "x = json.load(open(checkpoint)) + json.load(open(config))['add'] + int(seed)\n"
        "json.dump({'x': x, 'batch': {'mean': 2.0, 'n': 10}, 'each': {'values': [1, 2, 3]},\n"
        "           'both': {'mean': 4.0, 'variance': 2.0, 'n': 5}}, open(results, 'w'))\n"
    )
    fields = "{checkpoint} {config} {shard} {shards} {seed} {results}"
    command = f"{sys.executable} {program} {fields}"
    task = EvalTask("a", command=command, config={"add": 10}, seed=3)
    bench = Bench(tmp_path, suite(task))
    bench.checkpoint(100, 5)
    bench.work()
    (result,) = bench.results(task)
    assert bench.value("x_mean") == 18
    assert metric(result, "batch").n == 10
    assert metric(result, "each").n == 3
    assert metric(result, "both").variance == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["sh", "-c", "echo loading; echo out of memory >&2; exit 3"], "status 3"),
        ("true", "{results}"),
        (["sh", "-c", "echo saved to /tmp"], "{results} /tmp"),
        (["sh", "-c", "echo '[' > \"$1\"", "sh", "{results}"], "JSON"),
        (["sh", "-c", "echo '[1]' > \"$1\"", "sh", "{results}"], "JSON object [1]"),
        ("./nowhere.sh {checkpoint}", "./nowhere.sh"),
    ],
)
def test_a_command_that_fails_says_how(tmp_path: Path, command: str | list[str], error: str) -> None:
    bench = Bench(tmp_path, suite(EvalTask("a", command=command, max_attempts=1)))
    bench.checkpoint(100)
    (outcome,) = bench.work()
    assert isinstance(outcome, Failure)
    check_facts(summarize_error(outcome.error), *error.split())


def command_that_writes(results: object, tmp_path: Path) -> EvalTask:
    (tmp_path / "written.json").write_text(json.dumps(results))
    return EvalTask("a", command=["cp", str(tmp_path / "written.json"), "{results}"], max_attempts=1)


def test_a_command_may_nest_metrics_and_write_counts_with_a_fraction(tmp_path: Path) -> None:
    nested = {"in": {"x": {"mean": 0.5, "n": 100.0, "stderr": 0.05}, "deep": {"y": {"values": [1, 2]}}, "z": 3}}
    task = command_that_writes(nested, tmp_path)
    bench = Bench(tmp_path, suite(task))
    bench.checkpoint(100)
    bench.work()
    (result,) = bench.results(task)
    assert metric(result, "in/x").stderr == pytest.approx(0.05)
    assert [metric(result, f"in/{name}").n for name in ("x", "deep/y", "z")] == [100, 2, 1]


@pytest.mark.parametrize(
    ("value", "facts"),
    [
        ({"mean": 0.5, "n": 10, "std": 0.1}, "'x' 'std' 'stderr'"),
        ({"values": [1, 2], "n": 5}, "'x' 'n' 'values'"),
        ({"mean": 0.5, "n": 2.7}, "n 2.7"),
        ({"mean": 0.5, "n": "ten"}, "n 'ten'"),
        ({"mean": 0.5, "n": float("inf")}, "n inf"),
        ({"mean": 0.5, "variance": 2.0}, "'x' n None"),
        ({"mean": "0.5", "variance": 2.0, "n": 3}, "'x' '0.5' variance"),
        ({"mean": 0.5, "variance": 2.0, "n": 3, "stderr": 0.1}, "'x' variance stderr"),
        ({"y": {"mean": 0.5, "n": 10, "std": 0.1}}, "'x/y' 'std'"),
    ],
)
def test_a_result_of_a_command_that_phyla_would_have_to_guess_is_refused(
    tmp_path: Path, value: object, facts: str
) -> None:
    bench = Bench(tmp_path, suite(command_that_writes({"x": value}, tmp_path)))
    bench.checkpoint(100)
    (outcome,) = bench.work()
    assert isinstance(outcome, Failure)
    check_facts(summarize_error(outcome.error), *facts.split())


@pytest.mark.parametrize(("end", "timeout_s"), [("exit 3", 60), ("sleep 1000", 4)])
def test_nothing_is_left_of_a_command_in_whatever_session(tmp_path: Path, end: str, timeout_s: float) -> None:
    away = (
        f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' & while [ ! -s {tmp_path}/pid ]; do :; done; "
    )
    task = EvalTask("a", command=["sh", "-c", away + end], max_attempts=1, timeout_s=timeout_s)
    bench = Bench(tmp_path, suite(task))
    bench.checkpoint(100)
    (outcome,) = bench.work()
    assert isinstance(outcome, Failure)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


NASTY = """a'; touch pwned; '$(touch pwned)`touch pwned` "; touch pwned; " #"""


@pytest.mark.parametrize("field", ["{checkpoint}", "'{checkpoint}'", '"{checkpoint}"', "--path={checkpoint}"])
def test_the_name_of_a_checkpoint_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "evaluate.py"
    program.write_text(
        "import json, pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1].removeprefix('--path='))\n"
        "json.dump({'x': json.loads(path.read_text())}, open(sys.argv[2], 'w'))\n"
    )
    task = EvalTask("a", command=f"{sys.executable} {program} {field} {{results}}")
    (tmp_path / NASTY).mkdir()
    bench = Bench(tmp_path / NASTY, suite(task))
    bench.checkpoint(100, 5)
    bench.work()
    assert bench.value("x_mean") == 5
    assert not list(tmp_path.rglob("pwned*"))


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("evaluate {checkpoint} > {results}", ">"),
        ("evaluate {checkpoint} | tee {results}", "|"),
        ("cd x; evaluate", ";"),
        ("evaluate $HOME", "$HOME"),
        ("evaluate `pwd`", "`pwd`"),
    ],
)
def test_a_command_that_needs_a_shell_says_how_to_ask_for_one(command: str, needs: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        EvalTask("a", command=command)
    assert f"{needs} needs a shell" in str(error.value)
    assert '["sh", "-c",' in str(error.value)


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("{checkpiont}", "{checkpiont} checkpoint"),
        ("--lr={lr}", "{lr} results"),
        ("{step:1000000000000}", "a field is padded to at most 999 characters"),
        ("{print $1}", "{print $1}"),
        ("{}", "Write other braces twice"),
        ("{checkpoint", "expected '}'"),
        ("{step.x}", "x"),
    ],
)
def test_a_command_with_an_unknown_field_is_refused_before_anything_runs(argument: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        EvalTask("a", command=["evaluate", argument])
    check_facts(str(error.value), *why.split())


def test_what_is_quoted_needs_no_shell() -> None:
    task = EvalTask("a", command="evaluate 'a | b' 'costs $5'")
    assert task.command == ("evaluate", "a | b", "costs $5")
    assert EvalTask("a", command=["evaluate", "$1"]).command == ("evaluate", "$1")
    for wrong in ("", [], ["a", 1], 5):
        with raises(ConfigurationError, "command="):
            EvalTask("a", command=wrong)  # type: ignore[arg-type]


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    both = ["sh", "-c", "sleep 1000 & sleep 1000"]
    bench = Bench(tmp_path, suite(EvalTask("a", command=both, timeout_s=0.2, max_attempts=1)))
    bench.checkpoint(100)
    (outcome,) = bench.work()
    assert isinstance(outcome, Failure)
    assert "timeout_s=0.2" in outcome.error


def test_metrics_of_every_kind_survive_the_ledger(tmp_path: Path) -> None:
    def classify(evaluation: Evaluation) -> None:
        evaluation.record(
            answers=Maximum.of(evaluation.shard.of([0, 1, 0, 1])),
            loss=np.ma.masked_array([1.0, 2.0]).data,
            mask=[True, False],
        )

    bench = Bench(tmp_path, suite(EvalTask("a", classify, shards=2), aggregates=(Mean("answers"),)))
    bench.checkpoint(100)
    bench.work()
    assert bench.value("answers_mean") == 1.0


def test_the_best_is_marked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def per_seed(evaluation: Evaluation) -> None:
        level = json.loads(evaluation.checkpoint.path.read_text())[evaluation.task]
        for seed in range(8):
            evaluation.record(score=level + 0.1 * seed + 0.01 * rng.normal(), seed=seed)

    bench = Bench(
        tmp_path, suite(EvalTask("a", per_seed), EvalTask("b", per_seed), objective=Maximize("score_mean"))
    )
    for step, content in ((100, {"a": 1, "b": 1}), (200, {"a": 2, "b": 2}), (300, {"a": 2, "b": 1})):
        bench.checkpoint(step, content)
        bench.work()
    groups = bench.run.reader().groups()
    assert [group.best for group in groups] == [False, True, False]
    assert list(bench.run.reader().events()) == []


def test_an_objective_that_no_aggregate_has_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, suite(EvalTask("a", spread), objective=Maximize("y_mean")))
    bench.checkpoint(100)
    bench.work()
    assert bench.group().state is GroupState.PARTIAL
    assert "no aggregate 'y_mean'" in (bench.group().why or "")


def test_aggregates_that_would_overwrite_each_other_are_an_error(tmp_path: Path) -> None:
    def mine(_results: Sequence[TaskResult]) -> Mapping[str, Estimate]:
        return {"x_mean": Estimate(1.0)}

    bench = Bench(tmp_path, suite(EvalTask("a", spread), aggregates=(Mean("x"), mine)))
    bench.checkpoint(100)
    bench.work()
    assert bench.group().state is GroupState.PARTIAL
    assert "'x_mean' is given by both" in (bench.group().why or "")


def test_stopping_returns_the_eval_task_to_the_queue(tmp_path: Path) -> None:
    made: list[Worker] = []

    def long(evaluation: Evaluation) -> None:
        made[0].stop()
        assert evaluation.should_stop

    bench = Bench(tmp_path, suite(EvalTask("a", long)))
    bench.checkpoint(100)
    made.append(Worker(bench.client, name="w", clock=bench.run.clock, evaluator=bench.evaluator))
    made[0].run()
    task = bench.run.reader().eval_jobs()[0]
    assert (task.state.value, task.failures) == ("pending", 0)


def test_a_worker_has_a_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path, suite(EvalTask("a", spread)))
    with raises(ConfigurationError, "name", "Launch.worker_name()"):
        Worker(bench.client, name="", evaluator=bench.evaluator)


def test_a_function_that_changed_without_its_version_is_reported(tmp_path: Path) -> None:
    def first() -> Callable[[Evaluation], None]:
        def a(evaluation: Evaluation) -> None:
            evaluation.record(x=1.0)

        return a

    def second() -> Callable[[Evaluation], None]:
        def a(evaluation: Evaluation) -> None:
            evaluation.record(x=2.0)

        return a

    def named(function: Callable[[Evaluation], None]) -> EvalTask:
        function.__qualname__ = "a"
        return EvalTask("a", function)

    bench = Bench(tmp_path, suite(named(first())))
    bench.checkpoint(100)
    bench.work()
    changed = suite(named(second()), EvalTask("b", spread))
    bench.run.suites = [changed]
    bench.run.restart()
    bench.restart(changed)
    bench.run.sightings.backfill()
    bench.work()
    (event,) = bench.run.reader().events()
    assert event.kind == "changed-source"
    assert "raise the version" in event.message


def test_an_edited_module_that_the_file_of_an_eval_task_imports_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eval_file.py").write_text("import scoring\n\ndef a(evaluation):\n    evaluation.record(x=1)\n")
    (tmp_path / "scoring.py").write_text("SCALE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    bench = Bench(tmp_path, suite(EvalTask("a", importlib.import_module("eval_file").a)))
    bench.checkpoint(100)
    bench.work()
    (tmp_path / "scoring.py").write_text("SCALE = 10\n")
    monkeypatch.delitem(sys.modules, "eval_file")
    monkeypatch.delitem(sys.modules, "scoring")
    changed = suite(EvalTask("a", importlib.import_module("eval_file").a), EvalTask("b", spread))
    bench.run.suites = [changed]
    bench.run.restart()
    bench.restart(changed)
    bench.run.sightings.backfill()
    bench.work()
    (event,) = bench.run.reader().events()
    assert event.kind == "changed-source"


def test_a_changed_file_of_bindings_under_the_same_version_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "config.gin"
    file.write_text("# one\n")
    first = suite(EvalTask("a", spread), gin_files=("config.gin",))
    bench = Bench(tmp_path, first, gin_root=tmp_path)
    bench.checkpoint(100)
    bench.work()
    file.write_text("# two\n")
    more = suite(EvalTask("a", spread), EvalTask("b", spread), gin_files=("config.gin",))
    bench.run.suites = [more]
    bench.run.restart()
    bench.restart(more)
    bench.run.sightings.backfill()
    bench.work()
    (event,) = bench.run.reader().events()
    assert event.kind == "changed-source"
    assert "gin" in event.message
    assert event.data["task"] == "a"
