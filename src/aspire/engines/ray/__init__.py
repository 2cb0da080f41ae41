"""Machines of one owner: a carrier over Ray."""

from aspire.engines.ray.engine import Ray

__all__ = ["Ray"]
