"""Models whose layers mix documents that share a row, such as recurrent ones: each document is read in its own row.

Their caches cannot be rewound, and rows cannot have read different numbers of tokens. So the cache keeps token ids, and
beside them the model's own cache for as long as all rows go on together; after anything else the tokens are read again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from statewise.backbones.nn.cache import PlaceStore


def read_apart(read: Callable[[Tensor], Tensor], tokens: Tensor, documents: Tensor | None) -> Tensor:
    """`read`, which maps token ids (N, t) to states (N, t, D), for the documents in rows `tokens` (B, T), each in a row
    of its own. `documents` (B, T), 0: padding, whose states are zeros; None: a row is one document."""
    if documents is None:
        return read(tokens)
    numbers = documents.cpu().numpy()
    first = np.flatnonzero(np.diff(numbers, axis=1, prepend=-1))
    lengths = np.diff(first, append=numbers.size)
    real = numbers.ravel()[first] != 0
    first, lengths = first[real], lengths[real]
    column = np.arange(lengths.max(initial=1))
    used = column < lengths[:, None]
    places = torch.from_numpy(np.where(used, first[:, None] + column, 0)).to(tokens.device)
    found = read(tokens.flatten()[places])
    chosen = torch.from_numpy(np.flatnonzero(used)).to(tokens.device)
    flat = found.new_zeros(tokens.numel(), found.shape[-1])
    flat = flat.index_copy(0, places.flatten()[chosen], found.flatten(0, 1)[chosen])
    return flat.view(*tokens.shape, -1)


class TokenStore(PlaceStore):
    """The token ids that each row has read, and the model's own cache of them if it has one that is up to date."""

    def __init__(self, rows: int, most: int) -> None:
        super().__init__(rows, layers=1, most=most)
        self.states: Any = None
        """transformers' own cache after every token read; None if rows must be read again."""

    @override
    def _rewind(self, counts: np.ndarray) -> None:
        if counts.any():
            self.states = None
        super()._rewind(counts)

    @override
    def _reorder(self, rows: Tensor, chosen: np.ndarray) -> None:
        if not np.array_equal(chosen, np.arange(len(self.lengths))):
            self.states = None
        super()._reorder(rows, chosen)

    @override
    def _join(self, other: TokenStore) -> None:
        self.states = None
        super()._join(other)


def extended(
    body: Any, embed: Callable[[Tensor], Tensor], tokens: Tensor, store: TokenStore, counts: np.ndarray | None
) -> Tensor:
    """The last hidden states (B, n, D) of `tokens` (B, n), n >= 1, after those in `store`, the first `counts[b]` of row
    b; None: all."""
    before, states = store.lengths.copy(), store.states
    store.states = None
    store.begin(tokens.shape[1], counts)
    store.append(0, (tokens[:, None, :, None],))
    store.advance()
    together = not store.ragged and (store.lengths - before == tokens.shape[1]).all()
    if states is not None and together:
        # One by one: some families read several tokens after a cache as if there were none.
        steps = []
        for column in range(tokens.shape[1]):
            found, states = _read(body, embed(tokens[:, column : column + 1]), states)
            steps.append(found)
        store.states = states
        return torch.cat(steps, dim=1)
    if not store.lengths.any():  # nothing has been read
        return torch.zeros_like(embed(tokens))
    whole = store.since(np.zeros_like(store.lengths))[0, :, 0, :, 0]
    keep = together and not torch.is_grad_enabled()  # the model writes to its cache in place
    found, states = _read(body, embed(whole), None, keep)
    store.states = states
    place = torch.from_numpy(before[:, None] + np.arange(tokens.shape[1])).to(tokens.device)
    return found.gather(1, place.clamp(max=found.shape[1] - 1)[..., None].expand(-1, -1, found.shape[2]))


def _read(body: Any, embedded: Tensor, states: Any, keep: bool = True) -> tuple[Tensor, Any]:
    """The last hidden states of `embedded` (B, n, D) after `states`, and the states after them; None unless `keep`."""
    from statewise.backbones.hf.key_values import CACHE  # imports transformers

    name = "cache_params" if "cache_params" in inspect.signature(body.forward).parameters else CACHE
    given = {} if states is None else {name: states}
    output = body(inputs_embeds=embedded, use_cache=keep, **given)
    return output.last_hidden_state, getattr(output, name) if keep else None
