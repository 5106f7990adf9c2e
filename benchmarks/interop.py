"""Exported models as transformers loads them, against ours: logits, greedy text, and GGUF files read back.

Prints a table in Markdown, a row for each architecture that a decoder becomes and for models of our own class. Weights
are random and large. Differences are shares of the largest logit, in float32 and with both models in float64, where the
angles of rotary positions (both libraries) and the norms of Llama are still rounded to float32. Needs the extra hf.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from timing import Benchmark, parser
from torch import Tensor

import statewise
from statewise.data_types import Batch
from statewise.model.model import Model, new_model
from statewise.model.recipes import read_recipe

LAYER_LEARNED = {"norm": "layer", "positions": "learned"}
ROWS: list[tuple[str, str, dict[str, Any]]] = [
    ("next_latent", "gpt", {}),
    ("multi_token", "gpt", {"bias": True, "tied": False}),
    ("next_token", "two_stream", {"variant": "standard"}),
    ("next_token", "gpt", {**LAYER_LEARNED, "mlp": "gelu"}),
    ("next_token", "gpt", {**LAYER_LEARNED, "mlp": "relu", "bias": True, "tied": False}),
    ("next_token", "gpt", {"norm": "layer", "mlp": "gelu", "bias": True}),
    ("next_token", "gpt", {"norm": "layer", "mlp": "relu", "tied": False}),
    ("token_order", "gpt", {"norm": "layer"}),
    ("belief_state", "gpt", {}),
    ("joint_multi_token", "gpt", {}),
    ("next_latent", "two_stream", {"window": 3}),
    ("next_token", "belief_slots", {"chunk": 4, "slots": 2}),
    ("next_latent", "recurrent", {}),
    *(
        (objective, "hf", {"model": model, **lora})
        for objective in ("next_latent", "belief_state", "joint_multi_token")
        for model, lora in (("llama", {}), ("gpt2", {"lora": {"rank": 4}}))
    ),
]
"""Objective, backbone, and fields of the backbone; the model of `hf` is a type of transformers."""
PROMPTS = 32


def untrained(objective: str, backbone: str, fields: dict[str, Any], width: int, folder: Path) -> Model:
    """A model of star graphs whose trained matrices have standard deviation 0.2; a model for `hf` is written to
    `folder`."""
    heads = {} if backbone == "recurrent" else {"heads": 4}
    sizes = {"width": width, "layers": 3, **heads, **fields}
    if backbone == "hf":
        sizes = {**fields, "model": str(base(fields["model"], width, folder / "base"))}
    recipe = {
        "task": {"name": "path_star", "degree": 2, "length": 4, "nodes": 12, "held_out_graphs": 2 * PROMPTS},
        "backbone": {"name": backbone, **sizes},
        "objective": objective,
        "seed": 1,
    }
    model = new_model(read_recipe(json.dumps(recipe)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.objective.parameters():
            if weight.dim() > 1 and weight.requires_grad:
                weight.normal_(0, 0.2, generator=generator)
    return model


def base(kind: str, width: int, folder: Path) -> Path:
    """A model of transformers with random weights."""
    import transformers

    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=16,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def difference(theirs: Any, model: Model, tokens: Tensor) -> float:
    """The largest, as a share of the largest logit."""
    with torch.no_grad():
        ours = model.predictor().logits(Batch.plain(tokens))
        return float((theirs(tokens).logits - ours).abs().max() / ours.abs().max())


def row(model: Model, folder: Path) -> tuple[list[str], float, bool]:
    """The cells of a row, the difference in float32, and whether all greedy texts are equal."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    statewise.export(model, folder / "hf")
    theirs = AutoModelForCausalLM.from_pretrained(folder / "hf")
    tokenizer = AutoTokenizer.from_pretrained(folder / "hf")
    examples = model.task.held_out(PROMPTS)
    tokens = torch.from_numpy(examples.tokens)
    single = difference(theirs, model, tokens)
    prompts = [model.task.decode(examples.prompt(number)) for number in range(PROMPTS)]
    found = [tokenizer.decode(one) for one in theirs.generate(**tokenizer(prompts, return_tensors="pt"))]
    ours = [prompt + model.task.decode(one.tokens) for prompt, one in zip(prompts, model.generate(prompts, limit=4))]
    equal = sum(a == b for a, b in zip(found, ours))
    again = "not written"
    if type(theirs).__name__ == "LlamaForCausalLM" and not getattr(model.recipe.backbone.config, "bias", True):
        statewise.export(model, folder / "model.gguf", "gguf")
        read = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf")
        again = f"{difference(read, model, tokens):.1e}"
    model.objective.double()
    double = difference(theirs.double(), model, tokens)
    cells = [type(theirs).__name__, f"{single:.1e}", f"{double:.1e}", f"{equal} of {PROMPTS}", again]
    return cells, single, equal == PROMPTS


def _value(value: Any) -> str:
    return ",".join(f"{name}={each}" for name, each in value.items()) if isinstance(value, dict) else str(value)


def main(words: Sequence[str] | None = None) -> int:
    smoke = parser(__doc__).parse_args(words).smoke
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError:
        print("needs pip install 'statewise[hf]'", file=sys.stderr)
        return 0 if smoke else 1
    import statewise.hf  # noqa: F401 -- registers our class

    transformers.logging.disable_progress_bar()
    bench = Benchmark(smoke)
    names = ("transformers", "torch", "safetensors", "gguf")
    print(f"{platform.machine()}, " + ", ".join(f"{name} {version(name)}" for name in names))
    print("| objective | backbone | loaded as | float32 | float64 | equal greedy texts | GGUF, float32 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    worst, alike = 0.0, True
    for objective, backbone, fields in ROWS[:1] if smoke else ROWS:
        with tempfile.TemporaryDirectory() as folder:
            model = untrained(objective, backbone, fields, 16 if smoke else 64, Path(folder))
            cells, single, equal = row(model, Path(folder))
        described = " ".join([backbone, *(f"{name}={_value(value)}" for name, value in fields.items())])
        print("| " + " | ".join([objective, f"`{described}`", *cells]) + " |", flush=True)
        worst, alike = max(worst, single), alike and equal
    bench.at_most("largest difference in float32, millionths of the largest logit", 1e6 * worst, 10.0)
    bench.at_least("all greedy texts are equal", float(alike), 1.0)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
