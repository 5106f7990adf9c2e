"""The task interface: a task draws or reads sequences of symbols and scores answers. It does not import torch."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from statewise.data_types import Completion, Examples, Headline, Rows
from statewise.runtime.json_files import Shape, parse_json
from statewise.runtime.messages import LacksCapability, cut
from statewise.runtime.text_files import decoded

if TYPE_CHECKING:
    from statewise.tasks.text.bpe import BPE


class Vocab:
    """A fixed list of symbols; a symbol's token id is its index in the list."""

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = list(symbols)
        self.ids = {symbol: token for token, symbol in enumerate(self.symbols)}
        if len(self.ids) != len(self.symbols):
            raise ValueError("a vocabulary must not contain a symbol twice")

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, symbols: Sequence[str]) -> np.ndarray:
        """(m,) int64 ids. Raises `ValueError` naming the first unknown symbol."""
        try:
            return np.fromiter(map(self.ids.__getitem__, symbols), np.int64, len(symbols))
        except KeyError as error:
            unknown = cut(repr(error.args[0]))
            some = ", ".join(cut(repr(symbol), 20) for symbol in self.symbols[:8]) + ", ..." * (len(self) > 8)
            raise ValueError(f"unknown symbol {unknown}: it is not in the vocabulary of {len(self)} ({some})") from None

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Symbols of token ids."""
        return [self.symbols[token] for token in tokens]


@dataclass(frozen=True)
class TextFormat:
    """The text of a sequence of symbols, for text that the task accepts; text that it refuses may be read differently.

    Text is described by regular expressions, so that tokenizers of other libraries can do the same. They use only what
    Python's `re` and the Oniguruma library of the `tokenizers` package understand alike.
    """

    symbol: str = r"\S+"
    """Pattern of one symbol; text between its matches is skipped."""
    separator: str = " "
    """Text between two symbols."""
    cut_at: str = ""
    """Literal text at which a text is cut before symbols are looked for; empty: it is not cut."""
    normalise: tuple[tuple[str, str], ...] = ()
    """Patterns in a given text with what replaces them, literally and in order, before symbols are looked for."""
    tidy: tuple[tuple[str, str], ...] = ()
    """Replacements like those of `normalise`, for a text of symbols with separators."""


SPACED = TextFormat()
"""Symbols without white space, separated by it."""


def separated_by(separator: str | None) -> TextFormat:
    """Symbols between separators, without white space at their ends; None: `SPACED`; empty: every character is a
    symbol."""
    if separator is None:
        return SPACED
    if not separator:
        return TextFormat(r"[\s\S]", "")
    return TextFormat(r"\S(?:[\s\S]*\S)?", separator, separator)


class Task(ABC):
    """Built as `cls(config, kept)`; `kept` holds the files that `files()` returned when the run was created."""

    Config: ClassVar[type]
    """Dataclass of the task's recipe fields."""

    headline: Headline
    vocab: Vocab
    context: int
    """Tokens of the longest sequence."""
    end: int | None = None
    """Token that ends an answer, if answers differ in length."""
    filler: int | None = None
    """Token that no sequence has, with which texts of different lengths are padded; None: the end token, if there is
    one."""
    text_format: TextFormat | None = None
    """How `encode` and `decode` write symbols, so that an exported model gets a tokenizer; None: no such rule
    exists."""
    longest_answer: int | None = None
    """Maximum tokens of an answer, after which evaluations stop decoding; None: only the context limits it."""
    chance: Mapping[str, float] = {}
    """Chance level of each metric, where it is known."""
    decoded: bool = True
    """Whether evaluations decode an answer to every prompt; False: prompts only mark what is not scored."""
    other_held_out: Mapping[str, Sequence[str]] = {}
    """Further held-out sets, by option and value of `statewise evaluate`: {"targets": ["held-out"]} is `--targets
    held-out`. A class attribute, so that the command knows its options without a run."""
    drawn_at_once: int = 32
    """Rows of a training batch that one call of `sample` draws. Of several processes each makes only the calls that
    overlap its share. Set it higher where a call is expensive however few rows it draws."""
    disjoint: bool = True
    """Whether no held-out example is ever drawn for training; False: both are samples of a small set of possible
    sequences, from which none can be left out without changing what is to be learned."""
    notes: Sequence[str] = ()
    """Lines that a user should read about the data, such as what was left out."""
    view: str = "tokens"
    """How the playground shows a sequence: the name of a file in `playground/page/views`."""

    def __init__(self, config: Any, kept: Kept | None = None) -> None:
        self.config = config

    @property
    def longest_row(self) -> int:
        """Tokens of the longest training sequence, by which `trainer.tokens` counts steps; `context` unless tests are
        longer."""
        return self.context

    def files(self) -> dict[str, bytes]:
        """Files, by name, that a run keeps so that the task can be rebuilt without its data."""
        return {}

    def data_identity(self) -> dict[str, str]:
        """Checksums by which `compare` tells whether runs have the same data: of the `data` and, if there is one, of
        the `tokenizer`. By default the checksum of all `files`; a task whose files also hold paths of data overrides
        it."""
        kept = self.files()
        sums = [hashlib.sha256(part).hexdigest() for name in sorted(kept) for part in (name.encode(), kept[name])]
        return {"data": joint_checksum(sums)} if sums else {}

    def summary(self) -> list[str]:
        """Lines that describe the data before training. Those that begin with `warning: ` say what looks wrong and
        how to fix it."""
        return []

    @abstractmethod
    def training(self) -> Rows | None:
        """All training examples; None if `sample` draws fresh ones for every batch."""

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training examples drawn with `rng`."""
        examples = self.training()
        assert examples is not None, "a task without a training set must define sample"
        return examples[rng.integers(len(examples), size=n)]

    @abstractmethod
    def held_out(self, n: int | None = None) -> Examples:
        """At most n held-out examples, the same at every call and disjoint from all training examples (see
        `disjoint`)."""

    def held_out_by(self, option: str, value: str, n: int | None = None) -> Examples:
        """At most n examples of one of the sets `other_held_out`. Raises `ValueError` naming the sets that exist."""
        others = [f"`{name}` {item}" for name, items in self.other_held_out.items() for item in items]
        there = f"the others are {', '.join(others)}" if others else "it has only the default one"
        raise ValueError(f"the task of this run has no held-out set `{option}` {value}: {there}")

    @abstractmethod
    def read(self, path: Path) -> Examples:
        """Examples of a file in the task's format. Raises `ValueError` as `FILE:LINE: what is wrong`."""

    def read_numbered(self, path: Path) -> Numbered:
        """The examples of `read`, the index of each sequence in the file, and the sequences that were left out."""
        examples = self.read(path)
        return Numbered(examples, np.arange(len(examples)), [])

    def read_prompts(self, path: Path) -> Examples:
        """Prompts of a file, one per line, in the form that `encode` takes. Raises `ValueError` as `read` does."""
        rows = []
        from statewise.tasks.own_files.lines import Problems, read_lines

        problems = Problems(path)
        for number, line in read_lines(path):
            try:
                rows.append(self.encode(line))
            except ValueError as error:
                problems.add(number, str(error))
                continue
            if not 0 < len(rows[-1]) <= self.context:
                problems.add(number, f"{len(rows[-1])} tokens, but there must be 1 to {self.context}")
        problems.raise_if_any()
        return Examples.of(rows, [len(row) for row in rows])

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """(m,) token ids of a prompt as a user writes it. Raises `ValueError` naming what is not understood."""

    def encode_later(self, text: str) -> np.ndarray:
        """(m,) token ids of a text that does not begin a sequence, such as a goal; otherwise as `encode`."""
        return self.encode(text)

    @abstractmethod
    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Text of token ids, the inverse of `encode`."""

    def continuation(self, before: str | Sequence[int] | np.ndarray, tokens: Sequence[int] | np.ndarray) -> str:
        """Text of `tokens` (m,) that follow `before`, a prompt as someone wrote it or its token ids (t,).

        It begins with the separator if one must stand there, so that `encode` of the prompt's text and this one
        together gives the tokens of both. A task overrides it where `decode` writes the first of several symbols
        differently once more follow. Raises `ValueError` if `encode` does for the prompt.
        """
        prompt = self.encode(before) if isinstance(before, str) else before
        start, whole = self.decode(prompt), self.decode([*prompt, *tokens])
        return whole[len(start) :] if whole.startswith(start) else self.decode(tokens)

    def with_goal(self, prompt: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The input for continuing `prompt` (t,) such that `goal` (g,), g >= 0, follows.

        Returns the tokens that the model reads, and the goal for a decoder; None if there is none or the tokens
        contain it. A goal closes the sequence, so the end token is appended where the task has one.
        """
        if self.end is not None and len(goal) and goal[-1] != self.end:
            goal = np.append(goal, self.end)
        return prompt, goal if len(goal) else None

    @abstractmethod
    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """Metrics in [0, 1], 1 being perfect, of one completion per example."""

    def score_positions(self, examples: Examples, chosen: np.ndarray) -> dict[str, float]:
        """Metrics of teacher-forced predictions. `chosen` (n, T) int64: the most likely token at each position, -1
        where the token is not scored."""
        return {}

    def score_nats(self, examples: Examples, nats: np.ndarray, scored: np.ndarray) -> dict[str, float]:
        """Metrics of the nats of each token under teacher forcing, `nats` (n, T) float64, where it is `scored`, (n, T)
        bool."""
        return {}

    def units(self, examples: Examples) -> Mapping[str, int]:
        """Counts of what the scored tokens spell, such as words and bytes, by which the losses of models with
        different tokenizers can be compared. Empty: the only unit is the token."""
        return {}

    def sample_of(self, examples: Examples, row: int, completion: Completion) -> dict[str, Any]:
        """One example and its completion as JSON values, for reports. A task may add what a figure needs."""
        return {
            "prompt": self.decode(examples.prompt(row)),
            "truth": self.decode(examples.answer(row)),
            "predicted": self.decode(completion.tokens),
        }

    def scene(self, tokens: np.ndarray) -> dict[str, Any]:
        """What `view` draws of a sequence (t,) besides its tokens, as JSON values. Empty: the sequence is shown as
        tokens alone, as are sequences that are not the task's."""
        return {}


