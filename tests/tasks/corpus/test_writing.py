"""A corpus holds every document once, on one side; it is there as a whole or not at all, and says what is wrong."""

import json
import os
import re

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.tasks.corpus import documents, survey
from statewise.tasks.corpus import folder as folder_module
from statewise.tasks.corpus.documents import DataSet, find
from statewise.tasks.corpus.folder import Corpus, ShardWriter, fingerprint
from statewise.tasks.corpus.tokenizers import load
from statewise.tasks.corpus.writing import Listener, write
from statewise.tasks.text.bpe import END

TEXTS = [f"Document {number} tells\n\nof {'é' * (number % 7)} and {number * number}." for number in range(60)]


def source(tmp_path, texts=TEXTS, name="text.txt"):
    path = tmp_path / name
    path.write_text("".join(f"{text}\n{END}\n" for text in texts))
    return path


def make(tmp_path, texts=TEXTS, out="corpus", tokenizer="bpe:270", **options):
    return write(find([source(tmp_path, texts)]), tmp_path / out, tokenizer, **{"held_out": 0.1, **options})


def texts_of(corpus, side):
    told = corpus.bpe.decode(side.read(0, len(side))).split(END)
    assert told.pop() == ""
    return told


def test_every_document_is_there_once_and_counted(tmp_path):
    corpus = make(tmp_path)
    training, held_out = (texts_of(corpus, side) for side in (corpus.training, corpus.held_out))
    assert sorted(training + held_out) == sorted(TEXTS)
    assert [text for text in TEXTS if text in set(training)] == training  # in the order of the files
    assert 1 <= len(held_out) <= 15
    for side, told in ((corpus.training, training), (corpus.held_out, held_out)):
        assert side.documents == len(told)
        assert side.words == sum(len(re.split(r"\s+", text)) for text in told)
        assert side.size == sum(len(text.encode()) for text in told)
    corpus.check()


def test_sides_depend_on_the_text_alone(tmp_path):
    one = make(tmp_path)
    backwards = make(tmp_path, [*reversed(TEXTS), *TEXTS[:20]], "backwards", str(tmp_path / "corpus"))
    assert set(texts_of(one, one.held_out)) == set(texts_of(backwards, backwards.held_out))
    assert backwards.tokenizer_sha256 == one.tokenizer_sha256


def test_the_same_text_gives_the_same_corpus_wherever_it_lies(tmp_path):
    (tmp_path / "other").mkdir()
    one, two = make(tmp_path), make(tmp_path / "other")
    assert one.fingerprint == two.fingerprint
    for name in ("index.json", "tokenizer.json", "training-00000.npy", "training-00000.ends.npy"):
        same = (one.folder / name).read_bytes() == (two.folder / name).read_bytes()
        assert same == (name != "index.json"), name  # which says where the text lay


def test_at_least_one_document_is_held_out_and_one_trained_on(tmp_path):
    few = make(tmp_path, TEXTS[:2], held_out=1e-9, tokenizer="bpe:258")
    assert (few.training.documents, few.held_out.documents) == (1, 1)
    many = make(tmp_path, TEXTS[:2], "many", held_out=1 - 1e-9, tokenizer="bpe:258")
    assert (many.training.documents, many.held_out.documents) == (1, 1)
    most = make(tmp_path, TEXTS, "most", held_out=1 - 1e-9, tokenizer="bpe:258")
    assert (most.training.documents, most.held_out.documents) == (1, len(TEXTS) - 1)
    every = make(tmp_path, TEXTS[:1], "every", held_out=1, tokenizer=str(tmp_path / "corpus" / "tokenizer.json"))
    assert (every.training.documents, every.held_out.documents) == (0, 1)
    with pytest.raises(ValueError, match="all 3 documents are the same"):
        make(tmp_path, TEXTS[:1] * 3, "same", tokenizer="bpe:257")


