"""Reading and writing trace files: what is written comes back, and what is wrong is told with file and line."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statewise.strips.domains import domain
from statewise.strips.random_traces import Traces, traces
from statewise.strips.trace_files import read_traces, write_traces

ODD = st.text(st.sampled_from(" ,;\"'\\\t\n()[]{}:#|äß漢→😀\u2028\x85ab1"), min_size=1, max_size=6)
NAMES = ODD.filter(lambda name: name == " ".join(name.split())) | st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=8
)


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
        assert read_traces(path, written.actions) == written
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
        ('{"actions": ["a"]}\n\n["a"]\n', 3, 'a line must hold {"actions": [...], "label": 0 or 1}'),
        ('{"action": ["a"]}\n', 1, "a line must hold"),
        ('{"actions": "ab"}\n', 1, "a line must hold"),
        ('{"actions": ["b"]}\n{"actions": ["a\\ud800"]}\n', 2, "holds half of a surrogate pair, which is no"),
        ('{"actions": ["a", ""]}\n', 1, "the trace has a gap: an action without a name"),
        ('{"actions": ["a", " "]}\n', 1, "the trace has a gap: an action without a name"),
        ('{"actions": ["a", null]}\n', 1, "the trace has a gap: an action without a name"),
        ('{"actions": ["a", ["b"]]}\n', 1, "an action must be a name, not ['b']"),
        ('{"actions": ["a"]}\n{"actions": []}\n', 2, "empty trace: it must have at least one action"),
        ('{"actions": ["a"], "label": 2}\n', 1, "label must be 0 or 1, not 2"),
        ('{"actions": ["a"], "label": true}\n', 1, "label must be 0 or 1, not True"),
        ('{"actions": ["a"], "label": "1"}\n', 1, "label must be 0 or 1, not '1'"),
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
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "t.csv")) + ": not UTF-8 text"):
        read_traces(tmp_path / "t.csv")


def test_a_text_file_holds_a_plan_per_line(tmp_path):
    (tmp_path / "plans.txt").write_text("(go a  b) (stay)\n; cost = 2\n\n0.5: (go b a) [1.0]\ngo a b, stay\n")
    found = read_traces(tmp_path / "plans.txt")
    assert found.actions == ("go a b", "go b a", "stay")
    assert (found.rows, found.labels, found.lines) == (((0, 2), (1,), (0, 2)), (0, 0, 0), (1, 4, 5))


def test_times_durations_and_costs_of_plans_are_left_out(tmp_path):
    (tmp_path / "lpg.plan").write_text("0.0003:   (GO A B) [D:1.00; C:1.00]\n1e-3: (STAY) [1.0e-03] ; last\n")
    assert read_traces(tmp_path).actions == ("GO A B", "STAY")


def test_brackets_of_names_stay(tmp_path):
    (tmp_path / "plans.txt").write_text("Review [manual], Approve\nReview [auto], Approve\n")
    assert read_traces(tmp_path / "plans.txt").actions == ("Approve", "Review [auto]", "Review [manual]")
    (tmp_path / "plans.txt").write_text("(pick[a] b) [1.0]\n(pick[b] b) (stay)\n")
    assert read_traces(tmp_path / "plans.txt").actions == ("pick[a] b", "pick[b] b", "stay")


def test_a_file_of_one_plan_is_not_taken_for_several(tmp_path):
    path = tmp_path / "plan.txt"
    path.write_text("(go a b)\n(stay)\n; cost = 2 (unit cost)\n")
    with pytest.raises(ValueError, match=r"plan\.txt:1: each line has one action in parentheses, .* put the file into"):
        read_traces(path)
    path.write_text("(go a b)\n")
    assert read_traces(path).rows == ((0,),)


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


@pytest.mark.parametrize(("line", "said"), [("go, , stay", "a gap"), ("(go) stay", "outside the parentheses")])
def test_a_line_that_is_no_plan_is_named(tmp_path, line, said):
    (tmp_path / "plans.txt").write_text(f"stay\n{line}\n")
    with pytest.raises(ValueError, match=f"plans.txt:2: .*{said}"):
        read_traces(tmp_path / "plans.txt")
