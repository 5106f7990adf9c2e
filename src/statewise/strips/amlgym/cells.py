"""One cell of the comparison: a method, a domain of AMLGym, and a number of trajectories.

| method | what it is given |
| --- | --- |
| `actions` | the actions of the trajectories |
| `names` | the same; its predicates are then named after those of the true domain that they match best |
| `half` | half of the atoms of each state, drawn at random, and the declarations of the domain |
| `full` | all atoms of each state, and the declarations of the domain |
| `noisy` | the same as `full`, with a twentieth of all atoms wrong, and a twentieth of the actions replaced |
| `walks` | the actions of our own walks in the third problem, `WALKS` for each trajectory that others get |
| SAM, OffLAM, NOLAM, ROSAME | the same as `full`, through AMLGym's adapters |
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

from statewise.runtime.messages import to_install
from statewise.strips.amlgym.exactness import exact_on
from statewise.strips.amlgym.measures import plain_actions, predictive, read_task, schemas_of_actions, shares, syntactic
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.model.schemas import Schema, ground
from statewise.strips.model.states import Observed, State, States
from statewise.strips.observed.learning import Names, learn_observed
from statewise.strips.pddl.pddl import read_domain, read_problem
from statewise.strips.pddl.signature import Declared, domain_text, read_declared
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.trace_data.state_files import joined_files
from statewise.strips.verification.verification import verify

OURS = ("actions", "names", "half", "full")
MORE = ("noisy", "walks")
"""Methods of ours that do not learn from AMLGym's trajectories as they are."""
RIVALS = ("SAM", "OffLAM", "NOLAM", "ROSAME")
PLANNER = {"fast_downward_search_config": "let(hff,ff(),let(hcea,cea(),lazy_greedy([hff,hcea],preferred=[hff,hcea])))"}
"""The search of Fast Downward that `amlgym.metrics` uses."""
DAMAGE = 0.05
"""The share of wrong atoms, and that of replaced actions, of `noisy`."""
WALKS, WALK_LENGTH, WALKED = 30, 80, 2
"""Walks of `walks` for each trajectory, the most actions of each, and the place of their problem: many domains have
problems with only one object of some sort before it."""
FULLY_TESTED = 10
"""The number of trajectories with which problem solving is measured, too."""


def folder_of_amlgym() -> Path:
    """Where AMLGym keeps domains, trajectories, problems and states. Raises `ValueError` if it is not installed."""
    found = importlib.util.find_spec("amlgym")
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"this benchmark needs AMLGym: {to_install('amlgym')}")
    return Path(next(iter(found.submodule_search_locations))) / "benchmarks"


def domains(base: Path) -> list[str]:
    """The domains that have trajectories, sorted."""
    return sorted(each.name for each in (base / "trajectories" / "learning").iterdir() if not each.name.startswith("_"))


def numbered(folder: Path) -> list[Path]:
    """The files of a folder that are not empty and whose names begin with a number, by number."""
    files = [each for each in folder.iterdir() if each.name[:1].isdigit() and each.stat().st_size > 1]
    return sorted(files, key=lambda each: int(each.name.split("_")[0]))


