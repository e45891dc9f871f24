"""Pictures of the dashboard and its figures, taken by scripts/images. Arguments: a home to reuse, then pages."""

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import phyla
from phyla.errors import StudyFailed
from phyla.strategies import ParetoTruncation

ROOT = Path(__file__).parents[1]
STUDIES, SHOWN, TRADEOFF = ("digits", "digits-random"), "digits-r0", "tradeoff"
PAGES = {
    "study": f"/studies/{SHOWN}",
    "member": f"/studies/{SHOWN}/members/{{0.member}}",
    "trial": f"/studies/{SHOWN}/trials/{{0.trial}}",
    "trials": f"/studies/{SHOWN}/trials",
    "evaluations": f"/studies/{SHOWN}/evaluations",
    "compare": "/compare?" + "&".join(f"study={name}-r{number}" for name in STUDIES for number in range(3)),
    "workers": "/workers",
    "studies": "/",
    "front": f"/studies/{TRADEOFF}",
    "phone": f"/studies/{SHOWN}",
    "empty": "/studies/empty",
    "running": f"/studies/{STUDIES[0]}",
    "failed": "/studies/failed",
}
"""Pages of the dashboard; of members and trials, that of the best."""
PHONE = {"width": 390, "height": 844}
STATES = ("phone", "empty", "running", "failed")
"""Pages whose figures are not kept."""
DRAWN = "every(one => one.matches('.none, :has(.js-plotly-plot)'))"


def main(home: str, names: Sequence[str]) -> None:
    """Train what is shown, unless it is there, and take the pictures while one more study runs."""
    trade_off(home)
    states(home)
    phyla_in = [sys.executable, "-m", "phyla.cli", "--home", home]
    run = [*phyla_in, "run", "examples/digits/digits.py", "--study"]
    best = None
    if [*names] != ["front"]:
        for name in STUDIES:
            subprocess.run([*run, name, "--replicates=3"], cwd=ROOT, check=True)
        best = phyla.load_study(SHOWN, home=home).best
    server = subprocess.Popen([*phyla_in, "dashboard", "--port=0"], stdout=subprocess.PIPE, text=True)
    at_work = subprocess.Popen([*run, STUDIES[0]], cwd=ROOT)
    try:
        (address,) = re.findall(r"http://\S+:\d+", server.stdout.readline() if server.stdout else "")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            # What runs may end while pictures are taken.
            for name in sorted(names or PAGES, key=lambda name: name != "running"):
                for scheme in ("light", "dark"):
                    size: Any = PHONE if name == "phone" else {"width": 920, "height": 860}
                    page = browser.new_page(viewport=size, color_scheme=scheme, bypass_csp=True)
                    take(page, address + PAGES[name].format(best), name, scheme)
                    page.close()
    finally:
        server.terminate()
        at_work.terminate()


def trade_off(home: str) -> None:
    """Train a population for two goals at odds."""
    sys.path.insert(0, str(ROOT / "bench/quality"))
    import tradeoff_problem as problem

    budget = problem.BUDGET
    strategy = phyla.PBT(
        population_size=budget.members,
        steps_per_trial=budget.steps_per_trial,
        total_steps=budget.total_steps,
        exploit=ParetoTruncation(0.25),
    )
    made = problem.problem(0)
    phyla.Study(TRADEOFF, made.space, made.objective, strategy, made.train, home=home).run()


def states(home: str) -> None:
    """Leave a study whose first trials are running, and one that failed."""
    strategy = phyla.PBT(population_size=4, steps_per_trial=5, total_steps=50, exploit=phyla.Truncation(0.25))
    empty, failed = (
        phyla.Study(
            name,
            phyla.Space(lr=phyla.Float(1e-3, 1.0, log=True), dropout=phyla.Float(0.0, 0.9)),
            phyla.Maximize("accuracy"),
            strategy,
            home=home,
            retries=phyla.Retries(attempts=1, broken=3),
        )
        for name in ("empty", "failed")
    )
    empty.ask(2, lease_s=3600)
    with suppress(StudyFailed):
        while trials := failed.ask(4):
            for trial in trials:
                skill = float((trial.source.path / "skill").read_text()) if trial.source else 0.5
                skill += (1 - skill) * (0.3 - abs(trial.params["dropout"] - 0.3) / 3) * trial.params["lr"] ** 0.2
                (trial.checkpoint_dir / "skill").write_text(str(skill))
                if trial.start_step < 30:
                    failed.tell(trial, metrics={"accuracy": skill})
                else:
                    failed.tell(trial, error="OSError: [Errno 28] No space left on device: 'data/cache'")


def take(page: Page, address: str, name: str, scheme: str) -> None:
    """Save a page as far as a screen shows it, and each of its figures; of the front only that figure."""
    page.goto(address)
    if name == "running":
        page.wait_for_function("parseInt(document.querySelector('dd').textContent) > 100", timeout=120_000)
    page.wait_for_function(f"[...document.querySelectorAll('[data-figure]')].{DRAWN}", timeout=120_000)
    height: Any = page.evaluate(
        "Math.min(innerHeight, document.querySelector('footer').getBoundingClientRect().bottom)"
    )
    width: Any = page.evaluate("innerWidth")
    clip: Any = {"x": 0, "y": 0, "width": width, "height": height + 16 if width > PHONE["width"] else height}
    pictures = {f"dashboard-{name}": page.screenshot(clip=clip)}
    page.add_style_tag(content="details { display: none }")
    for section in page.locator("[data-figure]:not(.none)").all() if name not in STATES else ():
        found = re.search(r"/figures/(\w+)", section.get_attribute("data-figure") or "")
        pictures[f"figure-{found[1]}" if found else ""] = section.screenshot()
    if name == "front":
        pictures = {"figure-front": pictures["figure-front"]}
    for what, picture in pictures.items():  # with a palette, so that they are small
        image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3)
        image.save(ROOT / f"docs/images/{what}-{scheme}.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(), sys.argv[2:])
