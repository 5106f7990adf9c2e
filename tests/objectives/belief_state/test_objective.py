"""All pairs at once against every pair by itself, gradients included; goals, endings and the theory's small cases."""

import numpy as np
import pytest
import torch
from doubles import VOCABULARY, pack, random_batch, random_examples, spread_weights, tiny_objective
from torch.nn import functional as F

from statewise.data_types import Batch
from statewise.losses.belief_state import pair_loss
from statewise.losses.belief_state.pairs import Block
from statewise.tasks.batches import collate

pytestmark = pytest.mark.usefixtures("float64")


def documents_of(batch):
    """(tokens, prompt length) of each document."""
    numbers = batch.documents if batch.documents is not None else batch.real.long()
    found = []
    for b in range(len(batch.tokens)):
        for number in numbers[b].unique().tolist():
            if number:
                own = numbers[b] == number
                scored = batch.scored[b][own].tolist()
                prompt = scored.index(True)
                found.append((batch.tokens[b][own], 0 if prompt == 1 else prompt))
    return found


def slow_twin(objective, batch):
    """Equation 2, pair by pair: every prefix and every suffix is encoded by itself, once, alone in its row."""
    config, V = objective.config, objective.vocabulary
    following, previous = [], []

    def encode(encoder, tokens, empty):
        return encoder.encode(Batch.plain(tokens[None] if len(tokens) else torch.tensor([[empty]]))).state[0, -1]

    for tokens, prompt in documents_of(batch):
        T = len(tokens)
        prefixes = [encode(objective.prefix_encoder, tokens[:i], objective.begin) for i in range(T + 1)]
        suffixes = {}
        if config.backward:
            for j in range(1, T + 2):
                suffixes[j] = encode(objective.suffix_encoder, tokens[j - 1 :].flip(0), objective.end)
        for i in range(T + 1):  # the prefix x_1 .. x_i
            for j in range(i + config.min_gap, T + 2):  # the suffix x_j .. x_T
                inputs = [prefixes[i], *([suffixes[j]] if config.backward else [])]
                last = whole_head(objective.head, torch.cat(inputs)).log_softmax(-1)
                closed = j == i + 1
                next_target = V if closed else tokens[i]
                previous_target = V if closed else tokens[j - 2]
                # The next token is x_{i+1}: in the answer if i >= prompt. The previous one is x_{j-1}.
                if closed:
                    in_answer = i >= prompt
                    counts_next = counts_previous = in_answer
                    if config.pairs == "all":
                        counts_previous = True
                else:
                    counts_next = i >= prompt
                    counts_previous = {"answer": i >= prompt, "any_prefix": j - 2 >= prompt, "all": True}[config.pairs]
                if counts_next:
                    following.append(-last[0, next_target])
                if counts_previous and config.previous_weight:
                    previous.append(-last[1, previous_target])
    parts = {"next_token": sum(following) / len(following)}
    if config.previous_weight:
        parts["previous_token"] = sum(previous) / len(previous)
    return parts


def whole_head(head, x):
    """The text head on [f; b] as it is usually written."""
    if hasattr(head, "norm"):
        gate, value = head.first(x).chunk(2, dim=-1)
        return head.third(head.norm(x + head.second(F.silu(gate) * value)).view(head.outputs, -1))
    if hasattr(head, "experts"):
        x = x.split(head.prefix_experts.in_features)
        logits = sum(linear(part) for linear, part in zip((head.prefix_experts, head.suffix_experts), x))
        if head.words:
            hidden = logits.view(head.outputs, head.experts, -1)
            logits = torch.stack([own @ words.weight.T for own, words in zip(hidden, head.words)])
        gates = sum(linear(part) for linear, part in zip((head.prefix_gates, head.suffix_gates), x))
        chances = logits.view(head.outputs, head.experts, -1).softmax(-1)
        return (gates.view(head.outputs, head.experts).softmax(-1)[..., None] * chances).sum(1).log()
    x = torch.relu(head.first(x))
    return head.third(torch.relu(head.second(x))).view(head.outputs, -1)


