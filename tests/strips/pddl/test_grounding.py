"""The grounder against its slow twin: every choice of objects for every parameter, conditions judged in full states."""

import random
import re
from itertools import count, product
from pathlib import Path

import pytest

from statewise.strips.pddl.grounding import _limited, _TooMany, _weakest, complements, ground
from statewise.strips.pddl.parsing import Equal, Every, Is, Not, Quantified, Task, parse_task
from statewise.strips.pddl.pddl import read_problem, validated


def holds(task: Task, condition, binding, state) -> bool:
    if isinstance(condition, Is):
        return tuple(binding.get(term, term) for term in condition.atom) in state
    if isinstance(condition, Equal):
        return binding.get(condition.left, condition.left) == binding.get(condition.right, condition.right)
    if isinstance(condition, Not):
        return not holds(task, condition.part, binding, state)
    if isinstance(condition, Quantified):
        over = (holds(task, condition.part, inner, state) for inner in choices(task, condition.variables, binding))
        return all(over) if condition.for_all else any(over)
    parts = [holds(task, each, binding, state) for each in condition.parts]
    return all(parts) if isinstance(condition, Every) else any(parts)


def choices(task, variables, binding):
    names = [[name for name, types in task.objects.items() if types & each.types] for each in variables]
    for chosen in product(*names):
        yield {**binding, **{each.name: name for each, name in zip(variables, chosen)}}


def slow_steps(task, state):
    """The applicable actions and the states after them, by their names."""
    found = {}
    for operator in task.operators:
        for binding in choices(task, operator.parameters, {}):
            if holds(task, operator.precondition, binding, state):
                made = [
                    (tuple(inner.get(term, term) for term in effect.atom), effect.adds)
                    for effect in operator.effects
                    for inner in choices(task, effect.variables, binding)
                    if holds(task, effect.condition, inner, state)
                ]
                added = {atom for atom, adds in made if adds}
                after = state - {atom for atom, adds in made if not adds} | added
                found[" ".join((operator.name, *(binding[each.name] for each in operator.parameters)))] = after
    return found


def explore(task, limit=300):
    """Reachable states, each with its steps; all of them unless there are more than `limit`."""
    steps = {}
    todo = [task.initial]
    while todo and len(steps) < limit:
        state = todo.pop(0)
        if state not in steps:
            steps[state] = slow_steps(task, state)
            todo += [frozenset(after) for after in steps[state].values()]
    return steps


def check(domain_text, problem_text):
    """Compares the ground model with the slow twin in every reachable state; returns the model, and the actions that
    are applicable in one of the states."""
    task = parse_task(Path("d.pddl"), domain_text, Path("p.pddl"), problem_text)
    whole = ground(task)
    model = whole.model
    complemented = {name: predicate for predicate, name in complements(task.predicates).items()}

    def in_atoms(state):
        total = 0
        for place, name in enumerate(model.atoms):
            predicate, *objects = name.split()
            denied = predicate not in task.predicates
            atom = (complemented[predicate] if denied else predicate, *objects)
            total |= ((atom in state) != denied) << place
        return total

    assert in_atoms(task.initial) == whole.initial
    steps = explore(task)
    for state, after in steps.items():
        mine = in_atoms(state)
        found = {}
        for at in model.applicable(mine):
            schema, _, objects = model.names[at].partition(" ")
            found[f"{schema.partition('#')[0]} {objects}".strip()] = model.result(mine, at)
        assert found == {name: in_atoms(to) for name, to in after.items()}
        assert (not whole.goal & ~mine) == holds(task, task.goal, {}, state)
    happens = {name for after in steps.values() for name in after}
    changing = frozenset.union(*steps) - frozenset.intersection(*steps)
    assert {" ".join(atom) for atom in changing} <= set(model.atoms)
    return model, happens


