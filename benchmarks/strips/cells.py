"""The STRIPS experiments as lists of cells: Table 1 of the paper, larger domains, an unknown number of atoms, noise,
schemas. A cell draws traces, learns and evaluates; its record is written to a ledger at once, so that an interrupted
experiment resumes where it stopped. `reproduce.py` is the command."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from statewise.runtime.json_files import COUNT, NUMBER, SHARE, TEXT, Keys, Maybe, Shape, one_of
from statewise.runtime.ledger import Ledger, Record
from statewise.runtime.system import end_with, peak_memory
from statewise.strips import (
    ActionModel,
    Domain,
    Learned,
    Settings,
    Traces,
    check,
    domain,
    learn,
    learn_exact,
    learn_lifted,
    learn_lifted_exact,
    learn_locm,
    learn_neural,
    learn_noisy,
    simplify,
    symmetric,
    syntactic,
    trace_accuracy,
    traces,
    verify,
    with_noise,
)
from statewise.strips.exact.lifted import ARITY
from statewise.strips.exact.verdicts import Seen
from statewise.strips.model.heads import Heads, Judge
from statewise.strips.model.schemas import LiftedModel
from statewise.strips.rivals.sift import learn_lifted_sift, learn_sift

PROTOCOLS: dict[str, dict[str, Any]] = {"early": {}, "paper": {"steps": 100_000, "stall": False}}
"""When the training of a restart ends."""
METHODS = ("neural", "exact", "positive-only", "auto", "hybrid", "sift", "locm")
"""How a cell learns: `positive-only` is the exact method on the valid actions of the same traces, `auto` what
`statewise strips learn` does by default, `hybrid` combines training and the exact method; `sift` and `locm` learn from
the valid actions as SIFT and LOCM do."""
FROM_NOISE = ("neural", "exact", "auto", "hybrid", "sift", "locm")
"""The methods that learn from noisy traces; `sift` and `locm` read them as free of noise."""
LEARN_GROUND = ("auto", "hybrid")
"""The methods that end with a ground model, whether or not schemas are tried first."""
SIZES = (50, 100, 200, 500, 1000, 2000)
MAX_LENGTH = {"simple": 10, "blocksworld:2": 20, "ferry:2x1": 20, "blocksworld:3": 30, "ferry:2x2": 30}
"""The paper's five domains, with the longest training traces of each."""
LONGEST = 40
"""The longest training traces of all other domains."""
TEST, TEST_LENGTH = 10_000, 50
"""The number of test traces, half of them negative, and their maximum length."""


@dataclass(frozen=True)
class Cell:
    """One training set and one learning run."""

    domain: str
    size: int
    draw: int
    """Seed of the training set, and of the restarts."""
    max_length: int
    atoms: str = "true"
    """`true`: as many heads as the domain has atoms; `auto`: the number is not given; `lifted`: the ground actions of a
    schema share weights."""
    noise: float = 0.0
    noise_of: str = "labels"
    restarts: int = 10
    steps: int = Settings.steps
    """Most training steps."""
    stall: bool = True
    """Whether a restart stops when its accuracy no longer rises."""
    method: str = "neural"
    """One of `METHODS`."""
    symmetry: bool = False
    """Whether the traces are joined by their copies with objects of one sort permuted."""
    drawn_only: bool = False
    """Whether to decide equivalence on drawn traces alone and skip the simplest equivalent model, which takes longer
    than exact learning."""
    limit: float | None = None
    """Most seconds of learning, for `auto` and `hybrid`."""

    @property
    def name(self) -> str:
        """The key of its record."""
        more = f" atoms={self.atoms}" if self.atoms != "true" else ""
        more += f" noise={self.noise:g} of {self.noise_of}" if self.noise else ""
        more += " symmetry" if self.symmetry else ""
        if self.method == "neural":
            more += f" restarts={self.restarts}" if self.restarts != 10 else ""
            more += f" steps={self.steps}" if self.steps != Settings.steps else ""
            more += "" if self.stall else " no stall"
        else:
            more += f" {self.method}"
        more += " drawn only" if self.drawn_only else ""
        more += "" if self.limit is None else f" limit={self.limit:g}"
        return f"{self.domain} {self.size} draw {self.draw}{more}"


