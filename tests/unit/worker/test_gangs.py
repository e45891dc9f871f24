"""Commands on several machines: an engine of this machine stands for Slurm's, the ranks are real."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import raises
from phyla.errors import ConfigurationError
from phyla.study import check
from phyla.worker.gangs.engine import Engine, engine_for
from waiting import until

ENGINE = """
# Runs a command once for each number, as srun does: with a copy of its standard input.
read place
echo "$place" > place
while [ -e hold ]; do sleep 0.05; done
for number in $NUMBERS; do
    NUMBER=$number "$@" <<EOF &
$place
EOF
done
wait
"""
RANK = """
trap 'echo $1 >> stopped; exit 0' TERM
echo "$1 of $2 at $MASTER_ADDR:$MASTER_PORT" > "rank-$1"
case $3 in
fails) [ "$1" = 0 ] || exit 3 ;;
hands-back) [ "$1" = 0 ] || exit 75 ;;
dies) [ "$1" = 0 ] || kill -SEGV $$ ;;
esac
[ "$3" = ends ] || while :; do sleep 0.1; done
"""


class Gang:
    """A gang of ranks on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.waits = folder, folder / "waits"
        (folder / "engine.sh").write_text(ENGINE)
        (folder / "rank.sh").write_text(RANK)
        self.engine = Engine(words=["sh", "engine.sh"], number="NUMBER", removed=(), name="engine")

    def start(self, *command: str, numbers: str = "0 1", nodes: int = 2) -> "subprocess.Popen[str]":
        words = self.engine.wrap(command, nodes, self.waits)
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env={**os.environ, "NUMBERS": numbers},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ranks(self, how: str) -> list[str]:
        return ["sh", "rank.sh", "{phyla:node_rank}", "2", how]

    def until_up(self) -> None:
        until(lambda: len([*self.folder.glob("rank-*")]) == 2, "both ranks run")


@pytest.fixture
def gang(tmp_path: Path) -> Gang:
    return Gang(tmp_path)


def test_every_rank_knows_its_number_and_where_the_first_one_is(gang: Gang) -> None:
    process = gang.start(*gang.ranks("ends"))
    assert (process.communicate(timeout=60), process.returncode) == (("", ""), 0)
    first, second = ((gang.folder / f"rank-{rank}").read_text() for rank in (0, 1))
    assert first.startswith(f"0 of 2 at {socket.gethostname()}:")
    assert second == first.replace("0 of", "1 of", 1)


@pytest.mark.parametrize(
    ("how", "status", "output", "errors"),
    [
        ("fails", 3, "phyla: rank 1 on HOST ended with exit status 3\n", ""),
        ("hands-back", 75, "phyla: rank 1 on HOST ended with exit status 75\n", ""),
        ("dies", -signal.SIGSEGV, "", "phyla: rank 1 on HOST was ended by signal 11\n"),
    ],
)
def test_a_rank_that_fails_ends_the_others(gang: Gang, how: str, status: int, output: str, errors: str) -> None:
    process = gang.start(*gang.ranks(how))
    printed = tuple(text.replace(socket.gethostname(), "HOST") for text in process.communicate(timeout=60))
    assert (printed, process.returncode) == ((output, errors), status)


def test_a_program_that_is_missing_is_named(gang: Gang) -> None:
    process = gang.start("no-such-program")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 127
    assert "the command cannot be started: No such file or directory" in errors


def test_sigterm_reaches_every_rank(gang: Gang) -> None:
    process = gang.start(*gang.ranks("trains"))
    gang.until_up()
    process.terminate()
    assert (process.communicate(timeout=60), process.returncode) == (("", ""), 0)
    assert sorted((gang.folder / "stopped").read_text().split()) == ["0", "1"]


def test_a_gang_that_waits_tells_it_and_can_be_stopped(gang: Gang) -> None:
    process = gang.start(*gang.ranks("trains"), numbers="1")
    waits = until(lambda: gang.waits.is_file() and gang.waits.read_text(), "it tells that it waits")
    assert waits == f"engine waits for 2 nodes that are free; started so far: rank 1 on {socket.gethostname()}\n"
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode
    assert not gang.waits.exists()
    assert not [*gang.folder.glob("rank-*")]


def test_an_engine_that_ends_early_is_an_error(gang: Gang) -> None:
    process = gang.start(*gang.ranks("trains"), numbers="")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == "phyla: engine ended with exit status 0 before the command did\n"


def test_a_stranger_is_no_rank(gang: Gang) -> None:
    (gang.folder / "hold").touch()
    process = gang.start(*gang.ranks("ends"))
    place = json.loads(
        until(lambda: (gang.folder / "place").is_file() and (gang.folder / "place").read_text(), "up")
    )
    for hello in ('{"token": "0", "rank": 0, "host": "elsewhere", "port": 1}', "GET / HTTP/1.1", "[]"):
        with socket.create_connection(("127.0.0.1", place["port"])) as connection:
            connection.sendall(f"{hello}\n".encode())
            assert connection.recv(1) == b"", "it is closed"
    (gang.folder / "hold").unlink()
    assert (process.communicate(timeout=60), process.returncode) == (("", ""), 0)


