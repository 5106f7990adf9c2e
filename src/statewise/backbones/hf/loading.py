"""The fields of `backbone: hf`; finds and loads models of transformers. Whatever is wrong with them is a `ValueError`
in a sentence or two."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from statewise.runtime.bounds import bounded, unset
from statewise.runtime.extras import failing_as, may_be_on_hub, needed, quiet_hub
from statewise.runtime.json_files import ANYTHING, NUMBER, POSITIVE, SHARE, TEXT, read_json
from statewise.runtime.messages import cut_words, short


@dataclass(frozen=True)
class LoRAConfig:
    """Low-rank adaptation (Hu et al. 2022): each adapted matrix W becomes W + alpha / rank * B A."""

    rank: int | None = None
    """Rank of the matrices A and B, which alone are trained of the model; null: the whole model is trained."""
    alpha: float | None = None
    """Numerator of their factor; null: twice the rank."""
    dropout: float = 0.0
    """Dropout of their input during training."""
    targets: str = "all-linear"
    """Names of the adapted layers, with commas (`q_proj,v_proj`); all-linear: every linear layer but the head."""

    def __post_init__(self) -> None:
        bounded(self, "rank", prefix="backbone.lora.", at_least=1)
        bounded(self, "alpha", prefix="backbone.lora.", above=0)
        bounded(self, "dropout", prefix="backbone.lora.", at_least=0, below=1)
        if self.rank is None:
            why = "needs backbone.lora.rank: without it the whole model is trained"
            unset(self, "alpha", "dropout", "targets", prefix="backbone.lora.", reason=why)
        if not self.targets.replace(",", "").strip():
            raise ValueError("backbone.lora.targets is empty: name layers, or all-linear")


@dataclass(frozen=True)
class HuggingFaceConfig:
    """Fields of `backbone: hf`."""

    model: str = ""
    """A folder of Hugging Face, or the name of a model on the hub."""
    revision: str | None = None
    """Branch, tag or commit on the hub; null: its main branch."""
    from_scratch: bool = False
    """Whether to draw new weights and use only the configuration of the model."""
    layers: int | None = None
    """Layers to keep, the first ones; null: all."""
    tied: bool | None = None
    """Whether the vocabulary head shares the token embedding's matrix; null: as in the model."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention of transformers: PyTorch's fused kernels (sdpa), or explicit products (eager)."""
    gradient_checkpointing: bool = False
    """Whether training recomputes layers in the backward pass: less memory, about a third more time."""
    standardised_state: bool = True
    """Whether states have mean 0 and variance 1 in every feature, before training, so that outlier features of the
    model do not dominate losses on states. The vocabulary head reads the unchanged output in either case."""
    backward_from: Literal["fresh", "copy"] = "fresh"
    """Weights of a second encoder, for objectives with one: new ones, or a copy of the model's."""
    lora: LoRAConfig = LoRAConfig()
    """Low-rank adaptation of pre-trained weights; a fresh second encoder is trained whole."""

    def __post_init__(self) -> None:
        bounded(self, "layers", prefix="backbone.", at_least=1)
        if self.from_scratch and self.lora.rank is not None:
            raise ValueError(
                "backbone.from_scratch and backbone.lora.rank exclude each other: LoRA adapts pre-trained weights"
            )


