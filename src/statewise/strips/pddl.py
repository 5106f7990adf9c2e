"""PDDL files: reads and grounds a domain with a problem; writes an action model. Needs the extra `planning`.

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

from statewise.durable import write_atomically
from statewise.strips.domains import Domain
from statewise.strips.model import ActionModel, Atoms, bits

SECTIONS = {
    ":derived": "derived predicates",
    ":durative-action": "durative actions",
    ":process": "processes",
    ":event": "events",
    ":constraints": "trajectory constraints",
    ":task": "hierarchical tasks",
    ":method": "hierarchical tasks",
    ":htn": "hierarchical tasks",
}
"""Sections without an equivalent in STRIPS; unified-planning cannot parse some of them."""

HANDLED = {
    *("ACTION_BASED", "FLAT_TYPING", "HIERARCHICAL_TYPING", "EQUALITIES", "NEGATIVE_CONDITIONS"),
    *("DISJUNCTIVE_CONDITIONS", "EXISTENTIAL_CONDITIONS", "UNIVERSAL_CONDITIONS", "CONDITIONAL_EFFECTS"),
    *("FORALL_EFFECTS", "UNDEFINED_INITIAL_SYMBOLIC"),
    # costs do not affect which actions are applicable
    *("ACTIONS_COST", "PLAN_LENGTH", "STATIC_FLUENTS_IN_ACTIONS_COST", "INT_NUMBERS_IN_ACTIONS_COST"),
    *("REAL_NUMBERS_IN_ACTIONS_COST", "INT_FLUENTS", "REAL_FLUENTS", "NUMERIC_FLUENTS", "UNDEFINED_INITIAL_NUMERIC"),
    *("CONTINUOUS_NUMBERS", "DISCRETE_NUMBERS"),
}
"""unified-planning's names of features that can be grounded to STRIPS or ignored."""

FEATURES = {
    "SIMPLE_NUMERIC_PLANNING": "numeric conditions or effects",
    "GENERAL_NUMERIC_PLANNING": "numeric conditions or effects",
    "INCREASE_EFFECTS": "numeric conditions or effects",
    "DECREASE_EFFECTS": "numeric conditions or effects",
    "FLUENTS_IN_NUMERIC_ASSIGNMENTS": "numeric conditions or effects",
    "STATIC_FLUENTS_IN_NUMERIC_ASSIGNMENTS": "numeric conditions or effects",
    "CONTINUOUS_TIME": "time",
    "DISCRETE_TIME": "time",
    "TIMED_EFFECTS": "timed initial literals",
    "TIMED_GOALS": "timed goals",
    "OBJECT_FLUENTS": "object fluents",
    "TRAJECTORY_CONSTRAINTS": "trajectory constraints",
    "STATE_INVARIANTS": "trajectory constraints",
    "HIERARCHICAL": "hierarchical tasks",
}
"""What messages call features that cannot be grounded to STRIPS."""


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
    """Suppresses unified-planning's warnings about a predicate and an action with the same name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_domain(domain_path: Path, problem_path: Path) -> Domain:
    """The domain of `read_problem`: ground, starting in the problem's initial state. Raises as `read_problem`."""
    return read_problem(domain_path, problem_path).domain


@_quietly()
def read_problem(domain_path: Path, problem_path: Path) -> Problem:
    """Reads and grounds a PDDL domain with one of its problems.

    Actions are written `schema object object` and atoms `predicate object`, in lower case, as in `domains`.
    Quantifiers, conditional effects, disjunctions and negative conditions are compiled away (see `grounding.ground`
    for the names); action costs are ignored; static atoms, and actions and atoms unreachable from the initial state
    by the h^2 bound, are dropped. Raises `ValueError`, with the file and if known the line, for malformed PDDL, for
    features that cannot be grounded to STRIPS, and without the extra; `OSError` for a missing file.
    """
    from statewise.strips.grounding import ground

    domain_text, problem_text = _text(domain_path), _text(problem_path)
    parsed, environment = _parsed(domain_path, domain_text, problem_path, problem_text)
    for feature in sorted(parsed.kind.features - HANDLED):
        name = FEATURES.get(feature, feature.lower().replace("_", " "))
        raise ValueError(f"{domain_path}, {problem_path}: {name} cannot be grounded to STRIPS")
    if any(not goal_part.type.is_bool_type() for goal_part in parsed.goals):
        raise ValueError(f"{problem_path}: the goal is not a condition")
    parsed.clear_quality_metrics()
    try:
        grounded = ground(parsed, environment)
    except ValueError as error:
        raise ValueError(f"{domain_path}, {problem_path}: {error}") from None
    domain = Domain(str(problem_path), grounded.model, (grounded.initial,))
    return Problem(domain, grounded.initial, grounded.goal, (domain_path, problem_path))


