"""A pass over one token of a single row, or of each of a few rows, gives what the blocks give."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from doubles import CONTEXT, VOCABULARY, spread_weights, tiny_gpt
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

from statewise.backbones.nn import one_token

TOKENS = torch.randint(0, VOCABULARY, (3, CONTEXT), generator=torch.Generator().manual_seed(0))


def make(prepared=True, dtype=torch.float64, **fields):
    torch.manual_seed(0)
    model = tiny_gpt(**fields).eval().to(dtype)
    spread_weights(model)
    if prepared:
        model.prepare_one_token()
        assert model._one_token is not None
    return model


def read(model, cache, first, end):
    """States and logits of the places from `first` to `end` of the first row, token by token; each row continues at
    its own place."""
    found = []
    for _ in range(first, end):
        places = torch.from_numpy(cache.lengths)
        found.append(model.extend(TOKENS[torch.arange(len(places)), places][:, None], cache))
    return torch.cat([hidden.state for hidden in found], 1), torch.cat([model.logits(one.readout) for one in found], 1)


def decode(model, rows=1):
    """Reads three tokens at once and four one by one, goes back by two and reads on."""
    cache = model.make_cache(rows)
    model.extend(TOKENS[:rows, :3], cache)
    before = read(model, cache, 3, 7)
    cache.rewind(2)
    after = read(model, cache, 5, CONTEXT)
    return [*before, *after, *cache.contents()]


def decode_uneven(model):
    """Two rows with two tokens and one with four read on together, until one alone is left, whose first columns hold
    nothing."""
    cache, longer = model.make_cache(2), model.make_cache(1)
    model.extend(TOKENS[:2, :2], cache)
    model.extend(TOKENS[2:, :4], longer)
    cache.join(longer)
    found = read(model, cache, 2, 4)
    for place, left in ((4, [0, 2]), (6, [0])):
        cache.reorder(torch.tensor(left))
        found += read(model, cache, place, place + 2)
    return found


@pytest.fixture
def steps(monkeypatch):
    """The place of the first row in each pass by this path."""
    places, step = [], one_token.OneToken.step

    def counted(self, x, cache):
        places.append(cache.lengths[0])
        return step(self, x, cache)

    monkeypatch.setattr(one_token.OneToken, "step", counted)
    return places


@pytest.mark.parametrize(
    ("norm", "positions", "mlp", "bias"),
    itertools.product(["rms", "layer"], ["rope", "learned", "none"], ["swiglu", "gelu", "relu"], [False, True]),
)
def test_states_logits_and_cache_are_those_of_the_blocks(norm, positions, mlp, bias, steps, monkeypatch):
    one_thread = norm == "rms" or bias
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1" if one_thread else "2")
    monkeypatch.setattr(one_token, "ROW_BY_ROW", 1 if bias else 7)
    fields = {"norm": norm, "positions": positions, "mlp": mlp, "bias": bias, "tied": bias}
    plain, fast = make(False, **fields), make(**fields)
    with torch.inference_mode():
        expected = [*decode(plain), *decode(plain, 3), *decode_uneven(plain)]
        assert not steps
        found = [*decode(fast), *decode(fast, 3), *decode_uneven(fast)]
    even = [*range(3, 7), *range(5, CONTEXT)]
    assert steps == ([*even, *even, *range(2, 8)] if one_thread else [*even, 6, 7])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(fast.state_dict(), plain.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("numpy_threads", "threads", "largest"), [("1", 1, 0), ("4", 1, 0), ("4", 2, 0), ("4", 2, 10**6)]
)
def test_each_product_is_the_same(monkeypatch, dtype, numpy_threads, threads, largest):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", numpy_threads)
    monkeypatch.setattr(one_token, "FOR_ONE_THREAD", largest)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    weight, bias, x = (torch.randn(shape, dtype=dtype) for shape in ((24, 8), (24,), (8,)))
    parameter = torch.nn.Parameter(weight.clone())
    one_token.store_by_columns([parameter])
    torch.testing.assert_close(parameter.data, weight, rtol=0, atol=0)
    assert parameter.stride() == (1, 24)
    for stored in (weight, parameter):
        product = one_token.product_with(stored, bias)
        torch.testing.assert_close(torch.from_numpy(product(x.numpy())), weight @ x + bias)


@pytest.mark.parametrize(("openblas", "openmp", "one"), [("1", "8", True), ("2", "1", False), (None, "1", True)])
def test_numpys_own_variable_comes_first(monkeypatch, openblas, openmp, one):
    for name, value in (("OPENBLAS_NUM_THREADS", openblas), ("OMP_NUM_THREADS", openmp)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert one_token.numpy_has_one_thread() == one


def test_hooks_gradients_other_weights_and_many_rows_take_the_blocks(steps):
    model = make()
    seen = []
    with torch.inference_mode():
        handles = model.hook_points()["blocks.0.hook_resid_post"].watch(lambda x: seen.append(x) or x)
        read(model, model.make_cache(1), 0, 2)
        assert len(seen) == 2
        for handle in handles:
            handle.remove()
        model.extend(TOKENS[:1, :1].expand(one_token.ROWS + 1, 1), model.make_cache(one_token.ROWS + 1))
        model.extend(TOKENS[:1, :1], model.make_cache(1), np.array([0]))
        copied, narrower = copy.deepcopy(model), make().float()
        for changed in (copied, narrower):
            read(changed, changed.make_cache(1), 0, 2)
    state, _ = read(model, model.make_cache(1), 0, 2)
    assert state.requires_grad
    assert not steps
    with torch.inference_mode():
        read(model, model.make_cache(1), 0, 2)
    assert steps == [0, 1]


def test_changed_values_are_read():
    plain, fast = make(False), make()
    with torch.no_grad():
        for model in (plain, fast):
            for parameter in model.parameters():
                parameter.mul_(0.9)
    with torch.inference_mode():
        torch.testing.assert_close(decode(fast), decode(plain), rtol=0, atol=1e-12)


@pytest.mark.parametrize("assign", [False, True])
def test_loaded_weights_are_read(assign):
    plain, fast = make(False), make()
    halved = {name: value / 2 for name, value in plain.state_dict().items()}
    plain.load_state_dict(halved)
    fast.load_state_dict(halved, assign=assign)
    with torch.inference_mode():
        torch.testing.assert_close(decode(fast), decode(plain), rtol=0, atol=1e-12)


def test_a_pickled_model_takes_the_blocks(steps):
    fast = make()
    loaded = pickle.loads(pickle.dumps(fast))
    with torch.inference_mode():
        found = decode(loaded)
        assert not steps
        torch.testing.assert_close(found, decode(fast), rtol=0, atol=1e-12)


def test_dropout_and_hooks_on_what_the_path_replaces_take_the_blocks(steps):
    model, calls = make(dropout=0.5, positions="learned"), []
    with torch.inference_mode():
        for part in (model.positions, model.dropout):
            handle = part.register_forward_hook(lambda *_: calls.append(1))
            read(model, model.make_cache(1), 0, 2)
            handle.remove()
        assert len(calls) == 4
        read(model.train(), model.make_cache(1), 0, 2)
        assert not steps
        read(model.eval(), model.make_cache(1), 0, 2)
    assert steps == [0, 1]


@pytest.mark.parametrize("change", [{"attention": "stick_breaking"}, {"dtype": torch.bfloat16}])
def test_a_model_that_cannot_gain_stays_as_it_is(change):
    model = make(False, **change)
    model.prepare_one_token()
    assert model._one_token is None
    assert all(parameter.is_contiguous() for parameter in model.parameters())


class Adapted(nn.Module):
    """A layer with something added to its result, as libraries of adapters wrap it."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer

    def __getattr__(self, name):
        return super().__getattr__(name) if name == "base_layer" else getattr(self.base_layer, name)

    def forward(self, *given):
        return self.base_layer(*given) + 1


