"""The table of `statewise train --dry-run`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from statewise.runtime.json_files import printable

if TYPE_CHECKING:
    from statewise.experiments.dry_run import Plan

NOT_KNOWN = "not known"
Rows = Sequence[tuple[str, str]]


def as_text(plan: Plan) -> str:
    """Sections of labels and values, aligned, and how they were found; at most 80 characters wide."""
    sections: dict[str, Rows] = {
        "parameters": [
            *(
                (name, f"{count:,}" if count or name != "head" else "none of its own")
                for name, count in plan.parameters.items()
            ),
            ("total", f"{plan.total:,}"),
        ],
        "training": [
            ("steps", f"{plan.steps:,}"),
            ("sequences per step", f"{plan.sequences:,}"),
            ("tokens per step", f"{plan.tokens:,}"),
            ("tokens in all", f"{plan.tokens * plan.steps:,}"),
            ("FLOPs per step", scientific(plan.flops)),
            ("FLOPs in all", scientific(plan.flops and plan.flops * plan.steps)),
        ],
        "memory of a device": memory(plan),
        "time on this machine": times(plan),
    }
    rows = [row for section in sections.values() for row in section]
    label, value = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = []
    for title, section in sections.items():
        lines += ["", title, *(f"  {name:{label}}  {text:>{value}}" for name, text in section)]
    return "\n".join([*lines[1:], "", *notes(plan)])


def as_json(plan: Plan) -> str:
    """Counts, bytes and seconds as numbers; null for unknown ones."""
    seconds = plan.step_seconds
    return printable(
        {
            "parameters": plan.parameters,
            "total_parameters": plan.total,
            "steps": plan.steps,
            "sequences_per_step": plan.sequences,
            "tokens_per_step": plan.tokens,
            "flops_per_step": plan.flops,
            "sequences_at_a_time": plan.part,
            "sequences_measured": None if plan.measured is None else plan.measured.sequences,
            "bytes": {name: None if size is None else round(size) for name, size in plan.bytes.items()},
            "seconds_per_step": seconds,
            "seconds": None if seconds is None else seconds * plan.steps,
            "device": plan.device,
            "estimated_from_fewer_layers": plan.by_layers,
        }
    )


def memory(plan: Plan) -> Rows:
    """Rows with the memory of the weights, and with what was measured."""
    known = {name: size for name, size in plan.bytes.items() if size is not None}
    shown = [
        (f"activations of {plan.part:,} sequences" if name == "activations" else name, gibibytes(size))
        for name, size in known.items()
    ]
    if plan.measured is None:
        return [*shown, ("optimiser, activations", NOT_KNOWN)]
    return [*shown, ("total", gibibytes(sum(known.values())))]


def times(plan: Plan) -> Rows:
    """Rows with the time of steps."""
    seconds = plan.step_seconds
    if seconds is None:
        return [("one step", NOT_KNOWN), ("all steps", NOT_KNOWN)]
    rate = [] if plan.flops is None else [("FLOPs per second", scientific(plan.flops / seconds))]
    return [("one step", span(seconds)), ("all steps", span(seconds * plan.steps)), *rate]


def notes(plan: Plan) -> list[str]:
    """Sentences on how time and memory were measured."""
    return textwrap.wrap(" ".join([f"This machine: {plan.device}.", *how_measured(plan)]), 80)


def how_measured(plan: Plan) -> list[str]:
    """Sentences on what was measured, and what was not."""
    if plan.measured is None:
        return ["Time and memory are not known: even a few layers of this model do not fit."]
    few = "" if plan.measured.sequences == plan.part else f"{plan.measured.sequences:,} of "
    one = f"{few}the {plan.part:,} sequences that a device works on at a time"
    sentences = [f"Time, optimiser and activations: from real training steps on {one}."]
    if plan.by_layers:
        sentences = [
            "The model does not fit.",
            f"Time, optimiser and activations: from real training steps of the model with 2 and 3 of its {plan.layers} "
            f"layers on {one}; each further layer is counted like the third.",
        ]
    if plan.compiled != "nothing":
        what = "the blocks of the model" if plan.compiled == "blocks" else "the model"
        sentences.append(f"Training compiles {what} (trainer.compile): its steps take a different time than these.")
    return [*sentences, "Evaluations, checkpoints and temporary memory, such as logits, come on top."]


def scientific(value: float | None) -> str:
    """A number as text with three digits, `1.79e+13`."""
    return NOT_KNOWN if value is None else f"{value:.2e}"


def gibibytes(size: float) -> str:
    """`1.25 GiB`, or MiB below a tenth of one."""
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.2f} MiB"


def span(seconds: float) -> str:
    """A length of time in its largest unit: `12.3 s`, `5.2 days`."""
    units = {"years": 365.25 * 86400, "days": 86400, "hours": 3600, "minutes": 60, "s": 1, "ms": 1e-3}
    unit = next((unit for unit, length in units.items() if seconds >= (2 * length if length > 1 else length)), "ms")
    return f"{seconds / units[unit]:,.1f} {unit}"
