"""`python -m phyla.cli` is `phyla`."""

from phyla.cli import main

if __name__ == "__main__":
    main()
