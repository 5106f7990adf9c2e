"""Models of any kind as the checks of leaks read them."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from statewise.backbones.base import Backbone
from statewise.backbones.leaks.recording import copied, tensors
from statewise.backbones.nn.masks import document_starts, positions_within_documents
from statewise.batch import Batch

States = tuple[Tensor, ...]
"""Logits or states of all positions, (B, T, ...)."""

DOCUMENTS = ("documents", "document_ids", "doc_ids")
"""Names for the number of each position's document, (B, T), counted from 1."""
POSITIONS = ("position_ids", "positions")
LENGTHS = ("cu_seqlens", "cu_seq_lens")
"""Names for the cumulative lengths of the documents of one row, from 0, int32."""
MASKS = ("attention_mask",)
"""Names for a mask (B, T), 1 where a token is."""
CACHES = ("past_key_values", "cache_params", "cache", "past", "state")
"""Names for what a model keeps of the tokens that it has read."""


class Reader(ABC):
    """A model that returns states for token ids. What it lacks is in `lacks`."""

    network: nn.Module
    """The module whose parts are watched."""
    vocabulary: int
    """Number V of token ids."""
    longest: int | None = None
    """Tokens of the longest row that it reads; None: no limit is known."""
    unused: frozenset[int] = frozenset()
    """Token ids with a meaning of their own, which are not read."""

    def __init__(self) -> None:
        self.packings: dict[str, Callable[[Tensor, Tensor], States]] = {}
        """Ways to read one row (1, T) of several documents, (1, T) counted from 1, by what it is given."""
        self.paddings: dict[str, Callable[[Tensor, Tensor], States]] = {}
        """Ways to read padded rows (B, T), by the side of the padding (`left` or `right`); bool (B, T): the tokens."""
        self.lacks: dict[str, str] = {}
        """Why it cannot be read in a way: by `packed`, `padding` and `cache`."""

    @abstractmethod
    def read(self, tokens: Tensor) -> States:
        """The states of rows (B, T)."""

    @abstractmethod
    def step(self, tokens: Tensor, cache: Any) -> tuple[States, Any]:
        """Reads tokens (B, n) after those in a cache, None at first; returns states and the cache. Raises `ValueError`
        if the model keeps none."""

    def uneven(self, tokens: Tensor) -> Iterator[tuple[States, int, slice]]:
        """Rows read in steps in which they go apart, change places and return, where the model can do so: the states,
        (1, n, ...), of a row and columns of `tokens` (B, T)."""
        yield from ()

    @abstractmethod
    def copy(self, dtype: torch.dtype | None) -> Self:
        """A reader of a copy of the model, which computes in `dtype`; None: in its own types."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next((x.device for x in tensors([*self.network.parameters()])), torch.device("cpu"))


class BackboneReader(Reader):
    """A backbone of ours."""

    def __init__(self, backbone: Backbone, vocabulary: int | None = None) -> None:
        super().__init__()
        self.network = self.backbone = backbone
        self.vocabulary = backbone.vocabulary if vocabulary is None else min(vocabulary, backbone.vocabulary)
        self.longest = backbone.context
        self.packings["documents"] = lambda tokens, documents: self._encoded(Batch.plain(tokens, documents))
        self.paddings["right"] = lambda tokens, real: self._encoded(
            Batch(tokens, torch.zeros_like(real), real, None, (0, 0))
        )

    @override
    def read(self, tokens: Tensor) -> States:
        return self._encoded(Batch.plain(tokens))

    @override
    def step(self, tokens: Tensor, cache: Any) -> tuple[States, Any]:
        cache = self.backbone.make_cache(len(tokens)) if cache is None else cache
        return tuple(self.backbone.extend(tokens, cache)), cache

    @override
    def uneven(self, tokens: Tensor) -> Iterator[tuple[States, int, slice]]:
        (rows, length), tokens = tokens.shape, tokens[:2]
        if rows < 2 or length < 6:
            return
        cache, counts, back = self.backbone.make_cache(2), np.array([3, length - 2]), np.array([1, length - 4])
        cache.hold()
        first = self.backbone.extend(tokens[:, : length - 2], cache, counts)
        for row, count in enumerate(counts.tolist()):
            yield tuple(part[row : row + 1, :count] for part in first), row, slice(0, count)
        cache.rewind(back)
        cache.reorder(torch.tensor([1, 0]))
        second = self.backbone.extend(tokens.flip(0)[:, 2:], cache)
        for place, row in enumerate((1, 0)):
            yield tuple(part[place : place + 1] for part in second), row, slice(2, length)

    @override
    def copy(self, dtype: torch.dtype | None) -> BackboneReader:
        return BackboneReader(copied(self.backbone, dtype), self.vocabulary)

    def _encoded(self, batch: Batch) -> States:
        hidden = self.backbone.encode(batch)
        return (hidden.readout,) if hidden.state is hidden.readout else tuple(hidden)


class ModuleReader(Reader):
    """Any module that maps token ids (B, T) to logits or states, also one of transformers. What else it can be given
    is known by the names of the arguments of its `forward`."""

    def __init__(self, network: nn.Module, vocabulary: int | None = None) -> None:
        super().__init__()
        self.network = network
        parameters = inspect.signature(network.forward).parameters
        self._names = {name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}
        self._takes_any = len(self._names) < len(parameters)
        config: Any = getattr(network, "config", None)
        self._of_transformers = any(kind.__name__ == "PreTrainedModel" for kind in type(network).__mro__)
        if self._of_transformers:
            config = config.get_text_config()
            longest = getattr(config, "max_position_embeddings", None)
            self.longest = longest if isinstance(longest, int) and longest > 0 else None
            special = {key: value for key, value in config.to_dict().items() if key.endswith("token_id")}
            self.unused = frozenset(value for value in special.values() if isinstance(value, int))
        self._find_ways()
        self.vocabulary = self._vocabulary() if vocabulary is None else vocabulary

    @override
    def read(self, tokens: Tensor) -> States:
        return self._call(tokens)[0]

    @override
    def step(self, tokens: Tensor, cache: Any) -> tuple[States, Any]:
        name = self._first(CACHES)
        if name is None:
            raise ValueError(self.lacks["cache"])
        cache, read = cache or (None, 0)
        make: Any = getattr(self.network, "make_cache", None)
        if cache is None and make is not None:
            cache = make(len(tokens))
        given = {} if cache is None else {name: cache}
        count = tokens.shape[1]
        if self._of_transformers and "position_ids" in self._names:  # as `generate` gives them
            given["position_ids"] = torch.arange(read, read + count, device=tokens.device).expand_as(tokens)
        states, output = self._call(tokens, use_cache=True, **given)
        if isinstance(output, Mapping):
            cache = output.get(name, cache)
        elif isinstance(output, tuple) and len(output) > 1:
            cache = output[1]
        else:
            cache = getattr(output, name, cache)
        if cache is None:
            raise ValueError("it returns no cache")
        return states, (cache, read + count)

    @override
    def copy(self, dtype: torch.dtype | None) -> ModuleReader:
        network = copied(self.network, dtype)
        if dtype == torch.float64 and self._of_transformers and hasattr(network.config, "_experts_implementation"):
            network.config._experts_implementation = "eager"  # the fused products of experts know no float64
        return ModuleReader(network, self.vocabulary)

    def _first(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in self._names), None)

    def _find_ways(self) -> None:
        documents, positions, lengths, mask = map(self._first, (DOCUMENTS, POSITIONS, LENGTHS, MASKS))
        if self._of_transformers and (positions or self._takes_any):
            # As DataCollatorWithFlattening gives them, without and with its options.
            self._pack("position_ids", lambda numbers: {"position_ids": positions_within_documents(numbers)})
            if self._takes_any:
                self._pack("position_ids and cu_seq_lens", _flattened)
        elif named := [name for name in (documents, positions, lengths) if name is not None]:
            made: dict[str | None, Callable[[Tensor], Tensor]] = {
                documents: lambda numbers: numbers,
                positions: positions_within_documents,
                lengths: _cumulative,
            }
            self._pack(" and ".join(named), lambda numbers: {name: made[name](numbers) for name in named})
        else:
            self.lacks["packed"] = "its forward takes none of " + ", ".join((*DOCUMENTS, *POSITIONS, *LENGTHS))
        if mask is None:
            self.lacks["padding"] = f"its forward takes no {MASKS[0]}"
        else:
            for side in ("right", "left"):
                self.paddings[side] = lambda tokens, real: self._call(tokens, **_masked(mask, positions, real))[0]
        if self._first(CACHES) is None:
            self.lacks["cache"] = "its forward takes none of " + ", ".join(CACHES)

    def _pack(self, name: str, made: Callable[[Tensor], dict[str, Any]]) -> None:
        self.packings[name] = lambda tokens, documents: self._call(tokens, **made(documents))[0]

    def _call(self, tokens: Tensor, *, use_cache: bool = False, **given: Any) -> tuple[States, Any]:
        if "use_cache" in self._names or (self._of_transformers and self._takes_any):
            given["use_cache"] = use_cache
        ids = ((), {"input_ids": tokens}) if "input_ids" in self._names else ((tokens,), {})
        try:
            output = self.network(*ids[0], **ids[1], **given)
        except SystemExit as error:  # it would end the check with its own exit code, which may say that all is well
            raise RuntimeError(f"the model ends the program, with exit code {error.code}") from None
        for name in ("logits", "last_hidden_state"):
            found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
            if isinstance(found, Tensor):
                return (found,), output
        return tuple(each for each, _ in zip(tensors(output), range(1))), output

    @torch.no_grad()
    def _vocabulary(self) -> int:
        """The number of rows of the model's token embedding. Raises `ValueError` if the model has no embedding."""
        tokens, found = torch.tensor([[0, 1, 1, 0, 1]], device=self.device), []

        def look(module: nn.Embedding, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor) and torch.equal(given[0].flatten(), tokens[0]):
                found.append(module.num_embeddings)

        tables = [each for each in self.network.modules() if isinstance(each, nn.Embedding)]
        handles = [each.register_forward_pre_hook(look) for each in tables]
        modes = [(each, each.training) for each in self.network.modules()]
        self.network.eval()
        try:
            self.read(tokens)
        except Exception as error:  # whatever the code of the model raises
            if found:  # it may read rows of one length alone
                return int(found[0])
            raise ValueError(
                f"the model cannot be read by token ids alone ({type(error).__name__}: {str(error)[:200]}): give a "
                "causal model"
            ) from None
        finally:
            for each, training in modes:
                each.training = training
            for handle in handles:
                handle.remove()
        if not found and self._of_transformers:
            config: Any = self.network.config
            found.append(config.get_text_config().vocab_size)
        if not found:
            raise ValueError("the model has no table of token ids (nn.Embedding): give its number of them, vocabulary")
        return int(found[0])


def _cumulative(documents: Tensor) -> Tensor:
    """Cumulative lengths of the documents of one row, from 0."""
    starts = document_starts(documents)[0].nonzero()[:, 0]
    return torch.cat((starts, starts.new_tensor([documents.shape[1]]))).to(torch.int32)


def _flattened(documents: Tensor) -> dict[str, Any]:
    """What DataCollatorWithFlattening gives with `return_flash_attn_kwargs` and `return_seq_idx`."""
    cumulative = _cumulative(documents)
    most = int(cumulative.diff().max())
    return {
        "position_ids": positions_within_documents(documents),
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), cumulative),
        **dict.fromkeys(("max_length_q", "max_length_k"), most),
        "seq_idx": (documents - 1).to(torch.int32),
    }


def _masked(mask: str, positions: str | None, real: Tensor) -> dict[str, Any]:
    """A mask, and positions as `generate` of transformers counts them."""
    given = {mask: real.long()}
    return given if positions is None else {**given, positions: (real.long().cumsum(1) - 1).clamp(min=0)}
