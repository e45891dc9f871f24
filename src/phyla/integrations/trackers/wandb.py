"""Weights & Biases: one run per member, in the group of the study; one for a watched run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from phyla.errors import ConfigurationError
from phyla.integrations.trackers import Row, TrackedStudy, Tracker, check_installed, check_writable

if TYPE_CHECKING:
    import wandb


PROJECT = "phyla"


@final
class WandB(Tracker):
    """Logs to `PLACE`, a `PROJECT` or `ENTITY/PROJECT`; by default what W&B's own settings say, else `phyla`.

    Whether it is online is W&B's setting too (`WANDB_MODE`). Online, several processes write one run, the user's
    among them, which is what W&B's shared mode is for.

    Args:
        place: project, perhaps with an entity.
        offline: directory for offline runs, whatever the settings say.
    """

    name: ClassVar[str] = "wandb"

    def __init__(self, place: str | None = None, *, offline: Path | None = None) -> None:
        check_installed("the tracker wandb", "wandb", extra="wandb")
        self.place = place
        self._offline = offline
        self._runs: dict[int, wandb.Run] = {}
        self._charted: set[tuple[int, str]] = set()

    def environment(self, study: TrackedStudy) -> Mapping[str, str]:
        """Return the variables with which `wandb.init()` in training code continues the run of the member.

        Raises:
            ConfigurationError: W&B is online without a login; or its directory cannot be written.
        """
        how = self._make_options(study)
        check_writable(how["dir"] / "wandb", "choose another --home (of an export: --output)")
        variables = {
            "WANDB_RUN_ID": study.run_id("{member}"),
            "WANDB_NAME": study.run_name("{member}"),
            "WANDB_RESUME": "allow",
            "WANDB_RUN_GROUP": study.name,
            "WANDB_PROJECT": how["project"],
            "WANDB_DIR": str(how["dir"]),
            "WANDB_MODE": how["mode"],
            # W&B's process that the supervisor started ends with the supervisor.
            "WANDB_SERVICE": "",
            **({"WANDB_ENTITY": how["entity"]} if how["entity"] else {}),
        }
        if how["mode"] == "shared":
            import wandb

            # A thread beside training cannot prompt the user.
            if not wandb.login(prompt=False, verify=False):
                raise ConfigurationError(
                    "the tracker wandb is online, but W&B has no API key: run `wandb login` first, or set "
                    "WANDB_MODE=offline"
                )
            variables |= {"WANDB_X_PRIMARY": "false", "WANDB_X_UPDATE_FINISH_STATE": "false"}
        return variables

    def _make_options(self, study: TrackedStudy) -> dict[str, Any]:
        import wandb

        settings = wandb.setup().settings
        entity, _, project = (self.place or "").rpartition("/")
        mode = "offline" if self._offline else settings.mode
        return {
            "entity": entity or settings.entity,
            "project": project or settings.project or PROJECT,
            "mode": "shared" if mode == "online" else mode,
            "dir": self._offline or study.home,
        }

    def open(self, study: TrackedStudy) -> None:
        self._study = study
        self._settings = self._make_options(study)
        self._settings["dir"].mkdir(parents=True, exist_ok=True)

    def log(self, rows: Sequence[Row]) -> None:
        """Pass rows to W&B's own process, which stores and sends them."""
        for row in rows:
            run = self._run(row.member)
            for name in row.values:
                if (row.member, name) not in self._charted:
                    self._charted.add((row.member, name))
                    # By name: a pattern would also move the training's own metrics to this axis.
                    run.define_metric(name, step_metric=self._study.axis)
            values: dict[str, Any] = {"_timestamp": row.at, **row.values}
            if row.note is not None:
                values["phyla/lineage"] = row.note
                run.notes = f"{run.notes or ''}\n{row.note}".strip()
            # W&B drops rows whose own step decreases, and evaluations come late, so `step` is left to W&B.
            run.log({self._study.axis: row.progress, **values})

    def _run(self, member: int) -> "wandb.Run":
        if member not in self._runs:
            import wandb

            study = self._study
            quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True)
            # In training code that runs in this process, W&B has read what `environment` says. A run of the
            # training keeps its name and its settings, and ends with the training.
            quiet.x_primary = quiet.x_update_finish_state = study.existing is None
            self._runs[member] = wandb.init(
                **self._settings,
                **({} if study.existing is not None else self._describe(member)),
                id=study.run_id(member),
                resume="allow",
                reinit="create_new",
                settings=quiet,
            )
        return self._runs[member]

    def _describe(self, member: int) -> dict[str, Any]:
        study = self._study
        config = {"study": dict(study.config)} | ({} if study.watched else {"member": member})
        return {"name": study.run_name(member), "group": study.name, "config": config}

    def close(self) -> None:
        runs, self._runs = self._runs, {}
        self._charted.clear()
        for run in runs.values():
            run.finish()
