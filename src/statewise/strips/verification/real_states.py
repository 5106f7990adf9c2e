"""Do two models agree on the traces from the real states of a domain? The same searches, with real states as places.

Definition 1 ignores the real state, so two models may differ on traces that no real state allows: in blocksworld every
action needs an empty or a full hand, and some errors of theta show only after an impossible sequence. Here a trace
counts if all its actions but the last are applicable in turn from some real state. A shortest one is again `a w c`,
since the actions before `a` lead from one real state to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from statewise.strips.model.heads import Head
from statewise.strips.model.model import ActionModel, Atoms
from statewise.strips.trace_data.domains import Domain
from statewise.strips.verification.containment import KnownFalseSearch
from statewise.strips.verification.search import Limits, Node, Search


class RealStates:
    """The real states of a domain, and the applicable actions in each."""

    def __init__(self, domain: Domain, actions: Sequence[str], limits: Limits) -> None:
        """Numbers the actions as in `actions`. Raises `LimitReached`, and `ValueError` unless they are those of the
        domain."""
        model = domain.model.with_actions(actions)
        effects = [
            (number, action.pre, action.add & ~action.delete, action.delete)
            for number, action in enumerate(model.actions)
        ]
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
        self.keep = [watched & ~(action.add & ~action.delete) for action in accepting.actions]
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