def table1(domains: Sequence[str], sizes: Sequence[int], draws: int) -> list[Cell]:
    """The paper's table. `simple` has too few unique traces for more than 500."""
    return [
        Cell(name, size, draw, MAX_LENGTH.get(name, LONGEST))
        for draw in range(1, draws + 1)
        for size in sizes
        for name in domains
        if not (name == "simple" and size > 500)
    ]


def larger(domains: Sequence[str], sizes: Sequence[int], draws: int) -> list[Cell]:
    """Domains beyond the paper's, by number of traces."""
    return [
        Cell(name, size, draw, MAX_LENGTH.get(name, LONGEST))
        for draw in range(1, draws + 1)
        for name in domains
        for size in sizes
    ]


def unknown_atoms(domains: Sequence[str], sizes: Sequence[int], draws: int) -> list[Cell]:
    """The table's domains, without giving the number of atoms."""
    return [replace(cell, atoms="auto") for cell in table1(domains, sizes, draws)]


def noisy(domains: Sequence[str], sizes: Sequence[int], draws: int) -> list[Cell]:
    """1, 5 and 10% of the traces with a flipped label, or with an action replaced."""
    return [
        replace(cell, noise=share, noise_of=kind)
        for cell in table1(domains, sizes, draws)
        for share in (0.01, 0.05, 0.1)
        for kind in ("labels", "actions")
    ]


def damaged(domains: Sequence[str], sizes: Sequence[int], draws: int) -> list[Cell]:
    """5% of noise of labels and actions at once: in as many traces each, or in this share of all actions."""
    return [
        replace(cell, noise=0.05, noise_of=kind) for cell in table1(domains, sizes, draws) for kind in ("both", "steps")
    ]


def lifted(domains: Sequence[str], sizes: Sequence[int], draws: int) -> list[Cell]:
    """Schemas learned on small instances, to be verified on larger ones."""
    return [replace(cell, atoms="lifted", restarts=5) for cell in larger(domains, sizes, draws)]


LARGER = {
    "blocksworld:3": ("blocksworld:4", "blocksworld:5"),
    "ferry:3x2": ("ferry:3x3", "ferry:4x4"),
    "gripper:2": ("gripper:3", "gripper:4"),
    "hanoi:3": ("hanoi:4",),
    "miconic:3x2": ("miconic:4x3",),
    "logistics:2x2x2": ("logistics:3x2x3",),
    "tiles:2x2": ("tiles:2x3",),
    "visit-all:2x2": ("visit-all:3x3",),
    "satellite:1x3": ("satellite:2x3",),
}
"""The larger instances on which schemas learned on a domain are verified, too; those of others on their own alone."""


@dataclass(frozen=True)
class Experiment:
    """A function from domains, sizes and draws to cells, with the default domains and sizes."""

    cells: Callable[[Sequence[str], Sequence[int], int], list[Cell]]
    domains: tuple[str, ...]
    sizes: tuple[int, ...]
    allowed: tuple[str, ...]
    """Domains that may be chosen; empty: any."""


PAPERS = tuple(MAX_LENGTH)
EXPERIMENTS = {
    "table1": Experiment(table1, PAPERS, SIZES, PAPERS),
    "larger": Experiment(larger, ("blocksworld:4", "ferry:3x3", "gripper:3"), (200, 500, 1000, 2000), ()),
    "atoms": Experiment(unknown_atoms, PAPERS, (200, 1000), PAPERS),
    "noise": Experiment(noisy, ("simple", "blocksworld:2", "ferry:2x1"), (500,), ()),
    "damage": Experiment(damaged, PAPERS, (500,), ()),
    "lifted": Experiment(lifted, ("blocksworld:3", "ferry:3x2"), (50, 100, 200, 500), ()),
}
NOTIONS: dict[str, dict[str, bool]] = {
    "definition_1": {},
    "real_states": {"real_states": True},
    "drawn_traces": {"real_states": True, "drawn_only": True},
}
_OUTCOME = one_of("equivalent", "different", "unknown")
_OUTCOMES: Shape = {"definition_1?": _OUTCOME, "real_states?": _OUTCOME, "drawn_traces": _OUTCOME}
_CELL: Keys = {
    "cell": TEXT,
    "domain": TEXT,
    "size": COUNT,
    "draw": COUNT,
    "noise": NUMBER,
    "noise_of": TEXT,
    "seconds": NUMBER,
    "cpu_seconds?": NUMBER,
    "memory?": Maybe(NUMBER),
    "method?": one_of(*METHODS),
    "certainty?": {...: SHARE},
}
RECORD: Shape = {
    **_CELL,
    "single?": {"train": [NUMBER], "test": [NUMBER], "best": COUNT, "best_equivalent": _OUTCOMES},
    "pooled": {"test": NUMBER, "atoms": COUNT, "equivalent": _OUTCOMES},
    "true_atoms": COUNT,
    "mean_test?": NUMBER,
}
"""`pooled` is the model that `learn` returns. Records of exact learning have no restarts, so neither `single` nor
`mean_test`."""
LIFTED_RECORD: Shape = {
    **_CELL,
    "single?": {"train": [NUMBER]},
    "pooled": {"test": NUMBER, "predicates": COUNT, "equivalent": {...: _OUTCOMES}},
}
CHECKED = 1_000
"""The number of test traces for which a verdict is sought."""


