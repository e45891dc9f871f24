"""Opening a study and running it to its end."""
