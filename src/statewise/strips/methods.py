"""Learning by whichever method suits the traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Generic, NamedTuple, TypeVar, Unpack

from statewise.strips.exact.frame import How, Work, accuracy
from statewise.strips.exact.ground import learn_exact
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.exact.noisy import learn_lifted_noisy, learn_noisy
from statewise.strips.hybrid import from_trained, learn_hybrid
from statewise.strips.learning_call import COMPARED, METHODS, Call, Options, too_many
from statewise.strips.model.heads import Heads, Judge
from statewise.strips.model.learned import Learned, alone, claim, write_schemas
from statewise.strips.model.lifted_model import LiftedModel
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import learn_neural
from statewise.strips.neural.lifted import learn_lifted
from statewise.strips.neural.settings import Settings
from statewise.strips.rivals.locm import learn_locm
from statewise.strips.rivals.sift import learn_lifted_sift, learn_sift

__all__ = ["METHODS", "learn", "learn_schemas"]

SCHEMAS_FAIL = "; schemas do not explain all of them: if some may be damaged, give --noise auto"

M = TypeVar("M", Learned, LiftedModel)


class Attempt(NamedTuple, Generic[M]):
    """One way to learn from damaged traces."""

    name: str
    learn: Callable[[Traces, float], M | None]
    """Learns from traces with a share of the time left; None if the actions are not of its kind."""
    share: float
    enough: Callable[[Mapping[str, Any]], bool] = lambda report: False
    """Whether no further attempt is needed, by the report of the best model so far."""
    exact: bool = True
    """Whether it is fast enough to learn from all traces again, if it is the best."""


def learn(traces: Traces, settings: Settings | None = None, **options: Unpack[Options]) -> Learned:
    """Learns an action model from traces: `exact` by SAT (`exact.ground`), `neural` by training (`learning`), `hybrid`
    by both, from damaged traces (`exact.hybrid`); for comparison `sift` and `locm`, as SIFT (`exact.sift`) and LOCM
    (`exact.locm`) do.

    `auto` takes the exact method if the traces are clean: they do not contradict each other, and its model classifies
    all of them correctly; of actions with arguments it learns schemas first, which need fewer traces, and takes their
    ground model if that classifies all correctly, or if the time was too short for both and it classifies no fewer. If
    the traces are not clean, it holds out a fifth of them, learns from the others in several ways, and takes the model
    that explains most of the held-out ones: by schemas (`exact.noisy_lifted`), by ground atoms (`exact.noisy`), and,
    unless one of these explains all but a tenth of the traces, by training, and by the hybrid method with the effects
    found. `settings` are those of training; `settings.noise` above 0 is the share of traces that the exact method, too,
    may leave unexplained. With that, or with `damaged`, the traces are taken for damaged from the beginning.
    `report["method"]` and `report["chosen"]` say which method it was and why, `report["held_out"]` what each explains.
    `options` are those of `learning_call.Options`. Raises as the functions, `ValueError` for another method, and
    `BlockingIOError` if another process learns into the folder."""
    call = Call(traces, settings or Settings(), lifted=False, **options)
    with alone(call.folder):
        return _learn(call)


def _learn(call: Call) -> Learned:
    traces = call.traces
    if call.method == "hybrid":
        how = call.how()
        if call.seconds is None:
            del how["seconds"]
        return learn_hybrid(traces, call.settings, training=call.progress, **how)
    if call.method == "sift":
        return learn_sift(traces, **call.how())
    if call.method == "locm":
        return _grounded(learn_locm(traces), traces, call.how())
    if call.method == "neural":
        return learn_neural(
            traces,
            call.settings,
            seconds=call.left(),
            stop=call.stop,
            folder=call.folder,
            overwrite=call.overwrite,
            progress=call.progress,
            finish=call.because(call.why),
        )
    if not call.damaged:
        learned = _by_schemas_or_atoms(call) if call.method == "auto" else call.clean(learn_exact)
        if learned is not None:
            return learned
    if call.method == "exact":
        return learn_noisy(traces, **call.how())
    return _most_explained(call, _ground_attempts(call))


def learn_schemas(traces: Traces, settings: Settings | None = None, **options: Unpack[Options]) -> LiftedModel:
    """Learns action schemas as `learn` learns a ground model: by `exact.lifted`, from damaged traces by
    `exact.noisy_lifted`, or by training (`lifted`), which starts over."""
    if options.get("method") == "hybrid":
        raise ValueError("the hybrid method learns ground models alone: omit --lifted, or give another --method")
    call = Call(traces, settings or Settings(), lifted=True, **options)
    with alone(call.folder):
        return _learn_schemas(call)


def _learn_schemas(call: Call) -> LiftedModel:
    traces = call.traces
    if call.method in COMPARED:
        return (learn_lifted_sift if call.method == "sift" else learn_locm)(traces, **call.how())
    if call.method == "neural":
        return learn_lifted(
            traces,
            call.settings,
            seconds=call.left(),
            stop=call.stop,
            folder=call.folder,
            overwrite=call.overwrite,
            progress=call.progress,
            finish=call.because(call.why),
        )
    if not call.damaged:
        learned = call.clean(learn_lifted_exact)
        if learned is not None:
            return learned
    if call.method == "exact":
        return learn_lifted_noisy(traces, **call.how())
    return _most_explained(call, _lifted_attempts(call))


def _ground_attempts(call: Call) -> list[Attempt[Learned]]:
    """The ways to learn a ground model of damaged traces."""
    noise = call.settings.noise
    trained: list[Learned] = []

    def schemas(traces: Traces, share: float) -> Learned | None:
        found = _schemas(learn_lifted_noisy, traces, call, share=share)
        return None if found is None else _grounded(found, traces, call.how(write=False))

    def atoms(traces: Traces, share: float) -> Learned:
        return learn_noisy(traces, **call.how(share=share, write=False))

    def training(traces: Traces, share: float) -> Learned:
        left = call.left()
        trained.append(
            learn_neural(
                traces,
                call.settings,
                seconds=left and left * share,
                stop=call.stop,
                folder=call.folder,
                write=False,
                progress=call.progress,
            )
        )
        return trained[0]

    def both(traces: Traces, share: float) -> Learned:
        return from_trained(trained[0], traces, **call.how(share=share, write=False))

    return [
        Attempt("schemas", schemas, 1 / 6, lambda report: bool(noise) and not too_many(report, noise)),
        Attempt("ground atoms", atoms, 1 / 2, lambda report: not too_many(report, noise)),
        Attempt("training", training, 2 / 3, exact=False),
        Attempt("both", both, 1.0, exact=False),
    ]


def _lifted_attempts(call: Call) -> list[Attempt[LiftedModel]]:
    """The ways to learn schemas of damaged traces."""

    def schemas(traces: Traces, share: float) -> LiftedModel:
        return learn_lifted_noisy(traces, **call.how(share=share, write=False))

    def training(traces: Traces, share: float) -> LiftedModel:
        return learn_lifted(traces, call.settings, seconds=call.left(), stop=call.stop, progress=call.progress)

    return [
        Attempt("schemas", schemas, 1 / 2, lambda report: not too_many(report, call.settings.noise)),
        Attempt("training", training, 1.0, exact=False),
    ]


def _most_explained(call: Call, attempts: Sequence[Attempt[M]]) -> M:
    """Of what the attempts learn, one after the other until one is enough, the model that explains most of the held-out
    traces, of equals the one that explains most of the others. An exact one is learned again from all traces, unless it
    then explains fewer of them. Writes the folder."""
    part, held = call.parts
    what = f"{len(held)} held-out traces" if held is not part else "the traces"
    if call.folder is not None:
        claim(call.folder, call.overwrite, resumes=True)
    found: dict[str, tuple[float, M]] = {}

    def best() -> str:
        return max(found, key=lambda name: (found[name][0], found[name][1].report["training_accuracy"]))

    unfinished: list[str] = []
    for each in attempts:
        if found and call.over:
            unfinished.append(f"{each.name}: not tried")
            continue
        model = each.learn(part, each.share)
        if model is None:
            continue
        found[each.name] = right, _ = _explained(model, held), model
        unfinished += model.report["unfinished"]
        call.say(f"{each.name}: {right:.4f} of {what} right")
        if each.enough(found[best()][1].report):
            break
    name = best()
    cut = {each for each, (_, model) in found.items() if model.report["unfinished"]}
    explained = {each: right for each, (right, _) in found.items()}
    shares = ", ".join(f"{each} {right:.4f}" for each, right in explained.items())
    why = f"{call.why}; of {what} they explain: {shares}"
    kept: M = found[name][1]
    chosen = next(each for each in attempts if each.name == name)
    if chosen.exact and held is not part and not call.over:
        again = chosen.learn(call.traces, 1.0)
        if again is not None and _explained(again, call.traces) >= _explained(kept, call.traces):
            kept, why = again, f"{why}; then learned from all traces"
    kept.report["chosen"] = why
    kept.report["held_out"] = {"traces": len(held) if held is not part else 0, "explained": explained, "taken": name}
    kept.report["unfinished"] = list(dict.fromkeys([*unfinished, *kept.report["unfinished"]]))
    if call.folder is not None:
        _write(kept, call, cut)
    return kept


def _explained(model: Learned | LiftedModel, traces: Traces) -> float:
    """The share of the traces that the model explains."""
    return accuracy(_heads(model, traces), Judge(traces))


def _heads(model: Learned | LiftedModel, traces: Traces) -> Heads:
    return Heads.of_model(model.model if isinstance(model, Learned) else model.ground(traces.actions))


def _write(model: Learned | LiftedModel, call: Call, cut: Set[str]) -> None:
    """Writes the folder. The checkpoint of training stays if it is among the attempts that were cut short; else, if
    another one is, what was listed is kept."""
    assert call.folder is not None
    lifted = isinstance(model, LiftedModel)
    goes_on = "training" in cut and not lifted
    if not goes_on and cut & {"schemas", "ground atoms"}:
        call.listed.write(call.folder, call.parts[0], model.report.get("seconds", 0.0), lifted=lifted)
        goes_on = True
    if isinstance(model, LiftedModel):
        write_schemas(
            call.folder, model.schemas, model.ground(call.traces.actions), model.report, keep_checkpoint=goes_on
        )
    else:
        model.save(call.folder, keep_checkpoint=goes_on)


def _by_schemas_or_atoms(call: Call) -> Learned | None:
    """The exact model of clean traces, or None if they are not clean. It is the ground model of schemas, which need
    fewer traces than ground atoms and get a third of the time, if they explain all traces, or if the time was too
    short for both and they explain no fewer. Of valid traces alone any model explains all: only finished schemas are
    taken at once."""
    schemas = _schemas(learn_lifted_exact, call.traces, call, share=1 / 3)
    if schemas is None:
        return call.clean(learn_exact)
    accuracy, unfinished = schemas.report["training_accuracy"], schemas.report["unfinished"]
    if accuracy < 1 and not unfinished:
        call.why += SCHEMAS_FAIL
    found = bool(schemas.report["predicates"])
    if found and accuracy == 1 and (sum(call.traces.labels) or not unfinished):
        return _grounded(schemas, call.traces, call.how(why=f"{call.why}, and schemas explain all of them"))
    atoms = call.clean(learn_exact)
    if atoms is None or not (found and unfinished and atoms.report["unfinished"]):
        return atoms
    if atoms.report["training_accuracy"] > accuracy:
        return atoms
    call.overwrite = True  # what was written for ground atoms
    return _grounded(schemas, call.traces, call.how(why=f"{call.why}; schemas explain {accuracy:.4f} of them"))


def _schemas(learner: Callable[..., LiftedModel], traces: Traces, call: Call, *, share: float) -> LiftedModel | None:
    """What a learner of schemas makes of the traces, not written yet; None if the actions are not those of schemas, or
    the traces are not for it: contradictory ones, or without negatives, which the ground method judges."""
    if not all(" " in action for action in traces.actions):
        return None
    try:
        return learner(traces, **call.how(share=share, write=False))
    except ValueError:
        return None


def _grounded(lifted: LiftedModel, traces: Traces, how: How) -> Learned:
    """The ground model of learned schemas over the actions of the traces."""
    work = Work(lifted.report["method"], traces, how)
    work.claim(resumes=lifted.report["method"] == "exact")
    return work.grounded(lifted)
