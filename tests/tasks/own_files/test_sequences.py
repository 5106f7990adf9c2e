import csv
import gzip
import io
import json
import re
from collections import Counter
from datetime import date
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewise.evaluation.evaluate import choose_examples
from statewise.tasks.own_files.delimited import Delimited
from statewise.tasks.own_files.encodings import text_of
from statewise.tasks.own_files.layout import SequenceFile
from statewise.tasks.own_files.reading import read_log
from statewise.tasks.own_files.sequences import Sequences, SequencesConfig
from statewise.tasks.own_files.splits import HELD_OUT_SHARE


def written(tmp_path, text, name="data.txt"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def task_of(tmp_path, text, name="data.txt", **fields):
    return Sequences(SequencesConfig(path=str(written(tmp_path, text, name)), **fields))


def read(tmp_path, text, name="data.txt", **fields):
    """(line number, prompt, answer) of every sequence, with spaces between symbols."""
    log = read_log(written(tmp_path, text, name), SequenceFile(**fields))
    found = [(log.sequence(number), int(log.prompts[number])) for number in range(len(log))]
    lines = zip(log.lines.tolist(), found)
    return [(line, " ".join(symbols[:prompt]), " ".join(symbols[prompt:])) for line, (symbols, prompt) in lines]


def table(*rows, delimiter=",", **options):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, **options).writerows(rows)
    return text.getvalue()


LINES = "".join(f"a b {n}\n" for n in range(20))


def test_plain_lines_are_scored_from_the_second_symbol_on(tmp_path):
    task = task_of(tmp_path, LINES)
    assert task.vocab.symbols[:2] == ["a", "b"]
    assert task.vocab.symbols[-1] == "<end>"
    examples = task.training()[:]
    assert len(examples) + len(task.held_out()) == 20
    assert len(task.held_out()) == 2
    assert (examples.prompt_lengths == 0).all()
    assert (examples.tokens[:, -1] == task.end).all()
    assert task.headline.metric == "loss"


def test_tabs_json_and_gzip_mean_the_same(tmp_path):
    pairs = [(["p", str(n)], ["q", "r"]) for n in range(12)]
    tabs = "".join(f"{' '.join(p)}\t{' '.join(t)}\n" for p, t in pairs)
    lines = "".join(json.dumps({"prompt": p, "target": t}) + "\n" for p, t in pairs)
    tasks = [
        task_of(tmp_path, tabs),
        task_of(tmp_path, lines, "data.jsonl"),
        task_of(tmp_path, gzip.compress(tabs.encode(), mtime=0), "data.txt.gz"),
    ]
    for task in tasks:
        np.testing.assert_array_equal(task.training()[:].tokens, tasks[0].training()[:].tokens)
        assert (task.training().prompt_lengths == 2).all()
        assert task.headline.metric == "exact_match"


