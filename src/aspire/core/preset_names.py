"""Presets by name: `auto`, `paper(eta_w=0.1)`, as a command line or a message says them."""

from __future__ import annotations

import re
from collections.abc import Callable

from aspire.arguments import near, shown
from aspire.core.presets import Auto, Paper, Theorem1
from aspire.core.schedules import Preset

PRESETS: dict[str, Callable[..., Preset]] = {"auto": Auto, "paper": Paper, "theorem1": Theorem1}


def preset_of(preset: str | Preset) -> Preset:
    """By name, with numbers of its own in brackets where the defaults do not do."""
    if not isinstance(preset, str):
        if isinstance(preset, type) or not hasattr(preset, "constants"):
            known = ", ".join(PRESETS)
            raise ValueError(f"preset={shown(preset)}: expected one of {known}, or Auto(...)")
        return preset
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", preset.strip())
    if found is None or found[1] not in PRESETS:
        known = ", ".join(PRESETS)
        hint = near(preset, PRESETS)
        raise ValueError(
            f"preset={shown(preset)}: expected one of {known}, or NAME(key=number, ...){hint}"
        )
    try:
        pairs = [part.split("=") for part in (found[2] or "").split(",") if part.strip()]
        return PRESETS[found[1]](**{key.strip(): float(value) for key, value in pairs})
    except (TypeError, ValueError) as error:
        raise ValueError(f"preset={preset!r}: {error}") from None


def name_at_sites(preset: Preset) -> str | None:
    """The preset whose workers do the same as this one's; None: no name says it."""
    for name, make in PRESETS.items():
        usual = make()
        same = (preset.limits.a1, preset.power, preset.checks)
        if type(preset) is type(usual) and same == (usual.limits.a1, usual.power, usual.checks):
            return name
    return None
