"""Taxi rides as sequences: `ORIGIN DESTINATION turn ... turn end` (Vafa et al. 2024, as NextLat uses it).

A model is given the origin and the destination and must find a path, turn by turn; its position follows from the turns
alone. Random traversals show it the map and no preferred path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from statewise.data_types import Completion, Examples, Headline
from statewise.runtime.bounds import bounded, check_tokens
from statewise.tasks.automaton import Automaton, Pairs
from statewise.tasks.base import Kept, SpacedText, Vocab
from statewise.tasks.holding_out import ONE_IN, chosen, collect
from statewise.tasks.manhattan.rides import (
    ILLEGAL_TURN,
    VALID,
    VERDICTS,
    Checked,
    Style,
    check,
    draw_prefixes,
    draw_rides,
)
from statewise.tasks.manhattan.street_map import HEADINGS, UNREACHABLE, as_files, grid_city, of_files, read_map
from statewise.tasks.own_files.lines import Problems, read_lines

LONGEST_RIDE = 128
"""A decoded ride of more tokens counts as one without an end, whatever the context."""
MARGIN = 2.0
"""Size, in streets, of the map that the playground shows around a ride."""
MOST_SHOWN = 400
"""Most crossings of that map."""


@dataclass(frozen=True)
class ManhattanConfig:
    """Fields of `task: manhattan`."""

    map: str | None = None
    """Folder of a map, as written by `statewise data manhattan` and `statewise data city`; null: a grid city."""
    rows: int = 12
    """Rows of the grid city."""
    columns: int = 16
    """Columns of the grid city."""
    city_seed: int = 1
    """Seed of the grid city."""
    rides: Style = "random"
    """`random`: traversals with random turns that can still arrive within `max_moves`. `shortest`: shortest paths.
    `noisy_shortest`: fastest paths in traffic that is redrawn for every batch."""
    noise: float = 0.5
    """Variation of traffic: standard deviation of the logarithm of a street's travel time."""
    max_moves: int = 100
    """Most moves of a ride."""
    held_out_moves: int = 50
    """Most moves between origin and destination of a held-out ride."""
    held_out_rides: int = 1000
    """Size of the fixed test set, whose pairs of origin and destination are all different; a small map may have fewer
    such pairs."""
    row: int | None = None
    """Tokens of a training row into which several rides are packed, none of which attends to another; null: one ride
    per row."""
    data_seed: int = 0
    """Seed of the fixed test set."""

    def __post_init__(self) -> None:
        bounded(self, "max_moves", "held_out_moves", prefix="task.", at_least=1, at_most=UNREACHABLE - 1)
        bounded(self, "held_out_rides", prefix="task.", at_least=1, at_most=10**8)
        bounded(self, "noise", "data_seed", "city_seed", prefix="task.", at_least=0)
        if self.held_out_moves > self.max_moves:
            raise ValueError(
                f"task.held_out_moves {self.held_out_moves} is more than task.max_moves {self.max_moves}: "
                "such rides would be too long"
            )
        if self.row is not None and self.row < self.max_moves + 3:
            raise ValueError(
                f"task.row {self.row} is shorter than the longest ride of {self.max_moves + 3} tokens: set it higher, "
                "or task.max_moves lower"
            )