@pytest.mark.parametrize("piece", [10, 2**18])
@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("One two.\nThree.\n\nFour five six.\n\nSeven.", "One two.\nThree.\n\nFour five six.\n\n"),
        ("One two.\nThree.\nFour five six.\nSeven.", "One two.\nThree.\nFour five six.\n"),
        ("One two three four.", "One two three "),
        # Blank lines and line ends that lie too far off: nearly everything would be held out, or nearly nothing.
        ("A TITLE\n\n" + "one two " * 11 + "end", "A TITLE\n\n" + "one two " * 8 + "on"),
        ("A TITLE\n\n" + "one two " * 8 + "\n" + "one two " * 2, "A TITLE\n\n" + "one two " * 8 + "\n"),
        ("one two " * 11 + "one\n\nThe end", "one two " * 9 + "one"),
    ],
)
def test_a_single_document_is_cut_near_the_share(tmp_path, monkeypatch, piece, text, before):
    monkeypatch.setattr(documents, "PIECE", piece)
    notes = []
    path = tmp_path / "one.txt"
    path.write_text(text)
    corpus = write(find([path]), tmp_path / "c", "bpe:257", held_out=0.25, listener=Listener(note=notes.append))
    assert texts_of(corpus, corpus.training) == [before]
    assert texts_of(corpus, corpus.held_out) == [text[len(before) :]]
    assert notes == [f"there is only one document: its last {len(text) - len(before)} characters are held out"]
    corpus.check()


@pytest.mark.parametrize(
    ("text", "separation", "note"),
    [
        ("One.<|endoftext|>Two.\n<|endoftext|>Three.\n", "auto", "occurs 2 times inside documents"),
        ("One.\n<|endoftext|>\nTwo <|endoftext|> two.\n", "auto", "occurs 1 time inside documents"),
        ("One.\n<|endoftext|>\nTwo.\n", "line", "occurs 1 time inside documents"),
        ("One.\n<|endoftext|>\nTwo.\n  <|endoftext|>\nThree.\n<|endoftext|>", "auto", None),
    ],
)
def test_marks_that_end_no_document_are_counted(tmp_path, text, separation, note):
    path = tmp_path / "marks.txt"
    path.write_text(text)
    notes = survey.survey(find([path], separation), 0.5, sample=False).notes
    found = [one for one in notes if "<|endoftext|>" in one]
    assert len(found) == (note is not None)
    if note:
        assert note in found[0]
        assert "must be a line of its own" in found[0]


def test_the_tokenizer_learns_from_training_documents_alone(tmp_path, monkeypatch):
    kept = make(tmp_path)
    monkeypatch.setattr(survey, "SAMPLE", 400)
    apart = set(texts_of(kept, kept.held_out))
    plan = survey.survey(find([source(tmp_path)]), 0.1, sample=True)
    assert set(plan.sample) < set(TEXTS) - apart
    assert 200 < sum(map(len, plan.sample)) <= 400
    again = survey.survey(find([source(tmp_path, list(reversed(TEXTS)))]), 0.1, sample=True)
    assert again.sample == plan.sample
    path = tmp_path / "one.txt"
    path.write_text("a\n\n" * 20 + "z" * 20)
    assert "z" not in "".join(survey.survey(find([path]), 0.3, sample=True).sample)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 70), st.integers(1, 20), st.integers(0, 2**32)
)
@settings(max_examples=40, deadline=None)
def test_shards_give_the_stream_back_whatever_their_size(tmp_path_factory, lengths, shard_tokens, block, seed):
    folder, rng, kind = tmp_path_factory.mktemp("shards"), np.random.default_rng(seed), np.dtype("<u2")
    parts = [rng.integers(1, 60000, length).astype(kind) for length in lengths]
    lasts = rng.random(len(parts)) < 0.6
    lasts[-1] = True
    for part, last in zip(parts, lasts):
        part[-1] = 0 if last else part[-1]
    stream = np.concatenate(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module, "BLOCK", block)
        patch.setattr(os, "fsync", lambda number: None)  # which takes most of the time
        writer = ShardWriter(folder, "training", kind, shard_tokens)
        for part, last in zip(parts, lasts):
            writer.add(part, last=bool(last))
        facts = writer.close()
        found = [folder_module.Shard(folder, fact, kind) for fact in facts]
        assert [shard.tokens for shard in found[:-1]] == [shard_tokens] * (len(found) - 1)
        np.testing.assert_array_equal(np.concatenate([shard.read(0, shard.tokens) for shard in found]), stream)
        for number, shard in enumerate(found):
            shard.check(0, 60000)
            np.testing.assert_array_equal(np.load(shard.path), stream[number * shard_tokens :][:shard_tokens])
    assert sum(fact["documents"] for fact in facts) == lasts.sum()