class LeftOut(NamedTuple):
    """A sequence of a file that the task cannot use."""

    sequence: int
    """Index in the file, from 0."""
    line: int
    """Number of its first line, from 1."""
    why: str


class Numbered(NamedTuple):
    """The sequences of a file."""

    examples: Examples
    sequences: np.ndarray
    """(n,) int64: index of each in the file, from 0, including those left out."""
    left_out: Sequence[LeftOut]


Kept = Mapping[str, bytes]
"""Files of a task that its run keeps, by name."""


class Infill(NamedTuple):
    """A held-out sequence in three parts, each (m,) int64 token ids."""

    prompt: np.ndarray
    middle: np.ndarray
    goal: np.ndarray


class Infilling(ABC):
    """A task that provides sequences with a gap to fill."""

    @abstractmethod
    def goals(self, n: int | None = None) -> list[Infill]:
        """The first n held-out sequences that are long enough, in three parts. Raises `ValueError` if none is."""


class SpacedText(Task):
    """A task whose text is its symbols, separated by spaces."""

    text_format = SPACED

    def encode(self, text: str) -> np.ndarray:
        """Token ids of symbols separated by spaces."""
        return self.vocab.encode(text.split())

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Symbols separated by spaces."""
        return " ".join(self.vocab.decode(tokens))


class RunningText(ABC):
    """A task of text under a tokenizer, whose models give a likelihood to any text. Comes before `Task` among bases."""

    view = "text"
    bpe: BPE
    """The tokenizer."""
    left_to_right: bool = True
    """Whether sequences are texts in reading order; False: the model reads another part of a text first."""

    def encode(self, text: str) -> np.ndarray:
        """(m,) token ids of a text; special tokens written out in it become those tokens."""
        tokens = self.bpe.encode(text)
        self.check_reproduced(text, tokens)
        return tokens

    def check_reproduced(self, text: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Raises `ValueError` unless decoding its tokens restores the text."""
        if self.bpe.decode(tokens) != text:
            raise ValueError(f"the tokenizer of this run does not reproduce {text[:60]!r} exactly")

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text, the inverse of `encode` except where a text was cut inside a word (see `BPE.is_canonical`)."""
        return self.bpe.decode(tokens)

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`exact_match`: the text's own continuation and nothing else, end token included."""
        right = [np.array_equal(completion.tokens, examples.answer(row)) for row, completion in enumerate(completions)]
        return {"exact_match": float(np.mean(right))}