MLP = {"head": "mlp", "head_width": 16}
SETTINGS = [
    MLP,
    {**MLP, "pairs": "any_prefix"},
    {**MLP, "pairs": "all"},
    {"pairs": "all", "head": "gated", "head_width": 24},
    {**MLP, "previous_weight": 0.0},
    {"previous_weight": 0.0, "head": "gated", "head_width": 16},
    {**MLP, "backward": False},
    {"backward": False, "head": "gated", "head_width": 16},
    {"experts": 3},
    {"previous_weight": 0.0},
    {"backward": False, "expert_width": 5},
    {"expert_width": 3, "pairs": "all"},
    {"experts": 2, "min_gap": 1, "pairs": "any_prefix"},
    {**MLP, "min_gap": 1},
    {**MLP, "min_gap": 1, "pairs": "all"},
    {"min_gap": 1, "pairs": "any_prefix", "head": "gated", "head_width": 16},
    {"next_weight": 0.5, "previous_weight": 2.0, "head": "mlp", "head_width": 7},
]


WAYS = [("apart", 3), ("packed", 7), ("free", 1000), ("as on a GPU", 5)]


@pytest.mark.parametrize(
    ("settings", "kind", "block"),
    [(settings, *WAYS[(row + column) % 4]) for row, settings in enumerate(SETTINGS) for column in (0, 1)],
    ids=str,
)
def test_loss_and_gradients_are_those_of_every_pair_by_itself(monkeypatch, settings, kind, block):
    monkeypatch.setitem(pair_loss.BLOCK, "cpu", 600 * block)  # bytes
    monkeypatch.setattr(pair_loss, "LISTED_BLOCK", 600 * block)
    monkeypatch.setattr(pair_loss, "LISTED", 2 * block)
    monkeypatch.setattr(pair_loss, "MULTIPLE", 1)
    if kind == "as on a GPU":
        monkeypatch.setattr(pair_loss.MLPWorker, "group", pair_loss.Worker.group)
    monkeypatch.setitem(pair_loss.LOGITS, "cpu", 20 * block)
    objective = tiny_objective("belief_state", backbone={"layers": 1}, **settings)
    spread_weights(objective)
    # Prompts of two tokens or more: a prompt of one cannot be told from none, and is treated as none.
    batch = random_batch(3, n=2, longest=5, prompts=False)
    if kind != "free":
        batch = batch._replace(scored=batch.scored & (torch.arange(5) >= torch.tensor([[3], [2]])), span=(2, 5))
    batch = pack(batch) if kind == "packed" else batch
    loss, slow = objective(batch), slow_twin(objective, batch)
    assert set(loss.parts) == set(slow)
    for name, part in loss.parts.items():
        torch.testing.assert_close(part.mean(), slow[name])
    config = objective.config
    total = config.next_weight * slow["next_token"]
    if config.previous_weight:
        total = total + config.previous_weight * slow["previous_token"]
    parameters = dict(objective.named_parameters())
    fast = torch.autograd.grad(loss.value(), parameters.values())
    for name, got, expected in zip(parameters, fast, torch.autograd.grad(total, parameters.values())):
        torch.testing.assert_close(got, expected, msg=lambda text, name=name: f"{name}: {text}")


def test_pairs_are_listed_equally_many_at_a_time(monkeypatch):
    monkeypatch.setattr(pair_loss, "LISTED", 10)
    objective = tiny_objective("belief_state", backbone={"layers": 1})
    batch = pack(random_batch(3, n=4, longest=9, prompts=False))
    for group in objective.plan(batch).groups:
        found = list(pair_loss.listed(group, 2, 8))
        assert all(len(targets) == 8 for _, targets, _ in found[:-1])
        pairs = [pair for (rows, columns), _, _ in found for pair in zip(rows.tolist(), columns.tolist())]
        (r, S), n = (part.shape[1] for part in (group.prefix, group.suffix)), len(group.prefix)
        everything = Block(slice(0, n), slice(0, r), slice(0, S))
        counted = group.weights(everything, 2).any(-1).nonzero().tolist()
        expected = [(document * r + place, document * S + suffix) for document, place, suffix in counted]
        assert sorted(pairs) == sorted(expected)