def adapt_linear(model):
    model.blocks[0].mlp.in_proj = Adapted(model.blocks[0].mlp.in_proj)


def adapt_norm(model):
    model.norm = Adapted(model.norm)


def adapt_block(model):
    model.blocks[1] = Adapted(model.blocks[1])


def exchange_blocks(model):
    model.blocks = nn.ModuleList([model.blocks[1], model.blocks[0]])


def set_parameter(model):
    model.blocks[0].attention.out_proj.weight = nn.Parameter(model.blocks[1].attention.out_proj.weight / 2)


def set_data(model):
    model.blocks[0].mlp_norm.weight.data = model.blocks[0].mlp_norm.weight.data * 2


def set_embedding(model):
    model.embedding.weight = nn.Parameter(model.embedding.weight * 2)


def set_data_of_embedding(model):
    model.embedding.weight.data = model.embedding.weight.data * 2


def set_forward(model):
    part = model.blocks[0].attention.out_proj
    part.forward = lambda x, plain=part.forward: plain(x) + 1


def set_attention(model):
    attend = model.blocks[0].attention.attend
    model.blocks[0].attention.attend = lambda *given, **options: attend(*given, **options) * 2


def parametrize(model):
    torch.nn.utils.parametrizations.weight_norm(model.blocks[0].attention.in_proj)
    model.blocks[0].attention.in_proj.parametrizations.weight.original0.data.mul_(2)


