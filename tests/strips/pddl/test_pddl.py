import random
import re
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statewise.strips.model.model import Action, ActionModel
from statewise.strips.pddl.pddl import Problem, read_domain, read_problem, validated, write_pddl
from statewise.strips.trace_data.domains import Domain, domain
from statewise.strips.verification.mapping import match_atoms
from statewise.strips.write.pddl_export import export

BLOCKS = """
; blocks on a table
(define (domain blocks)
  (:requirements :strips :typing)
  (:types block)
  (:predicates (on ?a ?b - block) (ontable ?a - block) (clear ?a - block) (handempty) (holding ?a - block)
               (painted ?a - block))
  (:action pickup :parameters (?a - block)
    :precondition (and (clear ?a) (ontable ?a) (handempty))
    :effect (and (holding ?a) (not (clear ?a)) (not (ontable ?a)) (not (handempty))))
  (:action putdown :parameters (?a - block)
    :precondition (holding ?a)
    :effect (and (clear ?a) (ontable ?a) (handempty) (not (holding ?a))))
  (:action stack :parameters (?a ?b - block)
    :precondition (and (holding ?a) (clear ?b))
    :effect (and (on ?a ?b) (clear ?a) (handempty) (not (holding ?a)) (not (clear ?b))))
  (:action unstack :parameters (?a ?b - block)
    :precondition (and (on ?a ?b) (clear ?a) (handempty))
    :effect (and (holding ?a) (clear ?b) (not (on ?a ?b)) (not (clear ?a)) (not (handempty)))))
"""
THREE = """
(define (problem three) (:domain blocks)
  (:objects b1 b2 b3 - block)
  (:init (ontable b1) (on b3 b1) (clear b3) (ontable b2) (clear b2) (handempty) (painted b1))
  (:goal (and (on b1 b2) (painted b1))))
"""

TOWN = """
(define (domain town)
  (:requirements :adl :action-costs)
  (:types place parcel)
  (:constants home - place)
  (:predicates (at ?l - place) (road ?a ?b - place) (dirty ?l - place) (has ?p - parcel) (lost ?p - parcel))
  (:functions (total-cost) - number)
  (:action go :parameters (?a ?b - place)
    :precondition (and (at ?a) (not (= ?a ?b)) (or (road ?a ?b) (road ?b ?a)) (not (dirty ?b)))
    :effect (and (not (at ?a)) (at ?b) (increase (total-cost) 1)
                 (forall (?p - parcel) (when (has ?p) (dirty ?b)))))
  (:action wait :parameters (?a ?b - place)
    :precondition (and (at ?a) (= ?a ?b)) :effect (and (at ?b) (not (at ?a))))
  (:action look :parameters (?a - place) :precondition (at ?a))
  (:action clean :parameters (?a - place) :precondition (at ?a) :effect (not (dirty ?a)))
  (:action drop :parameters (?p - parcel)
    :precondition (and (forall (?x - parcel) (not (lost ?x))) (or (dirty home) (exists (?l - place) (dirty ?l))))
    :effect (when (has ?p) (not (has ?p)))))
"""
WALK = """
(define (problem walk) (:domain town)
  (:objects mill - place letter box - parcel)
  (:init (at home) (road mill home) (has letter) (= (total-cost) 0))
  (:goal (and (at mill) (not (has letter))))
  (:metric minimize (total-cost)))
"""


def written(folder, domain_text, problem_text):
    (folder / "domain.pddl").write_text(domain_text)
    (folder / "problem.pddl").write_text(problem_text)
    return folder / "domain.pddl", folder / "problem.pddl"


def same_language(one, other):
    """By going through the known-false sets of both models at once: the naive way."""
    other = other.with_actions(one.names)
    seen = {(0, 0)}
    todo = [(0, 0)]
    while todo:
        mine, theirs = todo.pop()
        possible = one.possible(mine)
        if possible != other.possible(theirs):
            return False
        for number in possible:
            after = one.after([number], mine), other.after([number], theirs)
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return True


