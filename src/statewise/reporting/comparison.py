"""A comparison of runs: groups, confidence intervals and tests, as tables, as data, and in one sentence."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from statewise.data_types import DETAILS, Headline
from statewise.reporting.figures import Look, looks
from statewise.reporting.members import Member
from statewise.reporting.statistics import Claim, Match, Summary, out_of, significantly_different, welch
from statewise.reporting.tables import fitted_notes, fitted_tables, markdown_table, markdown_text, number, spread
from statewise.runtime.json_files import printable


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed."""

    label: str
    members: list[Member]
    metrics: dict[str, Summary]
    solved: int | None
    """Number of runs that solved the task; None if the task defines no threshold."""


@dataclass(frozen=True)
class Comparison:
    """All groups, in the order of their first runs on the command line."""

    groups: list[Group]
    headline: Headline
    chance: dict[str, float]
    differences: dict[str, list[Any]]
    """Recipe keys in which groups differ, with each group's value."""
    claims: list[Claim]
    """The requested tests."""
    margin: float | None
    """Differences below it count as equality; None: equality is not tested."""
    chosen: list[str]
    """The metrics that tables show after the headline; empty: those that every group has, except by position or
    rollout step."""
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    """Metrics of each baseline, if they agree over all runs."""
    relative: bool = False
    """Whether curves of analyses are shown as differences from the first group."""
    matches: list[Match] = field(default_factory=list)
    """The tokens that each group needs to match the first, and the first to match it; empty if they are unknown."""
    left_out: list[str] = field(default_factory=list)
    """Other data that only some of the runs were evaluated on."""
    unlike_data: list[str] = field(default_factory=list)
    """How the data of groups differ: `data`, `tokenizer`, and fields of the task."""
    seeds_left_out: dict[str, list[int]] = field(default_factory=dict)
    """Seeds without an evaluation, by the folder of their group."""
    files: list[Path] = field(default_factory=list, compare=False)
    """The files of the report, if one was written."""
    comparable: bool = True
    """Whether the headline metric has one meaning for all runs: one per token has not if their tokenizers differ."""

    def looks(self) -> dict[str, Look]:
        """How the lines of each group are drawn, by its label: in the colour of its objective."""
        objectives = [group.members[0].recipe["objective"]["name"] for group in self.groups]
        return dict(zip([group.label for group in self.groups], looks(objectives), strict=True))

    def finding(self) -> str:
        """The result by the headline metric in one sentence; empty if its values do not compare."""
        if not self.comparable:
            return ""
        metric = self.headline.metric
        ranked = [Ranked(group.label, group.metrics[metric], group.solved) for group in self.groups]
        return finding(ranked, self.headline, self.chance.get(metric))

    def shown_metrics(self) -> list[str]:
        """The headline first, then what every group has, except the evaluation's metrics by position or rollout step,
        and perplexity (a function of the loss)."""
        if self.chosen:
            return [self.headline.metric, *(name for name in self.chosen if name != self.headline.metric)]
        common = [name for name in self.groups[0].metrics if all(name in group.metrics for group in self.groups)]
        hidden = {self.headline.metric, "perplexity"}
        evaluated = self.groups[0].members[0].report["metrics"]
        others = [
            name for name in common if name not in hidden and not (name in evaluated and name.startswith(DETAILS))
        ]
        return [self.headline.metric, *others]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: one row per group, then one per baseline."""
        shown = self.shown_metrics()
        tested = self._tests_groups()
        solvable = any(group.solved is not None for group in self.groups)
        header = [
            "group",
            "runs",
            *["solved"] * solvable,
            *shown,
            *(["p (Welch)"] if tested else []),
            "steps",
            "minutes",
        ]
        rows = []
        for group in self.groups:
            cells = [group.label, str(len(group.members))]
            if solvable:
                cells.append("-" if group.solved is None else out_of(group.solved, len(group.members)))
            for name in shown:
                summary = group.metrics[name]
                cells.append(spread(summary.mean, summary.interval))
            if tested:
                cells.append(number(group.metrics[self.headline.metric].p_value))
            for name in ("step", "seconds"):
                mean = sum(member.end[name] for member in group.members) / len(group.members)
                cells.append(f"{mean:,.0f}" if name == "step" else f"{mean / 60:.1f}")
            rows.append(cells)
        for name, metrics in self.baselines.items():
            cells = [name, "-", *["-"] * solvable, *(number(metrics.get(metric)) for metric in shown)]
            rows.append(cells + ["-"] * (len(header) - len(cells)))
        return header, rows

    def _tests_groups(self) -> bool:
        """Whether groups are tested against the first."""
        return len(self.groups) > 1 and self.comparable and any(len(group.members) > 1 for group in self.groups)

    def seeds_table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: one row per run."""
        shown = self.shown_metrics()
        header = ["group", "seed", *shown, "checkpoint", "end", "steps", "minutes", "run"]
        rows = [
            [
                group.label,
                str(member.seed),
                *(number(member.metrics.get(name)) for name in shown),
                number(member.report["checkpoint"]),
                str(member.end["reason"]),
                f"{member.end['step']:,}",
                f"{member.end['seconds'] / 60:.1f}",
                str(member.folder),
            ]
            for group in self.groups
            for member in group.members
        ]
        return header, rows

    def claims_table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: one row per claim that could be tested."""
        words = {"better": "is better than", "equal": f"equals, within {self.margin},"}
        header = [f"claim about {self.headline.metric}", "difference of means", "p"]
        rows = [
            [f"{claim.group} {words[claim.kind]} {claim.other}", number(claim.difference), number(claim.p_value)]
            for claim in self._tested()
        ]
        return header, rows

    def matches_table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: one row per pair of groups."""
        header = ["group", "matches", "its loss", "after tokens", "of its tokens", "runs"]
        rows = []
        for one in self.matches:
            mean = one.mean
            share = f"{mean / one.other_tokens:.1%}" if mean is not None and one.other_tokens else "-"
            rows.append(
                [
                    one.group,
                    one.other,
                    number(one.loss),
                    "not reached" if mean is None else f"{mean:,.0f}",
                    share,
                    f"{len(one.reached)}/{len(one.tokens)}",
                ]
            )
        return header, rows

    def matches_notes(self) -> list[str]:
        """How the tokens to match were found."""
        return [
            "Matches: the training tokens after which a group's held-out loss is first as low as the final one of the "
            "other (mean over its runs), interpolated linearly between evaluations; mean over the runs that reach it. "
            f"Losses are those of evaluations during training{self._few()}, not those of the first table."
        ] * bool(self.matches)

    def _few(self) -> str:
        """The number of examples in evaluations during training, if the recipes have it."""
        count = self.groups[0].members[0].recipe["trainer"].get("evaluate_num")
        return f" (of at most {count:,} examples)" if isinstance(count, int) else ""

    def _tested(self) -> list[Claim]:
        """Claims about groups of several seeds; `notes` names the others."""
        single = {group.label for group in self.groups if len(group.members) == 1}
        return [claim for claim in self.claims if not {claim.group, claim.other} & single]

    def notes(self) -> list[str]:
        """Notes that explain the table."""
        forced = "metrics are teacher-forced on held-out examples."
        decoded = any(member.report.get("samples") for group in self.groups for member in group.members)
        notes = [f"Answers are decoded greedily from the prompt; other {forced}" if decoded else f"All {forced}"]
        first = self.groups[0].members[0]
        notes.append(
            "Metrics are of each run's best checkpoint, by its evaluations during training, on "
            f"{first.report['num']:,} held-out examples; steps and minutes are of its whole training."
        )
        notes += self._end_notes() + self._data_notes()
        for name, content in first.analyses.items():
            settings = ", ".join(f"{key} {value}" for key, value in content["settings"].items() if value is not None)
            notes.append(f"From analyze {name} ({settings}): {', '.join(first.shown[name].values()) or 'curves'}.")
        for data in first.other_data.values():
            settings = ", ".join(f"{key} {value}" for key, value in data.settings.items() if value is not None)
            notes.append(f"From {data.source} ({settings}): {', '.join(data.metrics)}.")
        if self.left_out:
            notes.append(f"Not shown, since only some runs have it: {'; '.join(self.left_out)}.")
        if self.headline.solved_at is not None:
            least = "least" if self.headline.higher_is_better else "most"
            interval = (
                ", with Wilson's 95% interval of their share"
                if any(len(group.members) > 1 for group in self.groups)
                else ""
            )
            notes.append(
                f"solved: runs with {self.headline.metric} of at {least} {self.headline.solved_at:g}{interval}."
            )
        if self.chance:
            notes.append("Chance: " + ", ".join(f"{name} {value:.4f}" for name, value in self.chance.items()) + ".")
        objectives = {member.recipe["objective"]["name"] for group in self.groups for member in group.members}
        if "belief_state" in objectives and len(objectives) > 1:
            notes.append(
                "belief_state's next-token loss in training is that of predictions that also read a suffix: it may be "
                "lower than any model of prefixes can reach."
            )
        if self.baselines:
            notes.append(f"Baselines, which are not models: {', '.join(self.baselines)}.")
        elif any(member.report.get("baselines") for group in self.groups for member in group.members):
            notes.append("The runs' baselines differ, as do their data: see `statewise evaluate RUN` for each.")
        if any(len(group.members) > 1 for group in self.groups):
            notes.append(
                "±: 95% confidence interval of the mean over seeds (Student's t)."
                + f" p (Welch): of {self.headline.metric}, two-sided, against the first group." * self._tests_groups()
            )
        return notes + self._untestable_notes() + self._single_notes()

    def _end_notes(self) -> list[str]:
        """Names the runs whose training is not finished, and those that ended as solved and are not."""
        members = [member for group in self.groups for member in group.members]
        unfinished = [f"{member.folder} (step {member.end['step']:,})" for member in members if not member.finished]
        unsolved = [
            str(member.folder)
            for member in members
            if member.end["reason"] == "solved"
            and not self.headline.solved(float(member.metrics[self.headline.metric]))
        ]
        notes = []
        if unfinished:
            notes.append(
                f"Training is not finished, and the evaluation is of a checkpoint so far: {'; '.join(unfinished)}. "
                "Finish it with `statewise train --resume RUN`."
            )
        if unsolved:
            notes.append(
                f"Training ended as solved by an evaluation on part of the examples, but on all it does not reach the "
                f"threshold: {'; '.join(unsolved)}."
            )
        return notes

    def _data_notes(self) -> list[str]:
        """Says what of the runs' data, tokenizers and machines differs."""
        notes = []
        if self.unlike_data:
            names = ", ".join(self.unlike_data)
            notes.append(f"The groups differ in their data ({names}): their held-out sets need not be the same.")
        if not self.comparable:
            notes.append(
                f"{self.headline.metric} is per token, and the tokenizers differ: its values do not compare, and are "
                "not tested; those of loss_per_word do."
            )
        notes += [
            f"Left out of {folder}, without an evaluation yet: "
            f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}."
            for folder, seeds in self.seeds_left_out.items()
        ]
        for group in self.groups:
            for name in ("device", "precision"):
                values = [str(member.machine[name]) for member in group.members if name in member.machine]
                if len(set(values)) > 1:
                    notes.append(f"The runs of {group.label} differ in {name}: {', '.join(dict.fromkeys(values))}.")
        return notes

    def _untestable_notes(self) -> list[str]:
        """Explains a missing p value of groups of several runs, in the table or in the claims."""
        of = {group.label: list(group.metrics[self.headline.metric].values.values()) for group in self.groups}
        pairs = [(self.groups[0].label, group.label) for group in self.groups[1:] if self.comparable]
        pairs += [(claim.group, claim.other) for claim in self._tested()]
        constant = [all(len(of[name]) > 1 and len(set(of[name])) == 1 for name in pair) for pair in pairs]
        return [
            "p is -: within each of the two groups all runs have the same value, so there is no spread to test against."
        ] * any(constant)

    def _single_notes(self) -> list[str]:
        """Names groups of a single seed, if others have several or a test was requested."""
        single = [group.label for group in self.groups if len(group.members) == 1]
        if not single or (len(single) == len(self.groups) and not self.claims):
            return []
        return [f"Only one seed, so no interval and no test: {'; '.join(single)}."]

    def claims_notes(self) -> list[str]:
        """How the claims were tested."""
        kinds = {claim.kind for claim in self._tested()}
        notes = []
        if "better" in kinds:
            notes.append("Better: Welch's one-sided t-test; a small p supports the claim.")
        if "equal" in kinds:
            notes.append(
                f"Equal: two one-sided Welch tests (TOST) that the means differ by less than {self.margin}; a small p "
                "supports equality."
            )
        if len(self._tested()) > 1:
            notes.append("p values are not adjusted for multiple tests.")
        return notes

    def as_text(self, width: int = 100) -> str:
        """The tables for a terminal of `width` characters; wide ones are split. Groups with labels that would fill more
        than a third of it have letters, which a legend explains."""
        if max(len(group.label) for group in self.groups) > width / 3 and not self._is_lettered():
            letters = {group.label: letter_of(place) for place, group in enumerate(self.groups)}
            legend = [
                textwrap.fill(f"{letter}: {label}", width, subsequent_indent=" " * (len(letter) + 2))
                for label, letter in letters.items()
            ]
            return "\n".join([*legend, "", self._renamed(letters).as_text(width)])
        finding = [fitted_notes([self.finding()], width)] if self.finding() else []
        parts = [*finding, fitted_tables(*self.table(), width)]
        if self._tested():
            parts.append(fitted_tables(*self.claims_table(), width))
        if self.matches:
            parts.append(fitted_tables(*self.matches_table(), width, keys=2))
        if any(len(group.members) > 1 for group in self.groups):
            parts.append(fitted_tables(*self.seeds_table(), width, keys=2))
        return "\n\n".join([*parts, fitted_notes([*self.notes(), *self.claims_notes(), *self.matches_notes()], width)])

    def _is_lettered(self) -> bool:
        return all(group.label == letter_of(place) for place, group in enumerate(self.groups))

    def _renamed(self, names: Mapping[str, str]) -> Comparison:
        """The comparison with other labels of groups."""
        return replace(
            self,
            groups=[replace(group, label=names[group.label]) for group in self.groups],
            claims=[replace(claim, group=names[claim.group], other=names[claim.other]) for claim in self.claims],
            matches=[replace(one, group=names[one.group], other=names[one.other]) for one in self.matches],
        )

    def as_markdown(self) -> str:
        """The tables and notes as Markdown."""

        def lines(notes: list[str]) -> str:
            return "\n".join(map(markdown_text, notes))

        claims = [markdown_table(*self.claims_table()), lines(self.claims_notes())] if self._tested() else []
        matches = [markdown_table(*self.matches_table()), lines(self.matches_notes())] if self.matches else []
        finding = [markdown_text(self.finding())] * bool(self.finding())
        return (
            "\n\n".join(
                [
                    *finding,
                    markdown_table(*self.table()),
                    lines(self.notes()),
                    *claims,
                    *matches,
                    markdown_table(*self.seeds_table()),
                ]
            )
            + "\n"
        )

    def as_json(self) -> str:
        """The whole comparison as JSON."""
        content = {
            "headline": asdict(self.headline),
            "finding": self.finding(),
            "chance": self.chance,
            "baselines": self.baselines,
            "differences": self.differences,
            "left_out": self.seeds_left_out,
            "margin": self.margin,
            "claims": [asdict(claim) for claim in self.claims],
            "tokens_to_match": [asdict(match) for match in self.matches],
            "groups": [
                {
                    "label": group.label,
                    "runs": [str(member.folder) for member in group.members],
                    "solved": group.solved,
                    "metrics": {name: asdict(summary) for name, summary in group.metrics.items()},
                    "checkpoints": {member.seed: member.report["checkpoint"] for member in group.members},
                    "end": {member.seed: member.end for member in group.members},
                }
                for group in self.groups
            ],
        }
        return printable(content) + "\n"


