import math

import numpy as np
import pytest
import torch
from doubles import MarkovPredictor, random_examples

from statewise.evaluation import evaluate, teacher_forced
from statewise.experiment import make_decoder
from statewise.tasks.path_star import PathStar, PathStarConfig


def test_teacher_forced_metrics_are_sums_over_scored_tokens():
    rng = np.random.default_rng(0)
    examples = random_examples(rng, n=7)
    table = torch.rand(11, 11, generator=torch.Generator().manual_seed(0)) + 0.1
    table /= table.sum(1, keepdim=True)
    total, right, count = 0.0, 0, 0
    choices = np.full(examples.tokens.shape, -1)
    for row in range(7):
        for place in range(max(1, examples.prompt_lengths[row]), examples.lengths[row]):
            before, token = examples.tokens[row, place - 1], examples.tokens[row, place]
            total -= math.log(table[before, token])
            choices[row, place] = int(table[before].argmax())
            right += choices[row, place] == token
            count += 1
    for block in (1, 3, 100):
        metrics, chosen = teacher_forced(MarkovPredictor(table), examples, block=block)
        assert metrics["loss"] == pytest.approx(total / count, rel=1e-5)
        assert metrics["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
        assert metrics["token_accuracy"] == pytest.approx(right / count)
        np.testing.assert_array_equal(chosen, choices)


class Solver(MarkovPredictor):
    """Reads the graph, and answers with the path: exact, whatever the batch's order."""

    def __init__(self, task):
        super().__init__(torch.eye(len(task.vocab)) * 0.9 + 0.1 / len(task.vocab))
        self.task, self.context = task, task.context

    def start(self, prompts):
        answers = []
        for prompt in prompts.numpy():
            following = {a: [] for a in prompt}
            for a, b in zip(prompt[0:18:3], prompt[1:18:3]):
                following[a].append(b)
            path = next([prompt[18], middle, prompt[19]] for middle in following[prompt[18]]
                        if prompt[19] in following[middle])  # fmt: skip
            answers.append(path)
        cursor = [torch.tensor(np.array(answers)), 0]
        return cursor, self.table[cursor[0][:, 0]]

    def extend(self, cursor, tokens):
        cursor[1] += 1
        return self.table[cursor[0][:, cursor[1]]][:, None]


def test_answers_are_decoded_scored_and_kept_in_order():
    task = PathStar(PathStarConfig(degree=3, length=3, nodes=9, held_out_graphs=40))
    examples = task.held_out()
    evaluation = evaluate(task, Solver(task), make_decoder("greedy"), examples, block=16)
    assert evaluation.metrics["path_accuracy"] == 1.0
    assert next(iter(evaluation.metrics)) == "path_accuracy"
    assert evaluation.num == 40
    for row, sample in enumerate(evaluation.samples):
        assert sample["truth"] == sample["predicted"] == task.decode(examples.answer(row))


def test_examples_without_a_scored_token_are_refused():
    examples = random_examples(np.random.default_rng(0), n=2)
    nothing = type(examples)(examples.tokens, examples.lengths, examples.lengths)
    with pytest.raises(ValueError, match="no token to score"):
        teacher_forced(MarkovPredictor(torch.full((11, 11), 1 / 11)), nothing, block=4)
