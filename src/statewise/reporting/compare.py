"""Runs side by side: grouped over seeds, with intervals and tests, as table, curves and page."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from statewise.reporting.drawings import save_drawings
from statewise.reporting.members import Member, alike
from statewise.reporting.overlays import Overlay, against_first, overlays, save_overlays
from statewise.reporting.plots import save_curves
from statewise.reporting.statistics import Claim, Summary, equivalence, summarise, welch
from statewise.reporting.tables import markdown_table, number, text_table
from statewise.run import write_atomically
from statewise.types import Headline


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    members: list[Member]
    metrics: dict[str, Summary]
    solved: int | None
    """Runs that solved the task; None if the task has no such point."""


@dataclass(frozen=True)
class Comparison:
    """All groups, in the order in which their first runs were named."""

    groups: list[Group]
    headline: Headline
    chance: dict[str, float]
    differences: dict[str, list[Any]]
    """Recipe keys in which groups differ, with each group's value."""
    claims: list[Claim]
    """What was asked to be tested."""
    margin: float | None
    """Within which differences count as none; None: equality was not asked for."""
    chosen: list[str]
    """The metrics that tables show behind the headline; empty: what every group has, but for the many positions."""
    relative: bool = False
    """Whether curves of analyses are shown as differences from the first group's."""

    def shown_metrics(self) -> list[str]:
        """The headline first, then what every group has; neither the many positions nor perplexity, which is
        the loss again."""
        if self.chosen:
            return [self.headline.metric, *(name for name in self.chosen if name != self.headline.metric)]
        common = [name for name in self.groups[0].metrics if all(name in group.metrics for group in self.groups)]
        hidden = {self.headline.metric, "perplexity"}
        others = [name for name in common if name not in hidden and not name.startswith("position_")]
        return [self.headline.metric, *others]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: a line a group."""
        shown = self.shown_metrics()
        several = any(len(group.members) > 1 for group in self.groups)
        tested = several and len(self.groups) > 1
        header = ["group", "runs", "solved", *shown, *(["p (Welch)"] if tested else []), "steps", "minutes"]
        rows = []
        for group in self.groups:
            cells = [group.label, str(len(group.members))]
            cells.append("-" if group.solved is None else f"{group.solved}/{len(group.members)}")
            for name in shown:
                summary = group.metrics[name]
                spread = f" ±{(summary.interval[1] - summary.interval[0]) / 2:.4f}" if summary.interval else ""
                cells.append(number(summary.mean) + spread)
            if tested:
                cells.append(number(group.metrics[self.headline.metric].p_value))
            for name in ("step", "seconds"):
                mean = sum(member.end[name] for member in group.members) / len(group.members)
                cells.append(f"{mean:,.0f}" if name == "step" else f"{mean / 60:.1f}")
            rows.append(cells)
        return header, rows

    def seeds_table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: a line a run."""
        shown = self.shown_metrics()
        header = ["group", "seed", *shown, "end", "steps", "minutes", "run"]
        rows = [
            [group.label, str(member.seed), *(number(member.metrics.get(name)) for name in shown),
             str(member.end["reason"]), f"{member.end['step']:,}", f"{member.end['seconds'] / 60:.1f}",
             str(member.folder)]
            for group in self.groups for member in group.members
        ]  # fmt: skip
        return header, rows

    def claims_table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: a line a claim that could be tested."""
        words = {"better": "is better than", "equal": f"equals, within {self.margin},"}
        header = [f"claim about {self.headline.metric}", "difference of means", "p"]
        rows = [
            [f"{claim.group} {words[claim.kind]} {claim.other}", number(claim.difference), number(claim.p_value)]
            for claim in self._tested()
        ]
        return header, rows

    def _tested(self) -> list[Claim]:
        """A group of one seed is tested against none, which `notes` say."""
        single = {group.label for group in self.groups if len(group.members) == 1}
        return [claim for claim in self.claims if not {claim.group, claim.other} & single]

    def notes(self) -> list[str]:
        """What a reader must know beside the table."""
        forced = "metrics are teacher-forced on held-out examples."
        decoded = any(member.report.get("samples") for group in self.groups for member in group.members)
        notes = [f"Answers are decoded greedily from the prompt; other {forced}" if decoded else f"All {forced}"]
        for name, content in self.groups[0].members[0].analyses.items():
            settings = ", ".join(f"{key} {value}" for key, value in content["settings"].items() if value is not None)
            notes.append(f"By analyze {name} ({settings}): {', '.join(content['main']) or 'curves'}.")
        if self.headline.solved_at is not None:
            notes.append(f"A run counts as solved from {self.headline.metric} {self.headline.solved_at:g} on.")
        if self.chance:
            notes.append("Chance: " + ", ".join(f"{name} {value:.4f}" for name, value in self.chance.items()) + ".")
        if any(len(group.members) > 1 for group in self.groups):
            notes.append(
                "±: 95% interval of the mean over seeds (Student's t). p (Welch): two-sided, against the first group."
            )
        return notes + self._single_notes()

    def _single_notes(self) -> list[str]:
        """Which groups say nothing of how seeds differ, where others do or a test was asked for."""
        single = [group.label for group in self.groups if len(group.members) == 1]
        if not single or (len(single) == len(self.groups) and not self.claims):
            return []
        return [f"One seed, so neither interval nor test: {'; '.join(single)}."]

    def claims_notes(self) -> list[str]:
        """How the claims were tested."""
        found = {claim.kind for claim in self._tested()}
        notes = []
        if "better" in found:
            notes.append("Better: Welch's one-sided t-test; a small p speaks for the claim.")
        if "equal" in found:
            notes.append(
                f"Equal: two one-sided Welch tests (TOST) that the means differ by less than {self.margin}; a small p "
                "speaks for equality."
            )
        if len(self._tested()) > 1:
            notes.append("Each p stands for itself: it is not adjusted for their number.")
        return notes

    def as_text(self) -> str:
        """The table for a terminal."""
        parts = [text_table(*self.table())]
        if self._tested():
            parts.append(text_table(*self.claims_table()))
        if any(len(group.members) > 1 for group in self.groups):
            parts.append(text_table(*self.seeds_table()))
        return "\n\n".join([*parts, "\n".join([*self.notes(), *self.claims_notes()])])

    def as_markdown(self) -> str:
        """The same as Markdown."""
        claims = [markdown_table(*self.claims_table()), "\n".join(self.claims_notes())] if self._tested() else []
        return "\n\n".join([
            markdown_table(*self.table()), "\n".join(self.notes()), *claims, markdown_table(*self.seeds_table()),
        ]) + "\n"  # fmt: skip

    def as_json(self) -> str:
        """Everything as data."""
        content = {
            "headline": asdict(self.headline),
            "chance": self.chance,
            "differences": self.differences,
            "margin": self.margin,
            "claims": [asdict(claim) for claim in self.claims],
            "groups": [
                {
                    "label": group.label,
                    "runs": [str(member.folder) for member in group.members],
                    "solved": group.solved,
                    "metrics": {name: asdict(summary) for name, summary in group.metrics.items()},
                    "end": {member.seed: member.end for member in group.members},
                }
                for group in self.groups
            ],
        }
        return json.dumps(content, indent=2) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Writes all forms into `folder` and returns their paths; report.html last.

        Raises `FileExistsError` if `folder` holds anything that is no report.
        """
        names = ["table.md", "report.json", "curves.png", "analyses.png", "drawings.png", "report.html"]
        if folder.exists():
            strangers = sorted({path.name for path in folder.iterdir()} - set(names))
            if strangers:
                raise FileExistsError(
                    f"{folder} holds {', '.join(strangers[:3])}: choose a directory of its own for --out"
                )
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "table.md", self.as_markdown().encode())
        write_atomically(folder / "report.json", self.as_json().encode())
        save_curves(self, folder / "curves.png")
        drawings, without = self.drawings(), set()
        if drawings:
            save_drawings(drawings, folder / "drawings.png")
        else:
            without.add("drawings.png")
        if self.overlays():
            save_overlays(self, folder / "analyses.png")
        else:
            without.add("analyses.png")
        from statewise.reporting.html import page

        write_atomically(folder / "report.html", page(self).encode())
        return [folder / name for name in names if name not in without]

    def overlays(self) -> list[Overlay]:
        """The curves that analyses found of every run, a plot a panel."""
        found = overlays(self.groups)
        return [against_first(overlay) for overlay in found] if self.relative else found

    def drawings(self) -> list[dict[str, Any]]:
        """The pictures that analyses made of each group's first run, named by the group."""
        return [
            {**drawing, "title": f"{group.label}, seed {group.members[0].seed}\n{drawing['title']}"}
            for group in self.groups
            for content in group.members[0].analyses.values()
            for drawing in content.get("drawings", ())
        ]


