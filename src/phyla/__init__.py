"""phyla: population based training and continuous evaluation of checkpoints."""