def reproduce(
    experiment: str,
    out: Path,
    *,
    domains: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    draws: int = 1,
    jobs: int = 1,
    methods: Sequence[str] = ("neural",),
    symmetry: bool = False,
    drawn_only: bool = False,
    protocol: str = "early",
    steps: int | None = None,
    limit: float | None = None,
    progress: Callable[[int, int, Record], None] | None = None,
) -> list[Record]:
    """Runs an experiment's cells that `out`/EXPERIMENT.jsonl does not hold yet; returns the records of all of them.

    Runs `jobs` cells at a time, with more than one each in its own process, with one thread. `methods` are some of
    `METHODS`, all on the same traces; with `symmetry` these are joined by their copies with objects permuted. With
    `drawn_only` only equivalence on drawn traces is decided, which is faster. The protocol `early` ends a restart after
    20,000 steps, or when its accuracy no longer rises; `paper` after 100,000 alone, as the paper does. Both end it once
    it keeps classifying all training traces correctly. `steps` is another limit, `limit` one in seconds for the methods
    `auto` and `hybrid`. Raises `ValueError` for an unknown
    experiment, method or protocol, for a method that the experiment cannot use, and for a domain that it does not
    allow.
    """
    if unknown := [name for name in methods if name not in METHODS]:
        raise ValueError(f"unknown method {unknown[0]!r}: choices: {', '.join(METHODS)}")
    if experiment in ("noise", "damage") and not set(methods) <= set(FROM_NOISE):
        raise ValueError(
            f"{experiment}: without negative traces, noise cannot be distinguished from rare actions: choose among the "
            "methods " + ", ".join(FROM_NOISE)
        )
    if experiment == "lifted" and (ground := [name for name in methods if name in LEARN_GROUND]):
        raise ValueError(f"lifted: the method {ground[0]} learns ground models: choose exact")
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}: choices: {', '.join(PROTOCOLS)}")
    if experiment not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {experiment!r}: choices: {', '.join(EXPERIMENTS)}")
    known = EXPERIMENTS[experiment]
    chosen = tuple(domains or known.domains)
    for name in chosen:
        domain(name)
        if name not in known.allowed and known.allowed:
            raise ValueError(f"{experiment} has the domains {', '.join(known.allowed)}, not {name}")
    how = PROTOCOLS[protocol] if steps is None else {**PROTOCOLS[protocol], "steps": steps}
    cells = [
        replace(cell, method=method, symmetry=symmetry, drawn_only=drawn_only, **(how if method == "neural" else {}))
        for cell in known.cells(chosen, tuple(sizes or known.sizes), draws)
        for method in methods
    ]
    cells = [replace(cell, limit=limit) if cell.method in LEARN_GROUND else cell for cell in cells]
    wanted = {cell.name for cell in cells}
    shape = LIFTED_RECORD if experiment == "lifted" else RECORD
    with Ledger(out / f"{experiment}.jsonl", "reproduction", {"experiment": experiment}, shape) as ledger:
        done = {record["cell"] for record in ledger.records}
        todo = [cell for cell in cells if cell.name not in done]
        for record in _run_all(todo, jobs):
            ledger.add(record)
            if progress is not None:
                progress(len([each for each in ledger.records if each["cell"] in wanted]), len(cells), record)
        return [record for record in ledger.records if record["cell"] in wanted]


