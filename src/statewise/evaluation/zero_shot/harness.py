"""Runs benchmarks of lm-evaluation-harness by name, and extracts the figures for a report."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.config.recipe import unknown
from statewise.decoding.predictor import Predictor
from statewise.evaluation.scoring import per_unit
from statewise.runtime.messages import to_install
from statewise.tasks.base import RunningText

if TYPE_CHECKING:
    from statewise.evaluation.zero_shot.adaptor import Rolled

PAPER = ("arc_easy", "hellaswag", "piqa", "sciq", "lambada")
"""The zero-shot benchmarks of the State-Prediction Separation paper; LAMBADA's variants have names with that prefix."""
MAIN = ("acc_norm", "acc", "exact_match", "word_perplexity", "perplexity", "bits_per_byte")
"""Metrics of which the first that a benchmark has stands for it in comparisons."""
RESAMPLES = 1000
"""Bootstrap samples for standard errors without a closed form."""


@dataclasses.dataclass(frozen=True)
class Benchmarks:
    """Benchmarks found by name; their data is not loaded yet."""

    names: tuple[str, ...]
    manager: Any
    """The package's `TaskManager`."""


def find(names: Sequence[str], folder: Path | None = None) -> Benchmarks:
    """Finds benchmarks, groups and tags by name, first in the YAML files of `folder`, then in the package.

    Raises `ValueError` if the extra `eval` or the folder is missing, or a name is unknown or given twice.
    """
    if not names:
        raise ValueError("`tasks` names no benchmark")
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ValueError(f"`tasks` names {twice[0]} twice")
    if folder is not None and not folder.is_dir():
        raise ValueError(f"{folder}: no such folder of benchmarks")
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "lm_eval":
            raise
        raise ValueError(f"lm-eval needs the extra `eval`: {to_install('eval')}") from None
    if folder is not None:
        # Indexing the package's thousands of files is slow: it is avoided if the folder has all names.
        manager = _made(lambda: TaskManager(include_path=str(folder), include_defaults=False), str(folder))
        if all(name in manager.all_tasks for name in names):
            return Benchmarks(tuple(names), manager)
    manager = TaskManager(include_path=None if folder is None else str(folder))
    for name in names:
        if name not in manager.all_tasks:
            raise ValueError(_unknown(name, manager.all_tasks))
    return Benchmarks(tuple(names), manager)


def _unknown(name: str, known: Sequence[str]) -> str:
    """Names similar spellings instead of listing thousands of choices."""
    return unknown("benchmark", name, known).partition("choices:")[0].rstrip(": ") + "; `include_path` adds your own"


def _made(make: Any, what: str) -> Any:
    """Calls the package, and turns any exception into a `ValueError`."""
    try:
        return make()
    except Exception as error:  # YAML, templates, datasets: each raises its own
        raise ValueError(f"lm-evaluation-harness cannot load {what}: {type(error).__name__}: {error}") from error


def run(
    predictor: Predictor, task: RunningText, benchmarks: Benchmarks, *, limit: int | None, batch: int
) -> dict[str, Any]:
    """Evaluates the model on the benchmarks, each on its first `limit` documents (None: all). Returns a report.

    Raises `ValueError` if their data cannot be loaded or if a benchmark needs what our models cannot do.
    """
    from lm_eval.evaluator import simple_evaluate

    from statewise.evaluation.zero_shot.adaptor import HarnessModel

    model = HarnessModel(predictor, task, batch)
    with _quiet():
        names = ", ".join(benchmarks.names)
        loaded = _made(lambda: benchmarks.manager.load(list(benchmarks.names)), names)
        evaluation = simple_evaluate(
            model=model,
            tasks=_outermost(loaded),
            task_manager=benchmarks.manager,
            limit=limit,
            bootstrap_iters=RESAMPLES,
            log_samples=False,
        )
    results = {name: _metrics(values) for name, values in evaluation["results"].items()}
    report: dict[str, Any] = {
        "lm_eval": importlib.metadata.version("lm_eval"),
        "limit": limit,
        "benchmarks": {
            name: {
                "version": evaluation["versions"].get(name),
                "shots": evaluation["n-shot"].get(name),
                "num": evaluation.get("n-samples", {}).get(name, {}).get("effective"),
                "main": main_metric(name, metrics),
                "metrics": metrics,
            }
            for name, metrics in results.items()
        },
        "whole_texts": whole_texts(model.rolled, loaded["tasks"]),
        "counts": dataclasses.asdict(model.counts),
    }
    average = paper_average(results)
    return report if average is None else {**report, "average": average}


