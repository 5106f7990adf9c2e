"""Reads the text of a PDDL domain and problem into lifted operators, without grounding anything.

Covers what can be compiled to STRIPS (`grounding`): typing with `either`, constants, equality, quantifiers, negation,
disjunction, implication, conditional effects. Costs are read and ignored. Everything else is an error that names the
feature, with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from statewise.runtime.messages import suggestion

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
"""Sections without an equivalent in STRIPS."""

OF_DOMAIN = ("domain", ":requirements", ":types", ":constants", ":predicates", ":functions", ":action")
"""The sections of a domain. Requirements are ignored: the features that a file uses decide whether it can be read."""
OF_PROBLEM = ("problem", ":domain", ":requirements", ":objects", ":init", ":goal", ":metric", ":length")
"""The sections of a problem. The metric and the length say which plan is best, not which actions are applicable."""

CONDITIONS = {
    **dict.fromkeys(("<", ">", "<=", ">=", "+", "-", "*", "/"), "numeric conditions"),
    "preference": "preferences",
    **dict.fromkeys(
        (
            "always",
            "sometime",
            "within",
            "at-most-once",
            "sometime-after",
            "sometime-before",
            "always-within",
            "hold-during",
            "hold-after",
        ),
        "trajectory constraints",
    ),
    **dict.fromkeys(("over", "start", "end"), "time"),
}
"""Conditions without an equivalent in STRIPS."""

COSTS = ("increase", "decrease", "assign", "scale-up", "scale-down")
"""Effects on numbers: conditions cannot read numbers, so these effects do not change which actions are applicable."""

CONNECTIVES = ("and", "or", "not", "imply", "forall", "exists", "when")
"""Words that cannot be names of predicates. Other words with a meaning in PDDL can."""

ROOT = "object"
"""The type of everything."""

Atom = tuple[str, ...]
"""A predicate and its arguments: objects, or variables, which begin with `?`."""


TOKEN = re.compile(r"[()]|(?:[^\s()]+?)(?=\?[^\W\d_])|[^\s()]+")
"""A parenthesis or a name; a variable begins a new name even without a blank before it, as in `(at?x)`."""


class Word(str):
    """A name in lower case, and its line."""

    line: int


class Group(list["Word | Group"]):
    """A list in parentheses, and the line where it begins."""

    line: int


def _unused(name: str, used: Collection[str]) -> str:
    """The name, followed by as many marks as are needed to make it unique."""
    while name in used:
        name += "'"
    return name


def _renamed(node: Word | Group, names: Mapping[str, str]) -> Word | Group:
    """A copy with other names for some words."""
    made = Group(_renamed(each, names) for each in node) if isinstance(node, Group) else Word(names.get(node, node))
    made.line = node.line
    return made


@dataclass(frozen=True)
class Variable:
    """A parameter of an action or a quantifier."""

    name: str
    types: frozenset[str]
    """The type of the variable, or the types of an `either`."""


@dataclass(frozen=True)
class Is:
    """An atom."""

    atom: Atom


@dataclass(frozen=True)
class Equal:
    """A condition that two terms are the same object."""

    left: str
    right: str


@dataclass(frozen=True)
class Not:
    """A negation."""

    part: Condition


@dataclass(frozen=True)
class Every:
    """A conjunction; without parts: true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Some:
    """A disjunction."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Quantified:
    """A universal or existential condition."""

    for_all: bool
    variables: tuple[Variable, ...]
    part: Condition


Condition = Is | Equal | Not | Every | Some | Quantified
TRUE = Every(())


@dataclass(frozen=True)
class Effect:
    """One add or delete."""

    variables: tuple[Variable, ...]
    """The variables of the universal quantifiers around the effect."""
    condition: Condition
    atom: Atom
    adds: bool


@dataclass(frozen=True)
class Operator:
    """A lifted action."""

    name: str
    parameters: tuple[Variable, ...]
    precondition: Condition
    effects: tuple[Effect, ...]
    line: int


@dataclass(frozen=True)
class Task:
    """A domain with one of its problems."""

    objects: Mapping[str, frozenset[str]]
    """All types of each object, including supertypes, in order of declaration."""
    predicates: tuple[str, ...]
    operators: tuple[Operator, ...]
    initial: frozenset[Atom]
    goal: Condition
    goal_line: int

    def of_types(self, types: frozenset[str]) -> list[str]:
        """The objects of one of the types."""
        return [name for name, of in self.objects.items() if types & of]


def parse_task(domain_path: Path, domain_text: str, problem_path: Path, problem_text: str) -> Task:
    """Reads a domain and a problem. Raises `ValueError` with file and line."""
    domain = _Text(domain_path, domain_text)
    problem = _Text(problem_path, problem_text)
    if domain.holds("problem") and problem.holds("domain"):
        domain.fail(domain.whole, f"this is a problem, and {problem_path} is a domain: swap the two files")
    domain.expect(OF_DOMAIN)
    problem.expect(OF_PROBLEM)
    types = _Types(domain)
    predicates: dict[str, tuple[frozenset[str], ...]] = {}
    functions: set[str] = set()
    objects: dict[str, frozenset[str]] = {}
    declared: dict[str, tuple[frozenset[str], str]] = {}
    for section in domain.sections(":types"):
        types.declare(section)
    for text, name in ((domain, ":constants"), (problem, ":objects")):
        for section in text.sections(name):
            for word, of in types.typed(text, section[1:]):
                before, where = declared.setdefault(word, (of, f"{text.path}:{word.line}"))
                if before != of:
                    text.fail(
                        word,
                        f"the object {str(word)!r} is of the type {_either_of(of)} here, and of "
                        f"{_either_of(before)} at {where}: declare it once",
                    )
                objects[str(word)] = types.above(of)
    for section in domain.sections(":functions"):
        functions |= {_head(domain, each) for each in section[1:] if isinstance(each, Group)}
    for section in domain.sections(":predicates"):
        for each in section[1:]:
            group = domain.group(each, "a predicate with its arguments")
            name = _head(domain, group)
            if name in CONNECTIVES:
                domain.fail(
                    group,
                    f"{name!r} has another meaning in conditions and effects: it cannot be the name of a predicate",
                )
            if name in predicates:
                domain.fail(group, f"the predicate {name!r} is declared twice")
            predicates[name] = tuple(of for _, of in types.typed(domain, group[1:]))
    known = _Known(types, predicates, functions, objects)
    operators: dict[str, Operator] = {}
    for section in domain.sections(":action"):
        operator = _Reader(domain, known).operator(section)
        if operator.name in operators:
            domain.fail(section, f"the action {operator.name!r} is declared twice")
        operators[operator.name] = operator
    reader = _Reader(problem, known)
    initial = frozenset(atom for section in problem.sections(":init") for atom in reader.initial(section))
    goals = problem.sections(":goal")
    if len(goals) != 1 or len(goals[0]) != 2:
        problem.fail(goals[-1] if goals else problem.whole, "a problem needs one goal: (:goal CONDITION)")
    goal = reader.condition(goals[0][1], {})
    return Task(objects, tuple(predicates), tuple(operators.values()), initial, goal, goals[0].line)


class _Text:
    """A file as nested lists."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        lines = text.removesuffix("\n").split("\n")  # not splitlines: comments may contain other line separators
        open_groups: list[Group] = []
        whole: Group | None = None
        for line, content in enumerate(lines, 1):
            for token in TOKEN.findall(content.partition(";")[0].lower()):
                if whole is not None:
                    self._unreadable(line, f"{token!r} comes after the definition's end")
                if token == "(":
                    group = Group()
                    group.line = line
                    if open_groups:
                        open_groups[-1].append(group)
                    open_groups.append(group)
                    continue
                if not open_groups:
                    self._unreadable(line, f"a definition begins with a parenthesis, not with {token!r}")
                if token == ")":
                    closed = open_groups.pop()
                    whole = closed if not open_groups else None
                    continue
                word = Word(token)
                word.line = line
                open_groups[-1].append(word)
        if whole is None:
            if open_groups:
                reason = f"the parenthesis of line {open_groups[-1].line} is not closed"
            else:
                reason = "the file holds no definition"
            self._unreadable(max(1, len(lines)), reason)
        assert whole is not None
        self.whole = whole
        if not whole or whole[0] != "define" or not all(isinstance(each, Group) and each for each in whole[1:]):
            self.fail(whole, "cannot be read as PDDL: it must be (define (...) (...) ...)")

    def holds(self, kind: str) -> bool:
        """Whether the file is a `domain` or a `problem`."""
        return len(self.whole) > 1 and _head(self, self.whole[1]) == kind

    def expect(self, allowed: Sequence[str]) -> None:
        """Raises `ValueError` unless all sections have names of `allowed`, the first of which is the kind of the
        file."""
        other = "problem" if allowed[0] == "domain" else "domain"
        if self.holds(other):
            self.fail(self.whole, f"this is a {other}, where a {allowed[0]} is expected")
        for section in self.whole[1:]:
            name = _head(self, section)
            if name in SECTIONS:
                self.fail(section, f"{SECTIONS[name]} ({name}) cannot be grounded to STRIPS")
            if name not in allowed:
                near = suggestion(name, allowed)
                self.fail(
                    section,
                    f"({name} ...) is not a section of a {allowed[0]} that can be read: "
                    f"{near}there are {', '.join(allowed)}",
                )

    def sections(self, name: str) -> list[Group]:
        """The sections of this name."""
        return [each for each in self.whole[1:] if isinstance(each, Group) and each[0] == name]

    def group(self, node: Word | Group, what: str) -> Group:
        """The node as a list that begins with a name."""
        if not isinstance(node, Group) or not node or not isinstance(node[0], Word):
            self.fail(node, f"cannot be read as PDDL: expected {what} in parentheses, not {_spelled(node)}")
        return node

    def word(self, node: Word | Group, what: str) -> Word:
        """The node as a name."""
        if not isinstance(node, Word):
            self.fail(node, f"cannot be read as PDDL: expected {what}, not {_spelled(node)}")
        return node

    def fail(self, node: Word | Group, message: str) -> NoReturn:
        """Raises `ValueError` with the node's line."""
        raise ValueError(f"{self.path}:{node.line}: {message}")

    def _unreadable(self, line: int, reason: str) -> NoReturn:
        raise ValueError(f"{self.path}:{line}: cannot be read as PDDL: {reason}")


