"""A population of torchrun jobs."""
