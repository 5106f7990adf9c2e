"""Extracts the STRIPS model that a predictor of actions implies, by questions: which actions may follow a prefix?

A predictor gives each action a probability; a rule says from which probability on it accepts an action (`Acceptance`).
An action that it accepts after a prefix and rejects further on in the same walk was made impossible by what happened in
between: this part of the walk, with the action, is a negative trace of Definition 1 of the STRIPS Transformer paper,
whatever the initial state is. An action that it accepts ends a valid trace. From these traces the exact learners find
schemas or ground atoms (`exact`). Where answers contradict each other, or schemas do not explain all of them, they are
also treated as noisy (`exact.noisy`), and the model is chosen that explains most of a fifth of the walks, held out.

Walks are drawn from the predictor's own probabilities. If its answers are free of contradictions, a fourth of the
questions goes to walks that show most (`asking.exploring`). Answers with errors would lead these into the errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from statewise.runtime.progress import announced
from statewise.strips.asking.exploring import explore
from statewise.strips.exact.frame import GRACE, Clock, Options
from statewise.strips.exact.ground import Contradiction, learn_exact
from statewise.strips.exact.lifted import MOST_ARITY, learn_lifted_exact
from statewise.strips.exact.noisy import learn_lifted_noisy, learn_noisy
from statewise.strips.exact.verdicts import Seen
from statewise.strips.methods import Model, explained
from statewise.strips.model.learned import SEEN_FILE, Learned, alone, claim, may_claim, write_model
from statewise.strips.model.model import ActionModel, evidence_of
from statewise.strips.model.schemas import LiftedModel, arguments, sorts_of
from statewise.strips.model.traces import Trace, Traces

QUESTIONS = 1000
"""The default number of questions."""
SECONDS = 60.0
"""The default time limit in seconds."""
AT_ONCE = 16
"""The number of walks that are drawn at once."""
LONGEST = 30
"""The most actions of a walk."""
EXACT = "ground atoms, exactly"
PER_QUESTION = 4
"""The most traces of each label that an answer gives."""
OVERLAPS = 6
"""The most negative traces from noisy answers that have an action of a walk in common."""
EXPLORED = 1 / 4
"""The share of the questions for walks that show most."""
FRESH, FEW = 20, 5
"""The number of walks of each model in which the fidelity is measured, and how many of them are drawn at once."""
NEAR = 3.0
"""An answer is uncertain if the probability is within this factor of the one that decides."""


Choice = Callable[[Trace, np.ndarray], int | None]
"""The action after a walk, given the probabilities (A,) of the accepted ones; None: the walk ends."""


class ActionPredictor(Protocol):
    """What a model can be extracted from."""

    @property
    def actions(self) -> Sequence[str]:
        """The names of all actions, for schemas written `schema object object`."""

    @property
    def longest(self) -> int:
        """The most actions of a prefix that can be asked about."""

    def begin(self, rng: np.random.Generator, count: int) -> list[Trace]:
        """The beginnings of `count` walks: numbers of actions. A predictor that cannot be asked what comes first gives
        at least one action; it may be asked about any prefix of a walk that begins so and is not shorter."""

    def log_probabilities(self, prefixes: Sequence[Trace]) -> np.ndarray:
        """(n, A) float64: log-probability that each of the A actions follows each of the n prefixes; -inf for 0."""


@dataclass(frozen=True)
class Acceptance:
    """From which probability on an action is accepted.

    `uniform`: at least `share` of 1/A, the probability of each of the A actions if all were equally likely. `gap`: the
    actions above the largest gap between the sorted log-probabilities, if probabilities differ there by a factor of at
    least 1/`share`; otherwise all."""

    rule: Literal["uniform", "gap"] = "uniform"
    share: float = 0.1

    def __post_init__(self) -> None:
        if self.rule not in ("uniform", "gap"):
            raise ValueError(f"the rule must be uniform or gap, not {self.rule!r}")
        if not 0 < self.share < 1:
            raise ValueError(f"the share must be above 0 and below 1, not {self.share}")

    def least(self, log_probabilities: np.ndarray) -> np.ndarray:
        """(n, 1): the least log-probability that is accepted, for each row of (n, A)."""
        count, number = log_probabilities.shape
        if self.rule == "uniform" or number < 2:
            return np.full((count, 1), np.log(self.share / number))
        falling = -np.sort(-np.maximum(log_probabilities, -700.0), axis=1)  # finite, so that differences are
        gaps = falling[:, :-1] - falling[:, 1:]
        place = gaps.argmax(axis=1)[:, None]
        above, below = np.take_along_axis(falling, place, 1), np.take_along_axis(falling, place + 1, 1)
        return np.where(above - below >= -np.log(self.share), (above + below) / 2, -np.inf)

    def described(self) -> str:
        """The rule in words."""
        if self.rule == "uniform":
            return f"a probability of at least {self.share:g} of the uniform one"
        return f"above the largest gap, if that is a factor of at least {1 / self.share:g}"


@dataclass(frozen=True)
class Answered:
    """A walk, and which actions were accepted after its prefixes."""

    walk: Trace
    first: int
    """The number of actions of the shortest prefix that was asked about."""
    accepted: np.ndarray
    """(n, A) bool: after the prefixes of `first`, `first` + 1, ... actions."""

    def impossible(self, column: int, *, taken: bool) -> Iterator[tuple[int, int]]:
        """Actions that are rejected after a prefix and were accepted before, each with the last such place; or only
        those that were `taken`."""
        end = self.first + column
        last = {action: at for at, action in enumerate(self.walk[:end]) if at >= self.first}
        if not taken:
            places, actions = np.nonzero(self.accepted[:column])
            last = {int(action): self.first + int(at) for at, action in zip(places, actions)}
        yield from ((action, at) for action, at in last.items() if not self.accepted[column, action])


@dataclass(frozen=True)
class Agreement:
    """How often two models agree, in counts of (prefix, action)."""

    accepted: int
    """Accepted by the predictor."""
    accepted_by_both: int
    rejected: int
    """Rejected by the predictor and accepted by it earlier in the same walk, so that Definition 1 can tell why."""
    rejected_by_both: int
    undecidable: int
    """Rejected by the predictor and never accepted by it in the walk: this may be due to the initial state."""
    promised: int
    """In walks of the extracted model: all preconditions are known to be true."""
    promised_and_accepted: int

    @property
    def share(self) -> float:
        """The share of the decidable answers on which both agree."""
        return (self.accepted_by_both + self.rejected_by_both) / max(1, self.accepted + self.rejected)


@dataclass(frozen=True)
class Extracted:
    """An extracted model."""

    model: ActionModel
    schemas: LiftedModel | None
    """None if ground atoms explain the answers better."""
    noisy: bool
    """Whether answers are treated as noisy: they contradict each other, or schemas explain more of held-out ones so."""
    questions: int
    """The number of questions: prefixes, each with all actions."""
    uncertain: float
    """The share of the probabilities within a factor of `NEAR` of the one that decides."""
    traces: Traces
    """What was learned from."""
    agreement: Agreement
    report: dict[str, Any]
    """How it was learned."""


class _Asking:
    """Asks, counts questions, and keeps the answers."""

    def __init__(self, predictor: ActionPredictor, acceptance: Acceptance, rng: np.random.Generator) -> None:
        self.predictor, self.acceptance, self.rng = predictor, acceptance, rng
        self.actions = tuple(predictor.actions)
        self.longest = min(LONGEST, predictor.longest)
        if len(self.actions) < 2 or len(set(self.actions)) < len(self.actions):
            raise ValueError("the predictor needs at least two actions, with different names")
        if self.longest < 2:
            raise ValueError("the predictor reads fewer than two actions, which shows no effect of an action")
        self.answers: list[Answered] = []
        self.questions = self.near = 0

    def accepted(self, prefixes: Sequence[Trace]) -> tuple[np.ndarray, np.ndarray]:
        """(n, A) bool: which actions are accepted after each prefix; and (n, A) the probabilities from which walks are
        drawn: 0 for what is rejected or uncertain."""
        logs = np.asarray(self.predictor.log_probabilities(prefixes), np.float64)
        if logs.shape != (len(prefixes), len(self.actions)) or np.isnan(logs).any():
            raise ValueError(
                f"the predictor must give {len(prefixes)} times {len(self.actions)} log-probabilities; it gives an "
                f"array of shape {logs.shape}{', with values that are not a number' if np.isnan(logs).any() else ''}"
            )
        least = self.acceptance.least(logs)
        self.questions += len(prefixes)
        self.near += int((np.abs(logs - least) < np.log(NEAR)).sum())
        accepted = logs >= least
        return accepted, np.where(logs >= least + np.log(NEAR), np.exp(logs), 0.0)

    def draw(self, count: int, choose: Choice | None = None) -> list[Answered]:
        """`count` walks, each action drawn by its probability among those accepted, or by `choose`, which gets the walk
        and the probabilities."""
        walks = [list(each) for each in self.predictor.begin(self.rng, count)]
        firsts, rows = [len(each) for each in walks], [list[np.ndarray]() for _ in walks]
        going = [place for place, each in enumerate(walks) if len(each) <= self.longest]
        while going:
            accepted, chances = self.accepted([tuple(walks[place]) for place in going])
            still = []
            for place, allowed, chance in zip(going, accepted, chances):
                rows[place].append(allowed)
                if choose is not None:
                    action = choose(tuple(walks[place]), chance)
                else:
                    action = int(self.rng.choice(len(chance), p=chance / chance.sum())) if chance.sum() > 0 else None
                if action is not None and len(walks[place]) < self.longest:
                    walks[place].append(action)
                    still.append(place)
            going = still
        return [Answered(tuple(walk), first, np.array(row)) for walk, first, row in zip(walks, firsts, rows) if row]

    def fresh(self, until: float, choose: Choice | None = None) -> Iterator[Answered]:
        """`FRESH` walks as in `draw`; only the first few once the time is up."""
        for drawn in range(0, FRESH, FEW):
            if drawn and time.monotonic() > until:
                break
            yield from self.draw(FEW, choose)

    def traces(self, answers: Sequence[Answered], *, noisy: bool = False) -> Traces:
        """The answers as labelled traces: parts of walks with one more action, without repetition; see `_exact` and
        `_noisy`."""
        rows: dict[Trace, int] = {}
        for each in answers:
            for row, label in self._noisy(each) if noisy else self._exact(each):
                if row and (label or row not in rows):
                    rows[row] = label
        return Traces(self.actions, tuple(rows), tuple(rows.values()))

    def _exact(self, answered: Answered) -> Iterator[tuple[Trace, int]]:
        """At most `PER_QUESTION` traces of each label for an answer, and the walk."""
        walk = answered.walk
        yield walk, 0
        for column in range(1, len(answered.accepted)):
            end = answered.first + column
            taken = walk[end] if end < len(walk) else -1
            for action in self._some([int(at) for at in np.flatnonzero(answered.accepted[column]) if at != taken]):
                yield (*walk[int(self.rng.integers(0, end)) : end], action), 0
            for action, since in self._some(list(answered.impossible(column, taken=False))):
                yield (*walk[since:end], action), 1

    def _noisy(self, answered: Answered) -> Iterator[tuple[Trace, int]]:
        """Of noisy answers only the actions that were taken count as accepted, which have the larger probabilities.
        Of the negative traces at most `OVERLAPS` have an action of the walk in common: noise is what few traces show,
        and a wrong action should not be in many."""
        walk = answered.walk
        yield walk, 0
        ends = [
            (since, answered.first + column, action)
            for column in range(1, len(answered.accepted))
            for action, since in answered.impossible(column, taken=True)
        ]
        used = np.zeros(len(walk), int)
        for at in self.rng.permutation(len(ends)):
            since, end, action = ends[int(at)]
            if (used[since:end] < OVERLAPS).all():
                used[since:end] += 1
                yield (*walk[since:end], action), 1

    def _some(self, items: list[Any]) -> list[Any]:
        if len(items) <= PER_QUESTION:
            return items
        return [items[int(at)] for at in self.rng.choice(len(items), PER_QUESTION, replace=False)]


class _AsSimulator:
    """The predictor as a simulator for `explore`: a step is possible if it is accepted."""

    def __init__(self, asking: _Asking, questions: int, until: float) -> None:
        """Nothing is possible after so many questions in all, and after the time `until`, so that exploring ends."""
        self.asking, self.actions = asking, asking.actions
        self.questions, self.until = questions, until
        self.number = {name: at for at, name in enumerate(self.actions)}
        self.beginning = asking.predictor.begin(asking.rng, 1)[0]
        self.walk: Trace = ()
        self.rows: list[np.ndarray] = []

    def reset(self) -> None:
        """Begins a walk, and keeps the answers of the last one."""
        self.finish()
        self.walk, self.rows = self.beginning, []
        self._ask()

    def finish(self) -> None:
        """Keeps the answers of the walk."""
        if self.rows:
            self.asking.answers.append(Answered(self.walk, len(self.beginning), np.array(self.rows)))
            self.rows = []

    def _ask(self) -> None:
        self.rows.append(self.asking.accepted([self.walk])[0][0])

    def possible(self) -> list[str]:
        """The accepted actions."""
        if self.asking.questions >= self.questions or time.monotonic() > self.until:
            return []
        return [self.actions[int(at)] for at in np.flatnonzero(self.rows[-1])]

    def step(self, action: str) -> bool:
        """Whether the action is accepted; if so, it is read."""
        number = self.number[action]
        if not self.rows[-1][number]:
            return False
        self.walk = (*self.walk, number)
        self._ask()
        return True


def extract(
    predictor: ActionPredictor,
    *,
    questions: int = QUESTIONS,
    seconds: float = SECONDS,
    seed: int = 1,
    acceptance: Acceptance | None = None,
    folder: Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
    facts: dict[str, Any] | None = None,
) -> Extracted:
    """Extracts the STRIPS model that a predictor implies, from about so many `questions` in `seconds`.

    A question is a prefix with all actions. The questions of the fidelity, in fresh walks, come in addition. `folder`
    is where the model is written, as `learn` writes it; `facts` are more entries of its report.

    Raises `ValueError` for numbers below 1, for a predictor with fewer than two actions, one that accepts nothing, or
    one whose answers are not numbers, and `FileExistsError` if the folder holds anything and `overwrite` is not given.
    """
    if questions < 1 or not seconds > 0:
        raise ValueError(f"questions must be at least 1 and seconds above 0, not {questions} and {seconds}")
    begun = time.monotonic()
    if folder is not None:
        may_claim(folder, overwrite, resumes=False)
    asking = _Asking(predictor, acceptance or Acceptance(), np.random.default_rng(seed))

    def left(share: float = 1.0) -> float:
        return max(0.5, (begun + seconds - time.monotonic()) * share)

    until = time.monotonic() + left(1 / 3)
    wanted = max(1, round(questions * (1 - EXPLORED)))
    drawing = -(-wanted // (asking.longest * AT_ONCE))
    for _ in announced(range(drawing), "rounds of walks", drawing):
        rest = -(-(wanted - asking.questions) // asking.longest)
        if rest < 1 or (asking.answers and time.monotonic() > until):
            break
        asking.answers += asking.draw(min(AT_ONCE, rest))
    if all(len(each.accepted) < 2 for each in asking.answers):
        raise ValueError(
            "the predictor accepts no action after the beginnings of its walks: accept smaller probabilities"
        )
    say(f"{asking.questions} questions in {len(asking.answers)} walks of its own")
    with_arguments = all(" " in name for name in asking.actions) and _regular(asking.actions)
    traces = asking.traces(asking.answers)
    best = _clean(traces, with_arguments, left(1 / 4))
    until = time.monotonic() + left(1 / 4)
    if asking.questions < questions:
        if best is not None:
            simulator = _AsSimulator(asking, questions, until)
            most = max(1, asking.longest - len(simulator.beginning))
            explore(simulator, questions, lifted=with_arguments, max_length=most, seed=seed)
            simulator.finish()
        while best is None and asking.questions < questions and time.monotonic() < until:
            asking.answers += asking.draw(min(AT_ONCE, -(-(questions - asking.questions) // asking.longest)))
        say(f"{asking.questions} questions in {len(asking.answers)} walks")
        traces = asking.traces(asking.answers)
        best = _clean(traces, with_arguments, left(1 / 3))
    asked, exact = asking.questions, best
    if best is None:
        say("the answers contradict each other: they are treated as noisy")
    if best is None or (with_arguments and isinstance(best, Learned)):
        best = _compared(asking, exact, with_arguments, left(0.8), say)
    noisy = best is not exact
    model = best.model if isinstance(best, Learned) else best.ground(asking.actions)
    agreement = _agreement(asking, model, begun + seconds)
    report = best.report
    report["extracted"] = {
        "questions": asked,
        "walks": len(asking.answers),
        "noisy": noisy,
        "rule": asking.acceptance.rule,
        "share": asking.acceptance.share,
        "uncertain": asking.near / (asking.questions * len(asking.actions)),
        "agreement": {**agreement.__dict__, "share": agreement.share},
        "seed": seed,
        **(facts or {}),
    }
    schemas = best if isinstance(best, LiftedModel) else None
    made = Extracted(
        model, schemas, noisy, asked, report["extracted"]["uncertain"], traces, agreement, report["extracted"]
    )
    if folder is not None:
        _write(made, best, folder, overwrite, left())
    return made


def _regular(actions: Sequence[str]) -> bool:
    """Whether each schema always has the same number of arguments."""
    widths: dict[str, set[int]] = {}
    for name in actions:
        schema, objects = arguments(name)
        widths.setdefault(schema, set()).add(len(objects))
    return all(len(each) == 1 for each in widths.values())


def _options(seconds: float) -> Options:
    return {"seconds": seconds}


def _clean(traces: Traces, with_arguments: bool, seconds: float) -> Model | None:
    """The model of the first exact learner that explains all traces, schemas first; None if none does."""
    learners: list[Callable[..., Model]] = [learn_lifted_exact] if with_arguments else []
    for learner in [*learners, learn_exact]:
        try:
            found = learner(traces, **_options(seconds / 2))
        except Contradiction:
            return None
        if explained(found, traces).all():
            return found
    return None


def _compared(
    asking: _Asking, exact: Model | None, with_arguments: bool, seconds: float, say: Callable[[str], None]
) -> Model:
    """The model that explains most of the answers in a fifth of the walks, which is held out: `exact`, ground atoms
    that explain all answers, or one that treats answers as noisy. Many ground atoms can explain errors, too."""
    order = asking.rng.permutation(len(asking.answers)).tolist()
    held_places = set(order[: max(1, len(order) // 5)])
    held = asking.traces([asking.answers[at] for at in sorted(held_places)], noisy=True)
    rest = [each for at, each in enumerate(asking.answers) if at not in held_places] or asking.answers
    part = asking.traces(rest, noisy=True)
    learners: dict[str, Callable[..., Model]] = {"schemas, with noise": learn_lifted_noisy} if with_arguments else {}
    if exact is not None:
        learners[EXACT] = lambda _, **options: learn_exact(asking.traces(rest), **options)
    learners["ground atoms, with noise"] = learn_noisy
    right: dict[str, float] = {}
    found: dict[str, Model] = {}
    for name, learner in learners.items():
        if not sum(part.labels) and name != EXACT:
            continue  # nothing can be noisy
        found[name] = learner(part, **_options(seconds / len(learners)))
        right[name] = float(explained(found[name], held).mean())
        say(f"{name}: {right[name]:.4f} of {len(held)} traces of held-out walks right")
    if not found:
        raise ValueError("no answer shows that an action becomes impossible: ask more questions")
    # schemas say more, so they are preferred if the difference may be chance: up to one standard error
    most = max(right.values())
    taken = next(each for each, p in right.items() if p + (p * (1 - p) / len(held)) ** 0.5 >= most)
    best = exact if exact is not None and taken == EXACT else found[taken]
    shares = ", ".join(f"{each} {share:.4f}" for each, share in right.items())
    best.report["chosen"] = f"of traces of held-out walks they explain: {shares}"
    best.report["held_out"] = {"traces": len(held), "explained": right, "taken": taken}
    return best


def _agreement(asking: _Asking, model: ActionModel, until: float) -> Agreement:
    """How far the extracted model agrees with the predictor in fresh walks of either, fewer if the time is up."""
    counts = dict.fromkeys(
        ("accepted", "accepted_by_both", "rejected", "rejected_by_both", "undecidable", "promised"), 0
    )
    for each in asking.fresh(until):
        before = np.zeros(len(asking.actions), bool)
        for column, accepted in enumerate(each.accepted):
            mine = np.zeros(len(asking.actions), bool)
            mine[model.possible(model.after(each.walk[: each.first + column]))] = True
            counts["accepted"] += int(accepted.sum())
            counts["accepted_by_both"] += int((accepted & mine).sum())
            counts["rejected"] += int((before & ~accepted).sum())
            counts["rejected_by_both"] += int((before & ~accepted & ~mine).sum())
            counts["undecidable"] += int((~before & ~accepted).sum())
            before |= accepted

    def known(walk: Trace) -> list[int]:
        true = evidence_of(model, walk).true
        return [at for at, action in enumerate(model.actions) if not action.pre & ~true]

    def choose(walk: Trace, chance: np.ndarray) -> int | None:
        able = known(walk)
        if able:
            return able[int(asking.rng.integers(len(able)))]
        return int(asking.rng.choice(len(chance), p=chance / chance.sum())) if chance.sum() > 0 else None

    agreed = 0
    for each in asking.fresh(until, choose):
        for column, accepted in enumerate(each.accepted):
            able = known(each.walk[: each.first + column])
            counts["promised"] += len(able)
            agreed += int(accepted[able].sum())
    return Agreement(**counts, promised_and_accepted=agreed)


def _write(made: Extracted, best: Model, folder: Path, overwrite: bool, seconds: float) -> None:
    """Writes the folder; if answers did not contradict each other, with what they show, for `check`."""
    files: dict[str, bytes] = {}
    lifted = isinstance(best, LiftedModel)
    if not made.noisy:
        clock = Clock(max(GRACE, seconds))
        seen = Seen.of(
            made.traces,
            arity=MOST_ARITY if lifted else None,
            constants=sorted(sorts_of(made.traces.actions)[1]) if lifted else [],
            reading=lambda rows: clock.reading(rows, 0.1),
            has_time=clock.has_time,
        )
        if all(seen.negatives):
            files[SEEN_FILE] = seen.as_json()
    with alone(folder):
        claim(folder, overwrite, resumes=False)
        if isinstance(best, LiftedModel):
            write_model(folder, made.model, best.report, files, schemas=best.schemas)
        else:
            best.save(folder, files)
