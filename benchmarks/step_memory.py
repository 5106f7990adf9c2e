"""The peak memory of a training step of every recipe, against what the step needs by a formula.

python benchmarks/step_memory.py [--precision fp32|bf16] [--only RECIPE]

The step is that of the training loop, on a CPU. Large models are measured with less width and at most three layers, on
some 500 tokens; the formula has the same terms at every size. Recipes whose data are not on this machine are measured
on random tokens. All bytes of tensors are counted as PyTorch's allocator hands them out, from the first parameter on;
the peak is that of the second step. Batches, which are NumPy's, are not counted.

For one recipe the count is checked by the resident memory of a process of its own. That has first trained a tiny model,
so that imports (the first step of an optimiser imports PyTorch's compiler) and libraries' first calls are over, and its
malloc gives freed blocks back at once. What is left beyond tensors is small: in bf16 oneDNN's descriptors, two of
258 kB for each shape of a product. With the settings of training, which keep freed memory, the process grows by more.

The formula. N tokens are in the rows of a batch, of T tokens each; V, D, H: vocabulary, width, width inside the
feed-forward part; h heads; c bytes of a value in the training precision (bf16 2, fp32 4). A step needs, in bytes:

- weights: 4 for each parameter; gradients: 4.
- optimiser: AdamW 8 for each parameter, Muon 4 for each value of a hidden matrix.
- copies: in bf16, 2 for each value of a matrix that products read.
- activations, what the forward pass must keep for the backward pass:
    - of a block: the inputs of its two norms or what they make of them, 8 N D; the inputs of three matrices, 3 c N D;
      queries, keys, values, 3 c N D; SwiGLU: gate, other half, SiLU of the gate, their product, 4 c N H; GELU: its
      input and output, 2 c N H; ReLU: its output. Attention written out as products: its weights, c N h max(T, 16).
      Attention by blocks or a fused kernel: its output, c N D, and a number per head, 4 N h. Two streams: twice the
      tokens; of the last block, only the stream that is read.
    - of the last norm: 4 N D.
    - of a recurrent layer, in float32: input and output, 8 N D, and what oneDNN keeps for an LSTM, 62 N D; gates and
      cell states alone would be 20. Of a GRU, gates and the product of the state: 16 N D.
    - of a vocabulary head, for n scored columns: its input, c n D. All logits at once: log-probabilities, 4 n V. In
      blocks: the gradient of the input, 4 n D, and that of the matrix, 4 V D, computed in the forward pass.
    - of a rollout step of next-latent prediction, E the state's width, G the width inside the dynamics network: the
      state twice, (4 + c) N E; the hidden layers, 5 c N G; the divergence: as a vocabulary head, without the matrix.
    - of the pair loss, G the width of the text head: both states, 2 c N D; their projections and the gradients of
      these, 2 (c + 4) N G; the gradients of the head's matrices, 4 for each value.
- the largest temporary of:
    - a vocabulary head: log-probabilities' gradient and the logits', 8 bytes for each logit; in blocks, (4 + c) for
      each logit of a block (of divergences three times 4, and c), and the product of a block that is added to the
      matrix's gradient, c V D.
    - the pair loss: three blocks of `pair_loss.BLOCK` bytes.
    - the backward pass of an LSTM: oneDNN's scratch memory, 24 N D, and the gradients of input and output, 8 N D.
    - the backward pass of a block: gradients of the feed-forward part, 3 c N H, of residual stream and norm, 12 N D.
    - a second gradient of the largest matrix before it is added to the first, 4 for each value.
    - Muon: five tensors of all matrices that are orthogonalised together, 4 for each value.

Column *kept* is what `statewise train --dry-run` predicts for activations: what autograd was handed in this program.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # PyTorch's profiler would print about itself

import own_process
import torch
from timing import Benchmark, parser
from torch.autograd.profiler import profile, record_function

from statewise.backbones.nn.attention import SOFTMAX_FROM, WRITTEN_OUT_UP_TO
from statewise.backbones.nn.block import BlockConfig
from statewise.batch import Batch
from statewise.config.recipe import Recipe
from statewise.config.recipes import recipe_names, recipe_text
from statewise.experiments.dry_run import Data, kept_for_backward, random_data, task_data
from statewise.losses.belief_state.pair_loss import BLOCK as PAIR_BLOCK
from statewise.losses.vocabulary_head import fits_whole, rows_of_block
from statewise.model.building import make_objective, make_task
from statewise.model.recipes import read_recipe
from statewise.objectives.base import Objective
from statewise.training import machine
from statewise.training.one_device import OneDevice
from statewise.training.optim import STACK, hidden_matrices
from statewise.training.schedule import Schedule
from statewise.training.trainer import Listener, Trainer

BAR = 1.3
CHECKED = "path-star-small"
OF_COUNT = (1.0, 1.25)
"""By at least and at most so many times the bytes counted may the process grow that checks the count."""
TOKENS = 512
"""About so many tokens are in a batch."""
LAYERS = 3
WIDTH = 256
"""Wider models are measured with a half, a quarter ... of their width."""
RANDOM = {"manhattan": 4580, "sequences-small": 4600, "stories-small": 1000, "tinystories": 1000}
"""Vocabularies of recipes whose data are elsewhere; of others, of text, it is `TEXT`."""
TEXT = 4096
LENGTH = 256
SMOKE = ("path-star-small", "flip-flop", "two-stream-xs")


class Enough(Exception):
    """Ends training."""


@dataclass
class SameBatch:
    """A stream that always has the same batch."""

    parts: list[Batch]

    def batches(self, number: int, parts: int) -> list[Batch]:
        """The parts of a step."""
        return self.parts


def reduced(name: str) -> tuple[Recipe, Data]:
    """A recipe at a size that is measured in a second, and data for it."""
    whole = read_recipe(recipe_text(name), [])
    config = whole.backbone.config
    width = config.width
    while width > WIDTH:
        width //= 2
    flags = [f"--backbone.width={width}", f"--backbone.layers={min(LAYERS, config.layers)}", "--trainer.keep=null"]
    parts = min(2, whole.trainer.accumulate)

    def sized(length: int) -> Recipe:
        rows = max(1, min(whole.trainer.batch_size, TOKENS // length))
        return read_recipe(
            recipe_text(name), [*flags, f"--trainer.batch_size={rows * parts}", f"--trainer.accumulate={parts}"]
        )

    try:
        recipe = sized(make_task(whole).longest_row)
        return recipe, task_data(recipe)
    except (OSError, ValueError):  # the data are not here
        recipe = sized(LENGTH)
        return recipe, random_data(recipe, RANDOM.get(name, TEXT), LENGTH)


@dataclass(frozen=True)
class Need:
    """What a step needs by the formula, in bytes."""

    weights: float
    """With gradients, optimiser and copies."""
    activations: float
    temporary: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.activations + self.temporary


def need(objective: Objective, recipe: Recipe, part: Batch, size: int) -> Need:
    """The formula, for a value of `size` bytes in the training precision."""
    N, T = part.tokens.numel(), part.tokens.shape[1]
    config: Any = recipe.backbone.config
    D = config.width
    matrices = [each for each in objective.parameters() if each.dim() == 2]
    values = sum(each.numel() for each in objective.parameters())
    of_muon = hidden_matrices(objective) if recipe.trainer.optimizer == "muon" else []
    orthogonal = sum(each.numel() for each in of_muon)
    weights = 16.0 * values - 4 * orthogonal + (sum(2 * each.numel() for each in matrices) if size == 2 else 0)
    heads = list(head_terms(objective, part, size))
    encoders = len({id(module) for module in objective.modules() if hasattr(module, "blocks")})
    temporary = max(
        [temporary for _, temporary in heads]
        + [4.0 * max(each.numel() for each in matrices), 20.0 * min(STACK, orthogonal)]
        + ([3.0 * size * N * config.hidden_width + 12 * N * D] if isinstance(config, BlockConfig) else [32.0 * N * D])
    )
    return Need(
        weights, encoders * body(objective, config, part, N, T, size) + sum(kept for kept, _ in heads), temporary
    )


def body(objective: Objective, config: Any, part: Batch, N: int, T: int, c: int) -> float:
    """Activations of one backbone."""
    D = config.width
    if not isinstance(config, BlockConfig):
        return float((8 + (62 if config.cell == "lstm" else 16)) * N * D * config.layers)
    keys = min(T, getattr(config, "chunk", T))
    streams = max(len(getattr(module, "streams", ("input",))) for module in objective.modules())
    limit = WRITTEN_OUT_UP_TO[torch.bfloat16 if c == 2 else torch.float32]
    written_out = keys <= limit and part.documents is None and not hasattr(config, "variant")
    attention = c * config.heads * max(keys, SOFTMAX_FROM) if written_out else c * D + 4 * config.heads
    hidden = {"swiglu": 4, "gelu": 2, "relu": 1}[config.mlp] * config.hidden_width
    block = (8 + 6 * c) * D + attention + c * hidden
    return float(N * (block * (streams * (config.layers - 1) + 1) + 4 * D))


def head_terms(objective: Objective, part: Batch, c: int) -> Iterator[tuple[float, float]]:
    """What each reading of a vocabulary head keeps, and its temporary."""
    first, end = part.span
    N = part.tokens.numel()
    config: Any = getattr(objective, "config", None)
    kind = type(objective).__name__
    if kind == "BeliefState":
        text_head: Any = objective.head
        G, D = text_head.first.out_features, text_head.first.in_features / 2
        yield (
            2.0 * c * N * D + 2 * (c + 4) * N * G + 4 * sum(each.numel() for each in text_head.parameters()),
            3.0 * (PAIR_BLOCK["cpu"]),
        )
        return
    if kind not in ("NextToken", "NextLatent"):
        raise ValueError(f"the formula of step_memory.py does not know the objective {kind}: add it")
    backbone: Any = objective.backbone
    V, D = backbone.head_weight().shape
    steps = config.horizon if kind == "NextLatent" else 0
    readings = 1 + (steps if steps and config.kl_weight else 0)
    n = len(part.tokens) * (end - first)
    whole = fits_whole(readings * n, V, torch.device("cpu"))
    block = min(n, rows_of_block(V, torch.device("cpu"))) * V
    product = float(c * V * D)
    yield (
        c * n * D + (4 * n * V if whole else 4 * n * D + 4 * V * D),
        8.0 * n * V if whole else (4 + c) * block + product,
    )
    for _ in range(steps):
        dynamics: Any = objective.dynamics
        E, G = dynamics.widths[1], dynamics.first.out_features
        read = (c * n * D + (4 * n * V if whole else 4 * n * D)) if config.kl_weight else 0
        yield (4 + c) * N * E + 5 * c * N * G + read, 8.0 * n * V if whole else (12 + c) * block


@dataclass(frozen=True)
class Found:
    """Bytes of a step."""

    peak: float
    kept: float
    """What autograd was handed."""


def measured(recipe: Recipe, data: Data, precision: str) -> tuple[Found, Objective]:
    """Trains for two steps; the peak is that of the second."""
    torch.manual_seed(0)

    def after(step: int) -> None:
        with record_function(f"step {step} is done"):
            pass
        if step == 2:
            raise Enough

    with profile(profile_memory=True) as profiled:
        objective = make_objective(recipe, data)
        with contextlib.suppress(Enough):
            trainer(objective, recipe, data, precision, after).train()
    held = peak = 0
    for event in sorted(profiled.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "step 1 is done":
            peak = held
        elif event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    own = {parameter.untyped_storage().data_ptr() for parameter in objective.parameters()}
    with kept_for_backward(own) as kept, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        objective(data.parts[0]).value()
    return Found(peak, sum(kept.values())), objective


def trainer(objective: Objective, recipe: Recipe, data: Data, precision: str, after: Any) -> Trainer:
    """The training loop, without a run: it ends before it writes anything."""
    schedule = Schedule.of(recipe.trainer, data.longest_row)
    nothing: Any = None
    stream: Any = SameBatch(data.parts)
    return Trainer(
        objective,
        stream,
        nothing,
        recipe.trainer,
        schedule,
        recipe.seed,
        nothing,
        OneDevice("cpu", precision),
        nothing,
        Listener(step=after),
    )


def resident(precision: str, threads: int, keep_freed: bool) -> float:
    """Bytes by which the resident memory of this process grows in three steps of a recipe, the model included, after
    three steps of a tiny model. `keep_freed`: whether malloc keeps freed memory, as in training."""
    torch.set_num_threads(threads)
    if keep_freed:
        machine.keep_freed_memory()
    else:
        give_back_freed_memory()

    def after(step: int) -> None:
        if step == 3:
            raise Enough

    def train(*flags: str) -> float:
        recipe = read_recipe(recipe_text(CHECKED), ["--trainer.keep=null", *flags])
        data = task_data(recipe)
        with contextlib.suppress(Enough):
            trainer(make_objective(recipe, data), recipe, data, precision, after).train()
        return own_process.peak()

    before = train("--backbone.layers=1", "--backbone.width=32", "--trainer.batch_size=2")
    return 2**20 * (train() - before)


def give_back_freed_memory() -> None:
    """Makes glibc, where it is the C library, map blocks of 64 KiB and more one by one, so that freed ones are gone."""
    if platform.libc_ver()[0] == "glibc":
        mmap_threshold = -3  # M_MMAP_THRESHOLD of malloc.h
        ctypes.CDLL(None).mallopt(mmap_threshold, 2**16)


def main(words: Sequence[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--precision", choices=("fp32", "bf16"), help="default: what training takes here")
    options.add_argument("--only", metavar="RECIPE", choices=recipe_names(), help="measure this recipe alone")
    given = options.parse_args(words)
    bench = Benchmark(given.smoke)
    precision = given.precision or machine.choose_precision("auto", "cpu")
    size = 2 if precision == "bf16" else 4
    names = [given.only] if given.only else SMOKE if bench.smoke else recipe_names()
    print(f"{machine.processor_name()}, {precision}; MB")
    if not (bench.smoke or given.only):
        check(bench, precision)  # first: a child inherits its parent's peak
    print(
        f"{'recipe':22} {'weights':>9} {'activations':>11} {'kept':>7} {'temporary':>9} {'need':>8} {'peak':>8} ratio"
    )
    ratios = {}
    for name in names:
        recipe, data = reduced(name)
        found, objective = measured(recipe, data, precision)
        formula = need(objective, recipe, data.parts[0], size)
        ratios[name] = found.peak / formula.total
        print(
            f"{name:22} {formula.weights / 1e6:9.1f} {formula.activations / 1e6:11.1f} {found.kept / 1e6:7.1f} "
            f"{formula.temporary / 1e6:9.1f} {formula.total / 1e6:8.1f} {found.peak / 1e6:8.1f} {ratios[name]:5.2f}",
            flush=True,
        )
    worst = max(ratios, key=ratios.__getitem__)
    print(f"  median over {len(ratios)} recipes: {statistics.median(ratios.values()):.2f}")
    bench.at_most(f"peak of a step / need by formula, worst recipe ({worst})", ratios[worst], BAR)
    return bench.exit_code()


def check(bench: Benchmark, precision: str) -> None:
    """Judges the count by the resident memory of a process, for a recipe at its own size."""
    recipe = read_recipe(recipe_text(CHECKED), ["--trainer.keep=null"])
    threads = torch.get_num_threads()
    grown, with_freed = (own_process.call(resident, precision, threads, keep_freed) for keep_freed in (False, True))
    found, _ = measured(recipe, task_data(recipe), precision)
    print(
        f"  {CHECKED} at its own size: {found.peak / 1e6:.0f} MB counted; a process grows by {grown / 1e6:.0f} MB, "
        f"by {with_freed / 1e6:.0f} MB if malloc keeps freed memory, as in training"
    )
    at_least, at_most = OF_COUNT
    bench.at_least("growth of a process / bytes counted", grown / found.peak, at_least)
    bench.at_most("growth of a process / bytes counted", grown / found.peak, at_most)


if __name__ == "__main__":
    sys.exit(main())
