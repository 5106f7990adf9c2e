import json
import math
import shutil

import numpy as np
import pytest
import torch
from doubles import MarkovPredictor, small_corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.decoding import make_decoder
from statewise.evaluation.evaluate import evaluate
from statewise.tasks.batches import Stream, collate
from statewise.tasks.corpus.documents import find
from statewise.tasks.corpus.tokenizers import learn
from statewise.tasks.corpus.writing import write
from statewise.tasks.text.bpe import END
from statewise.tasks.text.task import InMemory, Text, TextConfig, Windows, _word_starts


def task_of(corpus, **fields):
    return Text(TextConfig(**{"path": str(corpus.folder), "context": 16, **fields}))


@pytest.fixture
def corpus(tmp_path):
    return small_corpus(tmp_path, shard_tokens=101)


# Rows


@given(
    st.lists(st.integers(1, 25), min_size=1, max_size=20), st.integers(2, 30), st.integers(1, 5), st.integers(0, 2**31)
)
@settings(max_examples=100, deadline=None)
def test_an_epoch_meets_every_token_once_and_documents_are_numbered(lengths, context, batch_size, seed):
    end = 0
    stream = np.concatenate([[*range(1, length), end] for length in lengths])  # each token is its place in its document
    number = np.repeat(np.arange(len(lengths)), lengths)
    windows = Windows(InMemory(stream), context, end)

    class Task:
        longest_row = context

        def training(self):
            return windows

    rows = len(windows)
    batches = Stream(Task(), seed=seed, batch_size=batch_size)
    seen = []
    for step in range(-(-rows // batch_size)):
        batch = batches.batch(step)
        for row in range(batch_size):
            if step * batch_size + row < rows:  # what follows is the next epoch
                real = batch.real[row]
                seen.append((batch.tokens[row][real], batch.documents[row][real], batch.scored[row][real]))
    whole = [windows[np.arange(rows)], windows[np.arange(rows)[::-1]][np.arange(rows)[::-1]]]
    for examples in whole:
        np.testing.assert_array_equal(
            np.concatenate([examples.tokens[row, :length] for row, length in enumerate(examples.lengths)]), stream
        )
    assert (whole[0].lengths[:-1] == context).all()
    assert sorted(tuple(tokens.tolist()) for tokens, _, _ in seen) == sorted(
        tuple(stream[start : start + context].tolist()) for start in range(0, len(stream), context)
    )
    for row in range(rows):
        here = slice(row * context, (row + 1) * context)
        length = whole[0].lengths[row]
        assert whole[0].documents[row, :length].tolist() == (number[here] - number[here][0] + 1).tolist()
        assert (np.diff(whole[0].documents[row]) >= 0).all()
    for tokens, documents, scored in seen:
        first = torch.cat([torch.tensor([True]), documents[1:] != documents[:-1]])
        assert (scored == ~first).all()
        assert (tokens[:-1][scored[1:]] != end).all()  # no loss where the input is the end of a text


def test_rows_are_read_from_shards_as_from_one_array(corpus):
    task = task_of(corpus)
    training = task.training()
    tokens = corpus.training.read(0, len(corpus.training))
    rng = np.random.default_rng(0)
    for _ in range(30):
        rows = rng.integers(0, len(training), 5)
        found, expected = training[rows], Windows(InMemory(tokens), 16, task.end)[rows]
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_array_equal(found.documents, expected.documents)
    assert len(task_of(corpus, context=10**6).training()) == 1


def test_held_out_rows_are_spread_and_limited(corpus):
    task = task_of(corpus)
    every = task.held_out()
    assert every.lengths.sum() == len(corpus.held_out)
    few = task.held_out(3)
    places = [row * len(every) // 3 for row in range(3)]
    np.testing.assert_array_equal(few.tokens, every[np.array(places)].tokens)
    limited = task_of(corpus, held_out_tokens=50)
    assert len(limited.held_out()) == len(limited.held_out(100)) == 3
    assert limited.notes[0].endswith(" held out, 48 of them evaluated")
    assert task.notes[0].endswith(f"{len(corpus.held_out):,} of {corpus.held_out.documents} held out")
    assert len(task_of(corpus, held_out_tokens=None).held_out()) == len(every)


# A corpus and its run


def test_a_run_knows_its_corpus_again(corpus, tmp_path):
    task = task_of(corpus)
    again = Text(task.config, task.files())
    np.testing.assert_array_equal(again.held_out().tokens, task.held_out().tokens)
    assert again.notes == task.notes
    shutil.move(corpus.folder, tmp_path / "elsewhere")
    gone = Text(task.config, task.files())
    assert gone.decode(gone.encode("A cat.")) == "A cat."
    with pytest.raises(ValueError, match="corpus: the corpus of this run no longer exists"):
        gone.held_out()
    small_corpus(tmp_path, n=59, tokenizer=str(tmp_path / "elsewhere" / "tokenizer.json"), shard_tokens=101)
    with pytest.raises(ValueError, match=r"not the corpus that the run began with: .*(training|held-out) differ"):
        Text(task.config, task.files()).training()
    small_corpus(tmp_path, tokenizer="bpe:280", overwrite=True)
    with pytest.raises(ValueError, match="not the corpus that the run began with: tokenizer and training and held-out"):
        Text(task.config, task.files()).held_out()
    kept = {**task.files(), "tokenizer.json": (corpus.folder / "tokenizer.json").read_bytes()}
    with pytest.raises(ValueError, match=r"tokenizer.json of this run is not the tokenizer"):
        Text(task.config, kept)


def test_other_texts_are_read_with_the_runs_tokenizer(corpus, tmp_path):
    task = task_of(corpus)
    path = tmp_path / "other.txt"
    path.write_text(f"A cat.\n{END}\nA dog saw the boat, and it sank.\n{END}\n")
    examples = task.read(path)
    tokens = np.concatenate([task.encode(f"A cat.{END}"), task.encode(f"A dog saw the boat, and it sank.{END}")])
    np.testing.assert_array_equal(examples.tokens.ravel()[: len(tokens)], tokens)
    assert examples.lengths.sum() == len(tokens)
    lines = tmp_path / "other.jsonl"
    lines.write_text(json.dumps({"text": "A cat."}) + "\n" + json.dumps({"text": "A dog saw the boat, and it sank."}))
    np.testing.assert_array_equal(task.read(lines).tokens, examples.tokens)
    same = write(find([path]), tmp_path / "same", str(corpus.folder / "tokenizer.json"), held_out=1)
    np.testing.assert_array_equal(task.read(same.folder).tokens, examples.tokens)
    with pytest.raises(ValueError, match="all documents of this corpus are held out"):
        task_of(same).training()
    other = small_corpus(tmp_path, tokenizer="bpe:280", overwrite=True)
    with pytest.raises(ValueError, match=r"another tokenizer than the run's.*give the text files"):
        task.read(other.folder)
    path.write_text(" \n")
    with pytest.raises(ValueError, match=r"other.txt: no text"):
        task.read(path)
    path.write_bytes(b"a\xff")
    with pytest.raises(ValueError, match=r"other.txt: byte 1: not UTF-8"):
        task.read(path)


def test_a_text_is_read_in_the_way_that_the_corpus_was(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("one two\nthree\nfour\n")
    corpus = write(find([path], "line"), tmp_path / "c", "bpe:258", held_out=0.3, documents="line")
    task = task_of(corpus, context=64)
    assert task.decode(task.read(path).tokens[0]) == f"one two{END}three{END}four{END}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": ""}, "task.path is not set"),
        ({"path": "nowhere"}, "nowhere: no such corpus: make one with `statewise data text"),
        ({"context": 1}, "task.context must be at least 2 and at most"),
        ({"held_out_tokens": 0}, "task.held_out_tokens must be at least 1, not 0"),
    ],
)
def test_fields_that_do_not_fit_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        Text(TextConfig(**fields))


