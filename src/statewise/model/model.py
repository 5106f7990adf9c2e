"""A model with its task, trained or not, and what it can do; models made from recipes and loaded from runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from statewise.analysis import ANALYSES, make_analysis
from statewise.analysis.base import Analysis, Findings, Origin, report_name
from statewise.analysis.beliefs.vectors import Beliefs, Positions, Side, beliefs
from statewise.batch import Batch, Hidden
from statewise.config.recipe import Recipe
from statewise.data_types import Completion, Evaluation, Examples
from statewise.decoding import make_decoder, make_search
from statewise.decoding.base import Decoder, Request, Search
from statewise.decoding.carried_state import StateProtocol, state_reading
from statewise.decoding.predictor import Carrier, Predictor, closing_symbol, require
from statewise.decoding.reverse import Reverse
from statewise.evaluation.evaluate import ALONE, Losses, Share, choose_examples, evaluate
from statewise.model.building import inference, make_objective, make_task, parts_of_run
from statewise.model.recipes import explaining_missing_capability
from statewise.model.snapshots import snapshot, subject
from statewise.objectives import activations
from statewise.objectives.base import Objective
from statewise.run import CONVERTED, Checkpoint, Run
from statewise.runtime.messages import check_texts
from statewise.tasks.base import Numbered, Task
from statewise.tasks.batches import collate, rows_at_once
from statewise.training.checkpoint import fingerprint, load_weights, save
from statewise.training.machine import choose_device, describe

PROMPTS = 64
"""Maximum number of prompts completed in one pass."""

Made = TypeVar("Made")


class Model:
    """A model with its task, trained or not. `statewise.load` and `statewise.build` make one.

    `objective` is the network with its loss, `run` the run directory that it was loaded from, None for a new model."""

    def __init__(self, recipe: Recipe, task: Task, objective: Objective, run: Run | None = None) -> None:
        self.recipe, self.task, self.objective, self.run = recipe, task, objective, run
        self.checkpoint: Checkpoint | None = None
        """The checkpoint that the weights are from, if any."""
        self._patches = 0
        """Number of open `patch` contexts."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.objective.parameters()).device

    def fingerprint(self) -> str:
        """Hexadecimal digest of the model's weights."""
        return fingerprint(self.objective)

    def predictor(self) -> Predictor:
        """The model for inference: token ids in, logits and belief states out."""
        return self.objective.checked_predictor()

    @property
    def precision(self) -> str:
        """The precision that the model was trained in, and in which `asking` computes."""
        return "fp32" if self.run is None else self.run.precision()

    @contextmanager
    def asking(self) -> Iterator[Predictor]:
        """The predictor, for functions that take one. Within, it computes in the precision that the model was trained
        in, and if the model or its task lacks a capability, a `ValueError` says which models or tasks have it."""
        with inference(self.objective, self.precision) as predictor:
            yield predictor

    def batch(self, sequences: Sequence[str]) -> Batch:
        """A batch of sequences as a person writes them, tokens (B, T). Raises `TypeError` for anything but a list of
        text, `ValueError` for an empty list, an empty sequence, and what the task cannot encode."""
        check_texts(sequences, "sequences", "sequences as text")
        if not sequences:
            raise ValueError("sequences is empty: give at least one sequence")
        rows = [self.task.encode(text) for text in sequences]
        for place, row in enumerate(rows):
            if not len(row):
                raise ValueError(f"sequences[{place}] is empty: give at least one symbol")
        return collate(Examples.of(rows, [0] * len(rows)))

    def states(self, batch: Batch | Sequence[str]) -> Hidden:
        """Belief states after every position, `state` and `readout` (B, T, D)."""
        with self.asking() as predictor:
            return predictor.states(batch if isinstance(batch, Batch) else self.batch(batch))

    def activations(self, batch: Batch | Sequence[str], names: Sequence[str]) -> dict[str, Tensor]:
        """Intermediate activations of the model's backbone by name: (B, T, ...) each, undefined on padding.

        In `names`, `*` stands for any text: `blocks.*.hook_resid_post` are all layers. docs/activations.md lists the
        names. Raises `ValueError` for unknown ones.
        """
        read = batch if isinstance(batch, Batch) else self.batch(batch)
        with self.asking() as predictor:
            return activations.read(activations.backbone_of(predictor), read, names)

    @contextmanager
    def patch(self, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
        """Within, `changes[name](activation)` replaces an activation (B, t, ...) in states, evaluations, completions
        and analyses. Names and errors are those of `activations`; see `statewise.objectives.activations.patched`.
        Patches of one activation are applied in the order of their entry."""
        with explaining_missing_capability(), activations.patched(activations.backbone_of(self.predictor()), changes):
            self._patches += 1
            try:
                yield
            finally:
                self._patches -= 1

    def generate(
        self,
        prompts: Sequence[str],
        decoder: str | Decoder = "greedy",
        limit: int | None = None,
        goal: str | None = None,
        free_length: bool = False,
        reverse: bool = False,
        **fields: Any,
    ) -> list[Completion]:
        """A completion for each prompt. `decoder` is a decoder, or the name of one whose `fields` may follow.
        `task.continuation(prompt, completion.tokens)` is a completion's text as it follows the prompt.

        `goal` is what should follow the completion, and `limit` by default what the context leaves; the completion then
        has exactly `limit` tokens, or with `free_length` ends with the closing symbol. A model that reads goals first,
        as with the encoding `fill_in_the_middle`, ends it with the end token in both cases. `reverse`: decodes from the
        last token to the first, see `statewise.decoding.reverse`. Raises `ValueError` for prompts and goals that are
        empty, too long, or contain unknown symbols, for `free_length` without a goal, and for models that cannot
        condition on a goal, have no closing symbol, or do not predict previous tokens. With a goal a prompt may be
        empty, if sequences of the task have none.
        """
        check_texts(prompts, "prompts", "prompts as text")
        made = make_decoder(decoder, **fields) if isinstance(decoder, str) else _alone(decoder, fields)
        made = Reverse(made) if reverse else made
        with self.asking() as predictor:
            requests = list(self._requests(predictor, prompts, goal, limit, free_length))
            return [completion for request in requests for completion in made.decode(predictor, request)]

    def search(
        self,
        prompt: str,
        decoder: str | Search,
        goal: str | None = None,
        limit: int | None = None,
        free_length: bool = False,
        reverse: bool = False,
        **fields: Any,
    ) -> list[Completion]:
        """All candidates that a search finds for one prompt, with scores, best first; otherwise as `generate`."""
        made = make_search(decoder, **fields) if isinstance(decoder, str) else _alone(decoder, fields)
        made = Reverse(made) if reverse else made
        with self.asking() as predictor:
            (request,) = self._requests(predictor, [prompt], goal, limit, free_length)
            return made.search(predictor, request)

    def _requests(
        self, predictor: Predictor, prompts: Sequence[str], goal: str | None, limit: int | None, free_length: bool
    ) -> Iterator[Request]:
        """Requests in the order of the prompts, each of as many prompts as fit one pass and have their goal at the same
        place, ahead or within."""
        if free_length and goal is None:
            raise ValueError("free_length needs a goal: without one, completions have no fixed length anyway")
        goal_tokens = self.task.encode_later(goal or "")
        if goal is not None and len(goal_tokens) == 0:
            raise ValueError("the goal is empty: omit `goal`, or give the text that should follow the completion")
        read = [self.task.with_goal(self.task.encode(prompt), goal_tokens) for prompt in prompts]
        beginnings = goal is not None and not all(len(prompt) for prompt, _ in read)
        # Models do not learn to predict prompts, so a beginning that is one would be made up.
        if beginnings and self.task.held_out(1).prompt_lengths[0]:
            raise ValueError("the prompt is empty, and sequences of this task begin with one: give it")
        size = rows_at_once(self.task.context, len(self.task.vocab), PROMPTS)
        most = self.task.context if limit is None else limit
        for _, members in groupby(range(len(read)), lambda row: (row // size, read[row][1] is None)):
            rows = list(members)
            wanted = read[rows[0]][1]
            closing = closing_symbol(predictor) if free_length and wanted is not None else None
            yield Request([read[row][0] for row in rows], most, self.task.end, wanted, closing=closing, rows=rows)

    def evaluate(
        self,
        num: int | None = None,
        data: str | Path | None = None,
        decoder: str | Decoder = "greedy",
        by: tuple[str, str] | None = None,
        protocol: StateProtocol | None = None,
        warmup: int | None = None,
        details: bool = True,
        losses: Losses | None = None,
        share: Share = ALONE,
    ) -> Evaluation:
        """Metrics on `num` held-out examples (null: all), or on those of a file in the task's format, or of another
        held-out set of the task, `by` an option and its value. Raises `ValueError` if there is no such set.

        `decoder` decodes the answers; a name means its default fields. `protocol`, and with `same-chunk` its `warmup`
        passes: how a model that carries a state reads chunks; see `carried_state.StateReading`. `details`, `losses`,
        which receives those of all tokens, and `share` of the examples: see `evaluation.evaluate`."""
        examples = choose_examples(self.task, num, None if data is None else Path(data), by)
        measure = self.objective.held_out_losses
        chosen = make_decoder(decoder) if isinstance(decoder, str) else decoder
        with self.asking() as predictor:
            if protocol is not None:
                predictor, measure = require(predictor, Carrier).under(*state_reading(protocol, warmup)), None
            return evaluate(
                self.task, predictor, chosen, examples, details=details, measure=measure, losses=losses, share=share
            )

    def analyze(self, analysis: str | Analysis, **fields: Any) -> Findings:
        """Runs an analysis of this model: `analyze("effective-rank", positions=50)`. `fields` are the options of the
        named analysis, as in the command. `Findings.save` writes them as the command does. Raises `ValueError` for
        unknown names, fields and values, and if the analysis does not suit the model or its task."""
        name = analysis if isinstance(analysis, str) else ANALYSES.name_of(type(analysis))
        made = make_analysis(analysis, **fields) if isinstance(analysis, str) else _alone(analysis, fields)
        step, patched = self.checkpoint.step if self.checkpoint else None, self._patches > 0
        with self.asking():
            findings = made.analyze(subject(self.recipe, self.task, self.objective, step, self.run, patched=patched))
        return replace(findings, origin=self._origin(name, made.config))

    def _origin(self, analysis: str, config: Any) -> Origin:
        """The name and title of an analysis of this model, and what its report holds besides the findings."""
        name, title = report_name(analysis, config), analysis
        facts: dict[str, Any] = {"settings": asdict(config)}
        if self.run is not None and self.checkpoint is not None:
            step = self.checkpoint.step
            title, facts = f"{self.run.folder}, step {step}, {analysis}", {"checkpoint": step, **facts}
            name += f"-checkpoint-{step}" if self.run.best_step() not in (None, step) else ""
        return Origin(name, title, facts)

    def embed(
        self,
        data: str | Path,
        *,
        prompts: bool = False,
        positions: Positions = "last",
        of: Side = "prefix",
        layer: str | None = None,
    ) -> Beliefs:
        """Belief vectors of the sequences of a file in the task's format, or of `prompts`, one a line.

        Which of them `positions`, `of` and `layer` say: see `statewise.analysis.beliefs.vectors.beliefs`. Sequences
        that the task does not take are in `left_out`. `Beliefs.save` writes what the command writes. Raises
        `ValueError` for lines that cannot be read, and if the model lacks such beliefs.
        """
        if not isinstance(data, (str, Path)):
            raise TypeError(
                f"embed reads a file: give its path, not {type(data).__name__}; `states` takes sequences as text"
            )
        if prompts:
            examples = self.task.read_prompts(Path(data))
            read = Numbered(examples, np.arange(len(examples)), [])
        else:
            read = self.task.read_numbered(Path(data))
        with self.asking():
            vectors = beliefs(snapshot(self.objective), read.examples, positions, of, layer)
        origin: dict[str, Any] = {}
        if self.run is not None and self.checkpoint is not None:
            origin = {"run": str(self.run.folder.resolve()), "checkpoint": self.checkpoint.step}
        origin |= {"input": str(data), "input_sha256": hashlib.sha256(Path(data).read_bytes()).hexdigest()}
        origin |= {"prompts": prompts, "positions": positions, "of": of}
        return replace(vectors, sequences=read.sequences, left_out=read.left_out, origin=origin)


def _alone(made: Made, fields: Mapping[str, Any]) -> Made:
    """An object that was passed in place of a name. Raises `ValueError` for `fields`, which only a name can have."""
    if fields:
        raise ValueError(
            f"{next(iter(fields))} goes with a name, and this {type(made).__name__} has its fields already"
        )
    return made


def new_model(recipe: Recipe) -> Model:
    """An untrained model. Raises `ValueError` if the task's data are invalid."""
    task = make_task(recipe)
    return Model(recipe, task, make_objective(recipe, task))


def model_of_run(run: Run, flags: Sequence[str] = ()) -> Model:
    """An untrained model of the recipe of a run, with `flags` over it. Raises `ValueError` if the run's files are
    damaged, or for wrong flags."""
    return Model(*parts_of_run(run, flags), run)


def load_model(folder: str | Path, checkpoint: str = "best", device: str = "auto") -> Model:
    """The model of a run, at the checkpoint `best`, `last` or that of a step.

    Raises `FileNotFoundError` or `ValueError` if there is no such run or its files are damaged.
    """
    run = Run.open(Path(folder))
    weights = run.find_checkpoint(checkpoint)
    model = model_of_run(run)
    load_weights(weights, model.objective)
    model.objective.to(choose_device(device))
    model.checkpoint = weights
    return model


def keep_model(model: Model, folder: Path, *, overwrite: bool) -> None:
    """Writes a model whose weights come from elsewhere as a run without training, at step 0. Raises `FileExistsError`
    if something is there already."""
    recipe, task = model.recipe, model.task
    environment = {**describe(recipe.trainer), "steps": 0}
    with Run.claimed(folder, overwrite):
        run = Run.create(folder, recipe.as_dict(), task.files(), environment, task.data_identity(), overwrite=overwrite)
        with run.lock():
            save(run, 0, model.objective.state_dict(), {})
            run.log({"kind": "end", "step": 0, "reason": CONVERTED, "seconds": 0.0})
