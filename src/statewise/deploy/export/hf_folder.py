"""A model as a folder of Hugging Face, with its model card.

A plain decoder becomes a model of an existing architecture, which needs nothing of statewise to load. Other models
become `StatewiseForCausalLM`, which `import statewise.hf` registers.

A model of transformers that was tuned stays of its architecture if the objective predicts by its own head (`tuned`).
Otherwise it is our class around that architecture (`embedded`): the folder then needs neither the model that was tuned
nor peft, since it holds all weights, with adapters merged, and the configuration of the architecture.
"""

from __future__ import annotations

import copy
import dataclasses
import html
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor

from statewise.backbones import BACKBONES
from statewise.backbones.hf.backbone import HuggingFace
from statewise.backbones.hf.loading import SPECIAL_TOKENS, VOLATILE, LoRAConfig, quiet
from statewise.deploy.export import folder_files as files
from statewise.deploy.export.folder_files import Exported
from statewise.deploy.export.layouts import NotPlain, Plain, plain, split_weights
from statewise.deploy.export.tokenizer import tokenizer_config, tokenizer_json
from statewise.model.model import Model
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import Objective
from statewise.objectives.predictors import CausalPredictor
from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import COUNT, MEASURED, Shape, check
from statewise.runtime.version import __version__

HEAD_WIDTHS = (32, 64, 80, 96, 112, 128)
"""Head widths that attention kernels of inference servers commonly support; vLLM's on CPUs supports no others below
128."""
EVALUATION: Shape = {"checkpoint": COUNT, "num": COUNT, "metrics": {...: MEASURED}}
"""The parts of a run's evaluation that the card shows."""
USE = """\
```python
{imports}from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({folder})
{tokenizer}```
"""
TOKENIZER = """\
tokenizer = AutoTokenizer.from_pretrained({folder})
inputs = tokenizer(PROMPT, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0]))
"""
NO_TOKENIZER = "model.generate(input_ids)  # token ids alone; the folder has no tokenizer\n"


