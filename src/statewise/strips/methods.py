"""Learning by whichever method suits the traces.

Every call is a list of attempts and one loop (`_Call._tried`). An attempt is a learner, its share of the time that is
left, and a test that accepts its model or says why not. For noise-free traces the result is the first accepted model.
If none is accepted, the traces are treated as noisy: a fifth of them is held out, and the result is the model that
explains most of these. The report says why a method was chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statewise.strips.exact.frame import GRACE, GRACE_SHARE, SECONDS, Clock, Listed, Options, Work
from statewise.strips.exact.ground import Contradiction, learn_exact
from statewise.strips.exact.lifted import MOST_ARITY, learn_lifted_exact
from statewise.strips.exact.noisy import learn_lifted_noisy, learn_noisy
from statewise.strips.exact.verdicts import Seen
from statewise.strips.hybrid import from_trained, learn_hybrid
from statewise.strips.model.heads import Heads, Judge
from statewise.strips.model.learned import SEEN_FILE, Learned, alone, claim, may_claim, read_checkpoint, write_model
from statewise.strips.model.schemas import LiftedModel, sorts_of
from statewise.strips.model.states import Observed
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import Progress, Settings, learn_neural
from statewise.strips.neural.lifted import learn_lifted
from statewise.strips.observed.learning import Names, learn_observed
from statewise.strips.rivals.locm import learn_locm
from statewise.strips.rivals.sift import learn_lifted_sift, learn_sift

__all__ = ["METHODS", "learn", "learn_schemas"]

COMPARED = ("sift", "locm")
"""Methods for comparison, which read all traces as noise-free."""
METHODS = ("auto", "exact", "neural", "hybrid", *COMPARED)
MOST_NOISE = 0.1
"""The largest share of the traces that `auto` leaves unexplained if the share of noisy traces is not known."""
NOISY = "the traces are treated as noisy"
FOR_VERDICTS = 1 / 4
"""The share of a time limit that is kept for reading what the traces show about schemas (`exact.verdicts`)."""
ONE_IN = 5
"""One in this many noisy traces is held out, to choose between models."""

EXACT = frozenset({"schemas", "ground atoms"})
"""Attempts that are fast enough to learn again from all traces, and that continue from what they had listed."""

Model = Learned | LiftedModel


class Unsuitable(Exception):
    """A learner cannot learn from these traces; the message says why."""


class Attempt(NamedTuple):
    """One way to learn."""

    name: str
    learn: Callable[[Traces, float], Model]
    """Learns from traces in a share of the time that is left. Raises `Unsuitable`."""
    share: float = 1.0
    accept: Callable[[Model], str] = lambda model: ""
    """Why a model is not accepted. Empty if it is: then no further attempt is made."""


def learn(
    traces: Traces,
    settings: Settings | None = None,
    *,
    method: str = "auto",
    observed: Observed | None = None,
    hidden: bool = True,
    names: Names | None = None,
    noisy: bool = False,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> Learned:
    """Learns a ground action model from traces; `settings` are those of training.

    `observed`: the traces with their states, which schemas are then learned from; `hidden`: also look for predicates
    that no state shows; `names`: what a domain declares. `noisy`: whether the traces are noisy, of observed states
    whether some of their atoms are. `seconds`: a limit for the whole call; without it each method has its own.
    `stop`: once it is true, learning ends. `folder`: where the model is written, over an earlier one with `overwrite`.
    `say` is called with messages, `progress` by training.

    The method is `exact` (by SAT, `exact.ground`), `neural` (by training, `neural.learning`), `hybrid` (by both,
    `strips.hybrid`), for comparison `sift` or `locm` (`strips.rivals`), or `auto`: the exact method if the traces are
    free of noise, that is, if they do not contradict each other and its model classifies all of them correctly. It
    learns schemas first, which need fewer traces, and ground atoms where schemas do not explain all traces.

    From noisy traces `auto` learns in several ways and chooses the model that explains most of a fifth of the traces,
    which is held out; an earlier one, if it explains as many within one standard error. It learns schemas and ground
    atoms (`exact.noisy`), and unless one of these explains all but a tenth of the traces, it trains, and learns by the
    hybrid method with the effects that training found. `settings.noise` above 0 also says that the traces are noisy,
    and is the share of traces that may stay unexplained.

    When the time is up, or once `stop()` is true, the best model so far is returned, and `report["unfinished"]` says
    what was not finished; the same call with the same folder continues it. `report["method"]` and `report["chosen"]`
    say which method was chosen and why, `report["held_out"]` how much of the held-out traces each attempt explains.

    Raises `ValueError` for an unknown method, for options that do not suit it and for traces that the method cannot
    learn from, `FileExistsError` if the folder holds anything else, `BlockingIOError` if another process learns into
    it."""
    settings = settings or Settings()
    model = _Call(
        traces, settings, False, method, observed, hidden, names, noisy, seconds, stop, folder, overwrite, say, progress
    ).result()
    assert isinstance(model, Learned)
    return model


def learn_schemas(
    traces: Traces,
    settings: Settings | None = None,
    *,
    method: str = "auto",
    observed: Observed | None = None,
    hidden: bool = True,
    names: Names | None = None,
    noisy: bool = False,
    seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> LiftedModel:
    """Learns action schemas from traces whose actions are written `schema object object`, otherwise like `learn`: by
    `exact.lifted`, from noisy traces by `exact.noisy`, or by training (`neural.lifted`), which cannot be continued."""
    settings = settings or Settings()
    model = _Call(
        traces, settings, True, method, observed, hidden, names, noisy, seconds, stop, folder, overwrite, say, progress
    ).result()
    assert isinstance(model, LiftedModel)
    return model


@dataclass
class _Call:
    """One call of `learn` or `learn_schemas`: its options, and what it has found out."""

    traces: Traces
    settings: Settings
    lifted: bool
    """Whether to learn schemas."""
    method: str = "auto"
    observed: Observed | None = None
    hidden: bool = True
    names: Names | None = None
    noisy: bool = False
    """Whether the traces are treated as noisy: by the options, or by what learning has shown."""
    seconds: float | None = None
    stop: Callable[[], bool] = lambda: False
    folder: Path | None = None
    overwrite: bool = False
    say: Callable[[str], None] = lambda text: None
    progress: Progress | None = None
    reasons: list[str] = field(default_factory=list)
    """Why the method was chosen, for the report."""
    listed: Listed = field(default_factory=Listed)
    """What exact learning has listed, also in an interrupted call before this one."""
    found: dict[str, Model] = field(default_factory=dict)
    """The model of each attempt that was made."""
    explained: dict[str, np.ndarray] = field(default_factory=dict)
    """Whether each of them explains each of the held-out traces: [N] bool."""
    unfinished: list[str] = field(default_factory=list)
    """What the attempts with held-out traces did not finish."""
    begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Raises `ValueError` for an unknown method and for options that do not suit it, and what `may_claim` raises:
        before the work, not after it."""
        if self.method not in METHODS:
            raise ValueError(f"the method must be one of {', '.join(METHODS)}, not {self.method!r}")
        tolerated = self.settings.noise > 0
        if self.observed is not None and self.method != "auto":
            raise ValueError(
                "learning from states has no other methods: omit --method, or ignore the states (--states none)"
            )
        if self.method in COMPARED and (self.noisy or tolerated):
            raise ValueError(
                f"{self.method.upper()} reads every trace as noise-free: give `method` exact or neural, or no `noise`"
            )
        if self.lifted and self.method == "hybrid":
            raise ValueError("the hybrid method learns ground models only: omit `lifted`, or give another `method`")
        exact = self.method in ("auto", "exact")
        kept = read_checkpoint(self.folder) if exact and self.folder is not None and not self.overwrite else None
        trained = kept is not None and "method" not in kept[1]["settings"] and not self.lifted
        of_part = kept is not None and kept[1].get("traces") == self.parts[0].sha256 != self.traces.sha256
        if self.method != "auto":
            reason = "requested"
        elif of_part:
            self.noisy, reason = True, f"an interrupted run continues: {NOISY}"
        elif self.observed is not None:
            reason = f"{self.observed.count} states were observed"
            if self.noisy or tolerated:
                reason += ", some of whose atoms may be wrong, and some actions misread"
        elif trained:
            self.method, reason = "neural", "an interrupted training run continues"
        else:
            reason = "noise is tolerated" if tolerated else NOISY if self.noisy else "the traces are free of noise"
        self.noisy = self.noisy or tolerated
        if self.noisy and self.method == "exact":
            reason += f": {NOISY}"
        self.reasons.append(reason)
        if self.folder is not None:
            may_claim(self.folder, self.overwrite, resumes=self.resumes)
            if kept is not None and self.method in ("auto", "exact") and not (of_part and trained):
                of = self.parts[0] if of_part else self.traces
                self.listed = Listed.read(self.folder, of, lifted=self.lifted)

    @property
    def resumes(self) -> bool:
        """Whether the method continues an interrupted call."""
        return self.method in ("auto", "exact") or (self.method == "neural" and not self.lifted)

    @cached_property
    def parts(self) -> tuple[Traces, Traces]:
        """The traces to learn from and the held-out ones, for noisy traces."""
        return split(self.traces)

    @property
    def over(self) -> bool:
        """Whether the time is up, or the call was stopped."""
        return self.stop() or (self.seconds is not None and time.monotonic() - self.begun >= self.seconds)

    def left(self) -> float | None:
        """Seconds until the limit; at least one, or the whole of a shorter limit, so that each method finds a model.
        None without a limit."""
        if self.seconds is None:
            return None
        return max(min(1.0, self.seconds), self.seconds - (time.monotonic() - self.begun))

    @property
    def before_verdicts(self) -> float:
        """The share of the time for learning; the rest is kept for what the traces show, where that takes long."""
        return 1 - FOR_VERDICTS if self.lifted and self.folder is not None and not self.noisy else 1.0

    def options(self, share: float) -> Options:
        """The options of a learner without training that gets a share of the time that is left."""
        left = self.left()
        return {
            "seconds": (SECONDS if left is None else left) * share,
            "stop": self.stop,
            "progress": self.say,
            "listed": self.listed,
        }

    def result(self) -> Model:
        """Learns, and writes the folder."""
        with alone(self.folder):
            if self.folder is not None:
                claim(self.folder, self.overwrite, resumes=self.resumes)
            if self.method != "auto" or not self.noisy or self.observed is not None:
                model = self._first_accepted()
                if model is not None:
                    return model
                self.noisy, self.reasons = True, self.reasons[-1:]
                self.say(f"{self.reasons[0]}: {NOISY}")
            return self._best_on_held_out()

    def _tried(self, attempts: Sequence[Attempt], traces: Traces, held: Traces | None = None) -> str | None:
        """Makes the attempts one after the other until a model is accepted, and returns the name of that attempt, or
        None.

        With held-out traces, each test is about the best model so far, and its attempt is returned in any case. A later
        model, which assumes less, is better only if it explains more of the held-out traces by over one standard error
        (`better`): else the noise of a few traces decides."""
        name: str | None = None
        best: str | None = None
        for each in attempts:
            if held is not None and self.found and self.over:
                self.unfinished.append(f"{each.name}: not tried")
                continue
            try:
                model = self.found[each.name] = each.learn(traces, each.share)
            except Unsuitable as why:
                self.reasons.append(str(why))
                continue
            name = each.name
            if held is not None:
                self.unfinished += model.report["unfinished"]
                right = self.explained[name] = explained(model, held)
                self.say(f"{name}: {right.mean():.4f} of {self._judges} right")
                if best is None or better(right, self.explained[best]):
                    best = name
                name = best
            if not (refusal := each.accept(self.found[name])):
                return name
            if held is None:
                self.reasons.append(refusal)
            else:
                self.say(f"{name} not accepted yet: {refusal}")
        return None if held is None else name

    def _first_accepted(self) -> Model | None:
        """The first model of all traces that is accepted, or None."""
        name = self._tried(_attempts(self), self.traces)
        if name is None:
            return None
        model, schemas = self.found[name], self.found.get("schemas")
        if name == "schemas" and not (self.lifted or self.noisy):
            self.reasons.append("schemas explain all of them")
        elif name == "ground atoms" and schemas is not None and _no_worse(schemas, model):
            model = schemas
            self.reasons.append(f"schemas explain {_accuracy(schemas):.4f} of them")
        model = self._grounded(model, self.traces)
        unfinished = self.listed.unfinished if name in EXACT else bool(model.report["unfinished"])
        return self._written(model, self.traces, {name} if unfinished else set())

    def _best_on_held_out(self) -> Model:
        """The best model of a part of the traces. An exact one is learned again from all traces, unless it then
        explains fewer."""
        part, held = self.parts
        self.found.clear()
        attempts = _noisy_attempts(self)
        name = self._tried(attempts, part, held)
        assert name is not None, "the last attempt suits all traces"
        model, learned_from = self.found[name], part
        right = {each: float(of.mean()) for each, of in self.explained.items()}
        shares = ", ".join(f"{each} {share:.4f}" for each, share in right.items())
        self.reasons.append(f"of {self._judges} they explain: {shares}")
        cut = {each for each, other in self.found.items() if other.report["unfinished"]}
        if name in EXACT and held is not part and not self.over:
            again = next(each for each in attempts if each.name == name).learn(self.traces, 1.0)
            if explained(again, self.traces).sum() >= explained(model, self.traces).sum():
                model, learned_from = again, self.traces
                self.reasons.append("then learned from all traces")
        count = len(held) if held is not part else 0
        model.report["held_out"] = {"traces": count, "explained": right, "taken": name}
        model.report["unfinished"] = list(dict.fromkeys([*self.unfinished, *model.report["unfinished"]]))
        return self._written(self._grounded(model, learned_from), part, cut)

    @property
    def _judges(self) -> str:
        """The traces that choose between models, in words."""
        part, held = self.parts
        return f"{len(held)} held-out traces" if held is not part else "the traces"

    def _grounded(self, model: Model, traces: Traces) -> Model:
        """The ground model of schemas over the actions of the traces, unless schemas are wanted."""
        if self.lifted or isinstance(model, Learned):
            return model
        return Work(model.report["method"], traces, **self.options(1.0)).grounded(model)

    def _written(self, model: Model, traces: Traces, cut: Set[str]) -> Model:
        """Adds to the report why the method was chosen, and writes the folder with what the traces show, for verdicts
        on others. The checkpoint of training stays if training was cut short; if exact learning from `traces` was, what
        it listed is written."""
        report = model.report
        report["chosen"] = "; ".join(self.reasons)
        if self.folder is None:
            return model
        files = {} if self.noisy else self._seen(report)
        resumes = "training" in cut and not self.lifted
        if not resumes and cut & EXACT:
            self.listed.write(self.folder, traces, report.get("seconds", 0.0), lifted=self.lifted)
            resumes = True
        if isinstance(model, LiftedModel):
            ground = model.ground(self.traces.actions)
            write_model(self.folder, ground, report, files, schemas=model.schemas, keep_checkpoint=resumes)
        else:
            model.save(self.folder, files, keep_checkpoint=resumes)
        return model

    def _seen(self, report: dict[str, Any]) -> dict[str, bytes]:
        """What the traces show, as a file for the folder; no file if they contradict each other."""
        left = SECONDS if self.seconds is None else self.seconds - (time.monotonic() - self.begun)
        grace = GRACE if self.seconds is None else min(GRACE, GRACE_SHARE * self.seconds)
        clock = Clock(grace if self.stop() else max(grace, left))
        arity, objects = (MOST_ARITY, sorted(sorts_of(self.traces.actions)[1])) if self.lifted else (None, [])
        seen = Seen.of(
            self.traces,
            arity=arity,
            constants=objects,
            reading=lambda rows: clock.reading(rows, 0.1),
            has_time=clock.has_time,
        )
        if clock.cut or not clock.has_time():
            report["unfinished"] = [*report.get("unfinished", []), "reading all traces for `check`"]
        return {SEEN_FILE: seen.as_json()} if all(seen.negatives) else {}


