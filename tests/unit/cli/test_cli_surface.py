"""The command line stays small."""

import typer
import typer.main

from command_line import Phyla
from phyla.cli.app import PANELS, app

COMMANDS = 25
OPTIONS = 143


def test_there_are_few_commands_and_options() -> None:
    group = typer.main.get_command(app)
    commands = group.commands  # type: ignore[attr-defined]
    context = typer.Context(group)
    options = [
        (name, option)
        for name, command in {"": group, **commands}.items()
        for parameter in command.get_params(context)
        for option in parameter.opts
        if option.startswith("--") and option != "--help"
    ]
    assert len(commands) <= COMMANDS
    assert len(options) <= OPTIONS


def test_the_help_has_every_command_in_its_group(cli: Phyla) -> None:
    told = cli("--help")
    assert [told.index(f" {panel} ─") for panel in PANELS] == sorted(told.index(f" {panel} ─") for panel in PANELS)
    assert {command.__name__ for commands in PANELS.values() for command in commands} == set(
        typer.main.get_command(app).commands  # type: ignore[attr-defined]
    )


def test_commands_for_maintenance_come_after_those_for_training_and_looking() -> None:
    first, *_, last = ([command.__name__ for command in commands] for commands in PANELS.values())
    assert first[0] == "run"
    assert {"gc", "delete", "doctor", "token", "export"} <= set(last)


def test_places_may_be_said_before_and_after_the_command(cli: Phyla, tmp_path: object) -> None:
    before = cli("--home", tmp_path, "status")
    assert str(tmp_path) in before
    assert cli("status", "--home", tmp_path) == cli("status", f"--home={tmp_path}") == before
    assert "requires an argument" in cli("status", "--home", code=2)


def test_a_command_that_does_not_exist_is_refused(cli: Phyla) -> None:
    assert "No such command" in cli("retrain", code=2)
