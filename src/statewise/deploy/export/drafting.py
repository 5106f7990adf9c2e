"""Speculative decoding inside transformers' `generate`: the model's own guesses, and one pass that checks them.

What is chosen at a place is what plain `generate` chooses there: the largest score, or for samples the largest ratio of
probability and exponential noise, by which `torch.multinomial` draws one token. The noise of a place is drawn once and
shared by draft and check, so drafts are accepted often and never change what is chosen: the rule of
`decoding.speculative`. The places of a pass are chosen together where logits processors read nothing but the scores and
a text ends by length or an end token alone. Otherwise they are chosen one after the other, because processors and
stopping criteria of transformers may depend on the whole text and on what they were asked before.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.cache_utils import QuantizedCache
from transformers.generation import GenerateDecoderOnlyOutput, GenerationMode, LogitsProcessorList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from statewise.backbones.hf.key_values import CACHE
from statewise.config.recipe import fill
from statewise.decoding.drafts import LENGTHS, DraftLength, FixedLength, MeasuredLength
from statewise.decoding.predictor import Drafter, require
from statewise.deploy.export.folder_files import OURS
from statewise.deploy.export.registered import PART, StatewiseForCausalLM
from statewise.losses.next_latent import LatentDynamics, NextLatentConfig
from statewise.runtime.extras import failing_as
from statewise.runtime.json_files import ANYTHING, Shape, read_json

DRAFTS = 4
BY_PLACE = {
    *("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper"),
    *("EpsilonLogitsWarper", "EtaLogitsWarper", "SuppressTokensLogitsProcessor", "LogitNormalization"),
}
"""Logits processors of transformers that read the scores of a place alone, not the text."""
REPEATABLE = {
    *BY_PLACE,
    *("RepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor", "NoBadWordsLogitsProcessor"),
    *("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "SequenceBiasLogitsProcessor"),
}
"""Logits processors of transformers that keep nothing between calls, so that drafts may be chosen with them, too."""


@torch.no_grad()
def draft(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    streamer: Any = None,
    drafts: int | Literal["auto"] = DRAFTS,
    **model_kwargs: Any,
) -> Any:
    """What `generate` decodes, in fewer passes of the model: `model.generate(**inputs,
    custom_generate=statewise.hf.draft)`. `drafts`: the most tokens drafted in each cycle (Leviathan et al. 2023);
    `auto`: the number that is measured to be fastest with this model and so many rows, also none.

    The latent dynamics of the model draft: those attached by `statewise.hf.loss_for` or `statewise.hf.with_loss`, or
    those in the folder of an exported model; in an exported model of our own class, whatever can. Greedy text and the
    distribution of samples are those of plain `generate`; for a seed of torch so are the samples. In floating-point
    numbers a pass over several tokens may round differently, so the text may differ where two tokens are almost equally
    good. All rows of a batch keep as many drafts as the row with the fewest.

    Called by `generate`, for `input_ids` (B, T); returns (B, T'), or with `return_dict_in_generate` a
    `GenerateDecoderOnlyOutput`. `generate` does not hand on a `streamer`: give `functools.partial(draft,
    streamer=streamer)`. Nor a `tokenizer`, so give `StopStringCriteria` in place of `stop_strings`.

    Raises `ValueError` for models that cannot draft, for caches that cannot be cut back by single tokens, such as
    recurrent states, and for settings that it cannot follow.
    """
    config, returned = generation_config, generation_config.return_dict_in_generate
    _check(model, config, model_kwargs, drafts)
    kept = _Kept(config, logits_processor, stopping_criteria, len(input_ids))
    source, length = _source(model), _length(model, len(input_ids), drafts)
    began, wanted, most = 0.0, 0, -1
    drafted: list[Tensor] = []
    with source.watching():
        outputs = model._prefill(input_ids, config, model_kwargs)
    cache = _croppable(model, outputs)
    while True:
        tokens = kept.next(input_ids, outputs.logits[:, -len(drafted) - 1 :], drafted)
        input_ids = torch.cat((input_ids, tokens), dim=1)
        if streamer is not None:
            for token in tokens.cpu().unbind(1):
                streamer.put(token)
        accepted = tokens.shape[1] - 1
        rejected = len(drafted) - accepted
        cache.crop(-rejected)
        model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs, num_new_tokens=accepted + 1)
        if most >= 0:
            length.record(wanted, [most], [accepted], time.perf_counter() - began)
        if kept.finished:
            break
        began, wanted = time.perf_counter(), length.next()
        most = min(wanted, config.max_length - input_ids.shape[1] - 1)
        drafted = kept.drafted(source.guesses(cache, rejected, input_ids[:, -1]), input_ids, most)
        with source.watching():
            outputs = _read(model, input_ids, drafted, outputs, model_kwargs)
    if streamer is not None:
        streamer.end()
    if not returned:
        return input_ids
    return GenerateDecoderOnlyOutput(
        sequences=input_ids, scores=tuple(kept.scores) or None, logits=tuple(kept.logits) or None, **{CACHE: cache}
    )


class _Source(ABC):
    """What drafts."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within this context the model reads: the prompt, then the tokens of each cycle."""
        yield

    @abstractmethod
    def guesses(self, cache: Any, rejected: int, token: Tensor) -> Generator[Tensor, Tensor, None]:
        """See `Drafter.guesses`, for what `cache` holds: all that was read but the last `rejected` tokens."""


class _Dynamics(_Source):
    """Latent dynamics and the model's own head take turns, from what the head read last."""

    def __init__(self, model: Any, dynamics: nn.Module) -> None:
        self.embed, self.head, self.dynamics = model.get_input_embeddings(), model.get_output_embeddings(), dynamics
        self.readout = torch.empty(0)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See `_Source`."""

        def see(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            self.readout = given[0]

        hook = self.head.register_forward_pre_hook(see)
        try:
            yield
        finally:
            hook.remove()

    def guesses(self, cache: Any, rejected: int, token: Tensor) -> Generator[Tensor, Tensor, None]:
        """See `_Source`."""
        weight, table, state = (
            next(self.dynamics.parameters()),
            next(self.embed.parameters()),
            self.readout[:, -1 - rejected],
        )
        while True:
            state = self.dynamics(state.to(weight), self.embed(token.to(table.device)).to(weight))
            token = yield self.head(state.to(self.readout))


class _Predictor(_Source):
    """A model of ours that can draft."""

    def guesses(self, cache: Any, rejected: int, token: Tensor) -> Generator[Tensor, Tensor, None]:
        """See `_Source`."""
        return require(cache.predictor, Drafter).guesses(cache.cursor, token)


MEASURED: WeakKeyDictionary[nn.Module, dict[int, MeasuredLength]] = WeakKeyDictionary()
"""Draft lengths of models, by number of rows: later calls go on with what was measured."""


def _length(model: nn.Module, rows: int, drafts: int | Literal["auto"]) -> DraftLength:
    if drafts != "auto":
        return FixedLength(drafts)
    return MEASURED.setdefault(model, {}).setdefault(rows, MeasuredLength(LENGTHS[-1]))


BESIDE: WeakKeyDictionary[nn.Module, LatentDynamics] = WeakKeyDictionary()
"""Dynamics read from the folders of models."""
EXPORTED: Shape = {"recipe": {"objective": PART, "backbone": PART, ...: ANYTHING}, ...: ANYTHING}


def _beside(model: Any) -> LatentDynamics | None:
    """The latent dynamics that `statewise export` wrote beside a plain decoder, if `model` was loaded from such a
    folder. Raises `ValueError` if they do not fit it."""
    if model in BESIDE:
        return BESIDE[model]
    folder = Path(model.name_or_path or "")
    path = folder / "extra" / "dynamics.safetensors"
    if not (path.is_file() and (folder / OURS).is_file()):
        return None
    recipe = read_json(folder / OURS, EXPORTED)["recipe"]
    fields, backbone = dict(recipe["objective"]), recipe["backbone"]
    if fields.pop("name") != "next_latent" or backbone.get("standardised_state"):
        return None  # those of standardised states need the moments, which the folder does not have
    width, config = model.get_input_embeddings().embedding_dim, fill(NextLatentConfig, fields, str(folder / OURS))
    with torch.random.fork_rng(devices=[]):  # samples of a seed do not depend on whether this is the first call
        dynamics = LatentDynamics(
            width,
            width,
            config.hidden_width(width),
            config.dynamics_norm,
            init="gpt2",
            norm_eps=float(backbone.get("norm_eps", 1e-5)),
        )
    with failing_as(f"{path}: not the dynamics of this model"):
        dynamics.load_state_dict(load_file(path))
    BESIDE[model] = dynamics.to(model.device).eval()
    return BESIDE[model]


def _source(model: Any) -> _Source:
    dynamics = getattr(getattr(model, "statewise_loss", None), "dynamics", None) or _beside(model)
    if isinstance(dynamics, nn.Module):
        return _Dynamics(model, dynamics)
    if isinstance(model, StatewiseForCausalLM) and model.objective.predictor().capability(Drafter) is not None:
        return _Predictor()
    raise ValueError(
        f"{type(model).__name__} has nothing to draft with: tune a model with statewise.hf.loss_for(model, "
        "'next_latent'), load a tuned one with statewise.hf.with_loss, or call generate without drafts"
    )


def _check(model: Any, config: Any, given: dict[str, Any], drafts: Any) -> None:
    """Raises `ValueError` for settings that drafts cannot follow."""
    if drafts != "auto" and (isinstance(drafts, bool) or not isinstance(drafts, int) or drafts < 0):
        raise ValueError(f"drafts must be auto or a whole number, at least 0, not {drafts!r}")
    mode = config.get_generation_mode()
    if model.config.is_encoder_decoder or mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ValueError(
            "drafts are for greedy decoding and sampling by a decoder alone, and these settings ask for "
            f"{mode.value}: leave them out, or call generate without drafts"
        )
    if not given.get("use_cache"):
        raise ValueError("drafts need a cache: leave out use_cache=False")
    asked = config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states)
    if asked:
        raise ValueError(
            "with drafts, output_attentions and output_hidden_states are not collected: run the model on the text"
        )


def _croppable(model: Any, outputs: Any) -> Any:
    """The cache, ready to be cut back. Raises `ValueError` if it cannot be."""
    cache = outputs.get(CACHE)
    if cache is None or model._is_stateful or isinstance(cache, QuantizedCache) or not cache.is_croppable:
        raise ValueError(
            f"the cache of {type(model).__name__}, {type(cache).__name__}, cannot forget single tokens, as is needed "
            "when drafts are rejected (it is recurrent, quantised or of fixed size): call generate without drafts"
        )
    cache.activate_past_recording()
    return cache


class _Kept:
    """Chooses the tokens of each cycle, at places that are counted from the first that is not chosen yet, and keeps
    what `generate` returns of them."""

    def __init__(self, config: Any, processors: Any, criteria: Any, rows: int) -> None:
        """`processors` and `criteria` are those that `generate` made from `config`, for so many rows."""
        self.config, self.processors, self.criteria = config, processors, criteria
        self.repeatable = LogitsProcessorList(one for one in processors if type(one).__name__ in REPEATABLE)
        self.ends = any(hasattr(one, "eos_token_id") for one in criteria)
        self.pad = int(config._pad_token_tensor) if self.ends else 0
        self.at_once = all(type(one).__name__ in BY_PLACE for one in processors) and all(
            type(one) is EosTokenCriteria or (type(one) is MaxLengthCriteria and one.max_length == config.max_length)
            for one in criteria
        )
        self.end_tokens = {int(token) for one in criteria for token in getattr(one, "eos_token_id", ())}
        self.going = [True] * rows
        self.noise: deque[Tensor] = deque()  # (B, V) of each place, drawn in their order as plain `generate` draws
        self.scores: list[Tensor] = []
        self.logits: list[Tensor] = []

    @property
    def finished(self) -> bool:
        """Whether every row has ended."""
        return not any(self.going)

    def next(self, text: Tensor, logits: Tensor, drafted: list[Tensor]) -> Tensor:
        """The tokens (B, n) that follow `text` (B, T), from the logits (B, 1 + m, V) at its end and after each of the m
        tokens `drafted`: up to the first at which a row that goes on differs from its draft, or all rows have ended."""
        tokens = (self._together if self.at_once else self._in_turn)(text, logits, drafted)
        for _ in range(min(tokens.shape[1], len(self.noise))):
            self.noise.popleft()
        return tokens

    def drafted(self, guesses: Generator[Tensor, Tensor, None], text: Tensor, most: int) -> list[Tensor]:
        """At most `most` tokens (B,) that may follow `text` (B, T)."""
        drafted: list[Tensor] = []
        for place in range(most):
            try:
                logits = guesses.send(drafted[-1]) if drafted else next(guesses)
            except StopIteration:
                break
            scores = self.repeatable(text, logits.to(dtype=torch.float32, device=text.device))
            drafted.append(self._choose(scores[:, None], place)[:, 0])
            if not self.at_once:
                text = torch.cat((text, drafted[-1][:, None]), dim=1)
        guesses.close()
        return drafted

    def _together(self, text: Tensor, logits: Tensor, drafted: list[Tensor]) -> Tensor:
        """See `next`: all places chosen at once, and one wait for the device."""
        own = logits.to(copy=True, dtype=torch.float32, device=text.device)
        scores = self.processors(text, own.flatten(0, 1)).view_as(own) if self.processors else own
        chosen = self._choose(scores, 0)
        columns = torch.cat((chosen.T, *(token[None] for token in drafted))).tolist()
        taken: list[list[int]] = []
        for place, guessed in enumerate([*columns[chosen.shape[1] :], None]):
            taken.append([token if goes else self.pad for token, goes in zip(columns[place], self.going)])
            self._keep(own[:, place], scores[:, place])
            over = text.shape[1] + len(taken) >= self.config.max_length
            self.going = [goes and not over and one not in self.end_tokens for one, goes in zip(taken[-1], self.going)]
            if self.finished or guessed is None:
                break
            if any(goes and one != other for one, other, goes in zip(taken[-1], guessed, self.going)):
                break
        return torch.tensor(taken, device=text.device).T

    def _in_turn(self, text: Tensor, logits: Tensor, drafted: list[Tensor]) -> Tensor:
        before = text.shape[1]
        going = torch.tensor(self.going, device=text.device)
        for place in range(len(drafted) + 1):
            own = logits[:, place].to(copy=True, dtype=torch.float32, device=text.device)
            scores = self.processors(text, own)
            token = self._choose(scores[:, None], place)[:, 0]
            if self.ends:
                token = torch.where(going, token, self.pad)
            text = torch.cat((text, token[:, None]), dim=1)
            self._keep(own, scores)
            going &= ~self.criteria(text, tuple(self.scores) or None)
            if place == len(drafted) or not going.any() or bool((going & (token != drafted[place])).any()):
                break
        self.going = going.tolist()
        return text[:, before:]

    def _choose(self, scores: Tensor, place: int) -> Tensor:
        """The tokens (B, n) at `place` and after it, by their scores (B, n, V)."""
        if not self.config.do_sample:
            return scores.argmax(-1)
        probabilities, end = scores.softmax(-1), place + scores.shape[1]
        while len(self.noise) < end:
            self.noise.append(torch.empty_like(probabilities[:, 0].contiguous()).exponential_())
        return (probabilities / torch.stack([self.noise[one] for one in range(place, end)], dim=1)).argmax(-1)

    def _keep(self, logits: Tensor, scores: Tensor) -> None:
        """Keeps logits and scores (B, V) of a place, if `generate` is to return them."""
        if self.config.return_dict_in_generate and self.config.output_scores:
            self.scores.append(scores)
        if self.config.return_dict_in_generate and self.config.output_logits:
            self.logits.append(logits)


def _read(model: Any, text: Tensor, drafted: list[Tensor], before: Any, given: dict[str, Any]) -> Any:
    """The outputs of the model for the last token of `text` (B, T) and the drafted ones after it."""
    if drafted:
        text = torch.cat((text, torch.stack(drafted, dim=1)), dim=1)
        given = model._update_model_kwargs_for_generation(before, dict(given), num_new_tokens=len(drafted))
    inputs = model.prepare_inputs_for_generation(text, next_sequence_length=len(drafted) + 1, **given)
    if "logits_to_keep" in inputs:
        inputs["logits_to_keep"] = len(drafted) + 1
    return model(**inputs, return_dict=True)
