"""Evaluations of checkpoints as jobs: their groups, which of them rest, and what they end with. Pure."""
