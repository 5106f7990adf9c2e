"""Documents come out as they stand in the files, whatever the size of the pieces that they are read in."""

import gzip
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.tasks.corpus import documents
from statewise.tasks.corpus.documents import SEPARATIONS, Piece, find
from statewise.tasks.corpus.encoding import encode
from statewise.tasks.corpus.survey import SplitPiece
from statewise.tasks.corpus.tokenizers import learn
from statewise.tasks.text.bpe import END


def whole(sources):
    """Texts of the documents, their pieces joined."""
    texts = []
    for piece in (piece for source in sources for piece in source.pieces()):
        assert piece.first == (not texts or texts[-1][1])
        if piece.first:
            texts.append(["", False])
        texts[-1][0] += piece.text
        texts[-1][1] = piece.last
    assert all(last for _, last in texts)
    return [text for text, _ in texts]


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


TEXT = f"\n\n One.\n\n\nTwo é. \n \nThree.\r\n{END}\n{END}\r\n\nFour {END} five.\n  {END}\nSix.\n\n"


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "noname"])
@pytest.mark.parametrize(
    ("separation", "expected"),
    [
        ("auto", [" One.\n\n\nTwo é. \n \nThree.", f"Four {END} five.", "Six."]),
        ("mark", [" One.\n\n\nTwo é. \n \nThree.", f"Four {END} five.", "Six."]),
        ("file", [TEXT.strip("\n")]),
        ("blank-lines", [" One.", "Two é. ", f"Three.\r\n{END}\n{END}", f"Four {END} five.\n  {END}\nSix."]),
        ("line", [" One.", "Two é. ", "Three.", END, END, f"Four {END} five.", f"  {END}", "Six."]),
    ],
)
def test_what_separates_documents(tmp_path, name, separation, expected):
    assert whole(find([write(tmp_path, name, TEXT)], separation)) == expected


def test_without_a_mark_a_file_is_a_document(tmp_path):
    assert whole(find([write(tmp_path, "a.txt", "\ufeffOne.\n\nTwo.\n")])) == ["One.\n\nTwo."]
    assert whole(find([write(tmp_path, "b.txt", "\n \n")])) == []


