"""Whether anything but the past changes a state of a model, of any kind and from anywhere."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import nn

from statewise.backbones.base import Backbone
from statewise.backbones.leaks.checks import Leaks, find
from statewise.backbones.leaks.readers import BackboneReader, ModuleReader, Reader
from statewise.model.model import Model, load_model
from statewise.objectives.activations import backbone_of
from statewise.objectives.base import Objective
from statewise.runtime.json_files import ANYTHING, read_json
from statewise.training.machine import choose_device

OWN = r"\w+(\.\w+)*:\w+(\.\w+)*"
"""The name of a module of the user's own: `module:name`."""


def leaks(
    model: str | Path | Any,
    checks: Collection[str] | None = None,
    *,
    length: int | None = None,
    vocabulary: int | None = None,
    checkpoint: str = "best",
    device: str = "auto",
) -> Leaks:
    """Whether anything but the past changes a state of a causal model, on random tokens; see
    `statewise.backbones.leaks.checks.find`.

    `model` is a run or an exported folder, a folder of Hugging Face or the name of a model on the hub, `module:name` of
    a torch module or of a function without arguments that returns one, or the object itself, which is left as it is.
    Later tokens are always checked; `checks` are `packed`, `padding`, `batch` and `cache`, None for all that the model
    can be asked. `length` is that of the rows, `vocabulary` the number of token ids of a module without a table of
    them. `checkpoint` belongs to runs, `device` to models by name; `auto` leaves `module:name` where it is. Raises
    `ValueError` for what cannot be loaded or asked, `TypeError` for other objects.
    """
    if isinstance(checks, str):
        raise TypeError(f"checks must be a list of names, not one text: write [{checks!r}]")
    found: Any = _by_name(str(model), checkpoint, device) if isinstance(model, (str, Path)) else model
    with _quiet():
        return find(_reader(found, vocabulary), checks, length)


def _reader(model: Any, vocabulary: int | None) -> Reader:
    if isinstance(model, Model):
        symbols = len(model.task.vocab) if vocabulary is None else vocabulary
        return BackboneReader(backbone_of(model.predictor()), symbols)
    if isinstance(model, Objective):
        return BackboneReader(backbone_of(model.checked_predictor()), vocabulary)
    if isinstance(model, Backbone):
        return BackboneReader(model, vocabulary)
    if isinstance(model, nn.Module):
        while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):  # compiled
            model = inner
        return ModuleReader(model, vocabulary)
    raise TypeError(f"a model is a name, a folder, a torch module or a statewise.Model, not {type(model).__name__}")


def _by_name(name: str, checkpoint: str, device: str) -> Any:
    from statewise.backbones.hf import loading

    if not name:
        raise ValueError("the model is not named: give a folder, the name of a model on the hub, or module:name")
    folder = Path(name)
    if not folder.exists() and re.fullmatch(OWN, name):
        made = _imported(name)
        return made if device == "auto" else made.to(choose_device(device))
    path = folder / "config.json"
    content = read_json(path, ANYTHING) if path.is_file() else None
    if isinstance(content, dict) and {"task", "objective", "backbone"} <= content.keys():
        return load_model(folder, checkpoint, device)
    if checkpoint != "best":
        raise ValueError(f"{name} is not a run, and only runs have checkpoints: omit `checkpoint`")
    if isinstance(content, dict) and content.get("model_type") == "statewise":
        from statewise.backbones.hf.loading import quiet
        from statewise.deploy.export.registered import StatewiseForCausalLM

        with quiet():
            return StatewiseForCausalLM.from_pretrained(name).to(choose_device(device))
    return loading.load_any(name).to(choose_device(device))


def _imported(name: str) -> nn.Module:
    """The torch module `module:name`, or what the function of that name returns."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        made = found if isinstance(found, nn.Module) else found() if callable(found) else None
    except ModuleNotFoundError as error:
        hint = ": is it installed, or its folder in the environment variable PYTHONPATH?"
        raise ValueError(f"{name}: there is no module {error.name}{hint}") from error
    except (Exception, SystemExit) as error:  # code of the user may raise anything
        said = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{name} cannot be imported or made: {type(error).__name__}: {said}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"{name} is not a torch module, nor a function without arguments that returns one")
    return made


def _quiet() -> Any:
    """Without warnings of transformers, if it has been loaded."""
    if "transformers" not in sys.modules:
        return contextlib.nullcontext()
    from statewise.backbones.hf.loading import quiet

    return quiet()
