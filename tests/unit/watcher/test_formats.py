"""Which foreign checkpoints are finished, and which never will be."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import check_facts, raises
from foreign import QUIET_S, START, index, safetensors, scans, torch_zip, trainer
from phyla import plugins
from phyla.errors import ConfigurationError
from phyla.watcher import StepFrom, format_names, get_format
from phyla.watcher.format import Finish, check_file, load_formats
from phyla.watcher.formats.pickles import extents, storages

LATER = START + QUIET_S
FORMATS = format_names()


def set_time(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))


# --- what all formats share


def test_formats_are_known_by_name() -> None:
    assert [get_format(name).name for name in FORMATS] == FORMATS


def test_an_unknown_format_lists_the_names() -> None:
    with pytest.raises(ConfigurationError) as caught:
        get_format("orbix")
    assert all(name in str(caught.value) for name in FORMATS)


@pytest.mark.parametrize("name", ["acme", "auto"])
def test_a_format_of_another_package_needs_an_entry_point_and_auto_knows_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme.py").write_text(
        """
from dataclasses import dataclass
from phyla.watcher import CheckpointFormat, Verdict

@dataclass(frozen=True, kw_only=True)
class Acme(CheckpointFormat):
    name = "acme"
    awaits = "files that end with END"
    endings = (".acme",)

    @classmethod
    def folders(cls, root):
        return {folder: cls.check_folder for folder in root.folders if root.has(folder, ("acme.json",))}

    @classmethod
    def check_folder(cls, root, listed):
        return Verdict.complete("acme.json is there")

    @classmethod
    def check_content(cls, name, file):
        whole = file.read().endswith(b"END")
        return Verdict.complete("END is there") if whole else Verdict.partial("END is missing")
