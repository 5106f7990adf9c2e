import pytest

from statewise.training import machine
from statewise.training.machine import peak_flops


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 1)
    machine.refuse_missing("cuda", 1)
    machine.refuse_missing("cpu", 8)
    with pytest.raises(ValueError, match=r"trainer\.devices 2: PyTorch reports 1 of the device cuda here"):
        machine.refuse_missing("cuda", 2)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A10G", None),
        ("NVIDIA A1000", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("AMD EPYC, 2 cores", None),
        ("", None),
    ],
)
def test_a_peak_is_named_only_where_it_is_known(name, peak):
    assert peak_flops(name, "bf16") == peak
    assert peak_flops(name, "fp32") is None
