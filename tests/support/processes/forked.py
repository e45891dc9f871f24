"""Python programs in processes of their own, forked from one that has imported phyla.

A new interpreter needs half a second until phyla is imported, and some frameworks need ten; tests start hundreds.
Apart from that the programs are as others: with their own environment, working directory, output, signals,
children and exit status.
"""

import contextlib
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from phyla.settings import environment as child_variables
from spare_workers import prepare

TESTS = Path(__file__).parents[2]
SUPPORT = TESTS / "support"
HELPERS = os.pathsep.join(map(str, sorted(SUPPORT.iterdir())))
"""The PYTHONPATH of programs that import helpers of more than their own folder."""
ONLY_OURS = [TESTS, TESTS.parent / "examples", TESTS.parent / "bench"]
"""Where programs find no modules unless they are told to."""

USUAL = (
    *("phyla.cli.app", "phyla.study.results.load", "phyla.study.running.run", "phyla.study.running.display"),
    *("phyla.system.code_digest", "phyla.study.repeating.replicates", "phyla.study_main"),
    *("phyla.supervision.supervisor", "phyla.worker.training.trainer", "phyla.worker.pinned"),
    *("phyla.store.sql.sqlite", "phyla.store.sql.store", "phyla.study.running.stored_config"),
    *("phyla.launchers.pools", "phyla.integrations.optuna_search"),
    *("sqlalchemy.dialects.sqlite", "scipy.special", "warmed"),
)
"""What most commands import, and do first."""

_context = multiprocessing.get_context("forkserver")

PRELOADED = (
    *USUAL,
    *("phyla.service.serving", "phyla.dashboard", "phyla.store.remote", "httpx"),
    *("plotly.subplots", "plotly.io._json", "jinja2.environment", "numpy.ma", "forked", "pytest"),
)
"""What commands import, those of services and reports included."""


def preload(*more: str) -> None:
    """Say what the process imports that others are forked from; it starts with the first of these."""
    _context.set_forkserver_preload([*PRELOADED, *more])


preload()

_frameworks = forkserver.ForkServer()
"""The same for programs that train with frameworks; tests that use it are in the xdist group `frameworks`."""
_frameworks.set_forkserver_preload(
    [
        *("torch._dynamo", "torch.distributed.checkpoint", "lightning.pytorch", "transformers.trainer"),
        *("transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama"),
        *("jax.numpy", "optax", "orbax.checkpoint", "sklearn.datasets", "sklearn.linear_model"),
        *("stable_baselines3", "lm_eval.evaluator", "lm_eval.models.huggingface"),
        *USUAL,
    ]
)


