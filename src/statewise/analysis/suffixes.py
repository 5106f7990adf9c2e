"""How well a model foretells the rest of a case, by the number of symbols read: the metrics of predictive process
monitoring (Tax et al. 2017, Camargo et al. 2019).

From prefixes of held-out cases: the next symbol; the suffix, by greedy decoding; the number of remaining symbols, as
the median of sampled suffixes; and where the file has times, the remaining time, by ridge regression on the state after
the prefix, fitted to training cases. The end symbol is no step and not part of a suffix. Of a case that is unfinished,
only its symbols are scored: nobody knows its suffix.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from statewise.analysis.base import Analysis, Findings, Subject
from statewise.analysis.beliefs.least_squares import ridge
from statewise.data_types import Examples, Ragged
from statewise.decoding import make_decoder
from statewise.decoding.base import Request
from statewise.decoding.predictor import Predictor
from statewise.evaluation.scoring import score_batch
from statewise.reporting.figures import Curve, Panel
from statewise.runtime.bounds import bounded
from statewise.runtime.messages import LacksCapability, counted
from statewise.tasks.base import ComparedBySymbol, Task
from statewise.tasks.baselines import scored_tokens
from statewise.tasks.batches import blocks, collate, rows_at_once, similar_prompt_length
from statewise.tasks.own_files.sequences import Sequences

ROWS = 64
"""Sequences read at a time."""
FEWEST = 5
"""Prefixes of a length from which on curves show it."""
NANOSECONDS_OF_A_DAY = 86_400 * 10**9


@dataclass(frozen=True)
class SuffixesConfig:
    """Options of `statewise analyze RUN suffixes`."""

    prefixes: int = 500
    """Prefixes of held-out cases whose suffix is decoded, of all lengths, chosen at random."""
    samples: int = 10
    """Suffixes drawn for each, whose median length is the number of remaining steps."""
    fitted: int = 2000
    """Positions of training cases to which the remaining time is fitted."""
    seed: int = 0
    """Seed of the choice of prefixes and of the samples."""

    def __post_init__(self) -> None:
        bounded(self, "prefixes", at_least=1, at_most=10**6)
        bounded(self, "samples", at_least=1, at_most=1000)
        bounded(self, "fitted", at_least=10, at_most=10_000)
        bounded(self, "seed", at_least=0, at_most=2**32 - 1)


class Prefix(NamedTuple):
    """Prefixes of cases, m in all."""

    rows: np.ndarray
    """(m,) the case of each."""
    lengths: np.ndarray
    """(m,) its symbols, at least 1."""


class Suffixes(Analysis):
    """Next symbol, suffix, remaining steps and remaining time, by prefix length, each beside a baseline."""

    Config = SuffixesConfig
    config: SuffixesConfig

    @override
    def check(self, task: Task, predictor: Callable[[], Predictor]) -> None:
        if not isinstance(task, ComparedBySymbol) or task.end is None:
            raise LacksCapability("this analysis needs a task of a user's own sequences", ComparedBySymbol)

    def analyze(self, subject: Subject) -> Findings:
        """Metrics, all of held-out cases:

        - `next_accuracy`: share of right next symbols, end symbols included;
        - `suffix_similarity`: mean `similarity` of the greedy suffix to the true one; `_last_symbol`: of the suffix
          that followed the same symbol most often in training;
        - `remaining_steps_error`: mean absolute error of the number of remaining steps; `_last_symbol`, `_by_length`:
          of the median in training after the same symbol, and after as many symbols;
        - `remaining_days_error`: the same of the remaining time in days, from the state; `_elapsed`: from the number of
          symbols and the time since the first one; `_with_elapsed`: from all of these; `_by_length`: of the mean in
          training after as many symbols.

        Raises `LacksCapability` for other tasks, `ValueError` if every held-out case is unfinished.
        """
        task, predictor = subject.task, subject.snapshot.predictor
        self.check(task, lambda: predictor)
        assert task.end is not None
        training, examples = task.training(), task.held_out()
        assert isinstance(training, Ragged)
        finished = finished_cases(examples)
        every = prefixes_of(examples, finished)
        if not len(every.rows):
            raise ValueError("every held-out case is unfinished, so that no suffix is known")
        rng = np.random.default_rng(self.config.seed)
        some = np.sort(rng.permutation(len(every.rows))[: self.config.prefixes])
        asked = Prefix(every.rows[some], every.lengths[some])
        suffixes = [examples.tokens[row, length : examples.lengths[row] - 1] for row, length in zip(*asked)]
        cut = replace(examples[asked.rows], prompt_lengths=asked.lengths)
        decoded = [without_end(one.tokens, task.end) for one in subject.complete(cut)]
        steps = self._steps(task, predictor, cut)
        past = Past.of(training, task.end)

        right, at = next_symbols(predictor, examples, len(task.vocab))
        last = [int(examples.tokens[row, length - 1]) for row, length in zip(*asked)]
        alike = {
            "": np.array([similarity(one, other) for one, other in zip(decoded, suffixes)]),
            "_last_symbol": np.array([similarity(past.suffix(one), other) for one, other in zip(last, suffixes)]),
        }
        left = np.array([len(one) for one in suffixes], np.float64)
        errors = {
            "": np.abs(steps - left),
            "_last_symbol": np.abs(np.array([past.steps_after(one) for one in last]) - left),
            "_by_length": np.abs(np.array([past.steps_by_length(one) for one in asked.lengths.tolist()]) - left),
        }
        metrics = {"next_accuracy": float(right.mean()), "prefixes": float(len(left))}
        metrics |= {f"suffix_similarity{name}": float(each.mean()) for name, each in alike.items()}
        metrics |= {f"remaining_steps_error{name}": float(each.mean()) for name, each in errors.items()}
        panels = [
            panel("accuracy of the next symbol", {"": right}, at),
            panel("similarity of the suffix", alike, asked.lengths),
            panel("error of the number of remaining steps", errors, asked.lengths),
        ]
        notes = [f"{counted(int((~finished).sum()), 'held-out case')} unfinished, whose suffix is unknown"] * bool(
            (~finished).any()
        )
        days, remark = self._days(task, predictor, rng)
        if days:
            metrics |= {f"remaining_days_error{name}": float(each.mean()) for name, each in days.errors.items()}
            panels.append(panel("error of the remaining days", days.errors, days.lengths))
        notes += [remark] * bool(remark)
        verdict = (
            f"The greedy suffix has a similarity of {metrics['suffix_similarity']:.2f} to the true one (the most "
            f"frequent suffix after the same symbol: {metrics['suffix_similarity_last_symbol']:.2f}), and the number "
            f"of remaining steps is off by {metrics['remaining_steps_error']:.2f} (median after the same symbol: "
            f"{metrics['remaining_steps_error_last_symbol']:.2f})."
        )
        main = ["suffix_similarity", "remaining_steps_error", "next_accuracy"]
        main += ["remaining_days_error"] * bool(days)
        return Findings(metrics, panels, notes=notes, main=main, verdict=verdict)

    def _steps(self, task: Task, predictor: Predictor, cut: Examples) -> np.ndarray:
        """(m,) the median number of symbols in sampled suffixes of the prompts."""
        decoder = make_decoder("sample", seed=self.config.seed)
        count = self.config.samples
        lengths = np.empty((len(cut), count))
        for rows in similar_prompt_length(cut, max(1, 4 * ROWS // count)):
            prompts = [cut.prompt(row) for row in rows.tolist() for _ in range(count)]
            numbers = [row * count + sample for row in rows.tolist() for sample in range(count)]
            request = Request(prompts, task.context - min(map(len, prompts)), task.end, rows=numbers)
            assert task.end is not None
            drawn = [len(without_end(one.tokens, task.end)) for one in decoder.decode(predictor, request)]
            lengths[rows] = np.array(drawn).reshape(len(rows), count)
        return np.median(lengths, axis=1)

    def _days(self, task: Task, predictor: Predictor, rng: np.random.Generator) -> tuple[Days | None, str]:
        """Errors of the remaining days, if the file has times, and what was left out."""
        if not isinstance(task, Sequences):
            return None, ""
        try:
            timed, both = timed_cases(task)
        except ValueError as error:  # the file is gone or has changed
            return None, f"remaining times are unknown: {error}"
        if timed is None:
            return None, ""
        remark = f"{counted(both, 'case')} with copies in training and held out left out of remaining times" * bool(
            both
        )
        known = [positions(part) for part in timed]
        if not len(known[0].rows) or not len(known[1].rows):
            return None, "remaining times are unknown: no finished case with times is in training, or held out"
        chosen = [rng.permutation(len(one.rows)) for one in known]
        chosen = [np.sort(order[:most]) for order, most in zip(chosen, (self.config.fitted, len(chosen[1])))]
        fitted, tested = (Prefix(one.rows[some], one.lengths[some]) for one, some in zip(known, chosen))
        states = [states_after(predictor, part.examples, one) for part, one in zip(timed, (fitted, tested))]
        elapsed = [
            np.stack([one.lengths, part.elapsed[one.rows, one.lengths - 1]], axis=1)
            for part, one in zip(timed, (fitted, tested))
        ]
        left, true = (part.left[one.rows, one.lengths - 1] for part, one in zip(timed, (fitted, tested)))
        means = _by_length(fitted.lengths, left, np.mean)
        guesses = {
            "": ridge(states[0], left, states[1]),
            "_with_elapsed": ridge(np.hstack([states[0], elapsed[0]]), left, np.hstack([states[1], elapsed[1]])),
            "_elapsed": ridge(elapsed[0], left, elapsed[1]),
            "_by_length": np.array([means(length) for length in tested.lengths.tolist()]),
        }
        errors = {name: np.abs(np.maximum(guess, 0) - true) for name, guess in guesses.items()}
        return Days(errors, tested.lengths), remark


class Days(NamedTuple):
    """Absolute errors of the remaining days at m prefixes."""

    errors: dict[str, np.ndarray]
    """(m,) by predictor."""
    lengths: np.ndarray
    """(m,) symbols of the prefixes."""


class Timed(NamedTuple):
    """Finished cases with the times of their symbols, n in all."""

    examples: Examples
    elapsed: np.ndarray
    """(n, T) float64 days from the first symbol to each; NaN where a token has no time, as the end."""
    left: np.ndarray
    """(n, T) float64 days from each symbol to the last one."""


def timed_cases(task: Sequences) -> tuple[tuple[Timed, Timed] | None, int]:
    """Training and held-out cases with times, None if the file has none, and the number of cases that are left out, as
    they have copies on both sides. Raises `ValueError` if the file cannot be read again."""
    sides = [_keys(task.training()), _keys(task.held_out())]
    found: list[list[tuple[np.ndarray, int, np.ndarray]]] = [[], []]
    both = 0
    for path in task.paths:
        log = task.log(path)
        if log.times is None:
            return None, 0
        encoded, cut = task.encoded(log), log.unfinished if len(log.unfinished) else np.zeros(len(log), bool)
        for row in range(len(encoded.rows)):
            tokens, prompt = encoded.rows.row(row).astype(np.int64), int(encoded.rows.prompt_lengths[row])
            start = encoded.rows.starts[row]
            events = encoded.events[start : start + len(tokens)]
            member = [(prompt, tokens.tobytes()) in side for side in sides]
            both += all(member)
            if sum(member) == 1 and (events >= 0).any() and not cut[row]:
                times = np.where(events >= 0, log.times[events], np.iinfo(np.int64).min)
                found[member.index(True)].append((tokens, prompt, times))
    if not all(found):
        return None, both
    return (_timed(found[0]), _timed(found[1])), both


def _timed(cases: Sequence[tuple[np.ndarray, int, np.ndarray]]) -> Timed:
    examples = Examples.of([tokens for tokens, _, _ in cases], [prompt for _, prompt, _ in cases])
    elapsed, left = (np.full(examples.tokens.shape, np.nan) for _ in range(2))
    for row, (_, _, times) in enumerate(cases):
        known = np.flatnonzero(times != np.iinfo(np.int64).min)
        elapsed[row, known] = (times[known] - times[known[0]]) / NANOSECONDS_OF_A_DAY
        left[row, known] = (times[known[-1]] - times[known]) / NANOSECONDS_OF_A_DAY
    return Timed(examples, elapsed, left)


def _keys(cases: Any) -> set[tuple[int, bytes]]:
    some = cases[:] if isinstance(cases, Ragged) else cases
    return {
        (int(prompt), row[:length].astype(np.int64).tobytes())
        for row, length, prompt in zip(some.tokens, some.lengths, some.prompt_lengths)
    }


def positions(timed: Timed) -> Prefix:
    """All prefixes that end with a symbol that has a time."""
    known = np.isfinite(timed.left) & (np.arange(timed.left.shape[1]) >= timed.examples.prompt_lengths[:, None] - 1)
    rows, columns = np.nonzero(known)
    return Prefix(rows, columns + 1)


def states_after(predictor: Predictor, examples: Examples, prefixes: Prefix) -> np.ndarray:
    """(m, D) float64: the last layer's state after each prefix."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, row in enumerate(prefixes.rows.tolist()):
        places[row].append(place)
    found: dict[int, np.ndarray] = {}
    for rows, part in blocks(examples, ROWS):
        hidden = predictor.states(collate(part))
        state = hidden.state[..., : hidden.readout.shape[-1]] if predictor.state_is_last else hidden.readout
        of_block = state.float().cpu().numpy()
        found |= {
            place: of_block[at, prefixes.lengths[place] - 1] for at, row in enumerate(rows) for place in places[row]
        }
    return np.stack([found[place] for place in range(len(prefixes.rows))]).astype(np.float64)