def compare(
    folders: Sequence[Path],
    *,
    better: Path | None = None,
    margin: float | None = None,
    metrics: str = "evaluation",
    relative: bool = False,
) -> Comparison:
    """Compares complete runs. Raises `ValueError` for one that was not evaluated, or for different tasks.

    `metrics`: those of the `evaluation`; `all`, of every analysis too that was made of each run with the same settings;
    or some of these, by name.

    `better`, one of the runs: its group is tested to be better, by the headline metric, than each other group.
    `margin`: every two groups are tested to be equal to within it.
    `relative`: the curves of analyses are shown less those of the first group.
    """
    if relative and metrics == "evaluation":
        raise ValueError("an evaluation has no curves to show relative to the first group's: set --metrics all too")
    if margin is not None and not margin > 0:
        raise ValueError(f"the margin must be positive, not {margin}")
    members = [Member.read(folder, with_analyses=metrics != "evaluation") for folder in folders]
    chosen = [] if metrics in ("evaluation", "all") else [name.strip() for name in metrics.split(",")]
    if metrics != "evaluation":
        members = alike(members, chosen)
    seen: dict[Path, Path] = {}
    for member in members:
        place = member.folder.resolve()
        if place in seen:
            raise ValueError(f"{member.folder} is named twice")
        seen[place] = member.folder
    tasks = {member.recipe["task"]["name"]: member.folder for member in members}
    if len(tasks) > 1:
        raise ValueError("these runs are of different tasks: " + ", ".join(f"{t} ({f})" for t, f in tasks.items()))
    grouped: dict[str, list[Member]] = {}
    for member in members:
        grouped.setdefault(json.dumps(member.flat(), sort_keys=True), []).append(member)
    for same in grouped.values():
        by_seed: dict[int, Path] = {}
        for member in same:
            if member.seed in by_seed:
                raise ValueError(f"{by_seed[member.seed]} and {member.folder} are the same recipe with the same seed")
            by_seed[member.seed] = member.folder
    firsts = [same[0] for same in grouped.values()]
    differences = _differences(firsts)
    headline = Headline(**members[0].report["headline"])
    for member in members:
        if member.report["headline"] != members[0].report["headline"]:
            raise ValueError(
                f"{members[0].folder} and {member.folder} are ranked by different metrics: compare them apart"
            )
        if member.report["num"] != members[0].report["num"]:
            raise ValueError(
                f"{members[0].folder} was evaluated on {members[0].report['num']} examples and {member.folder} on "
                f"{member.report['num']}: evaluate both in the same way"
            )
    chances = [member.report["chance"] for member in members]
    chance = {name: value for name, value in chances[0].items() if all(other.get(name) == value for other in chances)}
    groups: list[Group] = []
    for same, label in zip(grouped.values(), _labels(firsts, differences)):
        same.sort(key=lambda member: member.seed)
        groups.append(_group(label, same, groups[0] if groups else None, headline))
    for name in chosen:
        missing = [group.label for group in groups if name not in group.metrics]
        if missing:
            there = ", ".join(groups[0].metrics)
            raise ValueError(f"not every run has the metric {name!r}: {missing[0]} does not; there are {there}")
    claims = _claims(groups, headline, better, margin)
    return Comparison(groups, headline, chance, differences, claims, margin, chosen, relative)