def test_blocksworld_is_grounded_to_what_can_happen(tmp_path):
    read = read_problem(*written(tmp_path, BLOCKS, THREE))
    model = read.domain.model
    assert len(model.actions) == 18
    assert len(model.atoms) == 16
    assert "stack b1 b1" not in model.names
    assert not any("painted" in name for name in model.atoms)  # static, in the goal as well
    known = domain("blocksworld:3").model
    assert set(model.atoms) == set(known.atoms)
    assert same_language(model, known)
    assert match_atoms(model, known).as_names() == {name: name for name in known.atoms}


def test_initial_state_and_goal_come_along(tmp_path):
    paths = written(tmp_path, BLOCKS, THREE)
    read = read_problem(*paths)
    model = read.domain.model
    assert sorted(model.spelled(read.initial)) == [
        "clear b2",
        "clear b3",
        "handempty",
        "on b3 b1",
        "ontable b1",
        "ontable b2",
    ]
    assert model.spelled(read.goal) == ["on b1 b2"]
    assert read.domain.start == (read.initial,)
    assert read.files == paths
    assert read_domain(*paths) == read.domain
    assert len(read.domain.states) == len(domain("blocksworld:3").states)


def test_reading_says_nothing(tmp_path, capfd, recwarn):
    read_problem(*written(tmp_path, BLOCKS, THREE))
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert not recwarn.list


def test_what_strips_lacks_is_compiled_away(tmp_path):
    read = read_problem(*written(tmp_path, TOWN, WALK))
    model = read.domain.model
    actions = {
        each.name: (set(model.spelled(each.pre)), set(model.spelled(each.add)), set(model.spelled(each.delete)))
        for each in model.actions
    }
    # a road in either direction, and not to oneself; arriving with the letter makes dirty
    assert actions["go#1 home mill"] == (
        {"at home", "not-dirty mill", "has letter"},
        {"at mill", "dirty mill"},
        {"at home", "not-dirty mill"},
    )
    assert actions["go#2 home mill"] == ({"at home", "not-dirty mill", "not-has letter"}, {"at mill"}, {"at home"})
    assert "go#1 home home" not in actions
    assert actions["wait home home"] == ({"at home"}, {"at home"}, set())  # PDDL: what is added and deleted is added
    assert actions["look mill"] == ({"at mill"}, set(), set())
    dropped = {frozenset(pre) for name, (pre, add, _) in actions.items() if name.startswith("drop") and add}
    assert dropped == {frozenset({"dirty home", "has letter"}), frozenset({"dirty mill", "has letter"})}
    assert model.spelled(read.goal) == ["at mill", "not-has letter"]
    assert not any("lost" in name or "road" in name or "box" in name for name in model.atoms)


def random_town(rng):
    """TOWN with another initial state."""
    facts = [
        "(at home)",
        "(at mill)",
        "(road mill home)",
        "(road home mill)",
        "(has letter)",
        "(has box)",
        "(lost box)",
    ]
    facts += ["(dirty home)", "(dirty mill)"]
    chosen = rng.sample(facts, rng.randint(2, len(facts)))
    return WALK.replace("(at home) (road mill home) (has letter)", " ".join(chosen)), chosen


@pytest.mark.parametrize("seed", range(6))
def test_walks_in_the_ground_model_are_plans_for_the_validator(tmp_path, seed):
    """unified-planning's validator owes our grounding nothing: it must agree on every walk and the state after it."""
    rng = random.Random(seed)
    text, chosen = random_town(rng)
    read = read_problem(*written(tmp_path, TOWN, text))
    model, state, names = read.domain.model, read.initial, []
    for _ in range(6):
        possible = model.applicable(state)
        if not possible:
            break
        number = rng.choice(possible)
        names.append(model.names[number])
        state = model.result(state, number)
    held = {name for name in model.atoms if name in model.spelled(state) and not name.startswith("not-")}
    always = {fact.strip("()") for fact in chosen} - set(model.atoms)
    true = " ".join(f"({name})" for name in sorted(held | always))
    false = " ".join(f"(not ({name}))" for name in model.atoms if not name.startswith("not-") and name not in held)
    goal_text = text.replace("(and (at mill) (not (has letter)))", f"(and {true} {false})")
    assert validated(written(tmp_path, TOWN, goal_text), names)


