"""Tensors of ours as those of other architectures."""

import pytest
import torch
from doubles import CONTEXT, MAPPED_BLOCKS, VOCABULARY, spread_weights, tiny_gpt, tiny_objective, tiny_two_stream

from statewise.backbones.gpt import GPTConfig
from statewise.deploy.export.layouts import LAYOUTS, NotPlain, Stacked, Zeros, layout_of, plain, to_theirs

NO_ARCHITECTURE = [
    {"positions": "learned"},
    {"mlp": "gelu"},
    {"norm": "layer", "bias": True},
    {"norm": "layer", "positions": "learned"},
    {"positions": "none"},
]
every_block = pytest.mark.parametrize(("architecture", "fields"), MAPPED_BLOCKS, ids=str)


def decoder(**fields):
    objective = tiny_objective("next_token", backbone=fields)
    spread_weights(objective)
    return objective


def test_every_layout_is_tried():
    assert {architecture for architecture, _ in MAPPED_BLOCKS} == {layout.architecture for layout in LAYOUTS}


@every_block
def test_tensors_of_an_architecture_are_ours_bit_by_bit(architecture, fields):
    objective = decoder(**fields)
    found = plain(objective)
    assert found.layout.architecture == architecture
    ours, left = dict(objective.backbone.state_dict()), dict(found.tensors)
    for one in found.layout.maps(found.config):
        if isinstance(one, Zeros):
            assert not left.pop(one.name).any()
        else:
            parts = [left.pop(name) for name in one.theirs]
            assert len({part.shape for part in parts}) == 1
            assert torch.equal(torch.cat([part.T if one.transposed else part for part in parts]), ours.pop(one.ours))
    assert not ours
    assert not left
    assert found.beside == {}
    assert (found.vocabulary, found.context) == (VOCABULARY, CONTEXT)


@pytest.mark.parametrize("fields", NO_ARCHITECTURE, ids=str)
def test_other_blocks_have_no_architecture_and_the_reason_names_them(fields):
    config = GPTConfig(width=16, heads=2, **fields)
    assert layout_of(config) is None
    with pytest.raises(NotPlain, match="no architecture has norm") as found:
        plain(decoder(**fields))
    assert all(str(value) in str(found.value) for value in fields.values() if value is not True)


def test_no_architecture_has_stick_breaking_attention():
    fields = {"attention": "stick_breaking"}
    assert layout_of(GPTConfig(**fields)) is None
    with pytest.raises(NotPlain, match="no architecture of other libraries has attention stick_breaking"):
        plain(decoder(**fields))


def test_queries_keys_and_values_are_rows_of_one_matrix_in_that_order():
    ours = {"in": torch.arange(24.0).view(6, 4)}
    maps = [Stacked("in", ("q", "k", "v"))]
    theirs = to_theirs(maps, ours)
    assert theirs["q"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert theirs["v"][-1].tolist() == [20, 21, 22, 23]


@pytest.mark.parametrize("name", ["next_latent", "multi_token", "token_order"])
def test_what_inference_does_not_use_stays_beside(name):
    found = plain(tiny_objective(name))
    ours = {key for key in tiny_objective(name).state_dict() if not key.startswith("backbone.")}
    assert set(found.beside) == ours
    assert ours


@pytest.mark.parametrize("name", ["belief_state", "joint_multi_token", "teacherless"])
def test_models_with_heads_of_their_own_are_not_plain(name):
    with pytest.raises(NotPlain, match="does not predict by a matrix"):
        plain(tiny_objective(name))


def test_two_streams_are_plain_as_their_standard_variant_alone():
    fields = {"variant": "standard", "expansion": 8 / 3}
    found = plain(tiny_objective("next_token", backbone=fields, make_backbone=tiny_two_stream))
    same = plain(tiny_objective("next_token", make_backbone=tiny_gpt))
    assert {name: tensor.shape for name, tensor in found.tensors.items()} == {
        name: tensor.shape for name, tensor in same.tensors.items()
    }
    with pytest.raises(NotPlain, match="TwoStream of variant sps is not a plain decoder"):
        plain(tiny_objective("next_token", make_backbone=tiny_two_stream))
