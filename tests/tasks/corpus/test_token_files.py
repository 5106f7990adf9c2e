"""A corpus of token ids is that of the texts they encode; what is wrong with a file is said with its row."""

import numpy as np
import pytest

from statewise.cli import main
from statewise.tasks.corpus import survey, token_files
from statewise.tasks.corpus.documents import find
from statewise.tasks.corpus.folder import Corpus
from statewise.tasks.corpus.writing import write, write_tokens
from statewise.tasks.text.bpe import END

TEXTS = [f"Document {number} tells\n\nof {'é' * (number % 7)} and {number * number}." for number in range(60)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus of texts, and the token ids of each document with the end-of-text token."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "text.txt").write_text("".join(f"{text}\n{END}\n" for text in TEXTS))
    corpus = write(find([folder / "text.txt"]), folder / "corpus", "bpe:270", held_out=0.1)
    return corpus, [np.append(corpus.bpe.encode(text), corpus.bpe.end) for text in TEXTS]


def save(path, rows, vocabulary_kind="uint16"):
    """The documents in a file of the kind that its name says."""
    if path.suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        ids = [row.tolist() for row in rows]
        parquet.write_table(arrow.table({"n": list(range(len(ids))), "tokens": ids}), path, row_group_size=7)
    elif path.suffix == ".npy":
        np.save(path, np.concatenate(rows))
    else:
        np.concatenate(rows).astype(vocabulary_kind).tofile(path)
    return path


def documents_of(split, end):
    tokens = split.read(0, len(split))
    *whole, rest = np.split(tokens, np.flatnonzero(tokens == end) + 1)
    assert not len(rest)
    return [tuple(document.tolist()) for document in whole]


@pytest.mark.parametrize("name", ["ids.parquet", "ids.npy", "ids.bin"])
@pytest.mark.parametrize("piece", [2**20, 11])
def test_the_corpus_holds_every_document_once(made, tmp_path, monkeypatch, name, piece):
    monkeypatch.setattr(token_files, "PIECE", piece)
    text, rows = made
    path = save(tmp_path / name, rows)
    tokenizer = str(text.folder / "tokenizer.json")
    corpus = write_tokens(token_files.find([path]), tmp_path / "corpus", tokenizer, held_out=0.1, shard_tokens=500)
    corpus.check()
    training, held_out = (documents_of(split, corpus.bpe.end) for split in (corpus.training, corpus.held_out))
    assert sorted(training + held_out) == sorted(tuple(row.tolist()) for row in rows)
    assert 1 <= len(held_out) <= 15
    assert not set(training) & set(held_out)
    for counts in ("documents", "words", "size"):
        assert sum(getattr(split, counts) for split in (corpus.training, corpus.held_out)) == sum(
            getattr(split, counts) for split in (text.training, text.held_out)
        )
    assert corpus.tokenizer_sha256 == text.tokenizer_sha256


@pytest.mark.parametrize(("kind", "end"), [("uint8", 261), ("int16", 50_256), ("uint64", 50_256)])
def test_the_end_need_not_fit_the_type_of_the_file(tmp_path, kind, end):
    """It is the last token of many tokenizers, and closes a document that the file's end cuts."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = arrow.list_(getattr(arrow, kind)())
    parquet.write_table(arrow.table({"tokens": arrow.array([[1, 2], [200]], lists)}), tmp_path / "ids.parquet")
    np.save(tmp_path / "ids.npy", np.array([1, 2, 200], kind))
    for name, documents in (("ids.parquet", [[1, 2, end], [200, end]]), ("ids.npy", [[1, 2, 200, end]])):
        (file,) = token_files.find([tmp_path / name])
        assert [document.tolist() for document in file.documents(end + 1, end)] == documents


def test_rows_need_no_end_and_may_hold_several_documents(made, tmp_path):
    text, rows = made
    bare = [row[:-1] for row in rows[:20]]
    joined = [np.concatenate(rows[20:40]), np.concatenate([*rows[40:], [text.bpe.end]])]
    path = save(tmp_path / "ids.parquet", [*bare, np.zeros(0, np.int64), *joined])
    corpus = write_tokens(token_files.find([path]), tmp_path / "corpus", str(text.folder))
    found = documents_of(corpus.training, corpus.bpe.end) + documents_of(corpus.held_out, corpus.bpe.end)
    assert sorted(found) == sorted(tuple(row.tolist()) for row in rows)


def test_text_in_parquet_is_as_in_other_files(made, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "text.parquet"
    parquet.write_table(arrow.table({"text": TEXTS, "other": TEXTS}), path, row_group_size=7)
    text, _ = made
    corpus = write(find([path]), tmp_path / "corpus", "bpe:270", held_out=0.1)
    for one, other in ((corpus.training, text.training), (corpus.held_out, text.held_out)):
        np.testing.assert_array_equal(one.read(0, len(one)), other.read(0, len(other)))
    with pytest.raises(ValueError, match=r"text.parquet: no column 'story', only 'text', 'other': set `field`"):
        write(find([path], field="story"), tmp_path / "c", "bpe:270")
    parquet.write_table(arrow.table({"text": ["one", None]}), path)
    with pytest.raises(ValueError, match=r"text.parquet, row 2: text is not text but NoneType"):
        write(find([path]), tmp_path / "c", "bpe:270")


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def emptied(path):
    path.write_bytes(b"")


def of_floats(path):
    np.save(path, np.ones(5))


def of_two_axes(path):
    np.save(path, np.ones((5, 2), np.int64))


def of_nothing(path):
    np.save(path, np.ones(0, np.int64))


def a_pickle(path):
    np.save(path, np.array([{}], object), allow_pickle=True)


def unclosed(path):
    path.write_bytes(b"\x93NUMPY\x01\x00\x0b\x00{'descr': (")  # a header of 11 characters


def a_folder(path):
    path.unlink()
    path.mkdir()


def column_of(kind, values):
    def replace(path):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"tokens": arrow.array(values, getattr(arrow, kind)())}), path)

    return replace


def lists_of(kind, values):
    def replace(path):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        lists = arrow.list_(getattr(arrow, kind)())
        parquet.write_table(arrow.table({"tokens": arrow.array(values, lists)}), path)

    return replace


WRONG = {
    "cut parquet": ("ids.parquet", cut, "ids.parquet: cannot be read as parquet, damaged or truncated: "),
    "empty parquet": ("ids.parquet", emptied, "ids.parquet: the file is empty"),
    "no column": ("ids.parquet", column_of("string", ["a"]), "'tokens' holds string, not lists of whole numbers"),
    "of floats": ("ids.parquet", lists_of("float32", [[1.0]]), "not lists of whole numbers: set --field"),
    "null row": ("ids.parquet", lists_of("int32", [[1], None]), "ids.parquet, row 2: tokens is null"),
    "null token": ("ids.parquet", lists_of("int32", [[1], [2, None]]), "row 2: tokens has a null among its token ids"),
    "beyond": ("ids.parquet", lists_of("int32", [[1], [2, 270]]), "row 2, token 2: 270, but the tokens of this"),
    "negative": ("ids.parquet", lists_of("int32", [[1, -1]]), "row 1, token 2: -1, but the tokens"),
    "no document": ("ids.parquet", lists_of("int32", [[], []]), "no tokens: every document is empty"),
    "one document": ("ids.parquet", lists_of("int32", [[1]]), "there is only one document: none is left to train on"),
    "same documents": ("ids.parquet", lists_of("int32", [[1], [1]]), "all 2 documents are the same"),
    "folder": ("ids.parquet", a_folder, "ids.parquet: this folder has no file of token ids"),
    "cut npy": ("ids.npy", cut, "ids.npy: truncated or damaged: "),
    "empty npy": ("ids.npy", emptied, "ids.npy: not an .npy file, or damaged"),
    "floats": (
        "ids.npy",
        of_floats,
        "ids.npy: an array of float64 with shape (5,), not of whole numbers with one axis",
    ),
    "axes": ("ids.npy", of_two_axes, "ids.npy: an array of int64 with shape ("),
    "bracket": ("ids.npy", unclosed, "ids.npy: not an .npy file, or damaged"),
    "no token": ("ids.npy", of_nothing, "ids.npy: the file has no token"),
    "pickle": ("ids.npy", a_pickle, "ids.npy: an array of object with shape ("),
    "odd": ("ids.bin", cut, "ids.bin: truncated or damaged: "),
    "empty bin": ("ids.bin", emptied, "ids.bin: the file has no token"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_a_sentence(made, tmp_path, capsys, case):
    text, rows = made
    name, spoil, message = WRONG[case]
    path = save(tmp_path / name, rows)
    spoil(path)
    words = ["data", "tokens", str(path), "--tokenizer", str(text.folder), "--out", str(tmp_path / "corpus")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.npy", "--tokenizer", "CORPUS"], "nowhere.npy: no such file or folder"),
        (
            ["CORPUS/index.json", "--tokenizer", "CORPUS"],
            "files of token ids end in .parquet, .npy, .bin; for text use",
        ),
        (["CORPUS", "--tokenizer", "bpe:300"], "token ids need the tokenizer that they were made with"),
        (["CORPUS", "--tokenizer", "CORPUS", "--held-out", "2"], "--held-out must be more than 0 and at most 1"),
    ],
)
def test_wrong_options_are_named(made, tmp_path, capsys, words, message):
    words = [word.replace("CORPUS", str(made[0].folder)) for word in words]
    assert main(["data", "tokens", *words, "--out", str(tmp_path / "c")]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_of_files_makes_a_corpus_by_command(made, tmp_path, capsys):
    text, rows = made
    (tmp_path / "ids" / "deep").mkdir(parents=True)
    save(tmp_path / "ids" / "a.npy", rows[:30])
    save(tmp_path / "ids" / "deep" / "b.bin", rows[30:], "uint32")
    words = ["data", "tokens", str(tmp_path / "ids"), "--tokenizer", str(text.folder), "--type", "uint32"]
    assert main([*words, "--out", str(tmp_path / "corpus")]) == 0
    assert "documents to train on" in capsys.readouterr().out
    corpus = Corpus(tmp_path / "corpus")
    assert corpus.training.documents + corpus.held_out.documents == len(rows)


def test_equal_documents_are_on_one_side():
    rows = [np.array([1, 2, 0], np.uint16), np.array([1, 2, 0], np.int64)]
    assert len({survey.rank_of_tokens(row) for row in rows}) == 1
