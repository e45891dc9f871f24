"""The command line: translates between a person and a study, and decides nothing."""

import sys

from phyla.system.endings import ending


def main() -> None:
    """Run the command line; the entry point `phyla`."""
    with ending():
        try:
            from phyla.cli.app import run_app

            run_app()
        except KeyboardInterrupt:
            # While modules were imported, or a study file was read.
            sys.stderr.write("interrupted\n")
            sys.exit(130)
