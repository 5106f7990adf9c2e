"""A task of your own, the larger of two numbers: a model is trained on it and evaluated, from Python.

    python examples/own_task.py [STEPS]

Seconds on a CPU. The accuracy is that of pairs that training never had. docs/adding-a-task.md explains the methods.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import statewise
from statewise.data_types import Examples, Headline
from statewise.tasks.base import Task, Vocab


@dataclass(frozen=True)
class LargerConfig:
    """Fields of the task."""

    numbers: int = 30
    """Numbers are 0 to this one, exclusive."""


class Larger(Task):
    """`7 12 ? 12`: two numbers, a question mark, and the larger of the two. One pair in eight is held out."""

    Config = LargerConfig

    def __init__(self, config, kept=None):
        self.config, self.context = config, 4
        self.vocab = Vocab([*map(str, range(config.numbers)), "?"])
        self.headline = Headline("accuracy", higher_is_better=True, solved_at=0.99)
        pairs = np.stack(np.divmod(np.arange(config.numbers**2), config.numbers), axis=1)
        mark = np.full((len(pairs), 1), config.numbers)
        tokens = np.concatenate([pairs, mark, pairs.max(axis=1, keepdims=True)], axis=1)
        held_out = (pairs @ [7, 3]) % 8 == 5
        self.train_rows, self.test_rows = tokens[~held_out], tokens[held_out]

    def _examples(self, rows):
        return Examples(rows, np.full(len(rows), 4), np.full(len(rows), 3))  # tokens, lengths, lengths of prompts

    def training(self):
        return self._examples(self.train_rows)

    def held_out(self, n=None):
        return self._examples(self.test_rows[:n])

    def read(self, path):
        return self._examples(np.array([self.encode(line) for line in Path(path).read_text().splitlines()]))

    def encode(self, text):
        return self.vocab.encode(text.split())

    def decode(self, tokens):
        return " ".join(self.vocab.decode(tokens))

    def score(self, examples, completions):
        right = [c.tokens.tolist() == examples.answer(row).tolist() for row, c in enumerate(completions)]
        return {"accuracy": float(np.mean(right))}


def main(steps: int = 300) -> float:
    """Returns the accuracy on held-out pairs."""
    backbone = {"name": "gpt", "layers": 2, "width": 64, "heads": 2, "init": "fan_in"}
    trainer = {"steps": steps, "optimizer": "muon", "learning_rate": 3e-3, "warmup_steps": 1, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        run, task = Path(folder) / "run", {"name": "own_task:Larger", "numbers": 30}
        statewise.train("path-star-demo", task=task, backbone=backbone, objective="next_token", **trainer, out=run)
        model = statewise.load(run)
        accuracy = model.evaluate().metrics["accuracy"]
        (completion,) = model.generate(["7 12 ?"])
        print(f"accuracy {accuracy:.3f}; 7 12 ? {model.task.decode(completion.tokens)}")
    return accuracy


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
