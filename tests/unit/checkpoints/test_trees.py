"""Any content is kept to the byte, and any damage is found and named."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phyla.checkpoints import MANIFEST_NAME, LocalCheckpoints
from phyla.errors import CheckpointCorrupt

part = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name not in {".", "..", MANIFEST_NAME}
)
# Every directory's name ends in `.d` and no file's does, so that no path is both.
file_path = st.builds(
    lambda folders, name: "/".join([*(f"{folder}.d" for folder in folders), f"{name}.f"]),
    st.lists(part, max_size=3),
    part,
)
contents = st.dictionaries(file_path, st.binary(max_size=60), min_size=1, max_size=5)
quick = settings(max_examples=60)


@contextmanager
def committed(content: dict[str, bytes]) -> Iterator[tuple[LocalCheckpoints, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = LocalCheckpoints(Path(folder))
        staged = checkpoints.stage("1.1")
        for relative, data in content.items():
            path = staged / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        checkpoints.commit("1.1", step=1, now=0.0)
        yield checkpoints, checkpoints.path("1.1")


@quick
@given(contents)
def test_content_is_kept(content: dict[str, bytes]) -> None:
    with committed(content) as (checkpoints, path):
        manifest = checkpoints.verify("1.1")
        assert {file.path: file.size_bytes for file in manifest.files} == {
            relative: len(data) for relative, data in content.items()
        }
        assert {relative: (path / relative).read_bytes() for relative in content} == content


@quick
@given(contents, st.data())
def test_damage_is_found_and_named(content: dict[str, bytes], data: st.DataObject) -> None:
    with committed(content) as (checkpoints, path):
        relative = data.draw(st.sampled_from([*sorted(content), MANIFEST_NAME]))
        victim = path / relative
        before = victim.read_bytes()
        kinds = ["remove", "append", *(["flip", "truncate"] if before else [])]
        kind = data.draw(st.sampled_from(kinds))
        victim.chmod(0o644)
        if kind == "remove":
            victim.unlink()
        elif kind == "append":
            victim.write_bytes(before + b"\n")
        elif kind == "truncate":
            victim.write_bytes(before[: data.draw(st.integers(0, len(before) - 1))])
        else:
            position = data.draw(st.integers(0, len(before) - 1))
            flipped = bytes([before[position] ^ data.draw(st.integers(1, 255))])
            victim.write_bytes(before[:position] + flipped + before[position + 1 :])
        with pytest.raises(CheckpointCorrupt) as caught:
            checkpoints.verify("1.1")
        assert relative in str(caught.value)
