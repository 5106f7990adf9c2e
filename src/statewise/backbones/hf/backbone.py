"""A causal language model of Hugging Face transformers as a backbone: `readout` is what its vocabulary head reads,
`state` the same, standardised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from statewise.backbones.base import Backbone, check_context
from statewise.backbones.capabilities import Counted, Noted, Pretrained
from statewise.backbones.hf import loading
from statewise.backbones.hf.comparison import compare
from statewise.backbones.hf.loading import HuggingFaceConfig
from statewise.backbones.hf.one_document import TokenStore, extended, read_apart
from statewise.backbones.nn.cache import KeyValueCache
from statewise.backbones.nn.hooks import Hookable, HookPoint
from statewise.backbones.nn.masks import as_bias, causal_within_documents, keys_in_reach, positions_within_documents
from statewise.batch import Batch, Hidden

SAMPLED_ROWS, SAMPLED_TOKENS = 16, 33
"""The size of the text by which states are standardised."""
LEAST_DEVIATION = 1e-3
"""Smallest deviation, as a share of the median one: a constant feature stays finite."""


class HuggingFace(Pretrained, Counted, Noted, Hookable):
    """A decoder of transformers without its head, which is a matrix here.

    Masks and positions are computed here and given to the model, and keys and values are kept in our cache; whether
    the model computes the same as on its own is tried on construction. Token ids beyond the model's table, which
    objectives may add, have embeddings of their own. With LoRA the model's weights are frozen: the state dict holds
    a digest of them in their place, and loading raises `ValueError` for a model with another.
    """

    Config = HuggingFaceConfig

    def __init__(
        self, config: HuggingFaceConfig, *, vocabulary: int, context: int, embedding_of: Backbone | None = None
    ) -> None:
        super().__init__()
        assert embedding_of is None or isinstance(embedding_of, HuggingFace)
        self.config, self.vocabulary, self.context = config, vocabulary, context
        self._lender = (embedding_of,)  # in a tuple: not a submodule of this one
        model_config, self._described = loading.read_config(config)
        self.commit = loading.commit(config)
        fresh = config.from_scratch or (embedding_of is not None and config.backward_from == "fresh")
        if config.from_scratch:
            model_config.vocab_size = vocabulary
            for name in loading.SPECIAL_TOKENS:  # they mean nothing for the task's symbols
                setattr(model_config, name, None)
        self._check_context(model_config)
        causal: Any = loading.load(config, model_config, fresh=fresh or on_meta())
        head = causal.get_output_embeddings()
        if head is None or head.bias is not None:
            why = "it has no vocabulary head"
            if head is not None:
                why = "its vocabulary head has a bias, and a head must be a matrix alone"
            raise ValueError(f"{config.model} ({model_config.model_type}) cannot be a backbone: {why}")
        self.tied = _tie(causal, config.tied)
        self.width = int(model_config.hidden_size)
        self.norm_eps = float(
            getattr(model_config, "rms_norm_eps", None) or getattr(model_config, "layer_norm_eps", None) or 1e-5
        )
        self.layers = int(model_config.num_hidden_layers)
        self.head_factor = float(getattr(model_config, "logit_scale", 1.0)) / float(
            getattr(model_config, "logits_scaling", 1.0)
        )
        body = causal.base_model
        self._adapted: tuple[Any] | None = None
        if config.lora.rank is not None and not fresh:
            self._adapted = (loading.add_lora(causal, config.lora, config.model),)
        if config.gradient_checkpointing:
            name = "activation_checkpointing_enable"  # the newer one
            getattr(causal, name, causal.gradient_checkpointing_enable)({"use_reentrant": False})
        self._whole = (causal,)
        self.body: nn.Module = body
        self.apart = loading.has_other_layers(model_config)
        """Whether each document is read in a row of its own, by the model's own masks."""
        self.rows = int(causal.get_input_embeddings().num_embeddings)
        """Token ids that the model itself has."""
        self.head: nn.Parameter | None = None
        if embedding_of is None:
            self.tokens = Tokens(causal.get_input_embeddings(), vocabulary)
            self.head = None if self.tied else head.weight
        else:
            self.tokens = Tokens(embedding_of.tokens, vocabulary)
            causal.set_input_embeddings(nn.Identity())  # so that no parameter is there twice
        self.register_buffer("mean", torch.zeros(self.width))
        self.register_buffer("deviation", torch.ones(self.width))
        self.linear_weights = _linear_weights(body)
        self.register_state_dict_post_hook(_leave_out_frozen)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_keep_frozen)  # type: ignore[no-untyped-call]
        if on_meta():
            return
        self._try(causal, head=embedding_of is None)
        if config.standardised_state:
            self.mean, self.deviation = moments(self, min(vocabulary, self.rows))

    def _try(self, causal: Any, *, head: bool) -> None:
        """Raises `ValueError` unless the model is a backbone, as `compare` says, if need be with documents apart."""
        try:
            compare(self, causal, self.config.model, self.rows, head=head)
        except ValueError:
            if self.apart:
                raise
            self.apart = True
            try:
                compare(self, causal, self.config.model, self.rows, head=head)
            except ValueError:
                self.apart = False
            if not self.apart:
                raise

    @property
    def lender(self) -> HuggingFace | None:
        """The backbone whose embedding this one shares."""
        return self._lender[0]

    @property
    def causal(self) -> Any:
        """The causal language model of transformers, which shares the weights; with LoRA, the one of peft around it."""
        return self.unwrapped if self._adapted is None else self._adapted[0]

    @property
    def unwrapped(self) -> Any:
        """The causal language model of transformers itself, whose layers may have adapters."""
        return self._whole[0]

    @property
    def adapted(self) -> bool:
        """Whether it has adapters."""
        return self._adapted is not None

    @override
    def encode(self, batch: Batch) -> Hidden:
        self.check_length(batch)
        if self.apart:
            return self._hidden(read_apart(self._read_whole, batch.tokens, batch.documents))
        if batch.documents is None:
            return self._hidden(self._read_whole(batch.tokens))
        column = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        masks = self._masks(causal_within_documents(batch.documents), column[:, None] - column)
        output = self.body(
            inputs_embeds=self.embed(batch.tokens),
            attention_mask=masks,
            use_cache=False,
            position_ids=positions_within_documents(batch.documents),
        )
        return self._hidden(output.last_hidden_state)

    def _read_whole(self, tokens: Tensor) -> Tensor:
        """(N, t) -> the last hidden states (N, t, D) of rows that are a document each."""
        states: Tensor = self.body(inputs_embeds=self.embed(tokens), use_cache=False).last_hidden_state
        return states

    @override
    def extend(self, tokens: Tensor, cache: KeyValueCache | TokenStore, counts: np.ndarray | None = None) -> Hidden:
        from statewise.backbones.hf.key_values import CACHE, Columns

        new = tokens.shape[1]
        check_context(cache, new, counts, self.context)
        if isinstance(cache, TokenStore):
            return self._hidden(extended(self.body, self.embed, tokens, cache, counts))
        cache.begin(new, counts)
        keys = cache.key_places(tokens.device)
        keys = keys[None] if keys.dim() == 1 else keys
        place = keys[:, keys.shape[1] - new :]
        masks = self._masks(keys_in_reach(place, keys)[:, None], (place[:, :, None] - keys[:, None])[:, None])
        output = self.body(
            inputs_embeds=self.embed(tokens),
            attention_mask=masks,
            use_cache=True,
            position_ids=place.clamp(min=0).expand_as(tokens),
            **{CACHE: Columns(cache)},
        )
        cache.advance()
        return self._hidden(output.last_hidden_state)

    def _masks(self, allowed: Tensor, distance: Tensor) -> Any:
        """What the model takes as `attention_mask`: for each kind of layer, which of the `allowed` keys, (B or 1, 1,
        queries, keys), a query reads. `distance`, of a shape that broadcasts to that, counts tokens."""
        masks: dict[str, Tensor] = {}
        for kind, window in loading.sliding_windows(self._whole[0].config).items():
            mask = allowed if window is None else allowed & (distance < window)
            masks[kind] = mask if self.config.attention == "sdpa" else as_bias(mask, self.mean.dtype)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _hidden(self, readout: Tensor) -> Hidden:
        if not self.config.standardised_state:
            return Hidden(readout, readout)
        return Hidden((readout - self.mean) / self.deviation, readout)

    def state_for_head(self, state: Tensor) -> Tensor:
        """See `Backbone.state_for_head`: the readout that belongs to a state."""
        return state * self.deviation + self.mean if self.config.standardised_state else state

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., D)."""
        embedded: Tensor = self.tokens(tokens)
        return embedded

    def head_weight(self) -> Tensor:
        """(V, D), times the constant factor that some families apply to logits."""
        if self.lender is not None:
            return self.lender.head_weight()
        weight = self._head_table()
        return weight if self.head_factor == 1 else weight * self.head_factor

    def _head_table(self) -> Tensor:
        """(V, D), without that factor."""
        weight: Tensor = self._whole[0].get_input_embeddings().weight if self.head is None else self.head
        if self.tokens.extra is not None:
            return torch.cat((weight, self.tokens.extra))
        return weight[: self.vocabulary] if self.vocabulary < self.rows else weight

    def logits(self, readout: Tensor, *, frozen: bool = False) -> Tensor:
        """See `Backbone.logits`. The factor multiplies the readout: to multiply the whole matrix by it for each token
        would take longer than the product."""
        if self.lender is not None:
            return self.lender.logits(readout, frozen=frozen)
        weight = self._head_table()
        scaled = readout if self.head_factor == 1 else readout * self.head_factor
        return F.linear(scaled, weight.detach() if frozen else weight)

    def make_cache(self, rows: int) -> KeyValueCache | TokenStore:
        """An empty cache of all layers. Layers with a window keep all keys, too, and mask them."""
        if self.apart:
            return TokenStore(rows, self.context)
        return KeyValueCache(rows, self.layers, most=self.context)

    def flops(self, length: int) -> float:
        """See `Counted.flops`. Matrices of all layers; keys within reach of each query. What other layers than
        attention do with their states is not counted."""
        config = self._whole[0].config
        windows = loading.sliding_windows(config)
        kinds = [kind for kind in getattr(config, "layer_types", None) or [""] * self.layers if kind in windows]
        pairs, width = sum(_pairs(length, windows[kind]) for kind in kinds), 0
        if kinds:
            heads = config.num_attention_heads
            width = heads * (getattr(config, "head_dim", None) or self.width // heads)
        return 2.0 * (length * self.linear_weights + pairs * 2 * width)

    def hook_points(self) -> dict[str, HookPoint]:
        """See `Hookable`: the residual stream at every layer."""
        body: Any = self._whole[0].base_model
        lists = (part for part in body.modules() if isinstance(part, nn.ModuleList) and len(part) == self.layers)
        points = {"hook_embed": HookPoint(self.tokens)}
        for layer, block in enumerate(next(lists)):
            points[f"blocks.{layer}.hook_resid_pre"] = HookPoint(block, "input")
            points[f"blocks.{layer}.hook_resid_post"] = HookPoint(block)
        norm = next((getattr(body, name) for name in FINAL_NORMS if hasattr(body, name)), None)
        return points if norm is None else {**points, "ln_final.hook_out": HookPoint(norm)}

    def notes(self, steps: int) -> list[str]:
        """What a user should know of the model."""
        config, every = self._whole[0].config, [*self.parameters()]
        trained = sum(each.numel() for each in every if each.requires_grad)
        said = f"model: {self.config.model} ({config.model_type}), {self.layers} layers of width {self.width}"
        said += f", commit {self.commit[:12]}" if self.commit else ""
        total = sum(each.numel() for each in every)
        notes = [f"{said}, {trained:,} of {total:,} parameters are trained"]
        if self.apart:
            notes.append(
                "its layers would mix documents that share a row, so each document is read in a row of its own, padded "
                "to the longest: shorter documents, or rows without packing, train faster"
            )
        rates = {getattr(config, name, 0) or 0 for name in loading.DROPOUTS}
        if max(rates) > 0:
            notes.append(f"the model's own dropout of up to {max(rates):g} is active in training")
        if self.vocabulary < self.rows:
            unused = self.rows - self.vocabulary
            notes.append(f"{unused} tokens of the model's table have no text: they are never predicted")
        return notes

    @override
    def check_symbols(self, symbols: Sequence[str]) -> None:
        if self.config.from_scratch or self.lender is not None:
            return
        model, number = self.config.model, len(symbols)
        if number > self.rows:
            raise ValueError(
                f"the task has a vocabulary of {number:,} tokens, and {model} one of {self.rows:,}: make the task's "
                f"data with the model's own tokenizer (statewise data text --tokenizer hf:{model}), or draw new "
                "weights for the task's symbols (--backbone.from_scratch true)"
            )
        known = loading.tokenizer_symbols(self.config)
        if known is None:
            return
        for token, symbol in enumerate(symbols):
            if known.get(token) != symbol:
                other = "nothing" if token not in known else repr(known[token])
                raise ValueError(
                    f"the task's tokenizer does not fit {model}: token {token} is {symbol!r} in the task and {other} "
                    f"in the model; make the task's data with the model's own tokenizer (statewise data text "
                    f"--tokenizer hf:{model})"
                )

    def _check_context(self, model_config: Any) -> None:
        most = getattr(model_config, "max_position_embeddings", None)
        if most is not None and self.context > most:
            raise ValueError(
                f"the task's sequences have up to {self.context:,} tokens, and {self.config.model} reads {most:,}: set "
                "task.context lower"
            )
        short = loading.longest_with_one_rotation(model_config)
        if short is not None and self.context > short:
            raise ValueError(
                f"the task's sequences have up to {self.context:,} tokens, and {self.config.model} rotates all "
                f"positions by other angles once there are more than {short:,} (longrope), so what it reads "
                "of a document would depend on its neighbours in a batch: set task.context lower"
            )

    # Frozen weights

    def frozen(self) -> dict[str, nn.Parameter]:
        """Parameters that are not trained, by name."""
        return {name: each for name, each in self.named_parameters() if not each.requires_grad}

    def digest(self) -> str:
        """Hexadecimal digest of what runs do not hold of the model: its configuration and its frozen weights."""
        if not hasattr(self, "_digest"):
            digest = hashlib.sha256(json.dumps(self._described, sort_keys=True, default=str).encode())
            for name, tensor in sorted(self.frozen().items()):
                digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
            self._digest = digest.hexdigest()
        return self._digest

    def get_extra_state(self) -> Tensor:
        """The digest, (32,) uint8, as part of the state dict."""
        return torch.frombuffer(bytearray.fromhex(self.digest()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Raises `ValueError` if the state dict belongs to another model."""
        digest = bytes(state.tolist()).hex()
        if digest != self.digest():
            raise ValueError(
                f"{self.config.model} is not the model that this run was trained on: the digest of its configuration"
                f"{' and weights' if self.frozen() else ''} is {self.digest()[:12]}, not {digest[:12]}; put that model "
                "back, or set backbone.revision in the run's config.json to the model_commit of its environment.json"
            )


