"""Looking after what is stored: recovery, deleting, disk usage, repairs."""
