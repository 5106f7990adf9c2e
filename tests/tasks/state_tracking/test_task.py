"""Automata as tasks, against loops that follow the definitions word for word."""

import json
import re

import numpy as np
import pytest

from statewise.config.trainer import TrainerConfig
from statewise.tasks.automaton import completed
from statewise.tasks.batches import collate
from statewise.tasks.state_tracking.automata import PRESETS, flip_flop, of_table, parse_table, permutations
from statewise.tasks.state_tracking.task import StateTracking, StateTrackingConfig
from statewise.training.schedule import Schedule


def task(**fields):
    return StateTracking(StateTrackingConfig(**{"held_out_sequences": 60, "length": 30, **fields}))


def product(state, action):
    """The permutation i -> state(action(i)), of names of digits."""
    return "".join(state[int(digit) - 1] for digit in action)


def follow_dyck(stack, token):
    return stack + token[0] if token[1] == "(" else stack[:-1]


FOLLOW = {
    "parity": ("0", lambda state, token: str((int(state) + int(token)) % 2), "s{}"),
    "mod5": ("0", lambda state, token: str((int(state) + int(token)) % 5), "s{}"),
    "s3": ("123", product, "s{}"),
    "a5": ("12345", product, "s{}"),
    "s5": ("12345", product, "s{}"),
    "dyck": ("", follow_dyck, "[{}]"),
}


@pytest.mark.parametrize("ask", ["reveals", "query"])
@pytest.mark.parametrize("name", FOLLOW)
def test_every_answer_is_the_state_that_following_the_tokens_gives(name, ask):
    made = task(process=name, ask=ask)
    examples = made.sample(np.random.default_rng(0), 40)
    scored = collate(examples).scored.numpy()
    labels = made.labels(examples)
    for row in range(len(examples)):
        words = made.decode(examples.tokens[row]).split()
        assert words[-2] == "="
        state, follow, form = FOLLOW[name]
        questions = [place for place, word in enumerate(words) if word == "="]
        assert scored[row].nonzero()[0].tolist() == [place + 1 for place in questions]
        assert ask == "reveals" or len(questions) == 1
        for place, word in enumerate(words):
            if place - 1 in questions:
                assert word == form.format(state)
            elif place not in questions:
                state = follow(state, word)
            if ask == "reveals" or place < len(words) - 1:
                assert made.process.symbols[
                    len(made.process.symbols) - made.process.asked.sum() + labels[row, place]
                ] == (form.format(state))


def test_flip_flop_strings_are_those_of_liu_et_al():
    made = task(process="flip-flop", length=512)
    rows = made.sample(np.random.default_rng(0), 300)
    reads = instructions = ignores = 0
    for row in range(len(rows)):
        words = made.decode(rows.tokens[row]).split()
        assert (len(words), words[0], words[-2]) == (512, "w", "r")
        memory = None
        for instruction, bit in zip(words[::2], words[1::2]):
            memory = bit if instruction == "w" else memory
            assert instruction != "r" or bit == memory
            assert instruction in "wri"
        reads += words[2:-2:2].count("r")
        ignores += words[2:-2:2].count("i")
        instructions += 254
    assert reads / instructions == pytest.approx(0.1, abs=0.005)
    assert ignores / instructions == pytest.approx(0.8, abs=0.005)
    assert collate(rows).scored.sum() == reads + 300
    sparse = made.held_out_by("reveals", "0.01")
    assert (sparse.tokens == 2).sum() / len(sparse) / 256 == pytest.approx(0.98, abs=0.01)


def test_groups_are_groups():
    for n, even, order in ((3, False, 6), (5, True, 60), (5, False, 120)):
        table = permutations(n, even=even)
        assert table.next.shape == (order, order)
        assert (table.next[0] == np.arange(order)).all(), "the identity is the start"
        assert (np.sort(table.next, axis=0) == np.arange(order)[:, None]).all()
        assert (np.sort(table.next, axis=1) == np.arange(order)).all()


