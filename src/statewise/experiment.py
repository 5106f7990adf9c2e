"""The composition root: from a recipe or a run directory to task, model and answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statewise import __version__
from statewise.analysis import ANALYSES
from statewise.analysis.base import Analysis, Findings, Model, Subject
from statewise.analysis.beliefs import Beliefs, Positions, Side, beliefs
from statewise.backbones import BACKBONES
from statewise.backbones.base import Backbone
from statewise.config import Recipe, fill, parse, read_yaml
from statewise.data import collate
from statewise.decoding import DECODERS, kept_state
from statewise.decoding.base import Carrier, Decoder, Predictor, Search
from statewise.decoding.continued import Continued, carrier, under
from statewise.evaluation import complete, evaluate, whole_texts
from statewise.infilling import Filled, fill_middles, referee
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import Objective
from statewise.run import Checkpoint, Run
from statewise.tasks import TASKS
from statewise.tasks.base import Kept, Task, running_text
from statewise.training import machine
from statewise.training.checkpoint import fingerprint, load_weights
from statewise.types import Batch, Carried, Completion, Evaluation, Examples, Hidden
from statewise.zero_shot import harness
from statewise.zero_shot.answers import Answers, answer
from statewise.zero_shot.likelihood import Progress
from statewise.zero_shot.questions import Questions

TABLES: dict[str, Mapping[str, type]] = {"task": TASKS, "backbone": BACKBONES, "objective": OBJECTIVES}


def make_task(recipe: Recipe, kept: Kept | None = None) -> Task:
    """The recipe's task; `kept` holds the files that it left in a run."""
    task: Task = TASKS[recipe.task.name](recipe.task.config, kept)
    return task


def make_objective(recipe: Recipe, task: Task) -> Objective:
    """The recipe's objective around its backbone, with weights drawn by the recipe's seed."""

    def make_backbone(*, extra_tokens: int = 0, embedding_of: Backbone | None = None, **fields: Any) -> Backbone:
        config = dataclasses.replace(recipe.backbone.config, **fields)
        vocabulary = len(task.vocab) + extra_tokens
        backbone: Backbone = BACKBONES[recipe.backbone.name](
            config, vocabulary=vocabulary, context=task.context, embedding_of=embedding_of
        )
        return backbone

    torch.manual_seed(recipe.seed)
    objective: Objective = OBJECTIVES[recipe.objective.name](recipe.objective.config, make_backbone)
    return objective


def make_decoder(name: str, **fields: Any) -> Decoder:
    """A decoder by name. Raises `ValueError` for unknown names, fields and values."""
    kind = DECODERS[name]
    config: type = kind.Config  # type: ignore[attr-defined]
    decoder: Decoder = kind(fill(config, fields, f"decoder {name}"))
    return decoder


def make_search(name: str, **fields: Any) -> Search:
    """A decoder that ranks candidates, by name. Raises `ValueError` for one that does not, else as `make_decoder`."""
    decoder = make_decoder(name, **fields)
    if not isinstance(decoder, Search):
        searches = ", ".join(other for other in DECODERS if issubclass(DECODERS[other], Search))
        raise ValueError(f"decoder {name} finds one completion and ranks nothing: for candidates choose of {searches}")
    return decoder


def make_analysis(name: str, **fields: Any) -> Analysis:
    """An analysis by name. Raises `ValueError` for unknown names, fields and values."""
    kind = ANALYSES[name]
    config: type = kind.Config  # type: ignore[attr-defined]
    analysis: Analysis = kind(fill(config, fields, f"analysis {name}"))
    return analysis


