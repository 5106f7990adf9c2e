"""Traces are walks through the domain, and what is legal is what Definition 1 says."""

import numpy as np
import pytest

from statewise.data_types import Completion, Examples
from statewise.strips.model.traces import Traces
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.trace_data.trace_files import write_traces
from statewise.tasks.strips_traces import StripsTraces, StripsTracesConfig


def make(**fields):
    return StripsTraces(StripsTracesConfig(**{"held_out_traces": 100, **fields}))


def runs_from(model, state, actions):
    """Whether all actions can be done one after another: the slow twin of the table of walks."""
    for number in actions:
        if number not in model.applicable(state):
            return False
        state = model.result(state, number)
    return True


@pytest.mark.parametrize("name", ["blocksworld:3", "ferry:2x2", "gripper:2", "hanoi:3", "miconic:3x2"])
def test_walks_run_from_the_initial_states_of_their_split(name):
    task, known = make(domain=name, max_length=12), domain(name)
    begins = known.initial_states(4)
    for examples, states in ((task.sample(np.random.default_rng(0), 60), begins[:2]), (task.held_out(), begins[2:])):
        for row in examples.tokens.tolist():
            assert any(runs_from(known.model, state, row) for state in states)
            assert known.model.first_rejected(row) is None


def test_walks_choose_evenly_among_what_can_be_done():
    task = make(domain="ferry:2x2", max_length=2)
    rng = np.random.default_rng(0)
    place = int(task._begins[0])
    rows = task.walks.walk(rng, np.full(20_000, place), 1)
    state = {at: state for state, at in task.walks.numbers.items()}[place]
    numbers, counts = np.unique(rows, return_counts=True)
    assert numbers.tolist() == task.model.applicable(state)
    np.testing.assert_allclose(counts / 20_000, 1 / len(numbers), atol=0.02)


def test_the_split_is_that_of_the_trace_files():
    known = domain("ferry:2x1")
    starts = {row[0] for row in traces(known, 60, 20, 1, negatives=0, split="test").rows}
    assert {int(token) for token in make(domain="ferry:2x1").held_out().tokens[:, 0]} == starts
    assert make(states_seed=1)._begins.tolist() != make()._begins.tolist()


def test_held_out_traces_differ_and_may_be_longer():
    task = make(max_length=10, held_out_length=25)
    examples = task.held_out()
    assert len(np.unique(examples.tokens, axis=0)) == 100
    assert set(examples.lengths) == {25}
    assert task.context == 25
    assert set(examples.prompt_lengths) == set(range(1, 25))
    assert set(task.sample(np.random.default_rng(0), 10).lengths) == {10}
    several = task.held_out_by("length", "25, 12")
    assert several.lengths.tolist() == [12] * 100 + [25] * 100
    np.testing.assert_array_equal(several.tokens[100:], examples.tokens)
    for value, message in (
        ("26", "larger task.held_out_length"),
        ("1", "2 to 25"),
        ("ten", "different numbers"),
        ("3", "too few"),
    ):
        with pytest.raises(ValueError, match=message):
            task.held_out_by("length", value)
    with pytest.raises(ValueError, match="no held-out set `targets`"):
        task.held_out_by("targets", "all")


def test_scores_of_each_length():
    task = make(max_length=10, held_out_length=25)
    examples = task.held_out_by("length", "12,25", 20)
    given = [Completion(examples.answer(row), 0.0) for row in range(40)]
    given[:5] = [Completion(np.empty(0, np.int64), 0.0)] * 5
    given[39] = Completion(examples.answer(39)[:-1], 0.0)  # prompt of 20 of 25 actions, one action is missing
    scores = task.score(examples, given)
    assert (scores["legal_next_length_12"], scores["legal_traces_length_12"]) == (0.75, 0.75)
    assert (scores["legal_next_length_25"], scores["legal_traces_length_25"]) == (1.0, 0.95)
    assert (scores["legal_next"], scores["legal_traces"]) == (35 / 40, 34 / 40)


def test_what_is_legal_is_definition_1():
    task = make()
    examples, model = task.held_out(10), task.model
    allowed = task._legal_after(examples)
    for row, trace in enumerate(examples.tokens.tolist()):
        for place in range(len(trace) - 1):
            possible = model.possible(model.after(trace[: place + 1]))
            assert task.legal(np.array(trace[: place + 1])).tolist() == possible
            assert np.flatnonzero(allowed[row, place]).tolist() == possible
    assert len(task.legal(np.empty(0, np.int64))) == len(model.actions)  # nothing is known to be false


@pytest.mark.parametrize("name", ["blocksworld:3", "ferry:2x2", "simple"])
def test_labels_are_the_real_states(name):
    task = make(domain=name, max_length=25, held_out_traces=20)
    model, begins = task.model, task.domain.initial_states(4)
    for examples in (task.held_out(), task.sample(np.random.default_rng(0), 20)):
        labels = task.labels(examples)
        for row, trace in enumerate(examples.tokens.tolist()):
            states = [state for state in begins if runs_from(model, state, trace)]
            for place, number in enumerate(trace):
                states = [model.result(state, number) for state in states]
                known = task.walks.numbers[states[0]] if len(set(states)) == 1 else -1
                assert labels[row, place] == known


