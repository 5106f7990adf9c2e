"""Export of a decoder of 100 million parameters as a folder of Hugging Face.

Measured is `statewise.export` on a model in memory, everything synced to disk. Bar: 10 s. The time of a plain copy of
as many bytes, synced, is printed beside it: what the disk alone takes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from timing import Benchmark, parser

import statewise
from statewise.model.model import new_model
from statewise.model.recipes import read_recipe

SIZES = {False: {"width": 768, "layers": 14, "heads": 12}, True: {"width": 64, "layers": 2, "heads": 2}}


def main(words: Sequence[str] | None = None) -> int:
    smoke = parser(__doc__).parse_args(words).smoke
    torch.set_num_threads(os.cpu_count() or 1)
    recipe = {
        "task": {"name": "path_star", "degree": 2, "length": 5, "nodes": 50},
        "backbone": {"name": "gpt", **SIZES[smoke]},
        "objective": "next_latent",
    }
    model = new_model(read_recipe(json.dumps(recipe)))
    bench = Benchmark(smoke)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        found = statewise.export(model, Path(folder) / "out")
        seconds = time.perf_counter() - start
        content = (found.path / "model.safetensors").read_bytes()
        start = time.perf_counter()
        with open(Path(folder) / "copy", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        alone = time.perf_counter() - start
    print(
        f"{found.architecture}, {found.parameters:,} parameters, {found.bytes / 1e6:,.0f} MB; disk alone {alone:.2f} s"
    )
    bench.at_most("export, seconds", seconds, 10.0)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
