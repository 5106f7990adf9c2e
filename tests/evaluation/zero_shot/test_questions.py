import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from doubles import MarkovPredictor

from statewise.evaluation.zero_shot.questions import answer, read_questions
from statewise.tasks.base import RunningText

pytest.importorskip("tokenizers")
from statewise.tasks.text.bpe import train


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


TEXTS = ["a cat sat on the mat", "a dog sat on the moon"] * 4


class Letters(RunningText):
    """Bytes as tokens, or with `merged` tokens more."""

    def __init__(self, merged=0):
        self.bpe = train(TEXTS, 258 + merged)


def asked(tmp_path, *records):
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return read_questions(path)


def letters(task, chances):
    """A predictor in which each token follows with a probability that hangs on it alone."""
    weights = torch.full((len(task.bpe.symbols),), 1e-4)
    for text, chance in chances.items():
        (token,) = task.bpe.encode(text)
        weights[token] = chance
    weights /= weights.sum()
    return MarkovPredictor(weights.expand(len(weights), -1)), {
        text: float(weights[task.bpe.encode(text)[0]]) for text in chances
    }


def test_the_likelier_choice_is_taken_as_a_whole_and_by_byte(tmp_path):
    task = Letters()
    predictor, p = letters(task, {" ": 0.4, "a": 0.2, "b": 0.3})
    record = {"context": "aa", "choices": ["b", "aaa"], "answer": 0}
    found = answer(predictor, task, asked(tmp_path, record, {**record, "answer": 1}, record), 2)
    nats = [-math.log(p[" "] * p["b"]), -math.log(p[" "] * p["a"] ** 3)]
    assert nats[0] < nats[1]
    assert nats[0] / 1 > nats[1] / 3
    assert nats[0] / 2 < nats[1] / 4  # so the space between must not count
    assert found.metrics["accuracy"] == pytest.approx(2 / 3)
    assert found.metrics["accuracy_per_byte"] == pytest.approx(1 / 3)
    assert found.metrics["bits"] == pytest.approx((2 * nats[0] + nats[1]) / 3 / math.log(2))
    assert found.chance == {"accuracy": 0.5, "accuracy_per_byte": 0.5}
    assert found.cut == 0
    np.testing.assert_allclose([item["nats"] for item in found.items], [nats] * 3, rtol=1e-5)
    assert [item["line"] for item in found.items] == [1, 2, 3]
    assert [item["accuracy"] for item in found.items] == [True, False, True]


def test_the_last_word_counts_if_all_of_it_is_the_first_choice(tmp_path):
    task = Letters()
    predictor, p = letters(task, {"a": 0.4, " ": 0.3, "b": 0.2})
    found = answer(predictor, task, asked(tmp_path, {"text": "b aa"}, {"text": "a b"}), 8)
    nats = [-math.log(p[" "] * p["a"] ** 2), -math.log(p[" "] * p["b"])]
    assert found.metrics == {
        "accuracy": 0.0,  # the space is not the first choice
        "bits": pytest.approx(sum(nats) / 2 / math.log(2)),
        "perplexity": pytest.approx(math.exp(sum(nats) / 2)),
    }
    predictor, _ = letters(task, {" ": 0.5})
    transitions = predictor.table.exp().clone()
    (space,), (a,) = task.bpe.encode(" "), task.bpe.encode("a")
    transitions[space, a] = 2.0
    predictor = MarkovPredictor(transitions / transitions.sum(-1, keepdim=True))
    assert answer(predictor, task, asked(tmp_path, {"text": "b a"}, {"text": "b aa"}), 8).metrics["accuracy"] == 0.5


def test_choices_are_asked_for_from_the_same_token_on(tmp_path):
    """Where the tokenizer joins one choice with the context, that token is asked for of both."""
    task = Letters(merged=10)
    joined = next(symbol for symbol in task.bpe.symbols if len(symbol) == 2 and symbol.isascii() and symbol.isalpha())
    first, second = joined
    predictor, _ = letters(task, {" ": 0.2, first: 0.2, joined: 0.3, "z": 0.1})
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps({"text": f"z {first}"}))
    questions = read_questions(path)
    question = replace(questions.questions[0], context=f"z {first}", choices=(second, "z"), sizes=(1, 1), answer=0)
    found = answer(predictor, task, replace(questions, kind="choices", questions=(question,)), 8)
    rows = [task.bpe.encode(f"z {first}{choice}").tolist() for choice in (second, "z")]
    context = task.bpe.encode(f"z {first}").tolist()
    assert rows[0][: len(context)] != context == rows[1][: len(context)]
    same = len(context) - 1
    assert rows[0][:same] == context[:same]
    weights = predictor.table[0]
    direct = [-float(weights[row[same:]].sum()) for row in rows]
    np.testing.assert_allclose(found.items[0]["nats"], direct, rtol=1e-5)


def test_a_context_that_vanishes_in_a_choice_is_named(tmp_path):
    task = Letters(merged=10)
    joined = next(symbol for symbol in task.bpe.symbols if len(symbol) == 2 and symbol.isascii() and symbol.isalpha())
    questions = asked(tmp_path, {"text": "z z"})
    question = replace(questions.questions[0], context=joined[0], choices=(joined[1],))
    with pytest.raises(ValueError, match=r"asked\.jsonl:1: the tokenizer merges"):
        answer(letters(task, {"z": 0.5})[0], task, replace(questions, questions=(question,)), 8)


def test_cut_contexts_are_counted(tmp_path):
    task = Letters()
    predictor, _ = letters(task, {"a": 0.5})
    found = answer(predictor, task, asked(tmp_path, {"text": "a" * 40 + " a"}, {"text": "a a"}), 8)
    assert found.cut == 1


def test_a_text_that_the_tokenizer_changes_is_refused(tmp_path):
    class Lossy(Letters):
        def __init__(self):
            super().__init__()
            self.bpe.decode = lambda tokens: "other"

    with pytest.raises(ValueError, match="does not reproduce 'a' exactly"):
        answer(letters(Letters(), {"a": 0.5})[0], Lossy(), asked(tmp_path, {"text": "a b"}), 8)


def test_marks_in_a_question_are_text(tmp_path):
    task = Letters()
    found = answer(letters(task, {"a": 0.5})[0], task, asked(tmp_path, {"text": "a <|endoftext|>"}), 8)
    assert found.metrics["bits"] > 100  # fourteen bytes, not a token
