"""What the environment says."""

import io
from pathlib import Path

import pytest

from facts import raises
from phyla import settings
from phyla.errors import ConfigurationError
from phyla.service.tokens import write_secret

SECRET = "c2VjcmV0-and_more"


@pytest.mark.parametrize("given", [f"{SECRET}\n", f" {SECRET}\r\n", SECRET])
def test_a_token_has_no_white_space_around_it(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "me.token"
    file.write_bytes(b"\xef\xbb\xbf" + given.encode())  # Windows writes this mark first.
    monkeypatch.setenv("PHYLA_TOKEN_FILE", str(file))
    assert settings.token() == SECRET
    monkeypatch.setenv("PHYLA_TOKEN_FILE", "/not/looked/at")
    monkeypatch.setenv("PHYLA_TOKEN", given)
    assert settings.token() == SECRET


@pytest.mark.parametrize(
    "given", [f"{SECRET}\n{SECRET}", f"Bearer {SECRET}", f"{SECRET}é", f"\ufeff\ufeff{SECRET}"]
)
def test_what_is_no_token_is_refused_and_not_shown(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "me.token"
    file.write_text(given, "utf-8")
    monkeypatch.setenv("PHYLA_TOKEN_FILE", str(file))
    with raises(ConfigurationError, "me.token", "ASCII") as refused:
        settings.token()
    assert SECRET not in str(refused.value)
    monkeypatch.setenv("PHYLA_TOKEN", given)
    with raises(ConfigurationError, "PHYLA_TOKEN") as refused:
        settings.token()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("written", "fact"), [(b"", "empty"), (b" \n", "empty"), (SECRET.encode("utf-16"), "UTF-8")]
)
def test_a_token_file_without_a_token_is_named(
    written: bytes, fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "me.token"
    file.write_bytes(written)
    monkeypatch.setenv("PHYLA_TOKEN_FILE", str(file))
    with raises(ConfigurationError, f"PHYLA_TOKEN_FILE={file}", fact):
        settings.token()


def test_a_token_is_not_written_in_place_of_a_directory(tmp_path: Path) -> None:
    with raises(ConfigurationError, str(tmp_path), "directory"):
        write_secret(tmp_path, SECRET)


def test_each_line_is_written_at_once_into_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "ascii"))
    settings.prepare_output()
    print("serving caf\u00e9")
    assert written.getvalue() == b"serving caf\\xe9\n"
