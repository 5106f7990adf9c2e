"""GGUF files, the format of llama.cpp, for decoders with the blocks of Llama.

Its engines know an architecture by name and assume the rest. Of the architectures that our decoders map onto,
those with GELU use an approximation by a tanh there, and of StableLM and of biases the reader that the tests check this
with, that of transformers, loses parts; so only Llama without biases is written: decoders of ours with its blocks, and
models of transformers, tuned by us or by others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from statewise.backbones.hf import loading
from statewise.backbones.hf.backbone import HuggingFace
from statewise.deploy.export.folder_files import Exported
from statewise.deploy.export.hf_folder import tuned
from statewise.deploy.export.layouts import ROPE_BASE, Llama, NotPlain, plain
from statewise.deploy.export.tokenizer import tokenizer_json
from statewise.model.model import Model
from statewise.runtime.durable import Checked, replacing
from statewise.runtime.extras import failing_as, needed
from statewise.runtime.version import __version__

GPT2_SPLITS = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
"""The pre-tokenizer that GGUF calls gpt-2."""
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Types of tokens in GGUF: user-defined ones are found in texts like special ones, and mean nothing else; unused ones
have no text."""
MODEL_RULES = ("ignore_merges", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
ADDED_RULES = ("lstrip", "rstrip", "single_word")
"""Rules that a tokenizer.json may have for its model and for added tokens, and that GGUF cannot express."""


class Decoder(NamedTuple):
    """A decoder with the blocks of Llama, without biases."""

    context: int
    width: int
    layers: int
    hidden_width: int
    heads: int
    key_heads: int
    """Heads of keys and values."""
    head_width: int
    norm_eps: float
    rope_base: float
    tensors: Mapping[str, Tensor]
    """By their names in transformers, on the CPU."""


def export_gguf(model: Model, out: Path, scratch: Path) -> Exported:
    """Writes the model to the file `scratch`, which is to become `out`, in float32. Raises `ValueError` if GGUF cannot
    hold it, or without the extra `hf`."""
    needed("gguf", "GGUF files")
    name, guest = f"statewise {__version__} {model.recipe.task.name} {model.recipe.objective.name}", tuned(model)
    if guest is not None:
        decoder = _of_transformers(guest.causal)
    elif any(isinstance(module, HuggingFace) for module in model.objective.modules()):
        raise ValueError(
            f"{model.recipe.objective.name} predicts by a head of its own, which no engine of GGUF files has: export "
            "it with `to` hf"
        )
    else:
        decoder = _of_ours(model)
    rows = len(decoder.tensors["model.embed_tokens.weight"])
    return _written(decoder, name, tokenizer_json(model.task, rows), model.task.end, out, scratch)


def export_gguf_of(folder: Path, out: Path, scratch: Path) -> Exported:
    """Writes the model of transformers in `folder` to the file `scratch`, which is to become `out`, in float32. Losses
    of ours that are kept beside the model are left out. Raises `ValueError` if there is no model, if GGUF cannot hold
    it, or without the extra `hf`."""
    needed("gguf", "GGUF files")
    config = loading.HuggingFaceConfig(model=str(folder))
    model_config, _ = loading.read_config(config)
    _check_llama(model_config)
    causal = loading.load(config, model_config, fresh=False)
    path, content = folder / "tokenizer.json", None
    if path.is_file():
        package = needed("tokenizers", "tokenizers of models")
        with failing_as(f"{path}: not a tokenizer file"):
            content = package.Tokenizer.from_file(str(path)).to_str()
    ends = causal.generation_config.eos_token_id if causal.generation_config else None
    end = ends[0] if isinstance(ends, list) else ends
    exported = _written(_of_transformers(causal), folder.resolve().name, content, end, out, scratch)
    if isinstance(ends, list) and len(ends) > 1:
        exported.notes.append(f"GGUF has one end token: this file has {end}, and the model has {ends}")
    return exported


def _written(decoder: Decoder, name: str, tokenizer: str | None, end: int | None, out: Path, scratch: Path) -> Exported:
    """`tokenizer`: the content of a tokenizer.json."""
    gguf = needed("gguf", "GGUF files")
    rows, notes = len(decoder.tensors["model.embed_tokens.weight"]), []
    vocabulary = _vocabulary(tokenizer or "{}", rows)
    if vocabulary is None:
        notes.append(
            "no tokenizer: GGUF can hold only byte-level BPE that splits and merges as GPT-2's, so the model takes "
            "token ids"
        )
    writer = gguf.GGUFWriter(None, "llama")
    _add_facts(writer, decoder, name)
    writer.add_vocab_size(rows)
    if vocabulary is None:
        writer.add_tokenizer_model("none")
    else:
        _add_vocabulary(writer, vocabulary, end)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, decoder.layers)
    arrays = {
        names.get_name(name, (".weight",)): _interleaved(name, tensor, decoder)
        for name, tensor in decoder.tensors.items()
    }
    with replacing(scratch) as file:
        _write(gguf, writer, arrays, file)
    parameters = sum(tensor.numel() for tensor in decoder.tensors.values())
    return Exported(out, "llama", parameters, scratch.stat().st_size, notes)


