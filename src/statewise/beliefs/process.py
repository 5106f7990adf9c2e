"""Processes that emit tokens, given by one matrix per token, and the exact belief about their hidden state.

T[z][i, j] is the probability, in state i, of emitting token z and going to state j. The belief b after some tokens is a
row vector: it starts as the stationary distribution, and each token z maps it to b T[z] / (b T[z] 1). The token itself
has probability b T[z] 1 (Shai et al. 2024, section 3). In *generalised* processes the matrices may have negative
entries, and the column 1 is replaced by a right eigenvector of their sum.

A process may have several factors, which run side by side: a token then is the tuple of their tokens, and the belief is
about the tuple of their states. A factor may use other matrices for each token of the factor before it.

`n` is a number of beliefs, `V` of tokens, `S` of states, and `F` of factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

MOST_STATES = 4096
"""Most states of all factors together."""
MOST_TOKENS = 65536
LARGEST = 2**24
"""Most numbers of a factor's matrices."""
SUMS_TO = 1e-5
"""How far a row of probabilities may be from a sum of 1; it is then divided by its sum."""
IMPOSSIBLE = 1e-12
"""Probabilities up to this are rounding errors of 0."""
MOST_WORDS = 4096
"""The words of a factor are searched for negative probabilities up to the length at which there are more than this."""