CHANGES = [
    adapt_linear,
    adapt_norm,
    adapt_block,
    exchange_blocks,
    set_parameter,
    set_data,
    set_embedding,
    set_data_of_embedding,
    set_forward,
    set_attention,
    parametrize,
]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("tied", [False, True])
def test_parts_and_weights_that_are_replaced_count(change, before, tied):
    """Whether they are replaced before the preparation or after it."""
    untouched, plain, fast = (make(False, layers=2, tied=tied) for _ in range(3))
    change(plain)
    for step in (change, type(fast).prepare_one_token)[:: 1 if before else -1]:
        step(fast)
    with torch.inference_mode():
        expected = decode(plain)
        torch.testing.assert_close(decode(fast), expected, rtol=0, atol=1e-12)
        assert (expected[0] - decode(untouched)[0]).abs().max() > 1e-3


def test_a_part_that_is_put_back_counts_too(steps):
    model = make()
    layer = model.blocks[0].mlp.in_proj
    with torch.inference_mode():
        adapt_linear(model)
        read(model, model.make_cache(1), 0, 2)
        assert not steps
        model.blocks[0].mlp.in_proj = layer
        handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
        read(model, model.make_cache(1), 0, 2)
        handle.remove()
        assert not steps
        read(model, model.make_cache(1), 0, 2)
    assert steps == [0, 1]


def test_a_prepared_model_can_be_saved(tmp_path):
    plain, fast = make(False), make()
    path = tmp_path / "model.safetensors"
    save_file(fast.state_dict(), path)
    torch.testing.assert_close(load_file(path), dict(plain.state_dict()), rtol=0, atol=0)
    holder = nn.ModuleDict({"gpt": fast, "other": make()})
    save_model(holder, str(path))
    assert load_model(make_holder(), path) == (set(), [])
    fast.prepare_one_token()  # again: nothing moves
    assert all(fast.get_parameter(name) is value for name, value in fast.state_dict(keep_vars=True).items())


def make_holder():
    return nn.ModuleDict({"gpt": make(False), "other": make(False)})


@pytest.mark.parametrize("part", ["embedding", "blocks.0.mlp.in_proj", "blocks.1.attention_norm", "norm"])
def test_parameters_of_two_precisions_stay_as_they_are(part):
    plain, model = (make(False, torch.float64 if part == "norm" else torch.float32) for _ in range(2))
    for one in (plain, model):
        one.get_submodule(part).double() if part != "norm" else one.norm.float()
    model.prepare_one_token()
    assert model._one_token is None
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_the_embedding_of_another_model_is_read_where_it_lies(steps):
    first = make(False)
    second = tiny_gpt(embedding_of=first).eval().double()
    expected = decode(second)
    for model in (second, first, second):
        model.prepare_one_token()
    with torch.inference_mode():
        torch.testing.assert_close(decode(second), expected, rtol=0, atol=1e-12)
        assert len(steps) == 4 + CONTEXT - 5
        first.embedding.weight.data = first.embedding.weight * 2
        assert (decode(second)[1] - expected[1]).abs().max() > 1e-3


def test_a_model_made_for_inference_stays_as_it_is_elsewhere(steps):
    with torch.inference_mode():
        model, prepared = make(False), make()
    model.prepare_one_token()
    assert model._one_token is None
    with torch.no_grad():
        torch.testing.assert_close(decode(prepared), decode(model), rtol=0, atol=1e-12)
    assert steps
