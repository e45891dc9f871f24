"""The command lines that the command line suggests."""

import shlex
from pathlib import Path

import pytest
from typer import BadParameter

import phyla
from command_line import Phyla
from facts import check_facts, raises
from phyla.cli import options
from phyla.errors import ConfigurationError
from phyla.formatting import mask_password
from phyla.launchers import Pool
from phyla.study import Places


@pytest.mark.parametrize("name", ["home", "storage", "checkpoints"])
def test_a_place_that_an_unset_variable_left_empty_is_refused(name: str) -> None:
    with raises(ConfigurationError, name):
        Places.of(**{name: ""})


def test_a_home_that_is_a_file_is_refused(tmp_path: Path, cli: Phyla, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "notes").write_text("mine")
    with raises(ConfigurationError, file, "PHYLA_HOME"):
        Places.of(file)
    monkeypatch.setenv("PHYLA_HOME", str(file))
    check_facts(cli("status", code=2), file, "--home")
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "value", "command"),
    [
        ("PHYLA_STORAGE", "http://localhost:1", "serve"),
        ("PHYLA_STORAGE", "http://localhost:1", "dashboard"),
        ("PHYLA_STORAGE", "nonsense://", "status"),
        ("PHYLA_STORAGE", "file:/data", "status"),
        ("PHYLA_HOME", "file:/data", "status"),
    ],
)
def test_a_place_from_the_environment_is_refused_by_its_variable(
    name: str, value: str, command: str, cli: Phyla, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PHYLA_HOME", "PHYLA_STORAGE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    check_facts(cli(command, code=2), f"{name}={value!r}")


def test_a_command_line_names_what_is_not_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHYLA_HOME", raising=False)
    monkeypatch.delenv("PHYLA_STORAGE", raising=False)
    assert Places.of().command("best", "s") == "phyla best s"
    assert Places.of("runs").command("best", "s") == "phyla best s --home runs"
    assert Places.of(checkpoints="/data").command("best", "s") == "phyla best s --checkpoints /data"
    elsewhere = Places.of("runs", "postgresql://me:secret@host/db?password=secret&a=b")
    assert "secret" not in elsewhere.command("best", "s")
    assert mask_password(elsewhere.storage) == "postgresql://me:***@host/db?password=***&a=b"
    for file in ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a&password=b/c.db"):
        assert mask_password(file) == file


def test_a_current_directory_that_was_deleted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Phyla
) -> None:
    (tmp_path / "script.py").write_text("")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with raises(ConfigurationError, ".phyla", "current directory"):
        Places.of()
    with raises(ConfigurationError, "runs", "current directory"):
        Places.of(tmp_path, checkpoints="runs")
    assert Places.of(tmp_path).home == tmp_path
    assert "current directory" in cli("init", tmp_path / "script.py", code=2)


def test_commands_in_an_error_look_where_this_one_looked(tmp_path: Path, cli: Phyla) -> None:
    made = phyla.Study(
        "kept",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2),
        home=tmp_path / "a home",
    )
    trial = made.ask()
    assert trial is not None
    (trial.checkpoint_dir / "weights").write_text("w")
    made.tell(trial, metrics={"score": 1.0})
    home = tmp_path / "a home"
    for written in (["--home", home], [f"--home={home}"]):
        told = cli("replay", "kept", *written, code=2)
        words = shlex.split(told[told.index("as in: ") + 7 : told.index(" (in Python")])
        assert words == ["phyla", *map(str, written), "replay", "kept", "--file", "FILE"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("90", 90), ("1.5s", 1.5), ("10m", 600), ("4h", 14400), ("3h50m", 13800), ("1d2h3m4s", 93784), (".5m", 30)],
)
def test_a_span_of_time_is_read(text: str, wanted: float) -> None:
    assert options.seconds(text) == wanted


@pytest.mark.parametrize("limit_s", [90.0, 1.5, 14 * 86400.0, 1234567.5, 1e9, 1e-5])
def test_a_worker_reads_the_time_limit_of_its_pool(limit_s: float, tmp_path: Path) -> None:
    pool = Pool(
        name="p", launcher="local", command=["worker"], workers=1, time_limit_s=limit_s, folder=tmp_path / "p"
    )
    words = pool.worker()
    assert options.seconds(words[words.index("--time-limit") + 1]) == limit_s


@pytest.mark.parametrize("text", ["", "0", "-1", "4x", "h", "3h50", "50m3h", "nan", "inf", "1e400", "4 h"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with raises(BadParameter, "0", "90s", "10m", "4h", "3h50m"):
        options.seconds(text)


def test_options_about_gpus_and_time_say_what_they_take(cli: Phyla) -> None:
    assert "give auto" in cli("run", "s.py", "--gpus-per-worker", "all", code=2)
    for words in (("run", "s.py", "--time-limit"), ("run", "s.py", "--stall-timeout"), ("watch", "d", "--quiet")):
        assert "give a time" in cli(*words, "soon", code=2)
    told = " ".join(cli("trials", "s", "--state", "odd", code=2).split())
    check_facts(told, "--state", "odd", "pending")