class _Types:
    """The types of a domain."""

    def __init__(self, domain: _Text) -> None:
        self.domain = domain
        self.parents: dict[str, frozenset[str]] = {ROOT: frozenset()}

    def declare(self, section: Group) -> None:
        """Adds a `:types` section."""
        declared = list(_typed(self.domain, section[1:]))
        for word, parents in declared:
            if word != ROOT:
                self.parents[word] = self.parents.get(word, frozenset()) | {str(each) for each in parents}
        for _, parents in declared:  # a type that only occurs as a parent is declared thereby
            for parent in parents:
                self.parents.setdefault(str(parent), frozenset({ROOT}))

    def typed(self, text: _Text, nodes: Sequence[Word | Group]) -> list[tuple[Word, frozenset[str]]]:
        """Names with their types, from `a b - t c - (either t u) d`."""
        typed = []
        for word, types in _typed(text, nodes):
            for each in types:
                if each not in self.parents:
                    text.fail(word, f"the type {str(each)!r} is not declared")
            typed.append((word, frozenset(str(each) for each in types)))
        return typed

    def above(self, types: frozenset[str]) -> frozenset[str]:
        """The types and all their supertypes."""
        above, todo = set(types), list(types)
        while todo:
            for parent in self.parents[todo.pop()] - above:
                above.add(parent)
                todo.append(parent)
        return frozenset(above | {ROOT})

    def overlap(self, one: frozenset[str], other: frozenset[str]) -> bool:
        """Whether an object can have a type of both."""
        above = (self.above(frozenset({each})) for each in self.parents)
        return any(one & types and other & types for types in above)


