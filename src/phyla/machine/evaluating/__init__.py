"""Evaluations of checkpoints as jobs: groups, resting eval tasks and results. Pure."""
