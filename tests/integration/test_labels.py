"""Eval tasks that ask for a machine with a label, run by workers of a service."""

import json
from collections.abc import Callable
from pathlib import Path

from forked import Forked
from phyla.settings import child_environment
from serving import Service, phyla
from waiting import until

FILE = """
name = "labelled"
command = ["sh", "train.sh", "{lr}", "{end_step}", "{save_to}", "{metrics}"]
objective = "minimize loss_mean"

[space]
lr = { low = 0.1, high = 1.0 }

[pbt]
population_size = 2
steps_per_trial = 1
total_steps = 1
fitness = { name = "from-suite", suite = "s" }

[[eval]]
name = "s"
tasks = [
    { name = "any", command = ["sh", "evaluate.sh", "any", "{results}"] },
    { name = "fast", command = ["sh", "evaluate.sh", "fast", "{results}"], resources = { label = "a100" } },
]
"""
TRAIN = """
echo "$1 $2" > "$3/weights"
echo "{\\"step\\": $2}" >> "$4"
"""
EVALUATE = """
echo "$1 on $MACHINE" >> log
echo '{"loss": 1.0}' > "$2"
"""


def test_only_a_worker_with_its_label_runs_an_eval_task(tmp_path: Path) -> None:
    for name, text in {"study.toml": FILE, "train.sh": TRAIN, "evaluate.sh": EVALUATE}.items():
        (tmp_path / name).write_text(text)
    log = tmp_path / "log"
    with Service("--home", str(tmp_path / "service")) as service:
        where = ("--server", service.url, "--checkpoints", tmp_path / "checkpoints")

        def start(*words: object, machine: str) -> Callable[[], str]:
            environment = child_environment({"MACHINE": machine, "PHYLA_HOME": str(tmp_path / machine)})
            command = ["-m", "phyla.cli", *words, "--workers", "1", *where]
            process = Forked(command, cwd=tmp_path, env=environment, merged=True, session=True, spares=1)

            def ended() -> str:
                printed, _ = process.communicate(120)
                assert process.returncode == 0, printed
                return printed

            return ended

        def told(command: str, *words: str) -> str:
            done = phyla(command, "labelled", *words, *where)
            assert done.returncode == 0, done.stderr
            return " ".join(done.stdout.split())

        run = start("run", "study.toml", machine="plain")
        until(lambda: log.exists() and log.read_text().count("any on plain") == 2, "all were evaluated in part")
        waits = "2 eval tasks wait for a worker with label 'a100'; to start one: phyla worker FILE --labels a100"
        assert waits in told("status")
        (one,) = json.loads(told("evaluations", "--json"))["waiting"]
        assert one == {"gpus": 0, "label": "a100", "count": 2}
        words = ("worker", "study.toml", "--kinds", "evaluate", "--labels", "nvlink,a100")
        worker = start(*words, machine="fast")
        run()
        worker()
        after = told("status")
        assert "labelled: completed" in after
        assert "label 'a100'" not in after
    assert sorted(log.read_text().splitlines()) == [*["any on plain"] * 2, *["fast on fast"] * 2]
