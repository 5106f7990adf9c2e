"""Stories, to be told onwards or towards a known ending (Belief State Transformer, section 5 and appendix D).

Encoded `plain`, a story is its tokens and the end-of-text mark, scored from the second token on. Encoded
`fill_in_the_middle` (the paper's baseline), its suffix comes first, then a separator, then what leads to
the suffix, then the mark as the sign that it does; scored from behind the separator.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from statewise.tasks import bpe
from statewise.tasks.base import Infill, Infilling, Kept, RunningText, Task
from statewise.tasks.story_sources import DataSet, Source, Story, StoryFile, fingerprint
from statewise.tasks.vocab import Vocab
from statewise.types import Completion, Examples, Headline


@dataclass(frozen=True)
class StoriesConfig:
    """Fields of `task: stories`."""

    path: str = ""
    """A text file, plain or .gz; a line `<|endoftext|>` closes each story."""
    held_out_path: str | None = None
    """A file of held-out stories; null: a share of the stories of `path`."""
    held_out_share: float = 0.1
    """Share of the different stories that is held out, chosen by a hash of the story."""
    dataset: str | None = None
    """In place of `path`: a name or a folder that the `datasets` package loads (extra `data`)."""
    dataset_split: str = "train"
    """Split of `dataset`."""
    dataset_held_out_split: str | None = None
    """Split of `dataset` that is held out; null: a share of the stories of `dataset_split`."""
    dataset_field: str = "text"
    """Field of `dataset` that holds the stories."""
    vocabulary: int = 1000
    """Tokens of the byte-level BPE tokenizer that is trained on the training stories, both marks included."""
    tokenizer: str | None = None
    """An existing tokenizer.json in its place (`vocabulary` is then its own); needs the token `<|endoftext|>`."""
    context: int = 256
    """Longest sequence in tokens. Stories of more than `context` - 2 are dropped, whatever the encoding needs."""
    encoding: Literal["plain", "fill_in_the_middle"] = "plain"
    """A story as it is, or its suffix first and then what leads to it."""
    prompt_length: int = 50
    """Tokens of the prompt where a held-out story is to be told towards its ending."""
    goal_length: int = 100
    """Tokens of that ending."""
    data_seed: int = 0
    """Decides where the suffixes of held-out stories begin."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out_share < 1:
            raise ValueError(f"task.held_out_share must lie between 0 and 1, not {self.held_out_share}")
        if self.vocabulary < bpe.SMALLEST:
            raise ValueError(
                f"task.vocabulary must be at least {bpe.SMALLEST}, the bytes and two marks, not {self.vocabulary}"
            )
        if self.context < 4:
            raise ValueError(f"task.context must be at least 4, not {self.context}")
        if self.prompt_length < 1 or self.goal_length < 1:
            raise ValueError("task.prompt_length and task.goal_length must be at least 1")
        if self.path and self.dataset is not None:
            raise ValueError("give task.path or task.dataset, not both")
        if self.held_out_path is not None and not self.path:
            raise ValueError("task.held_out_path goes with task.path; with task.dataset set dataset_held_out_split")
        if self.dataset_held_out_split is not None and self.dataset is None:
            raise ValueError("task.dataset_held_out_split goes with task.dataset")


class Shelf(NamedTuple):
    """Many stories, one behind the other."""

    tokens: np.ndarray
    """(sum of lengths,) token ids of a small type: the paper's corpus fits in a gigabyte."""
    starts: np.ndarray
    """(n,) int64: where each story begins."""
    lengths: np.ndarray
    """(n,) int64."""

    def story(self, row: int) -> np.ndarray:
        """(length,) int64 tokens of one story."""
        return self.tokens[self.starts[row] : self.starts[row] + self.lengths[row]].astype(np.int64)


