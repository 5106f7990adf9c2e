"""statewise beliefs: sequences of a process with their exact beliefs, as a file, or a table of the process."""

from __future__ import annotations

from pathlib import Path

from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.messages import say
from statewise.runtime.overwriting import claimed_file

DESCRIPTION = """Draws sequences of a process and writes what is exactly known about them, so that your own model can
be trained and measured on them; without --out it prints a table of the process. It does not need PyTorch.

  statewise beliefs mess3
  statewise beliefs "0.9 mess3 + 0.1 rrxor" --num 10000 --out data.npz
  statewise beliefs tiger --num 1000 --out tiger.npz

PROCESS: mess3, rrxor, z1r, checksum(n=3, m=2), golden-mean, even, sns, leaky-rrxor, bloch-walk, post-quantum, fanizza,
with parameters; products (A * B) and mixtures (A + B); the decision processes tiger and grid, with random actions; or
a file, JSON or NPZ with matrices, or .pomdp.

Arrays of OUT (numpy.load): tokens (n, T), beliefs (n, T, C) after each token, next_tokens (n, T, V), the distribution
of the next token after each, entropy (n, T) of that in nats; nats (n, T), minus the log-probability of each token;
start and start_next_tokens, both before the first token; floors (T,), the mean nats that no model can go below;
token_names (V,)."""

LISTED = 4096
"""Maximum number of distinct beliefs that the table counts."""


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser("beliefs", DESCRIPTION)
    parser.add_argument("process", metavar="PROCESS", help="a process by name or expression, or a file")
    parser.add_argument("--num", type=at_least(1), default=1000, metavar="N", help="sequences (default: 1000)")
    parser.add_argument("--length", type=at_least(1), default=16, metavar="T", help="tokens of each (default: 16)")
    parser.add_argument("--noise", type=float, default=0.0, help="probability of a random token (default: 0)")
    parser.add_argument("--seed", type=at_least(0), default=1, help="seed of the sequences (default: 1)")
    parser.add_argument("--out", metavar="OUT.npz", help="file to write")
    parser.add_overwrite("replace OUT")
    options = parser.parse_args(words)

    from statewise.beliefs.named import named

    if options.out is None:
        say(_table(options.process, options.noise))
        return 0
    out = Path(options.out)
    if out.suffix != ".npz":
        raise ValueError(f"--out must end in .npz, not be {options.out!r}")
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write {out.name} into")
    with claimed_file(out, options.overwrite) as place:
        import numpy as np

        from statewise.beliefs.named import MOST_NUMBERS, known_beliefs
        from statewise.runtime.durable import write_arrays

        known = named(options.process, options.noise)
        if options.num * options.length * (known.states + known.vocabulary) > MOST_NUMBERS:
            raise ValueError(
                f"--num {options.num:,} sequences of {options.length:,} tokens are too many: at most {MOST_NUMBERS:,} "
                f"numbers of their {known.states:,} states and {known.vocabulary:,} tokens are held in memory"
            )
        arrays = known_beliefs(known, known.draw(np.random.default_rng(options.seed), options.num, options.length))
        write_arrays(place, **arrays)
    n, T, C = arrays["beliefs"].shape
    say(f"{options.process}: {n:,} sequences of {T:,} tokens, beliefs of {C:,} coordinates; wrote {options.out}")
    return 0


def _table(text: str, noise: float) -> str:
    """What a process is, as a table."""
    from statewise.beliefs.entropy import entropy_rate, floors
    from statewise.beliefs.named import named
    from statewise.beliefs.pomdp import Acted
    from statewise.beliefs.reachable import finite
    from statewise.reporting.tables import text_table
    from statewise.runtime.messages import cut

    known = named(text, noise)
    rate, listed = entropy_rate(known), finite(known, LISTED)
    by_token, _ = floors(known, 8)
    within = "an upper bound" if rate.within is None else f"within {rate.within:.1e}"
    rows = [["hidden states", f"{known.states:,}"], ["tokens", f"{known.vocabulary:,}: {cut(' '.join(known.tokens))}"]]
    if isinstance(known, Acted):
        rows[0] = ["states of the world", f"{len(known.pomdp.start):,}"]
    rows += [
        ["coordinates of a belief", f"{known.told(known.start).shape[-1]:,}"],
        ["distinct beliefs", f"more than {LISTED:,}" if listed is None else f"{len(listed.beliefs):,}"],
        ["entropy rate", f"{rate.value:.5f} nats per token ({within})"],
        ["entropy of token 1, 2, 4, 8", " ".join(f"{by_token[place]:.5f}" for place in (0, 1, 3, 7))],
    ]
    return text_table([cut(text), ""], rows, left=[0, 1])
