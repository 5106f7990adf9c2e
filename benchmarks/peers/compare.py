"""Learners of STRIPS models from action traces alone, side by side: same traces, same measure, one run.

python benchmarks/peers/compare.py [--macq-python PATH] [--domains simple:200,ferry:2x1:500] [--json]

A test trace is judged right if a learned model rejects no action of a positive trace, and of a negative one exactly
the last (Definition 1 of the STRIPS Transformer paper). Traces are drawn as in the paper: 80% of the training traces
are negative; test traces, 5,000 of each label and up to 50 actions long, begin in other initial states. The peers
learn from positive traces only: they are given the positive traces and the negative ones without their last actions.
Those are walks from real states; Definition 1 allows more (picking up one block and putting down another, where
nothing was known before), so that a peer can be right on every test trace and yet reject such a trace.

With --smoke, few traces of the smallest domain are compared, after few steps of learning.

OBSERVER comes with macq, whose requirements conflict with ours: it runs in an interpreter of its own, which
--macq-python names, and is left out without it. OBSERVER is shown the true states, which no other learner sees. LOCM is
our own (`--method locm`): the one that macq 0.3.11 releases is wrong in several steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # the frame of all benchmarks stands there
from peers.enumeration import MOST_ACTIONS, enumerate_features
from timing import parser

from statewise.reporting.tables import number, text_table
from statewise.strips.exact.ground import learn_exact
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.model.model import ActionModel
from statewise.strips.model.schemas import LiftedModel
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import Settings, learn_neural
from statewise.strips.neural.lifted import learn_lifted
from statewise.strips.rivals.locm import learn_locm
from statewise.strips.rivals.sift import learn_lifted_sift, learn_sift
from statewise.strips.trace_data.domains import Domain, domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.verification import verify

DOMAINS = "simple:200,ferry:2x1:500,blocksworld:2:500,blocksworld:3:2000"
LONGEST = {"simple": 10, "ferry:2x1": 20, "blocksworld:2": 20}
"""Longest training trace of a domain, as in the paper; 30 in all others."""
TEST_LENGTH = 50

Learner = Callable[[Traces, Domain, Settings], ActionModel]


class CannotLearn(Exception):
    """A learner has to pass on a domain; the text is the reason."""


def enumeration(data: Traces, of: Domain, settings: Settings) -> ActionModel:
    """All atoms that the positive traces allow."""
    return _enumerated(data, alternating=False)


def sift_like(data: Traces, of: Domain, settings: Settings) -> ActionModel:
    """All such atoms that also pass SIFT's test: actions that add an atom and that delete it take turns."""
    return _enumerated(data, alternating=True)


def ours(data: Traces, of: Domain, settings: Settings) -> ActionModel:
    """The STRIPS Transformer, ten restarts pooled; it is told the number of atoms, and learns from negatives too."""
    return learn_neural(data, replace(settings, atoms=len(of.model.atoms))).model


def ours_untold(data: Traces, of: Domain, settings: Settings) -> ActionModel:
    """The STRIPS Transformer as in `ours`, but not told the number of atoms."""
    return learn_neural(data, settings).model


def ours_lifted(data: Traces, of: Domain, settings: Settings) -> ActionModel:
    """The lifted learner; it finds the number of predicates itself."""
    if any(" " not in action for action in data.actions):
        raise CannotLearn("actions without arguments")
    return learn_lifted(data, settings).ground(of.model.names)


def ours_exact(data: Traces, of: Domain, settings: Settings) -> ActionModel:
    """By SAT over seen windows; it learns from negatives too."""
    return learn_exact(data).model


def ours_exact_lifted(data: Traces, of: Domain, settings: Settings) -> ActionModel:
    """Schemas by SAT over windows of slots, from valid actions alone, as the peers."""
    return _lifted(learn_lifted_exact, data, of)


