"""Machines of one owner: a carrier over Ray."""
