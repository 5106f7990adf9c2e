"""Learning by whichever method suits the traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from statewise.strips.exact.ground import SECONDS, Contradiction, learn_exact
from statewise.strips.learned import Learned, read_checkpoint, write_report
from statewise.strips.learning import learn_neural
from statewise.strips.random_traces import Traces
from statewise.strips.settings import Settings

METHODS = ("auto", "exact", "neural")


def learn(
    traces: Traces,
    settings: Settings | None = None,
    *,
    method: str = "auto",
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int, np.ndarray, int], None] | None = None,
) -> Learned:
    """Learns an action model from traces: `exact` by SAT (`exact.ground`), `neural` by training (`learning`).

    `auto` takes the exact method if the traces are clean: they do not contradict each other, and its model classifies
    all of them correctly; else the neural one. `settings` are those of training; `settings.noise` above 0 makes `auto`
    train. `report["method"]` and `report["chosen"]` say which one it was and why. `stop`, `seconds` and `folder` are as
    in the two functions; `say` is called with what is being done, `progress` by training. Raises as the two functions,
    and `ValueError` for another method."""
    settings = settings or Settings()
    if method not in METHODS:
        raise ValueError(f"the method must be one of {', '.join(METHODS)}, not {method!r}")
    begun, why = time.monotonic(), "asked for"
    if method == "auto":
        method, why = _without_looking(settings, folder, overwrite)
    if method != "neural":
        try:
            learned = learn_exact(traces, seconds=seconds or SECONDS, stop=stop, folder=folder, overwrite=overwrite,
                                  progress=say)  # fmt: skip
        except Contradiction as error:
            if method == "exact":
                raise
            why = str(error).partition(". ")[0]
        else:
            accuracy, unfinished = learned.report["training_accuracy"], learned.report["unfinished"]
            if method == "exact" or accuracy == 1 or unfinished or not sum(traces.labels):
                return _explained(learned, folder, why if method == "exact" else "the traces are clean")
            why = f"the exact model classifies only {accuracy:.4f} of the traces correctly"
            overwrite = True  # what the exact method has just written
        say(f"{why}: training instead")
    left = None if seconds is None else max(1.0, seconds - (time.monotonic() - begun))
    learned = learn_neural(traces, settings, seconds=left, stop=stop, folder=folder, overwrite=overwrite,
                           progress=progress)  # fmt: skip
    return _explained(learned, folder, why)


def _without_looking(settings: Settings, folder: Path | None, overwrite: bool) -> tuple[str, str]:
    """The method and the reason, as far as the traces do not matter."""
    if settings.noise:
        return "neural", "noise is to be tolerated"
    checkpoint = read_checkpoint(folder) if folder is not None and not overwrite else None
    if checkpoint is not None and "method" not in checkpoint[1]["settings"]:
        return "neural", "an interrupted training run continues"
    return "auto", ""


def _explained(learned: Learned, folder: Path | None, why: str) -> Learned:
    learned.report["chosen"] = why
    if folder is not None:
        write_report(folder, learned.report)
    return learned
