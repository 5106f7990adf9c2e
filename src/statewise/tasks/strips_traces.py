"""Action traces of a planning domain: predict a legal next action.

The random walks that train the STRIPS Transformer, as sequences, so that sequence models can be compared with it. The
STRIPS Transformer learns to classify positive and negative traces; a sequence model sees only positive ones and is
judged by the actions that it predicts.

Legal is what Definition 1 of the STRIPS Transformer paper allows: an action that requires no atom whose last effect was
a delete. Initial states are not given, so actions alone cannot exclude more: all of these are possible if every atom is
true at the start. A model that remembers the initial states of its training walks may know more; that is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from statewise.data_types import Completion, Examples, Headline
from statewise.runtime.bounds import bounded, check_tokens
from statewise.strips import SPLITS, Atoms, Domain, domain, read_traces
from statewise.tasks.base import Kept, Task, Vocab, World, separated_by
from statewise.tasks.holding_out import ONE_IN, chosen, collect, numbers_of

MOST_STATES = 20_000
"""Domains with more states are refused, since walks use a table of all of them."""
MOST_ATOMS = 62
"""Sets of atoms are the bits of an int64."""


@dataclass(frozen=True)
class StripsTracesConfig:
    """Fields of `task: strips_traces`."""

    domain: str = "blocksworld:3"
    """Domain and size, as in `statewise strips`: simple, blocksworld:3, ferry:2x1, ..."""
    max_length: int = 30
    """Actions of a training trace. Walks never end by themselves, so all traces have this length."""
    held_out_length: int | None = None
    """Actions of a held-out trace; null: as many as in training."""
    held_out_traces: int = 1000
    """Size of the fixed test set, whose traces are all different."""
    states_seed: int = 0
    """Seed of the four initial states of walks: two in training, the other two in tests."""
    data_seed: int = 0
    """Seed of the fixed test set."""

    def __post_init__(self) -> None:
        bounded(self, "max_length", "held_out_length", prefix="task.", at_least=2, at_most=10**6)
        bounded(self, "held_out_traces", prefix="task.", at_least=1, at_most=10**8)
        bounded(self, "data_seed", "states_seed", prefix="task.", at_least=0)


class Walks(NamedTuple):
    """The transition table of a domain with S states."""

    counts: np.ndarray
    """(S,) number of applicable actions."""
    actions: np.ndarray
    """(S, most) numbers of the applicable actions, padded with 0."""
    after: np.ndarray
    """(S, most) numbers of the successor states."""
    numbers: dict[Atoms, int]
    """The number of each state."""

    def walk(self, rng: np.random.Generator, begins: np.ndarray, length: int) -> np.ndarray:
        """(n, length) actions of random walks from the states `begins` (n,), in parallel."""
        rows, state = np.empty((len(begins), length), np.int64), begins
        for column in rows.T:
            choice = (rng.random(len(state)) * self.counts[state]).astype(np.int64)
            column[:] = self.actions[state, choice]
            state = self.after[state, choice]
        return rows


class StripsTraces(Task, World):
    """Random walks through a planning domain; actions are tokens. As text: action names separated by commas."""

    Config = StripsTracesConfig
    text_format = replace(separated_by(","), separator=", ", normalise=((r"\s+", " "),))
    other_held_out: Mapping[str, Sequence[str]] = {"length": ("N[,N...]",)}

    def __init__(self, config: StripsTracesConfig, kept: Kept | None = None) -> None:
        self.config = config
        self.domain: Domain = domain(config.domain)
        self.model = self.domain.model
        if len(self.model.atoms) > MOST_ATOMS:
            raise ValueError(
                f"{config.domain} has {len(self.model.atoms)} atoms, but this task allows at most {MOST_ATOMS}: choose "
                "a smaller domain"
            )
        self.vocab = Vocab(self.model.names)
        self.context = max(config.max_length, self._held_out_length)
        check_tokens("task.held_out_traces", config.held_out_traces, self._held_out_length)
        self.headline = Headline("legal_traces", higher_is_better=True, solved_at=0.99)
        self._held_out: Examples | None = None

    @property
    def _held_out_length(self) -> int:
        return self.config.held_out_length or self.config.max_length

    @cached_property
    def walks(self) -> Walks:
        """The transition table. Raises `ValueError` if the domain has too many states or a dead end."""
        model = self.model
        states = model.reachable(self.domain.start, limit=MOST_STATES + 1)
        if len(states) > MOST_STATES:
            raise ValueError(
                f"{self.config.domain} has more than {MOST_STATES:,} states, too many for this task: choose a smaller "
                "domain"
            )
        numbers = {state: number for number, state in enumerate(states)}
        applicable = [model.applicable(state) for state in states]
        counts = np.array([len(possible) for possible in applicable], np.int64)
        if not counts.all():
            raise ValueError(f"{self.config.domain} has states without applicable actions, where a walk would end")
        actions, after = np.zeros((2, len(states), counts.max()), np.int64)
        for row, (state, possible) in enumerate(zip(states, applicable)):
            actions[row, : len(possible)] = possible
            after[row, : len(possible)] = [numbers[model.result(state, action)] for action in possible]
        return Walks(counts, actions, after, numbers)

    # Drawing traces

    def training(self) -> None:
        """Returns None: every batch has fresh traces."""

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training traces without prompts, never held-out ones."""
        length = self.config.max_length

        def draw(missing: int) -> np.ndarray:
            drawn = self._draw(rng, int(missing * 1.1) + 8, "train", length)
            return drawn[~_is_held_out(drawn)]

        rows = collect(draw, n, width=length)
        if len(rows) < n:
            raise ValueError(
                f"{self.config.domain} has too few different traces of {length} actions to train on: set "
                "task.max_length higher"
            )
        return Examples(rows, np.full(n, length), np.zeros(n, np.int64))

    def held_out(self, n: int | None = None) -> Examples:
        """The fixed test set, or its first n traces. Prompt lengths cycle through all values from 1 on."""
        if self._held_out is None:
            self._held_out = self._of_length(self._held_out_length, self.config.held_out_traces)
        return self._held_out[: n if n is not None else len(self._held_out)]

    def held_out_by(self, option: str, value: str, n: int | None = None) -> Examples:
        """`length`: numbers of actions, separated by commas; of each length as many traces as in the test set, or n.
        Raises `ValueError` for other values, and for lengths of which there are too few traces."""
        if option != "length":
            return super().held_out_by(option, value, n)
        parts = []
        for length in numbers_of(option, value):
            if not 2 <= length <= self.context:
                raise ValueError(
                    f"`length` {length}: a trace has 2 to {self.context} actions, the context of the model; for more, "
                    "train with a larger task.held_out_length"
                )
            parts.append(self._of_length(length, self.config.held_out_traces)[:n])
        return Examples.joined(parts)

    def _of_length(self, length: int, total: int) -> Examples:
        """Different traces that are held out, of one length. Prompt lengths cycle through all values from 1 on."""
        rng = np.random.default_rng([self.config.data_seed, 2])

        def draw(missing: int) -> np.ndarray:
            drawn = self._draw(rng, ONE_IN * total + 100, "test", length)
            return drawn[_is_held_out(drawn)]

        rows = collect(draw, total, width=length, different=True, patience=20)
        if len(rows) < total:
            raise ValueError(
                f"{self.config.domain} has too few different traces of {length} actions: {len(rows)} were found to "
                f"hold out, not {total}. Choose longer traces or set task.held_out_traces lower"
            )
        return Examples(rows, np.full(total, length), 1 + np.arange(total) % (length - 1))

    def _draw(self, rng: np.random.Generator, n: int, split: str, length: int) -> np.ndarray:
        """(n, length): traces of a split."""
        begins = self._begins[SPLITS[split]]
        return self.walks.walk(rng, begins[rng.integers(len(begins), size=n)], length)

    @cached_property
    def _begins(self) -> np.ndarray:
        """(4,) numbers of the initial states."""
        states = self.domain.initial_states(4, self.config.states_seed)
        return np.array([self.walks.numbers[state] for state in states])

    # Text and files

    def encode(self, text: str) -> np.ndarray:
        """Token ids of action names separated by commas."""
        return self.vocab.encode([" ".join(name.split()) for name in text.split(",") if name.strip()])

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Action names separated by commas."""
        return ", ".join(self.vocab.decode(tokens))

    def read(self, path: Path) -> Examples:
        """Positive traces of a trace file, CSV or JSON lines, as `statewise strips traces` writes them.

        The first half of each is its prompt. Raises `ValueError` for traces that are negative or too long.
        """
        traces = read_traces(path, self.vocab.symbols)
        for number, (row, label) in enumerate(zip(traces.rows, traces.labels), 1):
            rejected = self.model.first_rejected(row)
            if label or rejected is not None:
                reason = "it is labelled negative" if rejected is None else f"action {rejected + 1} is not possible"
                raise ValueError(
                    f"{path}: trace {number} of {len(traces)} is negative: {reason}. This task takes only positive ones"
                )
            if len(row) > self.context:
                raise ValueError(
                    f"{path}: trace {number} of {len(traces)} has {len(row)} actions, but the longest of the task has "
                    f"{self.context}"
                )
        return Examples.of([np.array(row) for row in traces.rows], [len(row) // 2 for row in traces.rows])

    # Scores

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`legal_next`: the first action of the completion is legal. `legal_traces`: all are, and none is missing.

        With greedy decoding, `legal_next` measures the most likely action after prompts of all lengths; with sampling,
        the probability of legal actions. Of several lengths with equally many traces, both of each
        (`legal_next_length_60`).
        """
        first, whole = np.zeros((2, len(completions)), bool)
        for row, completion in enumerate(completions):
            known_false = self.model.after(examples.prompt(row).tolist())
            tokens = completion.tokens[: len(examples.answer(row))].tolist()
            rejected = self.model.first_rejected(tokens, known_false)
            first[row] = bool(tokens) and rejected != 0
            whole[row] = len(tokens) == len(examples.answer(row)) and rejected is None
        scores = {"legal_next": float(first.mean()), "legal_traces": float(whole.mean())}
        lengths, counts = np.unique(examples.lengths, return_counts=True)
        for length in lengths.tolist() if len(lengths) > 1 and len(set(counts.tolist())) == 1 else []:
            of_length = examples.lengths == length
            scores[f"legal_next_length_{length}"] = float(first[of_length].mean())
            scores[f"legal_traces_length_{length}"] = float(whole[of_length].mean())
        return scores

    def score_positions(self, examples: Examples, chosen: np.ndarray) -> dict[str, float]:
        """`forced_accuracy`: accuracy where only one action is legal; elsewhere the next action is random."""
        correct = chosen == examples.tokens
        forced = np.zeros(correct.shape, bool)
        forced[:, 1:] = self._legal_after(examples).sum(axis=2)[:, :-1] == 1
        column = np.arange(correct.shape[1])
        scored = (column >= np.maximum(examples.prompt_lengths, 1)[:, None]) & (column < examples.lengths[:, None])
        counted = correct[forced & scored]
        return {"forced_accuracy": float(counted.mean())} if len(counted) else {}

    @cached_property
    def chance(self) -> Mapping[str, float]:  # type: ignore[override]
        """`legal_next` of uniformly random actions."""
        examples = self.held_out()
        before = self._legal_after(examples)[np.arange(len(examples)), examples.prompt_lengths - 1]
        return {"legal_next": float(before.mean())}

    # World

    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T): the number of the true state after each position; -1 on padding and where it is unknown.

        It follows from the whole trace and the four initial states. If the trace is possible from several of these, the
        state is known where all of them lead to the same one; if from none, as in files of other walks, nowhere.
        """
        state = np.broadcast_to(self._begins, (len(examples), len(self._begins)))
        passed = np.empty((*examples.tokens.shape, len(self._begins)), np.int64)
        for position, actions in enumerate(examples.tokens.T):
            real = (position < examples.lengths)[:, None]
            state = np.where(real & (state >= 0), self._following[state, actions[:, None]], state)
            passed[:, position] = state
        alive = (state >= 0)[:, None]  # initial states from which the whole trace is possible
        lowest = np.where(alive, passed, np.iinfo(np.int64).max).min(axis=2)
        known = alive.any(axis=2) & (np.where(alive, passed, -1).max(axis=2) == lowest)
        real = np.arange(examples.tokens.shape[1]) < examples.lengths[:, None]
        return np.where(known & real, lowest, -1)

    @cached_property
    def _following(self) -> np.ndarray:
        """(S, V) number of the state after an action, -1 where it is not applicable."""
        walks = self.walks
        following = np.full((len(walks.counts), len(self.vocab)), -1, np.int64)
        rows, columns = np.nonzero(np.arange(walks.actions.shape[1]) < walks.counts[:, None])
        following[rows, walks.actions[rows, columns]] = walks.after[rows, columns]
        return following

    def _legal_after(self, examples: Examples) -> np.ndarray:
        """(n, T, V) bool: the legal actions (Definition 1) after each position."""
        known_false = np.zeros(len(examples), np.int64)
        allowed = np.empty((*examples.tokens.shape, len(self.vocab)), bool)
        for position, actions in enumerate(examples.tokens.T):
            known_false = known_false & ~self._sets["add"][actions] | self._sets["delete"][actions]
            allowed[:, position] = self._sets["pre"] & known_false[:, None] == 0
        return allowed

    @cached_property
    def _sets(self) -> dict[str, np.ndarray]:
        """Preconditions, add and delete effects of each action, (V,) bits."""
        return {
            kind: np.array([getattr(action, kind) for action in self.model.actions], np.int64)
            for kind in ("pre", "add", "delete")
        }

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """Legal actions (Definition 1) after a trace; none after one of maximal length."""
        if len(prefix) >= self.context:
            return np.empty(0, np.int64)
        return np.array(self.model.possible(self.model.after(prefix.tolist())), np.int64)


def _is_held_out(rows: np.ndarray) -> np.ndarray:
    """(n,) bool: whether the hash of a trace selects it."""
    factors = np.random.default_rng(2024).integers(1, 2**64, rows.shape[1], dtype=np.uint64)
    return chosen(((rows + 1).astype(np.uint64) * factors).sum(axis=1))
