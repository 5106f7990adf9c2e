"""Drawings of beliefs in the plane: in their simplex, in the unit disk, or on the principal axes of the true ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from statewise.analysis.beliefs.least_squares import r2
from statewise.reporting.figures import Drawing, Layer, Points, Text
from statewise.tasks.base import Believed

SHOWN = 4000
"""Maximum number of beliefs in a drawing, evenly spaced in their order."""
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
AROUND = 0.5
"""How far beyond the frame predictions are drawn, as a share of its larger side."""
FEW = 64
"""With at most so many different true beliefs, the mean prediction of each is drawn too, as a larger dot."""


def equal_beliefs(beliefs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Groups of prefixes with equal beliefs (m, C), over which predictions are averaged: the index of the first of each
    group, and (m,) the group of each row. Equal within 1e-7, on a grid whose cells do not meet at simple fractions."""
    rounded = np.floor(beliefs * 1e7 + 0.382)
    _, first, which = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def planes(world: Believed, truth: np.ndarray, weights: np.ndarray) -> list[Plane]:
    """The plane of each factor of `world`, for true beliefs (m, D) about all of them, each row with its weight."""
    ends = np.cumsum(world.widths)
    names = [f"factor {place + 1}, " for place in range(len(ends))] if len(ends) > 1 else [""]
    return [
        Plane(truth, weights, slice(end - width, end), name, simplex=simplex)
        for end, width, name, simplex in zip(ends, world.widths, names, world.simplex_factors)
    ]


def draw_on(on: list[Plane], beliefs: Mapping[str, np.ndarray]) -> list[Drawing]:
    """On each plane the beliefs and predictions (m, D) by title, the true ones first; titles of predictions have the
    R^2 of the plane's factor."""
    (truth, of_truth), *predictions = beliefs.items()
    return [
        drawing
        for plane in on
        for drawing in (
            plane.draw(truth, of_truth, true=True),
            *(plane.draw(f"{title}: R2 {plane.r2(predicted):.3f}", predicted) for title, predicted in predictions),
        )
    ]


