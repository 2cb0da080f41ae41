"""Experiments: whole runs on stated problems, with their tables and charts."""
