"""A training step of backbone `hf` against the usual loop of transformers, on the same model and the same batch.

Both compute the loss of the next token, the gradients, clip them, and take a step of the same AdamW; rows hold one
document each, or several, of which transformers learns by positions that start again.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from one_step import one_step
from timing import Benchmark, parser, ratio

from statewise.backbones.hf.backbone import HuggingFace
from statewise.backbones.hf.loading import HuggingFaceConfig
from statewise.backbones.nn.masks import positions_within_documents
from statewise.config.trainer import TrainerConfig
from statewise.data_types import Batch, Examples
from statewise.objectives.next_token import NextToken
from statewise.tasks.batches import collate
from statewise.training import machine
from statewise.training.optim import make_optimizer

VOCABULARY = 4096


def save_model(folder: Path, smoke: bool) -> None:
    import transformers

    width, layers = (32, 1) if smoke else (256, 4)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers.logging.disable_progress_bar()
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def theirs(folder: Path, batch: Batch, config: TrainerConfig) -> Callable[[], None]:
    """A call that does one step as the guides of transformers do."""
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )
    labels = batch.tokens.masked_fill(~batch.scored, -100)
    given: dict[str, Any] = {"input_ids": batch.tokens, "labels": labels, "use_cache": False}
    if batch.documents is not None:
        given["position_ids"] = positions_within_documents(batch.documents)

    def step() -> None:
        model(**given).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or float("inf"))
        optimizer.step()
        optimizer.zero_grad()

    return step


def ours(folder: Path, batch: Batch, config: TrainerConfig, context: int) -> Callable[[], None]:
    """A call that does one step of objective next_token."""
    backbone = HuggingFace(HuggingFaceConfig(model=str(folder)), vocabulary=VOCABULARY, context=context)
    objective = NextToken(NextToken.Config(), lambda **fields: backbone)
    return one_step(objective, make_optimizer(objective, config), [batch], "fp32", config.clip)


def batch_of(rows: int, length: int, documents: int) -> Batch:
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (rows, length))
    nothing = np.zeros(rows, np.int64)
    numbers = None if documents == 1 else np.broadcast_to(np.arange(length) * documents // length + 1, tokens.shape)
    return collate(Examples(tokens, np.full(rows, length), nothing, numbers))


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    machine.keep_freed_memory()
    torch.manual_seed(0)
    rows, length = (2, 32) if bench.smoke else (8, 256)
    config = TrainerConfig()
    print(f"{machine.processor_name()}, {torch.get_num_threads()} threads, fp32, {rows} rows of {length} tokens")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder, bench.smoke)
        for documents in (1, 4):
            batch = batch_of(rows, length, documents)
            ways = {"transformers": theirs(folder, batch, config), "hf": ours(folder, batch, config, length)}
            seconds = bench.in_turn(ways, rounds=15, warm_up=2)
            for way, times in seconds.items():
                print(f"  {way:20} {documents} documents a row {1000 * statistics.median(times):8.1f} ms")
            share = ratio(seconds["hf"], seconds["transformers"])
            bench.at_most(f"step time, backbone hf against transformers, {documents} documents a row", share, 1.1)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