def running_text(task: Task) -> RunningText:
    """The task, if its models give a likelihood to a text from left to right. Raises `ValueError` if not."""
    if not isinstance(task, RunningText):
        raise LacksCapability("the likelihood of a text needs a task of text under a tokenizer", RunningText)
    if not task.left_to_right:
        raise ValueError(
            "the model of this run reads the end of a text first, so it gives no left-to-right likelihood: train "
            "stories with --task.encoding plain for that"
        )
    return task


class HasBaselines(ABC):
    """A task with baselines: simple predictors estimated from its training data."""

    @abstractmethod
    def baselines(self, examples: Examples) -> dict[str, dict[str, float]]:
        """Metrics of each baseline on the examples, named as in evaluations."""


class ComparedBySymbol(HasBaselines):
    """A task of sequences that nobody knows more about: models are judged by what they know beyond baselines."""

    remember: Callable[[str, Callable[[], np.ndarray]], np.ndarray] = staticmethod(lambda key, make: make())
    """`remember(key, make)`: the array cached under `key`, else the result of `make()`, which is then cached. The task
    of a run uses the run's cache; by default nothing is cached."""

    @abstractmethod
    def baseline_nats(self, examples: Examples) -> dict[str, np.ndarray]:
        """(n, T) float64: the nats of each scored token, 0 elsewhere, of each baseline with probabilities."""


