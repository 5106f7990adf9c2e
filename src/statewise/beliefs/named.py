"""Processes by name, expression, file or matrices, and what is known about drawn sequences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from statewise.beliefs.entropy import floors
from statewise.beliefs.pomdp import PROBLEMS, pomdp
from statewise.beliefs.pomdp_files import read_pomdp
from statewise.beliefs.process import Process, factor
from statewise.beliefs.reachable import entropies
from statewise.beliefs.sources import as_factor, process, read_matrices
from statewise.runtime.json_files import loads
from statewise.runtime.messages import short

FILES = (".json", ".npz", ".npy", ".pomdp")
MOST_NUMBERS = 2**28
"""Maximum number of values in what is known about sequences: 2 GB."""


def named(text: str, noise: float = 0.0) -> Process:
    """The process that a text names.

    An expression of published processes: `mess3`, `rrxor`, `z1r`, `checksum(n=3, m=2)`, `golden-mean`, `even`, `sns`,
    `leaky-rrxor`, `bloch-walk`, `post-quantum`, `fanizza`; products `A * B`, `A * (B | C)` and mixtures
    `0.9 A + 0.1 B` (`statewise.beliefs.sources`). A POMDP, `tiger` or `grid`, with random actions. A file: matrices as
    JSON or NPZ, or a POMDP as JSON or .pomdp. `noise`: the probability that a token is replaced by a random one; not
    of POMDPs.

    Raises `ValueError`, with the place or the line, for what is not understood, and `OSError` for a file that cannot
    be read.
    """
    if not 0 <= noise <= 1:
        raise ValueError(f"noise must be between 0 and 1, not {short(noise)}")
    path = Path(text)
    is_file = text.endswith(FILES)
    if text in PROBLEMS or text.endswith(".pomdp") or (path.suffix == ".json" and _is_pomdp(path)):
        if noise:
            raise ValueError("noise is not defined for a POMDP: leave it out")
        return (pomdp(text) if text in PROBLEMS else read_pomdp(path)).process()
    if is_file:
        return Process([as_factor(read_matrices(path), text)], noise)
    return process(text, noise)


def _is_pomdp(path: Path) -> bool:
    """Whether a JSON file has the keys of a POMDP; another reader reports what is wrong with it."""
    try:
        content = loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(content, dict) and "actions" in content


def from_matrices(
    matrices: np.ndarray,
    tokens: Sequence[str] | None = None,
    start: np.ndarray | None = None,
    right: np.ndarray | None = None,
    noise: float = 0.0,
) -> Process:
    """The process of your own matrices (V, S, S): `matrices[z, i, j]` is the probability, in state i, of emitting
    token z and going to state j. `start` is by default the stationary distribution; `right` makes it a generalised
    process. Raises `ValueError` as `factor` does."""
    return Process([factor(matrices, tokens, start, right)], noise)


def known_beliefs(known: Process, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """What is known about sequences `tokens` (n, T) of a process, by name:

    - `tokens`: (n, T) int64;
    - `beliefs`: (n, T, C), the exact belief after each token: about each factor's states, side by side
      (`Process.told`), of a POMDP about the state of its world;
    - `next_tokens`: (n, T, V), the distribution of the next token after each token;
    - `entropy`: (n, T), its entropy in nats;
    - `nats`: (n, T), minus the log-probability of each token given those before it;
    - `start`: (C,), the belief before the first token; `start_next_tokens`: (V,);
    - `floors`: (T,), the mean of `nats` that no model can go below, by position;
    - `token_names`: (V,) text.

    After a token that is not possible beliefs are NaN, its `nats` infinite. Raises `ValueError` for arrays that are
    not (n, T) whole numbers, and for more than can be held in memory.
    """
    tokens = np.asarray(tokens)
    if tokens.ndim != 2 or not tokens.size or tokens.dtype.kind not in "iu":
        raise ValueError(f"tokens must be whole numbers with 2 axes, not {tokens.dtype} {tokens.shape}")
    n, T = tokens.shape
    S, V = known.states, known.vocabulary
    if n * T * (S + V) > MOST_NUMBERS:
        raise ValueError(
            f"{n:,} sequences of {T:,} tokens with beliefs about {S:,} states and {V:,} tokens are too many: "
            f"{MOST_NUMBERS // ((S + V) * T):,} sequences at most; ask for fewer"
        )
    joint, probabilities = known.posteriors(tokens)
    after = known.next_tokens(joint)
    with np.errstate(divide="ignore"):
        nats = -np.log(probabilities)
    told = known.told(joint)
    return {
        "tokens": tokens.astype(np.int64),
        "beliefs": told[:, 1:],
        "next_tokens": after[:, 1:],
        "entropy": entropies(after[:, 1:].reshape(-1, V)).reshape(n, T),
        "nats": nats,
        "start": told[0, 0],
        "start_next_tokens": after[0, 0],
        "floors": floors(known, T)[0],
        "token_names": np.array(known.tokens),
    }
