"""Creates or resumes a run, launches the processes, trains, and writes the final report."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gc
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from statewise.backbones.capabilities import Noted, Pretrained
from statewise.config.recipe import Recipe
from statewise.evaluation.evaluate import ALONE, Share, report
from statewise.model.loading import load_model, model_of_run, new_model, recipe_of_run
from statewise.model.model import Model
from statewise.run import Checkpoint, Record, Run
from statewise.runtime import launchers as processes
from statewise.runtime.launchers import PLACING
from statewise.runtime.messages import to_install
from statewise.tasks.base import HasBaselines
from statewise.tasks.batches import Stream
from statewise.training import machine, own_processes, sharding
from statewise.training.agreement import Agreement
from statewise.training.checkpoint import join_weights, load_weights
from statewise.training.optim import make_optimizer
from statewise.training.schedule import Schedule
from statewise.training.sharded_inference import used_in_place
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
    if not torch.distributed.is_initialized():  # otherwise the first process may have begun it
        Run.refuse(Path(folder), overwrite)
    recipe = _placed(recipe)
    environment = machine.describe(recipe.trainer)
    fabric = _launch(recipe, environment)
    agreement = Agreement(fabric.global_rank, fabric.world_size)

    def prepare() -> tuple[Model, Schedule, Stream]:
        model = new_model(recipe)
        schedule = Schedule.of(recipe.trainer, model.task.longest_row)
        return model, schedule, _tried(model, fabric.global_rank, fabric.world_size)

    with contextlib.ExitStack() as stack, contextlib.ExitStack() as claim:
        agreement.on_first(lambda: claim.enter_context(Run.claimed(Path(folder), overwrite)))
        model, schedule, stream = agreement.each(prepare)

        made: list[Run] = []

        def create() -> None:
            # The number of steps is stored for commands that follow the run without its data.
            parts = model.objective.modules()
            commit = next((part.commit for part in parts if isinstance(part, Pretrained) and part.commit), None)
            kept = {**environment, "steps": schedule.steps, **({"model_commit": commit} if commit else {})}
            run = Run.create(
                Path(folder),
                recipe.as_dict(),
                model.task.files(),
                kept,
                model.task.data_identity(),
                overwrite=overwrite,
            )
            stack.enter_context(run.lock())
            made.append(run)

        def opened() -> Run:
            run = made[0] if made else Run(Path(folder))  # the first process has the one that is locked
            if not run.exists():
                raise ValueError(
                    f"{folder} is not there, though the first process has made it: processes on several machines need "
                    "a folder on a disk that they share"
                )
            return run

        agreement.on_first(create)
        claim.close()  # the run's own lock is held now
        model.run = agreement.each(opened)
        return _train(model, fabric, stream, schedule, None, listener or Listener())


def train_or_resume(recipe: Recipe, folder: str | Path, *, listener: Listener | None = None) -> Outcome | None:
    """Resumes the run in `folder` if it is one of this recipe, otherwise trains a new one there: for commands that are
    started again after a failure or preemption. None if the run is complete. Raises `ValueError` if it is of another
    recipe; the device, how many processes train it, and what they share, may differ."""
    run = Run(Path(folder))
    if not run.exists():  # processes agree, since none creates it before all have come here
        return train(recipe, folder, listener=listener)
    here, there = _fields(recipe.as_dict()), _fields(recipe_of_run(run).as_dict())
    names = [name for name in {**here, **there} if name not in PLACING and here.get(name) != there.get(name)]
    if names:
        what = ", ".join(f"{name} is {there.get(name)} there and {here.get(name)} here" for name in names[:3])
        raise ValueError(f"{folder} is a run of another recipe: {what}. Choose another --out")
    flags = [f"--{name}={here[name]}" for name in PLACING]
    return resume(folder, flags=flags, listener=listener)


def _fields(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of a recipe by dotted name, as JSON values."""
    found: dict[str, Any] = {}
    for name, value in recipe.items():
        if isinstance(value, Mapping):
            found |= _fields(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return found


def _placed(recipe: Recipe, *, override: bool = False) -> Recipe:
    """The recipe with as many processes as torchrun or srun have started. Raises `ValueError` if it asks for another
    number, unless `override`, and for several machines without such a launcher."""
    config, launcher = recipe.trainer, processes.started()
    if launcher is None:
        if config.nodes > 1:
            raise ValueError(
                f"trainer.nodes {config.nodes}: start the processes on {config.nodes} machines by torchrun or srun "
                "(docs/clusters.md has examples), or set it to 1"
            )
        return recipe
    if (config.devices, config.nodes) not in ((1, 1), (launcher.devices, launcher.nodes)) and not override:
        raise ValueError(
            f"trainer.devices {config.devices} and trainer.nodes {config.nodes} differ from the processes that "
            f"{launcher.by} started, {launcher.devices} on each of {launcher.nodes} machines: leave both out"
        )
    return dataclasses.replace(
        recipe, trainer=dataclasses.replace(config, devices=launcher.devices, nodes=launcher.nodes)
    )


def check(recipe: Recipe, listener: Listener | None = None, *, here: bool = True) -> None:
    """Describes a recipe's data. Raises `ValueError` or `OSError` if something is wrong with them or the recipe, or if
    it is to be trained `here` and this machine cannot."""
    if here:
        config = _placed(recipe).trainer
        machine.refuse_missing(machine.describe(config)["device"], config.devices)
    model = new_model(recipe)
    Schedule.of(recipe.trainer, model.task.longest_row)
    _tried(model, 0, 1)
    _introduce(model, listener or Listener())


def _introduce(model: Model, listener: Listener) -> None:
    """Passes notes on the data, and the baselines, to the listener before training."""
    task = model.task
    for note in (*task.summary(), *task.notes):
        listener.note(note)
    if model.recipe.trainer.stop_when_solved and task.headline.solved_at is None:
        what = f"no {task.headline.metric} counts as solving the task {model.recipe.task.name}"
        listener.note(f"{what}: trainer.stop_when_solved does nothing, and training goes on to its last step")
    if isinstance(task, HasBaselines):
        listener.baselines(task.baselines(task.held_out(model.recipe.trainer.evaluate_num)))


def _tried(model: Model, rank: int, world: int) -> Stream:
    """Training batches. Makes an optimiser and reads one held-out row and one batch, so that a bad recipe and bad data
    fail before the run directory is created or overwritten."""
    _refuse_settings(model, world)
    make_optimizer(model.objective, model.recipe.trainer)
    _refuse_shared(model.objective)
    stream = _stream(model, rank, world)
    model.task.held_out(1)
    stream.batch(0)
    return stream


def _refuse_settings(model: Model, world: int) -> None:
    """Raises `ValueError` for settings of the trainer that this installation, or this model, cannot follow."""
    if model.recipe.trainer.tensorboard:
        _summary_writer()
    if model.recipe.trainer.shard != "none" and world > 1:
        sharding.refuse_frozen(model.objective)


def _refuse_shared(objective: nn.Module) -> None:
    """Raises `ValueError` if two names are of one tensor: a checkpoint could not be written."""
    names: dict[tuple[int, int], str] = {}
    for name, tensor in objective.state_dict().items():
        if tensor.numel() and tensor.device.type != "meta":
            other = names.setdefault((tensor.data_ptr(), tensor.numel()), name)
            if other != name:
                raise ValueError(
                    f"{type(objective).__name__}: {other} and {name} are one tensor, and a checkpoint holds each under "
                    "one name: keep it in one module, as TokenEmbedding does, and let the other read it there"
                )


def _stream(model: Model, rank: int, world: int) -> Stream:
    recipe, config = model.recipe, model.recipe.trainer
    return Stream(model.task, seed=recipe.seed, batch_size=config.batch_size, rank=rank, world=world, rows=config.rows)


def resume(
    folder: str | Path, *, checkpoint: str = "last", flags: Sequence[str] = (), listener: Listener | None = None
) -> Outcome | None:
    """Resumes a run from a checkpoint, exactly. None if the run is already complete.

    `flags`: those of `PLACING`, such as `--trainer.devices=1`, to continue on another device or with another number of
    processes than the run began with; so do torchrun and srun with the latter. The numbers are then the same up to
    rounding, and to what is drawn on a device and by each process for itself: dropout and `objective.share`. The
    precision stays the run's.
    """
    run = Run.open(Path(folder))
    records = run.metrics()
    if run.complete(records):
        return None
    if run.converted(records):
        raise ValueError(f"{folder} holds a model from elsewhere, not trained here: there is nothing to resume")
    for flag in flags:
        if flag.removeprefix("--").partition("=")[0] not in PLACING:
            names = ", ".join(f"--{name}" for name in PLACING)
            raise ValueError(f"{flag.partition('=')[0]}: of the fields of a run only {names} can change")
    model = model_of_run(run, flags)
    counted = any(flag.removeprefix("--").startswith(("trainer.devices", "trainer.nodes")) for flag in flags)
    model.recipe = _placed(model.recipe, override=not counted)
    schedule = Schedule.of(model.recipe.trainer, model.task.longest_row)
    _refuse_settings(model, model.recipe.trainer.processes)
    environment = run.environment()
    try:
        machine.choose_device(model.recipe.trainer.device_of(environment))
    except ValueError as error:
        raise ValueError(f"{error}: give --trainer.device cpu to continue the run here") from None
    fabric = _launch(model.recipe, environment)
    with contextlib.ExitStack() as stack:

        def choose() -> int | None:
            stack.enter_context(run.lock())
            run.refuse_lost(model.recipe.trainer.checkpoint_every)
            # A run that was killed before its first checkpoint starts again from its seed.
            return run.find_checkpoint(checkpoint).step if run.checkpoints() else None

        step = Agreement(fabric.global_rank, fabric.world_size).on_first(choose)
        found = None if step is None else run.checkpoint(step)
        stream = _stream(model, fabric.global_rank, fabric.world_size)
        return _train(model, fabric, stream, schedule, found, listener or Listener())


def _launch(recipe: Recipe, environment: Mapping[str, Any]) -> Any:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    from statewise.training.srun import JobStep

    machine.keep_freed_memory()
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # environment.json states the precision
    config, device = recipe.trainer, machine.choose_device(recipe.trainer.device_of(environment))
    if device not in ("cpu", "cuda", "mps"):
        raise ValueError(f"training runs on the devices cpu, cuda and mps, not on {device}")
    machine.refuse_missing(device, config.devices)
    strategy: Any = "auto"
    if config.processes > 1 and config.shard == "none":
        strategy = DDPStrategy(timeout=sharding.TIMEOUT)
    elif config.processes > 1:
        strategy = sharding.strategy(config, device, environment["precision"])
    launcher = processes.started()
    plugins = {"torchrun": TorchElasticEnvironment, "srun": JobStep}
    fabric = Fabric(
        plugins=[plugins[launcher.by]() if launcher else LightningEnvironment()],  # never what Fabric would guess
        accelerator=device,
        devices=config.devices,
        num_nodes=config.nodes,
        strategy=strategy,
        precision="bf16-mixed" if environment["precision"] == "bf16" else "32-true",
    )
    with own_processes.starting():
        fabric.launch()
    if config.processes > 1:  # threads of a process group that is alive at interpreter exit may abort the process
        atexit.register(_disband)
    torch.set_num_threads(environment["threads"])
    return fabric


def _disband() -> None:
    """Ends the threads of the process group, which end with the last reference to it. The trainer's, by way of DDP's
    reducer, are parts of cycles. That of this function must outlive them: PyTorch waits for the threads without
    Python's lock when a group is let go, with it when a reducer is, and a thread may need it to let its tensors go."""
    if torch.distributed.is_initialized():
        group = torch.distributed.group.WORLD
        torch.distributed.destroy_process_group()
        gc.collect()
        del group


def _train(
    model: Model, fabric: Any, stream: Stream, schedule: Schedule, found: Checkpoint | None, listener: Listener
) -> Outcome:
    """Trains from `found`, or from the start, and writes the report. The first process holds the run's lock."""
    recipe, run, task = model.recipe, model.run, model.task
    assert run is not None
    config = recipe.trainer
    first = fabric.global_rank == 0
    with contextlib.ExitStack() as stack:
        record = listener.record
        if config.tensorboard and first:
            record = stack.enter_context(_tensorboard(run, record))

        def evaluate() -> dict[str, float]:
            with _shared(fabric, trainer) as share:
                return model.evaluate(config.evaluate_num, details=False, share=share).metrics

        watch = Watch(evaluate=evaluate, record=record, step=listener.step)
        name = torch.cuda.get_device_name(fabric.device) if fabric.device.type == "cuda" else ""
        peak = machine.peak_flops(name, run.precision())
        trainer = Trainer(
            model.objective, stream, run, config, schedule, recipe.seed, task.headline, fabric, watch, peak
        )
        if found is not None:
            trainer.resume(found)

        def begin() -> None:
            if found is None:
                run.forget_after(0)
            listener.begin(run, recipe, trainer.progress.step)
            if config.shard != "none" and not trainer.sharded:
                listener.note(f"trainer.shard {config.shard}: a single process has the whole model")
            noted = [part.notes(schedule.steps) for part in model.objective.modules() if isinstance(part, Noted)]
            for note in dict.fromkeys(itertools.chain(schedule.notes, *noted)):
                listener.note(note)
            _introduce(model, listener)

        trainer.agreement.on_first(begin)
        outcome = trainer.train()
    if outcome.reason != "signal":
        trainer.agreement.on_first(lambda: join_weights(run.checkpoints()))
        _report(model, run, fabric, trainer, listener)
    fabric.barrier()
    own_processes.done()
    return outcome


def _report(model: Model, run: Run, fabric: Any, trainer: Trainer, listener: Listener) -> None:
    """Evaluates the best checkpoint and writes the report. A sharded model takes its weights in place; otherwise they
    are those of a model that is loaded as users will load it, but for the data, which the task has read already."""
    if trainer.sharded:
        found = trainer.agreement.on_first(lambda: run.find_checkpoint("best").step)
        load_weights(run.checkpoint(found), model.objective)
        model.objective.eval()
    else:
        task = model.task
        model = load_model(run.folder, device=model.device.type)
        model.task = task
        assert model.checkpoint is not None
        found = model.checkpoint.step
    with _shared(fabric, trainer) as share:
        evaluation = model.evaluate(model.recipe.trainer.report_num, share=share)

    def write() -> None:
        content = {"checkpoint": found, **report(model.task, evaluation)}
        run.write_report("evaluation", content)
        listener.report(content)

    trainer.agreement.on_first(write)


@contextlib.contextmanager
def _shared(fabric: Any, trainer: Trainer) -> Iterator[Share]:
    """This process's share of an evaluation by all processes."""
    if fabric.world_size == 1:
        yield ALONE
        return
    alike = contextlib.nullcontext(lambda: None)
    with used_in_place(trainer.objective, fabric.device) if trainer.sharded else alike as finish:

        def everyone(own: Any) -> list[Any]:
            finish()
            return trainer.agreement.gathered(own)

        yield Share(fabric.global_rank, fabric.world_size, everyone)


@contextlib.contextmanager
def _tensorboard(run: Run, record: Callable[[Record], None]) -> Iterator[Callable[[Record], None]]:
    """Sends every record to TensorBoard as well."""
    writer = _summary_writer()(str(run.writable(run.folder / "tensorboard")))

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
        raise ValueError(f"trainer.tensorboard needs the extra `track`: {to_install('track')}") from None
    return SummaryWriter
