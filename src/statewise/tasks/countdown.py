"""Countdown (Gandhi et al. 2024): make a target of given numbers by + - * /, using each number once.

As text a problem and a solution are `14,83,88,91,23|83-14=69,91-88=3,69/3=23`: inputs and target, then one equation
fewer than there are inputs. Every integer is one token, as in the next-latent prediction paper (Teoh et al. 2026,
appendix D), and the bar stands for several pause tokens, in which a model may plan. A problem has many solutions; an
answer is right if it is any of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statewise.tasks.arithmetic import OPERATORS, Solved, draw, holds, moves, pools
from statewise.tasks.base import Kept, Task, World
from statewise.tasks.hashing import hash_rows
from statewise.tasks.lines import Problems, read_lines
from statewise.tasks.vocab import Vocab
from statewise.types import Completion, Examples, Headline

HELD_OUT_SHARE = 16
"""One problem in so many is held out: which, its hash decides, so that no stream of fresh problems meets it."""
DRAWN_AT_ONCE = 2**17
"""Problems drawn in one go at most: enough that loops cost nothing, few enough for little memory."""
FRUITLESS = 50
"""Draws in a row without one problem that is still wanted, after which there is none."""
EQUATION = r"[0-9]+[-+*/][0-9]+=[0-9]+"
LINE = rf"[0-9]+(,[0-9]+)+\|{EQUATION}(,{EQUATION})*"


@dataclass(frozen=True)
class CountdownConfig:
    """Fields of `task: countdown`."""

    numbers: int = 4
    """Inputs of a problem; a solution has one equation fewer."""
    largest_input: int = 99
    """Inputs are drawn from 1 to this."""
    lowest_target: int = 10
    """Smallest target."""
    highest_target: int = 100
    """Largest target."""
    largest: int = 10_000
    """Largest integer that has a token; no result on the way may be above it."""
    pauses: int = 8
    """Pause tokens between problem and solution, at least one."""
    training_problems: int | None = 500_000
    """Size of a fixed training set; null: fresh problems without end."""
    held_out_problems: int = 10_000
    """Size of each fixed test set."""
    held_out_targets: float = 0.1
    """Share of the targets that training never has; `statewise evaluate RUN --targets held-out` asks for them."""
    data_seed: int = 0
    """Seed of the fixed sets, and of which targets are held out."""

    def __post_init__(self) -> None:
        if self.numbers < 2:
            raise ValueError(f"task.numbers must be at least 2, not {self.numbers}: an equation takes two")
        if not 1 <= self.largest_input <= self.largest:
            raise ValueError(f"task.largest_input must lie between 1 and task.largest, which is {self.largest}")
        if not 0 <= self.lowest_target <= self.highest_target <= self.largest:
            raise ValueError(
                f"targets from {self.lowest_target} to {self.highest_target} cannot be: task.lowest_target must not be "
                f"above task.highest_target, nor this above task.largest, which is {self.largest}"
            )
        if self.pauses < 1:
            raise ValueError("task.pauses must be at least 1: the bar itself is one")
        if (self.training_problems is not None and self.training_problems < 1) or self.held_out_problems < 1:
            raise ValueError("task.training_problems and task.held_out_problems must be at least 1")
        if not 0 <= self.held_out_targets < 1:
            raise ValueError(f"task.held_out_targets must be a share from 0 to below 1, not {self.held_out_targets}")
        if self.number_of_held_out_targets == self.highest_target + 1 - self.lowest_target:
            raise ValueError("task.held_out_targets leaves no target to train on: set it lower or the range wider")

    @property
    def number_of_held_out_targets(self) -> int:
        """How many values the share makes; of any share above 0 at least one."""
        share = self.held_out_targets * (self.highest_target + 1 - self.lowest_target)
        return max(1, round(share)) if share else 0

    @property
    def prompt_length(self) -> int:
        """Tokens of inputs and target with commas between them, and the pauses."""
        return 2 * self.numbers + 1 + self.pauses

    @property
    def answer_length(self) -> int:
        """Tokens of the equations with commas between them."""
        return 6 * (self.numbers - 1) - 1


class Countdown(Task, World):
    """Problems with random solutions (see `arithmetic.draw`), of which every target has equally many on average.

    The order of the inputs is that in which they were drawn, and tells nothing. All sequences are equally long, so an
    answer needs no end token.
    """

    Config = CountdownConfig
    other_held_out: Mapping[str, Sequence[str]] = {"targets": ("held-out",)}

    def __init__(self, config: CountdownConfig, kept: Kept | None = None) -> None:
        self.config = config
        self.plus = config.largest + 1  # the first token that is no number
        self.vocab = Vocab([*map(str, range(self.plus)), *OPERATORS, "=", ",", "|"])
        self.equals, self.comma, self.bar = (self.vocab.ids[symbol] for symbol in "=,|")
        self.context = config.prompt_length + config.answer_length
        self.headline = Headline("accuracy", higher_is_better=True, solved_at=0.99)
        every = np.arange(config.lowest_target, config.highest_target + 1)
        order = np.random.default_rng([config.data_seed, 3]).permutation(every)
        self.unseen_targets = np.sort(order[: config.number_of_held_out_targets])
        self.targets = np.sort(order[config.number_of_held_out_targets :])
        if len(self.unseen_targets):
            values = ", ".join(map(str, self.unseen_targets))
            self.notes = [f"countdown: training never has the targets {values}"]
        self._training: Examples | None = None
        self._held_out: dict[str, Examples] = {}

    # Drawing problems

    def training(self) -> Examples | None:
        """The fixed training set, if the recipe has one."""
        if self._training is None and self.config.training_problems is not None:
            rng = np.random.default_rng([self.config.data_seed, 1])
            self._training = self._draw(rng, self.config.training_problems, self.targets, held_out=False)
        return self._training

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training problems, fresh ones or of the fixed set; none of them is ever held out."""
        if self.config.training_problems is not None:
            return super().sample(rng, n)
        return self._draw(rng, n, self.targets, held_out=False)

    def held_out(self, n: int | None = None) -> Examples:
        """The fixed test set, or its first n problems: inputs that training does not have with their target, and
        targets that it has. Where there are few such problems, some come more than once."""
        if "problems" not in self._held_out:
            rng = np.random.default_rng([self.config.data_seed, 2])
            size = self.config.held_out_problems
            self._held_out["problems"] = self._draw(rng, size, self.targets, held_out=True)
        return self._held_out["problems"][:n]

    def held_out_by(self, option: str, value: str, n: int | None = None) -> Examples:
        """`targets`, `held-out`: problems whose targets training never has."""
        if (option, value) != ("targets", "held-out"):
            return super().held_out_by(option, value, n)
        if not len(self.unseen_targets):
            raise ValueError("this run held no targets out: its task.held_out_targets is 0")
        if "targets" not in self._held_out:
            rng = np.random.default_rng([self.config.data_seed, 4])
            size = self.config.held_out_problems
            self._held_out["targets"] = self._draw(rng, size, self.unseen_targets, held_out=None)
        return self._held_out["targets"][:n]

    def _draw(self, rng: np.random.Generator, n: int, targets: np.ndarray, *, held_out: bool | None) -> Examples:
        """n problems whose targets are uniform over `targets`; of those that are held out by their hash, of the
        others, or of all.

        How many each target shall have is drawn first. Then problems are drawn, and kept while their targets want some.
        """
        config = self.config
        wanted = np.bincount(rng.choice(targets, n), minlength=self.plus)
        parts, fruitless = [], 0
        share = HELD_OUT_SHARE if held_out else 1
        while missing := int(wanted.sum()):
            drawn = draw(
                rng,
                min(max(4 * missing, 2**12) * share, DRAWN_AT_ONCE),
                config.numbers,
                largest_input=config.largest_input,
                largest=config.largest,
                targets=targets,
            )
            if held_out is not None:
                drawn = drawn.chosen(_is_held_out(drawn) == held_out)
            drawn = drawn.chosen(_first_of_each(drawn.targets, wanted))
            wanted -= np.bincount(drawn.targets, minlength=self.plus)
            parts.append(self._rows(drawn))
            fruitless = 0 if len(drawn.targets) else fruitless + 1
            if fruitless == FRUITLESS:
                use = {True: " to hold out", False: " to train on", None: ""}[held_out]
                raise ValueError(
                    f"no problem of {config.numbers} numbers up to {config.largest_input} was found{use} that has the "
                    f"target {wanted.argmax()}: choose task.lowest_target and task.highest_target such that every "
                    "target between them can be made in many ways, or set task.largest_input higher"
                )
        rows = rng.permutation(np.concatenate(parts))
        return Examples(rows, np.full(n, self.context), np.full(n, config.prompt_length))

    # Token columns

    @property
    def _form(self) -> np.ndarray:
        """(T,): the token of each column that is the same in all sequences; -1 in the others."""
        config = self.config
        form = np.full(self.context, -1)
        form[1 : 2 * config.numbers : 2] = self.comma
        form[2 * config.numbers + 1 : config.prompt_length] = self.bar
        form[config.prompt_length + 3 :: 6] = self.equals
        form[config.prompt_length + 5 :: 6] = self.comma
        return form

    @property
    def _places(self) -> np.ndarray:
        """(E, 4): the columns of left operand, operator, right operand and result of each equation."""
        return self.config.prompt_length + 6 * np.arange(self.config.numbers - 1)[:, None] + [0, 1, 2, 4]

    @property
    def _offsets(self) -> np.ndarray:
        """(4,): what makes tokens of the parts of an equation."""
        return np.array([0, self.plus, 0, 0])

    def _rows(self, solved: Solved) -> np.ndarray:
        """(n, T) tokens."""
        rows = np.tile(self._form, (len(solved.inputs), 1))
        rows[:, 0 : 2 * self.config.numbers : 2] = solved.inputs
        rows[:, 2 * self.config.numbers] = solved.targets
        rows[:, self._places] = solved.equations + self._offsets
        return rows

    def _solved(self, rows: np.ndarray) -> Solved:
        """What rows (n, T) say, with -1 where no number or no operator stands where one belongs."""
        inputs = rows[:, 0 : 2 * self.config.numbers : 2]
        equations = rows[:, self._places] - self._offsets
        fits = (equations >= 0) & (equations < np.array([self.plus, len(OPERATORS), self.plus, self.plus]))
        return Solved(inputs, np.where(fits, equations, -1))

    # Text and files

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a line or a part of one; a bar that stands alone is all the pauses."""
        text = re.sub(r"(?<!\|)\|(?!\|)", "|" * self.config.pauses, text)
        found = re.findall(r"0*([0-9]+)|([^\s0-9])", text)
        for number, _ in found:
            if number and number not in self.vocab.ids:
                raise ValueError(f"{number} is above {self.config.largest}, the largest number that has a token")
        return self.vocab.encode([number or other for number, other in found])

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """As in the published format: all the pauses are one bar. Numbers side by side, which no right answer has, are
        held apart by a space."""
        text = re.sub(r"(?<=\d) (?=\d)", "_", " ".join(self.vocab.decode(tokens))).replace(" ", "").replace("_", " ")
        return re.sub(rf"(?<!\|)\|{{{self.config.pauses}}}(?!\|)", "|", text)

    def towards(self, prompt: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """See `Task.towards`. Raises `ValueError` for a prompt that no right solution begins with."""
        given = self.config.prompt_length
        if len(prompt) < given or not len(self.legal(prompt[:given])):
            raise ValueError(
                f"a prompt is {self.config.numbers} inputs and the target with commas between them, and a bar, not "
                f"{self.decode(prompt)!r}"
            )
        for place in range(given, len(prompt)):
            if prompt[place] not in self.legal(prompt[:place]):
                raise ValueError(f"no right solution begins with {self.decode(prompt[given:])!r}")
        return super().towards(prompt, goal)

    def read(self, path: Path) -> Examples:
        """Problems of a file in the published format, with right solutions of the run's number of equations."""
        wrong: dict[int, str] = {}
        rows: dict[int, np.ndarray] = {}
        for number, line in read_lines(path):
            try:
                rows[number] = self._parse(line.strip())
            except ValueError as error:
                wrong[number] = str(error)
        if rows:
            wrong |= self._mistakes(np.stack(list(rows.values())), list(rows))
        problems = Problems(path)
        for number in sorted(wrong):
            problems.add(number, wrong[number])
        problems.raise_if_any()
        return Examples.of(list(rows.values()), [self.config.prompt_length] * len(rows))

    def _parse(self, line: str) -> np.ndarray:
        """(T,) tokens of a line that has the right form, whether or not its solution is right."""
        config = self.config
        if not re.fullmatch(LINE, line):
            raise ValueError(f"not of the form 14,83,88,91,23|83-14=69,91-88=3,69/3=23: {line[:60]!r}")
        problem, _, solution = line.partition("|")
        inputs, equations = problem.count(","), solution.count("=")
        if inputs != config.numbers:
            raise ValueError(f"{inputs} inputs, but task.numbers is {config.numbers}: set it to that of the file")
        if equations != inputs - 1:
            raise ValueError(f"{inputs} inputs need {inputs - 1} equations, not {equations}")
        return self.encode(line)

    def _mistakes(self, rows: np.ndarray, numbers: Sequence[int]) -> dict[int, str]:
        """What is wrong with the solutions of rows (n, T), by line number."""
        found: dict[int, str] = {}
        solved = self._solved(rows)
        right, available = holds(solved.equations, self.config.largest), pools(*solved).available
        for row in np.flatnonzero(~(right & available).all(axis=1)).tolist():
            step = int((right & available)[row].argmin())
            written = self.decode(rows[row, self._places[step, 0] : self._places[step, 3] + 1])
            what = "takes a number that is not there" if right[row, step] else "does not hold"
            found[numbers[row]] = f"equation {step + 1}, {written}, {what}"
        targets = rows[:, 2 * self.config.numbers]
        for row in np.flatnonzero(solved.targets != targets).tolist():
            text = f"the solution ends in {solved.targets[row]}, and the target is {targets[row]}"
            found.setdefault(numbers[row], text)
        return found

    # Scores

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`accuracy`: every equation holds, its operands are there to be used, and the last result is the target.

        Parts of it, of those that fail too: `equation_1_valid`, ...: the right side is what the left side makes;
        `all_equations_valid`; `legal_operands`: every operand is an input or an earlier result, each used once;
        `reaches_target`: the target stands where the last result belongs.
        """
        config = self.config
        rows = np.full((len(examples), self.context), -1)
        rows[:, : config.prompt_length] = examples.tokens[:, : config.prompt_length]
        for row, completion in enumerate(completions):
            given = completion.tokens[: config.answer_length]
            rows[row, config.prompt_length : config.prompt_length + len(given)] = given
        solved = self._solved(rows)
        formed = ((rows == self._form) | (self._form < 0)).all(axis=1)
        complete = np.array([len(completion.tokens) == config.answer_length for completion in completions])
        valid = holds(solved.equations, config.largest) & (rows[:, self._places[:, 3] - 1] == self.equals)
        legal = pools(*solved).available.all(axis=1)
        reached = solved.targets == rows[:, 2 * config.numbers]
        right = formed & complete & valid.all(axis=1) & legal & reached
        return {
            "accuracy": float(right.mean()),
            **{f"equation_{step + 1}_valid": float(column.mean()) for step, column in enumerate(valid.T)},
            "all_equations_valid": float(valid.all(axis=1).mean()),
            "legal_operands": float(legal.mean()),
            "reaches_target": float(reached.mean()),
        }

    # World

    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T): which numbers are there to be combined, as bits: the inputs in their order, then the results.

        It is defined from the last pause on, where all inputs are, and changes with the result of each equation; -1
        before and on padding. Of equal numbers the first is used first; a result stands where its second operand did.
        """
        columns = np.arange(examples.tokens.shape[1])
        changes = np.append(self.config.prompt_length - 1, self._places[:, 3])
        stage = np.searchsorted(changes, columns, side="right") - 1
        there = pools(*self._solved(examples.tokens)).origins[:, np.maximum(stage, 0)]
        return np.where((stage >= 0) & (columns < examples.lengths[:, None]), there, -1)

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """Tokens with which `prefix` can still become a solution whose every equation holds and takes numbers that are
        there, whatever it ends in; in the prompt those of its form. None if `prefix` itself is none of that."""
        config, form = self.config, self._form
        prompt, answer = prefix[: config.prompt_length], prefix[config.prompt_length :]
        expected = form[: len(prompt)]
        if not np.where(expected < 0, prompt < self.plus, prompt == expected).all():
            return np.empty(0, np.int64)
        if len(prefix) < config.prompt_length:
            return np.arange(self.plus) if form[len(prefix)] < 0 else form[[len(prefix)]]
        numbers = prompt[0 : 2 * config.numbers : 2]
        for step in range(config.numbers - 1):
            length = 5 if step == config.numbers - 2 else 6  # the last equation has no comma behind it
            written = answer[6 * step : 6 * step + length]
            equations = moves(numbers, config.largest)
            lines = np.empty((len(equations), 6), np.int64)
            lines[:, [0, 1, 2, 4]] = equations + self._offsets
            lines[:, [3, 5]] = self.equals, self.comma
            fits = (lines[:, : len(written)] == written).all(axis=1)
            if len(written) < length:
                return np.unique(lines[fits, len(written)])
            if not fits.any():
                break
            after = pools(numbers[None], equations[fits][None, :1]).numbers[0, 1]
            numbers = after[after >= 0]
        return np.empty(0, np.int64)


def _is_held_out(solved: Solved) -> np.ndarray:
    """(n,) bool: a share of the problems that the hash of inputs, in any order, and target chooses."""
    rows = np.concatenate([np.sort(solved.inputs, axis=1), solved.targets[:, None]], axis=1)
    return (hash_rows(rows) >> np.uint64(32)) % np.uint64(HELD_OUT_SHARE) == 0


def _first_of_each(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Places of the first `wanted[v]` of each value v in `values` (n,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return order[rank < wanted[ordered]]
