"""Supervision of the worker processes of a run on one machine: their GPUs, time limits and exits."""
