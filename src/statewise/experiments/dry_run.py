"""What a training run will need: parameters, operations, memory, and time on this machine.

Parameters are counted on a model without weights. Time and memory are measured by real training steps on a few
sequences. A model that is too large for this machine is measured with fewer layers instead.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from statewise.backbones.base import Backbone
from statewise.backbones.capabilities import Pretrained
from statewise.backbones.nn.layers import TokenEmbedding
from statewise.batch import Batch
from statewise.config.recipe import Recipe
from statewise.data_types import Examples
from statewise.model.building import make_objective, make_task
from statewise.objectives.base import Objective
from statewise.runtime.messages import counted
from statewise.tasks.batches import Stream, collate
from statewise.training.compilation import Compiled, what_to_compile
from statewise.training.machine import describe, device_bytes, keep_freed_memory
from statewise.training.optim import make_optimizer
from statewise.training.schedule import Schedule

FLOAT = 4
"""Bytes of a weight, and of its gradient, in float32."""
STATE = 4 * FLOAT
"""Bytes that each weight takes with its gradient and AdamW's two averages."""
SHARE = 0.5
"""The share of a device's memory that measuring may take."""
SHALLOW = (2, 3)
"""Layers of the two models that are measured in place of one that is too large."""
AGAIN = 2.0
"""Passes that take fewer seconds are timed twice, and the shorter time counts."""
LONG_ENOUGH = 0.5
"""Shorter passes, in seconds, are measured again with more sequences."""
OVER_ONE = 3.0
"""So are passes that take less than so many times as long as with one sequence."""
TOO_LONG = 20.0
"""Passes that take more seconds are not measured again."""


@dataclass(frozen=True)
class Data:
    """The part of a task's data on which the cost of a step depends."""

    vocab: Sized
    context: int
    """Tokens of the longest sequence."""
    longest_row: int
    """Tokens of the longest training sequence."""
    parts: list[Batch]
    """The first step's sequences, in the parts that fit a device at a time."""


@dataclass(frozen=True)
class Measured:
    """What training steps took on one device."""

    sequences: int
    """Sequences of the largest pass."""
    pass_seconds: float
    """Seconds of the forward and backward pass of a part."""
    update_seconds: float
    """Seconds of clipping and the optimiser's update."""
    kept_bytes: float
    """Bytes that a part's forward pass keeps for its backward pass."""
    optimizer_bytes: float
    """Bytes of the optimiser's state."""


@dataclass(frozen=True)
class Plan:
    """What a run will need."""

    parameters: dict[str, int]
    """Number of parameters by module; see `count_parameters`."""
    sequences: int
    """Sequences per step."""
    tokens: int
    """Tokens of the first step, without padding."""
    flops: float | None
    """Floating-point operations of the first step, see `Objective.flops`; None: unknown."""
    steps: int
    part: int
    """Sequences that a device processes at a time."""
    parts: int
    """Number of such parts per device and step."""
    device: str
    """The device's name, precision and threads, in words."""
    measured: Measured | None
    """Measurements of the whole model; None: not even a shallow one fits this machine."""
    layers: int
    """Number of layers of the model."""
    by_layers: bool
    """Whether models of `SHALLOW` layers were measured, and `measured` was extrapolated from them."""
    compiled: Compiled
    """What training compiles (`trainer.compile`); measuring compiles nothing."""

    @property
    def total(self) -> int:
        """Number of all parameters."""
        return sum(self.parameters.values())

    @property
    def bytes(self) -> dict[str, float | None]:
        """Memory of a device in bytes, by what it holds; None: unknown."""
        weights, measured = float(FLOAT * self.total), self.measured
        return {
            "weights": weights,
            "gradients": weights,
            "optimiser": None if measured is None else measured.optimizer_bytes,
            "activations": None if measured is None else measured.kept_bytes,
        }

    @property
    def step_seconds(self) -> float | None:
        """Seconds per step; None: unknown."""
        if self.measured is None:
            return None
        return self.parts * self.measured.pass_seconds + self.measured.update_seconds


