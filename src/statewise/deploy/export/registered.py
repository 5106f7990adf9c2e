"""Models of ours as classes of transformers, for those that no existing architecture represents.

Importing it needs the extra `hf`; `import statewise.hf` does so and registers the classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from statewise.backbones import BACKBONES
from statewise.backbones.hf.key_values import CACHE
from statewise.backbones.nn.hooks import HookPoint, See
from statewise.batch import Batch
from statewise.config.recipe import Component, Recipe, fill
from statewise.config.trainer import TrainerConfig
from statewise.deploy.export.folder_files import CONFIG, write_json
from statewise.model.building import make_objective
from statewise.objectives import OBJECTIVES, activations
from statewise.objectives.base import Objective
from statewise.objectives.predictors import CausalCursor, CausalPredictor
from statewise.runtime.json_files import ANYTHING, POSITIVE, TEXT, Maybe, Shape, check, one_of

PART: Shape = {"name": TEXT, ...: ANYTHING}
FIELDS: Shape = {
    **dict.fromkeys(("backbone", "objective"), PART),
    **dict.fromkeys(("vocab_size", "max_position_embeddings"), POSITIVE),
    "rows": one_of("shuffled", "consecutive"),
    "pretrained_config": Maybe({"model_type": TEXT}),
}
"""Fields of config.json that are read."""


class StatewiseConfig(PreTrainedConfig):  # type: ignore[misc]  # transformers is not checked
    """The backbone and the objective of a recipe, with the sizes that the task gave them, and for the backbone `hf` the
    configuration of the architecture that was tuned."""

    model_type = "statewise"

    def __init__(
        self,
        backbone: dict[str, Any] | None = None,
        objective: dict[str, Any] | None = None,
        vocab_size: int = 0,
        max_position_embeddings: int = 0,
        rows: str = "shuffled",
        pretrained_config: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.backbone, self.objective = backbone or {}, objective or {}
        self.vocab_size, self.max_position_embeddings, self.rows = vocab_size, max_position_embeddings, rows
        self.pretrained_config = pretrained_config
        super().__init__(**{"tie_word_embeddings": False, **fields})


class _Sizes:
    """The sizes of the task that `building.make_objective` needs."""

    def __init__(self, config: StatewiseConfig) -> None:
        self.vocab, self.context = range(config.vocab_size), config.max_position_embeddings


def objective_of(config: StatewiseConfig) -> Objective:
    """The objective with its backbone, with initial weights. Raises `ValueError` for unknown names and fields."""
    names = ("backbone", "objective", "vocab_size", "max_position_embeddings", "rows", "pretrained_config")
    values = {name: getattr(config, name) for name in names}
    check(values, FIELDS, "config.json of this model")
    if values["pretrained_config"] is None:
        return _objective(config, values)
    with TemporaryDirectory() as folder:  # the backbone reads its architecture from a file
        write_json(Path(folder) / CONFIG, values["pretrained_config"])
        return _objective(config, {**values, "backbone": {**values["backbone"], "model": folder}})


def _objective(config: StatewiseConfig, values: Mapping[str, Any]) -> Objective:
    parts = {}
    for kind, table in (("backbone", BACKBONES), ("objective", OBJECTIVES)):
        fields = dict(values[kind])
        name = fields.pop("name")
        parts[kind] = Component(name, fill(table[name].Config, fields, f"{kind} {name}"))
    trainer = TrainerConfig(rows=values["rows"])
    return make_objective(Recipe(task=Component("", None), trainer=trainer, seed=0, **parts), _Sizes(config))


class PredictorCache(Cache):  # type: ignore[misc]
    """A cursor of a predictor, as transformers keeps it between steps."""

    is_compileable = False
    is_linear = (False,)
    """By layer: whether it keeps no keys. Without layers, transformers 5.24 would have the whole text read again."""

    def __init__(self, predictor: CausalPredictor, cursor: CausalCursor) -> None:
        super().__init__(layers=[])
        self.predictor, self.cursor = predictor, cursor
        self.recording = False
        self.real = torch.zeros(len(cursor.cache.lengths), 0, dtype=torch.bool)
        """(B, T): which of the columns read so far were tokens; the others were padding."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns read so far, padding included."""
        return self.real.shape[1]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replaces row b by the former row `beam_idx[b]`."""
        self.predictor.reorder(self.cursor, beam_idx)
        self.real = self.real[beam_idx.to(self.real.device)]

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row."""
        rows = len(self.cursor.cache.lengths)
        self.reorder_cache(torch.arange(rows).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last `-tokens_to_remove` columns. Raises `ValueError` for a positive number, for more columns
        than were read, and if the model no longer stores what it needs there."""
        left = self.get_seq_length() + tokens_to_remove
        if tokens_to_remove > 0 or left < 0:
            raise ValueError(f"cannot forget {-tokens_to_remove} columns: {self.get_seq_length()} have been read")
        self.predictor.rewind(self.cursor, self.real[:, left:].sum(1).cpu().numpy())
        self.real = self.real[:, :left]
        if self.recording:
            self.predictor.release(self.cursor)
            self.predictor.hold(self.cursor)

    def activate_past_recording(self) -> None:
        """From here on, `crop` can return to any place after the last call of it, however little the model stores."""
        self.recording = True
        self.predictor.hold(self.cursor)

    def add(self, real: Tensor) -> None:
        """Notes further columns that have been read, (B, n)."""
        self.real = torch.cat((self.real.to(real.device), real), dim=1)


class _Loaded(PreTrainedModel):  # type: ignore[misc]
    """The common part of both classes: an objective, and how it reads tokens."""

    config_class = StatewiseConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _keys_to_ignore_on_load_missing = (r"_extra_state$",)  # checked for runs, not for exports

    def __init__(self, config: StatewiseConfig) -> None:
        super().__init__(config)
        self.objective = objective_of(config).eval()
        self.post_init()

    @classmethod
    def from_pretrained(cls, *arguments: Any, **options: Any) -> Any:
        """See `PreTrainedModel.from_pretrained`. Raises `ValueError` if weights are missing or unknown."""
        wants_hidden = options.pop("output_loading_info", False)
        model, facts = super().from_pretrained(*arguments, output_loading_info=True, **options)
        for kind, what in {"missing_keys": "lack", "unexpected_keys": "have, and the model does not,"}.items():
            names = sorted(facts[kind])
            if names:
                raise ValueError(
                    f"the weights do not fit config.json: they {what} {', '.join(names[:3])}"
                    f"{'' if len(names) <= 3 else f', and {len(names) - 3} more'}; export the run again"
                )
        # transformers sets parameters one by one; modules that derive something from theirs do so on loading.
        model.objective.load_state_dict(model.objective.state_dict())
        return (model, facts) if wants_hidden else model

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _init_weights(self, module: Any) -> None:
        """Does nothing: `objective_of` has initialised the weights."""

    def get_input_embeddings(self) -> Any:
        """Raises `NotImplementedError`, by which transformers knows that the task's vocabulary cannot be resized."""
        raise NotImplementedError("the vocabulary is that of the task and cannot be changed or resized")

    @torch.no_grad()
    def _read(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None,
        cache: PredictorCache | None,
        *,
        use_cache: bool | None,
        last_only: bool,
        output_attentions: bool | None,
        output_hidden_states: bool | None,
        position_ids: Tensor | None,
    ) -> _Outputs:
        """The outputs of the model for `tokens` (B, T); `last_only`: only the last column of the logits is needed."""
        if output_attentions:
            raise ValueError("the attention of this model computes no weights that could be returned")
        real = None if attention_mask is None else attention_mask[:, -tokens.shape[1] :].bool()
        if not torch.compiler.is_compiling():
            self._check(tokens if real is None else tokens.masked_fill(~real, 0))
        wants_hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        predictor = self._predictor() if cache is None else cache.predictor
        layers = self._layers(predictor) if wants_hidden else {}
        parts: dict[str, list[Tensor]] = {name: [] for name in layers}
        if cache is None and use_cache:
            cache = PredictorCache(predictor, predictor.new_cursor(len(tokens)))
        with activations.watched([(point, _keeping(parts[name])) for name, point in layers.items()]):
            if cache is None:
                readout, logits, places = _whole(predictor, tokens, real, position_ids)
            else:
                real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
                if cache.get_seq_length() == 0 and last_only and not wants_hidden and bool(real[:, -1].all()):
                    return _Outputs(None, _prompt(cache, tokens, real), None, cache)
                readout, logits, places = _extended(cache, tokens, real)
        seen: list[Tensor] = []
        for name, seen_parts in parts.items():
            if {len(part) for part in seen_parts} != {len(tokens)}:
                raise ValueError(
                    f"{name} cannot be returned: with a cache, this model reads rows of different lengths one after "
                    "the other; set use_cache=False, or leave out output_hidden_states"
                )
            seen.append(_put_back(torch.cat(seen_parts, dim=1), places, real))
        readout, logits = _put_back(readout, places, real), _put_back(logits, places, real)
        return _Outputs(readout, logits, (*seen, readout) if wants_hidden else None, cache)

    def _check(self, tokens: Tensor) -> None:
        """Raises `ValueError` for ids that the model has no symbol for."""
        largest, V = int(tokens.max()) if tokens.numel() else 0, self.config.vocab_size
        if largest >= V:
            raise ValueError(
                f"input_ids holds {largest}, and this model has the ids 0 to {V - 1}: the tokenizer gives the "
                f"id {V} to text that is not one of the task's symbols"
            )

    def _predictor(self) -> CausalPredictor:
        # A new one each time: it may hold tensors computed from the weights, which may have changed.
        predictor = self.objective.eval().predictor()
        assert isinstance(predictor, CausalPredictor)
        return predictor

    def _layers(self, predictor: CausalPredictor) -> dict[str, HookPoint]:
        """Where hidden states are seen: the input of the first layer, and the output of each but the last."""
        points = activations.hook_points(predictor.backbone)

        def named(layer: int, where: str) -> str:
            name = rf"blocks\.{layer}\.(input\.|prediction\.)?{where}"
            return next(point for point in points if re.fullmatch(name, point))

        last = max(int(name.split(".")[1]) for name in points if name.startswith("blocks."))
        names = [named(0, "hook_resid_pre"), *(named(layer, "hook_resid_post") for layer in range(last))]
        return {name: points[name] for name in names}


class _Outputs(NamedTuple):
    """The outputs of a model for tokens (B, T)."""

    readout: Tensor | None
    """(B, T, D): the input of the vocabulary head; None if it was not needed."""
    logits: Tensor
    """(B, T, V), or (B, 1, V) of the last column."""
    hidden_states: tuple[Tensor, ...] | None
    cache: PredictorCache | None


class StatewiseModel(_Loaded):
    """A trained model of ours without its vocabulary head, for inference."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: PredictorCache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache: PredictorCache | None = None,
        **others: Any,
    ) -> Any:
        """The inputs of the vocabulary head, (B, T, D), after each of `input_ids` (B, T), zero where `attention_mask`
        is, and the hidden states. For these, the cache and errors see `StatewiseForCausalLM.forward`. Without
        gradients."""
        outputs = self._read(
            input_ids,
            attention_mask,
            _only_known(cache, past_key_values, others),
            use_cache=use_cache,
            last_only=False,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            position_ids=others.get("position_ids"),
        )
        if return_dict is False:
            return tuple(part for part in (outputs.readout, outputs.cache, outputs.hidden_states) if part is not None)
        return BaseModelOutputWithPast(
            last_hidden_state=outputs.readout, hidden_states=outputs.hidden_states, **{CACHE: outputs.cache}
        )


class StatewiseForCausalLM(_Loaded, GenerationMixin):  # type: ignore[misc]
    """A trained model of ours, for inference; `statewise train` trains it.

    `objective.predictor()` is the interface to everything that the model can do besides predicting the next token.
    """

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Any:
        """See `GenerationMixin`; it validates arguments by the names in this signature, and by those of `forward` if
        the rest is called `kwargs`."""
        return super().prepare_inputs_for_generation(input_ids, attention_mask=attention_mask, **kwargs)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: PredictorCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        cache: PredictorCache | None = None,
        **others: Any,
    ) -> Any:
        """Logits (B, T, V) after each of `input_ids` (B, T); of the last `logits_to_keep` only, if not 0; zero where
        `attention_mask` is. `labels`: the mean loss of the next tokens, -100 is left out. `output_hidden_states`: the
        input of the first layer, the output of each but the last, and what the vocabulary head reads, (B, T, D) each.
        The cache is `cache`, before transformers 5.24 `past_key_values`. Without gradients.

        Raises `ValueError` if a row exceeds the context, for ids that the model does not have, for `labels` while
        training, for `output_attentions`, and for arguments that it does not have.
        """
        if labels is not None and self.training and torch.is_grad_enabled():
            raise ValueError(
                "this model computes no gradients, so transformers cannot train it: `statewise train` does, also from "
                "a run's weights; `model.eval()` gives its loss"
            )
        outputs = self._read(
            input_ids,
            attention_mask,
            _only_known(cache, past_key_values, others),
            use_cache=use_cache,
            last_only=logits_to_keep == 1,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            position_ids=others.get("position_ids"),
        )
        logits, loss = outputs.logits[:, -logits_to_keep:], None
        if labels is not None:
            wanted = labels[:, 1:]
            if attention_mask is not None:
                wanted = wanted.masked_fill(attention_mask[:, -wanted.shape[1] :] == 0, -100)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), wanted.flatten())
        if return_dict is False:
            return tuple(part for part in (loss, logits, outputs.cache, outputs.hidden_states) if part is not None)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, **{CACHE: outputs.cache}
        )


def _only_known(
    cache: PredictorCache | None, past_key_values: PredictorCache | None, others: Mapping[str, Any]
) -> PredictorCache | None:
    """The cache under either of its names. Raises `ValueError` for both, for a name that this version of transformers
    does not have, and for other arguments that are not None, but `position_ids`, which are no named argument so that
    `generate` makes none: ignoring one, such as `inputs_embeds`, would give other results than asked for."""
    unknown = sorted(name for name, value in others.items() if value is not None and name != "position_ids")
    if unknown:
        raise ValueError(f"this model does not have the argument {unknown[0]}: leave it out")
    if cache is not None and (CACHE != "cache" or past_key_values is not None):
        raise ValueError(f"give the cache once, by the name that this version of transformers has: {CACHE}")
    return past_key_values if cache is None else cache


def _keeping(parts: list[Tensor]) -> See:
    """A hook that appends its input to `parts`."""

    def see(x: Tensor) -> Tensor:
        parts.append(x)
        return x

    return see


def _whole(
    predictor: CausalPredictor, tokens: Tensor, real: Tensor | None, position_ids: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Readouts and logits of whole rows, and the columns that they are in, as `_left_aligned`; None: their own. Without
    a mask, `position_ids` (1 or B, T) begin a document wherever they do not count on, as everywhere in transformers."""
    if real is None:
        documents = None
        if position_ids is not None:
            starts = F.pad(position_ids.diff(dim=1) != 1, (1, 0), value=True)
            documents = starts.cumsum(1).expand_as(tokens)
        hidden, logits = predictor.logits_with_states(Batch.plain(tokens, documents))
        return hidden.readout, logits, None
    rows, places = _left_aligned(tokens, real)
    read = torch.arange(tokens.shape[1], device=tokens.device) < real.sum(1, keepdim=True)
    hidden, logits = predictor.logits_with_states(Batch(rows, torch.zeros_like(read), read, None, (0, 0)))
    return hidden.readout, logits, places


def _prompt(cache: PredictorCache, tokens: Tensor, real: Tensor) -> Tensor:
    """(B, 1, V): reads prompts of which only the last logits are needed, at the lower cost of `Predictor.start`."""
    rows, _ = _left_aligned(tokens, real)
    cache.cursor, logits = cache.predictor.start(rows, _counts(real))
    cache.add(real)
    return logits[:, None]


def _extended(cache: PredictorCache, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, places = _left_aligned(tokens, real)
    hidden, logits = cache.predictor.extend_with_states(cache.cursor, rows, _counts(real))
    cache.add(real)
    return hidden.readout, logits, places


def _left_aligned(tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The real tokens of each row first and then zeros, (B, T), and the column that each was moved to, (B, T)."""
    places = torch.where(real, real.long().cumsum(1), real.sum(1, keepdim=True) + (~real).long().cumsum(1)) - 1
    return torch.zeros_like(tokens).scatter(1, places, tokens.masked_fill(~real, 0)), places


def _counts(real: Tensor) -> np.ndarray:
    """(B,) the number of tokens of each row."""
    counts: np.ndarray = real.sum(1).cpu().numpy()
    return counts


def _put_back(outputs: Tensor, places: Tensor | None, real: Tensor | None) -> Tensor:
    """Outputs (B, T, ...) in the columns of their tokens, zero elsewhere."""
    if places is None or real is None:
        return outputs
    return outputs.gather(1, places[..., None].expand_as(outputs)).masked_fill(~real[..., None], 0)