# Units


def test_units_by_hand(tmp_path):
    """With one token a byte: `ab cd` is scored from its second byte on, and `ab` begins in the first."""
    path = tmp_path / "a.txt"
    path.write_text(f"ab cd\n{END}\n  x\u00a0yé z \n{END}\nq\n{END}\n")
    corpus = write(find([path]), tmp_path / "c", "bpe:257", held_out=1e-9)
    task = task_of(corpus, context=64)
    examples = task.read(path)
    told = [f"ab cd{END}", f"  x\u00a0yé z {END}", f"q{END}"]
    assert task.decode(examples.tokens[0]) == "".join(told)
    # `ab cd`: 4 bytes scored, `cd` begins in them. `  x yé z `: 1 + 1 + 2 (a no-break space) + 3 + 1 + 1 + 1, and
    # three words, and an empty one behind them. `q`: one byte, which is not scored.
    assert task.units(examples) == {"word": 1 + 4 + 0, "byte": 4 + 10 + 0}
    # Rows of 4 cut documents: `ab c` `d<end>  ` ` x..`: the first token of each row is not scored either.
    rows = task_of(corpus, context=4).read(path)
    assert task.decode(rows.tokens[0]) == "ab c"
    assert task.units(rows[np.array([0])]) == {"word": 1, "byte": 3}
    assert task.units(rows[np.array([1])]) == {"word": 0, "byte": 1}  # d, <end>; two spaces, of which one is scored


