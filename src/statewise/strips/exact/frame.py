"""What learners without training share: their options, the time, and the report."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

from statewise.strips.exact.listed import Listed
from statewise.strips.exact.windows import valid_rows
from statewise.strips.model.candidates import Candidates
from statewise.strips.model.heads import Heads, Judge
from statewise.strips.model.learned import Learned
from statewise.strips.model.lifted_model import LiftedModel
from statewise.strips.model.schemas import Schema
from statewise.strips.model.traces import Traces
from statewise.strips.verification.pruning import prune, undominated

SECONDS = 60.0
"""The default time limit in seconds."""
GRACE = 2.0
"""Seconds for a step without which there is no model, once the time is up."""
READING = "reading all traces"
PRUNING = 30.0
"""The most seconds for dropping atoms that others imply."""


T = TypeVar("T")


class Options(TypedDict, total=False):
    """The options of every learner without training.

    `seconds`: a limit of time (60); after it, or once `stop()` is true, the best model so far is returned, and
    `report["unfinished"]` says what was not finished. `progress` is called with messages. `listed`: what an interrupted
    call listed before; what this call lists is added to it."""

    seconds: float
    stop: Callable[[], bool]
    progress: Callable[[str], None]
    listed: Listed


@dataclass
class Clock:
    """When to stop, and what was not finished."""

    seconds: float
    stop: Callable[[], bool] = lambda: False
    begun: float = field(default_factory=time.monotonic)
    cut: list[str] = field(default_factory=list)
    """What was not finished for lack of time, in words."""
    too_many: list[str] = field(default_factory=list)
    """What could not be finished in any time, in words."""

    def left(self) -> float:
        """Seconds until the limit; 0 once `stop()` is true."""
        return 0.0 if self.stop() else max(0.0, self.begun + self.seconds - time.monotonic())

    def going_on(self) -> bool:
        """Whether there is time left."""
        return self.left() > 0

    def going_on_a_little(self) -> Callable[[], bool]:
        """A function like `going_on` that is also true for the next `GRACE` seconds, whether there is time left or
        not."""
        end = time.monotonic() + GRACE
        return lambda: time.monotonic() < end or self.going_on()

    def reading(self, rows: Sequence[T], share: float = 0.5) -> Iterator[T]:
        """The traces in random order, as many as can be read in a share of the time left: a model of some of them is
        better than none."""
        end = time.monotonic() + share * self.left()
        for row in random.Random(0).sample(rows, len(rows)):
            if time.monotonic() > end or self.stop():
                self.cut.append(READING)
                return
            yield row


class Work:
    """A learner at work on traces."""

    def __init__(self, method: str, traces: Traces, options: Options) -> None:
        self.method, self.traces = method, traces
        self.clock = Clock(options.get("seconds", SECONDS), options.get("stop", lambda: False))
        self._listed = options.get("listed") or Listed()
        self.say: Callable[[str], None] = options.get("progress", lambda text: None)

    @property
    def listed(self) -> Listed:
        """What was listed before. Once only some traces were read, it is a copy, so that what is found is not kept: it
        may not hold of the other traces."""
        return self._listed.copy() if READING in self.clock.cut else self._listed

    def ground(self, heads: Heads, facts: Mapping[str, Any], *, before: float = 0.0) -> Learned:
        """The model of the heads, without those that others imply, which keeps the language. `facts` are more entries
        of the report, `before` is the time of earlier work in seconds."""
        actions = self.traces.actions
        heads = heads.only(heads.unique())
        heads = heads.only(undominated(heads, self.clock.going_on))
        kept = heads.only(
            prune(Candidates.alone(heads), actions, min(PRUNING, self.clock.left()), stop=self.clock.stop)
        )
        seen = {action for row in valid_rows(self.traces) for action in row}
        report = self._report(
            {
                "actions": len(actions),
                "never_valid": [name for place, name in enumerate(actions) if place not in seen],
                **facts,
                "best_restart": 0,
                "heads_before_pruning": len(heads),
                "atoms": len(kept),
                "training_accuracy": accuracy(kept, Judge(self.traces)),
            },
            before,
        )
        return Learned(kept.model(actions), kept.theta()[None], report)

    def lifted(self, schemas: dict[str, Schema], facts: Mapping[str, Any]) -> LiftedModel:
        """The schemas, with `facts` for the report; `training_accuracy` is computed unless it is among them."""
        learned = LiftedModel(schemas, {})
        model = learned.ground(self.traces.actions)
        counted = (
            {}
            if "training_accuracy" in facts
            else {"training_accuracy": accuracy(Heads.of_model(model), Judge(self.traces))}
        )
        learned.report.update(self._report({**facts, **counted}, self.listed.seconds))
        return learned

    def grounded(self, lifted: LiftedModel) -> Learned:
        """The ground model of learned schemas over the actions of the traces."""
        self.clock.cut += lifted.report["unfinished"]
        heads = Heads.of_model(lifted.ground(self.traces.actions))
        return self.ground(heads, lifted.report, before=lifted.report["seconds"])

    def _report(self, facts: Mapping[str, Any], before: float = 0.0) -> dict[str, Any]:
        traces = self.traces
        self._listed.unfinished = bool(self.clock.cut)
        return {
            **facts,
            "method": self.method,
            "settings": {"seconds": self.clock.seconds, **facts.get("settings", {})},
            "traces": {
                "count": len(traces),
                "positive": traces.positives,
                "longest": traces.longest,
                "sha256": traces.sha256,
            },
            "unfinished": list(dict.fromkeys(self.clock.cut + self.clock.too_many)),
            "seconds": round(before + time.monotonic() - self.clock.begun, 2),
        }


def accuracy(heads: Heads, judge: Judge) -> float:
    """The share of the traces that the heads together classify correctly."""
    verdicts = judge.verdicts(heads)
    return float(judge.right(verdicts.alarms, verdicts.catches).mean())
