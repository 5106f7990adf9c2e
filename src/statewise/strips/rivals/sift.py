"""SIFT (Gösgens, Jansen and Geffner, 2024), for comparison: all alternating atoms, with all that they can require.

It learns from valid actions only. An atom is kept if its effect alternates in them; an action requires it if the atom
was never known to be false before the action. Here a SAT solver lists what SIFT enumerates. SIFT does not weigh whether
the traces support an atom: with few traces, atoms that alternate by chance make the model reject valid actions. Our own
methods (`exact.ground`, `exact.lifted`) do.

If an action requires the atom to be false, it requires the complement of the atom, which alternates, too."""

from __future__ import annotations

from typing import Unpack

from statewise.strips.exact.features import MOST, alternating
from statewise.strips.exact.frame import Options, Work
from statewise.strips.exact.ground import required
from statewise.strips.exact.lifted import ARITY, predicates_of_arity
from statewise.strips.exact.preconditions import as_heads
from statewise.strips.exact.predicates import Predicate, as_schemas, without_covered
from statewise.strips.exact.windows import Windows, valid_rows
from statewise.strips.model.learned import Learned
from statewise.strips.model.schemas import LiftedModel
from statewise.strips.model.traces import Traces


def learn_sift(traces: Traces, **options: Unpack[Options]) -> Learned:
    """The ground model of all alternating atoms; only the valid actions of labelled traces are read. Raises
    `ValueError` without python-sat."""
    work = Work("sift", traces, **options)
    windows = Windows.of_rows(len(traces.actions), work.clock.reading(valid_rows(traces)))
    listed = alternating(windows, seconds=work.clock.left() / 2, stop=work.clock.stop)
    if not listed.complete:
        work.clock.cut.append(
            "listing the alternating features" + (f": more than {MOST}" if len(listed.features) >= MOST else "")
        )
    work.say(f"{len(listed.features)} alternating features")
    able = required(windows, listed.features, work.clock)
    heads = as_heads(list(able), list(able.values()), len(traces.actions))
    return work.ground(heads, {"windows": len(windows), "features": len(listed.features)})


def learn_lifted_sift(traces: Traces, **options: Unpack[Options]) -> LiftedModel:
    """The schemas of all alternating predicates of up to `ARITY` arguments, otherwise like `learn_sift`. Also raises
    `ValueError` if a schema occurs with different numbers of arguments."""
    work = Work("sift", traces, **options)
    offered: list[Predicate] = []
    rows = valid_rows(traces)
    counts: dict[int, int] = {}
    for wanted in range(ARITY + 1):
        predicates = predicates_of_arity(wanted, traces, rows, work)[1]
        counts[wanted] = len(predicates)
        offered += predicates
    chosen = without_covered(offered)
    return work.lifted(
        as_schemas(chosen, traces.actions), {"by_arity": counts, "offered": len(offered), "predicates": len(chosen)}
    )
