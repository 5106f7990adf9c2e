"""Observes one model: traces of sequences, which say what it predicts and holds after each token, on a plane and with a
reading of its states that are fitted once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from statewise.analysis.beliefs.least_squares import fit
from statewise.analysis.beliefs.vectors import beliefs
from statewise.data_types import Examples
from statewise.decoding import make_decoder
from statewise.decoding.base import Decoder, Request
from statewise.decoding.predictor import Drafter, GoalScorer, start_conditioned
from statewise.deploy.playground.knowledge import Knowledge, Weighted, knowledge
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.served import UNCONDITIONED, Served
from statewise.model.snapshots import snapshot
from statewise.reporting.figures import objective_colour
from statewise.runtime.devices import in_float64
from statewise.tasks.base import RunningText, World
from statewise.tasks.batches import collate

DIGITS = 5
"""Significant digits of numbers in JSON."""


@dataclass(frozen=True)
class Place:
    """One token of a sequence, and the model after it."""

    token: int
    log_probability: float | None
    """Log-probability of the token given those before it; None for the first one."""
    next: Weighted
    """The likeliest next tokens with their log-probabilities, likeliest first, then the other legal ones."""
    legal: list[int] | None
    """The legal next tokens; None: any, or unknown."""
    true_next: list[float] | None
    """True probabilities of the tokens in `next`; None: unknown."""
    state: tuple[float, float]
    """The belief state on the `plane` of `Observer.description`."""
    true: Weighted | None
    """The true state, or the belief that is exact: its coordinates by number, zeros left out; None: unknown."""
    read: Weighted | None
    """The true state as read off the belief state by least squares."""
    true_at: list[tuple[float, float]] | None = None
    """Where the exact belief lies on each of the `planes` of `Observer.description`; None: the task has none, or it is
    unknown."""
    read_at: list[tuple[float, float]] | None = None
    """Where the belief that is read off the state lies on each plane."""
    drafted: bool = False
    """Whether the token was drafted and accepted."""
    offered: int | None = None
    """Tokens that were drafted for the pass that this token ends; None if the token ends no pass."""


@dataclass(frozen=True)
class Trace:
    """A sequence as one model sees it."""

    model: str
    prompt: int
    """Number of tokens of the prompt."""
    given: int
    """Number of tokens that were given: the prompt and the tokens forced after it."""
    places: Sequence[Place]
    goal: Sequence[int]
    """Tokens that the completion was conditioned on; empty: none."""
    finish: str
    """`stop`: the model ended the sequence; `length`: the limit was reached."""
    passes: int | None
    """Number of passes for the completion with drafts; None if nothing was drafted."""
    texts: Mapping[int, str]
    """Texts of all tokens that occur."""
    scene: Mapping[str, Any]
    """What the page draws of the task, from `Task.scene`."""

    def as_json(self) -> dict[str, Any]:
        """JSON values with rounded numbers; without those fields of places that are None or false."""
        places = [
            {name: value for name, value in vars(place).items() if value is not None and value is not False}
            for place in self.places
        ]
        texts = {str(token): text for token, text in self.texts.items()}
        content: dict[str, Any] = rounded({**vars(self), "places": places, "texts": texts})
        return content


def rounded(value: Any) -> Any:
    """JSON values with numbers of at most `DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


Axes = Literal["principal", "probe"]
"""Axes of a plane of states: principal axes of the states, or of what a probe reads off them."""

POSITIONS, SEQUENCES = 8192, 512
"""Maximum numbers of held-out positions and sequences to which the plane and the reading are fitted."""
DOTS = 800
"""Maximum number of held-out states in a picture."""
CUTOFF = 1e-6
"""Fits leave out directions whose standard deviation is below this share of the largest, as rounding errors."""
LEAST_SHARE = 1 / 3
"""Where the principal axes have a smaller share of the variance, states on them form a cloud that shows nothing."""
DRAFT = 4
"""Tokens drafted for each pass by models that draft."""
OPENING = 24
"""Number of tokens of a held-out text that become the prompt."""
OFFERED = 12
"""Number of held-out prompts that a page offers."""
FEW, SOME = 64, 8
"""Largest vocabulary of which all next tokens are shown, and the number shown of larger ones."""
MOST_LEGAL = 64
"""With more legal tokens only the likeliest are in `Place.next`."""


@dataclass(frozen=True)
class TraceRequest:
    """The sequence to trace."""

    prompt: np.ndarray
    """(t,) tokens of the prompt."""
    forced: Sequence[int] = ()
    """Tokens that follow it in any case."""
    goal: np.ndarray | None = None
    """(g,) tokens that should follow the completion; None: none."""
    limit: int = 0
    """Maximum number of tokens of the completion, forced ones included."""
    top: int = 8
    """Number of likely next tokens at each place."""
    temperature: float = 0.0
    """Sampling temperature; 0: the likeliest token at every step."""
    seed: int = 0


class Observer:
    """Traces of one model. Only the thread that owns the model may call it."""

    def __init__(self, served: Served) -> None:
        self.served, self.task, self.predictor = served, served.task, served.predictor

    @property
    def top(self) -> int:
        """Next tokens of each place that a page shows: all where they are few."""
        V = len(self.task.vocab)
        return V if V <= FEW else SOME

    @property
    def temperature(self) -> float:
        """The temperature with which a page begins: 1 for texts, since the likeliest text repeats itself."""
        return float(isinstance(self.task, RunningText))

    # What is fitted once

    @cached_property
    def _examples(self) -> Examples:
        """Held-out sequences, or the beginning of one that is long."""
        some = self.task.held_out(SEQUENCES)
        longest = int(some.lengths.max())
        chosen = some[: max(1, POSITIONS // longest)]
        cut = min(longest, POSITIONS)
        rows = [row[: min(length, cut)] for row, length in zip(chosen.tokens, chosen.lengths.tolist())]
        prompts = chosen.prompt_lengths if chosen.prompt_lengths.ndim == 1 else np.zeros(len(rows), np.int64)
        return Examples.of(rows, [int(min(length, len(row))) for row, length in zip(rows, prompts)])

    @cached_property
    def _states(self) -> np.ndarray:
        """(m, D) float64: the states at all positions of the examples."""
        return beliefs(snapshot(self.served.model.objective), self._examples, "all").vectors.astype(np.float64)

    @cached_property
    def _knowledge(self) -> Knowledge | None:
        return knowledge(self.task, self._examples)

    @cached_property
    def _principal(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`_principal_axes` of the states."""
        return _principal_axes(self._states)

    @cached_property
    def _plane(self) -> tuple[Axes | None, np.ndarray]:
        """Which axes the page shows states on, and the shares of the variance along them (2,).

        The principal axes of the states; where these have less than `LEAST_SHARE` of the variance, those of what the
        probe, `_reading`, reads off the states; None where there is no such probe, or where the page shows the belief
        itself.
        """
        share = self._principal[2]
        if share.sum() >= LEAST_SHARE:
            return "principal", share
        if self._reading is None or (self._knowledge is not None and self._knowledge.colours is not None):
            return None, share
        return "probe", self._of_probe[2]

    @cached_property
    def _of_probe(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`_principal_axes` of what the probe reads off the states."""
        assert self._reading is not None
        return _principal_axes(self._reading[0](self._states))

    def _on_plane(self, states: np.ndarray) -> np.ndarray:
        """(m, 2): the places of states (m, D) on the axes that `_plane` names."""
        if self._plane[0] == "probe":
            assert self._reading is not None
            centre, axes, _ = self._of_probe
            return np.asarray((self._reading[0](states) - centre) @ axes)
        centre, axes, _ = self._principal
        return np.asarray((states - centre) @ axes)

    @cached_property
    def _reading(self) -> tuple[Any, float] | None:
        """The map from states to the true ones, and its quality on a quarter of the sequences, to which another one was
        not fitted."""
        known = self._knowledge
        if known is None:
            return None
        lengths = self._examples.lengths
        there = np.arange(self._examples.tokens.shape[1]) < lengths[:, None]
        true = known.states(self._examples)[there]
        rows = np.repeat(np.arange(len(lengths)), lengths)
        usable = np.isfinite(true).all(1)
        states, true, rows = self._states[usable], true[usable], rows[usable]
        tested = rows >= 0.75 * len(lengths)
        if tested.all() or not tested.any():
            return None
        part = fit(states[~tested], true[~tested], np.ones(int((~tested).sum())), CUTOFF)
        quality = known.quality(part(states[tested]), true[tested])
        if not math.isfinite(quality):  # the true states do not vary
            return None
        return fit(states, true, np.ones(len(true)), CUTOFF), quality

    # What a page needs to know of the model

    def description(self) -> dict[str, Any]:
        """The model as JSON values: what it can do, the plane of its states, without points if it has no `axes`, and
        held-out prompts."""
        served, task, known, reading = self.served, self.task, self._knowledge, self._reading
        axes, share = self._plane
        dots = min(DOTS, len(self._states)) if axes is not None else 0
        which = np.linspace(0, len(self._states) - 1, dots).round().astype(int)
        recipe = served.model.recipe
        labels = colours = None
        there = np.arange(self._examples.tokens.shape[1]) < self._examples.lengths[:, None]
        if known is not None and known.colours is not None:
            colours = known.colours[there][which].tolist()
        elif known is not None:
            true = known.states(self._examples)[there][which]
            labels = np.where(np.isfinite(true).all(1), np.nan_to_num(true).argmax(1), -1).tolist()
        described: dict[str, Any] = rounded(
            {
                "name": served.name,
                "task": recipe.task.name,
                "objective": recipe.objective.name,
                "colour": objective_colour(recipe.objective.name),
                "backbone": recipe.backbone.name,
                "view": task.view,
                "goal": isinstance(self.predictor, GoalScorer),
                "drafts": isinstance(self.predictor, Drafter),
                "top": self.top,
                "temperature": self.temperature,
                "context": served.context,
                "sequences": self.sequences,
                "plane": {
                    "axes": axes,
                    "points": self._on_plane(self._states[which]).tolist(),
                    "labels": labels,
                    "colours": colours,
                    "share": share.tolist(),
                },
                "states": known.names if known is not None else None,
                "reading": None
                if reading is None or known is None
                else {"measure": known.measure, "quality": reading[1]},
                "planes": known.pictures() if known is not None else [],
                "examples": [self.example(row) for row in range(min(OFFERED, len(self._examples)))],
            }
        )
        return described

    @property
    def sequences(self) -> str:
        """Digest of the task's kind and symbols, which is equal for models that read the same sequences."""
        return hashlib.sha256(repr((type(self.task).__qualname__, self.task.vocab.symbols)).encode()).hexdigest()[:12]

    def example(self, row: int) -> dict[str, Any]:
        """A held-out sequence as JSON values: `prompt` as text, `limit` the tokens that follow it, and their text."""
        tokens = self._examples.tokens[row, : self._examples.lengths[row]]
        prompt = self.prompt_length(row)
        return {
            "prompt": self.task.decode(tokens[:prompt]),
            "answer": self.task.decode(tokens[prompt:]) if prompt < len(tokens) else "",
            "limit": self.limit(row),
        }

    def limit(self, row: int) -> int:
        """Tokens that follow the prompt of a held-out sequence, at most."""
        rest = self.served.context - self.prompt_length(row)
        own = int(self._examples.lengths[row]) - self.prompt_length(row)
        return min(rest, 64) if self.task.end is not None else min(rest, own, 64)

    def prompt_length(self, row: int) -> int:
        """Tokens of a held-out sequence that make its prompt. Where sequences have none: all of them if the true state
        is known, so that it is watched as it forms, else the beginning."""
        own, length = int(self._examples.prompt_lengths[row]), int(self._examples.lengths[row])
        return own if own else length if isinstance(self.task, World) else min(OPENING, max(1, length // 2))

    def held_out(self, row: int) -> np.ndarray:
        """(t,) the prompt of a held-out sequence."""
        return self._examples.tokens[row, : self.prompt_length(row)]

    def rest(self, row: int) -> list[int]:
        """What follows the prompt in the held-out sequence."""
        tokens: list[int] = self._examples.tokens[row, self.prompt_length(row) : self._examples.lengths[row]].tolist()
        return tokens

    def __len__(self) -> int:
        """The number of held-out sequences."""
        return len(self._examples)

    # Traces

    def trace(self, wanted: TraceRequest) -> Generator[None, None, Trace]:
        """Yields after each pass of the model, so that other work can be done between them. Raises `Refusal`."""
        read, goal = self._conditioned(wanted)
        tokens = np.concatenate([read, np.array(wanted.forced, np.int64)])
        room = self.served.context - len(tokens) - (0 if goal is None else len(goal))
        if room < 0:
            raise Refusal(
                400,
                f"prompt, forced tokens and goal are {self.served.context - room} tokens, and the model's context "
                f"is {self.served.context}",
                param="prompt",
                code="context_length_exceeded",
            )
        limit = min(wanted.limit - len(wanted.forced), room)
        finish, made, passes = "length", [], 0
        drafts = isinstance(self.predictor, Drafter) and goal is None
        if len(wanted.forced) and wanted.forced[-1] == self.task.end:
            finish = "stop"
        elif limit > 0:
            closing = self.predictor.closing if goal is not None and isinstance(self.predictor, GoalScorer) else None
            request = Request([tokens], limit, self.task.end, goal, closing=closing)
            for step in self._decoder(wanted, drafts).steps(self.predictor, request):
                new = [token for token in step.tokens[0].tolist() if token >= 0]
                drafted, offered = int(step.drafted[0]), None if step.offered is None else int(step.offered[0])
                for place, token in enumerate(new):
                    last = place == len(new) - 1
                    made.append((token, place < drafted, offered if last and drafts else None))
                passes += 1
                yield
            if made and request.stop is not None and made[-1][0] == request.stop:
                finish = "stop"
                if request.stop == closing:
                    made.pop()
        yield
        whole = np.concatenate([tokens, np.array([token for token, _, _ in made], np.int64)])
        places = self._places(whole, len(read), goal, wanted.top)
        for place, (_, drafted, offered) in zip(range(len(tokens), len(whole)), made):
            places[place] = Place(**{**vars(places[place]), "drafted": drafted, "offered": offered})
        occurring = {
            *whole.tolist(),
            *(token for place in places for token, _ in place.next),
            *(() if goal is None else goal.tolist()),
        }
        return Trace(
            self.served.name,
            len(read),
            len(tokens),
            places,
            [] if goal is None else goal.tolist(),
            finish,
            passes if drafts and made else None,
            {token: self.served.token_text(token) for token in sorted(occurring)},
            self.task.scene(whole),
        )

    def _conditioned(self, wanted: TraceRequest) -> tuple[np.ndarray, np.ndarray | None]:
        """The tokens that the model reads, and the goal."""
        nothing = np.zeros(0, np.int64)
        try:
            read, goal = self.task.with_goal(wanted.prompt, nothing if wanted.goal is None else wanted.goal)
        except ValueError as error:
            raise Refusal(400, str(error), param="prompt") from None
        if goal is not None and not isinstance(self.predictor, GoalScorer):
            raise Refusal(400, UNCONDITIONED, param="goal", code="unsupported_parameter")
        if not len(read):
            raise Refusal(400, "the prompt is empty: it needs at least one symbol", param="prompt")
        return np.asarray(read, np.int64), goal

    def _decoder(self, wanted: TraceRequest, drafts: bool) -> Decoder:
        """Drafts do not change what is generated."""
        own: dict[str, Any] = {"temperature": wanted.temperature, "seed": wanted.seed} if wanted.temperature else {}
        if drafts:
            return make_decoder("speculative", draft=min(DRAFT, self.served.context - 1), **own)
        return make_decoder("sample" if wanted.temperature else "greedy", **own)

    def _places(self, tokens: np.ndarray, prompt: int, goal: np.ndarray | None, top: int) -> list[Place]:
        """The places of the sequence `tokens` (T,), whose first `prompt` tokens are read before a goal is known."""
        examples = Examples.of([tokens], [prompt])
        logp = self._log_probabilities(examples, goal)
        states = beliefs(snapshot(self.served.model.objective), examples, "all").vectors.astype(np.float64)
        on_plane = self._on_plane(states)
        known, reading = self._knowledge, self._reading
        true = self._true(examples)
        certain = None if true is None else np.isfinite(true).all(1)
        ahead = None if known is None else known.next_tokens(examples)
        read = None if reading is None else reading[0](states)
        true_at = None if known is None or true is None else known.places(np.nan_to_num(true))
        read_at = None if known is None or read is None else known.places(read)
        places = []
        for place in range(len(tokens)):
            legal = self._legal(tokens[: place + 1])
            following = self._following(logp[place], legal, top)
            may = ahead is not None and bool(np.isfinite(ahead[0, place]).all())
            sure = certain is not None and bool(certain[place])
            places.append(
                Place(
                    int(tokens[place]),
                    float(logp[place - 1, tokens[place]]) if place else None,
                    following,
                    legal,
                    [float(ahead[0, place, token]) for token, _ in following] if ahead is not None and may else None,
                    (float(on_plane[place, 0]), float(on_plane[place, 1])),
                    known.shown(true[place]) if known is not None and true is not None and sure else None,
                    known.shown(read[place]) if known is not None and read is not None else None,
                    true_at[place] if true_at is not None and sure else None,
                    None if read_at is None else read_at[place],
                )
            )
        return places

    def _log_probabilities(self, examples: Examples, goal: np.ndarray | None) -> np.ndarray:
        """(T, V) float64: the log-probabilities of the next token after each place."""
        prompt, V = int(examples.prompt_lengths[0]), self.predictor.vocabulary
        with torch.no_grad():
            if goal is None:
                logits = self.predictor.logits(collate(examples))[0]
            else:  # logits of the prompt are computed before the goal is known
                tokens = torch.from_numpy(examples.tokens)
                before = self.predictor.logits(collate(Examples.of([examples.tokens[0, :prompt]], [prompt])))[0]
                cursor, first = start_conditioned(self.predictor, tokens[:, :prompt], torch.from_numpy(goal))
                parts = [before[: prompt - 1, :V], first[:, :V]]
                if tokens.shape[1] > prompt:
                    parts.append(self.predictor.extend(cursor, tokens[:, prompt:])[0, :, :V])
                logits = torch.cat(parts)
            log_probabilities: np.ndarray = in_float64(logits[:, :V]).log_softmax(-1).cpu().numpy()
        return log_probabilities

    def _following(self, logp: np.ndarray, legal: list[int] | None, top: int) -> Weighted:
        """The `top` likeliest tokens, and all that are legal if they are few."""
        order = np.argsort(-logp, kind="stable")[:top].tolist()
        others = [token for token in legal or () if token not in order][:MOST_LEGAL]
        return [(token, float(logp[token])) for token in [*order, *others]]

    def _true(self, examples: Examples) -> np.ndarray | None:
        """(T, C): the true states, NaN where unknown; None where none is known."""
        if self._knowledge is None:
            return None
        try:
            return self._knowledge.states(examples)[0]
        except (ValueError, IndexError):  # the task knows the states of its own sequences, not of all that are typed
            return None

    def _legal(self, prefix: np.ndarray) -> list[int] | None:
        if not isinstance(self.task, World):
            return None
        try:
            legal: list[int] = self.task.legal(prefix).tolist()
        except (ValueError, IndexError):  # as above
            return None
        return None if len(legal) == len(self.task.vocab) else legal


def _principal_axes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The centre (D,) of points (m, D), their two first principal axes (D, 2), zeros where there is one, and the shares
    of the variance along them (2,)."""
    centre = points.mean(0)
    apart = points - centre
    values, axes = np.linalg.eigh(apart.T @ apart)
    axes = axes[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
    if axes.shape[1] < 2:
        axes = np.pad(axes, ((0, 0), (0, 1)))
    share = np.pad(values[::-1][:2], (0, max(0, 2 - len(values)))) / max(values.sum(), 1e-300)
    return centre, axes, share
