"""Does a belief objective help on event logs? Three logs of known processes, four models, five seeds.

python benchmarks/event_logs.py OUT [--seeds 1-5] [--jobs N] [--steps 800]
python benchmarks/event_logs.py OUT --table

Writes the logs and `suite.yaml` into OUT, trains what is missing with `statewise suite` into OUT/runs, and prints the
tables of docs/results/event-logs.md. Stop it at any time: the same command continues. The processes are hidden Markov
models, so the exact prediction of every event is known:

- `orders`: a loop, six tasks in any order (parallel branches), and noise: a note may be taken at any time. What has
  happened tells all.
- `loans`: the first event decides the last one, over a loop of any length (a long dependency), and the office works in
  one of two ways, which no event names (drift: half of the cases are from before the change).
- `machines`: readings of a machine whose condition is hidden, wears out slowly and is reset by a repair.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import yaml

from statewise.beliefs import Process, from_matrices
from statewise.data_types import Examples

END = "<end>"
LONGEST = 80
"""Events of a case; those that are longer, one in a hundred or fewer, are drawn again."""
TRAINING, HELD_OUT = 1000, 500
SUFFIXES = {"suffix_similarity": "suffix similarity", "remaining_steps_error": "error of remaining steps"}
"""Metrics of the analysis of suffixes that the tables show."""
Arc = tuple[str, float, str, str]
"""State, probability, symbol, next state."""


def process_of(arcs: Sequence[Arc], start: dict[str, float]) -> Process:
    """The hidden Markov process of some arcs; from the state END it emits END for ever."""
    arcs = [*arcs, (END, 1.0, END, END)]
    states = list(dict.fromkeys([one[0] for one in arcs]))
    symbols = [*sorted({one[2] for one in arcs} - {END}), END]
    matrices = np.zeros((len(symbols), len(states), len(states)))
    for state, probability, symbol, after in arcs:
        matrices[symbols.index(symbol), states.index(state), states.index(after)] += probability
    return from_matrices(matrices, symbols, np.array([start.get(state, 0.0) for state in states]))


def orders(noise: float = 0.05) -> Process:
    """A loop of questions, six tasks in any order, and notes."""
    tasks = ["bill", "insure", "label", "pack", "pick", "weigh"]
    arcs: list[Arc] = [("new", 1.0, "register", "checked"), ("checked", 0.35, "ask", "asked")]
    arcs += [("asked", 1.0, "answer", "checked"), ("checked", 0.65, "accept", "+".join(tasks))]
    for size in range(len(tasks), 0, -1):
        for left in combinations(tasks, size):
            for task in left:
                after = "+".join(one for one in left if one != task) or "packed"
                arcs.append(("+".join(left), 1 / size, task, after))
    arcs += [("packed", 1.0, "ship", "shipped"), ("shipped", 0.85, END, END), ("shipped", 0.15, "return", "returned")]
    arcs += [("returned", 1.0, "refund", "refunded"), ("refunded", 1.0, END, END)]
    noisy = [(state, (1 - noise) * share, symbol, after) for state, share, symbol, after in arcs[1:]]
    states = sorted({one[0] for one in noisy})
    return process_of([arcs[0], *noisy, *((state, noise, "note", state) for state in states)], {"new": 1.0})


def loans() -> Process:
    """The kind of loan decides; in between, four desks in one of two directions."""
    decisions = {
        "car": {"approve": 0.9, "reject": 0.05, "refer": 0.05},
        "house": {"approve": 0.05, "reject": 0.9, "refer": 0.05},
        "study": {"approve": 0.05, "reject": 0.05, "refer": 0.9},
    }
    arcs: list[Arc] = []
    for way in (1, -1):
        for kind, shares in decisions.items():
            arcs.append((f"{way}", 1 / 3, kind, f"{way} {kind}"))
            arcs += [(f"{way} {kind}", 1 / 4, f"desk {desk}", f"{way} {kind} {desk}") for desk in range(4)]
            for desk in range(4):
                here = f"{way} {kind} {desk}"
                for other in range(4):
                    share = 0.7 if other == (desk + way) % 4 else 0.1
                    arcs.append((here, 0.92 * share, f"desk {other}", f"{way} {kind} {other}"))
                arcs += [(here, 0.08 * share, decision, "decided") for decision, share in shares.items()]
    return process_of([*arcs, ("decided", 1.0, END, END)], {"1": 0.5, "-1": 0.5})


def machines() -> Process:
    """A condition that is hidden, readings that depend on it, and repairs."""
    readings = {"good": (0.75, 0.15, 0.05, 0.05), "worn": (0.3, 0.4, 0.2, 0.1), "failing": (0.05, 0.15, 0.4, 0.4)}
    after = {"good": "worn", "worn": "failing", "failing": "failing"}
    arcs: list[Arc] = []
    for condition, shares in readings.items():
        ends, repaired = 0.06, 0.2 if condition == "failing" else 0.01
        arcs += [(condition, ends, END, END), (condition, repaired, "repair", "good")]
        for reading, share in zip(("low", "middle", "high", "alarm"), shares):
            share *= 1 - ends - repaired
            arcs += [(condition, 0.9 * share, reading, condition), (condition, 0.1 * share, reading, after[condition])]
    return process_of(arcs, {"good": 1.0})


LOGS = {"orders": orders, "loans": loans, "machines": machines}


def cases(process: Process, rng: np.random.Generator, count: int) -> list[list[str]]:
    """Drawn cases of at most `LONGEST` events, without END."""
    found: list[list[str]] = []
    while len(found) < count:
        for row in process.draw(rng, count, LONGEST + 1):
            ended = np.flatnonzero(row == process.vocabulary - 1)
            if len(ended):
                found.append([process.tokens[token] for token in row[: ended[0]]])
    return found[:count]


def write(out: Path, steps: int = 800) -> Path:
    """Writes logs and suite. Returns the path of the suite."""
    out.mkdir(parents=True, exist_ok=True)
    recipes = {}
    for number, (name, make) in enumerate(LOGS.items()):
        every = [case for case in cases(make(), np.random.default_rng([62, number]), TRAINING + HELD_OUT) if case]
        for part, some in (("training", every[:TRAINING]), ("held-out", every[TRAINING:])):
            (out / f"{name}-{part}.jsonl").write_text("".join(json.dumps(case) + "\n" for case in some))
        paths = {part: str((out / f"{name}-{part}.jsonl").resolve()) for part in ("training", "held-out")}
        recipes[name] = {
            "base": "sequences-small",
            "task": {"path": paths["training"], "held_out_path": paths["held-out"], "context": LONGEST + 1},
            "trainer": {"steps": steps, "evaluate_every": max(1, steps // 12), "keep": 1},
        }
    suite = {
        "about": "Does a belief objective help on event logs of known processes? See benchmarks/event_logs.py.",
        "recipes": recipes,
        "objectives": {"next_token": {}, "next_latent": {"horizon": 2}, "belief_state": {}},
        "backbones": {
            "gpt": {"layers": 2, "width": 64, "heads": 4},
            "lstm": {"name": "recurrent", "cell": "lstm", "layers": 1, "width": 64},
        },
        "without": [{"objectives": ["next_latent", "belief_state"], "backbones": ["lstm"]}],
        "seeds": "1-5",
        "then": {key: ["evaluate", "analyze suffixes --prefixes 200"] for key in recipes},
    }
    path = out / "suite.yaml"
    path.write_text(yaml.safe_dump(suite, sort_keys=False))
    return path


@dataclass(frozen=True)
class Measured:
    """What is known of a run, on its held-out cases."""

    excess: float
    """Nats a symbol above those of the exact prediction of the same symbols."""
    r2: float
    """R^2 of the exact belief after each event from the last layer's state, by a linear map, five folds of cases."""
    accuracy: float
    suffixes: Mapping[str, float]
    """Metrics of `statewise analyze RUN suffixes`, if it was run."""


