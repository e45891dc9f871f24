"""Fail unless a wheel holds the files of src/phyla, with its license and its command, and nothing else."""

import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]


def expected() -> set[str]:
    """Return the names of the files that a user needs: modules, templates, scripts of pages, py.typed."""
    source = ROOT / "src"
    files = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(source)) for path in files}


def check(wheel: Path) -> None:
    """Compare the names in a wheel with those of the source."""
    metadata = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    described = {f"{metadata}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    wanted = {*expected(), *described, f"{metadata}/licenses/LICENSE"}
    packed = set(ZipFile(wheel).namelist())
    if packed != wanted:
        missing, surplus = sorted(wanted - packed), sorted(packed - wanted)
        sys.exit(f"{wheel.name} lacks {missing} and should not have {surplus}: see [tool.hatch] in pyproject.toml")


check(Path(sys.argv[1]))
