"""Workers as a job array of Slurm."""

import re
import shlex
import time
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import final

from phyla.errors import ConfigurationError, LauncherFailed
from phyla.launchers.contract import Launcher, Pool, run_program
from phyla.settings import slurm_environment
from phyla.system.drafts import replace_text

SIGNAL = "USR1"
AHEAD_S = 120
"""How long before the end of a job's time its worker is asked to save; Slurm may do so up to 60 s earlier."""
SHORTEST_S = 300.0
ANSWER_S = 60.0
GONE_S = 120.0  # that Slurm has to end cancelled jobs, whose nodes may be gone
POLL_S = 0.5
ENDED = 2021 % 256
"""Exit status of scancel for a job that has already ended: ESLURM_ALREADY_DONE."""
STATES = {"COMPLETED": "completed", "PENDING": "queued"} | dict.fromkeys(
    ("BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"), "failed"
)
UNKNOWN = "None"
"""The reason of a pending job at which Slurm has not looked yet."""
OURS = (
    *("array", "chdir", "cpus-per-task", "dependency", "error", "gres", "job-name", "mem", "nodes", "ntasks"),
    *("open-mode", "output", "parsable", "requeue", "signal", "time", "wrap"),
)
"""Options of sbatch that the pool's fields decide, or this launcher."""


@final
class Slurm(Launcher):
    """A job array with one worker each. Further options are those of `sbatch`, such as `partition=gpu`.

    A worker whose trials run on several machines is on the first node of its job.

    Jobs are known by a name that only this pool has, which is in its folder, so no job is lost if this process is
    killed while it submits.
    """

    def check(self, pool: Pool) -> None:
        _options(pool)
        _script(pool)
        self.alive(pool)

    def start(self, pool: Pool) -> None:
        options, script = _options(pool), _script(pool)
        missing = pool.workers - self.alive(pool)
        # Also where none is missing: a stop may have failed.
        _stop_file(pool).unlink(missing_ok=True)
        if missing <= 0:
            return
        file = pool.folder / "worker.sh"
        replace_text(file, script)
        log = str(pool.folder).replace("%", "%%") + "/worker-%A_%a.log"
        how = [f"--array=0-{missing - 1}", f"--job-name={job_name(pool)}", f"--output={log}"]
        # As arguments they come before variables of the user such as SBATCH_PARTITION, which a script does not.
        _slurm("sbatch", "--parsable", f"--chdir={pool.directory}", *how, *options, str(file))

    def alive(self, pool: Pool) -> int:
        """Return how many jobs are pending, running or completing."""
        return len(_jobs(pool))

    def stop(self, pool: Pool, grace_s: float) -> None:
        """Cancel pending jobs, send SIGTERM to running ones, cancel them after the grace time, and wait."""
        ends_at = time.monotonic() + grace_s
        _stop_file(pool).touch()
        named = f"--name={job_name(pool)}"
        _slurm("scancel", "--quiet", "--state=PENDING", named)
        _slurm("scancel", "--quiet", "--signal=TERM", named)
        cancelled = False
        while jobs := _jobs(pool):
            late = time.monotonic() >= ends_at
            if late and cancelled:
                named = ", ".join(jobs)
                raise LauncherFailed(
                    f"Slurm has not ended these jobs {GONE_S:g} s after it cancelled them: {named}; look at their "
                    "nodes with: squeue"
                )
            if late:
                cancelled, ends_at = True, time.monotonic() + GONE_S
                _slurm("scancel", "--quiet", named)
            time.sleep(POLL_S)

    def outcomes(self, pool: Pool) -> Mapping[str, int]:
        """Return how many jobs are pending and ended; Slurm forgets ended jobs after `MinJobAge`."""
        words = ("squeue", "--noheader", "--array", "--states=all", f"--name={job_name(pool)}", "--format=%T")
        return Counter(STATES[state] for state in _slurm(*words).split() if state in STATES)

    def reasons(self, pool: Pool) -> Mapping[str, int]:
        """Return the reasons of pending jobs, such as `Resources` or `PartitionConfig`."""
        words = ("squeue", "--noheader", "--array", "--states=PENDING", f"--name={job_name(pool)}", "--format=%r")
        return Counter(reason for reason in _slurm(*words).splitlines() if reason != UNKNOWN)

    def logs(self, pool: Pool) -> str:
        return str(pool.folder / "worker-*.log")


