"""The street map implied by a model's rides (Vafa et al. 2024; NextLat, figure 2), with a drawing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.analysis.world_models.reconstruction import Reconstruction, Ride, Street, reconstruct, rides_of
from statewise.data_types import Examples
from statewise.decoding.base import Request
from statewise.decoding.predictor import Predictor
from statewise.decoding.sample import Sample, SampleConfig
from statewise.reporting.figures import Curve, Drawing, Layer, Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import LacksCapability, percent
from statewise.runtime.progress import announced
from statewise.tasks.base import Task
from statewise.tasks.manhattan.street_map import HEADINGS, StreetMap
from statewise.tasks.manhattan.task import Manhattan

ROWS = 512
"""Rides decoded at a time."""


@dataclass(frozen=True)
class MapSettings:
    """How a map is reconstructed from rides."""

    degree: int | None = None
    """Maximum number of streets that leave a crossing; null: that of the true map, but at least 4."""
    radius: float = 6.5
    """Maximum length of a new street, in median street lengths. The authors' half a mile in Manhattan is about 6.5; if
    the map has no coordinates, the distance is counted in moves."""

    def __post_init__(self) -> None:
        bounded(self, "degree", at_least=1)
        bounded(self, "radius", above=0)

    def reconstruct(self, streets: StreetMap, rides: list[Ride]) -> Reconstruction:
        """The map implied by rides."""
        degree = self.degree or max(4, int((streets.neighbour >= 0).sum(axis=1).max()))
        return reconstruct(streets, rides, degree=degree, radius=self.radius * streets.street_length)


@dataclass(frozen=True)
class MapConfig(MapSettings):
    """Options of `statewise analyze RUN map`."""

    sequences: int = 1000
    """Rides sampled from the model per map, cycling through the origins and destinations of held-out rides."""
    trials: int = 1
    """Number of maps, each from its own rides: a few wrong rides change a map considerably."""
    temperature: float = 1.0
    """Sampling temperature."""
    seed: int = 1
    """Seed of the samples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        bounded(self, "sequences", "trials", at_least=1, at_most=10**6)
        bounded(self, "temperature", above=0)
        bounded(self, "seed", at_least=0)


