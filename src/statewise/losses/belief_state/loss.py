"""The loss of the Belief State Transformer (Hu et al. 2025): every prefix with every later suffix predicts the token
after the prefix and the token before the suffix.

Its states come from two causal models: F reads each prefix from the left, B each suffix from the right.
`BeliefStatePair` takes any two. This file needs NumPy besides PyTorch: which pairs count is worked out on the host.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from statewise.backbones.nn.layers import Init, check_init
from statewise.backbones.nn.masks import mirrored_columns, positions_within_documents
from statewise.batch import Batch, Loss, Part
from statewise.losses.belief_state.pair_loss import pair_loss
from statewise.losses.belief_state.pairs import Layout, Pairs, Sampling, closes, expected_weights, layout
from statewise.losses.belief_state.text_head import GatedHead, MixtureHead, MLPHead, TextHead
from statewise.losses.sequence_loss import Items, LossOutput, check_sizes, make_batch, result, settings, share_of
from statewise.losses.targets import answers, to_float32
from statewise.runtime.bounds import bounded, unset
from statewise.runtime.messages import short


@dataclass(frozen=True)
class BeliefStateConfig:
    """Fields of `objective: belief_state`."""

    next_weight: float = 1.0
    """Factor of the next-token loss. The paper adds both losses; its authors' code halves the sum."""
    previous_weight: float = 1.0
    """Factor of the previous-token loss. 0, an ablation, builds a head for next tokens only."""
    backward: bool = True
    """Whether there is a backward encoder. False, an ablation, predicts from the prefix only."""
    pairs: Literal["answer", "any_prefix", "all"] = "answer"
    """Which previous tokens are targets if sequences have prompts. `answer`: those of the answer, from prefixes that
    contain the whole prompt (the authors' code); `any_prefix`: those of the answer, from prefixes of any length;
    `all`: those of the prompt as well. A prompt of one token counts as none. docs/results/path-star.md compares
    them."""
    min_gap: Literal[1, 2] = 2
    """Minimum j - i of a prefix x_1 .. x_i and a suffix x_j .. x_T. 1 adds the pairs with nothing in between, for
    which the target of both outputs is a special symbol."""
    share: float = 1.0
    """Share of the prefixes, drawn at each step, whose pairs are taken. Pairs with an empty prefix or suffix are always
    taken; the others weigh 1 / share, so that losses keep their expected value. Saves time with the heads `mlp` and
    `gated`, hardly with `mixture`."""
    max_gap: int | None = None
    """Most j - i of pairs with both sides non-empty; null: any."""
    gap_exponent: float = 0.0
    """Such a pair weighs (j - i - 1) to the power of minus this: above 0, short gaps count more."""
    head: Literal["mixture", "mlp", "gated"] = "mixture"
    """The text head: a mixture of products of experts, whose loss over all pairs takes a small part of the others' time
    (not the paper's), a three-layer MLP (the paper), or a gated residual one (its authors' code)."""
    experts: int = 8
    """Experts of each output of the head `mixture`."""
    expert_width: int | None = 128
    """Hidden width of its experts, which share a vocabulary matrix, if the vocabulary is larger than this. In a smaller
    one, and with null in every one, each expert maps states straight to tokens."""
    head_width: int = 512
    """Width inside the heads `mlp` and `gated`."""
    init: Init | None = None
    """Initialisation of the text head: `gpt2` (std 0.02), `fan_in` (1 / sqrt(inputs)) or a std; null: the backbone's if
    that is `fan_in` or a number, otherwise `gpt2` for `gated`, and PyTorch's default, uniform in +-1 / sqrt(inputs),
    for `mlp` and `mixture`."""

    def __post_init__(self) -> None:
        bounded(self, "next_weight", prefix="objective.", above=0)
        bounded(self, "previous_weight", prefix="objective.", at_least=0)
        bounded(self, "share", prefix="objective.", above=0, at_most=1)
        bounded(self, "head_width", "experts", "expert_width", prefix="objective.", at_least=1)
        bounded(self, "max_gap", prefix="objective.", at_least=2)
        bounded(self, "gap_exponent", prefix="objective.", at_least=0)
        check_init(self, "objective.", "gpt2", "fan_in", optional=True)
        if self.head == "mixture":
            unset(
                self,
                "head_width",
                prefix="objective.",
                reason="is for the heads mlp and gated: set head to one of them, or set experts",
            )
        else:
            # Runs from before the mixture became the default have stored expert_width null with the other heads.
            names = ("experts",) if self.expert_width is None else ("experts", "expert_width")
            unset(self, *names, prefix="objective.", reason=f"is for the head mixture, not for {self.head}")

    @property
    def sampling(self) -> Sampling:
        """Which pairs are taken, and what they weigh."""
        return Sampling(self.share, None if self.max_gap is None else self.max_gap - 1, self.gap_exponent)


