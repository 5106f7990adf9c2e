import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from doubles import FixedTask, MarkovPredictor, random_examples

from statewise.data_types import Evaluation, Part
from statewise.decoding import make_decoder
from statewise.decoding.base import Request
from statewise.evaluation.evaluate import complete, evaluate, means, teacher_forced
from statewise.experiments.requests import verdict
from statewise.tasks.own_files.sequences import Sequences, SequencesConfig
from statewise.tasks.path_star import PathStar, PathStarConfig


def test_teacher_forced_metrics_are_sums_over_scored_tokens():
    rng = np.random.default_rng(0)
    examples = random_examples(rng, n=7)
    table = torch.rand(11, 11, generator=torch.Generator().manual_seed(0)) + 0.1
    table /= table.sum(1, keepdim=True)
    total, right, count = 0.0, 0, 0
    by_token = np.zeros(examples.tokens.shape)
    choices = np.full(examples.tokens.shape, -1)
    for row in range(7):
        for place in range(max(1, examples.prompt_lengths[row]), examples.lengths[row]):
            before, token = examples.tokens[row, place - 1], examples.tokens[row, place]
            total -= math.log(table[before, token])
            by_token[row, place] = -math.log(table[before, token])
            choices[row, place] = int(table[before].argmax())
            right += choices[row, place] == token
            count += 1
    for block in (1, 3, 100):
        metrics, chosen, nats = teacher_forced(MarkovPredictor(table), examples, block=block)
        assert metrics["loss"] == pytest.approx(total / count, rel=1e-5)
        assert metrics["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
        assert metrics["token_accuracy"] == pytest.approx(right / count)
        np.testing.assert_array_equal(chosen, choices)
        np.testing.assert_allclose(nats, by_token, rtol=1e-5)


class Solver(MarkovPredictor):
    """Reads the graph, and answers with the path: exact, whatever the batch's order."""

    def __init__(self, task):
        super().__init__(torch.eye(len(task.vocab)) * 0.9 + 0.1 / len(task.vocab))
        self.task, self.context = task, task.context

    def start(self, prompts, counts=None):
        answers = []
        for prompt in prompts.numpy():
            following = {a: [] for a in prompt}
            for a, b in zip(prompt[0:18:3], prompt[1:18:3]):
                following[a].append(b)
            path = next(
                [prompt[18], middle, prompt[19]] for middle in following[prompt[18]] if prompt[19] in following[middle]
            )
            answers.append(path)
        cursor = [torch.tensor(np.array(answers)), 0]
        return cursor, self.table[cursor[0][:, 0]]

    def extend(self, cursor, tokens, counts=None):
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


def test_prompts_of_different_length_are_decoded_together_each_up_to_its_own_context():
    examples = random_examples(np.random.default_rng(3), n=23, longest=20)
    table = torch.rand(11, 11, generator=torch.Generator().manual_seed(1)) + 0.1
    predictor = MarkovPredictor(table / table.sum(1, keepdim=True), context=20)
    read = []

    class Counting(MarkovPredictor):
        def start(self, prompts, counts=None):
            read.append(len(prompts))
            return super().start(prompts, counts)

    counting = Counting(predictor.table.exp(), context=20)
    together = complete(FixedTask(examples), counting, make_decoder("sample"), examples, block=8)
    assert len(read) < len(np.unique(examples.prompt_lengths)) < 23 == sum(read)
    for row, completion in enumerate(together):
        request = Request([examples.prompt(row)], 20, rows=[row])
        (alone,) = make_decoder("sample").decode(predictor, request)
        np.testing.assert_array_equal(completion.tokens, alone.tokens)
        assert len(completion.tokens) == 20 - examples.prompt_lengths[row]


def test_examples_without_a_scored_token_are_refused():
    examples = random_examples(np.random.default_rng(0), n=2)
    nothing = type(examples)(examples.tokens, examples.lengths, examples.lengths)
    with pytest.raises(ValueError, match="no token to score"):
        teacher_forced(MarkovPredictor(torch.full((11, 11), 1 / 11)), nothing, block=4)


LETTERS = "abcdef"


def sequences_of(tmp_path, lines):
    path = tmp_path / "letters.txt"
    path.write_text("\n".join(lines) + "\n")
    return Sequences(SequencesConfig(path=str(path), held_out_share=0.5))


def alphabet(task):
    """A model that finds the next letter of the alphabet likely, and the end after its last."""
    table = torch.full((len(task.vocab), len(task.vocab)), 0.01)
    for one, other in zip(LETTERS, [*LETTERS[1:], "<end>"]):
        table[task.vocab.ids[one], task.vocab.ids[other]] = 0.9
    predictor = MarkovPredictor(table / table.sum(1, keepdim=True))
    predictor.context = task.context
    return predictor


def test_sequences_without_prompts_are_gone_on_with_and_ranked(tmp_path):
    lines = [*("a b c d e f", "b c d e f", "c d e f"), *("f e d c b a", "e d c b a", "f d b", "a c e", "b d f", "e f")]
    task = sequences_of(tmp_path, lines * 2)
    predictor, examples = alphabet(task), task.read(tmp_path / "letters.txt")
    found = evaluate(task, predictor, make_decoder("greedy"), examples, block=4)
    assert found.samples == []
    assert len(found.continuations) == 6  # different ones, though each is there twice
    assert found.continuations[0] == {"prompt": "a b c", "truth": "d e f <end>", "predicted": "d e f <end>"}
    assert found.continuations[3] == {"prompt": "f e d", "truth": "c b a <end>", "predicted": "e f <end>"}

    def slow(line):
        rows = [task.vocab.ids[symbol] for symbol in [*line.split(), "<end>"]]
        return float(np.mean([-float(predictor.table[one, other]) for one, other in pairwise(rows)]))

    ranked = sorted(lines, key=slow)
    assert len(found.hardest) == len(found.easiest) == 4  # of nine different ones
    for kept, expected in ((found.easiest, ranked), (found.hardest, ranked[::-1])):
        assert [one["nats_per_token"] for one in kept] == pytest.approx([slow(line) for line in expected[:4]], rel=1e-5)
        for one in kept:
            line = one["text"].removesuffix(" <end>")
            assert slow(line) == pytest.approx(one["nats_per_token"], rel=1e-5)
            assert (one["tokens"], one["copies"]) == (len(line.split()), 2)
    assert found.baselines == task.baselines(examples)
    assert set(found.baselines) == {
        "unigram",
        "bigram",
        "longest match",
        "variable order",
        "repeat last",
        "always <end>",
    }
    assert all(set(metrics) <= set(found.metrics) for metrics in found.baselines.values())
    few = evaluate(task, predictor, make_decoder("greedy"), examples, block=4, details=False)
    assert few.metrics == found.metrics
    assert (few.continuations, few.hardest, few.easiest, few.baselines) == ([], [], [], {})


def test_what_is_kept_of_long_sequences_is_bounded(tmp_path):
    lines = [" ".join(LETTERS[(start + place) % 6] for place in range(400)) for start in range(4)]
    task = sequences_of(tmp_path, lines)
    found = evaluate(task, alphabet(task), make_decoder("greedy"), task.held_out())
    assert [len(one["text"].split()) for one in (*found.hardest, *found.easiest)] == [65, 65]
    assert found.hardest[0]["text"].endswith(" ...")
    for sample in found.continuations:
        assert [len(sample[name].split()) for name in ("prompt", "truth")] == [64, 64]
        assert len(sample["predicted"].split()) <= 64


def test_whatever_else_is_measured_is_averaged_over_all_examples():
    examples = random_examples(np.random.default_rng(3), n=5, prompts=False)

    def measure(batch):
        """The mean token, and those two and more places ahead; nothing lies forty ahead."""
        ahead = [batch.tokens[:, steps:][batch.real[:, steps:]] for steps in (2, 5, 40)]
        by_step = Part(torch.stack([some.sum() for some in ahead]), torch.tensor([len(some) for some in ahead]), 1.0)
        return {"token": Part(batch.tokens.sum(), batch.real.sum(), 1.0), "ahead": by_step}

    rows = [examples.tokens[row, :length].tolist() for row, length in enumerate(examples.lengths)]
    for block in (1, 2, 100):
        found = means(measure, examples, block=block)
        assert set(found) == {"token", "step_1_ahead", "step_2_ahead"}
        assert found["token"] == pytest.approx(np.mean(np.concatenate(rows)))
        assert found["step_2_ahead"] == pytest.approx(np.mean(np.concatenate([row[5:] for row in rows])))


@pytest.mark.parametrize(
    ("metrics", "baselines", "own", "said"),
    [
        (
            {"path_accuracy": 0.998},
            {},
            True,
            "path_accuracy is 0.9980: chance is 0.5000, the task is solved (from 0.99).",
        ),
        (
            {"path_accuracy": 0.4},
            {"uniform": {"path_accuracy": 0.25}},
            False,
            "path_accuracy is 0.4000: uniform has 0.2500, the task is not solved (from 0.99).",
        ),
        ({"loss": 1.0}, {}, True, "These examples do not give path_accuracy, by which the task ranks runs."),
    ],
)
def test_an_evaluation_is_summed_up_in_a_sentence(metrics, baselines, own, said):
    task = PathStar(PathStarConfig(degree=2, length=3, nodes=5))
    assert verdict(task, Evaluation(metrics, 10, [], baselines=baselines), own=own) == said
