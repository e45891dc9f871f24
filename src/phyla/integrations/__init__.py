"""Optional foreign libraries, each imported at first use."""