def test_tokens_are_drawn_by_their_weights():
    content = {
        "states": ["a", "b"],
        "tokens": ["x", "y", "z"],
        "start": "b",
        "next": [["a", "b", None], [None, "a", "b"]],
        "weights": [[1, 3, 9], [5, 1, 1]],
    }
    process = of_table(parse_table(json.dumps(content).encode(), "t.json"), "reveals")
    tokens, answers = process.draw(np.random.default_rng(0), np.full(4000, 20), 0.25)
    assert set(tokens[:, 0].tolist()) == {1, 2, 3}
    first = tokens[:, 0][tokens[:, 0] != 3]
    assert (first == 1).mean() == pytest.approx(0.5, abs=0.03)
    assert (tokens[:, 0] == 3).mean() == pytest.approx(0.25, abs=0.02)
    assert answers[:, -1].all()
    assert not answers[:, 0].any()


@pytest.mark.parametrize(
    "fields",
    [
        {"process": "mod5"},
        {"process": "flip-flop"},
        {"process": "dyck", "length": 40},
        {"process": "dyck", "length": 21, "ask": "query"},
        {"process": "dyck", "length": 64, "min_length": 4, "ask": "query"},
        {"process": "flip-flop", "length": 20, "min_length": 4},
    ],
    ids=str,
)
def test_chance_is_the_share_of_the_most_common_answer(fields):
    made = task(**fields)
    examples = made.sample(np.random.default_rng(0), 5000)
    answers = examples.tokens[collate(examples).scored.numpy()]
    assert made.chance["accuracy"] == pytest.approx(np.bincount(answers).max() / len(answers), abs=0.02)


def test_always_the_most_common_answer_is_worth_nothing_at_any_length_and_rate():
    made = task(process="dyck", length=40, longest=128)
    for option, value in (("length", "8"), ("length", "128"), ("reveals", "0.01")):
        examples = made.held_out_by(option, value, 300)
        asked = collate(examples).scored.numpy()
        common = np.bincount(examples.tokens[asked]).argmax()
        found = made.score_positions(examples, np.where(asked, common, -1))
        assert found["scaled_accuracy"] == pytest.approx(0)
        assert abs(found["accuracy"] - made.chance["accuracy"]) > 0.01, "the chance of the training set is another"


def test_tokens_are_counted_by_training_rows():
    made = task(process="flip-flop", length=32, longest=128)
    config = TrainerConfig(tokens="64k", batch_size=8)
    assert (made.context, made.longest_row) == (128, 32)
    assert Schedule.of(config, made.longest_row).steps == 250


def test_lengths_are_those_asked_for():
    made = task(process="parity", ask="query", min_length=6, length=20, longest=64)
    rows = made.sample(np.random.default_rng(0), 3000)
    assert set(rows.lengths.tolist()) == set(range(6, 21))
    assert made.context == 64
    longer = made.held_out_by("length", "10,40,64", 7)
    assert longer.lengths.tolist() == [10] * 7 + [40] * 7 + [64] * 7
    chosen = np.where(collate(longer).scored.numpy(), longer.tokens, -1)
    chosen[0, 9] = 0
    found = made.score_positions(longer, chosen)
    assert found["accuracy_length_10"] == pytest.approx(6 / 7)
    assert (found["accuracy_length_40"], found["accuracy"]) == (1.0, pytest.approx(20 / 21))
    assert found["length_kept"] == 0.0, "the shorter ones have fewer than nine of ten right"
    chosen[0, 9], chosen[-7:] = longer.tokens[0, 9], 0
    assert made.score_positions(longer, chosen)["length_kept"] == 40.0
    assert found["glitch_rate"] == pytest.approx(1 / 21)
    assert found["scaled_accuracy"] == pytest.approx(1 - 2 / 21, abs=0.01)
    trained = {tuple(row[:length]) for row, length in zip(rows.tokens.tolist(), rows.lengths)}
    short = made.held_out_by("length", "8")
    assert not trained & {tuple(row) for row in short.tokens.tolist()}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("length", "128", "`length` 128: a sequence has 4 to 30 tokens.*task.longest"),
        ("length", "2", "`length` 2"),
        ("length", "8,x", "numbers with commas"),
        ("length", "8,8", "different numbers"),
        ("length", "", "numbers"),
        ("length", "²", "numbers"),
        ("reveals", "0.7", "`reveals` 0.7"),
        ("reveals", "nan", "`reveals` nan"),
        ("reveals", "much", "`reveals` much"),
        ("depth", "3", "no held-out set"),
    ],
)
def test_sets_that_do_not_exist_are_refused(option, value, message):
    with pytest.raises(ValueError, match=message):
        task().held_out_by(option, value)