def run_cell(domain: str, method: str, trajectories: int, options: dict[str, Any]) -> dict[str, Any]:
    """Learns, and measures what was learned; `seconds` of the row are those of the processor for learning.

    `options`: `seconds` for learning, `verify_seconds`, `states` (the most test states of each problem), `problems` to
    solve and `planner_seconds` for each. Raises `ValueError` for what cannot be read or learned from, and whatever the
    methods of others raise."""
    base = folder_of_amlgym()
    true = base / "domains" / f"{domain}.pddl"
    files = numbered(base / "trajectories" / "learning" / domain)[:trajectories]
    row: dict[str, Any] = {"domain": domain, "method": method, "trajectories": len(files)}
    with tempfile.TemporaryDirectory() as scratch:
        learned = Path(scratch) / "learned.pddl"
        begun = time.process_time()
        schemas: dict[str, Schema] | None = None
        if method in RIVALS:
            learn = _rival(method)  # imports the libraries, which is not counted
            begun = time.process_time()
            learned.write_text(learn(str(true), list(map(str, files)), scratch), encoding="utf-8")
        elif method == "walks":
            return row | _from_walks(base, domain, trajectories, options)
        elif method in ("actions", "names"):
            schemas = _from_actions(files, options["seconds"])
        else:
            declared = read_declared(true)
            observed = _together(files)
            seed = zlib.crc32(domain.encode())
            if method in ("half", "noisy"):
                atoms = _atoms(base, true, files, observed, declared)
                observed = halved(observed, atoms, seed) if method == "half" else damaged(observed, atoms, seed)
                begun = time.process_time()
            names = Names(declared.constants, declared.fits, tuple(declared.predicates))
            model = learn_observed(
                observed, hidden=False, names=names, noisy=method == "noisy", seconds=options["seconds"]
            )
            if method == "noisy":
                row["noise"] = model.report["states"]["noise"]
            known = set(observed_schemas(observed))
            learned.write_text(
                domain_text(declared, {name: each for name, each in model.schemas.items() if name in known}),
                encoding="utf-8",
            )
        row["seconds"] = round(time.process_time() - begun, 3)
        problems = numbered(base / "problems" / "learning" / domain)
        row |= _measured(learned, true, problems, schemas, method, options)
        if learned.is_file():
            row["pddl"] = learned.read_text(encoding="utf-8")
            row |= _predicted(base, domain, learned, true, options["states"])
            if trajectories >= FULLY_TESTED and options["problems"]:
                row |= _solved(base, domain, learned, true, options)
    return row


def _atoms(base: Path, true: Path, files: Sequence[Path], observed: Observed, declared: Declared) -> list[list[str]]:
    """All ground atoms of the problem of each trajectory; of one without a problem (some of AMLGym's files are empty),
    all those of the objects that its states show at places of the same types."""
    folder = base / "problems" / "learning" / true.stem
    atoms = []
    for file, states in zip(files, observed.states):
        problem = folder / f"{file.name.removesuffix('_traj')}_prob.pddl"
        if problem.is_file() and problem.stat().st_size > 1:
            objects = read_task(true, problem).objects
        else:
            objects = _objects(states, declared)
        atoms.append(atoms_of(objects, declared))
    return atoms


def _objects(states: States, declared: Declared) -> dict[str, frozenset[str]]:
    """The objects of states, each with the types of the places where it stands."""
    objects: dict[str, frozenset[str]] = {}
    for atom in sorted({atom for state in states if state is not None for atom in state.true}):
        name, *named = atom.split()
        for each, types in zip(named, declared.argument_types[name]):
            objects[each] = objects.get(each, frozenset()) | types
    return objects


def observed_schemas(observed: Observed) -> set[str]:
    """The schemas that happened."""
    return {name.split()[0] for name in observed.traces.actions}


def _together(files: Sequence[Path]) -> Observed:
    """Several trajectories as one, each in a file of its own."""
    return joined_files(files, "full")


def atoms_of(objects: Mapping[str, frozenset[str]], declared: Declared) -> list[str]:
    """All ground atoms over objects with these types, sorted."""
    return sorted(
        " ".join((name, *chosen))
        for name, places in declared.argument_types.items()
        for chosen in product(*([each for each, of in objects.items() if of & types] for types in places))
    )


def halved(observed: Observed, atoms: Sequence[Sequence[str]], seed: int, share: float = 0.5) -> Observed:
    """The same traces with a share of the atoms of each state, drawn at random, true and false ones alike. `atoms` are
    all ground atoms of each trace."""
    drawn = random.Random(seed)
    everything = []
    for states, every in zip(observed.states, atoms):
        seen: list[State | None] = []
        for state in states:
            shown = [atom for atom in every if drawn.random() < share]
            true = state.true if state is not None else frozenset[str]()
            seen.append(
                State(
                    frozenset(atom for atom in shown if atom in true),
                    frozenset(atom for atom in shown if atom not in true),
                )
            )
        everything.append(tuple(seen))
    return Observed(observed.traces, tuple(everything))


