"""Exact verification of action models: seconds on known domains, and against the product of both models.

python benchmarks/verify.py

Compared is a right model, the same with its atoms permuted, one written another way (heads split into three, and adds
that change nothing), and a wrong one; then single-bit errors of theta. Heads that both models share need no search, so
that one row has the time with a search for every head. The time of a call is the least of some,
since other work on the machine only ever adds to it. Every verdict is checked.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from timing import Benchmark, parser

from statewise.strips.model.heads import heads
from statewise.strips.model.model import ActionModel
from statewise.strips.trace_data.domains import Domain, domain
from statewise.strips.verification.containment import KnownFalseSearch
from statewise.strips.verification.search import Limits, shortest
from statewise.strips.verification.verification import verify

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the slow search and rewritten models stand there
from product_search import product_search
from rewritten import flipped, permuted, split, with_needless_adds

ROUNDS = 7


def least_seconds(call: Callable[[], object], rounds: int) -> float:
    """The least time of some calls."""
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def shuffled(numbers: range) -> list[int]:
    """In an order that looks like none."""
    return random.Random(5).sample(numbers, len(numbers))


def candidates(where: Domain) -> dict[str, tuple[ActionModel, ActionModel | Domain, str]]:
    """For each kind of model a learned one, what it is held against, and the right answer."""
    mixed = permuted(where.model, shuffled)
    wrong = flipped(mixed, [(0, 0, 0)])
    halves = split(with_needless_adds(where.model), 1)
    return {
        "right": (where.model, where, "equivalent"),
        "permuted": (mixed, where, "equivalent"),
        "wrong": (wrong, where, "different"),
        "rewritten": (permuted(halves, shuffled), where, "equivalent"),
        "both rewritten": (permuted(halves, shuffled), split(where.model, 2), "equivalent"),
        "rewritten, wrong": (split(wrong, 3), where, "different"),
    }


def single_bits(where: Domain, count: int) -> list[ActionModel]:
    """Models with one bit of theta wrong, drawn from all of them."""
    model = where.model
    every = [(p, a, which) for p in range(len(model.atoms)) for a in range(len(model.actions)) for which in range(3)]
    return [flipped(model, [error]) for error in random.Random(7).sample(every, min(count, len(every)))]


def known_domains(bench: Benchmark) -> None:
    """Bars for whole models."""
    known = {"blocksworld:3": 100, "blocksworld:5": 2000, "blocksworld:8": 20_000, "hanoi:3": 2000, "gripper:4": 2000}
    rounds = 1 if bench.smoke else ROUNDS
    for spec, bar in {"blocksworld:2": 100}.items() if bench.smoke else known.items():
        where = domain(spec)
        for kind, (learned, reference, right) in candidates(where).items():
            notions = [False, True] if reference is where and spec != "blocksworld:8" else [False]
            for real_states in notions:
                call = partial(verify, learned, reference, real_states=real_states)
                assert call().outcome == right, f"{spec} {kind}: {call()}"
                notion = ", real states" if real_states else ""
                bench.at_most(f"{spec}, {kind}{notion}: ms", 1000 * least_seconds(call, rounds), bar)
        full = least_seconds(partial(searched_in_full, permuted(where.model, shuffled), where.model), min(rounds, 3))
        bench.at_most(f"{spec}, permuted, every head searched: ms", 1000 * full, bar)


def searched_in_full(learned: ActionModel, reference: ActionModel) -> None:
    """Equivalence with a search for every head, none left out because the other model has it."""
    reference = reference.with_actions(learned.names)
    pairs = ((reference, learned), (learned, reference))
    searches = [KnownFalseSearch(accepting, head) for accepting, other in pairs for head in heads(other)]
    result = shortest(searches, Limits(), lambda trace: trace)
    assert result.found is result.limit is None


def errors(bench: Benchmark) -> None:
    """Bars for single-bit errors of blocksworld:5."""
    spec, count, rounds = ("blocksworld:3", 12, 1) if bench.smoke else ("blocksworld:5", 300, 3)
    where = domain(spec)
    models = single_bits(where, count)
    for learned_as, rewrite in (("the rest as it is", False), ("the rest rewritten", True)):
        if rewrite:  # so that most heads have to be searched for, beside the wrong one
            models = [split(model, at) for at, model in enumerate(models[:60])]
        for real_states in (False, True):
            outcomes: dict[str, int] = {}
            spent = []
            for model in models:
                verdicts = [verify(model, where, real_states=real_states) for _ in range(rounds)]
                spent.append(min(verdict.seconds for verdict in verdicts))
                outcomes[verdicts[0].outcome] = outcomes.get(verdicts[0].outcome, 0) + 1
            assert set(outcomes) == {"equivalent", "different"}, outcomes
            notion = ", real states" if real_states else ""
            print(f"  {outcomes}, the longest took {max(spent):.3f} s")
            bench.at_most(
                f"{spec}, one bit wrong, {learned_as}{notion}: ms on average", 1000 * sum(spent) / len(spent), 100
            )


def against_the_product(bench: Benchmark) -> None:
    """Against a search over both models at once, where that ends."""
    where = domain("blocksworld:2")
    mixed = permuted(where.model, shuffled)
    wrong = single_bits(where, 6 if bench.smoke else 216)
    models = [mixed, split(where.model, 1), *(model for model in wrong if model != where.model)]
    for model in models:
        found, _ = product_search(model, where.model)
        verdict = verify(model, where)
        assert bool(verdict) == (found is None), "the two ways must agree"
        assert found is None or len(found) == len(verdict.counterexample or ())
    known = (("blocksworld:2", ROUNDS, 1), ("blocksworld:3", 1, 20))
    for spec, rounds, bar in known[:1] if bench.smoke else known:
        where = domain(spec)
        for kind, learned in (("permuted", permuted(where.model, shuffled)), ("rewritten", split(where.model, 1))):
            fast = least_seconds(partial(verify, learned, where), ROUNDS)
            slow = least_seconds(partial(product_search, learned, where.model), rounds)
            _, pairs = product_search(learned, where.model)
            print(f"  the product has {pairs:,} pairs and takes {1000 * slow:.1f} ms")
            if kind == "permuted" or bar > 1:  # with two blocks everything is small
                bench.at_least(f"{spec}, {kind}: times as fast as the product", slow / fast, bar)


def main(words: Sequence[str] | None = None) -> int:
    bench = Benchmark(parser(__doc__).parse_args(words).smoke)
    known_domains(bench)
    errors(bench)
    against_the_product(bench)
    return bench.exit_code()


if __name__ == "__main__":
    sys.exit(main())
