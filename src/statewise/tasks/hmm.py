"""Sequences of a hidden Markov process whose beliefs are known exactly (Shai et al. 2024).

Nothing is held out: leaving out words would change the very probabilities that are to be learned. The held-out set is a
fixed sample of the same process, and `excess` compares the model with the exact prediction of each of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from typing_extensions import override

from statewise.beliefs.entropy import ROWS_AT_ONCE, floors
from statewise.beliefs.process import Process, coordinates
from statewise.beliefs.reachable import Finite, finite
from statewise.beliefs.sources import SHAPE, as_factor, as_json, process, read_matrices
from statewise.data_types import Completion, Examples, Headline
from statewise.runtime.bounds import bounded, check_tokens
from statewise.runtime.messages import counted, cut, short
from statewise.tasks.automaton import Automaton, Pairs
from statewise.tasks.base import Believed, HasBaselines, Kept, Prefixes, SpacedText, Vocab, kept_json
from statewise.tasks.own_files.lines import read_rows

BOS = "<bos>"
FINITE = 4096
"""Most beliefs of a process whose beliefs are listed."""


@dataclass(frozen=True)
class HmmConfig:
    """Fields of `task: hmm`."""

    process: str = "mess3"
    """The process: mess3, rrxor, leaky-rrxor, checksum, z1r, golden-mean, even, sns, bloch-walk, post-quantum, fanizza;
    with parameters, `mess3(x=0.15, a=0.6)`. `A * B` runs two side by side, a token being the pair of theirs; in
    `A * (B | C | D)` the second depends on the token of the first, one alternative each; in `A + B` a sequence
    comes from one of the two, in `0.9 A + 0.1 B` with these probabilities."""
    path: str | None = None
    """A JSON or NPZ file with your own matrices, instead of `process`."""
    noise: float = 0.0
    """Probability that a token is replaced by one drawn uniformly."""
    length: int = 10
    """Tokens of a sequence."""
    bos: bool = False
    """Whether a sequence begins with the additional token <bos>, after which the belief is that before the first token;
    else the first token is not scored."""
    held_out_sequences: int = 2000
    """Size of the fixed test set."""
    data_seed: int = 0
    """Seed of the fixed test set."""

    def __post_init__(self) -> None:
        bounded(self, "length", prefix="task.", at_least=2, at_most=10**5)
        bounded(self, "noise", prefix="task.", at_least=0, at_most=1)
        bounded(self, "held_out_sequences", prefix="task.", at_least=1, at_most=10**8)
        bounded(self, "data_seed", prefix="task.", at_least=0)


class ProcessTask(SpacedText, Believed, Automaton, HasBaselines):
    """Sequences of a process. The text of a sequence is its token names, separated by spaces.

    As an automaton its states are pairs of a belief and the number of tokens read, if the beliefs are finitely many.
    """

    view = "belief"
    decoded = False
    drawn_at_once = 1024
    disjoint = False
    process: Process

    def _prepare(self, what: str, length: int, bos: bool) -> None:
        """Sets what follows from the process, which is named `what`: rows have `length` of its tokens."""
        self.what, self.row_length, self.opening = what, length, int(bos)
        self.vocab = Vocab([*self.process.tokens, *([BOS] if bos else [])])
        self.context = self.longest = length + bos
        check_tokens("task.held_out_sequences", self.config.held_out_sequences, self.context)
        self.headline = Headline("loss", higher_is_better=False)
        self.widths = [len(coordinates(each)) for each in self.process.factors]
        self.simplex_factors = [each.is_hidden_markov for each in self.process.factors]
        self.dimensions = [each.states - 1 for each in self.process.factors]
        self.joint_states = self.process.states
        self._held_out: Examples | None = None
        if self.process.vocabulary < 2:
            raise ValueError(f"{what}: the process has only one token: there is nothing to predict")

    def summary(self) -> list[str]:
        """A summary of the process."""
        known = self._finite
        beliefs = counted(len(known.beliefs), "belief") if known else f"more than {FINITE:,} beliefs"
        scored = self._floors[0][1:][self.predicting(np.arange(self.context - 1))]
        exact = "" if self._floors[1] else ", estimated for positions with too many beliefs to list"
        return [
            f"{self.what}: {counted(self.process.states, 'hidden state')}, "
            f"{counted(self.process.vocabulary, 'token')}, {beliefs}; "
            f"the floor of the loss is {scored.mean():.5f} nats per token{exact}"
        ]

    # Sequences

    def training(self) -> None:
        """Returns None: every batch has fresh sequences."""

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n sequences of the process."""
        return self._examples(self.process.draw(rng, n, self.row_length))

    def held_out(self, n: int | None = None) -> Examples:
        """A fixed sample, or its first n sequences."""
        if self._held_out is None:
            # Four numbers: those of training batches have three, and zeros at the end do not count.
            rng = np.random.default_rng([self.config.data_seed, 2, 0, 1])
            self._held_out = self.sample(rng, self.config.held_out_sequences)
        return self._held_out[: n if n is not None else len(self._held_out)]

    def _examples(self, words: np.ndarray) -> Examples:
        """Sequences of words (n, L)."""
        n, bos = len(words), bool(self.opening)
        tokens = np.concatenate([np.full((n, 1), self.process.vocabulary), words], axis=1) if bos else words
        return self._with_scored(Examples(tokens, np.full(n, tokens.shape[1]), np.zeros(n, np.int64)))

    def _with_scored(self, examples: Examples) -> Examples:
        """The sequences with what is scored of them: everything."""
        return examples

    def encode(self, text: str) -> np.ndarray:
        """Token ids of token names separated by spaces. Raises `ValueError` for tokens that the process cannot emit."""
        row = self.vocab.encode(text.split())
        impossible = self._impossible(row[: self.context]) if len(row) else ""  # longer ones are refused by length
        if impossible:
            raise ValueError(impossible)
        return row

    def encode_later(self, text: str) -> np.ndarray:
        """Token ids of token names without <bos>. Raises `ValueError` for tokens that the process cannot emit, whatever
        came before (where its states are hidden states)."""
        row = self.vocab.encode(text.split())
        if self.opening and self.process.vocabulary in row:
            raise ValueError(f"{BOS} begins a sequence, and {cut(repr(text))} comes later: leave it out")
        if all(self.simplex_factors):
            anywhere = np.full((1, self.process.states), 1 / self.process.states)
            for place, token in enumerate(row[: self.context]):  # longer ones are refused by length
                anywhere, probability = self.process.update(anywhere, np.array([token]))
                if not probability[0]:
                    name, before = self.vocab.symbols[token], cut(self.decode(row[:place])) or "anything"
                    raise ValueError(f"token {place + 1}, {name!r}, has probability 0 after {before}")
        return row

    def read(self, path: Path) -> Examples:
        """Sequences, one per line, of any length within the task's. Raises `ValueError` with the line for tokens that
        the process cannot emit."""
        rows = read_rows(path, self.encode, self._problem)
        return self._with_scored(Examples.of(rows, [0] * len(rows)))

    def _problem(self, row: np.ndarray) -> str:
        """The problem of a sequence; empty if it is possible."""
        if not 2 <= len(row) <= self.context:
            return f"{len(row)} tokens, but there must be 2 to {self.context} (task.length {self.row_length})"
        return ""

    def _impossible(self, row: np.ndarray) -> str:
        """The token of a sequence that has probability 0; empty if the sequence is possible."""
        probabilities = np.atleast_1d(self._given(Examples.of([row], [0]))[0])
        bad = np.flatnonzero(~(probabilities > 0))
        if not len(bad):
            return ""
        if self.opening and not bad[0]:
            return f"sequences of this run begin with {BOS}, not with {self.vocab.symbols[row[0]]!r}"
        name, before = self.vocab.symbols[row[bad[0]]], cut(self.decode(row[: bad[0]])) or "the start"
        return f"token {bad[0] + 1}, {name!r}, has probability 0 after {before}"

    # Beliefs

    def _walk(self, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
        """(n, T, S) the joint belief after each position, NaN where it is not possible, and (n, T) the probability of
        each token given those before; of <bos> 1."""
        if not self.opening:
            beliefs, probabilities = self.process.posteriors(examples.tokens)
            return beliefs[:, 1:], probabilities
        opened = examples.tokens[:, :1] == self.process.vocabulary
        beliefs, probabilities = self.process.posteriors(examples.tokens[:, 1:])
        beliefs[~opened[:, 0]] = np.nan
        return beliefs, np.concatenate([opened, np.where(opened, probabilities, 0)], axis=1)

    def _blocks(self, examples: Examples) -> list[slice]:
        size = max(1, ROWS_AT_ONCE // (examples.tokens.shape[1] * max(self.process.states, self.process.vocabulary)))
        return [slice(at, at + size) for at in range(0, len(examples), size)]

    def _given(self, examples: Examples) -> np.ndarray:
        """(n, T): the probability of each token given those before it."""
        return np.concatenate([self._walk(examples[rows])[1] for rows in self._blocks(examples)])

    @override
    def beliefs(self, examples: Examples) -> np.ndarray:
        """The beliefs of all factors about their own states."""
        parts = []
        for rows in self._blocks(examples):
            parts.append(self.process.told(self._walk(examples[rows])[0]))
        return np.concatenate(parts)

    @override
    def constrained_beliefs(self, examples: Examples) -> np.ndarray:
        parts = []
        for rows in self._blocks(examples):
            parts.append(self.process.told(self._constrained(examples[rows])))
        return np.concatenate(parts)

    def _constrained(self, examples: Examples) -> np.ndarray:
        """(n, T, S): constrained updates of the joint belief. With p_t the belief before which nothing is read, and
        u(p, z) its update by a token z: p_t + sum over s <= t of (u(p_(s-1), z_s) - p_s) M^(t-s), M the sum of all
        tokens' matrices."""
        possible, _ = self._walk(examples)
        prior = self.process.start[None]
        change, beliefs = np.zeros((len(examples), self.process.states)), np.empty(possible.shape)
        for place in range(examples.tokens.shape[1]):
            if place or not self.opening:
                column = examples.tokens[:, place]
                alone, _ = self.process.update(
                    np.tile(prior, (len(column), 1)), np.where(column < self.process.vocabulary, column, 0)
                )
                prior = self.process.drift(prior)
                change = self.process.drift(change) + alone - prior
            beliefs[:, place] = prior + change
        beliefs[np.isnan(possible)] = np.nan
        return beliefs

    @override
    def next_tokens(self, examples: Examples) -> np.ndarray:
        """<bos> has probability 0."""
        n, T = examples.tokens.shape
        probabilities = np.zeros((n, T, len(self.vocab)))
        for rows in self._blocks(examples):
            joint, _ = self._walk(examples[rows])
            probabilities[rows, :, : self.process.vocabulary] = self.process.next_tokens(joint)
        return probabilities

    @override
    def prefixes(self, most: int, seed: int, longest: int | None = None) -> Prefixes:
        words, weights, length = np.zeros((1, 0), np.int64), np.ones(1), longest or self.row_length
        now = self.process.start[None]
        while words.shape[1] < length:
            probabilities = self.process.probabilities(now)
            if np.count_nonzero(probabilities) > most:
                break
            rows, tokens = np.nonzero(probabilities)
            words = np.concatenate([words[rows], tokens[:, None]], axis=1)
            weights = weights[rows] * probabilities[rows, tokens]
            now, _ = self.process.update(now[rows], tokens)
        exact = 2 * words.shape[1] >= length
        if not exact:
            n = max(2, min(most, 2 * most // length))  # with about as many prefixes as lists of words have
            rng = np.random.default_rng([self.config.data_seed, 3, seed, 1])  # four numbers, as of held-out sequences
            words = self.process.draw(rng, n, length)
            weights = np.full(n, 1 / n)
        examples, bos = self._examples(words), int(self.opening)
        order = np.lexsort(words.T[::-1])
        ranked = words[order]
        changed = np.ones(ranked.shape, bool)  # whether the prefix that ends here differs from that of the row above
        changed[1:] = np.logical_or.accumulate(ranked[1:] != ranked[:-1], axis=1)
        if bos:
            changed = np.concatenate([np.arange(len(changed))[:, None] == 0, changed], axis=1)
        columns, above = np.nonzero(changed.T)
        of_columns = np.split(above, np.flatnonzero(np.diff(columns)) + 1)
        mass = np.concatenate([np.add.reduceat(weights[order], begins) for begins in of_columns])
        return Prefixes(examples, order[above], columns, mass / mass.sum(), exact)

    @override
    def draw(self, rng: np.random.Generator, n: int, length: int) -> Examples:
        return self._examples(self.process.draw(rng, n, length))

    @override
    def vary(self, rng: np.random.Generator, factor: int, n: int) -> Examples:
        """In conditional products, the tokens of the other factors may become less likely."""
        radix, words = self.process.radix, self.process.draw(rng, n, self.row_length)
        digits, common = np.unravel_index(words, radix), np.unravel_index(words[:1], radix)
        mixed = [digits[place] if place == factor else np.tile(common[place], (n, 1)) for place in range(len(radix))]
        return self._examples(np.ravel_multi_index(mixed, radix))

    @cached_property
    def _floors(self) -> tuple[np.ndarray, bool]:
        """(T,) floors, and whether they are exact."""
        by_length, exact = floors(self.process, self.row_length)
        return np.concatenate([[0.0] * self.opening, by_length]), exact

    @override
    def floors(self) -> np.ndarray:
        """Exact, except where too many beliefs are possible: then estimated from a fixed sample."""
        return self._floors[0]

    # Scores

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`exact_match`: the share of completions that are the sequence's own tokens."""
        right = [np.array_equal(completion.tokens, examples.answer(row)) for row, completion in enumerate(completions)]
        return {"exact_match": float(np.mean(right))}

    def score_nats(self, examples: Examples, nats: np.ndarray, scored: np.ndarray) -> dict[str, float]:
        """`floor`: the mean of `floors` over the scored tokens; `excess`: the mean nats above those of the exact
        prediction of the same tokens; `position_1_excess`, ...: the same at each token of the process."""
        above = np.where(scored, nats + np.log(np.where(scored, self._given(examples), 1.0)), 0.0)
        floors, counts = self.floors()[: nats.shape[1]], scored.sum(0)
        metrics = {"floor": float(floors @ counts / counts.sum()), "excess": float(above.sum() / counts.sum())}
        for place in np.flatnonzero(counts):
            metrics[f"position_{place + 1 - self.opening}_excess"] = float(above[:, place].sum() / counts[place])
        return metrics

    def baselines(self, examples: Examples) -> dict[str, dict[str, float]]:
        """`exact belief`: the best prediction, from the belief; `no context`: the same distribution for every token."""
        probabilities = self.next_tokens(examples)[:, :-1]
        alone = self.process.next_tokens(self.process.start[None])[0]
        alone = np.broadcast_to(alone, (*probabilities.shape[:2], self.process.vocabulary))
        return self._scores(examples, probabilities, "exact belief") | self._scores(examples, alone, "no context")

    def _scores(self, examples: Examples, shares: np.ndarray, name: str) -> dict[str, dict[str, float]]:
        """Metrics of a predictor called `name` with the probabilities (n, T - 1, V) of each token but the first."""
        targets = examples.tokens[:, 1:]  # the first token of a row is never scored
        scored = np.arange(1, examples.tokens.shape[1]) < examples.lengths[:, None]
        if examples.scored is not None:
            scored &= examples.scored[:, 1:]
        own = np.take_along_axis(shares, targets[..., None], axis=2)[..., 0][scored]
        right = shares.argmax(2)[scored] == targets[scored]
        with np.errstate(divide="ignore"):
            loss = float(-np.log(own).mean())
        return {name: {"loss": loss, "token_accuracy": float(right.mean())}}

    # World and automaton

    @cached_property
    def _finite(self) -> Finite | None:
        return finite(self.process, FINITE)

    @property
    def _states(self) -> Finite:
        """The finite set of beliefs. Raises `ValueError` if there is none."""
        if self._finite is None:
            raise ValueError(
                f"{cut(self.what)} has more than {FINITE:,} different beliefs, so no two of its words need lead to "
                "the same one: choose a process with finitely many, such as rrxor, z1r, even, golden-mean or checksum"
            )
        return self._finite

    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T): the number of the belief after each position, if the process has finitely many; else -1."""
        if self._finite is None:
            return np.full(examples.tokens.shape, -1)
        numbers = self._numbers(examples.tokens)[:, 1:]
        return np.where(np.arange(numbers.shape[1]) < examples.lengths[:, None], numbers, -1)

    def _numbers(self, tokens: np.ndarray) -> np.ndarray:
        """(n, 1 + t): the number of the belief before `tokens` (n, t) and after each of them, -1 after impossible
        ones."""
        states, now = self._states, np.zeros(len(tokens), np.int64)
        numbers = [now]
        for place, column in enumerate(tokens.T):
            if place == 0 and self.opening:
                now = np.where(column == self.process.vocabulary, now, -1)
            else:
                known = (now >= 0) & (column < self.process.vocabulary)
                now = np.where(known, states.after[now, np.where(known, column, 0)], -1)
            numbers.append(now)
        return np.stack(numbers, axis=1)

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """The tokens of positive probability; none at the end."""
        if len(prefix) >= self.context:
            return np.empty(0, np.int64)
        if self.opening and not len(prefix):
            return np.array([self.process.vocabulary])
        now = self.process.start[None]
        if len(prefix):
            now = self._walk(Examples(prefix[None], np.array([len(prefix)]), np.zeros(1, np.int64)))[0][:, -1]
        return np.flatnonzero(self.process.next_tokens(now)[0] > 0)

    @override
    def states_after(self, tokens: np.ndarray) -> np.ndarray:
        """States are pairs: the belief, and the number of tokens read."""
        n, t = tokens.shape
        now = self._numbers(tokens)[:, -1] if t <= self.context else np.full(n, -1)
        return np.where(now[:, None] >= 0, np.stack([now, np.full(n, t)], axis=1), -1)

    @override
    def step(self, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        allowed = self.allowed(states)[np.arange(len(states)), tokens]
        opens = tokens == self.process.vocabulary
        after = self._states.after[states[:, 0], np.where(opens, 0, tokens)]
        now = np.where(opens, states[:, 0], after)
        return np.where(allowed[:, None], np.stack([now, states[:, 1] + 1], axis=1), -1)

    @override
    def allowed(self, states: np.ndarray) -> np.ndarray:
        allowed = np.zeros((len(states), len(self.vocab)), bool)
        belief, read = states.T
        inside = (belief >= 0) & (read < self.context)
        opens = inside & (read == 0) & self.opening
        allowed[:, : self.process.vocabulary] = (inside & ~opens)[:, None] & (self._states.next_tokens[belief] > 0)
        if self.opening:
            allowed[:, -1] = opens
        return allowed

    @override
    def tokens_left(self, states: np.ndarray) -> np.ndarray:
        """Every sequence has the same length."""
        return np.where(states[:, 0] >= 0, self.context - states[:, 1], -1)

    @override
    def draw_pairs(self, rng: np.random.Generator, n: int, *, same_state: bool) -> Pairs:
        """Prefixes of drawn sequences, all lengths equally likely where such pairs exist."""
        _ = self._states
        firsts: list[np.ndarray] = []
        seconds: list[np.ndarray] = []
        for _ in range(100):
            if len(firsts) >= n:
                break
            length = int(rng.integers(1 + self.opening, self.context))
            drawn = np.unique(self.sample(rng, max(64, n // 8)).tokens[:, :length], axis=0)
            labels = self._numbers(drawn)[:, -1]
            one, other = rng.permutation(len(drawn)), rng.permutation(len(drawn))
            if same_state:  # neighbours in a random order within each belief
                order = one[np.argsort(labels[one], kind="stable")]
                one, other = order[:-1], order[1:]
            fits = np.flatnonzero((one != other) & ((labels[one] == labels[other]) == same_state))
            some = rng.permutation(fits)[: max(1, n // 16)]  # of any belief: they are in order
            firsts += list(drawn[one[some]])
            seconds += list(drawn[other[some]])
        if not firsts:
            raise ValueError(
                "no two different words of the same length lead to "
                + ("the same belief" if same_state else "different beliefs")
            )
        kept = slice(min(n, len(firsts)))
        first, second = (Examples.of(side[kept], [0] * len(side[kept])) for side in (firsts, seconds))
        return Pairs(first, second, n)


class Hmm(ProcessTask):
    """Sequences of a hidden Markov process."""

    Config = HmmConfig
    config: HmmConfig

    def __init__(self, config: HmmConfig, kept: Kept | None = None) -> None:
        self.config = config
        self._content = None
        if config.path is None:
            if config.process.endswith((".json", ".npz", ".npy")):
                raise ValueError(f"task.process {short(config.process)} is the name of a file: give it as task.path")
            self.process = process(config.process, config.noise)
        elif kept is not None:
            self._content = kept_json(kept, "process.json", SHAPE)
            self.process = Process([as_factor(self._content, "task/process.json of this run")], config.noise)
        else:
            self._content = read_matrices(Path(config.path))
            self.process = Process([as_factor(self._content, config.path)], config.noise)
        self._prepare(config.path or config.process, config.length, config.bos)

    def files(self) -> dict[str, bytes]:
        """The matrices, if they are the user's own."""
        return {} if self._content is None else {"process.json": as_json(self._content)}