def test_the_split_keeps_equal_lines_together_and_ignores_order(tmp_path):
    text = "".join(f"x {n % 10} y\n" for n in range(200))
    one, two = task_of(tmp_path, text), task_of(tmp_path, "".join(sorted(text.splitlines(True))), "sorted.txt")
    held_out = {one.decode(row) for row in one.held_out().tokens}
    assert len(held_out) == 1
    assert held_out == {two.decode(row) for row in two.held_out().tokens}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("{}\n{}\n", r":1: an object without a key \(and 1 more such lines\)"),
        ("\n \n", "the file is empty"),
        ("a b\na\tb\na\tc\n", ":2: a tab, but the first line has none.*and 1 more"),
        ("a\tb\na b\n", ":2: 0 tabs"),
        ("a\tb\n\tb\n", ":2: the prompt, before the tab, is empty"),
        ('{"prompt": ["a"], "target": ["b"]}\n{"prompt": ["a"]}\n', ":2: unknown column 'target'"),
        ('{"prompt": ["a"], "target": ["b"]}\n{oops\n', ":2: not JSON"),
        ('{"prompt": {"a": 1}, "target": ["b"]}\n', ":1: 'prompt' must be a string, or a list"),
        ('{"prompt": [], "target": []}\n', ":1: no symbol"),
        ('["a"]\n[["b"]]\n', ":2: .*put each sequence on a line of its own"),
        ('["a"]\n"b"\n', ":2: a string, but the first line is a list"),
        ('["a"]\n["\\ud800"]\n', "contains a lone surrogate"),
        ('["a"]\n3\n', ":2: must be a JSON object, list or string"),
        ('["a"]\n[true]\n', ":2: the line must be a string, or a list of strings or whole numbers"),
        ('"a b"\n' + "[" * 100_000, ":2: not JSON"),
        ("a\tb\tc\n", ":1: 2 tabs.*--task.separator"),
        ("a b\n", "at least two different sequences"),
        ("a <end>\nb c\n", "set task.end to another"),
        (b"a b\nc\xc3\xa9\nc\xe9 d\n", ":3: not UTF-8"),
        (b"a b\nc \x81 d\n", ":2: not UTF-8 text .*: set --task.encoding"),
        (b"a b\nc\0 d\n", ":2: a zero byte: this is not a text file"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        task_of(tmp_path, text)
    assert str(tmp_path / "data.txt") in str(error.value)


def test_a_damaged_archive_is_named(tmp_path):
    with pytest.raises(ValueError, match="damaged gzip"):
        task_of(tmp_path, gzip.compress(LINES.encode() * 50, mtime=0)[:-20], "data.txt.gz")
    with pytest.raises(ValueError, match="No such file"):
        Sequences(SequencesConfig(path=str(tmp_path / "missing.txt")))


def test_a_line_longer_than_the_context_is_named(tmp_path):
    with pytest.raises(ValueError, match=r":3: 6 tokens with the end symbol, but the context is 5"):
        task_of(tmp_path, "a b\nb a\na b a b a\n", context=5)


def test_unseen_symbols_are_named(tmp_path):
    task = task_of(tmp_path, LINES)
    other = tmp_path / "other.txt"
    other.write_text("a b 1\na zebra 1\n")
    with pytest.raises(ValueError, match=r"other.txt:2: unknown symbol 'zebra'"):
        task.read(other)
    with pytest.raises(ValueError, match="unknown symbol 'zebra'"):
        task.encode("a zebra")


def test_changed_or_missing_data_are_noticed(tmp_path):
    task = task_of(tmp_path, LINES)
    again = Sequences(task.config, task.files())
    (tmp_path / "data.txt").write_text(LINES + "c c c\n")
    with pytest.raises(ValueError, match="has changed since the run began"):
        again.training()
    (tmp_path / "data.txt").unlink()
    with pytest.raises(ValueError, match="no longer exists"):
        Sequences(task.config, task.files()).held_out()


def test_a_held_out_file_of_its_own(tmp_path):
    other = tmp_path / "test.txt"
    other.write_text("a a 3\n")
    task = task_of(tmp_path, LINES, held_out_path=str(other))
    assert len(task.training()) == 20
    assert len(task.held_out()) == 1
    other.write_text("a a 3\na zebra\n")
    with pytest.raises(ValueError, match=r"test.txt:2: unknown symbol 'zebra'"):
        task_of(tmp_path, LINES, held_out_path=str(other))
    other.write_text("a b 3\na a 3\n")
    task = task_of(tmp_path, LINES, held_out_path=str(other))
    assert len(task.held_out()) == 1
    assert "all of test.txt but 1 that are also in data.txt, and are left out" in " ".join(task.summary())
    other.write_text("a b 3\n")
    with pytest.raises(ValueError, match=r"test.txt: every sequence is also in data.txt, so none is held out"):
        task_of(tmp_path, LINES, held_out_path=str(other))
    other.write_text("a a <end>\n")
    with pytest.raises(ValueError, match=r"test.txt:1: the end symbol '<end>' occurs in it"):
        task_of(tmp_path, LINES, held_out_path=str(other))


def test_objects_have_a_prompt_all_or_none(tmp_path):
    lines = '{"target": [1, 2]}\n{"target": ["1", "2", "3"], "prompt": ["3"]}\n{"target": ["1", "3"]}\n'
    with pytest.raises(ValueError, match=r":2: it has 'prompt', which the first object lacks"):
        task_of(tmp_path, lines, "data.jsonl")


def test_a_prompt_that_is_one_symbol_is_taken_whole(tmp_path):
    lines = "".join(json.dumps(["Claim for car", str(n), "Claim"]) + "\n" for n in range(5))
    task = task_of(tmp_path, lines, "data.jsonl")
    assert task.vocab.decode(task.encode("Claim for car")) == ["Claim for car"]
    for tokens in (task.encode("Claim 3"), task.encode('["Claim for car", "3"]')):
        np.testing.assert_array_equal(task.encode(task.decode(tokens)), tokens)


def test_characters_are_no_json(tmp_path):
    task = task_of(tmp_path, "".join(f"[{n},1]\n" for n in range(8)), separator="")
    assert task.vocab.decode(task.encode("[3,1]")) == ["[", "3", ",", "1", "]"]
    assert task.vocab.decode(task.held_out().tokens[0][:3])[0] == "["


def test_lists_of_longer_symbols_and_strings_are_json_without_a_separator_too(tmp_path):
    lists = "".join(json.dumps(["ab", str(n)]) + "\n" for n in range(8))
    for name in ("data.jsonl", "data.txt"):
        task = task_of(tmp_path, lists, name, separator="")
        tokens = task.held_out().tokens[0][:2]
        np.testing.assert_array_equal(task.encode(task.decode(tokens)), tokens)
        assert task.vocab.decode(tokens)[0] == "ab"
    task = task_of(tmp_path, "".join(json.dumps(f"ab{n}") + "\n" for n in range(8)), separator="")
    assert '"' not in task.vocab.ids


def test_an_event_log_may_have_a_key_called_prompt(tmp_path):
    lines = '{"case": 1, "event": "a"}\n{"case": 1, "event": "b", "prompt": "x"}\n{"case": 2, "event": "a"}\n'
    assert len(task_of(tmp_path, lines, "data.jsonl", group="case", column="event").training()) == 1


def test_lines_that_all_end_with_a_tab_are_suspected(tmp_path):
    task = task_of(tmp_path, "".join(f"a b {n}\t\n" for n in range(8)))
    assert "every answer is empty" in " ".join(task.summary())


def test_symbols_that_hold_spaces_are_written_as_a_list(tmp_path):
    lines = "".join(json.dumps({"prompt": ["New York", str(n)], "target": ["go"]}) + "\n" for n in range(5))
    task = task_of(tmp_path, lines, "data.jsonl")
    tokens = task.encode('["New York", 3]')
    assert task.decode(tokens) == '["New York", "3"]'
    np.testing.assert_array_equal(task.encode(task.decode(tokens)), tokens)


# Formats

TWO = [(1, "", "a b"), (2, "", "c")]


@pytest.mark.parametrize(
    ("text", "name", "fields"),
    [
        ("a b\nc\n", "x.txt", {}),
        ("\ufeffa b\r\nc\r\n", "x.txt", {}),
        ("a,b\nc,,,\n", "x.csv", {"format": "text", "separator": ","}),
        ("a , b\nc\n", "x.txt", {"separator": ","}),
        ("a\tb\nc\n", "x.txt", {"separator": "\\t"}),
        ("a -> b\nc\n", "x.txt", {"separator": "->"}),
        ("ab\nc\n", "x.txt", {"separator": ""}),
        ('["a", "b"]\n["c"]\n', "x.txt", {}),
        ('"a b"\n"c"\n', "x.txt", {}),
        ('"a,b"\n"c"\n', "x.jsonl", {"separator": ","}),
        ('{"s": ["a", "b"]}\n{"s": "c"}\n', "x.txt", {}),
        ('{"id": 1, "s": ["a", "b"]}\n{"id": 2, "s": "c"}\n', "x.ndjson", {"column": "s"}),
        (gzip.compress(b'"a b"\n"c"\n', mtime=0), "x.jsonl.gz", {}),
    ],
)
def test_formats_hold_the_same(tmp_path, text, name, fields):
    assert read(tmp_path, text, name, **fields) == TWO


@pytest.mark.parametrize(
    ("text", "name", "fields"),
    [
        ("moves\na b\nc\n", "x.csv", {}),
        ("\ufeffid;moves\r\n\r\n1;a b\r\n;\r\n2;c\r\n", "x.csv", {"column": "moves"}),
        ("id\tmoves\n1\ta b\n2\tc\n", "x.tsv", {"column": "moves"}),
        ("id\tmoves\n1\ta b\n2\tc\n", "x.txt", {"column": "moves"}),
        ("id:moves\n1:a b\n2:c\n", "x.csv", {"column": "moves", "delimiter": ":"}),
        ('"the, id",moves\n"one\ntwo","a\nb"\n3,c\n', "x.csv", {"column": "moves"}),
        ('id,moves\n1,"a,b"\n2, c\n', "x.csv", {"column": "moves", "separator": ","}),
        (gzip.compress(b"id,moves\n1,a b\n2,c\n", mtime=0), "x.csv.gz", {"column": "moves"}),
    ],
)
def test_csv_is_read_as_people_have_it(tmp_path, text, name, fields):
    assert [row[1:] for row in read(tmp_path, text, name, **fields)] == [row[1:] for row in TWO]


def test_a_row_is_named_by_its_first_line(tmp_path):
    text = 'note,moves\n"one\n\ntwo",a b\n\n3,c\n'
    assert [row[0] for row in read(tmp_path, text, "x.csv", column="moves")] == [2, 6]


@pytest.mark.parametrize(
    ("text", "name", "fields"),
    [
        ("p q\ta b\nr\tc\n", "x.txt", {}),
        ("p,q\ta,b\nr\tc\n", "x.txt", {"separator": ","}),
        ('"p q\\ta b"\n"r\\tc"\n', "x.jsonl", {}),
        ("id,prompt,target\n1,p q,a b\n2,r,c\n", "x.csv", {}),
        ("question,answer\np q,a b\nr,c\n", "x.csv", {"column": "answer", "prompt_column": "question"}),
        ("question,answer\np q,a b\nr,c\n", "x.csv", {"prompt_column": "question"}),
        ('{"prompt": "p q", "target": ["a", "b"]}\n{"prompt": ["r"], "target": "c"}\n', "x.txt", {}),
    ],
)
def test_prompts_stand_before_a_tab_or_in_a_column(tmp_path, text, name, fields):
    assert [row[1:] for row in read(tmp_path, text, name, **fields)] == [("p q", "a b"), ("r", "c")]


def test_the_layout_says_whether_a_tab_was_a_prompt(tmp_path):
    assert read_log(written(tmp_path, "p\ta\n", "x.txt"), SequenceFile()).how.endswith(
        "a line, its prompt before a tab"
    )
    assert read_log(written(tmp_path, "p a\n", "x.txt"), SequenceFile()).how == "text, one sequence a line"


EVENTS = [("when", "case", "what"), (3, "x", "c d"), (1, "y", "a"), (2, "x", "b"), (10, "x", "b"), (2, "x", "a")]
LOG = {"column": "what", "group": "case", "order": "when"}


def test_an_event_log_is_a_sequence_for_each_case(tmp_path):
    as_csv = table(*EVENTS)
    as_json = "".join(json.dumps(dict(zip(EVENTS[0], row))) + "\n" for row in EVENTS[1:])
    for text, name, header in ((as_csv, "x.csv", 1), (as_json, "x.txt", 0)):
        assert read(tmp_path, text, name, **LOG) == [(header + 1, "", "b a c d b"), (header + 2, "", "a")]
        unordered = read(tmp_path, text, name, column="what", group="case")
        assert unordered == [(header + 1, "", "c d b b a"), (header + 2, "", "a")]
    assert read_log(written(tmp_path, as_csv, "x.csv"), SequenceFile(**LOG)).sequence(0) == ["b", "a", "c d", "b"]


@pytest.mark.parametrize(
    "times",
    [
        ("2024-02-01", "2024-01-31 23:59", "2023-12-31T00:00:00.5"),
        ("2024-01-01T10:00+00:00", "2024-01-01T10:30:00+01:00", "2024-01-01T09:15Z"),
        ("1700000000000000002", "1700000000000000001", "1700000000000000000"),
        ("1e3", "2.5", "-7"),
        ("10", "9", "1.5"),
        ("1700000000.123456789", "1700000000.123456788", "1700000000.12345"),
        (f"1{'0' * 5000}1", f"1{'0' * 5000}0", f"1{'0' * 4999}"),
        ("2024-06-01T12:00:00.0001200741Z", "2024-06-01T12:00:00.000120074Z", "2024-06-01T13:00:00,000120073999+01:00"),
        ("20240601 120000.12345678", "20240601 120000.1234567", "2024-06-01 12:00:00.123456"),
    ],
)
def test_events_are_ordered_by_numbers_or_times(tmp_path, times):
    text = table(("t", "c", "e"), *((time, "x", event) for time, event in zip(times, "abc")))
    assert read(tmp_path, text, "x.csv", column="e", group="c", order="t") == [(2, "", "c b a")]


def exact_of(text):
    """What a number or a time means, as a fraction; computed with whole numbers alone."""
    if "T" not in text:
        return Fraction(text)
    day, _, rest = text.partition("T")
    (clock, _, fraction), zone = rest[:-6].partition("."), rest[-6:]
    hours, minutes, seconds = map(int, clock.split(":"))
    ahead = int(f"{zone[0]}1") * (60 * int(zone[1:3]) + int(zone[4:]))
    minutes += 60 * (24 * date.fromisoformat(day).toordinal() + hours) - ahead
    return 60 * minutes + seconds + (Fraction(f"0.{fraction}") if fraction else 0)


CLOSE_NUMBERS = st.builds(
    lambda whole, digits: f"{whole}{f'.{digits}' if digits else ''}",
    st.sampled_from([0, -3, 1700000000, 1700000001, 2**63, 2**63 + 1, 10**30]),
    st.text("0129", max_size=22),
)
CLOSE_TIMES = st.builds(
    lambda second, digits, zone: f"2024-06-01T12:00:0{second}{f'.{digits}' if digits else ''}{zone}",
    st.integers(0, 2),
    st.text("0129", max_size=22),
    st.sampled_from(["+00:00", "+00:01", "-00:01"]),
)


@given(st.one_of(st.lists(CLOSE_NUMBERS, min_size=1), st.lists(CLOSE_TIMES, min_size=1)), st.booleans())
def test_the_order_of_events_is_exact(tmp_path_factory, moments, as_json):
    """However many digits they have; events that are equal keep the order of the file."""
    folder = tmp_path_factory.getbasetemp()
    if as_json:
        times = [moment if "T" not in moment else json.dumps(moment) for moment in moments]
        lines = (f'{{"t": {time}, "c": "x", "e": {number}}}\n' for number, time in enumerate(times))
        path = written(folder, "".join(lines), "exact.jsonl")
    else:
        path = written(folder, table(("t", "c", "e"), *((m, "x", n) for n, m in enumerate(moments))), "exact.csv")
    found = read_log(path, SequenceFile(column="e", group="c", order="t")).sequence(0)
    assert [int(event) for event in found] == sorted(range(len(moments)), key=lambda n: exact_of(moments[n]))


@pytest.mark.parametrize(
    "moment",
    ["nan", "-inf", "1e9999999999999999999", "2024-06-01T12:00:00+00:00:00.1234567", "2024-06-01 12:00.5", "2024.15.1"],
)
def test_what_cannot_be_ordered_exactly_is_refused(tmp_path, moment):
    with pytest.raises(ValueError, match=r"x.csv:2: column 't' is .*: the order must be a number or an ISO 8601 time"):
        read(tmp_path, table(("t", "c", "e"), (moment, "x", "a")), "x.csv", column="e", group="c", order="t")
    if moment.startswith("1e"):
        with pytest.raises(ValueError, match=r"x.jsonl:1: column 't' is inf"):
            read(tmp_path, f'{{"t": {moment}, "c": 1, "e": 1}}\n', "x.jsonl", column="e", group="c", order="t")


@given(
    st.lists(st.lists(st.sampled_from(["a", "b, c", 'd "e"', "f\ng"]), min_size=1, max_size=6), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_shuffled_events_come_back_in_order(tmp_path_factory, sequences, chance):
    rows = [(number * 1.5, case, event) for case, events in enumerate(sequences) for number, event in enumerate(events)]
    chance.shuffle(rows)
    path = written(tmp_path_factory.getbasetemp(), table(("t", "c", "e"), *rows, delimiter=";"), "shuffled.csv")
    log = read_log(path, SequenceFile(column="e", group="c", order="t"))
    assert sorted(map(log.sequence, range(len(log)))) == sorted(sequences)
    assert [log.table.column("e")[row] for row in log.rows] == [log.symbols[code] for code in log.codes]


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("", {}, "the file is empty"),
        (',,\n""\n', {}, "every cell is empty"),
        ("a,b\n", {"column": "a"}, "a header, but no row under it"),
        ("id,moves\n1,a\n", {}, "which column .* one of id, moves"),
        ("id,moves\n1,a\n", {"column": "move"}, "unknown column 'move': did you mean moves"),
        ("id,moves\n1,a\n2,b,c\n3\n", {"column": "moves"}, ":3: 3 cells, but the header has 2 columns .*1 more"),
        ('id,moves\n1,"a\n2,b\n', {"column": "moves"}, ":2: not CSV: .*quotation mark"),
        ("id,moves\n1,\n", {"column": "moves"}, ":2: no symbol"),
        ("a,a\n1,2\n", {"column": "a"}, "there are 2 columns 'a'"),
        ("prompt,target,target\na,b,c\n", {}, "there are 2 columns 'target'"),
        ("prompt,prompt,target\na,b,c\n", {}, "there are 2 columns 'prompt'"),
        ("id,moves\n1,a,,b\n", {"format": "text", "separator": ","}, ":2: symbol 3 is empty"),
        ("t,c,e\n1,x,a\n2,,b\n", {"column": "e", "group": "c"}, ":3: column 'c' is empty"),
        ("t,c,e\n1,x,a\n2,y,\n", {"column": "e", "group": "c"}, ":3: column 'e' is empty"),
        ("t,c,e\n1,x,a\n2,y,b\n", {"group": "c"}, "which column holds the symbols"),
        ("t,c,e\n1,x,a\n,x,b\n", {**LOG, "column": "e", "group": "c", "order": "t"}, ":3: column 't' is ''"),
        ("t,c,e\n1,x,a\nnan,x,b\n", {"column": "e", "group": "c", "order": "t"}, ":3: column 't' is 'nan'"),
        (
            f"t,c,e\n1,x,a\n{'9' * 4999}x,x,b\n",
            {"column": "e", "group": "c", "order": "t"},
            r":3: column 't' is '9+\.\.\. \(5,002 characters\)",
        ),
        (
            "t,c,e\n1,x,a\n31/05/2024,x,b\n",
            {"column": "e", "group": "c", "order": "t"},
            ":3: column 't' is a time without a zone, but a number in line 2",
        ),
        (
            "t,c,e\n1,x,a\n2024-01-01,x,b\n",
            {"column": "e", "group": "c", "order": "t"},
            ":3: column 't' is a time without a zone, but a number in line 2",
        ),
        (
            "t,c,e\n2024-01-01T00:00Z,x,a\n2024-01-01,x,b\n",
            {"column": "e", "group": "c", "order": "t"},
            ":3: column 't' is a time without a zone, but a time with a zone in line 2",
        ),
    ],
)
def test_bad_tables_are_named_with_the_line(tmp_path, text, fields, message):
    with pytest.raises(ValueError, match=message) as error:
        read(tmp_path, text, "data.csv", **fields)
    assert str(tmp_path / "data.csv") in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"order": "t"}, "set task.group"),
        ({"format": "text", "column": "c"}, "lines of text have no columns"),
        ({"delimiter": ", "}, "task.delimiter must be one character"),
        *(({"end": end}, "task.end must be one symbol") for end in ("", " ", "the end", "a\nb", " end", "\udcff")),
        ({"end": "a,b", "separator": ","}, 'task.end must be one symbol, of printable characters, not "a,b"'),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SequencesConfig(**fields)


