"""What a comparison knows of each run: its recipe, its records, and the reports that count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statewise.run import Record, Run


@dataclass(frozen=True)
class Member:
    """One run, as far as a report needs it."""

    folder: Path
    recipe: dict[str, Any]
    records: list[Record]
    report: dict[str, Any]
    """What `evaluate` wrote."""
    analyses: dict[str, dict[str, Any]]
    """What each `analyze` wrote that counts here, by name."""

    @classmethod
    def read(cls, folder: Path, with_analyses: bool) -> Member:
        """The run of a folder. Raises `ValueError` if it was not evaluated, or has not come to a good end."""
        run = Run.open(folder)
        report = run.report("evaluation")
        if report is None:
            how = "resume it" if run.end() is None else "evaluate it"
            command = f"statewise train --resume {folder}" if run.end() is None else f"statewise evaluate {folder}"
            raise ValueError(f"{folder} has no evaluation yet: {how} with `{command}`")
        records = run.metrics()
        if not records or "seconds" not in records[-1]:
            raise ValueError(f"{folder} has not come to a good end: see {folder / 'metrics.jsonl'}")
        analyses = {}
        for name in run.reports() if with_analyses else ():
            content = run.report(name)
            # Others are evaluations and the like, or of another checkpoint than the one evaluated.
            if not content or "panels" not in content or "-checkpoint-" in name:
                continue
            if content["checkpoint"] == report["checkpoint"]:
                analyses[name] = content
        return cls(folder, run.recipe(), [{"reason": "not ended", **record} for record in records], report, analyses)

    @property
    def metrics(self) -> dict[str, float]:
        """Those of the evaluation, then those by which each analysis compares models."""
        found = dict(self.report["metrics"])
        for content in self.analyses.values():
            found |= {name: content["metrics"][name] for name in content["main"]}
        return found

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.recipe["seed"])

    @property
    def end(self) -> Record:
        """Its last record."""
        return self.records[-1]

    def flat(self) -> dict[str, Any]:
        """Its recipe as dotted keys, without the seed."""
        flat: dict[str, Any] = {}
        for group, value in self.recipe.items():
            if isinstance(value, dict):
                flat |= {group if key == "name" else f"{group}.{key}": item for key, item in value.items()}
        return flat


def alike(members: list[Member], chosen: Sequence[str]) -> list[Member]:
    """The members with those analyses alone that each has, and of which a metric is shown. Raises `ValueError` where
    settings differ."""
    common = [
        name for name in members[0].analyses
        if all(name in member.analyses for member in members)
        and (not chosen or set(chosen) & set(members[0].analyses[name]["main"]))
    ]  # fmt: skip
    for name in common:
        settings = members[0].analyses[name]["settings"]
        for member in members:
            other = member.analyses[name]["settings"]
            differing = [f"{key} {settings.get(key)} and {other.get(key)}" for key in settings | other
                         if settings.get(key) != other.get(key)]  # fmt: skip
            if differing:
                raise ValueError(
                    f"{members[0].folder} and {member.folder} were analysed by {name} with different settings "
                    f"({', '.join(differing)}): analyse both in the same way"
                )
    return [replace(member, analyses={name: member.analyses[name] for name in common}) for member in members]
