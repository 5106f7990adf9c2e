"""Ten restarts of the STRIPS Transformer as one program: what they cost beside one, and beside a loop over restarts.

python benchmarks/strips_restarts.py

blocksworld:2, 500 traces of up to 20 actions, batch 8 a restart. The loop does what the equations say, one restart
after the other: scores as a matrix of T x T for each head, strict mask, stick-breaking by cumulative products, RAdam.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from timing import Benchmark, parser, ratio
from torch import Tensor

from statewise.strips.neural.transformer import Restarts, focal_loss, inconsistency
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces

RESTARTS, BATCH = 10, 8


def plain(theta: Tensor, actions: Tensor) -> Tensor:
    """y [T, B] of one restart, equations 11-17; theta [L, A, 3], actions [B, T], -1 behind the end."""
    here = actions >= 0
    query, key, value = (theta[:, actions.clamp(min=0), part] * here for part in range(3))  # [L, B, T]
    scores = (query[..., :, None] * key[..., None, :]).tril(-1)
    rest = (1 - scores).flip(-1).cumprod(-1).flip(-1)  # the product over k >= j; that over k > j is one further on
    after = torch.cat((rest[..., 1:], torch.ones_like(rest[..., :1])), dim=-1)
    heads = (scores * after * value[..., None, :]).sum(-1)
    return (1 - (1 - heads).prod(0)).T


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    count, steps = (40, 2) if bench.smoke else (500, 20)
    world = domain("blocksworld:2")
    given = traces(world, count, 20, 1)
    shape = (len(world.model.atoms), len(world.model.actions))
    numbers, lengths, labels = (torch.from_numpy(part) for part in given.padded())

    def together(restarts: int) -> Restarts:
        return Restarts(given, shape, restarts, seed=1, batch=BATCH, learning_rate=0.02)

    groups = {restarts: together(restarts) for restarts in (1, RESTARTS)}
    alone = [torch.rand(*shape, 3, requires_grad=True) for _ in range(RESTARTS)]
    optimizers = [torch.optim.RAdam([theta], lr=0.02) for theta in alone]

    def loop() -> None:
        for theta, optimizer in zip(alone, optimizers):
            chosen = torch.randint(len(given), (BATCH,))
            y = plain(theta, numbers[chosen])
            loss = focal_loss(y[:, None], lengths[chosen][None], labels[chosen][None]).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                theta.clamp_(0, 1)

    theta = torch.rand(*shape, 3)
    group = together(1)
    with torch.no_grad():
        group.weights.copy_(theta[None])
    ours = inconsistency(group.weights, numbers[:BATCH].T[:, None])[:, 0]
    assert torch.allclose(ours, plain(theta, numbers[:BATCH]), atol=1e-5), "the two ways differ"

    ways = {
        "one": lambda: [groups[1].step() for _ in range(steps)],
        "ten": lambda: [groups[RESTARTS].step() for _ in range(steps)],
        "loop": lambda: [loop() for _ in range(steps)],
    }
    torch.set_num_threads(1)
    seconds = bench.in_turn(ways, rounds=15)
    for name, each in seconds.items():
        print(f"  {name:5} {steps / min(each):8.0f} steps/s")
    bench.at_most("10 restarts together against one", ratio(seconds["ten"], seconds["one"]), 3)
    bench.at_least(
        "steps/s of 10 restarts together against a loop over them", ratio(seconds["loop"], seconds["ten"]), 5
    )
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