def _group(label: str, members: list[Member], first: Group | None, headline: Headline) -> Group:
    names = [name for name in members[0].metrics if all(name in member.metrics for member in members)]
    metrics = {}
    for name in names:
        values = {member.seed: float(member.metrics[name]) for member in members}
        reference = first.metrics.get(name) if first else None
        metrics[name] = summarise(values, list(reference.values.values()) if reference else None)
    solved = None
    if headline.solved_at is not None:
        solved = sum(headline.solved(value) for value in metrics[headline.metric].values.values())
    return Group(label, members, metrics, solved)


def _claims(groups: list[Group], headline: Headline, better: Path | None, margin: float | None) -> list[Claim]:
    values = [list(group.metrics[headline.metric].values.values()) for group in groups]
    means = [group.metrics[headline.metric].mean for group in groups]
    claims = []
    if better is not None:
        places = [place for place, group in enumerate(groups)
                  if any(member.folder.resolve() == better.resolve() for member in group.members)]  # fmt: skip
        if not places:
            raise ValueError(f"{better} is none of the runs that are compared")
        if len(groups) < 2:
            raise ValueError(f"{better} has no other group to be better than: these runs differ in the seed alone")
        (one,) = places
        for other in range(len(groups)):
            if other != one:
                p = welch(values[one], values[other], "greater" if headline.higher_is_better else "less")
                difference = means[one] - means[other]
                claims.append(Claim("better", groups[one].label, groups[other].label, difference, p))
    if margin is not None:
        if len(groups) < 2:
            raise ValueError("a margin needs two groups to be equal: these runs differ in the seed alone")
        for one, other in itertools.combinations(range(len(groups)), 2):
            p = equivalence(values[one], values[other], margin)
            claims.append(Claim("equal", groups[one].label, groups[other].label, means[one] - means[other], p))
    return claims


def _differences(firsts: list[Member]) -> dict[str, list[Any]]:
    flats = [member.flat() for member in firsts]
    keys = dict.fromkeys(key for flat in flats for key in flat)
    found = {key: [flat.get(key) for flat in flats] for key in keys}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}


def _labels(firsts: list[Member], differences: dict[str, list[Any]]) -> list[str]:
    """The objective's name, and after it what else tells groups of that name apart. What only some have, as the fields
    of a backbone, tells those apart that have it."""
    flats = [member.flat() for member in firsts]
    labels = [_label(place, firsts, differences, flats) for place in range(len(firsts))]
    if len(set(labels)) == len(labels):
        return labels
    return [_label(place, firsts, differences, [differences] * len(firsts)) for place in range(len(firsts))]


def _label(
    place: int, firsts: list[Member], differences: dict[str, list[Any]], having: Sequence[Mapping[str, Any]]
) -> str:
    names = [member.recipe["objective"]["name"] for member in firsts]
    twins = [other for other in range(len(names)) if names[other] == names[place]]
    telling = [
        f"{key.partition('.')[2] or key}={values[place]}" for key, values in differences.items()
        if key in having[place] and any(key in having[twin] and values[twin] != values[place] for twin in twins)
    ]  # fmt: skip
    return f"{names[place]} ({', '.join(telling)})" if telling else names[place]
