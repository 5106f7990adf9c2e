"""How good a learned action model is: against a true model, on traces, and for planning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from statewise.strips.model.model import ActionModel, Atoms
from statewise.strips.model.traces import Traces
from statewise.strips.pddl.pddl import Problem
from statewise.strips.trace_data.domains import Domain
from statewise.strips.verification.mapping import KINDS, as_table, match_atoms

WORD = 64
"""The number of atoms in a word of the vectorised semantics."""


def syntactic(learned: ActionModel, reference: ActionModel) -> dict[str, float]:
    """Syntactic precision and recall of a learned model: `pre_precision`, `pre_recall`, `add_...`, `delete_...`.

    Atoms are matched first (`mapping.match_atoms`); an unmatched learned atom counts as wrong wherever it occurs, an
    unmatched reference atom as missed. As is usual for learned action models (macq, AMLGym), each score is computed per
    action and averaged over the actions. Precision over an empty learned set and recall over an empty reference set are
    1. `precision` and `recall` are the means over the three kinds. Models with different atoms may be equivalent, so a
    correct model can score below 1: compare the model that `simplification.simplify` returns. An action that the
    learned model lacks has no preconditions and effects there. Raises `ValueError` if the reference has no actions, or
    lacks one of the learned model.
    """
    learned = learned.covering(reference.names)
    if not reference.actions:
        raise ValueError("a model without actions has no precision and recall")
    mine, theirs = as_table(learned), as_table(reference)
    pairs = match_atoms(learned, reference).pairs
    rows, columns = [one for one, _ in pairs], [other for _, other in pairs]
    shared = (mine[rows] & theirs[columns]).sum(0)  # [A, 3]
    claimed, wanted = mine.sum(0), theirs.sum(0)
    precision = np.where(claimed > 0, shared / np.maximum(claimed, 1), 1.0).mean(0)
    recall = np.where(wanted > 0, shared / np.maximum(wanted, 1), 1.0).mean(0)
    scores = {"precision": float(precision.mean()), "recall": float(recall.mean())}
    for kind, name in enumerate(KINDS):
        scores[f"{name}_precision"] = float(precision[kind])
        scores[f"{name}_recall"] = float(recall[kind])
    return scores


def applicability(learned: ActionModel, domain: Domain, *, num: int, length: int, seed: int) -> dict[str, float]:
    """How well the learned model predicts applicable actions, on `num` random walks of `length` actions in the domain.

    After each action of a walk, the actions that the learned model accepts (Definition 1: no precondition is known
    false) are compared with two references: `definition_precision` and `definition_recall` with the actions that
    Definition 1 accepts in the true model, `state_precision` and `state_recall` with those applicable in the real
    state. `state_precision` is below 1 even for a perfect model, since no initial state is known. Scores are ratios of
    counts over all walks; `states` is the number of states compared. Walks start in states drawn from the first 10,000
    reachable ones, and stop early at a dead end. An action that the learned model lacks is always accepted. Raises
    `ValueError` if the domain lacks an action of the learned model.
    """
    if num < 1 or length < 1:
        raise ValueError(f"num and length must be at least 1, not {num} and {length}")
    true = domain.model
    learned = learned.covering(true.names)
    rng = np.random.default_rng(seed)
    begins = true.reachable(domain.start, limit=10_000)
    counts = dict.fromkeys(("accepted", "definition", "state", "definition_both", "state_both", "states"), 0)
    for _ in range(num):
        state, known_false, known_by_learned = begins[int(rng.integers(len(begins)))], 0, 0
        possible = true.applicable(state)
        for _ in range(length):
            if not possible:
                break
            number = possible[int(rng.integers(len(possible)))]
            state = true.result(state, number)
            known_false = true.after([number], known_false)
            known_by_learned = learned.after([number], known_by_learned)
            possible = true.applicable(state)
            accepted = set(learned.possible(known_by_learned))
            by_definition = set(true.possible(known_false))
            counts["states"] += 1
            counts["accepted"] += len(accepted)
            for truth, numbers in (("definition", by_definition), ("state", set(possible))):
                counts[truth] += len(numbers)
                counts[f"{truth}_both"] += len(accepted & numbers)
    scores: dict[str, float] = {}
    for truth in ("definition", "state"):
        both = counts[f"{truth}_both"]
        scores[f"{truth}_precision"] = both / counts["accepted"] if counts["accepted"] else 1.0
        scores[f"{truth}_recall"] = both / counts[truth] if counts[truth] else 1.0
    return {**scores, "states": counts["states"]}


def trace_accuracy(model: ActionModel, traces: Traces) -> dict[str, float]:
    """The share of traces whose every prefix is classified correctly (the STRIPS Transformer paper's accuracy).

    A trace with label 1 is correct if the model rejects its last action and none before; one with label 0 if the model
    rejects nothing. `accuracy` is over all traces, `positives` over those with label 0, `negatives` over those with
    label 1; shares are 1 if there are no traces. An action that the model lacks is never rejected and changes nothing.
    Raises `ValueError` if it lacks all of them.
    """
    if traces.actions == model.names:
        same = traces
    else:
        unseen = model.unseen(traces.actions)
        if len(unseen) == len(traces.actions):
            raise ValueError(f"none of the traces' actions, such as {unseen[0]!r}, is an action of the model")
        model = model.covering([*model.names, *unseen])
        same = traces.with_actions(model.names)
    numbers, lengths, labels = same.padded()
    rejected = first_rejected(model, numbers)
    right = rejected == np.where(labels == 1, lengths - 1, -1)

    def share(of: np.ndarray) -> float:
        return float(of.mean()) if len(of) else 1.0

    return {"accuracy": share(right), "positives": share(right[labels == 0]), "negatives": share(right[labels == 1])}


def first_rejected(model: ActionModel, numbers: np.ndarray) -> np.ndarray:
    """`ActionModel.first_rejected` for many traces at once: [N], -1 where no action is rejected.

    `numbers` [N, T] are action numbers, padded with -1.
    """
    words = max(1, -(-len(model.atoms) // WORD))
    # one extra row: an action without effects, which -1 indexes
    pre, add, delete = (
        np.array([*(_words(atoms, words) for atoms in kind), [0] * words], np.uint64)  # [A + 1, W]
        for kind in zip(*(action.parts for action in model.actions))
    )
    known_false = np.zeros((len(numbers), words), np.uint64)
    first = np.full(len(numbers), -1, np.int64)
    for position in range(numbers.shape[1]):
        at = numbers[:, position]
        bad = (pre[at] & known_false).any(1)
        first[bad & (first < 0)] = position
        known_false = known_false & ~add[at] | delete[at]
    return first


def problem_solving(
    learned: ActionModel, problems: Sequence[Problem], *, planner: str = "auto", timeout: float = 60.0
) -> dict[str, float]:
    """Planning with the learned model: how many of `problems` are solved, with `timeout` seconds each.

    `solving_ratio`: a plan was found with the learned model and reaches the goal in the true problem.
    `false_plan_ratio`: a plan was found and does not. `no_plan_ratio`: the planner proved that the learned model has
    none, or a goal atom matches no learned atom. `timeout_ratio`: the planner ran out of time. `problems`: their
    number. Goals and initial states are translated to learned atoms (`planning.plan`). Raises `ValueError` without
    problems, for actions that the model lacks, and without a planner.
    """
    from statewise.strips.planning.planner import PlannerTimeout
    from statewise.strips.planning.plans import UnmatchedGoal, plan

    if not problems:
        raise ValueError("there are no problems to solve")
    counts = dict.fromkeys(("solving", "false_plan", "no_plan", "timeout"), 0)
    for problem in problems:
        try:
            result = plan(learned, problem=problem, planner=planner, timeout=timeout)
        except PlannerTimeout:
            counts["timeout"] += 1
        except UnmatchedGoal:
            counts["no_plan"] += 1
        else:
            counts["no_plan" if result.actions is None else "solving" if result.valid_in_problem else "false_plan"] += 1
    ratios = {f"{name}_ratio": count / len(problems) for name, count in counts.items()}
    return {**ratios, "problems": len(problems)}


def _words(atoms: Atoms, count: int) -> list[int]:
    return [atoms >> place * WORD & (1 << WORD) - 1 for place in range(count)]
