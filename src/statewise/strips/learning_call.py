"""One call of `methods.learn` or `learn_schemas`: what was asked for, why a method was chosen, and the time left.

A call tries methods in turn. What one of them could not do decides on the next and is part of the reason given in the
report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np

from statewise.strips.exact.frame import GRACE, SECONDS, Clock, How
from statewise.strips.exact.ground import Contradiction
from statewise.strips.exact.lifted import MOST_ARITY
from statewise.strips.exact.listed import Listed
from statewise.strips.exact.verdicts import Seen
from statewise.strips.model.learned import SEEN_FILE, Finish, Learned, may_claim, read_checkpoint
from statewise.strips.model.lifted_model import LiftedModel, sorts_of
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import Progress
from statewise.strips.neural.settings import Settings

COMPARED = ("sift", "locm")
"""Methods that read all traces as undamaged, for comparison."""
METHODS = ("auto", "exact", "neural", "hybrid", *COMPARED)
MOST_NOISE = 0.1
"""Share of the traces that `auto` leaves unexplained, at most, if the damage is not known."""
TAKEN = "the traces are taken for damaged"
FOR_VERDICTS = 1 / 4
"""The share of a limit that is kept for what schemas' traces show (`exact.verdicts`)."""
ONE_IN = 5
"""Of damaged traces one in so many is held out, to choose between models."""

M = TypeVar("M", Learned, LiftedModel)


class Options(TypedDict, total=False):
    """The options of `learn` and `learn_schemas`.

    `method` (`auto`): one of `METHODS`. `damaged` (False): whether the traces are taken for damaged from the beginning.
    `seconds` (None): the limit of the whole call; None: each method has its own. `stop`, `folder`, `overwrite`: as in
    `exact.frame.How`. `say` is called with what is being done, `progress` by training (`learning.Progress`)."""

    method: str
    damaged: bool
    seconds: float | None
    stop: Callable[[], bool]
    folder: Path | None
    overwrite: bool
    say: Callable[[str], None]
    progress: Progress | None


