"""Learning by whichever method suits the traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from statewise.strips.exact.frame import How, Work
from statewise.strips.exact.ground import learn_exact
from statewise.strips.exact.hybrid import from_trained, learn_hybrid
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.exact.locm import learn_locm
from statewise.strips.exact.noisy import learn_noisy
from statewise.strips.exact.noisy_lifted import learn_lifted_noisy
from statewise.strips.exact.sift import learn_lifted_sift, learn_sift
from statewise.strips.learned import Learned, alone, claim
from statewise.strips.learning import learn_neural
from statewise.strips.learning_call import COMPARED, METHODS, Call, Options, too_many
from statewise.strips.lifted import LiftedModel, learn_lifted
from statewise.strips.random_traces import Traces
from statewise.strips.settings import Settings

__all__ = ["METHODS", "learn", "learn_schemas"]

SCHEMAS_FAIL = "; schemas do not explain all of them: if some may be damaged, give --noise auto"


def learn(traces: Traces, settings: Settings | None = None, **options: Unpack[Options]) -> Learned:
    """Learns an action model from traces: `exact` by SAT (`exact.ground`), `neural` by training (`learning`), `hybrid`
    by both, from damaged traces (`exact.hybrid`); for comparison `sift` and `locm`, as SIFT (`exact.sift`) and LOCM
    (`exact.locm`) do.

    `auto` takes the exact method if the traces are clean: they do not contradict each other, and its model classifies
    all of them correctly; of actions with arguments it learns schemas first, which need fewer traces, and takes their
    ground model if that classifies all correctly, or if the time was too short for both and it classifies no fewer. If
    the traces are not clean, it takes the exact method for damaged traces, if its model explains all but a tenth of
    them: by schemas (`exact.noisy_lifted`), if these explain no fewer than ground atoms (`exact.noisy`) up to two
    standard errors. Else it trains, fits the hybrid model with the
    effects found, and takes whichever explains most traces. `settings` are those of training; `settings.noise` above 0
    is the share of traces that the exact method, too, may leave unexplained. With that, or with `damaged`, the traces
    are taken for damaged from the beginning. `report["method"]` and `report["chosen"]` say which method it was and why.
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
    if call.method != "neural" and not call.damaged:
        learned = _by_schemas_or_atoms(call) if call.method == "auto" else call.clean(learn_exact)
        if learned is not None:
            return learned
    explained: Learned | None = None
    if call.method != "neural" and call.damaged:
        explained = learn_noisy(traces, **call.how()) if call.method == "exact" else _by_schemas_of_damaged(call)
        if call.suits_damaged(explained.report):
            return explained
    trained = learn_neural(traces, call.settings, seconds=call.left(), stop=call.stop, folder=call.folder,
                           overwrite=call.overwrite, progress=call.progress, finish=call.because(call.why))  # fmt: skip
    if explained is None or trained.report["unfinished"]:
        return trained
    return _best(explained, trained, call)


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
    if call.method != "neural" and not call.damaged:
        learned = call.clean(learn_lifted_exact)
        if learned is not None:
            return learned
    if call.method != "neural":
        learned = learn_lifted_noisy(traces, **call.how())
        if call.suits_damaged(learned.report):
            return learned
    return learn_lifted(traces, call.settings, seconds=call.left(), stop=call.stop, folder=call.folder,
                        overwrite=call.overwrite, progress=call.progress, finish=call.because(call.why))  # fmt: skip


def _by_schemas_or_atoms(call: Call) -> Learned | None:
    """The exact model of clean traces, or None if they are not clean. It is the ground model of schemas, which need
    fewer traces than ground atoms and get a third of the time, if they explain all traces, or if the time was too
    short for both and they explain no fewer. Of valid traces alone any model explains all: only finished schemas are
    taken at once."""
    schemas = _schemas(learn_lifted_exact, call, share=1 / 3)
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


def _by_schemas_of_damaged(call: Call) -> Learned:
    """The exact model of damaged traces: the ground model of schemas, which need fewer traces, if these leave no more
    unexplained than is damaged, or explain as many as ground atoms up to two standard errors. If there is a limit, half
    of the time left stays for training."""
    half = 1.0 if call.seconds is None else 1 / 2
    lifted = _schemas(learn_lifted_noisy, call, share=half / 3)
    if lifted is None:
        return learn_noisy(call.traces, **call.how(share=half))
    accuracy = lifted.report["training_accuracy"]
    noise = call.settings.noise
    if not noise or too_many(lifted.report, noise):
        ground = learn_noisy(call.traces, **call.how(share=half))
        best = max(ground.report["training_accuracy"], accuracy)
        if accuracy < best - 2 * (best * (1 - best) / len(call.traces)) ** 0.5:
            return ground
        call.overwrite = True  # what was written for ground atoms
    return _grounded(lifted, call.traces, call.how(why=f"{call.why}; schemas explain {accuracy:.4f} of them"))


def _schemas(learner: Callable[..., LiftedModel], call: Call, *, share: float) -> LiftedModel | None:
    """What a learner of schemas makes of the traces, not written yet; None if the actions are not those of schemas, or
    the traces are not for it: contradictory ones, or without negatives, which the ground method judges."""
    if not all(" " in action for action in call.traces.actions):
        return None
    try:
        return learner(call.traces, **call.how(share=share, write=False))
    except ValueError:
        return None


def _best(exact: Learned, trained: Learned, call: Call) -> Learned:
    """Of the models of damaged traces by exact learning, by training and by both, one that explains most of them: of
    those up to one standard error fewer the hybrid one, whose preconditions are exact, then the trained one. Writes
    the folder, which holds the trained one."""
    hybrid = from_trained(trained, call.traces, **call.how(write=False))
    accuracy = [each.report["training_accuracy"] for each in (hybrid, trained, exact)]
    best = max(accuracy)
    allowed = best - (best * (1 - best) / len(call.traces)) ** 0.5
    kept = next(each for each, right in zip((hybrid, trained, exact), accuracy) if right >= allowed)
    shares = ", ".join(f"{name} {right:.4f}" for name, right in zip(("hybrid", "neural", "exact"), accuracy))
    files = call.because(f"{call.why}; of the traces they explain: {shares}")(kept.report)
    if call.folder is not None:
        claim(call.folder, True, resumes=False)
        kept.save(call.folder, files)
    return kept


def _grounded(lifted: LiftedModel, traces: Traces, how: How) -> Learned:
    """The ground model of learned schemas over the actions of the traces."""
    work = Work(lifted.report["method"], traces, how)
    work.claim(resumes=lifted.report["method"] == "exact")
    return work.grounded(lifted)
