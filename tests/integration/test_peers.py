"""Schedulers of Ray Tune in the benchmark of quality: its loop takes the place of Ray's controller."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lockstep
import numpy as np
import peers
import pytest
import schedules
from schedule_tasks import TASKS

from phyla.records import Scored

pytestmark = pytest.mark.xdist_group("ray")
SMALL = replace(TASKS["deceptive"], members=8, steps=400, intervals=(40, 40, 40))
RATES = (0.2, 0.4, 0.6, 0.8)
STEPS = 30


def studies(make: peers.Make, seeds: range) -> list[dict[str, Any]]:
    made = [peers.PeerStudy(SMALL, seed, make) for seed in seeds]
    return lockstep.run(SMALL, schedules.CONTENDERS[schedules.PBT].way(SMALL), seeds, made)


@pytest.mark.parametrize("label", ["Ray Tune, PBT", "Ray Tune, PBT, in step, clipped"])
def test_studies_of_ray_tunes_scheduler_repeat_whatever_else_draws_random_numbers(label: str) -> None:
    make = peers.PEERS[label].make
    together = studies(make, range(500, 502))
    assert [row["spent"] for row in together] == [SMALL.members * SMALL.steps] * 2
    before = random.getstate()
    assert studies(make, range(501, 502)) == together[1:]
    assert random.getstate() == before


def test_ray_tunes_scheduler_in_step_is_as_good_as_its_settings_in_phyla() -> None:
    seeds = tuple(range(500, 510))
    rows = peers.PeerJob(task="momentum", label="Ray Tune, PBT, in step, clipped", seeds=seeds).run()
    ours = schedules.Job(task="momentum", label="PBT, defaults of Ray Tune", seeds=seeds).run()
    medians = [np.median([row["value"] for row in found]) for found in (rows, ours)]
    assert medians == pytest.approx([0.035, 0.038], abs=0.003)


def watched(events: list[dict[str, Any]], *, synch: bool) -> Any:
    """Return Ray Tune's PBT that records what it sees and decides; results choose its random numbers."""
    from ray.tune.schedulers import PopulationBasedTraining

    class Watched(PopulationBasedTraining):
        def on_trial_result(self, controller: Any, trial: Any, result: Any) -> Any:
            random.seed(len(events))
            member = list(self._trial_state).index(trial)
            events.append({"member": member, "result": dict(result), "config": trial.config, "exploits": []})
            return super().on_trial_result(controller, trial, result)

        def _exploit(self, controller: Any, trial: Any, donor: Any) -> None:
            super()._exploit(controller, trial, donor)
            members = list(self._trial_state)
            events[-1]["exploits"].append((members.index(trial), members.index(donor), trial.config))

    common: dict[str, Any] = {"time_attr": "step", "metric": "score", "mode": "max", "perturbation_interval": 1}
    return Watched(**common, hyperparam_mutations={"h": random.random}, log_config=False, synch=synch)


class Actors:
    """Actors in this process instead of a cluster. Each answers in order, all together in a random order."""

    def __init__(self) -> None:
        self._live_actors_to_ray_actors_resources = dict[Any, tuple[Any, None]]()
        self._answers = dict[Any, list[Callable[[], object]]]()
        self._rng = random.Random(1)
        self.num_pending_actors = 0

    @property
    def num_live_actors(self) -> int:
        return len(self._answers)

    num_actor_tasks = num_total_actors = num_live_actors

    def add_actor(self, cls: Any, kwargs: Any, on_start: Any, on_stop: Any, **more: Any) -> Any:
        from ray.air.execution._internal.tracked_actor import TrackedActor

        actor = TrackedActor(len(self._live_actors_to_ray_actors_resources), on_start=on_start, on_stop=on_stop)
        self._live_actors_to_ray_actors_resources[actor] = cls(**kwargs), None
        self._answers[actor] = [lambda: on_start(actor)]
        return actor

    def schedule_actor_task(
        self,
        tracked_actor: Any,
        method_name: str,
        args: Sequence[Any] = (),
        kwargs: Any = None,
        on_result: Any = None,
        **more: Any,
    ) -> Any:
        trainable, _ = self._live_actors_to_ray_actors_resources[tracked_actor]
        answer = getattr(trainable, method_name)(*args, **kwargs or {})
        if on_result is not None:
            self._answers[tracked_actor].append(lambda: on_result(tracked_actor, answer))
        return answer

    def remove_actor(self, tracked_actor: Any, **more: Any) -> bool:
        self._answers[tracked_actor] = [lambda: tracked_actor._on_stop and tracked_actor._on_stop(tracked_actor)]
        return True

    def clear_actor_task_futures(self, tracked_actor: Any) -> None:
        self._answers[tracked_actor] = []

    def is_actor_started(self, tracked_actor: Any) -> bool:
        return True

    def is_actor_failed(self, tracked_actor: Any) -> bool:
        return False

    def get_live_actors_resources(self) -> dict[str, float]:
        return {}

    def next(self, timeout: float | None = None) -> bool:
        waiting = [answers for answers in self._answers.values() if answers]
        if waiting:
            self._rng.choice(waiting).pop(0)()
        return bool(waiting)


