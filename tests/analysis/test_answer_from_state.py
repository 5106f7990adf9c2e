"""Answers read off one state, against the model asked anew for each of their tokens."""

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, FixedTask, MarkovPredictor, random_examples, spread_weights, subject, tiny_objective
from torch.nn import functional as F

from statewise.analysis import make_analysis
from statewise.data_types import Batch, Examples, Hidden
from statewise.decoding.predictor import FutureReader


def from_the_end(objective, prompt, count):
    """Theorem 2 as it stands: the state of the prompt, and the previous token before an ever longer suffix."""
    state = objective.prefix_encoder.encode(Batch.plain(prompt[None])).state[0, -1]
    suffix: list[int] = []
    for _ in range(count):
        read = torch.tensor([suffix[::-1] or [objective.end]])
        behind = objective.suffix_encoder.encode(Batch.plain(read)).state[0, -1]
        x = F.relu(objective.head.second(F.relu(objective.head.first(torch.cat((state, behind))))))
        suffix = [int(objective.head.third(x).view(2, -1)[1, :VOCABULARY].argmax()), *suffix]
    return suffix


def from_the_start(objective, prompt, count):
    """Theorem 3.2 of next-latent prediction: head, token, dynamics, head, ..."""
    backbone = objective.backbone
    state, found = backbone.encode(Batch.plain(prompt[None])).state[:, -1], []
    for _ in range(count):
        token = backbone.logits(state).argmax(-1)
        found.append(int(token))
        state = objective.dynamics(state, backbone.embed(token))
    return found


@pytest.mark.parametrize(
    ("name", "slow", "fields"),
    [
        ("belief_state", from_the_end, {"head": "mlp"}),
        ("belief_state", from_the_end, {"head": "mlp", "min_gap": 1}),
        ("next_latent", from_the_start, {}),
    ],
)
@torch.no_grad()
def test_answers_are_read_off_one_state(name, slow, fields):
    objective = tiny_objective(name, **fields).eval()
    spread_weights(objective)
    examples = random_examples(np.random.default_rng(3), n=40, longest=9)
    read = [slow(objective, torch.from_numpy(examples.prompt(row)), len(examples.answer(row))) for row in range(40)]
    for row in range(0, 40, 2):  # every other answer is what is read, the others are as they were drawn
        examples.tokens[row, examples.prompt_lengths[row] : examples.lengths[row]] = read[row]
    found = make_analysis("answer-from-state").analyze(subject(objective.predictor(), FixedTask(examples)))
    right = [np.array(read[row]) == examples.answer(row) for row in range(40)]
    assert found.metrics["answer_accuracy"] == np.mean([row.all() for row in right])
    assert 0.5 <= found.metrics["answer_accuracy"] < 1
    assert found.metrics["token_accuracy"] == pytest.approx(np.concatenate(right).mean())
    curve, decoded = found.panels[0].curves
    for place, value in enumerate(curve.y):
        assert value == pytest.approx(np.mean([row[place] for row in right if len(row) > place]))
    completions = subject(objective.predictor(), FixedTask(examples)).complete(examples)
    same = [
        one.tokens[: len(row)] == examples.answer(number) for number, (one, row) in enumerate(zip(completions, right))
    ]
    assert found.metrics["decoded_answer_accuracy"] == np.mean([row.all() for row in same])
    assert decoded.y[0] == pytest.approx(np.mean([row[0] for row in same]))
    assert found.metrics["num"] == 40


class Knowing(MarkovPredictor, FutureReader):
    """Its state is the sequence so far, one token; it reads the future as that token, plus one, plus two, ..."""

    future = None

    def __init__(self):
        super().__init__(torch.eye(VOCABULARY).roll(1, 1).clamp(min=1e-6))

    def states(self, batch):
        state = batch.tokens[..., None].float()
        return Hidden(state, state)

    def read_future(self, states, count):
        return (states.long() + 1 + torch.arange(count)) % VOCABULARY


def counting(lengths, prompts):
    rows = [np.arange(length) % VOCABULARY for length in lengths]
    return Examples.of(rows, prompts)


def test_without_prompts_the_last_tokens_are_read():
    task = FixedTask(counting([4, 6, 2], [0, 0, 0]))
    found = make_analysis("answer-from-state", last=2).analyze(subject(Knowing(), task))
    assert found.metrics == {
        "answer_accuracy": 1,
        "token_accuracy": 1,
        "decoded_answer_accuracy": 1,
        "decoded_token_accuracy": 1,
        "num": 2,
    }
    assert found.notes == ["1 of 3 sequences are left out: they have no prompt or no answer"]
    assert found.details["answers_by_length"] == {"2": 2}
    with pytest.raises(ValueError, match="with `last`"):
        make_analysis("answer-from-state").analyze(subject(Knowing(), task))
    with pytest.raises(ValueError, match="more than 9 tokens: choose a smaller"):
        make_analysis("answer-from-state", last=9).analyze(subject(Knowing(), task))


def test_what_cannot_be_read_off_a_state_is_said():
    examples = counting([4], [1])
    with pytest.raises(ValueError, match="from a state alone"):
        make_analysis("answer-from-state").analyze(subject(MarkovPredictor(torch.eye(VOCABULARY)), FixedTask(examples)))
    objective = tiny_objective("belief_state", previous_weight=0.0).eval()
    with pytest.raises(ValueError, match="no head for them"):
        make_analysis("answer-from-state").analyze(subject(objective.predictor(), FixedTask(examples)))
    packed = Examples(examples.tokens, examples.lengths, examples.prompt_lengths, np.array([[1, 1, 2, 2]]))
    with pytest.raises(ValueError, match="several documents"):
        make_analysis("answer-from-state").analyze(subject(Knowing(), FixedTask(packed)))
    for fields in ({"sequences": 0}, {"last": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            make_analysis("answer-from-state", **fields)
