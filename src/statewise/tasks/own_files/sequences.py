"""A user's own sequences from text, JSON lines, CSV or an event log; see `sequence_files` for the formats.

Only answers are scored; a sequence without a prompt is scored from its second symbol on. An end symbol is appended to
every sequence.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from statewise.data_types import Completion, Examples, Headline, Ragged
from statewise.runtime.bounds import bounded
from statewise.runtime.json_files import FLAG, POSITIVE, TEXT, Shape
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
from statewise.tasks.baselines import accuracies
from statewise.tasks.own_files.lines import Problems
from statewise.tasks.own_files.log import EventLog, read_log
from statewise.tasks.own_files.sequence_files import MISSING, Line, Parsed, SequenceFile, parse_file, unescaped

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
    notes = _misread(symbols, training, held_out, layout, columns, counts)
    missing = [token for token, symbol in enumerate(symbols) if symbol in MISSING and counts[token]] if columns else []
    if not missing:
        return notes
    number, names = counts[missing].sum(), " or ".join(repr(symbols[token]) for token in missing)
    stand = "stands for a missing value: if it does" if len(missing) == 1 else "stand for missing values: if they do"
    are = "symbol is" if number == 1 else "symbols are"
    return [f"{number:,} {are} {names}, which often {stand}, remove these rows", *notes]


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
    """Share of the distinct sequences of `path` that is held out, chosen by a hash of their symbols."""
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
        parts = self.end.split(unescaped(self.separator) if self.separator else None)
        if not self.end.strip() or not self.end.isprintable() or [part.strip() for part in parts] != [self.end]:
            raise ValueError(f"task.end must be one symbol, of printable characters, not {short(self.end)}")


KEPT: Shape = {"symbols": [TEXT], "context": POSITIVE, "has_prompts": FLAG, "sha256": {...: TEXT}}
"""Shape of what a run keeps about its data."""


class Sequences(Task, ComparedBySymbol):
    """Sequences of symbols; the vocabulary is the set of symbols in the file."""

    Config = SequencesConfig

    def __init__(self, config: SequencesConfig, kept: Kept | None = None) -> None:
        self.config = config
        self._parsed: dict[Path, Parsed] = {}
        self._how: dict[Path, Parsed] = {}
        self._held_out_from = ""
        self._parts: tuple[Ragged, Ragged] | None = None
        self._predictions: tuple[Examples, dict[str, baselines.Prediction]] | None = None
        if kept is not None:
            facts = kept_json(kept, "sequences.json", KEPT)
            if config.end not in facts["symbols"]:
                raise ValueError(f"task/sequences.json of this run: symbols has no end symbol {config.end!r}")
            self.vocab, self.sums = Vocab(facts["symbols"]), facts["sha256"]
            self.paths = [Path(path) for path in self.sums]
            self.context, self.has_prompts = facts["context"], facts["has_prompts"]
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
        facts = {
            "symbols": self.vocab.symbols,
            "context": self.context,
            "has_prompts": self.has_prompts,
            "sha256": self.sums,
        }
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
        lines = [line for _, line in self._lines(self.paths[0])]
        symbols = dict.fromkeys(chain.from_iterable(part for line in lines for part in line))
        if self.config.end in symbols:
            raise ValueError(
                f"{self.config.path}: the end symbol {self.config.end!r} occurs in the data: set task.end to another"
            )
        for symbol in symbols:
            if any("\ud800" <= letter <= "\udfff" for letter in symbol):  # as JSON may escape it
                raise ValueError(f"{self.config.path}: the symbol {symbol!r} contains a lone surrogate")
        self.vocab = Vocab([*symbols, self.config.end])
        self.has_prompts = any(prompt for prompt, _ in lines)
        every = [line for path in self.paths for _, line in self._lines(path)]
        self.context = self.config.context or 1 + max(len(prompt) + len(answer) for prompt, answer in every)
        self.sums = {str(path): checksum(path) for path in self.paths}
        self._split()

    def _lines(self, path: Path) -> list[tuple[int, Line]]:
        """Sequences of one of `paths`, cached until `_split` has made examples of them."""
        if path not in self._parsed:
            self._parsed[path] = parse_file(path, self.config)
        return self._parsed[path].lines

    def _split(self) -> tuple[Ragged, Ragged]:
        """Training and held-out sequences. Raises `ValueError` if the data is missing or has changed."""
        if self._parts is not None:
            return self._parts
        for path in self.paths:
            check_unchanged(path, self.sums[str(path)])
        path, *others = self.paths
        lines = self._lines(path)
        if others:
            trained_on = {line for _, line in lines}
            every = self._lines(others[0])
            new = [row for row in every if row[1] not in trained_on]
            if not new:
                raise ValueError(f"{others[0]}: every sequence is also in {path.name}, so none is held out")
            parts = self._encoded(path, lines), self._encoded(others[0], new)
            left_out = len(every) - len(new)
            self._held_out_from = f"all of {others[0].name}" + (
                f" but {left_out:,} that are also in {path.name}, and are left out" if left_out else ""
            )
        else:
            different = sorted({line for _, line in lines}, key=_rank)
            if len(different) < 2:
                raise ValueError(
                    f"{path}: at least two different sequences are needed, to train on one and hold out another"
                )
            count = min(max(1, round(self.config.held_out_share * len(different))), len(different) - 1)
            held_out = set(different[:count])
            parts = (
                self._encoded(path, [row for row in lines if row[1] not in held_out]),
                self._encoded(path, [row for row in lines if row[1] in held_out]),
            )
            self._held_out_from = f"all copies of {count:,} of the {len(different):,} different sequences"
        self._how = {path: parsed._replace(lines=[]) for path, parsed in self._parsed.items()}
        self._parsed, self._parts = {}, parts
        return parts

    def summary(self) -> list[str]:
        """The file's format and content, the held-out split, and warnings about what looks misread."""
        training, held_out = self._split()
        how = self._how[self.paths[0]]
        sizes = summary(self.vocab.symbols, training, held_out, self._held_out_from)
        wrong = warnings(self.vocab.symbols, training, held_out, self.config, how.columns)
        return [
            f"{self.paths[0]}: {how.how}",
            *(f"  {line}" for line in sizes),
            *(f"warning: {line}" for line in (*how.warnings, *wrong)),
        ]

    @override
    def baselines(self, examples: Examples) -> dict[str, dict[str, float]]:
        """Estimated from the training sequences."""
        return baselines.metrics(self._predicted(examples), examples, self.end)

    @override
    def baseline_nats(self, examples: Examples) -> dict[str, np.ndarray]:
        return baselines.nats(self._predicted(examples), examples)

    def _predicted(self, examples: Examples) -> dict[str, baselines.Prediction]:
        """Predictions of the baselines; those of the last examples are kept."""
        if self._predictions is None or self._predictions[0] is not examples:
            made = baselines.predictions(self.training(), examples, len(self.vocab), self.end, self.config.end)
            self._predictions = examples, made
        return self._predictions[1]

    def _encoded(self, path: Path, lines: list[tuple[int, Line]]) -> Ragged:
        problems = Problems(path)
        rows, prompt_lengths = [], []
        for number, (prompt, answer) in lines:
            length = len(prompt) + len(answer) + 1
            if self.config.end in (*prompt, *answer):
                problems.add(number, f"the end symbol {self.config.end!r} occurs in it, but it ends every sequence")
                continue
            if length > self.context:
                problems.add(number, f"{length} tokens with the end symbol, but the context is {self.context}")
                continue
            try:
                rows.append(self.vocab.encode([*prompt, *answer, self.config.end]))
            except ValueError as error:
                problems.add(number, str(error))
                continue
            prompt_lengths.append(len(prompt))
        problems.raise_if_any()
        return Ragged.of(rows, prompt_lengths, len(self.vocab))

    def training(self) -> Ragged:
        """All sequences that are not held out."""
        return self._split()[0]

    def held_out(self, n: int | None = None) -> Examples:
        """The held-out sequences, or the first n of them."""
        return self._split()[1][:n]

    def read(self, path: Path) -> Examples:
        """Sequences of a file; every symbol must be in the vocabulary."""
        return self._encoded(path, parse_file(path, self.config).lines)[:]

    def log(self, path: Path | None = None) -> EventLog:
        """The sequences of a file in the task's format as arrays; None: the file of `task.path`. Its symbols are those
        of the file, which may have symbols that the vocabulary lacks; `encoded` gives the tokens of the model."""
        return read_log(self.paths[0] if path is None else path, self.config)

    def encoded(self, log: EventLog) -> Encoded:
        """The tokens of a log, and the event of each. Raises `ValueError` for symbols that are not in the vocabulary
        and for sequences that are longer than the context."""
        names = [str(number) for number in log.lines]
        rows, events = [], []
        for number in range(len(log)):
            row = self.vocab.encode(log.sequence(number))
            if len(row) + 1 > self.context:
                raise ValueError(
                    f"line {names[number]}: {len(row) + 1} tokens with the end symbol, but the context is {self.context}"
                )
            rows.append(np.append(row, self.end))
            events.append(np.append(np.arange(log.offsets[number], log.offsets[number + 1]), -1))
        return Encoded(Ragged.of(rows, log.prompts.tolist(), len(self.vocab)), np.concatenate(events))

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
            return [*self.config.split(text.removesuffix(self.config.end)), self.config.end]
        return self.config.split(text)

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
        return symbol == self.config.end or self.config.split(symbol) == [symbol]

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


def _rank(line: Line) -> bytes:
    return hashlib.blake2b(json.dumps(line).encode(), digest_size=8).digest()
