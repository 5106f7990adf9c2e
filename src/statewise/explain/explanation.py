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
from statewise.explain.calibration import ByPrefix, Reliability, by_prefix, reliability
from statewise.explain.cases import Cases, held_out_cases, is_gap, own_sequences, without_gaps
from statewise.explain.process_map import ProcessMap, process_map
from statewise.explain.states import nearest, plane, states_at
from statewise.explain.surprise import BLOCK, Reading, likeliest, read
from statewise.model.model import Model
from statewise.runtime.progress import announced
from statewise.tasks.baselines import nats, predictions
from statewise.tasks.own_files.sequences import Sequences

SHOWN = ("model", "variable order", "longest match", "bigram")
"""The predictors that are drawn by prefix length, in this order; the unigram, far above, would flatten them."""
SAMPLES = 1000
"""Default number of sequences sampled from the model."""
SURPRISING = 10
"""Cases that are shown."""
EXPECTED = 3
"""Events that the model expected instead, at most so many."""
LEAST_EXPECTED = 0.01
"""Least probability of an event that is named as expected, but for the likeliest."""
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
    generator = np.random.default_rng(seed)
    with model.asking() as predictor:
        task = own_sequences(model.task)
        cases = held_out_cases(task, num)
        examples = cases.examples
        reading = read(predictor, examples)
        if not reading.scored.any():
            raise ValueError("no event of the held-out cases is scored: each has only one event")
        made = predictions(task.training(), examples, len(task.vocab), task.end, task.config.end)
        baseline_nats = nats(made, examples)
        curve = learning_curve([] if model.run is None else model.run.metrics())
        found = verdict(examples, reading.nats, reading.scored, baseline_nats, curve)
        of_map, data = cases_of_map(task, examples)
        sampled = sample(task, predictor, data, samples, seed)
        graph = process_map(without_gaps(task, data), without_gaps(task, sampled), task.vocab.symbols, task.end)
        right = {"model": reading.chosen == examples.tokens}
        for name, one in made.items():
            right[name] = np.zeros_like(reading.scored)
            right[name][reading.scored] = one.chosen == examples.tokens[reading.scored]
        scored = reading.scored
        by_token = {"model": reading.nats, **baseline_nats}
        return Explanation(
            run="a new model" if model.run is None else str(model.run.folder),
            step=None if model.checkpoint is None else model.checkpoint.step,
            file=task.config.path,
            cases=len(cases),
            events=int(scored.sum()),
            verdict=found,
            map_of=of_map,
            process_map=graph,
            accuracy=by_prefix(scored, {name: right[name].astype(float) for name in SHOWN if name in right}),
            nats=by_prefix(scored, {name: by_token[name] for name in SHOWN if name in by_token}),
            reliability=reliability(reading.chance[scored], right["model"][scored]),
            surprising=surprising_cases(task, predictor, cases, reading),
            states=_states(task, predictor, cases, reading, generator),
            index=_index(task, predictor, cases, generator),
            notes=_notes(cases, sampled, graph),
        )


def cases_of_map(task: Sequences, held_out: Examples) -> tuple[str, Ragged]:
    """The cases that the process map shows, and which they are in words: all cases of the file where the held-out ones
    were chosen by their content, since those are no sample of all cases: rare ones are too many among them."""
    rows = Ragged.unpadded(held_out, len(task.vocab))
    if task.config.held_out_path is not None or task.config.split != "sequence":
        return f"the {len(rows):,} held-out cases", rows
    both = task.training(), rows
    every = Ragged(
        np.concatenate([one.tokens for one in both]),
        np.concatenate([one.lengths for one in both]),
        np.concatenate([one.prompt_lengths for one in both]),
    )
    return f"the {len(every):,} cases of the file, training and held-out", every