class ConsecutiveRows(ABC):
    """A task whose training rows are consecutive windows of one stream of documents, which rows may cut. Comes before
    `Task` among bases."""

    @abstractmethod
    def continues(self, rows: np.ndarray) -> np.ndarray:
        """(n,) bool: whether each of the training rows (n,) starts within the document in which the previous row, a
        full one, ends. False for the first row."""


def consecutive_rows(task: Task) -> ConsecutiveRows:
    """The task, if its training rows are consecutive. Raises `LacksCapability` if not."""
    if not isinstance(task, ConsecutiveRows):
        raise LacksCapability(
            "trainer.rows consecutive needs a task whose training rows are consecutive windows of one text",
            ConsecutiveRows,
        )
    return task


class WholeTexts(ABC):
    """A task whose held-out documents may be longer than its rows."""

    @abstractmethod
    def held_out_texts(self) -> Iterator[np.ndarray]:
        """(t,) tokens of each held-out document, uncut and in order."""


class World(ABC):
    """A task whose true state is known."""

    @abstractmethod
    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T) int64: the true state after each position, -1 where it is undefined."""

    @abstractmethod
    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """(m,) token ids that may follow `prefix` (t,)."""

    def state_name(self, label: int) -> str:
        """A state of `labels` in words."""
        return f"state {label}"


def kept_text(kept: Kept, name: str) -> str:
    """The text of a file that the run keeps. Raises `ValueError` if it is missing or not UTF-8."""
    where = f"task/{name} of this run"
    if name not in kept:
        raise ValueError(f"{where} is missing; the run cannot be loaded without it")
    return decoded(kept[name], f"{where}: damaged")


def kept_json(kept: Kept, name: str, shape: Shape) -> Any:
    """The content of a JSON file that the run keeps. Raises `ValueError` if it is missing or has another shape."""
    return parse_json(kept_text(kept, name), shape, f"task/{name} of this run")


def checksum(path: Path) -> str:
    """The SHA-256 of a file. Raises `ValueError` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None


def joint_checksum(checksums: Iterable[str]) -> str:
    """One SHA-256 of several checksums, in their order."""
    return hashlib.sha256(" ".join(checksums).encode()).hexdigest()


def check_unchanged(path: Path, before: str) -> None:
    """Raises `ValueError` unless the file still has the checksum that the run keeps."""
    if not path.exists():
        raise ValueError(f"{path}: the data of this run no longer exists")
    if checksum(path) != before:
        raise ValueError(f"{path}: the data has changed since the run began")


