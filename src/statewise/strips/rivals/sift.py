"""SIFT (Gösgens, Jansen and Geffner, 2024), for comparison: all alternating atoms, with all that they can require.

It learns from valid actions only. An atom is kept if its effect alternates in them; an action requires it if the atom
was never known to be false before the action. Here a SAT solver lists what SIFT enumerates. SIFT does not weigh whether
the traces support an atom: with few traces, atoms that alternate by chance make the model reject valid actions. Our own
methods (`exact.ground`, `exact.lifted`) do.

If an action requires the atom to be false, it requires the complement of the atom, which alternates, too."""

from __future__ import annotations

from typing import Unpack

from statewise.runtime.messages import counted
from statewise.strips.exact.features import MOST, alternating
from statewise.strips.exact.frame import Options, Work
from statewise.strips.exact.ground import required
from statewise.strips.exact.lifted import ARITY, all_predicates, windows_of_slots
from statewise.strips.exact.preconditions import as_heads
from statewise.strips.exact.predicates import Predicate, as_schemas
from statewise.strips.exact.windows import Windows, valid_rows
from statewise.strips.model.learned import Learned
from statewise.strips.model.lifted_model import LiftedModel
from statewise.strips.model.traces import Traces


def learn_sift(traces: Traces, **options: Unpack[Options]) -> Learned:
    """The ground model of all alternating atoms; only the valid actions of labelled traces are read. Raises
    `ValueError` without python-sat."""
    work = Work("sift", traces, options)
    windows = Windows.of_rows(len(traces.actions), work.clock.reading(valid_rows(traces)))
    found = alternating(windows, seconds=work.clock.left() / 2, stop=work.clock.stop)
    if not found.complete:
        work.clock.cut.append(
            "listing the alternating features" + (f": more than {MOST}" if len(found.features) >= MOST else "")
        )
    work.say(f"{len(found.features)} alternating features")
    able = required(windows, found.features, work.clock)
    heads = as_heads(list(able), list(able.values()), len(traces.actions))
    return work.ground(heads, {"windows": len(windows), "features": len(found.features)})


def learn_lifted_sift(traces: Traces, **options: Unpack[Options]) -> LiftedModel:
    """The schemas of all alternating predicates of up to `ARITY` arguments, otherwise like `learn_sift`. Also raises
    `ValueError` if a schema occurs with different numbers of arguments."""
    work = Work("sift", traces, options)
    found: list[Predicate] = []
    rows = valid_rows(traces)
    counts: dict[int, int] = {}
    for wanted in range(ARITY + 1):
        windows = windows_of_slots(traces.actions, rows, wanted, work.clock)
        new = all_predicates(windows, wanted, work.clock, work.listed)
        counts[wanted] = len(new)
        found += new
        work.say(f"{counted(len(new), 'alternating predicate')} of {counted(wanted, 'argument')}")
    chosen = [
        each
        for place, each in enumerate(found)
        if not any(
            other.covers(each) and (not each.covers(other) or at < place)
            for at, other in enumerate(found)
            if at != place
        )
    ]
    return work.lifted(
        as_schemas(chosen, traces.actions), {"by_arity": counts, "offered": len(found), "predicates": len(chosen)}
    )
