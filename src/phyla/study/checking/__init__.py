"""Experiments on a training function: `phyla check`."""
