"""Maintenance of stored studies: recovery, deletion, disk usage, repairs."""
