"""Directories that a plain loop writes in several calls: weights, a tokenizer, then an optimizer."""

from pathlib import Path

import pytest

from foreign import index, safetensors, save, write
from watched import QUIET_S, WatchedDirectory

WEIGHTS = safetensors({"w": 40})


@pytest.fixture
def watched(tmp_path: Path) -> WatchedDirectory:
    return WatchedDirectory(tmp_path)


def save_pretrained(folder: Path) -> None:
    write(folder / "config.json", "{}")
    write(folder / "model.safetensors", WEIGHTS)


def save_all(folder: Path) -> None:
    save_pretrained(folder)
    write(folder / "tokenizer.json", "{}")
    save(folder / "optimizer.pt", b"1")


def test_the_first_must_be_quiet(watched: WatchedDirectory) -> None:
    save_pretrained(watched.root / "step_100")
    assert watched.look() == []
    write(watched.root / "step_100/tokenizer.json", "{}")
    assert watched.look() == watched.look(QUIET_S - 1) == []
    assert watched.look() == [("step_100", 100)]


def test_a_later_one_is_finished_with_the_names_of_the_ones_before(watched: WatchedDirectory) -> None:
    save_all(watched.root / "step_100")
    assert watched.look() == []
    folder = watched.root / "step_200"
    save_pretrained(folder)
    # Its writer went on, so the first one is finished.
    assert watched.look() == [("step_100", 100)]
    write(folder / "tokenizer.json", "{")
    optimizer = save(folder / "optimizer.pt", b"1").read_bytes()
    assert watched.look() == [("step_100", 100)], "the tokenizer is smaller"
    write(folder / "tokenizer.json", "{}")
    write(folder / "optimizer.pt", optimizer[:-9])
    assert watched.look() == [("step_100", 100)], "the optimizer is cut off"
    write(folder / "optimizer.pt", optimizer)
    assert watched.look() == [("step_100", 100), ("step_200", 200)]
    assert watched.events() == []


def test_one_that_lacks_a_name_for_good_is_evaluated_after_the_quiet_period(watched: WatchedDirectory) -> None:
    save_all(watched.root / "step_100")
    save_pretrained(watched.root / "step_200")
    watched.look()
    assert watched.look(QUIET_S) == [("step_100", 100), ("step_200", 200)]


@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_added_later_is_told_once_and_not_evaluated(watched: WatchedDirectory, restarted: bool) -> None:
    save_pretrained(watched.root / "step_100")
    watched.look()
    assert watched.look(QUIET_S) == [("step_100", 100)]
    for name in ("tokenizer.json", "vocabulary/words.txt"):
        write(watched.root / "step_100" / name, "{}")
        if restarted:
            watched.watch()
        watched.look()
        assert watched.look(QUIET_S) == watched.look() == [("step_100", 100)]
    assert watched.events() == [
        f"step_100/{name} came later; step_100 has the same weights, so it is not evaluated again"
        for name in ("tokenizer.json", "vocabulary/words.txt")
    ]
    assert (watched.checkpoint() / "vocabulary/words.txt").exists()


def test_other_weights_are_evaluated_again(watched: WatchedDirectory) -> None:
    save_pretrained(watched.root / "step_100")
    watched.look()
    watched.look(QUIET_S)
    write(watched.root / "step_100/model.safetensors", safetensors({"w": 41}))
    watched.look()
    assert watched.look(QUIET_S) == [("step_100", 100), ("step_100", 100)]
    write(watched.root / "step_100/more.safetensors", WEIGHTS)
    watched.look()
    assert len(watched.look(QUIET_S)) == 3


def test_shards_that_are_written_again_are_not_mixed(watched: WatchedDirectory) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for step in (100, 200):
        for name, tensor in zip(names, "ab", strict=True):
            write(watched.root / f"step_{step}" / name, safetensors({tensor: 40}), at=watched.now + step)
        weight_map = dict(zip("ab", names, strict=True))
        write(watched.root / f"step_{step}/model.safetensors.index.json", index(weight_map), at=watched.now + step)
        write(watched.root / f"step_{step}/tokenizer.json", "{}", at=watched.now + step)
    assert watched.look() == [("step_100", 100), ("step_200", 200)]
    write(watched.root / "step_200" / names[0], safetensors({"a": 40}), at=watched.now + 210)
    assert watched.look() == [("step_100", 100), ("step_200", 200)]
    assert len(watched.look(QUIET_S)) == 3