def toy() -> type:
    """Return a trainable whose weights know which trial they come from."""
    from ray import tune

    class Toy(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.state: dict[str, Any] = {"theta": 0.9, "step": 0, "trial": ""}
            self.h = config["h"]

        def step(self) -> dict[str, Any]:
            origin = [self.state["trial"], self.state["step"]]
            theta, step = self.state["theta"] * (1 - self.h / 10), self.state["step"] + 1
            self.state = {"theta": theta, "step": step, "trial": self.trial_id}
            return {"score": 1.2 - theta**2, "step": step, "origin": origin}

        def save_checkpoint(self, directory: str) -> None:
            (Path(directory) / "state.json").write_text(json.dumps(self.state))

        def load_checkpoint(self, directory: Any) -> None:
            self.state = json.loads((Path(directory) / "state.json").read_text())

    return Toy


def run_by_ray(scheduler: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ray's own controller run a member for each rate, to the last step."""
    import ray
    from ray import tune
    from ray.train._internal import session, storage
    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.experiment import Trial

    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "8")
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", str(folder))
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")
    monkeypatch.setattr(session._FutureTrainingResult, "resolve", lambda self, block=True: self.future)
    monkeypatch.setattr(storage, "_get_ray_train_session_dir", lambda: str(folder / "session"))
    monkeypatch.setattr(Trial, "set_ray_actor", lambda self, ray_actor: None)
    ray.shutdown()  # a cluster that another test has started here would be remembered
    tune.register_trainable("toy", toy())
    place = storage.StorageContext(storage_path=str(folder), experiment_dir_name="toy")
    without_cluster: dict[str, Any] = {"resource_manager_factory": lambda: None}
    controller: Any = TuneController(scheduler=scheduler, storage=place, **without_cluster)
    controller._actor_manager = Actors()
    controller._class_cache = type("Same", (), {"get": lambda self, cls: cls})()
    resources = tune.PlacementGroupFactory([{"CPU": 1}])
    for rate in RATES:
        trial = Trial(
            "toy",
            config={"h": rate},
            stopping_criterion={"step": STEPS},
            placement_group_factory=resources,
            storage=place,
        )
        controller.add_trial(trial)
    while not controller.is_finished():
        controller.step()


@pytest.mark.parametrize("synch", [False, True])
def test_decisions_are_those_under_rays_own_controller(
    synch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, again = list[dict[str, Any]](), list[dict[str, Any]]()
    run_by_ray(watched(seen, synch=synch), tmp_path, monkeypatch)
    # Until a trial has ended: members of the benchmark end together.
    seen = seen[: next(at for at, event in enumerate(seen) if event["result"]["step"] == STEPS - 1)]
    assert sum(len(event["exploits"]) for event in seen) > 5
    trials = {event["result"]["trial_id"]: event["member"] for event in seen}
    params = [{"h": rate} for rate in RATES]
    loop = peers.RayTune(replace(SMALL, members=4), 0, params, lambda task: watched(again, synch=synch))
    reported = set[int]()
    for event in seen:
        member, result = event["member"], event["result"]
        if member in reported:
            weights, config = loop.next(member)
            assert [weights.member, weights.age] == [trials[result["origin"][0]], result["origin"][1]]
            assert config == event["config"]
        reported.add(member)
        loop.report(member, scored(member, result["step"], result["score"]))
        assert again[-1]["exploits"] == event["exploits"]


def scored(member: int, step: int, score: float) -> Scored:
    weights: dict[str, Any] = {"trial": member, "checkpoint": "", "index": 0, "step": step, "age": step}
    return Scored(**weights, member=member, params={}, fitness=score, order=score)