def test_without_gradients_the_loss_is_the_same():
    objective = tiny_objective("belief_state")
    batch = random_batch()
    with torch.no_grad():
        quiet = objective(batch).value()
    torch.testing.assert_close(quiet, objective(batch).value())
    assert not quiet.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize("head", ["mlp", "mixture"])
def test_compiled_it_is_the_same_and_not_unrolled(monkeypatch, head):
    objective, batch = tiny_objective("belief_state", backbone={"layers": 1}, head=head), random_batch()
    parameters = list(objective.parameters())
    expected = objective(batch).value()
    gradients = torch.autograd.grad(expected, parameters)
    operations = []
    for block in (10, 10**6):
        monkeypatch.setitem(pair_loss.BLOCK, "cpu", block)
        monkeypatch.setitem(pair_loss.LOGITS, "cpu", block)
        graphs = []
        torch.compiler.reset()
        compiled = torch.compile(objective, backend=lambda graph, _, graphs=graphs: graphs.append(graph) or graph)
        loss = compiled(batch).value()
        torch.testing.assert_close(loss, expected)
        for got, of_eager in zip(torch.autograd.grad(loss, parameters), gradients):
            torch.testing.assert_close(got, of_eager)
        operations.append(sum(len(graph.graph.nodes) for graph in graphs))
    assert operations[0] == operations[1] > 0


@pytest.mark.parametrize("settings", [{}, {"backward": False}, {"previous_weight": 0.0}], ids=str)
@pytest.mark.parametrize("head", ["mlp", "gated", "mixture"])
def test_bf16_gives_nearly_the_same_loss_and_gradients(head, settings):
    torch.set_default_dtype(torch.float32)
    objective = tiny_objective("belief_state", head=head, **settings)
    batch = random_batch(prompts=False)
    parameters = list(objective.parameters())
    exact = objective(batch).value()
    with torch.autocast("cpu", torch.bfloat16):
        rough = objective(batch).value()
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.02, atol=0)
    for got, expected in zip(torch.autograd.grad(rough, parameters), torch.autograd.grad(exact, parameters)):
        assert torch.nn.functional.cosine_similarity(got.flatten(), expected.flatten(), dim=0) > 0.98


def test_bf16_keeps_the_gradient_of_pairs_that_are_nearly_sure():
    torch.set_default_dtype(torch.float32)
    objective = tiny_objective("belief_state", head="mlp")
    batch = random_batch(prompts=False)
    batch = batch._replace(tokens=torch.where(batch.real, 7, 0))
    with torch.no_grad():
        objective.head.third.bias.view(2, -1)[:, 7] += 9.0  # its probability is 0.999
    parameters = [objective.head.third.weight, objective.head.third.bias]
    exact = objective(batch).value()
    with torch.autocast("cpu", torch.bfloat16):
        rough = objective(batch).value()
    assert exact < 0.02
    torch.testing.assert_close(rough, exact, rtol=0.02, atol=0)
    for got, expected in zip(torch.autograd.grad(rough, parameters), torch.autograd.grad(exact, parameters)):
        assert torch.dist(got, expected) < 0.03 * expected.norm()


@pytest.mark.parametrize("head", ["mlp", pytest.param("mixture", marks=pytest.mark.slow)])
def test_some_of_the_prefixes_give_the_same_loss_on_average(head):
    fields = {"head": head, "gap_exponent": 0.5, "max_gap": 5}
    whole, part = (tiny_objective("belief_state", share=share, **fields) for share in (1.0, 0.4))
    for objective in (whole, part):
        spread_weights(objective)
    examples = random_examples(np.random.default_rng(0), n=2, longest=6, prompts=False)
    batch = collate(examples)
    # Each row is drawn by itself, so ten copies of the rows are ten draws.
    copies = collate(examples[np.tile(np.arange(2), 10)])
    expected, weight = whole(batch), next(whole.head.parameters())
    (expected_gradient,) = torch.autograd.grad(expected.value(), weight)
    drawn, gradient = [], torch.zeros_like(weight)
    for _ in range(40):
        loss = part(copies)
        drawn.append({name: found.mean().detach() for name, found in loss.parts.items()})
        gradient += torch.autograd.grad(loss.value(), next(part.head.parameters()))[0]
    for name, found in expected.parts.items():
        values = torch.stack([one[name] for one in drawn])
        assert values.std() > 0.01 / 10**0.5
        assert abs(values.mean() - found.mean()) < 4 * values.std() / len(values) ** 0.5
    assert F.cosine_similarity(gradient.flatten(), expected_gradient.flatten(), dim=0) > 0.98


