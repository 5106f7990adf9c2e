"""Language containment: does one action model accept every trace that another accepts? Decided exactly, atom by atom.

By Definition 1 of the STRIPS Transformer paper a trace is accepted iff every atom by itself accepts it: the language of
a model is the intersection of the languages of its atoms. So L(M) is a subset of L(M') iff it is a subset of L(q) for
each atom q of M'. This takes one small search over known-false sets of M per atom; the product of both models would be
much too large. Heads that the others make superfluous can be left out (`prune`), which keeps the language.

Definition 1 ignores the real state, so two models may differ on traces that no real state allows: in blocksworld every
action needs an empty or a full hand, and some errors of theta show only after an impossible sequence. On the traces
from the real states of a domain (`RealStateSearch`) a trace counts if all its actions but the last are applicable in
turn from some real state. A shortest one is again `a w c` (see `search`), since the actions before `a` lead from one
real state to another.

The problem is PSPACE-complete in general (plan existence reduces to it), so every search has limits, and the answer is
unknown where a limit is reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from statewise.strips.model.heads import Candidates, Head, Heads, heads, uncovered
from statewise.strips.model.model import Action, ActionModel, Atoms, bits
from statewise.strips.model.pairs import closed, pairs_of_states, together
from statewise.strips.trace_data.domains import Domain
from statewise.strips.verification.search import MAX_STATES, SECONDS, Limits, Node, Search, shortest

HERE = 0
"""The only place of a search without places."""


class KnownFalseSearch(Search):
    """The search under Definition 1."""

    def __init__(self, accepting: ActionModel, head: Head) -> None:
        super().__init__(accepting, head)
        between = [(at, action) for at, action in enumerate(accepting.actions) if not head.touching >> at & 1]
        relevant, used = _relevant((goal for goal, _ in self.goals), [action for _, action in between])
        self.relevant = relevant
        """The atoms relevant to a goal: known-false sets omit all others."""
        # an action that adds no relevant atom can be left out: its deletes only make more actions inapplicable
        self.actions = [
            (action.pre, action.add & relevant, action.delete & relevant, at)
            for (at, action), is_used in zip(between, used)
            if is_used
        ]

    def begin(self) -> Iterator[tuple[Node, int]]:
        """The atoms known to be false after each action `a` that deletes the atom of the head."""
        for number in bits(self.head.delete):
            yield (HERE, self.accepting.actions[number].delete & self.relevant), number

    def excluded(self, limits: Limits) -> bool:
        """Decides by pairs of atoms."""
        begins = self._begins(limits)
        actions = [Action("", *sets) for *sets, _ in self.actions]
        pairs = closed(pairs_of_states(begins, len(self.accepting.atoms)), actions, limits.look_at_the_clock)
        return all(together(pairs, goal) is None for goal, _ in self.goals)

    def _begins(self, limits: Limits) -> Iterator[Atoms]:
        for (_, false), _ in self.begin():
            limits.look_at_the_clock()
            yield self.relevant & ~false

    def steps(self, node: Node) -> Iterator[tuple[Node, int]]:
        """Accepted actions that add at least one atom known to be false."""
        false = node[1]
        for pre, add, delete, number in self.actions:
            if add & false and not pre & false:
                yield (HERE, false & ~add | delete), number


def _relevant(goals: Iterable[Atoms], actions: Sequence[Action]) -> tuple[Atoms, list[bool]]:
    """The atoms relevant to one of the goals, and whether each action is."""
    relevant = 0
    for goal in goals:
        relevant |= goal
    used = [False] * len(actions)
    grown = True
    while grown:
        grown = False
        for place, action in enumerate(actions):
            if not used[place] and action.add & relevant:
                used[place] = grown = True
                relevant |= action.pre
    return relevant, used


def contained(
    inner: ActionModel, outer: ActionModel, *, seconds: float = SECONDS, max_states: int = MAX_STATES
) -> bool | None:
    """Whether `outer` accepts every trace that `inner` accepts (Definition 1); None if undecided within the limits.

    Raises `ValueError` unless both have the same actions, in any order.
    """
    return _none_rejects(heads(outer.with_actions(inner.names)), inner, Limits(seconds, max_states))


def implied(
    model: ActionModel,
    atom: int,
    among: Atoms,
    *,
    seconds: float = SECONDS,
    max_states: int = MAX_STATES,
    stop: Callable[[], bool] = lambda: False,
) -> bool | None:
    """Whether the atoms `among`, without `atom` itself, reject every trace that `atom` rejects; None if undecided
    within the limits, or before `stop()` is true.

    If so, the model with only the atoms `among` accepts the same traces with and without `atom`. To prune, test one
    atom at a time and remove it from `among` if it is implied before testing the next: two equal atoms imply each
    other.
    """
    others = model.with_atoms(list(bits(among & ~(1 << atom))))
    return _none_rejects([heads(model)[atom]], others, Limits(seconds, max_states, stop=stop))


def _none_rejects(wanted: Iterable[Head], accepting: ActionModel, limits: Limits) -> bool | None:
    """Whether no head in `wanted` rejects a trace that the model accepts; None if undecided."""
    searches = [KnownFalseSearch(accepting, head) for head in uncovered(wanted, heads(accepting))]
    # any trace is enough; an empty one ends the search for shorter ones
    result = shortest(searches, limits, lambda trace: trace[:0])
    if result.found is not None:
        return False
    return True if result.limit is None else None


def undominated(heads: Heads, has_time: Callable[[], bool] = lambda: True) -> np.ndarray:
    """Places of the heads that no other head dominates, and once `has_time()` is false of those not yet tested.

    A head dominates another if it requires and deletes everything that the other does, and adds nothing that the other
    does not: then it rejects everything that the other rejects. Dropping dominated heads keeps the language.
    """
    alive = np.ones(len(heads), dtype=bool)
    for place in np.argsort(heads.size(), kind="stable"):  # drops the first of two equal ones
        if not has_time():
            break
        covers = (
            ~(heads.pre[place] & ~heads.pre).any(1)
            & ~(heads.delete[place] & ~heads.delete).any(1)
            & ~(heads.add & ~heads.add[place]).any(1)
            & alive
        )
        covers[place] = False
        if covers.any():
            alive[place] = False
    return np.flatnonzero(alive)


def prune(
    candidates: Candidates, actions: Sequence[str], seconds: float = 30.0, *, stop: Callable[[], bool] = lambda: False
) -> np.ndarray:
    """Places of the candidates that remain after dropping those that the others imply (exact containment), which keeps
    the language. Tests the largest ones first. Keeps candidates that are undecided within the time limit, or once
    `stop()` is true.
    """
    model = candidates.heads.model(actions)
    members = [0] * len(candidates)
    for head, of in enumerate(candidates.group):
        members[of] |= 1 << head
    among, end = sum(members), time.monotonic() + seconds
    kept = np.ones(len(candidates), dtype=bool)
    for place in np.argsort(-candidates.size, kind="stable"):
        left = end - time.monotonic()
        if left <= 0 or stop():
            break
        rest = among & ~members[place]
        if all(implied(model, head, rest, seconds=left, stop=stop) for head in bits(members[place])):
            among, kept[place] = rest, False
    return np.flatnonzero(kept)


class RealStates:
    """The real states of a domain, and the applicable actions in each."""

    def __init__(self, domain: Domain, actions: Sequence[str], limits: Limits) -> None:
        """Numbers the actions as in `actions`. Raises `LimitReached`, and `ValueError` unless they are those of the
        domain."""
        model = domain.model.with_actions(actions)
        effects = [(number, action.pre, action.add, action.delete) for number, action in enumerate(model.actions)]
        place = {state: at for at, state in enumerate(dict.fromkeys(domain.start))}
        self.states = list(place)
        self.ways: list[list[tuple[int, int]]] = []
        """For each state the applicable actions, each with the number of the successor state."""
        for state in self.states:  # grows during the loop
            limits.count()
            ways = []
            for number, pre, add, delete in effects:
                if not pre & ~state:
                    after = (state | add) & ~delete
                    at = place.get(after)
                    if at is None:
                        at = place[after] = len(self.states)
                        self.states.append(after)
                    ways.append((number, at))
            self.ways.append(ways)

    def start_of(self, trace: Iterable[int]) -> Atoms | None:
        """The first state from which the actions are applicable in turn, or None."""
        begins = {at: at for at in range(len(self.states))}  # current state: initial state
        for number in trace:
            after: dict[int, int] = {}
            for at, begin in begins.items():
                for applicable, to in self.ways[at]:
                    if applicable == number:
                        after.setdefault(to, begin)
            begins = after
        return self.states[min(begins.values())] if begins else None


class RealStateSearch(Search):
    """The search over traces from real states.

    With `last_is_done` the last action must be applicable in the real state, too. Whether the accepting model accepts
    is checked only for the last action. For the model of the domain this is enough, since it accepts applicable
    actions; a learned model may have rejected an earlier action, which then gives a shorter counterexample.
    """

    def __init__(self, accepting: ActionModel, head: Head, real: RealStates, *, last_is_done: bool = False) -> None:
        super().__init__(accepting, head)
        self.real, self.last_is_done = real, last_is_done
        watched = 0
        if not last_is_done:  # otherwise the real state decides whether the last action is accepted
            for goal, _ in self.goals:
                watched |= goal
        self.keep = [watched & ~action.add for action in accepting.actions]
        self.enter = [watched & action.delete for action in accepting.actions]

    def begin(self) -> Iterator[tuple[Node, int]]:
        """Each action `a` that deletes the atom, from each real state where it is applicable."""
        for ways in self.real.ways:
            for number, to in ways:
                if self.head.delete >> number & 1:
                    yield (to, self.enter[number]), number

    def excluded(self, limits: Limits) -> bool:
        """Decides under Definition 1, by pairs of atoms, which is sufficient."""
        return KnownFalseSearch(self.accepting, self.head).excluded(limits)

    def steps(self, node: Node) -> Iterator[tuple[Node, int]]:
        """All applicable actions: an action that adds nothing may still lead to another state."""
        at, false = node
        for number, to in self.real.ways[at]:
            if not self.head.touching >> number & 1:
                yield (to, false & self.keep[number] | self.enter[number]), number

    def rejected_next(self, node: Node) -> int | None:
        """An action `c`; with `last_is_done`, one that is applicable in the real state."""
        if not self.last_is_done:
            return super().rejected_next(node)
        return next((number for number, _ in self.real.ways[node[0]] if self.head.pre >> number & 1), None)