def _outermost(loaded: Mapping[str, Any]) -> list[Any]:
    """Top-level groups and benchmarks."""
    within = {name for members in loaded["group_map"].values() for name in members}
    return [one for name, one in [*loaded["groups"].items(), *loaded["tasks"].items()] if name not in within]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Redirects the package's output to stderr, and keeps it from starting processes beside a loaded model."""
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before


def _metrics(values: Mapping[str, Any]) -> dict[str, float | None]:
    """The package's metrics of a benchmark, without the suffix of the filter `none`; None: no standard error."""
    metrics: dict[str, float | None] = {}
    for key, value in values.items():
        metric, comma, chosen = key.partition(",")
        if comma:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            metrics[metric if chosen == "none" else key] = float(value) if number else None
    return metrics


def whole_texts(rolled: Sequence[Rolled], tasks: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each benchmark that scores whole texts: `loss` (nats per token) and the same nats per word and byte.

    `with_first` counts all tokens, as lm-evaluation-harness does; `without_first` leaves out first tokens, which our
    models are not trained to predict. Nats and units are of the same tokens, as in `statewise evaluate`. `tasks`: the
    package's, by name, which say how they count.
    """
    figures = {}
    for name in dict.fromkeys(one.benchmark for one in rolled):
        mine = [one for one in rolled if one.benchmark == name]
        counted = [_units(tasks.get(name), one) for one in mine]
        units = {unit: sum(of_one[unit] for of_one in counted) for unit in ("word", "byte")}
        firsts = {unit: sum(one.first_units[unit] for one in mine) for unit in units}
        tokens, nats, first = (sum(values) for values in zip(*((one.tokens, one.nats, one.first_nats) for one in mine)))
        figures[name] = {
            "texts": len(mine),
            "tokens": tokens,
            "with_first": _losses(nats, tokens, units),
            "without_first": _losses(
                nats - first, tokens - len(mine), {unit: count - firsts[unit] for unit, count in units.items()}
            ),
        }
    return figures


def _units(task: Any, one: Rolled) -> dict[str, int]:
    """The words and bytes by which the package divides the nats of a text. Some of its benchmarks count those of the
    document before it was prepared for the model: wikitext those of the page with spaces around punctuation."""
    divisors = {} if task is None else task.process_results(one.document, [0.0])
    units = dict(one.units)
    for unit in units:
        pair = divisors.get(f"{unit}_perplexity")
        if isinstance(pair, tuple):  # (log-likelihood, what it is divided by)
            units[unit] = int(pair[1])
    return units


def _losses(nats: float, tokens: int, units: Mapping[str, int]) -> dict[str, float]:
    return {"loss": nats / tokens, **per_unit(nats, units)} if tokens else {}


def main_metric(name: str, metrics: Mapping[str, float | None]) -> str | None:
    """The metric that stands for a benchmark: normalised accuracy where there is one, as in the paper, except for
    LAMBADA; None: it has none."""
    named = [metric for metric, value in metrics.items() if value is not None and "_stderr" not in metric]
    if name.startswith("lambada"):
        named = [metric for metric in named if metric != "acc_norm"]
    return next((metric for metric in (*MAIN, *named) if metric in named), None)


def paper_average(results: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any] | None:
    """The mean accuracy over the paper's five benchmarks, with the metric used for each: normalised accuracy where
    there is one, except for LAMBADA. None unless all five are there, with an accuracy."""
    of: dict[str, str] = {}
    for benchmark in PAPER:
        names = [
            name for name in results if name == benchmark or (name.startswith("lambada_") and benchmark == "lambada")
        ]
        if not names:
            return None
        of[names[0]] = main_metric(names[0], results[names[0]]) or "acc"
    values = [results[name].get(metric) for name, metric in of.items() if metric in ("acc", "acc_norm")]
    known = [value for value in values if value is not None]
    return {"accuracy": sum(known) / len(known), "of": of} if len(known) == len(PAPER) else None
