"""The runs of a comparison: recipe, training records, and the reports that are compared."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from statewise.data_types import Evaluation, Headline, Metrics
from statewise.reporting.figures import Drawing, Panel, stored_fields, stored_shape
from statewise.reporting.other_data import OtherData, metrics_of, read_other_data
from statewise.run import CONFIG, FINISHED, METRICS, Record, Run, named_path
from statewise.runtime.json_files import COUNT, NUMBER, TEXT, Shape, check

_NAMED: Shape = {"name": TEXT}
RECIPE: Shape = {"task": _NAMED, "backbone": _NAMED, "objective": _NAMED, "trainer": {}, "seed": COUNT}
EVALUATION: Shape = {
    "checkpoint": COUNT,
    "headline": stored_shape(Headline),
    "chance": stored_shape(Metrics),
    **stored_fields(Evaluation),
    "verdict?": {"sentence": TEXT, "advice": TEXT},
}
"""The parts of `evaluate`'s report that are shown."""
ANALYSIS: Shape = {
    "checkpoint": COUNT,
    "settings": {},
    "metrics": stored_shape(Metrics),
    "main": [TEXT],
    "panels": [stored_shape(Panel)],
    "drawings?": [stored_shape(Drawing)],
    "verdict?": TEXT,
}
"""The parts of `analyze`'s report that are shown."""


PATHS = (
    *("task.path", "task.held_out_path", "task.tokenizer", "task.training_file", "task.held_out_file"),
    *("task.process", "task.map"),
)
"""Fields with the places of data, which may have been moved."""


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Which of `data` and `tokenizer` both runs identify (`Run.data_identity`) and differ in."""
    return [key for key in ("data", "tokenizer") if key in one and key in other and one[key] != other[key]]


Defaults = Callable[[str, str], Mapping[str, Any]]
"""Maps a part of a recipe, such as `objective`, and its name to the defaults of its fields by dotted name."""


def no_defaults(part: str, name: str) -> Mapping[str, Any]:
    """An empty mapping: no defaults are known."""
    return {}


def completed(recipe: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """A recipe with the default of every field that it lacks, as one does that was written before there was the
    field."""
    whole = dict(recipe)
    for part, fields in recipe.items():
        if not isinstance(fields, dict):
            continue
        whole[part] = dict(fields)
        for name, value in defaults(part, str(fields.get("name", ""))).items():
            group, _, inner = name.rpartition(".")
            into = whole[part]
            if group:
                into = whole[part][group] = dict(into.get(group) or {})
            into.setdefault(inner, value)
    return whole


def flat(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with dotted keys, without the seed."""
    dotted: dict[str, Any] = {}
    for group, value in recipe.items():
        if isinstance(value, dict):
            for key, item in value.items():
                below = item if isinstance(item, dict) else {"": item}
                name = group if key == "name" else f"{group}.{key}"
                dotted |= {f"{name}.{inner}".removesuffix("."): leaf for inner, leaf in below.items()}
    return dotted


def identity(recipe: Mapping[str, Any]) -> str:
    """Text that is the same for recipes of one group. A field that is null counts as missing."""
    return canonical({key: value for key, value in flat(recipe).items() if value is not None})