def _of_ours(model: Model) -> Decoder:
    """A decoder of ours. Raises `ValueError` if it has other blocks."""
    try:
        decoder = plain(model.objective)
    except NotPlain as error:
        raise ValueError(f"{error}, so no engine of GGUF files has its architecture: export it with `to` hf") from None
    if not isinstance(decoder.layout, Llama):
        raise ValueError(
            "as GGUF only decoders with the blocks of Llama are exact (norm rms, positions rope, mlp swiglu), and this "
            f"one is a {decoder.layout.architecture}: export it with `to` hf"
        )
    config = decoder.config
    if config.bias:
        raise ValueError(
            "readers of GGUF files ignore the biases of a Llama (backbone.bias true): export it with `to` hf"
        )
    return Decoder(
        decoder.context,
        config.width,
        config.layers,
        config.hidden_width,
        config.heads,
        config.heads,
        config.width // config.heads,
        config.norm_eps,
        ROPE_BASE,
        decoder.tensors,
    )


def _check_llama(config: Any) -> None:
    """Raises `ValueError` unless GGUF and its engines hold exactly what a model of this configuration computes."""
    rope = getattr(config, "rope_parameters", None) or {}
    strange = (
        f"it is of the type {config.model_type}"
        if config.model_type != "llama"
        else "it has biases"
        if config.attention_bias or config.mlp_bias
        else f"its activation is {config.hidden_act}"
        if config.hidden_act != "silu"
        else f"its rotary positions are of the type {rope['rope_type']}"
        if rope.get("rope_type", "default") != "default"
        else None
    )
    if strange is not None:
        raise ValueError(
            "of the models of transformers, only Llama without biases and with plain rotary positions is written as "
            f"GGUF here, and {strange}: export it with `to` hf if it is a run, and convert that folder by the "
            "script of llama.cpp"
        )


def _of_transformers(causal: Any) -> Decoder:
    """A causal language model of transformers. Raises `ValueError` if it is no Llama."""
    config = causal.config
    _check_llama(config)
    tensors = {
        name: parameter.detach().cpu()
        for name, parameter in causal.named_parameters()
        if not name.startswith("statewise_loss.")
    }
    return Decoder(
        config.max_position_embeddings,
        config.hidden_size,
        config.num_hidden_layers,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.rms_norm_eps,
        float(config.rope_parameters["rope_theta"]),
        tensors,
    )


def _write(gguf: Any, writer: Any, arrays: Mapping[str, np.ndarray], file: Checked) -> None:
    """Writes a GGUF file. The package writes its head; it would write tensors by NumPy's `tofile`, which loses data on
    a full disk and reports success."""
    for name, array in arrays.items():
        writer.add_tensor_info(name, array.shape, array.dtype, array.nbytes)
    writer.fout, writer.state = [file], gguf.WriterState.EMPTY  # it opens only files of its own
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.write_padding(file, file.tell())
    for array in arrays.values():
        file.write(array.reshape(-1).view(np.uint8).data)
        writer.write_padding(file, array.nbytes)


def _add_facts(writer: Any, decoder: Decoder, name: str) -> None:
    writer.add_name(name)
    writer.add_file_type(0)  # all tensors in float32
    writer.add_context_length(decoder.context)
    writer.add_embedding_length(decoder.width)
    writer.add_block_count(decoder.layers)
    writer.add_feed_forward_length(decoder.hidden_width)
    writer.add_head_count(decoder.heads)
    writer.add_head_count_kv(decoder.key_heads)
    if decoder.head_width * decoder.heads != decoder.width:
        writer.add_key_length(decoder.head_width)
        writer.add_value_length(decoder.head_width)
    writer.add_layer_norm_rms_eps(decoder.norm_eps)
    writer.add_rope_dimension_count(decoder.head_width)
    writer.add_rope_freq_base(decoder.rope_base)


def _vocabulary(content: str, rows: int) -> dict[str, Any] | None:
    """The tokens of `rows` ids, their types, and merges of a tokenizer.json; None if GGUF cannot express it."""
    tokenizer = json.loads(content)
    split, after = tokenizer.get("pre_tokenizer") or {}, tokenizer.get("post_processor") or {"type": "ByteLevel"}
    if tokenizer.get("model", {}).get("type") != "BPE" or tokenizer["normalizer"] is not None:
        return None
    if {key: split.get(key) for key in GPT2_SPLITS} != GPT2_SPLITS or after["type"] != "ByteLevel":
        return None
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    if any(tokenizer["model"].get(rule) for rule in MODEL_RULES):
        return None
    if any(token[rule] for token in added.values() for rule in ADDED_RULES):
        return None
    tokens = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    tokens |= {number: token["content"] for number, token in added.items()}
    if max(tokens, default=0) >= rows:
        return None
    types = {number: CONTROL if token["special"] else USER_DEFINED for number, token in added.items()}
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in tokenizer["model"]["merges"])
    return {
        "tokens": [tokens.get(number, f"[PAD{number}]") for number in range(rows)],
        "types": [types.get(number, NORMAL if number in tokens else UNUSED) for number in range(rows)],
        "merges": [" ".join(pair) for pair in pairs],
    }


def _add_vocabulary(writer: Any, vocabulary: dict[str, Any], end: int | None) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    writer.add_token_merges(vocabulary["merges"])
    writer.add_add_bos_token(False)
    if end is not None:
        writer.add_eos_token_id(end)


def _interleaved(name: str, tensor: Tensor, decoder: Decoder) -> np.ndarray:
    """A tensor as GGUF holds it: its engines rotate neighbouring coordinates of queries and keys, ours those half a
    head apart."""
    array: np.ndarray = tensor.float().numpy()
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = decoder.heads if name.endswith("q_proj.weight") else decoder.key_heads
        array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
    return np.ascontiguousarray(array)
