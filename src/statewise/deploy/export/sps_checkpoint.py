"""Models of checkpoints of other code: those of the State-Prediction Separation paper (`sps`)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from statewise.model.model import Model, new_model
from statewise.model.recipes import read_recipe
from statewise.runtime.json_files import COUNT, POSITIVE, Maybe, Shape, read_json
from statewise.tasks.corpus.folder import Corpus

NORM_EPS = 1e-6
"""The constant that the paper's code adds to the mean square in its norms; the configuration does not contain it."""
CONFIG: Shape = {
    **dict.fromkeys(("n_layer", "n_head", "hidden_size", "intermediate_size", "vocab_size", "block_size"), POSITIVE),
    "eos_token_id": COUNT,
    **dict.fromkeys(("window_size?", "predict_token_id?", "pad_token_id?"), Maybe(COUNT)),
}
"""Fields of the configuration that are read."""
WRAPPERS = ("model", "state_dict", "model_state_dict")
"""Keys under which a file of PyTorch may hold the tensors."""
PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
PREFIXES = ("_orig_mod.", "module.")
"""Prefixes that compiled and distributed modules add to names."""


class Converted(NamedTuple):
    """A model of ours that computes what the checkpoint's does."""

    backbone: dict[str, Any]
    """Fields of `backbone: two_stream`."""
    weights: dict[str, Tensor]
    """Parameters and buffers of that backbone."""


