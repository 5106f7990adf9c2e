"""Learns the action schemas of a ferry from random walks, and proves that they are right for ferries of any size.

    python examples/strips_from_traces.py [WALKS]

Seconds on a CPU. It needs the extra `planning`.
"""

import sys

from statewise import strips


def main(walks: int = 40) -> str:
    """Returns the outcome of the proof: equivalent, different or unknown."""
    small = strips.domain("ferry:3x3")  # three ports, three cars
    traces = strips.traces(small, walks, 30, seed=1, negatives=0.0)  # names of actions alone, no states
    schemas = strips.learn_schemas(traces)
    print(*strips.schema_lines(schemas.schemas), sep="\n")
    large = strips.domain("ferry:5x4")
    verdict = strips.verify(strips.ground(schemas.schemas, large.model.names), large, drawn_only=True)
    proven = f", proven for {verdict.proven}" if verdict.proven else ""
    print(f"{verdict.outcome}{proven}")
    return verdict.outcome


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