def test_labels_are_undefined_on_padding_and_where_no_walk_of_the_task_leads():
    task = make()
    whole = task.held_out(2)
    cut = Examples(whole.tokens, np.array([30, 12]), whole.prompt_lengths)
    labels = task.labels(cut)
    assert (labels[0] >= 0).all()
    assert (labels[1, 12:] == -1).all()
    nonsense = Examples.of([task.encode("pickup b1, pickup b2")], [1])
    assert (task.labels(nonsense) == -1).all()


def completions(task, *texts):
    return [Completion(task.encode(text), 0.0) for text in texts]


def test_any_legal_continuation_is_right():
    task = make(domain="simple", max_length=10, held_out_traces=5)
    examples = Examples.of([task.encode("a, c, b, c")] * 5, [1] * 5)
    given = completions(task, "c, c, b", "c, b, b", "b, c, c", "c, b", "")
    # After `a` nothing but c is legal. The second errs later, the third at once, the others are too short.
    assert task.score(examples, given) == {"legal_next": 3 / 5, "legal_traces": 1 / 5}


def test_forced_accuracy_is_of_places_where_one_action_is_legal():
    task = make(domain="simple", max_length=10, held_out_traces=5)
    examples = Examples.of([task.encode("a, c, b, c, a")], [1])
    # After `a` and after `b` only c is legal; after the first c both b and c are.
    for given, share in (("c, c, b, b, b", 0.5), ("a, c, b, c, b", 1.0)):
        assert task.score_positions(examples, task.encode(given)[None]) == {"forced_accuracy": share}
    free = Examples.of([task.encode("c, c")], [1])
    assert task.score_positions(free, free.tokens) == {}


def test_chance_is_that_of_a_random_action():
    task = make(held_out_traces=300)
    examples, rng = task.held_out(), np.random.default_rng(0)
    guesses = [Completion(rng.integers(len(task.vocab), size=1), 0.0) for _ in range(len(examples))]
    assert task.score(examples, guesses)["legal_next"] == pytest.approx(task.chance["legal_next"], abs=0.08)


def test_trace_files_are_read(tmp_path):
    task, known = make(), domain("blocksworld:3")
    positives = traces(known, 20, 30, 5, negatives=0, split="test")
    write_traces(positives, tmp_path / "test.csv")
    examples = task.read(tmp_path / "test.csv")
    read = [tuple(examples.tokens[row, : examples.lengths[row]].tolist()) for row in range(20)]
    assert read == list(positives.rows)
    assert examples.prompt_lengths.tolist() == [len(row) // 2 for row in positives.rows]


def test_trace_files_that_do_not_fit(tmp_path):
    task, known = make(max_length=5), domain("blocksworld:3")
    path = tmp_path / "test.csv"
    write_traces(traces(known, 3, 5, 5, negatives=1), path)
    with pytest.raises(ValueError, match=r"test.csv: trace 1 of 3 is negative: action \d is not possible"):
        task.read(path)
    write_traces(Traces(known.model.names, ((0, 1),), (1,)), path)
    with pytest.raises(ValueError, match="trace 1 of 1 is negative: it is labelled negative"):
        task.read(path)
    write_traces(Traces(known.model.names, ((0, 1, 0), (0, 1, 0, 1, 0, 1)), (0, 0)), path)
    with pytest.raises(ValueError, match="trace 2 of 2 has 6 actions, but the longest of the task has 5"):
        task.read(path)
    path.write_text("trace_id,action\n0,pickup b9\n")
    with pytest.raises(ValueError, match=r"test.csv:2: 'pickup b9' is not an action"):
        task.read(path)


def test_text_is_forgiving_about_spaces():
    task = make()
    assert task.encode(" pickup  b1 ,stack b1 b2,").tolist() == task.encode("pickup b1, stack b1 b2").tolist()
    with pytest.raises(ValueError, match="unknown symbol 'pickup b9'"):
        task.encode("pickup b1, pickup b9")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"domain": "chess"}, "'chess' is not a domain"),
        ({"domain": "hanoi:8"}, "hanoi:8 has 63 atoms"),
        ({"domain": "blocksworld:1"}, "walks should begin in 4 different ones"),
        ({"domain": "gripper:9"}, "gripper:9 has more than 20,000 states"),
        ({"domain": "simple", "max_length": 4}, "too few different traces of 4 actions"),
        ({"max_length": 1}, "at least 2"),
        ({"held_out_length": 1}, "at least 2"),
        ({"held_out_traces": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_a_task_is_said(fields, message):
    with pytest.raises(ValueError, match=message):
        make(**fields).held_out()
