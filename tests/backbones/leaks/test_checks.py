"""Leaks that are planted are found, with the module that leaks; models without any are clean."""

import dataclasses
import json

import pytest
import torch
from doubles import TINY_BACKBONES, tiny_gpt
from torch import nn
from torch.nn import functional as F

from statewise.backbones.leaks.checks import CHECKS, find
from statewise.backbones.leaks.readers import BackboneReader, ModuleReader

V, D = 30, 16


class Attention(nn.Module):
    """Rotary attention. `ahead`: later keys that a query reads; `by_length`: angles depend on the length of the pass;
    `forgets`: each pass begins with the last key of the cache lost; `absolute`: positions count padding."""

    def __init__(self, *, ahead=0, by_length=False, forgets=False, absolute=False):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.ahead, self.by_length, self.forgets, self.absolute = ahead, by_length, forgets, absolute

    def forward(self, x, documents, real, cache=None):
        T = x.shape[1]
        place = real.cumsum(1) - 1
        if self.absolute:
            place = torch.arange(T).expand(len(x), T)
        if cache:
            place = place + cache["place"].shape[1]
        angle = place[..., None] * 0.5 ** torch.arange(D // 2) * (T if self.by_length else 1)
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = (self.turned(each, angle) for each in (q, k))
        known = {"k": k, "v": v, "place": place, "documents": documents, "real": real}
        if cache is not None:
            if cache:
                old = {name: each[:, :-1] for name, each in cache.items()} if self.forgets else cache
                known = {name: torch.cat((old[name], each), 1) for name, each in known.items()}
            cache.update(known)
        mask = known["place"][:, None] <= place[..., None] + self.ahead
        mask &= (known["documents"][:, None] == documents[..., None]) & known["real"][:, None]
        mask |= ~mask.any(-1, keepdim=True)
        return self.out(F.scaled_dot_product_attention(q, known["k"], known["v"], attn_mask=mask))

    def turned(self, x, angle):
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


class Net(nn.Module):
    """Two layers of attention, the second with options. `shift`: each document begins so many tokens late."""

    def __init__(self, shift=0, **options):
        super().__init__()
        self.embed, self.head, self.shift = nn.Embedding(V, D), nn.Linear(D, V), shift
        self.layers = nn.ModuleList([Attention(), Attention(**options)])

    def make_cache(self, rows):
        return [{} for _ in self.layers]

    def forward(self, tokens, cu_seqlens=None, attention_mask=None, cache=None):
        x, documents = self.embed(tokens), torch.zeros_like(tokens)
        real = torch.ones_like(tokens).bool() if attention_mask is None else attention_mask.bool()
        if cu_seqlens is not None:
            columns = torch.arange(tokens.shape[1])[None]
            documents = torch.searchsorted(cu_seqlens[1:].long() + self.shift, columns, right=True)
        for layer, kept in zip(self.layers, cache or [None, None]):
            x = x + layer(x, documents, real, kept)
        return self.head(x), cache


class Plain(nn.Module):
    """Two convolutions with another `part` between them; it only takes tokens."""

    def __init__(self, part):
        super().__init__()
        self.embed, self.layers = nn.Embedding(V, D), nn.ModuleList([Convolution(), part, Convolution()])

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return x


class Convolution(nn.Module):
    """Over three tokens, `ahead` of them later ones."""

    def __init__(self, ahead=0):
        super().__init__()
        self.inner, self.ahead = nn.Conv1d(D, D, 3), ahead

    def forward(self, x):
        return self.inner(F.pad(x.transpose(1, 2), (2 - self.ahead, self.ahead))).transpose(1, 2)


class Scan(nn.Module):
    """Running sums in chunks of `chunk`, of which each is divided by the largest number of all `of`."""

    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, x):
        total = x.cumsum(1)
        scale = total.abs().amax(1, keepdim=True) if self.of == "the row" else total.abs().cummax(1).values
        return total / (scale + 1)


class BatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.BatchNorm1d(D)

    def forward(self, x):
        return self.inner(x.flatten(0, 1)).view_as(x)


