"""Processes that the user started and that take part in a study."""
