"""Study files as modules: each has a name of its own, in every process that works on its studies.

A worker imports `study.py` as the module `study`, or as `pkg.study` where that was started with
`python -m pkg.study`. So do the processes that training starts there, with `multiprocessing`, a DataLoader or
joblib, and any process with the file can load what training pickled. Each reads the file up to where it runs its
study.

`phyla.study_main` stands for `__main__` in a process that works on studies, since `multiprocessing` prepares each
new process with the `__main__` of its parent. A script that runs its own study is `__main__`, and can also be
imported by its name.
"""

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, final

from phyla import settings
from phyla.errors import ConfigurationError, NotImportable

MAIN = "phyla.study_main"
HAS_LOOP = "__phyla_has_loop__"
"""Set in a study file that asks for trials itself."""

_OF_PYTHON = {Path(json.__file__).parents[1], Path(json.__file__).parents[1] / "lib-dynload"}
_files: dict[str, Path] = {}
_reading: list[str] = []
_before: list[tuple[list[str], ModuleType]] = []
"""The command line and `__main__` of this process before `begin`."""


class StudyFileRead(BaseException):
    """Raised by `Study.run` while the study file is only being read: what precedes it is defined."""


class OwnLoop(StudyFileRead):
    """Raised where a study file begins to ask for trials itself."""


def only_when_run(read: type[StudyFileRead] = StudyFileRead) -> None:
    """End the reading of a study file where it would run a study.

    Raises:
        StudyFileRead: the file is only being read; `read` is raised.
        ConfigurationError: a process that training started imports the file, in a way that nothing else ends.
    """
    if _reading:
        raise read
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        name = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "<module>" and (
            name == "__mp_main__" or (settings.in_worker() and name != "__main__")
        ):
            raise ConfigurationError(
                f"{frame.f_code.co_filename}, line {frame.f_lineno}: a process that training started imports this "
                'file, which runs its study at once; put that under `if __name__ == "__main__":`'
            )


@final
class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        _reading.append(self.name)
        try:
            super().exec_module(module)
        except StudyFileRead as read:
            setattr(module, HAS_LOOP, isinstance(read, OwnLoop))
        finally:
            _reading.remove(self.name)


@final
class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = _files.get(fullname)
        if file is None:
            return None
        return importlib.util.spec_from_file_location(fullname, file, loader=_Loader(fullname, str(file)))


sys.meta_path.insert(0, _Finder())


def load(path: Path) -> ModuleType:
    """Import a study file, up to where it runs its study; its exceptions propagate.

    Raises:
        NotImportable: there is no such file.
    """
    original, path = path, path.resolve()
    _know_script()
    if _file_of(main := sys.modules["__main__"]) == path:
        return main
    if not path.is_file():
        raise NotImportable(f"there is no study file {path}")
    name = next((name for name, file in _files.items() if file == path), None) or _name_for(path)
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        # A queue.py beside the file must not replace Python's.
        own = [at for at, entry in enumerate(sys.path) if Path(entry) in _OF_PYTHON]
        sys.path.insert(max(own, default=-1) + 1, str(path.parent))
    _know({name: path})
    if _before and not sys.argv[0]:
        sys.argv[0] = str(original)
    try:
        return importlib.import_module(name)
    except BaseException:
        del _files[name]
        raise


def is_study_file(module: str) -> bool:
    """Return whether a module of this process, by its name, is a script or a study file."""
    candidate = sys.modules.get(module)
    loader = getattr(getattr(candidate, "__spec__", None), "loader", None)
    return module in ("__main__", "__mp_main__") or isinstance(loader, _Loader)


def of_file(name: str) -> list[ModuleType]:
    """Return the scripts and study files of this process whose file has a name, in whatever directory."""
    modules = [sys.modules[key] for key in sorted({"__main__", *_files}) if key in sys.modules]
    return [module for module in modules if (file := _file_of(module)) and file.name == name]


def list_files() -> dict[str, str]:
    """Return the files of this process by module name, for `begin` in another one."""
    _know_script()
    return {name: str(file) for name, file in _files.items()}


def begin(argv: Sequence[str], files: Mapping[str, str] | None = None) -> None:
    """Give study files a command line, and make them importable in processes that training starts.

    Args:
        argv: the study file, or nothing where it is read later, and the words for it.
        files: those that `list_files` returned in the process that started this one.
    """
    _before.append((sys.argv, sys.modules["__main__"]))
    sys.modules["__main__"] = importlib.import_module(MAIN)
    sys.argv = list(argv)
    _know({name: Path(file) for name, file in (files or {}).items()})


def begin_child() -> None:
    """Know the study files of the process that started this one."""
    if files := settings.study_files():
        _know({name: Path(file) for name, file in json.loads(files).items()})


def command_line() -> list[str]:
    """Return the words that started this process, whatever study files see."""
    return _before[-1][0] if _before else sys.argv


def main_attribute(name: str) -> Any:
    """Return what pickles made by `python study.py` call `__main__.NAME`: it is in the study file."""
    path = Path(sys.argv[0]).resolve()
    if name.startswith("__") or path not in _files.values():
        raise AttributeError(f"module '__main__' has no attribute {name!r}")
    return getattr(load(path), name)


def forget() -> None:
    """Undo all of this, as if the process had just begun; for tests, which have many files in one process."""
    for name in _files:
        if sys.modules.get(name) is not sys.modules["__main__"]:
            sys.modules.pop(name, None)
    _files.clear()
    settings.set_study_files(None)
    if _before:
        sys.argv, sys.modules["__main__"] = _before[0]
        _before.clear()


def _know(files: Mapping[str, Path]) -> None:
    _files.update(files)
    if _before:
        settings.set_study_files(json.dumps({name: str(file) for name, file in _files.items()}))


def _know_script() -> None:
    """Make the script of this process importable by its name."""
    main = sys.modules["__main__"]
    file, spec = _file_of(main), getattr(main, "__spec__", None)
    if file is None or file.suffix != ".py" or _before:
        return
    name = _name_for(file) if spec is None else spec.name
    if name.rpartition(".")[2] != "__main__" and name not in sys.modules:
        sys.modules[name] = main
        _files[name] = file


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _name_for(path: Path) -> str:
    """Return the name of a file's module: its own, unless that would hide another module."""
    name, other = path.stem, sys.modules.get(path.stem)
    if other is not None and _file_of(other) == path:
        return name
    if other is None and name not in _files and name not in sys.stdlib_module_names and "." not in name:
        return name
    return f"study_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
