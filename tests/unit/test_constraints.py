"""The pinned versions of tools and libraries install on each Python that phyla supports."""

import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def test_pinned_versions_install_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2; some projects raise their minimum from one patch release to another."""
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = f"{supported.removeprefix('>=')}.0"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in lines}
    installed = {canonicalize_name(found.name): found.metadata["Requires-Python"] for found in distributions()}
    required = {name: installed[name] for name in pinned & installed.keys() if installed[name]}
    assert len(required) > 100
    assert not {name: python for name, python in required.items() if oldest not in SpecifierSet(python)}