def export_folder(model: Model, out: Path, scratch: Path, command: str | None = None) -> Exported:
    """Writes the model to the folder `scratch`, which is to become `out`; see `export.export`."""
    notes: list[str] = []
    beside: dict[str, Tensor] = {}
    guest = tuned(model)
    if guest is not None:
        notes += guest.notes
        fields: dict[str, Any] = {"architectures": [type(guest.causal).__name__], "model_type": None}
        tensors = dict(guest.causal.named_parameters())
    else:
        try:
            decoder = plain(model.objective)
            fields, tensors, beside = _mapped(decoder, notes)
        except NotPlain as error:
            notes.append(f"{error}, so it needs statewise to load: import statewise.hf")
            recipe = model.recipe
            others = [] if recipe.backbone.name in BACKBONES else [_whose(recipe.backbone.name, BACKBONES.describe)]
            others += (
                [] if recipe.objective.name in OBJECTIVES else [_whose(recipe.objective.name, OBJECTIVES.describe)]
            )
            if others:
                notes.append(f"{' and '.join(others)} must also be importable where the model is loaded")
            fields, tensors = _registered(model, notes)
    V = len(model.task.vocab)
    rows = V if guest is None else guest.causal.get_input_embeddings().num_embeddings
    content = tokenizer_json(model.task, rows)
    if content is None:
        notes.append(
            f"no tokenizer: the text of the task {model.recipe.task.name} cannot be converted exactly by one, so the "
            "model takes token ids"
        )
    elif fields["model_type"] != "statewise" and rows == V and model.task.end is None and model.task.filler is None:
        notes.append(
            "the task has no symbol that could be padding, so the texts of a batch must have as many tokens each"
        )
    if model.run is not None and model.run.precision() == "bf16":
        notes.append("trained with bf16 autocast; the weights are float32")
    end = model.task.end
    parameters = sum(tensor.numel() for tensor in tensors.values())
    step = None if model.checkpoint is None else model.checkpoint.step
    if guest is not None:
        write_tuned(guest, scratch, end)
    else:
        files.write_tensors(scratch / files.WEIGHTS, tensors)
        files.write_beside(scratch, beside)
        files.write_json(scratch / files.CONFIG, files.config_json(fields, end))
    generation = files.generation_json(end, model.task.context, model.task.longest_answer)
    files.write_json(scratch / "generation_config.json", generation)
    if content is not None:
        write_atomically(scratch / "tokenizer.json", content.encode())
        files.write_json(scratch / "tokenizer_config.json", tokenizer_config(content, model.task))
    card = model_card(
        out.resolve().name,
        model.recipe.as_dict(),
        architecture=fields["architectures"][0],
        registered=fields["model_type"] == "statewise",
        tokenizer=content is not None,
        parameters=parameters,
        context=model.task.context,
        version=__version__,
        step=step,
        report=_evaluation(model),
        command=command or shlex.join(["statewise", "export", "RUN", "--to", "hf", "--out", out.resolve().name]),
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
    return Exported(out, fields["architectures"][0], parameters, files.size(scratch), notes)


def _mapped(decoder: Plain, notes: list[str]) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    width = decoder.config.width // decoder.config.heads
    if width not in HEAD_WIDTHS:
        notes.append(
            f"heads are {width} wide, and some inference servers (vLLM on CPUs) support only widths of "
            f"{', '.join(map(str, HEAD_WIDTHS))}"
        )
    return decoder.layout.config(decoder.config, decoder.vocabulary, decoder.context), decoder.tensors, decoder.beside


def _registered(model: Model, notes: list[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Fields of config.json and weights of `StatewiseForCausalLM`."""
    predictor = model.predictor()
    assert isinstance(predictor, CausalPredictor)
    backbone, recipe = predictor.backbone, model.recipe
    fields: dict[str, Any] = {
        "architectures": ["StatewiseForCausalLM"],
        "model_type": "statewise",
        "vocab_size": predictor.vocabulary,
        "max_position_embeddings": predictor.context,
        "hidden_size": backbone.width,
        "num_hidden_layers": recipe.backbone.config.layers,
        "tie_word_embeddings": False,
        **{
            part: {"name": chosen.name, **dataclasses.asdict(chosen.config)}
            for part, chosen in (("backbone", recipe.backbone), ("objective", recipe.objective))
        },
        "rows": recipe.trainer.rows,
    }
    if isinstance(backbone, HuggingFace):
        notes.append(f"tuned from {backbone.config.model}" + ", its LoRA adapters merged" * backbone.adapted)
        whole = embedded(model.objective, backbone)
        return {**fields, "num_hidden_layers": backbone.layers, **whole.fields}, whole.tensors
    tensors = {f"objective.{name}": tensor.detach().cpu() for name, tensor in model.objective.state_dict().items()}
    return fields, {name: tensor.contiguous() for name, tensor in tensors.items()}


def _whose(name: str, describe: Callable[[str], str]) -> str:
    """The class of another package; if the class has a short name, also the package."""
    return name if ":" in name else describe(name)


def _evaluation(model: Model) -> dict[str, Any] | None:
    """The evaluation of the model's run on held-out examples, if there is one. Raises `ValueError` if it is
    malformed."""
    report = None if model.run is None else model.run.report("evaluation")
    if report is not None:
        assert model.run is not None
        check(report, EVALUATION, str(model.run.reports_folder / "evaluation.json"))
    return report


def model_card(
    folder: str,
    recipe: Mapping[str, Any],
    *,
    architecture: str,
    registered: bool,
    tokenizer: bool,
    parameters: int,
    context: int,
    version: str,
    step: int | None,
    report: Mapping[str, Any] | None,
    command: str,
    notes: Sequence[str],
) -> str:
    """Markdown with the metadata that the hub reads. `registered`: whether the architecture is one that
    `import statewise.hf` registers; `report`: the run's evaluation on held-out examples, if there is one."""
    names = {kind: recipe[kind]["name"] for kind in ("task", "objective", "backbone")}
    metadata = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["statewise", *names.values()],
    }
    quoted = json.dumps(folder, ensure_ascii=False)  # also a string of Python
    at = "" if step is None else f", step {step:,}"
    parts = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {_in_a_cell(folder)}",
        f"{architecture} of {parameters:,} parameters with a context of {context:,} tokens, trained by statewise "
        f"{version} on the task {names['task']} with the objective {names['objective']} and the backbone "
        f"{names['backbone']}{at}.",
        *([] if not notes else ["\n".join(f"- {note}" for note in notes)]),
        "## Use",
        USE.format(
            folder=quoted,
            imports="import statewise.hf  # registers the architecture\n" if registered else "",
            tokenizer=(TOKENIZER if tokenizer else NO_TOKENIZER).format(folder=quoted),
        ).rstrip(),
        *_metrics(report),
        "## Recipe",
        f"```yaml\n{yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True)}```",
        "## Export",
        f"```\n{command}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _metrics(report: Mapping[str, Any] | None) -> list[str]:
    if not report or not report.get("metrics"):
        return []
    rows = "\n".join(f"| {_in_a_cell(name)} | {value:.6g} |" for name, value in report["metrics"].items())
    where = f"On {report['num']:,} held-out examples, checkpoint of step {report['checkpoint']:,}:"
    return ["## Metrics", where, f"| metric | value |\n| --- | --- |\n{rows}"]


def _in_a_cell(name: str) -> str:
    """A name that someone has chosen, as text of one line, or of a cell of a table, in Markdown."""
    return " ".join(html.escape(name).replace("|", "&#124;").split())


ADAPTER = "adapter"
"""Folder of the adapter alone, within the exported one."""
EXTRA_STATE = "_extra_state"
"""The name under which torch stores the result of `get_extra_state`."""


class Tuned(NamedTuple):
    """A tuned model."""

    causal: Any
    """The causal language model of transformers, on the CPU, with adapters merged."""
    adapter: Any
    """The model of peft with the adapter alone; None without LoRA."""
    beside: dict[str, Tensor]
    """Other trained tensors, under our names."""
    notes: list[str]


def tuned(model: Model) -> Tuned | None:
    """The model for inference; None if its backbone is one of ours, or if the objective predicts by a head of its
    own."""
    predictor = model.predictor()
    if not isinstance(predictor, CausalPredictor) or not isinstance(predictor.backbone, HuggingFace):
        return None
    backbone = predictor.backbone
    if type(predictor).next_logits is not CausalPredictor.next_logits:
        return None
    _, beside = split_weights(model.objective, backbone)
    notes = [f"tuned from {backbone.config.model}"]
    whole = copy.deepcopy(backbone.causal).cpu().eval()
    if backbone.config.lora.rank is None:
        return Tuned(whole, None, beside, notes)
    notes.append(f"its LoRA adapter of rank {backbone.config.lora.rank} is merged, and alone in {ADAPTER}/")
    return Tuned(whole.merge_and_unload(), backbone.causal, beside, notes)


def write_tuned(guest: Tuned, folder: Path, end: int | None) -> None:
    """Writes weights and config.json to `folder`, and the adapter, if there is one, below it."""
    parts = {folder / files.WEIGHTS: guest.causal}
    if guest.adapter is not None:
        parts[folder / ADAPTER / "adapter_model.safetensors"] = guest.adapter
    for path, part in parts.items():
        with quiet(), files.errors_of_safetensors(path):
            part.save_pretrained(path.parent, max_shard_size="1000GB")
        mode = (folder / files.CONFIG).stat().st_mode
        others = [one for one in path.parent.iterdir() if one != path and one.is_file()]
        files.settle([path, *others], mode, part.state_dict().values())
    files.write_beside(folder, guest.beside)
    fields = json.loads((folder / files.CONFIG).read_text(encoding="utf-8"))
    base = (fields.get("rope_parameters") or {}).get("rope_theta")
    kept = {name: fields.get(name) for name in ("bos_token_id", "pad_token_id")}
    rotary = {} if base is None else {"rope_theta": base}
    files.write_json(folder / files.CONFIG, {**files.config_json({**fields, **rotary}, end), **kept})


class Embedded(NamedTuple):
    """A tuned model with its objective."""

    fields: dict[str, Any]
    """Fields of config.json: the backbone, and `pretrained_config`, the configuration of the architecture."""
    tensors: dict[str, Tensor]
    """All weights by name, on the CPU, for backbones that are made of that configuration."""


def embedded(objective: Objective, backbone: HuggingFace) -> Embedded:
    """The export of an objective and the backbone that it predicts with; neither is changed."""
    ours = dataclasses.replace(
        backbone.config,
        from_scratch=True,
        tied=backbone.tied,
        revision=None,
        lora=LoRAConfig(),
        gradient_checkpointing=False,
    )
    theirs = {name: value for name, value in backbone.unwrapped.config.to_dict().items() if name not in VOLATILE}
    theirs |= {"vocab_size": backbone.vocabulary, "tie_word_embeddings": backbone.tied}
    theirs |= dict.fromkeys(SPECIAL_TOKENS)  # which may be beyond the vocabulary
    fields = {"backbone": {"name": "hf", **dataclasses.asdict(ours)}, "pretrained_config": theirs}
    return Embedded(fields, _tensors(objective))


def _tensors(objective: Objective) -> dict[str, Tensor]:
    whole = copy.deepcopy(objective).cpu().eval()
    backbones = {f"{name}.": part for name, part in whole.named_modules() if isinstance(part, HuggingFace)}
    for part in backbones.values():
        if part.adapted:
            part.causal.merge_and_unload()
        part.requires_grad_(True)  # a state dict holds no frozen weights
    tensors = {name: tensor.detach() for name, tensor in whole.state_dict().items() if not name.endswith(EXTRA_STATE)}
    for prefix, part in backbones.items():
        if part.lender is None:
            _resize(tensors, prefix, part)
    return {f"objective.{name}": tensor.contiguous() for name, tensor in tensors.items()}


def _resize(tensors: dict[str, Tensor], prefix: str, backbone: HuggingFace) -> None:
    """Gives the embedding, and the head if it has a matrix of its own, one row for each symbol of the vocabulary."""
    table, count = backbone.unwrapped.get_input_embeddings(), backbone.vocabulary
    (name,) = [name for name, each in backbone.named_parameters() if each is table.weight]
    more = tensors.pop(f"{prefix}tokens.extra", table.weight.detach()[:0])
    # Some families multiply what they read of the table by a constant; the rows beyond it are read as they are.
    scale = float(getattr(table, "embed_scale", 1.0))
    tensors[prefix + name] = torch.cat((tensors[prefix + name], more / scale))[:count]
    if backbone.head is not None:
        tensors[f"{prefix}head"] = torch.cat((tensors[f"{prefix}head"], more))[:count]
