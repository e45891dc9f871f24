"""Study files and suite files, in Python and TOML."""