def sift(data: Traces, of: Domain, settings: Settings) -> ActionModel:
    """All alternating atoms, listed by SAT, so that there may be more actions than can be enumerated."""
    return learn_sift(data).model


def sift_lifted(data: Traces, of: Domain, settings: Settings) -> ActionModel:
    """The schemas of all alternating predicates, as SIFT itself."""
    return _lifted(learn_lifted_sift, data, of)


def locm(data: Traces, of: Domain, settings: Settings) -> ActionModel:
    """LOCM as `strips learn --method locm`."""
    return _lifted(learn_locm, data, of)


def _lifted(learner: Callable[[Traces], LiftedModel], data: Traces, of: Domain) -> ActionModel:
    if any(" " not in action for action in data.actions):
        raise CannotLearn("actions without arguments")
    return learner(data.valid_only()).ground(of.model.names)


def _enumerated(data: Traces, alternating: bool) -> ActionModel:
    if len(data.actions) > MOST_ACTIONS:
        raise CannotLearn(f"{len(data.actions)} actions, 3^{len(data.actions)} candidates")
    return enumerate_features(data, alternating=alternating)


class Observer:
    """OBSERVER of macq, in the interpreter that has macq. It is shown what no other learner sees: the true state before
    and after each valid action, and the atoms."""

    def __init__(self, python: str) -> None:
        self.python = python

    def __call__(self, data: Traces, of: Domain, settings: Settings) -> ActionModel:
        """Learns ground actions; one that was never valid is impossible."""
        walks = [_with_states(row, of) for row in data.valid_only().rows]
        answer = _in_macq(self.python, "observer.py", {"atoms": of.model.atoms, "traces": walks})
        never = {"pre": of.model.atoms, "add": [], "delete": []}
        learned = {name: answer["actions"].get(name, never) for name in data.actions}
        return ActionModel.of(
            of.model.atoms, {name: (each["pre"], each["add"], each["delete"]) for name, each in learned.items()}
        )


def _with_states(row: Sequence[int], of: Domain) -> list[tuple[list[str], str | None]]:
    """The true atoms before each action, and the action; at last those after all, and None. A walk begins in the first
    of the domain's initial states from which all its actions are applicable."""
    model = of.model
    for state in of.initial_states(4):
        walk: list[tuple[list[str], str | None]] = []
        for place in row:
            action = model.actions[place]
            if action.pre & ~state:
                break
            walk.append((model.spelled(state), action.name))
            state = (state | action.add) & ~action.delete
        else:
            return [*walk, (model.spelled(state), None)]
    raise CannotLearn("a trace begins in no initial state of the domain")


