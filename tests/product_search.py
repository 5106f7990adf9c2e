"""The slow twin of `statewise.strips.verification.verification`: breadth-first over both models, nothing pruned."""

from collections.abc import Iterable

from statewise.strips.model.model import ActionModel
from statewise.strips.trace_data.domains import Domain

Found = tuple[int, ...] | None
"""Numbers of the learned model's actions, or None where there is no counterexample."""


def product_search(learned: ActionModel, reference: ActionModel) -> tuple[Found, int]:
    """A shortest trace that exactly one of the two accepts, and the pairs of known-false sets that were seen."""
    pairs = list(zip(learned.actions, reference.with_actions(learned.names).actions))
    frontier: dict[tuple[int, int], tuple[int, ...]] = {(0, 0): ()}
    seen = set(frontier)
    while frontier:
        after: dict[tuple[int, int], tuple[int, ...]] = {}
        for (mine, theirs), trace in frontier.items():
            for number, (one, other) in enumerate(pairs):
                rejected = bool(one.pre & mine), bool(other.pre & theirs)
                if rejected[0] != rejected[1]:
                    return (*trace, number), len(seen)
                if any(rejected):
                    continue
                node = (mine & ~one.add | one.delete, theirs & ~other.add | other.delete)
                if node not in seen:
                    seen.add(node)
                    after[node] = (*trace, number)
        frontier = after
    return None, len(seen)


def real_search(learned: ActionModel, domain: Domain, *, undone: bool = False) -> tuple[Found, int]:
    """The same over triples with a real state, for the traces that can be drawn from the domain.

    Every action but the last can be done in the state; the last one can be done, too, or Definition 1 rejects it. With
    `undone` it may also be one that cannot be done although Definition 1 accepts it.
    """
    true = domain.model.with_actions(learned.names)
    pairs = list(zip(learned.actions, true.actions))
    starts: Iterable[int] = domain.states
    frontier: dict[tuple[int, int, int], tuple[int, ...]] = {(state, 0, 0): () for state in starts}
    seen = set(frontier)
    while frontier:
        after: dict[tuple[int, int, int], tuple[int, ...]] = {}
        for (state, mine, theirs), trace in frontier.items():
            for number, (one, other) in enumerate(pairs):
                rejected = bool(one.pre & mine), bool(other.pre & theirs)
                done = not other.pre & ~state
                if rejected[0] != rejected[1] and (done or rejected[1] or undone):
                    return (*trace, number), len(seen)
                if any(rejected) or not done:
                    continue
                node = (
                    (state | other.add) & ~other.delete,
                    mine & ~one.add | one.delete,
                    theirs & ~other.add | other.delete,
                )
                if node not in seen:
                    seen.add(node)
                    after[node] = (*trace, number)
        frontier = after
    return None, len(seen)
