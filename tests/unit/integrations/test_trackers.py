"""Each tracker writes what it is told to the real thing, one run a member, and continues it when reopened."""

import os
import shutil
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import phyla
from event_files import logged
from facts import check_facts, raises
from phyla.errors import ConfigurationError
from phyla.integrations.trackers import Row, TrackedStudy, Tracker, make_tracker
from phyla.integrations.trackers.mlflow import MLflow
from phyla.integrations.trackers.tensorboard import TensorBoard
from phyla.integrations.trackers.wandb import WandB
from tracked_runs import mlflow_runs, offline_runs

pytestmark = pytest.mark.xdist_group("evaluations")
"""Importing MLflow and W&B takes seconds, in each process."""

FIRST = [
    Row(member=0, progress=0, at=100.0, values={"params/lr": 0.1, "params/kind": "a"}),
    Row(member=1, progress=0, at=100.0, values={"params/lr": 0.2}),
    Row(member=0, progress=1, at=101.0, values={"train/loss": 0.5}),
]
SECOND = [
    Row(member=1, progress=4, at=104.0, values={"phyla/source_member": 0}, note="took over member 0"),
    Row(member=0, progress=5, at=105.0, values={"train/loss": 0.25, "a metric (%)": 1.0}),
]


@pytest.fixture
def study(tmp_path: Path) -> TrackedStudy:
    return TrackedStudy(name="study", created_at=1.5, config={"seed": 0}, home=tmp_path / "home")


def tell(tracker: Tracker, study: TrackedStudy, rows: list[Row]) -> None:
    tracker.open(study)
    tracker.log(rows)
    tracker.close()


def test_tensorboard(study: TrackedStudy, tmp_path: Path) -> None:
    for rows in (FIRST, SECOND):
        tell(TensorBoard(str(tmp_path / "logs")), study, rows)
    found = logged(tmp_path / "logs")
    assert {run: {(one.tag, one.step, one.wall_time) for one in its} for run, its in found.items()} == {
        "study/member0": {
            ("params/lr", 0, 100.0),
            ("params/kind/text_summary", 0, 100.0),
            ("train/loss", 1, 101.0),
            ("train/loss", 5, 105.0),
            ("a_metric____", 5, 105.0),
        },
        "study/member1": {
            ("params/lr", 0, 100.0),
            ("phyla/source_member", 4, 104.0),
            ("phyla/lineage/text_summary", 4, 104.0),
        },
    }


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without runs, to be copied: MLflow takes seconds to make one."""
    place = tmp_path_factory.mktemp("mlflow") / "empty.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tracker = MLflow(f"sqlite:///{place}")
        tracker.open(TrackedStudy(name="another", created_at=1.0, config={}, home=place.parent))
        tracker.close()
    return place


# MLflow uses what SQLAlchemy 2.1 deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_prints_no_errors_that_it_raises(
    study: TrackedStudy, tmp_path: Path, empty_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = shutil.copy(empty_database, tmp_path)
    tracker = MLflow(f"sqlite:///{database}")
    tracker.open(study)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TABLE latest_metrics")
    with pytest.raises(Exception, match="latest_metrics"):
        tracker.log(FIRST)
    assert "latest_metrics" not in capsys.readouterr().err


def test_tensorboard_leaves_out_what_it_would_not_show(study: TrackedStudy) -> None:
    late = [Row(member=0, progress=step, at=1.0, values={"suite/x": 1.0}) for step in (8, 4, 8, 12)]
    tell(TensorBoard(), study, late)
    assert [one.step for one in logged(study.home / "tensorboard")["study/member0"]] == [8, 8, 12]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow(study: TrackedStudy, tmp_path: Path, empty_database: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{shutil.copy(empty_database, tmp_path)}"
    for rows in (FIRST, SECOND):
        tell(MLflow(uri), study, rows)
    once: dict[str, Any] = {
        "study/member0": {
            "params/lr": [(0, 0.1)],
            "train/loss": [(1, 0.5), (5, 0.25)],
            "a metric ___": [(5, 1.0)],
        },
        "study/member1": {"params/lr": [(0, 0.2)], "phyla/source_member": [(4, 0.0)]},
    }
    assert mlflow_runs(uri, "study") == once
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("study")
    assert experiment is not None
    runs = {run.data.tags["phyla.member"]: run for run in client.search_runs([experiment.experiment_id])}
    assert runs["0"].data.tags["params/kind"] == "a"
    check_facts(runs["1"].data.tags["phyla.lineage.4"], "member 0")
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    # What is there already is not written again, whatever its time.
    more = [Row(member=0, progress=step, at=step, values={"train/loss": 0.0}) for step in (1, 3)]
    tell(MLflow(uri), study, more)
    once["study/member0"]["train/loss"] = [(1, 0.5), (3, 0.0), (5, 0.25)]
    found = mlflow_runs(uri, "study")
    assert sorted(found["study/member0"]["train/loss"]) == once["study/member0"]["train/loss"]
    # Of several values at one step and time the last one counts, also if it is smaller.
    tell(
        MLflow(uri), study, [Row(member=0, progress=9, at=9.0, values={"val": value}) for value in (3.0, 1.0, 2.0)]
    )
    assert mlflow_runs(uri, "study")["study/member0"]["val"] == [(9, 3.0), (9, 1.0), (9, 2.0)]
    assert client.get_run(runs["0"].info.run_id).data.metrics["val"] == 2.0


@pytest.fixture
def wandb_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B without its service. It reads the environment once per process, and another test may have used it."""
    import wandb  # takes a second, in each process that collects tests

    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()