def _in_macq(python: str, script: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a script beside this one, run by the interpreter that has macq."""
    done = subprocess.run(
        [python, str(Path(__file__).parent / script)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": ""},
    )
    if done.returncode:
        raise CannotLearn((done.stderr.strip().splitlines() or ["it gave no reason"])[-1])
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


LEARNERS: dict[str, Learner] = {
    "ours": ours,
    "ours, atoms unknown": ours_untold,
    "ours, lifted": ours_lifted,
    "ours, exact": ours_exact,
    "ours, exact, lifted, positive only": ours_exact_lifted,
    "sift, by SAT": sift,
    "sift, by SAT, lifted": sift_lifted,
    "LOCM": locm,
    "enumeration": enumeration,
    "sift-like": sift_like,
}
"""Name -> function to a model of the training traces, the domain, of which only names and sizes may be used, and how to
learn, which is for ours."""


TRAINED = ("ours", "ours, atoms unknown", "ours, lifted")
"""Those that train."""


@dataclass
class Row:
    """One learner on one set of traces."""

    domain: str
    traces: int
    learner: str
    accuracy: float | None = None
    positives: float | None = None
    negatives: float | None = None
    atoms: int | None = None
    equivalent: str = "-"
    seconds: float | None = None
    note: str = ""


def judged(model: ActionModel, test: Traces) -> tuple[float, float, float]:
    """Share of test traces judged right: of all, of the positive, of the negative."""
    right = {0: 0, 1: 0}
    for row, label in zip(test.rows, test.labels):
        right[label] += model.first_rejected(row) == (len(row) - 1 if label else None)
    positives = test.positives
    return sum(right.values()) / len(test), right[0] / positives, right[1] / (len(test) - positives)


def equivalent(learned: ActionModel, reference: Domain) -> str:
    """Exact equivalence under Definition 1 / on the traces that walks from real states can show."""
    short = {"equivalent": "yes", "different": "no", "unknown": "?"}
    return " / ".join(
        short[verify(learned, reference, drawn_only=drawn, seconds=20).outcome] for drawn in (False, True)
    )


def run(spec: str, num: int, learners: dict[str, Learner], tests: int, seed: int, settings: Settings) -> list[Row]:
    """Every learner on the same traces of one domain."""
    of = domain(spec)
    train = traces(of, num, LONGEST.get(spec, 30), seed)
    test = traces(of, 2 * tests, TEST_LENGTH, seed + 1, negatives=0.5, split="test", without=train)
    rows = []
    for name, learner in learners.items():
        row = Row(spec, num, name)
        started = time.perf_counter()
        try:
            model = learner(train, of, settings).with_actions(of.model.names)
        except CannotLearn as why:
            row.note = str(why)
        else:
            row.seconds = time.perf_counter() - started
            row.accuracy, row.positives, row.negatives = judged(model, test)
            row.atoms = len(model.atoms)
            row.equivalent = equivalent(model, of)
        rows.append(row)
        print(f"{spec} {num} {name} done", file=sys.stderr, flush=True)
    return rows


def main(words: Sequence[str] | None = None) -> int:
    command = parser(__doc__)
    command.add_argument("--macq-python", metavar="PATH", help="interpreter of an environment that has macq 0.3.11")
    command.add_argument("--domains", default=DOMAINS, help=f"DOMAIN:TRACES,... (default {DOMAINS})")
    command.add_argument("--tests", type=int, default=5000, help="test traces of each label (default 5000)")
    command.add_argument("--seed", type=int, default=1, help="seed of the training traces; test traces have the next")
    command.add_argument("--no-training", action="store_true", help="leave out those of ours that train")
    command.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = command.parse_args(words)
    settings = Settings()
    if given.smoke:
        given.domains, given.tests, settings = "ferry:2x1:20", 10, Settings(restarts=2, steps=20, check_every=10)

    learners = {name: each for name, each in LEARNERS.items() if not (given.no_training and name in TRAINED)}
    remarks = []
    if given.macq_python:
        learners["OBSERVER, which sees states"] = Observer(given.macq_python)
    rows = []
    for each in given.domains.split(","):
        spec, _, num = each.rpartition(":")
        rows += run(spec, int(num), learners, given.tests, given.seed, settings)
    remarks += [f"{row.learner} on {row.domain}: not run ({row.note})." for row in rows if row.note]
    if not given.macq_python:
        remarks.append(
            "OBSERVER is left out: install macq in an environment of its own (python -m venv macq; "
            "macq/bin/pip install macq==0.3.11) and pass --macq-python macq/bin/python."
        )
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "remarks": remarks}, indent=2))
        return 0
    header = [
        "domain",
        "traces",
        "learner",
        "right",
        "positives",
        "negatives",
        "atoms",
        "equivalent: Def. 1 / drawn",
        "seconds",
    ]
    cells = [
        [
            row.domain,
            number(row.traces),
            row.learner,
            *map(number, (row.accuracy, row.positives, row.negatives)),
            number(row.atoms),
            row.equivalent,
            "-" if row.seconds is None else f"{row.seconds:.3f}",
        ]
        for row in rows
    ]
    print(text_table(header, cells))
    print("", *remarks, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
