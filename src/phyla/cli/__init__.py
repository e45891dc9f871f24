"""The command line: translates between a person and a study, and decides nothing."""


def main() -> None:
    """Run the command line; the entry point `phyla`."""
    from phyla.cli.app import run_app

    run_app()
