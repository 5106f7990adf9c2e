"""How fast a model decodes, and how much memory that takes.

Measured in a process of its own, so that nothing else has widened its memory before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from statewise.runtime.system import end_with, peak_memory


@dataclass(frozen=True)
class Speed:
    """What decoding took."""

    prefill_seconds: float
    """Reading the prompts."""
    decode_seconds: float
    """All further tokens, one at a time."""
    tokens_per_second: float
    """New tokens of all rows over both."""
    megabytes: float | None
    """Peak memory: of the GPU, or of the process; None where the system does not tell."""
    device: str
    """`cpu`, `cuda`, or another accelerator."""


def decode_speed(
    recipe: Mapping[str, Any],
    task_files: Mapping[str, bytes] | None,
    batch: int,
    prefill: int,
    decode: int,
    device: str,
    precision: str,
    threads: int | None,
) -> Speed:
    """Decodes greedily from random prompts with a new model of a recipe, as one is at the end of training; its
    weights do not decide its speed.

    `batch` rows of `prefill` tokens, and `decode` further ones each. Raises `ValueError` if these do not fit the
    context. Meant to be run in a process of its own.
    """
    import torch

    from statewise.config.recipe import parse
    from statewise.model.building import make_objective, make_task
    from statewise.model.parts import TABLES
    from statewise.training import machine

    if threads:
        torch.set_num_threads(threads)
    machine.keep_freed_memory()
    device = machine.choose_device(device)
    parsed = parse(recipe, [], TABLES)
    task = make_task(parsed, task_files)
    if prefill + decode > task.context:
        raise ValueError(
            f"a prompt of {prefill} and {decode} further tokens do not fit the context of {task.context}: set --prefill"
            " and --decode lower"
        )
    objective = make_objective(parsed, task).to(device).eval()
    objective.set_progress(1.0)
    predictor = objective.predictor()
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, predictor.vocabulary, (batch, prefill), generator=generator).to(device)

    def wait() -> float:
        if device != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()

    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
        # On a GPU with prompts of full length: what is compiled for a length, such as FlexAttention, is compiled here.
        warm, logits = predictor.start(prompts if device != "cpu" else prompts[:, :2])
        predictor.extend(warm, logits.argmax(-1)[:, None])
        del warm
        began = wait()
        cursor, logits = predictor.start(prompts)
        read = wait()
        for _ in range(decode):
            logits = predictor.extend(cursor, logits.argmax(-1)[:, None])[:, -1]
        ended = wait()
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else peak_memory()
    return Speed(read - began, ended - read, batch * decode / (ended - began), peak, device)


def in_own_process(*arguments: Any) -> Speed:
    """`decode_speed`, in a new process. Raises `ValueError` if that was killed."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=end_with, initargs=(os.getpid(),)) as worker:
        try:
            return worker.submit(decode_speed, *arguments).result()
        except BrokenProcessPool:
            raise ValueError(
                "the process that measured was killed, probably for lack of memory: set --batch, --prefill or --decode "
                "lower"
            ) from None