@dataclass(frozen=True)
class _Known:
    """The declarations of a domain and a problem."""

    types: _Types
    predicates: Mapping[str, tuple[frozenset[str], ...]]
    functions: set[str]
    objects: Mapping[str, frozenset[str]]


class _Reader:
    """Reads the conditions and effects of one file."""

    def __init__(self, text: _Text, known: _Known) -> None:
        self.text, self.known = text, known

    def operator(self, section: Group) -> Operator:
        """The operator of an `:action` section."""
        if len(section) < 2 or len(section) % 2:
            self.text.fail(section, "cannot be read as PDDL: an action is (:action NAME :KEY VALUE ...)")
        name = self.text.word(section[1], "an action's name")
        parts: dict[str, Word | Group] = {}
        for key, value in zip(section[2::2], section[3::2]):
            word = self.text.word(key, ":parameters, :precondition or :effect")
            if word not in (":parameters", ":precondition", ":effect"):
                self.text.fail(word, f"{str(word)!r} is not a part of an action that can be grounded to STRIPS")
            if word in parts:
                self.text.fail(word, f"the action {str(name)!r} has two parts {word}")
            parts[word] = value
        variables = parts.get(":parameters", Group())
        if not isinstance(variables, Group):
            self.text.fail(variables, "cannot be read as PDDL: parameters are a list in parentheses")
        parameters = self._variables(variables)
        scope = {each.name: each.types for each in parameters}
        precondition = self._optional(parts.get(":precondition"), scope)
        effect = parts.get(":effect")
        effects = tuple(self._effects(effect, scope, (), TRUE)) if effect is not None and effect != [] else ()
        return Operator(str(name), parameters, precondition, effects, section.line)

    def _optional(self, node: Word | Group | None, scope: Mapping[str, frozenset[str]]) -> Condition:
        return TRUE if node is None or node == [] else self.condition(node, scope)

    def _variables(self, group: Group) -> tuple[Variable, ...]:
        typed = self.known.types.typed(self.text, group)
        names = [name for name, _ in typed]
        for name in names:
            if not name.startswith("?"):
                self.text.fail(group, f"cannot be read as PDDL: a variable begins with ?, not {name!r}")
            if names.count(name) > 1:
                self.text.fail(group, f"the variable {name} is declared twice")
        return tuple(Variable(str(name), types) for name, types in typed)

    def condition(self, node: Word | Group, scope: Mapping[str, frozenset[str]]) -> Condition:
        """A condition, whose free variables are in `scope` with their types."""
        if node == []:
            return TRUE
        group = self.text.group(node, "a condition")
        head, rest = str(group[0]), group[1:]
        if head in ("and", "or"):
            parts = tuple(self.condition(each, scope) for each in rest)
            return Every(parts) if head == "and" else Some(parts)
        if head == "not":
            self._count(group, 1)
            return Not(self.condition(rest[0], scope))
        if head == "imply":
            self._count(group, 2)
            return Some((Not(self.condition(rest[0], scope)), self.condition(rest[1], scope)))
        if head in ("forall", "exists"):
            variables, inner = self._quantifier(group, scope)
            return Quantified(head == "forall", variables, self.condition(rest[1], inner))
        if head == "=":
            self._count(group, 2)
            for each in rest:
                if isinstance(each, Group):
                    self.text.fail(each, f"{self._function(each)} cannot be grounded to STRIPS")
            left, right = (self._term(each, scope) for each in rest)
            return Equal(left, right)
        if head in CONDITIONS and not self._is_predicate(group):
            self.text.fail(group, f"{CONDITIONS[head]} ({head}) cannot be grounded to STRIPS")
        return Is(self._atom(group, scope))

    def _is_predicate(self, group: Group) -> bool:
        """Whether the name of the group, which has another meaning in PDDL, is a declared predicate here."""
        return group[0] in self.known.predicates and not any(isinstance(each, Group) for each in group[1:])

    def _function(self, group: Group) -> str:
        """The name of an equality with a function in messages."""
        name = _head(self.text, group) if group else ""
        return "numeric conditions (=)" if name in self.known.functions else "object fluents (=)"

    def _quantifier(
        self, group: Group, scope: Mapping[str, frozenset[str]]
    ) -> tuple[tuple[Variable, ...], dict[str, frozenset[str]]]:
        self._count(group, 2)
        if not isinstance(group[1], Group):
            self.text.fail(group, "cannot be read as PDDL: a quantifier has a list of variables")
        variables = self._variables(group[1])
        return variables, {**scope, **{each.name: each.types for each in variables}}

    def _effects(
        self,
        node: Word | Group,
        scope: Mapping[str, frozenset[str]],
        variables: tuple[Variable, ...],
        condition: Condition,
    ) -> Iterator[Effect]:
        group = self.text.group(node, "an effect")
        head, rest = str(group[0]), group[1:]
        if head == "and":
            for each in rest:
                yield from self._effects(each, scope, variables, condition)
        elif head == "forall":
            more, inner = self._quantifier(group, scope)
            body = rest[1]
            # A condition around it may use an outer variable of the same name, so the inner one is renamed.
            names = {each.name: _unused(each.name, inner) for each in more if each.name in scope}
            if names:
                body = _renamed(body, names)
                more = tuple(replace(each, name=names.get(each.name, each.name)) for each in more)
                inner = {**scope, **{each.name: each.types for each in more}}
            yield from self._effects(body, inner, (*variables, *more), condition)
        elif head == "when":
            self._count(group, 2)
            both = Every((condition, self.condition(rest[0], scope)))
            yield from self._effects(rest[1], scope, variables, both)
        elif head in COSTS and not self._is_predicate(group):
            self._count(group, 2)
            function = _head(self.text, rest[0]) if isinstance(rest[0], Group) else str(rest[0])
            if function not in self.known.functions:
                self.text.fail(rest[0], f"the function {function!r} is not declared")
        elif head == "not":
            self._count(group, 1)
            yield Effect(variables, condition, self._atom(self.text.group(rest[0], "an atom"), scope), False)
        elif head in ("or", "imply", "exists", "oneof", "probabilistic", "at") and not self._is_predicate(group):
            self.text.fail(group, f"effects with {head} cannot be grounded to STRIPS")
        else:
            yield Effect(variables, condition, self._atom(group, scope), True)

    def initial(self, section: Group) -> Iterator[Atom]:
        """The atoms that are true at the beginning."""
        for node in section[1:]:
            group = self.text.group(node, "an initial fact")
            head = str(group[0])
            if head == "=":  # the value of a function, which conditions cannot read
                self._count(group, 2)
            elif head == "not":
                self._count(group, 1)
                self._atom(self.text.group(group[1], "an atom"), {})
            elif head == "at" and len(group) == 3 and isinstance(group[2], Group):
                self.text.fail(group, "timed initial literals (at) cannot be grounded to STRIPS")
            elif head in ("oneof", "unknown", "or", "forall", "and") and not self._is_predicate(group):
                self.text.fail(group, f"initial states with {head} cannot be grounded to STRIPS")
            else:
                yield self._atom(group, {})

    def _atom(self, group: Group, scope: Mapping[str, frozenset[str]]) -> Atom:
        name = str(group[0])
        if name not in self.known.predicates:
            self.text.fail(group, f"the predicate {name!r} is not declared")
        places = self.known.predicates[name]
        if len(group) - 1 != len(places):
            self.text.fail(
                group, f"{_spelled(group)}: the predicate {name!r} has {len(places)} arguments, not {len(group) - 1}"
            )
        terms = tuple(self._term(each, scope) for each in group[1:])
        for term, wanted in zip(terms, places):
            of = scope[term] if term in scope else self.known.objects[term]
            fits = self.known.types.overlap(of, wanted) if term in scope else bool(of & wanted)
            if not fits:
                self.text.fail(group, f"{_spelled(group)}: {term!r} is not of the type {_either_of(wanted)}")
        return (name, *terms)

    def _term(self, node: Word | Group, scope: Mapping[str, frozenset[str]]) -> str:
        if isinstance(node, Group):
            self.text.fail(node, f"{_spelled(node)}: functions as arguments cannot be grounded to STRIPS")
        word = str(node)
        if word not in scope and word not in self.known.objects:
            kind = "a parameter" if word.startswith("?") else "an object or a constant"
            self.text.fail(node, f"{word!r} is not {kind}")
        return word

    def _count(self, group: Group, wanted: int) -> None:
        if len(group) - 1 != wanted:
            self.text.fail(group, f"cannot be read as PDDL: {group[0]} has {wanted} parts, not {len(group) - 1}")


