"""The composition root: from a recipe or a run directory to task, model, training and answers."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from statewise.analysis import ANALYSES
from statewise.analysis.base import Analysis, Findings
from statewise.backbones import BACKBONES
from statewise.backbones.base import Backbone
from statewise.config import Recipe, fill, parse, read_yaml
from statewise.data import Stream, collate
from statewise.decoding import DECODERS
from statewise.decoding.base import Decoder, Predictor
from statewise.evaluation import evaluate
from statewise.objectives import OBJECTIVES
from statewise.objectives.base import Objective
from statewise.run import Checkpoint, Record, Run
from statewise.tasks import TASKS
from statewise.tasks.base import Kept, Task
from statewise.training import machine
from statewise.training.checkpoint import load_weights
from statewise.training.trainer import Outcome, Trainer, Watch
from statewise.types import Batch, Completion, Evaluation, Examples, Hidden

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
        experiment = cls._of_run(run)
        load_weights(found, experiment.objective)
        experiment.objective.to(machine.choose_device(device)).eval()
        experiment.checkpoint = found
        return experiment

    @classmethod
    def _of_run(cls, run: Run) -> Experiment:
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
        lengths = np.array([len(row) for row in rows], np.int64)
        tokens = np.zeros((len(rows), lengths.max()), np.int64)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = row
        return collate(Examples(tokens, lengths, np.zeros_like(lengths)))

    def states(self, batch: Batch | Sequence[str]) -> Hidden:
        """Belief states after every position, `state` and `readout` (B, T, D)."""
        with self._precision():
            return self.predictor().states(batch if isinstance(batch, Batch) else self.batch(batch))

    def generate(
        self, prompts: Sequence[str], decoder: str = "greedy", limit: int | None = None, **fields: Any
    ) -> list[Completion]:
        """A completion for each prompt; `fields` are the decoder's. `decode` of the task makes text of it.

        Raises `ValueError` for prompts that are empty, too long, or hold unknown symbols.
        """
        made, predictor, end = make_decoder(decoder, **fields), self.predictor(), self.task.end
        completions = []
        for prompt in prompts:
            tokens = self.task.encode(prompt)[None]
            room = self.task.context - tokens.shape[1]
            with self._precision():
                completions += made.decode(predictor, tokens, limit=room if limit is None else limit, end=end)
        return completions

    def evaluate(self, num: int | None = None, data: str | Path | None = None, decoder: str = "greedy") -> Evaluation:
        """Metrics on `num` held-out examples (null: all), or on those of a file in the task's format."""
        if num is not None and num < 1:
            raise ValueError(f"num must be at least 1, not {num}")
        examples = self.task.held_out(num) if data is None else self.task.read(Path(data))[:num]
        with self._precision():
            return evaluate(self.task, self.predictor(), make_decoder(decoder), examples)

    def analyze(self, analysis: Analysis) -> Findings:
        """The findings of an analysis on held-out examples."""
        with self._precision():
            return analysis.analyze(self.predictor(), self.task, self.task.held_out(analysis.sequences))

    def _precision(self) -> AbstractContextManager[Any]:
        """The precision that the model was trained in."""
        precision = self.run.environment().get("precision", "fp32") if self.run else "fp32"
        device = next(self.objective.parameters()).device.type
        return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")

    def report(self, evaluation: Evaluation, name: str = "evaluation") -> dict[str, Any]:
        """Writes an evaluation into the run's reports, for `compare`; returns what was written."""
        assert self.run is not None
        assert self.checkpoint is not None
        content = {
            "checkpoint": self.checkpoint.step,
            "headline": dataclasses.asdict(self.task.headline),
            "chance": dict(self.task.chance),
            **dataclasses.asdict(evaluation),
        }
        self.run.write_report(name, content)
        return content


@dataclasses.dataclass(frozen=True)
class Listener:
    """What the outside wants to hear of while a run trains; called on the first process alone."""

    begin: Callable[[Run, Recipe, int], None] = lambda run, recipe, step: None
    """Once, before the first step, with the step training starts from."""
    note: Callable[[str], None] = lambda note: None
    """After that, for everything that a person should know of the data."""
    record: Callable[[Record], None] = lambda record: None
    step: Callable[[int], None] = lambda step: None
    report: Callable[[dict[str, Any]], None] = lambda report: None
    """Once, at the end, with what `Experiment.report` wrote about the best checkpoint."""


