"""What every module of a network reads and writes in a pass, position by position, so that passes can be compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from statewise.runtime.devices import in_float64

NARROW = (torch.float32, torch.bfloat16, torch.float16)
MARGIN = 16
"""Columns by which the output of a convolution may be longer than its input."""
ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Largest difference by rounding alone, relative to the largest number of a tensor, by the type it is computed in."""


SPREAD = 0.02
"""Deviation of the random numbers in place of parameters that are all zero."""


class Written(NamedTuple):
    """One call of a module. Tensors are (B, n, features); those of other shapes are left out."""

    kind: str
    """The module's class."""
    inputs: list[Tensor]
    outputs: list[Tensor]
    certain: bool
    """Whether the first two axes of all outputs were rows and positions; False: that is a guess by their sizes."""


Pass = dict[tuple[str, int], Written]
"""Calls by the module's name and the number of earlier calls of it, in the order in which they ended."""


class Difference(NamedTuple):
    """How two passes differ in one call of a module, relative to its largest number."""

    module: str
    kind: str
    read: float
    """In what the call read."""
    written: float
    """In what it wrote."""
    certain: bool
    """As `Written.certain`."""


class Recorder:
    """Hooks on all modules of a network, which is meant to be a copy that nobody else uses."""

    def __init__(self, network: nn.Module, *, modules: bool = True) -> None:
        self.rows = self.columns = 0
        self.calls: Pass = {}
        self._counts: dict[str, int] = {}
        self._handles = []
        for name, module in network.named_modules() if modules else ():
            self._handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after(name), with_kwargs=True))
        self._open: list[tuple[str, list[Tensor]]] = []

    def remove(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()

    def record(self, rows: int, columns: int, read: Callable[[], tuple[Tensor, ...]]) -> Pass:
        """The calls of a pass over `rows` of `columns` tokens; the last of them, without a name, is that of the
        network, whose states `read` returns. Raises `ValueError` if these do not belong to positions."""
        self.rows, self.columns, self.calls, self._counts, self._open = rows, columns, {}, {}, []
        states = read()
        found = [self._by_position(state) for state in states]
        if not found or any(each is None for each in found):
            shapes = " and ".join(str(tuple(state.shape)) for state in states) or "no tensor"
            raise ValueError(
                f"it returns {shapes} for token ids ({rows}, {columns}): give a model that returns logits or states of "
                "every position"
            )
        if any(not (state.is_floating_point() or state.is_complex()) for state in states):
            raise ValueError(
                "it returns whole numbers, which small changes may not reach: give a model that returns logits or "
                "states of every position"
            )
        calls, self.calls = self.calls, {}
        calls.pop(("", 0), None)
        calls["", 0] = Written("", [], [each[0] for each in found if each is not None], certain=True)
        return calls

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, named: Mapping[str, Any]) -> None:
            read = [self._by_position(each) for each in tensors((given, named))]
            self._open.append((name, [each[0] for each in read if each is not None]))

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, named: Mapping[str, Any], written: Any) -> None:
            inputs: list[Tensor] = []
            while self._open:  # calls that raised an error which their caller caught never end
                opened, inputs = self._open.pop()
                if opened == name:
                    break
            found = [place for each in tensors(written) if (place := self._by_position(each)) is not None]
            if found:
                call = self._counts[name] = self._counts.get(name, -1) + 1
                certain = all(each[1] for each in found)
                self.calls[name, call] = Written(type(module).__name__, inputs, [each[0] for each in found], certain)

        return hook

    def _by_position(self, x: Tensor) -> tuple[Tensor, bool] | None:
        """A copy of `x` as (B, n, features), and whether that is more than a guess; None: no axes have these sizes."""
        B, n, shape = self.rows, self.columns, tuple(x.shape)
        if x.is_complex():
            return self._by_position(torch.view_as_real(x))
        certain = True
        if shape[:2] == (B, n):
            pass
        elif shape[:2] == (1, n):  # the same for all rows, such as rotary angles
            x = x.expand(B, *shape[1:])
        elif n == 1:
            return None
        elif shape[:2] == (n, B):
            x = x.transpose(0, 1)
        else:
            certain = False
            if x.dim() > 1 and shape[0] == B * n:
                x = x.reshape(B, n, *shape[1:])
            elif x.dim() == 4 and (shape[0], shape[2]) == (B, n):  # by heads
                x = x.transpose(1, 2)
            elif x.dim() == 3 and shape[0] == B and n <= shape[2] <= n + MARGIN:  # of a convolution
                x = x[..., :n].transpose(1, 2)
            else:
                return None
        return x.detach().reshape(B, n, -1).clone(), certain


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, also in lists, tuples and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


