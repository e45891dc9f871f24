"""The pages of studies and watched runs, read from the store, for all displays."""
