"""The command line: translates between a user and a study, and decides nothing."""

import sys

from phyla.system.endings import ending
from phyla.system.garbage import pause_collection


def main() -> None:
    """Run the command line; the entry point `phyla`."""
    with ending():
        try:
            with pause_collection():
                from phyla.cli.app import run_app

            run_app()
        except KeyboardInterrupt:
            # During imports, or while a study file is read.
            sys.stderr.write("interrupted\n")
            sys.exit(130)
