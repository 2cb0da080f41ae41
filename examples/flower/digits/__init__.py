"""Scanned digits at three sites, one of which mounted its scanner sideways."""
