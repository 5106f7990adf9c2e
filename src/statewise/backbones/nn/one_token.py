"""One token of a single row, or of each of a few rows, for a server: what `nn.block.Block` computes, in fewer calls.

Such a pass reads every weight once and computes little. A matrix stored by columns is read at two to three times the
speed, and on few vectors calls of NumPy take half as long as those of PyTorch. Functions take vectors (..., n): one
(n,), or those of B rows (B, n).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from statewise.backbones.nn.attention import attend, attend_fused, rotary_angles
from statewise.backbones.nn.block import Block, BlockConfig, FeedForward, SelfAttention
from statewise.backbones.nn.cache import KeyValueCache
from statewise.backbones.nn.layers import LayerNorm, RMSNorm

Product = Callable[[np.ndarray], np.ndarray]
"""Multiplies a matrix (m, n) by vectors (..., n): returns (..., m)."""

ROWS = 32
"""Most rows of a pass, where NumPy has one thread; otherwise one. With more, the blocks are as fast."""
ROW_BY_ROW = 7
"""Most vectors that NumPy multiplies one after the other: a matrix stays in a processor's cache meanwhile, and
products of matrices would copy it first."""

TOGETHER = 2**22
"""Numbers that `store_by_columns` allocates together, at least, where there are so many: NumPy asks for huge pages,
which a small matrix would not fill."""
FOR_ONE_THREAD = 2**20
"""Largest matrix that is multiplied in one thread even if there are more."""


@torch.no_grad()
def store_by_columns(weights: Iterable[Tensor]) -> None:
    """Stores matrices (m, n) on a CPU column after column, many in one allocation; shapes and values stay, and there is
    no second copy. Products of few vectors gain by it, others lose nothing. Matrices that are stored so stay."""
    group: list[Tensor] = []
    for weight in weights:
        if weight.t().is_contiguous():
            continue
        group.append(weight)
        if sum(map(_room, group)) >= TOGETHER:
            _store_group(group)
            group = []
    if group:
        _store_group(group)


def _store_group(group: list[Tensor]) -> None:
    buffer = torch.from_numpy(np.empty(sum(map(_room, group)), group[0].detach().numpy().dtype))
    begin = 0
    for weight in group:
        columns = buffer[begin : begin + weight.numel()].view(weight.shape[1], weight.shape[0]).t()
        columns.copy_(weight)
        begin += _room(weight)
        weight.data = columns


def _room(weight: Tensor) -> int:
    """Numbers that a matrix takes, a multiple of what a processor reads at a time."""
    return -(-weight.numel() // 16) * 16


def product_with(weight: Tensor, bias: Tensor | None = None) -> Product:
    """The product of vectors with a matrix (m, n) that is stored by columns, plus `bias` (m,).

    NumPy's product is the fastest, unless it has several threads, which wait for each other. Then only a single vector
    is taken, and a matrix is multiplied as a weighted sum of its columns (`embedding_bag`), which is faster than
    PyTorch's product, if it is small or PyTorch has one thread."""
    matrix, columns = weight.detach().numpy(), weight.detach().t()
    if numpy_has_one_thread():

        def product(x: np.ndarray) -> np.ndarray:
            if x.ndim == 1:
                return matrix.dot(x)
            return np.matmul(matrix, x[:, :, None])[:, :, 0] if len(x) <= ROW_BY_ROW else x.dot(matrix.T)

    elif columns.is_contiguous() and (torch.get_num_threads() == 1 or weight.numel() <= FOR_ONE_THREAD):
        places, first = torch.arange(len(columns), dtype=torch.int32), torch.zeros(1, dtype=torch.int32)

        def product(x: np.ndarray) -> np.ndarray:
            return torch.embedding_bag(columns, places, first, False, 0, False, torch.from_numpy(x))[0][0].numpy()

    else:
        rows = weight.detach()

        def product(x: np.ndarray) -> np.ndarray:
            return torch.mv(rows, torch.from_numpy(x)).numpy()

    if bias is None:
        return product
    shift = bias.detach().numpy()
    return lambda x: product(x) + shift


def numpy_has_one_thread() -> bool:
    """Whether NumPy's products have one thread, by the variables that they obey when NumPy is imported."""
    named = (os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))
    return next((value for value in named if value), str(os.cpu_count())) == "1"