class Plane:
    """How the beliefs about one factor are drawn: chosen from the true ones, so that drawings of predictions can be
    laid beside. The factor's coordinates are `columns` of beliefs (m, D)."""

    def __init__(self, truth: np.ndarray, weights: np.ndarray, columns: slice, name: str, *, simplex: bool) -> None:
        truth = truth[:, columns]
        self.truth, self.weights, self.columns, self.name = truth, weights, columns, name
        self.kind = {(True, 3): "simplex", (False, 2): "disk"}.get((simplex, truth.shape[1]), "axes")
        share = weights / weights.sum()
        self.centre = share @ truth
        apart = (truth - self.centre) * np.sqrt(share)[:, None]
        _, spread, axes = np.linalg.svd(apart, full_matrices=False)
        shares = spread**2 / max(float((spread**2).sum()), 1e-300)
        self.shares = [*shares.tolist(), 0.0]
        # An axis has no sign of its own: this one is the same for drawings of other prefixes of the same process.
        towards = np.where(axes @ np.sqrt(1 + np.arange(axes.shape[1])) < 0, -1.0, 1.0)
        self.axes = axes * towards[:, None]
        self.chosen = np.unique(np.linspace(0, len(truth) - 1, min(SHOWN, len(truth))).round().astype(np.int64))
        self.distinct, self.which = equal_beliefs(truth)
        shown = truth if self.kind == "simplex" else (truth - self.centre) @ self.axes[:3].T
        low, high = shown.min(0), shown.max(0)
        scaled = (shown - low) / np.maximum(high - low, 1e-12) if self.kind != "simplex" else shown
        padded = np.pad(scaled, ((0, 0), (0, max(0, 3 - scaled.shape[1]))), constant_values=0.4)[:, :3]
        rgb = (np.clip(padded, 0, 1) * 225).astype(int)
        self.colours = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in rgb.tolist()]

    def place(self, beliefs: np.ndarray) -> np.ndarray:
        """Places (m, 2) of beliefs about the factor."""
        if self.kind == "simplex":
            return beliefs @ CORNERS
        if self.kind == "disk":
            return beliefs
        places = (beliefs - self.centre) @ self.axes[:2].T
        return places if places.shape[1] == 2 else np.pad(places, ((0, 0), (0, 1)))

    def draw(self, title: str, beliefs: np.ndarray, *, true: bool = False, step: int | None = None) -> Drawing:
        """Beliefs (m, D) or predictions of them, in the order of the true ones, coloured as these. What is far outside
        of the frame is left out, and the title says how much: it would make all drawings of the plane small. `true`:
        they are the true ones. `step`: the training step of the model that predicts them."""
        places = self.place(beliefs[:, self.columns])
        shown = self.chosen[self._near(places[self.chosen])]
        points = [Points(places[shown].round(5).tolist(), [self.colours[row] for row in shown], size=0.8)]
        if len(self.distinct) <= FEW:
            mass = np.bincount(self.which, weights=self.weights)
            means = np.stack([np.bincount(self.which, weights=self.weights * axis) / mass for axis in places.T], 1)
            near = self._near(means)
            large = [self.colours[row] for row in self.distinct[near]]
            points.append(Points(means[near].round(5).tolist(), large, size=3.0))
        missing = 1 - len(shown) / len(self.chosen)
        beyond = f", {missing:.0%} far outside" if missing >= 0.005 else ""
        frame = Layer("frame", self._frame(), [""] * len(self._frame()))
        note = "Dots: the belief after each prefix, true or predicted, in the colour of the true one."
        if len(points) > 1:
            note += " Large dots: means over the prefixes of equal true beliefs."
        x_title, y_title = self._axis_titles()
        return Drawing(
            f"{self.name}{title}{beyond}",
            [frame],
            points,
            f"{self.name}beliefs",
            true,
            step,
            x_title,
            y_title,
            self._corners(),
            note,
        )

    def _axis_titles(self) -> tuple[str, str]:
        """Titles of the two axes; empty for a simplex, whose corners have names."""
        if self.kind == "simplex":
            return "", ""
        if self.kind == "disk":
            return "first coordinate of the belief", "second coordinate of the belief"
        first, second = (
            f"axis {axis + 1} of the true beliefs ({self.shares[axis]:.0%} of variance)" for axis in (0, 1)
        )
        return first, second

    def _corners(self) -> list[Text]:
        """Names of the states at the corners of a simplex."""
        if self.kind != "simplex":
            return []
        places = CORNERS + np.array([[0.08, -0.05], [-0.08, -0.05], [0.0, 0.06]])  # above or below, not beside
        return [Text(place, f"state {state}") for state, place in enumerate(places.round(4).tolist(), 1)]

    def _near(self, places: np.ndarray) -> np.ndarray:
        """(m,) bool: which places (m, 2) are in the frame or not far outside of it."""
        corners = np.array(self._frame()).reshape(-1, 2)
        low, high = corners.min(0), corners.max(0)
        room = AROUND * (high - low).max()
        near: np.ndarray = ((places >= low - room) & (places <= high + room)).all(1)
        return near

    def r2(self, beliefs: np.ndarray) -> float:
        """R^2 of predictions (m, D) of the factor's belief."""
        return r2(beliefs[:, self.columns], self.truth, self.weights)

    def _frame(self) -> list[list[list[float]]]:
        if self.kind == "simplex":
            corners = CORNERS
        elif self.kind == "disk":
            turn = np.linspace(0, 2 * np.pi, 73)[:-1]
            corners = np.stack([np.cos(turn), np.sin(turn)], 1)
        else:
            places = self.place(self.truth)
            low, high = places.min(0) - 0.05, places.max(0) + 0.05
            corners = np.array([[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]]])
        return [[one, other] for one, other in zip(corners.tolist(), np.roll(corners, -1, 0).tolist())]
