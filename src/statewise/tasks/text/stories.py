"""Stories, generated left to right or towards a known ending (Belief State Transformer, section 5 and appendix D).

Encoded `plain`, a story is its tokens and the end-of-text token, scored from the second token on. Encoded
`fill_in_the_middle` (the paper's baseline), it is a suffix, a separator, the tokens before the suffix, and the
end-of-text token; scored after the separator.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from typing_extensions import override

from statewise.data_types import Examples, Headline, Ragged
from statewise.runtime.bounds import bounded
from statewise.runtime.json_files import COUNT, TEXT, Shape
from statewise.runtime.messages import to_install
from statewise.runtime.text_files import read_text
from statewise.tasks.base import (
    Infill,
    Infilling,
    Kept,
    LeftOut,
    Numbered,
    RunningText,
    Task,
    Vocab,
    joint_checksum,
    kept_json,
    kept_text,
)
from statewise.tasks.own_files.lines import Problems, read_lines
from statewise.tasks.text import bpe
from statewise.tasks.text.bpe import END, SEPARATOR

Story = tuple[int, str]
"""The line (or row) where a story begins, and its text, which may be empty."""


class Source(ABC):
    """The stories of a file or of a split of a dataset."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Identifies the source in a run."""

    @abstractmethod
    def read(self) -> list[Story]:
        """All stories in order. Raises `ValueError`, with the line or row, for what cannot be read."""

    @abstractmethod
    def place(self, number: int) -> str:
        """The place of line or row `number`, for messages."""


@dataclass(frozen=True)
class StoryFile(Source):
    """A text file, plain or .gz, in which a line `<|endoftext|>` ends each story."""

    path: Path

    @property
    def name(self) -> str:
        """The file's full path."""
        return str(self.path.resolve())

    def place(self, number: int) -> str:
        """Where a line is, as `FILE:LINE`."""
        return f"{self.path}:{number}"

    def read(self) -> list[Story]:
        """All stories, stripped of white space; blank lines inside them are kept."""
        stories: list[Story] = []
        problems = Problems(self.path)
        text, first, last = "", 0, 0
        for number, line in read_lines(self.path):
            if line.strip() == END:
                stories.append((first or number, text.strip()))
                text, first, last = "", 0, number
                continue
            wrong = _mark_within(line)
            if wrong:
                problems.add(number, wrong)
            # `read_lines` skips blank lines: restore them from the line numbers.
            text += "\n" * (number - last) + line if first else line
            first, last = first or number, number
        if first:
            problems.add(first, f"the last story does not end with a line {END}")
        problems.raise_if_any()
        return stories


@dataclass(frozen=True)
class DataSet(Source):
    """A split of a dataset that `datasets.load_dataset` finds by name: on its hub or in a local folder."""

    dataset: str
    split: str
    field: str

    @property
    def name(self) -> str:
        """Dataset, split and field."""
        return f"dataset {self.dataset}, split {self.split}, field {self.field}"

    def place(self, number: int) -> str:
        """Dataset, split and row."""
        return f"dataset {self.dataset}, split {self.split}, row {number}"

    def read(self) -> list[Story]:
        """One story per row, rows counted from 1."""
        try:
            import datasets
        except ImportError:
            raise ValueError(f"task.dataset needs the extra `data`: {to_install('data')}") from None
        try:
            rows = datasets.load_dataset(self.dataset, split=self.split)
        except Exception as error:  # the type depends on where the data is
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"dataset {self.dataset}, split {self.split}, cannot be loaded: {reason}") from None
        if self.field not in rows.column_names:
            raise ValueError(
                f"dataset {self.dataset} has no field {self.field!r}: set task.dataset_field to one of "
                f"{', '.join(rows.column_names)}"
            )
        stories: list[Story] = []
        for number, text in enumerate(rows[self.field], 1):
            if not isinstance(text, str):
                raise ValueError(f"{self.place(number)}: {self.field} is not text but {type(text).__name__}")
            wrong = _mark_within(text)
            if wrong:
                raise ValueError(f"{self.place(number)}: {wrong}")
            stories.append((number, text.strip()))
        return stories