GRID = """
(define (domain grid) (:requirements :strips)
 (:predicates (conn ?x ?y) (key-shape ?k ?s) (lock-shape ?x ?s) (at ?r ?x) (at-robot ?x) (place ?p) (key ?k) (shape ?s)
  (locked ?x) (holding ?k) (open ?x) (arm-empty))
 (:action unlock :parameters (?here ?there ?key ?shape)
  :precondition (and (place ?here) (place ?there) (key ?key) (shape ?shape) (conn ?here ?there) (key-shape ?key ?shape)
                     (lock-shape ?there ?shape) (at-robot ?here) (locked ?there) (holding ?key))
  :effect (and (open ?there) (not (locked ?there))))%s
 (:action move :parameters (?from ?to)
  :precondition (and (place ?from) (place ?to) (at-robot ?from) (conn ?from ?to) (open ?to))
  :effect (and (at-robot ?to) (not (at-robot ?from))))
 (:action pickup :parameters (?here ?key)
  :precondition (and (place ?here) (key ?key) (at-robot ?here) (at ?key ?here) (arm-empty))
  :effect (and (holding ?key) (not (at ?key ?here)) (not (arm-empty))))
 (:action swap :parameters (?here ?new ?old)
  :precondition (and (place ?here) (key ?new) (key ?old) (at-robot ?here) (holding ?old) (at ?new ?here))
  :effect (and (holding ?new) (at ?old ?here) (not (holding ?old)) (not (at ?new ?here)))))
"""
LOCK = """
 (:action lock :parameters (?here ?there ?key ?shape)
  :precondition (and (conn ?here ?there) (key-shape ?key ?shape) (lock-shape ?there ?shape) (at-robot ?here)
                     (open ?there) (holding ?key))
  :effect (and (locked ?there) (not (open ?there))))"""