@pytest.mark.parametrize("fields", [{}, {"separator": ""}, {"end": "the end", "separator": ","}])
def test_ends_of_one_symbol_are_taken(fields):
    assert SequencesConfig(**fields).end


@pytest.mark.parametrize("separator", [None, ",", "", " | ", "->"])
def test_text_of_any_separator_comes_back(tmp_path, separator):
    one, other = (" " if separator is None else separator).join("abcab"), "c" if separator == "" else "cab"
    task = task_of(tmp_path, f"{one}\n{other}\n", separator=separator)
    examples = task.training()[:]
    for row in range(len(examples)):
        text = task.decode(examples.answer(row))
        assert "[" not in text
        np.testing.assert_array_equal(task.encode(text), examples.answer(row))


# What is said of the data


def test_the_summary_counts_what_was_read(tmp_path):
    lines = [f"{'a ' * (n % 7 + 1)}b {n}" for n in range(30)] + ["c"] * 4
    task = task_of(tmp_path, "\n".join(lines), held_out_share=0.2)
    said = "\n".join(task.summary())
    counts = Counter(symbol for line in lines for symbol in line.split())
    lengths = [len(line.split()) for line in lines]
    held_out = [task.decode(task.held_out().answer(row)).split()[:-1] for row in range(len(task.held_out()))]
    trained = [task.decode(task.training()[:].answer(row)).split()[:-1] for row in range(len(task.training()))]
    new = {symbol for row in held_out for symbol in row} - {symbol for row in trained for symbol in row}
    assert len(trained) + len(held_out) == 34
    assert new
    assert f"34 sequences, {sum(lengths)} symbols, {len(counts)} of them different" in said
    assert f"lengths: 1 to 9, median {np.median(lengths):g}" in said
    for symbol, count in counts.most_common(5)[:3]:
        assert f"{symbol} {count} ({count / sum(lengths):.1%})" in said
    assert f"held out: {len(held_out)} sequences, all copies of 6 of the 31 different sequences" in said
    assert (
        f"training never has {len(new)} of their {len({s for row in held_out for s in row})} different symbols" in said
    )
    assert "warning" not in said


