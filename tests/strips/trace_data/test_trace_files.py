"""Reading and writing trace files: what is written comes back, and what is wrong is told with file and line."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statewise.strips.model.traces import Traces
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.trace_data.trace_files import BITS, read_traces, write_traces

ODD = st.text(st.sampled_from(" ,;\"'\\\t\n()[]{}:#|äß漢→😀\u2028\x85ab1"), min_size=1, max_size=6)
NAMES = (
    ODD.filter(lambda name: name == " ".join(name.split()))
    | st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=8)
).filter(lambda name: not BITS.fullmatch(name) and name == name.lower())


@st.composite
def any_traces(draw):
    actions = sorted(draw(st.lists(NAMES, min_size=1, max_size=5, unique=True)))
    numbers = st.integers(0, len(actions) - 1)
    rows = draw(st.lists(st.lists(numbers, min_size=1, max_size=5).map(tuple), min_size=1, max_size=5))
    return Traces(tuple(actions), tuple(rows), tuple(draw(st.integers(0, 1)) for _ in rows))


def spelled(found: Traces) -> list[tuple[list[str], int]]:
    return [([found.actions[at] for at in row], label) for row, label in zip(found.rows, found.labels)]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json", "txt"])
@settings(max_examples=40, deadline=None)
@given(any_traces())
@example(Traces(("stack b1 b2", 'the "big", one'), ((0, 1, 1), (1,)), (1, 0)))
def test_what_is_written_comes_back(ending, written):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / f"traces.{ending}"
        write_traces(written, path)
        assert read_traces(path, written.actions) == written == read_traces(str(path), written.actions)
        assert spelled(read_traces(path)) == spelled(written)  # actions numbered anew


def test_without_a_model_actions_are_sorted_and_those_that_occur(tmp_path):
    path = write(tmp_path, "trace_id,action\n1,b\n1,a\n2,c\n")
    assert read_traces(path) == Traces(("a", "b", "c"), ((1, 0), (2,)), (0, 0))
    assert read_traces(path, ["c", "x", "b", "a"]) == Traces(("c", "x", "b", "a"), ((2, 3), (0,)), (0, 0))


def test_drawn_traces_come_back(tmp_path):
    world = domain("blocksworld:2")
    drawn = traces(world, 40, 10, 1)
    for name in ("t.csv", "t.jsonl"):
        write_traces(drawn, tmp_path / name)
        assert read_traces(tmp_path / name, world.model.names) == drawn


def write(folder, text, name="some.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", 'trace_id,action\n1,sail  x\n1," sail\nx"\n1,sail\tx\n'),
        ("t.jsonl", '{"actions": ["sail  x", " sail\\nx", "sail\\u2028x "]}'),
        ("t.txt", "sail  x, sail\tx ,sail x"),
    ],
)
def test_white_space_in_names_counts_as_one_space(tmp_path, name, text):
    assert read_traces(write(tmp_path, text, name)) == Traces(("sail x",), ((0, 0, 0),), (0,))


@pytest.mark.parametrize(
    "text",
    [
        "trace_id,action,label\n1,a,0\n1,b,0\n1,a,1\n2,b,0\n2,b,0\n",  # a label a row
        "trace_id,action,label\n1,a,1\n1,b,\n1,a,\n2,b,0\n2,b,\n",  # once, on the first row
        "trace_id,action,label\n1,a,\n1,b,\n1,a,1\n2,b,\n2,b,\n",  # once, on the last; none
        "trace_id,action_id,label\n1,a,0\n1,b,0\n1,a,1\n2,b,0\n2,b,0\n",
        "label,action,note,trace_id\n0,a,x,1\n0,b,,1\n1,a,,1\n\n,b,,t\n,b,,t\n",  # other columns, empty lines
        "\ufefftrace_id , action, label\n1, a ,\n1,b,\n1,a, 1\n2,b,\n2,b,0\n",  # a byte order mark, spaces
        "trace_id,step,action,label\n1,0,a,\n1,1,b,\n1,2,a,1\n2,7,b,\n2,8,b,\n",
        "trace_id,action,label\r\n1,a,\r\n1,b,\r\n1,a,1\r\n2,b,\r\n2,b,\r\n",
    ],
)
def test_labels_and_columns_may_be_given_in_several_ways(tmp_path, text):
    assert read_traces(write(tmp_path, text)) == Traces(("a", "b"), ((0, 1, 0), (1, 1)), (1, 0))


def test_json_lines_without_a_label_are_positive(tmp_path):
    path = write(tmp_path, '{"actions": ["a", "b"]}\n\n{"actions": ["b"], "label": 1, "more": 2}\n', "t.jsonl")
    assert read_traces(path) == Traces(("a", "b"), ((0, 1), (1,)), (0, 1))


def test_json_names_may_be_numbers_and_hold_any_character(tmp_path):
    path = write(tmp_path, json.dumps({"actions": [3, "x(漢;", "x\u2028y"]}, ensure_ascii=False) + "\n", "t.jsonl")
    assert spelled(read_traces(path)) == [(["3", "x(漢;", "x y"], 0)]


CSV = "trace_id,action,label\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (CSV + "1,a,\n2,a,\n1,b,\n", 4, "trace 1 continues here after other traces; its rows must be contiguous"),
        (CSV + "1,a,\n1,,\n1,b,\n", 3, "trace 1 has a gap: no action here"),
        (CSV + "1,a,\n,b,\n", 3, "trace_id is empty"),
        ("trace_id,step,action\n1,1,a\n1,3,b\n", 3, "trace 1 has a gap: step 3 follows 1"),
        ("trace_id,step,action\n1,1,a\n1,1,b\n", 3, "trace 1 has a gap: step 1 follows 1"),
        ("trace_id,step,action\n1,one,a\n", 2, "step must be a whole number, not 'one'"),
        ("trace_id,action,label,action\n1,a,0,b\n", 1, "there are 2 columns action"),
        ("trace_id,action,Label\n1,a,0\n", 1, "the column Label would be ignored: call it label"),
        (CSV + "1,a,1\n1,b,1\n", 2, "label 1 on an action that is not the last of its trace"),
        (CSV + "1,a,0\n1,b,1\n1,b,0\n", 3, "label 1 on an action that is not the last"),
        (CSV + "1,a,\n1,b,1\n1,b,\n", 3, "label 1 on an action that is not the last"),
        (CSV + "1,a,0\n1,b,2\n", 3, "label must be 0 or 1, not 2"),
        (CSV + "1,a,yes\n", 2, "label must be a whole number, not 'yes'"),
        (CSV + "1,a,0\n1,b\n", 3, "2 cells, where the header has 3"),
        (CSV + "1,a,0,0\n", 2, "4 cells, where the header has 3"),
        ("trace,action\n1,a\n", 1, "the columns trace_id and action are needed, not trace, action"),
        ("trace_id,label\n1,0\n", 1, "the columns trace_id and action are needed, not trace_id, label"),
        ("", 1, "the columns trace_id and action are needed, not none"),
        (CSV + "1,a,0\n1,pickup b4,0\n", 3, "'pickup b4' is not an action of the model; did you mean 'pickup b1'?"),
        (CSV + '1,a,0\n1,"two\nlines",0\n1,zzz,0\n', 4, "'two lines' is not an action of the model"),
        (CSV + '1,"' + "a" * 200_000 + ",0\n", 2, "field larger than field limit"),
    ],
)
def test_bad_csv_is_told_with_its_line(tmp_path, text, line, message):
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(f"{path}:{line}: ") + ".*" + re.escape(message)):
        read_traces(path, ["a", "b", "pickup b1"])


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ('{"actions": ["a"]}\n{"actions": ["a"\n', 2, "not JSON: "),
        ('{"actions": ["a"]}\n\n"a"\n', 3, 'a trace must be {"actions": [...], "label": 0 or 1} or ["pick a", ...]'),
        ('{"action": ["a"]}\n', 1, "a trace must be"),
        ('{"actions": "ab"}\n', 1, "a trace must be"),
        ('{"actions": ["b"]}\n{"actions": ["a\\ud800"]}\n', 2, "contains half of a surrogate pair, which is not"),
        ('{"actions": ["a", ""]}\n', 1, "the trace has a gap: an action without a name"),
        ('{"actions": ["a", " "]}\n', 1, "the trace has a gap: an action without a name"),
        ('{"actions": ["a", null]}\n', 1, "the trace has a gap: an action without a name"),
        ('{"actions": ["a", ["b"]]}\n', 1, "an action must be a name, not ['b']"),
        ('{"actions": ["a"]}\n{"actions": []}\n', 2, "empty trace: it must have at least one action"),
        ('{"actions": ["a"], "label": 2}\n', 1, "label must be 0 or 1, not 2"),
        ('{"actions": ["a"], "label": true}\n', 1, "label must be 0 or 1, not true"),
        ('{"actions": ["a"], "label": "1"}\n', 1, 'label must be 0 or 1, not "1"'),
        ('{"actions": ["a"], "labels": [0]}\n', 1, 'the key "labels" would be ignored: call it label'),
        ('{"actions": ["a"]} {"actions": ["a"]}\n', 1, "follows the end of a trace on its line"),
        ('[{"actions": ["a"]},\n\n {"actions": []}]', 3, "empty trace"),
        ('{\n"actions": ["a"],\n "label":\n}\n', 4, "not JSON: Expecting value at column 1"),
        ('[{"actions": ["a"]},\n {"label": 1,\n "label": 1}]\n', 1, 'the key "label" occurs twice in one object'),
        ('\n["a", 1.5]\n', 2, "an action must be a name, not 1.5"),
        ("\n[]\n", 2, "an empty list: a trace must be"),
        ('{"actions": ["a"]}\n{"actions": ["bb"]}\n', 2, "'bb' is not an action of the model; did you mean 'b'?"),
        ('{"actions": ["a"]}\n{"actions": ["jump"]}\n', 2, "'jump' is not an action of the model"),
    ],
)
def test_bad_json_lines_are_told_with_their_line(tmp_path, content, line, message):
    path = write(tmp_path, content, "some.jsonl")
    with pytest.raises(ValueError, match=re.escape(f"{path}:{line}: ") + ".*" + re.escape(message)):
        read_traces(path, ["a", "b"])


def test_near_misses_are_only_offered_if_there_are_any(tmp_path):
    with pytest.raises(ValueError, match=r"not an action of the model$"):
        read_traces(write(tmp_path, CSV + "1,jump,0\n"), ["a", "b"])


@pytest.mark.parametrize(("name", "text"), [("t.csv", CSV), ("t.jsonl", "\n\n"), ("t.jsonl", "")])
def test_a_file_without_traces(tmp_path, name, text):
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / name)) + " holds no traces"):
        read_traces(write(tmp_path, text, name))


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "t.csv")) + r":\d+: not UTF-8 text \("):
        read_traces(tmp_path / "t.csv")


def test_parentheses_of_comments_and_columns_like_others_do_no_harm(tmp_path):
    (tmp_path / "plans.txt").write_text("; plans (one a line)\na\nb\n")
    assert read_traces(tmp_path / "plans.txt").rows == ((0,), (1,))
    assert read_traces(write(tmp_path, "trace_id,action,actions\n1,a,x\n")).actions == ("a",)
    with pytest.raises(ValueError, match="the column steps would be ignored: call it step"):
        read_traces(write(tmp_path, "trace_id,action,steps\n1,a,1\n"))


def test_a_folder_of_plans_holds_nothing_else_and_names_its_files(tmp_path):
    (tmp_path / "one.plan").write_text("(go a b)\n(stay)\n")
    found = read_traces(tmp_path)
    assert found.where(0) == "one.plan" == found.only([0]).where(0) == found.valid_only().where(0)
    (tmp_path / "walks.csv").write_text(CSV + "1,a,0\n")
    with pytest.raises(ValueError, match=r"walks\.csv: in a folder each file is a plan: give this file itself"):
        read_traces(tmp_path)


def test_a_folder_of_plans_holds_no_other_text(tmp_path):
    (tmp_path / "one.plan").write_text("(go a b)\n(stay)\n")
    (tmp_path / "run").write_text("\nplanner --fast domain.pddl\n")
    with pytest.raises(ValueError, match=r'run:2: "planner --fast .* is not written as the plan in one\.plan'):
        read_traces(tmp_path)


def test_plans_of_either_case_are_the_same_actions(tmp_path):
    (tmp_path / "ff.plan").write_text("step    0: UNSTACK B1 B2\n        1: PUT-DOWN B1\n")
    (tmp_path / "sas_plan").write_text("(unstack b1 b2)\n(put-down b1)\n; cost = 2 (unit cost)\n")
    found = read_traces(tmp_path)
    assert (found.actions, found.rows) == (("put-down b1", "unstack b1 b2"), ((1, 0), (1, 0)))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", CSV + "1,stay,\n1,GO a,\n2,go b,\n", "t.csv:4: 'go' and, at .*t.csv:3, 'GO' differ only in the case"),
        ("t.csv", CSV + "1,go a,\n1,go A,\n", "t.csv:3: 'go A' and, at .*t.csv:2, 'go a' differ only in the case"),
        ("t.txt", "Go a, stay\ngo a, stay\n", "t.txt:2: 'go' and"),
    ],
)
def test_names_that_differ_in_case_alone_are_refused(tmp_path, name, text, said):
    with pytest.raises(ValueError, match=said):
        read_traces(write(tmp_path, text, name))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", '[\n  {"actions": ["a", "b"]},\n  {\n    "actions": ["b"],\n    "label": 1\n  }\n]\n'),
        ("t.jsonl", '[{"actions": ["a", "b"]}, {"actions": ["b"], "label": 1}]'),
        ("t.json", '{\n"actions": ["a", "b"]\n}\n{"actions": ["b"],\n"label": 1}'),
        ("traces", ' {"actions": ["a", "b"]}\n{"actions": ["b"], "label": 1}\n'),  # told by how it begins
    ],
)
def test_json_may_span_lines_and_be_a_list(tmp_path, name, text):
    found = read_traces(write(tmp_path, text, name))
    assert found == Traces(("a", "b"), ((0, 1), (1,)), (0, 1))


def test_items_of_a_list_know_their_lines(tmp_path):
    found = read_traces(write(tmp_path, '\n[["a",\n"b"],\n ["b"]\n]\n', "t.json"))
    assert (found.rows, found.lines) == (((0, 1), (1,)), (2, 4))
    one = read_traces(write(tmp_path, '[\n  "a",\n  "b"\n]\n', "one.json"))
    assert (one.actions, one.rows) == (("a", "b"), ((0, 1),))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("t.csv", "trace_id,action,state\n1,a,on x\n", 1),
        ("t.csv", "trace_id,initialState,action\n1,,a\n", 1),
        ("t.csv", "trace_id,action,seen\n1,a,\n1,b,(on x y) (clear x)\n", 3),
        ("t.csv", 'trace_id,action,seen\n1,a,"[(p), (not (q a))]"\n', 2),
        ("t.jsonl", '{"actions": ["a"]}\n{"actions": ["a"], "states": [[], []]}\n', 2),
        ("t.jsonl", '{"actions": ["a", "b"], "seen": [["on x"], ["on y"], []]}\n', 1),
        ("t.jsonl", '{"actions": ["a"], "seen": [{"on x": true}]}\n', 1),
        ("t.txt", "(:trajectory\n (:objects x)\n (:init (on x))\n (:action (a))\n (:state (on x)))\n", 3),
        ("t.trajectory", "((:init (on x))\n(operator: (a))\n(:state (on x))\n)\n", 1),
    ],
)
def test_observed_states_are_refused_unless_they_are_to_be_ignored(tmp_path, name, text, line):
    path = write(tmp_path, text, name)
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}:{line}: .*observed state.*--ignore-states"):
        read_traces(path)
    found = read_traces(path, ignore_states=True)
    assert spelled(found)[0][0][0] == "a"


def test_what_else_a_file_holds_is_named(tmp_path):
    path = write(tmp_path, "trace_id,action,note,who\n1,a,(see below),x\n1,a,none,y\n")
    assert read_traces(path).unread == ("the column 'note'", "the column 'who'")
    path = write(tmp_path, '{"actions": ["a"], "cost": [1, 2]}\n', "t.jsonl")
    assert read_traces(path).unread == ('the key "cost"',)
    assert read_traces(write(tmp_path, CSV + "1,a,0\n")).unread == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [("t.csv", CSV + "1,a,\n1,0110,\n"), ("t.jsonl", '{"actions": ["1 0 1 1"]}'), ("t.txt", "0 0 1 1\n0 1 1 0\n")],
)
def test_bits_of_states_are_no_actions(tmp_path, name, text):
    with pytest.raises(ValueError, match=rf"{name}:\d: '[01 ]*' looks like the bits of a state, not like an action"):
        read_traces(write(tmp_path, text, name))
    assert read_traces(write(tmp_path, CSV + "1,1001,\n1,1010,\n")).actions == ("1001", "1010")  # numbers of actions


SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["actions", "label", "states", "x"]), inner, max_size=4)
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_input_ends_otherwise_than_with_traces_or_a_sentence(data):
    """Bytes, shapes of JSON, and pieces of all formats."""
    pieces = st.sampled_from(
        [
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            ",",
            ";",
            ":",
            "\n",
            " ",
            "0: ",
            "step 1: ",
            "a",
            "B b",
            "?x",
            '"',
            "trace_id,action",
            "1,a",
            "SequentialPlan:",
            "(:trajectory",
            "(:init",
            "(:action (a b))",
            "; cost = 1",
            "<log>",
            "[1.0]",
        ]
    )
    content = data.draw(
        st.binary(max_size=30)
        | SHAPES.map(lambda value: json.dumps(value, indent=data.draw(st.sampled_from([None, 1]))).encode())
        | st.lists(pieces, max_size=12).map(lambda parts: "".join(parts).encode())
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / data.draw(
            st.sampled_from(["t.csv", "t.jsonl", "t.json", "t.txt", "sas_plan", "t.trajectory"])
        )
        path.write_bytes(content)
        for given_path in (path, Path(folder)):
            said, found = None, None
            try:
                found = read_traces(given_path, ignore_states=data.draw(st.booleans()))
            except ValueError as error:
                said = str(error)
            assert str(given_path) in said if said is not None else all(found.rows)


def test_a_quote_that_is_not_closed_is_named_where_it_begins(tmp_path):
    for more in ("", "2,c,0\n" * 5):
        path = write(tmp_path, CSV + f'1,a,0\n1,"b c,0\n{more}')
        with pytest.raises(ValueError, match=rf"{path.name}:3: .*is a quotation mark not closed"):
            read_traces(path)


def test_a_csv_with_names_and_numbers_of_actions_is_read_by_name(tmp_path):
    for header, row in (("action,trace_id,action_id", "foo,1,7"), ("action_id,trace_id,action", "7,1,foo")):
        path = write(tmp_path, f"{header}\n{row}\n")
        assert read_traces(path).actions == ("foo",)
    assert read_traces(write(tmp_path, "action_id,trace_id\n7,1\n")).actions == ("7",)


def test_a_folder_holds_a_plan_per_file(tmp_path):
    (tmp_path / "one.plan").write_text("(go a b)\n(stay)\n; cost = 2\n")
    (tmp_path / "two.plan").write_text("(stay)\n")
    assert read_traces(tmp_path).rows == ((0, 1), (1,))
