"""The page as one HTML file: markup, style and scripts; and the page with recorded traces of held-out prompts, which
needs no server. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statewise.deploy.playground.observer import Observer, Trace, TraceRequest
from statewise.deploy.serving.served import Served
from statewise.runtime.durable import write_atomically
from statewise.runtime.overwriting import claimed_file

SCRIPTS = ("core.js", "parts.js", "tour.js", "app.js")
"""Scripts in their order; views come before the last."""
MARK = "<!-- the playground of statewise -->"
"""A mark in each page that statewise writes, by which it is recognised."""


def page(recorded: dict[str, Any] | None = None) -> bytes:
    """The page; `recorded`: what it shows without a server, as JSON values.

    This is a group of models of one task, as made by `record`; or `groups`, a list of these, each with a `name` and a
    sentence `about` it, which the page shows one at a time. `live` is the index of the group whose models the page's
    own server answers for: its traces are shown until that has answered. None: all is asked of the server.
    """
    script, style = _script(), _file("style.css")
    data = "null" if recorded is None else json.dumps(recorded, separators=(",", ":"), allow_nan=False)
    # In a script element only `<` could end it or begin a comment.
    parts = {
        "style": style,
        "script": script,
        "recorded": data.replace("<", "\\u003c"),
        "mark": MARK,
        "policy": ""
        if recorded is None or "live" in recorded
        else f'<meta http-equiv="Content-Security-Policy" content="{_rules("")}">',
    }
    pieces = re.split(r"\{\{ (\w+) \}\}", _file("index.html"))
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces).encode()


def policy() -> str:
    """The Content-Security-Policy of the page on a server: its own script and style, and requests to that server."""
    return _rules("connect-src 'self'; ") + "; frame-ancestors 'none'"


def _rules(more: str) -> str:
    script, style = (_digest(text) for text in (_script(), _file("style.css")))
    return (
        f"default-src 'none'; {more}script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _script() -> str:
    folder = resources.files(__package__) / "page" / "views"
    views = sorted(file.name for file in folder.iterdir() if file.name.endswith(".js"))
    *before, last = SCRIPTS
    names = [*before, *(f"views/{name}" for name in views), last]
    return "\n".join(_file(name) for name in names)


def _file(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")


def claimed(path: Path, overwrite: bool) -> AbstractContextManager[Path]:
    """A claim on `path` (`statewise.runtime.overwriting`), and the place where the page is written. Raises
    `FileExistsError` or `FileNotFoundError` unless its folder exists, and at `path` there is nothing, or with
    `overwrite` such a page."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder: create it, or choose another `export`")

    def check() -> None:
        if path.exists() and MARK.encode() not in path.read_bytes()[:1000]:
            raise FileExistsError(
                f"{path} is not replaced: it is not a page that statewise wrote. Choose another `export`"
            )

    return claimed_file(path, overwrite, "`export`", check)


def by_task(models: Sequence[Served]) -> list[list[Served]]:
    """Models that read the same sequences together, so that they can be shown side by side, in the order given."""
    groups: dict[str, list[Served]] = {}
    for served in models:
        groups.setdefault(Observer(served).sequences, []).append(served)
    return list(groups.values())


def record(models: Sequence[Served], num: int, seed: int, *, first: bool = False, given: int = 0) -> dict[str, Any]:
    """Descriptions of the models, and traces of `num` held-out prompts, drawn with `seed` from those that all models
    can read, or the `first` ones: JSON values for `page`. The models complete the prompts, or only read them and the
    `given` number of tokens that follow in the held-out sequences. Raises `ValueError` if they can read none."""
    with torch.inference_mode():
        observers = [Observer(served) for served in models]
        one, context = observers[0], min(served.context for served in models)
        drawn = range(len(one)) if first else np.random.default_rng(seed).permutation(len(one)).tolist()
        rows = sorted([row for row in drawn if one.prompt_length(row) <= context][:num])
        if not rows:
            raise ValueError(
                f"no held-out prompt of {models[0].name} fits the shortest context of these runs, {context} tokens: "
                "give runs of like contexts"
            )
        recordings = []
        for row in rows:
            prompt = one.held_out(row)
            limit = min(one.limit(row), context - len(prompt))
            forced = one.rest(row)[: min(given, limit)]
            limit = len(forced) if given else limit
            wanted = TraceRequest(prompt, forced, limit=limit, temperature=one.temperature, seed=seed)
            traces = {observer.served.name: _traced(observer, wanted).as_json() for observer in observers}
            recordings.append({"prompt": one.task.decode(wanted.prompt), "traces": traces})
        described = []
        for observer in observers:
            with observer.served.computing():
                described.append({**observer.description(), "examples": []})
        return {"models": described, "recordings": recordings}


def export(models: Sequence[Served], path: Path, num: int, seed: int, *, overwrite: bool = False) -> int:
    """Writes `record` of each group of `by_task` as a page to a file. Returns the number of prompts of the group that
    has fewest, which is less than `num` where fewer are held out. Raises what `claimed` raises."""
    with claimed(path, overwrite) as scratch:
        groups = [{"name": of[0].model.recipe.task.name, **record(of, num, seed)} for of in by_task(models)]
        write_atomically(scratch, page({"groups": groups}))
    return min(len(group["recordings"]) for group in groups)


def _traced(observer: Observer, wanted: TraceRequest) -> Trace:
    steps = observer.trace(replace(wanted, top=observer.top))
    with observer.served.computing():
        while True:
            try:
                next(steps)
            except StopIteration as done:
                trace: Trace = done.value
                return trace
