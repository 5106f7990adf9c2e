"""Language containment: does one action model accept every trace that another accepts? Decided exactly, atom by atom.

By Definition 1 of the STRIPS Transformer paper a trace is accepted iff every atom by itself accepts it: the language of
a model is the intersection of the languages of its atoms. So L(M) is a subset of L(M') iff it is a subset of L(q) for
each atom q of M'. This takes one small search over known-false sets of M per atom; the product of both models would be
much too large.

The problem is PSPACE-complete in general (plan existence reduces to it), so every search has limits, and the answer is
unknown where a limit is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from statewise.strips.model.heads import Head, heads, uncovered
from statewise.strips.model.model import Action, ActionModel, Atoms, bits
from statewise.strips.verification.pair_proof import closed, pairs_of_states, together
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
            (action.pre, action.add & ~action.delete & relevant, action.delete & relevant, at)
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
        pairs = closed(pairs_of_states(begins, len(self.accepting.atoms)), actions, limits)
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
