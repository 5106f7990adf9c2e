"""Plans as planners and libraries print them."""

import re

import pytest

from statewise.strips.trace_data.plan_texts import READERS, expected, read_plan, read_plans


def plans(tmp_path, text, **options):
    """Each plan with the lines of its actions."""
    return [(each.actions, each.lines) for each in read_plans(text, tmp_path / "p", **options)]


ONE = [(["unstack b1 b2", "put-down b1"], [1, 2])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(unstack b1 b2)\n(put-down b1)\n; cost = 2 (unit cost)\n", ONE),
        ("0: unstack b1 b2\n1: put-down b1\n", ONE),
        ("step    0: unstack b1 b2\n        1: put-down b1\n     \n", ONE),
        ("0: unstack(b1, b2)\n1: put-down(b1)\n", ONE),
        ("unstack(b1, b2)\nput-down(b1)\n", ONE),
        ("0.0003:   (unstack b1 b2) [D:1.00; C:1.00]\n1e-3: (put-down b1) [1.0e-03] ; last\n", ONE),
        ("SequentialPlan:\n    go(a, b)\n    stay\n", [(["go a b", "stay"], [2, 3])]),
        ("SequentialPlan:\n    stay\nSequentialPlan:\n    stay\n", [(["stay"], [2]), (["stay"], [4])]),
        ("[go(a, b), stay]\n[stay]\n", [(["go a b", "stay"], [1, 1]), (["stay"], [2])]),
        ("SequentialPlan([go(a, b), stay])\n", [(["go a b", "stay"], [1, 1])]),
        ("go(a, b), stay()\n", [(["go a b", "stay"], [1, 1])]),
        ("0: a\n1: b\n0: c\n", [(["a", "b"], [1, 2]), (["c"], [3])]),  # the numbers begin again
        ("(a)\n; cost = 1\n(b)\n(c)\n; cost = 2\n", [(["a"], [1]), (["b", "c"], [3, 4])]),
        (
            "(go a  b) (stay)\n; of today\n\n0.5: (go b a) [1.0]\ngo a b, stay\n",
            [(["go a b", "stay"], [1, 1]), (["go b a"], [4]), (["go a b", "stay"], [5, 5])],
        ),
        ("a\nb, c\n", [(["a"], [1]), (["b", "c"], [2, 2])]),
        ("0: (a)\n0: (b)\n1.5: (c)\n", [(["a", "b", "c"], [1, 2, 3])]),
        ("0: a b, 1: c\n", [(["a b", "c"], [1, 1])]),
        (
            "Review [manual], Approve\n12:30 call, Close\n",
            [(["Review [manual]", "Approve"], [1, 1]), (["12:30 call", "Close"], [2, 2])],
        ),
        ("(pick[a] b) [1.0]\n(pick[b] b) (stay)\n", [(["pick[a] b"], [1]), (["pick[b] b", "stay"], [2, 2])]),
        ("; no plan\n\n", []),
        ("0.5: (go a) [2]\n2.0: (c) [1]\n1.5: (b) [1.0]\n", [(["go a", "b", "c"], [1, 3, 2])]),  # by their starts
        (
            "TimeTriggeredPlan:\n    0.0: go(a, b) [3/2]\n    3/2: stop\n    1/2: stay [1.0]\n",
            [(["go a b", "stay", "stop"], [2, 4, 3])],
        ),
        ("unstack b1 b2 (1)\nput-down b1 (1.5)\n", ONE),
    ],
)
def test_forms_of_plans(tmp_path, text, expected):
    assert plans(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        (
            "ff: parsing domain file\n\nff: found legal plan as follows\n\nstep    0: UNSTACK B1 B2\n"
            "        1: PUT-DOWN B1\n     \n\ntime spent:    0.00 seconds instantiating 12 easy\n",
            [(["UNSTACK B1 B2", "PUT-DOWN B1"], [5, 6])],
        ),
        (
            "INFO     Running search.\n[t=0.01s, 9 KB] Solution found!\n[t=0.01s, 9 KB] Actual search time: 0.0s\n"
            "unstack b1 b2 (1)\nput-down b1 (1)\n[t=0.01s, 9 KB] Plan length: 2 step(s).\nSolution found.\n"
            "stay (1)\nPlan length: 1 step(s).\n",
            [(["unstack b1 b2", "put-down b1"], [4, 5]), (["stay"], [8])],
        ),
        (
            "Modality: Incremental Planner\nPlan computed:\n   Time: (ACTION) [action Duration; action Cost]\n"
            " 0.0000: (UNSTACK B1 B2) [D:1.00; C:1.00]\n\n 1.0000: (PUT-DOWN B1) [D:1.00; C:1.00]\n\n\n"
            "Solution number: 1\nTotal time:      0.00\n",
            [(["UNSTACK B1 B2", "PUT-DOWN B1"], [4, 6])],
        ),
        (
            "Checking plan: p\nPlan to validate:\n\nPlan size: 2\n1:\n(unstack b1 b2)\n \n2:\n(put-down b1)\n \n"
            "Plan Validation details\n---\nChecking next happening (time 1)\nDeleting (handempty)\n",
            [(["unstack b1 b2", "put-down b1"], [6, 9])],
        ),
        ("Found Plan:\n0.0: (a)\n1.0: (b)\n\nPlan-Length:2\nMetric (Search):2.0\n", [(["a", "b"], [2, 3])]),
    ],
    ids=["FF", "Fast Downward", "LPG", "VAL", "ENHSP"],
)
def test_the_whole_output_of_planners(tmp_path, output, wanted):
    assert plans(tmp_path, output) == wanted
    if len(wanted) == 1:
        found = read_plan(output, tmp_path / "p")
        assert found is not None
        assert found.actions == wanted[0][0]


