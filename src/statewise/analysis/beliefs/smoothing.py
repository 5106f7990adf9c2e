"""Smoothed curves (Savitzky & Golay 1964), as in the State-Prediction Separation paper."""

from __future__ import annotations

import numpy as np

from statewise.reporting.figures import Curve

FEWEST = 20
"""Curves with fewer points are not smoothed."""


def smoothed(label: str, x: np.ndarray, y: np.ndarray) -> list[Curve]:
    """The smoothed curve of evenly spaced points, followed by the raw one."""
    if len(x) < FEWEST:
        return [Curve(label, x.tolist(), y.tolist())]
    from scipy.signal import savgol_filter

    window = max(5, len(x) // 8) | 1
    trend = savgol_filter(y, window, 2)
    return [Curve(label, x.tolist(), trend.tolist()), Curve(label, x.tolist(), y.tolist(), "raw")]