class Tokens(nn.Module):
    """The model's embedding, or that of another backbone, and embeddings of the ids beyond it."""

    def __init__(self, table: nn.Module, vocabulary: int) -> None:
        super().__init__()
        self._table = (table,)  # a submodule elsewhere
        self.extra: nn.Parameter | None = None
        if isinstance(table, nn.Embedding) and vocabulary > table.num_embeddings:
            new = torch.randn(vocabulary - table.num_embeddings, table.embedding_dim)
            self.extra = nn.Parameter(new * table.weight.detach().std())

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) token ids -> (..., D)."""
        (table,) = self._table
        if self.extra is None:
            embedded: Tensor = table(tokens)
            return embedded
        assert isinstance(table, nn.Embedding)
        rows = table.num_embeddings
        added = F.embedding((tokens - rows).clamp(min=0), self.extra)
        return torch.where((tokens >= rows)[..., None], added, table(tokens.clamp(max=rows - 1)))


FINAL_NORMS = ("norm", "norm_f", "ln_f", "final_layer_norm", "final_layernorm")
"""What families call the norm after the last layer."""


def on_meta() -> bool:
    """Whether modules are made without memory, to count their parameters."""
    return torch.get_default_device().type == "meta"


def _tie(causal: Any, tied: bool | None) -> bool:
    """Shares the head's matrix with the embedding, or not, as asked; returns whether it does."""
    head, table = causal.get_output_embeddings(), causal.get_input_embeddings()
    before = head.weight is table.weight
    if tied is None or tied == before:
        return before
    head.weight = table.weight if tied else nn.Parameter(table.weight.detach().clone())
    causal.config.tie_word_embeddings = tied
    return tied


