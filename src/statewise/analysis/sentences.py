"""Figures as they stand in the verdict of an analysis."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """A share as a percentage: `86%`, `99.6%`, `0.4%`; never 0% or 100% for one that is not."""
    if math.isnan(share):
        return "an undefined share"
    whole = f"{share:.0%}"
    if (whole == "100%" and share != 1) or (whole in ("0%", "-0%") and share != 0):
        if 0 < share < 0.0005:
            return "less than 0.1%"
        return "more than 99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"
    return whole


def explained(r2: float) -> str:
    """The share of a variance that R^2 says is explained; `none` of it from 0 down, where the mean is as good."""
    return "none" if r2 <= 0 else percent(r2)