def test_the_validator_refuses_what_cannot_be_done(tmp_path):
    paths = written(tmp_path, BLOCKS, THREE)
    plan = ["unstack b3 b1", "putdown b3", "pickup b1", "stack b1 b2"]
    read = read_problem(*paths)
    assert validated(paths, plan)
    assert read.solved_by(plan)
    for wrong in (plan[:-1], plan[1:], [*plan, "pickup b1"]):
        assert not validated(paths, wrong)
        assert not read.solved_by(wrong)
    assert not read.solved_by(["fly b1"])
    with pytest.raises(ValueError, match="'fly b1' is not an action"):
        validated(paths, ["fly b1"])


def test_a_goal_that_cannot_be_reached_is_kept(tmp_path):
    read = read_problem(*written(tmp_path, BLOCKS, THREE.replace("(on b1 b2)", "(on b1 b1)")))
    assert read.domain.model.spelled(read.goal) == ["on b1 b1"]
    assert not read.solved_by([])


ONE = "(define (domain d) (:requirements :adl :fluents)\n (:predicates (p) (q))\n %s)"
START = "(define (problem x) (:domain d)\n (:init (p))\n (:goal (p)))"
ACT = "(:action act :parameters () :precondition (p) :effect (not (p)))"


@pytest.mark.parametrize(
    ("domain_text", "problem_text", "said"),
    [
        ("(define (domain d)\n (:predicates (p)", START, r"domain\.pddl:2: cannot be read as PDDL"),
        ("", START, r"domain\.pddl:1: cannot be read"),
        (ONE % ":action", START, r"domain\.pddl:\d: cannot be read"),
        (ONE % ACT.replace("(not (p))", "(not (zz))"), START, r"domain\.pddl:3: .*zz"),
        (ONE % ACT, START.replace("(:init (p))", "(:init (zz))"), r"problem\.pddl:2: .*zz"),
        (ONE % ACT, "(define (problem x) (:domain d) (:init (p)))", r"problem\.pddl:1: .*goal"),
        (ONE % "(:derived (q) (p))", START, r"domain\.pddl:3: derived predicates"),
        (ONE % "(:predicates (r ?x)\n (r ?x ?y))", START, r"domain\.pddl:4: the predicate 'r' is declared twice"),
        (ONE % "(:predicates (or ?x ?y))", START, r"domain\.pddl:3: 'or' has .* it cannot be the name of a predicate"),
        (ONE % ACT.replace("(not (p))", "(oneof (p) (q))"), START, r"domain\.pddl:3: effects with oneof cannot be"),
        (ONE % ACT, START.replace("(:init (p))", "(:init (unknown (p)))"), r"problem\.pddl:2: initial .* unknown"),
        (
            ONE % ACT.replace(":action", ":acton"),
            START,
            r"domain\.pddl:3: \(:acton .* is not a section of a domain .*: did you mean :action\?",
        ),
        (ONE % "(:axiom :vars () :context (q) :implies (p))", START, r"domain\.pddl:3: \(:axiom .* is not a section"),
        (ONE % "(:timeless (q))", START, r"domain\.pddl:3: \(:timeless .* is not a section"),
        (ONE % "(:init (p))", START, r"domain\.pddl:3: \(:init .* is not a section of a domain"),
        (ONE % ACT, START.replace(":init", ":inits"), r"problem\.pddl:2: .* of a problem .*: did you mean :init\?"),
        (START, ONE % ACT, r"domain\.pddl:1: this is a problem, and .*problem\.pddl is a domain: swap the two"),
        (ONE % ACT, ONE % ACT, r"problem\.pddl:1: this is a domain, where a problem is expected"),
        (START, START, r"domain\.pddl:1: this is a problem, where a domain is expected"),
        (
            ONE % f"(:types t u) (:constants a - t)\n {ACT}",
            START.replace("(:init", "(:objects b\n a - u) (:init"),
            r"problem\.pddl:3: the object 'a' is of the type u here, and of t at .*domain\.pddl:3: declare it once",
        ),
        (ONE % ACT, START.replace("(:init", "(:objects a\n a - (either x y)) (:init"), r"the type 'x' is not declared"),
        (ONE % "(:durative-action a)", START, r"domain\.pddl:3: durative actions"),
        (
            ONE % ("; (:derived\n (:functions (f)) " + ACT.replace("(p)", "(and (p)\n (> (f) 1))", 1)),
            START.replace("(p))", "(p) (= (f) 0))", 1),
            r"domain\.pddl:5: numeric conditions \(>\) cannot be grounded",
        ),
        (ONE % ("(:functions (f)) " + ACT.replace("(p)", "(= (f) 1)", 1)), START, r"domain\.pddl:3: numeric .* \(=\)"),
        (
            ONE % ("(:functions (f) - object) " + ACT.replace("(p)", "(= (g) x)", 1)),
            START,
            r"domain\.pddl:3: object fluents",
        ),
        (ONE % ACT.replace("(p)", "(preference a (p))", 1), START, r"domain\.pddl:3: preferences \(preference\)"),
        (
            ONE % ACT.replace("(not (p))", "(and (not (p)) (increase p 1))"),
            START,
            r"domain\.pddl:3: the function 'p' is not declared",
        ),
        (ONE % ACT.replace("()", "(?a - thing)"), START, r"domain\.pddl:3: the type 'thing' is not declared"),
        (ONE % ACT.replace("(p)", "(p ?a)", 1), START, r"domain\.pddl:3: \(p \?a\): .* has 0 arguments, not 1"),
        (ONE % ACT.replace("(p)", "(= ?a ?a)", 1), START, r"domain\.pddl:3: '\?a' is not a parameter"),
        (ONE % f"{ACT}\n {ACT}", START, r"domain\.pddl:4: the action 'act' is declared twice"),
        (ONE % ACT + ")", START, r"domain\.pddl:3: cannot be read as PDDL: '\)' comes after"),
        (ONE % ACT.replace(":effect", ":cost (p) :effect"), START, r"domain\.pddl:3: ':cost' is not a part of an act"),
        (ONE % ACT, START.replace("(:init (p))", "(:init (p) (at 5 (q)))"), r"time.* cannot be grounded"),
        (
            ONE % ACT,
            START.replace("(:goal (p))", "(:goal (p)) (:constraints (always (p)))"),
            r"problem\.pddl:3: trajectory constraints",
        ),
        (
            ONE % f"{ACT} (:action back :parameters () :precondition (p) :effect (q))",
            START.replace("(:goal (p))", "(:goal (or (p) (q)))"),
            r"problem\.pddl:3: the goal is a disjunction \(or, imply, exists\)",
        ),
        (
            ONE % f"{ACT} (:action back :parameters () :precondition (p) :effect (q))",
            START.replace("(:goal (p))", "(:goal (and (q) (not (q))))"),
            r"problem\.pddl:3: no state satisfies the goal, which contradicts itself",
        ),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, domain_text, problem_text, said):
    with pytest.raises(ValueError, match=said):
        read_problem(*written(tmp_path, domain_text, problem_text))


def test_walks_need_no_goal(tmp_path):
    text = ONE % f"{ACT} (:action back :parameters () :precondition (p) :effect (q))"
    either, simple = (START.replace("(:goal (p))", f"(:goal {goal})") for goal in ("(or (p) (q))", "(q)"))
    (tmp_path / "other").mkdir()
    assert (
        read_domain(*written(tmp_path, text, either)).model
        == read_domain(*written(tmp_path / "other", text, simple)).model
    )


@pytest.mark.parametrize(("objects", "count"), [("a b - t", 2), ("a b - t a - t", 2), ("a b - (either t u)", 2)])
def test_an_object_may_be_declared_again_alike(tmp_path, objects, count):
    act = "(:action act :parameters (?x - t) :precondition (r ?x) :effect (not (r ?x)))"
    text = f"(define (domain d) (:types t u) (:predicates (r ?x - t))\n {act})"
    start = f"(define (problem x) (:domain d) (:objects {objects})\n (:init (r a) (r b))\n (:goal (r a)))"
    assert len(read_problem(*written(tmp_path, text, start)).domain.model.names) == count


def test_a_variable_needs_no_blank_before_it(tmp_path):
    act = "(:action go :parameters (?x?y -t) :precondition (at?x) :effect (and (at?y)(not(at?x))))"
    text = f"(define (domain d) (:types t) (:predicates (at?x-1 - t) (here? ?x - t))\n {act})"
    start = "(define (problem x) (:domain d) (:objects a b - t)\n (:init (at a) (here? a))\n (:goal (at b)))"
    assert read_problem(*written(tmp_path, text, start)).domain.model.names == ("go a a", "go a b", "go b a", "go b b")


PIECES = [
    "(",
    ")",
    "?x",
    "?",
    "-",
    "either",
    "define",
    "not",
    "and",
    "=",
    "()",
    "when",
    "forall",
    "object",
    "?x?y",
    "\n",
    ";",
    "increase",
    "(at 5 (p))",
    ":action",
    "problem",
    "domain",
    "0",
]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files_end_with_a_task_or_a_sentence(data):
    texts = []
    for whole in (BLOCKS, THREE):
        parts = re.findall(r"[()]|[^\s()]+|\s+", whole)
        for _ in range(data.draw(st.integers(0, 2))):
            at, piece = data.draw(st.integers(0, len(parts) - 1)), data.draw(st.sampled_from(PIECES))
            parts[at : at + data.draw(st.integers(0, 3))] = [piece]
        texts.append("".join(parts))
    with tempfile.TemporaryDirectory() as folder:
        files = written(Path(folder), *texts)
        said = None
        try:
            read_problem(*files)
        except ValueError as error:
            said = str(error)
        assert said is None or any(str(path) in said for path in files)


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\f", "\v"])
def test_a_comment_ends_at_the_end_of_its_line_alone(tmp_path, separator):
    read = read_problem(*written(tmp_path, ONE % f"; of {separator} (:action other :effect (q))\n{ACT}", START))
    assert read.domain.model.names == ("act",)


def test_missing_files_and_other_bytes(tmp_path):
    domain_path, problem_path = written(tmp_path, BLOCKS, THREE)
    with pytest.raises(FileNotFoundError):
        read_problem(tmp_path / "none.pddl", problem_path)
    with pytest.raises(FileNotFoundError):
        read_problem(domain_path, tmp_path / "none.pddl")
    problem_path.write_bytes(b"\xff\xfe(define")
    with pytest.raises(ValueError, match=r"problem\.pddl:1: not UTF-8"):
        read_problem(domain_path, problem_path)


def test_without_the_extra_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "unified_planning.environment", None)
    said = r"needs unified-planning: .*-m pip install .*unified-planning"
    with pytest.raises(ValueError, match=said):
        validated(written(tmp_path, BLOCKS, THREE), [])
    with pytest.raises(ValueError, match=said):
        write_pddl(domain("simple").model, tmp_path / "out.pddl", "simple")