def make_head(
    config: BeliefStateConfig, width: int, vocabulary: int, init: Init | None = None, norm_eps: float = 1e-5
) -> TextHead:
    """The text head for states (..., `width`) of both models and a vocabulary of `vocabulary` tokens; with `min_gap` 1
    it has one output more. `init` is for a config without one."""
    every: dict[str, Any] = {"outputs": 2 if config.previous_weight else 1, "reads_suffix": config.backward}
    every["init"], outputs = config.init or init, vocabulary + (config.min_gap == 1)
    if config.head == "mixture":
        shared = config.expert_width is not None and config.expert_width < outputs
        return MixtureHead(width, config.experts, config.expert_width if shared else None, outputs, **every)
    if config.head == "mlp":
        return MLPHead(width, config.head_width, outputs, **every)
    return GatedHead(width, config.head_width, outputs, norm_eps=norm_eps, **every)


def pairs_of(config: BeliefStateConfig, batch: Batch) -> Pairs:
    """The pairs of a batch, under the convention for prompts."""
    group = batch.document_ids
    answer, real = answers(batch, group), group > 0
    return Pairs(
        tokens=batch.tokens,
        group=group,
        next_targets=answer,
        previous_targets=real if config.pairs == "all" else answer,
        prefixes=answer if config.pairs == "answer" else real,
    )


def plan(config: BeliefStateConfig, batch: Batch, vocabulary: int) -> Layout:
    """Where the pairs of a batch are. Draws from torch's generator of the CPU if `share` is below 1."""
    return layout(pairs_of(config, batch), config.sampling, vocabulary if config.min_gap == 1 else None)


def counts(config: BeliefStateConfig, batch: Batch) -> dict[str, Tensor]:
    """The number of counted pairs of each output; their expected total weight if pairs are weighted."""
    pairs = pairs_of(config, batch)
    found = dict(zip(("next_token", "previous_token"), expected_weights(pairs, config.sampling)))
    if config.min_gap == 1:
        for name, masks in zip(found, (pairs.next_targets, pairs.previous_targets & pairs.prefixes)):
            found[name] = found[name] + masks.sum() + (masks & closes(pairs.group)).sum()
    return found if config.previous_weight else {"next_token": found["next_token"]}


def loss(
    config: BeliefStateConfig,
    head: TextHead,
    prefix: Tensor,
    suffix: Tensor,
    plan: Layout,
    counts: Mapping[str, Tensor],
) -> Loss:
    """Parts `next_token` and `previous_token`, in nats per pair. `prefix` and `suffix` (1 + B T, D): the states of the
    empty prefix or suffix, then those at each position of the batch."""
    weights = {"next_token": config.next_weight, "previous_token": config.previous_weight}
    parts = {name: weight for name, weight in weights.items() if weight}
    factors = torch.stack([weight / counts[name].clamp(min=1) for name, weight in parts.items()])
    totals = pair_loss(
        head, prefix[plan.prefix_rows], suffix[plan.suffix_rows], plan, factors.to(to_float32(prefix).dtype)
    )
    # Cloned: results of a sharded module must not be views.
    return Loss({name: Part(totals[place].clone(), counts[name], parts[name]) for place, name in enumerate(parts)})


