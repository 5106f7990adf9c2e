"""Star graphs whose first step is the parity of a bit string: theorem 1 of the Belief State Transformer paper."""

import itertools
import tempfile
from pathlib import Path

from statewise.tasks.path_star import PathStar, PathStarConfig

BITS = 4


def parity_line(bits):
    """The published line of the star of a bit string; vertex v is written as v + n."""
    n = len(bits) + 1
    edges = [(0, 1), (0, -1)]
    for level, bit in enumerate(bits, 1):
        sign = -1 if bit else 1
        edges += [(level, sign * (level + 1)), (-level, -sign * (level + 1))]
    path = [n]  # from the goal back to the centre
    while path[-1]:
        path.append(next(source for source, target in edges if target == path[-1]))
    listed = "|".join(f"{source + n},{target + n}" for source, target in edges)
    return f"{listed}/{n},{n + n}={','.join(str(vertex + n) for vertex in reversed(path))}"


strings = list(itertools.product((0, 1), repeat=BITS))
file = Path(tempfile.mkdtemp()) / "parity.txt"
file.write_text("\n".join(parity_line(bits) for bits in strings))
task = PathStar(PathStarConfig(degree=2, length=BITS + 2, nodes=2 * BITS + 3))
graphs = task.read(file)
first_steps = graphs.tokens[:, task.config.prompt_length + 1] - (BITS + 1)
for bits, step in zip(strings, first_steps):
    assert step == (-1 if sum(bits) % 2 else 1), (bits, step)
print(f"the first step is the parity of the bits on all {len(strings)} graphs")
