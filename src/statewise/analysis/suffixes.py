"""How well a model foretells the rest of a case, by the number of symbols read: the metrics of predictive process
monitoring (Tax et al. 2017, Camargo et al. 2019).

From prefixes of held-out cases: the next symbol; the suffix, by greedy decoding; the number of remaining symbols, as
the median of sampled suffixes; and where the file has times, the remaining time, by ridge regression on the state after
the prefix, fitted to training cases. The end symbol is no step and not part of a suffix, and nor are durations
(`task.gaps`). Of a case that is unfinished, only its symbols are scored: nobody knows its suffix.
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
from statewise.tasks.own_files.gaps import gap_symbols
from statewise.tasks.own_files.sequences import Sequences

ROWS = 64
"""Sequences read at a time."""
FEWEST = 5
"""Prefixes of a length from which on curves show it."""
MOST_KEPT = 2**26
"""Symbols of training suffixes, twice as many as are kept."""
NANOSECONDS_OF_A_DAY = 86_400 * 10**9
UNKNOWN = np.iinfo(np.int64).min
"""The time of a token that is no event."""


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

        Takes long for cases of thousands of symbols: choose fewer `prefixes` there. Raises `LacksCapability` for other
        tasks, `ValueError` if all cases are unfinished.
        """
        task, predictor = subject.task, subject.snapshot.predictor
        self.check(task, lambda: predictor)
        assert task.end is not None
        training, examples = task.training(), task.held_out()
        assert isinstance(training, Ragged)
        finished = finished_cases(examples, task.end)
        gaps = durations_of(task)
        every = prefixes_of(examples, finished, gaps)
        if not len(every.rows):
            raise ValueError("every held-out case is unfinished, so that no suffix is known")
        rng = np.random.default_rng(self.config.seed)
        some = np.sort(rng.permutation(len(every.rows))[: self.config.prefixes])
        asked = Prefix(every.rows[some], every.lengths[some])
        suffixes = [
            steps_in(examples.tokens[row, length : examples.lengths[row]], task.end, gaps)
            for row, length in zip(*asked)
        ]
        cut = replace(examples[asked.rows], prompt_lengths=asked.lengths)
        decoded = [steps_in(one.tokens, task.end, gaps) for one in subject.complete(cut)]
        steps = self._steps(task, predictor, cut)
        past = Past.of(training, task.end, gaps)

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
        decoder, gaps = make_decoder("sample", seed=self.config.seed), durations_of(task)
        count = self.config.samples
        lengths = np.empty((len(cut), count))
        for rows in similar_prompt_length(cut, max(1, 4 * ROWS // count)):
            prompts = [cut.prompt(row) for row in rows.tolist() for _ in range(count)]
            numbers = [row * count + sample for row in rows.tolist() for sample in range(count)]
            request = Request(prompts, task.context - min(map(len, prompts)), task.end, rows=numbers)
            assert task.end is not None
            drawn = [len(steps_in(one.tokens, task.end, gaps)) for one in decoder.decode(predictor, request)]
            lengths[rows] = np.array(drawn).reshape(len(rows), count)
        return np.median(lengths, axis=1)

    def _days(self, task: Task, predictor: Predictor, rng: np.random.Generator) -> tuple[Days | None, str]:
        """Errors of the remaining days, if the file has times, and what was left out."""
        if not isinstance(task, Sequences):
            return None, ""
        try:
            timed = timed_cases(task)
        except ValueError as error:  # the file is gone or has changed
            return None, f"remaining times are unknown: {error}"
        if timed is None:
            return None, ""
        gaps = durations_of(task)
        known = [positions(part, gaps) for part in timed]
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
        return Days(errors, tested.lengths), ""


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


def timed_cases(task: Sequences) -> tuple[Timed, Timed] | None:
    """Finished training and held-out cases with times; None if either side has no such case. Training cases that are
    used in part, as a split by time cuts them, are left out: how they end was not known then. Raises `ValueError` if
    the file cannot be read again."""
    trained, held_out = _keys(task.training()[:]), _keys(task.held_out())
    found: list[list[tuple[np.ndarray, int, np.ndarray]]] = [[], []]
    for number, path in enumerate(task.paths):
        log = task.log(path if number else None)
        if log.times is None:
            return None
        encoded, cut = task.encoded(log), log.unfinished if len(log.unfinished) else np.zeros(len(log), bool)
        tested = np.ones(len(log), bool) if number else task.held_out_cases()
        for row in np.flatnonzero(~cut).tolist():
            tokens, prompt = encoded.rows.row(row).astype(np.int64), int(encoded.rows.prompt_lengths[row])
            events = encoded.events[encoded.rows.starts[row] :][: len(tokens)]
            used = (prompt, tokens.tobytes()) in (held_out if tested[row] else trained)  # as a whole
            if used and (events >= 0).any():
                times = np.where(events >= 0, log.times[events], UNKNOWN)
                found[int(tested[row])].append((tokens, prompt, times))
    if not all(found):
        return None
    return _timed(found[0]), _timed(found[1])


def _timed(cases: Sequence[tuple[np.ndarray, int, np.ndarray]]) -> Timed:
    examples = Examples.of([tokens for tokens, _, _ in cases], [prompt for _, prompt, _ in cases])
    elapsed, left = (np.full(examples.tokens.shape, np.nan) for _ in range(2))
    for row, (_, _, times) in enumerate(cases):
        known = np.flatnonzero(times != UNKNOWN)
        elapsed[row, known] = (times[known] - times[known[0]]) / NANOSECONDS_OF_A_DAY
        left[row, known] = (times[known[-1]] - times[known]) / NANOSECONDS_OF_A_DAY
    return Timed(examples, elapsed, left)


def _keys(cases: Examples) -> set[tuple[int, bytes]]:
    return {
        (int(prompt), row[:length].astype(np.int64).tobytes())
        for row, length, prompt in zip(cases.tokens, cases.lengths, cases.prompt_lengths)
    }


def positions(timed: Timed, gaps: np.ndarray) -> Prefix:
    """All prefixes with the whole prompt and a symbol as their last token."""
    known = np.isfinite(timed.left) & (np.arange(timed.left.shape[1]) >= timed.examples.prompt_lengths[:, None] - 1)
    rows, columns = np.nonzero(known & ~np.isin(timed.examples.tokens, gaps))
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


def finished_cases(examples: Examples, end: int) -> np.ndarray:
    """(n,) bool: whether each case has an end that is scored."""
    last = np.arange(len(examples)), examples.lengths - 1
    return scored_tokens(examples)[last] & (examples.tokens[last] == end)


def prefixes_of(examples: Examples, which: np.ndarray, gaps: np.ndarray) -> Prefix:
    """All prefixes, with the whole prompt and a symbol as their last token, of the cases `which` (n,) bool."""
    column = np.arange(1, examples.tokens.shape[1])
    inside = (column >= examples.prompt_lengths[:, None]) & (column < examples.lengths[:, None]) & which[:, None]
    inside &= ~np.isin(examples.tokens[:, :-1], gaps)
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


def durations_of(task: Task) -> np.ndarray:
    """The tokens that are durations between symbols, and not symbols themselves."""
    names = gap_symbols(task.config.gaps) if isinstance(task, Sequences) and task.config.gaps else []
    return np.array([task.vocab.ids[name] for name in names], np.int64)


def steps_in(tokens: np.ndarray, end: int, gaps: np.ndarray) -> np.ndarray:
    """The symbols before the end token, or all symbols of a case without an end, each without durations."""
    ends = np.flatnonzero(tokens == end)
    before = tokens[: ends[0]] if len(ends) else tokens
    return before[~np.isin(before, gaps)]


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
    def of(cls, training: Ragged, end: int, gaps: np.ndarray) -> Past:
        """The statistics of finished training cases, or of the first ones if their suffixes have too many symbols.
        Raises `ValueError` if no training case is finished."""
        suffixes: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
        symbols, lengths, left = [], [], []
        finished = training.tokens[training.starts + training.lengths - 1] == end
        if not finished.any():
            raise ValueError("every training case is unfinished, so that no suffix is known to compare with")
        rows = np.flatnonzero(finished)
        rows = rows[np.cumsum(training.lengths[rows] ** 2) <= MOST_KEPT + training.lengths[rows[0]] ** 2]
        for row in rows.tolist():
            tokens = training.row(row)
            steps = [int(token) for token in steps_in(tokens, end, gaps)]
            places = np.flatnonzero(~np.isin(tokens[:-1], gaps))
            for number, place in enumerate(places.tolist(), 1):
                if place + 1 >= training.prompt_lengths[row]:
                    suffixes[steps[number - 1]][tuple(steps[number:])] += 1
                    symbols.append(steps[number - 1])
                    lengths.append(place + 1)
                    left.append(len(steps) - number)
        most = {symbol: counts.most_common(1)[0][0] for symbol, counts in suffixes.items()}
        steps_left = np.array(left, np.float64)
        return cls(
            lambda symbol: most.get(symbol, ()),
            _by_length(np.array(symbols), steps_left, np.median),
            _by_length(np.array(lengths), steps_left, np.median),
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
    """Means of values (m,) of each predictor by prefix length (m,), of lengths with at least `FEWEST` prefixes, or
    of all lengths if no length has so many."""
    known, counts = np.unique(lengths, return_counts=True)
    shown = known[counts >= FEWEST] if (counts >= FEWEST).any() else known
    curves = [
        Curve(NAMES[name], [float(one) for one in shown], [float(each[lengths == one].mean()) for one in shown])
        for name, each in values.items()
    ]
    return Panel("symbols read", what, curves)
