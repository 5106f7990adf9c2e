"""The map that a model's rides imply (Vafa et al. 2024; NextLat, figure 2), with its picture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from statewise.analysis.base import Analysis, Curve, Drawing, Findings, Layer, Panel, Subject
from statewise.analysis.reconstruction import Reconstruction, Ride, Street, reconstruct, rides_of
from statewise.decoding.sample import Sample, SampleConfig
from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap
from statewise.tasks.manhattan.task import Manhattan
from statewise.types import Examples

ROWS = 512
"""Rides decoded at a time."""


@dataclass(frozen=True)
class MapSettings:
    """How a map is made of rides."""

    degree: int | None = None
    """The most streets that may leave a crossing; null: 4, or as many as leave any crossing of the true map."""
    radius: float = 6.5
    """How far a street that the true map does not have may lead, in lengths of a street (their median). Half a mile of
    Manhattan, as the authors have it, is about 6.5; where places are not known, moves are counted."""

    def __post_init__(self) -> None:
        if self.degree is not None and self.degree < 1:
            raise ValueError(f"degree must be at least 1, not {self.degree}")
        if not self.radius > 0:
            raise ValueError(f"radius must be positive, not {self.radius}")

    def reconstruct(self, streets: StreetMap, rides: list[Ride]) -> Reconstruction:
        """The map that rides imply."""
        degree = self.degree or max(4, int((streets.neighbour >= 0).sum(axis=1).max()))
        return reconstruct(streets, rides, degree=degree, radius=self.radius * streets.street_length)


@dataclass(frozen=True)
class MapConfig(MapSettings):
    """Options of `statewise analyze RUN map`."""

    sequences: int = 1000
    """Rides drawn from the model for a map, on the pairs of held-out rides, in turns."""
    trials: int = 1
    """Maps, each of rides of its own. A few wrong rides more or fewer change a map much."""
    temperature: float = 1.0
    """Of the draws."""
    seed: int = 1
    """Of the draws."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sequences", "trials"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


class MapReconstruction(Analysis):
    """Streets that rides drawn from the model need: true ones, and new ones."""

    Config = MapConfig

    def __init__(self, config: MapConfig) -> None:
        self.config = config

    def analyze(self, subject: Subject) -> Findings:
        """See `findings`. With several trials the metrics are means, those of `main` with the standard error of the
        mean; what is drawn and listed is the first map."""
        config, task = self.config, subject.task
        if not isinstance(task, Manhattan):
            raise ValueError("a map can be made of rides alone: of the tasks, manhattan has them")
        pairs = np.resize(task.held_out().tokens[:, :2], (config.trials, config.sequences, 2))
        drawn = (self._draw(subject, task, prompts, trial) for trial, prompts in enumerate(pairs))
        first = findings(task, next(drawn), config)
        found = [first.metrics, *(_map(task, rides, config).metrics for rides in drawn)]
        means = {name: float(np.mean([of_one[name] for of_one in found])) for name in first.metrics}
        errors = {
            f"{name}_standard_error": float(np.std([of_one[name] for of_one in found], ddof=1) / len(found) ** 0.5)
            for name in first.main
            if len(found) > 1
        }
        return replace(first, metrics={**means, **errors})

    def _draw(self, subject: Subject, task: Manhattan, prompts: np.ndarray, trial: int) -> Examples:
        """A ride for each of `prompts`, (n, 2)."""
        config = self.config
        rows = []
        for start in range(0, len(prompts), ROWS):
            (seed,) = np.random.SeedSequence([config.seed, trial, start]).generate_state(1)
            decoder = Sample(SampleConfig(temperature=config.temperature, seed=int(seed)))
            part = prompts[start : start + ROWS]
            found = decoder.decode(subject.model.predictor, part, limit=task.longest - 2, end=task.end)
            rows += [np.concatenate([prompt, completion.tokens]) for prompt, completion in zip(part, found)]
        return Examples.of(rows, [2] * len(rows))


class _Map(NamedTuple):
    rides: list[Ride]
    made: Reconstruction
    metrics: dict[str, float]


def _map(task: Manhattan, sequences: Examples, settings: MapSettings) -> _Map:
    rides, unreadable = rides_of(task.streets, sequences.tokens, sequences.lengths)
    made = settings.reconstruct(task.streets, rides)
    metrics = {
        "new_streets": len(made.new),
        "true_streets": len(made.true),
        "unused_streets": len(made.unused),
        "failed_rides": made.failed + unreadable,
        "unreadable_rides": unreadable,
        "rides": len(sequences),
        "valid_rides": float((task.check(sequences).verdicts == 0).mean()),
    }
    return _Map(rides, made, metrics)


def findings(task: Manhattan, sequences: Examples, settings: MapSettings) -> Findings:
    """The map that sequences imply. Metrics: `new_streets`, `true_streets`, `unused_streets`, `failed_rides`, of which
    `unreadable_rides` are no rides at all, and `valid_rides` (a share); how streets grow with the rides as curves."""
    streets = task.streets
    rides, made, metrics = _map(task, sequences, settings)
    unreadable = int(metrics["unreadable_rides"])

    def named(listed: list[Street]) -> list[list[str]]:
        return [[streets.names[begin], HEADINGS[way], streets.names[end]] for begin, way, end in listed]

    notes = []
    if streets.places is None:
        notes.append("the map does not say where its crossings lie: new streets lead at most --radius moves far, and "
                     "there is no picture")  # fmt: skip
    details = {"new": named(made.new), "true": named(made.true), "unused": named(made.unused)}
    title = f"{len(made.true):,} true and {len(made.new):,} new streets, by {len(sequences):,} rides"
    title += f", {unreadable:,} of them unreadable" if unreadable else ""
    main = ["new_streets", "true_streets", "failed_rides", "valid_rides"]
    return Findings(metrics, [_growth(streets, rides, settings)], details, notes, draw(streets, made, title), main)


def _growth(streets: StreetMap, rides: list[Ride], settings: MapSettings) -> Panel:
    """How the counts grow with the rides: maps of the first of them."""
    counts = sorted({max(1, round(len(rides) * share)) for share in (0.1, 0.25, 0.5, 1)}) if rides else []
    maps = [settings.reconstruct(streets, rides[:count]) for count in counts]
    x = [float(count) for count in counts]
    curves = [Curve(name, x, [float(len(getattr(made, name))) for made in maps]) for name in ("true", "new", "unused")]
    return Panel("rides", "streets", curves)


def draw(streets: StreetMap, made: Reconstruction, title: str) -> list[Drawing]:
    """The picture: streets of the true map that are in use, and new ones, which stand out. None without places."""
    if streets.places is None:
        return []
    layers = [
        _layer(streets, "true streets", made.true, stands_out=False),
        _layer(streets, "new streets", made.new, stands_out=True),
    ]
    return [Drawing(title, layers)]


def _layer(streets: StreetMap, label: str, listed: list[Street], *, stands_out: bool) -> Layer:
    assert streets.places is not None
    places = streets.places.round(3).tolist()
    lines = [[places[street.begin], places[street.end]] for street in listed]
    names = [f"{streets.names[begin]} {HEADINGS[heading]} to {streets.names[end]}" for begin, heading, end in listed]
    return Layer(label, lines, names, stands_out)