USERS = "models of Hugging Face"
VOLATILE = ("transformers_version", "_name_or_path", "_commit_hash", "dtype", "torch_dtype", "use_cache")
"""Fields of config.json that say nothing about what a model computes."""
NO_CODE = {"trust_remote_code": False}
"""Without it, transformers asks on the terminal whether to run the code that a folder brings."""
DROPOUTS = (
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "hidden_dropout", "residual_dropout"),
    *("embedding_dropout",),
)
"""What families call the rates of their dropout."""
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""What configurations call the ids of tokens with a meaning of their own."""
FACTORS = ("logit_scale", "logits_scaling")
"""What families call a factor of the logits, and its inverse."""
QUANTISED = ("quantization_config", "compression_config")
"""Fields of config.json that say that weights are quantised."""
SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size"),
)
"""What transformers calls the sizes of any family."""
LARGEST_SIZE = 2**24
MOST_PARTS = 10_000
"""Layers of a model, or experts of a layer."""
CONSTANTS = re.compile(r"\.masked_bias$|rotary_emb\.inv_freq$|^statewise_loss\.")
"""Tensors that are not weights of the model: those of old checkpoints that newer versions of transformers compute, and
those of a loss of ours that is kept beside the model."""
ADAPTER = "it has an adapter (adapter_config.json): merge it with its model first (merge_and_unload of peft)"
"""The message for models that transformers would load frozen, except for the adapter."""


def read_config(config: HuggingFaceConfig) -> tuple[Any, dict[str, Any]]:
    """The configuration of the model, with the recipe's fields, and config.json without `VOLATILE` fields. Raises
    `ValueError` if there is no model, or none that transformers knows."""
    transformers = needed("transformers", USERS)
    name, folder = config.model, Path(config.model)
    if not name:
        raise ValueError("backbone.model is not set: give a folder, or the name of a model on the hub")
    if folder.exists():
        _check_folder(folder)
        if config.revision is not None:
            raise ValueError(
                f"backbone.revision is {config.revision}, and {name} is a folder: omit it, or give the name of a model "
                "on the hub"
            )
    elif not may_be_on_hub(name):
        raise ValueError(f"{name}: there is no such folder, and no model on the hub has such a name")
    where = {} if folder.exists() else {"revision": config.revision}
    with quiet():
        try:
            raw, _ = transformers.PreTrainedConfig.get_config_dict(name, **where)
        except Exception as error:  # of the file, the network, or the package
            raise ValueError(_not_found(name, folder, error)) from None
        _check_parts(raw, name)
        try:
            model_config = transformers.AutoConfig.from_pretrained(name, **NO_CODE, **where)
        except Exception as error:  # of the file, the network, or the package
            raise ValueError(_not_found(name, folder, error)) from None
    text = model_config.get_text_config()
    if type(model_config) not in transformers.AutoModelForCausalLM._model_mapping:
        raise ValueError(
            f"{name}: transformers has no causal language model of the type {model_config.model_type}: give one that "
            "AutoModelForCausalLM loads"
        )
    if text is not model_config:
        raise ValueError(f"{name}: a model of several modalities ({model_config.model_type}): give a text-only model")
    if getattr(text, "final_logit_softcapping", None):
        raise ValueError(
            f"{name}: the head of {model_config.model_type} caps its logits by a tanh, and a head must be linear: give "
            "a model without final_logit_softcapping, of the same family Gemma 3"
        )
    _check_numbers(model_config, name)
    _check_quantisation(model_config, config)
    if config.layers is not None:
        _cut(model_config, config.layers, name)
    return model_config, {key: value for key, value in raw.items() if key not in VOLATILE}


def commit(config: HuggingFaceConfig) -> str | None:
    """The commit on the hub whose config.json `read_config` has just read; None if it was a folder's."""
    if Path(config.model).exists():
        return None
    hub = needed("huggingface_hub", USERS)
    cached = hub.try_to_load_from_cache(config.model, "config.json", revision=config.revision)
    return Path(cached).parent.name if isinstance(cached, str) else None