def test_any_place_reads_as_the_whole_does(tmp_path):
    corpus = make(tmp_path, shard_tokens=37)
    side = corpus.training
    assert len(side.shards) > 20
    whole = side.read(0, len(side))
    rng = np.random.default_rng(0)
    for _ in range(200):
        start, stop = sorted(rng.integers(0, len(side) + 1, 2).tolist())
        np.testing.assert_array_equal(Corpus(corpus.folder).training.read(start, stop), whole[start:stop])
    one = make(tmp_path, out="one")
    np.testing.assert_array_equal(one.training.read(0, len(side)), whole)


# What stands in the way


def test_marks_in_a_text_are_text(tmp_path):
    path = tmp_path / "a.jsonl"
    texts = [f"a {END} {number}" for number in range(5)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = write(find([path]), tmp_path / "c", "bpe:258", held_out=0.2)
    assert corpus.training.documents + corpus.held_out.documents == 5
    corpus.check()


def test_what_is_there_is_not_replaced_unasked(tmp_path):
    before = make(tmp_path)
    with pytest.raises(FileExistsError, match="corpus exists: choose another `out`, or give `overwrite`"):
        make(tmp_path)
    after = make(tmp_path, TEXTS[:30], overwrite=True)
    assert after.fingerprint != before.fingerprint
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(FileExistsError, match=r"thesis\.txt, which is not part of a corpus: it will not be"):
        make(tmp_path, out="mine", overwrite=True)
    (tmp_path / "empty").mkdir()
    make(tmp_path, out="empty")


class Killed(BaseException):
    """As a kill: nothing catches it."""


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interrupted_writing_leaves_what_was_there(tmp_path, monkeypatch, overwrite):
    if overwrite:
        before = make(tmp_path).fingerprint
    names = {path.name for path in tmp_path.iterdir()} | {"text.txt"}

    def stop(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("statewise.tasks.corpus.writing.make_index", stop)
        with pytest.raises(Killed):
            make(tmp_path, TEXTS[:20], overwrite=overwrite)
    assert {path.name for path in tmp_path.iterdir()} == names
    if overwrite:
        assert Corpus(tmp_path / "corpus").fingerprint == before
    # A process that is killed cannot even delete what it wrote: the next one does.
    (tmp_path / ".corpus.writing").mkdir()
    (tmp_path / ".corpus.writing" / "training-00007.npy").write_bytes(b"half")
    corpus = make(tmp_path, TEXTS[:20], overwrite=True)
    assert not (corpus.folder / "training-00007.npy").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "corpus"}


def test_two_writers_do_not_meet(tmp_path):
    with (
        FileLock(tmp_path / ".corpus.lock"),
        pytest.raises(BlockingIOError, match="corpus is being written by another process"),
    ):
        make(tmp_path)
    make(tmp_path)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["training-00002.npy", "training-00002.ends.npy", "training-00002.sums.npy"])
@pytest.mark.parametrize("place", [20, 60, -1])
def test_a_flipped_bit_is_found(tmp_path, name, place):
    corpus = make(tmp_path, shard_tokens=100)
    flip(corpus.folder / name, place)
    with pytest.raises(ValueError, match=f"{name}: damaged"):
        Corpus(corpus.folder).check()
    again = Corpus(corpus.folder).training
    again.read(0, 200)  # what is not read is not in the way
    if "ends" not in name:
        with pytest.raises(ValueError, match=f"{name}: damaged"):
            again.read(150, 300)


def test_what_a_block_checksum_passes_over_is_found_by_the_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module.zlib, "crc32", lambda content, before=0: 0)
    corpus = make(tmp_path)
    flip(corpus.folder / "training-00000.npy", 200)
    with pytest.raises(ValueError, match=r"training-00000.npy: damaged: its checksum"):
        Corpus(corpus.folder).check()


def test_only_the_damaged_block_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "BLOCK", 16)
    corpus = make(tmp_path)
    flip(corpus.folder / "training-00000.npy", 128 + 2 * 50)
    side = Corpus(corpus.folder).training
    np.testing.assert_array_equal(side.read(0, 48), corpus.training.read(0, 48))
    for _ in range(2):
        with pytest.raises(ValueError, match="in tokens 48 to 64"):
            side.read(40, 50)
    side.read(64, len(side))


def test_a_file_that_is_cut_while_in_use_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "BLOCK", 16)
    corpus = make(tmp_path)
    tokens = corpus.training.read(0, 200)
    os.truncate(corpus.folder / "training-00000.npy", 128 + 2 * 100)
    np.testing.assert_array_equal(corpus.training.read(0, 96), tokens[:96])
    for start, stop in ((90, 110), (len(corpus.training) - 4, len(corpus.training))):  # a block known, and one not
        with pytest.raises(ValueError, match=r"training-00000.npy: this file was truncated while in use"):
            corpus.training.read(start, stop)


