"""State tracking: a finite automaton reads random tokens, and is asked for its state.

With `ask: reveals` questions stand at random places and each answer is the state, so that a sequence is an ordinary one
for next-token training with several scored tokens; with `ask: query` the one question is at the end. Only answers are
scored. The state is the last answer and the tokens since, or all tokens: it cannot be read off a few of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from typing_extensions import override

from statewise.data_types import Completion, Examples, Headline
from statewise.runtime.bounds import bounded, check_tokens
from statewise.runtime.messages import short
from statewise.runtime.text_files import read_whole
from statewise.tasks.automaton import Automaton, Pairs
from statewise.tasks.base import Kept, SpacedText, Vocab, kept_text
from statewise.tasks.holding_out import ONE_IN, chosen, hash_rows, numbers_of
from statewise.tasks.own_files.lines import read_rows
from statewise.tasks.state_tracking.automata import PRESETS, Process, flip_flop, of_table, parse_table

TABLE_FILE = "automaton.json"
LARGEST = 2**26
"""Most bytes of a table's file."""
MOST = 10**7
"""Most sequences of a held-out set."""
FEW = 100
"""Fewest different sequences of a held-out set for meaningful scores."""
MOST_AT_ONCE = 2**24
"""Tokens that are drawn at a time: of 16 strings one is held out, so that large test sets would fill the memory."""


@dataclass(frozen=True)
class StateTrackingConfig:
    """Fields of `task: automaton`."""

    process: str = "parity"
    """`flip-flop`, `parity`, `mod5`, `s3`, `a5`, `s5` or `dyck`; or a JSON file with a table, as in
    docs/state-tracking.md."""
    ask: Literal["reveals", "query"] = "reveals"
    """Whether the state is asked for at random places, or once at the end."""
    reveal_rate: float = 0.1
    """Probability of a question where one may be asked; for `flip-flop`, under both values of `ask`, the probability of
    reading, and of writing."""
    length: int = 64
    """Tokens of a training sequence, questions and answers included."""
    min_length: int | None = None
    """Lengths are uniform from here to `length`; null: all are `length`."""
    longest: int | None = None
    """Tokens of the longest test sequence, the context of the model; null: `length`."""
    held_out_sequences: int = 1000
    """Size of the fixed test set, and of each further one."""
    data_seed: int = 0
    """Seed of the fixed test sets."""

    def __post_init__(self) -> None:
        bounded(self, "reveal_rate", prefix="task.", above=0, at_most=0.5)
        bounded(self, "length", "min_length", "longest", prefix="task.", at_least=4, at_most=10**6)
        bounded(self, "held_out_sequences", prefix="task.", at_least=1, at_most=MOST)
        bounded(self, "data_seed", prefix="task.", at_least=0)
        if self.ask not in ("reveals", "query"):
            raise ValueError(f"task.ask must be reveals or query, not {self.ask!r}")
        if self.min_length is not None and self.min_length > self.length:
            raise ValueError(f"task.min_length {self.min_length} is above task.length {self.length}")
        if self.longest is not None and self.longest < self.length:
            raise ValueError(f"task.longest {self.longest} is below task.length {self.length}")


