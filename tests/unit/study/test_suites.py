"""Suites from files, and what survives being stored."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import phyla
from facts import check_facts
from phyla import plugins, study_modules
from phyla.errors import UsageError
from phyla.records import GroupState, StudyState
from phyla.store import Store, open_store
from phyla.study import Places, load_suites

CODE = """
import phyla

@phyla.eval_task(tags=["in"], version="3", shards=2)
def accuracy(evaluation):
    evaluation.record(accuracy=1.0)

def loss(evaluation):
    evaluation.record(loss=1.0)

def load(checkpoint):
    return checkpoint

def spread(results):
    return {"spread": 0.0}

first = phyla.Suite("first", [accuracy])
second = phyla.Suite(
    "second",
    [
        accuracy,
        phyla.EvalTask("loss", loss, config={"n": 3}, gin=("a.b = 1",)),
        phyla.EvalTask("sh", command="true"),
    ],
    objective=phyla.Minimize("loss_mean"),
    aggregates=[
        phyla.evaluation.Mean("loss"),
        phyla.evaluation.Worst("loss", "max"),
        spread,
    ],
    policy=phyla.Policy(latest=True, milestone_every=100),
    load=load,
    gin_files=["base.gin"],
)
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "suites.py"
    path.write_text(CODE)
    before = list(sys.path)
    yield path
    sys.path[:] = before
    study_modules.forget()


def test_all_suites_of_a_file_or_one_by_variable_or_by_name(file: Path) -> None:
    assert [suite.name for suite in load_suites(str(file))] == ["first", "second"]
    assert [suite.name for suite in load_suites(f"{file}:second")] == ["second"]
    file.write_text(CODE + '\nodd = phyla.Suite("by-name", [accuracy])\n')
    study_modules.forget()
    assert [suite.name for suite in load_suites(f"{file}:by-name")] == ["by-name"]


def test_suites_of_a_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "suites_of_a_module.py").write_text(CODE)
    monkeypatch.syspath_prepend(file.parent)
    assert [suite.name for suite in load_suites("suites_of_a_module:first")] == ["first"]


def test_suites_survive_being_stored(file: Path) -> None:
    for suite in load_suites(str(file)):
        raw = json.loads(json.dumps(plugins.encode(suite)))
        again = plugins.decode(raw, plugins.resolve)
        assert again == suite
        assert [task.identity for task in again.tasks] == [task.identity for task in suite.tasks]


def test_suites_of_two_files_are_found_again_each_in_its_own(file: Path) -> None:
    other = file.parent / "other.py"
    other.write_text(CODE.replace('"first"', '"third"').replace("accuracy=1.0", "accuracy=2.0"))
    both = [*load_suites(f"{file}:first"), *load_suites(f"{other}:third")]
    raw = json.loads(json.dumps([plugins.encode(suite) for suite in both]))
    sources = [task["evaluate"]["function"] for suite in raw for task in suite["tasks"]]
    assert sources == [f"{file}:accuracy", f"{other}:accuracy"]
    assert plugins.decode(raw, plugins.resolve) == both