def test_truncated_and_missing_files_are_named_at_once(tmp_path):
    corpus = make(tmp_path, shard_tokens=100)
    path = corpus.folder / "training-00001.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    with pytest.raises(ValueError, match=r"training-00001.npy: this file of the corpus has 326 bytes, not 328"):
        Corpus(corpus.folder)
    path.unlink()
    with pytest.raises(ValueError, match=r"training-00001.npy: this file of the corpus is missing"):
        Corpus(corpus.folder)


def test_an_index_or_tokenizer_of_another_corpus_is_refused(tmp_path):
    corpus, other = make(tmp_path), make(tmp_path, out="other", tokenizer="bpe:280")
    with pytest.raises(ValueError, match="nowhere: no such corpus: make one with"):
        Corpus(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"not a corpus: it has no index.json"):
        Corpus(tmp_path)
    ours = (corpus.folder / "tokenizer.json").read_bytes()
    (corpus.folder / "tokenizer.json").write_bytes((other.folder / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match=r"tokenizer.json: not the tokenizer that this corpus was encoded with"):
        Corpus(corpus.folder)
    (corpus.folder / "tokenizer.json").write_bytes(ours)
    index = json.loads((corpus.folder / "index.json").read_text())
    index["sides"]["training"]["words"] += 1
    (corpus.folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"index.json: was changed"):
        Corpus(corpus.folder)
    (corpus.folder / "index.json").write_text(json.dumps({**index, "format": 2, "fingerprint": fingerprint(index)}))
    with pytest.raises(ValueError, match="has format 2, not 1"):
        Corpus(corpus.folder)
    (corpus.folder / "index.json").write_text(json.dumps({**index, "format": "1", "fingerprint": fingerprint(index)}))
    with pytest.raises(ValueError, match='has format "1", not 1'):
        Corpus(corpus.folder)
    index["sides"]["training"]["shards"][0]["name"] = "../training-00000"
    (corpus.folder / "index.json").write_text(json.dumps({**index, "fingerprint": fingerprint(index)}))
    with pytest.raises(ValueError, match=r"index.json: sides.training.shards\[0\].name must be the name of a shard"):
        Corpus(corpus.folder)
    (corpus.folder / "index.json").write_text("{")
    with pytest.raises(ValueError, match=r"index.json: .*this index cannot be used"):
        Corpus(corpus.folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "wordpiece"}, "unknown tokenizer 'wordpiece': there is no such file; give bpe:N"),
        ({"tokenizer": "bpe:many"}, "`tokenizer` bpe:many: the number of tokens must be a whole number"),
        ({"tokenizer": "bpe:100"}, "at least 257 tokens"),
        ({"tokenizer": "bpe:60000"}, r"set the N of `tokenizer` bpe:N to \d+ or less"),
        ({"tokenizer": "gpt2:nowhere"}, r"nowhere/vocab.json: no such file; gpt2:DIR needs"),
        ({"held_out": 0}, "`held_out` must be more than 0 and at most 1, not 0"),
        ({"held_out": 1}, "`held_out` 1 leaves none"),
        ({"shard_tokens": 0}, "`shard_tokens` must be at least 1"),
        ({"texts": [" ", ""]}, r"text.txt: no text: every document is empty"),
    ],
)
def test_what_cannot_be_made_is_said_and_leaves_nothing(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **options)
    assert os.listdir(tmp_path) in ([], ["text.txt"])


# Tokenizers