@pytest.mark.parametrize("scale", [1.0, 10.0, 30.0, 300.0])
def test_experts_that_are_sharp_lose_nothing(monkeypatch, scale):
    torch.set_default_dtype(torch.float32)
    objective = tiny_objective("belief_state", head="mixture", experts=3)
    with torch.no_grad():
        for linear in objective.head.children():
            for weight in linear.parameters():
                weight *= scale
    batch = random_batch(prompts=False)
    parameters = dict(objective.named_parameters())
    found, singles = [], []
    one_by_one = pair_loss.MixtureWorker._one_by_one
    monkeypatch.setattr(
        pair_loss.MixtureWorker, "_one_by_one", lambda *given: singles.append(len(given[3])) or one_by_one(*given)
    )
    monkeypatch.setattr(pair_loss, "AT_ONCE", 100)
    for workers in (pair_loss.WORKERS, {}):
        monkeypatch.setattr(pair_loss, "WORKERS", workers)
        loss = objective(batch).value()
        found.append((loss.detach(), torch.autograd.grad(loss, parameters.values())))
    assert bool(singles) == (scale >= 30.0)
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=0)
    for name, got, expected in zip(parameters, found[0][1], found[1][1]):
        assert torch.dist(got, expected) <= 1e-4 * expected.norm() + 1e-7, name


def test_other_factors_than_promised_are_noticed():
    objective = tiny_objective("belief_state")
    parts = objective(random_batch()).parts
    with pytest.raises(RuntimeError, match="weights"):
        (parts["next_token"].total + 5 * parts["previous_token"].total).backward()


def goal_fixture():
    objective = tiny_objective("belief_state").eval()
    spread_weights(objective)
    return objective, objective.predictor(), torch.randint(0, VOCABULARY, (3, 9))


def directly(objective, prefix, suffix):
    """(2, V) log-probabilities, both encoders run afresh."""
    f = objective.prefix_encoder.encode(
        Batch.plain(prefix[None] if len(prefix) else torch.tensor([[objective.begin]]))
    ).state[0, -1]
    b = objective.suffix_encoder.encode(
        Batch.plain(suffix.flip(0)[None] if len(suffix) else torch.tensor([[objective.end]]))
    ).state[0, -1]
    return whole_head(objective.head, torch.cat((f, b))).log_softmax(-1)


def test_predictions_towards_a_goal_know_it():
    objective, predictor, rows = goal_fixture()
    goal = torch.tensor([4, 7, 1])
    cursor, logits = predictor.start_with_goal(rows[:, :3], goal)
    more = predictor.extend(cursor, rows[:, 3:5])
    for row in range(3):
        torch.testing.assert_close(logits[row].log_softmax(-1), directly(objective, rows[row, :3], goal)[0])
        for place in range(2):
            expected = directly(objective, rows[row, : 4 + place], goal)[0]
            torch.testing.assert_close(more[row, place].log_softmax(-1), expected)
    nothing = predictor.start_with_goal(rows, goal[:0])[1]
    torch.testing.assert_close(nothing, predictor.start(rows)[1])