def _run_all(cells: Sequence[Cell], jobs: int) -> Iterable[Record]:
    """Yields records as they are finished."""
    if jobs <= 1:
        for cell in cells:
            yield run_cell(cell)
        return
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1, initializer=end_with, initargs=(os.getpid(),)
    ) as workers:
        try:
            waiting: set[Future[Record]] = {workers.submit(run_cell, cell) for cell in cells}
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for one in ended:
                    yield one.result()
        except BaseException as error:
            # Running cells would be finished first, and their records lost: nobody reads them any more. Cells that a
            # process may already hold cannot be cancelled, and the successor of a process that ends would take them:
            # hence the loop. All processes have ended when the pool is left.
            waiting = {one for one in waiting if not one.cancel()}
            while waiting:
                for process in {*multiprocessing.active_children()} - others:
                    process.terminate()
                waiting = wait(waiting, 0.1).not_done
            if isinstance(error, BrokenProcessPool):
                raise ValueError(
                    "a learning process was killed, probably for lack of memory: the same command continues with the "
                    "unfinished cells; give it fewer --jobs"
                ) from None
            raise


def run_cell(cell: Cell) -> Record:
    """Draws traces, learns and evaluates."""
    world = domain(cell.domain)
    given = traces(world, cell.size, cell.max_length, cell.draw)
    if cell.noise:
        given = with_noise(given, cell.noise, cell.noise_of, cell.draw)
    if cell.symmetry:
        given = symmetric(given).traces
    if cell.method == "positive-only":
        given = given.valid_only()
    if cell.method != "neural":
        measured = _run_exact(cell, world, given)
    elif cell.atoms == "lifted":
        measured = _run_lifted(cell, world, given)
    else:
        measured = _run_neural(cell, world, given)
    return {"cell": cell.name, **asdict(cell), **measured}


L = TypeVar("L")


def _timed(learner: Callable[[], L]) -> tuple[L, Record]:
    """What `learner` returns, with wall-clock and CPU seconds, and the MiB by which it raised the peak memory of this
    process."""
    memory, began, worked = peak_memory(), time.monotonic(), time.process_time()
    learned = learner()
    spent = {"seconds": round(time.monotonic() - began, 2), "cpu_seconds": round(time.process_time() - worked, 2)}
    most = peak_memory()
    return learned, {**spent, "memory": None if most is None or memory is None else round(most - memory, 1)}


def _test_traces(cell: Cell) -> Traces:
    return _drawn_test_traces(cell.domain, cell.draw, TEST)


@lru_cache(maxsize=4)  # drawing them takes longer than exact learning, and all sizes and methods share them
def _drawn_test_traces(name: str, draw: int, count: int) -> Traces:
    return traces(domain(name), count, TEST_LENGTH, 1000 + draw, negatives=0.5, split="test")


def _run_neural(cell: Cell, world: Domain, given: Traces) -> Record:
    import torch

    torch.set_num_threads(1)
    atoms = len(world.model.atoms) if cell.atoms == "true" else None
    learned, spent = _timed(lambda: learn_neural(given, _settings(cell, atoms=atoms, noise=cell.noise)))
    judge = Judge(_test_traces(cell))

    def tested(heads: Heads) -> float:
        verdicts = judge.verdicts(heads)
        return float(judge.right(verdicts.alarms, verdicts.catches).mean())

    restarts = learned.report["restarts"]
    alone = [Heads.of_theta(theta) for theta in learned.theta]
    accuracy = [tested(heads) for heads in alone]
    best = learned.report["best_restart"]
    exact = [_equivalence(cell, heads.only(heads.unique()).model(given.actions), world) for heads in alone]
    return {
        "single": {
            "train": [each["accuracy"] for each in restarts],
            "test": accuracy,
            "steps": [each["steps"] for each in restarts],
            "end": [each["end"] for each in restarts],
            "best": best,
            "best_equivalent": exact[best],
            "equivalent": {notion: sum(each[notion] == "equivalent" for each in exact) for notion in exact[0]},
        },
        "pooled": {
            "used": learned.report["pooled"],
            "train": learned.report["training_accuracy"],
            "test": tested(Heads.of_model(learned.model)),
            "atoms": len(learned.model.atoms),
            "pool": learned.report["pool"],
            **_proven(cell, learned.model, world),
        },
        "true_atoms": len(world.model.atoms),
        **spent,
        "mean_test": float(np.mean(accuracy)),
    }