def letter_of(place: int) -> str:
    """A to Z, then AA, AB and so on."""
    before, last = divmod(place, 26)
    return (letter_of(before - 1) if before else "") + chr(ord("A") + last)


@dataclass(frozen=True)
class Ranked:
    """A group of runs by the metric that ranks them."""

    label: str
    summary: Summary
    solved: int | None
    """Number of runs that solved the task; None if the task defines no threshold."""

    def in_words(self) -> str:
        """`0.9977 (5 of 5 runs solved)`."""
        mean, count = number(self.summary.mean), len(self.summary.values)
        if self.solved is None:
            return mean if count == 1 else f"{mean} (mean of {count} runs)"
        if count == 1:
            return f"{mean} ({'solved' if self.solved else 'not solved'})"
        return f"{mean} ({self.solved} of {count} runs solved)"


def finding(groups: Sequence[Ranked], headline: Headline, chance: float | None) -> str:
    """The best group beside the first one, or beside the next best if it is the first, with Welch's two-sided p; of
    three groups, also the value of the third."""
    means = [group.summary.mean for group in groups]
    words = headline.metric.replace("_", " ")
    end = "." if chance is None else f"; chance is {number(chance)}."
    if len(groups) == 1:
        return f"{groups[0].label} has a {words} of {groups[0].in_words()}{end}"
    order = sorted(range(len(groups)), key=lambda place: means[place], reverse=headline.higher_is_better)
    best, other = groups[order[0]], groups[0] if order[0] else groups[order[1]]
    values, others = [*best.summary.values.values()], [*other.summary.values.values()]
    if min(len(values), len(others)) < 2:
        test, differ = "one seed, so no test", best.summary.mean != other.summary.mean
    else:
        p, differ = welch(values, others), significantly_different(values, others)
        test = "no spread over seeds to test against" if p is None else f"p = {number(p)}"
        test += ", not adjusted for the number of groups" if len(groups) > 2 and p is not None else ""
    if not differ:
        between = f"between {best.label}, {best.in_words()}, and {other.label}, {other.in_words()}"
        return f"No difference in {words} is shown {between} ({test}){end}"
    kinds = ("highest", "higher") if headline.higher_is_better else ("lowest", "lower")
    kind = kinds[len(groups) == 2]
    if len(groups) == 3:
        (third,) = (group for group in groups if group not in (best, other))
        end = f"; {third.label} has {third.in_words()}{end}"
    return f"{best.label} has the {kind} {words}, {best.in_words()}; {other.label} has {other.in_words()} ({test}){end}"