def fingerprint(stories: Iterable[Story]) -> str:
    """A checksum that identifies the stories of a run."""
    digest = hashlib.sha256()
    for _, text in stories:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _mark_within(text: str) -> str | None:
    """The problem of a text that contains a special token; empty if it does not."""
    if END in text:
        return f"the token {END} inside a story: it ends one, on a line of its own"
    if SEPARATOR in text:
        return f"the token {SEPARATOR} inside a story: it is reserved for joining suffix and prefix"
    return None


@dataclass(frozen=True)
class StoriesConfig:
    """Fields of `task: stories`."""

    path: str = ""
    """A text file, plain or .gz; a line `<|endoftext|>` ends each story."""
    held_out_path: str | None = None
    """A file of held-out stories; null: a share of the stories of `path`."""
    held_out_share: float = 0.1
    """Share of the distinct stories that is held out, chosen by a hash of the story."""
    dataset: str | None = None
    """Instead of `path`: a name or a folder that the `datasets` package loads (extra `data`)."""
    dataset_split: str = "train"
    """Split of `dataset`."""
    dataset_held_out_split: str | None = None
    """Split of `dataset` that is held out; null: a share of the stories of `dataset_split`."""
    dataset_field: str = "text"
    """Field of `dataset` that holds the stories."""
    vocabulary: int = 1000
    """Size of the byte-level BPE tokenizer that is trained on the training stories, both special tokens included."""
    tokenizer: str | None = None
    """An existing tokenizer.json instead, with a token `<|endoftext|>`; `vocabulary` is then ignored."""
    context: int = 256
    """Longest sequence in tokens. Stories of more than `context` - 2 tokens are dropped under either encoding."""
    encoding: Literal["plain", "fill_in_the_middle"] = "plain"
    """`plain`: left to right. `fill_in_the_middle`: a suffix first, then the tokens before it."""
    prompt_length: int = 50
    """Tokens of the prompt where the middle of a held-out story is to be filled in."""
    goal_length: int = 100
    """Tokens of the ending of such a story."""
    data_seed: int = 0
    """Seed of the suffixes of held-out stories."""

    def __post_init__(self) -> None:
        bounded(self, "held_out_share", prefix="task.", above=0, below=1)
        bounded(self, "vocabulary", prefix="task.", at_most=2**24)
        bounded(self, "vocabulary", prefix="task.", at_least=bpe.SMALLEST, reason="the bytes and two special tokens")
        bounded(self, "context", prefix="task.", at_least=4, at_most=2**24)
        bounded(self, "prompt_length", "goal_length", prefix="task.", at_least=1)
        bounded(self, "data_seed", prefix="task.", at_least=0)
        if self.path and self.dataset is not None:
            raise ValueError("give task.path or task.dataset, not both")
        if self.held_out_path is not None and not self.path:
            raise ValueError("task.held_out_path goes with task.path; with task.dataset set dataset_held_out_split")
        if self.dataset_held_out_split is not None and self.dataset is None:
            raise ValueError("task.dataset_held_out_split goes with task.dataset")


class TokenizedStories(NamedTuple):
    """n stories as token ids, concatenated, each followed by the end-of-text token."""

    tokens: np.ndarray
    """(n + sum of lengths,) token ids of a small type: the paper's corpus fits in a gigabyte."""
    starts: np.ndarray
    """(n,) int64: offset of each story."""
    lengths: np.ndarray
    """(n,) int64, without the end-of-text token."""

    def story(self, row: int) -> np.ndarray:
        """(length,) int64 tokens of one story."""
        return self.tokens[self.starts[row] : self.starts[row] + self.lengths[row]].astype(np.int64)


EMPTY = "empty"
"""Reason for leaving out a story without text."""

COUNTS = ("training", "held_out", "too_long", "empty", "in_both")
KEPT: Shape = {"sources": {...: TEXT}, "tokenizer": TEXT, "stories": dict.fromkeys(COUNTS, COUNT)}
"""Shape of what a run keeps about its data."""