@pytest.mark.usefixtures("wandb_offline")
def test_wandb(study: TrackedStudy) -> None:
    for rows in (FIRST, SECOND):
        tell(WandB("team/project"), study, rows)
    found = offline_runs(study.home, rows=5)
    assert set(found) == {study.run_id(0), study.run_id(1)}
    its = [{name: value for name, value in row.items() if name[0] != "_"} for row in found[study.run_id(0)]]
    assert its[0] == {"phyla/progress": 0, "params/lr": 0.1, "params/kind": "a"}
    assert its[-1] == {"phyla/progress": 5, "train/loss": 0.25, "a metric (%)": 1.0}
    assert [row["_timestamp"] for row in found[study.run_id(1)]] == [100.0, 104.0]
    check_facts(found[study.run_id(1)][-1]["phyla/lineage"], "member 0")
    given = WandB("team/project").environment(study)
    assert given["WANDB_RUN_ID"].replace("{member}", "1") == study.run_id(1)
    assert (given["WANDB_RESUME"], given["WANDB_RUN_GROUP"]) == ("allow", "study")
    assert (given["WANDB_ENTITY"], given["WANDB_PROJECT"], given["WANDB_MODE"]) == ("team", "project", "offline")


def test_trackers_are_made_by_name() -> None:
    place = {kind: make_tracker(f"{kind.name}=place").place for kind in (TensorBoard, WandB, MLflow)}
    assert place == {TensorBoard: str(Path.cwd() / "place"), WandB: "place", MLflow: "place"}
    assert make_tracker("mlflow=sqlite:///a=b.db").place == "sqlite:///a=b.db"


class Own(Tracker):
    """A tracker whose environment a test replaces."""

    name = "own"
    given: Any = None

    def __init__(self, place: str | None = None) -> None:
        self.place = place

    def environment(self, study: TrackedStudy) -> Any:
        return self.given

    def open(self, study: TrackedStudy) -> None:
        raise AssertionError

    def log(self, rows: Sequence[Row]) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(3, ("3", "environment", "log")), (None, ("None", "open", "close")), (Own, ("Own", "a class"))],
)
def test_what_is_no_tracker_is_refused_before_anything_is_trained(
    wrong: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    with raises(ConfigurationError, "trackers=", *words):
        toy_study(tmp_path).run(trackers=[wrong], progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given", [None, "A=b", {"A": 3}, {3: "a"}, {"A=B": "a"}, {"": "a"}, {"A": "a\0"}, {"A\0": "a"}]
)
def test_an_environment_that_no_process_could_have_is_refused(given: Any, tmp_path: Path) -> None:
    tracker = Own()
    tracker.given = given
    with raises(ConfigurationError, "environment()", "own", repr(given)):
        toy_study(tmp_path).run(trackers=[tracker], progress=False)
    assert list(tmp_path.iterdir()) == []


def toy_study(home: Path) -> phyla.Study:
    strategy = phyla.RandomSearch(1, 1)
    return phyla.Study("toy", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), strategy, print, home=home)


