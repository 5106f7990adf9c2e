"""Learning by whichever method suits the traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from statewise.strips.exact.frame import GRACE, SECONDS, Clock, How, Work
from statewise.strips.exact.ground import Contradiction, learn_exact
from statewise.strips.exact.hybrid import from_trained, learn_hybrid
from statewise.strips.exact.lifted import ARITY, learn_lifted_exact
from statewise.strips.exact.listed import Listed
from statewise.strips.exact.locm import learn_locm
from statewise.strips.exact.noisy import learn_noisy
from statewise.strips.exact.noisy_lifted import learn_lifted_noisy
from statewise.strips.exact.sift import learn_lifted_sift, learn_sift
from statewise.strips.exact.verdicts import NAME, Seen
from statewise.strips.learned import Finish, Learned, claim, may_claim, read_checkpoint
from statewise.strips.learning import learn_neural
from statewise.strips.lifted import LiftedModel, learn_lifted
from statewise.strips.random_traces import Traces
from statewise.strips.settings import Settings

COMPARED = ("sift", "locm")
"""Methods that read all traces as undamaged, for comparison."""
METHODS = ("auto", "exact", "neural", "hybrid", *COMPARED)
NOT_DAMAGED = "{} reads every trace as undamaged: give --method exact or neural, or no --noise"
TAKEN = "the traces are taken for damaged"
SCHEMAS_FAIL = "; schemas do not explain all of them: if some may be damaged, give --noise auto"
MOST_NOISE = 0.1
"""Share of the traces that `auto` leaves unexplained, at most, if the damage is not known."""


def learn(
    traces: Traces,
    settings: Settings | None = None,
    *,
    method: str = "auto",
    damaged: bool = False,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int, np.ndarray, int], None] | None = None,
) -> Learned:
    """Learns an action model from traces: `exact` by SAT (`exact.ground`), `neural` by training (`learning`), `hybrid`
    by both, from damaged traces (`exact.hybrid`); for comparison `sift` and `locm`, as SIFT (`exact.sift`) and LOCM
    (`exact.locm`) do.

    `auto` takes the exact method if the traces are clean: they do not contradict each other, and its model classifies
    all of them correctly; of actions with arguments it learns schemas first, which need fewer traces, and takes their
    ground model if that classifies all correctly. If the traces are not clean, it takes the exact method for
    damaged traces, if its model explains all but a tenth of them: by schemas (`exact.noisy_lifted`), if these explain
    no fewer than ground atoms (`exact.noisy`) up to two standard errors. Else it trains, fits the hybrid model with the
    effects found, and takes whichever explains most traces. `settings` are those of training; `settings.noise` above 0
    is the share of traces that the exact method, too, may leave unexplained. With that, or with `damaged`, the traces
    are taken for damaged from the beginning. `report["method"]` and `report["chosen"]` say which method it was and why.
    `stop`, `seconds` and `folder` are as in the functions; `say` is called with what is being done, `progress` by
    training. Raises as the functions, and `ValueError` for another method."""
    settings = settings or Settings()
    begun = time.monotonic()
    method, why = _without_looking(method, settings, folder, overwrite)
    if damaged and method == "auto" and not settings.noise:
        why = TAKEN
    damaged = damaged or settings.noise > 0
    if method in COMPARED and damaged:
        raise ValueError(NOT_DAMAGED.format(method.upper()))
    if folder is not None:
        may_claim(folder, overwrite, resumes=True)  # before the work, not after it
    ends = _Endings(traces, folder, seconds, stop)
    how: How = {"seconds": seconds or SECONDS, "stop": stop, "folder": folder, "overwrite": overwrite, "progress": say,
                "finish": ends.because(why), "listed": _listed(method, folder, overwrite, traces)}  # fmt: skip
    if method == "hybrid":
        if seconds is None:
            del how["seconds"]
        return learn_hybrid(traces, settings, training=progress, **how)
    if method == "sift":
        return learn_sift(traces, **how)
    if method == "locm":
        return _grounded(learn_locm(traces), traces, how)
    if method == "auto" and not damaged:
        how["finish"] = ends.because(f"{why}, and schemas explain all of them")
        schemas = _schemas_of_clean(traces, _left(seconds, begun), how)
        if schemas is not None and not schemas.report["unfinished"]:
            if schemas.report["training_accuracy"] < 1:
                why += SCHEMAS_FAIL
            elif schemas.report["predicates"]:
                return _grounded(schemas, traces, how, resumes=True)
        how["finish"] = ends.because(why)
    if method != "neural" and not damaged:
        how["seconds"] = _left(seconds, begun) or SECONDS
        try:
            learned = learn_exact(traces, **how)
        except Contradiction as error:
            if method == "exact":
                raise
            why, damaged = _short(error), True
            say(f"{why}: {TAKEN}")
        else:
            refused = _refused(learned.report, traces) if method == "auto" else ""
            if not refused:
                return learned
            why, how["overwrite"], damaged = refused, True, True  # overwrites what the exact method has just written
            say(f"{why}: {TAKEN}")
    elif damaged:
        why += f": {TAKEN}" if method == "exact" else ""
    explained: Learned | None = None
    if method != "neural" and damaged:
        left = _left(seconds, begun)
        how["seconds"] = SECONDS if left is None else left if method == "exact" else left / 2  # the rest: training
        how["finish"] = ends.because(why)
        explained = learn_noisy(traces, **how) if method == "exact" else _exactly(traces, settings, why, how, ends)
        refused = _too_many(explained.report, settings.noise) if method == "auto" and not stop() else ""
        if not refused:
            return explained
        why, how["overwrite"] = f"{why}; {refused}", True
        say(f"{refused}: training instead")
    trained = learn_neural(traces, settings, seconds=_left(seconds, begun), stop=stop, folder=folder,
                           overwrite=how["overwrite"], progress=progress, finish=ends.because(why))  # fmt: skip
    if explained is None or trained.report["unfinished"]:
        return trained
    how["seconds"], how["folder"] = _left(seconds, begun) or SECONDS, None
    return _better(explained, trained, traces, why, how, ends)


def _exactly(traces: Traces, settings: Settings, why: str, how: How, ends: _Endings) -> Learned:
    """The exact model of damaged traces: the ground model of schemas, which need fewer traces, if these leave no more
    unexplained than is damaged, or explain as many as ground atoms up to two standard errors."""
    lifted = _schemas_of_damaged(traces, how)
    if lifted is None:
        return learn_noisy(traces, **how)
    accuracy = lifted.report["training_accuracy"]
    how["finish"] = ends.because(f"{why}; schemas explain {accuracy:.4f} of them")
    if not settings.noise or _too_many(lifted.report, settings.noise):
        ground_how: How = {**how, "seconds": max(1.0, how["seconds"] - lifted.report["seconds"]),
                           "finish": ends.because(why)}  # fmt: skip
        ground = learn_noisy(traces, **ground_how)
        best = max(ground.report["training_accuracy"], accuracy)
        if accuracy < best - 2 * (best * (1 - best) / len(traces)) ** 0.5:
            return ground
        how["overwrite"] = True  # overwrites what was written for ground atoms
    return _grounded(lifted, traces, how, resumes=True)


def _better(exact: Learned, trained: Learned, traces: Traces, why: str, how: How, ends: _Endings) -> Learned:
    """Of the models of damaged traces by exact learning, by training and by both, one that explains most of them: of
    those up to one standard error fewer the hybrid one, whose preconditions are exact, then the trained one. Writes
    the folder, which holds the trained one."""
    hybrid = from_trained(trained, traces, **how)
    accuracy = [each.report["training_accuracy"] for each in (hybrid, trained, exact)]
    best = max(accuracy)
    allowed = best - (best * (1 - best) / len(traces)) ** 0.5
    kept = next(each for each, right in zip((hybrid, trained, exact), accuracy) if right >= allowed)
    shares = ", ".join(f"{name} {right:.4f}" for name, right in zip(("hybrid", "neural", "exact"), accuracy))
    files = ends.because(f"{why}; of the traces they explain: {shares}")(kept.report)
    if ends.folder is not None:
        claim(ends.folder, True, resumes=False)
        kept.save(ends.folder, files)
    return kept


def learn_schemas(
    traces: Traces,
    settings: Settings | None = None,
    *,
    method: str = "auto",
    damaged: bool = False,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int, np.ndarray, int], None] | None = None,
) -> LiftedModel:
    """Learns action schemas as `learn` learns a ground model: by `exact.lifted`, from damaged traces by
    `exact.noisy_lifted`, or by training (`lifted`), which has no time limit and starts over."""
    settings = settings or Settings()
    method, why = _without_looking(method, settings, None, overwrite)
    if damaged and method == "auto" and not settings.noise:
        why = TAKEN
    damaged = damaged or settings.noise > 0
    if method == "hybrid":
        raise ValueError("the hybrid method learns ground models alone: omit --lifted, or give another --method")
    if method in COMPARED and damaged:
        raise ValueError(NOT_DAMAGED.format(method.upper()))
    if folder is not None:
        may_claim(folder, overwrite, resumes=True)
    ends = _Endings(traces, folder, seconds, stop, lifted=True)
    how: How = {"seconds": seconds or SECONDS, "stop": stop, "folder": folder, "overwrite": overwrite, "progress": say,
                "finish": ends.because(why),
                "listed": _listed(method, folder, overwrite, traces, lifted=True)}  # fmt: skip
    if method in COMPARED:
        return (learn_lifted_sift if method == "sift" else learn_locm)(traces, **how)
    if method != "neural" and not damaged:
        try:
            learned = learn_lifted_exact(traces, **how)
        except Contradiction as error:
            if method == "exact":
                raise
            why, damaged = _short(error), True
            say(f"{why}: {TAKEN}")
        else:
            refused = _refused(learned.report, traces) if method == "auto" else ""
            if not refused:
                return learned
            why, how["overwrite"], damaged = refused, True, True
            say(f"{why}: {TAKEN}")
    elif damaged:
        why += f": {TAKEN}" if method == "exact" else ""
    if method != "neural" and damaged:
        how["seconds"], how["finish"] = _left(seconds, ends.begun) or SECONDS, ends.because(why)
        learned = learn_lifted_noisy(traces, **how)
        refused = _too_many(learned.report, settings.noise) if method == "auto" and not stop() else ""
        if not refused:
            return learned
        why, how["overwrite"] = f"{why}; {refused}", True
        say(f"{refused}: training instead")
    return learn_lifted(traces, settings, folder=folder, overwrite=how["overwrite"], progress=progress,
                        finish=ends.because(why))  # fmt: skip


def _schemas_of_clean(traces: Traces, seconds: float | None, how: How) -> LiftedModel | None:
    """Exactly learned schemas, which need fewer traces than ground atoms; None if the actions are not those of
    schemas, or the traces contradict each other."""
    if not all(" " in action for action in traces.actions):
        return None
    some: How = {"seconds": (seconds or SECONDS) / 3, "stop": how["stop"], "progress": how["progress"],
                 "listed": how["listed"]}  # fmt: skip
    try:
        return learn_lifted_exact(traces, **some)
    except ValueError:  # contradictory traces, or unequal arities: for the ground method to judge
        return None


def _schemas_of_damaged(traces: Traces, how: How) -> LiftedModel | None:
    """Schemas that explain most of the traces; None if the actions are not those of schemas."""
    if not all(" " in action for action in traces.actions):
        return None
    some: How = {"seconds": how["seconds"] / 3, "stop": how["stop"], "progress": how["progress"],
                 "listed": how["listed"]}  # fmt: skip
    try:
        return learn_lifted_noisy(traces, **some)
    except ValueError:  # unequal arities, or no negatives: for the ground method to judge
        return None


def _grounded(lifted: LiftedModel, traces: Traces, how: How, *, resumes: bool = False) -> Learned:
    """The ground model of learned schemas over the actions of the traces."""
    work = Work(lifted.report["method"], traces, how)
    work.claim(resumes=resumes)
    return work.grounded(lifted)


def _listed(method: str, folder: Path | None, overwrite: bool, traces: Traces, *, lifted: bool = False) -> Listed:
    """What an interrupted call of exact learning left in the folder."""
    if folder is None or overwrite or method not in ("auto", "exact"):
        return Listed()
    return Listed.read(folder, traces, lifted=lifted)


def _without_looking(method: str, settings: Settings, folder: Path | None, overwrite: bool) -> tuple[str, str]:
    """The method and the reason, as far as the traces do not matter."""
    if method not in METHODS:
        raise ValueError(f"the method must be one of {', '.join(METHODS)}, not {method!r}")
    if method != "auto":
        return method, "asked for"
    checkpoint = read_checkpoint(folder) if folder is not None and not overwrite else None
    if checkpoint is not None and "method" not in checkpoint[1]["settings"]:
        return "neural", "an interrupted training run continues"
    return "auto", "noise is to be tolerated" if settings.noise else "the traces are clean"


def _refused(report: Mapping[str, Any], traces: Traces) -> str:
    """Why `auto` does not take what the exact method learned; empty if it does. Without negatives there is nothing to
    train on, and what was cut short is continued."""
    accuracy = report["training_accuracy"]
    if accuracy == 1 or report["unfinished"] or not sum(traces.labels):
        return ""
    return f"the exact model classifies only {accuracy:.4f} of the traces correctly"


def _too_many(report: Mapping[str, Any], noise: float) -> str:
    """Why `auto` does not take what was learned from damaged traces: it leaves more of them unexplained than are
    damaged, by over two standard errors. Empty if it takes it."""
    allowed = noise + 2 * (noise * (1 - noise) / report["traces"]["count"]) ** 0.5 if noise else MOST_NOISE
    missed = 1 - report["training_accuracy"]
    return "" if missed <= allowed + 1e-9 else f"the exact method leaves {missed:.4f} of the traces unexplained"


def _short(error: Contradiction) -> str:
    return str(error).partition(". ")[0]


def _left(seconds: float | None, begun: float) -> float | None:
    return None if seconds is None else max(1.0, seconds - (time.monotonic() - begun))


@dataclass(frozen=True)
class _Endings:
    """What is added to a learned folder."""

    traces: Traces
    folder: Path | None
    seconds: float | None
    stop: Callable[[], bool]
    lifted: bool = False
    begun: float = field(default_factory=time.monotonic)

    def because(self, why: str) -> Finish:
        """Adds why the method was chosen, and what the traces show, for verdicts on others, unless they contradict each
        other, are taken for damaged, or what a signature of them needs is missing."""

        def finish(report: dict[str, Any]) -> Mapping[str, bytes]:
            report["chosen"] = why
            if self.folder is None or "support" in report:
                return {}
            left = SECONDS if self.seconds is None else self.seconds - (time.monotonic() - self.begun)
            clock = Clock(GRACE if self.stop() else max(GRACE, left))
            arity = max(report.get("by_arity") or {ARITY: 0}) if self.lifted else None
            seen = Seen.of(self.traces, arity=arity, reading=clock.reading)
            if clock.cut:
                report["unfinished"] = [*report.get("unfinished", []), "reading all traces for `check`"]
            return {NAME: seen.as_json()} if all(seen.negatives) else {}

        return finish