def _typed(text: _Text, nodes: Sequence[Word | Group]) -> Iterator[tuple[Word, list[Word]]]:
    """The names of a typed list, each with its types."""
    waiting: list[Word] = []
    place = 0
    while place < len(nodes):
        node = nodes[place]
        place += 1
        if not (isinstance(node, Word) and node.startswith("-")):
            waiting.append(text.word(node, "a name"))
            continue
        if node == "-" and place < len(nodes):
            types = _either(text, nodes[place])
            place += 1
        else:
            types = [Word(node[1:])]  # without a space: `a b -type`
        if not waiting or not types[0]:
            text.fail(node, "cannot be read as PDDL: - stands between names and their type")
        for word in waiting:
            yield word, types
        waiting = []
    root = Word(ROOT)
    for word in waiting:
        yield word, [root]


def _either(text: _Text, node: Word | Group) -> list[Word]:
    if isinstance(node, Word):
        return [node]
    if len(node) < 2 or node[0] != "either":
        text.fail(node, f"cannot be read as PDDL: a type is a name or (either NAME ...), not {_spelled(node)}")
    return [text.word(each, "a type") for each in node[1:]]


def _either_of(types: frozenset[str]) -> str:
    return " or ".join(sorted(types))


def _head(text: _Text, node: Word | Group) -> str:
    return str(text.word(text.group(node, "a list")[0], "a name"))


def _spelled(node: Word | Group) -> str:
    return str(node) if isinstance(node, Word) else f"({' '.join(map(_spelled, node))})"
