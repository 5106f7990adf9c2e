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
from itertools import permutations, product

from timing import Benchmark, parser

from statewise.strips.domains import Domain, domain
from statewise.strips.exact.ground import learn_exact
from statewise.strips.exact.lifted import learn_lifted_exact
from statewise.strips.metrics import trace_accuracy
from statewise.strips.model import ActionModel
from statewise.strips.random_traces import traces
from statewise.strips.verification import verify


def logistics(cities: int, places: int, packages: int) -> Domain:
    """A truck per city, one plane, packages; the first place of each city is its airport."""
    at = [f"l{city}-{place}" for city in range(cities) for place in range(places)]
    airports = [f"l{city}-0" for city in range(cities)]
    goods = [f"p{number}" for number in range(packages)]
    trucks = {f"t{city}": [f"l{city}-{place}" for place in range(places)] for city in range(cities)}
    atoms = [f"at {truck} {x}" for truck, where in trucks.items() for x in where] + [f"at a0 {x}" for x in airports]
    atoms += [f"at {p} {x}" for p in goods for x in at] + [f"in {p} {v}" for p in goods for v in [*trucks, "a0"]]
    actions: dict[str, tuple[list[str], list[str], list[str]]] = {}
    for vehicle, where, verb in [*((t, x, "drive") for t, x in trucks.items()), ("a0", airports, "fly")]:
        for x, y in permutations(where, 2):
            here, there = [f"at {vehicle} {x}"], [f"at {vehicle} {y}"]
            actions[f"{verb} {vehicle} {x} {y}"] = (here, there, here)
        kind = "truck" if verb == "drive" else "plane"
        for p, x in product(goods, where):
            lies, inside = [f"at {p} {x}"], [f"in {p} {vehicle}"]
            actions[f"load-{kind} {p} {vehicle} {x}"] = ([f"at {vehicle} {x}", *lies], inside, lies)
            actions[f"unload-{kind} {p} {vehicle} {x}"] = ([f"at {vehicle} {x}", *inside], lies, inside)
    start = [f"at {t} {where[0]}" for t, where in trucks.items()] + [f"at a0 {airports[0]}"]
    start += [f"at {p} {at[number % len(at)]}" for number, p in enumerate(goods)]
    model = ActionModel.of(atoms, actions)
    bit = {name: 1 << place for place, name in enumerate(atoms)}
    return Domain("logistics", model, (sum(bit[atom] for atom in start),))


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
    world = logistics(2, 2, 2) if bench.smoke else logistics(3, 2, 6)
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
