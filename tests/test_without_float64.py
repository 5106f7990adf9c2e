"""On an Apple GPU (mps), which has no float64, float32 goes there, and sums in float64 are taken on the host."""

import re
from pathlib import Path

import pytest
import torch

import statewise
from statewise.runtime.devices import in_float64, to_device


class OnMps:
    """A tensor that says it is there; it refuses what such a tensor refuses."""

    device = torch.device("mps")

    def __init__(self, tensor):
        self.tensor = tensor

    def cpu(self):
        return self.tensor

    def double(self):
        raise TypeError("the MPS framework doesn't support float64")


class OnHost:
    """A tensor that goes there."""

    device = torch.device("cpu")

    def __init__(self, dtype):
        self.dtype = dtype

    def float(self):
        return OnHost(torch.float32)

    def to(self, device, non_blocking=False):
        return str(device), self.dtype


def test_what_is_computed_in_float64_is_computed_on_the_host():
    there = OnMps(torch.tensor([1.5, 0.1]))
    with pytest.raises(TypeError):
        there.double()
    assert torch.equal(in_float64(there), there.tensor.double())
    assert torch.equal(in_float64(there.tensor), there.tensor.double())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_float64_becomes_float32_there(dtype):
    assert to_device(OnHost(dtype), "mps") == ("mps", torch.float32 if dtype == torch.float64 else dtype)
    assert to_device(torch.zeros(2, dtype=dtype), "meta").dtype == dtype


def test_no_results_of_models_are_made_float64_where_they_are():
    """`.cpu()` comes first; where it cannot, `in_float64` decides. What is known to be on the host is listed."""
    on_host = {
        "decoding/sample.py": 1,  # logits that were brought to the host
        "backbones/hf/backbone.py": 1,  # a model that is being made
        "training/trainer.py": 1,  # counts of several processes, which mps does not have
        "runtime/devices.py": 1,  # `in_float64`
    }
    found = {}
    folder = Path(statewise.__file__).parent
    for path in folder.rglob("*.py"):
        if count := len(re.findall(r"(?<!\.cpu\(\))\.double\(\)", path.read_text(encoding="utf-8"))):
            found[path.relative_to(folder).as_posix()] = count
    assert found == on_host
