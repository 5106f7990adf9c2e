"""How fast a model decodes, and how much memory that takes.

Each measurement has a process of its own, whose memory nothing else has increased before.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statewise.runtime.system import end_with, peak_memory


@dataclass(frozen=True)
class Speed:
    """Time and memory of decoding."""

    prefill_seconds: float
    """Seconds of reading the prompts."""
    decode_seconds: float
    """Seconds of all further tokens, one at a time."""
    tokens_per_second: float
    """New tokens of all rows, divided by the seconds of decoding."""
    megabytes: float | None
    """Peak memory of the GPU, or of the process; None where the system does not report it."""
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
    from statewise.model.recipes import TABLES
    from statewise.training import machine

    if threads:
        torch.set_num_threads(threads)
    machine.keep_freed_memory()
    device = machine.choose_device(device)
    parsed = parse(recipe, [], TABLES)
    task = make_task(parsed, task_files)
    if prefill + decode > task.context:
        raise ValueError(
            f"a prompt of {prefill} and {decode} further tokens do not fit the context of {task.context}: set `prefill`"
            " and `decode` lower"
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
                "the process that measured was killed, probably for lack of memory: set `batch`, `prefill` or `decode` "
                "lower"
            ) from None


@dataclass(frozen=True)
class SpeedsOfModels:
    """Medians over several measurements, beside those of the standard variant of the backbone, if it has one."""

    batch: int
    prefill: int
    """Tokens of a prompt."""
    decode: int
    """New tokens of a row."""
    device: str
    models: dict[str, dict[str, float | None]]
    """The fields of `Speed` but the device, by model: `this model`, and `standard`."""


def speeds_of_run(
    run: str | Path,
    *,
    batch: int = 16,
    prefill: int | None = None,
    decode: int | None = None,
    rounds: int = 3,
    device: str = "auto",
) -> SpeedsOfModels:
    """Measures `decode_speed` of a run `rounds` times. `prefill` is by default a quarter of the context, and `decode`
    the rest of it. Raises `ValueError` if the context does not hold both."""
    from statewise.backbones.capabilities import HasStandard
    from statewise.model.model import model_of_run
    from statewise.run import Run

    opened = Run.open(Path(run))
    recipe: dict[str, Any] = dict(opened.recipe())
    model = model_of_run(opened)
    context, config = model.task.context, model.recipe.backbone.config
    prefill = prefill or max(1, context // 4)
    if decode is None and prefill >= context:
        raise ValueError(
            f"a prompt of {prefill} tokens leaves nothing of the context of {context} to decode: set `prefill` lower"
        )
    decode = decode or context - prefill
    recipes = {"this model": recipe}
    standard: Any = config.standard() if isinstance(config, HasStandard) else None
    if standard is not None:
        recipes["standard"] = {**recipe, "backbone": {**recipe["backbone"], **dataclasses.asdict(standard)}}
    files, environment = opened.task_files(), opened.environment()
    how = device, environment["precision"], environment["threads"]
    measured = {
        name: [in_own_process(one, files, batch, prefill, decode, *how) for _ in range(rounds)]
        for name, one in recipes.items()
    }
    fields = [field.name for field in dataclasses.fields(Speed) if field.name != "device"]
    medians = {
        name: {field: _median([getattr(one, field) for one in speeds]) for field in fields}
        for name, speeds in measured.items()
    }
    return SpeedsOfModels(batch, prefill, decode, measured["this model"][0].device, medians)


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None
