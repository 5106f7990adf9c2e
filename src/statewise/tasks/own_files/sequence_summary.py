"""A summary of a file of sequences, and warnings if it looks misread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from statewise.data_types import Ragged
from statewise.tasks.own_files.sequence_files import MISSING, SequenceFile

MOST_FREQUENT = 5
SUSPICIOUS = 1 / 3
"""If more than this share of all symbols contains a mark, the mark is probably a separator."""
MARKS = {",": "a comma", ";": "a semicolon", "|": "a bar", "\t": "a tab"}


def summary(symbols: Sequence[str], training: Ragged, held_out: Ragged, chosen: str) -> list[str]:
    """Sizes, lengths, the most frequent symbols, and the held-out symbols that training lacks.

    The last of `symbols` is the end symbol and is not counted. `chosen` describes how sequences were held out.
    """
    lengths = np.concatenate([training.lengths, held_out.lengths]) - 1
    trained, tested = (_counts(part, len(symbols)) for part in (training, held_out))
    counts = trained + tested
    new = np.flatnonzero((trained == 0) & (tested > 0))
    named = [shown(symbols[token]) for token in new[:MOST_FREQUENT]] + ["..."] * (len(new) > MOST_FREQUENT)
    known, which = (f"never has {len(new):,}", f": {', '.join(named)}") if len(new) else ("has all", "")
    most = [token for token in np.argsort(-counts, kind="stable")[:MOST_FREQUENT] if counts[token]]
    shares = (f"{shown(symbols[token])} {counts[token]:,} ({counts[token] / counts.sum():.1%})" for token in most)
    return [
        f"{len(lengths):,} sequences, {counts.sum():,} symbols, {np.count_nonzero(counts):,} of them different",
        f"lengths: {lengths.min():,} to {lengths.max():,}, median {np.median(lengths):,g}",
        f"most frequent: {', '.join(shares)}",
        f"held out: {len(held_out):,} sequences, {chosen}; training {known} of their {np.count_nonzero(tested):,} "
        f"different symbols{which}",
    ]


def _counts(sequences: Ragged, vocabulary: int) -> np.ndarray:
    """(vocabulary,) occurrences of each symbol; 0 for the end symbol, the last."""
    return np.append(np.bincount(sequences.tokens, minlength=vocabulary)[:-1], 0)


def warnings(
    symbols: Sequence[str], training: Ragged, held_out: Ragged, layout: SequenceFile, columns: Sequence[str]
) -> list[str]:
    """Signs that a file was misread, each with its remedy; `columns` as in `Parsed`."""
    counts = _counts(training, len(symbols)) + _counts(held_out, len(symbols))
    found = _misread(symbols, training, held_out, layout, columns, counts)
    missing = [token for token, symbol in enumerate(symbols) if symbol in MISSING and counts[token]] if columns else []
    if not missing:
        return found
    number, names = counts[missing].sum(), " or ".join(repr(symbols[token]) for token in missing)
    stand = "stands for a missing value: if it does" if len(missing) == 1 else "stand for missing values: if they do"
    are = "symbol is" if number == 1 else "symbols are"
    return [f"{number:,} {are} {names}, which often {stand}, remove these rows", *found]


def _misread(
    symbols: Sequence[str],
    training: Ragged,
    held_out: Ragged,
    layout: SequenceFile,
    columns: Sequence[str],
    counts: np.ndarray,
) -> list[str]:
    """Signs that symbols, sequences or columns were read wrongly."""
    used = [token for token in range(len(symbols)) if counts[token]]

    def such(test: Callable[[str], bool]) -> tuple[float, str]:
        """Share of all symbols that pass a test, and the most frequent of them."""
        passing = [token for token in used if test(symbols[token])]
        first = max(passing, key=lambda token: counts[token], default=0)
        return counts[passing].sum() / counts.sum(), shown(symbols[first])

    single = bool((training.lengths <= 2).all() and (held_out.lengths <= 2).all())
    if layout.group is not None:
        found = [f"every case has one event: does column {layout.group!r} name the case? Set --task.group"] * single
        return found + _rare(symbols, counts, columns)
    if all((part.lengths - part.prompt_lengths == 1).all() for part in (training, held_out)):
        mend = "is the column of targets empty?"
        if not columns:
            mend = (
                "if the tab that ends each line is not meant, remove it, or set --task.separator '\\t' if tabs "
                "separate symbols"
            )
        return [f"every answer is empty, so that only the end symbol is scored: {mend}"]
    opens = {token for token in used if symbols[token].startswith(("{", "["))}
    begins = np.concatenate([part.tokens[part.starts] for part in (training, held_out)])
    if layout.separator != "" and np.isin(begins, list(opens)).mean() > 0.5:
        example = shown(symbols[begins[np.isin(begins, list(opens))][0]])
        mend = "write it as JSON lines" if columns else "write a sequence a line, and set --task.format json"
        return [f"most sequences begin with {example}, as JSON does: {mend}"]
    for mark, name in MARKS.items():
        share, example = such(lambda symbol, mark=mark: mark in symbol)  # type: ignore[misc]
        if share > SUSPICIOUS:
            flag = "'\\t'" if mark == "\t" else f"'{mark}'"
            under = "" if columns else "; if it separates columns under a header, --task.format csv"
            return [
                f"{share:.0%} of the symbols contain {name}, such as {example}: if it separates symbols, set "
                f"--task.separator {flag}{under}"
            ]
    if single and columns:
        return [
            f"every row has one symbol: if rows are events, set --task.group to the column that names the case, "
            f"one of {', '.join(columns)}; if white space does not separate symbols, --task.separator"
        ]
    if single:
        return [
            f"every line is one symbol, such as {such(lambda _: True)[1]}: if its characters are the symbols, set "
            "--task.separator ''"
        ]
    return _rare(symbols, counts, columns)


def _rare(symbols: Sequence[str], counts: np.ndarray, columns: Sequence[str]) -> list[str]:
    once = np.flatnonzero(counts == 1)
    if 2 * len(once) <= counts.sum():
        return []
    column = "; is this the right column? Set --task.column" if columns else ""
    return [
        f"{len(once):,} of {np.count_nonzero(counts):,} different symbols occur only once, such as "
        f"{shown(symbols[once[0]])}, and cannot be learned{column}"
    ]


def shown(symbol: str) -> str:
    """A symbol for messages: quoted if it has white space or unprintable characters, truncated if long."""
    cut = symbol if len(symbol) <= 24 else symbol[:21] + "..."
    return cut if cut.isprintable() and cut.split() == [cut] else repr(cut)
