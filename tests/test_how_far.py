"""How far works are, and what a command shows of it."""

import io
import sys

import numpy as np
import pytest
from doubles import random_examples

from statewise.cli import counter
from statewise.runtime.progress import announced, listening
from statewise.tasks.batches import blocks


def test_works_are_told_with_those_around_them_and_end_with_their_loops():
    told = []

    def listener(works):
        told.append([(work.what, work.done, work.total) for work in works])

    with listening(listener):
        for _ in announced("ab", "letters", 2):
            for _ in announced([3, 4], "rows", 7, size=int):
                pass
            for number in announced(range(9), "numbers", 9):
                if number == 1:
                    break
    rows = [[("letters", done, 2), ("rows", rows, 7)] for done in (0, 1) for rows in (3, 7)]
    first, second = rows[:2], rows[2:]
    one = [("letters", 0, 2), ("numbers", 1, 9)]
    other = [("letters", 1, 2), ("numbers", 1, 9)]
    assert told == [*first, one, [("letters", 1, 2)], *second, other, [("letters", 2, 2)]]
    told.clear()
    assert list(announced("ab", "letters", 2)) == ["a", "b"]
    assert not told


def test_blocks_tell_how_many_sequences_were_read():
    examples, told = random_examples(np.random.default_rng(0), 5), []
    with listening(lambda works: told.append((works[0].what, works[0].done, works[0].total))):
        read = np.concatenate([rows for rows, _ in blocks(examples, 2)])
    assert sorted(read) == list(range(5))
    assert told == [("sequences", 2, 5), ("sequences", 4, 5), ("sequences", 5, 5)]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_long_is_shown(monkeypatch, terminal):
    now = [100.0]
    monkeypatch.setattr(counter.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    with counter.shown_progress():
        for seconds in announced([1, 0.5, 1, 0.1, 0.2, 40, 1, 1], "steps", 8000, size=lambda one: 1000):
            now[0] += seconds
    shown = sys.stderr.getvalue()
    if terminal:
        rows = [f"{count:,}/8,000 steps" for count in (3000, 5000, 6000, 7000, 8000)]
        assert shown.split("\r\x1b[K") == ["", *rows, ""]
    else:
        assert shown == "6,000/8,000 steps\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_of_what_ends_soon_nothing_is_shown(monkeypatch, terminal):
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    with counter.shown_progress():
        assert list(announced(range(3), "steps", 3)) == [0, 1, 2]
    assert sys.stderr.getvalue() == ""
