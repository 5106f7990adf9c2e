"""Training on one device gives the numbers of Lightning Fabric, without importing it."""

import pytest
import torch
from lightning_fabric import Fabric

from statewise.batch import Batch, Loss, Part
from statewise.training.one_device import OneDevice, converted


class Squared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(7, 5)

    def forward(self, batch, counts):
        self.given = batch
        values = self.layer(batch.plan[0][1])
        return Loss({"squared": Part(values.square().sum(), counts["squared"].sum(), 0.5)})


def one_step(fabric):
    module = Squared()
    wrapped = fabric.setup_module(module)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(module.parameters(), lr=0.01))
    torch.manual_seed(2)
    plan = ([torch.arange(3), torch.randn(4, 7)],)
    batch = Batch.plain(torch.ones(2, 3, dtype=torch.int64))._replace(plan=plan)
    with fabric.no_backward_sync(wrapped):
        loss = wrapped(batch, {"squared": torch.tensor([3.0, 2.7])})
        fabric.backward(loss.value())
    optimizer.step()
    assert isinstance(module.given, Batch)
    types = [tensor.dtype for tensor in (module.given.tokens, *module.given.plan[0])]
    return types, loss, module.layer.weight.detach()


@pytest.mark.parametrize(("precision", "name"), [("fp32", "32-true"), ("bf16", "bf16-mixed")])
def test_a_step_is_that_of_fabric_bit_for_bit(precision, name):
    types, loss, weight = one_step(OneDevice("cpu", precision))
    their_types, their_loss, their_weight = one_step(Fabric(accelerator="cpu", devices=1, precision=name))
    assert types == their_types
    assert torch.equal(weight, their_weight)
    for own, their in zip(loss.parts["squared"], their_loss.parts["squared"], strict=True):
        assert own == their
        assert getattr(own, "dtype", None) == getattr(their, "dtype", None)


def test_it_is_alone():
    alone = OneDevice("cpu", "fp32")
    assert (alone.world_size, alone.global_rank, alone.device.type) == (1, 0, "cpu")
    assert alone.broadcast("value") == "value"
    assert alone.barrier() is None
    assert converted({"a": (1, None, "text")}, torch.bfloat16) == {"a": (1, None, "text")}
