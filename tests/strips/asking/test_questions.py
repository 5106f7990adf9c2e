"""Questions that settle what is open: what is asked is open, and with the answers the model becomes exact."""

import json

import pytest

from statewise.strips.asking.questions import answered, ask, read_answers, with_answers, write_questions
from statewise.strips.exact.verdicts import Seen
from statewise.strips.methods import learn, learn_schemas
from statewise.strips.model.learned import read_learned_model
from statewise.strips.model.traces import Traces
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.verification import verify


@pytest.mark.parametrize(("spec", "walks"), [("blocksworld:3", 6), ("ferry:3x2", 6)])
def test_answers_make_schemas_exact(tmp_path, spec, walks):
    world = domain(spec)
    known = traces(world, walks, 20, 1, negatives=0)
    learned = learn_schemas(known, folder=tmp_path / "0")
    assert not verify(learned.ground(world.model.names), world, drawn_only=True)
    answers = []
    for round_ in range(1, 5):
        folder = tmp_path / str(round_ - 1)
        asked = ask(folder, num=40)
        model, seen = read_learned_model(folder), Seen.load(folder).with_constants([])
        assert asked.questions
        for each in asked.questions:
            rejected = model.first_rejected([model.number[name] for name in each.trace])
            assert rejected == (None if each.allowed else len(each.trace) - 1)
            assert seen.verdict(each.trace).outcome == "undecided"
        answers += [answered(each, world.model) for each in asked.questions]
        learned = learn_schemas(with_answers(known, answers), folder=tmp_path / str(round_))
        if verify(learned.ground(world.model.names), world, drawn_only=True):
            break
    else:
        pytest.fail("not exact after four rounds")


def test_a_ground_model_is_asked_about_pairs_and_preconditions(tmp_path):
    world = domain("simple")
    known = Traces(("a", "b", "c"), ((0, 2, 1, 2, 0),), (0,))
    model = learn(known, method="exact", folder=tmp_path / "m").model
    asked = ask(tmp_path / "m", num=50)
    assert len({each.trace for each in asked.questions}) == len(asked.questions) > 2
    assert not asked.more
    for each in asked.questions:
        rejected = model.first_rejected([model.number[name] for name in each.trace])
        assert rejected == (None if each.allowed else len(each.trace) - 1)
    answers = []
    for round_ in ("m", "n", "o"):
        answers += [answered(each, world.model) for each in ask(tmp_path / round_, num=50).questions]
        following = tmp_path / chr(ord(round_) + 1)
        model = learn(with_answers(known, answers), method="exact", folder=following).model
    assert verify(model, world.model)
    assert len(ask(tmp_path / "m", num=1).questions) == 1
    assert ask(tmp_path / "m", num=1).more


def test_questions_are_written_and_answers_read(tmp_path):
    learn(Traces(("a", "b", "c"), ((0, 2, 1, 2, 0),), (0,)), method="exact", folder=tmp_path / "m")
    asked = ask(tmp_path / "m", num=3)
    path = tmp_path / "q.jsonl"
    write_questions(asked, path)
    assert read_answers(path) == []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [tuple(line["actions"]) for line in lines] == [each.trace for each in asked.questions]
    lines[1]["label"] = 1
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_answers(path) == [(asked.questions[1].trace, 1)]


def test_an_answer_overrules_the_trace_that_was_asked_about():
    known = Traces(("b", "a"), ((0, 1), (1,)), (0, 0))
    assert with_answers(known, [(("b", "a"), 1), (("c",), 0)]) == Traces(
        ("a", "b", "c"), ((0,), (1, 0), (2,)), (0, 1, 0)
    )
    assert with_answers(known, []) == Traces(("a", "b"), ((1, 0), (0,)), (0, 0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "an answer is"),
        ('{"actions": []}', "an answer is"),
        ('{"actions": ["a", 1], "label": 0}', "an answer is"),
        ('{"actions": ["a", " "], "label": 0}', "an answer is"),
        ('{"actions": ["a"], "label": 2}', "label must be 0"),
        ('{"actions": ["a"], "label": true}', "label must be 0"),
        ('{"actions": ["a"], "label": NaN}', ""),
        ('{"actions": ["a"], "label": 1e400}', ""),
        ("[" * 100_000, ""),
        ('{"actions"', ""),
    ],
)
def test_bad_answers_are_named_with_their_line(tmp_path, text, said):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"actions": ["a"], "label": 0}}\n{text}\n')
    with pytest.raises(ValueError, match=rf"a.jsonl:2: .*{said}"):
        read_answers(path)


def test_other_folders_and_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="num must be at least 1"):
        ask(tmp_path, num=0)
    with pytest.raises((ValueError, OSError)):
        ask(tmp_path)
