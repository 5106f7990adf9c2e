"""Training steps against a roofline: matrix products at their measured rate, all else at the measured rate of memory.

python benchmarks/roofline.py [--profile]

The limit of a step is the operations of its products over the rate of a product of the model's sizes, plus the bytes
that all other kernels read and write over the rate of a copy of a tensor of the model's sizes. So what a step loses to
its limit is the overhead of kernels and calls, and arithmetic that is slower than memory; to lower the limit itself,
kernels must read and write less. With `--profile`, also where the time goes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from one_step import like_the_trainer, one_step
from products import rates
from timing import Benchmark, in_turn, parser
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from statewise.config.recipes import recipe_text
from statewise.model.building import make_objective, make_task
from statewise.model.recipes import read_recipe
from statewise.tasks.batches import Stream
from statewise.training.optim import make_optimizer

STEPS = {
    "path-star-small": ["next_token", "next_latent", "belief_state"],
    "city-small": ["next_token", "next_latent"],
    "hmm-rrxor": ["next_latent"],
}
"""Objectives by recipe."""
BAR = 0.5
"""The least share of the limit's speed."""
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu"}
KINDS = {
    "products": ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul"),
    "attention and softmax": ("softmax", "scaled_dot_product", "flash"),
    "copies and casts": ("copy_", "_to_copy", "clone", "cat", "stack", "contiguous", "fill_", "zero_"),
    "norms": ("norm",),
    "sums": ("sum", "mean", "logsumexp", "amax"),
    "updates of weights": ("_foreach", "_fused_adam"),
}
"""Parts of kernels' names by kind; the rest is elementwise, but for indexing."""


class Traffic(TorchDispatchMode):
    """Counts the bytes that kernels read and write, products and views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.kernels = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        given = storages((args, kwargs))
        new = storages(found)
        moved = function.is_view or name in {"detach", "empty", "empty_like", "new_empty", "empty_strided", "set_"}
        if not moved and name not in PRODUCTS:
            self.kernels += 1
            self.bytes += sum(given.values()) + sum(size for place, size in new.items() if place not in given)
            if name.endswith("_"):  # what is changed in place is read and written
                self.bytes += next(iter(given.values()), 0)
        return found


def storages(tree: Any) -> dict[tuple[int, int], int]:
    """Bytes of the tensors in nested arguments, each counted once."""
    tensors = [each for each in torch.utils._pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]
    return {(each.data_ptr(), each.numel()): each.numel() * each.element_size() for each in tensors}


def bytes_per_second(size: int, rounds: int) -> float:
    """Bytes that a copy of a tensor of `size` bytes reads and writes in a second, at its fastest."""
    source, target, repeats = torch.randn(size // 4), torch.empty(size // 4), 50
    seconds = in_turn({"copy": lambda: [target.copy_(source) for _ in range(repeats)]}, rounds)["copy"]
    return 2 * size * repeats / min(seconds)


def by_kind(step: Callable[[], None]) -> list[str]:
    """Lines with the share of each kind of kernels in the time of some steps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(5):
            step()
    seconds: Counter[str] = Counter()
    for event in profile.key_averages():
        name = event.key.removeprefix("aten::")
        kind = next(
            (kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "elementwise, indexing"
        )
        seconds[kind] += event.self_cpu_time_total
    whole = seconds.total()
    return [f"    {kind:24} {spent / whole:5.0%}" for kind, spent in seconds.most_common()]


def main(words: Sequence[str] | None = None) -> int:
    options = parser(__doc__, quick=True)
    options.add_argument("--profile", action="store_true", help="print where the time of each step goes")
    given = options.parse_args(words)
    bench = Benchmark(given.smoke, given.quick)
    precision = like_the_trainer()
    chosen = {"path-star-small": ["next_latent"]} if given.smoke else STEPS
    small = ["--backbone.width=32", "--trainer.batch_size=8"] if given.smoke else []
    for name, objectives in chosen.items():
        for kind in objectives:
            recipe = read_recipe(recipe_text(name), [f"--objective={kind}", *small])
            task = make_task(recipe)
            objective = make_objective(recipe, task)
            stream = Stream(task, seed=1, batch_size=recipe.trainer.batch_size)
            batches = [stream.batch(number) for number in range(4)]
            step = one_step(
                objective, make_optimizer(objective, recipe.trainer), batches, precision, recipe.trainer.clip
            )
            step()
            with FlopCounterMode(display=False) as flops:
                step()
            with Traffic() as traffic:
                step()
            tokens, width = batches[0].tokens.numel(), recipe.backbone.config.width
            rounds = bench.rounds(10)
            rate = rates(tokens, width, 4 * width, (precision,), rounds)[precision]
            memory = bytes_per_second(4 * tokens * width, rounds)
            products, others = flops.get_total_flops() / rate, traffic.bytes / memory
            seconds = min(bench.in_turn({"step": step}, rounds=15)["step"])
            print(
                f"{name} {kind}: {1e3 * seconds:.1f} ms; limit {1e3 * products:.1f} ms of products "
                f"({rate / 1e9:.0f} GFLOP/s) and {1e3 * others:.1f} ms of {traffic.bytes / 1e6:.0f} MB in "
                f"{traffic.kernels:,} kernels ({memory / 1e9:.0f} GB/s)"
            )
            if given.profile:
                print("\n".join(by_kind(step)))
            limit = products + others
            bench.at_least(f"{name} {kind}: share of its limit", limit / seconds, BAR, f"{1e3 * limit:.1f} ms")
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