def test_folders_are_read_by_name_and_json_lines_as_they_stand(tmp_path):
    rows = [{"text": " a\n", "id": 1}, {"text": "\n "}, {"text": f"b {END}"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write(tmp_path, "b/z.txt", "last")
    write(tmp_path, "b/a.jsonl.gz", lines)
    write(tmp_path, "a.txt", "first")
    write(tmp_path, ".hidden/c.txt", "never")
    assert whole(find([tmp_path])) == ["first", " a\n", f"b {END}", "last"]
    write(tmp_path, "b/a.jsonl.gz", lines.replace("text", "story"))
    assert whole(find([tmp_path], field="story"))[1] == " a\n"


@given(st.text(alphabet="aé€𝄞 \n\r.", max_size=200), st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_pieces_change_nothing(tmp_path_factory, text, piece):
    folder = tmp_path_factory.mktemp("pieces")
    path = write(folder, "a.txt", text)
    row = write(folder, "a.jsonl", json.dumps({"text": text + "."}) + "\n")
    expected = {separation: whole(find([path], separation)) for separation in SEPARATIONS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", piece)
        for separation in SEPARATIONS:
            assert whole(find([path], separation)) == expected[separation]
        assert whole(find([row])) == [text + "."]


@given(st.text(alphabet="aé€𝄞.", min_size=1, max_size=200), st.integers(1, 20), st.integers(4, 30))
@settings(max_examples=100, deadline=None)
def test_where_no_cut_is_harmless_pieces_still_end(tmp_path_factory, text, piece, longest):
    folder = tmp_path_factory.mktemp("pieces")
    path, row = write(folder, "a.txt", text), write(folder, "a.jsonl", json.dumps({"text": text}) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", piece)
        patch.setattr(documents, "LONGEST", longest)
        for sources in (find([path]), find([row])):
            assert whole(sources) == [text]
            pieces = [found for source in sources for found in source.pieces()]
            assert max(len(found.text) for found in pieces) <= max(piece, 2 * longest)


def test_pieces_have_the_tokens_of_the_uncut_text(tmp_path, monkeypatch):
    text = "\n".join(["A word, and more.", "", "  Indented\tline ", "b", "c\r", "d's 12 34", "é"] * 30) + "."
    bpe = learn(["\n\n  a\n b\r\n"], 262)  # tokens of several white spaces, which a cut would part
    assert bpe.encode_documents(["\n\n  a"])[0] != [
        *bpe.encode_documents(["\n\n"])[0],
        *bpe.encode_documents(["  a"])[0],
    ]
    (uncut,) = bpe.encode_documents([text])
    monkeypatch.setattr(documents, "PIECE", 40)
    for path in (write(tmp_path, "a.txt", text), write(tmp_path, "a.jsonl", json.dumps({"text": text}))):
        pieces = [piece for source in find([path]) for piece in source.pieces()]
        assert len(pieces) > 20
        tokens = [
            token for part in encode([SplitPiece(False, piece) for piece in pieces], bpe) for token in part.tokens
        ]
        assert tokens == [*uncut, bpe.end]


@given(st.lists(st.lists(st.text(alphabet="ab \n\u3000", min_size=1, max_size=6), min_size=1), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_words_of_pieces_are_those_of_the_uncut_texts(told):
    bpe = learn(["ab a \n\u3000"], 257)
    pieces = [
        SplitPiece(False, Piece(text, place == 0, place == len(texts) - 1, "a.txt"))
        for texts in told
        for place, text in enumerate(texts)
    ]
    assert sum(part.words for part in encode(pieces, bpe)) == sum(
        len(re.split(r"\s+", "".join(texts))) for texts in told
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"abc\nd\xe9f\n", r"a.txt: byte 5: not UTF-8 text \(invalid continuation byte\): convert"),
        ("a.txt", "abc\ndef\n".encode("utf-16"), "a.txt: this is text in UTF-16, not UTF-8 text: save it as UTF-8"),
        ("a.txt", b"ab\xc3\xa9\xff\n", "a.txt: byte 4: not UTF-8"),
        ("a.txt", b"ab\n\xc3", r"a.txt: byte 3: not UTF-8 text \(unexpected end of data\)"),
        ("a.txt", b"abc\nd\0f\n", "a.txt: byte 5: a zero byte: this is not a text file"),
        ("a.txt.gz", b"abc\nd\xe9f\n", "a.txt.gz: byte 5: not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"story": "a"}\n', "a.jsonl:2: no field 'text', only 'story': set `field`"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": 3}\n', "a.jsonl:3: text is not text but int"),
        ("a.jsonl", b'{"text": "a"\n', "a.jsonl:1: not JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: a line must be an object"),
        ("a.jsonl", b'{"text": "a\\ud800"}\n', "a.jsonl:1: a lone surrogate at character 1"),
    ],
)
@pytest.mark.parametrize("longest", [3, 2**22])
def test_what_cannot_be_read_is_named_with_its_place(tmp_path, monkeypatch, name, content, message, longest):
    monkeypatch.setattr(documents, "LONGEST", longest)
    path = write(tmp_path, name, content)
    with pytest.raises(ValueError, match=message):
        whole(find([path]))


@pytest.mark.parametrize("separation", SEPARATIONS)
def test_a_line_of_white_space_without_end_is_refused_and_never_lost(tmp_path, monkeypatch, separation):
    monkeypatch.setattr(documents, "LONGEST", 8)
    path = write(tmp_path, "a.txt", "b\n       \n" + 10 * " " + "c\n")
    with pytest.raises(ValueError, match=r"a.txt:3: 8 bytes of white space: this is not a text file"):
        whole(find([path], separation))


def test_text_of_parquet_that_is_not_utf8_is_named_with_its_row(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = arrow.array([b"a", b"b\xff"]).view(arrow.string())
    parquet.write_table(arrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a.parquet, row 2: text: byte \d+: not UTF-8 text \(invalid start byte\)"):
        whole(find([tmp_path / "a.parquet"]))


def test_paths_without_a_file_are_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere: no such file or folder"):
        find([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: this folder has no file"):
        find([tmp_path / "empty"])
    (tmp_path / "a.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"a.txt.gz: damaged gzip file"):
        whole(find([tmp_path / "a.txt.gz"]))
