"""The documentation is true: its snippets run, and it names everything there is.

The Python blocks of a page, in order, are one program. A block that begins with `# name.py` is a file of that
name, which any page may import; shell scripts of a page are files, too.
"""

import inspect
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
import yaml

import forked
import phyla
from effort import rarely
from phyla import plugins, settings
from phyla.cli.app import app
from phyla.machine import TrainRules, bound
from phyla.machine.jobs import TRANSITIONS
from phyla.report.figures import COMPARISON_FIGURES, EVALUATION_FIGURES, STUDY_FIGURES
from serving import interface

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "```python" in page.read_text())
STORAGE = (DOCS / "how-to/storage.md").read_text()
TRAINING = (DOCS / "how-to/training-function.md").read_text()
PBT = (DOCS / "strategies/population-based-training.md").read_text()
OWN = (DOCS / "strategies/write-your-own.md").read_text()
DESIGN = (DOCS / "design.md").read_text()
README = (ROOT / "README.md").read_text()

FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SCRIPT = re.compile(r"^```sh\n(# (\w+\.sh)\n.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FRAMEWORK = re.compile(
    r"^ *(?:import|from) (?:jax|keras|lightning|sklearn|stable_baselines3|torch|transformers)\b", re.MULTILINE
)
STRICT = """\
import runpy, warnings
warnings.simplefilter("error")
for message in (
    "`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning with PyTorch 2.13
    "The `srun` command is available",  # Lightning where Slurm is installed
    "__array__ implementation doesn't accept a copy keyword",  # Keras 3.15
):
    warnings.filterwarnings("ignore", message)
runpy.run_path("page.py", run_name="__main__")
"""
"""Runs a page, with warnings as errors."""
HAND = """\
import json

from phyla_observer import PhylaObserver


class Algo:
    def __init__(self):
        self.frame, self.skill, self.params = 0, 0.0, {}

    def save(self, path):
        with open(f"{path}.pth", "w") as file:
            json.dump([self.frame, self.skill], file)

    def restore(self, path):
        with open(path) as file:
            self.frame, self.skill = json.load(file)

    def set_param(self, name, value):
        self.params[name] = value


algo, observer = Algo(), PhylaObserver()
observer.after_init(algo)
while True:
    algo.frame += 250
    algo.skill += algo.params["learning_rate"]
    observer.process_infos({"episode": {"consecutive_successes": algo.skill}}, [])
    observer.after_steps()
"""
"""Stands in for RL-Games."""


