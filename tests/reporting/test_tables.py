import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from statewise.reporting.tables import fitted_notes, fitted_tables, markdown_table, number, text_table, with_texts

CELLS = st.text("ab|é19", min_size=1, max_size=5)


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=4))
def test_tables_line_up(rows):
    table = ["x", "yy", "zzz"]
    lines = text_table(table, rows).splitlines()
    assert len(lines) == len(rows) + 2
    ends = [match.end() for match in re.finditer("-+", lines[1])]
    starts = [match.start() for match in re.finditer("-+", lines[1])]
    for cells, line in zip([table, *rows], [lines[0], *lines[2:]]):
        for column, cell in enumerate(cells):
            right = column > 0 and all(row[column][0] in "19" for row in rows)
            at = ends[column] - len(cell) if right else starts[column]
            assert line[at : at + len(cell)] == cell
            assert not line[starts[column] : ends[column]].replace(cell, "", 1).strip()
    for line in markdown_table(table, rows).splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) == 4


def test_columns_of_numbers_are_to_the_right():
    rows = [["1", "gpt", "3/3", "0.5 ±<0.1", "-"], ["2", "-", "-", "-1.2e-05", ""]]
    assert markdown_table(["run", "backbone", "runs", "loss", "gap"], rows).splitlines()[1] == (
        "| --- | --- | ---: | ---: | ---: |"
    )
    assert markdown_table(["run"], []).splitlines()[1] == "| --- |"
    assert text_table(["run", "backbone", "runs", "loss"], [row[:4] for row in rows]).splitlines() == [
        "run  backbone  runs       loss",
        "---  --------  ----  ---------",
        "1    gpt        3/3  0.5 ±<0.1",
        "2    -            -   -1.2e-05",
    ]


CELL = st.text("ab-", min_size=1, max_size=20).filter(lambda text: text != "-")  # a part of dashes alone is left out


WIDE = st.lists(CELL, min_size=6, max_size=6)


@given(WIDE, st.lists(WIDE, max_size=4), st.integers(60, 140), st.sampled_from([1, 2]))
def test_tables_that_are_too_wide_are_split(header, rows, width, keys):
    tables = fitted_tables(header, rows, width, keys).split("\n\n")
    sizes = [max(len(row[column]) for row in (header, *rows)) for column in range(6)]
    if sum(sizes[:keys]) + 2 * keys <= width // 2:
        assert all(len(line) <= width for table in tables for line in table.splitlines())
    headers = [table.splitlines()[0].split() for table in tables]
    assert all(words[:keys] == header[:keys] for words in headers)
    assert [name for words in headers for name in words[keys:]] == header[keys:]
    if sum(sizes) + 10 <= width:
        assert len(tables) == 1


def test_notes_keep_to_the_width_and_lose_nothing():
    path = "runs/" + "long-" * 30
    notes = ["short.", f"Every word of {path} stays whole, and {'many more ' * 20}follow."]
    lines = fitted_notes(notes, 40).split("\n")
    assert [line for line in lines if not line.startswith("  ")] == ["short.", "Every word of"]
    assert all(len(line) <= 40 or line.strip() == path for line in lines)
    assert " ".join(line.strip() for line in lines) == " ".join(notes)
    assert fitted_notes(["a b c"], 1) == "a b c"  # a terminal that is not wide enough for anything


def test_numbers_stay_readable():
    assert [number(v) for v in (0.5, 0.0, 1e-5, 1.5e7, None, float("nan"), 6144)] == [
        "0.5000",
        "0.0000",
        "1.00e-05",
        "1.50e+07",
        "-",
        "-",
        "6,144",
    ]


def test_long_texts_go_on_in_further_lines():
    header, rows = ["score", "completion"], [["-1.25", "one two three four five six seven"], ["-30.5", ""]]
    assert with_texts(header, rows, None).splitlines()[2:] == ["-1.25  one two three four five six seven", "-30.5"]
    assert with_texts(header, rows, 28).splitlines() == [
        "score  completion",
        "-----  ------------------",
        "-1.25  one two three four",
        "       five six seven",
        "-30.5",
    ]
    wide = with_texts(header, [["-1", "x" * 50]], 10).splitlines()
    assert [line.strip() for line in wide[2:]] == ["-1  " + "x" * 20, "x" * 20, "x" * 10], "20 characters at least"
    assert with_texts(header, [], 40).splitlines()[0] == "score  completion"


def test_wide_characters_take_two_columns_of_a_table():
    rows = [["取下 b1", "-1.5", "堆叠在 b1 b2 取下 b1"], ["go", "12.25", "one"]]
    lines = with_texts(["action", "score", "text"], rows, 32).splitlines()
    assert lines == [
        " action  score  text",
        "-------  -----  --------------------",
        "取下 b1   -1.5  堆叠在 b1 b2 取下 b1",
        "     go  12.25  one",
    ]
    wrapped = with_texts(["text"], [["堆叠在 " * 4]], 20).splitlines()
    assert wrapped[2:] == ["堆叠在 堆叠在 堆叠在", "堆叠在"]
    narrow = fitted_tables(["run", "a", "b"], [["x", "取下取下", "1"]], 14)
    assert max(cell_len(line) for line in narrow.splitlines()) <= 14
    assert narrow.count("run") == 2, "they do not fit beside each other"