"""
    )
    info = tmp_path / "acme-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[phyla.formats]\nacme = acme:Acme\nbroken = nowhere:Broken\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.list_plugins.cache_clear()
    load_formats.cache_clear()
    try:
        scan = scans(get_format(name, quiet_s=QUIET_S), tmp_path)
        (tmp_path / "step_3.acme").write_bytes(b"12")
        assert (scan()["step_3.acme"].why, scan(LATER)["step_3.acme"].bad) == ("END is missing", True)
        (tmp_path / "step_3.acme").write_bytes(b"12END")
        (tmp_path / "step_4").mkdir()
        (tmp_path / "step_4/acme.json").touch()
        found = scan(LATER)
    finally:
        plugins.list_plugins.cache_clear()
        load_formats.cache_clear()
    assert {each: (item.ready, item.step) for each, item in found.items()} == {
        "step_3.acme": (True, 3), "step_4": (True, 4),
    }  # fmt: skip


def test_an_option_that_a_format_does_not_take_is_refused() -> None:
    with raises(ConfigurationError, "torch"):
        get_format("torch", marker="DONE")


@pytest.mark.parametrize("name", FORMATS)
def test_strange_entries_do_no_harm(name: str, tmp_path: Path) -> None:
    (tmp_path / "broken.pt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle.pt").symlink_to(tmp_path / "circle.pt")
    (tmp_path / "up").symlink_to(tmp_path.parent)
    os.mkfifo(tmp_path / "pipe.pt")
    step = tmp_path / "checkpoint-1"
    step.mkdir()
    (step / "round").symlink_to(step)
    (step / "trainer_state.json").write_text("[" * 100_000)
    (step / "model.safetensors").symlink_to(tmp_path / "nowhere")
    os.mkfifo(step / "pipe.bin")
    (tmp_path / os.fsdecode(b"\xff_3.pt")).write_bytes(b"x")
    scan = scans(get_format(name, quiet_s=QUIET_S), tmp_path)
    first, second = scan(), scan(LATER)
    assert first.keys() == second.keys()
    assert not any(found.ready for found in first.values())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "entry",
    [".hidden.pt", "a.pt.tmp", "b.safetensors.part", "c.pt~", "tmp-checkpoint-1", "7.orbax-checkpoint-tmp-3"],
)
def test_hidden_and_temporary_entries_are_ignored(name: str, entry: str, tmp_path: Path) -> None:
    if "checkpoint" in entry:
        trainer(tmp_path, 1).rename(tmp_path / entry)
    else:
        torch_zip(tmp_path / entry, {"0": b"1"})
    assert scans(get_format(name), tmp_path)() == {}


def test_an_alias_of_another_entry_is_no_checkpoint_of_its_own(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    trainer(root, 1)
    trainer(elsewhere, 2)
    (root / "latest").symlink_to("checkpoint-1")
    (root / "checkpoint-3").symlink_to(root / "checkpoint-1")
    (root / "checkpoint-2").symlink_to(elsewhere / "checkpoint-2")
    found = scans(get_format("auto"), root)()
    assert {name: item.ready for name, item in found.items()} == {"checkpoint-1": True, "checkpoint-2": True}


def test_links_inside_a_checkpoint_are_followed(tmp_path: Path) -> None:
    folder = trainer(tmp_path, 5)
    (tmp_path / ".blobs").mkdir()
    (folder / "model.safetensors").rename(tmp_path / ".blobs/blob")
    (folder / "model.safetensors").symlink_to("../.blobs/blob")
    set_time(folder / "trainer_state.json", time.time())
    assert scans(get_format("huggingface"), tmp_path)()["checkpoint-5"].ready
    (tmp_path / ".blobs/blob").write_bytes(b"cut")
    assert not scans(get_format("huggingface"), tmp_path)()["checkpoint-5"].ready


def test_what_is_known_is_taken_over(tmp_path: Path) -> None:
    torch_zip(tmp_path / "a_1.pt", {"0": b"1"})
    scan = scans(get_format("torch"), tmp_path)
    first = scan(START)["a_1.pt"]
    assert scan(START + 5)["a_1.pt"] is first
    torch_zip(tmp_path / "a_1.pt", {"0": b"other"})
    second = scan(START + 9)["a_1.pt"]
    assert second.fingerprint != first.fingerprint
    assert (second.unchanged_since, second.ready) == (START + 9, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "new").touch(),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "config.json").write_text("{ }"),
        lambda folder: set_time(folder / "config.json", 77.0),
        lambda folder: (
            shutil.copy2(folder / "config.json", folder / "x") and (folder / "x").replace(folder / "config.json")
        ),
        lambda folder: (folder / "config.json").rename(folder / "renamed.json"),
    ],
)
def test_every_change_changes_the_fingerprint(change: Callable[[Path], object], tmp_path: Path) -> None:
    folder = trainer(tmp_path, 1)
    scan = scans(get_format("huggingface"), tmp_path)
    before = scan()["checkpoint-1"].fingerprint
    assert scan()["checkpoint-1"].fingerprint == before
    change(folder)
    assert scan()["checkpoint-1"].fingerprint != before


def test_reading_and_linking_do_not_change_the_fingerprint(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    torch_zip(root / "a.pt", {"0": b"1"})
    scan = scans(get_format("torch"), root)
    before = scan()["a.pt"].fingerprint
    os.link(root / "a.pt", tmp_path / "link")
    (root / "a.pt").chmod(0o400)
    assert scan()["a.pt"].fingerprint == before


def test_bad_lasts_until_something_changes(tmp_path: Path) -> None:
    torch_zip(tmp_path / "a.pt", {"0": b"1"})
    whole = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(whole[:-10])
    scan = scans(get_format("torch", quiet_s=QUIET_S), tmp_path)
    assert (scan(START)["a.pt"].ready, scan(START)["a.pt"].bad) == (False, False)
    assert not scan(LATER - 1)["a.pt"].bad
    bad = scan(LATER)["a.pt"]
    assert bad.bad
    assert not bad.ready
    assert "cut off" in bad.why
    assert scan(LATER + 999)["a.pt"] is bad
    (tmp_path / "a.pt").write_bytes(whole)
    assert scan(LATER + 1000)["a.pt"].ready


def test_a_file_that_may_not_be_read_is_bad_until_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_zip(tmp_path / "a.pt", {"0": b"1"})
    scan = scans(get_format("torch", quiet_s=QUIET_S), tmp_path)
    with monkeypatch.context() as patched:

        def refuse(self: Path, *_: object) -> None:
            raise PermissionError(13, "Permission denied", str(self))

        patched.setattr(Path, "open", refuse)
        assert not scan(START)["a.pt"].bad
        found = scan(LATER)["a.pt"]
        assert (found.ready, found.bad) == (False, True)
        assert "Permission denied" in found.why
    # Nothing about the file has changed.
    assert scan(LATER + 1)["a.pt"].ready


def test_a_directory_that_may_not_be_listed_is_told_if_its_name_is_that_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("step_10", "lost+found"):
        (tmp_path / name).mkdir()
    real = os.scandir

    def refuse(path: str | Path) -> object:
        if str(path) != str(tmp_path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    scan = scans(get_format("auto", quiet_s=QUIET_S), tmp_path)
    scan(START)
    found = scan(LATER)
    assert list(found) == ["step_10"]
    assert found["step_10"].bad
    assert "Permission denied" in found["step_10"].why


def test_a_file_that_vanishes_while_it_is_looked_at_is_not_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_zip(tmp_path / "a.pt", {"0": b"1"})
    real = Path.open

    def vanish(self: Path, mode: str = "r") -> object:
        self.unlink()
        return real(self, mode)

    monkeypatch.setattr(Path, "open", vanish)
    scan = scans(get_format("torch"), tmp_path)
    check_facts(scan()["a.pt"].why, "a.pt", "missing")
    assert scan() == {}


def test_what_changes_while_it_is_looked_at_is_not_ready_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_zip(tmp_path / "a.pt", {"0": b"1"})
    real = Path.open
    with monkeypatch.context() as patched:

        def touch(self: Path, mode: str = "r") -> object:
            set_time(self, 5.0)
            return real(self, mode)

        patched.setattr(Path, "open", touch)
        scan = scans(get_format("torch"), tmp_path)
        assert not scan()["a.pt"].ready
    assert scan()["a.pt"].ready


def test_old_files_are_quiet_at_first_sight_and_recent_ones_are_not(tmp_path: Path) -> None:
    now = time.time()
    for age in (10, 7200):
        (tmp_path / f"w_{age}.ckpt").write_bytes(b"no zip, no torch")
        set_time(tmp_path / f"w_{age}.ckpt", now - age)
    found = scans(get_format("torch", quiet_s=1.0), tmp_path)(now)
    assert {name: item.ready for name, item in found.items()} == {"w_10.ckpt": False, "w_7200.ckpt": True}


def test_steps_may_go_backwards_and_checkpoints_vanish(tmp_path: Path) -> None:
    scan = scans(get_format("torch"), tmp_path)
    torch_zip(tmp_path / "m_200.pt", {"0": b"1"})
    assert [found.step for found in scan().values()] == [200]
    torch_zip(tmp_path / "m_100.pt", {"0": b"1"})
    assert [(found.step, found.ready) for found in scan().values()] == [(100, True), (200, True)]
    (tmp_path / "m_200.pt").unlink()
    assert [found.step for found in scan().values()] == [100]


@pytest.mark.parametrize("folders", [False, True])
def test_a_scan_of_a_thousand_known_checkpoints_reads_none_of_them(
    folders: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if folders:
        template = trainer(tmp_path, 0)
        for step in range(1, 1000):
            shutil.copytree(template, tmp_path / f"checkpoint-{step}")
            (tmp_path / f"checkpoint-{step}/trainer_state.json").write_text(json.dumps({"global_step": step}))
    else:
        for step in range(1000):
            torch_zip(tmp_path / f"model_{step}.pt", {"0": b"1"})
    scan = scans(get_format("auto"), tmp_path)
    first = scan()
    assert [found.step for found in first.values() if found.ready] == list(range(1000))
    opened: list[Path] = []
    monkeypatch.setattr(Path, "open", lambda self, *_: opened.append(self))
    assert all(found is first[name] for name, found in scan().items())
    assert opened == []


# --- steps


@pytest.mark.parametrize(
    ("name", "step", "rule"),
    [
        ("model_10.pt", 10, "last"),
        ("epoch=3-step=500.ckpt", 500, "'step'"),
        ("epoch=3-step=1200.ckpt", 1200, "'step'"),
        ("iter_0000020", 20, "'iter'"),
        ("iter_0005000", 5000, "'iter'"),
        ("run7/checkpoint-30", 30, "'checkpoint'"),
        ("checkpoint-500", 500, "'checkpoint'"),
        ("model_step_100_loss0.15.pt", 100, "'step'"),
        ("model_step_100_loss_1.2e-3.pt", 100, "'step'"),
        ("global_step1000", 1000, "'global_step'"),
        ("epoch_9_global_step_3", 3, "'global_step'"),
        ("STEP_7", 7, "'STEP'"),
        ("timesteps_1000_seed3", 1000, "'steps'"),
        ("iteration.12", 12, "'iteration'"),
        ("ckpt-7.index", 7, "'ckpt'"),
        ("model.ckpt-1000.data-00000-of-00001", 1000, "'ckpt'"),
        ("epoch_12_acc0.934.pth", 12, "'epoch'"),
        ("best-epoch=07-val_loss=0.32.ckpt", 7, "'epoch'"),
        ("checkpoint_epoch_12.pt", 12, "'epoch'"),
        ("2024-05-01_step_30", 30, "'step'"),
        ("20240501_123456_step_30.pt", 30, "'step'"),
        ("2024-05-01_500", 500, "last"),
        ("step_2\udcff", 2, "'step'"),
        ("model\nstep_5\n.pt", 5, "'step'"),
        ("ckpt-5-9e8d7c6.pt", 5, "'ckpt'"),
        ("model_30_550e8400-e29b-41d4-a716-446655440000.pt", 30, "last"),
        ("e1000000", 1000000, "last"),
        ("e100000", 100000, "last"),
        ("gpt2-100", 100, "last"),
        ("12", 12, "last"),
        ("optim_000100_rank0.pt", 100, "last"),
        ("model_rank_3_100.pt", 100, "last"),
        ("step_100_rank_7.pt", 100, "'step'"),
        ("ep0-ba100-rank0.pt", 100, "last"),
        ("model_100_tp2_pp=4.pt", 100, "last"),
        ("checkpoint_1_100-shard0.pt", 1, "'checkpoint'"),
        ("ckpt-100-00001-of-00002.safetensors", 100, "'ckpt'"),
        ("step_100_of_1000.pt", 100, "'step'"),
        ("mp3-prompt-100.pt", 100, "last"),
        ("mp_rank_00_model_states.pt", None, "unknown"),
        ("mp_rank_01_003", None, "unknown"),
        ("tp_rank_00_pp_rank_001", None, "unknown"),
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", None, "unknown"),
        ("model_world_size_2_rank_1.pt", None, "unknown"),
        ("pytorch_model-00001-of-00002.bin", None, "unknown"),
        ("checkpoint-00001-of-00002.pt", None, "unknown"),
        ("model-part-2.pt", None, "unknown"),
        ("__0_0.distcp", None, "unknown"),
        ("__3.metadata", None, "unknown"),
        ("weights.h5", None, "unknown"),
        ("final.pt", None, "unknown"),
        ("9" * 30 + ".pt", None, "unknown"),
        ("model_val=0.93.pt", None, "unknown"),
        ("loss0.15", None, "unknown"),
        ("lr1e-5", None, "unknown"),
        ("model-3f2a9c1e.pt", None, "unknown"),
        ("checkpoint_20240501_123456", None, "unknown"),
        ("2024-05-01_12-30-00.pt", None, "unknown"),
        ("step\u0663", None, "unknown"),
    ],
)
def test_the_step_is_the_number_after_a_telling_word_or_else_the_last(
    name: str, step: int | None, rule: str
) -> None:
    assert StepFrom().of_name(name) == step
    assert rule in StepFrom().rule(name)


@given(st.integers(0, 10**12), st.floats(0, 1), st.integers(0, 99), st.text(max_size=20))
def test_nothing_around_it_hides_a_step(step: int, loss: float, epoch: int, more: str) -> None:
    assert StepFrom().of_name(f"2024-05-01-epoch={epoch}-step={step}-loss={loss:.4f}.ckpt") == step
    found = StepFrom().of_name(more.replace("/", ""))
    assert found is None or found >= 0


def test_a_regular_expression_tells_the_step() -> None:
    wanted = StepFrom.parse(r"step(?P<step>\d+)_")
    assert wanted.of_name("step5_epoch9.pt") == 5
    assert wanted.of_name("epoch9.pt") is None


@pytest.mark.parametrize("text", ["[", r"(\d+)", "json:", "json:a.json", "json:#b", "json:../a#b", "json:/a#b"])
def test_a_step_that_is_not_understood_says_how_to_write_it(text: str) -> None:
    with pytest.raises(ConfigurationError, match="step"):
        StepFrom.parse(text)


def test_the_step_can_come_from_content(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best/w.bin").write_bytes(b"1")
    scan = scans(get_format("quiet", quiet_s=0.0, step="json:meta/state.json#progress.step"), tmp_path)
    without = scan()["best"]
    assert (without.step, without.ready, without.bad) == (None, False, True)
    check_facts(without.why, "meta/state.json")
    (tmp_path / "best/meta").mkdir()
    (tmp_path / "best/meta/state.json").write_text('{"progress": {"step": 40.0}}')
    assert (scan()["best"].step, scan()["best"].ready) == (40, True)
    for odd in ('"x"', "-1", "1" + "0" * 30, "1.5"):
        (tmp_path / "best/meta/state.json").write_text(f'{{"progress": {{"step": {odd}}}}}')
        assert scan()["best"].bad


# --- torch


def test_a_torch_file_is_ready_at_once(tmp_path: Path) -> None:
    torch_zip(tmp_path / "m_3.pth", {"0": b"12", "1": b"345"})
    found = scans(get_format("torch"), tmp_path)()["m_3.pth"]
    assert found.ready
    assert found.paths == ("m_3.pth",)
    assert found.size_bytes == (tmp_path / "m_3.pth").stat().st_size


def test_no_beginning_of_a_torch_file_is_ready(tmp_path: Path) -> None:
    inner = tmp_path / "inner.pt"
    torch_zip(inner, {"0": b"x"})
    # A whole archive inside ends with a directory, as a whole archive does.
    torch_zip(tmp_path / "m.pt", {"0": inner.read_bytes(), "1": b"y"})
    whole = (tmp_path / "m.pt").read_bytes()
    for length in range(len(whole)):
        cut = tmp_path / "cut.pt"
        cut.write_bytes(whole[:length])
        finish = check_file(cut, length).finish
        assert finish is Finish.PARTIAL, length


def test_an_archive_closed_by_an_exception_is_not_ready(tmp_path: Path) -> None:
    torch_zip(tmp_path / "some.pt", {"0": b"12", "1": b"345"}, without=frozenset({"1"}))
    found = scans(get_format("torch"), tmp_path)()["some.pt"]
    assert not found.ready
    assert "lacks 1 of 2 storages" in found.why


def test_weights_that_belong_together_are_one_checkpoint(tmp_path: Path) -> None:
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    scan = scans(get_format("torch", quiet_s=QUIET_S), tmp_path)
    torch_zip(tmp_path / names[0], {"0": b"1"})
    assert scan() == {}
    (tmp_path / "pytorch_model.bin.index.json").write_text(index({"a": names[0], "b": names[1]}))
    assert not scan()["pytorch_model.bin.index.json"].ready
    assert names[1] in scan(LATER)["pytorch_model.bin.index.json"].why
    torch_zip(tmp_path / names[1], {"0": b"1"})
    torch_zip(tmp_path / "training_args.bin", {"0": b"1"})
    set_time(tmp_path / "pytorch_model.bin.index.json", time.time())
    found = scan()
    assert list(found) == ["pytorch_model.bin.index.json"]
    assert found["pytorch_model.bin.index.json"].ready
    assert set(found["pytorch_model.bin.index.json"].paths) == {"pytorch_model.bin.index.json", *names}


def test_pickles_are_taken_apart_without_being_run() -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, ("exit 1",)

    import pickle

    assert storages(pickle.dumps(Trap())) == set()
    assert extents(pickle.dumps(Trap())) == {}


# --- safetensors


def test_safetensors_are_ready_to_the_byte(tmp_path: Path) -> None:
    whole = safetensors({"a": 40, "b": 7})
    for length in range(len(whole) + 2):
        (tmp_path / "m.safetensors").write_bytes((whole + b"xx")[:length])
        assert check_file(tmp_path / "m.safetensors", length).finish is (
            Finish.COMPLETE if length == len(whole) else Finish.PARTIAL
        )


@given(st.binary(max_size=200), st.sampled_from(["m.safetensors", "m.pt"]), st.sampled_from([b"", b"PK\x03\x04"]))
def test_no_content_is_too_strange(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str, start: bytes
) -> None:
    root = tmp_path_factory.mktemp("strange")
    (root / name).write_bytes(start + data)
    scan = scans(get_format("auto", quiet_s=QUIET_S), root)
    assert not scan()[name].ready
    later = scan(LATER)[name]
    assert later.bad != later.ready
    assert later.bad or not (name == "m.safetensors" or start)


def test_reserved_space_is_not_taken_for_content(tmp_path: Path) -> None:
    whole = safetensors({"a": 2**20})
    with open(tmp_path / "m.safetensors", "wb") as file:
        file.write(whole[:4096])
        file.truncate(len(whole))
    scan = scans(get_format("safetensors", quiet_s=QUIET_S), tmp_path)
    assert not scan()["m.safetensors"].ready
    assert "holes" in scan()["m.safetensors"].why


@pytest.mark.parametrize("folder", [".", "step-4"])
def test_shards_wait_for_their_index_and_for_each_other(folder: str, tmp_path: Path) -> None:
    place = tmp_path / folder
    place.mkdir(exist_ok=True)
    name = "model.safetensors.index.json" if folder == "." else folder
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    scan = scans(get_format("safetensors", quiet_s=QUIET_S), tmp_path)
    (place / shards[0]).write_bytes(safetensors({"a": 9}))
    assert not any(found.ready for found in scan().values())
    (place / "model.safetensors.index.json").write_text(index({"a": shards[0], "b": shards[1]}))
    assert not scan()[name].ready
    (place / shards[1]).write_bytes(safetensors({"c": 9}))
    assert "lacks tensor 'b'" in scan()[name].why
    (place / shards[1]).write_bytes(safetensors({"b": 9}))
    set_time(place / "model.safetensors.index.json", time.time() - 100)
    assert "written after" in scan()[name].why
    set_time(place / "model.safetensors.index.json", time.time())
    assert scan()[name].ready
    (place / shards[0]).unlink()
    assert not scan()[name].ready
    assert scan(LATER)[name].bad


PRETRAINED = {
    "safetensors": ["model.safetensors"],
    "shards": ["model.safetensors.index.json", "model-00001-of-00001.safetensors"],
    "torch": ["pytorch_model.bin"],
    "adapter": ["adapter_model.safetensors"],
}
NEEDED = [
    *("added_tokens.json", "chat_template.jinja", "dict.txt", "generation_config.json", "merges.txt"),
    *("config_sentence_transformers.json", "modules.json", "tekken.json"),
    *("modeling_own.py", "normalizer.json", "source.spm", "special_tokens_map.json", "spm.model"),
    *(
        "target_vocab.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    ),
]
NEEDED_FOLDERS = {"1_Pooling": "config.json", "additional_chat_templates": "tool.jinja"}
BESIDE = ["all_results.json", "log.txt", "train.py", "trainer_state.json", "training_args.bin"]


@pytest.mark.parametrize("kind", PRETRAINED)
def test_what_save_pretrained_wrote_into_the_root_can_be_loaded(kind: str, tmp_path: Path) -> None:
    names = PRETRAINED[kind]
    for name in names:
        if name.endswith(".json"):
            (tmp_path / name).write_text(index({"a": names[1]}))
        elif name.endswith(".bin"):
            torch_zip(tmp_path / name, {"0": b"1"})
        else:
            (tmp_path / name).write_bytes(safetensors({"a": 9}))
    set_time(tmp_path / names[0], time.time())
    for name in [*NEEDED, *BESIDE]:
        (tmp_path / name).write_text("{}")
    for folder, name in {**NEEDED_FOLDERS, "runs": "log.txt"}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("{}")
    scan = scans(get_format("auto", quiet_s=QUIET_S), tmp_path)
    assert set(scan()[names[0]].paths) == set(names)
    config = "adapter_config.json" if kind == "adapter" else "config.json"
    (tmp_path / config).write_text("{}")
    assert not scan()[names[0]].ready  # a tokenizer may follow
    found = scan(LATER)
    assert list(found) == [names[0]]
    assert found[names[0]].ready
    assert set(found[names[0]].paths) == {*names, config, *NEEDED, *NEEDED_FOLDERS}
    (tmp_path / names[-1]).write_bytes(b"cut")
    assert not scan(LATER)[names[0]].ready


def test_a_configuration_does_not_belong_to_other_weights_beside_it(tmp_path: Path) -> None:
    for name in ("policy.safetensors", "model_1.safetensors"):
        (tmp_path / name).write_bytes(safetensors({"a": 9}))
    (tmp_path / "config.json").write_text("{}")
    found = scans(get_format("safetensors"), tmp_path)()
    assert {name: (item.ready, item.paths) for name, item in found.items()} == {
        name: (True, (name,)) for name in ("policy.safetensors", "model_1.safetensors")
    }


@pytest.mark.parametrize("shard", ["../outside", "/etc/passwd", 5, None])
def test_an_index_that_leads_elsewhere_is_refused(shard: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index({"a": shard}))
    scan = scans(get_format("safetensors", quiet_s=QUIET_S), tmp_path)
    scan()
    assert scan(LATER)["model.safetensors.index.json"].bad


# --- the Trainer


def test_a_trainer_checkpoint_is_ready_with_its_state(tmp_path: Path) -> None:
    folder = trainer(tmp_path, 50)
    found = scans(get_format("huggingface"), tmp_path)()["checkpoint-50"]
    assert (found.ready, found.step, found.paths) == (True, 50, ("checkpoint-50",))
    assert found.size_bytes == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: (folder / "trainer_state.json").unlink(), "trainer_state.json is missing"),
        (
            lambda folder: (folder / "trainer_state.json").write_text('{"global_st'),
            "trainer_state.json is cut off",
        ),
        (lambda folder: (folder / "trainer_state.json").write_text('{"global_step": 7}'), "step 7"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"12345678"), "model.safetensors is cut off"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
    ],
)
def test_a_trainer_checkpoint_that_lacks_something_becomes_bad(
    spoil: Callable[[Path], object], why: str, tmp_path: Path
) -> None:
    spoil(trainer(tmp_path, 50))
    for name in ("huggingface", "auto"):
        scan = scans(get_format(name, quiet_s=QUIET_S), tmp_path)
        if name == "auto" and why.startswith("trainer_state.json is missing"):
            continue
        assert (scan()["checkpoint-50"].ready, scan()["checkpoint-50"].bad) == (False, False)
        assert why in scan()["checkpoint-50"].why
        assert scan(LATER)["checkpoint-50"].bad


def test_weights_newer_than_the_state_may_be_an_overwriting_save(tmp_path: Path) -> None:
    folder = trainer(tmp_path, 50)
    scan = scans(get_format("huggingface", quiet_s=QUIET_S), tmp_path)
    set_time(folder / "trainer_state.json", time.time() - 60)
    found = scan()["checkpoint-50"]
    assert not found.ready
    assert "written after trainer_state.json" in found.why
    assert scan(LATER)["checkpoint-50"].ready


def test_a_checkpoint_that_is_being_deleted_is_not_ready(tmp_path: Path) -> None:
    folder = trainer(tmp_path, 50)
    for path in folder.iterdir():
        set_time(path, time.time() - 60)
    set_time(folder / "trainer_state.json", time.time() - 59)
    (folder / "config.json").unlink()
    found = scans(get_format("huggingface"), tmp_path)()["checkpoint-50"]
    assert not found.ready
    check_facts(found.why, "trainer_state.json", "removed")


# --- Orbax


def orbax(root: Path, name: str, *, commit: bool = True, metadata: str = '{"commit_timestamp_nsecs": 5}') -> Path:
    folder = root / name
    (folder / "default/d").mkdir(parents=True)
    (folder / "default/d/0123").write_bytes(b"data")
    (folder / "default/manifest.ocdbt").write_bytes(b"manifest")
    (folder / "default/_METADATA").write_text('{"use_ocdbt": true}')
    (folder / "_CHECKPOINT_METADATA").write_text(metadata)
    if commit:
        (folder / "commit_success.txt").touch()
    return folder


@pytest.mark.parametrize("name", ["orbax", "auto"])
def test_orbax_steps_are_ready_when_they_are_committed(name: str, tmp_path: Path) -> None:
    orbax(tmp_path, "0")
    orbax(tmp_path, "10", commit=False)
    orbax(tmp_path, "20", commit=False, metadata='{"commit_timestamp_nsecs": null}')
    orbax(tmp_path, "step_30", metadata='{"commit_timestamp_nsecs": null}')
    orbax(tmp_path, "40.orbax-checkpoint-tmp")
    orbax(tmp_path, "50.orbax-checkpoint-tmp-1234")
    orbax(tmp_path, "60", commit=False, metadata='{"commit_times')
    (orbax(tmp_path, "70") / "default/manifest.ocdbt").unlink()
    (orbax(tmp_path, "80") / "default/d/0123").unlink()
    (orbax(tmp_path, "90") / "more.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "90/more.orbax-checkpoint-tmp/x").touch()
    scan = scans(get_format(name, quiet_s=QUIET_S), tmp_path)
    found = scan()
    assert {item.step: item.ready for item in found.values()} == {
        0: True, 10: True, 20: False, 30: True, 60: False, 70: False, 80: False, 90: False,
    }  # fmt: skip
    assert {item.step for item in scan(LATER).values() if item.bad} == {20, 60, 70, 80, 90}


def test_an_orbax_directory_without_any_mark_must_be_quiet(tmp_path: Path) -> None:
    folder = orbax(tmp_path, "10", commit=False)
    (folder / "_CHECKPOINT_METADATA").unlink()
    scan = scans(get_format("orbax", quiet_s=QUIET_S), tmp_path)
    assert not scan()["10"].ready
    assert scan(LATER)["10"].ready


@pytest.mark.parametrize("name", ["orbax", "auto"])
@pytest.mark.parametrize("deleted", ["mark", "marks and data"])
def test_what_a_deletion_left_of_an_orbax_directory_is_bad(name: str, deleted: str, tmp_path: Path) -> None:
    old = orbax(tmp_path, "10", commit=False)
    (old / "_CHECKPOINT_METADATA").unlink()
    for path in (*old.glob("**/*"), old):
        set_time(path, time.time() - 60)
    orbax(tmp_path, "20")
    rest = orbax(tmp_path, "15")
    (rest / "_CHECKPOINT_METADATA").unlink()
    (rest / "commit_success.txt").unlink()
    if deleted == "marks and data":
        (rest / "default/d/0123").write_bytes(b"")
    scan = scans(get_format(name, quiet_s=QUIET_S), tmp_path)
    assert {item.step for item in scan().values() if item.ready} == {20}
    # What an old version wrote, before any directory had a mark, has none either.
    assert {item.step: (item.ready, item.bad) for item in scan(LATER).values()} == {
        10: (True, False), 15: (False, True), 20: (True, False),
    }  # fmt: skip


def test_a_directory_of_runs_is_no_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run1"
    run.mkdir()
    orbax(run, "10")
    trainer(run, 10)
    assert scans(get_format("auto"), tmp_path)() == {}


# --- several files per step, markers, quiet, auto


def test_files_of_a_step_belong_together(tmp_path: Path) -> None:
    scan = scans(get_format("steps", templates=["params_{step}", "opt_{step}.npz"], quiet_s=QUIET_S), tmp_path)
    (tmp_path / "params_0100").write_bytes(b"1")
    (tmp_path / "opt_200.npz").write_bytes(b"1")
    (tmp_path / "notes_100").write_bytes(b"1")
    found = scan()
    assert {name: (item.step, item.paths) for name, item in found.items()} == {
        "params_0100": (100, ("params_0100",)),
        "params_200": (200, ("opt_200.npz",)),
    }
    assert not any(item.ready or item.bad for item in found.values())
    (tmp_path / "opt_0100.npz").write_bytes(b"1")
    scan()
    found = scan(LATER)
    assert found["params_0100"].ready
    assert found["params_0100"].paths == ("opt_0100.npz", "params_0100")
    assert found["params_200"].bad
    assert "params_200 is missing" in found["params_200"].why


@pytest.mark.parametrize("templates", [[], ["params"], ["a/{step}"], ["{step}{step}"]])
def test_templates_that_make_no_sense_are_refused(templates: list[str]) -> None:
    with raises(ConfigurationError, "params_{step}"):
        get_format("steps", templates=templates)


@pytest.mark.parametrize(
    ("marker", "written"),
    [("DONE", "step_1/DONE"), ("DONE", "step_1.DONE"), ("{name}.ok", "step_1.ok"), ("ok_{name}", "ok_step_1")],
)
def test_a_marker_says_that_it_is_finished(marker: str, written: str, tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    (tmp_path / "step_1/w").write_bytes(b"1")
    scan = scans(get_format("marker", marker=marker, quiet_s=QUIET_S), tmp_path)
    scan()
    found = scan(LATER)
    assert (found["step_1"].ready, found["step_1"].bad) == (False, False)
    assert "no marker" in found["step_1"].why
    (tmp_path / written).touch()
    found = scan()
    assert list(found) == ["step_1"]
    assert found["step_1"].ready
    (tmp_path / "step_1/w").write_bytes(b"22")
    set_time(tmp_path / "step_1/w", time.time() + 60)
    assert not scan()["step_1"].ready


@pytest.mark.parametrize("marker", ["", "a/b", "{name}"])
def test_a_marker_that_makes_no_sense_is_refused(marker: str) -> None:
    with pytest.raises(ConfigurationError, match="marker"):
        get_format("marker", marker=marker)


def test_quiet_means_unchanged_between_scans(tmp_path: Path) -> None:
    (tmp_path / "any_5").write_bytes(b"1")
    scan = scans(get_format("quiet", quiet_s=QUIET_S), tmp_path)
    assert not scan(START)["any_5"].ready
    assert not scan(LATER - 1)["any_5"].ready
    (tmp_path / "any_5").write_bytes(b"22")
    assert not scan(LATER)["any_5"].ready
    assert scan(LATER + QUIET_S)["any_5"].ready


def test_auto_takes_what_it_knows_and_nothing_else(tmp_path: Path) -> None:
    trainer(tmp_path, 1)
    orbax(tmp_path, "2")
    torch_zip(tmp_path / "m_3.pt", {"0": b"1"})
    (tmp_path / "m_4.safetensors").write_bytes(safetensors({"a": 4}))
    (tmp_path / "params_5.npz").write_bytes(b"1")
    plain = tmp_path / "checkpoint-6"
    plain.mkdir()
    (plain / "model.safetensors").write_bytes(safetensors({"a": 4}))
    megatron = tmp_path / "iter_0000007/mp_rank_00"
    megatron.mkdir(parents=True)
    torch_zip(megatron / "model_optim_rng.pt", {"0": b"1"})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/events.out").write_bytes(b"1")
    for name in ("config.json", "log_8.txt", "training_args.bin", "optimizer.pt", "optim_000100_rank0.pt"):
        (tmp_path / name).write_bytes(b"1")
    scan = scans(get_format("auto", quiet_s=QUIET_S), tmp_path)
    assert {item.step: item.ready for item in scan().values()} == {
        1: True, 2: True, 3: True, 4: True, 5: False, 6: False, 7: False,
    }  # fmt: skip
    assert all(item.ready for item in scan(LATER).values())


def test_auto_calls_a_trainer_that_died_bad(tmp_path: Path) -> None:
    folder = trainer(tmp_path, 1)
    (folder / "trainer_state.json").unlink()
    torch_zip(folder / "training_args.bin", {"0": b"1"})
    scan = scans(get_format("auto", quiet_s=QUIET_S), tmp_path)
    assert not scan()["checkpoint-1"].ready
    assert scan(LATER)["checkpoint-1"].bad


# --- torch.distributed.checkpoint


def distributed(root: Path, lengths: dict[str, int]) -> Path:
    """A whole checkpoint; the description is a pickle that names its parts as the real one does."""
    import pickle

    folder = root / "step-3"
    folder.mkdir()
    for name, length in lengths.items():
        (folder / name).write_bytes(b"x" * length)
    parts = [
        {"relative_path": name, "offset": half, "length": length - half}
        for name, length in lengths.items()
        for half in (0, length // 2)
    ]
    (folder / ".metadata").write_bytes(pickle.dumps({"state_dict_metadata": {"w": 1}, "storage_data": parts}))
    return folder


@pytest.mark.parametrize("name", ["dcp", "auto"])
def test_a_distributed_checkpoint_is_ready_with_its_metadata(name: str, tmp_path: Path) -> None:
    distributed(tmp_path, {"__0_0.distcp": 300, "__1_0.distcp": 70_000})
    found = scans(get_format(name), tmp_path)()["step-3"]
    assert (found.ready, found.step) == (True, 3)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: (folder / ".metadata").unlink(), ".metadata is missing"),
        (lambda folder: (folder / ".metadata").write_bytes(b"\x80\x04\x95"), "ValueError"),
        (lambda folder: (folder / ".metadata.tmp").touch(), "has not finished"),
        (lambda folder: (folder / "__1_0.distcp").unlink(), "__1_0.distcp 0 bytes"),
        (lambda folder: (folder / "__1_0.distcp").write_bytes(b"x" * 399), "399 bytes"),
        (lambda folder: (folder / "__2_0.distcp").touch(), "__2_0.distcp"),
    ],
)
def test_a_distributed_checkpoint_that_lacks_something_becomes_bad(
    spoil: Callable[[Path], object], why: str, tmp_path: Path
) -> None:
    spoil(distributed(tmp_path, {"__0_0.distcp": 300, "__1_0.distcp": 400}))
    scan = scans(get_format("dcp", quiet_s=QUIET_S), tmp_path)
    assert (scan()["step-3"].ready, scan()["step-3"].bad) == (False, False)
    check_facts(scan()["step-3"].why, *why.split())
    assert scan(LATER)["step-3"].bad


def test_data_newer_than_the_metadata_may_be_an_overwriting_save(tmp_path: Path) -> None:
    folder = distributed(tmp_path, {"__0_0.distcp": 300})
    set_time(folder / ".metadata", time.time() - 60)
    scan = scans(get_format("dcp", quiet_s=QUIET_S), tmp_path)
    assert "written after .metadata" in scan()["step-3"].why
    assert not scan()["step-3"].ready
    assert scan(LATER)["step-3"].ready


def test_ranks_that_save_on_their_own_must_be_quiet(tmp_path: Path) -> None:
    folder = distributed(tmp_path, {"__0_0.distcp": 300, "__1_0.distcp": 300})
    (folder / ".metadata").rename(folder / "__0.metadata")
    scan = scans(get_format("dcp", quiet_s=QUIET_S), tmp_path)
    assert "is missing" in scan()["step-3"].why
    (folder / "__1.metadata").touch()
    assert not scan()["step-3"].ready
    assert scan(LATER)["step-3"].ready


@pytest.mark.parametrize(("later_ns", "ready"), [(80_000, True), (5_000_000_000, False)])
def test_a_folder_told_by_a_finer_clock_than_its_marker_is_finished(
    tmp_path: Path, later_ns: int, ready: bool
) -> None:
    folder = tmp_path / "step_1"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(b"w")
    (folder / "READY").touch()
    made = (folder / "READY").stat().st_mtime_ns
    os.utime(folder, ns=(made + later_ns, made + later_ns))
    (found,) = get_format("marker", marker="READY").scan(tmp_path, now=made / 1e9 + 6, previous={})
    assert found.ready is ready
