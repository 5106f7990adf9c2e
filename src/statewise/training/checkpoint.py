"""The content of a checkpoint: weights as safetensors, and all other state that exact resuming needs."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialise
from torch import Tensor, nn

from statewise.run import Checkpoint, DamagedCheckpoint, Run
from statewise.training.sharding import like


def save(run: Run, step: int, weights: Mapping[str, Tensor], training: dict[str, Any]) -> Checkpoint:
    """Writes the checkpoint of `step`. `weights`: a module's `state_dict`, whole; `training` holds tensors, numbers,
    strings and containers of them."""
    weights = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    buffer = io.BytesIO()
    torch.save(training, buffer)
    return run.write_checkpoint(step, {"weights.safetensors": serialise(weights), "training.pt": buffer.getvalue()})


def load_weights(checkpoint: Checkpoint, module: nn.Module) -> None:
    """Loads weights into `module`, sharded or not. Raises `DamagedCheckpoint` if the file is not safetensors or does
    not match."""
    own = module.state_dict()
    try:
        found = load_file(checkpoint.weights)
        module.load_state_dict({name: like(tensor, own.get(name, tensor)) for name, tensor in found.items()})
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpoint(f"{checkpoint.weights} is not a readable safetensors file: {error}") from None
    except RuntimeError as error:
        what = " ".join(str(error).split())[:400]  # PyTorch names every parameter, a line each
        raise DamagedCheckpoint(f"{checkpoint.weights} does not fit the run's recipe: {what}") from None


def fingerprint(module: nn.Module) -> str:
    """Hexadecimal digest of all weights with their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def load_training(checkpoint: Checkpoint) -> dict[str, Any]:
    """The training state. Raises `DamagedCheckpoint` for a file that cannot be read or holds more than plain data."""
    try:
        state: dict[str, Any] = torch.load(checkpoint.training, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise DamagedCheckpoint(
            f"{checkpoint.training} holds more than plain data, such as code: it was not loaded. "
            "Restore it from a copy, or resume from another step with --checkpoint"
        ) from None
    except Exception as error:  # PyTorch raises almost anything for a damaged archive
        raise DamagedCheckpoint(f"{checkpoint.training} cannot be read: {error}") from None
    if not isinstance(state, dict) or not isinstance(state.get("optimizer"), dict) or "progress" not in state:
        raise DamagedCheckpoint(f"{checkpoint.training} holds no training state")
    return state