class StateTracking(SpacedText, Automaton):
    """The text of a sequence is its symbols, separated by spaces, such as `1 0 1 = s0 1 = s1`."""

    Config = StateTrackingConfig
    every_choice_scored = False  # only answers are
    decoded = False  # answers are between other tokens, so evaluation is teacher-forced
    drawn_at_once = 512  # a draw takes a step per token, however few the sequences
    other_held_out: Mapping[str, Sequence[str]] = {"length": ("N[,N...]",), "reveals": ("RATE",)}

    def __init__(self, config: StateTrackingConfig, kept: Kept | None = None) -> None:
        self.config = config
        self._files: dict[str, bytes] = {}
        own = config.process not in PRESETS and config.process != "flip-flop"
        if own and kept is not None:
            self._files = {TABLE_FILE: kept_text(kept, TABLE_FILE).encode()}
        elif own:
            path = Path(config.process)
            if not path.is_file():
                names = ", ".join(["flip-flop", *PRESETS])
                what = "a folder" if path.is_dir() else "no such file"
                raise ValueError(f"task.process {config.process}: {what}, and none of {names}")
            self._files = {TABLE_FILE: read_whole(path, LARGEST)}
        self.process = self._process(config.reveal_rate)
        self.vocab = Vocab(self.process.symbols)
        self.context = self.longest = config.longest or config.length
        check_tokens("task.held_out_sequences", config.held_out_sequences, config.length)
        shortest, longest = config.min_length or config.length, self._whole(config.length)
        self._lengths = min(shortest + -shortest % self.process.unit, longest), longest
        rate = config.reveal_rate if config.ask == "reveals" else 0.0
        chance = self.process.chance(*self._lengths, rate)
        solved_at, self._kept_at = (0.999, 0.999) if config.process == "flip-flop" else (0.99, 0.9)
        self.headline = Headline("accuracy", higher_is_better=True, solved_at=solved_at)
        self.chance = {"accuracy": chance, "scaled_accuracy": 0.0, "glitch_rate": 1 - chance}
        self._held_out: Examples | None = None

    def _process(self, rate: float) -> Process:
        name, ask = self.config.process, self.config.ask
        if name == "flip-flop":
            return flip_flop(ask, rate)
        if name in PRESETS:
            return of_table(PRESETS[name](), ask)
        table = parse_table(self._files[TABLE_FILE], name)
        try:
            return of_table(table, ask)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    @property
    @override
    def longest_row(self) -> int:
        return self._lengths[1]

    def _whole(self, length: int) -> int:
        """The longest possible length up to `length`."""
        return length - length % self.process.unit

    def files(self) -> dict[str, bytes]:
        """The table, if it is the user's."""
        return dict(self._files)

    # Drawing

    def training(self) -> None:
        """Returns None: every batch has fresh sequences."""

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training sequences, never held-out ones."""
        return self._draw(rng, n, self.process, held_out=False)

    def held_out(self, n: int | None = None) -> Examples:
        """The fixed test set, or its first n sequences; lengths as in training."""
        if self._held_out is None:
            rng = np.random.default_rng([self.config.data_seed, 2])
            self._held_out = self._draw(rng, self.config.held_out_sequences, self.process, held_out=True)
            different = len(np.unique(hash_rows(self._held_out.tokens)))
            if different < min(FEW, len(self._held_out) / 2):
                self.notes = [
                    f"the {len(self._held_out):,} held-out sequences are copies of {different:,}: so few sequences are "
                    "likely that what is held out changes what is learned, and scores on it say little. Set "
                    "task.length higher, or weights that are less unequal"
                ]
        return self._held_out[: n if n is not None else len(self._held_out)]

    def held_out_by(self, option: str, value: str, n: int | None = None) -> Examples:
        """`length`: numbers separated by commas, multiples of the process's step; as many sequences of each as in the
        test set. `reveals`: another `reveal_rate`, at the longest training length. Raises `ValueError` for other
        values."""
        if n is not None and n > MOST:
            raise ValueError(f"at most {MOST:,} sequences of a set are drawn, not {short(n)}")
        if option == "length":
            count, parts = n or self.config.held_out_sequences, []
            for length in numbers_of(option, value):
                if not 4 <= length <= self.context:
                    raise ValueError(
                        f"`length` {length}: a sequence has 4 to {self.context} tokens, the context of the model; for "
                        "more, train with a larger task.longest"
                    )
                if length != self._whole(length):
                    raise ValueError(
                        f"`length` {length}: give a multiple of {self.process.unit}, the tokens of a step of "
                        f"{self.config.process}"
                    )
                held_out = self._lengths[0] <= length <= self._lengths[1]  # other lengths are never trained
                parts.append(self._of_length(length, count, self.process, held_out=held_out or None))
            return Examples.joined(parts)
        if option == "reveals":
            try:
                rate = float(value)
            except ValueError:
                rate = float("nan")
            if not 0 < rate <= 0.5 or self.config.ask != "reveals":
                raise ValueError(f"`reveals` {value}: give a probability up to 0.5, of a task that asks by reveals")
            return self._of_length(
                self._lengths[1], n or self.config.held_out_sequences, self._process(rate), rate, held_out=True
            )
        return super().held_out_by(option, value, n)

    def _of_length(
        self, length: int, n: int, process: Process, rate: float | None = None, *, held_out: bool | None
    ) -> Examples:
        rng = np.random.default_rng([self.config.data_seed, 3, length])
        return self._draw(rng, n, process, rate, lengths=(length, length), held_out=held_out)

    def _draw(
        self,
        rng: np.random.Generator,
        n: int,
        process: Process,
        rate: float | None = None,
        *,
        lengths: tuple[int, int] | None = None,
        held_out: bool | None,
    ) -> Examples:
        """n sequences that are held out or not; None: either."""
        config, (least, most) = self.config, lengths or self._lengths
        rate = (config.reveal_rate if rate is None else rate) if config.ask == "reveals" else 0.0
        share = {True: 1 / ONE_IN, False: 1 - 1 / ONE_IN, None: 1.0}[held_out]
        parts: list[Examples] = []
        missing, fruitless = n, 0
        while missing:
            if fruitless == 200:
                raise ValueError("there are too few different sequences to hold some out: set task.length higher")
            count = int(missing / share * 1.05) + 8 if held_out is not None else missing
            count = min(count, max(1, MOST_AT_ONCE // most))
            unit = process.unit
            drawn = unit * rng.integers(least // unit, most // unit + 1, size=count)
            tokens, answers = process.draw(rng, drawn, rate)
            some = Examples(tokens, drawn, np.zeros(count, np.int64), scored=answers)
            if held_out is not None:
                marked = np.zeros((count, self._lengths[1]), np.int64)  # of one width, for rows have one hash
                marked[:, : tokens.shape[1]] = (tokens + 1) * (np.arange(tokens.shape[1]) < drawn[:, None])
                some = some[np.flatnonzero(chosen(hash_rows(marked)) == held_out)[:missing]]
            missing, fruitless = missing - len(some), 0 if len(some) else fruitless + 1
            parts += [some] if len(some) else []
        return Examples.joined(parts)

    # Text and files

    def read(self, path: Path) -> Examples:
        """Whole sequences, one per line, from the automaton's start. Raises `ValueError` with the line for an illegal
        symbol or a wrong answer, and where nothing is asked."""
        rows = read_rows(path, self.encode, self._problem)
        examples = Examples.of(rows, [0] * len(rows))
        before = self._states(examples.tokens)[:, :-1]
        answers = self.process.asked[np.maximum(before, 0)] & (before >= 0)
        there = np.arange(answers.shape[1]) < examples.lengths[:, None]
        return Examples(examples.tokens, examples.lengths, examples.prompt_lengths, scored=answers & there)

    def _problem(self, row: np.ndarray) -> str:
        if len(row) > self.context:
            return f"{len(row)} symbols, but the model reads {self.context}: train with a larger task.longest"
        states = self._states(row[None])[0]
        wrong = np.flatnonzero(states[1:] < 0)
        if len(wrong):
            place = int(wrong[0])
            may = self.vocab.decode(np.flatnonzero(self.process.next[states[place]] >= 0))
            named = " or ".join(may[:4]) + " or others" * (len(may) > 4) if may else "nothing"
            return f"symbol {place + 1} is {self.vocab.symbols[row[place]]}, but must be {named}"
        return "" if self.process.asked[states[:-1]].any() else "no question with its answer, so nothing is scored"

    def _states(self, tokens: np.ndarray) -> np.ndarray:
        """(n, T + 1): the process's state before and after each of the tokens (n, T), -1 from the first illegal one
        on."""
        states = np.empty((len(tokens), tokens.shape[1] + 1), np.int64)
        states[:, 0] = self.process.start
        for place, column in enumerate(tokens.T):
            states[:, place + 1] = self._step(states[:, place], column)
        return states

    def _step(self, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.where(states >= 0, self.process.next[states, tokens], -1)

    # Scores

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`accuracy`: the share of completions that are the sequence itself. Evaluations are teacher-forced: see
        `score_positions`."""
        right = [np.array_equal(completion.tokens, examples.answer(row)) for row, completion in enumerate(completions)]
        return {"accuracy": float(np.mean(right))}

    def score_positions(self, examples: Examples, chosen: np.ndarray) -> dict[str, float]:
        """`accuracy`: the share of answers that are the most likely token; `glitch_rate`, the rest; `scaled_accuracy`:
        0 if the most common answer of these is always given, 1 if all are right; `sequence_accuracy`: sequences with
        all answers right. Of several lengths with equally many sequences, accuracies of each (`accuracy_length_512`),
        and `length_kept`, the greatest of them up to which all are at least 0.9, of flip-flop 0.999; 0 if that of the
        shortest is not."""
        scored = chosen >= 0
        right = scored & (chosen == examples.tokens)

        def accuracy(rows: np.ndarray | slice) -> float:
            return float(right[rows].sum() / max(scored[rows].sum(), 1))

        overall, answers = accuracy(slice(None)), np.bincount(examples.tokens[scored])
        chance = float(answers.max(initial=0) / max(answers.sum(), 1))
        lengths, counts = np.unique(examples.lengths, return_counts=True)
        several = lengths.tolist() if len(lengths) > 1 and len(set(counts.tolist())) == 1 else []
        by_length = {length: accuracy(examples.lengths == length) for length in several}
        kept = list(itertools.takewhile(lambda length: by_length[length] >= self._kept_at, several))
        return {
            "accuracy": overall,
            "glitch_rate": 1 - overall,
            "scaled_accuracy": (overall - chance) / (1 - chance) if chance < 1 else 0.0,
            "sequence_accuracy": float((right == scored).all(axis=1).mean()),
            **{f"accuracy_length_{length}": share for length, share in by_length.items()},
            **({"length_kept": int(kept[-1] if kept else 0)} if several else {}),
        }

    # World

    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T): the number of the automaton's state after each position; -1 where it has none and on padding."""
        states = self._states(examples.tokens)[:, 1:]
        known = np.where(states >= 0, self.process.known[states], -1)
        return np.where(np.arange(known.shape[1]) < examples.lengths[:, None], known, -1)

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """The symbols that may follow; none where the context is full."""
        state = self._states(prefix[None])[0, -1]
        if state < 0 or len(prefix) >= self.context:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.process.next[state] >= 0)

    @override
    def states_after(self, tokens: np.ndarray) -> np.ndarray:
        """States are single numbers."""
        return self._states(tokens)[:, -1:]

    @override
    def step(self, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return self._step(states[:, 0], tokens)[:, None]

    @override
    def allowed(self, states: np.ndarray) -> np.ndarray:
        return (self.process.next[states[:, 0]] >= 0) & (states >= 0)

    @override
    def tokens_left(self, states: np.ndarray) -> np.ndarray:
        """With reveals, a sequence is cut from an unending one, so each state may be its last."""
        state = states[:, 0]
        if not self.process.ends:
            return np.where(state >= 0, 0, -1)
        distance = self._distances[np.maximum(state, 0)]
        return np.where(state >= 0, distance, -1)

    @cached_property
    def _distances(self) -> np.ndarray:
        """(S,): fewest symbols to the end."""
        after = self.process.next
        distances = np.where((after >= 0).any(axis=1), -1, 0)
        distance = 0
        while (reached := ((after >= 0) & (distances[after] == distance)).any(axis=1) & (distances < 0)).any():
            distance += 1
            distances[reached] = distance
        return distances

    @override
    def draw_pairs(self, rng: np.random.Generator, n: int, *, same_state: bool) -> Pairs:
        """Prefixes of sequences of the longest training length, cut at the same random place."""
        first: list[np.ndarray] = []
        second: list[np.ndarray] = []
        whole = self._lengths[1]
        for _ in range(20 * n):
            if len(first) >= n:
                break
            drawn = self._draw(rng, 64, self.process, lengths=(whole, whole), held_out=False)
            cut = int(rng.integers(1, max(2, whole - 2)))
            rows = np.unique(drawn.tokens[:, :cut], axis=0)
            states = self._states(rows)[:, -1]
            order = rng.permutation(len(rows))
            order = order[np.argsort(states[order], kind="stable")] if same_state else order
            one, other = order[:-1:2], order[1::2]
            fits = np.flatnonzero((states[one] == states[other]) == same_state)
            few = rng.permutation(fits)[: 1 + n // 20]  # of each place, so that lengths differ; of any state
            first += list(rows[one[few]])
            second += list(rows[other[few]])
        if not first:
            raise ValueError(f"found no two prefixes with {'the same state' if same_state else 'different states'}")
        sides = [Examples.of(side[:n], [len(row) for row in side[:n]]) for side in (first, second)]
        return Pairs(sides[0], sides[1], requested=n)
