"""Who may wait when the queue is full: clients of different addresses share it (max-min fairness; Bertsekas & Gallager
1992, section 6.5.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Waiting(NamedTuple, Generic[Item]):
    """A request that waits."""

    item: Item
    client: str
    """The address that asked."""
    places: int
    begun: bool
    """Whether a part of it was begun: then it keeps its places."""


def displaced(waiting: Iterable[Waiting[Item]], client: str, places: int, most: int) -> list[Item] | None:
    """The requests that must leave a queue of `most` places so that a request of `client` for `places` can wait, in the
    order in which they leave; None: there is no room for it.

    `waiting` is in the order of arrival. The newest request of the address with the most places leaves first, as long
    as that address has more places than `client` would have. So each of k addresses can have `most // k` places,
    whatever the others do, except for places of requests that were begun.
    """
    queue, shares = list(waiting), Counter[str]()
    for one in queue:
        shares[one.client] += one.places
    room, own = most - shares.total(), shares[client] + places
    newest: dict[str, list[Waiting[Item]]] = {}
    for one in queue:
        if not one.begun:
            newest.setdefault(one.client, []).append(one)
    found = []
    while room < places:
        able = [other for other, left in newest.items() if left and shares[other] > own]
        if not able:
            return None
        last = newest[max(able, key=shares.__getitem__)].pop()
        shares[last.client] -= last.places
        room += last.places
        found.append(last.item)
    return found
