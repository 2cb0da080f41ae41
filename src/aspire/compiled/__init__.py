"""The package's C: what it is made of, and how it is compiled and called."""