def _run_lifted(cell: Cell, world: Domain, given: Traces) -> Record:
    import torch

    torch.set_num_threads(1)
    learned, spent = _timed(lambda: learn_lifted(given, _settings(cell)))
    restarts = learned.report["restarts"]
    return {
        "single": {"train": [each["accuracy"] for each in restarts], "end": [each["end"] for each in restarts]},
        "pooled": _schemas(cell, world, given, learned),
        **spent,
    }


def _run_exact(cell: Cell, world: Domain, given: Traces) -> Record:
    """Every method but `neural`, ground or lifted. `certainty`, for the exact methods on noise-free traces, is what the
    training traces by themselves say about test traces."""
    lifted = cell.atoms == "lifted"
    found: Record
    if lifted:
        others: dict[str, Callable[[Traces], LiftedModel]] = {"sift": learn_lifted_sift, "locm": learn_locm}
        schemas, spent = _timed(lambda: others.get(cell.method, learn_lifted_exact)(given))
        unfinished = schemas.report.get("unfinished", [])
        found = {"pooled": {**_schemas(cell, world, given, schemas), "unfinished": unfinished}}
    else:
        learner = _ground_learner(cell)
        learned, spent = _timed(lambda: learner(given))
        found = {
            "pooled": {
                "train": learned.report["training_accuracy"],
                "test": trace_accuracy(learned.model, _test_traces(cell))["accuracy"],
                "atoms": len(learned.model.atoms),
                "unfinished": learned.report.get("unfinished", []),
                **_proven(cell, learned.model, world),
            },
            "true_atoms": len(world.model.atoms),
        }
    if cell.method in ("exact", "positive-only") and not cell.noise:
        seen = Seen.of(given, arity=ARITY if lifted else None)
        checked = check(seen, _test_traces(cell).only(range(min(CHECKED, TEST))))
        found["certainty"] = checked.against_labels()
    return {**found, **spent}


def _ground_learner(cell: Cell) -> Callable[[Traces], Learned]:
    """The function that learns a ground model by the cell's method."""
    if cell.method in (*LEARN_GROUND, "locm"):
        limit = cell.limit if cell.method in LEARN_GROUND else None
        return lambda given: learn(given, _settings(cell), method=cell.method, seconds=limit)
    if cell.method == "sift":
        return learn_sift
    return learn_noisy if cell.noise else learn_exact


def _schemas(cell: Cell, world: Domain, given: Traces, learned: LiftedModel) -> Record:
    """Learned schemas on test traces, and on larger instances."""
    others = [domain(name) for name in LARGER.get(cell.domain, ())]
    return {
        "train": learned.report["training_accuracy"],
        "test": trace_accuracy(learned.ground(given.actions), _test_traces(cell))["accuracy"],
        "predicates": learned.report["predicates"],
        "equivalent": {
            each.name: _equivalence(cell, learned.ground(each.model.names), each) for each in (world, *others)
        },
    }


def _proven(cell: Cell, model: ActionModel, world: Domain) -> Record:
    """Equivalence with the true model, and the simplest equivalent model."""
    outcome = _equivalence(cell, model, world)
    if cell.drawn_only:
        return {"equivalent": outcome}
    return {"equivalent": outcome, "simplest": _simplest(model, world, outcome["drawn_traces"])}


def _settings(cell: Cell, **more: Any) -> Settings:
    """The settings of training."""
    if not cell.stall:
        more["stall"] = None
    return Settings(restarts=cell.restarts, seed=cell.draw, steps=cell.steps, **more)


def _simplest(model: ActionModel, world: Domain, like: str) -> dict[str, float]:
    """Size of the simplest equivalent model, and its precision and recall against the true one."""
    notion: Any = "drawn traces" if like == "equivalent" else "definition 1"
    found = simplify(model, reference=world, notion=notion, seconds=60)
    scores = syntactic(found.model, world.model)
    return {
        "atoms": found.atoms[1],
        "entries": found.entries[1],
        **{key: scores[key] for key in ("precision", "recall")},
    }


def _equivalence(cell: Cell, model: ActionModel, world: Domain) -> dict[str, str]:
    """The outcome for each notion wanted."""
    return {
        notion: verify(model, world, **how, seconds=20).outcome
        for notion, how in NOTIONS.items()
        if notion == "drawn_traces" or not cell.drawn_only
    }
