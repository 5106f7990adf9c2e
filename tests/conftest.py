import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # so that every test finds `doubles`
sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))  # whose scripts import the parts they share
torch.set_num_threads(1)  # tests are small: threads would only wait for each other


@pytest.fixture
def float64():
    """Everything made within is float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
