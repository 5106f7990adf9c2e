"""PDDL files: reads a domain with a problem and grounds it; writes an action model. Needs the extra `planning`.

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
"""Sections that STRIPS has nothing for, some of which unified-planning cannot even read."""

HANDLED = {
    *("ACTION_BASED", "FLAT_TYPING", "HIERARCHICAL_TYPING", "EQUALITIES", "NEGATIVE_CONDITIONS"),
    *("DISJUNCTIVE_CONDITIONS", "EXISTENTIAL_CONDITIONS", "UNIVERSAL_CONDITIONS", "CONDITIONAL_EFFECTS"),
    *("FORALL_EFFECTS", "UNDEFINED_INITIAL_SYMBOLIC"),
    # costs: a plan's price, which says nothing about what can be done
    *("ACTIONS_COST", "PLAN_LENGTH", "STATIC_FLUENTS_IN_ACTIONS_COST", "INT_NUMBERS_IN_ACTIONS_COST"),
    *("REAL_NUMBERS_IN_ACTIONS_COST", "INT_FLUENTS", "REAL_FLUENTS", "NUMERIC_FLUENTS", "UNDEFINED_INITIAL_NUMERIC"),
    *("CONTINUOUS_NUMBERS", "DISCRETE_NUMBERS"),
}
"""Features, as unified-planning calls them, that can be grounded to STRIPS or that change nothing."""

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
"""How features are named that cannot."""


@dataclass(frozen=True)
class Problem:
    """A planning task: where to start and what to reach."""

    domain: Domain
    initial: Atoms
    """The atoms true at the start."""
    goal: Atoms
    """The atoms that must be true at the end."""
    files: tuple[Path, Path] | None = None
    """The domain and problem it was read from."""

    def solved_by(self, plan: Sequence[str]) -> bool:
        """Whether each action of the plan can be done where it stands, and the goal holds at its end."""
        model, state = self.domain.model, self.initial
        for name in plan:
            number = model.number.get(name)
            if number is None or model.actions[number].pre & ~state:
                return False
            state = model.result(state, number)
        return not self.goal & ~state


@contextmanager
def _quietly() -> Iterator[None]:
    """Without unified-planning's warnings about a predicate and an action of one name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_domain(domain_path: Path, problem_path: Path) -> Domain:
    """The domain of `read_problem`: ground, with the problem's initial state as its start. Raises what that raises."""
    return read_problem(domain_path, problem_path).domain


@_quietly()
def read_problem(domain_path: Path, problem_path: Path) -> Problem:
    """Reads and grounds a PDDL domain with one of its problems.

    Actions are written `schema object object` and atoms `predicate object`, in lower case, as in `domains`.
    Quantifiers, conditional effects, disjunctions and negative conditions are compiled away (see `grounding.ground`
    for the names); action costs are ignored; static atoms, and actions and atoms that cannot be reached from the
    initial state by the h^2 bound, are left out. Raises `ValueError` with file, and line where it is known, for
    malformed PDDL, for features that cannot be grounded to STRIPS (named), and without the extra; `OSError` for a
    missing file.
    """
    from statewise.strips.grounding import ground

    domain_text, problem_text = _text(domain_path), _text(problem_path)
    parsed, environment = _parsed(domain_path, domain_text, problem_path, problem_text)
    for feature in sorted(parsed.kind.features - HANDLED):
        name = FEATURES.get(feature, feature.lower().replace("_", " "))
        raise ValueError(f"{domain_path}, {problem_path}: {name} cannot be grounded to STRIPS")
    if any(not goal_part.type.is_bool_type() for goal_part in parsed.goals):
        raise ValueError(f"{problem_path}: the goal is no condition")
    parsed.clear_quality_metrics()
    try:
        found = ground(parsed, environment)
    except ValueError as error:
        raise ValueError(f"{domain_path}, {problem_path}: {error}") from None
    domain = Domain(str(problem_path), found.model, (found.initial,))
    return Problem(domain, found.initial, found.goal, (domain_path, problem_path))


@_quietly()
def validated(files: tuple[Path, Path], plan: Sequence[str]) -> bool:
    """Whether unified-planning's validator accepts a plan for a PDDL problem: a check that owes our grounding nothing.

    Actions are written as `read_problem` names them. Raises as that does, and for an action that the domain lacks.
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
            raise ValueError(f"{name!r} is no action of {domain_path}: {error}") from None
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
    """Writes a ground PDDL domain: every atom a predicate without arguments, every action one without parameters.

    Names are made safe for PDDL (`on b1 b2` becomes `on-b1-b2`) and unique; a comment lists what was changed. With
    `problem`, whose atoms must be those of the model, its initial state and goal are written to `problem_path` (by
    default beside the domain, `NAME-problem.pddl`). Raises `ValueError` for other atoms, and without the extra.
    """
    if problem is not None and problem.domain.model.atoms != model.atoms:
        raise ValueError("the problem's atoms are not those of the model")
    quiet_environment()  # says which extra is missing before anything is imported from it
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
    """A `unified_planning` problem of a model, with other names for its atoms and actions. Needs the extra."""
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
    """The global environment of unified-planning, made quiet; its compilers know no other. Raises `ValueError` without
    the extra."""
    try:
        from unified_planning.environment import get_environment
    except ImportError:
        raise ValueError("reading and writing PDDL needs unified-planning: pip install 'statewise[planning]'") from None
    environment = get_environment()
    environment.credits_stream = None
    environment.error_used_name = False  # a predicate and an action may share a name
    return environment


def _parsed(domain_path: Path, domain_text: str, problem_path: Path, problem_text: str) -> tuple[Any, Any]:
    """What unified-planning reads, and its environment."""
    environment = quiet_environment()
    from unified_planning.io import PDDLReader

    for path, text in ((domain_path, domain_text), (problem_path, problem_text)):
        for line, content in enumerate(text.splitlines(), 1):
            for section in re.findall(r"\(\s*(:[\w-]+)", content.partition(";")[0].lower()):
                if section in SECTIONS:
                    raise ValueError(f"{path}:{line}: {SECTIONS[section]} ({section}) cannot be grounded to STRIPS")
    reader = PDDLReader(environment)
    # the domain alone first: unified-planning does not say which of the two files an error is in
    with _errors_of(domain_path):
        PDDLReader(environment).parse_problem_string(domain_text)
    with _errors_of(problem_path):
        return reader.parse_problem_string(domain_text, problem_text), environment


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Names the file, and the line if it is told, in whatever unified-planning's reader raises."""
    try:
        yield
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply to be read") from None
    except Exception as error:  # syntax errors, its own classes, assertions and failed look-ups alike
        said = " ".join(str(error).split()) or type(error).__name__
        line = re.search(r"\bline:?\s*(\d+)", said)
        where = f"{path}:{line[1]}" if line else str(path)
        raise ValueError(f"{where}: cannot be read as PDDL: {said}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None


def _complete(domain: str) -> str:
    """The text of a domain with the empty preconditions and effects that unified-planning leaves out: not every planner
    can read an action without them."""
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
    """Names that PDDL allows, all different, and different from those `taken`, which grows."""
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
