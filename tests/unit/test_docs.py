"""The documentation is true: its snippets run, and it names everything there is.

In the guide every section is a program: its Python blocks in order. A block that begins with `# name.py` is a
file of that name, which later sections import.
"""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import typer.main

import phyla
from phyla import plugins, settings
from phyla.cli.app import app
from phyla.leases import diagram
from phyla.machine import Rules, bound
from phyla.store.sql.schema import HEAD
from phyla.study import maintain

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guide.md").read_text()
CLI = (ROOT / "docs/cli.md").read_text()
DESIGN = (ROOT / "docs/design.md").read_text()
README = (ROOT / "README.md").read_text()

FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
RUNNER = "import runpy, sys\nfor path in sys.argv[1:]:\n    runpy.run_path(path, run_name='__main__')\n"


def run_python(*arguments: str, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PHYLA_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": os.pathsep.join([str(cwd), str(ROOT / "src")])},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def write_programs(text: str, folder: Path) -> list[str]:
    programs = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        program = ""
        for block in FENCED.findall(section):
            named = re.match(r"# (\w+\.py)\n", block)
            if named:
                (folder / named[1]).write_text(block)
            else:
                program += block
        if program:
            path = folder / f"section_{anchor(section.splitlines()[0])}.py"
            path.write_text(program)
            programs.append(str(path))
    return programs


def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    programs = write_programs(GUIDE, tmp_path)
    assert len(programs) == len(re.findall("^## ", GUIDE, re.MULTILINE))
    run_python("-c", RUNNER, *programs, cwd=tmp_path)


@pytest.mark.parametrize("page", sorted((ROOT / "docs/strategies").glob("[!R]*.md")), ids=lambda page: page.stem)
def test_the_settings_in_the_pages_of_strategies_are_right(page: Path, tmp_path: Path) -> None:
    blocks = FENCED.findall(page.read_text())
    assert blocks
    (tmp_path / "page.py").write_text("".join(blocks))
    run_python("page.py", cwd=tmp_path)


def test_every_strategy_and_rule_has_its_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs/strategies").glob("*.md"))
    groups = ("phyla.strategies", "phyla.exploit", "phyla.explore", "phyla.stopping", "phyla.objectives")
    for name, point in plugins.registered().items():
        if name.split("/")[0] in groups and point.value.startswith("phyla."):
            assert f"`{point.attr}" in pages, name


def test_the_first_study_of_the_readme_runs(tmp_path: Path) -> None:
    (program,) = FENCED.findall(README)
    (tmp_path / "first.py").write_text(program)
    output = run_python("first.py", cwd=tmp_path)
    assert "from step" in output


def test_every_public_name_is_in_the_guide() -> None:
    built_in = {point.attr for point in plugins.registered().values() if point.value.startswith("phyla.")}
    missing = [name for name in {*phyla.__all__, *built_in} if not re.search(rf"\b{name}\b", GUIDE)]
    assert missing == []


def test_public_names_are_sorted_and_importable() -> None:
    # As ruff sorts them: constants, classes, functions.
    def key(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert phyla.__all__ == sorted(phyla.__all__, key=key)
    for name in phyla.__all__:
        assert getattr(phyla, name) is not None


def test_importing_phyla_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"scipy", "blake3", "sqlalchemy", "plotly", "pandas", "typer"}
    found = run_python("-c", "import sys, phyla; print(*sys.modules)", cwd=tmp_path).split()
    assert heavy.isdisjoint(found)


def test_every_command_and_option_is_in_the_reference() -> None:
    group = typer.main.get_command(app)
    context = typer.Context(group)
    assert set(group.commands) == set(re.findall(r"^## phyla (\S+)$", CLI, re.MULTILINE))  # type: ignore[attr-defined]
    for name, command in {"": group, **group.commands}.items():  # type: ignore[attr-defined]
        start = f"## phyla {name}\n" if name else "# Command line\n"
        section = CLI.split(start)[1].split("\n## ")[0]
        given = {
            option
            for parameter in command.get_params(context)
            for option in parameter.opts
            if option.startswith("--") and option != "--help"
        }
        listed = set(re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE)) - {"--help"}
        assert listed == given, name