def test_a_study_that_is_started_anew_gets_new_runs() -> None:
    def of(created_at: float) -> str:
        return TrackedStudy(name="s" * 100, created_at=created_at, config={}, home=Path()).run_id(7)

    assert of(1.0) == of(1.0) != of(2.0)
    assert len(of(1.0)) <= 64


@pytest.mark.parametrize(
    ("name", "module"),
    [("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("mlflow", "mlflow"), ("mlflow", "alembic")],
)
def test_a_library_that_is_missing_is_named(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with raises(ConfigurationError, name, module, 'pip install "phyla'):
        make_tracker(name)


IN_THE_WAY = ("a file", "below a file", "a dangling link", "too long a name", "where nothing can be made")


def spoiled(how: str, tmp_path: Path) -> Path:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path / "nowhere")
    places = (file, file / "a" / "b", link, tmp_path / ("x" * 300) / "a", Path("/proc/phyla/a"))
    return dict(zip(IN_THE_WAY, places, strict=True))[how]


@pytest.mark.skipif(sys.platform != "linux", reason="not even root can make something in /proc")
@pytest.mark.parametrize("how", IN_THE_WAY)
@pytest.mark.parametrize(
    "kind", ["tensorboard={}", "mlflow={}", "mlflow=file://{}", "mlflow=sqlite:///{}/a.db", "wandb"]
)
@pytest.mark.usefixtures("wandb_offline")
def test_a_place_that_cannot_be_written_is_named_before_anything_is_trained(
    kind: str, how: str, tmp_path: Path
) -> None:
    place = spoiled(how, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    study = TrackedStudy(name="study", created_at=1.5, config={}, home=place if kind == "wandb" else tmp_path)
    tracker = make_tracker(kind.format(place))
    with pytest.raises(ConfigurationError, match=rf"cannot write to {place}.*or (name|give|choose)"):
        tracker.environment(study)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_in_the_way_within_a_place(study: TrackedStudy, tmp_path: Path) -> None:
    member = tmp_path / "study" / "member1"
    member.parent.mkdir()
    member.touch()
    with raises(ConfigurationError, member):
        TensorBoard(str(tmp_path)).environment(study)


@pytest.mark.parametrize(
    "uri",
    [
        "{}/a/b",
        "file:{}/a",
        "sqlite:///{}/a/b.db",
        "sqlite://",
        "http://host/x",
        "databricks",
        "mysql+pymysql://h/x",
    ],
)
def test_places_that_can_be_written_and_servers_are_left_alone(
    uri: str, study: TrackedStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a server no file of that name is looked for: one that is in the way would be.
    monkeypatch.chdir(tmp_path)
    for name in ("http:", "databricks", "mysql+pymysql:", "sqlite:"):
        (tmp_path / name).touch()
    before = sorted(tmp_path.iterdir())
    assert MLflow(uri.format(tmp_path)).environment(study) == {}
    assert TensorBoard(str(tmp_path / "a" / "b")).environment(study) == {}
    assert sorted(tmp_path.iterdir()) == before


ONLINE = """
import sys
from pathlib import Path
from phyla.integrations.trackers import TrackedStudy
from phyla.integrations.trackers.wandb import WandB
WandB().environment(TrackedStudy(name="study", created_at=1.0, config={}, home=Path(sys.argv[1])))
"""


def test_wandb_that_is_online_needs_a_key(tmp_path: Path) -> None:
    # In a process of its own, since W&B reads the environment once a process; and keys are in the user's home.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "NETRC"))}
    done = subprocess.run(
        [sys.executable, "-c", ONLINE, tmp_path],
        env={**clean, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    check_facts(done.stderr, "API", "wandb login", "WANDB_MODE=offline")
