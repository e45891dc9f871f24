"""A study remembers where its checkpoints are, so that nobody has to say it again, or says it wrong."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import phyla
from command_line import Phyla
from facts import check_facts, raises
from listing import list_studies
from object_store import client
from phyla.errors import ConfigurationError, StudyNotFound
from phyla.records import StudyKind, StudyState
from phyla.store import open_store
from phyla.study import Places, Results, load_study
from phyla.study.maintaining.doctor import CheckResult, examine
from phyla.study.maintaining.maintain import maintain
from phyla.study.results.load import open_any

TRIALS = 3


def train(trial: phyla.Trial) -> None:
    """Continue what the parent left."""
    before = json.loads((trial.source.path / "steps.json").read_text()) if trial.source else 0
    assert before == trial.start_step
    (trial.checkpoint_dir / "steps.json").write_text(json.dumps(trial.end_step))
    trial.report(score=trial.params["lr"])


def study(home: Path, function: Any = train, name: str = "mine", **options: Any) -> phyla.Study:
    pbt = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=TRIALS, quorum=1.0)
    return phyla.Study(
        name, {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), pbt, function, home=home, **options
    )


def begun(home: Path, **options: Any) -> None:
    """Run a study until every member has a checkpoint."""

    def until(trial: phyla.Trial) -> None:
        if trial.generation:
            raise KeyboardInterrupt
        train(trial)

    with pytest.raises(KeyboardInterrupt):
        study(home, until, **options).run()


def location(results: Results) -> str:
    assert results.best is not None
    return results.best.checkpoint.where


def complete(results: Results) -> bool:
    states = {trial.state for trial in results.trials()}
    return results.state is StudyState.COMPLETED and states == {"completed"}


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_what_was_named_once_need_not_be_named_again(
    tmp_path: Path, s3_bucket: str, kind: str, cli: Phyla
) -> None:
    root = str(tmp_path / "elsewhere") if kind == "folder" else f"s3://{s3_bucket}/runs"
    begun(tmp_path / "home", checkpoints=root)
    assert location(load_study("mine", home=tmp_path / "home")).startswith(f"{root}/mine/")
    assert f"{root}/mine/" in cli("best", "mine", "--home", tmp_path / "home")
    assert complete(study(tmp_path / "home").run())
    assert not (tmp_path / "home" / "checkpoints").exists()
    assert "intact" in cli("doctor", "mine", "--home", tmp_path / "home")
    maintain("mine", Places.of(tmp_path / "home")).collect()
    cli("delete", "mine", "--yes", "mine", "--home", tmp_path / "home")
    if kind == "folder":
        assert not (tmp_path / "elsewhere" / "mine").exists()
    else:
        assert "Contents" not in client().list_objects_v2(Bucket=s3_bucket)


def test_doctor_checks_the_disk_of_each_place_once(tmp_path: Path, cli: Phyla) -> None:
    home, places = tmp_path / "home", [tmp_path / "home" / "inside", tmp_path / "one", tmp_path / "two"]
    for number, place in enumerate([*places, places[1]]):
        begun(home, name=f"s{number}", checkpoints=place)

    def checked(*words: object) -> list[str]:
        found = json.loads(cli("doctor", *words, "--json", "--home", home))
        paths = [row["text"] for row in found if row["about"] == "checkpoints"]
        assert len(paths) == sum(row["about"] == "checkpoints disk" for row in found)
        return paths

    assert checked() == [f"{places[1]}", f"{places[2]}"]
    assert checked("s0") == []
    assert checked("s3") == [f"{places[1]}"]
    shutil.rmtree(places[2])  # as a disk that is not mounted
    assert checked("s3") == [f"{places[1]}"]


def test_another_place_is_refused_and_nothing_is_changed_there(tmp_path: Path, cli: Phyla) -> None:
    home, root, other = tmp_path / "home", tmp_path / "root", tmp_path / "other"
    begun(home, checkpoints=root)
    words = f"'mine' has its checkpoints in {root}/mine, not in {other}/mine.*--adopt --checkpoints {other}$"
    for attempt in (
        lambda: study(home, checkpoints=other).run(),
        lambda: study(home, checkpoints=other).work(0),
        lambda: study(home, checkpoints=other).run(overwrite=True),
        lambda: phyla.attach("mine", home=home, checkpoints=other),
        lambda: load_study("mine", home=home, checkpoints=other).best,
        lambda: maintain("mine", Places.of(home, checkpoints=other)).collect(),
    ):
        with pytest.raises(ConfigurationError, match=words):
            attempt()
    assert "not in" in cli("best", "mine", "--home", home, "--checkpoints", other, code=2)
    # To doctor it is a finding like others, so that it reports on the other studies, too.
    found = examine(Places.of(home, checkpoints=other))
    assert [row.about for row in found if row.verdict is CheckResult.FAIL] == ["study mine"]
    assert not other.exists()
    assert [one.name for one in list_studies(home, checkpoints=other)] == ["mine"]
    # A link to it is the same place.
    other.symlink_to(root)
    assert complete(study(home, checkpoints=other).run())


def test_the_default_is_a_place_as_well(tmp_path: Path) -> None:
    begun(tmp_path / "home")
    with raises(ConfigurationError, f"{tmp_path}/home/checkpoints/mine", f"{tmp_path}/other"):
        study(tmp_path / "home", checkpoints=tmp_path / "other").run()


def test_a_home_with_a_named_place_inside_it_can_be_moved(tmp_path: Path) -> None:
    begun(tmp_path / "home", checkpoints=tmp_path / "home" / "weights")
    (tmp_path / "home").rename(tmp_path / "moved")
    assert complete(study(tmp_path / "moved").run())
    assert location(load_study("mine", home=tmp_path / "moved")).startswith(f"{tmp_path}/moved/weights/")


def test_checkpoints_move_to_a_bucket_and_home_again(tmp_path: Path, s3_bucket: str, cli: Phyla) -> None:
    home, root, bucket = tmp_path / "home", tmp_path / "home" / "checkpoints", f"s3://{s3_bucket}/runs"
    begun(home)
    for path in (path for path in root.rglob("*") if path.is_file()):
        client().upload_file(str(path), s3_bucket, f"runs/{path.relative_to(root)}")
    said = cli("doctor", "mine", "--adopt", "--checkpoints", bucket, "--home", home)
    check_facts(said, "mine", "0 are missing")
    shutil.rmtree(root)
    assert location(load_study("mine", home=home)).startswith(bucket)
    check_facts(
        cli("doctor", "mine", "--adopt", "--checkpoints", bucket, "--home", home), "already", "0 are missing"
    )
    for name in client().list_objects_v2(Bucket=s3_bucket)["Contents"]:
        target = root / name["Key"].removeprefix("runs/")
        target.parent.mkdir(parents=True, exist_ok=True)
        client().download_file(s3_bucket, name["Key"], str(target))
    cli("doctor", "mine", "--adopt", "--checkpoints", root, "--home", home)
    assert complete(study(home).run())
    assert location(load_study("mine", home=home)).startswith(f"{root}/")


def test_workers_with_another_home_learn_the_place_from_the_store(tmp_path: Path) -> None:
    shared, storage = tmp_path / "shared", f"sqlite:///{tmp_path}/first.db"
    begun(tmp_path / "first", storage=storage, checkpoints=shared / "runs")
    maintain("mine", Places.of(storage=storage)).resume()
    study(tmp_path / "second", storage=storage).work(0)
    # The same directory may be mounted under another name, where the first one is unknown.
    shared.rename(tmp_path / "mount")
    there = tmp_path / "mount" / "runs"
    found = load_study("mine", home=tmp_path / "third", storage=storage, checkpoints=there)
    assert complete(found)
    assert location(found).startswith(f"{there}/")


def test_a_study_started_anew_stays_where_it_was(tmp_path: Path) -> None:
    begun(tmp_path / "home", checkpoints=tmp_path / "root")
    before = {path.name for path in (tmp_path / "root" / "mine").iterdir()}
    assert complete(again := study(tmp_path / "home").run(overwrite=True))
    assert location(again).startswith(f"{tmp_path}/root/")
    assert not any((tmp_path / "root" / "mine" / name / "steps.json").exists() for name in before)
    assert location(load_study("mine", home=tmp_path / "home")).startswith(f"{tmp_path}/root/")


def test_a_name_that_is_missing_among_many_studies_is_answered_in_short(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/many.db"
    with closing(open_store(url)) as store:
        for number in range(25):
            store.create_study(f"s{number}", {}, 1, 1)
            store.create_study(f"r{number}", {}, 1, 1, kind=StudyKind.DIRECTORY, location=str(tmp_path))
    with pytest.raises(StudyNotFound) as error:
        open_any("nothing", Places.of(tmp_path, url))
    check_facts(str(error.value), "s0", "r0", "and 5 more; watched runs", "and 5 more")
    assert "s24" not in str(error.value)
    assert "r24" not in str(error.value)