def _attempts(call: _Call) -> list[Attempt]:
    """The attempts to learn from all traces: from their states, the exact ones, or only the requested method."""
    observed = call.observed
    if observed is not None:
        return [
            Attempt(
                "states",
                lambda traces, share: learn_observed(
                    observed,
                    hidden=call.hidden,
                    names=call.names,
                    noisy=call.noisy,
                    noise=call.settings.noise or None,
                    **call.options(share),
                ),
                call.before_verdicts,
            )
        ]
    if call.method in ("neural", "hybrid", *COMPARED):
        return [_requested(call)]
    if call.noisy:
        learner = learn_lifted_noisy if call.lifted else learn_noisy
        return [
            Attempt(
                "schemas" if call.lifted else "ground atoms",
                lambda traces, share: learner(traces, **call.options(share)),
            )
        ]
    any_method, negatives = call.method == "auto", sum(call.traces.labels)

    def classifies_all(model: Model) -> str:
        # without negative traces training is impossible, and what was not finished continues
        if not any_method or _accuracy(model) == 1 or model.report["unfinished"] or not negatives:
            return ""
        return f"the exact model classifies only {_accuracy(model):.4f} of the traces correctly"

    def explains_all(schemas: Model) -> str:
        unfinished = schemas.report["unfinished"]
        if _accuracy(schemas) < 1 and not unfinished:
            return "schemas do not explain all of them: if some may be noisy, give `noise` auto"
        if not schemas.report["predicates"]:
            return "no schemas were found"
        # any model explains all valid traces: without negative ones only finished schemas are accepted at once
        if _accuracy(schemas) < 1 or (unfinished and not negatives):
            return "schemas were not finished"
        return ""

    def consistent(learner: Callable[..., Model]) -> Callable[[Traces, float], Model]:
        def learn(traces: Traces, share: float) -> Model:
            try:
                return learner(traces, **call.options(share))
            except Contradiction as error:
                if not any_method:
                    raise
                raise Unsuitable(str(error).partition(". ")[0]) from None

        return learn

    schemas_of = partial(learn_lifted_exact, constants=call.names.constants if call.names is not None else ())
    if call.lifted:
        return [Attempt("schemas", consistent(schemas_of), call.before_verdicts, classifies_all)]
    atoms = Attempt("ground atoms", consistent(learn_exact), accept=classifies_all)
    # schemas need fewer traces than ground atoms, and get a third of the time
    schemas = Attempt("schemas", partial(_schemas, call, schemas_of), 1 / 3, explains_all)
    return [schemas, atoms] if any_method else [atoms]


