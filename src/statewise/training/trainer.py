"""The only training loop. It is independent of objectives, backbones and tasks."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch

from statewise.data_types import NotFinite
from statewise.run import DamagedCheckpoint
from statewise.runtime.devices import to_device
from statewise.runtime.json_files import AMOUNT, COUNT, MEASURED, NUMBER, SHARE, Maybe, Shape, check, metric
from statewise.runtime.messages import short
from statewise.training.agreement import Agreement, joined
from statewise.training.checkpoint import load_training, load_weights, save, save_sharded
from statewise.training.optim import learning_rate, load_state_by_name, make_optimizer, state_by_name
from statewise.training.sharding import not_finite, whole

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from statewise.batch import Batch
    from statewise.config.recipe import Recipe
    from statewise.config.trainer import TrainerConfig
    from statewise.data_types import Headline
    from statewise.objectives.base import Objective
    from statewise.run import Checkpoint, Record, Run
    from statewise.tasks.batches import Stream
    from statewise.training.compilation import Compiled, CompiledBlocks
    from statewise.training.one_device import OneDevice
    from statewise.training.schedule import Schedule

Made = TypeVar("Made")

HANDLED = (signal.SIGINT, signal.SIGTERM)
"""Signals that stop training after a checkpoint."""
FROM_SCHEDULERS = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""Signals treated as SIGTERM: schedulers send them before a time limit or a preemption."""


@dataclass(frozen=True)
class Listener:
    """Callbacks during training, called on the first process only, in this order."""

    begin: Callable[[Run, Recipe, int], None] = lambda run, recipe, step: None
    """Once, before the first step, with the step from which training starts."""
    note: Callable[[str], None] = lambda note: None
    """Once for each note on the schedule, the model and the data."""
    baselines: Callable[[Mapping[str, Mapping[str, float]]], None] = lambda baselines: None
    """Once, with the metrics of each baseline, if the task has baselines."""
    step: Callable[[int], None] = lambda step: None
    """After every step, with the number of steps done."""
    record: Callable[[Record], None] = lambda record: None
    """With every record of the run, once it is written."""
    report: Callable[[dict[str, Any]], None] = lambda report: None
    """Once, at the end, with the report on the best checkpoint."""


@dataclass(frozen=True)
class Outcome:
    """How training ended."""

    folder: Path
    """The run directory."""
    step: int
    reason: str
    """`steps` (all done), `solved`, or `signal`."""
    signal: int | None = None


LOGGED = {
    *("kind", "step", "steps", "tokens", "loss", "gradient_norm", "learning_rate", "epoch", "tokens_per_second"),
    *("seconds", "flops", "flops_per_second", "mfu", "reason", "part", "auxiliary_factor"),
}
"""Names in the log of training, which no part of a loss may have."""


@dataclass
class Progress:
    """The training state besides weights and optimiser; saved in every checkpoint."""

    step: int = 0
    tokens: int = 0
    """Tokens trained on, without padding; with several processes, the first one's tokens times their number."""
    seconds: float = 0.0
    """Time spent training, before and after resuming."""
    best: float | None = None
    best_step: int = 0
    solved_in_a_row: int = 0
    """Consecutive evaluations, up to the last one, that solved the task."""
    window: dict[str, float] = field(default_factory=dict)
    """Sums over the steps since the last line of training metrics."""


PROGRESS: Shape = {
    "step": COUNT,
    "tokens": COUNT,
    "seconds": AMOUNT,
    "best": Maybe(MEASURED),
    "best_step": COUNT,
    "solved_in_a_row": COUNT,
    "window": {"steps?": AMOUNT, "tokens?": AMOUNT, "seconds?": AMOUNT, "flops?": AMOUNT, ...: NUMBER},
}
"""The shape of a checkpoint's progress."""


class OnHost:
    """A copy of a small tensor on the host; only reading its values waits for the device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        cuda = tensor.device.type == "cuda"
        self.copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=cuda)
        self.copy.copy_(tensor, non_blocking=cuda)
        self.done: Any = torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]
        if self.done is not None:
            self.done.record()

    def values(self) -> list[float]:
        """The numbers of the tensor; waits until the device has copied them."""
        if self.done is not None:
            self.done.synchronize()
        numbers: list[float] = self.copy.tolist()
        return numbers


class Drawn(NamedTuple):
    """The part of a step that the host prepares, in the background during the previous steps."""

    parts: list[Batch]
    """This process's share of the batch, in micro-batches."""
    tokens: int
    """Real tokens of this share, without padding."""