def canonical(value: Any) -> str:
    """Text that is the same for equal values, such as 1 and 1.0, or tuples and lists."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(canonical, value)) + "]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


@dataclass(frozen=True)
class Member:
    """One run of a comparison."""

    folder: Path
    recipe: dict[str, Any]
    records: list[Record]
    report: dict[str, Any]
    """The report of `evaluate`."""
    analyses: dict[str, dict[str, Any]]
    """Reports of `analyze` that belong to the evaluated checkpoint, by name."""
    shown: dict[str, dict[str, str]] = field(default_factory=dict)
    """The names under which the main and the chosen metrics of each analysis are shown: `ANALYSIS:METRIC` if another
    analysis, or the evaluation, has a metric of that name."""
    other_data: dict[str, OtherData] = field(default_factory=dict)
    """The reports of other data, by name."""
    data: dict[str, Any] = field(default_factory=dict)
    """Identity of the data that it was trained on; see `Run.data_identity`."""
    machine: dict[str, Any] = field(default_factory=dict)
    """The environment that it was trained in; empty if unknown."""

    @classmethod
    def read(cls, folder: Path, with_others: bool, defaults: Defaults = no_defaults) -> Member:
        """Reads a run; `with_others`: also its analyses and its reports of other data. `defaults`: of fields that
        an older recipe lacks. Raises `ValueError` if it was not evaluated, or training failed."""
        run = Run.open(folder)
        report = read_evaluation(run)
        if report is None:
            how = "resume it" if run.end() is None else "evaluate it"
            words = ["train", "--resume"] if run.end() is None else ["evaluate"]
            command = shlex.join(["statewise", *words, str(folder)])
            raise ValueError(f"{folder} has no evaluation yet: {how} with `{command}`")
        path = run.reports_folder / "evaluation.json"
        headline = report["headline"]["metric"]
        check(report["metrics"][headline], NUMBER, str(path), f"metrics.{headline}")
        records = run.metrics()
        if not records:
            path = folder / METRICS
            raise ValueError(
                f"{path} is {'empty' if path.is_file() else 'missing'}, and with it the steps and times of training: "
                f"restore it, or train again with `{repeat(folder)}`"
            )
        if "seconds" not in records[-1]:
            raise ValueError(f"the training of {folder} failed: see {folder / METRICS}")
        recipe = completed(check(run.recipe(), RECIPE, str(run.folder / CONFIG)), defaults)
        analyses = {}
        for name in run.reports() if with_others else ():
            content = run.report(name)
            if not content:
                raise ValueError(f"{run.reports_folder / name}.json is empty: write it again")
            if "panels" not in content or "-checkpoint-" in name:  # no analysis, or one of another checkpoint
                continue
            _check_analysis(content, run.reports_folder / f"{name}.json")
            if content["checkpoint"] == report["checkpoint"]:
                analyses[name] = content
        other_data = read_other_data(run, report["checkpoint"]) if with_others else {}
        records = [{"reason": "not ended", **record} for record in records]
        machine: dict[str, Any] = {}
        with contextlib.suppress(ValueError, FileNotFoundError):  # only commands that load the run need it
            machine = run.environment()
        return cls(
            folder, recipe, records, report, analyses, other_data=other_data, data=run.data_identity(), machine=machine
        )

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the evaluation, then the main ones of each analysis, then those of other data."""
        metrics = dict(self.report["metrics"])
        for name, content in self.analyses.items():
            metrics |= {shown: content["metrics"][metric] for metric, shown in self.shown[name].items()}
        return metrics | metrics_of(list(self.other_data.values()))

    def curve(self, kind: str, metric: str, by: str = "step") -> tuple[list[float], list[float]]:
        """A metric of the records of `kind` over another of their numbers: `step`, `tokens`, `seconds`; empty if the
        run lacks either."""
        points = [
            (record[by], record[metric])
            for record in self.records
            if record["kind"] == kind and metric in record and by in record
        ]
        return [at for at, _ in points], [value for _, value in points]

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.recipe["seed"])

    @property
    def end(self) -> Record:
        """The last record of the run."""
        return self.records[-1]

    @property
    def finished(self) -> bool:
        """Whether the training is complete."""
        return self.end["kind"] == "end" and self.end["reason"] in FINISHED

    @property
    def repeat(self) -> str:
        """The command that repeats its training."""
        return repeat(self.folder)

    def flat(self) -> dict[str, Any]:
        """The recipe with dotted keys, without the seed."""
        return flat(self.recipe)


def repeat(folder: Path) -> str:
    """The command that repeats the training of a run."""
    named = named_path(folder)
    again = named.with_name(f"{named.name}-again")
    return shlex.join(["statewise", "train", "--config", str(named), "--out", str(again)])


def read_evaluation(run: Run) -> dict[str, Any] | None:
    """A run's evaluation, or None. Raises `ValueError` for a malformed one, and for one without its headline metric."""
    report, path = run.report("evaluation"), run.reports_folder / "evaluation.json"
    if report is None:
        return None
    check(report, EVALUATION, str(path))
    headline = report["headline"]["metric"]
    if headline not in report["metrics"]:
        raise ValueError(f"{path}: metrics.{headline}, the headline metric, is missing")
    for place, sample in enumerate([*report["samples"], *report.get("continuations", [])]):
        for number, edge in enumerate(sample.get("graph", {}).get("edges", [])):
            if len(edge) != 2:
                raise ValueError(
                    f"{path}: edges[{number}] of the graph of sample {place} must be two nodes, not {edge}"
                )
    return report


