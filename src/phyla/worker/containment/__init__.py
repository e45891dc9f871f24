"""Keeping user code, and what it starts, within its worker."""
