"""Learns schemas from logs that leave arguments out.

First the arguments are found (`arguments`, from states; `registers`, from actions alone); then schemas are learned from
the log with all arguments as from any other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import log2
from pathlib import Path
from typing import Any, Unpack

from statewise.runtime.messages import counted
from statewise.strips.exact.frame import SECONDS, Clock, Options
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.implicit.arguments import Explicit, allowed_of, facts_of, places_of, with_arguments
from statewise.strips.implicit.nothing_there import Absence, absences, with_absences
from statewise.strips.implicit.registers import as_traces, explicit_rows, registers_of
from statewise.strips.model.heads import EVIDENCE
from statewise.strips.model.learned import alone, claim, write_model
from statewise.strips.model.schemas import LiftedModel, arguments
from statewise.strips.model.states import Observed
from statewise.strips.observed.learning import learn_observed

__all__ = ["learn_implicit"]

FOR_ARGUMENTS = 3 / 4
"""The share of the time for finding arguments from actions alone."""


def learn_implicit(
    observed: Observed,
    *,
    hidden: bool = True,
    folder: Path | None = None,
    overwrite: bool = False,
    **options: Unpack[Options],
) -> LiftedModel:
    """Learns schemas from traces whose actions, written `schema object object`, leave out arguments that the state
    determines: `up`, or `sail l1` for sailing from wherever the ferry is.

    `observed`: the traces with states before the actions, complete for some predicates; `hidden`: also look for
    predicates that no state shows. Without any state, arguments are looked for among the objects that earlier actions
    named (`registers`): those that predict the log best, which is no proof. Only valid actions are read. The schemas
    have the arguments that were left out after the others. `report["implicit"]` says what determines each,
    `report["bounds"]` what is certain of the schemas. `folder`: where the model is written, over an earlier one with
    `overwrite`; without what the traces show, so that `check` decides nothing by it.

    Raises `ValueError` if states do not determine the arguments of an action, and what `learn_observed` raises;
    `FileExistsError` if the folder holds anything else, `BlockingIOError` if another process learns into it."""
    with alone(folder):
        if folder is not None:
            claim(folder, overwrite, resumes=False)
        model, actions = (_from_states if observed.count else _from_actions)(observed, hidden, options)
        if folder is not None:
            write_model(folder, model.ground(actions), model.report, schemas=model.schemas)
    return model


def _from_actions(observed: Observed, hidden: bool, options: Options) -> tuple[LiftedModel, Sequence[str]]:
    """The schemas, and the ground actions of the log with all arguments."""
    clock = Clock(options.get("seconds", SECONDS), options.get("stop", lambda: False))
    traces = observed.traces.valid_only()
    # learning needs time, too
    search = Clock(clock.seconds * FOR_ARGUMENTS, clock.stop)
    registers = registers_of(traces, search, options.get("progress", lambda text: None))
    rows, origin, counts = explicit_rows(traces, registers)
    explicit = as_traces(rows, origin, traces)
    left: Options = {**options, "seconds": max(clock.left(), min(1.0, clock.seconds))}
    model = learn_lifted_exact(explicit, **left)
    report: dict[str, Any] = model.report
    report["implicit"] = {
        "shown": registers.shown,
        "arguments": {
            schema: [{"definition": registers.as_text(schema, at)} for at in range(len(registers.of(schema)))]
            for schema in registers.shown
        },
        "registers": registers.as_plain(),
        "unresolved": sum(count - known for known, count in counts.values()),
        "unseen": [],
        "nothing_there": {},
        "negatives_unused": sum(observed.traces.labels),
    }
    report["chosen"] = "actions alone; the arguments are those that predict the log best, which is no proof"
    report["seconds"] = round(time.monotonic() - clock.begun, 2)
    report["unfinished"] = list(dict.fromkeys([*search.cut, *report["unfinished"]]))
    return model, explicit.actions


def _from_states(observed: Observed, hidden: bool, options: Options) -> tuple[LiftedModel, Sequence[str]]:
    """The schemas, and the ground actions of the log with all arguments."""
    say = options.get("progress") or _silent
    clock = Clock(options.get("seconds", SECONDS), options.get("stop", lambda: False))
    explicit = with_arguments(observed, clock.has_time, say)
    count = sum(map(len, explicit.left_out.values()))
    say(f"{counted(count, 'argument')} left out; learning from {counted(len(explicit.observed.traces), 'trace')}")
    used = {
        (query.predicate, at)
        for some in explicit.left_out.values()
        for each in some
        for query in each.definition
        if query.negated
        for at, place in enumerate(query.places)
        if place == -1
    }
    chosen = _worth(explicit, used, clock)
    shown = with_absences(explicit.observed, chosen)
    left: Options = {**options, "seconds": max(clock.left(), min(1.0, clock.seconds))}
    model = learn_observed(shown, hidden=hidden, **left)
    report: dict[str, Any] = model.report
    report["implicit"] = {
        **explicit.report(),
        "nothing_there": {each.name: [each.predicate, each.place] for each in chosen},
        "negatives_unused": sum(observed.traces.labels),
    }
    report["chosen"] = f"{observed.count} states were observed, which determine what actions leave out"
    report["seconds"] = round(time.monotonic() - clock.begun, 2)
    report["unfinished"] = list(dict.fromkeys([*clock.cut, *report["unfinished"]]))
    return model, explicit.observed.traces.actions


def _silent(text: str) -> None:
    """Says nothing."""


def _worth(explicit: Explicit, used: set[tuple[str, int]], clock: Clock) -> list[Absence]:
    """The absences that define arguments, and those that forbid enough to be worth their description, as preconditions
    that only some terms need are judged (`arguments`)."""
    candidates = absences(explicit.observed)
    kept = [each for each in candidates if (each.predicate, each.place) in used]
    if len(kept) == len(candidates):
        return kept
    shown = with_absences(explicit.observed, candidates)
    left = max(clock.left(), min(1.0, clock.seconds))
    model = learn_observed(shown, hidden=False, seconds=left, stop=clock.stop)
    facts = facts_of(shown)
    occurrences: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    for trace, row in enumerate(shown.traces.rows):
        for schema, objects in (arguments(shown.traces.actions[at]) for at in row):
            occurrences.setdefault(schema, []).append((trace, objects[: explicit.shown[schema]]))
    places = {schema: places_of(facts, some) for schema, some in occurrences.items()}
    for each in candidates:
        if each in kept or not clock.has_time():
            continue
        others = {one.name for one in candidates} - {one.name for one in kept}
        bits, size = 0.0, 0
        for schema, some in occurrences.items():
            learned = model.schemas[schema]
            size += sum(literal[0] == each.name for part in learned.parts for literal in part)
            pre = {literal for literal in learned.pre if literal[0] not in others}
            mine = {literal for literal in learned.pre if literal[0] == each.name}
            if mine:
                allowed = allowed_of(places[schema], explicit.left_out[schema], pre)
                free = allowed_of(allowed, explicit.left_out[schema], mine)
                bits += len(some) * log2(len(allowed) / len(free)) if free else 0.0
        if size and bits >= EVIDENCE * size:
            kept.append(each)
    return kept
