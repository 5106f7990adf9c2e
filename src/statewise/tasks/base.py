"""What a task is: it makes or reads sequences and says how good an answer is. No torch in here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from statewise.tasks.bpe import BPE
from statewise.tasks.lines import Problems, read_lines
from statewise.tasks.vocab import Vocab
from statewise.types import Completion, Examples, Headline, Rows


class Task(ABC):
    """Built as `cls(config, kept)`; `kept` holds the files that `files()` gave when the run was made."""

    Config: ClassVar[type]
    """Dataclass of its recipe fields."""

    headline: Headline
    vocab: Vocab
    context: int
    """Tokens of its longest sequence."""
    end: int | None = None
    """Token that ends an answer, if answers differ in length."""
    chance: Mapping[str, float] = {}
    """What guessing reaches, by metric, where that is known."""
    decoded: bool = True
    """Whether an evaluation decodes an answer to every prompt; False: prompts only say what is not scored."""
    other_held_out: Mapping[str, Sequence[str]] = {}
    """Further held-out sets, by option and value of `statewise evaluate`: {"targets": ["held-out"]} is `--targets
    held-out`. Said by the class, so that the command knows its options without a run."""
    notes: Sequence[str] = ()
    """What a person should know of the data, such as what of it was left out; a line each."""

    def files(self) -> dict[str, bytes]:
        """What must stay with a run so that the task can be built again without its data, by file name."""
        return {}

    @abstractmethod
    def training(self) -> Rows | None:
        """All training examples, or None if they are drawn afresh without end by `sample`."""

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training examples drawn with `rng`."""
        examples = self.training()
        assert examples is not None, "a task without a training set must define sample"
        return examples[rng.integers(len(examples), size=n)]

    @abstractmethod
    def held_out(self, n: int | None = None) -> Examples:
        """The same held-out examples at every call, at most n; disjoint from all training examples."""

    def held_out_by(self, option: str, value: str, n: int | None = None) -> Examples:
        """As `held_out`, of a set of `other_held_out`. Raises `ValueError` naming what there is."""
        others = [f"--{name} {item}" for name, items in self.other_held_out.items() for item in items]
        there = f"the others are {', '.join(others)}" if others else "it has no other than the usual one"
        raise ValueError(f"the task of this run has no held-out set --{option} {value}: {there}")

    @abstractmethod
    def read(self, path: Path) -> Examples:
        """Examples of a file in the task's own format. Raises `ValueError` as `FILE:LINE: what is wrong`."""

    def read_prompts(self, path: Path) -> Examples:
        """Sequences that are all prompt, one a line, each as `encode` takes it. Raises `ValueError` as `read` does."""
        rows = []
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
        """(m,) token ids of a prompt as a person writes it. Raises `ValueError` naming what is not understood."""

    @abstractmethod
    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Text of token ids; `encode` takes it back."""

    def towards(self, prompt: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """How a model of this task is asked to go on from `prompt` (t,) such that `goal` (g,), g >= 0, follows.

        Returns what it reads first, and the goal for a decoder; None: there is none, or the first holds it already.
        A goal is the last part of a sequence, so where answers end by a token, it does.
        """
        if self.end is not None and len(goal) and goal[-1] != self.end:
            goal = np.append(goal, self.end)
        return prompt, goal if len(goal) else None

    @abstractmethod
    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """Metrics of one completion for each example, in [0, 1] where 1 is perfect."""

    def score_positions(self, examples: Examples, chosen: np.ndarray) -> dict[str, float]:
        """Metrics of teacher-forced predictions; `chosen` (n, T) int64: the model's first choice at each position, -1
        where the token is not scored."""
        return {}

    def units(self, examples: Examples) -> Mapping[str, int]:
        """What the scored tokens stand for, such as words and bytes: how many by name, so that the losses of models
        with different tokens can be compared. Empty: the tokens are the unit."""
        return {}

    def sample_of(self, examples: Examples, row: int, completion: Completion) -> dict[str, Any]:
        """One example and its completion as plain data, for reports. A task may add what a drawing needs."""
        return {
            "prompt": self.decode(examples.prompt(row)),
            "truth": self.decode(examples.answer(row)),
            "predicted": self.decode(completion.tokens),
        }


Kept = Mapping[str, bytes]
"""Files of a task that stay with its run."""


class Infill(NamedTuple):
    """A held-out sequence in three parts, as token ids."""

    prompt: np.ndarray
    middle: np.ndarray
    goal: np.ndarray


class Infilling(ABC):
    """A task whose sequences can be given without their middle."""

    @abstractmethod
    def goals(self, n: int | None = None) -> list[Infill]:
        """The first n held-out sequences that are long enough, cut in three. Raises `ValueError` if none is."""


class RunningText(ABC):
    """A task of text under a tokenizer: its models can be asked how likely any text is."""

    bpe: BPE
    """The tokenizer."""
    onwards: bool = True
    """Whether its models tell a text from the beginning on; False: they read another part of it first."""


def running_text(task: Task) -> RunningText:
    """The task, if it is one of text whose models tell it onwards. Raises `ValueError` if not."""
    if not isinstance(task, RunningText):
        raise ValueError(
            "the model of this run knows no text under a tokenizer, so no text has a likelihood: the tasks text and "
            "stories make models that do"
        )
    if not task.onwards:
        raise ValueError(
            "the model of this run reads the end of a text first, so a text has no likelihood from its beginning on: "
            "train stories with --task.encoding plain for that"
        )
    return task


class WholeTexts(ABC):
    """A task whose held-out documents may be longer than its sequences."""

    @abstractmethod
    def held_out_texts(self) -> Iterator[np.ndarray]:
        """(t,) tokens of each held-out document from beginning to end, in order."""


class World(ABC):
    """A task whose true state is known."""

    @abstractmethod
    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T) int64: the true state after each position, -1 where it is not defined."""

    @abstractmethod
    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """(m,) token ids that may follow `prefix` (t,)."""
