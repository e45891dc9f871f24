"""The manifest is read back exactly as written, or not at all."""

import json

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from facts import raises
from phyla.checkpoints import Manifest, ManifestFile
from phyla.errors import CheckpointCorrupt

FILES = (ManifestFile("a/b.bin", 3, "0f" * 32), ManifestFile("c", 0, "1e" * 32))
MANIFEST = Manifest.of(FILES, step=7, created_at=1234.5)


def test_it_is_read_back() -> None:
    assert Manifest.from_bytes(MANIFEST.to_json().encode()) == MANIFEST


def test_its_text_is_json_that_anybody_can_read() -> None:
    raw = json.loads(MANIFEST.to_json())
    assert raw["step"] == 7
    assert raw["created_at"] == 1234.5
    assert raw["digest"] == MANIFEST.digest
    assert [file["path"] for file in raw["files"]] == ["a/b.bin", "c"]


def test_the_digest_is_of_the_content_alone() -> None:
    later = Manifest.of(reversed(FILES), step=8, created_at=9.0)
    assert later.digest == MANIFEST.digest
    assert Manifest.of(FILES[:1], step=7, created_at=1234.5).digest != MANIFEST.digest


def test_the_digest_is_as_documented() -> None:
    lines = b"a/b.bin\x003\x00" + b"0f" * 32 + b"\nc\x000\x00" + b"1e" * 32 + b"\n"
    assert MANIFEST.digest == blake3(lines).hexdigest()


def test_file_names_that_are_no_text_survive() -> None:
    manifest = Manifest.of([ManifestFile("w\udcff\n\x01é", 1, "aa")], step=0, created_at=0.0)
    assert Manifest.from_bytes(manifest.to_json().encode()) == manifest


@settings(max_examples=200)
@given(st.integers(0, len(MANIFEST.to_json()) - 1), st.integers(0, 7))
def test_any_flipped_bit_is_noticed(position: int, bit: int) -> None:
    text = MANIFEST.to_json()
    damaged = text[:position] + chr(ord(text[position]) ^ (1 << bit)) + text[position + 1 :]
    with pytest.raises(CheckpointCorrupt):
        Manifest.from_bytes(damaged.encode())


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", MANIFEST.to_json()[:-1], MANIFEST.to_json() + " "])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(CheckpointCorrupt):
        Manifest.from_bytes(text.encode())


def test_another_format_says_so() -> None:
    text = MANIFEST.to_json().replace('"format": 1', '"format": 2')
    with raises(CheckpointCorrupt, "format 2"):
        Manifest.from_bytes(text.encode())