def make_plan(recipe: Recipe, data: Data) -> Plan:
    """The plan of a recipe for such data."""
    config = recipe.trainer
    with torch.device("meta"):
        objective = make_objective(recipe, data)
    counts = count_parameters(objective)
    environment = describe(config)
    device, precision = environment["device"], environment["precision"]
    torch.set_num_threads(environment["threads"])
    layers, memory = recipe.backbone.config.layers or _layers(objective), device_bytes(device)
    fits = memory is None or STATE * sum(counts.values()) <= SHARE * memory
    steps = Schedule.of(config, data.longest_row).steps
    costs = [objective.flops(batch) for batch in data.parts]
    known = [cost for cost in costs if cost is not None]

    def measured(depth: int) -> Measured | None:
        shallow = dataclasses.replace(recipe.backbone, config=dataclasses.replace(recipe.backbone.config, layers=depth))
        smaller = dataclasses.replace(recipe, backbone=shallow)
        with torch.device("meta"):
            size = sum(count_parameters(make_objective(smaller, data)).values())
        if memory is not None and STATE * size > SHARE * memory:
            return None
        return measure(make_objective(smaller, data).to(device), data.parts[0], config, device, precision, memory)

    return Plan(
        counts,
        sequences=config.batch_size,
        tokens=sum(int(np.count_nonzero(batch.real.numpy())) for batch in data.parts),
        flops=sum(known) if len(known) == len(costs) else None,
        steps=steps,
        part=len(data.parts[0].tokens),
        parts=config.accumulate,
        device=f"{environment['device_name']}, {precision}, {counted(environment['threads'], 'thread')}",
        measured=measured(layers) if fits else deepened([measured(depth) for depth in SHALLOW], layers),
        layers=layers,
        by_layers=not fits,
        compiled=what_to_compile(config, objective, data.parts, steps, device),
    )


def _layers(objective: Objective) -> int:
    """Number of layers of a pre-trained backbone, where the recipe does not say."""
    return next(module.layers for module in objective.modules() if isinstance(module, Pretrained))


def task_data(recipe: Recipe) -> Data:
    """The first step's sequences as training draws them. Raises `ValueError` or `OSError` if the task's data are
    missing or invalid."""
    task, config = make_task(recipe), recipe.trainer
    stream = Stream(task, seed=recipe.seed, batch_size=config.batch_size, rows=config.rows)
    return Data(task.vocab, task.context, task.longest_row, stream.batches(0, config.accumulate * config.processes))


def random_data(recipe: Recipe, vocabulary: int, length: int) -> Data:
    """Full rows of random tokens, one document each, every token but the first scored."""
    config = recipe.trainer
    rows = config.batch_size // (config.accumulate * config.processes)
    tokens = np.random.default_rng(recipe.seed).integers(0, vocabulary, (rows, length))
    part = collate(Examples(tokens, np.full(rows, length), np.zeros(rows, np.int64)))
    return Data(range(vocabulary), length, length, [part] * (config.accumulate * config.processes))


def count_parameters(objective: Objective) -> dict[str, int]:
    """Parameters of the backbone without embeddings, of the embeddings, of the vocabulary head (0 if it shares the
    embeddings' matrix or the objective brings its own), and of each module that the objective adds. A shared parameter
    is counted where it comes first."""
    children = dict(objective.named_children())
    name, backbone = next((name, child) for name, child in children.items() if isinstance(child, Backbone))
    seen: set[int] = set()

    def new(parameters: Iterator[Tensor]) -> int:
        fresh = {id(each): each.numel() for each in parameters if id(each) not in seen}
        seen.update(fresh)
        return sum(fresh.values())

    tables = [part for part in backbone.modules() if isinstance(part, nn.Embedding | TokenEmbedding)]
    embeddings = new(weight for table in tables for weight in table.parameters())
    weight = backbone.head_weight()
    whole = weight if weight._base is None else weight._base  # a padded matrix is handed out in part
    head = new(each for each in backbone.parameters() if each is whole)  # computed weights are not parameters
    counts = {"backbone, without embeddings": new(backbone.parameters()), "embeddings": embeddings, "head": head}
    added = {child: new(part.parameters()) for child, part in children.items() if child != name}
    added["of its own"] = new(objective.parameters())
    return counts | {f"objective: {child.replace('_', ' ')}": count for child, count in added.items() if count}