class OverRows(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


CLEAN = [Net(), Plain(Convolution()), Plain(Scan("the past"))]
PLANTED = {
    "mask": (Net(ahead=1), {"future", "cache"}, "layers.1"),
    "rotary": (Net(by_length=True), {"future", "packed", "padding", "cache"}, "layers.1"),
    "cu_seqlens, late": (Net(shift=1), {"packed"}, "layers.0"),
    "cu_seqlens, early": (Net(shift=-1), {"packed"}, "layers.0"),
    "cache": (Net(forgets=True), {"cache"}, "layers.1"),
    "convolution": (Plain(Convolution(ahead=1)), {"future"}, "layers.1.inner"),
    "scan": (Plain(Scan("the row")), {"future"}, "layers.1"),
    "norm over the batch": (Plain(BatchNorm()), {"future", "batch"}, "layers.1.inner"),
    "mean over rows": (Plain(OverRows()), {"batch"}, "layers.1"),
}
"""Models with a leak, the checks that find it, and the module that they name."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_leak_is_found_with_its_module(name):
    model, expected, module = PLANTED[name]
    before = {key: each.clone() for key, each in model.state_dict().items()}
    found = find(ModuleReader(model))
    assert found.precision == "float64"
    assert {one.check for one in found.found()} == expected
    assert {one.module for one in found.found()} == {module}
    for one in found.found():
        assert min(one.amount, one.output) > 1e-4
        assert (one.layers["layers.0"] > 0) == (module == "layers.0")
    assert module in found.as_text()
    assert all(torch.equal(each, before[key]) for key, each in model.state_dict().items()), "the model has changed"
    assert model.training
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


@pytest.mark.parametrize("model", CLEAN, ids=["attention", "convolution", "scan"])
def test_models_without_a_leak_are_clean(model):
    found = find(ModuleReader(model))
    assert found.clean, found.as_text()
    asked = {one.check for one in found.results if one.why_not is None}
    assert asked == (set(CHECKS) if isinstance(model, Net) else {"future", "batch"})


@pytest.mark.parametrize("name", TINY_BACKBONES)
def test_our_own_backbones_are_clean(name):
    if name == "hf":
        pytest.importorskip("transformers", reason="needs the extra hf")
    found = find(BackboneReader(TINY_BACKBONES[name]()))
    assert all(one.why_not is None for one in found.results)
    assert found.precision == "float64"
    if name == "gpt":
        sticks = find(BackboneReader(tiny_gpt(attention="stick_breaking", positions="none")))
        assert sticks.clean, sticks.as_text()
        assert all(one.why_not is None for one in sticks.results)
    if name == "belief_slots":  # its chunks are counted from the start of the row
        (leak,) = found.found()
        assert leak.changed == "document 3 depends on where in the row it stands"
    else:
        assert found.clean, found.as_text()


class Mixed(nn.Module):
    """A network whose `read` computes its states."""

    def __init__(self, read, **sizes):
        super().__init__()
        self.embed, self.inner, self.function = nn.Embedding(V, D), nn.Linear(D, D), read

    def forward(self, tokens):
        return self.function(self, tokens)


def only_float32(self, tokens):
    if self.inner.weight.dtype == torch.float64:
        raise RuntimeError("no kernel for float64")
    return self.inner(self.embed(tokens))


def backwards_a_little(self, tokens):
    """Too little for float32."""
    x = self.embed(tokens)
    return x + 1e-5 * x.flip(1)


def test_a_small_leak_is_found_in_float64_and_what_cannot_run_in_it_says_so():
    assert {one.check for one in find(ModuleReader(Mixed(backwards_a_little))).found()} == {"future"}
    found = find(ModuleReader(Mixed(only_float32)))
    assert (found.clean, found.precision) == (True, "float32")
    assert "Not in float64, so small leaks may go unseen: RuntimeError: no kernel for float64" in found.as_text()


class Gated(nn.Module):
    """A look at later tokens that is not used: masked, or of weight zero as yet."""

    def __init__(self, used):
        super().__init__()
        self.inner, self.gate = nn.Linear(D, D), nn.Parameter(torch.zeros(1))
        self.register_buffer("off", torch.zeros(1))
        self.used = used

    def forward(self, x):
        return self.inner(x.flip(1)) * (self.gate if self.used else self.off)


def test_a_leak_behind_weights_that_are_still_zero_is_found_and_what_is_masked_is_none():
    found = find(ModuleReader(Plain(Gated(used=True))))
    assert {(one.check, one.module) for one in found.found()} == {("future", "layers.1")}
    assert find(ModuleReader(Plain(Gated(used=False)))).clean


def noise(self, tokens):
    self.calls = getattr(self, "calls", 0) + 1
    return self.embed(tokens) + self.calls


def leaves(self, tokens):
    raise SystemExit(0)


WRONG = {
    "each time it reads the same tokens": lambda self, tokens: self.embed(tokens) + torch.randn(len(tokens), 1, 1),
    "it returns whole numbers": lambda self, tokens: self.embed(tokens).long(),
    "the model ends the program, with exit code 0": leaves,
    "the model computes something else each time": noise,
    "returns numbers that are not finite": lambda self, tokens: self.embed(tokens) / 0,
    "give a model that returns logits or states of every position": lambda self, tokens: self.embed(tokens).mean(1),
    r"cannot be read by token ids alone \(KeyError": lambda self, tokens: {}[0],
    "it returns no tensor for token ids": lambda self, tokens: [self.embed(tokens), None][1],
}


@pytest.mark.parametrize("message", WRONG)
def test_models_that_cannot_be_checked_are_refused(message):
    with pytest.raises(ValueError, match=message):
        find(ModuleReader(Mixed(WRONG[message])))


def test_a_module_without_a_table_needs_the_number_of_token_ids():
    def one_hot(self, tokens):
        return self.inner(F.one_hot(tokens, D).to(self.inner.weight))

    with pytest.raises(ValueError, match="no table of token ids"):
        ModuleReader(Mixed(one_hot))
    assert find(ModuleReader(Mixed(one_hot), D)).clean
    with pytest.raises(ValueError, match="1 token id"):
        find(ModuleReader(Mixed(one_hot), 1))


def test_a_model_that_reads_rows_of_one_size_alone_is_checked_as_far_as_that_goes():
    fixed = Mixed(lambda self, tokens: self.embed(tokens).view(-1, 47, D).flip(1))
    found = find(ModuleReader(fixed))
    assert {one.check for one in found.found()} == {"future"}
    assert "The model cannot read 1 x 23 tokens, so these are not compared: RuntimeError" in found.as_text()

    def one_token(self, tokens):
        return self.embed(tokens).view(1, -1, D)

    (first, *_, last) = find(ModuleReader(Mixed(one_token))).results
    assert (first.leaks, first.why_not) == (False, None)
    assert last.name == "cache"
    with pytest.raises(ValueError, match="other rows cannot be checked: it returns"):
        find(ModuleReader(Mixed(one_token)), ["batch"])


def test_checks_are_chosen_and_those_that_cannot_be_asked_are_errors():
    found = find(ModuleReader(Net()), ["padding"])
    assert [one.name for one in found.results] == [
        *("later tokens", "later tokens (in training mode)", "padding (on the right)", "padding (on the left)")
    ]
    with pytest.raises(ValueError, match="there is no check 'pakced': did you mean packed"):
        find(ModuleReader(Net()), ["pakced"])
    with pytest.raises(ValueError, match="other documents cannot be checked: its forward takes none of documents, "):
        find(ModuleReader(Plain(nn.Identity())), ["packed"])
    for length in (7, -1):
        with pytest.raises(ValueError, match="must be at least 8 tokens"):
            find(ModuleReader(Net()), length=length)
    with pytest.raises(ValueError, match="must be from 8 to 24 tokens"):
        find(BackboneReader(TINY_BACKBONES["gpt"]()), length=25)


def test_findings_as_json_and_a_table_of_layers():
    found = find(ModuleReader(Net(shift=1)), ["packed"])
    (leak,) = found.found("packed")
    assert leak.changed == "document 1 changes document 2"
    assert found.found("future") == []
    content = json.loads(json.dumps(found.as_json()))
    assert content["clean"] is False
    assert content["results"][-1] == dataclasses.asdict(leak)
    text = found.as_text()
    assert "States depend on more than the past: other documents (cu_seqlens)." in text
    assert "document 1 changes document 2, first in layers.0 (Attention), before out" in text
    rows = [line.split()[0] for line in text.splitlines() if line.startswith(("layers", "output"))]
    assert rows == ["layers.0", "layers.1", "output"]