class MapReconstruction(Analysis):
    """True and new streets that rides sampled from the model need."""

    Config = MapConfig
    config: MapConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        _rides(task)

    def analyze(self, subject: Subject) -> Findings:
        """See `findings`. With several trials the metrics are means, those in `main` with standard errors; drawing and
        details show the first map."""
        config, task = self.config, _rides(subject.task)
        pairs = np.resize(task.held_out().tokens[:, :2], (config.trials, config.sequences, 2))
        drawn = (self._draw(subject, task, prompts, trial) for trial, prompts in enumerate(pairs))
        first = findings(task, next(drawn), config)
        by_map = [first.metrics, *(_map(task, rides, config).metrics for rides in drawn)]
        means = {name: float(np.mean([of_one[name] for of_one in by_map])) for name in first.metrics}
        if len(by_map) == 1:
            means = first.metrics  # counts stay whole numbers
        errors = {
            f"{name}_standard_error": float(np.std([of_one[name] for of_one in by_map], ddof=1) / len(by_map) ** 0.5)
            for name in first.main
            if len(by_map) > 1
        }
        return replace(first, metrics={**means, **errors}, verdict=_verdict(means, len(by_map)))

    def _draw(self, subject: Subject, task: Manhattan, prompts: np.ndarray, trial: int) -> Examples:
        """A ride for each of `prompts`, (n, 2)."""
        config = self.config
        rows = []
        (seed,) = np.random.SeedSequence([config.seed, trial]).generate_state(1)
        decoder = Sample(SampleConfig(temperature=config.temperature, seed=int(seed)))
        for start in announced(range(0, len(prompts), ROWS), "batches of rides", -(-len(prompts) // ROWS)):
            part = prompts[start : start + ROWS]
            request = Request(part, task.longest - 2, task.end, rows=range(start, start + len(part)))
            completions = decoder.decode(subject.snapshot.predictor, request)
            rows += [np.concatenate([prompt, completion.tokens]) for prompt, completion in zip(part, completions)]
        return Examples.of(rows, [2] * len(rows))


class _Map(NamedTuple):
    rides: list[Ride]
    made: Reconstruction
    metrics: dict[str, float]


def _map(task: Manhattan, sequences: Examples, settings: MapSettings) -> _Map:
    rides, endless, unreadable = rides_of(task.streets, sequences.tokens, sequences.lengths)
    made = settings.reconstruct(task.streets, rides)
    metrics = {
        "new_streets": len(made.new),
        "true_streets": len(made.true),
        "unused_streets": len(made.unused),
        "failed_rides": made.failed + unreadable,
        "unreadable_rides": unreadable,
        "endless_rides": endless,
        "rides": len(sequences),
        "valid_rides": float((task.check(sequences).verdicts == 0).mean()),
    }
    return _Map(rides, made, metrics)


def findings(task: Manhattan, sequences: Examples, settings: MapSettings) -> Findings:
    """The map implied by sequences. Metrics: `new_streets`, `true_streets`, `unused_streets`; `failed_rides`, including
    `unreadable_rides`, which are not rides at all; `endless_rides`, which have no `end` and are left out; `valid_rides`
    (a share of all). Curves: numbers of streets over the number of rides."""
    streets = task.streets
    rides, made, metrics = _map(task, sequences, settings)
    endless, unreadable = int(metrics["endless_rides"]), int(metrics["unreadable_rides"])

    def named(listed: list[Street]) -> list[list[str]]:
        return [[streets.names[begin], HEADINGS[way], streets.names[end]] for begin, way, end in listed]

    notes = []
    if streets.coordinates is None:
        notes.append("the map has no coordinates: new streets span at most `radius` moves, and there is no drawing")
    if not rides:
        notes.append("no ride is readable, so there are no plots")
    if endless:
        notes.append("rides without an end (endless_rides) are left out of the map")
    details = {"new": named(made.new), "true": named(made.true), "unused": named(made.unused)}
    title = f"{len(made.true):,} true and {len(made.new):,} new streets, by {len(sequences) - endless:,} rides"
    title += f", {unreadable:,} of them unreadable" if unreadable else ""
    main = ["new_streets", "true_streets", "failed_rides", "endless_rides", "valid_rides"]
    panels, drawings = ([_growth(streets, rides, settings)], draw(streets, made, title)) if rides else ([], [])
    return Findings(metrics, panels, details, notes, drawings, main, verdict=_verdict(metrics, 1))


def _verdict(metrics: Mapping[str, float], maps: int) -> str:
    """One sentence on one map, or on means over several."""
    rides, readable = metrics["rides"], metrics["rides"] - metrics["unreadable_rides"] - metrics["endless_rides"]
    if not readable:
        return f"No map can be drawn: none of {rides:,.0f} rides is readable and ends."
    mean = "" if maps == 1 else f" (means over {maps:,} maps)"
    return (
        f"The map of {rides:,.0f} rides needs {metrics['new_streets']:,.4g} streets that do not exist beside "
        f"{metrics['true_streets']:,.4g} that do{mean}; {percent(metrics['valid_rides'])} of the rides are valid."
    )


def _growth(streets: StreetMap, rides: list[Ride], settings: MapSettings) -> Panel:
    """Numbers of streets in maps from the first 10%, 25%, 50% and 100% of the rides."""
    counts = sorted({max(1, round(len(rides) * share)) for share in (0.1, 0.25, 0.5, 1)})
    maps = [settings.reconstruct(streets, rides[:count]) for count in counts]
    x = [float(count) for count in counts]
    curves = [Curve(name, x, [float(len(getattr(made, name))) for made in maps]) for name in ("true", "new", "unused")]
    return Panel("rides", "streets", curves)


def draw(streets: StreetMap, made: Reconstruction, title: str) -> list[Drawing]:
    """The drawing: true streets in use, and new ones highlighted. Empty if the map has no coordinates."""
    if streets.coordinates is None:
        return []
    layers = [
        _layer(streets, "true streets", made.true, stands_out=False),
        _layer(streets, "new streets", made.new, stands_out=True),
    ]
    return [Drawing(title, layers)]


def _layer(streets: StreetMap, label: str, listed: list[Street], *, stands_out: bool) -> Layer:
    assert streets.coordinates is not None
    coordinates = streets.coordinates.round(3).tolist()
    lines = [[coordinates[street.begin], coordinates[street.end]] for street in listed]
    names = [f"{streets.names[begin]} {HEADINGS[heading]} to {streets.names[end]}" for begin, heading, end in listed]
    return Layer(label, lines, names, stands_out)


def _rides(task: Task) -> Manhattan:
    """The task, if it is one of taxi rides. Raises `LacksCapability` if not."""
    if not isinstance(task, Manhattan):
        raise LacksCapability("a map needs a task of taxi rides", Manhattan)
    return task
