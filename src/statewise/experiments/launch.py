"""One training run: creates or resumes it, starts its processes, trains, and writes the final report."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from statewise.decoding import make_decoder
from statewise.evaluation.evaluate import ALONE, Share, choose_examples, evaluate, report
from statewise.model.building import inference, make_objective, make_task, parts_of_run, recipe_of_run
from statewise.run import Run
from statewise.runtime.launchers import PLACING, started
from statewise.runtime.messages import to_install
from statewise.tasks.base import HasBaselines
from statewise.tasks.batches import Stream
from statewise.training.agreement import Agreement
from statewise.training.checkpoint import join_weights, load_weights
from statewise.training.machine import choose_device, describe, peak_flops, refuse_missing
from statewise.training.optim import make_optimizer
from statewise.training.processes import done, start
from statewise.training.schedule import Schedule
from statewise.training.sharding import refuse_frozen, used_in_place
from statewise.training.trainer import Listener, Outcome, Trainer

if TYPE_CHECKING:
    import numpy as np
    from lightning_fabric import Fabric
    from torch import nn

    from statewise.batch import Batch
    from statewise.config.recipe import Recipe
    from statewise.data_types import Evaluation, Examples
    from statewise.evaluation.evaluate import Losses
    from statewise.objectives.base import Objective
    from statewise.run import Checkpoint, Record
    from statewise.tasks.base import Task
    from statewise.training.one_device import OneDevice

__all__ = ["Listener", "Outcome", "check", "resume", "train", "train_or_resume"]


@dataclasses.dataclass(frozen=True)
class _Training:
    """What is trained; of several processes, each has a stream of its own."""

    recipe: Recipe
    task: Task
    objective: Objective
    schedule: Schedule
    stream: Stream
    first: Batch | None = None
    """The first batch of a new run."""


def train(recipe: Recipe, folder: str | Path, *, overwrite: bool = False, listener: Listener | None = None) -> Outcome:
    """Trains a new run in `folder`. Raises `FileExistsError` if it exists already."""
    run = Run(Path(folder))
    if not torch.distributed.is_initialized():  # otherwise the first process may have begun it
        Run.refuse(run.folder, overwrite)
    recipe = _with_launched_processes(recipe)
    environment = describe(recipe.trainer)
    fabric = start(recipe.trainer, environment)
    agreement = Agreement(fabric.global_rank, fabric.world_size)
    with contextlib.ExitStack() as locks:
        with contextlib.ExitStack() as claim:
            agreement.on_first(lambda: claim.enter_context(Run.claimed(run.folder, overwrite)))
            training = agreement.each(lambda: _checked(recipe, agreement))
            agreement.on_first(lambda: _create(run, training, environment, overwrite))
            agreement.on_first(lambda: locks.enter_context(run.lock()))
        agreement.each(lambda: _refuse_unshared(run))
        return _train(run, training, fabric, None, listener or Listener())


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
            raise ValueError(f"{flag.partition('=')[0]}: a run is resumed with its own fields; only {names} can change")
    recipe, task, objective = parts_of_run(run, flags)
    counted = any(flag.removeprefix("--").startswith(("trainer.devices", "trainer.nodes")) for flag in flags)
    recipe = _with_launched_processes(recipe, override=not counted)
    schedule = Schedule.of(recipe.trainer, task.longest_row)
    _refuse_settings(recipe, objective)
    environment = run.environment()
    try:
        choose_device(recipe.trainer.device_of(environment))
    except ValueError as error:
        raise ValueError(f"{error}: give --trainer.device cpu to continue the run here") from None
    fabric = start(recipe.trainer, environment)
    agreement = Agreement(fabric.global_rank, fabric.world_size)
    with contextlib.ExitStack() as locks:
        agreement.on_first(lambda: locks.enter_context(run.lock()))
        step = agreement.on_first(lambda: _step_to_resume(run, checkpoint, recipe))
        training = _Training(recipe, task, objective, schedule, _stream(recipe, task, agreement))
        return _train(run, training, fabric, None if step is None else run.checkpoint(step), listener or Listener())


def train_or_resume(recipe: Recipe, folder: str | Path, *, listener: Listener | None = None) -> Outcome | None:
    """Resumes the run in `folder` if it is one of this recipe, otherwise trains a new one there: for commands that are
    started again after a failure or preemption. None if the run is complete. Raises `ValueError` if it is of another
    recipe; the device, how many processes train it, what they share, and what is compiled may differ."""
    run = Run(Path(folder))
    if not run.exists():  # processes agree, since none creates it before all have come here
        return train(recipe, folder, listener=listener)
    here, there = _fields(recipe.as_dict()), _fields(recipe_of_run(run).as_dict())
    free = (*PLACING, "trainer.compile")  # the default of the latter has changed
    names = [name for name in {**here, **there} if name not in free and here.get(name) != there.get(name)]
    if names:
        what = ", ".join(f"{name} is {there.get(name)} there and {here.get(name)} here" for name in names[:3])
        raise ValueError(f"{folder} is a run of another recipe: {what}. Choose another `out`")
    flags = [f"--{name}={here[name]}" for name in PLACING]
    return resume(folder, flags=flags, listener=listener)


def check(recipe: Recipe, listener: Listener | None = None, *, here: bool = True) -> None:
    """Describes a recipe's data. Raises `ValueError` or `OSError` if something is wrong with the data or the recipe, or
    if it is to be trained `here` and this machine cannot."""
    if here:
        config = _with_launched_processes(recipe).trainer
        refuse_missing(describe(config)["device"], config.devices)
    _report_data(_checked(recipe, Agreement(0, 1)), listener or Listener())


def _fields(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of a recipe by dotted name, as JSON values."""
    fields: dict[str, Any] = {}
    for name, value in recipe.items():
        if isinstance(value, Mapping):
            fields |= _fields(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return fields


def _with_launched_processes(recipe: Recipe, *, override: bool = False) -> Recipe:
    """The recipe with as many processes as torchrun or srun have started. Raises `ValueError` if it asks for another
    number, unless `override`, and for several machines without such a launcher."""
    config, launcher = recipe.trainer, started()
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


def _checked(recipe: Recipe, agreement: Agreement) -> _Training:
    """What a recipe says to train. Makes an optimiser, too, and reads one held-out row and one batch, so that a bad
    recipe and bad data fail before the run directory is created or overwritten."""
    task = make_task(recipe)
    objective = make_objective(recipe, task)
    schedule = Schedule.of(recipe.trainer, task.longest_row)
    _refuse_settings(recipe, objective)
    make_optimizer(objective, recipe.trainer)
    _refuse_shared_tensors(objective)
    stream = _stream(recipe, task, agreement)
    task.held_out(1)
    first = stream.batch(0)
    parts = objective.checked_counts(first)
    if recipe.trainer.auxiliary_decay_share:
        _refuse_decay(recipe.objective.name, objective, {*parts} - {"next_token"})
    return _Training(recipe, task, objective, schedule, stream, first)


def _refuse_decay(name: str, objective: Objective, auxiliary: set[str]) -> None:
    """Raises `ValueError` unless the weights of the losses `auxiliary` of an objective can decay."""
    if not auxiliary or not objective.weights_can_decay:
        lack = "computes the gradients of its losses together"
        if not auxiliary:
            lack = "has no loss but that of the next token"
        raise ValueError(f"trainer.auxiliary_decay_share: the objective {name} {lack}: set it to 0")


def _stream(recipe: Recipe, task: Task, agreement: Agreement) -> Stream:
    """This process's training batches."""
    return Stream(
        task,
        seed=recipe.seed,
        batch_size=recipe.trainer.batch_size,
        rank=agreement.rank,
        world=agreement.processes,
        rows=recipe.trainer.rows,
    )


def _refuse_settings(recipe: Recipe, objective: Objective) -> None:
    """Raises `ValueError` for settings of the trainer that this installation, or this model, cannot follow."""
    config = recipe.trainer
    if config.tensorboard:
        _summary_writer()
    if config.shard != "none" and config.processes > 1:
        refuse_frozen(objective)


def _refuse_shared_tensors(objective: nn.Module) -> None:
    """Raises `ValueError` if one tensor has two names: a checkpoint could not be written."""
    names: dict[tuple[int, int], str] = {}
    for name, tensor in objective.state_dict().items():
        if tensor.numel() and tensor.device.type != "meta":
            other = names.setdefault((tensor.data_ptr(), tensor.numel()), name)
            if other != name:
                raise ValueError(
                    f"{type(objective).__name__}: {other} and {name} are one tensor, and a checkpoint holds each under "
                    "one name: keep it in one module, as TokenEmbedding does, and let the other read it there"
                )


def _create(run: Run, training: _Training, environment: Mapping[str, Any], overwrite: bool) -> None:
    """Creates the run directory. The number of steps is stored for commands that follow the run without its data."""
    from statewise.training.compilation import what_to_compile

    steps, first = training.schedule.steps, [] if training.first is None else [training.first]
    compiled = what_to_compile(training.recipe.trainer, training.objective, first, steps, environment["device"])
    kept, commit = {**environment, "steps": steps, "compiled": compiled}, training.objective.pretrained_commit
    if commit:
        kept["model_commit"] = commit
    task = training.task
    Run.create(run.folder, training.recipe.as_dict(), task.files(), kept, task.data_identity(), overwrite=overwrite)


def _refuse_unshared(run: Run) -> None:
    """Raises `ValueError` if this process does not see the folder that the first one has made."""
    if not run.exists():
        raise ValueError(
            f"{run.folder} is not there, though the first process has made it: processes on several machines need "
            "a folder on a disk that they share"
        )


def _step_to_resume(run: Run, checkpoint: str, recipe: Recipe) -> int | None:
    """The step of a checkpoint; None for a run that was killed before its first one, which starts again."""
    run.refuse_lost(recipe.trainer.checkpoint_every)
    return run.find_checkpoint(checkpoint).step if run.checkpoints() else None


def _train(
    run: Run, training: _Training, fabric: Fabric | OneDevice, checkpoint: Checkpoint | None, listener: Listener
) -> Outcome:
    """Trains from `checkpoint`, or from the start, and writes the report. The first process holds the run's lock."""
    config, objective = training.recipe.trainer, training.objective
    agreement = Agreement(fabric.global_rank, fabric.world_size)
    sharded = config.shard != "none" and fabric.world_size > 1
    held_out = _HeldOut(run, training.task, fabric.device, agreement, sharded)
    gpu = torch.cuda.get_device_name(fabric.device) if fabric.device.type == "cuda" else ""
    compiled = run.environment().get("compiled", "whole" if config.compile is True else "nothing")
    with contextlib.ExitStack() as stack:
        if config.tensorboard and agreement.first:
            listener = stack.enter_context(_with_tensorboard(run, listener))
        trainer = Trainer(
            objective,
            training.stream,
            run,
            config,
            training.schedule,
            training.recipe.seed,
            training.task.headline,
            fabric,
            lambda: held_out.evaluate(objective, config.evaluate_num, details=False).metrics,
            listener,
            peak_flops(gpu, run.precision()),
            compiled,
        )
        if checkpoint is None:
            agreement.on_first(lambda: run.forget_after(0))
        else:
            trainer.resume(checkpoint)
        agreement.on_first(lambda: _announce(run, training, trainer.progress.step, listener, sharded=sharded))
        outcome = trainer.train()
    if outcome.reason != "signal":
        agreement.on_first(lambda: join_weights(run.checkpoints()))
        _report(run, training, held_out, listener)
    fabric.barrier()
    done()
    return outcome


def _announce(run: Run, training: _Training, step: int, listener: Listener, *, sharded: bool) -> None:
    """Tells the listener what is about to be trained, from `step` on."""
    shard = training.recipe.trainer.shard
    listener.begin(run, training.recipe, step)
    if run.environment().get("compiled") == "blocks":
        listener.note(
            "trainer.compile auto: the run is long, so the blocks of the model are compiled first, in some seconds; "
            "false: they are not"
        )
    if shard != "none" and not sharded:
        listener.note(f"trainer.shard {shard}: a single process has the whole model")
    for note in dict.fromkeys((*training.schedule.notes, *training.objective.notes(training.schedule.steps))):
        listener.note(note)
    _report_data(training, listener)


def _report_data(training: _Training, listener: Listener) -> None:
    """Passes notes on the data, and the baselines, to the listener before training."""
    task, recipe = training.task, training.recipe
    for note in (*task.summary(), *task.notes):
        listener.note(note)
    if recipe.trainer.stop_when_solved and task.headline.solved_at is None:
        what = f"no {task.headline.metric} counts as solving the task {recipe.task.name}"
        listener.note(f"{what}: trainer.stop_when_solved does nothing, and training goes on to its last step")
    if isinstance(task, HasBaselines):
        listener.baselines(task.baselines(task.held_out(recipe.trainer.evaluate_num)))


@dataclasses.dataclass(frozen=True)
class _HeldOut:
    """Evaluates models of a run on held-out examples, of which each process takes a share."""

    run: Run
    task: Task
    device: torch.device
    agreement: Agreement
    sharded: bool
    """Whether the processes hold shards of the model, which is then used in place."""

    def evaluate(
        self, objective: Objective, num: int | None, *, details: bool, losses: Losses | None = None
    ) -> Evaluation:
        """`evaluation.evaluate` of the model on the first `num` held-out examples, or on all, decoded greedily."""
        examples = choose_examples(self.task, num, None, None)
        decoder, measure = make_decoder("greedy"), objective.held_out_losses
        with self._share(objective) as share, inference(objective, self.run.precision()) as predictor:
            return evaluate(
                self.task, predictor, decoder, examples, details=details, measure=measure, losses=losses, share=share
            )

    @contextlib.contextmanager
    def _share(self, objective: Objective) -> Iterator[Share]:
        if self.agreement.processes == 1:
            yield ALONE
            return
        alike = contextlib.nullcontext(lambda: None)
        with used_in_place(objective, self.device) if self.sharded else alike as finish:

            def everyone(own: Any) -> list[Any]:
                finish()
                return self.agreement.gathered(own)

            yield Share(self.agreement.rank, self.agreement.processes, everyone)


def _report(run: Run, training: _Training, held_out: _HeldOut, listener: Listener) -> None:
    """Evaluates the best checkpoint and writes the report. A sharded model takes the weights in place; otherwise they
    are loaded into a new one, as users will load them."""
    agreement, objective = held_out.agreement, training.objective
    best = run.checkpoint(agreement.on_first(lambda: run.find_checkpoint("best").step))
    if not held_out.sharded:
        objective = make_objective(training.recipe, training.task)
    load_weights(best, objective)
    if not held_out.sharded:
        objective.to(held_out.device)
    losses: list[tuple[Examples, np.ndarray, np.ndarray]] = []
    evaluation = held_out.evaluate(
        objective, training.recipe.trainer.report_num, details=True, losses=lambda *one: losses.append(one)
    )
    content = {"checkpoint": best.step, **report(training.task, evaluation)}

    def write() -> None:
        from statewise.experiments.requests import learned

        if judged := learned(training.task, run, *losses[0]):
            content["verdict"] = dataclasses.asdict(judged)
        run.write_report("evaluation", content)
        listener.report(content)

    agreement.on_first(write)


@contextlib.contextmanager
def _with_tensorboard(run: Run, listener: Listener) -> Iterator[Listener]:
    """The listener, which sends every record to TensorBoard as well."""
    writer = _summary_writer()(str(run.writable(run.folder / "tensorboard")))

    def record(written: Record) -> None:
        for name, value in written.items():
            if isinstance(value, (int, float)) and name != "step":
                writer.add_scalar(f"{written['kind']}/{name}", value, written["step"])
        listener.record(written)

    try:
        yield dataclasses.replace(listener, record=record)
    finally:
        writer.close()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(f"trainer.tensorboard needs the extra `track`: {to_install('track')}") from None
    return SummaryWriter
