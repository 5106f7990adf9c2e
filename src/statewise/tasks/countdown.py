"""Countdown (Gandhi et al. 2024): combine given numbers by + - * / to reach a target, using each number once.

The text of a problem and its solution is `14,83,88,91,23|83-14=69,91-88=3,69/3=23`: inputs and target, then one
equation fewer than there are inputs. Every integer is one token, as in the next-latent prediction paper (Teoh et al.
2026, appendix D), and the bar stands for several pause tokens, in which a model may plan. Any of a problem's solutions
is right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from statewise.data_types import Completion, Examples, Headline, Ragged
from statewise.runtime.bounds import bounded, check_tokens
from statewise.tasks.base import Kept, Task, TextFormat, Vocab, World
from statewise.tasks.holding_out import ONE_IN, chosen, hash_rows
from statewise.tasks.own_files.lines import Problems, read_lines

OPERATORS = "+-*/"


class Solved(NamedTuple):
    """n problems of N numbers, each with a solution of E = N - 1 equations."""

    inputs: np.ndarray
    """(n, N) int64 in random order."""
    equations: np.ndarray
    """(n, E, 4) int64."""

    @property
    def targets(self) -> np.ndarray:
        """(n,) the last result."""
        return self.equations[:, -1, 3]

    def chosen(self, rows: np.ndarray) -> Solved:
        """The problems selected by row numbers or a mask."""
        return Solved(self.inputs[rows], self.equations[rows])


def results(left: np.ndarray, right: np.ndarray, largest: int) -> np.ndarray:
    """(4, ...): the result of each operator on two numbers >= 0; -1 where it is not allowed."""
    quotient, rest = np.divmod(left, np.maximum(right, 1))
    exact = (right > 0) & (rest == 0)
    values = np.stack([left + right, left - right, left * right, np.where(exact, quotient, -1)])
    return np.where((values >= 0) & (values <= largest), values, -1)


def moves(numbers: np.ndarray, largest: int) -> np.ndarray:
    """(m, 4): every equation with two of `numbers` (k,) as operands."""
    first, second = np.nonzero(~np.eye(len(numbers), dtype=bool))
    left, right = numbers[first], numbers[second]
    values = results(left, right, largest)
    operator, pair = np.nonzero(values >= 0)
    return np.stack([left[pair], operator, right[pair], values[operator, pair]], axis=1)


def draw(
    rng: np.random.Generator, n: int, numbers: int, *, largest_input: int, largest: int, targets: np.ndarray
) -> Solved:
    """Draws n random problems, and drops those whose solutions do not end in one of `targets`.

    `numbers` inputs are uniform over 1 .. `largest_input`. Each equation takes two of the available numbers, uniform
    over pairs, and an operator, uniform over those allowed; in the last equation, over those that reach a target. The
    left operand of - and / is the greater one; the operands of + and * are in random order.
    """
    is_target = np.zeros(largest + 1, bool)
    is_target[targets] = True
    inputs = rng.integers(1, largest_input + 1, (n, numbers))
    pool, rows = inputs.copy(), np.arange(n)  # the first `left` columns are the available numbers
    equations = np.empty((n, numbers - 1, 4), np.int64)
    for step, left in enumerate(range(numbers, 1, -1)):
        column = rng.integers(left, size=n)
        one, pool[rows, column] = pool[rows, column], pool[:, left - 1]
        column = rng.integers(left - 1, size=n)
        other = pool[rows, column]
        greater, smaller = np.maximum(one, other), np.minimum(one, other)
        values = results(greater, smaller, largest)
        usable = values >= 0
        if left == 2:
            usable &= is_target[values]
        operator = np.where(usable, rng.random((4, n), dtype=np.float32), -1).argmax(axis=0)
        commutes = operator % 2 == 0  # + and *
        result = values[operator, rows]
        equations[:, step, 0] = np.where(commutes, one, greater)
        equations[:, step, 1] = operator
        equations[:, step, 2] = np.where(commutes, other, smaller)
        equations[:, step, 3] = result
        pool[rows, column] = result
    return Solved(inputs, equations).chosen(np.flatnonzero(usable.any(axis=0)))


def holds(equations: np.ndarray, largest: int) -> np.ndarray:
    """(...) bool: whether each equation (..., 4) holds; False if a part is negative, which marks what is not a number
    or an operator."""
    left, operator, right, result = np.moveaxis(equations, -1, 0)
    values = results(left, right, largest)
    made = np.take_along_axis(values, np.maximum(operator, 0)[None], axis=0)[0]
    return (equations >= 0).all(axis=-1) & (made == result)


class Pools(NamedTuple):
    """The available numbers before and after each equation."""

    numbers: np.ndarray
    """(n, E + 1, N) before the first equation and after each, ascending; -1 for used ones."""
    available: np.ndarray
    """(n, E) bool: both operands of the equation are available, as two numbers."""
    origins: np.ndarray
    """(n, E + 1) origins of the available numbers, as bits: N inputs in their order, then E results."""


def pools(inputs: np.ndarray, equations: np.ndarray) -> Pools:
    """Removes the operands of each equation (n, E, 4) from the available numbers, initially `inputs` (n, N), and adds
    its result. After an unavailable operand the values of that row are meaningless."""
    n, E = equations.shape[:2]
    numbers = np.empty((n, E + 1, inputs.shape[1]), np.int64)
    available = np.ones((n, E), bool)
    pool, rows = inputs.copy(), np.arange(n)
    origin = np.tile(1 << np.arange(inputs.shape[1]), (n, 1))
    origins = np.empty((n, E + 1), np.int64)
    numbers[:, 0], origins[:, 0] = pool, origin.sum(axis=1)
    for step in range(E):
        for operand in (equations[:, step, 0], equations[:, step, 2]):
            matches = (pool == operand[:, None]) & (operand >= 0)[:, None]
            slot = matches.argmax(axis=1)
            available[:, step] &= matches.any(axis=1)
            pool[rows, slot], origin[rows, slot] = -1, 0
        pool[rows, slot], origin[rows, slot] = equations[:, step, 3], 1 << (inputs.shape[1] + step)
        numbers[:, step + 1], origins[:, step + 1] = pool, origin.sum(axis=1)
    return Pools(np.sort(numbers, axis=2), available, origins)


DRAWN_AT_ONCE = 2**17
"""Most problems drawn at a time: large enough that loops are cheap, small enough for little memory."""
FRUITLESS = 50
"""Draws in a row without a wanted problem after which drawing fails."""
EQUATION = r"[0-9]+[-+*/][0-9]+=[0-9]+"
LINE = rf"[0-9]+(,[0-9]+)+\|{EQUATION}(,{EQUATION})*"
BAR = r"(?<!\|)\|(?!\|)"
"""A single bar, which stands for all pauses."""


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
    """Largest integer with a token; intermediate results must not exceed it."""
    pauses: int = 8
    """Pause tokens between problem and solution, at least one."""
    training_problems: int | None = 500_000
    """Size of a fixed training set; null: fresh problems for every batch."""
    held_out_problems: int = 10_000
    """Size of each fixed test set."""
    held_out_targets: float = 0.1
    """Share of the targets that are held out; `statewise evaluate RUN --targets held-out` evaluates on them."""
    data_seed: int = 0
    """Seed of the fixed sets and of the choice of held-out targets."""

    def __post_init__(self) -> None:
        bounded(self, "numbers", prefix="task.", at_least=2, reason="an equation takes two")
        bounded(self, "numbers", prefix="task.", at_most=32)  # numbers and results are bits of an int64 (`pools`)
        bounded(self, "pauses", prefix="task.", at_least=1, reason="the bar itself is one")
        bounded(self, "pauses", prefix="task.", at_most=10_000)
        bounded(self, "largest", prefix="task.", at_most=10**6)
        bounded(self, "training_problems", "held_out_problems", prefix="task.", at_least=1, at_most=10**8)
        bounded(self, "held_out_targets", prefix="task.", at_least=0, below=1)
        bounded(self, "data_seed", prefix="task.", at_least=0)
        if not 1 <= self.largest_input <= self.largest:
            raise ValueError(f"task.largest_input must lie between 1 and task.largest, which is {self.largest}")
        if not 0 <= self.lowest_target <= self.highest_target <= self.largest:
            raise ValueError(
                f"targets from {self.lowest_target} to {self.highest_target} are impossible: task.lowest_target must "
                f"not be above task.highest_target, nor that above task.largest, which is {self.largest}"
            )
        if self.number_of_held_out_targets == self.highest_target + 1 - self.lowest_target:
            raise ValueError("task.held_out_targets leaves no target to train on: set it lower or widen the range")

    @property
    def number_of_held_out_targets(self) -> int:
        """Number of held-out targets, at least one for any share above 0."""
        share = self.held_out_targets * (self.highest_target + 1 - self.lowest_target)
        return max(1, round(share)) if share else 0

    @property
    def prompt_length(self) -> int:
        """Tokens of inputs and target, the commas between them, and the pauses."""
        return 2 * self.numbers + 1 + self.pauses

    @property
    def answer_length(self) -> int:
        """Tokens of the equations and the commas between them."""
        return 6 * (self.numbers - 1) - 1


class Countdown(Task, World):
    """Problems with random solutions (see `arithmetic.draw`) and uniformly distributed targets.

    The order of the inputs is random. All sequences are equally long, so answers need no end token.
    """

    Config = CountdownConfig
    other_held_out: Mapping[str, Sequence[str]] = {"targets": ("held-out",)}
    drawn_at_once = 128  # each call tries some thousand problems, few of which have the missing targets

    def __init__(self, config: CountdownConfig, kept: Kept | None = None) -> None:
        self.config = config
        self.plus = config.largest + 1  # the first token that is not a number
        self.vocab = Vocab([*map(str, range(self.plus)), *OPERATORS, "=", ",", "|"])
        self.equals, self.comma, self.bar = (self.vocab.ids[symbol] for symbol in "=,|")
        self.context = config.prompt_length + config.answer_length
        check_tokens("task.training_problems", config.training_problems or 0, self.context)
        check_tokens("task.held_out_problems", config.held_out_problems, self.context)
        pauses = "|" * config.pauses
        self.text_format = TextFormat(
            r"[0-9]+|[^\s0-9]",
            normalise=((BAR, pauses), (r"(?<![0-9])0+(?=[0-9])", "")),
            tidy=((r" (?![0-9])|(?<![0-9]) ", ""), (rf"(?<!\|)\|{{{config.pauses}}}(?!\|)", "|")),
        )
        self.headline = Headline("accuracy", higher_is_better=True, solved_at=0.99)
        every = np.arange(config.lowest_target, config.highest_target + 1)
        order = np.random.default_rng([config.data_seed, 3]).permutation(every)
        self.unseen_targets = np.sort(order[: config.number_of_held_out_targets])
        self.targets = np.sort(order[config.number_of_held_out_targets :])
        if len(self.unseen_targets):
            values = ", ".join(map(str, self.unseen_targets))
            self.notes = [f"countdown: the held-out targets are {values}"]
        self._training: Ragged | None = None
        self._held_out: dict[str, Examples] = {}

    # Drawing problems

    def training(self) -> Ragged | None:
        """The fixed training set, if the recipe has one."""
        if self._training is None and self.config.training_problems is not None:
            rng = np.random.default_rng([self.config.data_seed, 1])
            drawn = self._draw(rng, self.config.training_problems, self.targets, held_out=False)
            self._training = Ragged.unpadded(drawn, len(self.vocab))
        return self._training

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training problems, fresh or from the fixed set; never held-out ones."""
        if self.config.training_problems is not None:
            return super().sample(rng, n)
        return self._draw(rng, n, self.targets, held_out=False)

    def held_out(self, n: int | None = None) -> Examples:
        """The fixed test set, or its first n problems: held-out problems with training targets. Some may repeat if
        there are few."""
        if "problems" not in self._held_out:
            rng = np.random.default_rng([self.config.data_seed, 2])
            size = self.config.held_out_problems
            self._held_out["problems"] = self._draw(rng, size, self.targets, held_out=True)
        return self._held_out["problems"][:n]

    def held_out_by(self, option: str, value: str, n: int | None = None) -> Examples:
        """`targets`, `held-out`: problems with held-out targets."""
        if (option, value) != ("targets", "held-out"):
            return super().held_out_by(option, value, n)
        if not len(self.unseen_targets):
            raise ValueError("this run has no held-out targets: its task.held_out_targets is 0")
        if "targets" not in self._held_out:
            rng = np.random.default_rng([self.config.data_seed, 4])
            size = self.config.held_out_problems
            self._held_out["targets"] = self._draw(rng, size, self.unseen_targets, held_out=None)
        return self._held_out["targets"][:n]

    def _draw(self, rng: np.random.Generator, n: int, targets: np.ndarray, *, held_out: bool | None) -> Examples:
        """n problems with targets uniform over `targets`; `held_out`: only problems that their hash holds out, only
        others, or (None) any.

        The number of problems of each target is drawn first. Then problems are drawn and kept until each has enough.
        """
        config = self.config
        wanted = np.bincount(rng.choice(targets, n), minlength=self.plus)
        parts, fruitless = [], 0
        share = ONE_IN if held_out else 1
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
                    f"no problem of {config.numbers} numbers up to {config.largest_input} with the target "
                    f"{wanted.argmax()} was found{use}: choose task.lowest_target and task.highest_target such that "
                    "every target between them can be reached in many ways, or set task.largest_input higher"
                )
        rows = rng.permutation(np.concatenate(parts))
        return Examples(rows, np.full(n, self.context), np.full(n, config.prompt_length))

    # Token columns

    @property
    def _form(self) -> np.ndarray:
        """(T,): the token of columns that are the same in all sequences; -1 in the others."""
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
        """(4,): offsets from the parts of an equation to their tokens."""
        return np.array([0, self.plus, 0, 0])

    def _rows(self, solved: Solved) -> np.ndarray:
        """(n, T) tokens."""
        rows = np.tile(self._form, (len(solved.inputs), 1))
        rows[:, 0 : 2 * self.config.numbers : 2] = solved.inputs
        rows[:, 2 * self.config.numbers] = solved.targets
        rows[:, self._places] = solved.equations + self._offsets
        return rows

    def _solved(self, rows: np.ndarray) -> Solved:
        """The inverse of `_rows`, with -1 where a number or an operator is expected but absent."""
        inputs = rows[:, 0 : 2 * self.config.numbers : 2]
        equations = rows[:, self._places] - self._offsets
        fits = (equations >= 0) & (equations < np.array([self.plus, len(OPERATORS), self.plus, self.plus]))
        return Solved(inputs, np.where(fits, equations, -1))

    # Text and files

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a line or a part of one; a single bar stands for all pauses."""
        text = re.sub(BAR, "|" * self.config.pauses, text)
        matches = re.findall(r"0*([0-9]+)|([^\s0-9])", text)
        for number, _ in matches:
            if number and number not in self.vocab.ids:
                raise ValueError(f"{number} is above {self.config.largest}, the largest number with a token")
        return self.vocab.encode([number or other for number, other in matches])

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Text in the published format, in which a bar stands for all pauses. Adjacent numbers, which only wrong
        answers have, are separated by a space."""
        text = re.sub(r"(?<=\d) (?=\d)", "_", " ".join(self.vocab.decode(tokens))).replace(" ", "").replace("_", " ")
        return re.sub(rf"(?<!\|)\|{{{self.config.pauses}}}(?!\|)", "|", text)

    @override
    def with_goal(self, prompt: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Raises `ValueError` for a prompt that begins no correct solution."""
        length = self.config.prompt_length
        if len(prompt) < length or not len(self.legal(prompt[:length])):
            raise ValueError(
                f"a prompt is {self.config.numbers} inputs and the target, separated by commas, and a bar, not "
                f"{self.decode(prompt)!r}"
            )
        for position in range(length, len(prompt)):
            if prompt[position] not in self.legal(prompt[:position]):
                raise ValueError(f"no correct solution begins with {self.decode(prompt[length:])!r}")
        return super().with_goal(prompt, goal)

    def read(self, path: Path) -> Examples:
        """Problems of a file in the published format, with `numbers` inputs each and correct solutions."""
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
        """(T,) tokens of a line. Raises `ValueError` for another form; the solution is not checked."""
        config = self.config
        if not re.fullmatch(LINE, line):
            raise ValueError(f"not of the form 14,83,88,91,23|83-14=69,91-88=3,69/3=23: {line[:60]!r}")
        problem, _, solution = line.partition("|")
        inputs, equations = problem.count(","), solution.count("=")
        if inputs != config.numbers:
            raise ValueError(f"{inputs} inputs, but task.numbers is {config.numbers}: set it to that number")
        if equations != inputs - 1:
            raise ValueError(f"{inputs} inputs need {inputs - 1} equations, not {equations}")
        return self.encode(line)

    def _mistakes(self, rows: np.ndarray, numbers: Sequence[int]) -> dict[int, str]:
        """Problems of the solutions of rows (n, T), by line number."""
        mistakes: dict[int, str] = {}
        solved = self._solved(rows)
        right, available = holds(solved.equations, self.config.largest), pools(*solved).available
        for row in np.flatnonzero(~(right & available).all(axis=1)).tolist():
            step = int((right & available)[row].argmin())
            written = self.decode(rows[row, self._places[step, 0] : self._places[step, 3] + 1])
            what = "uses a number that is not available" if right[row, step] else "does not hold"
            mistakes[numbers[row]] = f"equation {step + 1}, {written}, {what}"
        targets = rows[:, 2 * self.config.numbers]
        for row in np.flatnonzero(solved.targets != targets).tolist():
            text = f"the solution ends in {solved.targets[row]}, but the target is {targets[row]}"
            mistakes.setdefault(numbers[row], text)
        return mistakes

    # Scores

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`accuracy`: every equation holds, its operands are available, and the last result is the target.

        Its parts, over all answers: `equation_1_valid`, ...: the right side is the value of the left side;
        `all_equations_valid`; `legal_operands`: every operand is an input or an earlier result, each used once;
        `reaches_target`: the token of the last result is the target.
        """
        config = self.config
        rows = np.full((len(examples), self.context), -1)
        rows[:, : config.prompt_length] = examples.tokens[:, : config.prompt_length]
        for row, completion in enumerate(completions):
            tokens = completion.tokens[: config.answer_length]
            rows[row, config.prompt_length : config.prompt_length + len(tokens)] = tokens
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
        """(n, T): the set of available numbers as bits: first the inputs, in their order, then the results.

        Defined from the last pause on; changes with the result of each equation; -1 before and on padding. Of equal
        numbers the first is used first; a result takes the slot of its second operand.
        """
        columns = np.arange(examples.tokens.shape[1])
        changes = np.append(self.config.prompt_length - 1, self._places[:, 3])
        stage = np.searchsorted(changes, columns, side="right") - 1
        available = pools(*self._solved(examples.tokens)).origins[:, np.maximum(stage, 0)]
        return np.where((stage >= 0) & (columns < examples.lengths[:, None]), available, -1)

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """Tokens with which `prefix` can still become a solution whose equations hold and use available numbers,
        whatever its last result; in the prompt, tokens of its form. Empty if `prefix` is already wrong."""
        config, form = self.config, self._form
        prompt, answer = prefix[: config.prompt_length], prefix[config.prompt_length :]
        expected = form[: len(prompt)]
        if not np.where(expected < 0, prompt < self.plus, prompt == expected).all():
            return np.empty(0, np.int64)
        if len(prefix) < config.prompt_length:
            return np.arange(self.plus) if form[len(prefix)] < 0 else form[[len(prefix)]]
        numbers = prompt[0 : 2 * config.numbers : 2]
        for step in range(config.numbers - 1):
            length = 5 if step == config.numbers - 2 else 6  # no comma after the last equation
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
    """(n,) bool: whether the hash of a problem's target and sorted inputs selects it."""
    rows = np.concatenate([np.sort(solved.inputs, axis=1), solved.targets[:, None]], axis=1)
    return chosen(hash_rows(rows))


def _first_of_each(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Indices of the first `wanted[v]` occurrences of each value v in `values` (n,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return order[rank < wanted[ordered]]
