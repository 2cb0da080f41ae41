"""Methods: each is one file and one value with (init, work, absorb, model)."""

from aspire.methods.aspire_ease import aspire
from aspire.methods.central import central

__all__ = ["aspire", "central"]
