"""Training again what a study did: replicates, replays, continuations."""
