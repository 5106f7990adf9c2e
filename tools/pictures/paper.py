"""Draws docs/paper/*.png from docs/paper/measured.json, and adjusts the comparisons of the table of results by Holm.

python tools/pictures/paper.py            # the pictures
python tools/pictures/paper.py --holm     # docs/results/comparisons.md, to standard output
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

PAPER = Path(__file__).parents[2] / "docs" / "paper"


def moments(values: Any) -> tuple[float, float, int]:
    """Mean, standard deviation and number of runs, of values by seed or of `{"of": [mean, half the interval, n]}`."""
    if isinstance(values, dict):
        middle, half, count = values["of"]
        return middle, half * count**0.5 / float(stats.t.ppf(0.975, count - 1)), count
    return float(np.mean(values)), float(np.std(values, ddof=1)), len(values)


def p_value(one: Any, other: Any) -> float:
    """Welch's two-sided t-test, or Fisher's exact test of `{"solved": [count, runs]}`."""
    if isinstance(one, dict) and "solved" in one:
        table = [[count, runs - count] for count, runs in (one["solved"], other["solved"])]
        return float(stats.fisher_exact(table).pvalue)
    (a, of_a, n), (b, of_b, m) = moments(one), moments(other)
    return float(stats.ttest_ind_from_stats(a, of_a, n, b, of_b, m, equal_var=False).pvalue)


def holm(p_values: Sequence[float], more: int = 0) -> list[float]:
    """The p values adjusted for their number (Holm 1979), and for `more` comparisons that are larger than all."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(np.argsort(p_values)):
        highest = max(highest, min(1.0, (len(p_values) + more - rank) * p_values[at]))
        adjusted[at] = highest
    return adjusted


def shown(p: float) -> str:
    """A p value as the pages write it."""
    return "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 1 else "1"


def comparisons(families: Sequence[dict[str, Any]]) -> str:
    """The table of all families as Markdown."""
    lines = ["| rows | comparison | p | by Holm |", "| --- | --- | ---: | ---: |"]
    for family in families:
        pairs = {
            name: (value, family["against"]) if "against" in family else value for name, value in family["pairs"].items()
        }
        p_values = [p_value(*pair) for pair in pairs.values()]
        by_holm = holm(p_values, family.get("unrecorded", 0))
        page = family["page"]
        for place, (name, p, adjusted) in enumerate(zip(pairs, p_values, by_holm)):
            what = f"[{family['what']}]({page}): {name}" if place == 0 else name
            told = f"**{shown(adjusted)}**" if adjusted < 0.05 else shown(adjusted)
            lines.append(f"| {family['rows'] if place == 0 else ''} | {what} | {shown(p)} | {told} |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> None:
    """Draws the pictures, or prints the table."""
    measured = json.loads((PAPER / "measured.json").read_text(encoding="utf-8"))
    if "--holm" in words:
        sys.stdout.write(comparisons(measured["families"]) + "\n")
        return
    draw(measured["pictures"])


if __name__ == "__main__":
    main(sys.argv[1:])