@dataclass
class Call:
    """One call, as far as it has come; see `Options`."""

    traces: Traces
    settings: Settings
    """Those of training."""
    lifted: bool
    """Whether the result is schemas."""
    method: str = "auto"
    damaged: bool = False
    """Whether the traces are taken for damaged: asked for, or found."""
    seconds: float | None = None
    stop: Callable[[], bool] = lambda: False
    folder: Path | None = None
    overwrite: bool = False
    """Whether the folder is written anew: asked for, or since this call itself has written it."""
    say: Callable[[str], None] = lambda text: None
    progress: Progress | None = None
    why: str = ""
    """Why the method of now was chosen."""
    listed: Listed = field(default_factory=Listed)
    """What exact learning has listed, in an interrupted call before this one, too."""
    begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Raises `ValueError` for a method that there is not, or does not suit what is asked, and what claiming the
        folder raises."""
        if self.method not in METHODS:
            raise ValueError(f"the method must be one of {', '.join(METHODS)}, not {self.method!r}")
        noise = self.settings.noise > 0
        if self.method in COMPARED and (self.damaged or noise):
            raise ValueError(
                f"{self.method.upper()} reads every trace as undamaged: give --method exact or neural, or no --noise"
            )
        resumes = self.method in ("auto", "exact") and self.folder is not None and not self.overwrite
        kept = read_checkpoint(self.folder) if resumes and self.folder is not None else None
        of_part = kept is not None and kept[1].get("traces") == self.parts[0].sha256 != self.traces.sha256
        if self.method != "auto":
            self.why = "asked for"
        elif of_part:
            self.damaged, self.why = True, f"an interrupted run continues: {TAKEN}"
        elif kept is not None and "method" not in kept[1]["settings"] and not self.lifted:
            self.method, self.why = "neural", "an interrupted training run continues"
        else:
            self.why = "noise is to be tolerated" if noise else TAKEN if self.damaged else "the traces are clean"
        self.damaged = self.damaged or noise
        if self.damaged and self.method == "exact":
            self.why += f": {TAKEN}"
        if self.folder is not None:
            may_claim(self.folder, self.overwrite, resumes=True)  # before the work, not after it
            trained = kept is not None and "method" not in kept[1]["settings"] and not self.lifted
            if kept is not None and self.method in ("auto", "exact") and not (of_part and trained):
                of = self.parts[0] if of_part else self.traces
                self.listed = Listed.read(self.folder, of, lifted=self.lifted)

    @cached_property
    def parts(self) -> tuple[Traces, Traces]:
        """The traces to learn from, and those held out, of damaged traces: the same share of valid and of negative
        ones, drawn with a fixed seed. All of them twice, if there are fewer than two of a kind."""
        labels = np.array(self.traces.labels)
        order = np.random.default_rng(0).permutation(len(labels))
        held: list[int] = []
        for label in (0, 1):
            mine = order[labels[order] == label]
            if len(mine) < 2:
                return self.traces, self.traces
            held += mine[: max(1, len(mine) // ONE_IN)].tolist()
        apart = set(held)
        learned_from = [place for place in range(len(labels)) if place not in apart]
        return self.traces.only(learned_from), self.traces.only(sorted(held))

    @property
    def over(self) -> bool:
        """Whether the time is up, or the call was stopped."""
        return self.stop() or (self.seconds is not None and time.monotonic() - self.begun >= self.seconds)

    def left(self) -> float | None:
        """Seconds until the limit; at least one, or the whole of a shorter limit, so that each method comes to a model.
        None without a limit."""
        if self.seconds is None:
            return None
        return max(min(1.0, self.seconds), self.seconds - (time.monotonic() - self.begun))

    def how(self, *, share: float = 1.0, why: str | None = None, write: bool = True) -> How:
        """The options of a learner that gets a share of the time left, and for the report the reason (`self.why`). It
        writes the folder, unless another one is still to be tried."""
        left = self.left()
        if left is not None and write and self.lifted and self.folder is not None and not self.damaged:
            share *= 1 - FOR_VERDICTS
        return {
            "seconds": (SECONDS if left is None else left) * share,
            "stop": self.stop,
            "progress": self.say,
            "listed": self.listed,
            **({"folder": self.folder, "overwrite": self.overwrite} if write else {}),
            "finish": self.because(why or self.why),
        }

    def clean(self, learner: Callable[..., M]) -> M | None:
        """What `learner` makes of clean traces, or None if they are not: they contradict each other or, if any method
        may be taken, its model does not classify all correctly. They are taken for damaged then."""
        try:
            learned = learner(self.traces, **self.how())
        except Contradiction as error:
            if self.method == "exact":
                raise
            self.why = str(error).partition(". ")[0]
        else:
            refused = _refused(learned.report, self.traces) if self.method == "auto" else ""
            if not refused:
                return learned
            self.why, self.overwrite = refused, True
        self.damaged = True
        self.say(f"{self.why}: {TAKEN}")
        return None

    def because(self, why: str) -> Finish:
        """Adds to a learned folder why the method was chosen, and what the traces show, for verdicts on others, unless
        they contradict each other or are taken for damaged."""

        def finish(report: dict[str, Any]) -> Mapping[str, bytes]:
            report["chosen"] = why
            if self.folder is None or self.damaged:
                return {}
            left = SECONDS if self.seconds is None else self.seconds - (time.monotonic() - self.begun)
            clock = Clock(GRACE if self.stop() else max(GRACE, left))
            arity, objects = (MOST_ARITY, sorted(sorts_of(self.traces.actions)[1])) if self.lifted else (None, [])
            seen = Seen.of(
                self.traces,
                arity=arity,
                constants=objects,
                reading=lambda rows: clock.reading(rows, 0.1),
                going_on=clock.going_on,
            )
            if clock.cut or not clock.going_on():
                report["unfinished"] = [*report.get("unfinished", []), "reading all traces for `check`"]
            return {SEEN_FILE: seen.as_json()} if all(seen.negatives) else {}

        return finish


def _refused(report: Mapping[str, Any], traces: Traces) -> str:
    """Why `auto` does not take what the exact method learned; empty if it does. Without negatives there is nothing to
    train on, and what was cut short is continued."""
    accuracy = report["training_accuracy"]
    if accuracy == 1 or report["unfinished"] or not sum(traces.labels):
        return ""
    return f"the exact model classifies only {accuracy:.4f} of the traces correctly"


def too_many(report: Mapping[str, Any], noise: float) -> str:
    """Why `auto` does not take what was learned from damaged traces: it leaves more of them unexplained than are
    damaged, by over two standard errors. Empty if it takes it."""
    allowed = noise + 2 * (noise * (1 - noise) / report["traces"]["count"]) ** 0.5 if noise else MOST_NOISE
    missed = 1 - report["training_accuracy"]
    return "" if missed <= allowed + 1e-9 else f"the exact method leaves {missed:.4f} of the traces unexplained"
