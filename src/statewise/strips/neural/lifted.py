"""Lifted learning: ground actions of a schema share weights, so schemas learned on small instances hold for any size.

A predicate of arity k has a ground head for each k different objects. For the action `schema x1 .. xn` a head reads the
weights of (predicate, schema, positions), where the objects at these positions are those of the head; it ignores
actions that do not mention all of its objects. So a predicate has as many weights as there are ways to place its
arguments among those of each schema, for any number of objects, and the learned schemas can be grounded over other
objects.

Objects have sorts, inferred from the traces: objects at the same argument of the same schema have the same sort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations, product

import numpy as np

from statewise.strips.model.heads import Candidates, Heads, Judge, sound
from statewise.strips.model.schemas import LiftedModel, Schema, arguments, schemas_from_literals, sorts_of
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import Progress, Settings, Training, pool
from statewise.strips.verification.containment import prune

COPIES = {0: 2, 1: 4, 2: 2}
"""The number of predicates of each signature, by arity: more than known domains need. Spare ones are not chosen."""


@dataclass(frozen=True)
class TrainedPredicate:
    """A predicate in training."""

    sorts: tuple[int, ...]
    """Sort of each argument."""
    uses: tuple[tuple[str, tuple[int, ...]], ...]
    """The meaning of each weight: a schema, and the position of each argument in it."""


class Space:
    """The predicates in training, and which weights their ground heads over the traces' objects read.

    `places` [L, A] are indices into the concatenated weights of all predicates; the last index stands for no weight.
    """

    def __init__(self, actions: Sequence[str], copies: dict[int, int]) -> None:
        parameters, objects = sorts_of(actions)
        schemas: dict[str, list[int]] = {}
        for (schema, _), sort in sorted(parameters.items()):
            schemas.setdefault(schema, []).append(sort)
        for action in actions:
            schemas.setdefault(arguments(action)[0], [])
        kinds = sorted(set(objects.values()))
        self.predicates: list[TrainedPredicate] = []
        for arity, count in sorted(copies.items()):
            for signature in product(kinds, repeat=arity):
                if arity == 2 and signature[0] > signature[1]:
                    continue  # the same predicate with its arguments swapped
                mine = tuple(
                    (schema, at)
                    for schema, sorts in sorted(schemas.items())
                    for at in permutations(range(len(sorts)), arity)
                    if tuple(sorts[place] for place in at) == signature
                )
                if mine and _tuples(signature, objects):
                    self.predicates += [TrainedPredicate(signature, mine)] * count
        self.first = np.cumsum([0, *(len(predicate.uses) for predicate in self.predicates)])
        """Index of the first weight of each predicate, then the number of weights."""
        self.again: list[tuple[int, int, int]] = []
        """Head, action and weight wherever a head can read an action in a second way: `drive t a a` as leaving `a` and
        as arriving there. Training uses only the first way; heads are judged by all."""
        rows: list[list[int]] = []
        owner = []
        for number, predicate in enumerate(self.predicates):
            for tuple_of in _tuples(predicate.sorts, objects):
                uses = [self._uses(number, action, tuple_of) for action in actions]
                self.again += [(len(rows), at, weight) for at, weights in enumerate(uses) for weight in weights[1:]]
                rows.append([weights[0] if weights else int(self.first[-1]) for weights in uses])
                owner.append(number)
        self.places = np.array(rows, dtype=np.int64)
        self.owner = np.array(owner, dtype=np.int64)

    def _uses(self, number: int, action: str, objects: tuple[str, ...]) -> list[int]:
        """The weights of a predicate that apply to an action and objects."""
        schema, names = arguments(action)
        return [
            int(self.first[number]) + place
            for place, (of, at) in enumerate(self.predicates[number].uses)
            if of == schema and tuple(names[position] for position in at) == objects
        ]

    def candidates(self, weights: Sequence[tuple[int, np.ndarray]]) -> Candidates:
        """Predicates, given by their numbers and binary weights [uses, 3], as candidates with their ground heads."""
        theta, group, size = [], [], []
        for place, (number, on) in enumerate(weights):
            mine = np.flatnonzero(self.owner == number)
            padded = np.concatenate((on, np.zeros((1, 3), dtype=bool)))
            at = self.places[mine] - self.first[number]
            heads = padded[np.where(at < len(on), at, len(on))]
            for head, action, weight in self.again:
                if self.owner[head] == number:
                    row = heads[head - mine[0], action]
                    pre, key, value = on[weight - self.first[number]]
                    adds = (row[1] and not row[2]) or (key and not value)  # what is added and deleted is added
                    row[:] = row[0] or pre, row[1] or key, not adds
            theta.append(heads)
            group += [place] * len(mine)
            size.append(int(on[:, 0].sum() + on[:, 1].sum()))
        actions = self.places.shape[1]
        stacked = np.concatenate(theta) if theta else np.zeros((0, actions, 3), dtype=bool)
        every = np.array([3 * len(self.predicates[number].uses) for number, _ in weights], dtype=np.int64)
        return Candidates(
            Heads.of_theta(stacked.astype(np.float32)),
            np.array(group, dtype=np.int64),
            np.array(size, dtype=np.int64),
            every,
        )


def learn_lifted(
    traces: Traces,
    settings: Settings,
    *,
    copies: dict[int, int] | None = None,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> LiftedModel:
    """Learns action schemas from ground traces whose actions are written `schema object object`.

    Restarts train together as in `learning.learn_neural`; predicates whose ground heads are all sound are pooled.
    `settings.atoms` is not used: the number of predicates is learned. After `seconds`, or once `stop()` is true, the
    best model so far is returned, and `report["unfinished"]` says so. Raises `ValueError` if there are no negative
    traces, or if a schema occurs with different numbers of arguments.
    """
    space = Space(traces.actions, copies or COPIES)
    training = Training.begun(traces, settings, (int(space.first[-1]),), space.places)
    library: dict[tuple[tuple[int, ...], bytes], tuple[int, np.ndarray]] = {}

    def record(theta: np.ndarray) -> None:
        _collect(space, training.group.weights.detach().numpy() >= 0.5, training.judge, settings, library)

    unfinished = training.run(record, seconds=seconds, stop=stop, progress=progress)
    offered = list(library.values())
    candidates = space.candidates(offered)
    pooled = pool(candidates, training.judge, noise=settings.noise)
    chosen = candidates.only(np.sort(pooled.chosen))
    kept = prune(chosen, traces.actions)
    schemas = _schemas(space, [offered[np.sort(pooled.chosen)[place]] for place in kept], traces.actions)
    report = {
        "method": "neural",
        "settings": asdict(settings),
        "restarts": [asdict(each) for each in training.results],
        "offered": len(offered),
        "sound": pooled.sound,
        "predicates": len(kept),
        "unfinished": unfinished,
        "training_accuracy": pooled.accuracy,
        "cover_proven": pooled.proven,
    }
    return LiftedModel(schemas, report)


def _tuples(sorts: tuple[int, ...], objects: dict[str, int]) -> list[tuple[str, ...]]:
    """All tuples of different objects of the sorts; order matters."""
    by_sort = [[name for name, sort in objects.items() if sort == wanted] for wanted in sorts]
    return [chosen for chosen in product(*by_sort) if len(set(chosen)) == len(chosen)]


def _collect(
    space: Space,
    on: np.ndarray,
    judge: Judge,
    settings: Settings,
    library: dict[tuple[tuple[int, ...], bytes], tuple[int, np.ndarray]],
) -> None:
    """Adds the sound predicates of the binary weights [R, K, 3] to the library, without duplicates."""
    new: dict[tuple[tuple[int, ...], bytes], tuple[int, np.ndarray]] = {}
    for weights in on:
        for number, predicate in enumerate(space.predicates):
            mine = weights[space.first[number] : space.first[number + 1]].copy()
            mine[:, 2] &= mine[:, 1]  # a value without a key is never read
            key = (predicate.sorts, mine.tobytes())
            if mine[:, 0].any() and mine[:, 2].any() and key not in library:
                new.setdefault(key, (number, mine))
    offered = list(new.items())
    for place in sound(space.candidates([each for _, each in offered]), judge, settings.noise):
        library[offered[place][0]] = offered[place][1]


def _schemas(space: Space, chosen: Sequence[tuple[int, np.ndarray]], actions: Sequence[str]) -> dict[str, Schema]:
    """The schemas of the chosen predicates, which are named p0, p1, ..."""
    literals = (
        (schema, part, (f"p{name}", places))
        for name, (number, on) in enumerate(chosen)
        for (schema, places), (pre, key, value) in zip(space.predicates[number].uses, on)
        for part, holds in enumerate((pre, key and not value, key and value))
        if holds
    )
    return schemas_from_literals(actions, literals)