def _linear_weights(body: nn.Module) -> int:
    """Weights of all matrices but embeddings, those that multiply each position once."""
    tables = {id(part.weight) for part in body.modules() if isinstance(part, nn.Embedding)}
    return sum(each.numel() for each in body.parameters() if each.dim() > 1 and id(each) not in tables)


def _pairs(length: int, window: int | None) -> int:
    """Pairs of a query and a key that it reads."""
    full = min(length, window or length)
    return full * (full + 1) // 2 + (length - full) * full


def _leave_out_frozen(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in module.frozen():
        del state[prefix + name]


def _keep_frozen(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, tensor in module.frozen().items():
        state.setdefault(prefix + name, tensor)


@torch.no_grad()
def moments(backbone: Backbone, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Means and standard deviations, (D,) each, of the readouts of text that the backbone samples itself; tokens are
    below `vocabulary`. First positions, where models keep other things, are left out.

    Neither the data nor the tokenizer is known when a model is loaded. Random tokens are a poor substitute: on a small
    model their standard deviations were 0.7 to 1.7 times those on held-out text, those of sampled text 0.9 to 1.2
    times.
    """
    training = backbone.training
    backbone.eval()
    generator, outputs = torch.Generator().manual_seed(0), []
    cache, tokens = (
        backbone.make_cache(SAMPLED_ROWS),
        torch.randint(0, vocabulary, (SAMPLED_ROWS, 1), generator=generator),
    )
    for _ in range(min(SAMPLED_TOKENS, backbone.context)):
        readout = backbone.extend(tokens, cache).readout
        outputs.append(readout)
        shares = backbone.logits(readout[:, 0])[:, :vocabulary].double().softmax(-1)
        tokens = torch.multinomial(shares, 1, generator=generator)
    backbone.train(training)
    read = torch.cat(outputs[1:] or outputs, dim=1).flatten(0, 1)
    deviation = read.std(0)
    return read.mean(0), deviation.clamp(min=LEAST_DEVIATION * float(deviation.median()) + 1e-8)
