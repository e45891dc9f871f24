"""Evaluations of checkpoints as jobs: which there are, what is left of them, and what they end with. Pure."""
