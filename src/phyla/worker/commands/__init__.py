"""Programs that train or evaluate instead of a function: arguments and output."""