def sample(task: Sequences, predictor: Predictor, data: Ragged, count: int, seed: int) -> Ragged:
    """Sequences that the model generates, each from the first event, or the prompt, of a case of `data`: of another one
    if there are as many cases as samples."""
    rows = np.sort(np.random.default_rng(seed).choice(len(data), count, replace=count > len(data)))
    begun = data[rows]
    heads = np.maximum(begun.prompt_lengths, 1)
    cut = dataclasses.replace(begun, prompt_lengths=np.minimum(heads, begun.lengths))
    decoder = make_decoder("sample", seed=seed)
    completions = complete(task, predictor, decoder, cut, block=BLOCK)
    made = [np.concatenate([cut.prompt(row), one.tokens]) for row, one in enumerate(completions)]
    return Ragged.of(made, cut.prompt_lengths.tolist(), len(task.vocab))


def surprising_cases(
    task: Sequences, predictor: Predictor, cases: Cases, reading: Reading, most: int = SURPRISING
) -> list[SurprisingCase]:
    """The different cases with the most surprise beyond what was expected, the greatest first."""
    examples, names = cases.examples, task.vocab.symbols
    copies: dict[bytes, list[int]] = {}
    for row in range(len(cases)):
        copies.setdefault(examples.tokens[row, : examples.lengths[row]].tobytes(), []).append(row)
    firsts = np.array([rows[0] for rows in copies.values()])
    counts = dict(zip(firsts.tolist(), map(len, copies.values())))
    excess = reading.excess[firsts]
    shown = []
    for row in firsts[np.argsort(-excess, kind="stable")][:most].tolist():
        beyond = np.where(reading.scored[row], reading.nats[row] - reading.entropy[row], -np.inf)
        column, length = int(beyond.argmax()), int(examples.lengths[row])
        first = max(0, min(column - SHOWN_EVENTS // 2, length - SHOWN_EVENTS))
        last = min(length, first + SHOWN_EVENTS)
        events = [
            Event(
                names[int(examples.tokens[row, at])],
                float(reading.nats[row, at]) if reading.scored[row, at] else None,
                float(reading.entropy[row, at]) if reading.scored[row, at] else None,
            )
            for at in range(first, last)
        ]
        others = [
            (names[token], chance)
            for token, chance in likeliest(predictor, examples, row, column, EXPECTED + 1)
            if token != examples.tokens[row, column]
        ]
        expected = [one for place, one in enumerate(others[:EXPECTED]) if not place or one[1] >= LEAST_EXPECTED]
        shown.append(
            SurprisingCase(
                cases.name(row),
                events,
                first,
                length - last,
                column - first,
                expected,
                float(np.exp(-reading.nats[row, column])),
                float(reading.nats[row].sum()),
                float(reading.entropy[row].sum()),
                counts[row],
            )
        )
    return shown


def _states(
    task: Sequences, predictor: Predictor, cases: Cases, reading: Reading, generator: np.random.Generator
) -> States:
    """A sample of the positions after events that are not the last token of their case."""
    examples = cases.examples
    inner = np.arange(examples.tokens.shape[1]) < examples.lengths[:, None] - 1
    inner &= ~is_gap(task, examples.tokens)
    rows, columns = np.nonzero(inner)
    chosen = np.sort(generator.permutation(len(rows))[:STATES])
    rows, columns = rows[chosen], columns[chosen]
    found = plane(states_at(predictor, examples, np.stack([rows, columns], axis=1)))
    names = task.vocab.symbols
    events = cases.events[rows, columns]
    so_far = events - cases.log.offsets[rows] + 1
    after = reading.scored[rows, columns + 1]
    surprise = [float(value) if there else None for value, there in zip(reading.nats[rows, columns + 1], after)]
    colourings = [
        categories("next event", [names[token] for token in examples.tokens[rows, columns + 1].tolist()]),
        categories("last event", [names[token] for token in examples.tokens[rows, columns].tolist()]),
        Colouring("events so far", "numbers", so_far.astype(float).tolist(), []),
        Colouring("surprise of the next event", "numbers", surprise, []),
    ]
    colourings += [coloured(name, texts) for name, texts in columns_of(cases, events).items()]
    return States(
        np.round(found.places, 4).tolist(),
        found.shares,
        rows.tolist(),
        so_far.tolist(),
        [cases.name(row) for row in rows.tolist()],
        colourings,
    )


def columns_of(cases: Cases, events: np.ndarray) -> dict[str, list[str]]:
    """The first `MOST_COLUMNS` columns of the file at events of its log, (m,) int64, read in one pass."""
    table, records = cases.log.table, cases.log.rows[events]
    names = table.names[:MOST_COLUMNS]
    if not names:
        return {}
    wanted: dict[int, list[str]] = {number: [] for number in records.tolist()}
    last = max(wanted)
    for number, record in enumerate(announced(table.records(), "rows of the file", last + 1)):
        if number in wanted:
            wanted[number] = record
        if number >= last:
            break
    return {name: [wanted[record][place] for record in records.tolist()] for place, name in enumerate(names)}


def coloured(name: str, texts: Sequence[str]) -> Colouring:
    """A column of the user's file: as numbers if all values that are not empty are finite numbers and there are more
    than `CATEGORIES` different ones."""
    numbers: list[float | None] = []
    for text in texts:
        try:
            number = float(text) if text.strip() else None
        except ValueError:
            return categories(name, texts)
        if number is not None and not np.isfinite(number):
            return categories(name, texts)
        numbers.append(number)
    if len({number for number in numbers if number is not None}) <= CATEGORIES:
        return categories(name, texts)
    return Colouring(name, "numbers", numbers, [])


def categories(name: str, texts: Sequence[str]) -> Colouring:
    """Texts by value, the most frequent first; an empty one is no value."""
    counts: dict[str, int] = {}
    for text in texts:
        if text:
            counts[text] = counts.get(text, 0) + 1
    ranked = sorted(counts, key=lambda text: -counts[text])
    labels = ranked if len(ranked) <= CATEGORIES + 1 else ranked[:CATEGORIES]
    number = {label: float(place) for place, label in enumerate(labels)}
    rest = float(len(labels))
    more = [f"{len(ranked) - len(labels):,} others"] if len(labels) < len(ranked) else []
    return Colouring(name, "categories", [number.get(text, rest) if text else None for text in texts], labels + more)


def _index(task: Sequences, predictor: Predictor, cases: Cases, generator: np.random.Generator) -> Index:
    """A sample of cases and the nearest of them to each, by the state after the last event."""
    examples = cases.examples
    rows = np.sort(generator.permutation(len(cases))[:INDEXED])
    ended = examples.tokens[rows, examples.lengths[rows] - 1] == task.end
    columns = np.maximum(examples.lengths[rows] - 1 - ended, 0)
    states = states_at(predictor, examples, np.stack([rows, columns], axis=1))
    order, distances = nearest(states, NEAREST)
    sequences = [
        [task.vocab.symbols[token] for token in examples.tokens[row, max(0, end - SHOWN_EVENTS) : end].tolist()]
        for row, end in zip(rows.tolist(), (columns + 1).tolist())
    ]
    return Index([cases.name(row) for row in rows.tolist()], sequences, order.tolist(), np.round(distances, 4).tolist())


def _notes(cases: Cases, sampled: Ragged, graph: ProcessMap) -> list[str]:
    """What the reader of the page must know of how it was made."""
    notes = []
    if len(cases) > INDEXED:
        notes.append(f"The index of similar cases holds {INDEXED:,} of {len(cases):,} cases, drawn at random.")
    if len(cases.log.table.names) > MOST_COLUMNS:
        notes.append(
            f"States can be coloured by the first {MOST_COLUMNS} of {len(cases.log.table.names):,} columns of the file."
        )
    if not graph.compared:
        notes.append("The process map compares no edge: too few cases have the same event.")
    if cut := int(cases.log.unfinished.sum()):
        are = "is" if cut == 1 else "are"
        notes.append(f"{cut:,} of {len(cases):,} cases {are} cut off at the end of the log, whose end is not scored.")
    return notes


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The figures as JSON values, without NaN."""
    return _plain(dataclasses.asdict(explanation))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value