def environment(folder: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PHYLA_")}
    return {**clean, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}


def run_python(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env=environment(cwd),
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


NAMED = re.compile(r"# (\w+\.py)\n")


ALSO_ELSEWHERE = {
    *(
        "compare-and-replay",
        "figures",
        "jax",
        "lightning",
        "noisy-scores",
        "ray-tune",
        "recipes",
        "replay",
        "trackers",
    ),
}
"""Pages whose subjects have tests of their own."""


def programs(*, frameworks: bool) -> list[Any]:
    """Return the pages whose programs use a framework, or none."""
    found = {page: FENCED.findall(page.read_text()) for page in PAGES}
    runs = [page for page, blocks in found.items() if not all(map(NAMED.match, blocks))]
    chosen = [page for page in runs if any(map(FRAMEWORK.search, found[page])) == frameworks]
    return [rarely(page) if page.stem in ALSO_ELSEWHERE else page for page in chosen]


def shortened(program: str) -> str:
    """Return a program that does less, which shows as well that it runs.

    Members train for 100 steps instead of hundreds, in one worker process instead of two; one run is predicted.
    """
    for more, less in ((r"total_steps=\d{3}\b", "total_steps=100"), (r"run\(workers=2\)", "run(workers=1)")):
        program = re.sub(more, less, program)
    return program.replace("runs=5)", "runs=1)")


def write_named(folder: Path) -> None:
    for one in PAGES:
        for block in FENCED.findall(one.read_text()):
            if named := NAMED.match(block):
                (folder / named[1]).write_text(shortened(block))


def write_program(page: Path, folder: Path) -> None:
    write_named(folder)
    for block, name in SCRIPT.findall(page.read_text()):
        (folder / name).write_text(block)
    blocks = [block for block in FENCED.findall(page.read_text()) if not NAMED.match(block)]
    assert blocks
    (folder / "page.py").write_text(shortened("".join(blocks)))


def run_program(page: Path, folder: Path, **how: Any) -> None:
    write_program(page, folder)
    run_forked(STRICT, folder, **how)


def run_forked(code: str, folder: Path, **how: Any) -> str:
    env = {**environment(folder), **forked.SMALL_MODELS}
    done = forked.run(["-c", code], cwd=folder, env=env, timeout=280, spares=1, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", programs(frameworks=False), ids=lambda page: page.stem)
def test_the_program_of_each_page_runs(page: Path, tmp_path: Path) -> None:
    run_program(page, tmp_path)


@pytest.mark.xdist_group("frameworks")
@pytest.mark.parametrize("page", programs(frameworks=True), ids=lambda page: page.stem)
def test_the_program_of_each_page_with_a_framework_runs(page: Path, tmp_path: Path) -> None:
    run_program(page, tmp_path, frameworks=True)


@pytest.mark.thorough  # test_attached_ranks.py: ranks that share trials
@pytest.mark.xdist_group("frameworks")
def test_the_ranks_of_the_page_on_attaching_share_trials(tmp_path: Path) -> None:
    write_program(DOCS / "how-to/attach.md", tmp_path)
    torchrun = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    run_python("-W", "default", *torchrun, "--nproc-per-node=2", "ranks.py", cwd=tmp_path)
    told = run_python("-c", "import phyla; print(phyla.load_study('ranks').counts())", cwd=tmp_path)
    assert told == "{'completed': 16}\n"


@pytest.mark.thorough
@pytest.mark.xdist_group("frameworks")
def test_the_pods_of_a_gang_share_trials(tmp_path: Path) -> None:
    write_program(DOCS / "how-to/attach.md", tmp_path)
    (ranks,) = yaml.safe_load((ROOT / "examples/cluster/gang.yaml").read_text())["spec"]["replicatedJobs"]
    (container,) = ranks["template"]["spec"]["template"]["spec"]["containers"]
    torchrun, *words = container["command"]
    assert torchrun == "torchrun"

    def run_pod(index: int) -> str:
        given = {"NODE_RANK": str(index), "MASTER_ADDR": "127.0.0.1", "nnodes=4": "nnodes=2", "node=8": "node=1"}
        command = " ".join(words)
        for name, value in given.items():
            command = command.replace(f"$({name})" if name.isupper() else name, value)
        return run_python("-W", "default", "-m", "torch.distributed.run", *command.split(), cwd=tmp_path)

    with ThreadPoolExecutor() as pool:
        list(pool.map(run_pod, [0, 1]))
    told = run_python("-c", "import phyla; print(phyla.load_study('ranks').counts())", cwd=tmp_path)
    assert told == "{'completed': 16}\n"


@pytest.mark.thorough  # test_attach.py: what it calls
def test_the_observer_for_rl_games_trains_a_study(tmp_path: Path) -> None:
    write_named(tmp_path)
    (tmp_path / "train_hand.py").write_text(HAND)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: run_python(name, cwd=tmp_path), ["train_hand.py"] * 2))
    count = "import phyla; print(phyla.load_study('shadow-hand').counts())"
    assert run_python("-c", count, cwd=tmp_path) == "{'completed': 8}\n"


@pytest.mark.xdist_group("frameworks")
def test_the_study_files_of_the_tutorial_are_found(tmp_path: Path) -> None:
    write_program(DOCS / "tutorial.md", tmp_path)
    load = "from phyla.study import load_studies as load; print(*(one.name for name in {} for one in load(name)))"
    found = run_forked(load.format(["study.py", "baseline.py"]), tmp_path, frameworks=True).split()
    command = re.search(r"^\$ phyla compare (.+)$", (DOCS / "tutorial.md").read_text(), re.MULTILINE)
    assert command is not None
    assert found == command[1].split()


def test_every_strategy_and_rule_has_its_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs/strategies").glob("*.md"))
    groups = ("phyla.strategies", "phyla.exploit", "phyla.explore", "phyla.stopping", "phyla.objectives")
    for name, point in plugins.list_plugins().items():
        if name.split("/")[0] in groups and point.value.startswith("phyla."):
            assert f"`{point.attr}" in pages, name


def test_the_first_study_of_the_readme_runs(tmp_path: Path) -> None:
    (program,) = FENCED.findall(README)
    (tmp_path / "page.py").write_text(shortened(program).replace("total_steps=100", "total_steps=30"))
    assert "from step" in run_forked(STRICT, tmp_path)


def test_every_public_name_is_in_the_documentation() -> None:
    text = README + "".join(page.read_text() for page in DOCS.rglob("*.md"))
    points = plugins.list_plugins().values()
    built_in = {point.attr for point in points if point.value.startswith(("phyla.strategies", "phyla.evaluation"))}
    assert [name for name in (*phyla.__all__, *built_in) if not re.search(rf"\b{name}\b", text)] == []


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


def test_every_command_and_option_has_its_help() -> None:
    group = typer.main.get_command(app)
    context = typer.Context(group)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert command.help, name
        for parameter in command.get_params(context):
            assert parameter.help, f"{name} {parameter.name}"


def test_every_variable_of_the_environment_is_documented() -> None:
    listed = re.findall(r"^\| `(PHYLA_\w+)` \|", STORAGE, re.MULTILINE)
    assert sorted(listed) == sorted(re.findall(r"^    (PHYLA_\w+):", settings.__doc__ or "", re.MULTILINE))


def test_every_extension_point_and_what_is_built_in_is_documented() -> None:
    rows = dict(re.findall(r"^\| `(phyla\.\w+)` \|[^|]*\|([^|]*)\|$", OWN, re.MULTILINE))
    assert set(rows) == set(plugins.GROUPS)
    for name, point in plugins.list_plugins().items():
        if point.value.startswith("phyla."):
            group, _, short = name.partition("/")
            assert f"`{short}`" in rows[group], name


def test_the_diagram_of_a_trial_is_drawn_from_the_table() -> None:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> pending", "    [*] --> running"]
    for state, targets in TRANSITIONS.items():
        lines += [f"    {state} --> {target}" for target in sorted(targets)]
        if not targets:
            lines.append(f"    {state} --> [*]")
    assert "\n".join([*lines, "```"]) in DESIGN


def test_the_defaults_of_pbt_are_documented() -> None:
    strategy = phyla.PBT(population_size=1, steps_per_trial=1, total_steps=1)
    for name in type(strategy).__dataclass_fields__:
        assert re.search(rf"^\| `{name}` \|", PBT, re.MULTILINE), name
    for name in ("exploit", "explore", "fitness"):
        shown = repr(getattr(strategy, name)).replace("quantile=", "")
        assert f"| `{name}` | `{shown}` |" in PBT


def test_the_bound_of_kept_checkpoints_is_documented() -> None:
    size, best = 7, 2
    strategy = phyla.PBT(population_size=size, steps_per_trial=1, total_steps=1)
    space, objective = phyla.Space(x=phyla.Float(0, 1)), phyla.Minimize("x")
    rules = TrainRules(space=space, objective=objective, strategy=strategy, keep_best=best)
    assert "4 * population_size + best" in STORAGE
    assert bound(rules.keeping) == 4 * size + best


def test_every_trial_attribute_is_documented() -> None:
    attributes = re.findall(r"^    (\w+): ", inspect.getdoc(phyla.Trial) or "", re.MULTILINE)
    assert len(attributes) > 10
    public = {*attributes, *(name for name in dir(phyla.Trial) if not name.startswith("_"))}
    missing = [name for name in public if not re.search(rf"`{name}[(`]", TRAINING)]
    assert missing == []


def test_every_helper_of_tests_is_described_in_its_folder() -> None:
    described: list[Path] = []
    for section in (ROOT / "tests/README.md").read_text().split("\n## ")[1:]:
        folder = forked.SUPPORT / section.split("`")[1]
        described += [folder / name for name in re.findall(r"^- `(\w+\.\w+)`: ", section, re.MULTILINE)]
    assert sorted(described) == sorted(path for path in forked.SUPPORT.glob("*/*") if path.is_file())


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
        if part and target.suffix == ".md":
            assert part in anchors(target.read_text()), f"{page}: {link}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_each_page_begins_with_when_to_read_it(page: Path) -> None:
    assert re.match(r"# [^\n]+\n\n\*Read this .{10,110}\*\n\n", page.read_text())


def test_what_is_said_of_other_tools_has_a_link_or_a_test() -> None:
    written = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    page = (DOCS / "compared.md").read_text()
    claims = re.findall(r"^(?:- |\| )(?!you want)(.+?)(?=\n(?:- |\||\n))", page, re.MULTILINE | re.DOTALL)
    assert len(claims) >= 30
    for claim in claims:
        assert re.search(r"\]\(|::test_", claim), f"no link and no test: {claim}"
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    assert len(named) >= 8
    for path, name in named:
        assert f"def {name}(" in written[ROOT / path], f"{name} is not in {path}"


def test_every_route_for_programs_of_users_is_documented() -> None:
    page = (DOCS / "reference/http.md").read_text()
    rows = re.findall(r"^\| `([A-Z]+) (\S*)` \|", page, re.MULTILINE)
    paths = interface()["paths"]
    ours = {path: one for path, one in paths.items() if not path.startswith(("/v1/calls/", "/v1/read/"))}
    wanted = {(method.upper(), path.removeprefix("/v1/studies")) for path, one in ours.items() for method in one}
    assert set(rows) == wanted


def test_every_field_of_the_black_box_routes_is_described() -> None:
    document = interface()
    routes = [
        one for path, each in document["paths"].items() if path.startswith("/v1/studies") for one in each.values()
    ]
    names = [*re.findall(r"schemas/(\w+)'", str(routes)), "Suggestion"]
    fields = [
        (name, *field) for name in names for field in document["components"]["schemas"][name]["properties"].items()
    ]
    fields += [(one["name"], one["name"], one) for route in routes for one in route.get("parameters", ())]
    assert len(fields) > 100
    assert [(name, field) for name, field, told in fields if "description" not in told] == []


def test_pictures_are_shown_light_and_dark_and_are_small() -> None:
    named = set(re.findall(r"images/([\w-]+\.png)#gh-", "".join(page.read_text() for page in DOCS.rglob("*.md"))))
    pictures = {path.name: path.stat().st_size for path in (DOCS / "images").iterdir()}
    assert set(pictures) == named
    assert max(pictures.values()) < 150_000
    figures = {*STUDY_FIGURES, *EVALUATION_FIGURES, *COMPARISON_FIGURES} - {"front"}  # of several goals only
    kinds = [f"figure-{name}" for name in figures]
    assert {f"{kind}-{scheme}.png" for kind in kinds for scheme in ("light", "dark")} <= set(pictures)
    for name in named:
        assert name.replace("-light.", "-dark.") in named
        assert name.replace("-dark.", "-light.") in named


def test_settings_module_names_every_variable() -> None:
    text = Path(settings.__file__).read_text()
    for name in re.findall(r'"(PHYLA_\w+)"', text):
        assert f"    {name}: " in text


def test_the_commands_of_the_page_on_clusters_are_understood() -> None:
    text = (DOCS / "how-to/cluster.md").read_text().replace("\\\n", "")
    lines = re.findall(r"^\$ (.+)$", text, re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        understand(shlex.split(line))
        for script in [word for word in shlex.split(line) if word.startswith("examples/")]:
            assert (ROOT / script).is_file(), line


def understand(words: list[str]) -> None:
    """Parse a command of phyla as its command line does."""
    group = typer.main.get_command(app)
    if "phyla" in words:
        context = group.make_context("phyla", words[words.index("phyla") + 1 :])
        name, command, rest = group.resolve_command(  # type: ignore[attr-defined]
            context, [*context._protected_args, *context.args]
        )
        command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", ["watch-slurm.md", "watch-torchrun.md", "trackers.md"])
def test_the_commands_of_pages_on_watching_are_understood(page: str) -> None:
    text = (DOCS / "how-to" / page).read_text()
    lines = re.findall(r"^(?:srun \S+ )?(phyla watch .+?)(?: &)?$", text, re.MULTILINE)
    assert lines
    for line in lines:
        understand(shlex.split(line))


def scripted(page: str, folder: Path, **programs: str) -> int:
    """Run the longest script of a page with other programs in place of the real ones; return its exit status."""
    scripts = re.findall(r"^```sh\n(.*?)^```", (DOCS / "how-to" / page).read_text(), re.MULTILINE | re.DOTALL)
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    (folder / "runs/exp1/checkpoints").mkdir(parents=True)
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    return subprocess.run(["sh", "-c", max(scripts, key=len)], cwd=folder, env=variables, timeout=60).returncode


@pytest.mark.parametrize(("status", "told"), [(0, ""), (1, ""), (75, "requeue 7\n"), (143, "requeue 7\n")])
def test_a_watch_on_slurm_requeues_itself_and_keeps_its_status(tmp_path: Path, status: int, told: str) -> None:
    (tmp_path / "told").touch()
    programs = {"srun": f"exit {status}", "scontrol": 'echo "$@" >> told'}
    assert scripted("watch-slurm.md", tmp_path, **programs) == status
    assert (tmp_path / "told").read_text() == told


@pytest.mark.parametrize("training", [0, 1])
def test_a_watch_beside_torchrun_ends_with_training_but_not_with_its_crash(tmp_path: Path, training: int) -> None:
    programs = {"phyla": "exit 3", "torchrun": f"exit {training}"}
    assert scripted("watch-torchrun.md", tmp_path, **programs) == 3
    assert (tmp_path / "runs/exp1/checkpoints/DONE").exists() == (training == 0)


def test_the_pages_on_watching_are_short() -> None:
    for page in ("watch-slurm.md", "watch-torchrun.md"):
        assert len((DOCS / "how-to" / page).read_text().split()) <= 300


def test_every_row_of_the_comparison_of_evaluation_is_a_test() -> None:
    page = (ROOT / "docs/evaluation.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(rows) >= 14
    for row in rows:
        found = re.findall(r"`(test_\w+)`", row)
        assert found, f"no test in: {row}"
        for name in found:
            assert f"def {name}(" in written, f"{name} is not there"