def _options(pool: Pool) -> list[str]:
    """Return the options of `sbatch` for a pool."""
    options = [
        *("--requeue", "--open-mode=append", f"--nodes={pool.nodes}", f"--ntasks={pool.nodes}"),
        # The signal goes to what srun runs.
        f"--signal={SIGNAL}@{AHEAD_S}",
    ]
    for name, value in pool.options.items():
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or name in OURS:
            raise ConfigurationError(
                f"launcher 'slurm' has no option {name!r}; it takes those of sbatch, as in partition=gpu, except "
                f"those that phyla sets: {', '.join(OURS)}. For these there are --workers, --gpus-per-worker, "
                "--time-limit, and the options nodes=2, cpus=4 and memory=16G"
            )
        if not re.fullmatch(r"[\w.,:=@/+*&|()\[\]-]+", value):
            raise ConfigurationError(
                f"launcher 'slurm': {name}={value!r} has characters that sbatch does not accept"
            )
        options.append(f"--{name}={value}")
    if pool.gpus:
        if not float(pool.gpus).is_integer():
            raise ConfigurationError(f"gpus_per_worker={pool.gpus:g}: Slurm gives whole GPUs; use an integer")
        options.append(f"--gres=gpu:{pool.gpus:.0f}")
    if pool.cpus is not None:
        options.append(f"--cpus-per-task={max(1, round(pool.cpus))}")
    if pool.memory_mb is not None:
        options.append(f"--mem={pool.memory_mb}M")
    if pool.time_limit_s is not None:
        if pool.time_limit_s < SHORTEST_S:
            raise ConfigurationError(
                f"time limit {pool.time_limit_s:g} s: Slurm asks workers to save {AHEAD_S} to {AHEAD_S + 60} s "
                f"before the end, so give at least {SHORTEST_S / 60:g} minutes"
            )
        options.append(f"--time={pool.time_limit_s // 60:.0f}")
    return options


def _script(pool: Pool) -> str:
    """Return the script of one job; user input is quoted."""
    from jinja2 import Environment, StrictUndefined

    if "\\" in str(pool.folder):
        raise ConfigurationError(
            f"{pool.folder}: Slurm cannot write logs into a folder with a backslash in its name"
        )
    environment = Environment(trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    template = environment.from_string(files(__package__).joinpath("slurm.sh.jinja").read_text())
    return template.render(
        nodes=pool.nodes,
        ahead_s=AHEAD_S,
        stopped=_stop_file(pool),
        environment=pool.environment,
        # The script knows the limit better than the pool does: it is that of the job.
        command=pool.with_options("--stop-signal", SIGNAL),
    )


def _jobs(pool: Pool) -> list[str]:
    """Return the ids of the jobs that are pending, running or completing."""
    return _slurm("squeue", "--noheader", "--array", f"--name={job_name(pool)}", "--format=%i").split()


def _stop_file(pool: Pool) -> Path:
    """Return the file whose existence keeps jobs from starting and from requeuing themselves."""
    return pool.folder / "stopped"


def job_name(pool: Pool) -> str:
    """Return the name that all jobs of this pool have, and no others."""
    known = re.sub(r"[^\w.-]", "-", pool.name, flags=re.ASCII)[:40]
    return f"phyla-{known}-{pool.identity()}"


def _slurm(*words: str) -> str:
    missing = "run this on a machine with Slurm's commands, such as a login node"
    fine = ENDED if words[0] == "scancel" else 0
    environment = slurm_environment()
    return run_program(
        words, action=words[0], missing=missing, limit_s=ANSWER_S, fine=fine, environment=environment
    )