NAMES = st.text(
    st.characters(codec="ascii", exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e", min_codepoint=32), max_size=6
)


@st.composite
def models(draw):
    atoms = draw(st.lists(NAMES | st.sampled_from(["and", "at", "object", "Not"]), min_size=1, max_size=5, unique=True))
    names = draw(st.lists(NAMES | st.sampled_from(["and", "action"]), min_size=1, max_size=5, unique=True))
    masks = st.integers(0, 2 ** len(atoms) - 1)
    return ActionModel(tuple(atoms), tuple(Action(name, draw(masks), draw(masks), draw(masks)) for name in names))


@given(models())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_reads_back_as_an_equivalent_model(tmp_path, model):
    everything = (1 << len(model.atoms)) - 1  # Definition 1 starts where all may be true
    task = Problem(Domain("any", model, (everything,)), everything, 0)
    path = tmp_path / "ground.pddl"
    write_pddl(model, path, "any name", problem=task)
    back = read_domain(path, tmp_path / "ground-problem.pddl").model
    assert len(back.actions) <= len(model.actions)
    # the names are others, but their order is the same; what h^2 left out can never be applied
    table = dict(
        line[2:].split(" = ", 1) for line in path.read_text().splitlines() if line.startswith("; ") and " = " in line
    )
    originals = [table.get(name, name) for name in back.names]
    assert set(originals) <= set(model.names)
    kept = ActionModel(model.atoms, tuple(model.actions[model.number[name]] for name in originals))
    for number, action in enumerate(model.actions):
        if action.name not in originals:
            assert all(number not in model.applicable(state) for state in model.reachable([everything]))
    assert same_language(
        kept,
        ActionModel(
            back.atoms,
            tuple(Action(name, each.pre, each.add, each.delete) for name, each in zip(originals, back.actions)),
        ),
    )


def test_a_line_break_in_a_name_does_not_end_the_comment_with_it(tmp_path):
    write_pddl(ActionModel.of(["p"], {"a\n(b": ([], ["p"], [])}), tmp_path / "out.pddl", "d")
    assert "; a-b = a (b\n" in (tmp_path / "out.pddl").read_text()
    (tmp_path / "p.pddl").write_text("(define (problem x) (:domain d) (:init) (:goal (p)))")
    assert read_domain(tmp_path / "out.pddl", tmp_path / "p.pddl").model.names == ("a-b",)


def test_a_domain_written_with_its_problem_is_the_same_task(tmp_path):
    read = read_problem(*written(tmp_path, BLOCKS, THREE))
    target = tmp_path / "new" / "ground.pddl"
    write_pddl(read.domain.model, target, "blocks", problem=read, problem_path=tmp_path / "new" / "p.pddl")
    back = read_problem(target, tmp_path / "new" / "p.pddl")
    assert [name.replace("-", " ") for name in back.domain.model.atoms] == list(read.domain.model.atoms)
    assert [each.pre for each in back.domain.model.actions] == [each.pre for each in read.domain.model.actions]
    assert (back.initial, back.goal) == (read.initial, read.goal)
    assert "; on-b1-b2 = on b1 b2" in target.read_text()


def test_a_problem_of_other_atoms_is_refused(tmp_path):
    read = read_problem(*written(tmp_path, BLOCKS, THREE))
    with pytest.raises(ValueError, match="not those of the model"):
        write_pddl(domain("simple").model, tmp_path / "out.pddl", "simple", problem=read)


def test_every_action_is_written_with_condition_and_effect(tmp_path):
    model = ActionModel.of(["p"], {"free": ([], ["p"], []), "idle": (["p"], [], []), "nothing": ([], [], [])})
    write_pddl(model, tmp_path / "out.pddl", "d")
    text = (tmp_path / "out.pddl").read_text()
    assert text.count(":action") == text.count(":precondition") == text.count(":effect") == 3
    assert text.count("(") == text.count(")")


def test_export_names_atoms_by_number_or_by_the_reference(tmp_path):
    true = domain("simple").model
    learned = ActionModel(("x", "y", "z"), true.actions)
    assert export(learned, tmp_path / "a.pddl").atoms == ("p0", "p1", "p2")
    assert "(p2)" in (tmp_path / "a.pddl").read_text()
    assert export(learned, tmp_path / "b.pddl", reference=true) == true
    assert "(r)" in (tmp_path / "b.pddl").read_text()
    assert not list(Path(tmp_path).glob("*problem*"))