def finished_cases(examples: Examples) -> np.ndarray:
    """(n,) bool: whether the end of each case is scored."""
    return scored_tokens(examples)[np.arange(len(examples)), examples.lengths - 1]


def prefixes_of(examples: Examples, which: np.ndarray) -> Prefix:
    """All prefixes, of at least one symbol and with the whole prompt, of the cases `which` (n,) bool."""
    column = np.arange(1, examples.tokens.shape[1])
    inside = (column >= examples.prompt_lengths[:, None]) & (column < examples.lengths[:, None]) & which[:, None]
    rows, places = np.nonzero(inside)
    return Prefix(rows, column[places])


def next_symbols(predictor: Predictor, examples: Examples, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """(m,) bool: whether the most likely token is the right one, for all scored tokens; and (m,) symbols before it."""
    scored = scored_tokens(examples)
    right = np.zeros(scored.shape, bool)
    for rows, part in blocks(examples, rows_at_once(examples.tokens.shape[1], vocabulary, ROWS)):
        width = part.tokens.shape[1]
        if width > 1:
            right[rows, 1:width] = score_batch(predictor, collate(part), 1, width).choices == part.tokens[:, 1:]
    return right[scored], np.nonzero(scored)[1]


def without_end(tokens: np.ndarray, end: int) -> np.ndarray:
    """The tokens before the end token, all of them if there is none."""
    ends = np.flatnonzero(tokens == end)
    return tokens[: ends[0]] if len(ends) else tokens


def similarity(some: Sequence[int] | np.ndarray, others: Sequence[int] | np.ndarray) -> float:
    """1 - Damerau-Levenshtein distance / length of the longer one; 1 if both are empty."""
    longer = max(len(some), len(others))
    return 1 - distance(some, others) / longer if longer else 1.0


def distance(some: Sequence[int] | np.ndarray, others: Sequence[int] | np.ndarray) -> int:
    """The fewest insertions, deletions, replacements, and exchanges of neighbours between which others may be inserted
    or deleted, that make one sequence the other (Damerau-Levenshtein, unrestricted: Lowrance and Wagner 1975)."""
    a, b = list(map(int, some)), list(map(int, others))
    most = len(a) + len(b)
    table = [[most] * (len(b) + 2) for _ in range(len(a) + 2)]
    for i in range(len(a) + 1):
        table[i + 1][1] = i
    for j in range(len(b) + 1):
        table[1][j + 1] = j
    last_row: dict[int, int] = {}  # the last row in which each symbol of `a` was
    for i, one in enumerate(a, 1):
        last_column = 0  # the last column of this row in which the symbols were equal
        for j, other in enumerate(b, 1):
            row, column = last_row.get(other, 0), last_column
            if one == other:
                last_column = j
            table[i + 1][j + 1] = min(
                table[i][j] + (one != other),
                table[i + 1][j] + 1,
                table[i][j + 1] + 1,
                table[row][column] + (i - row - 1) + 1 + (j - column - 1),
            )
        last_row[one] = i
    return table[-1][-1]


class Past(NamedTuple):
    """What followed in training, with which a model is compared."""

    suffix: Callable[[int], Sequence[int]]
    """The suffix that most often followed a symbol; of equally frequent ones the first."""
    steps_after: Callable[[int], float]
    """The median number of symbols that followed a symbol."""
    steps_by_length: Callable[[int], float]
    """The median number of symbols that followed so many symbols."""

    @classmethod
    def of(cls, training: Ragged, end: int) -> Past:
        """Of finished training cases."""
        suffixes: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
        symbols, lengths, left = [], [], []
        for row in range(len(training)):
            tokens = training.row(row).tolist()
            if tokens[-1] != end:
                continue
            for length in range(max(1, int(training.prompt_lengths[row])), len(tokens)):
                suffixes[tokens[length - 1]][tuple(tokens[length:-1])] += 1
                symbols.append(tokens[length - 1])
                lengths.append(length)
                left.append(len(tokens) - 1 - length)
        most = {symbol: counts.most_common(1)[0][0] for symbol, counts in suffixes.items()}
        number = np.array(left, np.float64)
        return cls(
            lambda symbol: most.get(symbol, ()),
            _by_length(np.array(symbols), number, np.median),
            _by_length(np.array(lengths), number, np.median),
        )


def _by_length(keys: np.ndarray, values: np.ndarray, average: Callable[[np.ndarray], Any]) -> Callable[[int], float]:
    """The average of the values (m,) of each key (m,); that of all values for other keys."""
    order = np.argsort(keys, kind="stable")
    groups = np.split(values[order], np.flatnonzero(np.diff(keys[order])) + 1)
    known = dict(zip(np.unique(keys).tolist(), (float(average(one)) for one in groups)))
    every = float(average(values))
    return lambda key: known.get(key, every)


NAMES = {
    "": "this model",
    "_last_symbol": "after the same symbol",
    "_by_length": "after as many symbols",
    "_elapsed": "from the elapsed time",
    "_with_elapsed": "this model and the elapsed time",
}


def panel(what: str, values: Mapping[str, np.ndarray], lengths: np.ndarray) -> Panel:
    """Means of values (m,) of each predictor by prefix length (m,), of lengths with at least `FEWEST` prefixes; if
    there is none, of all."""
    known, counts = np.unique(lengths, return_counts=True)
    shown = known[counts >= FEWEST] if (counts >= FEWEST).any() else known
    curves = [
        Curve(NAMES[name], [float(one) for one in shown], [float(each[lengths == one].mean()) for one in shown])
        for name, each in values.items()
    ]
    return Panel("symbols read", what, curves)