def belief_state_loss(
    prefix: Tensor,
    suffix: Tensor,
    tokens: Tensor,
    *,
    text_head: TextHead,
    empty_prefix: Tensor,
    empty_suffix: Tensor,
    documents: Tensor | None = None,
    position_ids: Tensor | None = None,
    scored: Tensor | None = None,
    labels: Tensor | None = None,
    num_items: Items | None = None,
    **config: Any,
) -> LossOutput:
    """The loss of all pairs of states: `prefix` (B, T, D) at t has read the document's tokens up to t, `suffix`
    (B, T, D) those from its end back to t; `empty_prefix` and `empty_suffix` (D,) have read none.

    `text_head` reads them, as `make_head` makes it; `config` are the fields of `BeliefStateConfig` that say which pairs
    count, and how much. The other arguments are those of `SequenceLoss.forward`. Parts `next_token` and
    `previous_token`, in nats per pair. Raises `ValueError` if shapes do not fit.
    """
    own: BeliefStateConfig = settings(BeliefStateConfig, **config)
    batch = make_batch(prefix, tokens, documents, position_ids, scored, labels)
    if suffix.shape != prefix.shape:
        raise ValueError(f"suffix has the shape {tuple(suffix.shape)}, and prefix {tuple(prefix.shape)}")
    for name, state in {"empty_prefix": empty_prefix, "empty_suffix": empty_suffix}.items():
        if state.shape != prefix.shape[2:]:
            raise ValueError(f"{name} has the shape {tuple(state.shape)}; it must be ({prefix.shape[2]},)")
    here = plan(own, batch, text_head.vocabulary - (own.min_gap == 1))
    shared = share_of(counts(own, batch), num_items, batch.scored)
    return result(loss(own, text_head, joined(empty_prefix, prefix), joined(empty_suffix, suffix), here, shared))


