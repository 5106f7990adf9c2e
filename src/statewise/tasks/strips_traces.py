"""Action traces of a planning domain: predict an action that may come next.

The same random walks that the STRIPS Transformer is trained on, here as sequences, so that a sequence model can be held
against it. Where that one learns from positive and negative traces which are which, a sequence model sees positive ones
alone and shows what it knows by the actions that it predicts.

What may come next is what Definition 1 of the STRIPS Transformer paper allows: anything that requires no atom whose
last effect so far was a delete. No initial state is told, and more does not follow from the actions alone: all that it
allows could be done if every atom were true at the start. A model that remembers the states in which its training walks
began may know more; that it is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from statewise.strips.domains import Domain, domain
from statewise.strips.model import Atoms
from statewise.strips.trace_files import read_traces
from statewise.strips.traces import SPLITS
from statewise.tasks.base import Kept, Task, World
from statewise.tasks.vocab import Vocab
from statewise.types import Completion, Examples, Headline

HELD_OUT_SHARE = 16
"""One trace in so many is held out: which, its hash decides, so that no stream of fresh traces meets it."""
MOST_STATES = 20_000
"""Domains with more states are refused: walks read a table of all."""
MOST_ATOMS = 62
"""Sets of atoms are the bits of an int64 here."""


@dataclass(frozen=True)
class StripsTracesConfig:
    """Fields of `task: strips_traces`."""

    domain: str = "blocksworld:3"
    """The domain and its size, as `statewise strips` writes them: simple, blocksworld:3, ferry:2x1, ..."""
    max_length: int = 30
    """Actions of a training trace. A walk has no end of its own, so that all are as long as this."""
    held_out_length: int | None = None
    """Actions of a held-out trace; null: as many as in training."""
    held_out_traces: int = 1000
    """Size of the fixed test set; its traces are all different."""
    states_seed: int = 0
    """Which four states of the domain the walks begin in: two in training, the other two in tests."""
    data_seed: int = 0
    """Seed of the fixed test set."""

    def __post_init__(self) -> None:
        if self.max_length < 2 or (self.held_out_length is not None and self.held_out_length < 2):
            raise ValueError("task.max_length and task.held_out_length must be at least 2")
        if self.held_out_traces < 1:
            raise ValueError("task.held_out_traces must be at least 1")


class Walks(NamedTuple):
    """What can be done in each state of a domain, as arrays over its S states."""

    counts: np.ndarray
    """(S,) how many actions are applicable."""
    actions: np.ndarray
    """(S, most) their numbers, padded with 0."""
    after: np.ndarray
    """(S, most) the places of the states after them."""
    places: dict[Atoms, int]
    """Where each state stands."""

    def walk(self, rng: np.random.Generator, begins: np.ndarray, length: int) -> np.ndarray:
        """(n, length) actions of random walks from the states at `begins` (n,), all walks at once."""
        rows, state = np.empty((len(begins), length), np.int64), begins
        for column in rows.T:
            choice = (rng.random(len(state)) * self.counts[state]).astype(np.int64)
            column[:] = self.actions[state, choice]
            state = self.after[state, choice]
        return rows


class StripsTraces(Task, World):
    """Random walks through a planning domain; an action is a token. As text: names with commas between them."""

    Config = StripsTracesConfig

    def __init__(self, config: StripsTracesConfig, kept: Kept | None = None) -> None:
        self.config = config
        self.domain: Domain = domain(config.domain)
        self.model = self.domain.model
        if len(self.model.atoms) > MOST_ATOMS:
            raise ValueError(
                f"{config.domain} has {len(self.model.atoms)} atoms; as a task for sequence models a domain may have "
                f"{MOST_ATOMS}: choose a smaller one"
            )
        self.vocab = Vocab(self.model.names)
        self.context = max(config.max_length, self._held_out_length)
        self.headline = Headline("legal_traces", higher_is_better=True, solved_at=0.99)
        self._held_out: Examples | None = None

    @property
    def _held_out_length(self) -> int:
        return self.config.held_out_length or self.config.max_length

    @cached_property
    def walks(self) -> Walks:
        """The table that walks read. Raises `ValueError` if the domain has too many states or a dead end."""
        model = self.model
        states = model.reachable(self.domain.start, limit=MOST_STATES + 1)
        if len(states) > MOST_STATES:
            raise ValueError(
                f"{self.config.domain} has more than {MOST_STATES:,} states, which is too many for a task that draws "
                "fresh traces: choose a smaller one"
            )
        places = {state: place for place, state in enumerate(states)}
        possible = [model.applicable(state) for state in states]
        counts = np.array([len(numbers) for numbers in possible], np.int64)
        if not counts.all():
            raise ValueError(f"{self.config.domain} has states in which nothing can be done, where a walk would end")
        actions, after = np.zeros((2, len(states), counts.max()), np.int64)
        for place, (state, numbers) in enumerate(zip(states, possible)):
            actions[place, : len(numbers)] = numbers
            after[place, : len(numbers)] = [places[model.result(state, number)] for number in numbers]
        return Walks(counts, actions, after, places)

    # Drawing traces

    def training(self) -> None:
        """Traces are drawn afresh without end."""

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training traces, all of whose actions are asked for; none of them is ever held out."""
        rows = np.empty((0, self.config.max_length), np.int64)
        while len(rows) < n:
            drawn = self._draw(rng, int((n - len(rows)) * 1.1) + 8, "train", self.config.max_length)
            rows = np.concatenate([rows, drawn[~_is_held_out(drawn)]])
        return Examples(rows[:n], np.full(n, self.config.max_length), np.zeros(n, np.int64))

    def held_out(self, n: int | None = None) -> Examples:
        """The fixed test set, or its first n traces. Their prompts have each length from 1 on in turn."""
        config, length = self.config, self._held_out_length
        if self._held_out is None:
            rng = np.random.default_rng([config.data_seed, 2])
            rows, fruitless = np.empty((0, length), np.int64), 0
            while len(rows) < config.held_out_traces:
                drawn = self._draw(rng, HELD_OUT_SHARE * config.held_out_traces + 100, "test", length)
                before = len(rows)
                rows = _different(np.concatenate([rows, drawn[_is_held_out(drawn)]]))
                fruitless = 0 if len(rows) > before else fruitless + 1
                if fruitless == 20:
                    raise ValueError(
                        f"{config.domain} has too few different traces of {length} actions: {len(rows)} were found to "
                        f"hold out, not {config.held_out_traces}. Set task.max_length higher or task.held_out_traces "
                        "lower"
                    )
            total = config.held_out_traces
            prompts = 1 + np.arange(total) % (length - 1)
            self._held_out = Examples(rows[:total], np.full(total, length), prompts)
        return self._held_out[: n if n is not None else len(self._held_out)]

    def _draw(self, rng: np.random.Generator, n: int, split: str, length: int) -> np.ndarray:
        """(n, length): traces of a split."""
        begins = self._begins[SPLITS[split]]
        return self.walks.walk(rng, begins[rng.integers(len(begins), size=n)], length)

    @cached_property
    def _begins(self) -> np.ndarray:
        """(4,) the states in which walks begin."""
        states = self.domain.initial_states(4, self.config.states_seed)
        return np.array([self.walks.places[state] for state in states])

    # Text and files

    def encode(self, text: str) -> np.ndarray:
        """Token ids of names with commas between them."""
        return self.vocab.encode([" ".join(name.split()) for name in text.split(",") if name.strip()])

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Names with commas between them."""
        return ", ".join(self.vocab.decode(tokens))

    def read(self, path: Path) -> Examples:
        """Positive traces of a trace file, CSV or JSON lines, as `statewise strips traces` writes them.

        The first half of each is its prompt. Raises `ValueError` at a trace that is negative or too long.
        """
        found = read_traces(path, self.vocab.symbols)
        for number, (row, label) in enumerate(zip(found.rows, found.labels), 1):
            rejected = self.model.first_rejected(row)
            if label or rejected is not None:
                where = (
                    "its last action is labelled so" if rejected is None else f"action {rejected + 1} is not possible"
                )
                raise ValueError(
                    f"{path}: trace {number} of {len(found)} is negative: {where}. This task is of positive traces"
                )
            if len(row) > self.context:
                raise ValueError(
                    f"{path}: trace {number} of {len(found)} has {len(row)} actions, but the longest that the task "
                    f"knows has {self.context}"
                )
        return Examples.of([np.array(row) for row in found.rows], [len(row) // 2 for row in found.rows])

    # Scores

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`legal_next`: the first action of the completion is legal. `legal_traces`: all are, and as many as asked for.

        Decoded greedily, `legal_next` asks for the model's first choice after prompts of all lengths; drawn from the
        model, for the probability that it gives to the legal actions.
        """
        first, whole = 0, 0
        for row, completion in enumerate(completions):
            known_false = self.model.after(examples.prompt(row).tolist())
            given = completion.tokens[: len(examples.answer(row))].tolist()
            rejected = self.model.first_rejected(given, known_false)
            first += bool(given) and rejected != 0
            whole += len(given) == len(examples.answer(row)) and rejected is None
        return {"legal_next": first / len(completions), "legal_traces": whole / len(completions)}

    def score_positions(self, examples: Examples, chosen: np.ndarray) -> dict[str, float]:
        """`forced_accuracy`: accuracy where but one action is legal. What comes next is chance anywhere else."""
        correct = chosen == examples.tokens
        forced = np.zeros(correct.shape, bool)
        forced[:, 1:] = self._legal_after(examples).sum(axis=2)[:, :-1] == 1
        column = np.arange(correct.shape[1])
        asked = (column >= np.maximum(examples.prompt_lengths, 1)[:, None]) & (column < examples.lengths[:, None])
        counted = correct[forced & asked]
        return {"forced_accuracy": float(counted.mean())} if len(counted) else {}

    @cached_property
    def chance(self) -> Mapping[str, float]:  # type: ignore[override]
        """`legal_next` of one who takes any action at all."""
        examples = self.held_out()
        before = self._legal_after(examples)[np.arange(len(examples)), examples.prompt_lengths - 1]
        return {"legal_next": float(before.mean())}

    # World

    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T): the number of the real state after each position; -1 on padding and where it is not known.

        It follows from the whole trace and the four states in which walks begin. Where the trace could be walked from
        more than one of these, or from none, as in files of other walks, it is known only where all lead to one state.
        """
        state = np.broadcast_to(self._begins, (len(examples), len(self._begins)))
        passed = np.empty((*examples.tokens.shape, len(self._begins)), np.int64)
        for place, actions in enumerate(examples.tokens.T):
            real = (place < examples.lengths)[:, None]
            state = np.where(real & (state >= 0), self._following[state, actions[:, None]], state)
            passed[:, place] = state
        alive = (state >= 0)[:, None]  # from where the whole trace can be walked
        lowest = np.where(alive, passed, np.iinfo(np.int64).max).min(axis=2)
        known = alive.any(axis=2) & (np.where(alive, passed, -1).max(axis=2) == lowest)
        real = np.arange(examples.tokens.shape[1]) < examples.lengths[:, None]
        return np.where(known & real, lowest, -1)

    @cached_property
    def _following(self) -> np.ndarray:
        """(S, V) the place of the state after an action, -1 where it is not applicable."""
        walks = self.walks
        following = np.full((len(walks.counts), len(self.vocab)), -1, np.int64)
        rows, columns = np.nonzero(np.arange(walks.actions.shape[1]) < walks.counts[:, None])
        following[rows, walks.actions[rows, columns]] = walks.after[rows, columns]
        return following

    def _legal_after(self, examples: Examples) -> np.ndarray:
        """(n, T, V) bool: the actions that Definition 1 allows after each position."""
        known_false = np.zeros(len(examples), np.int64)
        allowed = np.empty((*examples.tokens.shape, len(self.vocab)), bool)
        for place, actions in enumerate(examples.tokens.T):
            known_false = known_false & ~self._sets["add"][actions] | self._sets["delete"][actions]
            allowed[:, place] = self._sets["pre"] & known_false[:, None] == 0
        return allowed

    @cached_property
    def _sets(self) -> dict[str, np.ndarray]:
        """What each action requires, adds and deletes, (V,) bits."""
        return {
            kind: np.array([getattr(action, kind) for action in self.model.actions], np.int64)
            for kind in ("pre", "add", "delete")
        }

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """Actions that Definition 1 allows after a trace; none when it is as long as can be."""
        if len(prefix) >= self.context:
            return np.empty(0, np.int64)
        return np.array(self.model.possible(self.model.after(prefix.tolist())), np.int64)


def _is_held_out(rows: np.ndarray) -> np.ndarray:
    """(n,) bool: a share of the traces that their hash chooses."""
    factors = np.random.default_rng(2024).integers(1, 2**64, rows.shape[1], dtype=np.uint64)
    return (((rows + 1).astype(np.uint64) * factors).sum(axis=1) >> np.uint64(32)) % np.uint64(HELD_OUT_SHARE) == 0


def _different(rows: np.ndarray) -> np.ndarray:
    """The rows without those that came before, in their order."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