def load(config: HuggingFaceConfig, model_config: Any, *, fresh: bool) -> Any:
    """The causal language model, in the default dtype, with pre-trained or `fresh` weights. Raises `ValueError` if its
    weights are missing, incomplete or damaged."""
    transformers = needed("transformers", USERS)
    name, folder = config.model, Path(config.model)
    options = {"dtype": torch.get_default_dtype(), **NO_CODE}
    if sliding_windows(model_config):  # others, such as Mamba, have no attention, and refuse to be asked for one
        options["attn_implementation"] = config.attention
    with quiet():
        if fresh:
            try:
                return transformers.AutoModelForCausalLM.from_config(model_config, **options)
            except MemoryError:
                raise
            except Exception as error:  # of the package, by fields of config.json
                if "allocate memory" in str(error):
                    raise
                raise _unusable(name, model_config, error) or ValueError(
                    f"{name}: its config.json does not describe a model: {_first_line(error)}"
                ) from None
        where = {} if folder.exists() else {"revision": config.revision}
        _check_shards(folder)
        try:
            with torch.random.fork_rng(devices=[]):
                model, facts = transformers.AutoModelForCausalLM.from_pretrained(
                    name, config=model_config, output_loading_info=True, use_safetensors=True, **options, **where
                )
        except Exception as error:  # of files, the network, or the package
            raise _unusable(name, model_config, error) or ValueError(
                f"{name}: its weights cannot be loaded: {_first_line(error)}"
            ) from None
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(f"{name}: {ADAPTER}")
    missing = sorted(facts["missing_keys"])
    if missing:
        raise ValueError(
            f"{name}: its weights are incomplete: {', '.join(missing[:3])} {'is' if len(missing) == 1 else 'are'} "
            f"missing{'' if len(missing) <= 3 else f', and {len(missing) - 3} more'}"
        )
    _check_all_used(sorted(facts["unexpected_keys"]), config, model_config)
    for parameter, tensor in model.named_parameters():
        if not tensor.isfinite().all():
            raise ValueError(f"{name}: its weights are damaged: {parameter} has numbers that are not finite")
    return model


def add_lora(causal: Any, config: LoRAConfig, model: str) -> Any:
    """Freezes a causal language model of transformers and adds adapters to it, in place; returns the model of peft
    around it. Raises `ValueError` if no layer has such a name, or if it is the embedding or the head."""
    peft = needed("peft", "LoRA adapters")
    rank = config.rank
    assert rank is not None
    targets: Any = [name.strip() for name in config.targets.split(",") if name.strip()]
    made = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank if config.alpha is None else config.alpha,
        lora_dropout=config.dropout,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        task_type="CAUSAL_LM",
    )
    head, table = causal.get_output_embeddings(), causal.get_input_embeddings()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that GPT-2's matrices are transposed, which peft then handles
        try:
            adapted = peft.get_peft_model(causal, made)
        except ValueError as error:
            raise ValueError(
                f"backbone.lora.targets {config.targets}: {model} has no such layers to adapt: {str(error)[:200]}"
            ) from None
    if causal.get_output_embeddings() is not head:
        raise ValueError("backbone.lora.targets names the vocabulary head, which must be a plain matrix: leave it out")
    if causal.get_input_embeddings() is not table:
        raise ValueError("backbone.lora.targets names the embedding, which must be a plain table: leave it out")
    return adapted


def tokenizer_symbols(config: HuggingFaceConfig) -> dict[int, str] | None:
    """Tokens of the model's tokenizer.json by id; None if it has none."""
    transformers, folder = needed("transformers", USERS), Path(config.model)
    if folder.is_dir():
        path: Any = folder / "tokenizer.json"
    else:
        with quiet():
            path = transformers.utils.cached_file(
                config.model,
                "tokenizer.json",
                revision=config.revision,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
    if path is None or not Path(path).is_file():
        return None
    package = needed("tokenizers", USERS)
    with failing_as(f"{path}: not a tokenizer file"):
        tokenizer = package.Tokenizer.from_file(str(path))
    return {number: symbol for symbol, number in tokenizer.get_vocab(with_added_tokens=True).items()}


ATTENTION = {"full_attention", "sliding_attention"}
"""The kinds of layers of which masks say what they read."""


def has_other_layers(model_config: Any) -> bool:
    """Whether a model has layers, such as recurrent ones, that are not attention over all tokens or a window."""
    return not set(getattr(model_config, "layer_types", None) or ()) <= ATTENTION


def sliding_windows(model_config: Any) -> dict[str, int | None]:
    """The window of each kind of attention layer, by the name that a model's masks have for it; None: no limit."""
    kinds = set(getattr(model_config, "layer_types", None) or ())
    window = getattr(model_config, "sliding_window", None)
    if not kinds:
        return {"": window}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds & ATTENTION)}


def longest_with_one_rotation(model_config: Any) -> int | None:
    """Tokens of the longest pass in which a model with rotary positions of the kind `longrope` turns them by its short
    factors; None for other models. In longer ones it turns all of them by its long factors."""
    parameters = getattr(model_config, "rope_parameters", None) or {}
    kinds = [each for each in parameters.values() if isinstance(each, dict)] or [
        parameters
    ]  # some have them by kind of layer
    limits = [
        each.get("original_max_position_embeddings") or getattr(model_config, "original_max_position_embeddings", None)
        for each in kinds
        if each.get("rope_type") == "longrope"
    ]
    return min((int(each) for each in limits if each is not None), default=None)