@pytest.mark.parametrize(("option", "value"), [("length", "8,16"), ("reveals", "0.2")])
def test_sets_without_end_are_refused_before_they_are_drawn(option, value):
    with pytest.raises(ValueError, match="at most 10,000,000 sequences of a set are drawn, not 1000000000"):
        task().held_out_by(option, value, 10**9)


def test_lengths_are_of_whole_steps():
    """Other lengths would be rounded to one that is trained, and tested with sequences of training."""
    made = task(process="flip-flop", length=8, longest=16)
    for value in ("9", "8,9,16"):
        with pytest.raises(ValueError, match="`length` 9: give a multiple of 2, the tokens of a step of flip-flop"):
            made.held_out_by("length", value)
    assert made.held_out_by("length", "8,10,16", 3).lengths.tolist() == [8] * 3 + [10] * 3 + [16] * 3


@pytest.mark.parametrize("ask", ["reveals", "query"])
@pytest.mark.parametrize("name", ["s3", "flip-flop", "dyck"])
def test_as_an_automaton_it_steps_as_it_reads(name, ask):
    world = task(process=name, ask=ask, length=16)
    examples = world.held_out(20)
    states = world.states_after(examples.tokens[:, :1])
    for place in range(1, 16):
        assert world.allowed(states)[np.arange(20), examples.tokens[:, place]].all()
        states = world.step(states, examples.tokens[:, place])
        np.testing.assert_array_equal(states, world.states_after(examples.tokens[:, : place + 1]))
    assert (world.tokens_left(states) == 0).all()
    assert completed(world, world.states_after(examples.tokens[:, :9]), list(examples.tokens[:, 9:])).all()
    if ask == "query":
        assert not world.allowed(states).any()
        assert (world.tokens_left(world.states_after(examples.tokens[:, :-1])) == 1).all()
        after = world.process.next
        left = world.tokens_left(np.arange(len(after))[:, None])
        for state, ways in enumerate(after):
            assert left[state] == min((1 + left[way] for way in ways if way >= 0), default=0)
    invalid = world.step(np.full((1, 1), -1), np.zeros(1, np.int64))
    assert (invalid == -1).all()
    assert not world.allowed(invalid).any()
    for same in (True, False):
        pairs = world.draw_pairs(np.random.default_rng(0), 30, same_state=same)
        one, other = pairs.first, pairs.second
        assert (len(pairs), pairs.requested) == (30, 30)
        np.testing.assert_array_equal(one.lengths, other.lengths)
        for row in range(30):
            first, second = (side.tokens[row, : side.lengths[row]][None] for side in (one, other))
            assert not np.array_equal(first, second)
            assert (world.states_after(first) == world.states_after(second)).all() == same


def test_pairs_of_prefixes_are_as_long_as_training_allows():
    world = task(process="parity", min_length=5, length=40)
    for same in (True, False):
        lengths = world.draw_pairs(np.random.default_rng(0), 60, same_state=same).first.lengths
        assert (lengths > 20).sum() > 10