def test_gpt2_is_read_from_its_two_files(tmp_path):
    merges = ["a b", "Ġ c"]
    symbols = [*load_alphabet(tmp_path), "ab", "Ġc", END]
    (tmp_path / "vocab.json").write_text(json.dumps({symbol: number for number, symbol in enumerate(symbols)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    bpe = load(f"gpt2:{tmp_path}")
    assert (len(bpe.symbols), bpe.end) == (259, 258)
    assert [bpe.symbols[token] for token in bpe.encode_documents(["abc c"])[0]] == ["ab", "c", "Ġc"]
    assert bpe.encode(f"c{END}")[-1] == 258
    assert 258 not in bpe.encode_documents([END])[0]
    corpus = make(tmp_path, tokenizer=f"gpt2:{tmp_path}")
    assert sorted(texts_of(corpus, corpus.training) + texts_of(corpus, corpus.held_out)) == sorted(TEXTS)
    (tmp_path / "merges.txt").write_text("nothing\n")
    with pytest.raises(ValueError, match="not tokenizer files"):
        load(f"gpt2:{tmp_path}")


def load_alphabet(tmp_path):
    return make(tmp_path, out="bytes", tokenizer="bpe:257").bpe.symbols[1:]


PANICS = '{"type":"Precompiled","precompiled_charsmap":"AAAA"}'
"""A normaliser at which the Rust code of the package panics, which is no `Exception` of Python."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('"normalizer":null', '"normalizer":{"type":"Lowercase"}'),
            r"text.txt:1: this tokenizer does not reproduce the",
        ),
        (('"add_prefix_space":false', '"add_prefix_space":true'), r"text.txt:1: this tokenizer does not reproduce the"),
        (("<|endoftext|>", "<|end|>"), r"no token <\|endoftext\|>"),
        (('"õ":', '"ж":'), "not byte-level"),
        (('"dropout":null', '"dropout":0.5'), r"t.json: .*random.*: set dropout of its model to null, not 0.5"),
        (
            ('"decoder":{"type":"ByteLevel"', '"decoder":{"type":"Fuse"'),
            r"'the cat sat' to \"the.*: give it the decoder",
        ),
        (('"normalizer":null', f'"normalizer":{PANICS}'), r"t.json: (this tokenizer fails on|not a tokenizer file)"),
    ],
)
def test_tokenizers_that_would_change_a_text_are_refused(tmp_path, change, message):
    content = json.dumps(json.loads(make(tmp_path).bpe.content), separators=(",", ":"), ensure_ascii=False)
    assert change[0] in content
    (tmp_path / "t.json").write_text(content.replace(*change))
    with pytest.raises(ValueError, match=message):
        make(tmp_path, ["Some text.", f"A {END} B", "More."], out="c", tokenizer=str(tmp_path / "t.json"))


def test_a_tokenizer_that_finds_marks_in_texts_is_refused(tmp_path):
    content = json.loads(make(tmp_path).bpe.content)
    content["model"]["ignore_merges"], content["pre_tokenizer"]["use_regex"] = True, False
    (tmp_path / "t.json").write_text(json.dumps(content))
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a"}) + "\n" + json.dumps({"text": END}) + "\n")
    with pytest.raises(
        ValueError, match=r"a.jsonl:2: this tokenizer encodes <\|endoftext\|> inside a text as the special token"
    ):
        write(find([path]), tmp_path / "c", str(tmp_path / "t.json"))


# Datasets


@pytest.fixture
def _offline(tmp_path, monkeypatch):
    """The package, with its cache in the test's folder and no network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.usefixtures("_offline")
def test_a_data_set_is_streamed_from_a_local_folder(tmp_path, monkeypatch, kind):
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [{"text": text} for text in TEXTS]
    if kind == "json":
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"text": TEXTS}), folder / "train.parquet")
    found = DataSet(str(folder), "train", "text")
    monkeypatch.setattr(survey, "STREAMED", 40)  # so many are looked at beforehand
    corpus = write([found], tmp_path / "corpus", "bpe:270", held_out=0.1)
    plain = make(tmp_path, out="plain", tokenizer=str(tmp_path / "corpus" / "tokenizer.json"))
    assert texts_of(corpus, corpus.held_out) == texts_of(plain, plain.held_out)
    assert texts_of(corpus, corpus.training) == texts_of(plain, plain.training)
    with pytest.raises(ValueError, match="row 1: no field 'story', only 'text': set `field`"):
        write([DataSet(str(folder), "train", "story")], tmp_path / "c", "bpe:270")
    with pytest.raises(ValueError, match="cannot be loaded"):
        write([DataSet(str(folder / "nowhere"), "train", "text")], tmp_path / "c", "bpe:270")


def test_short_names_and_a_missing_package(tmp_path, monkeypatch):
    assert "fineweb-edu" in documents.KNOWN_DATASETS
    assert DataSet("tinystories", "train", "text").dataset != "tinystories"
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ValueError, match=r"`hub` needs the extra `data`: .* -m pip install .*datasets"):
        write([DataSet("some/where", "train", "text")], tmp_path / "c", "bpe:270")