def measured(run: Path, process: Process, untrained: bool = False) -> Measured:
    """Of the best checkpoint, or of a model of the same recipe with random weights."""
    import torch

    from statewise import load
    from statewise.analysis.beliefs.least_squares import held_out_r2
    from statewise.evaluation.evaluate import teacher_forced
    from statewise.model.model import model_of_run
    from statewise.run import Run
    from statewise.tasks.batches import blocks, collate

    torch.manual_seed(0)
    model = model_of_run(Run.open(run)) if untrained else load(run)
    examples = model.task.held_out()
    beliefs, exact = exactly(process, model.task.vocab.symbols, examples)
    with model.asking() as predictor:
        metrics, chosen, _ = teacher_forced(predictor, examples, block=64)
        states, targets, folds = [], [], []
        for rows, part in blocks(examples, 64):
            batch = collate(part)
            hidden = predictor.states(batch)
            real = np.arange(part.tokens.shape[1]) < part.lengths[:, None] - 1  # nothing follows the end
            states.append(hidden.state[..., : hidden.readout.shape[-1]].float().cpu().numpy()[real])
            targets.append(beliefs[rows][:, 1 : part.tokens.shape[1] + 1][real])
            folds.append(np.broadcast_to(rows[:, None] % 5, real.shape)[real])
    features, wanted, fold = np.concatenate(states), np.concatenate(targets), np.concatenate(folds)
    report = None if untrained else Run.open(run).report("suffixes")
    return Measured(
        float(metrics["loss"] + np.log(exact[chosen >= 0]).mean()),
        held_out_r2(features.astype(np.float64), wanted, np.ones(len(wanted)), 1e-4, fold),
        float(metrics["token_accuracy"]),
        report["metrics"] if report else {},
    )


