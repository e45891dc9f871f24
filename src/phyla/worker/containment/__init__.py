"""Contain user code, and the processes it starts, within its worker."""
