"""Programs that train or evaluate instead of a function: their words, their output."""
