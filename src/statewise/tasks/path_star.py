"""Path-star graphs (Bachmann & Nagarajan 2024): find the one arm of a star that ends at the goal.

A graph has a centre and `degree` arms; a path of `length` nodes runs from the centre to an arm's end. The prompt lists
the edges in random order, then start and goal; the answer is the path. Line format and token ids are the published
ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from statewise.data_types import Completion, Examples, Headline, Ragged
from statewise.runtime.bounds import bounded, check_tokens, unset
from statewise.runtime.json_files import TEXT, Shape
from statewise.tasks.base import (
    Kept,
    Task,
    TextFormat,
    Vocab,
    World,
    check_unchanged,
    checksum,
    joint_checksum,
    kept_json,
)
from statewise.tasks.holding_out import ONE_IN, chosen, collect, hash_rows
from statewise.tasks.own_files.lines import Problems, read_lines


@dataclass(frozen=True)
class PathStarConfig:
    """Fields of `task: path_star`."""

    degree: int = 2
    """Arms d of the star."""
    length: int = 5
    """Nodes l of a path, centre and goal included."""
    nodes: int = 50
    """Node numbers are drawn from 0 .. nodes-1."""
    training_graphs: int | None = None
    """Size of a fixed training set; null: fresh graphs for every batch."""
    held_out_graphs: int = 10000
    """Size of the fixed test set."""
    encoding: Literal["plain", "reverse", "goal_augmentation", "fill_in_the_middle"] = "plain"
    """`plain`: the path from start to goal. `reverse`: from goal to start. `goal_augmentation`: in training the goal in
    the prompt is any node between start and goal, never the goal itself (BST, appendix C.1). `fill_in_the_middle`: the
    prompt ends with the last nodes of the path (`.../start,goal/c,goal=start,...,goal`), a random number of them in
    training, none in tests."""
    data_seed: int = 0
    """Seed of the fixed sets."""
    training_file: str | None = None
    """A file of training graphs in the published line format, instead of drawn ones."""
    held_out_file: str | None = None
    """A file of test graphs in the published line format, instead of drawn ones."""

    def __post_init__(self) -> None:
        if self.degree < 1 or self.length < 2:
            raise ValueError(f"a path-star graph needs degree >= 1 and length >= 2, not G({self.degree},{self.length})")
        needed = 1 + self.degree * (self.length - 1)
        if needed > self.nodes:
            raise ValueError(
                f"G({self.degree},{self.length}) has {needed} different nodes, but nodes is {self.nodes}: "
                f"set task.nodes to {needed} or more"
            )
        if self.encoding == "goal_augmentation" and self.length < 3:
            raise ValueError("goal_augmentation needs a node between start and goal: set task.length to 3 or more")
        bounded(self, "training_graphs", "held_out_graphs", prefix="task.", at_least=1, at_most=10**8)
        if self.training_file is not None:
            unset(
                self,
                "training_graphs",
                prefix="task.",
                reason="applies to drawn graphs, but training_file gives its own",
            )
        bounded(self, "nodes", prefix="task.", at_most=10**6)
        bounded(self, "data_seed", prefix="task.", at_least=0)

    @property
    def edges(self) -> int:
        """Number E of edges."""
        return self.degree * (self.length - 1)

    @property
    def prompt_length(self) -> int:
        """Tokens up to and including `=`, in the published format."""
        return 3 * self.edges + 3

    @property
    def line_length(self) -> int:
        """Tokens of a line in the published format."""
        return self.prompt_length + self.length


KEPT_FILE = "path_star.json"
KEPT: Shape = {"paths": {...: TEXT}, "sha256": {...: TEXT}}
"""Shape of what a run keeps about its files of graphs, by field."""


class PathStar(Task, World):
    """G(degree, length), as text `a,b|b,c|.../start,goal=start,...,goal`."""

    Config = PathStarConfig
    view = "star"
    text_format = TextFormat(
        r"[0-9]+|[^0-9,]",
        normalise=((r"\s+", ""), (r"(?<![0-9])0+(?=[0-9])", "")),
        tidy=((r" (?=[|=/$])", ""), (r"(?<=[|=/$]) ", ""), (" ", ",")),
    )

    def __init__(self, config: PathStarConfig, kept: Kept | None = None) -> None:
        self.config = config
        N = config.nodes
        self.vocab = Vocab([*map(str, range(N)), "|", "=", "/", "$"])
        self.bar, self.equals, self.slash, self.filler = N, N + 1, N + 2, N + 3
        self.context, self.longest_answer = config.line_length, config.length
        if config.encoding == "fill_in_the_middle":
            self.context += config.length  # a separator and at most all nodes but the start
        check_tokens("task.training_graphs", config.training_graphs or 0, self.context)
        check_tokens("task.held_out_graphs", config.held_out_graphs, self.context)
        self.headline = Headline("path_accuracy", higher_is_better=True, solved_at=0.99)
        # Chance level: a path along a random arm.
        self.chance = {"path_accuracy": 1 / config.degree, "branch_accuracy": 1 / config.degree}
        if config.encoding == "reverse":
            self.chance = {}  # backwards from the goal there is only one path
        files = {"training_file": config.training_file, "held_out_file": config.held_out_file}
        self._paths = {field: Path(path).resolve() for field, path in files.items() if path is not None}
        self._sums: dict[str, str] = {}
        if kept is None:
            self._sums = {field: checksum(path) for field, path in self._paths.items()}
        elif self._paths or KEPT_FILE in kept:
            facts = kept_json(kept, KEPT_FILE, KEPT)
            if not self._paths.keys() == facts["paths"].keys() == facts["sha256"].keys():
                raise ValueError(f"task/{KEPT_FILE} of this run does not belong to the files in its recipe")
            self._paths, self._sums = {field: Path(path) for field, path in facts["paths"].items()}, facts["sha256"]
        self._training: Ragged | None = None
        self._training_lines: np.ndarray | None = None
        self._held_out: Examples | None = None
        self._held_out_hashes: np.ndarray | None = None
        """Sorted hashes of the graphs in the held-out file."""

    def files(self) -> dict[str, bytes]:
        """Absolute paths and checksums of the files of graphs, if there are any."""
        if not self._sums:
            return {}
        facts = {"paths": {field: str(path) for field, path in self._paths.items()}, "sha256": self._sums}
        return {KEPT_FILE: json.dumps(facts).encode()}

    def data_identity(self) -> dict[str, str]:
        """A checksum of the files of graphs, independent of their paths, if there are any."""
        return {"data": joint_checksum(self._sums.values())} if self._sums else {}

    # Drawing graphs

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """n training graphs, fresh or from the fixed set; never held-out ones."""
        fixed = self._fixed_lines()
        if fixed is not None:
            return self._encode(fixed[rng.integers(len(fixed), size=n)].astype(np.int64), rng)
        return self._encode(self._draw(rng, n, held_out=False), rng)

    def _draw(self, rng: np.random.Generator, n: int, *, held_out: bool) -> np.ndarray:
        """(n, line length): token ids of lines in the published format."""
        share = 1 / ONE_IN if held_out else 1 - 1 / ONE_IN  # an estimate: missing rows are drawn again

        def draw(missing: int) -> np.ndarray:
            drawn = self._draw_any(rng, int(missing / share * 1.05) + 8)
            return drawn[self._is_held_out(drawn) == held_out]

        rows = collect(draw, n, width=self.config.line_length)
        if len(rows) < n:
            raise ValueError(
                f"there are too few different graphs G({self.config.degree},{self.config.length}) with "
                f"{self.config.nodes} nodes to hold some out: set task.nodes higher"
            )
        return rows

    def _draw_any(self, rng: np.random.Generator, n: int) -> np.ndarray:
        config = self.config
        d, steps, E = config.degree, config.length - 1, config.edges
        order = rng.random((n, config.nodes), dtype=np.float32)
        chosen = np.argpartition(order, E, axis=1)[:, : E + 1] if config.nodes > E + 1 else order.argsort(axis=1)
        if config.nodes > E + 1:  # a partition is not a uniform permutation: shuffle it
            chosen = np.take_along_axis(chosen, rng.random((n, E + 1), dtype=np.float32).argsort(axis=1), axis=1)
        centre, arms = chosen[:, :1], chosen[:, 1:].reshape(n, d, steps)
        sources = np.concatenate([np.broadcast_to(centre[:, None], (n, d, 1)), arms[:, :, :-1]], axis=2)
        shuffle = rng.random((n, E), dtype=np.float32).argsort(axis=1)
        rows = np.empty((n, config.line_length), np.int64)
        rows[:, 0 : 3 * E : 3] = np.take_along_axis(sources.reshape(n, E), shuffle, axis=1)
        rows[:, 1 : 3 * E : 3] = np.take_along_axis(arms.reshape(n, E), shuffle, axis=1)
        rows[:, 2 : 3 * E : 3] = self.bar
        rows[:, 3 * E - 1] = self.slash
        # Arms are exchangeable, so the goal can always be the end of the first.
        path = np.concatenate([centre, arms[:, 0]], axis=1)
        rows[:, 3 * E] = path[:, 0]
        rows[:, 3 * E + 1] = path[:, -1]
        rows[:, 3 * E + 2] = self.equals
        rows[:, config.prompt_length :] = path
        return rows

    def _encode(self, lines: np.ndarray, rng: np.random.Generator | None) -> Examples:
        """Examples from published lines (n, line length); `rng` draws the augmentation of training examples."""
        config, n = self.config, len(lines)
        P, path = config.prompt_length, lines[:, config.prompt_length :]
        rows, extra = lines.copy(), np.zeros(n, np.int64)
        if config.encoding == "reverse":
            rows[:, P:] = path[:, ::-1]
        elif config.encoding == "goal_augmentation" and rng is not None:
            rows[:, P - 2] = path[np.arange(n), rng.integers(1, config.length - 1, n)]
        elif config.encoding == "fill_in_the_middle":
            depth = np.zeros(n, np.int64) if rng is None else rng.integers(0, config.length, n)
            rows, extra = np.zeros((n, self.context), np.int64), 1 + depth
            for count in np.unique(depth):  # number of given nodes
                own = depth == count
                pieces = (
                    lines[own, : P - 1],
                    np.full((own.sum(), 1), self.slash),
                    path[own, config.length - count :],
                    lines[own, P - 1 :],
                )
                rows[own, : config.line_length + 1 + count] = np.concatenate(pieces, axis=1)
        return Examples(rows, config.line_length + extra, P + extra)[:]

    def _lines(self, examples: Examples) -> np.ndarray:
        """(n, line length): the inverse of `_encode`."""
        config, n = self.config, len(examples)
        columns = examples.prompt_lengths[:, None] + np.arange(config.length)
        path = examples.tokens[np.arange(n)[:, None], columns]
        path = path[:, ::-1] if config.encoding == "reverse" else path
        head = examples.tokens[:, : config.prompt_length - 2]
        return np.concatenate([head, path[:, -1:], np.full((n, 1), self.equals), path], axis=1)

    def _is_held_out(self, rows: np.ndarray) -> np.ndarray:
        """(n,) bool: whether the graph is in the held-out file; without one, whether its prompt's hash selects it."""
        hashes = self._hash(rows)
        if self.config.held_out_file is None:
            return chosen(hashes)
        if self._held_out_hashes is None:
            self._held_out_hashes = np.sort(self._hash(self._lines(self.held_out())))
        known = self._held_out_hashes
        return known[np.minimum(np.searchsorted(known, hashes), len(known) - 1)] == hashes

    def _hash(self, rows: np.ndarray) -> np.ndarray:
        """(n,) uint64 of the prompts."""
        return hash_rows(rows[:, : self.config.prompt_length])

    def training(self) -> Ragged | None:
        """The fixed training set, if the recipe has one and its encoding draws nothing."""
        lines = self._fixed_lines()
        if lines is None or self.config.encoding in ("goal_augmentation", "fill_in_the_middle"):
            return None
        if self._training is None:
            self._training = Ragged.unpadded(self._encode(lines.astype(np.int64), None), len(self.vocab))
        return self._training

    def _fixed_lines(self) -> np.ndarray | None:
        """(n, line length) of the smallest type: the graphs of a fixed training set, in the published format."""
        config, kind = self.config, np.min_scalar_type(len(self.vocab) - 1)
        if self._training_lines is None and config.training_file is not None:
            lines = self._read(self._unchanged("training_file"))
            if np.isin(self._hash(lines), self._hash(self._lines(self.held_out()))).any():
                raise ValueError(f"{config.training_file}: contains held-out graphs")
            self._training_lines = lines.astype(kind)
        elif self._training_lines is None and config.training_graphs is not None:
            rng = np.random.default_rng([config.data_seed, 1])
            self._training_lines = self._draw(rng, config.training_graphs, held_out=False).astype(kind)
        return self._training_lines

    def _unchanged(self, field: str) -> Path:
        """The path of a file of graphs. Raises `ValueError` if it is missing or has changed."""
        if field in self._sums:
            check_unchanged(self._paths[field], self._sums[field])
        return self._paths[field]

    def held_out(self, n: int | None = None) -> Examples:
        """The fixed test set, or its first n graphs."""
        config = self.config
        if self._held_out is None and config.held_out_file is not None:
            self._held_out = self.read(self._unchanged("held_out_file"))
        elif self._held_out is None:
            rng = np.random.default_rng([config.data_seed, 2])
            self._held_out = self._encode(self._draw(rng, config.held_out_graphs, held_out=True), None)
        return self._held_out[: n if n is not None else len(self._held_out)]

    # Text

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a line, or of its part up to `=`, in the published format."""
        compact = "".join(text.split())
        symbols = re.findall(r"\d+|[|=/$]|[^\d|=/$,]", compact)
        if wrong := re.search(r"(^|[^\d]),|,([^\d]|$)", compact):
            near = compact[max(0, wrong.start() - 3) : wrong.end() + 3]
            raise ValueError(f"a comma must stand between two numbers, not as in {near!r}")
        return self.vocab.encode([str(int(s)) if s.isdecimal() and len(s) < 10 else s for s in symbols])

    @override
    def with_goal(self, prompt: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """With `fill_in_the_middle` the goal, the last nodes of the path, goes between a `/` and the `=` of a
        published prompt; other prompts are unchanged."""
        published = len(prompt) == self.config.prompt_length and prompt[-1] == self.equals
        if self.config.encoding != "fill_in_the_middle" or not published:
            return super().with_goal(prompt, goal)
        return np.concatenate([prompt[:-1], [self.slash], goal, [self.equals]]).astype(np.int64), None

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Text in the published format, with commas between adjacent numbers."""
        text = " ".join(self.vocab.decode(tokens))
        return re.sub(r" ?([|=/$]) ?", r"\1", text).replace(" ", ",")

    def lines(self, examples: Examples) -> Iterator[str]:
        """The examples as lines in the published format, whatever the encoding."""
        for line in self._lines(examples):
            yield self.decode(line)

    def read(self, path: Path) -> Examples:
        """Graphs of a file in the published format; each line must be a complete G(degree, length)."""
        return self._encode(self._read(path), None)

    def _read(self, path: Path) -> np.ndarray:
        """(n, line length): the lines of a file."""
        rows: list[np.ndarray] = []
        problems = Problems(path)
        for number, line in read_lines(path):
            try:
                rows.append(self._parse(line))
            except ValueError as error:
                problems.add(number, str(error))
        problems.raise_if_any()
        return np.stack(rows)

    def _parse(self, line: str) -> np.ndarray:
        config = self.config
        if not re.fullmatch(r"\d+,\d+(\|\d+,\d+)*/\d+,\d+=\d+(,\d+)*", line):
            raise ValueError(f"not of the form a,b|b,c/start,goal=start,...,goal: {line[:60]!r}")
        row = self.encode(line)
        if len(row) != config.line_length:
            raise ValueError(
                f"{len(row)} tokens, but G({config.degree},{config.length}) has {config.line_length}: "
                "set task.degree and task.length to those of the file"
            )
        prompt, path = row[: config.prompt_length], row[config.prompt_length :]
        if prompt[-1] != self.equals:
            raise ValueError(f"the number of edges is not {config.edges}, that of G({config.degree},{config.length})")
        sources, targets = prompt[0 : 3 * config.edges : 3].tolist(), prompt[1 : 3 * config.edges : 3].tolist()
        edges, centre = set(zip(sources, targets)), int(prompt[-3])
        if len({centre, *targets}) != config.edges + 1 or not _all_reached(edges, centre, config.length - 1):
            raise ValueError(f"the edges are not {config.degree} arms of {config.length - 1} nodes from the start")
        if path[0] != prompt[-3] or path[-1] != prompt[-2]:
            raise ValueError("the path does not lead from the start to the goal")
        if any(step not in edges for step in zip(path[:-1].tolist(), path[1:].tolist())):
            raise ValueError("the path takes an edge that the graph does not have")
        return row

    # Scores

    def score(self, examples: Examples, completions: Sequence[Completion]) -> dict[str, float]:
        """`path_accuracy`: every node is right, and nothing follows. `branch_accuracy`: the second node of the path is
        right."""
        length = self.config.length
        truth = np.stack([examples.answer(row) for row in range(len(examples))])
        answer = np.full_like(truth, -1)
        for row, completion in enumerate(completions):
            answer[row, : len(completion.tokens)] = completion.tokens[:length]
        right = truth == answer
        ends = np.array([len(completion.tokens) == length for completion in completions])
        return {
            "path_accuracy": float((right.all(axis=1) & ends).mean()),
            "branch_accuracy": float(right[:, self._branch_place()].mean()),
        }

    def _branch_place(self) -> int:
        return self.config.length - 2 if self.config.encoding == "reverse" else 1

    def score_positions(self, examples: Examples, chosen: np.ndarray) -> dict[str, float]:
        """`position_1`, ...: teacher-forced accuracy at each node of the answer."""
        rows, correct = np.arange(len(examples)), chosen == examples.tokens
        return {
            f"position_{position + 1}": float(correct[rows, examples.prompt_lengths + position].mean())
            for position in range(self.config.length)
        }

    def sample_of(self, examples: Examples, row: int, completion: Completion) -> dict[str, Any]:
        """Adds `graph`: edges, start, goal, and the true and predicted paths from the start, as node numbers."""
        config, tokens = self.config, examples.tokens[row].tolist()
        forward = slice(None, None, -1) if config.encoding == "reverse" else slice(None)
        graph = {
            "edges": [tokens[column : column + 2] for column in range(0, 3 * config.edges, 3)],
            "start": tokens[3 * config.edges],
            "goal": tokens[3 * config.edges + 1],
            "truth": examples.answer(row).tolist()[forward],
            "predicted": completion.tokens.tolist()[forward],
        }
        return {**super().sample_of(examples, row, completion), "graph": graph}

    # World

    def labels(self, examples: Examples) -> np.ndarray:
        """(n, T): the current node at each position of the answer; -1 in the prompt."""
        column = np.arange(examples.tokens.shape[1])
        answer = (column >= examples.prompt_lengths[:, None]) & (column < examples.lengths[:, None])
        return np.where(answer, examples.tokens, -1)

    def legal(self, prefix: np.ndarray) -> np.ndarray:
        """Legal next tokens: in the answer the start (or goal), then neighbours along edges; in the prompt any, and
        also after a prompt that is not a graph of this size."""
        config = self.config
        ends = np.flatnonzero(prefix == self.equals)
        if not len(ends) or ends[0] < config.prompt_length - 1:
            return np.arange(len(self.vocab))
        done = len(prefix) - int(ends[0]) - 1
        if done >= config.length:
            return np.empty(0, np.int64)
        sources, targets = prefix[0 : 3 * config.edges : 3], prefix[1 : 3 * config.edges : 3]
        start, goal = prefix[3 * config.edges], prefix[3 * config.edges + 1]
        if config.encoding == "reverse":
            return np.array([goal]) if done == 0 else np.sort(sources[targets == prefix[-1]])
        return np.array([start]) if done == 0 else np.sort(targets[sources == prefix[-1]])

    @override
    def state_name(self, label: int) -> str:
        """The name of a node."""
        return f"node {self.vocab.symbols[label]}"

    @override
    def scene(self, tokens: np.ndarray) -> dict[str, Any]:
        """`edges`, `start` and `goal` as token ids."""
        config, E = self.config, self.config.edges
        head = tokens[: config.prompt_length - 1].tolist()
        marks = head[2 : 3 * E : 3]
        if len(head) < config.prompt_length - 1 or marks != [self.bar] * (E - 1) + [self.slash]:
            return {}
        edges, start, goal = [head[at : at + 2] for at in range(0, 3 * E, 3)], head[-2], head[-1]
        if max(*head[-2:], *(node for edge in edges for node in edge)) >= config.nodes:
            return {}
        if not _all_reached({(one, other) for one, other in edges}, start, config.length - 1):
            return {}
        return {"edges": edges, "start": start, "goal": goal}


def _all_reached(edges: set[tuple[int, int]], centre: int, steps: int) -> bool:
    """Whether `steps` steps from the centre, along all arms in parallel, use every edge."""
    front, left = {centre}, set(edges)
    for _ in range(steps):
        reached = {edge for edge in left if edge[0] in front}
        front, left = {target for _, target in reached}, left - reached
    return not left and len(front) * steps == len(edges)
