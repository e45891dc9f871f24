"""Eval tasks: running them on a checkpoint, and aggregating their results."""
