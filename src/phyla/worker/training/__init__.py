"""Trials: call the training function and commit its checkpoint."""