def test_goals_are_scored_token_by_token_between_what_surrounds_them():
    objective, predictor, rows = goal_fixture()
    for goal in (torch.tensor([4, 7, 1, 2]), torch.tensor([5])):
        cursor, _ = predictor.start_with_goal(rows[:, :4], goal)
        before = cursor.cache.length
        scores = predictor.score_goal(cursor, goal)
        assert cursor.cache.length == before
        for row in range(3):
            expected = sum(
                directly(objective, torch.cat((rows[row, :4], goal[:i])), goal[i + 1 :])[0, goal[i]]
                for i in range(len(goal))
            )
            torch.testing.assert_close(scores[row], expected)
        torch.testing.assert_close(
            predictor.extend(cursor, rows[:, 4:5])[0, 0].log_softmax(-1), directly(objective, rows[0, :5], goal)[0]
        )


@pytest.mark.parametrize("head", ["mixture", "mlp", "gated"])
def test_under_bf16_the_text_head_computes_in_float32(head):
    torch.set_default_dtype(torch.float32)
    objective = tiny_objective("belief_state", head=head).eval()
    spread_weights(objective)
    rows, goal = torch.randint(0, VOCABULARY, (5, 6)), torch.tensor([4, 7, 1])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):  # with gradients attention goes another way
        predictor = objective.predictor()
        cursor, logits = predictor.start_with_goal(rows, goal)
        plain = predictor.start(rows)[1]
        prefixes = cursor.state()
        suffix = objective.suffix_encoder.encode(Batch.plain(goal.flip(0)[None])).state[0, -1]
        nothing = objective.empty_suffix()[0, 0]
    for found, behind in ((logits, suffix), (plain, nothing)):
        expected = torch.stack(
            [whole_head(objective.head, torch.cat((prefix.float(), behind.float())))[0] for prefix in prefixes]
        )
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # bf16 errs by a hundredth
        assert (found != found.bfloat16().float()).any(-1).all()


@pytest.mark.parametrize("head", ["previous", "next"])
@pytest.mark.parametrize("count", [1, 4, 9])
def test_endings_are_scored_by_either_head(head, count):
    objective, predictor, rows = goal_fixture()
    scores = predictor.score_ending(rows, count, head)
    for row in range(3):
        expected = sum(
            directly(objective, rows[row, :i], rows[row, i + 1 :])[int(head == "previous"), rows[row, i]]
            for i in range(9 - count, 9)
        )
        torch.testing.assert_close(scores[row], expected)


def test_a_model_without_previous_tokens_says_so():
    predictor = tiny_objective("belief_state", previous_weight=0.0).predictor()
    with pytest.raises(ValueError, match="previous"):
        predictor.score_ending(torch.zeros(1, 4, dtype=torch.long), 2, "previous")


def test_suffix_beliefs_begin_at_their_token():
    objective, predictor, _ = goal_fixture()
    batch = pack(random_batch(prompts=False, longest=6))
    states = predictor.suffix_states(batch)
    for row in range(len(batch.tokens)):
        for column in range(batch.tokens.shape[1]):
            if batch.real[row, column]:
                rest = batch.tokens[row, column:][batch.documents[row, column:] == batch.documents[row, column]]
                alone = objective.suffix_encoder.encode(Batch.plain(rest.flip(0)[None])).state[0, -1]
                torch.testing.assert_close(states[row, column], alone)


def test_both_encoders_share_one_embedding():
    objective = tiny_objective("belief_state")
    names = [name for name, _ in objective.named_parameters() if "embedding" in name]
    assert names == ["prefix_encoder.embedding.weight"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"next_weight": 0.0}, "next_weight"),
        ({"share": 0.0}, "share"),
        ({"head": "mlp", "head_width": 0}, "head_width must be"),
        ({"head_width": 64}, "head_width is for the heads mlp and gated"),
        ({"head": "gated", "experts": 4}, "for the head mixture, not for gated"),
        ({"head": "mlp", "expert_width": 64}, "for the head mixture, not for mlp"),
        ({"experts": 0}, "experts"),
        ({"expert_width": 0}, "expert_width"),
        ({"max_gap": 1}, "max_gap"),
        ({"gap_exponent": -1.0}, "gap_exponent"),
    ],
)
def test_senseless_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny_objective("belief_state", **fields)
