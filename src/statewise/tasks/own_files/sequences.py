"""A user's own sequences from text, JSON, tables or event logs; see `file_formats` for the formats.

Only answers are scored; a sequence without a prompt is scored from its second symbol on. An end symbol is appended to
every sequence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from typing_extensions import override

from statewise.data_types import Completion, Examples, Headline, Ragged
from statewise.runtime.bounds import bounded
from statewise.runtime.json_files import FLAG, MEASURED, POSITIVE, TEXT, Shape
from statewise.runtime.messages import short
from statewise.tasks import baselines
from statewise.tasks.base import (
    ComparedBySymbol,
    Kept,
    Task,
    Vocab,
    check_unchanged,
    checksum,
    joint_checksum,
    kept_json,
    separated_by,
)
from statewise.tasks.baselines import Prediction, accuracies
from statewise.tasks.own_files.gaps import described, durations, edges_of, gap_symbols
from statewise.tasks.own_files.layout import MISSING, SequenceFile, unescaped
from statewise.tasks.own_files.lines import Problems
from statewise.tasks.own_files.log import EventLog
from statewise.tasks.own_files.plain_text import files_in
from statewise.tasks.own_files.reading import read_log
from statewise.tasks.own_files.splits import split

MOST_FREQUENT = 5
SUSPICIOUS = 1 / 3
"""If more than this share of all symbols contains a mark, the mark is probably a separator."""
MARKS = {",": "a comma", ";": "a semicolon", "|": "a bar", "\t": "a tab"}


def summary(symbols: Sequence[str], training: Ragged, held_out: Ragged, chosen: str) -> list[str]:
    """Sizes, lengths, the most frequent symbols, and the held-out symbols that training lacks.

    The last of `symbols` is the end symbol and is not counted. `chosen` describes how sequences were held out.
    """
    lengths = np.concatenate([_without_end(part, len(symbols) - 1) for part in (training, held_out)])
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


def _without_end(sequences: Ragged, end: int) -> np.ndarray:
    """(n,) symbols of each sequence; one that was cut has no end symbol."""
    return sequences.lengths - (sequences.tokens[sequences.starts + sequences.lengths - 1] == end)


def _counts(sequences: Ragged, vocabulary: int) -> np.ndarray:
    """(vocabulary,) occurrences of each symbol; 0 for the end symbol, the last."""
    return np.append(np.bincount(sequences.tokens, minlength=vocabulary)[:-1], 0)


def warnings(
    symbols: Sequence[str], training: Ragged, held_out: Ragged, layout: SequenceFile, columns: Sequence[str]
) -> list[str]:
    """Signs that a file was misread, each with its remedy; `columns` as in `Parsed`."""
    counts = _counts(training, len(symbols)) + _counts(held_out, len(symbols))
    notes = _misread(symbols, training, held_out, layout, columns, counts)
    missing = [token for token, symbol in enumerate(symbols) if symbol in MISSING and counts[token]] if columns else []
    if not missing:
        return notes
    number, names = counts[missing].sum(), " or ".join(repr(symbols[token]) for token in missing)
    stand = "stands for a missing value: if it does" if len(missing) == 1 else "stand for missing values: if they do"
    are = "symbol is" if number == 1 else "symbols are"
    remedy = "remove these rows" if layout.group is None else "set --task.missing drop, or --task.missing SYMBOL"
    return [f"{number:,} {are} {names}, which often {stand}, {remedy}", *notes]


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
        notes = [f"every case has one event: does column {layout.group!r} name the case? Set --task.group"] * single
        return notes + _rare(symbols, counts, columns)
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


@dataclass(frozen=True)
class SequencesConfig(SequenceFile):
    """Fields of `task: sequences`."""

    held_out_path: str | None = None
    """A file of held-out sequences in the same format; null: a share of `path`."""
    held_out_share: float = 0.1
    """Share of what `split` divides that is held out: of the distinct sequences, chosen by a hash of their symbols."""
    split: Literal["sequence", "case", "time", "column"] = "sequence"
    """What is held out: all copies of some sequences; some cases, whatever their sequence; the cases that begin last,
    training on what was before; or all cases with some values of `split_column`."""
    split_column: str | None = None
    """The column of `split: column`, of which each value is on one side."""
    gaps: int = 0
    """Event logs: so many symbols for the duration before an event, each for about equally many; 0: none."""
    context: int | None = None
    """Longest sequence in tokens, end symbol included; null: the longest in the file."""
    end: str = "<end>"
    """Symbol appended to every sequence; must not occur in the file."""
    solved_at: float | None = None
    """Share of exact answers at which the task counts as solved; null: no such threshold."""

    def __post_init__(self) -> None:
        super().__post_init__()
        bounded(self, "context", prefix="task.", at_least=2, at_most=2**24)
        bounded(self, "held_out_share", prefix="task.", above=0, below=1)
        bounded(self, "gaps", prefix="task.", at_least=0, at_most=1000)
        if (self.split == "column") != (self.split_column is not None):
            raise ValueError("task.split column and task.split_column NAME belong together: set both")
        if self.split != "sequence" and self.held_out_path is not None:
            raise ValueError("task.held_out_path names what is held out: leave task.split out")
        parts = self.end.split(unescaped(self.separator) if self.separator else None)
        if not self.end.strip() or not self.end.isprintable() or [part.strip() for part in parts] != [self.end]:
            raise ValueError(f"task.end must be one symbol, of printable characters, not {short(self.end)}")


KEPT: Shape = {
    "symbols": [TEXT],
    "context": POSITIVE,
    "has_prompts": FLAG,
    "sha256": {...: TEXT},
    "gaps?": {"edges": [MEASURED], "seconds": FLAG},
}
"""Shape of what a run keeps about its data."""


class Sequences(Task, ComparedBySymbol):
    """Sequences of symbols; the vocabulary is the set of symbols in the file."""

    Config = SequencesConfig

    def __init__(self, config: SequencesConfig, kept: Kept | None = None) -> None:
        self.config = config
        self._logs: dict[Path, EventLog] = {}
        self._how: dict[Path, EventLog] = {}
        self._held_out = np.zeros(0, bool)
        self.edges: list[float] | None = None
        self.in_seconds = True
        self._held_out_from = ""
        self._parts: tuple[Ragged, Ragged] | None = None
        self._predictions: tuple[Examples, dict[str, Prediction]] | None = None
        if kept is not None:
            facts = kept_json(kept, "sequences.json", KEPT)
            if config.end not in facts["symbols"]:
                raise ValueError(f"task/sequences.json of this run: symbols has no end symbol {config.end!r}")
            self.vocab, self.sums = Vocab(facts["symbols"]), facts["sha256"]
            self.paths = [Path(path) for path in self.sums]
            self.context, self.has_prompts = facts["context"], facts["has_prompts"]
            if config.gaps:
                gaps = facts.get("gaps")
                if gaps is None or not set(gap_symbols(config.gaps)) <= set(self.vocab.symbols):
                    raise ValueError("task/sequences.json of this run: the durations of task.gaps are missing")
                self.edges, self.in_seconds = gaps["edges"], gaps["seconds"]
        else:
            self._read_data()
        self.end: int = self.vocab.ids[config.end]
        separator = config.separator
        self.text_format = separated_by(separator if separator is None else unescaped(separator))
        if self.has_prompts:
            self.headline = Headline("exact_match", higher_is_better=True, solved_at=config.solved_at)
        else:
            self.headline = Headline("loss", higher_is_better=False)

    def files(self) -> dict[str, bytes]:
        """Vocabulary, longest sequence, and checksums of the data."""
        facts: dict[str, Any] = {
            "symbols": self.vocab.symbols,
            "context": self.context,
            "has_prompts": self.has_prompts,
            "sha256": self.sums,
        }
        if self.edges is not None:
            facts["gaps"] = {"edges": self.edges, "seconds": self.in_seconds}
        return {"sequences.json": json.dumps(facts).encode()}

    def data_identity(self) -> dict[str, str]:
        """A checksum of the files, independent of their paths."""
        return {"data": joint_checksum(self.sums.values())}

    # Reading

    def _read_data(self) -> None:
        """Finds the vocabulary and the longest sequence."""
        if not self.config.path:
            raise ValueError("task.path is not set: give the file of sequences with --task.path FILE")
        self.paths = [Path(path).resolve() for path in (self.config.path, self.config.held_out_path) if path]
        log = self._read(self.paths[0])
        if self.config.end in log.symbols:
            raise ValueError(
                f"{self.config.path}: the end symbol {self.config.end!r} occurs in the data: set task.end to another"
            )
        for symbol in log.symbols:
            if any("\ud800" <= letter <= "\udfff" for letter in symbol):  # as JSON may escape it
                raise ValueError(f"{self.config.path}: the symbol {symbol!r} contains a lone surrogate")
        gaps = gap_symbols(self.config.gaps)
        if taken := set(gaps) & set(log.symbols):
            raise ValueError(
                f"{self.config.path}: the symbol {min(taken)!r} of task.gaps occurs in the data: rename it"
            )
        self.vocab = Vocab([*log.symbols, *gaps, self.config.end])
        self.has_prompts = bool(log.prompts.any())
        every = [self._read(path) for path in self.paths]
        places = max(int((one.lengths + self._gaps_in(one)).max()) for one in every)
        self.context = self.config.context or 1 + places
        self.sums = {str(path): checksum_of(path) for path in self.paths}
        self._split()

    def _gaps_in(self, log: EventLog) -> np.ndarray:
        """(N,) tokens of durations in each sequence."""
        return np.maximum(log.lengths - log.prompts - 1, 0) if self.config.gaps else np.zeros(len(log), np.int64)

    def _read(self, path: Path) -> EventLog:
        """Sequences of one of `paths`, cached until `_split` has made examples of them."""
        if path not in self._logs:
            self._logs[path] = read_log(path, self.config)
        return self._logs[path]

    def _split(self) -> tuple[Ragged, Ragged]:
        """Training and held-out sequences. Raises `ValueError` if the data is missing or has changed."""
        if self._parts is not None:
            return self._parts
        for path in self.paths:
            unchanged(path, self.sums[str(path)])
        path, *others = self.paths
        log = self._read(path)
        if others:
            other = self._read(others[0])
            held_out, used = np.zeros(len(log), bool), log.lengths
            self._find_gaps(log, held_out, used)
            training, tested = self._encoded(path, log), self._encoded(others[0], other)
            known = training.rows.holds(tested.rows[:])
            left_out = int(known.sum())
            if left_out == len(other):
                raise ValueError(f"{others[0]}: every sequence is also in {path.name}, so none is held out")
            parts = training.rows, tested.rows.part(~known)
            self._held_out_from = f"all of {others[0].name}" + (
                f" but {left_out:,} that are also in {path.name}, and are left out" if left_out else ""
            )
        else:
            try:
                held_out, used, how = split(
                    log, self.config.split, self.config.held_out_share, self.config.split_column
                )
            except ValueError as error:
                raise ValueError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
            self._find_gaps(log, held_out, used)
            encoded = self._encoded(path, log, used).rows
            parts = (encoded.part(~held_out), encoded.part(held_out))
            self._held_out_from = how
        # A cut sequence of one event has nothing to predict: no event before it, and no end after it.
        first, second = (part.part(part.lengths > np.maximum(part.prompt_lengths, 1)) for part in parts)
        parts = first, second
        for part, name in zip(parts, ("training", "held-out")):
            if not len(part):
                raise ValueError(
                    f"{path}: every {name} sequence is cut after its first event: nothing is left to predict"
                )
        if self.config.split != "sequence":
            copies = int(parts[0].holds(parts[1][:]).sum())
            self._held_out_from += (
                f"; {copies:,} of them {'is' if copies == 1 else 'are'} the same as a sequence of training"
            )
        self._held_out = held_out
        self._how = {
            one: replace(log, codes=_NONE, rows=_NONE, times=None, steps=None) for one, log in self._logs.items()
        }
        self._logs, self._parts = {}, parts
        return parts

    def _find_gaps(self, log: EventLog, held_out: np.ndarray, used: np.ndarray) -> None:
        """The edges of durations between the events of training, unless the run keeps them."""
        if not self.config.gaps or self.edges is not None:
            return
        try:
            found = durations(log)
        except ValueError as error:
            raise ValueError(f"{self.config.path}: {error}") from None
        place = np.arange(len(found)) - np.repeat(log.offsets[:-1], log.lengths)
        trained_on = np.repeat(~held_out, log.lengths) & (place < np.repeat(used, log.lengths))
        self.edges, self.in_seconds = edges_of(found[trained_on], self.config.gaps), log.times is not None

    def summary(self) -> list[str]:
        """The file's format and content, the held-out split, and warnings about what looks misread."""
        training, held_out = self._split()
        log = self._how[self.paths[0]]
        sizes = summary(self.vocab.symbols, training, held_out, self._held_out_from)
        wrong = warnings(self.vocab.symbols, training, held_out, self.config, log.columns)
        gaps = [f"durations: {described(self.edges, self.in_seconds)}"] if self.edges is not None else []
        return [
            f"{self.paths[0]}: {log.how}",
            *(f"  {line}" for line in (*sizes, *gaps, *log.notes)),
            *(f"warning: {line}" for line in (*log.doubts, *wrong)),
        ]

    @override
    def baselines(self, examples: Examples) -> dict[str, dict[str, float]]:
        """Estimated from the training sequences."""
        return baselines.metrics(self._predicted(examples), examples, self.end)

    @override
    def baseline_nats(self, examples: Examples) -> dict[str, np.ndarray]:
        return baselines.nats(self._predicted(examples), examples)

    def _predicted(self, examples: Examples) -> dict[str, Prediction]:
        """Predictions of the baselines; those of the last examples are kept."""
        if self._predictions is None or self._predictions[0] is not examples:
            made = baselines.remembered(
                self.remember, self.training(), examples, len(self.vocab), self.end, self.config.end
            )
            self._predictions = examples, made
        return self._predictions[1]

    def log(self, path: Path | None = None) -> EventLog:
        """The sequences of a file in the task's format as arrays; None: the file of `task.path`. Its symbols are those
        of the file, which may have symbols that the vocabulary lacks; `encoded` gives the tokens of the model. Raises
        `ValueError` if the file cannot be read, or is that of `task.path` and has changed."""
        if path is None:
            unchanged(self.paths[0], self.sums[str(self.paths[0])])
        return read_log(self.paths[0] if path is None else path, self.config)

    def held_out_cases(self) -> np.ndarray:
        """(N,) bool: which sequences of `log()` are held out; none if `held_out_path` names others."""
        self._split()
        return self._held_out

    def encoded(self, log: EventLog) -> Encoded:
        """The tokens of a log, and the event of each. Raises `ValueError` for symbols that are not in the vocabulary
        and for sequences that are longer than the context."""
        return self._encoded(Path(getattr(log.table, "path", self.config.path)), log)

    def _encoded(self, path: Path, log: EventLog, used: np.ndarray | None = None) -> Encoded:
        """`used`: as in `Split`; None: all events."""
        used = log.lengths if used is None else used
        problems = Problems(path)
        tokens_of = np.array([self.vocab.ids.get(symbol, -1) for symbol in log.symbols], np.int64)
        ended = (used == log.lengths) & ~log.unfinished
        gaps = np.zeros(len(log.codes), bool)
        before = None
        if self.config.gaps:
            try:
                before = durations(log)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            gaps = ~np.isnan(before)
        place = np.arange(len(log.codes)) - np.repeat(log.offsets[:-1], log.lengths)
        kept = place < np.repeat(used, log.lengths)
        sequence = np.repeat(np.arange(len(log)), log.lengths)
        lengths = np.bincount(sequence[kept], 1 + gaps[kept], minlength=len(log)).astype(np.int64) + ended
        own_end = log.symbols.index(self.config.end) if self.config.end in log.symbols else -1
        bad = (
            tokens_of[log.codes] < 0
            if self.config.end not in log.symbols
            else (tokens_of[log.codes] < 0) | (log.codes == own_end)
        )
        wrong = np.zeros(len(log), bool)
        wrong[sequence[bad & kept]] = True
        for number in np.flatnonzero(wrong | (lengths > self.context)).tolist():
            line = int(log.lines[number])
            symbols = log.sequence(number)
            if self.config.end in symbols:
                problems.add(line, f"the end symbol {self.config.end!r} occurs in it, but it ends every sequence")
            elif lengths[number] > self.context:
                problems.add(line, f"{lengths[number]} tokens with the end symbol, but the context is {self.context}")
            else:
                try:
                    self.vocab.encode(symbols)
                except ValueError as error:
                    problems.add(line, str(error))
        problems.raise_if_any()
        # Each event is a token after the one of the duration before it, and each sequence a token at its end.
        ends = np.cumsum(lengths)
        tokens = np.full(int(ends[-1]), self.vocab.ids[self.config.end], np.int64)
        events = np.full(len(tokens), -1, np.int64)
        at = np.cumsum(kept * (1 + gaps)) - 1 + np.repeat(np.cumsum(ended) - ended, log.lengths)
        tokens[at[kept]] = tokens_of[log.codes[kept]]
        events[at[kept]] = np.flatnonzero(kept)
        if before is not None:
            timed = kept & gaps
            first = self.vocab.ids[gap_symbols(1)[0]]
            tokens[at[timed] - 1] = first + np.searchsorted(self.edges or [], before[timed], side="right")
            events[at[timed] - 1] = np.flatnonzero(timed)
        kind = np.min_scalar_type(len(self.vocab) - 1)
        return Encoded(Ragged(tokens.astype(kind), lengths, np.minimum(log.prompts, lengths)), events)

    def training(self) -> Ragged:
        """All sequences that are not held out."""
        return self._split()[0]

    def held_out(self, n: int | None = None) -> Examples:
        """The held-out sequences, or the first n of them."""
        return self._split()[1][:n]

    def read(self, path: Path) -> Examples:
        """Sequences of a file; every symbol must be in the vocabulary."""
        return self._encoded(path, read_log(path, self.config)).rows[:]

    # Text

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a line in the file's format, of a JSON list, for symbols that contain the separator, or of a
        line followed by lists."""
        return self.vocab.encode(self._symbols(text))

    def _symbols(self, text: str) -> list[str]:
        if text in self.vocab.ids:
            return [text]  # it may contain the separator
        lists = self._lists(text)
        if lists is None or (lists.several and self._known(text)):
            return self._line(text)
        return [*([lists.line] if lists.line in self.vocab.ids else self._line(lists.line)), *lists.symbols]

    def _line(self, text: str) -> list[str]:
        """Symbols of a line in the file's format."""
        if self.config.separator == "" and text.endswith(self.config.end):
            return [*self.config.symbols_of(text.removesuffix(self.config.end)), self.config.end]
        return self.config.symbols_of(text)

    def _known(self, line: str) -> bool:
        try:
            return all(symbol in self.vocab.ids for symbol in self._line(line))
        except ValueError:
            return False

    def _lists(self, text: str) -> _Lists | None:
        """The JSON lists at the end of a text; None: there are none."""
        characters = self.config.separator == "" and "[" in self.vocab.ids
        for start in re.finditer(r'\[(?=\s*["\d\]-])', text):
            line, lists = text[: start.start()].strip(), _json_lists(text[start.start() :])
            if lists is None or (characters and all(len(symbol) <= 1 for one in lists for symbol in one)):
                continue
            return _Lists(line, [symbol for one in lists for symbol in one], bool(line) or len(lists) > 1)
        return None

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Symbols as a line in the file's format; as a JSON list if one of them contains the separator."""
        symbols = self.vocab.decode(tokens)
        text = self.config.join(symbols)
        try:
            if self._symbols(text) == symbols:
                return text
        except ValueError:
            pass
        return json.dumps(symbols, ensure_ascii=False)

    @override
    def continuation(self, before: str | Sequence[int] | np.ndarray, tokens: Sequence[int] | np.ndarray) -> str:
        """The text is symbols with separators; from the first symbol on that contains the separator, and after a prompt
        that is a JSON list, it is a JSON list."""
        written = before if isinstance(before, str) else self.decode(before)
        prompt = self.vocab.decode(self.encode(before) if isinstance(before, str) else before)
        symbols = self.vocab.decode(tokens)
        lists = None if self._known(written) else self._lists(written)
        if not symbols:
            return ""
        plain = next((place for place, symbol in enumerate(symbols) if not self._is_plain(symbol)), len(symbols))
        for count in [0] if lists else [plain, 0]:
            rest = [json.dumps(symbols[count:], ensure_ascii=False)] if count < len(symbols) else []
            line = self.config.join([*symbols[:count], *rest])
            for joint in (self.config.join(["", ""]), "") if written else ("",):
                try:
                    if self._symbols(f"{written}{joint}{line}") == [*prompt, *symbols]:
                        return f"{joint}{line}"
                except ValueError:
                    continue
        return self.decode(tokens)

    def _is_plain(self, symbol: str) -> bool:
        """Whether a symbol can stand in a line."""
        return symbol == self.config.end or self.config.symbols_of(symbol) == [symbol]

    def score_positions(self, examples: Examples, chosen: np.ndarray) -> dict[str, float]:
        """`symbol_accuracy` and `end_accuracy`: the token accuracy where the true token is a symbol, and the end."""
        scored = chosen >= 0
        metrics = accuracies(examples.tokens[scored], chosen[scored], self.end)
        return {name: value for name, value in metrics.items() if name != "token_accuracy"}

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`exact_match`: the answer and nothing else, end symbol included."""
        right = [np.array_equal(completion.tokens, examples.answer(row)) for row, completion in enumerate(completions)]
        return {"exact_match": float(np.mean(right))}


class Encoded(NamedTuple):
    """The tokens of a log."""

    rows: Ragged
    """One row for each sequence of the log, in its order."""
    events: np.ndarray
    """(tokens,) int64: the event of the log that each of `rows.tokens` belongs to: the symbol itself, and the duration
    before it if durations are tokens; -1 for end symbols."""


class _Lists(NamedTuple):
    """JSON lists at the end of a text."""

    line: str
    """Text before the lists."""
    symbols: list[str]
    """Symbols of the lists, in order."""
    several: bool
    """Whether the text is more than one list."""


def _json_lists(text: str) -> list[list[str]] | None:
    """The symbols of JSON lists that follow one another; None if the text is something else."""
    lists: list[list[str]] = []
    while text := text.strip():
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, list) or not all(isinstance(symbol, (str, int)) for symbol in value):
            return None
        lists.append([str(symbol) for symbol in value])
        text = text[end:]
    return lists


def checksum_of(path: Path) -> str:
    """The SHA-256 of a file, or one of the names and files of a folder. Raises `ValueError` if it cannot be read."""
    if not path.is_dir():
        return checksum(path)
    return joint_checksum(part for file in files_in(path) for part in (file.name, checksum(file)))


def unchanged(path: Path, before: str) -> None:
    """Raises `ValueError` unless the file or folder still has the checksum that the run keeps."""
    if not path.is_dir():
        check_unchanged(path, before)
    elif checksum_of(path) != before:
        raise ValueError(f"{path}: the data has changed since the run began")


_NONE = np.zeros(0, np.int64)