class Part(NamedTuple):
    """Rows and columns of a pass."""

    rows: Sequence[int]
    columns: slice

    def of(self, x: Tensor) -> Tensor:
        """(B, n, features) -> the values of these rows and columns."""
        return x[list(self.rows)][:, self.columns]


def differences(one: Pass, other: Pass, here: Part, there: Part) -> Iterator[Difference]:
    """How the part `here` of a pass differs from the part `there` of another, in every call that both have."""
    for (module, call), written in one.items():
        twin = other.get((module, call))
        if twin is None or len(twin.outputs) != len(written.outputs):
            continue
        read = _largest(zip(written.inputs, twin.inputs), here, there)
        found = _largest(zip(written.outputs, twin.outputs), here, there)
        yield Difference(module, written.kind, read, found, written.certain and twin.certain)


def _largest(pairs: Any, here: Part, there: Part) -> float:
    return max((relative(here.of(one), there.of(other)) for one, other in pairs), default=0.0)


def relative(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to their largest number; 0 for tensors of different sizes."""
    if one.shape != other.shape or not one.numel():
        return 0.0
    one, other = in_float64(one), in_float64(other)
    scale = float(torch.maximum(one.abs().max(), other.abs().max()))
    found = float((one - other).abs().max())
    return 0.0 if found == 0 else found / scale if found == found and scale > 0 else float("inf")


class _Wide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations that ask for numbers of fewer bits, as norms and softmax do for float32, get float64."""

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("dtype") in NARROW:
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


def copied(network: nn.Module, dtype: torch.dtype | None, besides: Any = None) -> Any:
    """A copy of `network`, or of `besides`, which holds it, that computes in `dtype`. None: in its own types, with the
    same parameters. Parameters that are all zero, with which some layers begin, are random in the copy: they would hide
    what the layer reads. Raises `ValueError` if the network cannot be copied."""
    memo: dict[int, Any] = {}
    for module in network.modules():
        for own in (module._parameters, module._buffers, vars(module)):
            for x in own.values():
                if isinstance(x, Tensor) and id(x) not in memo:
                    memo[id(x)] = _converted(x, dtype)
    try:
        return copy.deepcopy(network if besides is None else besides, memo)
    except Exception as error:  # whatever objects the network holds
        raise ValueError(
            f"the model cannot be copied ({type(error).__name__}: {str(error)[:200]}), and the checks leave what they "
            "are given as it is: give a model that copy.deepcopy takes"
        ) from None


def _converted(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    if isinstance(x, nn.Parameter):
        if x.is_floating_point() and x.numel() and not x.any():
            generator = torch.Generator().manual_seed(x.numel())
            drawn = SPREAD * torch.randn(x.shape, generator=generator)
            return nn.Parameter(drawn.to(x.device, dtype or x.dtype), requires_grad=False)
        if dtype is None or not x.is_floating_point():
            return x
        return nn.Parameter(x.detach().to(dtype), requires_grad=False)
    return x.detach().to(dtype) if dtype is not None and x.is_floating_point() else x.detach().clone()


@contextmanager
def quiet_passes(seed: int, dtype: torch.dtype | None, devices: Collection[torch.device]) -> Iterator[None]:
    """Within this context, a pass draws the same random numbers each time, computes no gradients, and in float64
    computes all in it."""
    cuda = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    wide: Any = _Wide() if dtype == torch.float64 else nullcontext()  # type: ignore[no-untyped-call]
    with torch.no_grad(), torch.random.fork_rng(devices=cuda), wide:
        torch.manual_seed(seed)
        yield