# What is requested


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An allocation of two nodes of Slurm."""
    (tmp_path / "srun").touch(0o755)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, value in {"JOB_ID": "7", "JOB_NUM_NODES": "2", "NTASKS": "1", "STEP_ID": "0", "CONF": "/c"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


def made(*arguments: str, **more: Any) -> phyla.Study:
    return study(phyla.Command(arguments or ["train"], **more))


def study(train: Any, **more: Any) -> phyla.Study:
    strategy = phyla.RandomSearch(members=1, steps_per_trial=1, total_steps=1)
    space = {"lr": phyla.Float(0.1, 1.0)}
    return phyla.Study("s", space, phyla.Minimize("loss"), strategy, train, **more)


@pytest.mark.usefixtures("allocated")
def test_srun_gets_the_machines_and_no_place_of_the_step_of_the_worker() -> None:
    engine = engine_for({"nodes": 2, "gpus": 8})
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--gres=gpu:8"} <= {*engine.words}
    assert {"SLURM_NTASKS", "SLURM_STEP_ID", "CUDA_VISIBLE_DEVICES"} <= {*engine.removed}
    assert not {"SLURM_JOB_ID", "SLURM_CONF"} & {*engine.removed}
    with raises(ConfigurationError, "3 nodes", "has 2", "--nodes=3"):
        engine_for({"nodes": 3})


@pytest.mark.usefixtures("allocated")
def test_ray_comes_first_where_its_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    engine = engine_for({"nodes": 20, "gpus": 8})
    assert engine.needed == "nodes that have 1 CPU, 8 GPU free"
    assert json.loads(engine.words[-1]) == {"CPU": 1, "GPU": 8}
    monkeypatch.setenv("PHYLA_RAY_BUNDLE", json.dumps({"CPU": 64, "memory": 400 * 2**30}))
    assert engine_for({"nodes": 2}).needed == "nodes that have 64 CPU, 400.0 GiB memory free"


def test_a_ray_that_does_not_answer_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with raises(ConfigurationError, "RAY_ADDRESS", address, "Connection refused", "ray start --head"):
            made("sh", resources={"nodes": 2}).run(workers=0)


def test_without_an_engine_the_ways_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    gangs = made("sh", resources={"nodes": 4})
    with raises(
        ConfigurationError, "4 nodes", "sbatch", "RAY_ADDRESS", "--launcher slurm or ray", "set nodes to 1"
    ):
        gangs.run(workers=0)


def test_a_function_attaches_instead() -> None:
    with raises(ConfigurationError, "phyla.attach", "shared_trials", "attach.md"):
        study(lambda trial: None, resources={"nodes": 2})


@pytest.mark.parametrize(
    "resources",
    [{"nodes": 0}, {"nodes": True}, {"nodes": 2.0}, {"gpus": -1}, {"node": 2}, 4, {"nodes": 2, "gpus": "8"}],
)
def test_resources_that_are_none_are_refused(resources: Any) -> None:
    with raises(ConfigurationError, "resources="):
        made(resources=resources)


def test_placeholders_of_machines_belong_to_commands_with_resources() -> None:
    made("train", "{nodes}", "{gpus_per_node}", "{master_addr}", resources={"nodes": 2})
    with raises(ConfigurationError, "{nodes}", "resources"):
        made("train", "{nodes}")
    with raises(ConfigurationError, "{master_addr}", "arguments"):
        made("train", env={"HOST": "{master_addr}"}, resources={"nodes": 2})
    space = {"nodes": phyla.Int(1, 4)}
    phyla.Command(["train", "{nodes}"]).check_space(phyla.Space(space))
    with raises(ConfigurationError, "collides", "nodes"):
        phyla.Command(["train"], resources={"nodes": 2}).check_space(phyla.Space(space))


def test_a_check_runs_the_command_on_this_machine() -> None:
    script = "echo {nodes} {node_rank} > {save_to}/seen; echo '{{\"loss\": {lr}}}' >> {metrics}"
    checked = check(made("sh", "-c", script, resources={"nodes": 2}), workers=0, steps=1)
    assert [part.verdict for part in checked if part.kind == "runs"] == ["ok"]


def test_on_one_machine_a_command_is_its_only_rank(tmp_path: Path) -> None:
    values = "{nodes} {gpus_per_node} {node_rank} {master_addr} {master_port} $MASTER_ADDR $MASTER_PORT"
    words = f'echo "{values}" > {{save_to}}/seen'
    report = "; echo '{{\"loss\": {lr}}}' >> {metrics}"
    alone = made("sh", "-c", words + report, resources={"nodes": 1, "gpus": 2})
    alone.places = type(alone.places).of(tmp_path)
    best = alone.run().best
    assert best is not None
    *seen, port, address, port_again = (best.checkpoint.path / "seen").read_text().split()
    assert seen == ["1", "2", "0", "127.0.0.1"]
    assert (address, port_again) == ("127.0.0.1", port)