@_quietly()
def validated(files: tuple[Path, Path], plan: Sequence[str]) -> bool:
    """Whether unified-planning's validator accepts a plan for a PDDL problem: independent of our grounding.

    Actions are named as by `read_problem`. Raises as `read_problem`, and for an action that the domain lacks.
    """
    domain_path, problem_path = files
    parsed, environment = _parsed(domain_path, _text(domain_path), problem_path, _text(problem_path))
    from unified_planning.plans import ActionInstance, SequentialPlan

    steps = []
    for name in plan:
        schema, *objects = name.split(" ")
        try:
            action = parsed.action(schema.partition("#")[0])
            arguments = [environment.expression_manager.ObjectExp(parsed.object(each)) for each in objects]
        except Exception as error:  # unified-planning's own exception classes
            raise ValueError(f"{name!r} is not an action of {domain_path}: {error}") from None
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
    taken: set[str] = set()
    atoms, actions = (_safe(names, taken) for names in (model.atoms, model.names))
    initial, goal = (problem.initial, problem.goal) if problem is not None else (0, 0)
    built = as_planning_problem(model, initial, goal, _safe([domain_name], set())[0], atoms, actions)
    from unified_planning.io import PDDLWriter

    writer = PDDLWriter(built)
    originals = zip([*atoms, *actions], [*model.atoms, *model.names])
    changed = [f"; {safe} = {name}" for safe, name in originals if safe != name]
    table = ["; names in this file, and in the model where they differ", *changed] if changed else []
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "\n".join([*table, _complete(writer.get_domain())]).encode())
    if problem is not None:
        target = problem_path or path.with_name(f"{path.stem}-problem.pddl")
        write_atomically(target, writer.get_problem().encode())


def as_planning_problem(
    model: ActionModel, initial: Atoms, goal: Atoms, name: str, atoms: Sequence[str], actions: Sequence[str]
) -> Any:
    """A model as a `unified_planning` problem, with new names for its atoms and actions. Needs the extra."""
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
        for place in bits(action.add & ~action.delete):
            made.add_effect(fluents[place], True)
        for place in bits(action.delete):
            made.add_effect(fluents[place], False)
        built.add_action(made)
    for place in bits(goal):
        built.add_goal(fluents[place])
    return built


def quiet_environment() -> Any:
    """unified-planning's global environment, the only one its compilers use, without its printed credits. Raises
    `ValueError` without the extra."""
    try:
        from unified_planning.environment import get_environment
    except ImportError:
        raise ValueError("reading and writing PDDL needs unified-planning: pip install 'statewise[planning]'") from None
    environment = get_environment()
    environment.credits_stream = None
    environment.error_used_name = False  # a predicate and an action may share a name
    return environment


def _parsed(domain_path: Path, domain_text: str, problem_path: Path, problem_text: str) -> tuple[Any, Any]:
    """The parsed problem and its environment."""
    environment = quiet_environment()
    from unified_planning.io import PDDLReader

    for path, text in ((domain_path, domain_text), (problem_path, problem_text)):
        for line, content in enumerate(text.splitlines(), 1):
            for section in re.findall(r"\(\s*(:[\w-]+)", content.partition(";")[0].lower()):
                if section in SECTIONS:
                    raise ValueError(f"{path}:{line}: {SECTIONS[section]} ({section}) cannot be grounded to STRIPS")
    reader = PDDLReader(environment)
    # parse the domain alone first: unified-planning does not say which file an error is in
    with _errors_of(domain_path):
        PDDLReader(environment).parse_problem_string(domain_text)
    with _errors_of(problem_path):
        return reader.parse_problem_string(domain_text, problem_text), environment


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Adds the file, and the line if known, to any error that unified-planning's reader raises."""
    try:
        yield
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply to be read") from None
    except Exception as error:  # it raises syntax errors, its own classes, assertions and look-up errors
        reason = " ".join(str(error).split()) or type(error).__name__
        line = re.search(r"\bline:?\s*(\d+)", reason)
        where = f"{path}:{line[1]}" if line else str(path)
        raise ValueError(f"{where}: cannot be read as PDDL: {reason}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None


def _complete(domain: str) -> str:
    """A domain's text with the empty preconditions and effects that unified-planning omits: some planners cannot parse
    actions without them."""
    begin, *actions = domain.rstrip().removesuffix(")").rstrip().split("\n (:action ")
    whole = []
    for action in actions:
        if ":precondition" not in action:
            action = action.replace(":parameters ()", ":parameters ()\n  :precondition (and)", 1)
        if ":effect" not in action:
            action = action.removesuffix(")") + "\n  :effect (and))"
        whole.append(action)
    return "\n (:action ".join([begin, *whole]) + "\n)\n"


def _safe(names: Sequence[str], taken: set[str]) -> list[str]:
    """Unique names that are valid in PDDL and not in `taken`, to which they are added."""
    from unified_planning.io.pddl_writer import PDDL3_KEYWORDS, PDDL_PLUS_KEYWORDS

    reserved = PDDL3_KEYWORDS | PDDL_PLUS_KEYWORDS | {"object", "total-cost"}
    made = []
    for name in names:
        base = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
        if not re.match(r"[a-z]", base):
            base = f"x-{base}".strip("-")
        safe, number = base, 1
        while safe in taken or safe in reserved:
            number += 1
            safe = f"{base}-{number}"
        taken.add(safe)
        made.append(safe)
    return made