@contextmanager
def quiet() -> Iterator[None]:
    """Within this context, transformers prints neither warnings nor progress, except for downloads on a terminal."""
    logging, hub = needed("transformers", USERS).logging, needed("huggingface_hub", USERS).utils
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    downloads = not hub.are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # which hides downloads, too
    if downloads and sys.stderr.isatty():
        hub.enable_progress_bars()
    try:
        with quiet_hub(USERS):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
        (hub.enable_progress_bars if downloads else hub.disable_progress_bars)()


def _check_folder(folder: Path) -> None:
    path = folder / "config.json"
    if not folder.is_dir():
        raise ValueError(f"{folder}: a model is a folder, not a file")
    if (folder / "adapter_config.json").is_file():
        raise ValueError(f"{folder}: {ADAPTER}")
    if not path.is_file():
        raise ValueError(f"{folder}: not a Hugging Face model: it has no config.json")
    content = read_json(path, ANYTHING)
    if isinstance(content, dict) and {"task", "objective", "backbone"} <= content.keys():
        raise ValueError(
            f"{folder}: a run of statewise, not a Hugging Face model: write one with "
            f"statewise export {folder} --to hf --out DIR"
        )
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise ValueError(f"{path}: not the configuration of a model: it has no model_type")
    if content["model_type"] == "statewise":
        raise ValueError(f"{folder}: a model of statewise itself: train its run on with statewise")