class NotAProcess(ValueError):
    """Raised for matrices that would define a process if the user followed the advice."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}: {advice}")
        self.problem = problem


@dataclass(frozen=True)
class Factor:
    """A process with one or several alternative sets of matrices, its variants."""

    matrices: np.ndarray
    """(C, V, S, S) float64, by variant: which one is used depends on the token of the factor before."""
    start: np.ndarray
    """(S,): the belief before the first token."""
    right: np.ndarray
    """(S,): a belief b has b . right = 1. Ones, except in generalised processes."""
    tokens: Sequence[str]
    """Names of the V tokens."""

    @property
    def variants(self) -> int:
        """Number C of variants."""
        return self.matrices.shape[0]

    @property
    def states(self) -> int:
        """Number S of states."""
        return self.matrices.shape[2]

    @property
    def is_hidden_markov(self) -> bool:
        """Whether beliefs are probabilities of hidden states, not a generalised process."""
        return bool((self.matrices >= 0).all() and (self.right == 1).all())


def factor(
    matrices: np.ndarray,
    tokens: Sequence[str] | None = None,
    start: np.ndarray | None = None,
    right: np.ndarray | None = None,
    what: str = "the process",
) -> Factor:
    """A factor with one variant, from its matrices (V, S, S).

    `start` is by default the stationary distribution; `right` makes it a generalised process. `what` begins error
    messages. Raises `ValueError` for matrices that are not stochastic, with the row, and for states that are never
    reached.
    """
    matrices = np.array(matrices, np.float64)
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or not matrices.size:
        raise ValueError(f"{what}: the matrices must be (tokens, states, states), not {matrices.shape}")
    V, S, _ = matrices.shape
    if matrices.size > LARGEST:
        raise ValueError(
            f"{what}: matrices of {V:,} tokens and {S:,} states are too large: {LARGEST:,} numbers at most"
        )
    if not np.isfinite(matrices).all():
        token, row, column = np.argwhere(~np.isfinite(matrices))[0]
        raise ValueError(f"{what}: token {token}, row {row}, column {column} is not a finite number")
    names = [str(token) for token in range(V)] if tokens is None else list(tokens)
    if len(names) != V or len(set(names)) != V:
        raise ValueError(f"{what}: {V} matrices need {V} different tokens, not {names[:20]}")
    if right is None:
        matrices, ones = _stochastic(matrices, what), np.ones(S)
        begin = _distribution(start, S, what) if start is not None else _stationary(matrices.sum(0), what)
        _check_reached(matrices.sum(0), begin, what)
        return Factor(matrices[None], begin, ones, names)
    right = np.array(right, np.float64)
    total = matrices.sum(0)
    if right.shape != (S,) or not np.isfinite(right).all() or np.abs(right).max() == 0:
        raise ValueError(f"{what}: right must be {S} finite numbers that are not all 0")
    scale = np.abs(right).max()  # it is arbitrary; below, tolerances are for numbers around 1
    right = right / scale
    with np.errstate(over="ignore", invalid="ignore"):
        off = np.abs(total @ right - right)
        start = None if start is None else np.array(start, np.float64) * scale
    if not off.max() <= SUMS_TO:
        worst = int(off.argmax())
        raise ValueError(
            f"{what}: right is not a right eigenvector of the sum of the matrices for the eigenvalue 1: row {worst} is "
            f"{off[worst]:.3g} off"
        )
    begin = _left_eigenvector(total, what) if start is None else np.array(start, np.float64)
    if (
        begin.shape != (S,)
        or not np.isfinite(begin).all()
        or abs(begin @ right) < IMPOSSIBLE
        or (start is not None and begin @ right < 0)
    ):
        raise ValueError(f"{what}: start must be {S} finite numbers with start . right above 0")
    result = Factor(matrices[None], begin / (begin @ right), right, names)
    _check_probabilities(result, what)
    return result


def alternatives(variants: Sequence[Factor], what: str = "the factor") -> Factor:
    """One factor whose variants are those of several, for the tokens of the factor before it. They must have the same
    numbers of tokens and states; the first gives the start. Raises `ValueError` if they differ."""
    first = variants[0]
    for other in variants[1:]:
        if other.matrices.shape[1:] != first.matrices.shape[1:] or not np.array_equal(other.right, first.right):
            raise ValueError(
                f"{what}: its alternatives differ in tokens or states, so they are not variants of one factor"
            )
    return replace(first, matrices=np.concatenate([variant.matrices for variant in variants]))


def mixture(parts: Sequence[Process], shares: Sequence[float]) -> Process:
    """A non-ergodic process: each sequence comes from one of `parts`, with the probability in `shares`. The belief has
    a block for each part, weighted by the probability of that part. One part is itself. Raises `ValueError` if the
    shares are not a distribution, and for products."""
    if not all(0 < share <= 1 for share in shares) or abs(sum(shares) - 1) > SUMS_TO:
        listed = ", ".join(f"{share:.6g}" for share in shares)
        raise ValueError(f"the probabilities of a mixture's parts must be above 0 and sum to 1, not {listed}")
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        if len(part.factors) > 1 or part.factors[0].variants > 1:
            raise ValueError("a mixture (+) combines single processes, not products (*)")
    factors = [part.factors[0] for part in parts]
    V, sizes = max(len(each.tokens) for each in factors), [each.states for each in factors]
    if sum(sizes) > MOST_STATES or V * sum(sizes) ** 2 > LARGEST:
        raise ValueError(
            f"a mixture (+) of {sum(sizes):,} states and {V:,} tokens is too large: at most {MOST_STATES:,} states and "
            f"{LARGEST:,} numbers of its matrices are possible"
        )
    matrices = np.zeros((V, sum(sizes), sum(sizes)))
    for each, end in zip(factors, np.cumsum(sizes)):
        block = slice(end - each.states, end)
        matrices[: len(each.tokens), block, block] = each.matrices[0]
    start = np.concatenate([each.start * share / sum(shares) for each, share in zip(factors, shares)])
    right = np.concatenate([each.right for each in factors])
    longest = max((each.tokens for each in factors), key=len)
    return Process([Factor(matrices[None], start, right, longest)])


@dataclass(frozen=True)
class Process:
    """Factors side by side, and noise."""

    factors: Sequence[Factor]
    noise: float = 0.0
    """Probability that a token is replaced by one drawn uniformly from all V."""
    joint: tuple[int, ...] = field(init=False)
    """States of each factor; beliefs are arrays of this shape, flattened."""
    radix: tuple[int, ...] = field(init=False)
    """Tokens of each factor; a token's number has their tokens as digits, those of the first factor first."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "joint", tuple(each.states for each in self.factors))
        object.__setattr__(self, "radix", tuple(len(each.tokens) for each in self.factors))
        if self.states > MOST_STATES or self.vocabulary > MOST_TOKENS:
            raise ValueError(
                f"the process has {self.states:,} states and {self.vocabulary:,} tokens: at most {MOST_STATES:,} and "
                f"{MOST_TOKENS:,} are possible; use fewer or smaller factors"
            )
        for place, each in enumerate(self.factors):
            before = self.radix[place - 1] if place else 1
            if each.variants not in (1, before):
                raise ValueError(
                    f"factor {place + 1} has {each.variants} alternatives, but "
                    + (f"the factor before it has {before} tokens" if place else "there is no factor before it")
                )

    @property
    def states(self) -> int:
        """Number S of states, of all factors together."""
        return prod(self.joint)

    @property
    def vocabulary(self) -> int:
        """Number V of tokens."""
        return prod(self.radix)

    @property
    def tokens(self) -> list[str]:
        """Names of the tokens; of several factors joined by dots."""
        names = [""]
        for each in self.factors:
            names = [f"{name}.{token}" if name else token for name in names for token in each.tokens]
        return names

    @property
    def start(self) -> np.ndarray:
        """(S,): the belief before the first token."""
        distribution = np.ones(1)
        for each in self.factors:
            distribution = np.outer(distribution, each.start).reshape(-1)
        return distribution

    def step(self, beliefs: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """(n, S): beliefs (n, S) after tokens (n,), not normalised: times `right` it is the token's probability."""
        digits = np.unravel_index(tokens, self.radix)
        x = beliefs
        for place, each in enumerate(self.factors):
            variant = digits[place - 1] if each.variants > 1 else 0
            # The axes before, of, and after the factor's states.
            x = x.reshape(len(x), prod(self.joint[:place]), each.states, -1)
            x = np.matmul(each.matrices[variant, digits[place]].transpose(0, 2, 1)[:, None], x)
        x = x.reshape(beliefs.shape)
        if self.noise:
            x = (1 - self.noise) * x + self.noise / self.vocabulary * self.drift(beliefs)
        return x

    def drift(self, beliefs: np.ndarray) -> np.ndarray:
        """(n, S): beliefs (n, S) after a token that is not read: the sum of the steps over all tokens, which noise does
        not change. Linear."""
        x = beliefs[:, None]  # the second axis: the last factor's token, where the next factor's matrices depend on it
        for place, each in enumerate(self.factors):
            x = x.reshape(len(x), -1, prod(self.joint[:place]), each.states, prod(self.joint[place + 1 :]))
            if each.variants == 1:
                x = x.sum(1, keepdims=True)
            x = np.einsum("nkpsq,kzst->nzptq", x, each.matrices)
        distances: np.ndarray = x.sum(1).reshape(beliefs.shape)
        return distances

    def probabilities(self, beliefs: np.ndarray) -> np.ndarray:
        """(n, V): probabilities of the next token, given beliefs (n, S)."""
        x: np.ndarray = beliefs.reshape(len(beliefs), 1, -1)
        for each in self.factors:
            leaving = each.matrices @ each.right  # (C, V, S)
            x = x.reshape(len(x), x.shape[1], each.states, -1)
            if each.variants == 1:
                x = np.einsum("nksq,zs->nkzq", x, leaving[0])
            else:
                before = x.reshape(len(x), -1, each.variants, *x.shape[2:])
                x = np.einsum("nlksq,kzs->nlkzq", before, leaving)
            x = x.reshape(len(x), -1, x.shape[-1])
        shares = np.maximum(x.reshape(len(beliefs), self.vocabulary), 0)
        shares[shares <= IMPOSSIBLE] = 0
        if self.noise:
            shares = (1 - self.noise) * shares + self.noise / self.vocabulary
        return shares

    def update(self, beliefs: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n, S) the beliefs after tokens (n,), and (n,) the tokens' probabilities. After a token of probability 0 a
        belief is NaN."""
        raw = self.step(beliefs, tokens)
        norms = raw @ self._right
        norms = np.where(norms > IMPOSSIBLE, norms, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(norms[:, None] > 0, raw / norms[:, None], np.nan), norms

    def posteriors(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n, T + 1, S) the belief before the first token of each row of `tokens` (n, T) and after each of them, NaN
        after a token that is not possible; and (n, T) the probability of each token given those before it, 0 where the
        belief is NaN. What is not one of the tokens 0 to V - 1 is not possible."""
        tokens = np.asarray(tokens)
        if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
            raise ValueError(f"tokens must be whole numbers with 2 axes, not {tokens.dtype} {tokens.shape}")
        n, T = tokens.shape
        beliefs, probabilities = np.empty((n, T + 1, self.states)), np.zeros((n, T))
        beliefs[:, 0] = self.start
        for place, column in enumerate(tokens.T):
            known = (column >= 0) & (column < self.vocabulary)
            now, probabilities[:, place] = self.update(beliefs[:, place], np.where(known, column, 0))
            now[~known], probabilities[~known, place] = np.nan, 0
            beliefs[:, place + 1] = now
        return beliefs, np.nan_to_num(probabilities)

    def next_tokens(self, beliefs: np.ndarray) -> np.ndarray:
        """(..., V): probabilities of the next token at beliefs (..., S); NaN where the belief is."""
        flat = beliefs.reshape(-1, beliefs.shape[-1])
        impossible = np.isnan(flat).any(1)
        probabilities = self.probabilities(np.where(impossible[:, None], self.start, flat))
        probabilities[impossible] = np.nan
        return probabilities.reshape(*beliefs.shape[:-1], self.vocabulary)

    def told(self, beliefs: np.ndarray) -> np.ndarray:
        """(..., C): what a model is expected to represent of beliefs (..., S): `marginals`."""
        flat = self.marginals(beliefs.reshape(-1, beliefs.shape[-1]))
        return flat.reshape(*beliefs.shape[:-1], flat.shape[-1])

    def foretold(self, beliefs: np.ndarray) -> np.ndarray:
        """(..., P): what a perfect prediction contains at beliefs (..., S): `next_tokens`."""
        return self.next_tokens(beliefs)

    @property
    def is_hidden_markov(self) -> bool:
        """Whether beliefs are probabilities of hidden states, not a generalised process."""
        return all(each.is_hidden_markov for each in self.factors)

    @property
    def _right(self) -> np.ndarray:
        vector = np.ones(1)
        for each in self.factors:
            vector = np.outer(vector, each.right).reshape(-1)
        return vector

    def marginals(self, beliefs: np.ndarray) -> np.ndarray:
        """(n, C): what a model is expected to represent: the beliefs about each factor's states, side by side; for
        generalised processes, without coordinates that are always 1."""
        parts = []
        for place, each in enumerate(self.factors):
            x = beliefs.reshape(len(beliefs), *self.joint)
            for other in reversed(range(len(self.factors))):
                if other != place:
                    x = np.tensordot(x, self.factors[other].right, axes=([1 + other], [0]))
            parts.append(x[:, coordinates(each)])
        return np.concatenate(parts, axis=1)

    def draw(self, rng: np.random.Generator, n: int, length: int) -> np.ndarray:
        """(n, length) int64 tokens of n sequences."""
        uniform = rng.random((len(self.factors), length + 1, n))
        tokens, before = np.zeros((length, n), np.int64), np.zeros((length, n), np.int64)
        for each, numbers in zip(self.factors, uniform):
            drawn = (_draw_states if each.is_hidden_markov else _draw_beliefs)(each, before, numbers)
            tokens, before = tokens * len(each.tokens) + drawn, drawn
        if self.noise:
            replaced = rng.random((length, n)) < self.noise
            tokens = np.where(replaced, rng.integers(self.vocabulary, size=(length, n)), tokens)
        return np.ascontiguousarray(tokens.T)


def coordinates(each: Factor) -> np.ndarray:
    """(k,): the coordinates of a factor's belief that may vary: all, except one that is the normalisation itself."""
    constant = np.count_nonzero(each.right) == 1 and each.states > 1
    return np.flatnonzero(each.right == 0) if constant else np.arange(each.states)


def _draw_states(each: Factor, before: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """(length, n) tokens of a hidden Markov process, state by state, given the tokens `before` of the factor before,
    (length, n), and uniform numbers (length + 1, n)."""
    _, V, S, _ = each.matrices.shape
    # A row for each variant and state: the cumulated probabilities of all tokens and next states.
    ways = _cumulated(each.matrices.transpose(0, 2, 1, 3).reshape(-1, V * S))
    state = (uniform[0][:, None] >= _cumulated(each.start[None])).sum(1)
    tokens = np.empty(before.shape, np.int64)
    for place, numbers in enumerate(uniform[1:]):
        row = state if each.variants == 1 else before[place] * S + state
        tokens[place], state = np.divmod((numbers[:, None] >= ways[row]).sum(1), S)
    return tokens


def _cumulated(shares: np.ndarray) -> np.ndarray:
    """(n, m): cumulated probabilities of each row, infinite from its last possible entry on, so that rounding never
    lets a later one be drawn."""
    sums: np.ndarray = shares.cumsum(1)
    sums[sums >= sums[:, -1:]] = np.inf
    return sums


def _draw_beliefs(each: Factor, before: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Draws the tokens of a generalised process, which has no hidden states, by the probabilities of the belief."""
    leaving, n = each.matrices @ each.right, uniform.shape[1]
    beliefs, tokens = np.tile(each.start, (n, 1)), np.empty(before.shape, np.int64)
    for place, numbers in enumerate(uniform[1:]):
        variant = before[place] if each.variants > 1 else np.zeros(n, np.int64)
        cumulated = np.maximum(np.einsum("ns,nzs->nz", beliefs, leaving[variant]), 0).cumsum(1)
        tokens[place] = (numbers[:, None] * cumulated[:, -1:] >= cumulated[:, :-1]).sum(1)
        beliefs = np.einsum("ns,nst->nt", beliefs, each.matrices[variant, tokens[place]])
        beliefs /= (beliefs @ each.right)[:, None]
    return tokens


def _stochastic(matrices: np.ndarray, what: str) -> np.ndarray:
    """The matrices with rows that sum to 1. Raises `ValueError` with the row that does not."""
    if (matrices < 0).any():
        token, row, column = np.argwhere(matrices < 0)[0]
        raise ValueError(
            f"{what}: token {token}, row {row}, column {column} is {matrices[token, row, column]:.6g}, but "
            "probabilities cannot be negative; generalised processes need `right`"
        )
    sums = matrices.sum((0, 2))
    worst = int(np.abs(sums - 1).argmax())
    off = sums[worst] - 1
    if abs(off) > SUMS_TO:
        raise ValueError(
            f"{what}: row {worst} of the matrices sums to {sums[worst]:.6g} over all tokens, {abs(off):.3g} too "
            f"{'much' if off > 0 else 'little'}: the probabilities of leaving a state must sum to 1"
        )
    normalised: np.ndarray = matrices / sums[None, :, None]
    return normalised


def _distribution(start: np.ndarray, S: int, what: str) -> np.ndarray:
    start = np.array(start, np.float64)
    if start.shape != (S,) or not np.isfinite(start).all() or (start < 0).any() or abs(start.sum() - 1) > SUMS_TO:
        raise ValueError(f"{what}: start must be {S} probabilities that sum to 1")
    normalised: np.ndarray = start / start.sum()
    return normalised


def _stationary(total: np.ndarray, what: str) -> np.ndarray:
    """The stationary distribution of a stochastic matrix. Raises `ValueError` if there are several."""
    reach = _reachable(total)
    recurrent = np.flatnonzero((reach <= reach.T).all(1))  # states that every state reached from them can return to
    closed = reach[recurrent[0]]
    outside = recurrent[~closed[recurrent]]
    if len(outside):
        raise NotAProcess(
            f"{what}: states {recurrent[0]} and {outside[0]} never reach each other, so there is no single stationary "
            "distribution",
            "give `start`",
        )
    distribution = np.zeros(len(total))
    inside = np.flatnonzero(closed)
    square = total[np.ix_(inside, inside)]
    equations = np.vstack([square.T - np.eye(len(inside)), np.ones(len(inside))])
    solution = np.linalg.lstsq(equations, np.append(np.zeros(len(inside)), 1.0), rcond=None)[0]
    distribution[inside] = np.maximum(solution, 0) / np.maximum(solution, 0).sum()
    return distribution


def _left_eigenvector(total: np.ndarray, what: str) -> np.ndarray:
    values, vectors = np.linalg.eig(total.T)
    near = np.flatnonzero(np.abs(values - 1) < 1e-8)
    if len(near) != 1:
        raise ValueError(f"{what}: the sum of the matrices must have the eigenvalue 1 once, not {len(near)} times")
    vector: np.ndarray = vectors[:, near[0]].real
    return vector


def _reachable(total: np.ndarray) -> np.ndarray:
    """(S, S) bool: whether state j is reached from state i in any number of steps, also none."""
    reach = (total > 0) | np.eye(len(total), dtype=bool)
    while True:
        further = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
        if (further == reach).all():
            return reach
        reach = further


def _check_reached(total: np.ndarray, start: np.ndarray, what: str) -> None:
    reached = _reachable(total)[start > 0].any(0)
    if not reached.all():
        missing = np.flatnonzero(~reached)
        listed = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        several = len(missing) > 1
        raise NotAProcess(
            f"{what}: state{'s' * several} {listed} {'are' if several else 'is'} never reached from the start",
            f"remove {'them' if several else 'it'}, or give a `start` from which all states are reached",
        )


def _check_probabilities(each: Factor, what: str) -> None:
    """Raises `ValueError` with a word of negative probability, looking at short words."""
    V = len(each.tokens)
    beliefs, prefixes = each.start[None], np.zeros((1, 0), np.int64)
    while True:
        probabilities = np.einsum("ns,zs->nz", beliefs, each.matrices[0] @ each.right)
        bad = np.argwhere(probabilities < -1e-9)
        if len(bad):
            row, token = bad[0]
            word = " ".join(each.tokens[symbol] for symbol in [*prefixes[row], token])
            raise ValueError(
                f"{what}: the word {word!r} has the negative probability {probabilities[row, token]:.3g} after its "
                "beginning: these matrices do not define a process"
            )
        rows, tokens = np.nonzero(probabilities > IMPOSSIBLE)
        if not len(rows):
            raise ValueError(f"{what}: no word has a probability above 0: these matrices do not define a process")
        if len(rows) > MOST_WORDS or prefixes.shape[1] >= 12 or len(rows) * V > 2**20:
            return
        beliefs = np.einsum("ns,nst->nt", beliefs[rows], each.matrices[0, tokens])
        beliefs /= (beliefs @ each.right)[:, None]
        prefixes = np.concatenate([prefixes[rows], tokens[:, None]], axis=1)