def model_of_sps(
    checkpoint: str | Path,
    config: str | Path,
    corpus: str | Path,
    *,
    variant: str | None = None,
    context: int | None = None,
) -> Model:
    """The model of a checkpoint and its `config.json`, on a corpus that has the checkpoint's tokenizer;
    `statewise.model.model.keep_model` writes it as a run.

    `variant` is as in `convert_sps`; `context` is the number of tokens of a row, None: the configuration's
    `block_size`. Raises `OSError` for files that cannot be read, `ValueError` for files that do not fit together.
    """
    facts, tensors, bpe = read_config(Path(config)), read_tensors(Path(checkpoint)), Corpus(Path(corpus)).bpe
    converted = convert_sps(tensors, facts, len(bpe.symbols), variant)
    if bpe.end != facts["eos_token_id"]:
        raise ValueError(
            f"the corpus ends its texts with token {bpe.end}, and the checkpoint with {facts['eos_token_id']}: "
            "encode it with the tokenizer that the checkpoint was trained with"
        )
    recipe = {
        "task": {"name": "text", "path": str(corpus), "context": context or facts["block_size"]},
        "backbone": {"name": "two_stream", **converted.backbone},
        "objective": "next_token",
        "trainer": {"precision": "fp32"},
    }
    model = new_model(read_recipe(json.dumps(recipe), source=str(config)))
    model.objective.load_state_dict({f"backbone.{name}": tensor for name, tensor in converted.weights.items()})
    return model


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of a checkpoint. Raises `ValueError` if it lacks something, `OSError` if it cannot be read."""
    config: dict[str, Any] = read_json(path, CONFIG)
    return config


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file, or of one that `torch.save` wrote, by name.

    Raises `ValueError` if it holds anything else: only tensors and plain data are unpickled.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        try:
            content: Any = load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from None
    else:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise ValueError(
                f"{path} holds more than tensors and plain data, and other objects are not unpickled: save only the "
                "model's state_dict()"
            ) from None
        except Exception as error:  # for a corrupt archive, PyTorch raises almost anything
            raise ValueError(f"{path} is not a readable PyTorch file: {error}") from None
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    named = isinstance(content, dict) and all(isinstance(name, str) for name in content)
    if not named or not content or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise ValueError(f"{path} holds no tensors by name, neither at the top nor under {', '.join(WRAPPERS)}")
    tensors: dict[str, Tensor] = {}
    for name, tensor in content.items():
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        if name in tensors:
            raise ValueError(f"{path} holds {name} twice, once with the prefix {' or '.join(PREFIXES)}")
        if tensor.dtype not in PRECISIONS or tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
            raise ValueError(f"{path}: {name} is not a plain matrix or vector of float16, bfloat16, float32 or float64")
        if not tensor.isfinite().all():
            raise ValueError(f"{path}: {name} holds numbers that are not finite")
        tensors[name] = tensor
    return tensors


def convert_sps(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], vocabulary: int, variant: str | None = None
) -> Converted:
    """A checkpoint of the State-Prediction Separation paper's code under a tokenizer of `vocabulary` tokens.

    Its rotary planes are neighbouring coordinates of a head, ours lie half a head apart, so the rows of queries and
    keys change places; the two maps into its gated feed-forward part are one matrix in ours. Rows of its embedding that
    are neither a token nor `<predict>` are dropped. `variant`: None: `sps`, or `standard` without a `predict_token_id`.
    A window as long as the context makes `sps` `double_memory`.

    Raises `ValueError` if tensors and configuration do not fit together, or the tokenizer does not fit them.
    """
    D, heads, layers = config["hidden_size"], config["n_head"], config["n_layer"]
    inner, rows, context = config["intermediate_size"], config["vocab_size"], config["block_size"]
    predict, window = config.get("predict_token_id"), config.get("window_size")
    if D % heads or D // heads % 2:
        raise ValueError(f"hidden_size {D} does not make {heads} heads (n_head) of an even width")
    if inner % 8:
        raise ValueError(
            f"intermediate_size {inner} is not a multiple of 8, as the hidden width of a two_stream must be"
        )
    if vocabulary > rows or config["eos_token_id"] >= vocabulary:
        raise ValueError(
            f"the tokenizer has {vocabulary:,} tokens, and the checkpoint {rows:,} rows, its end of text at "
            f"{config['eos_token_id']}: encode the corpus with the tokenizer that the checkpoint was trained with"
        )
    if predict is not None and not vocabulary <= predict < rows:
        raise ValueError(f"predict_token_id {predict} must be a row after the {vocabulary:,} tokens and below {rows:,}")
    variant = variant or ("standard" if predict is None else "sps")
    if variant != "standard" and predict is None:
        raise ValueError(f"variant {variant} needs a predict_token_id in the configuration")
    if variant == "sps" and window is not None and window >= context - 1:
        variant = "double_memory"
    if variant not in ("standard", "double_memory", "strict") and window is None:
        raise ValueError(f"variant {variant} needs a window_size in the configuration")
    backbone: dict[str, Any] = {
        "variant": variant,
        "layers": layers,
        "heads": heads,
        "width": D,
        "expansion": inner / D,
        "norm": "rms",
        "norm_eps": NORM_EPS,
        "positions": "rope",
        "mlp": "swiglu",
        "bias": False,
        "tied": True,
    }
    if window is not None and variant not in ("standard", "double_memory", "strict"):
        backbone["window"] = window
    left = dict(tensors)

    def take(name: str, *shape: int) -> Tensor:
        if name not in left:
            raise ValueError(f"the checkpoint has no {name}, or fewer layers than its configuration says")
        if left[name].shape != shape:
            raise ValueError(f"{name} has the shape {tuple(left[name].shape)}, not {shape} as the configuration says")
        return left.pop(name)

    table = take("transformer.wte.weight", rows, D)
    last = table.new_zeros(1, D) if predict is None else table[predict : predict + 1]
    weights = {"embedding.weight": torch.cat([table[:vocabulary], last])}
    head = left.pop("lm_head.weight", table)
    if not torch.equal(head, table):
        raise ValueError("lm_head.weight differs from transformer.wte.weight: the paper's models share the two")
    planes = _planes_apart(heads, D // heads)
    for layer in range(layers):
        theirs, ours = f"transformer.h.{layer}.", f"blocks.{layer}."
        mixed = take(f"{theirs}attn.c_attn.weight", 3 * D, D)
        queries, keys, values = torch.split(mixed, D)
        weights |= {
            f"{ours}attention.in_proj.weight": torch.cat([queries[planes], keys[planes], values]),
            f"{ours}attention.out_proj.weight": take(f"{theirs}attn.c_proj.weight", D, D),
            f"{ours}attention_norm.weight": take(f"{theirs}attention_norm.weight", D),
            f"{ours}mlp_norm.weight": take(f"{theirs}mlp_norm.weight", D),
            f"{ours}mlp.in_proj.weight": torch.cat(
                [take(f"{theirs}mlp.{name}_proj.weight", inner, D) for name in ("gate", "up")]
            ),
            f"{ours}mlp.out_proj.weight": take(f"{theirs}mlp.down_proj.weight", D, inner),
        }
    weights |= {"norm.weight": take("transformer.output_norm.weight", D), "separated": torch.tensor(True)}
    if left:
        raise ValueError(f"the checkpoint has unexpected tensors: {', '.join(sorted(left)[:5])}")
    return Converted(backbone, weights)


def _planes_apart(heads: int, width: int) -> Tensor:
    """(heads * width,) rows in our order: of each head first the even ones, then the odd ones."""
    within = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    return (torch.arange(heads)[:, None] * width + within).flatten()
