"""Pictures of the dashboard and its figures, taken by scripts/images. Arguments: a home to reuse, then pages."""

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import phyla
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
}
"""Pages of the dashboard; of members and trials, that of the best."""
DRAWN = "every(one => one.matches('.none, :has(.js-plotly-plot)'))"


def main(home: str, names: Sequence[str]) -> None:
    """Train what is shown, unless it is there, and take the pictures while one more study runs."""
    trade_off(home)
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
            for scheme in ("light", "dark"):
                size: Any = {"width": 920, "height": 860}
                page = browser.new_page(viewport=size, color_scheme=scheme, bypass_csp=True)
                for name in names or PAGES:
                    take(page, address + PAGES[name].format(best), name, scheme)
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


def take(page: Page, address: str, name: str, scheme: str) -> None:
    """Save a page as far as a screen shows it, and each of its figures; of the front only that figure."""
    page.goto(address)
    page.wait_for_function(f"[...document.querySelectorAll('[data-figure]')].{DRAWN}")
    height: Any = page.evaluate(
        "Math.min(innerHeight, document.querySelector('footer').getBoundingClientRect().bottom)"
    )
    pictures = {f"dashboard-{name}": page.screenshot(clip={"x": 0, "y": 0, "width": 920, "height": height + 16})}
    page.add_style_tag(content="details { display: none }")
    for section in page.locator("[data-figure]:not(.none)").all():
        found = re.search(r"/figures/(\w+)", section.get_attribute("data-figure") or "")
        pictures[f"figure-{found[1]}" if found else ""] = section.screenshot()
    if name == "front":
        pictures = {"figure-front": pictures["figure-front"]}
    for what, picture in pictures.items():  # with few colours, so that they are small
        image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(128)
        image.save(ROOT / f"docs/images/{what}-{scheme}.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(), sys.argv[2:])