@pytest.mark.parametrize("reader", [each for each in READERS if each.name], ids=lambda each: each.example)
def test_each_reader_reads_its_example_and_is_named_where_nothing_fits(tmp_path, reader):
    assert all(each.actions for each in read_plans(reader.example, tmp_path / "p"))
    assert f"{reader.example} ({reader.name})" in expected()


@pytest.mark.parametrize(
    ("text", "pddl"), [("(GO)\n", True), ("0: GO\n", True), ("go(a)", True), ("GO, STAY\n", False)]
)
def test_which_forms_ignore_the_case_of_letters(tmp_path, text, pddl):
    assert [each.pddl for each in read_plans(text, tmp_path)] == [pddl]


def test_a_file_of_a_folder_is_one_plan(tmp_path):
    found = read_plan("(go a b) (stay)\n\n(stay)\n", tmp_path / "p")
    assert found is not None
    assert (found.line, found.actions, found.lines) == (1, ["go a b", "stay", "stay"], [1, 1, 3])
    assert read_plan("; empty\n", tmp_path / "p") is None
    with pytest.raises(ValueError, match="p:3: a second plan begins here"):
        read_plan("0: a\n1: b\n0: c\n", tmp_path / "p")


TRAJECTORY = """(:trajectory (:objects a b - room)
 (:init (at a))
 (:action (GO a b))
 (:state (at b))
 (:action stay)
 (:goal (at b)))
(trajectory (:action (stay)))
"""


def test_actions_of_trajectories(tmp_path):
    expected = [(["go a b", "stay"], [3, 5]), (["stay"], [7])]
    assert plans(tmp_path, TRAJECTORY, ignore_states=True) == expected
    without = re.sub(r"\((:init|:state) \(.*\)\)", "", TRAJECTORY)
    assert plans(tmp_path, without) == expected


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("stay\ngo, , stay\n", 2, "a gap: an action without a name"),
        ("(a) ()\n", 1, "a gap"),
        ("(a)\n(go) stay\n", 2, "text outside the parentheses"),
        ("(go a) [on a b]\n", 1, "text outside the parentheses"),
        ("(go (a b))\n", 1, "text outside the parentheses"),
        ("0: a\n2: b\n", 2, "a gap: step 2 follows 0"),
        ("0: a\nb\n", 2, '"b" is not written like line 1'),
        ("0: (a)\n1: (b)\n0: (c)\n", 3, "the time goes back from 1 to 0"),
        ("0: a, b\n", 1, "some actions of this line have a number"),
        ("(a)\n(b)\n\n(c)\n(d)\n", 4, "this line follows an empty one: if another plan begins here"),
        ("SequentialPlan:\n  a(b)\n\n  c(d)\n", 4, "follows an empty one"),
        ("PartialOrderPlan:\n    a(b)\n", 1, "PartialOrderPlan is not a sequence of actions"),
        ("TimeTriggeredPlan:\n    1/0: a(b) [1.0]\n", 2, "the time 1/0 divides by 0"),
        ("0: (a) [1]\n1: (b) [1]\n0: (c) [1]\n", 3, "the time goes back from 1 to 0"),
        ("Once upon a time, there was a plan.\n", 1, "is no plan that can be read; expected is one of these: "),
        ("seed: 3\n", 1, '"seed: 3" is no plan that can be read'),
        ("\x7fELF\x02\x01\n", 1, "is no plan that can be read"),
        ("# plans\n(a)\n", 1, "put a b (names alone)"),
        ("[go(a, b),\nstay]\n", 1, "must be closed on its line"),
        ("[go(a, b) stay]\n", 1, "is not a list of actions such as"),
        ('[Event "x"]\n1. e4 e5\n', 1, "is not a list of actions"),
        ("<log>\n<trace/>\n", 1, "is XML, not a plan"),
        (">seq\nACGT\n", 1, "is FASTA, not a plan"),
        ('a, b\n{"actions": ["a"]}\n', 2, "is JSON, not a plan"),
        ("; of blocks\n(define (problem p))\n", 2, "is a PDDL domain or problem, not a plan"),
        ("trace,step,action\n1,0,a\n", 1, "names the columns of a table, which must be trace_id and action"),
        ("a, b\nstate: on x, clear x\n", 2, '"state: on x" is a state, not an action'),
        ("(a)\n(:state (on x))\n", 2, "is a state, not actions"),
        ("(a)\n(:state\n (on x)\n)\n", 2, "is a state, not actions"),
        ("state 1: (on x) (clear x)\n", 1, "is a state, not actions"),
        ("(a)\n; state 1:\n(on x)\n", 2, 'the comment "; state 1:" begins a state'),
        ("(:trajectory (:init) (:action (a)))", 1, "(:init ...) is an observed state, which is not read yet"),
        ("(:trajectory (:action (a) (b)))", 1, "expected one action here"),
        ("(:trajectory\n (:act (a)))", 2, "is not a part of a trajectory that can be read"),
        ("(:trajectory\n (:action (a))\n", 1, "this parenthesis is not closed"),
        ("(:trajectory a)", 1, 'a trajectory has parts in parentheses, not "a"'),
        ("(:trajectory (:action (a))) b", 1, "stands outside the parentheses of a trajectory"),
    ],
)
def test_what_is_no_plan_is_named_with_its_line(tmp_path, text, line, said):
    with pytest.raises(ValueError, match=rf"p:{line}: .*{re.escape(said)}"):
        read_plans(text, tmp_path / "p")
