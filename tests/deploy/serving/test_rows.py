"""Texts that arrive token by token are those that arrive whole, and stop strings are found as in the whole text."""

import json
from itertools import pairwise

import numpy as np
import pytest
from doubles import small_stories
from hypothesis import given
from hypothesis import strategies as st

from statewise.decoding.base import Request
from statewise.deploy.serving.rows import DecodingOptions, Row, ShownToken, Spelled, Stops, Written
from statewise.tasks.own_files.sequences import Sequences, SequencesConfig
from statewise.tasks.text import bpe


@pytest.fixture(scope="module")
def tokenizer():
    return bpe.train(small_stories(30).split("<|endoftext|>"), 300)


def test_bytes_become_the_text_of_the_tokenizer(tokenizer):
    rng = np.random.default_rng(0)
    for _ in range(300):
        tokens = rng.integers(0, 300, rng.integers(1, 12)).tolist()
        text = Spelled(tokenizer.spellings())
        for number, token in enumerate(tokens):
            text.add(token)
            whole = tokenizer.decode(tokens[: number + 1])
            assert whole.startswith(text.text) or "\ufffd" in whole
        text.close()
        assert text.text == tokenizer.decode(tokens)


def test_incomplete_characters_are_held_back(tokenizer):
    text = Spelled(tokenizer.spellings())
    seen = []
    for token in [tokenizer.spellings().index(bytes([byte])) for byte in "é“".encode()]:
        text.add(token)
        seen.append(text.text)
    assert seen == ["", "é", "é", "é", "é“"]
    assert text.offsets == [0, 0, 1, 1, 1]


def symbols(folder, lines):
    (folder / "data.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return Sequences(SequencesConfig(path=str(folder / "data.jsonl"), held_out_share=0.5))


@pytest.mark.parametrize(
    ("prompt", "said", "wanted"),
    [
        (["view", "cart"], ["cart", "cart"], [" cart", " cart cart"]),
        ([], ["view", "cart"], ["view", "view cart"]),
        (["view"], ["cart", "pay now", "cart"], [" cart", ' cart ["pay now"]', ' cart ["pay now"] ["cart"]']),
        (["pay now"], ["cart", "view"], [' ["cart"]', ' ["cart"] ["view"]']),
    ],
)
def test_symbols_follow_their_prompt_and_never_change(prompt, said, wanted, tmp_path):
    task = symbols(tmp_path, [["view", "cart"], ["pay now", "cart"]] * 3)
    before = task.vocab.encode(prompt)
    text, found = Written(task.continuation, before), []
    for token in task.vocab.encode(said):
        text.add(int(token))
        found.append(text.text)
        whole = task.decode(before) + text.text
        assert task.vocab.decode(task.encode(whole)) == [*prompt, *said[: len(found)]]
    text.close()
    assert [*found, text.text] == [*wanted, wanted[-1]]
    assert all(later.startswith(sooner) for sooner, later in pairwise(found))


def test_a_prompt_is_gone_on_with_as_it_was_written(tmp_path):
    task = symbols(tmp_path, [["view", "cart"], ["pay", "cart"]] * 3)
    text = Written(task.continuation, task.encode('["view", "cart"]'), '["view", "cart"]')
    text.add(task.vocab.ids["pay"])
    assert text.text == ' ["pay"]'


def test_half_of_a_character_is_held_back_until_it_is_whole():
    def continuation(before, tokens):
        return bytes(tokens).decode(errors="replace")

    text, seen = Written(continuation, []), []
    for byte in [*"aé".encode(), 0xE2]:
        text.add(byte)
        seen.append(text.text)
    assert seen == ["a", "a", "aé", "aé"]
    text.close()
    assert text.text == "aé\ufffd"


def row_of(stops, echo="", limit=1000):
    decoding = DecodingOptions(None, 0, Stops(stops), 0, bool(echo))
    prompt = np.array([ord(letter) for letter in echo or "x"], np.int64)
    request = Request([prompt], limit)
    return Row(request, prompt, limit, decoding, Written(lambda before, tokens: "".join(map(chr, tokens)), []))


letters = st.text("ab", max_size=12)


@given(st.lists(letters.filter(bool), max_size=3), letters, st.text("ab", max_size=5))
def test_stop_strings_end_the_text_where_they_first_begin(stops, said, echo):
    row, released = row_of(stops, echo, limit=max(1, len(said))), []
    if not said:
        return
    row.score_prompt([ShownToken(ord(letter), None, []) for letter in echo])
    for letter in said:
        row.add(ord(letter), 0.0, [])
        released.append(row.text[: row.released])
        if row.ended:
            break
    ended_at = min((said.find(stop) + len(stop) for stop in stops if stop in said), default=len(said))
    assert len(row.tokens) == ended_at
    within = said[:ended_at]
    first = min((within.find(stop) for stop in stops if stop in within), default=None)
    expected = echo + (within if first is None else within[:first])
    assert row.text == expected == released[-1]
    assert row.finish == ("length" if first is None else "stop")
    there = [""] if first is None else [stop for stop in stops if within.startswith(stop, first)]
    assert row.stopped_by in there
    for part in released:  # what was released is never taken back
        assert expected.startswith(part)
    assert len(row.shown) == len(expected)


def test_the_last_characters_are_held_back_only_while_they_may_stop():
    row = row_of(["end"])
    released = []
    for letter in "an e en end":
        row.add(ord(letter), 0.0, [])
        released.append(row.text[: row.released])
    assert released == [
        "a",
        "an",
        "an ",
        "an ",
        "an e ",
        "an e ",
        "an e ",
        "an e en ",
        "an e en ",
        "an e en ",
        "an e en ",
    ]
    assert row.finish == "stop"


def test_a_token_is_shown_if_it_begins_in_the_text(tokenizer):
    row = row_of(["b"])
    row.transcript = Written(lambda before, tokens: " ".join(map(chr, tokens)), [])
    for letter in "aab":
        row.add(ord(letter), -1.0, [])
    assert row.text == "a a "
    assert [chr(one.token) for one in row.shown] == ["a", "a", "b"]  # the last one begins with its separator
    row = row_of(["b"])
    for letter in "aab":
        row.add(ord(letter), -1.0, [])
    assert [chr(one.token) for one in row.shown] == ["a", "a"]