def test_a_held_out_file_is_named_in_the_summary(tmp_path):
    other = written(tmp_path, "a a 3\n", "test.txt")
    task = task_of(tmp_path, LINES, held_out_path=str(other))
    assert "held out: 1 sequences, all of test.txt; training has all of their 2 different symbols" in "\n".join(
        task.summary()
    )


WORDS = ["north", "east", "south", "stop"]
WALKS = [[WORDS[(start + step * step) % 4] for step in range(2 + start % 5)] for start in range(40)]


@pytest.mark.parametrize(
    ("text", "name", "fields", "warning", "mend"),
    [
        ("\n".join(map(",".join, WALKS)), "x.txt", {}, "contain a comma, such as", {"separator": ","}),
        ("\n".join(map(", ".join, WALKS)), "x.txt", {}, "contain a comma, such as", {"separator": ","}),
        ("\n".join(map(";".join, WALKS)), "x.txt", {}, "--task.separator ';'", {"separator": ";"}),
        ("\n".join(f'"{";".join(walk)}"' for walk in WALKS), "x.jsonl", {}, "contain a semicolon", {"separator": ";"}),
        (
            "\n".join("".join(w[0] for w in walk) for walk in WALKS),
            "x.txt",
            {},
            "--task.separator ''",
            {"separator": ""},
        ),
        ("# walks\n" + "\n".join(map(json.dumps, WALKS)), "x.txt", {}, "--task.format json", None),
        (
            table(("n", "walk"), *((n, json.dumps(walk)) for n, walk in enumerate(WALKS))),
            "x.csv",
            {"column": "walk"},
            "as JSON does: write it as JSON lines",
            None,
        ),
        (
            table(("n", "where"), *((n, where) for n, walk in enumerate(WALKS) for where in walk)),
            "x.csv",
            {"column": "where"},
            "--task.group to the column that names the case, one of n, where",
            {"column": "where", "group": "n"},
        ),
        (
            table(
                ("i", "n", "where"), *((f"{n}.{i}", n, w) for n, walk in enumerate(WALKS) for i, w in enumerate(walk))
            ),
            "x.csv",
            {"column": "where", "group": "i"},
            "every case has one event: does column 'i' name the case",
            {"column": "where", "group": "n"},
        ),
        (
            table(("n", "t", "w"), *((n, f"{n}:{i}", w) for n, walk in enumerate(WALKS) for i, w in enumerate(walk))),
            "x.csv",
            {"column": "t", "group": "n"},
            "occur only once, such as 0:0, and cannot be learned; is this the right column",
            {"column": "w", "group": "n"},
        ),
    ],
)
def test_files_that_look_misread_are_warned_of(tmp_path, text, name, fields, warning, mend):
    warnings = [line for line in task_of(tmp_path, text, name, **fields).summary() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert re.search(re.escape(warning), warnings[0]), warnings[0]
    if mend is not None:
        task = task_of(tmp_path, text, name, **mend)
        assert not [line for line in task.summary() if line.startswith("warning: ")]
        assert set(task.vocab.symbols[:-1]) == (set("nes") if mend.get("separator") == "" else set(WORDS))


def test_names_of_missing_values_are_warned_of(tmp_path):
    rows = [(case, event) for case in (1, 2, 3, "NA") for event in ("go", "NaN" if case == 2 else "wait", "NA", "go")]
    task = task_of(tmp_path, table(("case", "what"), *rows), "x.csv", column="what", group="case")
    found = [line for line in task.summary() if line.startswith("warning: ")]
    assert found == [
        "warning: 4 events have the case 'NA', which often stands for a missing value: if it does, set --task.missing "
        "drop",
        "warning: 5 symbols are 'NA' or 'NaN', which often stand for missing values: if they do, set --task.missing "
        "drop, or --task.missing SYMBOL",
    ]
    lines = task_of(tmp_path, "go NA\nNA go\ngo go\n")
    assert not [line for line in lines.summary() if line.startswith("warning: ")]


def test_what_is_read_well_is_not_warned_of(tmp_path):
    story = "Once, there was a dog. The dog ran, and ran, and it was happy.\n"
    text = "".join(f"{story[n % 9 :].strip()}\n" for n in range(20))
    assert "warning" not in "\n".join(task_of(tmp_path, text).summary())
    assert "warning" not in "\n".join(task_of(tmp_path, "\n".join(map(" ".join, WALKS))).summary())


# Evaluation


def test_accuracy_on_ends_is_told_apart(tmp_path):
    task = task_of(tmp_path, LINES)
    examples = task.held_out()
    chosen = np.full(examples.tokens.shape, -1)
    chosen[:, 1:] = task.end
    assert task.score_positions(examples, chosen) == {"symbol_accuracy": 0.0, "end_accuracy": 1.0}
    found = task.baselines(examples)["always <end>"]
    assert found == {"token_accuracy": 1 / 3, "symbol_accuracy": 0.0, "end_accuracy": 1.0}


def test_readers_of_csv_left_half_way_leave_the_process_limit_of_a_cell_as_it_was(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("a,b\n" + ("x" * 200_000 + ",y\n") * 3)
    before = csv.field_size_limit()
    first, second = (Delimited(text_of(path, None, None), ",").chunks(["a"], None) for _ in range(2))
    assert len(next(first).lines) == 3
    assert csv.field_size_limit() == before
    del first
    assert [len(cell) for chunk in second for cell in chunk.cells[0]] == [200_000] * 3
    assert csv.field_size_limit() == before


def test_of_a_file_it_is_said_how_many_sequences_were_trained_on(tmp_path):
    task = task_of(tmp_path, "".join(f"a b\t{n} b\n" for n in range(20)))
    trained = [task.decode(row[:2]) + "\t" + task.decode(row[2:4]) for row in task.training()[:].tokens]
    other_prompt = "\t".join(trained[0].replace("\t", " ").split(" ", 1))
    other = written(tmp_path, f"{trained[0]}\nb a\t1 b\n{other_prompt}\n{trained[3]}\n", "other.txt")
    assert len(choose_examples(task, None, other, None)) == 4
    assert list(task.notes) == [f"{other}: the model was trained on 2 of its 4 sequences"]
    task.notes = []
    assert len(choose_examples(task, 1, other, None)) == 1
    assert list(task.notes) == [f"{other}: the model was trained on 1 of its 1 sequences"]
    task.notes = []
    new = written(tmp_path, "b a\t1 b\n", "new.txt")
    choose_examples(task, None, new, None)
    assert list(task.notes) == []


def test_training_data_that_are_gone_leave_it_unknown_what_was_trained_on(tmp_path):
    task = task_of(tmp_path, LINES)
    rebuilt = Sequences(task.config, dict(task.files()))
    (tmp_path / "data.txt").unlink()
    other = written(tmp_path, "a b 1\n", "other.txt")
    assert len(choose_examples(rebuilt, None, other, None)) == 1
    (note,) = rebuilt.notes
    assert note.startswith(f"{other}: whether the model was trained on its sequences is unknown: ")
    assert "data.txt" in note


@pytest.mark.parametrize(
    ("separator", "prompt", "symbols", "text"),
    [
        (None, "a b", ["c", "a"], " c a"),
        (None, "", ["c", "a"], "c a"),
        (None, "a", [], ""),
        (None, "a b", ["<end>"], " <end>"),
        (None, '["a", "b"]', ["c"], ' ["c"]'),
        (None, "a", ["b", "d e", "c"], ' b ["d e", "c"]'),
        (None, "d e", ["c"], ' ["c"]'),
        (",", "a,b", ["c", "d e"], ",c,d e"),
        (",", "a, b,", ["c"], "c"),
        ("->", "a->b", ["c"], "->c"),
        ("", "ab", ["c", "<end>"], "c<end>"),
        ("", "ab", ["d e"], '["d e"]'),
    ],
)
def test_a_continuation_follows_the_prompt_as_it_was_written(tmp_path, separator, prompt, symbols, text):
    lines = "".join(json.dumps(line) + "\n" for line in (["a", "b", "c"], ["c", "d e", "a"], ["b"]) * 3)
    task = task_of(tmp_path, lines, "data.jsonl", separator=separator)
    assert task.continuation(prompt, task.vocab.encode(symbols)) == text
    assert task.vocab.decode(task.encode(prompt + text)) == [*task.vocab.decode(task.encode(prompt)), *symbols]


def test_symbols_in_brackets_are_lists_only_where_they_are_no_symbols(tmp_path):
    task = task_of(tmp_path, "x [1] [2]\n[2] x\n" * 5)
    for text in ("x [1]", "[1] [2]"):
        assert task.vocab.decode(task.encode(text)) == text.split()
        assert task.continuation("x", task.encode(text)) == f" {text}"
    with pytest.raises(ValueError, match="unknown symbol"):
        task.encode("x [3]")


def test_what_inspect_assumes_is_what_the_task_holds_out():
    assert SequencesConfig("x.csv").held_out_share == HELD_OUT_SHARE
