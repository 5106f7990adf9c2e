"""Probes against fakes whose states hold exactly what is known, and the batched training against a plain one."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from doubles import FixedTask, MarkovPredictor, SumPredictor, random_examples, subject, tiny_objective
from torch import nn

from statewise.analysis import make_analysis
from statewise.analysis.base import Findings, Snapshot
from statewise.analysis.beliefs.vectors import beliefs, prefix_states, states_of
from statewise.analysis.probes import fit as probe_fit
from statewise.analysis.probes.fit import UNDEFINED, FitConfig, Probes, Sample, fit_and_answer, order
from statewise.analysis.probes.probing import TEST, TRAINING, VALIDATION, by_layer, draw_training, split_by_prefix
from statewise.analysis.probes.targets import draw_positions, numbers
from statewise.data_types import Examples, Hidden
from statewise.reporting.figures import Curve, Panel
from statewise.tasks import TASKS
from statewise.tasks.batches import collate

QUICK = {"steps": 150, "training_sequences": 400, "sequences": 200, "hidden": 32}


def star(**fields):
    kind = TASKS["path_star"]
    return kind(kind.Config(**{"degree": 2, "length": 4, "nodes": 8, "held_out_graphs": 200, **fields}))


class Seer(MarkovPredictor):
    """Of a path-star graph it knows all that follows the prompt; its state says so, a one-hot vector a token."""

    def __init__(self, task, sees=True):
        super().__init__(torch.full((len(task.vocab),) * 2, 1.0))
        self.task, self.sees = task, sees

    def path(self, prompt):
        edges = 3 * self.task.config.edges
        before = dict(zip(prompt[1:edges:3], prompt[0:edges:3]))
        path = [prompt[-2]]
        while path[-1] != prompt[-3]:
            path.append(before[path[-1]])
        return path[::-1]

    def states(self, batch):
        assert batch.tokens.shape[1] <= self.task.config.prompt_length, "it was shown the answer"
        paths = torch.tensor([self.path(row) for row in batch.tokens.tolist()])
        state = nn.functional.one_hot(paths if self.sees else torch.zeros_like(paths), self.vocabulary).flatten(1)
        state = state.float()[:, None].expand(-1, batch.tokens.shape[1], -1)
        return Hidden(state, state)


def of_layer(accuracy):
    curve = Curve("step 1", [1.0, 2.0], [accuracy] * 2, "series")
    panels = [Panel("position", "accuracy", [curve])]
    return Findings({"accuracy": accuracy, "accuracy_untrained": 0.0}, panels, {"probed": "step 1"}, verdict="Found.")


def test_layers_are_numbered_from_1():
    found = by_layer({f"blocks.{place}.hook_resid_post": of_layer(place / 4) for place in range(2)})
    over_layers, along = found.panels
    assert over_layers.curves[0].x == [1, 2]
    assert [curve.label for curve in along.curves] == ["layer 1", "layer 2"]
    assert set(found.metrics) >= {"accuracy_blocks.0.hook_resid_post"}
    streams = [f"{stream}.0.hook_resid_post" for stream in ("blocks", "second")]
    along = by_layer({name: of_layer(0.5) for name in streams}).panels[1]
    assert [curve.label for curve in along.curves] == streams, "the number alone does not tell them apart"


def lines(findings):
    return {line["label"]: line for line in findings.details["lines"]}


# The batched training


def data(rng, groups=2, n=60, P=3, D=5, C=4):
    states = [torch.from_numpy(rng.normal(2, 3, (n, D))) for _ in range(groups)]
    labels = torch.from_numpy(rng.integers(0, C, (groups, n, P)))
    labels[:, rng.random(n) < 0.3, 0] = UNDEFINED
    return Sample(states, labels)


@pytest.mark.parametrize("probe", ["mlp", "linear"])
def test_probes_trained_at_once_end_as_if_trained_alone(float64, probe):
    rng = np.random.default_rng(0)
    train, validation, test = (data(rng, n=n) for n in (60, 40, 30))
    config = FitConfig(probe=probe, hidden=7, steps=60, batch_size=16, learning_rate=0.05, seed=3)
    answers = fit_and_answer(train, validation, test, 4, config)
    fresh = Probes(train, 4, config).weights
    rows, chances = order(60, config), []
    for group in range(2):
        mean, spread = train.states[group].mean(0), train.states[group].std(0, correction=0)
        x, x_validation, x_test = ((sample.states[group] - mean) / spread for sample in (train, validation, test))
        for place in range(3):
            layers = [nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4)] if probe == "mlp" else [nn.Linear(5, 4)]
            network = nn.Sequential(*layers)
            with torch.no_grad():
                for number, linear in enumerate(layer for layer in layers if isinstance(layer, nn.Linear)):
                    linear.weight.copy_(fresh[2 * number][group, place].T)
                    linear.bias.copy_(fresh[2 * number + 1][group, place])
            adam = torch.optim.Adam(network.parameters(), lr=0.05)
            y, y_validation, y_test = (sample.labels[group, :, place] for sample in (train, validation, test))
            with torch.no_grad():
                loss = float(nn.functional.cross_entropy(network(x_validation), y_validation))
                best = loss, network(x_test).log_softmax(-1)
            for step, batch in enumerate(rows):
                adam.param_groups[0]["lr"] = 0.05 * (1 - step / 60)
                adam.zero_grad()
                nn.functional.cross_entropy(network(x[batch]), y[batch], ignore_index=UNDEFINED).backward()
                adam.step()
                if (step + 1) % 3 == 0:
                    with torch.no_grad():
                        loss = float(nn.functional.cross_entropy(network(x_validation), y_validation))
                        best = min(best, (loss, network(x_test).log_softmax(-1)), key=lambda pair: pair[0])
            known = y_test != UNDEFINED
            expected = -best[1][torch.arange(30), y_test.clamp(min=0)]
            np.testing.assert_allclose(answers.surprise[group, known, place], expected[known], rtol=1e-9)
            assert (answers.surprise[group, ~known, place] == 0).all()
            np.testing.assert_array_equal(answers.right[group, :, place], (best[1].argmax(-1) == y_test).numpy())
            chances.append(best[0])
    assert min(chances) < max(chances)


@pytest.mark.parametrize("probe", ["mlp", "linear"])
def test_states_that_tell_nothing_leave_the_constant_guess(float64, probe):
    rng = np.random.default_rng(2)
    train, validation, test = (data(rng, n=n, D=40) for n in (30, 400, 400))
    answers = fit_and_answer(train, validation, test, 4, FitConfig(probe=probe, steps=100, learning_rate=0.5))
    for group in range(2):
        for place in range(3):
            labels, asked = (sample.labels[group, :, place].numpy() for sample in (train, test))
            counts = np.array([1 + (labels == value).sum() for value in range(4)])
            known = asked != UNDEFINED
            expected = -np.log(counts / counts.sum())[asked[known]]
            np.testing.assert_allclose(answers.surprise[group, known, place], expected)


def test_few_groups_at_a_time_give_the_same_answers(float64, monkeypatch):
    rng = np.random.default_rng(1)
    samples = [data(rng, groups=3) for _ in range(3)]
    config = FitConfig(steps=10, batch_size=8, hidden=4)
    whole = fit_and_answer(*samples, 4, config)
    monkeypatch.setattr(probe_fit, "LARGEST", 2 * 3 * 8 * 4)
    np.testing.assert_allclose(fit_and_answer(*samples, 4, config).surprise, whole.surprise)


def test_a_walk_sees_every_row_once():
    steps = order(10, FitConfig(steps=7, batch_size=5))
    assert [len(rows) for rows in steps] == [5] * 7
    for first in (0, 2, 4):
        assert sorted([*steps[first], *steps[first + 1]]) == list(range(10))


# What probes find


@pytest.mark.parametrize("probe", ["mlp", "linear"])
def test_a_state_that_holds_the_future_answers_everything(probe):
    task = star()
    found = make_analysis("future-probe", probe=probe, **QUICK).analyze(
        subject(Seer(task), task, untrained=Seer(task, sees=False))
    )
    by_label = lines(found)
    assert found.details["x"] == [1, 2, 3, 4]
    assert by_label["step 9"]["accuracy"] == [1.0] * 4
    assert max(by_label["step 9"]["cross_entropy"]) < 0.5
    # A state that is always the same can only be answered with the label that is most frequent in training.
    assert max(by_label["untrained model"]["accuracy"]) < 0.3
    assert min(by_label["untrained model"]["cross_entropy"]) > np.log(8) - 0.1
    assert max(by_label["shuffled labels"]["accuracy"]) < 0.4
    assert found.metrics["accuracy"] == 1.0
    assert found.metrics["accuracy_untrained"] == pytest.approx(np.mean(by_label["untrained model"]["accuracy"]))


def test_a_state_that_holds_nothing_gets_the_share_of_the_most_frequent_label():
    rng = np.random.default_rng(2)
    sides = []
    for n in (300, 200):
        tokens = np.stack([np.zeros(n, int), rng.choice(3, n, p=[0.2, 0.7, 0.1]), rng.choice(2, n, p=[0.1, 0.9])], 1)
        sides.append(Examples(tokens, np.full(n, 3), np.ones(n, int)))
    train, held_out = sides
    found = make_analysis("future-probe", steps=100, hidden=8).analyze(
        subject(SumPredictor(), FixedTask(held_out, train))
    )
    shares = [(held_out.tokens[:, 1] == 1).mean(), (held_out.tokens[:, 2] == 1).mean()]
    for label in ("step 9", "untrained model", "shuffled labels", "most frequent label"):
        assert lines(found)[label]["accuracy"] == pytest.approx(shares)
    entropy = -(np.array([0.2, 0.7, 0.1]) * np.log([0.2, 0.7, 0.1])).sum()
    assert lines(found)["most frequent label"]["cross_entropy"][0] == pytest.approx(entropy, abs=0.1)
    assert found.details["held_out_sequences"] == 200
    assert found.details["probe_training_sequences"] == 300


def test_checkpoints_make_a_family_and_each_step_comes_once():
    task = star()
    seer, blind = Seer(task), Seer(task, sees=False)
    looked_at = subject(seer, task, blind, step_12=seer, step_3=blind, step_9=seer)
    quick = {**QUICK, "steps": 80}
    found = make_analysis("future-probe", checkpoints="all", **quick).analyze(looked_at)
    trained = [line for line in found.details["lines"] if line["step"] is not None]
    assert [line["step"] for line in trained] == [3, 9, 12]
    assert trained[0]["accuracy"] != trained[1]["accuracy"] == trained[2]["accuracy"] == [1.0] * 4
    assert [curve.role for curve in found.panels[0].curves] == ["series"] * 3 + ["control"] * 3
    over_steps = found.panels[2]
    assert [curve.label for curve in over_steps.curves] == [f"offset {number}" for number in (1, 2, 3, 4)]
    assert over_steps.curves[1].x == [3, 9, 12]
    assert over_steps.curves[1].y == [line["accuracy"][1] for line in trained]
    alone = make_analysis("future-probe", **quick).analyze(subject(seer, task, blind))
    assert len(alone.panels) == 2
    assert lines(alone)["step 9"] == lines(found)["step 9"]


def test_a_step_seen_before_is_not_loaded_again():
    loaded = []

    def load(step):
        loaded.append(step)
        return Snapshot(f"step {step}", SumPredictor(), step)

    looked_at = dataclasses.replace(
        subject(SumPredictor(), FixedTask(random_examples(np.random.default_rng(0)))),
        checkpoints=lambda which: ((int(step), partial(load, int(step))) for step in which.split(",")),
    )
    assert [snapshot.step for snapshot in looked_at.each_step("3,9,3,12")] == [9, 3, 12]
    assert loaded == [3, 12]
    assert list(looked_at.each_step(None)) == [looked_at.snapshot]


def test_the_prompt_is_asked_where_it_varies():
    task = star(length=3, nodes=6)

    class Reader(Seer):
        def states(self, batch):
            hot = nn.functional.one_hot(batch.tokens, self.vocabulary).float()
            if not self.sees:
                hot[:, :-3] = 0  # all but start, goal and `=`
            return Hidden(hot.flatten(1)[:, None].expand(-1, batch.tokens.shape[1], -1), hot)

    fields = {"probe": "linear", "steps": 150, "training_sequences": 700, "sequences": 100}
    found = make_analysis("prompt-probe", **fields).analyze(subject(Reader(task), task, Reader(task, sees=False)))
    edges = [place for place in range(1, 12) if place % 3]
    assert found.details["x"] == [*edges, 13, 14]
    assert lines(found)["step 9"]["accuracy"] == [1.0] * 10
    assert lines(found)["untrained model"]["accuracy"][-2:] == [1.0, 1.0]
    assert lines(found)["untrained model"]["accuracy"][0] < 0.5
    assert found.notes == ["positions with the same token in every training prompt are left out: 3, 6, 9, 12, 15"]


def test_without_prompts_states_are_drawn_along_the_sequence():
    # 0 1 2 ... 9 0 1 ...: the last token decides all that follow
    def sequences(n, seed):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(6, 14, n)
        tokens = (rng.integers(0, 10, (n, 1)) + np.arange(14)) % 10
        return Examples(np.where(np.arange(14) < lengths[:, None], tokens, 0), lengths, np.zeros(n, int))

    task = FixedTask(sequences(100, 1), sequences(200, 2))
    found = make_analysis("future-probe", positions=5, steps=100, hidden=32).analyze(
        subject(MarkovPredictor(torch.full((11, 11), 1.0)), task)
    )
    assert found.details["x"] == list(range(1, 13))
    assert found.details["held_out_states"] == 500
    counts = found.details["labels_tested"]
    assert counts[0] == 500
    assert counts == sorted(counts, reverse=True)
    assert lines(found)["step 9"]["accuracy"][:8] == [1.0] * 8


def test_the_future_ends_with_the_document():
    """Rows of several documents are asked about as if each document were a row."""
    tokens = np.arange(1, 13).reshape(2, 6) % 11
    documents = np.array([[1, 1, 1, 2, 2, 2], [1, 2, 2, 2, 2, 3]])
    examples = Examples(tokens, np.array([6, 6]), np.zeros(2, int), documents)
    probe = make_analysis("future-probe", positions=6, offsets="1-3")
    asked = probe.labelled_states(FixedTask(examples, examples), examples, np.random.default_rng(0))
    assert list(zip(asked.rows.tolist(), asked.positions.tolist())) == [
        *((0, place) for place in (0, 1, 3, 4)),
        *((1, place) for place in (1, 2, 3)),
    ]
    assert asked.labels[0].tolist() == [2, 3, UNDEFINED]
    assert asked.labels[4].tolist() == [9, 10, 0]
    assert asked.labels[6].tolist() == [0, UNDEFINED, UNDEFINED]


def test_the_true_state_of_the_world_by_position():
    task = star()
    found = make_analysis("world-probe", **QUICK).analyze(subject(MarkovPredictor(torch.eye(len(task.vocab))), task))
    assert found.details["x"] == [22, 23, 24, 25]
    assert found.details["labels_tested"] == [200] * 4
    assert lines(found)["step 9"]["accuracy"] == [1.0] * 4  # the node reached is the token read


def test_probes_learn_from_other_sequences_than_they_are_tested_on():
    for fields in ({}, {"training_graphs": 60}):
        task = star(**fields)
        drawn = draw_training(task, 0, 200)
        assert len(drawn) == (60 if fields else 200)
        rows = [tuple(row) for row in drawn.tokens]
        assert len(set(rows)) == len(rows)
        assert not set(rows) & {tuple(row) for row in task.held_out().tokens}
        np.testing.assert_array_equal(draw_training(task, 0, 200).tokens, drawn.tokens)


class Memory(MarkovPredictor):
    """A state is noise, the same after the same prefix: only a probe that was trained on a prefix knows its label."""

    def __init__(self, seed=0):
        super().__init__(torch.full((11, 11), 1.0))
        self.seed = seed

    def states(self, batch):
        state = torch.empty(*batch.tokens.shape, 32)
        for row, tokens in enumerate(batch.tokens.tolist()):
            for place in range(len(tokens)):
                rng = np.random.default_rng([self.seed, *tokens[: place + 1]])
                state[row, place] = torch.from_numpy(rng.standard_normal(32))
        return Hidden(state, state)


def hmm(**fields):
    kind = TASKS["hmm"]
    return kind(kind.Config(**fields))


def test_where_no_sequence_is_held_out_prefixes_are():
    task = hmm(process="rrxor", length=8)
    found = make_analysis("world-probe", **QUICK).analyze(subject(Memory(), task, Memory(1)))
    by_label = lines(found)
    assert np.mean(by_label["step 9"]["accuracy"]) < np.mean(by_label["most frequent label"]["accuracy"]) + 0.05
    assert any("other prefixes" in note for note in found.notes)


@pytest.mark.parametrize("length", [12, 20])
def test_states_of_prefixes_that_are_trained_on_are_not_tested(length):
    """Sequences are held out as a whole, their first tokens are not: a state that is a random vector for each prefix
    had 70% right, chance 50%."""
    world = TASKS["automaton"](TASKS["automaton"].Config(process="parity", length=length, held_out_sequences=400))
    found = make_analysis("world-probe", **QUICK).analyze(subject(Memory(), world, Memory(1)))
    assert found.metrics["accuracy"] == pytest.approx(found.metrics["accuracy_constant"], abs=0.06)
    assert any("held-out states are left out" in note or "other prefixes" in note for note in found.notes)


def test_labels_that_no_training_prefix_has_are_not_tested():
    task, probe = hmm(process="rrxor", length=8), make_analysis("world-probe", positions=8)
    test, train = task.held_out(200), task.sample(np.random.default_rng(0), 400)
    every = [probe.labelled_states(task, examples, np.random.default_rng(1)) for examples in (test, train)]
    asked, trained, validates = probe._by_prefix(test, every[0], train, every[1])
    read = [
        {tuple(examples.tokens[row, : place + 1]) for row, place in zip(one.rows, one.positions)}
        for examples, one in ((test, asked), (train, trained))
    ]
    assert not read[0] & read[1]
    assert set(asked.labels.flat) <= {UNDEFINED, *trained.labels[~validates].flat}
    assert 0 < (asked.labels == UNDEFINED).mean() < 0.5


def test_the_parts_of_prefixes_have_none_in_common():
    rng = np.random.default_rng(0)
    asked, trained = rng.integers(0, 100, 300).astype(np.uint64), rng.integers(0, 100, 3000).astype(np.uint64)
    parts = split_by_prefix(asked, trained, validation=0.2)
    of_part = [set(asked[parts[0] == part]) | set(trained[parts[1] == part]) for part in (TEST, VALIDATION, TRAINING)]
    assert [len(each) for each in of_part] == [25, 15, 60]
    assert len(set.union(*of_part)) == 100
    with pytest.raises(ValueError, match="39 different prefixes"):
        split_by_prefix(np.arange(39, dtype=np.uint64), validation=0.2)


def test_too_few_prefixes_are_refused():
    task = hmm(process="rrxor", length=3)
    with pytest.raises(ValueError, match="6 different prefixes to probe: a probe needs at least 40"):
        make_analysis("future-probe", **QUICK).analyze(subject(Memory(), task))
    with pytest.raises(ValueError, match=r"the true state at no position .* has states only if"):
        make_analysis("world-probe", **QUICK).analyze(subject(Memory(), hmm(process="mess3")))


def test_probes_stop_before_they_learn_training_sequences_by_heart():
    def sequences(n, seed):
        rng = np.random.default_rng(seed)
        return Examples(rng.integers(0, 11, (n, 6)), np.full(n, 6), np.full(n, 5))

    task = FixedTask(sequences(300, 1), sequences(300, 2))  # the last token is random, and the prompts are distinct
    fields = {"steps": 300, "hidden": 64, "learning_rate": 0.01}
    found = make_analysis("future-probe", **fields).analyze(subject(Memory(), task, Memory(1)))
    by_label = lines(found)
    nats = by_label["step 9"]["cross_entropy"]
    assert nats == pytest.approx(by_label["most frequent label"]["cross_entropy"], abs=0.05)


def test_the_same_seed_gives_the_same_findings():
    task = star()
    one, two, other = (
        make_analysis("future-probe", seed=seed, **{**QUICK, "steps": 10}).analyze(subject(Seer(task), task))
        for seed in (1, 1, 2)
    )
    assert one == two
    assert one.details != other.details


# States


def test_states_come_from_the_right_places_and_see_nothing_later():
    examples = random_examples(np.random.default_rng(3), n=150)
    rng = np.random.default_rng(4)
    rows = rng.integers(0, 150, 400)
    places = rng.integers(0, examples.lengths[rows])
    found = prefix_states(Snapshot("", SumPredictor()), examples, rows, places)
    for number, (row, place) in enumerate(zip(rows, places)):
        assert found[number].tolist() == [examples.tokens[row, : place + 1].sum(), place + 1]


def test_states_of_packed_rows_are_those_of_their_documents():
    class Documents(MarkovPredictor):
        def states(self, batch):
            state = batch.documents[:, :, None].float()
            return Hidden(state, state)

    examples = Examples(
        np.ones((2, 4), int), np.array([4, 4]), np.zeros(2, int), np.array([[1, 1, 2, 2], [1, 2, 3, 3]])
    )
    rows, places = np.array([0, 0, 1]), np.array([1, 2, 2])
    packed = Documents(torch.eye(11))
    assert prefix_states(Snapshot("", packed), examples, rows, places)[:, 0].tolist() == [1, 2, 3]
    asked = []
    model = Snapshot("here", packed, 1, lambda key, make: asked.append(key) or make())
    alone = Examples(examples.tokens, examples.lengths, examples.prompt_lengths, np.ones((2, 4), int))
    for one in (examples, alone):
        states_of(model, one, rows, places)
    assert asked[0] != asked[1]


def test_answers_that_a_model_does_not_read_stay_hidden_in_prefixes():
    """Teacherless models read filler tokens in place of answers, wherever in a sequence these are."""
    kind = TASKS["automaton"]
    task = kind(kind.Config(process="parity", length=16, held_out_sequences=40))
    predictor = tiny_objective("teacherless", backbone={"context": 16}).predictor()
    examples = task.held_out(8)
    with torch.no_grad():
        whole = predictor.states(collate(examples)).state.numpy()
    rows, columns = np.nonzero(np.ones(examples.tokens.shape, bool))
    made = subject(predictor, task).snapshot
    np.testing.assert_allclose(prefix_states(made, examples, rows, columns), whole[rows, columns], atol=1e-5)
    other = dataclasses.replace(examples, scored=np.roll(examples.scored, 1, axis=1))
    states = [states_of(made, one, rows, columns) for one in (examples, other)]
    assert not np.allclose(*states), "which tokens are answers belongs to what is cached"


def test_beliefs_of_prefixes_and_suffixes():
    examples = random_examples(np.random.default_rng(5), n=100)
    whole = [[row[:length].sum(), length] for row, length in zip(examples.tokens, examples.lengths)]
    for of in ("prefix", "suffix"):
        assert beliefs(Snapshot("", SumPredictor()), examples, "last", of).vectors.tolist() == whole
    every = beliefs(Snapshot("", SumPredictor()), examples, "all", "suffix")
    assert every.offsets[-1] == examples.lengths.sum() == len(every.vectors)
    for row in range(100):
        part = every.vectors[every.offsets[row] : every.offsets[row + 1]]
        assert part[:, 1].tolist() == list(range(examples.lengths[row], 0, -1))
        assert part[-1, 0] == examples.tokens[row, examples.lengths[row] - 1]
    prompt, answer = (
        beliefs(Snapshot("", SumPredictor()), examples, "prompt", of).vectors for of in ("prefix", "suffix")
    )
    assert prompt[:, 1].tolist() == examples.prompt_lengths.tolist()
    assert (prompt + answer).tolist() == whole
    with pytest.raises(ValueError, match="a model that reads backwards as well"):
        beliefs(Snapshot("", MarkovPredictor(torch.eye(11))), examples, of="suffix")
    with pytest.raises(ValueError, match="sequence 1 has no prompt"):
        beliefs(Snapshot("", SumPredictor()), random_examples(np.random.default_rng(5), prompts=False), "prompt")


def test_states_that_are_no_numbers_are_refused():
    class Broken(SumPredictor):
        def states(self, batch):
            state = super().states(batch).state / 0
            return Hidden(state, state)

    examples = random_examples(np.random.default_rng(0))
    with pytest.raises(ValueError, match="step 7 are not finite"):
        states_of(Snapshot("step 7", Broken()), examples, np.arange(2), np.arange(2))


# Mistakes


def short(n=30, length=4, prompt=1):
    tokens = np.random.default_rng(0).integers(0, 5, (n, length))
    return FixedTask(Examples(tokens, np.full(n, length), np.full(n, prompt)))


@pytest.mark.parametrize(
    ("name", "task", "fields", "message"),
    [
        ("future-probe", short(), {"offsets": "1-5"}, "no token is 5 positions after a state: choose offsets up to 3"),
        ("future-probe", short(prompt=2), {"offsets": "1-3"}, "3 positions after the state: choose offsets up to 2"),
        ("future-probe", short(length=1), {}, "too short for future-probe"),
        ("future-probe", short(n=9), {}, "training set has 9 sequences: a probe needs at least 10"),
        ("prompt-probe", short(prompt=0), {}, "have no prompts: use future-probe"),
        ("world-probe", short(), {}, "needs a task that knows its true state"),
    ],
)
def test_what_cannot_be_probed_is_said(name, task, fields, message):
    with pytest.raises(ValueError, match=message):
        make_analysis(name, steps=2, **fields).analyze(subject(SumPredictor(), task))


def test_prompts_that_never_change_are_nothing_to_probe_for():
    same = Examples(np.tile(np.arange(4), (20, 1)), np.full(20, 4), np.full(20, 3))
    with pytest.raises(ValueError, match="all the same"):
        make_analysis("prompt-probe", steps=2).analyze(subject(SumPredictor(), FixedTask(same)))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("future-probe", {"offsets": "4-2"}, "a range like 1-8"),
        ("future-probe", {"offsets": "0"}, "a range like 1-8"),
        ("future-probe", {"positions": 0}, "positions must be at least 1"),
        ("world-probe", {"positions": 0}, "positions must be at least 1"),
        ("prompt-probe", {"probe": "deep"}, "probe"),
        ("prompt-probe", {"hidden": 0}, "hidden must be at least 1"),
        ("prompt-probe", {"sequences": 0}, "sequences must be at least 1"),
        ("prompt-probe", {"training_sequences": 9}, "training_sequences must be at least 10"),
        ("prompt-probe", {"training_sequences": 10**9}, "training_sequences must be .*at most 10,000,000"),
        ("prompt-probe", {"learning_rate": 0}, "learning_rate must be above 0"),
        ("prompt-probe", {"seed": -1}, "seed must be at least 0"),
    ],
)
def test_options_that_make_no_sense(name, fields, message):
    with pytest.raises(ValueError, match=message):
        make_analysis(name, **fields)


def test_numbers_and_drawn_positions():
    assert numbers("1-3") == [1, 2, 3]
    assert numbers("4, 1,2-3") == [1, 2, 3, 4]
    allowed = np.random.default_rng(1).random((50, 9)) < 0.5
    rows, places = draw_positions(allowed, 3, np.random.default_rng(2))
    assert allowed[rows, places].all()
    np.testing.assert_array_equal(np.bincount(rows, minlength=50), np.minimum(allowed.sum(1), 3))
    assert len({*zip(rows.tolist(), places.tolist())}) == len(rows)
