"""Runtimes carry tasks and events between `work` and `absorb`; they decide nothing."""
