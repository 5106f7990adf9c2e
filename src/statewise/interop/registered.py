"""Models of ours as classes of transformers, for those that no existing architecture represents.

Importing it needs the extra `hf`; `import statewise.hf` does so and registers the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from statewise.backbones import BACKBONES
from statewise.building import make_objective
from statewise.config import Component, Recipe, fill
from statewise.interop.folder_files import CONFIG, write_json
from statewise.json_files import ANYTHING, POSITIVE, TEXT, Maybe, Shape, check, one_of
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import Objective
from statewise.objectives.predictors import CausalCursor, CausalPredictor
from statewise.training.config import TrainerConfig
from statewise.types import Batch

PART: Shape = {"name": TEXT, ...: ANYTHING}
FIELDS: Shape = {
    **dict.fromkeys(("backbone", "objective"), PART),
    **dict.fromkeys(("vocab_size", "max_position_embeddings"), POSITIVE),
    "rows": one_of("shuffled", "consecutive"),
    "pretrained_config": Maybe({"model_type": TEXT}),
}
"""What is read of config.json."""


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
    """What `building.make_objective` must know of the task."""

    def __init__(self, config: StatewiseConfig) -> None:
        self.vocab, self.context = range(config.vocab_size), config.max_position_embeddings


def objective_of(config: StatewiseConfig) -> Objective:
    """The objective with its backbone, with initial weights. Raises `ValueError` for unknown names and fields."""
    names = ("backbone", "objective", "vocab_size", "max_position_embeddings", "rows", "pretrained_config")
    given = {name: getattr(config, name) for name in names}
    check(given, FIELDS, "config.json of this model")
    if given["pretrained_config"] is None:
        return _objective(config, given)
    with TemporaryDirectory() as folder:  # the backbone reads its architecture from a file
        write_json(Path(folder) / CONFIG, given["pretrained_config"])
        return _objective(config, {**given, "backbone": {**given["backbone"], "model": folder}})


def _objective(config: StatewiseConfig, given: Mapping[str, Any]) -> Objective:
    parts = {}
    for kind, table in (("backbone", BACKBONES), ("objective", OBJECTIVES)):
        fields = dict(given[kind])
        name = fields.pop("name")
        parts[kind] = Component(name, fill(table[name].Config, fields, f"{kind} {name}"))
    trainer = TrainerConfig(rows=given["rows"])
    return make_objective(Recipe(task=Component("", None), trainer=trainer, seed=0, **parts), _Sizes(config))


class PredictorCache(Cache):  # type: ignore[misc]
    """A cursor of a predictor, as transformers keeps it between steps."""

    is_compileable = False

    def __init__(self, predictor: CausalPredictor, cursor: CausalCursor) -> None:
        super().__init__(layers=[])
        self.predictor, self.cursor = predictor, cursor
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

    def add(self, real: Tensor) -> None:
        """Notes further columns that have been read, (B, n)."""
        self.real = torch.cat((self.real.to(real.device), real), dim=1)


class StatewiseForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A trained model of ours, for inference; `statewise train` trains it.

    `objective.predictor()` is the interface to everything that the model can do besides predicting the next token.
    """

    config_class = StatewiseConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _keys_to_ignore_on_load_missing = (r"_extra_state$",)  # what is checked of runs, not of exports

    def __init__(self, config: StatewiseConfig) -> None:
        super().__init__(config)
        self.objective = objective_of(config).eval()
        self.post_init()

    @classmethod
    def from_pretrained(cls, *given: Any, **options: Any) -> Any:
        """See `PreTrainedModel.from_pretrained`. Raises `ValueError` if weights are missing, or are of no parameter."""
        asked = options.pop("output_loading_info", False)
        model, facts = super().from_pretrained(*given, output_loading_info=True, **options)
        for kind, what in {"missing_keys": "lack", "unexpected_keys": "have, and the model does not,"}.items():
            names = sorted(facts[kind])
            if names:
                raise ValueError(
                    f"the weights do not fit config.json: they {what} {', '.join(names[:3])}"
                    f"{'' if len(names) <= 3 else f', and {len(names) - 3} more'}; export the run again"
                )
        # transformers sets parameters one by one; modules that derive something from theirs do so on loading.
        model.objective.load_state_dict(model.objective.state_dict())
        return (model, facts) if asked else model

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _init_weights(self, module: Any) -> None:
        """Nothing: `objective_of` has drawn them."""

    def get_input_embeddings(self) -> Any:
        """Raises `NotImplementedError`, by which transformers knows that the task's vocabulary cannot be resized."""
        raise NotImplementedError("the vocabulary is that of the task and cannot be changed or resized")

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Any:
        """See `GenerationMixin`; it validates arguments by the names in this signature, and by those of `forward` if
        the rest is called `kwargs`."""
        return super().prepare_inputs_for_generation(input_ids, attention_mask=attention_mask, **kwargs)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: PredictorCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **_: Any,
    ) -> Any:
        """Logits (B, T, V) after each of `input_ids` (B, T); of the last `logits_to_keep` only, if not 0; zero where
        `attention_mask` is. `labels`: the mean loss of the next tokens, -100 is left out. Without gradients.

        Raises `ValueError` if a row exceeds the context.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -input_ids.shape[1] :]
        real = mask.bool()
        if past_key_values is not None:
            logits = self._extended(past_key_values, input_ids, real)
        elif use_cache:
            predictor = self._predictor()
            past_key_values = PredictorCache(predictor, predictor.new_cursor(len(input_ids)))
            logits = self._prompt(past_key_values, input_ids, real, logits_to_keep)
        else:
            logits = self._whole(input_ids, real)
        logits = logits[:, -logits_to_keep:]
        loss = None
        if labels is not None:
            wanted = labels[:, 1:].masked_fill(~real[:, 1:], -100)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), wanted.flatten())
        if return_dict is False:
            return tuple(part for part in (loss, logits, past_key_values) if part is not None)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    def _predictor(self) -> CausalPredictor:
        # A new one each time: it may hold tensors computed from the weights, which may have changed.
        predictor = self.objective.eval().predictor()
        assert isinstance(predictor, CausalPredictor)
        return predictor

    def _whole(self, tokens: Tensor, real: Tensor) -> Tensor:
        rows, order, counts = _left_aligned(tokens, real)
        read = torch.arange(tokens.shape[1], device=tokens.device) < torch.from_numpy(counts).to(tokens.device)[:, None]
        nothing = torch.zeros_like(read)
        logits = self._predictor().logits(Batch(rows, nothing, read, None, (0, 0)))
        return _put_back(logits, order, real)

    def _prompt(self, cache: PredictorCache, tokens: Tensor, real: Tensor, keep: int) -> Tensor:
        """Reads a prompt; where only its last logits are needed, at the lower cost of `Predictor.start`."""
        if keep != 1 or not real[:, -1].all():
            return self._extended(cache, tokens, real)
        rows, _, counts = _left_aligned(tokens, real)
        cache.cursor, logits = cache.predictor.start(rows, counts)
        cache.add(real)
        return logits[:, None]

    def _extended(self, cache: PredictorCache, tokens: Tensor, real: Tensor) -> Tensor:
        rows, order, counts = _left_aligned(tokens, real)
        logits = cache.predictor.extend(cache.cursor, rows, counts)
        cache.add(real)
        return _put_back(logits, order, real)


def _left_aligned(tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor, np.ndarray]:
    """The real tokens of each row first and then zeros, (B, T); the columns that they were in, (B, T); and their
    number, (B,)."""
    order = (~real).long().argsort(dim=1, stable=True)
    return tokens.masked_fill(~real, 0).gather(1, order), order, real.sum(1).cpu().numpy()


def _put_back(logits: Tensor, order: Tensor, real: Tensor) -> Tensor:
    """Logits (B, T, V) in the columns of their tokens; zero at the others."""
    places = order[..., None].expand_as(logits)
    return torch.zeros_like(logits).scatter(1, places, logits).masked_fill(~real[..., None], 0)
