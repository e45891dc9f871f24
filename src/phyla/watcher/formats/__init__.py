"""The checkpoint formats that are built in, one a file, each an entry point in the group `phyla.formats`."""
