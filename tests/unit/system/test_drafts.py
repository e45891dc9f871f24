"""Files that are replaced as a whole: links are followed, and nothing but a file is replaced."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from facts import raises
from phyla.cli.output import write_file
from phyla.errors import UsageError
from phyla.pages import Page
from phyla.report.page import write_pages
from phyla.system.drafts import file_to_replace


def write(path: Path) -> None:
    write_file(path, lambda draft: draft.write_text("new"), replace=True)


def write_page(path: Path) -> None:
    write_pages(path, [Page(study="s", title="Study s", key="", sections=[])], [], now=0.0)


@pytest.mark.parametrize("writer", [write, write_page])
@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_no_file_to_replace(writer: Callable[[Path], object], linked: bool, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    named = tmp_path / "link" if linked else pipe
    if linked:
        named.symlink_to(pipe)
    with raises(UsageError, named, "pipe"):
        writer(named)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert named.is_symlink() == linked
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("writer", [write, write_page])
def test_a_link_stays_and_its_file_is_replaced(writer: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    file, link = tmp_path / "inner/file", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    writer(link)
    assert link.readlink() == file
    assert file.read_text() != "old"


def test_what_is_no_place_for_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    for path, fact in ((tmp_path, "directory"), (tmp_path / "circle", "circle"), (Path(os.devnull), "device")):
        with raises(UsageError, path, fact):
            file_to_replace(path)
    assert file_to_replace(tmp_path / "absent" / "file") == (tmp_path / "absent" / "file").resolve()