def _norm(part: nn.Module) -> Callable[[np.ndarray], np.ndarray]:
    """`RMSNorm` or `LayerNorm` of vectors."""
    weight: Any = part.weight
    gain, eps, width = weight.detach().numpy(), float(part.eps), weight.numel()  # type: ignore[arg-type]

    def rms(x: np.ndarray) -> np.ndarray:
        square = x.dot(x) if x.ndim == 1 else np.vecdot(x, x)[:, None]
        unit: np.ndarray = x * (square / width + eps) ** -0.5
        unit *= gain
        return unit

    if isinstance(part, nn.RMSNorm):
        return rms
    bias: Any = part.bias
    shift = np.zeros_like(gain) if bias is None else bias.detach().numpy()
    return lambda x: rms(x - x.sum(-1, keepdims=True) / width) + shift


@lru_cache(maxsize=4096)
def _angles(place: int, head_width: int, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """`rotary_angles` of one place, (2, W / 2) each: by halves of a head."""
    straight, swapped = rotary_angles(torch.tensor([place]), head_width)
    return straight.to(dtype).view(2, -1).numpy(), swapped.to(dtype).view(2, -1).numpy()


class _Layer:
    """The parts of one block."""

    def __init__(self, block: Block) -> None:
        attention, mlp = block.attention, block.mlp
        self.attention_norm, self.mlp_norm = _norm(block.attention_norm), _norm(block.mlp_norm)
        self.heads_in, self.heads_out, self.mlp_in, self.mlp_out = (
            product_with(part.weight, part.bias)
            for part in (attention.in_proj, attention.out_proj, mlp.in_proj, mlp.out_proj)
        )


NORMS = (RMSNorm, LayerNorm)


def can_be_replaced(config: BlockConfig, blocks: nn.ModuleList, norm: nn.Module, parameters: Iterable[Tensor]) -> bool:
    """Whether `OneToken` computes what the blocks and the norm after them do: each part is what a GPT makes of
    `config`, and all parameters are plain tensors of one precision, float32 or float64, on a CPU."""
    parameters = list(parameters)
    kinds = {(type(one), one.dtype, one.device.type) for one in parameters}
    if not any(kinds == {(nn.Parameter, dtype, "cpu")} for dtype in (torch.float32, torch.float64)):
        return False
    if any(one.is_inference() for one in parameters) and not torch.is_inference_mode_enabled():
        return False  # the memory of such tensors may not be replaced here
    layers = [type(block) is Block and _is_plain(block, config, layer) for layer, block in enumerate(blocks)]
    return config.attention == "softmax" and type(norm) in NORMS and all(layers)


def _is_plain(block: Block, config: BlockConfig, layer: int) -> bool:
    attention, mlp = block.attention, block.mlp
    if type(attention) is not SelfAttention or type(mlp) is not FeedForward:
        return False
    made = (attention.attend, attention.heads, attention.layer, mlp.kind) == (attend, config.heads, layer, config.mlp)
    linears = (attention.in_proj, attention.out_proj, mlp.in_proj, mlp.out_proj)
    norms = (block.attention_norm, block.mlp_norm)
    return made and all(type(part) is nn.Linear for part in linears) and all(type(part) in NORMS for part in norms)


Place = tuple[dict[str, Any], str, Any]
"""A dictionary of a module, a name, and what was there; None: nothing."""


def _places(model: nn.Module) -> Iterator[Place]:
    """All that decides which function the parts of a model compute, but for the values of its parameters."""
    for part in model.modules():
        own = vars(part)
        for inner in (part._modules, part._parameters):
            for name, value in inner.items():
                yield inner, name, value
        yield own, "forward", None  # some libraries set it, instead of a hook
        for name in ("training", "attend", "heads", "layer", "kind", "eps"):
            if name in own:
                yield own, name, own[name]
        if isinstance(part, nn.ModuleList):
            yield part._modules, str(len(part)), None


class OneToken:
    """The blocks of a GPT, for one token of each of a few rows on a CPU. The weights are those of the blocks, also
    after a change of their values. While a part of the model or the memory of a parameter is another, `fits` says
    no."""

    def __init__(
        self, config: BlockConfig, blocks: Iterable[Block], norm: nn.Module, head: Tensor, model: nn.Module
    ) -> None:
        """`norm`: the one after the last block; `head` (V, D): the matrix of the vocabulary head; `model`: all whose
        parts may have hooks or be replaced. The parts are such that `can_be_replaced`."""
        self.heads, self.width, self.kind = config.heads, config.width // config.heads, config.mlp
        self.turns = config.positions == "rope"
        self.layers, self.norm, self.head = [_Layer(block) for block in blocks], _norm(norm), product_with(head)
        self.dtype = head.dtype
        self.attend, self.most = (_attend, ROWS) if numpy_has_one_thread() else (_attend_fused, 1)
        self._hooks: list[Any] = [
            hooks for part in model.modules() for hooks in (part._forward_hooks, part._forward_pre_hooks)
        ]
        self._hooks += [_global_forward_hooks, _global_forward_pre_hooks]
        self._owners, self._names, self._values = zip(*_places(model))
        self._weights = list(model.parameters())
        self._memory = [weight.data_ptr() for weight in self._weights]
        self._head_weight, self._head_memory = head, head.data_ptr()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """None in a copied or pickled model, whose weights are others."""
        return type(None), ()

    def exact(self) -> bool:
        """Whether products may be these: without gradients, and in the weights' precision."""
        return not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))

    def fits(self, cache: KeyValueCache) -> bool:
        """Whether `step` may be a pass over one token of each row: of few rows, without gradients, without hooks, in
        the weights' precision and with the parts that it was made from."""
        few = 0 < len(cache.lengths) <= self.most
        return few and self.exact() and not any(self._hooks) and self._unchanged()

    def _unchanged(self) -> bool:
        same = all(map(is_, map(dict.get, self._owners, self._names), self._values))
        return same and list(map(Tensor.data_ptr, self._weights)) == self._memory

    def fits_head(self, weight: Tensor) -> bool:
        """Whether `head` may be the product with `weight` (V, D), the matrix of the vocabulary head."""
        return weight is self._head_weight and weight.data_ptr() == self._head_memory and self.exact()

    @np.errstate(invalid="ignore", over="ignore")  # of a model that fails: who reads the logits will see
    def step(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        """The blocks and the norm for the embedded tokens `x` (B, D), at the next place of each row of `cache`: (B, D).
        Does the whole pass of the cache."""
        B = len(x)
        residual = x.numpy().reshape(-1).copy() if B == 1 else x.numpy().copy()
        cache.begin(1)
        places, bias = cache.key_places(x.device).numpy(), None
        if places.ndim == 2:
            bias = np.where(places < 0, -np.inf, 0).astype(residual.dtype)[:, None]
        if self.turns:
            straight, swapped = self._angles(places[..., -1])
        for number, layer in enumerate(self.layers):
            mixed = layer.heads_in(layer.attention_norm(residual)).reshape(B, 3, self.heads, self.width)
            if self.turns:
                turning = mixed[:, :2].reshape(B, 2, self.heads, 2, -1)
                other = turning[:, :, :, ::-1] * swapped
                turning *= straight
                turning += other
            keys, values = cache.append_one(number, (mixed[:, 1], mixed[:, 2]))
            seen = self.attend(mixed[:, 0], keys, values, bias)
            residual += layer.heads_out(seen.reshape(residual.shape))
            residual += layer.mlp_out(self._activated(layer.mlp_in(layer.mlp_norm(residual))))
        cache.advance()
        return torch.from_numpy(self.norm(residual)).view(x.shape)

    def _angles(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`_angles` of the places of all rows, () or (B,): (2, W / 2) each, or (B, 1, 1, 2, W / 2)."""
        if places.ndim == 0:
            return _angles(int(places), self.width, self.dtype)
        straight, swapped = zip(*(_angles(place, self.width, self.dtype) for place in places.tolist()))
        return np.stack(straight)[:, None, None], np.stack(swapped)[:, None, None]

    def _activated(self, inner: np.ndarray) -> np.ndarray:
        """`FeedForward.activated`; of a single vector SwiGLU costs half as much in NumPy, 5% of a step."""
        if self.kind == "swiglu" and inner.ndim == 1:
            gate, linear = inner.reshape(2, -1)
            activated: np.ndarray = gate / (1 + np.exp(-gate)) * linear
            return activated
        return FeedForward.activated(self.kind, torch.from_numpy(inner)).numpy()


def _attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Attention of one query of each row (B, H, W) to `keys` and `values` (B, H, K, W), with `bias` (B, 1, K) added to
    the scores: (B, H, W)."""
    scores = np.matmul(keys, (query * query.shape[2] ** -0.5)[:, :, :, None])[:, :, :, 0]
    if bias is not None:
        scores += bias
    weights = torch.from_numpy(scores).softmax(-1).numpy()
    return np.matmul(weights[:, :, None], values)[:, :, 0]


def _attend_fused(query: np.ndarray, keys: np.ndarray, values: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """`_attend` by PyTorch's kernel."""
    queries, *both = (torch.from_numpy(part) for part in (query[:, :, None], keys, values))
    mask = None if bias is None else torch.from_numpy(bias)[:, :, None]
    return attend_fused(queries, *both, mask=mask)[:, :, 0].numpy()