ROOMS = """
(define (problem rooms) (:domain grid) (:objects n1 n2 n3 round square k1 k2)
 (:init (place n1) (place n2) (place n3) (shape round) (shape square) (key k1) (key k2) (conn n1 n2) (conn n2 n1)
  (conn n2 n3) (conn n3 n2) (key-shape k1 round) (key-shape k2 square) (lock-shape n3 square) (locked n3) (open n1)
  (open n2) (at k1 n1) (at k2 n2) (at-robot n1) (arm-empty))
 (:goal (and (at-robot n3) (holding k1))))
"""
HANOI = """
(define (domain hanoi) (:predicates (clear ?x) (on ?x ?y) (smaller ?x ?y) (disc ?x))
 (:action move :parameters (?disc ?from ?to)
  :precondition (and (disc ?disc) (smaller ?to ?disc) (smaller ?from ?disc) (on ?disc ?from) (clear ?disc) (clear ?to)
                     (not (= ?from ?to)))
  :effect (and (clear ?from) (on ?disc ?to) (not (on ?disc ?from)) (not (clear ?to)))))
"""
TOWER = """
(define (problem tower) (:domain hanoi) (:objects d1 d2 p1 p2 p3)
 (:init (disc d1) (disc d2) (smaller p1 d1) (smaller p2 d1) (smaller p3 d1) (smaller p1 d2) (smaller p2 d2)
  (smaller p3 d2) (smaller d2 d1) (on d1 d2) (on d2 p1) (clear d1) (clear p2) (clear p3))
 (:goal (on d2 p3)))
"""
LOGISTICS = """
(define (domain logistics) (:requirements :strips :typing)
 (:types truck airplane - vehicle package vehicle - thing airport place - spot city spot thing - object)
 (:predicates (at ?x - thing ?l - spot) (in ?p - package ?v - vehicle) (in-city ?l - spot ?c - city))
 (:action load :parameters (?p - package ?v - (either truck airplane) ?l - spot)
  :precondition (and (at ?p ?l) (at ?v ?l)) :effect (and (in ?p ?v) (not (at ?p ?l))))
 (:action unload :parameters (?p - package ?v -vehicle ?l - spot)
  :precondition (and (in ?p ?v) (at ?v ?l)) :effect (and (at ?p ?l) (not (in ?p ?v))))
 (:action drive :parameters (?t - truck ?a ?b - spot ?c - city)
  :precondition (and (at ?t ?a) (in-city ?a ?c) (in-city ?b ?c)) :effect (and (not (at ?t ?a)) (at ?t ?b)))
 (:action fly :parameters (?v - airplane ?a ?b - airport)
  :precondition (at ?v ?a) :effect (and (not (at ?v ?a)) (at ?v ?b))))
"""
POST = """
(define (problem post) (:domain logistics)
 (:objects t1 - truck a1 - airplane p1 - package l1 l2 - airport l3 - place c1 c2 - city)
 (:init (in-city l1 c1) (in-city l3 c1) (in-city l2 c2) (at t1 l1) (at a1 l2) (at p1 l3))
 (:goal (at p1 l2)))
"""
MICONIC = """
(define (domain lift) (:requirements :adl) (:types passenger floor)
 (:predicates (origin ?p - passenger ?f - floor) (destin ?p - passenger ?f - floor) (above ?a ?b - floor)
  (boarded ?p - passenger) (served ?p - passenger) (lift-at ?f - floor))
 (:action stop :parameters (?f - floor) :precondition (lift-at ?f)
  :effect (and (forall (?p - passenger) (when (and (boarded ?p) (destin ?p ?f)) (and (not (boarded ?p)) (served ?p))))
               (forall (?p - passenger) (when (and (origin ?p ?f) (not (served ?p))) (boarded ?p)))))
 (:action up :parameters (?a ?b - floor) :precondition (and (lift-at ?a) (above ?a ?b))
  :effect (and (lift-at ?b) (not (lift-at ?a))))
 (:action down :parameters (?a ?b - floor) :precondition (and (lift-at ?a) (above ?b ?a))
  :effect (and (lift-at ?b) (not (lift-at ?a)))))
"""
HOUSE = """
(define (problem house) (:domain lift) (:objects p1 p2 - passenger f1 f2 f3 - floor)
 (:init (above f1 f2) (above f1 f3) (above f2 f3) (origin p1 f1) (destin p1 f3) (origin p2 f2) (destin p2 f1)
  (lift-at f2))
 (:goal (forall (?p - passenger) (served ?p))))
"""
PUZZLE = """
(define (domain npuzzle) (:predicates (tile ?t) (position ?p) (at ?t ?p) (empty ?p) (neighbor ?a ?b))
 (:action move :parameters (?t ?from ?to)
  :precondition (and (tile ?t) (position ?from) (position ?to) (neighbor ?from ?to) (at ?t ?from) (empty ?to))
  :effect (and (at ?t ?to) (empty ?from) (not (at ?t ?from)) (not (empty ?to)))))
"""
SQUARE = """
(define (problem square) (:domain npuzzle) (:objects t1 t2 t3 a b c d)
 (:init (tile t1) (tile t2) (tile t3) (position a) (position b) (position c) (position d) (neighbor a b) (neighbor b a)
  (neighbor a c) (neighbor c a) (neighbor b d) (neighbor d b) (neighbor c d) (neighbor d c) (at t1 a) (at t2 b)
  (at t3 c) (empty d))
 (:goal (and (at t1 b) (empty a))))
"""
SOKOBAN = """
(define (domain sokoban) (:requirements :equality :negative-preconditions)
 (:predicates (player ?x) (box ?x) (next ?x ?y) (line ?x ?y))
 (:action walk :parameters (?x ?y) :precondition (and (next ?x ?y) (not (box ?y)) (player ?x))
  :effect (and (player ?y) (not (player ?x))))
 (:action push :parameters (?x ?y ?z)
  :precondition (and (next ?x ?y) (next ?y ?z) (line ?x ?z) (player ?x) (box ?y) (not (box ?z)))
  :effect (and (box ?z) (not (box ?y)) (player ?y) (not (player ?x)))))
"""
CROSS = """
(define (problem cross) (:domain sokoban) (:objects a b c d e)
 (:init (next a c) (next c a) (next b c) (next c b) (next d c) (next c d) (next e c) (next c e) (line a b) (line b a)
  (line d e) (line e d) (player a) (box c))
 (:goal (and (box b) (not (player c)))))
"""
FERRY = """
(define (domain ferry)
 (:predicates (not-eq ?x ?y) (car ?c) (location ?l) (at-ferry ?l) (at ?c ?l) (empty-ferry) (on ?c))
 (:action sail :parameters (?from ?to)
  :precondition (and (not-eq ?from ?to) (location ?from) (location ?to) (at-ferry ?from))
  :effect (and (at-ferry ?to) (not (at-ferry ?from))))
 (:action board :parameters (?car ?loc)
  :precondition (and (car ?car) (location ?loc) (at ?car ?loc) (at-ferry ?loc) (empty-ferry))
  :effect (and (on ?car) (not (at ?car ?loc)) (not (empty-ferry))))
 (:action debark :parameters (?car ?loc)
  :precondition (and (car ?car) (location ?loc) (on ?car) (at-ferry ?loc))
  :effect (and (at ?car ?loc) (empty-ferry) (not (on ?car)))))
"""
PORT = """
(define (problem port) (:domain ferry) (:objects l1 l2 c1 c2)
 (:init (not-eq l1 l2) (not-eq l2 l1) (location l1) (location l2) (car c1) (car c2) (at c1 l1) (at c2 l2) (empty-ferry)
  (at-ferry l1))
 (:goal (and (at c1 l2) (at c2 l1))))
"""
PAIRS = {
    "grid": (GRID % "", ROOMS),
    "lock-grid": (GRID % LOCK, ROOMS),
    "hanoi": (HANOI, TOWER),
    "logistics": (LOGISTICS, POST),
    "miconic": (MICONIC, HOUSE),
    "npuzzle": (PUZZLE, SQUARE),
    "sokoban": (SOKOBAN, CROSS),
    "ferry": (FERRY, PORT),
}