def damaged(
    observed: Observed, atoms: Sequence[Sequence[str]], seed: int, wrong: float = DAMAGE, misread: float = DAMAGE
) -> Observed:
    """The same traces with a share of the atoms of each state wrong, true and false ones alike, and a share of the
    actions replaced by another ground action. `atoms` are all ground atoms of each trace, whose predicates stay
    complete."""
    drawn = random.Random(seed)
    traces, count = observed.traces, len(observed.traces.actions)
    rows = tuple(
        tuple(
            (action + drawn.randrange(1, count)) % count if count > 1 and drawn.random() < misread else action
            for action in row
        )
        for row in traces.rows
    )
    states: list[tuple[State | None, ...]] = []
    for each, every in zip(observed.states, atoms):
        seen: list[State | None] = []
        for state in each:
            true = state.true if state is not None else frozenset[str]()
            flipped = frozenset(atom for atom in every if drawn.random() < wrong)
            seen.append(State(true ^ flipped) if state is not None else None)
        states.append(tuple(seen))
    return Observed(replace(traces, rows=rows), tuple(states), observed.complete)


def _from_actions(files: Sequence[Path], seconds: float) -> dict[str, Schema]:
    return learn_lifted_exact(_together(files).traces, seconds=seconds).schemas


def _from_walks(base: Path, domain: str, trajectories: int, options: dict[str, Any]) -> dict[str, Any]:
    """What a row says of schemas learned from walks: exact on the problem of the walks, and in `problems` on others."""
    true = base / "domains" / f"{domain}.pddl"
    problems = numbered(base / "problems" / "learning" / domain)
    walked = problems[min(WALKED, len(problems) - 1)]
    row: dict[str, Any] = {"problems": {}}
    world = read_domain(true, walked)
    walks = traces(world, WALKS * trajectories, WALK_LENGTH, 1, negatives=0.0, start="both", aimed=True)
    begun = time.process_time()
    model = learn_lifted_exact(walks, seconds=options["seconds"])
    row["seconds"] = round(time.process_time() - begun, 3)
    row |= {"walked": walked.name, "walks": len(walks), "actions": len(world.model.names)}
    row |= {key: model.report[key] for key in ("predicates", "unfinished", "few_objects", "on_constants")}
    row["open"] = len(model.report["open"])
    for problem in dict.fromkeys([walked, problems[0], problems[len(problems) // 2]]):
        world = read_domain(true, problem)
        learned = ground(model.schemas, world.model.names)
        verdict = verify(learned, world, drawn_only=True, seconds=options["verify_seconds"])
        row["problems"][problem.name] = verdict.outcome
        if problem == walked:
            row |= {"exact": verdict.outcome, "proven": verdict.proven}
        if verdict.counterexample is not None and "counterexample" not in row:
            row["counterexample"] = list(verdict.counterexample)[-4:]
            row["at_fault"] = [verdict.accepted_by, verdict.head]
    return row


def _rival(method: str) -> Any:
    """A function that learns by one of AMLGym's adapters, which write to the working directory."""
    import contextlib
    import io
    import logging

    logging.disable(logging.CRITICAL)
    from amlgym.algorithms import get_algorithm

    adapter = get_algorithm(method)

    def learn(domain: str, files: list[str], scratch: str) -> str:
        before = os.getcwd()
        os.chdir(scratch)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                text: str = adapter.learn(domain, files)
            return text
        finally:
            os.chdir(before)

    return learn


def _measured(
    learned: Path,
    true: Path,
    problems: Sequence[Path],
    schemas: dict[str, Schema] | None,
    method: str,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Exactness on a few problems, and syntactic precision and recall. A learned domain without names is named here."""
    chosen = list(dict.fromkeys([*problems[:2], problems[len(problems) // 2]]))
    theirs = plain_actions(read_task(true, chosen[0]))
    row: dict[str, Any] = {"problems": {}}
    outcomes = row["problems"]
    for problem in chosen:
        if schemas is None:
            verdict = exact_on(learned, true, problem, seconds=options["verify_seconds"])
        else:
            world = read_domain(true, problem)
            verdict = verify(
                ground(schemas, world.model.names), world, drawn_only=True, seconds=options["verify_seconds"]
            )
        outcomes[problem.name] = verdict.outcome
        if verdict.counterexample is not None and "counterexample" not in row:
            row["counterexample"] = list(verdict.counterexample)[-4:]
            row["at_fault"] = [verdict.accepted_by, verdict.head]
    if schemas is not None and not schemas.keys() >= theirs.keys():
        outcomes["all"] = "different"
    row["exact"] = next((each for each in ("different", "unknown") if each in outcomes.values()), "equivalent")
    if schemas is not None:
        row["predicates"] = len({one[0] for each in schemas.values() for part in each.parts for one in part})
        if method == "names":
            declared = read_declared(true)
            learned.write_text(
                domain_text(declared, named(schemas, schemas_of_actions(theirs), declared)), encoding="utf-8"
            )
    if learned.is_file():
        mine = plain_actions(read_task(learned, chosen[0]))
        row |= {name: round(value, 4) for name, value in syntactic(mine, theirs).items()}
    return row


def named(schemas: dict[str, Schema], true: dict[str, Schema], declared: Declared) -> dict[str, Schema]:
    """The schemas with their predicates named, and their arguments ordered, after those of the true domain with which
    they share most effects, less those that they do not share; predicates without a match are left out."""

    def uses(of: dict[str, Schema], predicate: str, order: Sequence[int]) -> set[tuple[str, str, tuple[int, ...]]]:
        return {
            (name, which, tuple(places[at] for at in order))
            for name, schema in of.items()
            for which, part in zip(("pre", "add", "delete"), schema.parts)
            for one, places in part
            if one == predicate
        }

    mine = {one[0]: len(one[1]) for each in schemas.values() for part in each.parts for one in part}
    scored = []
    for learned, arity in mine.items():
        for name, wanted in declared.predicates.items():
            if wanted != arity:
                continue
            theirs = uses(true, name, range(arity))
            for order in permutations(range(arity)):
                own = uses(schemas, learned, order)
                scored.append((len(own & theirs) - len(own ^ theirs) / 2, learned, name, order))
    chosen: dict[str, tuple[str, tuple[int, ...]]] = {}
    for score, learned, name, order in sorted(scored, reverse=True):
        if score > 0 and learned not in chosen and name not in {each for each, _ in chosen.values()}:
            chosen[learned] = name, order
    return {
        name: Schema(
            *(
                frozenset(
                    (chosen[one][0], tuple(places[at] for at in chosen[one][1]))
                    for one, places in part
                    if one in chosen
                )
                for part in schema.parts
            )
        )
        for name, schema in schemas.items()
    }


def _predicted(base: Path, domain: str, learned: Path, true: Path, most: int) -> dict[str, float]:
    """Predictive power in at most `most` states of each test problem, evenly spaced."""
    content = json.loads((base / "states" / "predictive_power" / domain / "test_states.json").read_text("utf-8"))
    counts = []
    for name, states in content.items():
        problem = base / "problems" / "predictive_power" / domain / name
        if not problem.is_file() or not states:
            continue
        every = states[:: max(1, len(states) // most)][:most] if most else []
        parsed = [frozenset(tuple(atom.strip("()").split()) for atom in state) for state in every]
        task = read_task(true, problem)
        counts.append(predictive(plain_actions(read_task(learned, problem)), plain_actions(task), task, parsed))
    return {name: round(value, 4) for name, value in shares(counts).items()}


def _solved(base: Path, domain: str, learned: Path, true: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The share of problems that are solved with the learned domain, and of those with a plan that is not valid."""
    import unified_planning as planning
    from unified_planning.io import PDDLReader
    from unified_planning.shortcuts import OneshotPlanner

    planning.shortcuts.get_environment().credits_stream = None
    problems = numbered(base / "problems" / "solving" / domain)[: options["problems"]]
    solved = false = 0
    for problem in problems:
        try:
            task = PDDLReader().parse_problem(str(learned), str(problem))
            with OneshotPlanner(name="fast-downward", params=PLANNER) as planner:
                plan = planner.solve(task, timeout=options["planner_seconds"]).plan
        except Exception:  # unified-planning's own exception classes, for domains that it cannot read or solve
            plan = None
        if plan is None:
            continue
        steps = [" ".join((step.action.name, *map(str, step.actual_parameters))) for step in plan.actions]
        if read_problem(true, problem).solved_by(steps):
            solved += 1
        else:
            false += 1
    return {"solved": solved / len(problems), "false_plans": false / len(problems)} if problems else {}
