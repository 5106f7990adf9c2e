"""PGN: the moves of chess games, read by the package `chess`, which is no requirement of statewise."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from statewise.tasks.own_files.encodings import Text
from statewise.tasks.own_files.lines import Problems
from statewise.tasks.own_files.sources import Collected


def read_pgn(text: Text, problems: Problems, most: int | None = None) -> Collected:
    """The moves of the main line of every game, or of the first `most`, in standard algebraic notation. Raises
    `ValueError` without the package."""
    try:
        reader: Any = importlib.import_module("chess.pgn")
    except ImportError:
        raise ValueError(
            f"{text.path}: this is PGN, a record of chess games, which the package chess reads: python -m pip install "
            "chess; or write the moves of one game per line, without the tags in brackets; if it contains lines of "
            "text anyway, set --task.format text"
        ) from None
    found = Collected()
    with text.open() as file, _quietly():
        while (most is None or len(found.lines) < most) and (game := reader.read_game(file)) is not None:
            record = len(found.lines) + problems.count
            name = game.headers.get("Event", "?")
            if game.errors:
                problems.add(record + 1, f"game {record + 1} ({name}): {game.errors[0]}", "a game")
                continue
            moves = [node.san() for node in game.mainline()]
            if moves:
                found.add(record + 1, record, moves, name=f"game {record + 1}")
            else:
                problems.add(record + 1, f"game {record + 1} ({name}) has no moves", "no moves")
    return found


@contextmanager
def _quietly() -> Iterator[None]:
    """Keeps the package from logging errors of games, which are reported with the game."""
    logger = logging.getLogger("chess.pgn")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
