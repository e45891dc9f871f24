"""Evaluating what another job, or another study, writes."""
