"""Partially observed Markov decision processes (POMDPs), and the exact belief about their state.

In state s an agent chooses an action a; the state becomes s' with probability T[a, s, s'], and the agent observes o
with probability O[a, s', o] (Kaelbling, Littman and Cassandra 1998, section 3). After an action the belief b is b T[a];
an observation multiplies it by O[a, :, o] and normalises it.

A sequence alternates actions and observations, a history of that literature: a1 o1 a2 o2 ... One symbol for both would
need A x O tokens, could not be scored on its observation alone, and would hide the belief between the two.

As a hidden Markov process (`Pomdp.process`) its hidden states are the S states of the world before an action, and then,
action by action, the A x S pairs of an action and the state that it led to, before the observation. The belief about
the world does not depend on how actions are chosen, as long as only the past decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from statewise.beliefs.process import LARGEST, MOST_STATES, SUMS_TO, Factor, Process
from statewise.config.recipe import unknown
from statewise.runtime.messages import cut, short

Policy = Callable[[np.ndarray], np.ndarray]
"""A policy maps beliefs (n, S) about the state of the world to the probabilities (n, A) of the actions."""
ROUNDS = 100_000
"""Maximum number of rounds of value iteration."""


@dataclass(frozen=True)
class Pomdp:
    """A POMDP of S states, A actions and O observations. Raises `ValueError` for arrays that do not fit, and for rows
    that are not distributions."""

    transitions: np.ndarray
    """(A, S, S) float64: the probability of each next state."""
    observations: np.ndarray
    """(A, S, O) float64: the probability of each observation, given the action and the state that it led to."""
    start: np.ndarray
    """(S,): the belief before the first action."""
    rewards: np.ndarray
    """(A, S): the expected reward of an action in a state."""
    discount: float
    """Discount of later rewards, from 0 to 1."""
    state_names: Sequence[str]
    action_names: Sequence[str]
    observation_names: Sequence[str]

    def __post_init__(self) -> None:
        S, A, Z = (len(names) for names in (self.state_names, self.action_names, self.observation_names))
        if not S or not A or not Z:
            raise ValueError("a POMDP needs at least one state, one action and one observation")
        if S * (1 + A) > MOST_STATES or (A + Z) * (S * (1 + A)) ** 2 > LARGEST:
            raise ValueError(
                f"a POMDP of {S:,} states, {A:,} actions and {Z:,} observations is too large: at most {MOST_STATES:,} "
                f"states and pairs of an action and a state, and {LARGEST:,} numbers of all matrices, are possible"
            )
        for name, shape in (
            ("transitions", (A, S, S)),
            ("observations", (A, S, Z)),
            ("start", (S,)),
            ("rewards", (A, S)),
        ):
            array = np.array(getattr(self, name), np.float64)
            if array.shape != shape:
                raise ValueError(f"{name} must be numbers of shape {shape}, not {array.shape}")
            if not np.isfinite(array).all():
                raise ValueError(f"{name} must be finite numbers")
            if name != "rewards":
                array = self._distributions(name, array)
            object.__setattr__(self, name, array)
        if not 0 <= self.discount <= 1:
            raise ValueError(f"the discount must be between 0 and 1, not {short(self.discount)}")

    def _distributions(self, name: str, array: np.ndarray) -> np.ndarray:
        """The array with rows that sum to exactly 1. Raises `ValueError` with the row that is no distribution."""
        sums = array.sum(-1, keepdims=True)
        bad = np.argwhere((array < 0).any(-1) | (np.abs(sums[..., 0] - 1) > SUMS_TO))
        if len(bad):
            place = tuple(bad[0])
            names = (self.action_names, self.state_names)
            where = ", ".join(
                f"{kind} {cut(of[index], 30)}" for kind, of, index in zip(("action", "state"), names, place)
            )
            row = array[place]
            problem = f"{row.min():.6g} is negative" if row.min() < 0 else f"they sum to {row.sum():.6g}"
            raise ValueError(f"{name}{f' of {where}' if where else ''} must be probabilities that sum to 1: {problem}")
        normalised: np.ndarray = array / sums
        return normalised

    @property
    def tokens(self) -> list[str]:
        """Names of the A + O tokens of a sequence: actions, then observations. Where a name is that of both, all have
        `do:` or `see:` before them."""
        both = set(self.action_names) & set(self.observation_names)
        do, see = ("do:", "see:") if both else ("", "")
        return [*(do + name for name in self.action_names), *(see + name for name in self.observation_names)]

    def filter(self, actions: np.ndarray, observations: np.ndarray) -> np.ndarray:
        """(n, K + 1, S) float64: the belief before the first action, and after each of the K pairs of an action and an
        observation, given as indices (n, K) each. NaN from an impossible observation on."""
        actions, observations = np.asarray(actions), np.asarray(observations)
        beliefs = np.empty((len(actions), actions.shape[1] + 1, len(self.start)))
        beliefs[:, 0] = self.start
        for place, (action, seen) in enumerate(zip(actions.T, observations.T)):
            moved = np.einsum("ns,nst->nt", beliefs[:, place], self.transitions[action])
            joint = moved * self.observations[action, :, seen]
            with np.errstate(invalid="ignore", divide="ignore"):
                beliefs[:, place + 1] = joint / joint.sum(1, keepdims=True)
        return beliefs

    def qmdp(self) -> Policy:
        """The policy QMDP (Littman, Cassandra and Kaelbling 1995): the action with the highest expected value, as if
        the state were known from the next step on; equally good ones are equally likely. Raises `ValueError` for a
        discount of 1, with which values may be infinite."""
        if self.discount == 1:
            raise ValueError("QMDP needs a discount below 1")
        values = np.zeros(len(self.start))
        for _ in range(ROUNDS):
            of_actions = self.rewards + self.discount * self.transitions @ values
            change, values = np.abs(of_actions.max(0) - values).max(), of_actions.max(0)
            if change <= 1e-10 * max(1.0, np.abs(values).max()):
                break

        def policy(beliefs: np.ndarray) -> np.ndarray:
            expected = beliefs @ of_actions.T
            best = expected >= expected.max(1, keepdims=True) - 1e-9 * np.abs(expected).max(1, keepdims=True)
            return best / best.sum(1, keepdims=True)

        return policy

    def process(self, policy: Policy | Sequence[float] | None = None, explore: float = 0.0) -> Acted:
        """The process of actions and observations, tokens as in `tokens`.

        `policy`: None for random actions, all equally likely; probabilities of the A actions; or a function of beliefs
        about the world. `explore` is the probability of a random action in its place. Raises `ValueError` for
        probabilities that are not a distribution.
        """
        A, S, Z = len(self.action_names), len(self.state_names), len(self.observation_names)
        if policy is not None and not callable(policy):
            shares = np.array(policy, np.float64)
            if shares.shape != (A,) or not (shares >= 0).all() or abs(shares.sum() - 1) > SUMS_TO:
                raise ValueError(f"a policy must be {A} probabilities that sum to 1, one for each action")
            fixed = shares / shares.sum()

            def policy(beliefs: np.ndarray) -> np.ndarray:
                return np.tile(fixed, (len(beliefs), 1))

        T = np.zeros((A + Z, S * (1 + A), S * (1 + A)))
        for action in range(A):
            led_to = slice(S * (1 + action), S * (2 + action))
            T[action, :S, led_to] = self.transitions[action] / A
            for seen in range(Z):
                T[A + seen, led_to, :S] = np.diag(self.observations[action, :, seen])
        start = np.concatenate([self.start, np.zeros(A * S)])
        each = Factor(T[None], start, np.ones(S * (1 + A)), self.tokens)
        return Acted([each], pomdp=self, policy=policy, explore=explore)


@dataclass(frozen=True)
class Acted(Process):
    """A POMDP whose actions a policy chooses, as a process of A + O tokens. Made by `Pomdp.process`."""

    pomdp: Pomdp = field(kw_only=True)
    policy: Policy | None = field(kw_only=True)
    explore: float = field(kw_only=True)

    @property
    def actions(self) -> int:
        """Number A of actions, which are the first tokens."""
        return len(self.pomdp.action_names)

    @override
    def told(self, beliefs: np.ndarray) -> np.ndarray:
        """(..., S): beliefs (..., S (1 + A)) about the state of the world alone."""
        parts = beliefs.reshape(*beliefs.shape[:-1], 1 + self.actions, len(self.pomdp.start))
        world: np.ndarray = parts.sum(-2)
        return world

    @override
    def foretold(self, beliefs: np.ndarray) -> np.ndarray:
        """(..., A Z): the distribution of the next observation after each action, side by side: the next token after
        an observation is an action, which tells nothing of the world."""
        shares = np.einsum("...s,ast,atz->...az", self.told(beliefs), self.pomdp.transitions, self.pomdp.observations)
        return shares.reshape(*shares.shape[:-2], -1)

    def chosen(self, beliefs: np.ndarray) -> np.ndarray:
        """(n, A): probabilities of the actions at beliefs (n, S) about the world."""
        random = np.full((len(beliefs), self.actions), 1 / self.actions)
        if self.policy is None:
            return random
        shares: np.ndarray = (1 - self.explore) * self.policy(beliefs) + self.explore * random
        return shares

    @override
    def probabilities(self, beliefs: np.ndarray) -> np.ndarray:
        """The probabilities of tokens: actions as the policy chooses them, observations as the process gives them."""
        shares = super().probabilities(beliefs)
        shares[:, : self.actions] *= self.actions * self.chosen(self.told(beliefs))
        return shares

    @override
    def update(self, beliefs: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """After an action that the policy never chooses, the belief is NaN."""
        after, norms = super().update(beliefs, tokens)
        acts = np.flatnonzero((tokens < self.actions) & (norms > 0))
        if self.policy is not None and len(acts):
            norms[acts] *= self.actions * self.chosen(self.told(beliefs[acts]))[np.arange(len(acts)), tokens[acts]]
            after[norms <= 0] = np.nan
        return after, norms

    @override
    def draw(self, rng: np.random.Generator, n: int, length: int) -> np.ndarray:
        """Sequences begin with an action."""
        if self.policy is None:
            return super().draw(rng, n, length)
        numbers = rng.random((length, n, 1))
        now, tokens = np.tile(self.start, (n, 1)), np.empty((n, length), np.int64)
        for place in range(length):
            cumulated = self.probabilities(now).cumsum(1)
            last = cumulated[:, -1:]
            tokens[:, place] = (numbers[place] * last >= np.where(cumulated < last, cumulated, np.inf)).sum(1)
            now, _ = self.update(now, tokens[:, place])
        return tokens


def tiger() -> Pomdp:
    """A tiger is behind one of two doors. Listening costs 1 and hears the right side with probability .85; opening the
    other door gives 10, the tiger's -100, and the problem begins anew (Cassandra, Kaelbling and Littman 1994;
    Kaelbling et al. 1998, section 5.1, which has the discount .95)."""
    stay, anew = np.eye(2), np.full((2, 2), 0.5)
    hears = np.array([[0.85, 0.15], [0.15, 0.85]])
    return Pomdp(
        np.stack([stay, anew, anew]),
        np.stack([hears, anew, anew]),
        np.array([0.5, 0.5]),
        np.array([[-1.0, -1.0], [-100.0, 10.0], [10.0, -100.0]]),
        0.95,
        ["tiger-left", "tiger-right"],
        ["listen", "open-left", "open-right"],
        ["hear-left", "hear-right"],
    )


def grid() -> Pomdp:
    """A room of 4 x 3 fields with an obstacle (Parr and Russell 1995; Russell and Norvig, chapter 17): a move goes
    where it should with probability .8, to either side with .1 each, and stays where a wall is. The agent observes only
    whether there are walls to its left and right. Two fields give +1 and -1 and are seen as such; from there it begins
    anew in any other. Moves cost .04; the discount is .95."""
    rows = ["...+", ".#.-", "...."]
    fields = [(row, column) for row, line in enumerate(rows) for column, mark in enumerate(line) if mark != "#"]
    number = {place: index for index, place in enumerate(fields)}
    ends = [index for index, (row, column) in enumerate(fields) if rows[row][column] in "+-"]
    moves = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}
    T, S = np.zeros((4, 11, 11)), len(fields)
    for action, (down, right) in enumerate(moves.values()):
        for index, (row, column) in enumerate(fields):
            if index in ends:
                T[action, index] = [0 if other in ends else 1 / (S - len(ends)) for other in range(S)]
                continue
            for share, (by_row, by_column) in ((0.8, (down, right)), (0.1, (right, down)), (0.1, (-right, -down))):
                T[action, index, number.get((row + by_row, column + by_column), index)] += share
    seen = ["no-wall", "left-wall", "right-wall", "both-walls", "goal", "trap"]
    sees = np.zeros((S, len(seen)))
    for index, (row, column) in enumerate(fields):
        walls = ((row, column - 1) not in number) + 2 * ((row, column + 1) not in number)
        sees[index, {"+": 4, "-": 5}.get(rows[row][column], walls)] = 1
    rewards = np.array([{"+": 1.0, "-": -1.0}.get(rows[row][column], -0.04) for row, column in fields])
    start = np.array([0 if index in ends else 1 / (S - len(ends)) for index in range(S)])
    names = [f"row{row + 1}-column{column + 1}" for row, column in fields]
    return Pomdp(T, np.tile(sees, (4, 1, 1)), start, np.tile(rewards, (4, 1)), 0.95, names, list(moves), seen)


PROBLEMS: Mapping[str, Callable[[], Pomdp]] = {"tiger": tiger, "grid": grid}


def pomdp(name: str) -> Pomdp:
    """A published problem by its name: `tiger` or `grid`. Raises `ValueError` for others."""
    if name not in PROBLEMS:
        raise ValueError(unknown("POMDP", name, list(PROBLEMS)))
    return PROBLEMS[name]()
