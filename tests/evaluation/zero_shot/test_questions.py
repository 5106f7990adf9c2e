import json

import pytest

from statewise.evaluation.zero_shot.questions import read_questions


def written(tmp_path, *records):
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    return path


def test_choices_follow_their_context_behind_one_space(tmp_path):
    path = written(
        tmp_path,
        {"context": "A cat sat on the", "choices": ["mat", " moon", "ö"], "answer": 1, "id": 7},
        "",
        {"context": "Who?\n", "choices": ["me", "you"], "answer": 0},
    )
    found = read_questions(path)
    assert found.kind == "choices"
    first, second = found.questions
    assert (first.context, first.choices) == ("A cat sat on the", (" mat", " moon", " ö"))
    assert (first.sizes, first.answer, first.line) == ((3, 5, 2), 1, 1)
    assert (second.context, second.choices, second.line) == ("Who?", ("\nme", "\nyou"), 3)
    assert len(read_questions(path, 1).questions) == 1


def test_the_last_word_is_asked_for(tmp_path):
    (one,) = read_questions(written(tmp_path, {"text": "“Look,\nthere”  is tea. \n"})).questions
    assert (one.context, one.choices, one.sizes, one.answer) == ("“Look,\nthere”  is", (" tea.",), (4,), 0)


GOOD = {"context": "a", "choices": ["b", "c"], "answer": 0}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "a line must be"),
        ({"text": "a b"}, '"context" is missing'),
        ({"context": "a", "choices": ["b", "c"]}, '"answer" is missing'),
        (GOOD | {"context": 3}, '"context" must be text, not 3'),
        (GOOD | {"context": " \n"}, '"context" must not be blank'),
        (GOOD | {"choices": ["b"]}, "at least two texts"),
        (GOOD | {"choices": "bc"}, "at least two texts"),
        (GOOD | {"choices": ["b", ""]}, '"choices" must not be blank'),
        (GOOD | {"choices": ["b", 1]}, '"choices" must be text, not 1'),
        (GOOD | {"answer": 2}, "0 to 1, not 2"),
        (GOOD | {"answer": -1}, "0 to 1, not -1"),
        (GOOD | {"answer": True}, "0 to 1, not True"),
        (GOOD | {"answer": "0"}, "0 to 1, not '0'"),
        ('{"context": "\\ud800", "choices": ["b", "c"], "answer": 0}', "half of a character"),
    ],
)
def test_a_bad_line_is_named(tmp_path, record, message):
    path = written(tmp_path, GOOD, record, GOOD | {"answer": 9})
    with pytest.raises(ValueError, match=r"more such lines") as raised:
        read_questions(path)
    assert str(raised.value).startswith(f"{path}:2: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"txt": "a b"}, 'must have "context", "choices" and "answer", or "text"'),
        ({"text": "word"}, "at least two words"),
        ({"text": 1}, "must be text"),
    ],
)
def test_a_file_must_be_of_a_kind(tmp_path, record, message):
    with pytest.raises(ValueError, match="asked.jsonl:1: .*" + message):
        read_questions(written(tmp_path, record))


def test_kinds_are_not_mixed(tmp_path):
    with pytest.raises(ValueError, match=r':2: "text" is missing'):
        read_questions(written(tmp_path, {"text": "a b"}, GOOD))
