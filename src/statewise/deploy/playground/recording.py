"""The page with recorded traces of held-out prompts, as one file that needs no server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statewise.deploy.playground.observer import Observer, TraceRequest
from statewise.deploy.playground.page import MARK, page
from statewise.deploy.playground.trace import Trace
from statewise.deploy.serving.served import Served
from statewise.runtime.durable import write_atomically
from statewise.runtime.overwriting import claimed_file


def claimed(path: Path, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on `path` (`statewise.runtime.overwriting`), and the place where the page is written. Raises
    `FileExistsError` or `FileNotFoundError` unless its folder exists, and at `path` there is nothing, or with
    `overwrite` such a page."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder: create it, or choose another --export")

    def check() -> None:
        if path.exists() and MARK.encode() not in path.read_bytes()[:1000]:
            raise FileExistsError(
                f"{path} is not replaced: it is not a page that statewise wrote. Choose another --export"
            )

    return claimed_file(path, overwrite, "--export", check)


def same_task(models: Sequence[Served]) -> None:
    """Raises `ValueError` unless all models read the same sequences, so that they can be shown side by side."""
    first, *others = models
    for other in others:
        if Observer(other).sequences != Observer(first).sequences:
            mine, theirs = (one.model.recipe.task.name for one in (first, other))
            what = f"{theirs} and {mine}" if mine != theirs else f"{mine} with other symbols"
            raise ValueError(
                f"{other.name} and {first.name} cannot be shown side by side: their tasks are {what}. Give runs of one "
                "task"
            )


def record(models: Sequence[Served], num: int, seed: int) -> dict[str, Any]:
    """Descriptions of the models, and traces of `num` held-out prompts drawn with `seed`, of those that all models can
    read: JSON values for `page`. Raises `ValueError` if they can read none."""
    with torch.inference_mode():
        observers = [Observer(served) for served in models]
        first, context = observers[0], min(served.context for served in models)
        drawn = np.random.default_rng(seed).permutation(len(first)).tolist()
        rows = sorted([row for row in drawn if first.prompt_length(row) <= context][:num])
        if not rows:
            raise ValueError(
                f"no held-out prompt of {models[0].name} fits the shortest context of these runs, {context} tokens: "
                "give runs of like contexts"
            )
        recordings = []
        for row in rows:
            prompt = first.held_out(row)
            limit = min(first.limit(row), context - len(prompt))
            wanted = TraceRequest(prompt, limit=limit, temperature=first.temperature, seed=seed)
            traces = {one.served.name: _traced(one, wanted).as_json() for one in observers}
            recordings.append({"prompt": first.task.decode(wanted.prompt), "traces": traces})
        described = []
        for one in observers:
            with one.served.computing():
                described.append({**one.description(), "examples": []})
        return {"models": described, "recordings": recordings}


def export(models: Sequence[Served], path: Path, num: int, seed: int, *, overwrite: bool = False) -> int:
    """Writes `record` as a page to a file. Returns the number of prompts, which is less than `num` where fewer are held
    out. Raises what `claimed` raises."""
    with claimed(path, overwrite) as scratch:
        found = record(models, num, seed)
        write_atomically(scratch, page(found))
    return len(found["recordings"])


def _traced(observer: Observer, wanted: TraceRequest) -> Trace:
    steps = observer.trace(replace(wanted, top=observer.top))
    with observer.served.computing():
        while True:
            try:
                next(steps)
            except StopIteration as done:
                trace: Trace = done.value
                return trace
