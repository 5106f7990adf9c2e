"""The count of words against the split that it stands for."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewise.tasks.corpus.encoding import count_words, word_starts

SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("the cat sat", 3),
        ("the  cat \n\n sat", 3),
        (" = Robert Boulter = \n", 6),  # an empty word at either end
        ("don't @-@ stop", 3),
        ("a\u00a0b\u3000c\x1fd", 4),
        ("zero\u200bwidth", 1),
        ("one\n", 2),
        ("\n", 2),
        ("", 1),
    ],
)
def test_words_are_counted_as_the_package_counts_them(text, count):
    assert count_words(text) == len(re.split(r"\s+", text)) == count


@given(st.text(alphabet=st.sampled_from("ab\u200b" + SPACES)) | st.text())
def test_whatever_the_text(text):
    words = re.split(r"\s+", text)
    assert count_words(text) == len(words)
    starts = word_starts(text)
    assert [text[start : start + len(word)] for start, word in zip(starts, words)] == words
    assert len(starts) == len(words)
    assert starts == sorted(set(starts))


def test_white_space_is_the_same_to_the_expression():
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert every.split() == re.split(f"[{SPACES}]+", every)
    assert "".join(re.findall(r"\s", every)) == SPACES