def _check_analysis(content: dict[str, Any], path: Path) -> None:
    """Raises `ValueError` for a malformed report."""
    check(content, ANALYSIS, str(path))
    for name in content["main"]:
        if name not in content["metrics"]:
            raise ValueError(f"{path}: metrics.{name}, which main lists, is missing")
    for panel in content["panels"]:
        for curve in panel["curves"]:
            if len(curve["x"]) != len(curve["y"]):
                raise ValueError(
                    f"{path}: the curve {curve['label']!r} has {len(curve['x'])} x and {len(curve['y'])} y"
                )
    for drawing in content.get("drawings", ()):
        for layer in drawing["layers"]:
            if any(len(line) != 2 or {len(end) for end in line} != {2} for line in layer["lines"]):
                raise ValueError(f"{path}: a line of {layer['label']!r} must be two points of two numbers")
        if any(len(text["place"]) != 2 for text in drawing.get("texts", ())):
            raise ValueError(f"{path}: a text of {drawing['title']!r} must have a place of two numbers")
        for dots in drawing.get("points", ()):
            if any(len(at) != 2 for at in dots["places"]) or len(dots["places"]) != len(dots["colours"]):
                raise ValueError(f"{path}: points of {drawing['title']!r} must be two numbers and a colour each")


def alike(members: list[Member], chosen: Sequence[str]) -> list[Member]:
    """Keeps the analyses and reports of other data that all members have and that supply a shown metric. Raises
    `ValueError` if their settings differ."""
    shown = _shown_names(members, chosen)
    for wanted in chosen:
        several = [names[wanted] for names in shown.values() if names.get(wanted, wanted) != wanted]
        if several and wanted not in members[0].report["metrics"]:
            raise ValueError(f"several analyses have the metric {wanted!r}: choose {' or '.join(several)}")
    common = [name for name in shown if not chosen or set(chosen) & set(shown[name].values())]
    for name in common:
        _check_settings(members, f"analysed by {name}", [member.analyses[name]["settings"] for member in members])
    part_of_name = any(":" in metric for metric in chosen)
    others = [
        name
        for name, data in members[0].other_data.items()
        if all(name in member.other_data for member in members)
        and (not chosen or part_of_name or set(chosen) & set(metrics_of([data])))
    ]
    for name in others:
        source = members[0].other_data[name].source
        _check_settings(members, f"evaluated on {source}", [member.other_data[name].settings for member in members])
    return [
        replace(
            member,
            analyses={name: member.analyses[name] for name in common},
            shown={name: shown[name] for name in common},
            other_data={name: member.other_data[name] for name in others},
        )
        for member in members
    ]


def _shown_names(members: Sequence[Member], chosen: Sequence[str]) -> dict[str, dict[str, str]]:
    """`Member.shown` for the analyses that all members have."""
    common = [name for name in members[0].analyses if all(name in member.analyses for member in members)]
    mains = {name: [*members[0].analyses[name]["main"]] for name in common}
    for name, main in mains.items():
        several = [member.analyses[name]["metrics"] for member in members]
        main += [
            metric
            for metric in several[0]
            if metric not in main
            and {metric, f"{name}:{metric}"} & set(chosen)
            and all(metric in metrics for metrics in several)
        ]
    counts = Counter(metric for main in mains.values() for metric in main)
    counts.update({metric for member in members for metric in member.report["metrics"]})
    return {
        name: {metric: f"{name}:{metric}" if counts[metric] > 1 else metric for metric in main}
        for name, main in mains.items()
    }


def _check_settings(members: Sequence[Member], what: str, settings: Sequence[dict[str, Any]]) -> None:
    """Raises `ValueError` unless all members have the settings of the first."""
    first = settings[0]
    for member, other in zip(members, settings):
        differing = [
            f"{key} {first.get(key)} and {other.get(key)}" for key in first | other if first.get(key) != other.get(key)
        ]
        if differing:
            raise ValueError(
                f"{members[0].folder} and {member.folder} were {what} with different settings "
                f"({', '.join(differing)}): use the same for both"
            )
