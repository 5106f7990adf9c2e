"""Reports on other data than a run's held-out examples: files and corpora that `evaluate --data` read, other held-out
sets of the task (`evaluate --length`), and benchmarks of `lm-eval`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal

from statewise.run import Run, evaluation_of, evaluation_on
from statewise.runtime.json_files import COUNT, MEASURED, NUMBER, TEXT, Maybe, Shape, check

_HEADLINE: Shape = {"metric": TEXT}
EVALUATION: Shape = {"checkpoint": COUNT, "file": TEXT, "headline": _HEADLINE, "metrics": {...: MEASURED}, "num": COUNT}
SET: Shape = {
    "checkpoint": COUNT,
    "set": {"option": TEXT, "value": TEXT},
    "headline": _HEADLINE,
    "metrics": {...: MEASURED},
    "num": COUNT,
}
_BENCHMARK: Shape = {"main": Maybe(TEXT), "num": Maybe(COUNT), "metrics": {...: Maybe(MEASURED)}}
BENCHMARKS: Shape = {
    "checkpoint": COUNT,
    "lm_eval": TEXT,
    "limit": Maybe(COUNT),
    "benchmarks": {...: _BENCHMARK},
    "average?": {"accuracy": NUMBER},
}
LOSSES = ("loss", "loss_per_word")
"""Metrics of a file or corpus that are shown besides its headline metric."""


@dataclass(frozen=True)
class OtherData:
    """A report on other data."""

    kind: Literal["corpus", "set", "benchmarks"]
    source: str
    """The file or corpus; the option and its value that chose the held-out set; or the benchmarks' names."""
    metrics: dict[str, float]
    settings: dict[str, Any]
    """Settings that must be the same for all runs that are compared."""
    option: str = ""
    """The option that chose a held-out set; empty for other kinds."""
    numbers: list[float] = field(default_factory=list)
    """The value of the option for each metric of a held-out set, such as a length; empty unless all are numbers."""


def read_other_data(run: Run, checkpoint: int) -> dict[str, OtherData]:
    """The reports on a run's checkpoint, by name; those on a file or a set only if they cover all its examples and
    decode greedily."""
    reports = {}
    for name in run.reports():
        content, where = run.report(name) or {}, str(run.reports_folder / f"{name}.json")
        if content.get("checkpoint") != checkpoint:
            continue
        if isinstance(content.get("file"), str) and name == evaluation_of(Path(content["file"])):
            reports[name] = _of_file(check(content, EVALUATION, where))
        elif "set" in content:
            chosen = check(content, SET, where)["set"]
            if name == evaluation_on(chosen["option"], chosen["value"]):
                reports[name] = _of_set(content, where)
        elif "benchmarks" in content:
            reports[name] = _of_benchmarks(check(content, BENCHMARKS, where), where)
    return reports


def _of_file(content: dict[str, Any]) -> OtherData:
    shown = dict.fromkeys([content["headline"]["metric"], *LOSSES])
    metrics = {name: content["metrics"][name] for name in shown if name in content["metrics"]}
    return OtherData("corpus", content["file"], metrics, {"examples": content["num"]})


def _of_set(content: dict[str, Any], where: str) -> OtherData:
    """The headline metric as METRIC_OPTION_VALUE, as tasks report it for each of several values."""
    option, value, headline = content["set"]["option"], content["set"]["value"], content["headline"]["metric"]
    start, metrics = f"{headline}_{option}_", content["metrics"]
    if headline not in metrics:
        raise ValueError(f"{where}: metrics.{headline}, the headline metric, is missing")
    each = {name: of_one for name, of_one in metrics.items() if name.startswith(start)}
    shown = each or {f"{start}{value}": metrics[headline]}
    numbers = {name: _number(name.removeprefix(start)) for name in shown}
    known = {name: number for name, number in numbers.items() if number is not None}
    if len(known) < len(shown):
        known = {}
    else:
        shown = {name: shown[name] for name in sorted(shown, key=known.__getitem__)}
    return OtherData("set", f"--{option} {value}", shown, {"examples": content["num"]}, option, sorted(known.values()))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _of_benchmarks(content: dict[str, Any], where: str) -> OtherData:
    limit = "" if content["limit"] is None else f" of the first {content['limit']}"
    metrics = {}
    for name, benchmark in content["benchmarks"].items():
        main = benchmark["main"]
        if main is not None:
            if benchmark["metrics"].get(main) is None:
                raise ValueError(f"{where}: metrics.{main} of {name}, its main metric, is missing")
            metrics[f"{name}:{main}{limit}"] = benchmark["metrics"][main]
    if "average" in content:
        metrics[f"benchmarks:accuracy{limit}"] = content["average"]["accuracy"]
    counts = {f"documents of {name}": benchmark["num"] for name, benchmark in content["benchmarks"].items()}
    settings = {"lm_eval": content["lm_eval"], "limit": content["limit"], **counts}
    return OtherData("benchmarks", ", ".join(content["benchmarks"]), metrics, settings)


def metrics_of(reports: Sequence[OtherData]) -> dict[str, float]:
    """Metrics of corpora as `LABEL:METRIC`, and of several the means of those that all have as `corpora:METRIC`; those
    of held-out sets and benchmarks as they are."""
    corpora = [report for report in reports if report.kind == "corpus"]
    metrics = {
        f"{label}:{name}": value
        for label, report in zip(labels([report.source for report in corpora]), corpora)
        for name, value in report.metrics.items()
    }
    if len(corpora) > 1:
        for name in corpora[0].metrics:
            values = [report.metrics[name] for report in corpora if name in report.metrics]
            if len(values) == len(corpora):
                metrics[f"corpora:{name}"] = sum(values) / len(values)
    for report in reports:
        if report.kind != "corpus":
            metrics |= report.metrics
    return metrics


def labels(sources: Sequence[str]) -> list[str]:
    """The shortest ends of different paths that differ from each other."""
    parts = [PurePath(source).parts for source in sources]
    ends = []
    for mine in parts:
        depth = 1
        while depth < len(mine) and sum(other[-depth:] == mine[-depth:] for other in parts) > 1:
            depth += 1
        ends.append("/".join(mine[-depth:]))
    return ends
