"""The stored results of a study, read without its training code."""
