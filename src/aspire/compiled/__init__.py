"""The package's C: what it is made of, and how it is found and called."""