class Experiment:
    """A task and a model for it: new from a recipe, or loaded from a run."""

    def __init__(self, recipe: Recipe, task: Task, objective: Objective, run: Run | None = None) -> None:
        self.recipe, self.task, self.objective, self.run = recipe, task, objective, run
        self.checkpoint: Checkpoint | None = None

    @classmethod
    def build(cls, recipe: Recipe) -> Experiment:
        """An untrained model. Raises `ValueError` if the task's data are not as they must be."""
        task = make_task(recipe)
        return cls(recipe, task, make_objective(recipe, task))

    @classmethod
    def load(cls, folder: str | Path, checkpoint: str = "best", device: str = "auto") -> Experiment:
        """The model of a run, at the checkpoint `best`, `last` or that of a step.

        Raises `FileNotFoundError` or `ValueError` if there is no such run or its files are damaged.
        """
        run = Run.open(Path(folder))
        found = run.find_checkpoint(checkpoint)
        return cls.of_run(run)._restored(found, machine.choose_device(device))

    def _restored(self, checkpoint: Checkpoint, device: str | torch.device) -> Experiment:
        """This one, with the weights of a checkpoint."""
        load_weights(checkpoint, self.objective)
        self.objective.to(device).eval()
        self.checkpoint = checkpoint
        return self

    def _again(self, seed: int) -> Experiment:
        """The same task and run, and a new model with weights drawn by `seed`."""
        recipe = dataclasses.replace(self.recipe, seed=seed)
        return Experiment(self.recipe, self.task, make_objective(recipe, self.task), self.run)

    @classmethod
    def of_run(cls, run: Run) -> Experiment:
        """An untrained model of the recipe of a run."""
        recipe = parse(run.recipe(), [], TABLES, source=str(run.folder / "config.json"))
        task = make_task(recipe, run.task_files())
        return cls(recipe, task, make_objective(recipe, task), run)

    # Asking

    def predictor(self) -> Predictor:
        """The model's inference face."""
        self.objective.eval()
        return self.objective.predictor()

    def batch(self, sequences: Sequence[str]) -> Batch:
        """A batch of sequences as a person writes them, tokens (B, T)."""
        rows = [self.task.encode(text) for text in sequences]
        return collate(Examples.of(rows, [0] * len(rows)))

    def states(self, batch: Batch | Sequence[str]) -> Hidden:
        """Belief states after every position, `state` and `readout` (B, T, D)."""
        with self._precision():
            return self.predictor().states(batch if isinstance(batch, Batch) else self.batch(batch))

    def generate(
        self,
        prompts: Sequence[str],
        decoder: str = "greedy",
        limit: int | None = None,
        goal: str | None = None,
        **fields: Any,
    ) -> list[Completion]:
        """A completion for each prompt; `fields` are the decoder's. `decode` of the task makes text of it.

        `goal` is what shall follow the completion, and `limit` by default what the context leaves. Raises `ValueError`
        for prompts and goals that are empty, too long, or hold unknown symbols, and for models that cannot head for a
        goal.
        """
        made, predictor = make_decoder(decoder, **fields), self.predictor()
        completions = []
        for prompt in prompts:
            tokens, options = self._question(prompt, goal, limit)
            with self._precision():
                completions += made.decode(predictor, tokens[None], **options)
        return completions

    def go_on(
        self,
        prompt: str,
        decoder: str = "greedy",
        limit: int = 100,
        *,
        state: str | Path | None = None,
        save_state: str | Path | None = None,
        warmup: int = 0,
        **fields: Any,
    ) -> Completion:
        """A completion by a model that carries a state: from where the file `state` stands, of as many tokens as are
        wanted, and kept in the file `save_state` for later. `warmup`: passes over each chunk of the prompt before it
        is read. Else as `generate`; the prompt may be empty where there is a state."""
        if warmup < 0:
            raise ValueError(f"warmup must not be negative, not {warmup}")
        if save_state is not None:
            kept_state.check(Path(save_state))
        predictor = self.predictor()
        if warmup:
            predictor = carrier(predictor).under("carried", warmup)
        kept = None if state is None else kept_state.read(Path(state), self.fingerprint())
        if kept is not None and self.task.end is not None and int(kept["pending"][-1]) == self.task.end:
            raise ValueError(f"{state}: the sequence that it keeps has ended, and nothing goes on from there")
        continued = Continued(predictor, kept)
        tokens = self.task.encode(prompt)
        if kept is not None:
            tokens = np.concatenate([kept["pending"].numpy(), tokens])
        with self._precision():
            (completion,) = make_decoder(decoder, **fields).decode(
                continued, tokens[None], limit=limit, end=self.task.end
            )
            if save_state is not None:
                kept_state.write(Path(save_state), continued.state(len(tokens), completion), self.fingerprint())
        return completion

    def search(
        self, prompt: str, decoder: str, goal: str | None = None, limit: int | None = None, **fields: Any
    ) -> list[Completion]:
        """All that a search finds for one prompt, with scores, best first; else as `generate`."""
        made, predictor = make_search(decoder, **fields), self.predictor()
        tokens, options = self._question(prompt, goal, limit)
        with self._precision():
            return made.search(predictor, tokens, **options)

    def _question(self, prompt: str, goal: str | None, limit: int | None) -> tuple[np.ndarray, dict[str, Any]]:
        """(T,) tokens of the prompt, and what else a decoder is told."""
        given = self.task.encode(goal or "")
        if goal is not None and len(given) == 0:
            raise ValueError("the goal is empty: leave --goal away, or give what shall follow the completion")
        tokens, wanted = self.task.towards(self.task.encode(prompt), given)
        room = self.task.context - len(tokens) - (0 if wanted is None else len(wanted))
        return tokens, {"limit": room if limit is None else limit, "end": self.task.end, "goal": wanted}

    def evaluate(
        self,
        num: int | None = None,
        data: str | Path | None = None,
        decoder: str = "greedy",
        by: tuple[str, str] | None = None,
        protocol: Carried | None = None,
        warmup: int | None = None,
    ) -> Evaluation:
        """Metrics on `num` held-out examples (null: all), or on those of a file in the task's format, or of another
        held-out set of the task, `by` an option and its value. Raises `ValueError` if there is no such set.

        `protocol`, and with `same-chunk` its `warmup` passes: how a model that carries a state is asked; see
        `decoding.continued.under`."""
        predictor = self.predictor() if protocol is None else under(self.predictor(), protocol, warmup)
        if num is not None and num < 1:
            raise ValueError(f"num must be at least 1, not {num}")
        if data is not None and by is not None:
            raise ValueError(f"--data and --{by[0]} each say what to evaluate on: give one of them")
        if data is not None:
            examples = self.task.read(Path(data))[:num]
        else:
            examples = self.task.held_out(num) if by is None else self.task.held_out_by(*by, num)
        with self._precision():
            return evaluate(self.task, predictor, make_decoder(decoder), examples)

    @property
    def notes(self) -> list[str]:
        """What a person should know of the model before it is trained."""
        backbones = (module for module in self.objective.modules() if isinstance(module, Backbone))
        return list(dict.fromkeys(note for backbone in backbones for note in backbone.notes))

    @property
    def carries(self) -> bool:
        """Whether the model carries a state from chunk to chunk."""
        return isinstance(self.predictor(), Carrier)

    def whole_texts(self) -> Evaluation:
        """Held-out documents read in order and as a whole; see `evaluation.whole_texts`."""
        with self._precision():
            return whole_texts(self.task, self.predictor())

    def answer(self, questions: Questions, batch: int = 32, progress: Progress | None = None) -> Answers:
        """How the model answers the questions of a file. Raises `ValueError` if its task is none of text."""
        with self._precision():
            return answer(self.predictor(), running_text(self.task), questions, batch, progress)

    def lm_eval(
        self,
        benchmarks: harness.Benchmarks,
        limit: int | None = None,
        batch: int = 32,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """What lm-evaluation-harness finds of the model; see `harness.run`. Raises `ValueError` as `answer` does."""
        task = running_text(self.task)
        with self._precision():
            return harness.run(self.predictor(), task, benchmarks, limit=limit, batch=batch, progress=progress)

    def fill(self, decoder: Decoder, num: int, skip: int = 0) -> Iterator[Filled]:
        """New middles for the first `num` held-out sequences, but the first `skip`; see `infilling.fill_middles`."""
        found = fill_middles(self.predictor(), self.task, decoder, num, skip)
        while True:
            with self._precision():  # of the model, not of whoever takes the results
                one = next(found, None)
            if one is None:
                return
            yield one

    def fingerprint(self) -> str:
        """Hexadecimal digest of the model's weights."""
        return fingerprint(self.objective)

    def referee(self, found: Sequence[Filled]) -> dict[str, float]:
        """How this model finds filled sequences; see `infilling.referee`."""
        with self._precision():
            return referee(self.predictor(), self.task, found)

    def analyze(self, analysis: Analysis) -> Findings:
        """What an analysis finds in this model."""
        subject = Subject(
            self.task, self._model(), self._checkpoints, self._untrained, self._complete, str(self._device)
        )
        with self._precision():
            return analysis.analyze(subject)

    def _complete(self, examples: Examples) -> list[Completion]:
        return complete(self.task, self.predictor(), make_decoder("greedy"), examples, block=256)

    def _checkpoints(self, which: str) -> Iterator[Model]:
        if self.run is None:
            raise ValueError("this model is of no run: it has no other checkpoints")
        every = [str(checkpoint.step) for checkpoint in self.run.checkpoints()]
        for step in every if which == "all" else which.replace(" ", "").split(","):
            found = self.run.find_checkpoint(step)
            yield self._again(self.recipe.seed)._restored(found, self._device)._model()

    def _untrained(self) -> Model:
        other = self._again(self.recipe.seed + 1)
        other.objective.to(self._device)
        # Buffers tell how far training has come where a backbone changes with it: the control changes, too.
        for fresh, known in zip(other.objective.buffers(), self.objective.buffers()):
            fresh.copy_(known)
        return other._model()

    def _model(self) -> Model:
        """This model for an analysis. What it remembers is kept by the run under a key that the weights decide."""
        step = None if self.checkpoint is None else self.checkpoint.step
        label = "new model" if step is None else f"step {step}"
        if self.run is None:
            return Model(label, self.predictor(), step)
        made_by = f"{__version__} {self._device.type} {self._precision_name()} {fingerprint(self.objective)}"
        run = self.run
        return Model(label, self.predictor(), step, lambda key, make: run.remember(f"{made_by} {key}", make))

    def embed(
        self,
        data: str | Path,
        *,
        prompts: bool = False,
        positions: Positions = "last",
        of: Side = "prefix",
    ) -> Beliefs:
        """Belief vectors of the sequences of a file in the task's format, or of `prompts`, one a line.

        Which of them `positions` and `of` say: see `statewise.analysis.beliefs.beliefs`. Raises `ValueError` for
        lines that cannot be read, and if the model lacks such beliefs.
        """
        examples = self.task.read_prompts(Path(data)) if prompts else self.task.read(Path(data))
        with self._precision():
            return beliefs(self.predictor(), examples, positions, of)

    @property
    def _device(self) -> torch.device:
        return next(self.objective.parameters()).device

    def _precision_name(self) -> str:
        name: str = self.run.environment().get("precision", "fp32") if self.run else "fp32"
        return name

    def _precision(self) -> AbstractContextManager[Any]:
        """The precision that the model was trained in."""
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._precision_name() == "bf16")

    def report(
        self,
        evaluation: Evaluation,
        name: str = "evaluation",
        data: Path | None = None,
        protocols: Mapping[str, Mapping[str, float]] | None = None,
    ) -> dict[str, Any]:
        """Writes an evaluation into the run's reports, for `compare`; returns what was written. `data`: what was
        evaluated on, if not on held-out examples; `protocols`: the metrics by each that was asked, of a model that
        carries a state."""
        assert self.run is not None
        assert self.checkpoint is not None
        leaks = [name for name in protocols or () if name.startswith("same-chunk")]
        content = {
            "checkpoint": self.checkpoint.step,
            "headline": dataclasses.asdict(self.task.headline),
            "chance": dict(self.task.chance),
            **dataclasses.asdict(evaluation),
            **({"file": str(data)} if data else {}),
            **({"protocols": dict(protocols), "sees_its_own_targets": leaks} if protocols else {}),
        }
        self.run.write_report(name, content)
        return content


def read_recipe(text: str, flags: Sequence[str] = (), source: str = "recipe") -> Recipe:
    """The recipe of YAML `text` with dotted `flags` over it. Raises `ValueError` if it does not parse."""
    return parse(read_yaml(text, source), flags, TABLES, source)