def test_files_hold_sequences_from_the_start(tmp_path):
    made = task(process="parity")
    path = tmp_path / "bits.txt"
    path.write_text("1 1 0 = s0\n1 = s1 1 = s0\n")
    examples = made.read(path)
    assert collate(examples).scored.sum(1).tolist() == [1, 2]
    for line, message in (
        ("1 1 = s1", "bits.txt:1: symbol 4 is s1, but must be s0"),
        ("1 s1", "symbol 2 is s1, but must be 0 or 1 or ="),
        ("1 1 0", "no question with its answer"),
        ("1 7", "unknown symbol '7'"),
        (" ".join("1" * 40), "40 symbols, but the model reads 30"),
    ):
        path.write_text(line + "\n")
        with pytest.raises(ValueError, match=message):
            made.read(path)


GOOD = {"states": ["even", "odd"], "tokens": ["0", "1"], "next": [["even", "odd"], ["odd", "even"]]}


def test_a_table_of_your_own_is_kept_by_the_run(tmp_path):
    path = tmp_path / "parity.json"
    path.write_text(json.dumps(GOOD))
    made = task(process=str(path))
    assert made.vocab.symbols == ["0", "1", "=", "even", "odd"]
    path.unlink()
    again = StateTracking(made.config, made.files())
    np.testing.assert_array_equal(again.held_out().tokens, made.held_out().tokens)
    np.testing.assert_array_equal(again.held_out().tokens, task(process="parity").held_out().tokens)
    path.write_text(json.dumps({**GOOD, "tokens": ["a", "b"]}))
    for kept in ({}, {"other.json": b"{}"}):
        with pytest.raises(ValueError, match=r"task/automaton.json of this run is missing"):
            StateTracking(made.config, kept)
    assert again.data_identity() == made.data_identity()
    assert task(process=str(path)).data_identity() != made.data_identity(), "another table at the same path"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": ["even", "even"]}, "states: a name occurs twice"),
        ({"states": []}, "states must have 1 to 5,000 names, not 0"),
        ({"tokens": ["0", "a b"]}, 'tokens: "a b" is not a name'),
        ({"tokens": ["0", ""]}, "is not a name"),
        ({"tokens": ["0", "\ud800"]}, "half of a surrogate pair"),
        ({"tokens": ["0", "\u200b"]}, "is not a name: give 1 to 60 printable characters"),
        ({"states": ["even", "\x1b[31m"]}, "is not a name"),
        ({"next": [["even", "odd"]]}, "next must have a row of 2 tokens for each of 2 states"),
        ({"next": [["even"], ["odd"]]}, "next must have a row"),
        ({"next": [["even", "odd"], ["odd", "off"]]}, 'after state odd and token 1 comes "off", which is not a state'),
        ({"next": [["even", "odd"], [None, None]]}, "state odd has no legal token"),
        ({"next": [["even", "even"], ["odd", "even"]]}, "state odd cannot be reached from even"),
        ({"start": "off"}, 'start: "off" is not a state'),
        ({"wieghts": [[1, 1], [1, 1]]}, 'unknown key "wieghts": did you mean weights?'),
        ({"weights": [[1, 1], [1, -1]]}, "weights must be numbers from 0"),
        ({"weights": [[1, 1], [0, 0]]}, "state odd has no legal token with a weight above 0"),
        ({"weights": [[1, 0], [1, 1]]}, "state odd cannot be reached"),
        ({"weights": [[1, 1]]}, "weights must have a row"),
        ({"tokens": ["0", "odd"]}, "the name 'odd' must not be a state and a token"),
        ({"tokens": ["0", "="]}, "the name '=' must not be"),
        ({"next": 3}, "next"),
        ({"states": [1, 2]}, "states"),
        ({"weights": [["x", 1], [1, 1]]}, "weights"),
    ],
)
def test_tables_that_are_no_automata_are_refused(tmp_path, change, message):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ValueError, match=re.escape(message)):
        task(process=str(path))


