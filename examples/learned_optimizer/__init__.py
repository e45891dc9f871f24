"""A population of meta-trainers of a learned optimizer, selected by a suite of inner problems."""
