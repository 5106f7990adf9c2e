"""Smoothed curves, as the State-Prediction Separation paper draws them (Savitzky & Golay 1964)."""

from __future__ import annotations

import numpy as np

from statewise.analysis.base import Curve

FEWEST = 20
"""Points below which a curve is drawn as it is."""


def smoothed(label: str, x: np.ndarray, y: np.ndarray) -> list[Curve]:
    """The trend of evenly spaced points, with the points themselves drawn faintly under it."""
    if len(x) < FEWEST:
        return [Curve(label, x.tolist(), y.tolist())]
    from scipy.signal import savgol_filter

    window = max(5, len(x) // 8) | 1
    trend = savgol_filter(y, window, 2)
    return [Curve(label, x.tolist(), trend.tolist()), Curve(label, x.tolist(), y.tolist(), "raw")]
