"""Foreign libraries that are optional; each is imported when it is first used."""