def test_an_inner_variable_of_an_effect_is_not_the_outer_one_of_the_same_name():
    """The condition speaks of the action's ?x, the effects of all objects."""
    domain = """(define (domain d) (:predicates (p ?x) (q ?x) (r ?x))
 (:action a :parameters (?x) :effect (when (p ?x) (forall (?x) (and (q ?x) (when (q ?x) (forall (?x) (r ?x))))))))"""
    problem = "(define (problem x) (:domain d) (:objects a b) (:init (p a) (q b)) (:goal (and (q a) (r a))))"
    task = parse_task(Path("d.pddl"), domain, Path("p.pddl"), problem)
    steps = slow_steps(task, task.initial)
    assert steps["a b"] == task.initial
    assert steps["a a"] - task.initial == {("q", "a"), ("r", "a"), ("r", "b")}
    check(domain, problem)


@pytest.mark.parametrize("name", PAIRS)
def test_a_known_domain_is_what_going_through_all_objects_finds(name):
    model, happens = check(*PAIRS[name])
    assert {re.sub(r"#\d+", "", each) for each in model.names} == happens


@pytest.mark.parametrize("name", ["hanoi", "npuzzle", "sokoban", "ferry"])
def test_a_plan_found_in_the_ground_model_passes_the_validator(name, tmp_path):
    """unified-planning's validator reads the files by itself."""
    files = tmp_path / "d.pddl", tmp_path / "p.pddl"
    for path, text in zip(files, PAIRS[name]):
        path.write_text(text)
    read = read_problem(*files)
    model = read.domain.model
    plans = {read.initial: []}
    for state in (todo := [read.initial]):
        for number in model.applicable(state):
            after = model.result(state, number)
            if after not in plans:
                plans[after] = [*plans[state], model.names[number]]
                todo.append(after)
    plan = min((plan for state, plan in plans.items() if not read.goal & ~state), key=len)
    assert plan
    assert validated(files, plan)
    assert validated(files, plan[:-1]) is False


