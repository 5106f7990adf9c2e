"""The exact belief in activations of any model, given as arrays: the fit and the controls of belief-geometry.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from statewise.analysis.beliefs.controls import (
    CONCAT,
    FOLDS,
    STATE,
    Known,
    by_length,
    controls,
    crowded,
    label,
    measured,
    verdict,
)
from statewise.analysis.beliefs.least_squares import CUTOFF
from statewise.beliefs.named import named
from statewise.beliefs.pomdp import Acted
from statewise.beliefs.process import Process
from statewise.data_types import Examples
from statewise.reporting.tables import text_table
from statewise.runtime.messages import short
from statewise.tasks.base import Prefixes

MOST_NUMBERS = 2**28
"""Maximum number of values of all activations together, and of beliefs."""
ROUNDING = 0.02
"""States of equal prefixes that differ by more than this share of the states' spread are no rounding errors."""

Weighting = Literal["row", "probability"]


@dataclass(frozen=True)
class Probed:
    """How well an affine map finds the exact belief in activations."""

    metrics: dict[str, float]
    """As of belief-geometry: `r2`, `r2_held_out`, `mse` and `distance` of the last layer, `r2_NAME` of each named one,
    `r2_concat` of all together; the controls `r2_untrained`, `r2_shuffled`, `r2_history_1`, ..., `r2_history_all`,
    `r2_next_token`."""
    by_length: dict[int, float]
    """R^2 of the last layer within the prefixes of each number of tokens."""
    prefixes: int
    """Number of different prefixes measured."""
    longest: int
    """Tokens of the longest of them."""
    warnings: list[str]
    """What makes the figures doubtful."""
    notes: list[str]
    """What was left out."""
    verdict: str
    """One sentence."""

    def __str__(self) -> str:
        """The tables, warnings, notes and verdict as text."""
        rows = [[name, f"{value:.4f}"] for name, value in self.metrics.items()]
        lengths = [[f"{length:,}", f"{value:.4f}"] for length, value in self.by_length.items() if value == value]
        return "\n\n".join(
            [
                text_table([f"{self.prefixes:,} prefixes", ""], rows),
                text_table(["tokens read", "r2"], lengths, left=[]),
                *(f"warning: {one}" for one in self.warnings),
                *self.notes,
                self.verdict,
            ]
        )