def test_suites_of_a_toml_file(file: Path) -> None:
    toml = file.with_name("suites.toml")
    toml.write_text(
        """
[[suite]]
name = "heldout"
objective = { minimize = "loss_mean" }
watch = ["maximize n_mean", "minimize out/loss_mean"]
aggregates = [{ name = "worst", metric = "loss", of = "max" }, "suites.py:spread"]
policy = { latest = true, every = 2 }
load = "suites.py:load"
gin_files = ["base.gin"]
tasks = [
    "suites.py:accuracy",
    { name = "small", evaluate = "suites.py:loss", config = { n = 5 }, gin = ["a.b = 2"], tags = ["out"] },
    { name = "again", evaluate = "suites.py:accuracy", shards = 4 },
    { name = "sh", command = "evaluate {checkpoint} {results}", timeout_s = 60 },
]

[[suite]]
name = "bare"
tasks = ["suites.py:loss"]
"""
    )
    heldout, bare = load_suites(str(toml))
    assert [(task.name, task.shards, task.version) for task in heldout.tasks] == [
        ("accuracy", 2, "3"),
        ("small", 1, "1"),
        ("again", 4, "3"),
        ("sh", 1, "1"),
    ]
    assert heldout.tasks[1].config == {"n": 5}
    assert heldout.tasks[1].gin == ("a.b = 2",)
    assert heldout.aggregates[0] == phyla.evaluation.Worst("loss", of="max")
    assert heldout.policy == phyla.Policy(latest=True, every=2)
    assert heldout.objective == phyla.Minimize("loss_mean")
    assert heldout.watch == (phyla.Maximize("n_mean"), phyla.Minimize("out/loss_mean"))
    assert bare.tasks[0].name == "loss"
    assert plugins.decode(json.loads(json.dumps(plugins.encode(heldout))), plugins.resolve) == heldout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[suites]]\nname = "a"', "suites suite"),
        ('[[suite]]\nname = "a"\ntask = []', "suite[a] task tasks"),
        ('[[suite]]\nname = "a"\ntasks = [{ nam = "b" }]', "tasks[0] nam name"),
        ('[[suite]]\nname = "a"\ntasks = ["suites.py:loss"]\npolicy = { last = true }', "last"),
        ('[[suite]]\nname = "a"\ntasks = ["suites.py:nothing"]', "nothing"),
        ('[[suite]]\nname = "a"\ntasks = ["suites.py:loss"]\nobjective = "loss"', "suite[a].objective loss"),
        ('[[suite]]\nname = "a"\ntasks = ["suites.py:loss"]\naggregates = [{ name = "x" }]', "mean"),
        ('[[suite]]\nname = "a b"\ntasks = ["suites.py:loss"]', "letters digits"),
        ('[[suite]]\nname = "a"', "at least one eval task"),
        ("[[suite]", "suites.toml"),
        ("", "defines no suite"),
    ],
)
def test_what_is_wrong_in_a_toml_file_is_said(file: Path, text: str, message: str) -> None:
    toml = file.with_name("suites.toml")
    toml.write_text(text)
    with pytest.raises(UsageError, match="suites") as caught:
        load_suites(str(toml))
    check_facts(str(caught.value), *message.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "file.py:name"),
        ("{folder}/nothing.py", "there is no file"),
        ("{folder}/suites.py:nothing", "nothing"),
        ("no.such.module:suite", "no.such.module"),
        ("{folder}/nothing.toml", "nothing.toml"),
    ],
)
def test_suites_that_are_not_there(file: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_suites(text.format(folder=file.parent))
    check_facts(str(caught.value), *message.split())


@phyla.eval_task
def one(evaluation: phyla.Evaluation) -> None:
    evaluation.record(x=1.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(Places.of(tmp_path).storage)) as store:
        yield store


def evaluated(home: Path, *suites: phyla.Suite) -> phyla.Study:
    def train(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "w").write_text("w")
        trial.report(loss=1.0)

    space, objective = {"lr": phyla.Float(0.1, 1.0)}, phyla.Minimize("loss")
    return phyla.Study("s", space, objective, phyla.RandomSearch(2, 1), train, home=home, suites=suites)


def groups(store: Store) -> list[GroupState]:
    with store.reader(1) as reader:
        return [group.state for group in reader.groups()]


def test_what_waited_for_the_last_suite_of_a_study_is_skipped_when_it_goes(tmp_path: Path, store: Store) -> None:
    study = evaluated(tmp_path, phyla.Suite("s", [one]))
    trial = study.ask()
    assert trial is not None
    (trial.checkpoint_dir / "w").write_text("w")
    study.tell(trial, metrics={"loss": 1.0})
    assert groups(store) == [GroupState.QUEUED]
    evaluated(tmp_path).ask()
    assert groups(store) == [GroupState.SKIPPED]


@pytest.mark.filterwarnings("ignore:study .s.")
def test_what_a_completed_study_could_not_evaluate_is_tried_again_and_not_for_ever(
    tmp_path: Path, store: Store
) -> None:
    for samples, state in ((2, GroupState.PARTIAL), (2, GroupState.PARTIAL), (1, GroupState.COMPLETE)):
        results = evaluated(tmp_path, phyla.Suite("s", [phyla.EvalTask("x", one, samples=samples)])).run(workers=0)
        assert results.state is StudyState.COMPLETED
        assert groups(store) == [state] * 2