def test_the_validator_has_no_opinion_on_files_that_it_cannot_read(tmp_path):
    files = tmp_path / "d.pddl", tmp_path / "p.pddl"
    for path, text in zip(files, PAIRS["logistics"]):
        path.write_text(text)
    assert read_problem(*files).solved_by(["drive t1 l1 l3 c1"]) is False
    assert validated(files, ["drive t1 l1 l3 c1"]) is None


ANY = """
(define (domain any) (:requirements :adl) (:types red blue - colour thing) (:constants k - red)
 (:predicates (p ?x ?y - object) (q ?x - colour) (s ?x - thing) (r))
 %s)
"""
SOME = """
(define (problem some) (:domain any) (:objects a b - thing c - blue e - (either red thing) k - red)
 (:init %s)
 (:goal %s))
"""


def random_condition(rng, scope, depth):
    """A condition over variables with their types."""
    kind = rng.choice(
        ["atom", "atom", "not", "and", "or", "imply", "forall", "exists", "="] if depth else ["atom", "not"]
    )
    if kind in ("atom", "not"):
        atom = random_atom(rng, scope)
        return atom if kind == "atom" else f"(not {atom})"
    if kind == "=":
        return f"(= {rng.choice([*scope, 'k'])} {rng.choice([*scope, 'k'])})"
    if kind in ("forall", "exists"):
        type_of = rng.choice(["thing", "red", "(either blue thing)"])
        return f"({kind} (?v{depth} - {type_of}) {random_condition(rng, {**scope, f'?v{depth}': type_of}, depth - 1)})"
    parts = [random_condition(rng, scope, depth - 1) for _ in range(2)]
    return f"({kind} {' '.join(parts)})"


def random_atom(rng, scope):
    colours = [name for name, of in scope.items() if of in ("red", "colour")] + ["k"]
    things = [name for name, of in scope.items() if of == "thing"]
    made = [f"(q {rng.choice(colours)})", "(r)", f"(p {rng.choice([*scope, 'k'])} {rng.choice([*scope, 'k'])})"]
    if things:
        made.append(f"(s {rng.choice(things)})")
    return rng.choice(made)


def random_effect(rng, scope, depth=2):
    kind = rng.choice(["add", "delete", "when", "forall"] if depth else ["add", "delete"])
    if kind == "when":
        return f"(when {random_condition(rng, scope, 1)} {random_effect(rng, scope, depth - 1)})"
    if kind == "forall":
        return f"(forall (?e{depth} - thing) {random_effect(rng, {**scope, f'?e{depth}': 'thing'}, depth - 1)})"
    atom = random_atom(rng, scope)
    return atom if kind == "add" else f"(not {atom})"


