"""Fills the middles of held-out sequences, into a file that can be continued."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from statewise.decoding import as_search, make_decoder
from statewise.decoding.reverse import Reverse
from statewise.evaluation.infilling import (
    FILL,
    FILLS,
    Filled,
    fill_gaps,
    gaps,
    goal_text,
    likeliest_before,
    reads_goals_first,
)
from statewise.model.model import Model
from statewise.runtime.ledger import Ledger


@dataclass(frozen=True)
class FilledFile:
    """A file of filled sequences."""

    lines: list[dict[str, Any]]
    """The fields of each sequence; see `statewise.evaluation.infilling.Filled`."""
    held_out: int
    """Number of held-out sequences that could be filled, up to the number that was wanted."""


@dataclass(frozen=True)
class Filling:
    """How to fill middles. Raises `ValueError` for options that exclude each other, and for what the decoder lacks."""

    decoder: str = "greedy"
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the decoder."""
    num: int = 100
    """Number of held-out sequences."""
    free_length: bool = False
    """Whether the model ends the middle; otherwise it has as many tokens as the original."""
    unconditional: bool = False
    """Whether the model gets the beginning only, and ends the sequence."""
    limit: int | None = None
    """Largest number of tokens that the model generates if it chooses the length; None: what the context leaves."""
    reverse: bool = False
    """Whether to decode from the last missing token to the first."""

    def __post_init__(self) -> None:
        if self.limit is not None and not (self.free_length or self.unconditional):
            raise ValueError(
                "`limit` needs `free_length` or `unconditional`: otherwise middles are as long as the originals"
            )
        if self.reverse and self.unconditional:
            raise ValueError("`reverse` starts from the end of the sequence, and `unconditional` omits it: omit either")
        if self.free_length and self.unconditional:
            raise ValueError("`unconditional` implies free length: omit `free_length`")
        make_decoder(self.decoder, **self.fields)

    def check_ranking(self) -> None:
        """Raises `ValueError` unless the candidates of these options can be ranked by another model."""
        as_search(make_decoder(self.decoder, **self.fields), self.decoder)
        if self.unconditional or self.reverse:
            why = "leaves no ending by which to rank" if self.unconditional else "has a ranking of its own"
            option = "unconditional" if self.unconditional else "reverse"
            raise ValueError(f"`{option}` {why}: omit it, or the model that ranks")

    def write(
        self,
        model: Model,
        out: Path,
        filled: Callable[[int, int, Filled], None] = lambda done, total, one: None,
        *,
        ranker: Model | None = None,
    ) -> FilledFile:
        """Generates the middles and writes each into `out` at once, as a JSON line; continues a file of the same model
        and options. `filled` is called after each sequence with the number that are done, their total, and the
        sequence. `ranker`, a forward model, takes of the decoder's candidates the one after which it finds the given
        ending most likely. Raises `ValueError` for a file of other work, if the task or the model cannot fill middles,
        or the ranker not rank them."""
        if ranker is not None:
            self.check_ranking()
            with ranker.asking():
                if reads_goals_first(ranker.task):
                    raise ValueError(
                        "the model that ranks was trained to read endings first: choose one that was trained with "
                        "task.encoding plain"
                    )
        decoder, task = make_decoder(self.decoder, **self.fields), model.task
        with model.asking():
            wanted = gaps(task, self.num, unconditional=self.unconditional)
        # Options that are off are None, so that files of versions without them can be continued.
        facts = {
            "weights": model.fingerprint(),
            "decoder": self.decoder,
            "options": {name: value for name, value in vars(decoder.config).items() if name not in decoder.only_speed},
            "free_length": self.free_length or None,
            "unconditional": self.unconditional or None,
            "limit": self.limit,
            "reverse": self.reverse or None,
            "ranked_by": None if ranker is None else ranker.fingerprint(),
        }
        how = Reverse(decoder) if self.reverse else decoder
        with contextlib.ExitStack() as stack:
            ledger = stack.enter_context(Ledger(out, FILLS, facts, FILL))
            predictor = stack.enter_context(model.asking())
            choose = None
            if ranker is not None:
                choose = partial(likeliest_before, stack.enter_context(ranker.asking()), ranker.task)
            for number, (line, gap) in enumerate(zip(ledger.records, wanted), 2):
                if (line["prompt"], line["goal"]) != (task.decode(gap.prompt), goal_text(task, gap)):
                    raise ValueError(f"{out}:{number}: written for other sequences: choose another `out`")
            skip = len(ledger.records)
            for one in fill_gaps(
                predictor, task, how, wanted, skip=skip, free_length=self.free_length, limit=self.limit, choose=choose
            ):
                ledger.add(vars(one))
                filled(len(ledger.records), len(wanted), one)
        return FilledFile(ledger.records, len(wanted))