def _check_shards(folder: Path) -> None:
    """Raises `ValueError` if an index of a folder's weights names files elsewhere, which transformers would read."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        for name in read_json(index, {"weight_map": {...: TEXT}})["weight_map"].values():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"{index}: {short(name)} is not in the model's folder: put all weights there")


def _not_found(name: str, folder: Path, error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return f"{name}: it needs code of its own, which statewise never runs: give a model of a type in transformers"
    if folder.exists():
        return f"{name}: its config.json cannot be used: {_first_line(error)}"
    return (
        f"{name}: there is no such folder, and the hub did not give such a model (no network, no such name, or no "
        f"permission): {_first_line(error)}"
    )


def _unusable(name: str, model_config: Any, error: Exception) -> ValueError | None:
    """The error for a family whose attention is not computed as `backbone.attention` asks; None for other errors."""
    if "does not support an attention implementation" not in str(error):
        return None
    return ValueError(
        f"{name} ({model_config.model_type}) cannot be a backbone: its attention is not computed by PyTorch's "
        "scaled_dot_product_attention; families that can are in docs/fine-tuning.md"
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return cut_words(lines[0][:300]) if lines else type(error).__name__


def _check_all_used(unexpected: Sequence[str], config: HuggingFaceConfig, model_config: Any) -> None:
    """Raises `ValueError` if the file of weights holds tensors, `unexpected`, for which the model has no place, other
    than those of the layers that `backbone.layers` leaves out."""

    def left_out(name: str) -> bool:
        layer = next((int(part) for part in name.split(".") if part.isdecimal()), None)
        return config.layers is not None and layer is not None and layer >= config.layers

    unused = [name for name in unexpected if not CONSTANTS.search(name) and not left_out(name)]
    if unused:
        more = f" and {len(unused) - 1:,} more" if len(unused) > 1 else ""
        raise ValueError(
            f"{config.model}: its weights hold tensors for which the model of its config.json, with num_hidden_layers "
            f"{model_config.num_hidden_layers}, has no place: {short(unused[0])}{more}. Give the config.json that "
            "belongs to the weights; for fewer layers than the weights have, set backbone.layers"
        )


def _check_parts(raw: Any, name: str) -> None:
    """Raises `ValueError` if a configuration asks for more parts than any model has. transformers makes them, or lists
    of them, one by one, the lists when it reads the configuration."""
    for field, value in raw.items():
        if isinstance(value, dict):
            _check_parts(value, name)
        elif isinstance(value, int) and value > MOST_PARTS and re.search(r"(^|_)(layers?|experts?|blocks)(_|$)", field):
            raise ValueError(f"{name}: {field} of its config.json must be at most {MOST_PARTS:,}, not {short(value)}")


def _check_quantisation(model_config: Any, config: HuggingFaceConfig) -> None:
    """Raises `ValueError` if the weights of the model are quantised. For a model with new weights the fields are
    dropped."""
    for field in QUANTISED:
        value = vars(model_config).pop(field, None)
        if value is None or config.from_scratch:
            continue
        method = value.get("quant_method") if isinstance(value, dict) else getattr(value, "quant_method", None)
        by = f", {short(method)}" if method else ""
        raise ValueError(
            f"{config.model}: its weights are quantised ({field}{by}), and quantised weights cannot be trained: give "
            "the model that is not quantised, or draw new weights (--backbone.from_scratch true)"
        )


def _check_numbers(model_config: Any, name: str) -> None:
    """Raises `ValueError` unless numbers of a configuration that transformers takes as they are can be used."""
    for field in SIZES:
        size = getattr(model_config, field, None)
        if size is None or isinstance(size, list):  # some families have one for each layer
            continue
        if not (POSITIVE.holds(size) and size <= LARGEST_SIZE):
            raise ValueError(
                f"{name}: {field} of its config.json must be a whole number from 1 to {LARGEST_SIZE:,}, not "
                f"{short(size)}"
            )
    for field in FACTORS:
        factor = getattr(model_config, field, 1.0)
        if not NUMBER.holds(factor) or not factor:
            raise ValueError(f"{name}: {field} of its config.json must be a number other than 0, not {short(factor)}")
    for field in DROPOUTS:
        rate = getattr(model_config, field, None)
        if rate is not None and not SHARE.holds(rate):
            raise ValueError(f"{name}: {field} of its config.json must be a number from 0 to 1, not {short(rate)}")


def _cut(model_config: Any, layers: int, name: str) -> None:
    """Keeps the first `layers` of a configuration."""
    if layers > model_config.num_hidden_layers:
        raise ValueError(f"backbone.layers is {layers}, and {name} has {model_config.num_hidden_layers} layers")
    model_config.num_hidden_layers = layers
    if getattr(model_config, "layer_types", None):
        model_config.layer_types = model_config.layer_types[:layers]


def load_any(name: str) -> Any:
    """Any causal language model that transformers has, a folder or the name of one on the hub, with its weights in
    their own types; it need not be one that the backbone `hf` can train. Raises `ValueError` if there is no such
    model, or if its weights are missing, incomplete or damaged."""
    transformers, folder = needed("transformers", USERS), Path(name)
    if folder.exists():
        _check_folder(folder)
        _check_shards(folder)
    elif not may_be_on_hub(name):
        raise ValueError(f"{name}: there is no such folder, and no model on the hub has such a name")
    with quiet():
        try:
            raw, _ = transformers.PreTrainedConfig.get_config_dict(name)
            _check_parts(raw, name)
            model_config = transformers.AutoConfig.from_pretrained(name, **NO_CODE)
        except Exception as error:  # of the file, the network, or the package
            message = str(error) if str(error).startswith(f"{name}: ") else _not_found(name, folder, error)
            raise ValueError(message) from None
        _check_numbers(model_config.get_text_config(), name)
        if type(model_config) not in transformers.AutoModelForCausalLM._model_mapping:
            raise ValueError(
                f"{name}: transformers has no causal language model of the type {model_config.model_type}: give one "
                "that AutoModelForCausalLM loads"
            )
        try:
            model, facts = transformers.AutoModelForCausalLM.from_pretrained(
                name, config=model_config, dtype="auto", output_loading_info=True, use_safetensors=True, **NO_CODE
            )
        except Exception as error:  # of files, the network, or the package
            raise ValueError(f"{name}: its weights cannot be loaded: {_first_line(error)}") from None
    missing = sorted(facts["missing_keys"])
    if missing:
        raise ValueError(f"{name}: its weights are incomplete: {short(missing[0])} is missing")
    return model
