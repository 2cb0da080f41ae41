"""Engines carry tasks and events between the master and sites in other processes."""