def _requested(call: _Call) -> Attempt:
    """The attempt for a requested method that is not exact."""
    if call.method == "neural":
        return Attempt("training", partial(_trained, call))

    def learn(traces: Traces, share: float) -> Model:
        options = call.options(share)
        if call.method == "locm":
            return learn_locm(traces, **options)
        if call.method == "sift":
            return learn_lifted_sift(traces, **options) if call.lifted else learn_sift(traces, **options)
        if call.seconds is None:
            del options["seconds"]
        return learn_hybrid(traces, call.settings, training=call.progress, **options)

    return Attempt(call.method, learn, call.before_verdicts)


def _noisy_attempts(call: _Call) -> list[Attempt]:
    """The attempts to learn from noisy traces."""
    noise = call.settings.noise

    def explains_enough(model: Model) -> str:
        """Refuses a model that leaves more traces unexplained than are noisy, by over two standard errors."""
        allowed = noise + 2 * (noise * (1 - noise) / model.report["traces"]["count"]) ** 0.5 if noise else MOST_NOISE
        missed = 1 - _accuracy(model)
        return "" if missed <= allowed + 1e-9 else f"{missed:.4f} of the traces stay unexplained"

    def never(model: Model) -> str:
        return "the next attempt may explain more"

    def exact(learner: Callable[..., Model]) -> Callable[[Traces, float], Model]:
        return lambda traces, share: learner(traces, **call.options(share))

    def both(traces: Traces, share: float) -> Model:
        training = call.found["training"]
        assert isinstance(training, Learned)
        return from_trained(training, traces, **call.options(share))

    training = partial(_trained, call)
    if call.lifted:
        return [Attempt("schemas", exact(learn_lifted_noisy), 1 / 2, explains_enough), Attempt("training", training)]
    return [
        Attempt("schemas", partial(_schemas, call, learn_lifted_noisy), 1 / 6, explains_enough if noise else never),
        Attempt("ground atoms", exact(learn_noisy), 1 / 2, explains_enough),
        Attempt("training", training, 2 / 3, never),
        Attempt("both", both),
    ]


