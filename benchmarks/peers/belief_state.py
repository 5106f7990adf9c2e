"""A training step of the Belief State Transformer against the one of x-transformers, in one run.

pip install x-transformers==2.31.10
python benchmarks/peers/belief_state.py

Both train two encoders of the same size and a text head of three layers over all pairs, forward and backward, in the
precision that statewise would choose. x-transformers gathers all pairs at once. Ours counts pairs with an empty prefix,
which x-transformers leaves out. The mixture head of statewise is compared with the same step of x-transformers: it is
another model, at the same task.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # the frame of all benchmarks stands there
import torch
from one_step import like_the_trainer, one_step
from timing import Benchmark, parser, ratio
from torch import Tensor, nn

from statewise.backbones.base import Backbone
from statewise.backbones.gpt import GPT, GPTConfig
from statewise.data_types import Batch
from statewise.objectives.belief_state.objective import BeliefState, BeliefStateConfig

VERSION = "2.31.10"


@dataclass(frozen=True)
class Size:
    batch: int
    tokens: int
    layers: int
    width: int
    heads: int
    vocabulary: int
    head_width: int
    expert_width: int | None
    bars: tuple[float, float]
    """Speed against x-transformers with the MLP head, and with the mixture head."""


SIZES = (Size(128, 32, 3, 96, 4, 20, 128, None, (1.8, 2.0)), Size(1, 256, 2, 768, 8, 1000, 512, 128, (3.0, 6.0)))
SMOKE = (Size(2, 8, 1, 16, 2, 10, 8, None, (1.8, 2.0)),)


def ours(size: Size, head: str) -> BeliefState:
    def make_backbone(*, extra_tokens: int = 0, tied: bool = False, embedding_of: Backbone | None = None) -> Backbone:
        config = GPTConfig(layers=size.layers, width=size.width, heads=size.heads, tied=tied)
        return GPT(config, vocabulary=size.vocabulary + extra_tokens, context=size.tokens, embedding_of=embedding_of)

    torch.manual_seed(0)
    fields: dict[str, dict[str, Any]] = {
        "mlp": {"head_width": size.head_width},
        "mixture": {"expert_width": size.expert_width},
    }
    return BeliefState(BeliefStateConfig(head=head, **fields[head]), make_backbone)


def theirs(size: Size) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper
    from x_transformers.belief_state_wrapper import BeliefStateWrapper

    def encoder() -> nn.Module:
        layers = Decoder(
            dim=size.width,
            depth=size.layers,
            heads=size.heads,
            attn_dim_head=size.width // size.heads,
            rotary_pos_emb=True,
        )
        made: nn.Module = TransformerWrapper(
            num_tokens=size.vocabulary, max_seq_len=size.tokens + 1, attn_layers=layers, use_abs_pos_emb=False
        )
        return made

    torch.manual_seed(0)
    head = nn.Sequential(
        nn.Linear(2 * size.width, size.head_width),
        nn.ReLU(),
        nn.Linear(size.head_width, size.head_width),
        nn.ReLU(),
        nn.Linear(size.head_width, 2 * size.vocabulary),
    )
    made: nn.Module = BeliefStateWrapper(encoder(), encoder(), text_head=head)
    return made


def their_step(model: nn.Module, tokens: Tensor, precision: str) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    there = importlib.util.find_spec("x_transformers") is not None
    if not there:
        print(f"x-transformers is not installed: pip install x-transformers=={VERSION}")
        if not bench.smoke:
            return 2
    precision = like_the_trainer()
    for size in SMOKE if bench.smoke else SIZES:
        tokens = torch.randint(0, size.vocabulary, (size.batch, size.tokens))
        everywhere = torch.ones_like(tokens, dtype=torch.bool)
        scored = everywhere.clone()
        scored[:, 0] = False
        batch = Batch(tokens, scored, everywhere, None, (1, size.tokens))
        ways: dict[str, Callable[[], object]] = {}
        for name in ("mlp", "mixture"):
            model = ours(size, name)
            ways[name] = one_step(model, torch.optim.AdamW(model.parameters()), [batch], precision)
        if there:
            ways["x-transformers"] = their_step(theirs(size), tokens, precision)
        seconds = bench.in_turn(ways, rounds=7, warm_up=2)
        title = f"T = {size.tokens}, B = {size.batch}, {size.layers} x {size.width}"
        for name, found in seconds.items():
            print(f"  {title}: {name:16} {1e3 * min(found):8.1f} ms a step")
        if there:
            for name, bar in zip(("mlp", "mixture"), size.bars):
                bench.at_least(f"{title}: speed with head {name}", ratio(seconds["x-transformers"], seconds[name]), bar)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
