"""The index of the harness's tasks: which there are, what a group stands for, what a task's configuration says."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from phyla.errors import ConfigurationError
from phyla.integrations.harness_results import NO_FILTER, metric_name
from phyla.records import JsonObject

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager


@lru_cache(maxsize=4)
def task_manager(include_path: str | None, *, own: bool) -> "TaskManager":
    """Return what knows the tasks of a directory and, with `own`, those of the harness: thousands of files."""
    return read_tasks(include_path, own=own)


def read_tasks(include_path: str | None, *, own: bool) -> "TaskManager":
    """Return the same, but read the files as they are now."""
    try:
        from lm_eval.tasks import TaskManager
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error}; install lm-evaluation-harness: pip install 'phyla[lm-eval]'"
        ) from error
    if include_path is not None and not Path(include_path).is_dir():
        raise ConfigurationError(f"include_path={include_path!r}: there is no such directory")
    return TaskManager(include_path=include_path, include_defaults=own)


def manager_of(tasks: Sequence[str], include_path: str | None) -> "TaskManager":
    """Return what knows these tasks; the harness's own tasks are read if the directory lacks one."""
    if include_path is not None:
        manager = task_manager(include_path, own=False)
        if all(task in manager.task_index for task in tasks):
            return manager
    return task_manager(include_path, own=True)


def own_tasks() -> Path:
    """Return the directory of the tasks that come with the harness."""
    import lm_eval.tasks

    return Path(lm_eval.tasks.__file__).parent


def files_of(manager: "TaskManager", names: Sequence[str]) -> dict[str, str]:
    """Return the files of tasks; groups need the whole index."""
    own, files = own_tasks(), dict[str, str]()
    for name in names:
        entry = manager.task_index[name]
        if entry.kind.name != "GROUP" and entry.yaml_path is not None:
            path = entry.yaml_path.absolute()
            files[name] = str(path.relative_to(own) if path.is_relative_to(own) else path)
    return files


def match_tasks(manager: "TaskManager", tasks: Sequence[str]) -> list[str]:
    """Return the tasks, groups and tags that these names and patterns match; suggest others where none does."""
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    if not names:
        raise ConfigurationError('lm-eval: name at least one task, as in suite(["arc_easy"])')
    matches = {name: manager.match_tasks([name]) for name in names}
    for name, found in matches.items():
        if not found:
            alike = ", ".join(map(repr, get_close_matches(name, manager.all_tasks)))
            did_you_mean = f"; did you mean {alike}?" if alike else "."
            raise ConfigurationError(
                f"lm-eval has no task {name!r}{did_you_mean} All tasks: lm-eval ls tasks; your own: include_path="
            )
    return list(dict.fromkeys(match for found in matches.values() for match in found))


def leaves_of(manager: "TaskManager", name: str, groups: dict[str, JsonObject]) -> list[str]:
    """Return the tasks that a name stands for, and add the groups among them.

    A group that changes the settings of its tasks stands for itself.
    """
    entry = manager.task_index[name]
    config: Mapping[str, Any] = entry.cfg or {}
    if entry.kind.name == "TAG":
        return sorted(entry.tags)
    if entry.kind.name != "GROUP":
        return [name]
    members = config.get("task", ())
    if not all(isinstance(member, str) and member in manager.task_index for member in members):
        return [name]
    leaves = [leaf for member in members for leaf in leaves_of(manager, member, groups)]
    listed = config.get("aggregate_metric_list") or ()
    metrics = [_group_metric(metric) for metric in ([listed] if isinstance(listed, Mapping) else listed)]
    groups[name] = {"tasks": leaves, "metrics": metrics}
    return leaves


def _group_metric(metric: Mapping[str, Any]) -> JsonObject:
    filters = metric.get("filter_list")
    return {
        "metric": metric["metric"],
        "weight_by_size": bool(metric.get("weight_by_size", True)),
        "filters": [filters] if isinstance(filters, str) else filters,
    }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDescription:
    """What the configuration of a task says, without its documents.

    Attributes:
        version: of the task.
        digest: of what it says, with the code of functions, local files of documents and the tasks of a group, so
            that results of an edited task, or of another one of that name, are not reused.
        splits: whether each document can be evaluated without the others.
        directions: by metric, whether higher is better.
    """

    version: str = "1"
    digest: str = ""
    splits: bool = False
    directions: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, manager: "TaskManager", task: str, num_fewshot: int | None) -> Self:
        """Read the configuration of a task; that of a class in Python, or of a group, tells little."""
        from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY

        entry = manager.task_index[task]
        config: Mapping[str, Any] = entry.cfg or {}
        version = str((config.get("metadata") or {}).get("version", "1"))
        content = json.dumps(_content(manager, config), sort_keys=True, default=str)
        digest = sha256(content.encode()).hexdigest()[:16]
        if entry.kind.name != "TASK":
            return cls(version=version, digest=digest)
        names = DEFAULT_METRIC_REGISTRY.get(config.get("output_type", "generate_until"), ())
        metrics = config.get("metric_list") or [{"metric": name} for name in names]
        filters = [listed["name"] for listed in config.get("filter_list") or ()] or [NO_FILTER]
        return cls(
            version=version,
            digest=digest,
            splits=_draws_no_examples(config, num_fewshot) and all(map(_averages, metrics)),
            directions={
                metric_name(str(metric["metric"]), chosen): higher
                for metric in metrics
                if (higher := _is_higher_better(metric)) is not None
                for chosen in filters
            },
        )


