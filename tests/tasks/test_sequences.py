import gzip
import json

import numpy as np
import pytest

from statewise.tasks.sequences import Sequences, SequencesConfig


def task_of(tmp_path, text, name="data.txt", **fields):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Sequences(SequencesConfig(path=str(path), **fields))


LINES = "".join(f"a b {n}\n" for n in range(20))


def test_plain_lines_are_scored_from_the_second_symbol_on(tmp_path):
    task = task_of(tmp_path, LINES)
    assert task.vocab.symbols[:2] == ["a", "b"]
    assert task.vocab.symbols[-1] == "<end>"
    examples = task.training()
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
        task_of(tmp_path, gzip.compress(tabs.encode()), "data.txt.gz"),
    ]
    for task in tasks:
        np.testing.assert_array_equal(task.training().tokens, tasks[0].training().tokens)
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
        ("\n \n", "the file is empty"),
        ("a b\na\tb\na\tc\n", ":2: a tab, but the first line has none.*and 1 more"),
        ("a\tb\na b\n", ":2: 0 tabs"),
        ("a\tb\n\tb\n", ":2: the prompt, before the tab, is empty"),
        ('{"prompt": ["a"], "target": ["b"]}\n{"prompt": ["a"]}\n', ":2: must be"),
        ('{"prompt": ["a"], "target": ["b"]}\n{oops\n', ":2: not JSON"),
        ('{"prompt": "a", "target": ["b"]}\n', ":1: 'prompt' must be a list"),
        ("a b\n", "at least two different lines"),
        ("a <end>\nb c\n", "set task.end to another"),
        (b"a b\n\xff\xfe\n", ":2: not UTF-8"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        task_of(tmp_path, text)
    assert str(tmp_path / "data.txt") in str(error.value)


def test_a_damaged_archive_is_named(tmp_path):
    with pytest.raises(ValueError, match="damaged gzip"):
        task_of(tmp_path, gzip.compress(LINES.encode() * 50)[:-20], "data.txt.gz")
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
    with pytest.raises(ValueError, match="not there any more"):
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
    other.write_text("a b 3\n")
    with pytest.raises(ValueError, match=r"test.txt:1: this line is in data.txt too"):
        task_of(tmp_path, LINES, held_out_path=str(other))


def test_symbols_that_hold_spaces_are_written_as_a_list(tmp_path):
    lines = "".join(json.dumps({"prompt": ["New York", str(n)], "target": ["go"]}) + "\n" for n in range(5))
    task = task_of(tmp_path, lines, "data.jsonl")
    tokens = task.encode('["New York", 3]')
    assert task.decode(tokens) == '["New York", "3"]'
    np.testing.assert_array_equal(task.encode(task.decode(tokens)), tokens)
