"""Studies in TOML files: what is read, what is refused and how, and the schema."""

import copy
import functools
import inspect
import json
import math
import operator
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import phyla
from effort import thorough
from facts import check_facts, raises
from phyla import plugins
from phyla.errors import UsageError
from phyla.study import load_suites
from phyla.study.files.load import load_studies
from phyla.study.files.tables import registered
from phyla.study.files.toml import schema
from phyla.worker.commands.placeholders import fill

ROOT = Path(__file__).parents[3]
START, END = "command = [", "total_steps = 40"
"""Where further keys are added."""
SMALL = """
name = "quadratic"
command = ["sh", "train.sh", "{lr}", "{start_step}", "{end_step}", "{save_to}", "{metrics}", ["{source}"]]
objective = "minimize loss"

[space]
lr = { low = 1e-4, high = 1.0, log = true }
batch = { choices = [32, 64] }

[pbt]
population_size = 4
steps_per_trial = 10
total_steps = 40
"""
ALL = """
name = "everything"
objective = { name = "constrained", objective = "maximize accuracy_mean", subject_to = ["latency_max <= 10"] }
storage = "sqlite:///stores/x.db"
home = "runs"
checkpoints = "../kept"
seed = 3
initial = [{ "opt/lr" = 0.1 }, { width = 32 }]
constraints = ["rules.py:allowed"]
start_from = ["a", { path = "b", step = 3 }]
stopping = [{ name = "median-stopping", min_steps = 9 }, { name = "divergence", above = 3 }]

[command]
arguments = ["python", "train.py", ["--resume", "{source}", ["--strict"]], "{hydra}"]
env = { TOKENIZERS_PARALLELISM = "false" }
timeout_s = 3600
cwd = "code"

[metrics]
loss = 'loss=(\\S+)'

[tensorboard]
reward = ["**/*tfevents*", "eval/reward"]

[space]
width = { low = 16, high = 64, int = true, log = true, step = 16 }
rate = { low = 0, high = 1, int = false }
ema = { low = 0.9, high = 0.9999, log = "1-x" }

[space.opt]
kind = { choices = ["sgd", "adam"], initial = "adam" }
lr = { low = 1e-4, high = 1, log = true, initial = [1e-3, 1e-2] }
momentum = { low = 0.0, high = 0.9, when = { "opt/kind" = "sgd" }, default = 0.0 }
layers = { choices = [1, 2, 4], ordered = true }

[pbt]
population_size = 4
steps_per_trial = 10
total_steps = 40
exploit = { name = "exploit-pipeline", rules = ["backtrack", { name = "t-test", window = 5 }] }
explore = "none"
fitness = { name = "from-suite", suite = "held" }
quorum = 1

[retention]
best = 3

[retries]
attempts = 2

[[eval]]
name = "held"
tasks = [
    { name = "x", command = ["sh", "e.sh", "{checkpoint}", "{results}"] },
    { name = "y", evaluate = "rules.py:measure", shards = 2 },
    "rules.py:again",
]
aggregates = [{ name = "mean", metric = "accuracy" }, { name = "worst", metric = "latency", of = "max" }]
policy = { every = 2 }
"""
RULES = """
def allowed(params):
    return params["opt"]["lr"] < 0.9


def measure(evaluation):
    evaluation.record(accuracy=1.0, latency=1.0)


def again(evaluation):
    evaluation.record(accuracy=1.0, latency=1.0)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "rules.py").write_text(RULES)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "studies" / "study.toml"


def edited(old: str, new: str) -> str:
    """Return the small study with one change; at its start or end with an addition."""
    added = {START: f"{new}\n{START}", END: f"{END}\n{new}"} if not new.startswith("command") else {}
    return SMALL.replace(old, added.get(old, new), 1)


def read(file: Path, text: str) -> phyla.Study:
    file.write_text(text)
    (study,) = load_studies(file)
    return study


def test_a_small_study_is_the_one_that_python_would_make(file: Path) -> None:
    study = read(file, SMALL)
    same = phyla.Study(
        "quadratic",
        phyla.Space(lr=phyla.Float(1e-4, 1.0, log=True), batch=phyla.Choice([32, 64])),
        phyla.Minimize("loss"),
        phyla.PBT(population_size=4, steps_per_trial=10, total_steps=40),
        phyla.Command(
            ["sh", "train.sh", "{lr}", "{start_step}", "{end_step}", "{save_to}", "{metrics}", ["{source}"]],
            cwd=file.parent,
        ),
    )
    assert study.config() == same.config()
    assert study.places == same.places
    assert study.train == same.train
    file.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())  # as Windows may write it
    assert load_studies(file)[0].config() == same.config()


def test_all_keys_of_a_study_relative_to_its_file(file: Path) -> None:
    study = read(file, ALL)
    here, rules = file.parent, study.rules
    assert rules.space.parameters == {
        "width": phyla.Int(16, 64, log=True, step=16),
        "rate": phyla.Float(0.0, 1.0),
        "ema": phyla.Float(0.9, 0.9999, log="1-x"),
        "opt/kind": phyla.Choice(["sgd", "adam"], initial="adam"),
        "opt/lr": phyla.Float(1e-4, 1.0, log=True, initial=(1e-3, 1e-2)),
        "opt/momentum": phyla.Float(0.0, 0.9, when={"opt/kind": "sgd"}, default=0.0),
        "opt/layers": phyla.Ordinal([1, 2, 4]),
    }
    assert rules.space.initial == ({"opt/lr": 0.1}, {"width": 32})
    assert [constraint.__name__ for constraint in rules.space.constraints] == ["allowed"]
    assert rules.objective == phyla.Constrained(phyla.Maximize("accuracy_mean"), ("latency_max <= 10",))
    strategies = phyla.strategies
    assert rules.strategy == phyla.PBT(
        population_size=4,
        steps_per_trial=10,
        total_steps=40,
        exploit=strategies.ExploitPipeline([strategies.Backtrack(), strategies.TTest(window=5)]),
        explore=None,
        fitness=phyla.FromSuite("held"),
        quorum=1.0,
    )
    assert rules.stopping == (phyla.MedianStopping(min_steps=9), strategies.Divergence(above=3))
    assert (rules.keep_best, rules.max_attempts, study.seed) == (3, 2, 3)
    assert study.places == phyla.study.Places.of(here / "runs", f"sqlite:///{here}/stores/x.db", here / "../kept")
    assert [Path(entry.path) for entry in study.declared.start_from] == [here / "a", here / "b"]
    assert study.train == phyla.Command(
        ["python", "train.py", ["--resume", "{source}", ["--strict"]], "{hydra}"],
        env={"TOKENIZERS_PARALLELISM": "false"},
        timeout_s=3600,
        cwd=here / "code",
        metrics={"loss": r"loss=(\S+)"},
        tensorboard={"reward": ("**/*tfevents*", "eval/reward")},
    )
    (suite,) = rules.suites
    assert [(task.name, task.shards, task.command is None) for task in suite.tasks] == [
        ("x", 1, False),
        ("y", 2, True),
        ("again", 1, True),
    ]
    assert suite.policy == phyla.Policy(every=2)


@pytest.mark.parametrize(
    ("table", "strategy"),
    [
        ("[random-search]\nmembers = 3\ntotal_steps = 5", phyla.RandomSearch(3, 5)),
        ("[asha]\nmembers = 9\ntotal_steps = 9\nmin_steps = 1", phyla.ASHA(9, 9, 1)),
        ("[grid-search]\ntotal_steps = 5\ngrid = { lr = [0.1, 0.2], batch = [32] }", None),
        ("[fixed-schedule]\ntotal_steps = 5\nschedule = [[0, { lr = 0.1, batch = 32 }]]", None),
        ("[optuna]\nmembers = 3\ntotal_steps = 5\nsettings = { n_startup_trials = 3 }", None),
    ],
)
def test_every_strategy_has_its_table(file: Path, table: str, strategy: Any) -> None:
    made = read(file, SMALL.partition("[pbt]")[0] + table).rules.strategy
    assert strategy is None or made == strategy
    again = plugins.decode(json.loads(json.dumps(plugins.encode(made))))
    assert again == made


@dataclass(frozen=True)
class Mine(phyla.strategies.Exploit):
    """A rule of somebody else.

    Args:
        share: how much.
    """

    share: float
    how: "Unknown | None" = None  # type: ignore[name-defined]  # noqa: F821

    def choose(self, member: Any, population: Any, context: Any) -> Any: ...


def test_a_rule_of_another_package_needs_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="mine", value=f"{__name__}:Mine", group="phyla.exploit")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Mine.__module__])
    known = {**plugins.list_plugins(), "phyla.exploit/mine": point}
    monkeypatch.setattr(plugins, "list_plugins", lambda: known)
    text = f'{SMALL}exploit = {{ name = "mine", share = 0.5, how = "so" }}\n'
    strategy: Any = read(file, text).rules.strategy
    assert strategy.exploit == Mine(0.5, "so")
    with raises(UsageError, "pbt.exploit"):
        read(file, f'{SMALL}exploit = "mine"\n')
    jsonschema.Draft7Validator(schema()).validate(tomllib.loads(text))
    registered.cache_clear()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("quadratic", "a b", "study.toml a b 100"),
        ("[pbt]", "[ptb]", "study.toml ptb pbt"),
        ("[pbt]", "[asha]\n[pbt]", "has the strategies asha and pbt write one table"),
        ("objective =", "objectiv =", "objectiv objective"),
        ('objective = "minimize loss"', "", "study.toml"),
        ("[space]", "[other]", "other"),
        ("minimize loss", "minimise loss", "minimise loss"),
        ('"minimize loss"', "3", "METRIC"),
        ("log = true", "logg = true", "space.lr logg log"),
        ("log = true", "log = 1", "space.lr.log 1-x"),
        ("log = true", 'log = "1-x"', "space.lr Float(0.0001 1.0 log= 1-x high"),
        ("low = 1e-4", 'low = "1e-4"', "space.lr.low 1e-4"),
        ("low = 1e-4", "low = 2", "space.lr Float(2 1.0 log=True low high"),
        ("low = 1e-4, ", "", "space.lr low high"),
        ("low = 1e-4, high = 1.0", "low = 1, high = 9", "add int = true for whole numbers only or int = false"),
        ("{ choices = [32, 64] }", "[32, 64]", "space.batch"),
        ("choices = [32, 64]", "choices = [32, 64], low = 1", "low"),
        ("choices = [32, 64]", "choices = [32, 32]", "space.batch Choice([32 32]"),
        ("population_size = 4", "population_size = 4.5", "pbt.population_size 4.5"),
        ("population_size = 4", "", "population_size"),
        ("population_size = 4", "populatoin_size = 4", "populatoin_size"),
        ("population_size = 4", "population_size = 0", "PBT(population_size=0)"),
        ("steps_per_trial = 10", "steps_per_trial = 50", "PBT(steps_per_trial=50 total_steps=40"),
        (END, 'exploit = "truncate"', "pbt.exploit truncate"),
        (END, "exploit = { quantile = 0.1 }", "{\"quantile\" 0.1}"),
        (END, 'exploit = { name = "truncation", quantil = 1 }', "exploit quantil quantile donors"),
        (END, 'exploit = { name = "truncation", quantile = 1 }', "Truncation(quantile=1)"),
        (END, 'copy = "all"', "pbt.copy"),
        (END, 'fitness = { name = "from-suite", suite = "x" }', "x"),
        (END, "[retention]\nbest = 0", "Retention(best=0)"),
        (END, "[retry]\n", "retry retries"),
        (END, "[[eval]]\nname = 'e'", "eval[e] Suite("),
        (END, "[eval]\nname = 'e'", " eval expected a list"),
        (END, "[[eval]]\nnam = 'e'", "eval[0] nam"),
        (END, "[metrics]\nloss = 'loss'", "Command(metrics={ loss"),
        ('"sh", "train.sh"', '3, "train.sh"', " command Command(...) 3 is not a text write '3'"),
        ("command = [", "command = 3 #", " command expected a list of texts"),
        ("{lr}", "{lrr}", "{lrr} lr"),
        (START, "seed = -1", "study.toml seed=-1"),
        (START, "seed = true", "seed"),
        (START, 'home = "~nobody-here/x"', " home Could not determine home directory"),
        (START, 'storage = "sqlite:///"', "sqlite:///"),
        (START, "start_from = [{ pth = 'a' }]", "start_from[0] pth"),
        (START, "initial = [{ lr = 9 }]", "initial[0] 9"),
        (START, 'constraints = ["nowhere.py:f"]', "constraints[0]"),
        (START, "stopping = ['median-stopping']", "stopping[0] min_steps"),
        (START, "[[suite]]", "study.toml suite"),
        ("command = [", "command == [", "study.toml line 3 10"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_and_key(file: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(UsageError) as caught:
        read(file, edited(old, new))
    told = str(caught.value)
    assert told.startswith(f"{file}")
    assert told.count(str(file)) == 1
    check_facts(told, *message.split())


JUNK: list[Any] = [True, -1, math.inf, "", "a:b", [1, "a"], {}, {"name": ["a"]}]


def test_no_value_anywhere_raises_anything_else_and_the_schema_refuses_no_more(file: Path) -> None:
    whole, accepts = tomllib.loads(ALL), jsonschema.Draft7Validator(json.loads(json.dumps(schema()))).is_valid
    outcomes = set()
    for place, path in enumerate(places(whole)):
        for value in JUNK if thorough() else JUNK[place % 4 :: 4]:
            raw = copy.deepcopy(whole)
            functools.reduce(operator.getitem, path[:-1], raw)[path[-1]] = value
            text = "\n".join(f"{key} = {toml(item)}" for key, item in raw.items())
            told = ""
            try:
                read(file, text).config()
            except UsageError as error:
                told = str(error)
            outcomes.add(bool(told))
            assert told.startswith(f"{file}") or (not told and accepts(tomllib.loads(text))), text
    assert outcomes == {True, False}


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every key and entry in a value."""
    for key, item in enumerate(value) if isinstance(value, list) else dict(value).items():
        yield (key,)
        yield from ((key, *rest) for rest in (places(item) if isinstance(item, (dict, list)) else ()))


