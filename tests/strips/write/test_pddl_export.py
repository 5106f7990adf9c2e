"""Evidence of traces, signatures, and lifted PDDL: read again by unified-planning, solved by a planner on larger
instances, and valid in the true domain."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas_by_hand import BLOCKSWORLD, FERRY, as_schemas

from statewise.strips.model.model import MOST_ACTIONS, Action, ActionModel, accepted, bits, evidence_of
from statewise.strips.model.schemas import Schema, ground, signature
from statewise.strips.pddl.domain_models import model_of_domain
from statewise.strips.pddl.pddl import read_problem, validated
from statewise.strips.planning.planner import find_plan, installed
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.verification import verify
from statewise.strips.write.pddl_export import complements, export_lifted


def with_complements(by_hand, names):
    """The schemas with a predicate `no-P` for each P in `names`, which is false just where P is true."""
    parts = {name: [set(part) for part in each] for name, each in by_hand.items()}
    for pre, add, delete in parts.values():
        gained, lost = ({(f"no-{name}", at) for name, at in part if name in names} for part in (delete, add))
        pre |= lost
        add |= gained
        delete |= lost
    return as_schemas(parts)


PARKED = {  # `at` is a keyword of PDDL
    name: tuple({("parked" if predicate == "at" else predicate, at) for predicate, at in part} for part in parts)
    for name, parts in FERRY.items()
}
SMALL = {"ferry": domain("ferry:3x2").model.names, "blocksworld": domain("blocksworld:3").model.names}
LEARNED = {
    "ferry": with_complements(PARKED, {"parked", "at-ferry"}),
    "blocksworld": with_complements(BLOCKSWORLD, {"holding", "on"}),
}


def walk(spec, length, seed=1):
    """A valid trace of names, the longest of several."""
    drawn = traces(domain(spec), 20, length, seed, negatives=0)
    return [drawn.actions[at] for at in max(drawn.rows, key=len)]


# Evidence


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_evidence_is_what_all_states_that_allow_the_trace_share(data):
    """The slow way: run the trace from every state."""
    sets = st.integers(0, 7)
    actions = []
    for name in "abc":
        pre, delete = data.draw(sets) & data.draw(sets), data.draw(sets)
        actions.append(Action(name, pre, data.draw(sets) & ~delete, delete))
    model = ActionModel(("x", "y", "z"), tuple(actions))
    trace = data.draw(st.lists(st.integers(0, 2), max_size=5))
    if model.first_rejected(trace) is not None:
        return
    found = evidence_of(model, trace)
    ends = {}
    for state in range(8):
        now = state
        for number in trace:
            if model.actions[number].pre & ~now:
                break
            now = model.result(now, number)
        else:
            ends[state] = now
    always, never = 7, 7
    for state, end in ends.items():
        always &= state
        never &= ~state
        assert not found.true & ~end
        assert not found.false & end
    assert ends
    assert found.required == always
    assert not never
    shared, lacking = 7, 7
    for end in ends.values():
        shared &= end
        lacking &= ~end
    assert (found.true, found.false) == (shared, lacking)
    assert not found.required & (found.added | found.deleted)
    assert not found.added & found.deleted
    touched = 0
    for number in trace:
        touched |= model.actions[number].add | model.actions[number].delete
    assert found.achieved == found.true & touched
    assert not touched & ~(found.required | found.added | found.deleted)


def test_a_rejected_trace_is_refused_with_the_action():
    model = ActionModel.of(["p"], {"a": ([], [], ["p"]), "b": (["p"], [], [])})
    assert accepted(model, ["b", "a"], "t.csv") == [1, 0]
    with pytest.raises(ValueError, match=r"t.csv: the model rejects action 2, 'b', which requires p"):
        accepted(model, ["a", "b"], "t.csv")
    with pytest.raises(ValueError, match="'c' is not an action"):
        accepted(model, ["c"], "t.csv")


# Signatures


def test_a_signature_grounds_over_other_objects():
    known = signature(LEARNED["ferry"], SMALL["ferry"])
    sail, board = known.parameters["sail"], known.parameters["board"]
    assert sail == (board[1], board[1])
    assert known.predicates["parked"] == board
    assert known.predicates["empty"] == ()
    large = domain("ferry:4x3").model.names
    assert set(known.actions_over(known.objects_of(large))) == set(large)
    assert not known.may_be_equal("sail", 0, 1)
    loops = signature({}, ["drive t a a", "drive t a b", "rest"])
    assert loops.may_be_equal("drive", 1, 2)
    assert set(loops.actions_over({"t": loops.objects["t"], "c": loops.objects["a"]})) == {"drive t c c", "rest"}


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (["fly a b"], "the model has no schema 'fly'; it has board, debark, sail"),
        (["sail a"], "'sail a' has 1 argument, but 'sail' was learned with 2"),
        (["sail a b", "board a b"], "the object 'a' is of another sort here"),
        ([" "], "is not an action"),
    ],
)
def test_actions_that_do_not_fit(actions, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        signature(LEARNED["ferry"], sorted(SMALL["ferry"])).objects_of(actions)


def test_schemas_that_do_not_fit_their_ground_actions():
    nothing = frozenset()
    for literals, message in (
        ({("p", (3,))}, "the schema 'sail' uses argument 4, but has 2"),
        ({("p", (0,)), ("p", ())}, "the predicate 'p' has 0 and 1 arguments"),
    ):
        with pytest.raises(ValueError, match=message):
            signature({"sail": Schema(frozenset(literals), nothing, nothing)}, SMALL["ferry"])
    with pytest.raises(ValueError, match="the schema 'fly' has no ground action"):
        signature({"fly": Schema(frozenset({("p", ())}), nothing, nothing)}, SMALL["ferry"])
    known = signature({}, ["meet a b c d", "greet a b c d", "meet b c d a"])
    with pytest.raises(ValueError, match=f"30 objects make 1,620,000 ground actions; the most are {MOST_ACTIONS:,}"):
        known.actions_over(dict.fromkeys(map(str, range(30)), known.objects["a"]))


# Complements


def test_complements_and_copies_are_found_whatever_the_order_of_their_arguments():
    turned = {
        name: Schema(
            *(
                frozenset((predicate, at[::-1] if predicate == "no-on" else at) for predicate, at in part)
                for part in (each.pre, each.add, each.delete)
            )
        )
        for name, each in LEARNED["blocksworld"].items()
    }
    folds = complements(turned, signature(turned, SMALL["blocksworld"]), {"on": 0.2, "holding": 0.2})
    assert folds.keys() == {"no-on", "no-holding"}
    assert (folds["no-on"].into, folds["no-on"].places, folds["no-on"].same) == ("on", (1, 0), False)
    doubled = {
        name: Schema(
            each.pre,
            *(part | {("copy", at) for predicate, at in part if predicate == "on"} for part in (each.add, each.delete)),
        )
        for name, each in as_schemas(BLOCKSWORLD).items()
    }
    folds = complements(doubled, signature(doubled, SMALL["blocksworld"]))
    assert {name: (fold.into, fold.same) for name, fold in folds.items()} == {"copy": ("on", True)}


# Files


def literals(text):
    return set(re.findall(r"\(not \([^()]*\)\)|\([^()]*\)", text))


def test_the_domain_is_typed_and_complements_are_negative_preconditions(tmp_path):
    trace = ["board c7 l1", "sail l1 l9", "debark c7 l9"]
    written = export_lifted(LEARNED["ferry"], SMALL["ferry"], tmp_path / "domain.pddl", trace=trace)
    text = (tmp_path / "domain.pddl").read_text()
    assert ":typing :negative-preconditions :equality" in text
    assert "(sail" not in text.partition("(:predicates")[2].partition("(:action")[0]
    assert re.search(r"\(parked \?x1 - type-c \?x2 - type-l\)", text)
    assert "no-" not in text.partition("(define")[2]
    sail = text.partition("(:action sail")[2].partition("(:action")[0]
    assert literals(sail.partition(":precondition")[2].partition(":effect")[0]) >= {
        "(at-ferry ?x1)",
        "(not (at-ferry ?x2))",
        "(not (= ?x1 ?x2))",
    }
    assert written.folded == {"no-parked": "not parked", "no-at-ferry": "not at-ferry"}
    assert set(written.known) == {
        "(parked c7 l1)",
        "(empty)",
        "(at-ferry l1)",
        "(not (at-ferry l9))",
        "(not (parked c7 l9))",
    }
    assert written.assumed == ("(not (on c7))",)
    assert written.unknown == ()
    problem = (tmp_path / "problem.pddl").read_text()
    assert literals(problem.partition("(:init")[2].partition("(:goal")[0]) == {
        "(parked c7 l1)",
        "(empty)",
        "(at-ferry l1)",
    }
    assert literals(problem.partition("(:goal")[2]) == {
        "(parked c7 l9)",
        "(empty)",
        "(at-ferry l9)",
        "(not (parked c7 l1))",
        "(not (at-ferry l1))",
    }


def test_a_goal_that_is_a_complement_alone_is_written(tmp_path):
    """The trace ends with the car on board: at its beginning all atoms of the goal held but these."""
    export_lifted(LEARNED["ferry"], SMALL["ferry"], tmp_path / "f.pddl", trace=["board c7 l1"])
    problem = (tmp_path / "f-problem.pddl").read_text()
    assert "(not (parked c7 l1))" in problem.partition("(:goal")[2]


def test_what_is_not_known_is_said_and_is_false_whatever_it_is(tmp_path):
    """The trace does not show whether the car was at l1, and the model has predicates for either."""
    trace = ["sail l1 l2", "board c1 l2"]
    written = export_lifted(LEARNED["ferry"], SMALL["ferry"], tmp_path / "f.pddl", trace=trace)
    assert written.folded == {"no-at-ferry": "not at-ferry"}
    assert set(written.unknown) >= {"(parked c1 l1)", "(no-parked c1 l1)"}
    text = (tmp_path / "f-problem.pddl").read_text()
    assert "; unknown, assumed to be false: (parked c1 l1) (no-parked" in text
    assert "(parked c1 l2)" in text.partition("(:init")[2].partition("(:goal")[0]


def test_other_traces_show_which_of_two_complements_is_exclusive(tmp_path):
    trace = ["sail l1 l2", "board c1 l2"]
    moves = ["board a x", "sail x y", "debark a y", "board a y", "sail y z", "debark a z"]
    written = export_lifted(LEARNED["ferry"], SMALL["ferry"], tmp_path / "f.pddl", trace=trace, others=[moves])
    assert written.folded["no-parked"] == "not parked"
    assert written.unknown == ("(parked c1 l1)",)


def test_complements_that_the_trace_contradicts_are_two_predicates(tmp_path):
    """Both are required before either is affected."""
    p, q = {("p", (0,))}, {("q", (0,))}
    schemas = as_schemas({"up": (p, q, p), "down": (q, p, q), "look": (p | q, set(), set())})
    actions = ["up a", "down a", "look a"]
    assert export_lifted(schemas, actions, tmp_path / "d.pddl").folded == {"q": "not p"}
    written = export_lifted(schemas, actions, tmp_path / "d.pddl", trace=["look b", "up b"])
    assert written.folded == {}
    assert set(written.known) == {"(p b)", "(q b)"}


def test_names_are_valid_and_objects_keep_theirs(tmp_path):
    strange = as_schemas({"<b>go": ({("p", (0,))}, {("q", (0,))}, {("p", (0,))})})
    written = export_lifted(strange, ["<b>go P"], tmp_path / "domain.pddl", trace=["<b>go p"])
    read = read_problem(tmp_path / "domain.pddl", tmp_path / "problem.pddl")
    assert read.domain.model.names == ("b-go p",)
    assert written.predicates == ("p-3", "q")
    assert "; b-go = <b>go" in (tmp_path / "domain.pddl").read_text()


def test_predicates_are_named_after_those_they_match(tmp_path):
    numbered = {
        name: Schema(
            *(
                frozenset((f"p{len(predicate)}", at) for predicate, at in part)
                for part in (each.pre, each.add, each.delete)
            )
        )
        for name, each in as_schemas(PARKED).items()
    }
    reference = domain("ferry:3x2").model
    written = export_lifted(numbered, SMALL["ferry"], tmp_path / "d.pddl", reference=reference)
    assert set(written.predicates) == {"at-2", "at-ferry", "empty-ferry", "on"}


def ground_files(folder, name, schemas, actions, trace, positive):
    """The problem that an export writes, read again."""
    export_lifted(schemas, actions, folder / f"{name}.pddl", trace=trace, positive_preconditions=positive)
    return read_problem(folder / f"{name}.pddl", folder / f"{name}-problem.pddl")


def states_by_walks(problem, renamed, depth):
    """The walks of up to `depth` actions from the initial state, each with whether the goal holds after it."""
    model, ends = problem.domain.model, {(): problem.initial}
    found = {}
    for _ in range(depth + 1):
        found |= {walk: not problem.goal & ~state for walk, state in ends.items()}
        ends = {
            (*walk, renamed(model.names[number])): model.result(state, number)
            for walk, state in ends.items()
            for number in model.applicable(state)
        }
    return found


@pytest.mark.parametrize("family", ["ferry", "blocksworld"])
def test_without_negative_preconditions_the_same_walks_are_possible(family, tmp_path):
    trace = walk("ferry:2x2" if family == "ferry" else "blocksworld:2", 8)
    mine, plain = (
        ground_files(tmp_path, name, LEARNED[family], SMALL[family], trace, positive)
        for name, positive in (("plain", True), ("negative", False))
    )
    text = (tmp_path / "plain.pddl").read_text()
    assert ":requirements :strips :typing)" in text
    for name in ("plain", "plain-problem"):
        whole = (tmp_path / f"{name}.pddl").read_text().partition("(define")[2]
        assert "(= " not in whole
        assert all("(not " not in part.partition(":effect")[0] for part in whole.split("(:"))
    walks = states_by_walks(mine, str, 4)
    assert walks == states_by_walks(plain, str, 4)
    assert len(walks) > 10
    learned = ground(LEARNED[family], SMALL[family])
    for name in ("plain", "negative"):
        verdict = verify(model_of_domain(tmp_path / f"{name}.pddl", SMALL[family]), learned)
        assert (verdict.outcome, verdict.proven) == ("equivalent", "all instances")
    assert mine.solved_by(trace)
    assert validated((tmp_path / "plain.pddl", tmp_path / "plain-problem.pddl"), trace) is not False


def test_an_action_that_adds_and_deletes_one_atom_if_its_arguments_are_the_same_becomes_two(tmp_path):
    """`drive t a a` leaves the truck at a, so that it is false that it is not there."""
    before, after = ("at", (0, 1)), ("at", (0, 2))
    schemas = with_complements({"drive": ({before}, {after}, {before})}, {"at"})
    schemas["drive"] = Schema(frozenset({before}), schemas["drive"].add, schemas["drive"].delete)
    schemas["look"] = Schema(frozenset({("no-at", (0, 1))}), frozenset(), frozenset())
    actions = ["drive t a b", "drive t b a", "drive t a a", "look t a", "look t b"]
    trace = ["drive t a b", "look t a"]
    plain = ground_files(tmp_path, "plain", schemas, actions, trace, True)
    assert "; drive = drive ?x1 ?x2 ?x3\n; drive-2 = drive ?x1 ?x2 ?x2\n" in (tmp_path / "plain.pddl").read_text()
    spelled = {"drive-2 t a": "drive t a a", "drive-2 t b": "drive t b b"}
    walks = states_by_walks(plain, lambda name: spelled.get(name, name), 3)
    negative = ground_files(tmp_path, "negative", schemas, actions, trace, False)
    assert walks == states_by_walks(negative, str, 3)
    assert ("drive t a a", "drive t a b", "look t a") in walks
    assert ("drive t a a", "look t a") not in walks


@pytest.mark.parametrize("family", ["ferry", "blocksworld"])
def test_pyperplan_itself_solves_what_is_exported_for_it(family, tmp_path):
    planner = pytest.importorskip("pyperplan.planner")
    trace = walk("ferry:3x2" if family == "ferry" else "blocksworld:3", 8)
    problem = ground_files(tmp_path, "plain", LEARNED[family], SMALL[family], trace, True)
    search = planner.SEARCHES["bfs"]
    found = planner.search_plan(str(tmp_path / "plain.pddl"), str(tmp_path / "plain-problem.pddl"), search, None)
    assert len(found) <= len(trace)
    assert problem.solved_by([step.name.strip("()") for step in found])


SPECS = [("ferry", "ferry:4x3"), ("blocksworld", "blocksworld:4")]


@pytest.mark.parametrize(("family", "larger"), SPECS)
def test_the_files_mean_the_true_domain_on_an_instance_larger_than_any_trace(family, larger, tmp_path):
    where = domain(larger)
    trace = walk(larger, 30)
    export_lifted(LEARNED[family], SMALL[family], tmp_path / "domain.pddl", trace=trace)
    problem = read_problem(tmp_path / "domain.pddl", tmp_path / "problem.pddl")
    model = problem.domain.model
    assert problem.solved_by(trace)
    assert validated((tmp_path / "domain.pddl", tmp_path / "problem.pddl"), trace) is not False
    mine = [name for name in where.model.names if name in model.number]
    assert set(trace) <= set(mine)
    truth = ActionModel(where.model.atoms, tuple(where.model.actions[where.model.number[name]] for name in mine))
    learned = ActionModel(model.atoms, tuple(model.actions[model.number[name]] for name in mine))
    start = [state for state in where.states if can_be_done(where.model, state, trace)]
    assert start
    # in the file's initial state exactly the true traces are applicable, as far as the trace shows that state
    for state in start[:1]:
        agree = {number for number in range(len(mine)) if not truth.actions[number].pre & ~state}
        assert set(learned.applicable(problem.initial)) <= agree


def can_be_done(model, state, names):
    for name in names:
        number = model.number.get(name)
        if number is None or model.actions[number].pre & ~state:
            return False
        state = model.result(state, number)
    return True


@pytest.mark.skipif(not installed(), reason="no planner is installed")
@pytest.mark.parametrize(("family", "larger"), SPECS)
@pytest.mark.usefixtures("forked")
def test_plans_of_a_real_planner_are_valid_in_the_true_domain(family, larger, tmp_path):
    where = domain(larger)
    trace = walk(larger, 24, seed=3)
    assert verify(ground(LEARNED[family], where.model.names), where, drawn_only=True).proven == "all instances"
    export_lifted(LEARNED[family], SMALL[family], tmp_path / "domain.pddl", trace=trace)
    problem = read_problem(tmp_path / "domain.pddl", tmp_path / "problem.pddl")
    model = problem.domain.model
    found = find_plan(model, problem.initial, problem.goal, installed()[0], 120)
    assert found
    plan = [model.names[number] for number in found]
    assert problem.solved_by(plan)
    starts = [state for state in where.states if can_be_done(where.model, state, trace)]
    assert starts
    assert all(can_be_done(where.model, state, plan) for state in starts)
    assert len(list(bits(problem.goal))) > 1