def test_damaged_tables_are_refused_or_read_never_worse():
    rng = np.random.default_rng(0)
    content = bytearray(json.dumps({**GOOD, "weights": [[1, 2], [3, 4]], "start": "odd"}).encode())
    told = []
    for _ in range(600):
        damaged = bytearray(content)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            kind = rng.integers(3)
            if kind == 0:
                damaged[place : place + 1] = bytes([rng.integers(256)])
            elif kind == 1:
                del damaged[place : place + int(rng.integers(1, 9))]
            else:
                damaged[place:place] = rng.choice([b"null", b"[", b"1e999", b'"', b"-1", b"NaN"]).tobytes()
        try:
            process = of_table(parse_table(bytes(damaged), "table.json"), "reveals")
            tokens, _ = process.draw(rng, np.full(3, 8), 0.2)
            assert tokens.max() < len(process.symbols)
        except ValueError as error:
            told.append(str(error).startswith(("table.json: ", "the name ")))
    assert all(told)
    assert len(told) > 300


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"process": "s4"}, "task.process s4: no such file, and none of flip-flop, parity"),
        ({"ask": "never"}, "task.ask"),
        ({"reveal_rate": 0.6}, "task.reveal_rate"),
        ({"length": 3}, "task.length"),
        ({"longest": 20}, "task.longest 20"),
        ({"min_length": 31}, "task.min_length 31"),
        ({"held_out_sequences": 0}, "held_out_sequences"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        task(**fields)


def test_large_test_sets_are_drawn_in_parts(monkeypatch):
    made, drawn = task(process="parity", length=20, held_out_sequences=300), []
    draw = type(made.process).draw
    monkeypatch.setattr(type(made.process), "draw", lambda *given: drawn.append(len(given[2])) or draw(*given))
    monkeypatch.setattr("statewise.tasks.state_tracking.task.MOST_AT_ONCE", 200)
    assert len(made.held_out()) == 300
    assert max(drawn) == 10
    assert len(drawn) > 200


def test_too_few_sequences_to_hold_some_out():
    """Of four bits and a question there are fewer than sixteen sequences."""
    content = {"states": ["only"], "tokens": ["x"], "next": [["only"]]}
    process = of_table(parse_table(json.dumps(content).encode(), "t.json"), "query")
    made = task(process="parity", ask="query", length=4)
    made.process = process
    with pytest.raises(ValueError, match="too few different sequences"):
        made.held_out() and made.sample(np.random.default_rng(0), 5)


def test_every_preset_is_followed():
    assert set(FOLLOW) == set(PRESETS)
    assert len(PRESETS["dyck"]().states) == 2**4 - 1, "stacks of two kinds of brackets, up to three deep"
    assert flip_flop("query", 0.1).ends


def test_lengths_are_told_apart_as_numbers():
    made = StateTracking(StateTrackingConfig(process="parity", length=16, longest=16))
    with pytest.raises(ValueError, match="give different numbers"):
        made.held_out_by("length", "8,08,16", 4)


@pytest.mark.parametrize("process", ["parity", "mod5", "s3"])
def test_pairs_of_one_state_are_of_every_state(process):
    """The pairs of the lowest-numbered states had come first, and the others were cut off."""
    world = task(process=process)
    pairs = world.draw_pairs(np.random.default_rng(1), 400, same_state=True)
    first, second = (
        np.array([world.states_after(row[None, :length])[0, 0] for row, length in zip(side.tokens, side.lengths)])
        for side in (pairs.first, pairs.second)
    )
    assert (first == second).all()
    counts = np.bincount(first)[: len(world.process.next) // 2]  # the other half: an answer is asked for
    assert counts.min() > 0.5 * counts.max()


def test_a_shortest_length_that_the_process_cannot_have_is_not_undercut():
    world = task(process="flip-flop", min_length=5, length=9)
    assert set(world.sample(np.random.default_rng(1), 200).lengths.tolist()) == {6, 8}
    assert set(task(process="flip-flop", min_length=9, length=9).sample(np.random.default_rng(1), 9).lengths) == {8}