def probe_beliefs(
    activations: np.ndarray | Mapping[str, np.ndarray],
    tokens: np.ndarray,
    process: str | Process,
    *,
    untrained: np.ndarray | Mapping[str, np.ndarray] | None = None,
    weighting: Weighting = "row",
    longest: int | None = None,
    trained_length: int | None = None,
    cutoff: float = CUTOFF,
    seed: int = 1,
) -> Probed:
    """R^2 of the exact belief from activations of any model, with the controls of `statewise analyze RUN
    belief-geometry`.

    `activations`: (n, T, D), after each of the `tokens` (n, T) of `process`; (n, T + 1, D) if those after a token that
    opens each row come first; or (n, D), after the last token. A mapping has several layers, of which the last is *the
    last state*; all of them concatenated are measured too. `untrained`: the same of an untrained model, for reference.
    `process`: a process of `statewise.beliefs`, or the text that names it. Of a POMDP, states after observations are
    measured.

    `weighting`: `row` counts each row equally, for drawn sequences; `probability` each different prefix by its exact
    probability, for lists of all words. `longest`: tokens of the longest prefix measured, by default half of
    `trained_length`, the tokens of the rows on which the model was trained (by default T). `cutoff`: directions of
    activations with less than this share of the largest standard deviation are not used. `seed`: of shuffles and folds.

    Raises `ValueError` for arrays that do not fit, numbers that are not finite, and tokens that are not possible.
    """
    known_process = named(process) if isinstance(process, str) else process
    tokens = _tokens(tokens)
    n, T = tokens.shape
    own, opening, last_only = _layers(activations, tokens, "activations")
    reference = None
    if untrained is not None:
        reference, *places = _layers(untrained, tokens, "untrained")
        if places != [opening, last_only] or list(reference) != list(own):
            raise ValueError("untrained must have the same names and positions as activations")
    if weighting not in ("row", "probability"):
        raise ValueError(f"weighting must be row or probability, not {short(weighting)}")
    for name, value in (("longest", longest), ("trained_length", trained_length)):
        if value is not None and not 1 <= value <= 2**31:
            raise ValueError(f"{name} must be a whole number of at least 1, not {short(value)}")
    if not 0 < cutoff < 1:
        raise ValueError(f"cutoff must be above 0 and below 1, not {short(cutoff)}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, not {short(seed)}")
    numbers = n * (T + 1) * (known_process.states + known_process.vocabulary)
    if numbers > MOST_NUMBERS:
        raise ValueError(
            f"{n:,} rows of {T:,} tokens have {numbers:,} numbers of beliefs, more than {MOST_NUMBERS:,}: give fewer"
        )
    trained = trained_length or T
    most = longest or (T if last_only else max(1, min(T, trained // 2)))
    if most > T:
        raise ValueError(f"longest must be at most {T:,}, the tokens of a row, not {most:,}")

    joint, probabilities = known_process.posteriors(tokens)
    _check_possible(known_process, tokens, probabilities)
    read = np.array([T] if last_only else range(1 - opening, most + 1))  # tokens of the prefixes, by position
    if isinstance(known_process, Acted) and not last_only:
        read = read[read % 2 == 0]
    if last_only and most < T:
        raise ValueError(f"activations (n, D) are those after all {T:,} tokens: longest cannot be {most:,}")
    rows, lengths, weights, groups = _different(tokens, probabilities, read, weighting)
    if len(rows) < 2 * FOLDS:
        raise ValueError(f"only {len(rows):,} different prefixes: at least {2 * FOLDS} are needed")
    columns = lengths + opening - 1
    shown = np.concatenate([np.full((n, opening), known_process.vocabulary), tokens], axis=1)
    examples = Examples(shown, np.full(n, T + opening), np.zeros(n, np.int64))
    prefixes = Prefixes(examples, rows, columns, weights, weighting == "probability")
    beliefs = joint[rows, lengths]
    known = Known(known_process.told(beliefs), known_process.foretold(beliefs), weights, cutoff)

    features = {name: _at(layer, rows, columns) for name, layer in own.items()}
    rng = np.random.default_rng(seed)
    folds = rng.integers(FOLDS, size=len(rows))
    folds[lengths < 1] = -1  # the opening token alone is like no other prefix
    metrics, maps = measured(features, known, folds)
    if np.isnan(metrics["r2"]):
        raise ValueError("the beliefs of all measured prefixes are equal: measure longer ones, or another process")
    if reference is not None:
        of_untrained = {name: _at(layer, rows, columns) for name, layer in reference.items()}
        metrics |= {label("r2_untrained", name): known.r2_of(each) for name, each in of_untrained.items()}
    without_model, notes = controls(features, known, prefixes, folds, rng)
    metrics |= without_model
    longest_read = int(lengths.max())
    warnings = [*crowded(without_model, features, known, longest_read)]
    if trained < 2 * longest_read:
        warnings.append(
            f"prefixes of up to {longest_read:,} tokens are measured of rows of {trained:,}: near the end of a row "
            "training asks states about few later tokens, so they may keep less of the belief. Train on rows of at "
            f"least {2 * longest_read:,} tokens (say so with trained length), or measure shorter prefixes"
        )
    columns_of_map = features[STATE].shape[1] + 1
    if not warnings and len(rows) < 2 * columns_of_map:
        warnings.append(
            f"{len(rows):,} different prefixes are few for the {columns_of_map:,} columns of a map from the last "
            "state: trust r2_held_out, or give more rows"
        )
    warnings += _unequal(own[STATE], rows, groups, opening)
    lengths_r2 = by_length(maps[STATE](features[STATE]), known, columns, opening)
    return Probed(metrics, lengths_r2, len(rows), longest_read, warnings, notes, verdict(metrics))


def _tokens(tokens: np.ndarray) -> np.ndarray:
    tokens = np.asarray(tokens)
    if tokens.ndim != 2 or not tokens.size or tokens.dtype.kind not in "iu":
        raise ValueError(f"tokens must be whole numbers (n, T), not {tokens.dtype} {tokens.shape}")
    return tokens.astype(np.int64)


def _layers(
    given: np.ndarray | Mapping[str, np.ndarray], tokens: np.ndarray, what: str
) -> tuple[dict[str, np.ndarray], int, bool]:
    """Layers by name, the last as `STATE`, all concatenated as `CONCAT`, each (n, positions, D); the number of
    positions before the first token; and whether they are of the last position alone."""
    layers = dict(given) if isinstance(given, Mapping) else {STATE: given}
    if not layers or any(name in (STATE, CONCAT) for name in [*layers][:-1]):
        raise ValueError(f"{what} must have at least one layer, and none before the last that is named state or concat")
    n, T = tokens.shape
    found: dict[str, np.ndarray] = {}
    positions: set[int] = set()
    for name, layer in layers.items():
        array, title = np.asarray(layer), what if name == STATE else f"{what} {short(name)}"
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{title} must be numbers, not {array.dtype}")
        array = array[:, None] if array.ndim == 2 else array
        if array.ndim != 3 or array.shape[0] != n or array.shape[1] not in (1, T, T + 1) or not array.shape[2]:
            raise ValueError(
                f"{title} must be (n, T, D), (n, T + 1, D) or (n, D) for tokens of shape {tokens.shape}, not "
                f"{np.shape(layer)}"
            )
        if not np.isfinite(array).all():
            row, place, column = np.argwhere(~np.isfinite(array))[0]
            raise ValueError(f"{title}: row {row}, position {place}, column {column} is not a finite number")
        found[name] = array
        positions.add(-1 if np.ndim(layer) == 2 else array.shape[1])
    if len(positions) > 1:
        raise ValueError(f"the layers of {what} must have the same positions")
    if sum(array.size for array in found.values()) > MOST_NUMBERS:
        raise ValueError(f"{what} have more than {MOST_NUMBERS:,} numbers: give fewer rows, layers or positions")
    if len(found) > 1:
        *others, last = found
        every = np.concatenate([*found.values()], axis=2)
        found = {**{name: found[name] for name in others}, CONCAT: every, STATE: found[last]}
    else:
        found = {STATE: next(iter(found.values()))}
    (count,) = positions
    return found, int(count == T + 1), count == -1


def _at(layer: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(m, D) float64: a layer after each prefix."""
    at: np.ndarray = layer[rows, np.minimum(columns, layer.shape[1] - 1)].astype(np.float64)
    return at


def _check_possible(process: Process, tokens: np.ndarray, probabilities: np.ndarray) -> None:
    """Raises `ValueError` with the first token that is not possible."""
    bad = np.argwhere(~(probabilities > 0))
    if len(bad):
        row, place = bad[0]
        token, V = tokens[row, place], process.vocabulary
        there = f"of the tokens 0 to {V - 1}" if 0 <= token < V else f", and the process has the tokens 0 to {V - 1}"
        problem = f"has probability 0 after those before it ({there})" if 0 <= token < V else f"does not exist{there}"
        raise ValueError(f"tokens: row {row}, position {place}: token {token} {problem}: is it another process?")


def _different(
    tokens: np.ndarray, probabilities: np.ndarray, read: np.ndarray, weighting: Weighting
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[int, np.ndarray]]]:
    """The different prefixes of each number of tokens in `read`: a row that begins with each (m,), its number of tokens
    (m,), and its weight (m,), equal lengths together equally heavy; and for each length the number (n,) of the prefix
    of every row."""
    order = np.lexsort(tokens.T[::-1])
    ranked = tokens[order]
    differ = np.ones(tokens.shape, bool)  # whether the prefix that ends here differs from that of the row above
    differ[1:] = np.logical_or.accumulate(ranked[1:] != ranked[:-1], axis=1)
    rows, lengths, weights, groups = [], [], [], []
    for length in read.tolist():
        new = differ[:, length - 1] if length else np.arange(len(tokens)) == 0
        first, group = order[new], np.empty(len(tokens), np.int64)
        group[order] = np.cumsum(new) - 1
        if weighting == "row":
            mass = np.bincount(group).astype(np.float64)
        else:
            mass = np.exp(np.log(probabilities[first, :length]).sum(1))
        rows.append(first)
        lengths.append(np.full(len(first), length))
        weights.append(mass / mass.sum() / len(read))
        groups.append((length, group))
    return np.concatenate(rows), np.concatenate(lengths), np.concatenate(weights), groups


def _unequal(layer: np.ndarray, rows: np.ndarray, groups: list[tuple[int, np.ndarray]], opening: int) -> Iterator[str]:
    """Warns where a model has different states after equal prefixes."""
    begin = 0
    for length, group in groups:
        column = min(length + opening - 1, layer.shape[1] - 1)
        states = layer[:, column].astype(np.float64)
        first = states[rows[begin : begin + group.max() + 1]]
        begin += group.max() + 1
        apart, spread = np.linalg.norm(states - first[group], axis=1).max(), states.std(0)
        if length and apart > ROUNDING * max(float(np.linalg.norm(spread)), 1e-12) and len(first) > 1:
            yield (
                f"states after equal prefixes of {length:,} tokens differ by up to {apart:.3g}: the model reads more "
                "than these tokens (other rows, later tokens, dropout), or the rows do not belong to these tokens"
            )
            return