def exactly(process: Process, symbols: Sequence[str], examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """(n, T + 1, S) exact beliefs before and after each token of `examples`, and (n, T) the tokens' probabilities."""
    numbers = np.array([process.tokens.index(symbol) for symbol in symbols])
    padded = np.arange(examples.tokens.shape[1]) >= examples.lengths[:, None]
    return process.posteriors(np.where(padded, process.tokens.index(END), numbers[examples.tokens]))


def references(run: Path, process: Process) -> dict[str, tuple[float, float]]:
    """Excess and accuracy of the exact prediction and of the baselines, on the held-out cases of a run."""
    from statewise.model.model import model_of_run
    from statewise.run import Run
    from statewise.tasks.base import ComparedBySymbol
    from statewise.tasks.baselines import scored_tokens

    task = model_of_run(Run.open(run)).task
    assert isinstance(task, ComparedBySymbol)
    examples = task.held_out()
    beliefs, exact = exactly(process, task.vocab.symbols, examples)
    scored = scored_tokens(examples)
    chosen = process.probabilities(beliefs[:, :-1][scored]).argmax(1)
    truth = [process.tokens.index(task.vocab.symbols[token]) for token in examples.tokens[scored]]
    floor, metrics = float(-np.log(exact[scored]).mean()), task.baselines(examples)
    return {
        "exact prediction": (0.0, float((chosen == truth).mean())),
        **{
            name: (metrics[name]["loss"] - floor, metrics[name]["token_accuracy"])
            for name in ("variable order", "longest match", "bigram", "unigram")
        },
    }


def tables(out: Path) -> Iterator[str]:
    """The tables of the finished runs, as Markdown."""
    from statewise.reporting.statistics import summarise
    from statewise.run import Run

    for name, make in LOGS.items():
        process, groups = make(), {}
        for group in sorted((out / "runs" / name).glob("*")):
            runs = {int(one.name.removeprefix("seed-")): one for one in group.glob("seed-*") if one.is_dir()}
            done = {seed: measured(one, process) for seed, one in sorted(runs.items()) if Run(one).complete()}
            if done:
                some_run = runs[min(done)]
                groups[group.name] = done, measured(some_run, process, untrained=True)
        if not groups:
            continue
        first = groups.get("next_token-gpt", next(iter(groups.values())))[0]
        shown: dict[str, Callable[[Measured], float]] = {
            "excess": lambda one: one.excess,
            "R^2 of the belief": lambda one: one.r2,
            "accuracy": lambda one: one.accuracy,
        }
        for metric in next(iter(first.values())).suffixes:
            if metric in SUFFIXES:
                shown[SUFFIXES[metric]] = lambda one, metric=metric: one.suffixes.get(metric, float("nan"))  # type: ignore[misc]
        header = ["model", "seeds", *shown, "R^2 untrained"]
        yield f"\n### {name}\n\n| {' | '.join(header)} |\n| --- | {' | '.join(['---:'] * (len(header) - 1))} |"
        for group, (excess, accuracy) in references(some_run, process).items():
            yield f"| {' | '.join([group, '', f'{excess:.3f}', '', f'{accuracy:.3f}', *[''] * (len(header) - 5)])} |"
        for group, (done, control) in groups.items():
            cells = [group, str(len(done))]
            for value in shown.values():
                reference = None if done is first else [value(one) for one in first.values()]
                found = summarise({seed: value(one) for seed, one in done.items()}, reference)
                spread = "" if found.interval is None else f" ± {found.interval[1] - found.mean:.3f}"
                cells.append(f"{found.mean:.3f}{spread}" + ("*" if (found.p_value or 1) < 0.05 else ""))
            yield f"| {' | '.join([*cells, f'{control.r2:.3f}'])} |"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="1-5")
    parser.add_argument("--jobs", default="1")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args(words)
    suite = write(options.out, options.steps)
    if not options.table:
        command = [sys.executable, "-m", "statewise", "suite", str(suite), "--out", str(options.out / "runs")]
        code = subprocess.run([*command, "--seeds", options.seeds, "--jobs", options.jobs], check=False).returncode
        if code:
            return code
    for line in tables(options.out):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