JAX_CACHE = {
    "jax_compilation_cache_dir": str(TESTS.parent / "build" / "jax"),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
"""With these settings, processes of JAX share what they compile."""

SMALL_MODELS = {
    "HF_HUB_OFFLINE": "1",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
}
"""An environment in which compiling takes JAX half as long, and nothing is downloaded."""


def ensure_running(server: forkserver.ForkServer, **environment: str) -> None:
    """Start the process that others are forked from, unless it runs; with more variables of the environment."""
    if vars(server)["_forkserver_pid"] is None:
        # Multiprocessing does not tell it where to find helpers.
        path = os.pathsep.join(filter(None, [HELPERS, os.environ.get("PYTHONPATH")]))
        with child_variables({"PYTHONPATH": path, **environment}):
            server.ensure_running()


@contextlib.contextmanager
def _forked_from(server: forkserver.ForkServer | None) -> Iterator[None]:
    """Fork what is started meanwhile from a server of its own; multiprocessing knows one server only."""
    usual = forkserver.connect_to_new_process
    ensure_running(server or vars(forkserver)["_forkserver"])
    try:
        forkserver.connect_to_new_process = server.connect_to_new_process if server else usual
        yield
    finally:
        forkserver.connect_to_new_process = usual


class Forked:
    """A Python program that runs; does what `subprocess.Popen` would.

    Args:
        words: what follows `python`: `-m MODULE ...`, `-c CODE ...` or `FILE ...`.
        cwd: its working directory; ours if it is not given.
        env: its environment; ours if it is not given.
        stdout: a file for its output and errors instead of `communicate`.
        merged: whether `communicate` gives errors among the output.
        session: whether it begins a session of its own.
        frameworks: whether it is forked from a process that has also imported the frameworks.
        first: what it does in its environment before it becomes the program.
        server: from which it is forked, if not from the usual one.
        spares: how many worker processes its supervisor starts by a fork, too; see `spare_workers`.
    """

    def __init__(
        self,
        words: Sequence[object],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: TextIO | None = None,
        merged: bool = False,
        session: bool = False,
        frameworks: bool = False,
        first: Callable[[], None] | None = None,
        server: forkserver.ForkServer | None = None,
        spares: int = 0,
    ) -> None:
        self.args = [str(word) for word in words]
        self._output = _new_file() if stdout is None else os.dup(stdout.fileno())
        self._errors = _new_file() if stdout is None and not merged else os.dup(self._output)
        self._process = _context.Process(
            target=_become,
            args=(
                self.args,
                str(cwd or Path.cwd()),
                dict(os.environ if env is None else env),
                [entry for entry in sys.path if not any(Path(entry).is_relative_to(ours) for ours in ONLY_OURS)],
                DupFd(self._output),
                DupFd(self._errors),
                session,
                first,
                spares,
            ),
            daemon=True,  # it is ended with us
        )
        with _forked_from(_frameworks if frameworks else server):
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def __del__(self) -> None:
        os.close(self._output)
        os.close(self._errors)

    @property
    def returncode(self) -> int | None:
        """Its exit status, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, as `subprocess.Popen` does: a process that has just ended gets none."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> int:
        if not wait([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return _text(self._output), _text(self._errors)

    def printed(self) -> str:
        """Return all that it printed so far."""
        return _text(self._output)

    def read_until(self, text: str, timeout: float = 120.0) -> str:
        """Wait until it has printed some text; return all that it printed so far."""
        end = time.monotonic() + timeout
        while text not in (printed := self.printed()):
            assert self.returncode is None, f"no {text!r} in {printed}"
            assert time.monotonic() < end, f"no {text!r} in {printed}"
            time.sleep(0.01)
        return printed


def run(
    words: Sequence[object], *, timeout: float = 120.0, check: bool = False, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a Python program to its end; do what `subprocess.run` would."""
    process = Forked(words, **options)
    try:
        output, errors = process.communicate(timeout)
    finally:
        process.kill()
    done = subprocess.CompletedProcess(process.args, process.wait(), output, errors)
    if check:
        done.check_returncode()
    return done


def run_with(
    file: str, code: str, *words: object, spares: int = 0, check: bool = True
) -> "subprocess.CompletedProcess[str]":
    """Run code with all that a test file defines, such as functions that workers import from there.

    Args:
        file: the test file.
        code: the program.
        words: its arguments.
        spares: see `Forked`.
        check: whether it has to end well.
    """
    path = os.pathsep.join([str(Path(file).parent), HELPERS])
    program = f"import sys\nfrom {Path(file).stem} import *\n{code}"
    return run(["-c", program, *words], env={**os.environ, "PYTHONPATH": path}, spares=spares, check=check)


def _new_file() -> int:
    number, path = tempfile.mkstemp()
    os.unlink(path)  # noqa: PTH108
    return number


def _text(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="surrogateescape")


def _become(
    words: list[str],
    cwd: str,
    env: dict[str, str],
    path: list[str],
    output: Any,
    errors: Any,
    session: bool,
    first: Callable[[], None] | None,
    spares: int,
) -> None:
    """Be the program, in a process that was just forked."""
    gc.freeze()  # what was imported stays
    if session:
        os.setsid()
    for number, file in ((1, output), (2, errors)):
        received = file.detach()
        os.dup2(received, number)
        os.close(received)
    encoding, _, errors_of_encoding = env.get("PYTHONIOENCODING", "").partition(":")
    sys.stdout = os.fdopen(1, "w", 1, encoding or None, errors_of_encoding or None, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding or None, "backslashreplace", closefd=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if first is not None:
        first()
    if spares:
        prepare(spares, path)
    how, words = (words[0], words[1:]) if words[0] in ("-m", "-c") else ("", words)
    sys.argv = ["-c", *words[1:]] if how == "-c" else words
    own = cwd if how else str(Path(words[0]).absolute().parent)
    sys.path[:] = [own, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *path]
    if "jax" in sys.modules:
        for setting, value in JAX_CACHE.items():
            sys.modules["jax"].config.update(setting, value)
    if env.get("PHYLA_FAILPOINT"):
        from phyla.system import failpoints

        failpoints.arm(env["PHYLA_FAILPOINT"])
    # A file that is given to the program is read there, with the environment that it has.
    for given in [Path(word).absolute() for word in words if word.endswith(".py")]:
        if getattr(sys.modules.get(given.stem), "__file__", None) == str(given):
            del sys.modules[given.stem]
    there, status = set(sys.modules), None
    try:
        match how:
            case "-m":
                runpy.run_module(words[0], run_name="__main__", alter_sys=True)
            case "-c":
                sys.modules["__main__"] = main = ModuleType("__main__")
                exec(words[0], main.__dict__)
            case _:
                runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    # An interpreter that ends closes what was left open; the end of a forked process would not.
    for name in sys.modules.keys() - there:
        del sys.modules[name]
    gc.collect()
    try:
        sys.stderr.flush()
    except OSError:
        # Nor does an interpreter fail that can write no errors at its end.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.exit(status)