class Stories(Task, Infilling, RunningText):
    """Short stories under a tokenizer of their own."""

    Config = StoriesConfig
    end: int
    decoded = False  # of a story only the suffix is given: whoever decodes the rest guesses, and costs much

    def __init__(self, config: StoriesConfig, kept: Kept | None = None) -> None:
        self.config = config
        self.headline = Headline("loss", higher_is_better=False)
        self.context = config.context
        self.onwards = config.encoding == "plain"
        self.counts: dict[str, int]
        self._shelves: tuple[Shelf, Shelf] | None = None
        self._training: Examples | None = None
        if kept:
            facts = json.loads(kept["stories.json"])
            if _sum(kept["tokenizer.json"].decode()) != facts["tokenizer"]:
                raise ValueError("tokenizer.json of this run is not the one that its stories were encoded with")
            self.bpe = bpe.BPE(kept["tokenizer.json"].decode(), "tokenizer.json of this run")
            self.sums, self.counts = facts["sources"], facts["stories"]
        else:
            self._take_in()
        self.vocab = Vocab(self.bpe.symbols)
        self.end, self.separator = self.bpe.end, self.bpe.marks[bpe.SEPARATOR]
        self.notes = [self._summary()]

    def files(self) -> dict[str, bytes]:
        """The tokenizer; checksums of the stories and how many there are, dropped ones too."""
        content = self.bpe.content
        facts = {"sources": self.sums, "tokenizer": _sum(content), "stories": self.counts}
        return {"tokenizer.json": content.encode(), "stories.json": json.dumps(facts, indent=2).encode()}

    def _summary(self) -> str:
        counts = self.counts
        text = f"stories: {counts['training']:,} to train on, {counts['held_out']:,} held out"
        reasons = {
            "too_long": f"of more than {self.context - 2} tokens",
            "empty": "empty",
            "in_both": "to train on that are held out too",
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

    def _take_in(self) -> None:
        """Reads the stories, learns or reads the tokenizer, and counts what fits."""
        if not self.config.path and self.config.dataset is None:
            raise ValueError("task.path is not set: give the file of stories with --task.path FILE")
        sources = self._sources()
        read = [source.read() for source in sources]
        self.sums = {source.name: fingerprint(stories) for source, stories in zip(sources, read)}
        training, held_out, counts = self._split(read)
        if self.config.tokenizer is None:
            self.bpe = bpe.train((text for _, text in training), self.config.vocabulary)
        else:
            self.bpe = self._given_tokenizer(Path(self.config.tokenizer))
            self._check_lossless([(sources[0], training), (sources[-1], held_out)])
        train, apart = (len(shelf.lengths) for shelf in self._fill_shelves(training, held_out))
        too_long = len(training) + len(held_out) - train - apart
        self.counts = {"training": train, "held_out": apart, "too_long": too_long, **counts}

    def _given_tokenizer(self, path: Path) -> bpe.BPE:
        try:
            return bpe.BPE(path.read_text(encoding="utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 text ({error.reason})") from None

    def _check_lossless(self, parts: Sequence[tuple[Source, list[Story]]]) -> None:
        """Raises `ValueError` if the tokenizer that was given changes a story."""
        for source, stories in parts:
            changed = self.bpe.first_changed([text for _, text in stories])
            if changed is not None:
                raise ValueError(
                    f"{self.config.tokenizer}: this tokenizer does not give the story at "
                    f"{source.place(stories[changed][0])} back as it was; a byte-level one that puts no space in front "
                    "would"
                )

    def _split(self, read: list[list[Story]]) -> tuple[list[Story], list[Story], dict[str, int]]:
        """Stories to train on and held out, without the empty ones, and how many were left out for which reason."""
        full = [[story for story in stories if story[1]] for stories in read]
        empty = sum(map(len, read)) - sum(map(len, full))
        if len(full) == 2:
            apart = {text for _, text in full[1]}
            training = [story for story in full[0] if story[1] not in apart]
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
        apart = set(different[: min(count, len(different) - 1)])
        training = [story for story in full[0] if story[1] not in apart]
        held_out = [story for story in full[0] if story[1] in apart]
        return training, held_out, {"empty": empty, "in_both": 0}

    def _shelve(self, stories: list[Story], what: str) -> Shelf:
        """The stories that fit the context. Raises `ValueError` if none does."""
        rows = self.bpe.encode_all([text for _, text in stories])
        fitting = [row for row in rows if len(row) <= self.context - 2]
        if not fitting:
            shortest = f": the shortest has {min(map(len, rows))} tokens and needs two more" if rows else ""
            raise ValueError(f"no {what} fits task.context {self.context}{shortest}")
        lengths = np.array([len(row) for row in fitting], np.int64)
        return Shelf(np.concatenate(fitting), np.cumsum(lengths) - lengths, lengths)

    def _fill_shelves(self, training: list[Story], held_out: list[Story]) -> tuple[Shelf, Shelf]:
        self._shelves = self._shelve(training, "story to train on"), self._shelve(held_out, "held-out story")
        return self._shelves

    def _stories(self) -> tuple[Shelf, Shelf]:
        """Training and held-out stories. Raises `ValueError` if the data is gone or has changed."""
        if self._shelves is not None:
            return self._shelves
        read = []
        for source, (name, before) in zip(self._known_sources(), self.sums.items()):
            stories = source.read()
            if fingerprint(stories) != before:
                raise ValueError(f"{name}: the data has changed since the run began")
            read.append(stories)
        return self._fill_shelves(*self._split(read)[:2])

    def _known_sources(self) -> list[Source]:
        """As `_sources`, files where they were when the run began."""
        if self.config.dataset is not None:
            return self._sources()
        for name in self.sums:
            if not Path(name).exists():
                raise ValueError(f"{name}: the data of this run is not there any more")
        return [StoryFile(Path(name)) for name in self.sums]

    # Examples

    def training(self) -> Examples | None:
        """All training stories; None for `fill_in_the_middle`, whose suffixes are drawn afresh each time."""
        if self.config.encoding == "fill_in_the_middle":
            return None
        if self._training is None:
            self._training = self._plain(self._stories()[0])
        return self._training

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training stories; for `fill_in_the_middle` with suffixes of a length drawn uniformly from 0 to all but one
        token. Each pair of prefix and suffix with a token between them is then as likely as any other, as in the
        loss of the Belief State Transformer."""
        if self.config.encoding == "plain":
            return super().sample(rng, n)
        shelf = self._stories()[0]
        rows = rng.integers(len(shelf.lengths), size=n)
        return self._suffix_first(shelf, rows, rng.integers(shelf.lengths[rows]))

    def held_out(self, n: int | None = None) -> Examples:
        """The held-out stories, or the first n of them; for `fill_in_the_middle` with one suffix each, always the
        same and of a random length."""
        return self._fixed(self._stories()[1], n)

    def read(self, path: Path) -> Examples:
        """Stories of a file. Those that do not fit the context are dropped, and `notes` say how many."""
        stories = [story for story in StoryFile(path).read() if story[1]]
        shelf = self._shelve(stories, f"story of {path}")
        dropped = len(stories) - len(shelf.lengths)
        if dropped:
            note = f"{path}: dropped: {dropped:,} of more than {self.context - 2} tokens"
            self.notes = [*self.notes, note]
        return self._fixed(shelf, None)

    def goals(self, n: int | None = None) -> list[Infill]:
        """The first n held-out stories that are long enough, cut into prompt, middle (a token or more) and goal: the
        paper's protocol, with the lengths of the recipe. Raises `ValueError` if none is long enough."""
        config, shelf = self.config, self._stories()[1]
        shortest = config.prompt_length + config.goal_length + 1
        rows = np.flatnonzero(shelf.lengths >= shortest)[:n]
        if not len(rows):
            raise ValueError(
                f"no held-out story has the {shortest} tokens that a prompt of {config.prompt_length} and a goal of "
                f"{config.goal_length} need: set task.prompt_length or task.goal_length lower"
            )
        cuts = [config.prompt_length, -config.goal_length]
        return [Infill(*np.split(shelf.story(row), cuts)) for row in rows]

    def towards(self, prompt: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """See `Task.towards`. `plain`: the goal is closed by the end-of-text mark, as every suffix was in training;
        `fill_in_the_middle`: goal, separator, prompt, which leaves nothing to head for. Such a prompt with its
        separator in it is left as it is. Raises `ValueError` if it holds one and a goal is given beside it."""
        if self.separator in prompt:
            if len(goal):
                raise ValueError(f"the prompt holds {bpe.SEPARATOR}, so it has a goal already: give one or the other")
            return prompt, None
        if self.config.encoding == "plain":
            return super().towards(prompt, goal)
        return np.concatenate([goal, [self.separator], prompt]).astype(np.int64), None

    def _fixed(self, shelf: Shelf, n: int | None) -> Examples:
        """The first n stories, cut at the same places at every call."""
        count = len(shelf.lengths) if n is None else min(n, len(shelf.lengths))
        if self.config.encoding == "plain":
            return self._plain(Shelf(shelf.tokens, shelf.starts[:count], shelf.lengths[:count]))
        suffixes = np.array([self._cut(shelf.story(row), row) for row in range(count)], np.int64)
        return self._suffix_first(shelf, np.arange(count), suffixes)

    def _cut(self, story: np.ndarray, row: int) -> int:
        """Length of the suffix of one held-out story: random, among the cuts after which the text of both parts is
        encoded to the same tokens again, so that what a report shows is what the model read."""
        rng = np.random.default_rng([self.config.data_seed, row])
        for suffix in rng.permutation(len(story)).tolist():
            cut = len(story) - suffix
            if self.bpe.gives_back(story[:cut]) and self.bpe.gives_back(story[cut:]):
                return int(suffix)
        raise AssertionError("a whole story is always given back")

    def _plain(self, shelf: Shelf) -> Examples:
        n = len(shelf.lengths)
        tokens = np.zeros((n, int(shelf.lengths.max()) + 1), np.int64)
        for first in range(0, n, bpe.BLOCK):  # in blocks, since the places of a large corpus are as large as itself
            block = slice(first, first + bpe.BLOCK)
            starts, lengths = shelf.starts[block, None], shelf.lengths[block, None]
            column = np.arange(tokens.shape[1])
            inside = column < lengths
            tokens[block] = np.where(inside, shelf.tokens[np.where(inside, starts + column, 0)], 0)
            tokens[block][column == lengths] = self.end
        return Examples(tokens, shelf.lengths + 1, np.zeros(n, np.int64))

    def _suffix_first(self, shelf: Shelf, rows: np.ndarray, suffixes: np.ndarray) -> Examples:
        """Suffix, separator, what comes before the suffix, end mark; `suffixes` (n,) are the suffixes' lengths."""
        starts, lengths, suffix = shelf.starts[rows, None], shelf.lengths[rows, None], suffixes[:, None]
        column = np.arange(int(lengths.max()) + 2)
        inside = (column <= lengths) & (column != suffix)
        place = np.where(column < suffix, lengths - suffix + column, column - suffix - 1)
        tokens = np.where(inside, shelf.tokens[np.where(inside, starts + place, 0)], 0).astype(np.int64)
        tokens[column == suffix] = self.separator
        tokens[column == lengths + 1] = self.end
        return Examples(tokens, lengths[:, 0] + 2, suffixes + 1)

    # Text

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a text; `<|separator|>` and `<|endoftext|>` in it are the marks."""
        tokens = self.bpe.encode(text)
        if self.bpe.decode(tokens) != text:
            raise ValueError(f"the tokenizer of this run does not know every character of {text[:60]!r}")
        return tokens

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text; `encode` takes it back, save where it was cut inside a word (see `BPE.gives_back`)."""
        return self.bpe.decode(tokens)

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`exact_match`: the story's own continuation and nothing else, end mark included."""
        right = [np.array_equal(completion.tokens, examples.answer(row)) for row, completion in enumerate(completions)]
        return {"exact_match": float(np.mean(right))}


def _rank(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _sum(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