def _schemas(call: _Call, learner: Callable[..., LiftedModel], traces: Traces, share: float) -> LiftedModel:
    """Schemas for a ground model. Raises `Unsuitable` if some actions have no arguments, or if the learner refuses the
    traces, for example contradictory ones: the attempt with ground atoms then decides. Of noisy traces schemas without
    arguments are learned, too: they need not alternate, unlike ground atoms."""
    if not call.noisy and not all(" " in action for action in traces.actions):
        raise Unsuitable("no schemas, since not all actions have arguments")
    try:
        return learner(traces, **call.options(share))
    except ValueError as error:
        raise Unsuitable(f"no schemas, since {str(error).partition(':')[0]}") from None


def _trained(call: _Call, traces: Traces, share: float) -> Model:
    if call.folder is not None and call.listed.folder is not None:
        # the checkpoint of exact learning has been read, and training writes its own
        (call.folder / "checkpoint.npz").unlink(missing_ok=True)
    left = call.left()
    limit = None if left is None else left * share
    if call.lifted:
        return learn_lifted(traces, call.settings, seconds=limit, stop=call.stop, progress=call.progress)
    return learn_neural(
        traces, call.settings, seconds=limit, stop=call.stop, folder=call.folder, progress=call.progress
    )


def split(traces: Traces) -> tuple[Traces, Traces]:
    """The traces to learn from, and those held out: the same share of valid and of negative ones, drawn with a fixed
    seed. With fewer than two of a kind, both are all traces."""
    labels = np.array(traces.labels)
    order = np.random.default_rng(0).permutation(len(labels))
    held: list[int] = []
    for label in (0, 1):
        mine = order[labels[order] == label]
        if len(mine) < 2:
            return traces, traces
        held += mine[: max(1, len(mine) // ONE_IN)].tolist()
    return traces.only(sorted({*range(len(labels))} - {*held})), traces.only(sorted(held))


def explained(model: Model, traces: Traces) -> np.ndarray:
    """[N] bool: whether the model explains each of the traces."""
    ground = model.model if isinstance(model, Learned) else model.ground(traces.actions)
    judge = Judge(traces)
    verdicts = judge.verdicts(Heads.of_model(ground))
    return judge.right(verdicts.alarms, verdicts.catches)


def better(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether one model explains more traces than another, by over one standard error of the difference (McNemar), from
    whether each explains each trace: [N] bool both."""
    more, fewer = int((one & ~other).sum()), int((other & ~one).sum())
    return more - fewer > (more + fewer) ** 0.5


def _accuracy(model: Model) -> float:
    right: float = model.report["training_accuracy"]
    return right


def _no_worse(schemas: Model, atoms: Model) -> bool:
    """Whether schemas are preferred, if the time was too short for both."""
    both_cut = schemas.report["unfinished"] and atoms.report["unfinished"]
    return bool(both_cut and schemas.report["predicates"]) and _accuracy(schemas) >= _accuracy(atoms)
