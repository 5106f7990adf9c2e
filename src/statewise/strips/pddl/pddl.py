"""PDDL files: reads and grounds a domain with a problem; writes an action model, which needs the extra `planning`.

problem = read_problem(Path("domain.pddl"), Path("problem.pddl"))
write_pddl(problem.domain.model, Path("ground.pddl"), "ground", problem=problem)
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statewise.runtime.durable import write_atomically
from statewise.runtime.messages import to_install
from statewise.strips.model.model import ActionModel, Atoms, bits
from statewise.strips.trace_data.domains import Domain
from statewise.strips.trace_data.trace_files import text_of

OTHER_NAMES = "; names in this file, and in the model where they differ"
"""The first line of a written domain that has other names than its model. A line for each follows: `; HERE = THERE`."""


@dataclass(frozen=True)
class Problem:
    """A planning task: an initial state and a goal."""

    domain: Domain
    initial: Atoms
    """The atoms that are initially true."""
    goal: Atoms
    """The atoms that must be true at the end."""
    files: tuple[Path, Path] | None = None
    """The domain and problem files that it was read from."""

    def solved_by(self, plan: Sequence[str]) -> bool:
        """Whether each action of the plan is applicable in turn and the goal holds at the end."""
        model, state = self.domain.model, self.initial
        for name in plan:
            number = model.number.get(name)
            if number is None or model.actions[number].pre & ~state:
                return False
            state = model.result(state, number)
        return not self.goal & ~state


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppresses warnings of unified-planning about a predicate and an action with the same name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_domain(domain_path: str | Path, problem_path: str | Path) -> Domain:
    """The domain of `read_problem`: ground, starting in the initial state of the problem. A goal that STRIPS cannot
    express is left out. Raises what else `read_problem` raises."""
    return _read(Path(domain_path), Path(problem_path), any_goal=True).domain


def read_problem(domain_path: str | Path, problem_path: str | Path) -> Problem:
    """Reads and grounds a PDDL domain with one of its problems.

    Actions are written `schema object object` and atoms `predicate object`, in lower case, as in `domains`.
    Quantifiers, conditional effects, disjunctions and negative conditions are compiled away (see `grounding.ground`
    for the names); action costs are ignored; static atoms, and actions and atoms unreachable from the initial state
    by the h^2 bound, are dropped. Raises `ValueError`, with file and line, for malformed PDDL and for features that
    cannot be grounded to STRIPS; `OSError` for a missing file.
    """
    return _read(Path(domain_path), Path(problem_path), any_goal=False)


def _read(domain_path: Path, problem_path: Path, *, any_goal: bool) -> Problem:
    from statewise.strips.pddl.grounding import NotStrips, ground
    from statewise.strips.pddl.parsing import parse_task

    try:
        task = parse_task(domain_path, text_of(domain_path), problem_path, text_of(problem_path))
        grounded = ground(task, any_goal=any_goal)
    except NotStrips as error:
        path = domain_path if error.in_domain else problem_path
        raise ValueError(f"{path}:{error.line}: {error}") from None
    except RecursionError:
        raise ValueError(f"{domain_path}, {problem_path}: nested too deeply to be read") from None
    domain = Domain(str(problem_path), grounded.model, (grounded.initial,), grounded.always)
    return Problem(domain, grounded.initial, grounded.goal, (domain_path, problem_path))


@_quietly()
def validated(files: tuple[Path, Path], plan: Sequence[str]) -> bool | None:
    """Whether the validator of unified-planning accepts a plan for a PDDL problem: independent of our parser and
    grounding.

    Actions have the names that `read_problem` gives. None if unified-planning cannot read the files: it does not
    support `either`. Raises `ValueError` without the extra and for an action that the domain lacks, `OSError` for a
    missing file.
    """
    environment = quiet_environment()
    from unified_planning.io import PDDLReader

    texts = [text_of(path) for path in files]
    try:
        parsed = PDDLReader(environment).parse_problem_string(*texts)
    except Exception:  # it raises syntax errors, its own classes, assertions and look-up errors
        return None
    from unified_planning.plans import ActionInstance, SequentialPlan

    steps = []
    for name in plan:
        schema, *objects = name.split(" ")
        try:
            action = parsed.action(schema.partition("#")[0])
            arguments = [environment.expression_manager.ObjectExp(parsed.object(each)) for each in objects]
        except Exception as error:  # unified-planning's own exception classes
            raise ValueError(f"{name!r} is not an action of {files[0]}: {error}") from None
        steps.append(ActionInstance(action, tuple(arguments)))
    parsed.clear_quality_metrics()
    with environment.factory.PlanValidator(problem_kind=parsed.kind) as validator:
        return bool(validator.validate(parsed, SequentialPlan(steps, environment)))


@_quietly()
def write_pddl(
    model: ActionModel,
    path: Path,
    domain_name: str,
    *,
    problem: Problem | None = None,
    problem_path: Path | None = None,
) -> None:
    """Writes a ground PDDL domain: atoms become predicates without arguments, actions have no parameters.

    Names are made valid in PDDL (`on b1 b2` becomes `on-b1-b2`) and unique; a comment lists the changes. With
    `problem`, which must have the model's atoms, its initial state and goal are written to `problem_path` (default:
    beside the domain, `NAME-problem.pddl`). Raises `ValueError` for other atoms, and without the extra.
    """
    if problem is not None and problem.domain.model.atoms != model.atoms:
        raise ValueError("the problem's atoms are not those of the model")
    quiet_environment()  # raises if the extra is missing, before the imports below fail
    used: set[str] = set()
    atoms, actions = (safe_names(names, used) for names in (model.atoms, model.names))
    initial, goal = (problem.initial, problem.goal) if problem is not None else (0, 0)
    built = as_planning_problem(model, initial, goal, safe_names([domain_name], set())[0], atoms, actions)
    from unified_planning.io import PDDLWriter

    writer = PDDLWriter(built)
    originals = zip([*atoms, *actions], [*model.atoms, *model.names])
    changed = [
        re.sub(r"[\r\n]+", " ", f"; {safe} = {name}")  # a line break would end the comment
        for safe, name in originals
        if safe != name
    ]
    table = [OTHER_NAMES, *changed] if changed else []
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "\n".join([*table, _complete(writer.get_domain())]).encode())
    if problem is not None:
        target = problem_path or path.with_name(f"{path.stem}-problem.pddl")
        write_atomically(target, writer.get_problem().encode())


def as_planning_problem(
    model: ActionModel, initial: Atoms, goal: Atoms, name: str, atoms: Sequence[str], actions: Sequence[str]
) -> Any:
    """A model as a `unified_planning` problem, with new names for its atoms and actions. Needs the extra `planning`."""
    environment = quiet_environment()
    from unified_planning.model import Fluent, InstantaneousAction
    from unified_planning.model import Problem as PlanningProblem

    truth = environment.type_manager.BoolType()
    built = PlanningProblem(name, environment=environment)
    fluents = [Fluent(each, truth, environment=environment) for each in atoms]
    for place, fluent in enumerate(fluents):
        built.add_fluent(fluent, default_initial_value=bool(initial >> place & 1))
    for action, called in zip(model.actions, actions):
        made = InstantaneousAction(called, _env=environment)
        for place in bits(action.pre):
            made.add_precondition(fluents[place])
        for place in bits(action.add):
            made.add_effect(fluents[place], True)
        for place in bits(action.delete):
            made.add_effect(fluents[place], False)
        built.add_action(made)
    for place in bits(goal):
        built.add_goal(fluents[place])
    return built


def quiet_environment() -> Any:
    """The global environment of unified-planning, the only one that its compilers use, without printed credits. Raises
    `ValueError` without the extra."""
    try:
        from unified_planning.environment import get_environment
    except ImportError:
        raise ValueError(f"reading and writing PDDL needs unified-planning: {to_install('planning')}") from None
    environment = get_environment()
    environment.credits_stream = None
    environment.error_used_name = False  # a predicate and an action may share a name
    return environment


def _complete(domain: str) -> str:
    """The text of a domain with the empty preconditions and effects that unified-planning omits: some planners cannot
    parse actions without them."""
    begin, *actions = domain.rstrip().removesuffix(")").rstrip().split("\n (:action ")
    whole = []
    for action in actions:
        if ":precondition" not in action:
            action = action.replace(":parameters ()", ":parameters ()\n  :precondition (and)", 1)
        if ":effect" not in action:
            action = action.removesuffix(")") + "\n  :effect (and))"
        whole.append(action)
    return "\n (:action ".join([begin, *whole]) + "\n)\n"


def safe_names(names: Sequence[str], used: set[str]) -> list[str]:
    """Unique names that are valid in PDDL and not in `used`, to which they are added."""
    from unified_planning.io.pddl_writer import PDDL3_KEYWORDS, PDDL_PLUS_KEYWORDS

    reserved = PDDL3_KEYWORDS | PDDL_PLUS_KEYWORDS | {"object", "total-cost"}
    made = []
    for name in names:
        base = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
        if not re.match(r"[a-z]", base):
            base = f"x-{base}".strip("-")
        safe, number = base, 1
        while safe in used or safe in reserved:
            number += 1
            safe = f"{base}-{number}"
        used.add(safe)
        made.append(safe)
    return made
