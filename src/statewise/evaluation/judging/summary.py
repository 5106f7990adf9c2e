"""Win rates from judgements.

Judgements of one story are not independent, since they are about the same two texts. So intervals count stories: the
paper's 64% [54%, 74%] is about what its 100 stories give, while 600 independent trials would give [60%, 68%].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.reporting.statistics import wilson
from statewise.runtime.ledger import Record

SHOWN, LONGEST = 10, 100
"""Answers without a verdict that are shown, and characters of each."""


def summarise(records: Sequence[Record], stories: int) -> dict[str, Any]:
    """Counts and win rates of `a`, as plain data.

    `judgements`: counts by verdict; `unreadable` are answers without one, and `unreadable_answers` which and how they
    end. `win_rate`: mean over stories of `a`'s share of their readable judgements, an `equal` counting half, with a
    Wilson interval over stories. `majority`: stories by the side that most decided judgements favour, and `a`'s share
    of those that are not tied. `unjudged`: stories without a readable judgement. `first_shown`: share of decided
    judgements for the story shown first; far from 1/2, the judge has a position bias.
    """
    verdicts = [record["verdict"] for record in records]
    judgements = {kind: verdicts.count(kind) for kind in ("a", "b", "equal")}
    shares, majority = [], {"a": 0, "b": 0, "tie": 0}
    for story in range(1, stories + 1):
        read = [record["verdict"] for record in records if record["story"] == story and record["verdict"] is not None]
        if not read:
            continue
        wins, losses = read.count("a"), read.count("b")
        shares.append((wins + read.count("equal") / 2) / len(read))
        majority["a" if wins > losses else "b" if losses > wins else "tie"] += 1
    decided = [record for record in records if record["verdict"] in ("a", "b")]
    first = sum(record["verdict"] == record["first"] for record in decided)
    return {
        "stories": stories,
        "judgements": {**judgements, "unreadable": verdicts.count(None)},
        "win_rate": _rate(sum(shares), len(shares)),
        "majority": {**majority, "win_rate": _rate(majority["a"], majority["a"] + majority["b"])},
        "unjudged": stories - len(shares),
        "first_shown": first / len(decided) if decided else None,
        "unreadable_answers": _unreadable(records),
    }


def _unreadable(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The judgements without a verdict, and the last line of each answer, where it is expected."""
    found = [
        {**{key: record[key] for key in ("story", "repeat", "first")}, "last_line": _last_line(record["answer"])}
        for record in records
        if record["verdict"] is None
    ]
    return sorted(found, key=lambda one: (one["story"], one["repeat"], one["first"]))


def _last_line(answer: str) -> str:
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _rate(wins: float, trials: int) -> dict[str, Any] | None:
    """None without trials."""
    if trials == 0:
        return None
    return {"value": wins / trials, "interval": list(wilson(wins / trials, trials)), "of": trials}


def as_text(summary: dict[str, Any], a: str, b: str) -> str:
    """The summary as text."""
    judgements, majority = summary["judgements"], summary["majority"]
    first = summary["first_shown"]
    lines = [
        f"{sum(judgements.values())} judgements of {summary['stories']} stories: {judgements['a']} for {a}, "
        f"{judgements['b']} for {b}, {judgements['equal']} equal, {judgements['unreadable']} unreadable",
        f"win rate of {a}: {_rate_text(summary['win_rate'])}, equal counting half",
        f"by majority: {majority['a']} stories won, {majority['b']} lost, {majority['tie']} tied; "
        f"of those decided: {_rate_text(majority['win_rate'])}",
    ]
    if summary["unjudged"]:
        lines.append(f"{summary['unjudged']} stories have no readable judgement and are excluded from both rates")
    if first is not None:
        lines.append(f"the story shown first won {first:.0%} of decided judgements")
    unreadable = summary["unreadable_answers"]
    if unreadable:
        lines.append("answers without a verdict, and their last lines:")
    for one in unreadable[:SHOWN]:
        shown = a if one["first"] == "a" else b
        end = repr(one["last_line"][-LONGEST:]) if one["last_line"] else "empty answer"
        lines.append(f"  story {one['story']}, {shown} first, judgement {one['repeat']}: {end}")
    if len(unreadable) > SHOWN:
        lines.append(f"  and {len(unreadable) - SHOWN} more, in the summary file")
    return "\n".join(lines)


def _rate_text(rate: dict[str, Any] | None) -> str:
    if rate is None:
        return "none"
    low, high = rate["interval"]
    return f"{rate['value']:.1%} [{low:.1%}, {high:.1%}] (95%, Wilson, over {rate['of']} stories)"
