"""What the containers run, as plain processes: the same commands and variables as in compose.yaml and Dockerfile.

No engine is needed. A volume is a folder, and the names of machines are this one.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from digits_small import small
from waiting import until

ROOT = Path(__file__).parents[2]
COMPOSE: Any = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def instruction(name: str) -> list[str]:
    """Return what follows the last such instruction of the Dockerfile."""
    found: list[str] = re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        return int(opened.getsockname()[1])


class Machine:
    """Runs services of compose.yaml as processes."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder, self.database, self.port = folder, database, free_port()
        (folder / "app").mkdir()
        (folder / "app/digits.py").write_text(small(members=4, trials=2))

    def here(self, text: str, name: str) -> str:
        """Translate addresses and paths from within the containers."""
        text = text.replace("postgresql://phyla@database/phyla", self.database)
        text = text.replace("http://service:8470", f"http://127.0.0.1:{self.port}")
        text = text.replace("8470", str(self.port)).replace("0.0.0.0", "127.0.0.1")
        return re.sub(r"(?<![\w/])(?<!host=)/(secrets|phyla|tmp)\b", lambda at: str(self.path(at[0], name)), text)

    def path(self, path: str, name: str) -> Path:
        """Return the folder that a container of this name has there."""
        found = self.folder / (f"{name}-tmp" if path == "/tmp" else path.strip("/"))
        found.mkdir(exist_ok=True)
        return found

    def command(self, service: str, name: str) -> tuple[list[str], dict[str, str]]:
        told = COMPOSE[service]
        mounted = {volume.split(":")[1] for volume in told["volumes"]}
        assert mounted >= {f"/{used}" for used in re.findall(r"/(secrets|phyla)\b", str(told["command"]))}
        words = [*told.get("entrypoint", ["phyla"]), *told["command"]]
        variables = dict(pair.split("=") for pair in instruction("ENV")[-1].split()[1:])
        variables = {**variables, **told.get("environment", {})}
        return self.words(words, name), {key: self.here(value, name) for key, value in variables.items()}

    def words(self, words: list[str], name: str) -> list[str]:
        program = {"python": [sys.executable], "phyla": [sys.executable, "-m", "phyla.cli"]}[words[0]]
        return [*program, *(self.here(word, name) for word in words[1:])]

    @contextmanager
    def run(self, service: str, replica: int = 1) -> Iterator["subprocess.Popen[bytes]"]:
        name = f"{service}-{replica}"
        words, variables = self.command(service, name)
        usual = {key: value for key, value in os.environ.items() if not key.startswith(("PHYLA_", "PG"))}
        with (
            (self.folder / f"{name}.log").open("ab") as log,
            subprocess.Popen(
                words, env={**usual, **variables}, cwd=self.folder / "app", stdout=log, stderr=log
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def wait(self, service: str) -> None:
        with self.run(service) as process:
            assert process.wait(180) == 0, self.log(service)

    def listens(self) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self.port)) == 0

    def healthy(self, service: str) -> bool:
        check = self.words(COMPOSE[service]["healthcheck"]["test"][1:], service)
        return subprocess.run(check, capture_output=True, check=False).returncode == 0

    def log(self, service: str, replica: int = 1) -> str:
        return (self.folder / f"{service}-{replica}.log").read_text()

    def checkpoints(self) -> int:
        return len(list((self.folder / "phyla/checkpoints/digits").glob("*")))


@pytest.fixture
def machine(tmp_path: Path, postgres_url: str) -> Machine:
    return Machine(tmp_path, postgres_url)


@pytest.mark.thorough  # below: what each service waits for, and the image
def test_what_compose_starts_trains_the_study_to_its_end(machine: Machine) -> None:
    machine.wait("secrets")
    password = (machine.folder / "secrets/password").read_text()
    machine.wait("secrets")
    assert (machine.folder / "secrets/password").read_text() == password
    with machine.run("service") as service:
        until(lambda: machine.listens(), "the service listens", process=service)
        until(lambda: machine.healthy("service"), "the service is ready", process=service)
        assert COMPOSE["worker"]["deploy"]["replicas"] == 2
        with machine.run("worker", 1) as one, machine.run("worker", 2) as other:
            until(lambda: machine.checkpoints() >= 2, "they train")
            until(lambda: psutil.Process(other.pid).children(), "both supervise workers", process=other)
            # As an engine drains a container; then `restart: on-failure` starts it again.
            other.send_signal(signal.SIGTERM)
            assert other.wait(180) == 75, machine.log("worker", 2)
            with machine.run("worker", 2) as again:
                assert one.wait(180) == 0, machine.log("worker", 1)
                assert again.wait(180) == 0, machine.log("worker", 2)
        assert "8 trials completed, 0 failed" in machine.log("worker", 1)
        secrets = [
            (machine.folder / file).read_text().strip() for file in ("secrets/password", "phyla/service.token")
        ]
        for process in psutil.process_iter(["cmdline"]):
            assert not any(secret in " ".join(process.info["cmdline"] or []) for secret in secrets)
        written = "".join(log.read_text() for log in machine.folder.glob("*.log"))
        assert not any(secret in written for secret in secrets)
    for file in (*(machine.folder / "secrets").iterdir(), machine.folder / "phyla/service.token"):
        assert file.stat().st_mode & 0o077 == 0, file


def test_each_service_waits_for_what_it_needs() -> None:
    needs = {
        name: {other: how["condition"] for other, how in told.get("depends_on", {}).items()}
        for name, told in COMPOSE.items()
    }
    assert needs == {
        "secrets": {},
        "database": {"secrets": "service_completed_successfully"},
        "service": {"database": "service_healthy"},
        "worker": {"service": "service_healthy"},
    }
    assert COMPOSE["worker"]["restart"] == "on-failure"
    # Nothing is open to other machines.
    assert [port for told in COMPOSE.values() for port in told.get("ports", ())] == ["127.0.0.1:8470:8470"]
    variables = [name for told in COMPOSE.values() for name in told.get("environment", {})]
    assert {name for name in variables if re.search("PASS|TOKEN", name)} == {
        "POSTGRES_PASSWORD_FILE",
        "PGPASSFILE",
        "PHYLA_TOKEN_FILE",
    }


def test_the_image_has_what_its_build_names_and_runs_as_a_plain_user() -> None:
    for line in instruction("COPY"):
        for source in [] if line.startswith("--from") else line.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in (ROOT / ".dockerignore").read_text().splitlines()
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    built = [COMPOSE[name]["build"]["args"]["EXTRAS"] for name in ("secrets", "service", "worker")]
    for extras in (instruction("ARG")[0].removeprefix("EXTRAS="), *built):
        assert set(extras.split(",")) <= set(known["optional-dependencies"])
    assert known["readme"] in instruction("COPY")[0]
    assert instruction("USER") == ["1000:1000"]
    assert instruction("ENTRYPOINT") == ['["phyla"]']
    for mounted in {volume.split(":")[1] for told in COMPOSE.values() for volume in told["volumes"]}:
        assert mounted in (*DOCKERFILE.split(), "/var/lib/postgresql/data")