def toml(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return "inf" if value == math.inf else json.dumps(value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = " + b"[" * 5000, b"\x00"])
def test_a_file_that_is_not_toml(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with raises(UsageError, "study.toml"):
        load_studies(file)


def test_a_file_that_is_not_there(file: Path) -> None:
    with raises(UsageError, "study.toml"):
        load_studies(file)
    file.with_suffix(".txt").touch()
    with pytest.raises(UsageError, match=r"its name ends in \.py or \.toml"):
        load_studies(file.with_suffix(".txt"))


def test_suite_files_and_study_files_are_told_apart(file: Path) -> None:
    file.write_text(SMALL)
    with raises(UsageError, "phyla run"):
        load_suites(str(file))
    file.write_text('[[suite]]\nname = "held"\ntasks = ["rules.py:measure"]\n')
    assert load_studies(file) == []
    assert [suite.name for suite in load_suites(str(file))] == ["held"]


# The schema


def test_the_published_schema_is_up_to_date() -> None:
    # If not: phyla init --schema > docs/study.schema.json
    assert json.loads((ROOT / "docs/study.schema.json").read_text()) == json.loads(json.dumps(schema()))


def problems(text: str) -> list[str]:
    validator = jsonschema.Draft7Validator(json.loads(json.dumps(schema())))
    validator.check_schema(validator.schema)
    return [error.message for error in validator.iter_errors(tomllib.loads(text))]


@pytest.mark.parametrize("text", [SMALL, ALL])
def test_the_schema_accepts_what_is_read(text: str) -> None:
    assert problems(text) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("objective =", "objectiv ="),
        ("minimize loss", "minimise loss"),
        ("log = true", "logg = true"),
        ("log = true", "log = 1"),
        ("low = 1e-4, ", ""),
        ("{ choices = [32, 64] }", "[32, 64]"),
        ("population_size = 4", "population_size = 4.5"),
        ("population_size = 4", ""),
        ("[pbt]", "[ptb]"),
        (END, 'exploit = "truncate"'),
        (END, 'exploit = { name = "truncation", quantil = 0.1 }'),
        (END, "[[eval]]\nname = 'e'\ntask = []"),
        ('"sh", "train.sh"', '3, "train.sh"'),
    ],
)
def test_the_schema_refuses_what_is_refused(old: str, new: str) -> None:
    assert problems(edited(old, new))


def test_the_schema_describes_the_settings() -> None:
    described = schema()
    # A new argument of Study needs a key in phyla/study/files/toml.py.
    elsewhere = {"train": "command", "suites": "eval", "strategy": "pbt", "setup": "command"}
    arguments = inspect.signature(phyla.Study).parameters
    assert {elsewhere.get(name, name) for name in arguments} <= set(described["properties"])
    pbt = described["properties"]["pbt"]["properties"]
    assert set(pbt) == {field.name for field in fields(phyla.PBT)}
    assert all(setting["description"] for setting in pbt.values())
    assert all(each.get("description") for each in described["properties"].values() if "properties" not in each)


@pytest.mark.parametrize(
    ("setting", "place"), [("", ""), ('cwd = "sub/{seed}"', "sub/7"), ('cwd = "{{lr}}"', "{lr}")]
)
def test_braces_in_the_directory_of_a_file_are_no_placeholders(tmp_path: Path, setting: str, place: str) -> None:
    file = tmp_path / "{lr} {x}" / "study.toml"
    file.parent.mkdir()
    in_full = re.sub(r"command = (.*)", rf"command = {{ arguments = \1, {setting} }}", SMALL)
    study = read(file, in_full if setting else SMALL)
    assert isinstance(study.train, phyla.Command)
    assert fill(str(study.train.cwd), {"lr": "0.1", "seed": "7"}) == str(file.parent / place)


def test_no_validation_library_is_needed(file: Path) -> None:
    read(file, ALL)
    load = f"from phyla.study.files.load import load_studies; load_studies({str(file)!r})"
    program = f"import sys; {load}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=file.parent
    )
    assert not {"pydantic", "jsonschema", "torch", "optuna"} & set(done.stdout.split())
