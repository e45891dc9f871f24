"""Files that the documentation shows: `# NAME` in the first line of a block says what a file is called."""

import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# ([\w.]+\.(?:sh|toml))\b")


def blocks(page: str, language: str) -> Iterator[tuple[str | None, str]]:
    """Yield the blocks of a page in a language, each with the name of the file that it is, or None."""
    for found, text in BLOCK.findall((DOCS / page).read_text()):
        if found == language:
            name = NAME.match(text)
            yield name and name[1], text


def write_files(page: str, folder: Path) -> None:
    """Write the files that a page shows."""
    for language in ("sh", "toml"):
        for name, text in blocks(page, language):
            if name is not None:
                (folder / name).write_text(text)


def edited(text: str, fragment: str) -> str:
    """Return a study file with what a fragment has in place of its own tables and keys of that name."""
    keys, *tables = _split(fragment)
    own_keys, *own_tables = _split(text)
    given = {*map(_name, keys.splitlines()), *map(_name, tables)}
    kept = [each for each in (*own_keys.splitlines(), *own_tables) if _name(each) not in given]
    return "\n".join([keys, *kept, *tables])


def _split(text: str) -> list[str]:
    """Return the lines before the first table, then the tables."""
    return re.split(r"^(?=\[)", text, flags=re.MULTILINE)


def _name(text: str) -> str:
    """Return the key of a line, or the first name of a table."""
    return re.split(r"[ .\]]", text.lstrip("["))[0]