class Prefixes(NamedTuple):
    """Different prefixes of sequences, m in all."""

    examples: Examples
    """Sequences that contain them."""
    rows: np.ndarray
    """(m,): the sequence of each prefix."""
    columns: np.ndarray
    """(m,): its last position."""
    weights: np.ndarray
    """(m,): the probability of each among prefixes of all lengths, with equal lengths equally likely; sums to 1."""
    exact: bool
    """Whether these are all possible prefixes with their exact probabilities, not those of drawn sequences."""

    def chosen(self, which: np.ndarray) -> Prefixes:
        """Those with `which` (m,) bool, with weights that sum to 1 again."""
        weights = self.weights[which]
        return Prefixes(self.examples, self.rows[which], self.columns[which], weights / weights.sum(), self.exact)


class Believed(World):
    """A world whose true state is a belief: all that past tokens tell about future ones (a mixed state).

    `C` is the number of coordinates of a belief, of several factors side by side.
    """

    widths: Sequence[int]
    """The coordinates of each factor's belief; their sum is C."""
    simplex_factors: Sequence[bool]
    """Whether the belief of each factor is a probability distribution."""
    dimensions: Sequence[int]
    """Dimension of the affine space of each factor's normalised beliefs: one less than its states."""
    row_length: int
    """Tokens of the process in a training sequence."""
    opening: int
    """Number of tokens before the first one of the process: 1 for <bos>."""
    joint_states: int
    """Hidden states of all factors together."""

    @abstractmethod
    def beliefs(self, examples: Examples) -> np.ndarray:
        """(n, T, C) float64: the belief after each position; NaN after tokens that are not possible."""

    @abstractmethod
    def constrained_beliefs(self, examples: Examples) -> np.ndarray:
        """(n, T, C) float64: what a sum over tokens, each read by itself, can know of the belief after each position
        (constrained belief updates, arXiv 2502.01954): the belief of a predictor that has read nothing, plus the change
        that each token alone makes to it, carried on to the position without reading the tokens between. Coordinates
        and NaN as in `beliefs`; coordinates may be negative."""

    @abstractmethod
    def next_tokens(self, examples: Examples) -> np.ndarray:
        """(n, T, V) float64: the true probabilities of the next token after each position, for all V tokens of the
        vocabulary; NaN as in `beliefs`. They go on beyond the end of a sequence."""

    @abstractmethod
    def prefixes(self, most: int, seed: int, longest: int | None = None) -> Prefixes:
        """All possible prefixes up to the longest length for which there are at most `most` sequences; if that is less
        than half of `longest`, the prefixes, about `most`, of drawn sequences of that length. `longest`: tokens of the
        process in the longest prefix; None: the task's length."""

    def predicting(self, columns: np.ndarray) -> np.ndarray:
        """(m,) bool: whether training asks for a prediction after the positions `columns` (m,)."""
        return columns < self.row_length + self.opening - 1

    def foretold(self, examples: Examples) -> np.ndarray:
        """(n, T, P) float64: what a perfect prediction contains after each position: `next_tokens`, unless the next
        token does not depend on the belief."""
        return self.next_tokens(examples)

    def longer(self, tokens: int) -> str:
        """The option of a recipe for sequences of so many tokens of the process."""
        return f"--task.length {tokens}"

    def compared(self, columns: np.ndarray) -> np.ndarray:
        """(m,) bool: whether the belief after the positions `columns` (m,) is one that states are compared with."""
        return np.ones(len(columns), bool)

    @abstractmethod
    def draw(self, rng: np.random.Generator, n: int, length: int) -> Examples:
        """n sequences of `length` tokens of the process, which may be more than the task's."""

    @abstractmethod
    def vary(self, rng: np.random.Generator, factor: int, n: int) -> Examples:
        """n sequences that have the tokens of all factors but one in common."""

    @abstractmethod
    def floors(self) -> np.ndarray:
        """(T,): the mean nats of the token at each position for a predictor that knows the belief before it: no model
        can have fewer. 0 where the token is certain."""


def believed(task: Task) -> Believed:
    """The task, if its beliefs are known. Raises `ValueError` if not."""
    if not isinstance(task, Believed):
        raise LacksCapability("this analysis needs a task whose beliefs are known exactly", Believed)
    return task
