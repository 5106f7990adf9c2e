"""Exports a model as a folder that transformers loads, or as a GGUF file.

A plain decoder becomes a model of an existing architecture, which needs nothing of statewise to load. Other models become
`StatewiseForCausalLM`, which `import statewise.hf` registers.
"""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

from statewise import __version__, overwriting
from statewise.durable import write_atomically
from statewise.interop import folder as files
from statewise.interop.card import model_card
from statewise.interop.plain import NotPlain, Plain, plain
from statewise.interop.tokenizer import tokenizer_config, tokenizer_json
from statewise.model import Model
from statewise.objectives.predictors import CausalPredictor
from statewise.whole_folder import writing

Format = Literal["hf", "gguf"]
FORMATS: tuple[Format, ...] = get_args(Format)
HEAD_WIDTHS = (32, 64, 80, 96, 112, 128)
"""Head widths that attention kernels of inference servers commonly support; vLLM's on CPUs supports no others below
128."""


class Exported(NamedTuple):
    """What was written."""

    path: Path
    architecture: str
    parameters: int
    bytes: int
    notes: list[str]
    """What a user should know, in sentences."""


def export(
    model: Model, out: str | Path, to: Format = "hf", *, overwrite: bool = False, command: str | None = None
) -> Exported:
    """Writes a trained model for other libraries: `hf`, a folder; `gguf`, a file. `command`: how the model card says it
    was made.

    Raises `FileExistsError` if something is at `out`, unless `overwrite` says to replace an export; `ValueError` if the
    format cannot hold the model, or if the extra `hf` is needed and missing.
    """
    if to not in FORMATS:
        raise ValueError(f"the format must be {' or '.join(FORMATS)}, not {to!r}")
    check_target(Path(out), to, overwrite)
    if to == "gguf":
        from statewise.interop.gguf_file import export_gguf

        return export_gguf(model, Path(out))
    return _export_folder(model, Path(out), command)


def check_target(out: Path, to: Format, overwrite: bool) -> None:
    """Raises `FileExistsError` unless `out` may be written."""
    if to == "gguf":
        overwriting.check_file(out, overwrite)
    else:
        overwriting.check_folder(out, files.FILES, files.SIGNS, "exported model", overwrite)


def _export_folder(model: Model, out: Path, command: str | None) -> Exported:
    out = out.resolve()  # follows a link to an empty folder
    notes: list[str] = []
    beside: dict[str, Tensor] = {}
    try:
        found = plain(model.objective)
        fields, tensors, beside = _mapped(found, notes)
    except NotPlain as error:
        notes.append(f"{error}, so it needs statewise to load: import statewise.hf")
        fields, tensors = _registered(model)
    content = tokenizer_json(model.task)
    if content is None:
        notes.append(
            f"no tokenizer: the text of the task {model.recipe.task.name} cannot be converted exactly by one, so the "
            "model takes token ids"
        )
    if model.run is not None and model.run.precision() == "bf16":
        notes.append("trained with bf16 autocast; the weights are float32")
    end, symbols = model.task.end, model.task.vocab.symbols
    parameters = sum(tensor.numel() for tensor in tensors.values())
    step = None if model.checkpoint is None else model.checkpoint.step
    with writing(out, files.FILES) as scratch:
        files.write_tensors(scratch / files.WEIGHTS, tensors)
        files.write_beside(scratch, beside)
        files.write_json(scratch / files.CONFIG, files.config_json(fields, end))
        generation = files.generation_json(end, model.task.context, model.task.longest_answer)
        files.write_json(scratch / "generation_config.json", generation)
        if content is not None:
            write_atomically(scratch / "tokenizer.json", content.encode())
            facts = tokenizer_config(content, None if end is None else symbols[end], model.task.context)
            files.write_json(scratch / "tokenizer_config.json", facts)
        card = model_card(
            out.name,
            model.recipe.as_dict(),
            architecture=fields["architectures"][0],
            registered=fields["model_type"] == "statewise",
            tokenizer=content is not None,
            parameters=parameters,
            context=model.task.context,
            version=__version__,
            step=step,
            report=None if model.run is None else model.run.report("evaluation"),
            command=command or shlex.join(["statewise", "export", "RUN", "--to", "hf", "--out", out.name]),
            notes=notes,
        )
        write_atomically(scratch / "README.md", card.encode())
        ours = {
            "version": __version__,
            "fingerprint": model.fingerprint(),
            "step": step,
            "recipe": model.recipe.as_dict(),
            "notes": notes,
        }
        files.write_json(scratch / files.OURS, ours)
    return Exported(out, fields["architectures"][0], parameters, files.size(out), notes)


def _mapped(found: Plain, notes: list[str]) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    width = found.config.width // found.config.heads
    if width not in HEAD_WIDTHS:
        notes.append(
            f"heads are {width} wide; some inference servers need one of {', '.join(map(str, HEAD_WIDTHS))} (vLLM on CPUs)"
        )
    return found.layout.config(found.config, found.vocabulary, found.context), found.tensors, found.beside


def _registered(model: Model) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Fields of config.json and weights of `StatewiseForCausalLM`. Raises `ValueError` for models that it cannot be."""
    predictor = model.predictor()
    kind = model.recipe.objective.name
    if not predictor.reads_answers:
        raise ValueError(
            f"{kind} predicts whole answers from the prompt, which no decoder of transformers can ask for: complete "
            "prompts by statewise generate, or train next_token or next_latent for export"
        )
    if not isinstance(predictor, CausalPredictor):
        raise ValueError(
            f"{kind} predicts by an interface of its own ({type(predictor).__name__}), and only predictors that are a "
            "CausalPredictor can be exported: use statewise.load"
        )
    backbone = predictor.backbone
    fields = {
        "architectures": ["StatewiseForCausalLM"],
        "model_type": "statewise",
        "vocab_size": predictor.vocabulary,
        "max_position_embeddings": predictor.context,
        "hidden_size": backbone.width,
        "num_hidden_layers": model.recipe.backbone.config.layers,
        "tie_word_embeddings": False,
        **{
            part: {"name": chosen.name, **dataclasses.asdict(chosen.config)}
            for part, chosen in (("backbone", model.recipe.backbone), ("objective", model.recipe.objective))
        },
        "rows": model.recipe.trainer.rows,
    }
    tensors = {f"objective.{name}": tensor.detach().cpu() for name, tensor in model.objective.state_dict().items()}
    return fields, {name: tensor.contiguous() for name, tensor in tensors.items()}
