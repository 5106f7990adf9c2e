"""The content of a checkpoint: weights as safetensors, and all other state that exact resuming needs."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save as serialise
from torch import Tensor, nn

from statewise.run import MOMENTS, TRAINING, WEIGHTS, WHOLE, Checkpoint, DamagedCheckpoint, Run
from statewise.training.agreement import Agreement
from statewise.training.sharding import is_sharded, like, not_finite, pieces, writer
from statewise.training.stored import Stored, open_stored, pieces_as_bytes, write_joined


def save(run: Run, step: int, weights: Mapping[str, Tensor], training: dict[str, Any]) -> Checkpoint:
    """Writes the checkpoint of `step`. `weights`: a module's `state_dict`; `training` holds tensors, numbers, strings
    and containers of them."""
    weights = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    return run.write_checkpoint(step, {WHOLE: serialise(weights), TRAINING: _as_bytes(training)})


def save_sharded(run: Run, step: int, module: nn.Module, training: dict[str, Any], agree: Agreement) -> None:
    """Writes the checkpoint of a sharded module: each process writes its rows of the weights and of the optimiser's
    tensors, which `training.pt` then lacks. All processes call this, and all raise the `OSError` of one."""
    own, first = writer(module), agree.first
    optimizer = training["optimizer"]
    moments = {f"{kind}.{name}": t for name, kept in optimizer["state"].items() for kind, t in kept.items()}
    agree.on_first(lambda: run.begin_checkpoint(step) and None)

    def write() -> dict[str, str]:
        if own is None:
            return {}
        number, number_of_all = own
        begun = run.begun_checkpoint(step)
        return {
            name: begun.write_part(name, pieces_as_bytes(pieces(tensors, first)))
            for kind, tensors in ((WEIGHTS, module.state_dict()), (MOMENTS, moments))
            for name in [f"{kind}-{number + 1:05d}-of-{number_of_all:05d}.safetensors"]
        }

    def end() -> None:
        rest = {**training, "optimizer": {**optimizer, "state": {}}}
        sums[TRAINING] = run.begun_checkpoint(step).write_part(TRAINING, _as_bytes(rest))
        run.end_checkpoint(step, sums)

    try:
        sums = {name: value for written in agree.on_all(write) for name, value in written.items()}
        agree.on_first(end)
    except BaseException:
        if first:
            run.abandon_checkpoint(step)
        raise


def _as_bytes(training: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(training, buffer)
    return buffer.getvalue()


def join_weights(checkpoints: Iterable[Checkpoint]) -> None:
    """Joins the weights of each checkpoint that processes have written in parts into one file. Raises
    `DamagedCheckpoint` if parts are missing."""
    for checkpoint in checkpoints:
        if WHOLE in checkpoint.sums():
            checkpoint.drop_replaced()  # a process may have been killed before it could
            continue
        with _naming_damage():
            tensors = open_stored(checkpoint.parts(WEIGHTS))
            checkpoint.replace_weights(partial(write_joined, tensors))


def load_weights(checkpoint: Checkpoint, module: nn.Module) -> None:
    """Loads weights into `module`, sharded or not. Raises `DamagedCheckpoint` if the file is not safetensors, does not
    match, or holds numbers that are not finite, which training never stores (not checked for sharded modules)."""
    own = module.state_dict()
    parts = checkpoint.parts(WEIGHTS)
    with _naming_damage():
        stored = open_stored(parts)
        tensors = {name: like(tensor, own[name]) if name in own else tensor[:] for name, tensor in stored.items()}
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        what = " ".join(str(error).split())[:400]  # PyTorch names every parameter, a line each
        raise DamagedCheckpoint(f"{parts[0]} does not fit the run's recipe: {what}") from None
    if not any(is_sharded(parameter) for parameter in module.parameters()) and (bad := not_finite(module)):
        raise DamagedCheckpoint(f"{parts[0]}: {bad[0]} holds numbers that are not finite")


@contextmanager
def _naming_damage() -> Iterator[None]:
    """Raises `DamagedCheckpoint` in place of the errors of damaged safetensors files."""
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedCheckpoint(str(error)) from None


def fingerprint(module: nn.Module) -> str:
    """Hexadecimal digest of all weights with their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def load_training(checkpoint: Checkpoint) -> dict[str, Any]:
    """The training state, in which tensors of the optimiser may be `Stored`, still on disk. Raises
    `DamagedCheckpoint` for a file that cannot be read or holds more than plain data."""
    try:
        state: dict[str, Any] = torch.load(checkpoint.training, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise DamagedCheckpoint(
            f"{checkpoint.training} holds more than plain data, such as code: it was not loaded. "
            "Restore it from a copy, or resume from another step with `checkpoint`"
        ) from None
    except Exception as error:  # PyTorch raises almost anything for a damaged archive
        raise DamagedCheckpoint(f"{checkpoint.training} cannot be read: {error}") from None
    if not isinstance(state, dict) or not isinstance(state.get("optimizer"), dict) or "progress" not in state:
        raise DamagedCheckpoint(f"{checkpoint.training} holds no training state")
    parts = checkpoint.parts(MOMENTS)
    if parts:
        with _naming_damage():
            moments: dict[str, dict[str, Stored]] = {}
            for place, tensor in open_stored(parts).items():
                kind, _, name = place.partition(".")
                moments.setdefault(name, {})[kind] = tensor
        state["optimizer"]["state"] = moments
    return state
