"""What every task of the table must hold."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles import small_corpus, small_stories

from statewise.data_types import Completion
from statewise.tasks import TASKS
from statewise.tasks.base import World


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    rng = np.random.default_rng(0)
    lines = [
        f"{' '.join(rng.choice(list('abcdef'), rng.integers(1, 5)))}\t{' '.join(rng.choice(list('xyz'), 3))}"
        for _ in range(200)
    ]
    path = tmp_path_factory.mktemp("data") / "data.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


FIELDS = {
    "automaton": [
        {"process": "s3", "length": 30, "held_out_sequences": 200},
        {"process": "flip-flop", "length": 24, "held_out_sequences": 200, "reveal_rate": 0.2},
        {"process": "parity", "length": 24, "min_length": 8, "ask": "query", "held_out_sequences": 200},
        {"process": "dyck", "length": 31, "longest": 31, "held_out_sequences": 100},
        {"process": "flip-flop", "length": 40, "ask": "query", "held_out_sequences": 50},
    ],
    "countdown": [
        {"training_problems": 500, "held_out_problems": 300},
        {"numbers": 3, "pauses": 1, "training_problems": None, "held_out_problems": 100, "held_out_targets": 0},
    ],
    "hmm": [
        {"process": "rrxor", "length": 16, "held_out_sequences": 60},
        {"process": "mess3", "length": 12, "bos": True, "held_out_sequences": 60},
        {"process": "golden-mean * (bloch-walk | bloch-walk(1, 2))", "noise": 0.1, "held_out_sequences": 60},
    ],
    "manhattan": [
        {"rows": 6, "columns": 7, "max_moves": 20, "held_out_moves": 12, "held_out_rides": 80},
        {"rows": 6, "columns": 7, "max_moves": 15, "held_out_moves": 15, "held_out_rides": 50, "rides": "shortest"},
        {
            "rows": 6,
            "columns": 7,
            "max_moves": 15,
            "held_out_moves": 9,
            "held_out_rides": 50,
            "row": 50,
            "rides": "noisy_shortest",
        },
    ],
    "path_star": [
        {"degree": 2, "length": 4, "nodes": 12, "held_out_graphs": 300},
        {"degree": 3, "length": 3, "nodes": 7, "held_out_graphs": 300, "encoding": "reverse"},
        {"degree": 2, "length": 3, "nodes": 9, "training_graphs": 500, "held_out_graphs": 100},
        {"degree": 2, "length": 5, "nodes": 12, "held_out_graphs": 100, "encoding": "goal_augmentation"},
        {"degree": 2, "length": 5, "nodes": 12, "held_out_graphs": 100, "encoding": "fill_in_the_middle"},
    ],
    "pomdp": [
        {"steps": 8, "held_out_sequences": 60},
        {"problem": "grid", "policy": "qmdp", "steps": 6, "bos": False, "held_out_sequences": 60},
    ],
    "recall": [
        {"held_out_sequences": 60},
        {
            "keys": 2,
            "values": 40,
            "chunk": 5,
            "own_symbols": False,
            "distance": 1,
            "fillers": 2,
            "held_out_sequences": 50,
        },
    ],
    "sequences": [{"held_out_share": 0.2}, {"held_out_share": 0.5}],
    "stories": [
        {"vocabulary": 300, "context": 64, "held_out_share": 0.2},
        {"vocabulary": 300, "context": 64, "held_out_share": 0.2, "encoding": "fill_in_the_middle"},
    ],
    "strips_traces": [
        {"held_out_traces": 200},
        {"domain": "ferry:2x1", "max_length": 20, "held_out_length": 30, "held_out_traces": 100},
        {"domain": "simple", "max_length": 40, "held_out_traces": 50, "states_seed": 1},
    ],
    "text": [{"context": 32}, {"context": 50, "held_out_tokens": 500}],
}
CASES = [(name, fields) for name in TASKS for fields in FIELDS.get(name, [{}])]  # a new task with its defaults
every_task = pytest.mark.parametrize(("name", "fields"), CASES, ids=str)


def make(name, fields, data_file):
    kind = TASKS[name]
    if name == "sequences":
        fields = {"path": str(data_file), **fields}
    if name == "stories":
        path = data_file.with_name("stories.txt")
        path.write_text(small_stories(200))
        fields = {"path": str(path), **fields}
    if name == "text":
        # Bytes alone: a row may begin anywhere, and with merges its text may be encoded to other tokens.
        folder = data_file.parent / "corpus"
        corpus = folder if folder.exists() else small_corpus(data_file.parent, 200, "bpe:257").folder
        fields = {"path": str(corpus), **fields}
    return kind(kind.Config(**fields))


@pytest.fixture(scope="module")
def task_of(data_file):
    """Tasks that tests share: drawing their examples takes longer than looking at them."""
    made = {}

    def task(name, fields):
        key = name, repr(fields)
        if key not in made:
            made[key] = make(name, fields, data_file)
        return made[key]

    return task


def rows(examples):
    return {tuple(examples.tokens[row, : examples.lengths[row]].tolist()) for row in range(len(examples))}


@every_task
def test_same_seed_same_arrays(name, fields, data_file):
    one, two = (make(name, fields, data_file) for _ in range(2))
    np.testing.assert_array_equal(one.held_out().tokens, two.held_out().tokens)
    drawn = [task.sample(np.random.default_rng(seed), 20).tokens for task, seed in ((one, 3), (two, 3), (one, 4))]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


@every_task
def test_splits_are_disjoint(name, fields, task_of):
    task = task_of(name, fields)
    if not task.disjoint:
        return
    training = task.training()
    if training is None:
        training = task.sample(np.random.default_rng(1), 5000)
    assert not rows(training[np.arange(len(training))]) & rows(task.held_out())


@every_task
def test_its_own_answers_are_right_and_others_are_not(name, fields, task_of):
    task = task_of(name, fields)
    examples = task.held_out(50)
    answers = [Completion(examples.answer(row), 0.0) for row in range(len(examples))]
    assert set(task.score(examples, answers).values()) == {1.0}
    assert task.headline.metric in {*task.score(examples, answers), "loss"}
    wrong = [Completion(np.zeros(0, np.int64), 0.0) for _ in answers]
    assert set(task.score(examples, wrong).values()) == {0.0}
    swapped = [answers[-1], *answers[:-1]]
    scores = task.score(examples, swapped)
    # A task that is ranked by its loss has scores beside it, which must tell answers apart too.
    assert scores.get(task.headline.metric, max(scores.values())) < 0.5


@every_task
def test_text_and_tokens_are_inverse(name, fields, task_of):
    task = task_of(name, fields)
    examples = task.held_out(30)
    for row in range(len(examples)):
        for tokens in (examples.prompt(row), examples.answer(row)):
            np.testing.assert_array_equal(task.encode(task.decode(tokens)), tokens)


@every_task
def test_it_is_built_again_from_its_files_alone(name, fields, task_of):
    task = task_of(name, fields)
    held_out = task.held_out(5)
    again = TASKS[name](task.config, task.files())
    assert again.vocab.symbols == task.vocab.symbols
    assert (again.context, again.end, again.headline) == (task.context, task.end, task.headline)
    np.testing.assert_array_equal(again.held_out(5).tokens, held_out.tokens)


@every_task
def test_its_data_are_identified_wherever_they_lie(name, fields, task_of, data_file):
    task = task_of(name, fields)
    assert all(isinstance(value, str) for value in task.data_identity().values())
    assert task.data_identity() == type(task)(task.config, task.files()).data_identity()
    assert bool(task.data_identity()) == bool(task.files())
    if name in ("sequences", "stories"):
        moved = data_file.parent / "moved" / Path(task.config.path).name
        moved.parent.mkdir(exist_ok=True)
        moved.write_bytes(Path(task.config.path).read_bytes())
        elsewhere = type(task)(replace(task.config, path=str(moved)))
        assert elsewhere.data_identity() == task.data_identity()
        moved.write_bytes(moved.read_bytes().replace(b"a", b"b", 40))
        changed = type(task)(replace(task.config, path=str(moved)))
        assert changed.data_identity()["data"] != task.data_identity()["data"]


@every_task
def test_no_example_outgrows_the_context(name, fields, task_of):
    task = task_of(name, fields)
    for examples in (task.held_out(), task.sample(np.random.default_rng(0), 100)):
        assert examples.lengths.max() <= task.context
        assert examples.tokens.max() < len(task.vocab)
        assert (examples.prompt_lengths < examples.lengths).all()


@every_task
def test_samples_for_reports_are_plain_data(name, fields, task_of):
    task = task_of(name, fields)
    examples = task.held_out(3)
    sample = task.sample_of(examples, 0, Completion(examples.answer(0), 0.0))
    assert json.loads(json.dumps(sample)) == sample
    assert sample["truth"] == sample["predicted"]


@every_task
def test_worlds_label_positions_and_allow_what_happens(name, fields, task_of):
    task = task_of(name, fields)
    if not isinstance(task, World):
        return
    examples = task.held_out(20)
    assert task.labels(examples).shape == examples.tokens.shape
    for row in range(len(examples)):
        for place in range(examples.prompt_lengths[row], examples.lengths[row]):
            assert examples.tokens[row, place] in task.legal(examples.tokens[row, :place])
        assert len(task.legal(examples.tokens[row, : examples.lengths[row]])) == 0


@every_task
def test_a_prompt_and_its_continuation_are_a_prompt_again(name, fields, task_of):
    """Wherever a sequence is cut, also one that the model made up, if the task can read it at all."""
    task, rng = task_of(name, fields), np.random.default_rng(0)
    held_out, tried = task.held_out(8), 0
    own = [held_out.tokens[row, : held_out.lengths[row]] for row in range(len(held_out))]
    for tokens in [*own, *(rng.integers(0, len(task.vocab), 6) for _ in range(20))]:
        try:
            whole = task.decode(tokens)
            if not np.array_equal(task.encode(whole), tokens):
                continue  # a text cut inside a word, or pauses that are not whole
        except ValueError:
            continue
        for place in rng.integers(0, len(tokens) + 1, 4).tolist():
            prompt, rest = tokens[:place], tokens[place:]
            written = task.decode(prompt)
            try:
                if not np.array_equal(task.encode(written), prompt):
                    continue
            except ValueError:
                continue
            for before in (prompt, written):
                text = written + task.continuation(before, rest)
                assert task.encode(text).tolist() == tokens.tolist(), (written, text)
                tried += 1
    assert tried > 20
