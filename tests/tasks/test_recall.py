import numpy as np
import pytest

from statewise.data_types import Completion
from statewise.tasks.batches import collate
from statewise.tasks.recall import Recall, RecallConfig


def task(**fields):
    return Recall(
        RecallConfig(
            **{"own_symbols": False, "values": 5, "chunk": 4, "fillers": 2, "held_out_sequences": 50, **fields}
        )
    )


def test_keys_are_given_once_and_one_is_asked_for_once():
    made = task()
    for examples in (made.held_out(), made.sample(np.random.default_rng(0), 400)):
        assert examples.tokens.shape[1] == made.context == 16
        for row in examples.tokens[:40]:
            words = made.decode(row).split()
            kinds = "".join("k" if word.isdigit() else word[0] for word in words)
            place = kinds.index("?")
            assert place in (6, 10, 14)
            assert kinds == "kk" + "." * (place - 2) + "?k" + "." * (14 - place)
            assert words[place + 1] == words[int(words[place][1:]) - 1]
    rows = made.sample(np.random.default_rng(1), 6000).tokens
    assert np.bincount(rows[:, :2].ravel(), minlength=5).min() > 2100
    assert np.bincount(made._distances(rows)).min() > 1800
    assert np.bincount(rows[rows >= 7]).min(initial=9999, where=np.arange(9) >= 7) > 2800


def test_keys_may_have_symbols_of_their_own():
    made = task(own_symbols=True, distance=1)
    assert made.vocab.symbols[:6] == ["1:0", "1:1", "1:2", "1:3", "1:4", "2:0"]
    row = made.encode("1:3 2:1 .0 .1 .0 .1 ?2 2:1")
    assert made._problem(row) == ""
    assert made.labels(made._examples(row[None]))[0].tolist() == [-1, *[3 + 5 * 1] * 7]
    assert made._problem(made.encode("2:3 2:1 .0 .1 .0 .1 ?2 2:1")) == (
        "symbol 1 is 2:3, but must be one of 1:0 to 1:4"
    )
    keys = made.sample(np.random.default_rng(0), 300).tokens[:, :2]
    assert (keys[:, 0] < 5).all()
    assert (keys[:, 1] >= 5).all()
    assert (keys[:, 1] < 10).all()


def test_the_answer_alone_is_scored():
    made = task()
    examples = made.held_out(30)
    scored = collate(examples).scored.numpy()
    assert scored.sum() == 30
    assert (examples.tokens[:, :-1][scored[:, 1:]] >= 7).all(), "each behind a question"
    assert collate(made.held_out(5)[np.array([4, 1])]).scored.sum() == 2


def test_chunks_may_be_documents_of_their_own():
    made = task(document_chunks=2)
    assert made.held_out(3).documents.tolist() == [[1] * 8 + [2] * 8] * 3
    assert collate(made.held_out(3)).scored.sum() == 3
    np.testing.assert_array_equal(made.held_out().tokens, task().held_out().tokens)


def test_recall_is_counted_by_distance():
    made = task()
    examples = made.held_out()
    chosen = np.where(collate(examples).scored.numpy(), examples.tokens, -1)
    assert set(made.score_positions(examples, chosen).values()) == {1.0}
    second = np.flatnonzero(made._distances(examples.tokens) == 1)
    chosen[second[1:], 11] = (chosen[second[1:], 11] + 1) % 5
    found = made.score_positions(examples, chosen)
    assert found == {
        "recall": pytest.approx(1 - (len(second) - 1) / 50),
        "recall_distance_1": 1.0,
        "recall_distance_2": pytest.approx(1 / len(second)),
        "recall_distance_3": 1.0,
    }
    assert made.chance["recall_distance_3"] == 0.2
    half = [Completion(examples.answer(row)[:10], 0.0) for row in range(50)]  # up to what is asked at distance 2
    assert made.score(examples, half) == {"recall": pytest.approx((made._distances(examples.tokens) < 2).mean())}


def test_labels_are_the_keys_from_where_they_are_known():
    made = task()
    examples = made.held_out(20)
    labels = made.labels(examples)
    assert (labels[:, 0] == -1).all()
    first, second = examples.tokens[:, 0], examples.tokens[:, 1]
    assert (labels[:, 1:] == (first + 5 * second)[:, None]).all()


def test_files_hold_whole_sequences_with_right_answers(tmp_path):
    made = task(distance=1)
    path = tmp_path / "recall.txt"
    path.write_text("1 4 .0 .1 .1 .0 ?2 4\n")
    assert collate(made.read(path)).scored.sum() == 1
    for line, message in (
        ("1 4 .0 .1 .1 .0 ?2 1", "recall.txt:1: symbol 8 is 1, but must be 4"),
        ("1 .0 .0 .1 .1 .0 ?2 1", "symbol 2 is .0, but must be one of 0 to 4"),
        ("1 4 .0 .1", "4 symbols, but a sequence of this task has 8"),
        ("1 9 .0 .1 .1 .0 ?2 9", "unknown symbol '9'"),
    ):
        path.write_text(line + "\n")
        with pytest.raises(ValueError, match=message):
            made.read(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keys": 0}, "task.keys must be at least 1"),
        ({"values": 1}, "task.values must be at least 2"),
        ({"chunk": 2}, "task.chunk 2 is too short for 2 keys"),
        ({"keys": 30, "values": 100, "chunk": 40}, r"more than 2\^62 combinations"),
    ],
)
def test_bad_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        task(**fields)
