"""Creates or resumes a run, launches the processes, trains, and writes the final report."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from statewise.backbones.powers import Noted
from statewise.config import Recipe
from statewise.data import Stream
from statewise.evaluation import report
from statewise.loading import load_model, model_of_run, new_model
from statewise.model import Model
from statewise.run import Checkpoint, Record, Run
from statewise.tasks.base import HasBaselines
from statewise.training import machine
from statewise.training.schedule import Schedule
from statewise.training.trainer import Outcome, Trainer, Watch


@dataclasses.dataclass(frozen=True)
class Listener:
    """Callbacks during training, called on the first process only."""

    begin: Callable[[Run, Recipe, int], None] = lambda run, recipe, step: None
    """Once, before the first step, with the step from which training starts."""
    note: Callable[[str], None] = lambda note: None
    """Then, for each note on the schedule and the data."""
    baselines: Callable[[Mapping[str, Mapping[str, float]]], None] = lambda baselines: None
    """Once, after the notes, with the metrics of each baseline, if the task has baselines."""
    record: Callable[[Record], None] = lambda record: None
    step: Callable[[int], None] = lambda step: None
    report: Callable[[dict[str, Any]], None] = lambda report: None
    """Once, at the end, with the report on the best checkpoint."""


def train(recipe: Recipe, folder: str | Path, *, overwrite: bool = False, listener: Listener | None = None) -> Outcome:
    """Trains a new run in `folder`. Raises `FileExistsError` if it exists already."""
    Run.refuse(Path(folder), overwrite)
    environment = machine.describe(recipe.trainer)
    fabric = _launch(recipe, environment)
    model = new_model(recipe)
    schedule = Schedule.of(recipe.trainer, model.task.context)
    stream = _tried(model, fabric.global_rank, fabric.world_size)
    with contextlib.ExitStack() as stack:

        def create() -> None:
            # The number of steps is stored for commands that follow the run without its data.
            kept = {**environment, "steps": schedule.steps}
            run = Run.create(Path(folder), recipe.as_dict(), model.task.files(), kept, overwrite=overwrite)
            stack.enter_context(run.lock())

        _on_first(fabric, create)
        model.run = Run.open(Path(folder))
        return _train(model, fabric, stream, schedule, None, listener or Listener())


def check(recipe: Recipe, listener: Listener | None = None) -> None:
    """Describes a recipe's data. Raises `ValueError` or `OSError` if something is wrong with them."""
    model = new_model(recipe)
    _tried(model, 0, 1)
    _introduce(model, listener or Listener())


def _introduce(model: Model, listener: Listener) -> None:
    """Passes notes on the data, and the baselines, to the listener before training."""
    task = model.task
    for note in (*task.summary(), *task.notes):
        listener.note(note)
    if isinstance(task, HasBaselines):
        listener.baselines(task.baselines(task.held_out(model.recipe.trainer.evaluate_num)))


def _tried(model: Model, rank: int, world: int) -> Stream:
    """Training batches. Reads one held-out row and one batch, so that bad data fails before the run directory is
    created or overwritten."""
    if model.recipe.trainer.tensorboard:
        _summary_writer()
    model.task.held_out(1)
    stream = _stream(model, rank, world)
    stream.batch(0)
    return stream


def _stream(model: Model, rank: int, world: int) -> Stream:
    recipe, config = model.recipe, model.recipe.trainer
    return Stream(
        model.task, seed=recipe.seed, batch_size=config.batch_size, rank=rank, world=world, rows=config.rows
    )  # fmt: skip


def resume(folder: str | Path, *, checkpoint: str = "last", listener: Listener | None = None) -> Outcome | None:
    """Resumes a run exactly from a checkpoint. None if the run is already complete."""
    run = Run.open(Path(folder))
    if run.complete():
        return None
    model = model_of_run(run)
    schedule = Schedule.of(model.recipe.trainer, model.task.context)
    fabric = _launch(model.recipe, run.environment())
    with contextlib.ExitStack() as stack:

        def choose() -> int | None:
            stack.enter_context(run.lock())
            # A run that was killed before its first checkpoint starts again from its seed.
            return run.find_checkpoint(checkpoint).step if run.checkpoints() else None

        step = _on_first(fabric, choose)
        found = None if step is None else run.find_checkpoint(str(step))
        stream = _stream(model, fabric.global_rank, fabric.world_size)
        return _train(model, fabric, stream, schedule, found, listener or Listener())


Result = TypeVar("Result")


def _on_first(fabric: Any, work: Callable[[], Result]) -> Result:
    """Runs `work` on the first process; returns its result, or raises its exception, on all."""
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
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # environment.json states the precision
    devices, device = recipe.trainer.devices, machine.choose_device(environment["device"])
    if device not in ("cpu", "cuda", "mps"):
        raise ValueError(f"training runs on the devices cpu, cuda and mps, not on {device}")
    fabric = Fabric(
        accelerator=device,
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        precision="bf16-mixed" if environment["precision"] == "bf16" else "32-true",
    )
    fabric.launch()
    if devices > 1:  # threads of a process group that is alive at interpreter exit may abort the process
        atexit.register(_disband)
    torch.set_num_threads(environment["threads"])
    return fabric


def _disband() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _train(
    model: Model, fabric: Any, stream: Stream, schedule: Schedule, found: Checkpoint | None,
    listener: Listener,
) -> Outcome:  # fmt: skip
    """Trains from `found`, or from the start, and writes the report. The first process holds the run's lock."""
    recipe, run, task = model.recipe, model.run, model.task
    assert run is not None
    config = recipe.trainer
    first = fabric.global_rank == 0
    with contextlib.ExitStack() as stack:
        record = listener.record
        if config.tensorboard and first:
            record = stack.enter_context(_tensorboard(run, record))
        watch = Watch(
            evaluate=lambda: model.evaluate(config.evaluate_num, details=False).metrics,
            record=record,
            step=listener.step,
        )
        name = torch.cuda.get_device_name(fabric.device) if fabric.device.type == "cuda" else ""
        peak = machine.peak_flops(name, run.precision())
        trainer = Trainer(
            model.objective, stream, run, config, schedule, recipe.seed, task.headline, fabric, watch, peak
        )  # fmt: skip
        if found is not None:
            trainer.resume(found)
        elif first:
            run.forget_after(0)
        if first:
            listener.begin(run, recipe, trainer.progress.step)
            noted = (note for part in model.objective.modules() if isinstance(part, Noted) for note in part.notes)
            for note in dict.fromkeys((*schedule.notes, *noted)):
                listener.note(note)
            _introduce(model, listener)
        outcome = trainer.train()
    if outcome.reason != "signal" and first:
        final = load_model(run.folder, device=model.device.type)
        assert final.checkpoint is not None
        content = {"checkpoint": final.checkpoint.step, **report(task, final.evaluate(config.report_num))}
        run.write_report("evaluation", content)
        listener.report(content)
    fabric.barrier()
    return outcome


@contextlib.contextmanager
def _tensorboard(run: Run, record: Callable[[Record], None]) -> Iterator[Callable[[Record], None]]:
    """Sends every record to TensorBoard as well."""
    writer = _summary_writer()(str(run.folder / "tensorboard"))

    def both(written: Record) -> None:
        for name, value in written.items():
            if isinstance(value, (int, float)) and name != "step":
                writer.add_scalar(f"{written['kind']}/{name}", value, written["step"])
        record(written)

    try:
        yield both
    finally:
        writer.close()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("trainer.tensorboard needs the extra `track`: pip install 'statewise[track]'") from None
    return SummaryWriter
