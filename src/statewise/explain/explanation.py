"""Figures on what a model has learned of the user's own sequences, as data: `page` draws them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from statewise.data_types import Examples, Ragged
from statewise.decoding import make_decoder
from statewise.decoding.predictor import Predictor
from statewise.evaluation.evaluate import complete
from statewise.evaluation.verdict import Verdict, learning_curve, verdict
from statewise.explain.calibration import (
    ByPrefix,
    Reliability,
    by_prefix,
    reliability,
)
from statewise.explain.cases import Cases, own_sequences
from statewise.explain.process_map import ProcessMap, process_map
from statewise.explain.states import nearest, plane, states_at
from statewise.explain.surprise import Reading, likeliest, read
from statewise.model.model import Model
from statewise.runtime.progress import announced
from statewise.tasks.baselines import nats, predictions
from statewise.tasks.own_files.sequences import Sequences

SAMPLES = 1000
"""Default number of sequences sampled from the model."""
SURPRISING = 10
"""Cases that are shown."""
EXPECTED = 3
"""Events that the model expected instead, at most so many."""
SHOWN_EVENTS = 60
"""Events of a case that are shown, around the one that surprises."""
STATES = 2000
"""Positions whose states are drawn."""
INDEXED, NEAREST = 400, 5
"""Cases of the index, and how many near ones each has."""
MOST_COLUMNS = 30
"""Columns of the user's file by which states can be coloured."""
CATEGORIES = 9
"""Most frequent values of a column that have a colour of their own."""


@dataclass(frozen=True)
class Event:
    """An event of a case."""

    name: str
    nats: float | None
    """Surprise; None: not scored, such as the first."""
    expected_nats: float | None
    """Expected surprise."""


@dataclass(frozen=True)
class SurprisingCase:
    """A case that does not fit what the model has learned."""

    name: str
    events: list[Event]
    """At most `SHOWN_EVENTS`, around the one that surprises most."""
    before: int
    """Events of the case before those."""
    after: int
    """Events of the case after them."""
    place: int
    """Number of the event in `events` that surprises most beyond what was expected."""
    expected: list[tuple[str, float]]
    """What the model expected in its place, with probabilities, the likeliest first."""
    chance: float
    """Probability that the model gave to what happened."""
    nats: float
    """Of the whole case."""
    expected_nats: float
    copies: int
    """Cases with these events among those that were read."""


@dataclass(frozen=True)
class Colouring:
    """A value of each drawn state."""

    name: str
    kind: Literal["categories", "numbers"]
    values: list[float | None]
    """Numbers, or indices into `labels`; None: the state has no value."""
    labels: list[str]
    """Of categories: the most frequent ones, then perhaps `other`."""


@dataclass(frozen=True)
class States:
    """States of a sample of positions."""

    places: list[list[float]]
    """(x, y) on the first two principal components."""
    shares: tuple[float, float]
    """Of the variance, the share of each component."""
    cases: list[int]
    """The number of each state's case among those that were read."""
    events: list[int]
    """How many events of its case it has read."""
    names: list[str]
    """The name of each state's case."""
    colourings: list[Colouring]


@dataclass(frozen=True)
class Index:
    """Cases and those with the most similar final states."""

    names: list[str]
    sequences: list[list[str]]
    """The last `SHOWN_EVENTS` events of each."""
    nearest: list[list[int]]
    """The numbers of the cases near each, the nearest first."""
    distances: list[list[float]]
    """Their Euclidean distances."""


@dataclass(frozen=True)
class Explanation:
    """What a model has learned of the user's own sequences."""

    run: str
    step: int | None
    """Of the checkpoint."""
    file: str
    cases: int
    """Number of held-out cases that were read."""
    events: int
    """Number of their scored events."""
    verdict: Verdict
    map_of: str
    """Which cases the process map shows beside the samples, in words."""
    process_map: ProcessMap
    accuracy: ByPrefix
    """Share of right next events of the model and of baselines, by the number of events before."""
    nats: ByPrefix
    """Their surprise in nats."""
    reliability: Reliability
    surprising: list[SurprisingCase]
    states: States
    index: Index
    notes: list[str]


def explain(model: Model, num: int | None = None, samples: int = SAMPLES, seed: int = 1) -> Explanation:
    """Figures on a model of the user's own sequences, from its held-out cases, the first `num` (None: all), and from
    `samples` sequences that it generates. Each sample begins with the first event of a case, as the data do.

    Raises `LacksCapability` if the task is not `sequences`, and `ValueError` if the data are missing or have changed.
    """
    task = own_sequences(model.task)
    generator = np.random.default_rng(seed)
    with model.asking() as predictor:
        cases = held_out_cases(task, num)
        examples = cases.examples
        reading = read(predictor, examples)
        if not reading.scored.any():
            raise ValueError("no event of the held-out cases is scored: each has only one event")
        made = predictions(task.training(), examples, len(task.vocab), task.end, task.config.end)
        baseline_nats = nats(made, examples)
        curve = learning_curve([] if model.run is None else model.run.metrics())
        found = verdict(reading.nats, reading.scored, baseline_nats, curve)
        of_map, data = cases_of_map(task, examples)
        sampled = sample(task, predictor, data, min(samples, len(data)), seed)
        graph = process_map(data, sampled, task.vocab.symbols, task.end)
        right = {"model": reading.chosen == examples.tokens}
        for name, one in made.items():
            right[name] = np.zeros_like(reading.scored)
            right[name][reading.scored] = one.chosen == examples.tokens[reading.scored]
        every = reading.scored
        return Explanation(
            run="a new model" if model.run is None else str(model.run.folder),
            step=None if model.checkpoint is None else model.checkpoint.step,
            file=task.config.path,
            cases=len(cases),
            events=int(every.sum()),
            verdict=found,
            map_of=of_map,
            process_map=graph,
            accuracy=by_prefix(every, {name: right[name].astype(float) for name in _shown(right)}),
            nats=by_prefix(every, {name: {"model": reading.nats, **baseline_nats}[name] for name in _shown({"model": 0, **baseline_nats})}),
            reliability=reliability(reading.chance[every], right["model"][every]),
            surprising=surprising_cases(task, predictor, cases, reading),
            states=_states(task, predictor, cases, reading, generator),
            index=_index(task, predictor, cases, generator),
            notes=_notes(task, cases, len(sampled)),
        )
