"""Decoding with the two-stream transformer against a standard one: tokens a second, and peak memory.

python benchmarks/two_stream_decode.py [PREFILL DECODE]

The width of the paper's XS (512, 8 heads, vocabulary 50,304), 8 layers, window 64, 16 sequences, prompts of 3,840
tokens and 64 more (the paper: 1,024 and 3,072, which take long on a CPU). Each in a process of its own, in turns; some
minutes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

from timing import Bars

ROUNDS = 2
CHILD = """
import json, resource, sys, time, torch
from statewise.backbones.two_stream import TwoStream, TwoStreamConfig
from statewise.objectives.base import head_predictor
from statewise.training import machine
variant, prefill, decode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
config = TwoStreamConfig(layers=8, heads=8, width=512, variant=variant, vocabulary_multiple=128)
predictor = head_predictor(TwoStream(config, vocabulary=50257, context=prefill + decode).eval())
prompts = torch.randint(0, 50257, (16, prefill))
precision = machine.choose_precision("auto", "cpu")
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
    warm, logits = predictor.start(prompts[:, :2])
    predictor.extend(warm, logits.argmax(-1)[:, None])
    began = time.perf_counter()
    cursor, logits = predictor.start(prompts)
    read = time.perf_counter()
    for _ in range(decode):
        logits = predictor.extend(cursor, logits.argmax(-1)[:, None])[:, -1]
    ended = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"prefill": read - began, "decode": ended - read, "peak": peak, "precision": precision}))
"""


def measure(variant: str, prefill: int, decode: int) -> dict[str, Any]:
    words = [sys.executable, "-c", CHILD, variant, str(prefill), str(decode)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    print(f"  {variant:9} prompts {found['prefill']:6.1f} s, {16 * decode / found['decode']:7.1f} tokens a second, "
          f"{found['peak']:6.0f} MB, {found['precision']}", flush=True)  # fmt: skip
    return found


def main() -> None:
    prefill, decode = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (3840, 64)
    rounds = [{name: measure(name, prefill, decode) for name in ("standard", "sps")} for _ in range(ROUNDS)]
    bars = Bars()
    speeds = [found["standard"]["decode"] / found["sps"]["decode"] for found in rounds]
    bars.at_least("tokens a second of sps against standard", statistics.median(speeds), 0.9)
    memory = statistics.median(found["sps"]["peak"] / found["standard"]["peak"] for found in rounds)
    bars.at_most("peak memory of sps against standard", memory, 1.03)
    bars.finish()


if __name__ == "__main__":
    main()
