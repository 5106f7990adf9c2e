"""Exact learning of STRIPS models: seconds of each learner, from drawn traces to a proven model.

python benchmarks/strips_exact.py

Ground models from labelled traces of blocksworld with 3 and 5 blocks; schemas from 50 positive walks of blocksworld,
and from 3,000 of logistics with 120 actions. What is learned must be right: ground models equivalent to the domain on
the traces that can be drawn, schemas right on test traces of a larger instance, or of logistics itself.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from timing import Benchmark, parser

from statewise.strips.exact.ground import learn_exact
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.planning.metrics import trace_accuracy
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces
from statewise.strips.verification.verification import verify


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    grounds = [("blocksworld:2", 50, 3)] if bench.smoke else [("blocksworld:3", 2000, 3), ("blocksworld:5", 2000, 60)]
    for name, count, bar in grounds:
        world = domain(name)
        given = traces(world, count, 30, 1)
        begun = time.perf_counter()
        learned = learn_exact(given)
        seconds = time.perf_counter() - begun
        found = verify(learned.model, world, drawn_only=True, seconds=20)
        bench.at_most(
            f"seconds: {name}, {len(world.model.names)} actions, {count} traces ({found.outcome})", seconds, bar
        )
        assert found.outcome == "equivalent", f"{name}: {found.outcome}"
    count = 20 if bench.smoke else 3000
    world = domain("logistics:2x2x2" if bench.smoke else "logistics:3x2x6")
    cases = [(domain("blocksworld:3"), 50, 2, domain("blocksworld:5")), (world, count, 15, world)]
    for small, walks, bar, large in cases:
        given = traces(small, walks, 30, 1, negatives=0.0)
        begun = time.perf_counter()
        schemas = learn_lifted_exact(given)
        seconds = time.perf_counter() - begun
        tests = traces(large, 50 if bench.smoke else 400, 50, 2, negatives=0.5, split="test")
        right = trace_accuracy(schemas.ground(large.model.names), tests)["accuracy"]
        title = f"seconds: {small.name} lifted, {len(small.model.names)} actions, {walks} positive walks"
        bench.at_most(f"{title} ({right:.4f} of test traces in {large.name} right)", seconds, bar)
        assert bench.smoke or right == 1, f"{small.name}: {right}"
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "statewise", "strips", "--help"], check=True, stdout=subprocess.DEVNULL)
    bench.at_most("seconds: strips --help", time.perf_counter() - begun, 1)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