class Manhattan(SpacedText, Automaton):
    """Rides through a city. A state is where the ride is and its destination; N is "arrived"."""

    Config = ManhattanConfig

    def __init__(self, config: ManhattanConfig, kept: Kept | None = None) -> None:
        check_tokens("task.held_out_rides", config.held_out_rides, config.held_out_moves + 3)
        self.config = config
        if kept is not None:
            self.streets = of_files(kept)
        elif config.map is not None:
            self.streets = read_map(Path(config.map))
        else:
            self.streets = grid_city(config.rows, config.columns, config.city_seed)
        self.N = len(self.streets)
        self.end: int = self.N + len(HEADINGS)
        self.vocab = Vocab([*self.streets.names, *HEADINGS, "end"])
        self.longest = config.max_moves + 3
        self.context = max(self.longest, config.row or 0)
        self.headline = Headline("valid_trajectories", higher_is_better=True, solved_at=0.99)
        begin, _, _ = self.streets.streets
        without = "" if self.streets.coordinates is not None else ", without coordinates"
        self.notes = [f"map: {self.N:,} crossings and {len(begin):,} streets{without}"]
        self.view = "tokens" if self.streets.coordinates is None else "map"

    def files(self) -> dict[str, bytes]:
        """The map, which a run keeps."""
        return as_files(self.streets)

    # Drawing rides

    def training(self) -> None:
        """Returns None: every batch has fresh rides."""

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training rides, or rows packed with them; none has a held-out pair."""
        most, row = self.config.max_moves, self.config.row
        if row is None:
            return self._ride(rng, self.draw_ends(rng, n, most, held_out=False))[:]
        parts: list[Examples] = []
        while True:
            missing = n * row - sum(int(part.lengths.sum()) for part in parts)
            ends = self.draw_ends(rng, max(n, missing // (most + 3)), most, held_out=False)
            parts.append(self._ride(rng, ends))
            columns = ((part.tokens, part.lengths, part.prompt_lengths) for part in parts)
            packed = pack(Examples(*map(np.concatenate, zip(*columns))), row)
            if len(packed) > n:  # so that the n-th row is full
                return packed[:n]

    def draw_with_errors(self, n: int, share: float, seed: int) -> Examples:
        """n training rides; about a `share` of them have one turn replaced by another heading. Raises `ValueError`
        unless `share` is from 0 to 1."""
        if not 0 <= share <= 1:
            raise ValueError(f"errors in rides (`corrupt`) must be a share from 0 to 1, not {share}")
        rng = np.random.default_rng(seed)
        rides = self.sample(rng, n)
        row = np.flatnonzero(rng.random(n) < share)
        place = 2 + (rng.random(len(row)) * (rides.lengths[row] - 3)).astype(np.int64)
        turn = rides.tokens[row, place] - self.N
        other = (turn + rng.integers(1, len(HEADINGS), len(row))) % len(HEADINGS)
        rides.tokens[row, place] = self.N + other
        return rides

    def held_out(self, n: int | None = None) -> Examples:
        """The fixed test set, or its first n rides."""
        return self._held_out[: n if n is not None else len(self._held_out)]

    @cached_property
    def _held_out(self) -> Examples:
        rng = np.random.default_rng([self.config.data_seed, 2])
        wanted = self.config.held_out_rides
        pairs = self.draw_ends(rng, wanted, self.config.held_out_moves, held_out=True)
        if len(pairs) < wanted:
            self.notes = [*self.notes, f"the map has {len(pairs):,} pairs of crossings to hold out, not {wanted:,}"]
        return self._ride(rng, pairs)[:]

    def draw_ends(self, rng: np.random.Generator, n: int, most_moves: int, *, held_out: bool) -> np.ndarray:
        """(n, 2) origins and destinations, 1 to `most_moves` apart; held-out ones are all different, and fewer than n
        if the map has no more."""

        def draw(missing: int) -> np.ndarray:
            drawn = rng.integers(self.N, size=(int(missing * (ONE_IN if held_out else 1.2)) + 64, 2))
            moves = self.streets.moves[drawn[:, 1], drawn[:, 0]]
            return drawn[(moves >= 1) & (moves <= most_moves) & (self._is_held_out(drawn) == held_out)]

        ends = collect(draw, n, width=2, different=held_out)
        if len(ends) < n and not (held_out and len(ends)):
            raise ValueError(
                f"the map has no pair of crossings at most {most_moves} moves apart "
                f"{'to hold out' if held_out else 'to train on'}: choose a larger map"
            )
        return ends

    def _is_held_out(self, pairs: np.ndarray) -> np.ndarray:
        """(n,) bool: whether the hash of a pair selects it."""
        value = (pairs[:, 0] * self.N + pairs[:, 1]).astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
        return chosen(value)

    def _ride(self, rng: np.random.Generator, pairs: np.ndarray) -> Examples:
        """A ride for each pair, padded to the longest possible."""
        config = self.config
        turns, moves = draw_rides(
            self.streets, rng, pairs, style=config.rides, most_moves=config.max_moves, noise=config.noise
        )
        tokens = np.zeros((len(pairs), config.max_moves + 3), np.int64)
        tokens[:, :2] = pairs
        tokens[:, 2:-1] = np.where(turns >= 0, turns + np.int64(self.N), 0)
        tokens[np.arange(len(pairs)), moves + 2] = self.end
        return Examples(tokens, moves + 3, np.full(len(pairs), 2))

    # Text and files

    @override
    def with_goal(self, prompt: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Raises `ValueError` for a prompt that begins no ride."""
        if len(prompt) == 1:
            raise ValueError("a ride begins with origin and destination, two crossings of the map")
        if len(prompt) >= 2:
            so_far = Examples.of([prompt], [2])
            _, _, (illegal,) = self.check(so_far)
            if illegal >= 0:
                raise ValueError(self._problem(so_far, 0, VERDICTS[ILLEGAL_TURN], int(illegal)))
            at = int(self.states_after(prompt[None])[0, 0])
            if self.end in prompt and at != self.N:
                raise ValueError(f"the ride ends before it reaches {self.streets.names[prompt[1]]}")
            if self.tokens_left(self.states_after(prompt[None]))[0] < 0:
                raise ValueError(f"no path leads from {self.streets.names[at]} to {self.streets.names[prompt[1]]}")
        return super().with_goal(prompt, goal)

    def read(self, path: Path) -> Examples:
        """Rides of a file, one per line. Raises `ValueError` with the line for one that is not valid."""
        rides, lines = self.read_any(path)
        problems = Problems(path)
        for row, (verdict, moves, illegal) in enumerate(zip(*(column.tolist() for column in self.check(rides)))):
            if verdict != VALID:
                problems.add(lines[row], self._problem(rides, row, VERDICTS[verdict], illegal))
            elif moves + 3 > self.context:
                problems.add(lines[row], f"{moves + 3} tokens, but the longest ride of this task has {self.context}")
        problems.raise_if_any()
        return rides

    def read_any(self, path: Path) -> tuple[Examples, list[int]]:
        """Rides of a file, valid or not, and line numbers. Raises `ValueError` with the line for unknown words."""
        rows, lines, problems = [], [], Problems(path)
        for number, line in read_lines(path):
            try:
                rows.append(self.encode(line))
                lines.append(number)
            except ValueError as error:
                problems.add(number, str(error))
        problems.raise_if_any()
        return Examples.of(rows, [2] * len(rows)), lines

    def check(self, rides: Examples) -> Checked:
        """Whether rides are valid; see `rides.check`."""
        return check(self.streets, rides.tokens, rides.lengths)

    def _problem(self, rides: Examples, row: int, verdict: str, illegal: int) -> str:
        words = self.vocab.decode(rides.tokens[row, : rides.lengths[row]])
        if illegal >= 0:
            if illegal < 2:
                return "a ride begins with origin and destination, two crossings of the map"
            at = self.states_after(rides.tokens[row : row + 1, :illegal])[0, 0]
            ways = ", ".join(HEADINGS[number] for number in np.flatnonzero(self.streets.neighbour[at] >= 0))
            return f"turn {illegal - 1}, {words[illegal]}, is illegal: from {self.streets.names[at]} " + (
                f"streets lead {ways}" if ways else "no street leads on"
            )
        return "the ride has no `end`" if verdict == "no_end" else f"the ride does not end at {words[1]}"

    # Scores

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`valid_trajectories`: all turns are legal and the first `end` is at the destination, within 128 tokens.
        `legal_rides`: at least one turn, and no illegal one before the first `end`."""
        room = LONGEST_RIDE - 2
        rides = Examples.of(
            [
                np.concatenate([examples.prompt(row), completion.tokens[:room]])
                for row, completion in enumerate(completions)
            ],
            [2] * len(completions),
        )
        verdicts, moves, _ = self.check(rides)
        legal = (verdicts != ILLEGAL_TURN) & (moves > 0)
        return {"valid_trajectories": float((verdicts == VALID).mean()), "legal_rides": float(legal.mean())}

    def score_positions(self, examples: Examples, chosen: np.ndarray) -> dict[str, float]:
        """`next_token_test`: the most likely token is a legal turn, or `end` at the destination."""
        states = self._states(examples)
        rows, columns = np.nonzero(chosen >= 0)
        legal = self.step(states[rows, columns - 1], chosen[rows, columns])[:, 0] >= 0
        return {"next_token_test": float(legal.mean())} if len(legal) else {}

    # World

    def _states(self, examples: Examples) -> np.ndarray:
        """(n, T, 2): the state after each position from the destination's on; -1 elsewhere."""
        tokens = examples.tokens
        states = np.full((*tokens.shape, 2), -1, np.int64)
        if tokens.shape[1] < 2:
            return states
        now = self.states_after(tokens[:, :2])
        for position in range(1, tokens.shape[1]):
            now = self.step(now, tokens[:, position]) if position > 1 else now
            states[:, position] = np.where((position < examples.lengths)[:, None], now, -1)
        return states

    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T): the current crossing, from the destination's position on; -1 before it and after the end."""
        at = self._states(examples)[:, :, 0]
        return np.where(at == self.N, -1, at)

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """All crossings for the first two tokens; then the possible turns, and `end` at the destination."""
        if len(prefix) < 2:
            return np.arange(self.N)
        if len(prefix) >= self.context:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.allowed(self.states_after(prefix[None]))[0])

    @override
    def state_name(self, label: int) -> str:
        """The name of a crossing."""
        return self.streets.names[label]

    @override
    def scene(self, tokens: np.ndarray) -> dict[str, Any]:
        """`crossings` near the ride, by number: name, east and north; `streets` between them: begin, end, and the
        token of their heading; `origin` and `destination`."""
        places = self.streets.coordinates
        if places is None or len(tokens) < 2 or tokens[:2].max() >= self.N:
            return {}
        at = self.labels(Examples.of([tokens], [2]))[0]
        ride = np.unique(np.concatenate([tokens[:2], at[at >= 0]]))
        low, high = places[ride].min(0), places[ride].max(0)
        margin = max(MARGIN * self.streets.street_length, 0.5 * float((high - low).max()))
        near = np.flatnonzero(((places >= low - margin) & (places <= high + margin)).all(1))
        if len(near) > MOST_SHOWN:  # those nearest to the ride
            away = np.min([np.hypot(*(places[near] - places[one]).T) for one in ride], axis=0)
            near = np.sort(near[np.argsort(away, kind="stable")[:MOST_SHOWN]])
        shown = {*near.tolist(), *ride.tolist()}
        streets = [
            [int(begin), int(end), int(heading) + self.N]
            for begin, heading, end in zip(*self.streets.streets)
            if begin in shown and end in shown
        ]
        return {
            "crossings": {str(one): [self.streets.names[one], *places[one].tolist()] for one in sorted(shown)},
            "streets": streets,
            "origin": int(tokens[0]),
            "destination": int(tokens[1]),
        }

    @override
    def states_after(self, tokens: np.ndarray) -> np.ndarray:
        """Prefixes have at least origin and destination."""
        states = tokens[:, :2].astype(np.int64)
        states[(states < 0).any(axis=1) | (states >= self.N).any(axis=1)] = -1
        for column in tokens[:, 2:].T:
            states = self.step(states, column)
        return states

    @override
    def step(self, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        at, goal = states.T
        heading = tokens - self.N
        turning = (heading >= 0) & (heading < len(HEADINGS)) & (at >= 0) & (at < self.N)
        ahead = self.streets.neighbour[np.where(turning, at, 0), np.where(turning, heading, 0)]
        after = np.where(turning, ahead, -1)
        after = np.where((tokens == self.end) & (at == goal) & (at >= 0), self.N, after)
        return np.stack([after, np.where(after >= 0, goal, -1)], axis=1)

    @override
    def allowed(self, states: np.ndarray) -> np.ndarray:
        at, goal = states.T
        riding = (at >= 0) & (at < self.N)
        allowed = np.zeros((len(states), len(self.vocab)), bool)
        allowed[:, self.N : self.end] = riding[:, None] & (self.streets.neighbour[np.where(riding, at, 0)] >= 0)
        allowed[:, self.N + len(HEADINGS)] = riding & (at == goal)
        return allowed

    @override
    def tokens_left(self, states: np.ndarray) -> np.ndarray:
        at, goal = states.T
        riding = (at >= 0) & (at < self.N)
        moves = self.streets.moves[np.where(riding, goal, 0), np.where(riding, at, 0)].astype(np.int64)
        return np.where(riding, np.where(moves == UNREACHABLE, -1, moves + 1), np.where(at == self.N, 0, -1))

    @override
    def draw_pairs(self, rng: np.random.Generator, n: int, *, same_state: bool) -> Pairs:
        config = self.config
        pairs = draw_prefixes(self.streets, rng, n, same_state, config.held_out_moves, config.max_moves)
        first, second = (
            Examples.of([np.append(one[:2], one[2:] + self.N) for one in side], [len(one) for one in side])
            for side in zip(*pairs)
        )
        return Pairs(first, second, requested=n)


def pack(examples: Examples, row: int) -> Examples:
    """Packs sequences in order into rows of `row` tokens, without cutting any; each becomes a document.

    All must have prompts of the same length, and none may be longer than a row.
    """
    lengths = examples.lengths
    assert len(np.unique(examples.prompt_lengths)) == 1
    assert lengths.max() <= row
    ends = np.cumsum(lengths)
    firsts = [0]  # the first sequence of each row
    while firsts[-1] < len(examples):
        start = ends[firsts[-1]] - lengths[firsts[-1]]
        firsts.append(int(np.searchsorted(ends, start + row, side="right")))
    opens = np.array(firsts[:-1])
    which = np.repeat(np.arange(len(opens)), np.diff(firsts))
    starts = ends - lengths - (ends - lengths)[opens][which]
    tokens, documents = np.zeros((2, len(opens), row), np.int64)
    sequence, position = np.nonzero(np.arange(examples.tokens.shape[1]) < lengths[:, None])
    at = which[sequence], starts[sequence] + position
    tokens[at] = examples.tokens[sequence, position]
    documents[at] = sequence - opens[which[sequence]] + 1
    filled = np.bincount(which, weights=lengths).astype(np.int64)
    prompts = examples.prompt_lengths[opens]
    return Examples(tokens, filled, prompts, np.maximum.accumulate(documents, axis=1))
