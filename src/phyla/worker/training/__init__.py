"""Trials: calling the training function, and committing what it leaves."""