def character(content, place):
    """The character that begins at a byte, or X where none does."""
    for size in range(1, 5):
        try:
            return content[place : place + size].decode()
        except UnicodeDecodeError:
            continue
    return "X"


@given(
    st.lists(st.text(alphabet="ab é€\u3000\n.", min_size=1, max_size=30), min_size=1, max_size=8), st.integers(2, 40)
)
@settings(max_examples=60, deadline=None)
def test_units_as_a_slow_count_gives_them(tmp_path_factory, texts, context):
    folder = tmp_path_factory.mktemp("units")
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, "ab aba bab"]))
    (folder / "tokenizer.json").write_text(learn(["ab aba é a.é é"], 263).content)
    task = task_of(write(find([path]), folder / "c", str(folder / "tokenizer.json"), held_out=1), context=context)
    examples = task.read(path)
    batch, spellings = collate(examples), task.bpe.spellings()
    words = size = 0
    for row in range(len(examples)):
        length = examples.lengths[row]
        for document in set(examples.documents[row, :length].tolist()):
            places = [place for place in range(length) if examples.documents[row, place] == document]
            known = [
                (byte, bool(batch.scored[row, place]))
                for place in places
                if examples.tokens[row, place] != task.end
                for byte in spellings[examples.tokens[row, place]]
            ]
            content = bytes(byte for byte, _ in known)
            place, before = 0, ""
            while place < len(content):
                now = character(content, place)
                words += known[place][1] and before.isspace() and not now.isspace()
                place, before = place + (1 if now == "X" else len(now.encode())), now
            size += sum(scored for _, scored in known)
            ends = len(places) > 1 and examples.tokens[row, places[-1]] == task.end
            words += ends and before.isspace()  # the empty word at the end of a text
    assert task.units(examples) == {"word": words, "byte": size}


def test_words_begin_at_bytes_whatever_was_cut():
    assert _word_starts("é a\u3000bé".encode()).tolist() == [0, 3, 7]
    assert _word_starts(b"\xac\xac a \xe2\x82").tolist() == [0, 3, 5]
    assert _word_starts(b" \n").tolist() == [0, 2]
    assert _word_starts("é ".encode()).tolist() == [0, 3]


def test_losses_by_unit_are_the_same_nats(corpus, tmp_path):
    task = task_of(corpus)
    vocabulary = len(task.vocab)
    examples = task.held_out()
    found = evaluate(
        task, MarkovPredictor(torch.full((vocabulary,) * 2, 1 / vocabulary)), make_decoder("greedy"), examples
    ).metrics
    units, scored = task.units(examples), int(collate(examples).scored.sum())
    nats = scored * math.log(vocabulary)
    assert found["loss"] == pytest.approx(nats / scored)
    assert found["loss_per_word"] == pytest.approx(nats / units["word"])
    assert found["perplexity_per_word"] == pytest.approx(math.exp(nats / units["word"]))
    assert found["loss_per_byte"] == pytest.approx(nats / units["byte"])
    assert found["bits_per_byte"] == pytest.approx(nats / units["byte"] / math.log(2))