def test_where_studies_are_looked_for_is_told_alike_by_the_reference_and_the_help() -> None:
    group = typer.main.get_command(app)
    section = CLI.split("\n## ")[0]
    listed = dict(re.findall(r"^\| `--(home|storage|checkpoints) [A-Z]+` \| ([^|]*) \|", section, re.MULTILINE))
    shown = {one.name: one.show_default for one in group.get_params(typer.Context(group)) if one.name in listed}
    assert len(listed) == 3
    assert {name: text.replace("`", "") for name, text in listed.items()} == shown


def test_samples_of_the_reference_are_of_this_version(tmp_path: Path) -> None:
    assert f"schema {HEAD}, 1 study" in CLI

    def train(trial: phyla.Trial) -> None:
        (trial.checkpoint_dir / "x").write_text("x")
        trial.report(x=1.0)

    strategy = phyla.RandomSearch(members=1, total_steps=1)
    phyla.Study("s", {"x": phyla.Float(0.0, 1.0)}, phyla.Minimize("x"), strategy, train, home=tmp_path).run()
    ((_, why),) = maintain("s", home=tmp_path).retention().kept
    assert why in CLI


def test_every_variable_of_the_environment_is_in_the_guide() -> None:
    listed = re.findall(r"^\| `(PHYLA_\w+)` \|", GUIDE, re.MULTILINE)
    assert sorted(listed) == sorted(settings.VARIABLES)


def test_every_extension_point_and_what_is_built_in_is_in_the_guide() -> None:
    rows = dict(re.findall(r"^\| `(phyla\.\w+)` \|[^|]*\|([^|]*)\|$", GUIDE, re.MULTILINE))
    assert set(rows) == set(plugins.GROUPS)
    for name, point in plugins.registered().items():
        if point.value.startswith("phyla."):
            group, _, short = name.partition("/")
            assert f"`{short}`" in rows[group], name


def test_the_diagram_of_a_trial_is_drawn_from_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in DESIGN


def test_the_defaults_of_pbt_are_in_the_guide() -> None:
    strategy = phyla.PBT(population_size=1, steps_per_trial=1, total_steps=1)
    for name in type(strategy).__dataclass_fields__:
        assert re.search(rf"^\| `{name}` \|", GUIDE, re.MULTILINE), name
    for name in ("exploit", "explore", "fitness"):
        shown = repr(getattr(strategy, name)).replace("quantile=", "")
        assert f"| `{name}` | `{shown}` |" in GUIDE


def test_the_bound_of_kept_checkpoints_is_the_one_of_the_guide() -> None:
    size, best = 7, 2
    strategy = phyla.PBT(population_size=size, steps_per_trial=1, total_steps=1)
    space, objective = phyla.Space(x=phyla.Float(0, 1)), phyla.Minimize("x")
    rules = Rules(space=space, objective=objective, strategy=strategy, keep_best=best)
    assert "4 * population_size + best " in GUIDE
    assert bound(rules.keeping) == 4 * size + best


def test_every_trial_attribute_is_in_the_guide() -> None:
    public = {name for name in dir(phyla.Trial) if not name.startswith("_")}
    missing = [name for name in public if not re.search(rf"`{name}[(`]", GUIDE)]
    assert missing == []


@pytest.mark.parametrize(
    "page", ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for link in LINK.findall(path.read_text()):
        if "://" in link:
            continue
        file, _, part = link.partition("#")
        target = (path.parent / file) if file else path
        assert target.exists(), f"{page}: {link}"
        if part:
            assert part in anchors(target.read_text()), f"{page}: {link}"


def test_settings_module_says_the_same_as_the_guide() -> None:
    text = importlib.import_module("phyla.settings").__doc__ or ""
    for name in settings.VARIABLES:
        assert f"{name}:" in text


def test_every_row_of_the_comparison_of_evaluation_is_a_test() -> None:
    page = (ROOT / "docs/evaluation.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(rows) >= 15
    for row in rows:
        found = re.findall(r"`(test_\w+)`", row)
        assert found, f"no test in: {row}"
        for name in found:
            assert f"def {name}(" in written, f"{name} is not there"