def prefetch(make: Callable[[int], Made], numbers: Iterable[int], most: int = 2) -> Generator[Made, None, None]:
    """`make(number)` for each number, in order, computed in a thread up to `most` results in advance. Exceptions of
    `make` are raised where its result is consumed. The thread ends with the iterator: close one that is not
    exhausted."""
    rest = iter(numbers)
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        waiting = deque(pool.submit(make, number) for number in islice(rest, most))
        while waiting:
            made = waiting.popleft().result()
            waiting.extend(pool.submit(make, number) for number in islice(rest, 1))
            yield made
    finally:
        pool.shutdown(cancel_futures=True)


class Trainer:
    """Trains one objective into one run."""

    def __init__(
        self,
        objective: Objective,
        stream: Stream,
        run: Run,
        config: TrainerConfig,
        schedule: Schedule,
        seed: int,
        headline: Headline,
        fabric: Fabric | OneDevice,
        evaluate: Callable[[], dict[str, float]],
        listener: Listener,
        peak: float | None = None,
        compiled: Compiled = "nothing",
    ) -> None:
        """`evaluate`: computes metrics of the current model on held-out data; all processes call it, and the first
        one's result counts. `peak`: peak FLOP/s of one device, if known. `compiled`: what to compile."""
        self.objective, self.stream, self.run, self.config = objective, stream, run, config
        self.schedule, self.seed, self.headline = schedule, seed, headline
        self.fabric, self.evaluate, self.listener, self.peak = fabric, evaluate, listener, peak
        self.progress = Progress()
        # Before the optimiser: moving to a device or sharding may replace parameters, and the optimiser's state is
        # loaded onto its parameters' device. Compiling and distributing happen only here; self.objective stays the
        # plain module, but if it is sharded, only the forward pass of the wrapped one may use its parameters.
        self.wrapped: Any = fabric.setup_module(objective, _reapply_compile=False)
        self.own_optimizer = make_optimizer(objective, config)
        self.optimizer: Any = fabric.setup_optimizers(self.own_optimizer)
        self.across_rows = objective.backbones_across_rows()
        for backbone in self.across_rows.values():
            backbone.open_lanes(config.batch_size // fabric.world_size)
        self.sharded = config.shard != "none" and fabric.world_size > 1
        if compiled == "whole" and not self.sharded:
            self.wrapped = torch.compile(self.wrapped)
        self.compiled_blocks: CompiledBlocks | None = None
        if compiled == "blocks":
            from statewise.training.compilation import CompiledBlocks

            self.compiled_blocks = CompiledBlocks(objective)
        self.recent: list[tuple[int, list[str], torch.Tensor]] = []
        self.signal: int | None = None
        self.signals: OnHost | None = None
        """The signals that any process had received in the previous step, if there are several processes."""
        self.saved: int | None = None
        """The step of the newest checkpoint, known to every process."""
        self.agreement = Agreement(fabric.global_rank, fabric.world_size)
        self.loss_checked = False

    def resume(self, checkpoint: Checkpoint) -> None:
        """Restores the state of `checkpoint`, and deletes everything later from the run."""
        load_weights(checkpoint, self.objective)
        state = load_training(checkpoint)
        try:
            load_state_by_name(self.own_optimizer, self.objective, state["optimizer"])
            self.progress = Progress(**check(state["progress"], PROGRESS, "progress"))
            for name, backbone in self.across_rows.items():
                if name not in (state.get("lanes") or {}):
                    raise ValueError("lanes are missing")
                backbone.load_lanes({key: self._own_lanes(kept) for key, kept in state["lanes"][name].items()})
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise DamagedCheckpoint(f"{checkpoint.training} does not fit the run's recipe: {error}") from None
        if self.progress.step != checkpoint.step:
            raise DamagedCheckpoint(f"{checkpoint.training} holds step {self.progress.step}, not {checkpoint.step}")
        self.saved = checkpoint.step
        self.agreement.on_first(lambda: self.run.forget_after(checkpoint.step))
        if self.progress.best_step not in [one.step for one in self.run.checkpoints()]:
            self.progress.best = None  # its checkpoint was deleted for a better one, which is now deleted, too
        self._mark_best()  # the process may have been killed between writing a checkpoint and marking it

    def train(self) -> Outcome:
        """Trains to the end. Raises `NotFinite`, naming step and part, before anything not finite is saved."""
        config, progress = self.config, self.progress
        self.objective.train()
        started = time.monotonic() - progress.seconds
        self._compile_blocks()
        numbers = range(progress.step, self.schedule.steps)
        with closing(prefetch(self._draw, numbers)) as steps, self._signals():
            if progress.step == 0 and self.schedule.keeps(0):
                self._save()
            while progress.step < self.schedule.steps and not self._solved():
                began = time.monotonic()
                stop = self._step(next(steps))
                progress.step += 1
                progress.window["seconds"] = progress.window.get("seconds", 0.0) + time.monotonic() - began
                progress.seconds = time.monotonic() - started
                if self.agreement.first:
                    self.listener.step(progress.step)
                if progress.step % config.log_every == 0 or progress.step == self.schedule.steps:
                    self._log()
                if (
                    config.evaluate_every and progress.step % config.evaluate_every == 0
                ) or progress.step == self.schedule.steps:
                    self._evaluate()
                    progress.seconds = time.monotonic() - started
                due = progress.step % config.checkpoint_every == 0 or self.schedule.keeps(progress.step)
                if stop is not None or due:
                    self._flush()  # check that losses are finite before saving
                    self._save()
                if stop is not None:
                    return Outcome(self.run.folder, progress.step, "signal", stop)
            if self.signal is not None and self.fabric.world_size == 1:  # several would have to agree on it
                self._save()
                return Outcome(self.run.folder, progress.step, "signal", self.signal)
        return self._end("solved" if self._solved() else "steps")

    def _compile_blocks(self) -> None:
        """Compiles the blocks by one pass whose gradients are thrown away; goes on without if that fails."""
        if self.compiled_blocks is None:
            return
        micro = [self._to_device(batch) for batch in self._draw(self.progress.step).parts]
        try:
            self._backward(micro, self._global_counts(micro)[0])
        except Exception as error:  # what a compiler can raise is no closed list
            self.compiled_blocks = None
            self._backward(micro, self._global_counts(micro)[0])  # what is wrong without it is no matter of compiling
            reason = str(error).strip().partition("\n")[0]
            self.listener.note(f"the blocks of the model are not compiled: {short(reason, 200)}")
        self.optimizer.zero_grad()

    def _solved(self) -> bool:
        return self.config.stop_when_solved and self.progress.solved_in_a_row >= 2

    def _draw(self, step: int) -> Drawn:
        """The batch of a step."""
        parts = self.stream.batches(step, self.config.accumulate)
        tokens = sum(int(np.count_nonzero(batch.real.numpy())) for batch in parts)
        return Drawn(parts, tokens)

    def _step(self, drawn: Drawn) -> int | None:
        """Makes one optimiser step. Returns the signal to stop for, once every process knows of it."""
        config, step = self.config, self.progress.step
        # Each step's randomness is a function of its number, so resuming needs no generator state.
        torch.manual_seed(_step_seed(self.seed, step, self.fabric.global_rank))
        self.objective.set_progress(step / self.schedule.steps)
        micro = [self._to_device(batch) for batch in drawn.parts]
        counts, stop = self._global_counts(micro)
        rate = learning_rate(step, config, self.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        values = self._backward(micro, counts)
        limit = config.clip or float("inf")
        values["gradient_norm"] = whole(torch.nn.utils.clip_grad_norm_(self.objective.parameters(), limit).detach())
        self.optimizer.step()
        self.optimizer.zero_grad()
        for backbone in self.across_rows.values():
            backbone.advance_lanes()
        names = list(values)  # parts first: of several bad numbers report the cause, not its consequences
        self.recent.append((step + 1, names, torch.stack([values[name].float() for name in names])))
        if self.fabric.device.type == "cpu":
            self._flush()
        self._count_work(drawn)
        return stop

    def _to_device(self, batch: Batch) -> Batch:
        device = self.fabric.device
        return batch if device.type == "cpu" else batch._replace(plan=self.objective.plan(batch)).to(device)

    def _global_counts(self, micro: list[Batch]) -> tuple[dict[str, torch.Tensor], int | None]:
        """The parts' counts over the whole step, and the signal that any process had received one step before."""
        counts: dict[str, torch.Tensor] = {}
        for batch in micro:
            for name, count in self.objective.counts(batch).items():
                counts[name] = counts[name] + count if name in counts else count
        if self.fabric.world_size == 1:
            return counts, self.signal
        sizes = [count.numel() for count in counts.values()]
        signals = torch.tensor([self.signal == number for number in HANDLED], dtype=torch.float64)
        signals = to_device(signals, self.fabric.device)
        flat = self._sum(torch.cat([*(count.reshape(-1).double() for count in counts.values()), signals]))
        shared = torch.split(flat[: -len(HANDLED)], sizes)
        # Read one step later: to read these now would wait for the device in every step.
        before, self.signals = self.signals, OnHost(flat[-len(HANDLED) :])
        received = [number for number, count in zip(HANDLED, before.values() if before else []) if count]
        counts = {name: new.view(old.shape) for (name, old), new in zip(counts.items(), shared)}
        return counts, received[0] if received else None

    def _backward(self, micro: list[Batch], counts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Computes the gradients of all micro-batches. Returns the mean of each part of the loss, and the loss."""
        means: dict[str, torch.Tensor] = {}
        for place, batch in enumerate(micro):
            last = place == len(micro) - 1
            with nullcontext() if last else self.fabric.no_backward_sync(self.wrapped):
                with nullcontext() if self.compiled_blocks is None else self.compiled_blocks.in_place():
                    loss = self.wrapped(batch, counts)
                if not self.loss_checked:
                    self.objective.check_loss(loss)
                    self.loss_checked = True
                loss = loss.with_auxiliary(self.schedule.auxiliary_factor(self.progress.step))
                # DDP averages gradients over processes; the counts are already those of the whole batch.
                self.fabric.backward(loss.value() * self.fabric.world_size)
            for name, part in loss.parts.items():
                if name in LOGGED or metric(name) is SHARE:
                    raise ValueError(
                        f"{type(self.objective).__name__}: a part of its loss is called {name}, which the training "
                        "log uses for something else: rename it"
                    )
                share = part.mean().detach()
                means[name] = means[name] + share if name in means else share
        weights = {name: part.weight for name, part in loss.parts.items()}
        means["loss"] = torch.stack([weights[name] * mean for name, mean in means.items()]).sum()
        return means

    def _count_work(self, drawn: Drawn) -> None:
        """Counts tokens and operations of a step: those of this process, times the number of processes."""
        window, world = self.progress.window, self.fabric.world_size
        window["steps"] = window.get("steps", 0.0) + 1
        window["tokens"] = window.get("tokens", 0.0) + drawn.tokens * world
        self.progress.tokens += drawn.tokens * world
        # Not in `_draw`: backbones that change during training are then still those of an earlier step.
        costs = [self.objective.flops(batch) for batch in drawn.parts]
        known = [cost for cost in costs if cost is not None]
        if len(known) == len(costs):
            window["flops"] = window.get("flops", 0.0) + sum(known) * world

    def _flush(self) -> None:
        """Copies the recent steps' losses to the host, checks them, and adds them to the window."""
        for step, names, values in self.recent:
            numbers = dict(zip(names, self._across(values).tolist()))
            for name, value in numbers.items():
                if not np.isfinite(value):
                    what = "the gradient's norm" if name == "gradient_norm" else f"the loss part {name!r}"
                    self._fail(step, name, f"{what} is {value}", no_update=step == 1)
                self.progress.window[name] = self.progress.window.get(name, 0.0) + value
        self.recent.clear()

    def _across(self, values: torch.Tensor) -> torch.Tensor:
        """Sums loss parts over processes; the gradient norm is the same on all."""
        if self.fabric.world_size == 1:
            return values
        summed = self._sum(values.clone())
        names = self.recent[0][1]
        place = names.index("gradient_norm")
        summed[place] = values[place]
        return summed

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over processes, in place."""
        # Not by Fabric, whose function puts a barrier before: on a GPU each step would wait for the device.
        torch.distributed.all_reduce(values)
        return values

    def _all_lanes(self, kept: torch.Tensor) -> torch.Tensor:
        """The lanes of all processes, in batch order, from those of each (lanes, ...)."""
        return kept if self.fabric.world_size == 1 else joined(kept)

    def _own_lanes(self, kept: torch.Tensor) -> torch.Tensor:
        """This process's lanes, from those of all processes. Raises `ValueError` if these are too few or too many."""
        if len(kept) != self.config.batch_size:
            raise ValueError(f"there are {len(kept)} lanes, and trainer.batch_size is {self.config.batch_size}")
        own: torch.Tensor = kept.view(self.fabric.world_size, -1, *kept.shape[1:])[self.fabric.global_rank]
        return own

    def _fail(self, step: int, part: str, what: str, *, no_update: bool = False) -> None:
        """Raises `NotFinite`. `no_update`: the weights are still the initial ones."""
        last = self.run.checkpoints()
        kept = f"the last checkpoint is that of step {last[-1].step}" if last else "there is no checkpoint yet"
        self._write({"kind": "end", "step": step, "reason": "not finite", "part": part})
        advice = "Try a lower learning rate."
        if no_update:
            advice = "No step had been made: the loss, the data or the initialisation is the cause."
        raise NotFinite(f"step {step}: {what}; training stopped, {kept}. {advice}")

    def _log(self) -> None:
        self._flush()
        window, progress = self.progress.window, self.progress
        steps = window.pop("steps")
        tokens = window.pop("tokens")
        elapsed = max(window.pop("seconds"), 1e-9)
        flops = window.pop("flops", None)
        record: Record = {
            "kind": "train",
            "step": progress.step,
            "tokens": progress.tokens,
            "loss": window["loss"] / steps,
        }
        record |= {name: value / steps for name, value in window.items() if name != "loss"}
        record |= {
            "learning_rate": learning_rate(progress.step - 1, self.config, self.schedule),
            "epoch": self.stream.epoch(progress.step),
            "tokens_per_second": tokens / elapsed,
            "seconds": progress.seconds,
        }
        if self.schedule.auxiliary_decay_steps:
            record["auxiliary_factor"] = self.schedule.auxiliary_factor(progress.step - 1)
        if flops is not None:
            record["flops_per_second"] = flops / elapsed
            if self.peak is not None:
                record["mfu"] = flops / elapsed / (self.peak * self.fabric.world_size)
        window.clear()
        self._write(record)

    def _evaluate(self) -> None:
        """Evaluates, and saves a checkpoint if it is the best so far."""
        self._flush()
        self.objective.eval()
        metrics = self.evaluate()
        self.objective.train()
        metrics, best = self.fabric.broadcast((metrics, self.progress.best))
        if self.headline.metric not in metrics:
            raise ValueError(
                f"the task's headline metric is {self.headline.metric!r}, which is not one of its metrics: "
                f"{', '.join(metrics)}"
            )
        value = metrics[self.headline.metric]
        if np.isnan(value):
            self._fail(self.progress.step, self.headline.metric, f"the metric {self.headline.metric!r} is {value}")
        at = {"step": self.progress.step, "tokens": self.progress.tokens}
        self._write({"kind": "evaluation", **at, **metrics, "seconds": self.progress.seconds})
        self.progress.solved_in_a_row = self.progress.solved_in_a_row + 1 if self.headline.solved(value) else 0
        if best is None or not self.headline.better(best, value):  # ties go to the later one: it was trained for longer
            self.progress.best, self.progress.best_step = value, self.progress.step
            self._save()
            self._mark_best()

    def _mark_best(self) -> None:
        best, step = self.progress.best, self.progress.best_step

        def mark() -> None:
            if best is not None:
                self.run.mark_best(step, self.headline.metric, best)

        self.agreement.on_first(mark)

    def _save(self) -> None:
        """Writes a checkpoint unless this step already has one. Raises `NotFinite` if weights are not finite."""
        if self.saved == self.progress.step:
            return
        for name in itertools.chain(*self.agreement.gathered(not_finite(self.objective))):
            self._fail(self.progress.step, name, f"the weights {name} are not finite")
        lanes = {
            name: {key: self._all_lanes(kept) for key, kept in backbone.kept_lanes().items()}
            for name, backbone in self.across_rows.items()
        }
        step, optimizer = self.progress.step, state_by_name(self.own_optimizer, self.objective)
        training = {"optimizer": optimizer, "progress": vars(self.progress), **({"lanes": lanes} if lanes else {})}
        if self.sharded:
            save_sharded(self.run, step, self.objective, training, self.agreement)

        def finish() -> None:
            if not self.sharded:
                save(self.run, step, self.objective.state_dict(), training)
            self.run.drop_checkpoints(newest=2, keeps=self.schedule.keeps)

        self.agreement.on_first(finish)
        self.saved = step

    def _end(self, reason: str) -> Outcome:
        self._save()
        self._write({"kind": "end", "step": self.progress.step, "reason": reason, "seconds": self.progress.seconds})
        return Outcome(self.run.folder, self.progress.step, reason)

    def _write(self, record: Record) -> None:
        def write() -> None:
            self.run.log(record)
            self.listener.record(record)

        self.agreement.on_first(write)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Within this context, SIGINT, SIGTERM and those of schedulers stop the loop after the current step. A second
        SIGINT interrupts it; others do not, since schedulers send several."""

        def handle(number: int, frame: object) -> None:
            if self.signal == number == signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self.signal = number if number in HANDLED else signal.SIGTERM

        try:
            before = {number: signal.signal(number, handle) for number in (*HANDLED, *FROM_SCHEDULERS)}
        except ValueError:  # not in the main thread: handling signals is left to the caller
            yield
            return
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)


def _step_seed(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
