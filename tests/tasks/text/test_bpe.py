"""Training of tokenizers."""

from statewise.tasks.text import bpe


def test_training_cuts_long_words_and_encoding_does_not(monkeypatch):
    """Otherwise a line of DNA or base64 takes time that grows with its square."""
    texts = ["abcdefgh " * 20, "some words of ordinary lengths " * 9]
    whole = bpe.train(texts, 277)
    assert whole.encode("abcdefgh").size == 1
    monkeypatch.setattr(bpe, "LONGEST_WORD", 4)
    cut = bpe.train(texts[:1], 264)
    assert max(map(len, cut.spellings()[2:])) == 4
    assert cut.decode(cut.encode("abcdefgh" * 3)) == "abcdefgh" * 3
    assert "FixedLength" not in cut.content


def test_a_cut_longer_than_all_words_changes_nothing(monkeypatch):
    texts = ["some words of ordinary lengths, äöü and 123 numbers\n" * 3]
    before = bpe.train(texts, 290).content
    monkeypatch.setattr(bpe, "LONGEST_WORD", 11)
    assert bpe.train(texts, 290).content == before