class Stories(RunningText, Infilling, Task):
    """Short stories under a tokenizer of their own."""

    Config = StoriesConfig
    end: int
    decoded = False  # with at most a suffix given, decoding is a guess, and expensive

    def __init__(self, config: StoriesConfig, kept: Kept | None = None) -> None:
        self.config = config
        self.headline = Headline("loss", higher_is_better=False)
        self.context = config.context
        self.left_to_right = config.encoding == "plain"
        self.counts: dict[str, int]
        self._splits: tuple[TokenizedStories, TokenizedStories] | None = None
        self._suffixes: dict[int, int] = {}  # by held-out story: to find one takes several tokenisations
        if kept is not None:
            facts = kept_json(kept, "stories.json", KEPT)
            content = kept_text(kept, "tokenizer.json")
            if _sum(content) != facts["tokenizer"]:
                raise ValueError("task/tokenizer.json of this run is not the tokenizer of its stories")
            self.bpe = bpe.BPE(content, "task/tokenizer.json of this run")
            self.sums, self.counts = facts["sources"], facts["stories"]
        else:
            self._read_data()
        self.vocab = Vocab(self.bpe.symbols)
        self.end, self.separator = self.bpe.end, self.bpe.marks[bpe.SEPARATOR]
        self.notes = [self._summary()]

    def files(self) -> dict[str, bytes]:
        """The tokenizer; checksums of the stories, and how many were used and dropped."""
        content = self.bpe.content
        facts = {"sources": self.sums, "tokenizer": _sum(content), "stories": self.counts}
        return {"tokenizer.json": content.encode(), "stories.json": json.dumps(facts, indent=2).encode()}

    def data_identity(self) -> dict[str, str]:
        """Checksums of the stories, independent of their paths, and of the tokenizer."""
        return {"data": joint_checksum(self.sums.values()), "tokenizer": _sum(self.bpe.content)}

    def _summary(self) -> str:
        counts = self.counts
        text = f"stories: {counts['training']:,} to train on, {counts['held_out']:,} held out"
        reasons = {
            "too_long": f"of more than {self.context - 2} tokens",
            "empty": "empty",
            "in_both": "training stories that are also held out",
        }
        dropped = [f"{counts[key]:,} {what}" for key, what in reasons.items() if counts[key]]
        return text + (f"; dropped: {', '.join(dropped)}" if dropped else "")

    # Reading

    def _sources(self) -> list[Source]:
        config = self.config
        if config.dataset is not None:
            splits = [config.dataset_split, config.dataset_held_out_split]
            return [DataSet(config.dataset, split, config.dataset_field) for split in splits if split]
        return [StoryFile(Path(path)) for path in (config.path, config.held_out_path) if path]

    def _read_data(self) -> None:
        """Reads the stories, trains or reads the tokenizer, and counts the stories that fit."""
        if not self.config.path and self.config.dataset is None:
            raise ValueError("task.path is not set: give the file of stories with --task.path FILE")
        sources = self._sources()
        read = [source.read() for source in sources]
        self.sums = {source.name: fingerprint(stories) for source, stories in zip(sources, read)}
        training, held_out, counts = self._split(read)
        if self.config.tokenizer is None:
            self.bpe = bpe.train((text for _, text in training), self.config.vocabulary)
        else:
            self.bpe = bpe.BPE(read_text(Path(self.config.tokenizer)), self.config.tokenizer)
            self._check_lossless([(sources[0], training), (sources[-1], held_out)])
        train, test = (len(stories.lengths) for stories in self._tokenize_splits(training, held_out))
        too_long = len(training) + len(held_out) - train - test
        self.counts = {"training": train, "held_out": test, "too_long": too_long, **counts}

    def _check_lossless(self, parts: Sequence[tuple[Source, list[Story]]]) -> None:
        """Raises `ValueError` if the given tokenizer changes a story."""
        for source, stories in parts:
            changed = self.bpe.first_changed([text for _, text in stories])
            if changed is not None:
                raise ValueError(
                    f"{self.config.tokenizer}: this tokenizer does not reproduce the story at "
                    f"{source.place(stories[changed][0])} exactly: choose a byte-level one that adds no leading space"
                )

    def _split(self, read: list[list[Story]]) -> tuple[list[Story], list[Story], dict[str, int]]:
        """Training and held-out stories without empty ones, and how many were dropped for which reason."""
        full = [[story for story in stories if story[1]] for stories in read]
        empty = sum(map(len, read)) - sum(map(len, full))
        if len(full) == 2:
            chosen = {text for _, text in full[1]}
            training = [story for story in full[0] if story[1] not in chosen]
            if not training or not full[1]:
                raise ValueError(f"{' and '.join(self.sums)}: no story is left to train on, or none to hold out")
            return training, full[1], {"empty": empty, "in_both": len(full[0]) - len(training)}
        different = sorted({text for _, text in full[0]}, key=_rank)
        if len(different) < 2:
            raise ValueError(
                f"{next(iter(self.sums))}: at least two different stories are needed, to train on one and hold out "
                "another"
            )
        count = max(1, round(self.config.held_out_share * len(different)))
        chosen = set(different[: min(count, len(different) - 1)])
        training = [story for story in full[0] if story[1] not in chosen]
        held_out = [story for story in full[0] if story[1] in chosen]
        return training, held_out, {"empty": empty, "in_both": 0}

    def _tokenize(self, stories: list[Story], what: str) -> TokenizedStories:
        """The stories that fit the context. Raises `ValueError` if none does."""
        return self._tokenize_counted(stories, what)[0]

    def _tokenize_counted(self, stories: list[Story], what: str) -> tuple[TokenizedStories, list[int]]:
        """The stories that fit the context, and the lengths in tokens of all. Raises `ValueError` if none fits."""
        rows = self.bpe.encode_all([text for _, text in stories])
        fitting = [row for row in rows if len(row) <= self.context - 2]
        if not fitting:
            shortest = f": the shortest has {min(map(len, rows))} tokens and needs two more" if rows else ""
            raise ValueError(f"no {what} fits task.context {self.context}{shortest}")
        lengths = np.array([len(row) for row in fitting], np.int64)
        end = np.array([self.bpe.end], fitting[0].dtype)
        tokens = np.concatenate([part for row in fitting for part in (row, end)])
        tokenized = TokenizedStories(tokens, np.cumsum(lengths + 1) - lengths - 1, lengths)
        return tokenized, [len(row) for row in rows]

    def _tokenize_splits(
        self, training: list[Story], held_out: list[Story]
    ) -> tuple[TokenizedStories, TokenizedStories]:
        self._splits = self._tokenize(training, "training story"), self._tokenize(held_out, "held-out story")
        return self._splits

    def _stories(self) -> tuple[TokenizedStories, TokenizedStories]:
        """Training and held-out stories. Raises `ValueError` if the data is missing or has changed."""
        if self._splits is not None:
            return self._splits
        read = []
        for source, (name, before) in zip(self._known_sources(), self.sums.items()):
            stories = source.read()
            if fingerprint(stories) != before:
                raise ValueError(f"{name}: the data has changed since the run began")
            read.append(stories)
        return self._tokenize_splits(*self._split(read)[:2])

    def _known_sources(self) -> list[Source]:
        """The result of `_sources`, with the file paths recorded when the run began."""
        if self.config.dataset is not None:
            return self._sources()
        for name in self.sums:
            if not Path(name).exists():
                raise ValueError(f"{name}: the data of this run no longer exists")
        return [StoryFile(Path(name)) for name in self.sums]

    # Examples

    def training(self) -> Ragged | None:
        """All training stories; None for `fill_in_the_middle`, which draws a new suffix each time."""
        if self.config.encoding == "fill_in_the_middle":
            return None
        return _plain(self._stories()[0])

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training stories; for `fill_in_the_middle` with suffixes of a length drawn uniformly from 0 to all but one
        token. All pairs of prefix and suffix with a token between them are then equally likely, as in the loss of the
        Belief State Transformer."""
        if self.config.encoding == "plain":
            return super().sample(rng, n)
        stories = self._stories()[0]
        rows = rng.integers(len(stories.lengths), size=n)
        return self._suffix_first(stories, rows, rng.integers(stories.lengths[rows]))

    def held_out(self, n: int | None = None) -> Examples:
        """The first n held-out stories, or all; for `fill_in_the_middle` each with a fixed suffix of random length."""
        return self._fixed(self._stories()[1], n, self._suffixes)

    def read(self, path: Path) -> Examples:
        """Stories of a file. Those that do not fit the context are dropped, and `notes` say how many."""
        numbered = self.read_numbered(path)
        dropped = sum(one.why != EMPTY for one in numbered.left_out)
        if dropped:
            note = f"{path}: dropped: {dropped:,} of more than {self.context - 2} tokens"
            self.notes = [*self.notes, note]
        return numbered.examples

    @override
    def read_numbered(self, path: Path) -> Numbered:
        stories, most = StoryFile(path).read(), self.context - 2
        full = [place for place, (_, text) in enumerate(stories) if text]
        tokenized, sizes = self._tokenize_counted([stories[place] for place in full], f"story of {path}")
        kept = [place for place, size in zip(full, sizes) if size <= most]
        too_long = {place: f"{size} tokens, more than {most}" for place, size in zip(full, sizes) if size > most}
        left_out = [
            LeftOut(place, line, too_long.get(place, EMPTY))
            for place, (line, text) in enumerate(stories)
            if not text or place in too_long
        ]
        return Numbered(self._fixed(tokenized, None, {}), np.array(kept, np.int64), left_out)

    def goals(self, n: int | None = None) -> list[Infill]:
        """The first n held-out stories that are long enough, split into prompt, middle (at least one token) and goal:
        the paper's protocol, with the lengths of the recipe. Raises `ValueError` if none is long enough."""
        config, stories = self.config, self._stories()[1]
        shortest = config.prompt_length + config.goal_length + 1
        rows = np.flatnonzero(stories.lengths >= shortest)[:n]
        if not len(rows):
            raise ValueError(
                f"no held-out story has the {shortest} tokens that a prompt of {config.prompt_length} and a goal of "
                f"{config.goal_length} need: set task.prompt_length or task.goal_length lower"
            )
        cuts = [config.prompt_length, -config.goal_length]
        return [Infill(*np.split(stories.story(row), cuts)) for row in rows]

    @override
    def with_goal(self, prompt: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """`plain`: the end-of-text token closes the goal, as it did every suffix in training. `fill_in_the_middle`:
        goal, separator, prompt, and no goal for the decoder. A prompt that contains the separator is returned
        unchanged. Raises `ValueError` if a goal is also given."""
        if self.separator in prompt:
            if len(goal):
                raise ValueError(f"the prompt contains {bpe.SEPARATOR}, so it has a goal: give one or the other")
            return prompt, None
        if self.config.encoding == "plain":
            return super().with_goal(prompt, goal)
        return np.concatenate([goal, [self.separator], prompt]).astype(np.int64), None

    def _fixed(self, stories: TokenizedStories, n: int | None, suffixes: dict[int, int]) -> Examples:
        """The first n stories, with the same suffixes at every call. `suffixes`: lengths by story, as far as they are
        known; those of other stories are added."""
        count = len(stories.lengths) if n is None else min(n, len(stories.lengths))
        if self.config.encoding == "plain":
            return _plain(stories)[:count]
        suffixes |= {row: self._suffix_length(stories.story(row), row) for row in range(count) if row not in suffixes}
        lengths = np.array([suffixes[row] for row in range(count)], np.int64)
        return self._suffix_first(stories, np.arange(count), lengths)

    def _suffix_length(self, story: np.ndarray, row: int) -> int:
        """Length of the suffix of a held-out story: random, among the cuts after which both parts encode to the same
        tokens again, so that reports show exactly what the model read."""
        rng = np.random.default_rng([self.config.data_seed, row])
        for suffix in rng.permutation(len(story)).tolist():
            cut = len(story) - suffix
            if self.bpe.is_canonical(story[:cut]) and self.bpe.is_canonical(story[cut:]):
                return int(suffix)
        raise AssertionError("a whole story is always canonical")

    def _suffix_first(self, stories: TokenizedStories, rows: np.ndarray, suffixes: np.ndarray) -> Examples:
        """Suffix, separator, the tokens before the suffix, end of text; `suffixes` (n,): lengths of the suffixes."""
        starts, lengths, suffix = stories.starts[rows, None], stories.lengths[rows, None], suffixes[:, None]
        column = np.arange(int(lengths.max()) + 2)
        inside = (column <= lengths) & (column != suffix)
        position = np.where(column < suffix, lengths - suffix + column, column - suffix - 1)
        tokens = np.where(inside, stories.tokens[np.where(inside, starts + position, 0)], 0).astype(np.int64)
        tokens[column == suffix] = self.separator
        tokens[column == lengths + 1] = self.end
        return Examples(tokens, lengths[:, 0] + 2, suffixes + 1)


def _plain(stories: TokenizedStories) -> Ragged:
    """The stories with their end-of-text tokens."""
    return Ragged(stories.tokens, stories.lengths + 1, np.zeros(len(stories.lengths), np.int64))


def _rank(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _sum(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