def _content(manager: "TaskManager", config: Mapping[str, Any]) -> JsonObject:
    """Return a configuration with what it refers to: code of functions, local documents, and tasks of a group."""
    content: dict[str, Any] = _with_code(config)
    members = config.get("task")
    if isinstance(members, list):
        names = [member.get("task") if isinstance(member, Mapping) else member for member in members]
        entries = [
            manager.task_index[name] for name in names if isinstance(name, str) and name in manager.task_index
        ]
        content["members"] = [_content(manager, entry.cfg or {"task": sorted(entry.tags)}) for entry in entries]
    return content


def _with_code(value: Any) -> Any:
    """Return a value with the code of functions in place of their paths, as in `/tasks/utils.process_docs`."""
    if isinstance(value, Mapping):
        return {key: _with_code(part) for key, part in _with_documents(value).items()}
    if isinstance(value, list):
        return [_with_code(part) for part in value]
    if isinstance(value, str) and value.startswith("/"):
        folder, _, dotted = value.rpartition("/")
        module, _, function = dotted.rpartition(".")
        with suppress(OSError, ValueError):  # it is no function
            code = Path(folder, f"{module.replace('.', '/')}.py").read_bytes()
            return {"function": function, "code": sha256(code).hexdigest()}
    return value


def _with_documents(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration with hashes of local files in place of their paths, as `datasets` would find them."""
    path, settings = config.get("dataset_path"), config.get("dataset_kwargs") or {}
    if not (isinstance(path, str) and isinstance(settings, Mapping)):
        return config
    # Without a slash it may be a format, such as json.
    folder = path if "/" in path and Path(path).is_dir() else ""
    inside = str(settings.get("data_dir") or "")
    files = settings.get("data_files") or ("**" if folder or inside else ())
    return {**config, "dataset_kwargs": {**settings, "data_files": _hashes(Path(folder, inside), files)}}


def _hashes(folder: Path, files: Any) -> Any:
    if isinstance(files, Mapping):
        return {split: _hashes(folder, part) for split, part in files.items()}
    if isinstance(files, list):
        return [_hashes(folder, part) for part in files]
    if not isinstance(files, str):
        return files
    root, pattern = (Path("/"), files.lstrip("/")) if files.startswith("/") else (folder, files)
    found: list[Path] = []
    with suppress(ValueError):  # it is no pattern
        found = sorted(root.glob(f"{pattern}/*" if pattern.endswith("**") else pattern))
    statuses = {file: file.stat() for file in found if file.is_file()}
    # None of them is local if it is a URL.
    return [_hash(file, of.st_size, of.st_mtime_ns) for file, of in statuses.items()] or files


@lru_cache(maxsize=1024)
def _hash(file: Path, size_bytes: int, modified_ns: int) -> str:
    del size_bytes, modified_ns  # another file, another hash
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()


def _draws_no_examples(config: Mapping[str, Any], num_fewshot: int | None) -> bool:
    """Return whether the prompt of a document does not depend on which documents came before it."""
    own = config.get("num_fewshot")
    if own == 0 or (own is None and not num_fewshot) or num_fewshot == 0:
        return True
    sampler: object = (config.get("fewshot_config") or {}).get("sampler")
    return sampler == "first_n"


def _averages(metric: Mapping[str, Any]) -> bool:
    from lm_eval.api.registry import get_metric_aggregation

    aggregation: object = metric.get("aggregation") or get_metric_aggregation(metric["metric"])
    return str(getattr(aggregation, "__name__", aggregation)) == "mean"


def _is_higher_better(metric: Mapping[str, Any]) -> bool | None:
    from lm_eval.api.registry import is_higher_better

    higher = metric.get("higher_is_better")
    if higher is None:
        higher = is_higher_better(metric["metric"])
    return None if higher is None else bool(higher)
