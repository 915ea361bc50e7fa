"""What a measured number was to be (docs/targets.md), and the line that says whether it is."""

from __future__ import annotations

import math


def verdict(name: str, value: float, *, low: float = -math.inf, high: float = math.inf) -> str:
    """`A14, rmse: 0.015, at most 0.04: holds`; bounds count as within, and what is not finite is missed."""
    if low > -math.inf and high < math.inf:
        asked = f"{low:g} to {high:g}"
    else:
        asked = f"at most {high:g}" if high < math.inf else f"at least {low:g}"
    return judged(f"{name}: {value:.4g}, {asked}", low <= value <= high)


def judged(what: str, holds: bool) -> str:
    """What was asked and found, and whether that holds."""
    return f"{what}: {'holds' if holds else 'missed'}"
