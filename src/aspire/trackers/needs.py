"""What a tracker needs installed."""

from __future__ import annotations

from importlib.util import find_spec


def need(module: str, name: str, *, extra: str | None) -> None:
    """ImportError where the module is missing; it is not imported before the run starts."""
    if find_spec(module) is None:
        package = module if extra is None else f"'aspire-ease[{extra}]'"
        raise ImportError(f"{name} is not installed: pip install {package}")
