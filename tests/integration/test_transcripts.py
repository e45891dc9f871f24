"""What the command line prints, word for word; `scripts/transcripts` writes it anew."""

import pytest

from phyla.cli.app import PANELS
from scenarios import SCENARIOS
from transcripts import FOLDER, transcript


@pytest.mark.parametrize("name", SCENARIOS)
def test_commands_print_what_the_transcript_has(name: str) -> None:
    assert transcript(SCENARIOS[name]) == (FOLDER / f"{name}.txt").read_text(), f"see: scripts/transcripts {name}"


def test_each_command_has_a_transcript_and_each_transcript_a_scenario() -> None:
    entered = "\n".join(SCENARIOS.values())
    commands = [function.__name__ for panel in PANELS.values() for function in panel]
    assert [name for name in commands if f"phyla {name}" not in entered] == []
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SCENARIOS)
