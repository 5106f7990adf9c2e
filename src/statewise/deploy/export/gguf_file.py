"""GGUF files, the format of llama.cpp, for decoders with the blocks of Llama.

Its engines know an architecture by name and assume the rest. Of the architectures that our decoders map onto,
those with GELU use an approximation by a tanh there, and of StableLM and of biases the reader that the tests check this
with, that of transformers, loses parts; so only Llama without biases is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from statewise.backbones.hf.backbone import HuggingFace
from statewise.deploy.export.folder_files import Exported
from statewise.deploy.export.layouts import ROPE_BASE, Llama, NotPlain, Plain, plain
from statewise.deploy.export.tokenizer import tokenizer_json
from statewise.model.model import Model
from statewise.runtime.durable import Checked, replacing
from statewise.runtime.extras import needed
from statewise.runtime.version import __version__

GPT2_SPLITS = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
"""The pre-tokenizer that GGUF calls gpt-2."""
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Types of tokens in GGUF: the last are found in texts like special ones, and mean nothing else."""
MODEL_RULES = ("ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")
ADDED_RULES = ("lstrip", "rstrip", "single_word")
"""Rules that a tokenizer.json may have for its model and for added tokens, and that GGUF cannot express."""


def export_gguf(model: Model, out: Path, scratch: Path) -> Exported:
    """Writes the model to the file `scratch`, which is to become `out`, in float32. Raises `ValueError` if GGUF cannot
    hold it, or without the extra `hf`."""
    if any(isinstance(module, HuggingFace) for module in model.objective.modules()):
        raise ValueError(
            "a tuned model of Hugging Face keeps its own architecture: export it --to hf, and convert that folder by "
            "the script of llama.cpp"
        )
    gguf = needed("gguf", "GGUF files")
    try:
        decoder = plain(model.objective)
    except NotPlain as error:
        raise ValueError(f"{error}, so no engine of GGUF files has its architecture: export it --to hf") from None
    if not isinstance(decoder.layout, Llama):
        raise ValueError(
            "as GGUF only decoders with the blocks of Llama are exact (norm rms, positions rope, mlp swiglu), and this "
            f"one is a {decoder.layout.architecture}: export it --to hf"
        )
    if decoder.config.bias:
        raise ValueError("readers of GGUF files ignore the biases of a Llama (backbone.bias true): export it --to hf")
    notes: list[str] = []
    vocabulary = _vocabulary(tokenizer_json(model.task) or "{}")
    if vocabulary is None:
        notes.append(
            "no tokenizer: GGUF can hold only byte-level BPE that splits and merges as GPT-2's, so the model takes "
            "token ids"
        )
    writer = gguf.GGUFWriter(None, "llama")
    _add_facts(writer, decoder, f"statewise {__version__} {model.recipe.task.name} {model.recipe.objective.name}")
    if vocabulary is None:
        writer.add_tokenizer_model("none")
    else:
        _add_vocabulary(writer, vocabulary, model.task.end)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, decoder.config.layers)
    arrays = {
        names.get_name(name, (".weight",)): _interleaved(name, tensor, decoder.config.heads)
        for name, tensor in decoder.tensors.items()
    }
    with replacing(scratch) as file:
        _write(gguf, writer, arrays, file)
    parameters = sum(tensor.numel() for tensor in decoder.tensors.values())
    return Exported(out, "llama", parameters, scratch.stat().st_size, notes)


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


def _add_facts(writer: Any, decoder: Plain, name: str) -> None:
    config = decoder.config
    writer.add_name(name)
    writer.add_file_type(0)  # all tensors in float32
    writer.add_context_length(decoder.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.hidden_width)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_dimension_count(config.width // config.heads)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_vocab_size(decoder.vocabulary)


def _vocabulary(content: str) -> dict[str, Any] | None:
    """Tokens by id, their types, and merges of a tokenizer.json; None if GGUF cannot express it."""
    tokenizer = json.loads(content)
    split = tokenizer.get("pre_tokenizer") or {}
    if tokenizer.get("model", {}).get("type") != "BPE" or tokenizer["normalizer"] is not None:
        return None
    if {key: split.get(key) for key in GPT2_SPLITS} != GPT2_SPLITS:
        return None
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    if any(tokenizer["model"].get(rule) for rule in MODEL_RULES):
        return None
    if any(token[rule] for token in added.values() for rule in ADDED_RULES):
        return None
    tokens = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    tokens |= {number: token["content"] for number, token in added.items()}
    types = {number: CONTROL if token["special"] else USER_DEFINED for number, token in added.items()}
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in tokenizer["model"]["merges"])
    return {
        "tokens": [tokens[number] for number in range(len(tokens))],
        "types": [types.get(number, NORMAL) for number in range(len(tokens))],
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


def _interleaved(name: str, tensor: Tensor, heads: int) -> np.ndarray:
    """A tensor as GGUF holds it: its engines rotate neighbouring coordinates of queries and keys, ours those half a
    head apart."""
    array: np.ndarray = tensor.float().numpy()
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
    return np.ascontiguousarray(array)