def random_action(rng, number):
    scope = {f"?x{place}": rng.choice(["thing", "red", "colour"]) for place in range(rng.randint(0, 2))}
    parameters = " ".join(f"{name} - {of}" for name, of in scope.items())
    effects = " ".join(random_effect(rng, scope) for _ in range(rng.randint(1, 3)))
    return (
        f"(:action a{number} :parameters ({parameters}) :precondition {random_condition(rng, scope, 2)}\n"
        f"  :effect (and {effects}))"
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_domains_are_what_going_through_all_objects_finds(seed):
    rng = random.Random(seed)
    actions = "\n ".join(random_action(rng, number) for number in range(3))
    facts = ["(r)", "(q c)", "(q k)", "(q e)", "(s a)", "(s e)", "(p a b)", "(p k a)", "(p e e)"]
    initial = " ".join(rng.sample(facts, rng.randint(1, 6)))
    check(ANY % actions, SOME % (initial, rng.choice(["(r)", "(and (r) (not (q c)))", "(p a b)", "(s b)"])))


def test_an_atom_that_is_added_and_deleted_is_added():
    drive = "(:action drive :parameters (?a ?b - thing) :precondition (s ?a) :effect (and (s ?b) (not (s ?a))))"
    model, _ = check(ANY % drive, SOME % ("(s a)", "(s b)"))
    stays = model.actions[model.number["drive a a"]]
    assert model.spelled(stays.add) == ["s a"]
    assert not stays.delete


def test_two_static_conditions_that_rule_out_the_same_object():
    """unified-planning 1.3.0's grounder removes the object twice, and fails."""
    action = "(:action go :parameters (?x - thing) :precondition (and (p ?x k) (p ?x c) (s ?x)) :effect (not (s ?x)))"
    model, _ = check(ANY % action, SOME % ("(p a k) (p a c) (s a) (s b)", "(not (s a))"))
    assert model.names == ("go a",)


def test_what_would_become_too_many_actions_is_said_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr("statewise.strips.pddl.grounding.MOST_VARIANTS", 5)
    action = "\n(:action go :parameters () :effect (forall (?x ?y - thing) (when (p ?x ?y) (not (p ?x ?y)))))"
    (tmp_path / "d.pddl").write_text(ANY % action)
    (tmp_path / "p.pddl").write_text(SOME % ("(p a a) (p a b) (p b a)", "(r)"))
    with pytest.raises(ValueError, match=r"d\.pddl:5: the action 'go' .* more than 5 STRIPS actions"):
        read_problem(tmp_path / "d.pddl", tmp_path / "p.pddl")


def test_a_complement_has_a_name_that_no_declared_predicate_has():
    """Complements written by hand are common."""
    model, _ = check(
        """(define (domain d) (:predicates (clean ?x) (not-clean ?x))
            (:action wash :parameters (?x) :precondition (and (not (clean ?x)) (not-clean ?x)) :effect (clean ?x))
            (:action stain :parameters (?x) :precondition (clean ?x) :effect (not (clean ?x)))
            (:action tell :parameters (?x) :precondition (clean ?x) :effect (not (not-clean ?x))))""",
        "(define (problem p) (:domain d) (:objects a) (:init (not-clean a)) (:goal (not (clean a))))",
    )
    assert model.atoms == ("clean a", "not-clean-2 a", "not-clean a")
    assert model.spelled(model.actions[model.number["wash a"]].pre) == ["not-clean-2 a", "not-clean a"]


def test_no_more_variants_are_held_than_the_limit():
    with pytest.raises(_TooMany):
        _limited(count())


@pytest.mark.parametrize("seed", range(20))
def test_the_weakest_conditions_are_those_that_comparing_all_pairs_finds(seed):
    rng = random.Random(seed)
    some = {rng.getrandbits(8) & rng.getrandbits(8) | rng.choice([0, 1]) for _ in range(rng.randint(1, 40))}
    assert set(_weakest(some)) == {one for one in some if not any(other != one and not other & ~one for other in some)}


def test_a_number_that_is_only_written_changes_nothing():
    action = "(:functions (cost)) (:action go :parameters () :effect (and (r) (increase (cost) 2)))"
    assert check(ANY % action, SOME % ("(= (cost) 0)", "(not (r))"))[0].names == ("go",)


JOBS = """
(define (domain jobs) (:requirements :action-costs) (:predicates (free ?w) (%(name)s ?t ?w) (done ?t))
 (:functions (total-cost))
 (:action give :parameters (?t ?w) :precondition (free ?w)
  :effect (and (%(name)s ?t ?w) (not (free ?w)) (increase (total-cost) 1)))
 (:action work :parameters (?t ?w) :precondition (%(name)s ?t ?w)
  :effect (and (done ?t) (free ?w) (not (%(name)s ?t ?w)))))
"""
ONE_JOB = "(define (problem one) (:domain jobs) (:objects t w) (:init %s) (:goal (done t)))"


@pytest.mark.parametrize(
    "name", ["assign", "increase", "over", "start", "within", "preference", "unknown", "oneof", "at"]
)
def test_a_declared_predicate_is_one_though_its_name_means_something_in_pddl(name):
    model, happens = check(JOBS % {"name": name}, ONE_JOB % f"(free w) ({name} w t)")
    assert happens >= {"give t w", "work t w", "work w t"}
    assert f"{name} t w" in model.spelled(model.actions[model.number["give t w"]].add)
