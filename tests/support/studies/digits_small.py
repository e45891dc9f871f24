"""The digits study, with less to train."""

from pathlib import Path

STUDY = Path(__file__).parents[3] / "examples/digits/digits.py"
STEPS = 20


def small(*, members: int, trials: int) -> str:
    """Return the study's file, unchanged but for its budget."""
    text = STUDY.read_text()
    usual = '"population_size": 16, "steps_per_trial": 100, "total_steps": 3000'
    assert text.count(usual) == 1
    return text.replace(
        usual, f'"population_size": {members}, "steps_per_trial": {STEPS}, "total_steps": {trials * STEPS}'
    )