class BeliefStatePair(nn.Module):
    """Two causal models of any kind that learn together: from a prefix read by the first and a suffix read backwards by
    the second, `head` predicts the tokens next to the gap between them.

    Each is called with token ids (B, T), and with `position_ids` where documents share a row. It returns hidden states
    (B, T, D), or an object with them as `last_hidden_state`; of a model of transformers with a vocabulary head its
    `base_model` is called. A model that reads documents in one row as one text must be given rows of one document.
    """

    def __init__(
        self,
        forward_encoder: nn.Module,
        backward_encoder: nn.Module,
        *,
        width: int | None = None,
        vocabulary: int | None = None,
        begin: int | None = None,
        end: int | None = None,
        **config: Any,
    ) -> None:
        """`width` is D and `vocabulary` V, for models with a `config` of transformers by default what it says. `begin`
        and `end` are the ids of tokens that are read in place of an empty prefix and an empty suffix; without them
        their states are learned. `config` are fields of `BeliefStateConfig`. Raises `ValueError` if they do not fit."""
        super().__init__()
        self.config: BeliefStateConfig = settings(BeliefStateConfig, **config)
        if not self.config.backward:
            raise ValueError("backward must be true: a pair has two models")
        self.forward_encoder, self.backward_encoder = forward_encoder, backward_encoder
        said = getattr(forward_encoder, "config", None)
        width = getattr(said, "hidden_size", None) if width is None else width
        vocabulary = getattr(said, "vocab_size", None) if vocabulary is None else vocabulary
        if width is None or vocabulary is None:
            raise ValueError("width and vocabulary must be given: forward_encoder has no config of transformers")
        check_sizes(width=width, vocabulary=vocabulary)
        for name, token in {"begin": begin, "end": end}.items():
            if token is not None and (isinstance(token, bool) or not isinstance(token, int) or token < 0):
                raise ValueError(f"{name} must be a token id, not {short(token)}")
        self.vocabulary, self.begin, self.end = vocabulary, begin, end
        self.head = make_head(self.config, width, vocabulary)
        self.empty_prefix = nn.Parameter(torch.randn(width)) if begin is None else None
        self.empty_suffix = nn.Parameter(torch.randn(width)) if end is None else None

    def forward(
        self,
        tokens: Tensor,
        *,
        documents: Tensor | None = None,
        position_ids: Tensor | None = None,
        scored: Tensor | None = None,
        labels: Tensor | None = None,
        num_items: Items | None = None,
    ) -> LossOutput:
        """The loss of `tokens` (B, T), padded on the right; the arguments are those of `SequenceLoss.forward`. Raises
        `ValueError` if shapes do not fit."""
        batch = make_batch(tokens[..., None], tokens, documents, position_ids, scored, labels)
        if (batch.real[:, 1:] & ~batch.real[:, :-1]).any():
            raise ValueError("documents must be padded on the right")
        prefix = states_of(self.forward_encoder, batch.tokens, batch.documents)
        suffix = read_backwards(self.backward_encoder, batch)
        prefix = joined(self._empty(self.forward_encoder, self.begin, self.empty_prefix), prefix)
        suffix = joined(self._empty(self.backward_encoder, self.end, self.empty_suffix), suffix)
        shared = share_of(counts(self.config, batch), num_items, batch.scored)
        return result(loss(self.config, self.head, prefix, suffix, plan(self.config, batch, self.vocabulary), shared))

    def terms(
        self,
        tokens: Tensor,
        *,
        documents: Tensor | None = None,
        position_ids: Tensor | None = None,
        scored: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """See `SequenceLoss.terms`: the number of pairs of each part."""
        batch = make_batch(tokens[..., None], tokens, documents, position_ids, scored, labels)
        return counts(self.config, batch)

    def _empty(self, encoder: nn.Module, token: int | None, learned: nn.Parameter | None) -> Tensor:
        """(D,): the state after reading nothing."""
        if learned is not None:
            return learned
        assert token is not None  # one of the two is given
        device = next(self.parameters()).device
        return states_of(encoder, torch.full((1, 1), token, device=device), None)[0, 0]


def joined(empty: Tensor, states: Tensor) -> Tensor:
    """(1 + B T, D): the state `empty` (D,), then `states` (B, T, D)."""
    return torch.cat((empty[None].to(states.dtype), states.flatten(0, 1)))


def states_of(encoder: Callable[..., Any], tokens: Tensor, documents: Tensor | None) -> Tensor:
    """The hidden states (B, T, D) of a model that `BeliefStatePair` describes. `documents` (B, T): those of packed
    rows. Raises `ValueError` if it returns something else."""
    given: dict[str, Any] = {}
    if documents is not None and (documents > 1).any():
        given["position_ids"] = positions_within_documents(documents)
    model = getattr(encoder, "base_model", encoder)
    if "use_cache" in inspect.signature(getattr(model, "forward", model)).parameters:
        given["use_cache"] = False  # with a cache transformers reads documents of a row as one text
    found = model(tokens, **given)
    found = getattr(found, "last_hidden_state", found)
    if not isinstance(found, Tensor) or found.ndim != 3 or found.shape[:2] != tokens.shape:
        kind = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"type {type(found).__name__}"
        raise ValueError(
            f"the encoder must return hidden states (B, T, D) of tokens {tuple(tokens.shape)}, and returned the {kind}"
        )
    return found


def read_backwards(encoder: Callable[..., Any], batch: Batch) -> Tensor:
    """The hidden states (B, T, D) of a causal model after the tokens from the end of a document back to each position,
    that position included."""
    mirror = mirrored_columns(batch.real)
    documents = None if batch.documents is None else batch.documents.gather(1, mirror)
    states = states_of(encoder, batch.tokens.gather(1, mirror), documents)
    return states.gather(1, mirror[:, :, None].expand_as(states))