def measure(
    objective: Objective, part: Batch, config: Any, device: str, precision: str, memory: float | None
) -> Measured:
    """Takes real training steps with more and more sequences of `part`, up to all of them, until one is long enough or
    the next would take too much memory. Time and memory are assumed to grow linearly with the number of sequences, from
    a fixed amount: weights are read, and under autocast copied, once per step."""
    keep_freed_memory()
    objective.train()
    objective.set_progress(0.0)
    optimizer = make_optimizer(objective, config)
    for backbone in objective.backbones_across_rows().values():
        backbone.open_lanes(config.batch_size)
    own = {parameter.untyped_storage().data_ptr() for parameter in objective.parameters()}

    rows = len(part.tokens)

    def loss_of(sequences: int) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = objective(first_rows(part, sequences).to(device))
        objective.check_loss(loss)
        return loss.value()

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(objective.parameters(), config.clip or float("inf"))
        optimizer.step()

    kept = []
    for sequences in range(1, min(2, rows) + 1):
        with kept_for_backward(own) as storages:
            loss_of(sequences)
        kept.append((sequences, float(sum(storages.values()))))
    measured: list[tuple[int, float]] = []
    sequences = 1
    while True:
        if device != "cpu":  # what is compiled for each shape, such as kernels of attention, training does once
            loss_of(sequences).backward()
        seconds = timed(lambda: loss_of(sequences).backward(), device)  # noqa: B023
        if seconds < AGAIN:
            seconds = min(seconds, timed(lambda: loss_of(sequences).backward(), device))  # noqa: B023
        measured.append((sequences, seconds))
        enough = seconds > TOO_LONG or seconds > max(LONG_ENOUGH, OVER_ONE * measured[0][1])
        if sequences == rows or enough or (memory is not None and 2 * grown(kept, 2 * sequences) > SHARE * memory):
            break
        sequences = min(2 * sequences, rows)
    update()
    update_seconds = timed(update, device)
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return Measured(
        sequences,
        grown([measured[0], measured[-1]], rows),
        update_seconds,
        grown(kept, rows),
        optimizer_bytes=float(sum(state.numel() * state.element_size() for state in states)),
    )


def grown(points: list[tuple[int, float]], at: int) -> float:
    """The value at `at` of the line through the first and the last of some points (x, y), in order of x; of a single
    point, the line through it and the origin. The line never falls."""
    (first, low), (last, high) = points[0], points[-1]
    if first == last:
        return high * at / last
    return high + (at - last) * max(0.0, high - low) / (last - first)


def deepened(shallow: list[Measured | None], layers: int) -> Measured | None:
    """Measurements for `layers` layers, from models of `SHALLOW` layers: each further layer costs the same."""
    first, second = shallow
    if first is None or second is None:
        return None

    def at_depth(field: str) -> float:
        return grown([(SHALLOW[0], getattr(first, field)), (SHALLOW[1], getattr(second, field))], layers)

    fields = ("pass_seconds", "update_seconds", "kept_bytes", "optimizer_bytes")
    return Measured(second.sequences, *map(at_depth, fields))


def first_rows(batch: Batch, rows: int) -> Batch:
    """The first sequences of a batch, as wide as the whole."""
    documents, continuation = batch.documents, batch.continuation
    return batch._replace(
        tokens=batch.tokens[:rows],
        scored=batch.scored[:rows],
        real=batch.real[:rows],
        documents=None if documents is None else documents[:rows],
        continuation=None if continuation is None else type(continuation)(*(part[:rows] for part in continuation)),
        plan=None,
    )


@contextmanager
def kept_for_backward(own: set[int]) -> Iterator[dict[int, int]]:
    """Fills a dictionary with the size in bytes, by address, of each storage that forward passes within keep for the
    backward pass, except those at the addresses `own`."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output kept by its own node would keep itself alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def timed(work: Callable[[], object], device: str) -> float:
    """Seconds that `work` takes on the device."""

    def now() -> float:
        if device != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()

    began = now()
    work()
    return now() - began