def train(recipe: Recipe, folder: str | Path, *, overwrite: bool = False, listener: Listener | None = None) -> Outcome:
    """Trains a new run in `folder`. Raises `FileExistsError` if something is there already."""
    environment = machine.describe(recipe.trainer)
    fabric = _launch(recipe, environment)
    experiment = Experiment.build(recipe)
    experiment.task.held_out(1)  # whatever is wrong with the data should show before a directory is made
    with contextlib.ExitStack() as stack:

        def create() -> None:
            run = Run.create(Path(folder), recipe.as_dict(), experiment.task.files(), overwrite=overwrite)
            stack.enter_context(run.lock())
            run.write_environment(environment)

        _on_first(fabric, create)
        experiment.run = Run.open(Path(folder))
        return _train(experiment, fabric, None, listener or Listener())


def resume(folder: str | Path, *, checkpoint: str = "last", listener: Listener | None = None) -> Outcome | None:
    """Goes on with a run from a checkpoint, exactly. None if the run is complete already."""
    run = Run.open(Path(folder))
    if run.complete():
        return None
    experiment = Experiment._of_run(run)
    fabric = _launch(experiment.recipe, run.environment() or machine.describe(experiment.recipe.trainer))
    with contextlib.ExitStack() as stack:

        def choose() -> int | None:
            stack.enter_context(run.lock())
            # A run that was killed before its first checkpoint begins again from its seed.
            return run.find_checkpoint(checkpoint).step if run.checkpoints() else None

        step = _on_first(fabric, choose)
        found = None if step is None else run.find_checkpoint(str(step))
        return _train(experiment, fabric, found, listener or Listener())


Result = TypeVar("Result")


def _on_first(fabric: Any, work: Callable[[], Result]) -> Result:
    """What `work` returns on the first process, on all of them; what it raises is raised on all."""
    result: Result | None = None
    error: Exception | None = None
    if fabric.global_rank == 0:
        try:
            result = work()
        except (ValueError, OSError) as raised:
            error = raised
    result, error = fabric.broadcast((result, error))
    if error is not None:
        raise error
    return result


def _launch(recipe: Recipe, environment: Mapping[str, Any]) -> Any:
    from lightning_fabric import Fabric

    machine.keep_freed_memory()
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # its notes on precision are in our environment
    devices = recipe.trainer.devices
    fabric = Fabric(
        accelerator=machine.choose_device(environment["device"]),
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        precision="bf16-mixed" if environment["precision"] == "bf16" else "32-true",
    )
    fabric.launch()
    torch.set_num_threads(environment["threads"])
    return fabric


def _train(experiment: Experiment, fabric: Any, found: Checkpoint | None, listener: Listener) -> Outcome:
    """Trains from `found`, or from the start, and reports. The first process holds the run's lock."""
    recipe, run, task = experiment.recipe, experiment.run, experiment.task
    assert run is not None
    config = recipe.trainer
    first = fabric.global_rank == 0
    stream = Stream(
        task, seed=recipe.seed, batch_size=config.batch_size, rank=fabric.global_rank, world=fabric.world_size
    )
    with contextlib.ExitStack() as stack:
        record = listener.record
        if config.tensorboard and first:
            record = stack.enter_context(_tensorboard(run, record))
        watch = Watch(
            evaluate=lambda: experiment.evaluate(config.evaluate_num).metrics, record=record, step=listener.step
        )
        trainer = Trainer(experiment.objective, stream, run, config, recipe.seed, task.headline, fabric, watch)
        if found is not None:
            trainer.resume(found)
        elif first:
            run.forget_after(0)
        if first:
            listener.begin(run, recipe, trainer.progress.step)
            for note in task.notes:
                listener.note(note)
        outcome = trainer.train()
    if outcome.reason != "signal" and first:
        device = next(experiment.objective.parameters()).device.type
        final = Experiment.load(run.folder, device=device)
        listener.report(final.report(final.evaluate(config.report_num)))
    fabric.barrier()
    return outcome


@contextlib.contextmanager
def _tensorboard(run: Run, record: Callable[[Record], None]) -> Iterator[Callable[[Record], None]]:
    """Sends every record to TensorBoard as well."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("trainer.tensorboard needs the extra `track`: pip install 'statewise[track]'") from None
    writer = SummaryWriter(str(run.folder / "tensorboard"))

    def both(found: Record) -> None:
        for name, value in found.items():
            if isinstance(value, (int, float)) and name != "step":
                writer.add_scalar(f"{found['kind']}/{name}", value, found["step"])
        record(found)

    try:
        yield both
    finally:
        writer.close()


# Recipes


def read_recipe(text: str, flags: Sequence[str] = (), source: str = "recipe") -> Recipe:
    """The recipe of YAML `text` with dotted `flags` over it. Raises `ValueError` if it does not parse."""
    return parse(read_yaml(text, source), flags, TABLES, source)
