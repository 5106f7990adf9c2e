"""What learners without training share: their options, the time, the report, and the features listed so far.

Where many features alternate, listing them takes most of the time. Features hold for the same traces in every call, so
the next call continues from them (`Listed`) and repeats only the rest. They are kept by their signature, and by the
number of traces that a window needed.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from statewise.runtime.json_files import AMOUNT, Leaf, Shape, check
from statewise.strips.exact.features import Feature, Found, alternating
from statewise.strips.exact.predicates import Signature
from statewise.strips.exact.windows import Windows, valid_rows
from statewise.strips.model.heads import Candidates, Heads, Judge, accuracy
from statewise.strips.model.learned import Learned, read_checkpoint, write_checkpoint
from statewise.strips.model.schemas import LiftedModel, Schema
from statewise.strips.model.traces import Traces
from statewise.strips.verification.containment import prune, undominated

FORMAT = 2
_FEATURE = Leaf(
    "two numbers in hexadecimal",
    lambda value: (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(part, str) and re.fullmatch("0x[0-9a-f]+", part) for part in value)
    ),
)
PROGRESS: Shape = {"seconds": AMOUNT, "listed": {...: [_FEATURE]}}
"""What `Listed.write` adds to `learned.CHECKPOINT`: the features by their key, each as the actions that delete and
those that add."""


@dataclass
class Listed:
    """Features by their key, as found by this call and by interrupted calls before it."""

    features: dict[str, list[Feature]] = field(default_factory=dict)
    seconds: float = 0.0
    """The time that the interrupted calls took."""
    folder: Path | None = None
    """Where the features were read from."""
    unfinished: bool = False
    """Whether the time was too short for the learner that used it last, so that another call should continue."""

    @classmethod
    def read(cls, folder: Path, traces: Traces, *, lifted: bool) -> Listed:
        """Reads what an interrupted call left in the folder, if it has a checkpoint. Raises `ValueError` if that is
        damaged, or if the traces or the kind of learning differ: `lifted` says whether schemas are learned."""
        checkpoint = read_checkpoint(folder)
        if checkpoint is None:
            return cls()
        facts, kept = _facts(traces, lifted), checkpoint[1]
        changed = [key for key in ("settings", "traces") if kept.get(key) != facts[key]]
        if changed:
            raise ValueError(
                f"{folder} holds an interrupted run with other {' and '.join(changed)}: choose another `out`, or give "
                "`overwrite`"
            )
        try:
            if kept.get("format") != FORMAT:
                raise ValueError(f"format {kept.get('format')}, not {FORMAT}")
            progress = check(kept["progress"], PROGRESS, "its progress")
            listed = {
                of: [Feature(int(delete, 16), int(add, 16)) for delete, add in features]
                for of, features in progress["listed"].items()
            }
        except ValueError as error:
            raise _damaged(folder, error) from None
        return cls(listed, progress["seconds"], folder)

    def copy(self) -> Listed:
        """A copy of the features: what is added to one is not added to the other."""
        return replace(self, features=dict(self.features))

    def alternating(
        self, of: Signature | None, windows: Windows, *, support: int = 1, seconds: float, stop: Callable[[], bool]
    ) -> Found:
        """Lists alternating features (`features.alternating`) of the slots of a signature, or of actions (None),
        beginning with those that were listed before. Raises `ValueError` if the checkpoint has features of other
        actions."""
        key = ("actions" if of is None else " ".join(map(str, ("slots", *of.sorts)))) + f", support {support}"
        known = self.features.get(key, [])
        if self.folder is not None and any(part >> windows.actions for each in known for part in each):
            raise _damaged(self.folder, "a feature has unknown actions")
        listed = alternating(windows, known=known, seconds=seconds, stop=stop)
        self.features[key] = listed.features
        return listed

    def write(self, folder: Path, traces: Traces, seconds: float, *, lifted: bool) -> None:
        """Writes the checkpoint that `read` reads; `seconds` is the total time so far."""
        listed = {of: [[hex(part) for part in each] for each in some] for of, some in self.features.items()}
        progress: dict[str, Any] = {"results": [], "log": [], "seconds": seconds, "listed": listed}
        write_checkpoint(folder, {}, {**_facts(traces, lifted), "progress": progress})


def _facts(traces: Traces, lifted: bool) -> dict[str, Any]:
    settings = {"method": "exact", **({"lifted": True} if lifted else {})}
    return {"format": FORMAT, "settings": settings, "traces": traces.sha256}


def _damaged(folder: Path, why: object) -> ValueError:
    return ValueError(f"{folder / 'checkpoint.npz'}: damaged: {why}: start over with `overwrite`")


SECONDS = 60.0
"""The default time limit in seconds."""
GRACE = 2.0
"""The most seconds for a step without which there is no model, once the time is up."""
GRACE_SHARE = 1 / 25
"""The largest share of the limit for such a step: a call has few, and ends within a tenth of its limit."""
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
    _grace_ends: float | None = None

    def left(self) -> float:
        """Seconds until the limit; 0 once `stop()` is true."""
        return 0.0 if self.stop() else max(0.0, self.begun + self.seconds - time.monotonic())

    def has_time(self) -> bool:
        """Whether there is time left."""
        return self.left() > 0

    @property
    def grace(self) -> float:
        """Seconds for a step without which there is no model, once the time is up."""
        return min(GRACE, GRACE_SHARE * self.seconds)

    def with_grace(self) -> Callable[[], bool]:
        """A function like `has_time` that is true for at least `grace` seconds after the first step that needs it."""
        now = time.monotonic()
        if self._grace_ends is None and now > self.begun + self.seconds:
            self._grace_ends = now + self.grace
        end = now + self.grace if self._grace_ends is None else self._grace_ends
        return lambda: time.monotonic() < end or self.has_time()

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

    def __init__(
        self,
        method: str,
        traces: Traces,
        *,
        seconds: float = SECONDS,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[str], None] = lambda text: None,
        listed: Listed | None = None,
    ) -> None:
        self.method, self.traces = method, traces
        self.clock = Clock(seconds, stop)
        self._listed = Listed() if listed is None else listed
        self.say = progress

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
        heads = heads.only(undominated(heads, self.clock.has_time))
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
        self._listed.unfinished = bool(self.clock.cut)
        return {
            **facts,
            "method": self.method,
            "settings": {"seconds": self.clock.seconds, **facts.get("settings", {})},
            "traces": self.traces.summary(),
            "unfinished": list(dict.fromkeys(self.clock.cut + self.clock.too_many)),
            "seconds": round(before + time.monotonic() - self.clock.begun, 2),
        }
