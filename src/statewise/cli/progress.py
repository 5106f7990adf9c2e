"""What a person sees while a run trains: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from statewise.config import Recipe
from statewise.run import Record, Run

NOT_A_METRIC = {
    *("kind", "step", "seconds", "epoch", "learning_rate"),
    *("tokens_per_second", "flops_per_second", "mfu"),
}  # fmt: skip


def metrics_text(record: Record, width: int = 0) -> str:
    """`name value` for each metric of a record."""
    return "  ".join(
        f"{name} {value:.4f}".ljust(width) for name, value in record.items() if name not in NOT_A_METRIC
    )  # fmt: skip


def duration(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def pace_text(record: Record) -> str:
    """`12,345 tokens/s`, and the share of the device's arithmetic that this uses where it is known."""
    used = f"  MFU {record['mfu']:.1%}" if "mfu" in record else ""
    return f"{record['tokens_per_second']:,.0f} tokens/s{used}"


def total_steps(run: Run, recipe: Mapping[str, Any]) -> int:
    """Steps of a whole run: what its token budget came to, or those of its recipe where it has not begun."""
    return int(run.environment().get("steps", recipe["trainer"]["steps"]))


def record_line(record: Record, steps: int, started: tuple[int, float] = (0, 0.0)) -> str:
    """One line of text about a record; `started` is the step and second of the last resume."""
    place = f"step {record['step']:>{len(str(steps))}}/{steps}"
    if record["kind"] == "evaluation":
        shown = {name: value for name, value in record.items() if not name.startswith("position_")}
        return f"{place}  held out: {metrics_text(shown)}"
    if record["kind"] == "end":
        seconds = f" after {duration(record['seconds'])}" if "seconds" in record else ""
        return f"{place}  end: {record['reason']}{seconds}"
    pace = (record["seconds"] - started[1]) / max(1, record["step"] - started[0])
    left = duration(pace * (steps - record["step"]))
    return f"{place}  {metrics_text(record)}  {pace_text(record)}  {left} left"


class Display:
    """Shows one run. Use as a context manager; `begin`, `record` and `step` fit `experiment.Listener`."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.live: Progress | None = None
        self.steps = 0
        self.started: tuple[int, float] = (0, 0.0)

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def begin(self, run: Run, recipe: Recipe, step: int) -> None:
        """Says what is trained, where and with what."""
        self.steps = total_steps(run, recipe.as_dict())
        train = [record for record in run.metrics() if record["kind"] == "train"]
        self.started = (step, train[-1]["seconds"] if train else 0.0)
        machine = run.environment()
        self.console.print(
            f"{recipe.objective.name} on {recipe.task.name}, seed {recipe.seed}: "
            f"{'from step ' + str(step) if step else 'training'} into {run.folder} "
            f"({machine['device']}, {machine['precision']}, {machine['threads']} threads)"
        )
        if self.console.is_terminal:
            self.live = Progress(
                TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn(),
                console=self.console, refresh_per_second=4,
            )  # fmt: skip
            self.live.start()
            self.live.add_task("starting", total=self.steps, completed=step)

    def note(self, note: str) -> None:
        """Says something of the data."""
        self.console.print(note)

    def step(self, step: int) -> None:
        """Moves the bar."""
        if self.live is not None:
            self.live.update(self.live.task_ids[0], completed=step)

    def report(self, report: dict[str, Any]) -> None:
        """Shows the metrics of the best checkpoint."""
        shown = {name: value for name, value in report["metrics"].items() if not name.startswith("position_")}
        self.console.print(f"best checkpoint (step {report['checkpoint']}) on {report['num']:,} held-out examples:")
        self.console.print(f"  {metrics_text(shown)}")

    def record(self, record: Record) -> None:
        """Shows a record: training metrics beside the bar, all others as lines that stay."""
        if self.live is not None and record["kind"] == "train":
            text = f"{metrics_text(record)}  {pace_text(record)}"
            self.live.update(self.live.task_ids[0], description=text)
        else:
            self.console.print(record_line(record, self.steps, self.started))


class Count:
    """Shows how far work over many things has come: a bar on a terminal, elsewhere a line every tenth. On the error
    stream, so that results can be piped on. Use as a context manager."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.live: Progress | None = None
        self.what, self.total, self.done, self.shown = "", 0, 0, 0

    def __enter__(self) -> Count:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def stage(self, what: str, total: int | None) -> None:
        """Something begins that goes through `total` things, if that is known."""
        self._stop()
        self.what, self.total, self.done, self.shown = what, total or 0, 0, 0
        if self.console.is_terminal:
            self.live = Progress(
                TextColumn("{task.description}"), BarColumn(None), TextColumn("{task.fields[count]}"),
                TimeRemainingColumn(), console=self.console, refresh_per_second=4,
            )  # fmt: skip
            self.live.start()
            self.live.add_task(what, total=total, count="")
        else:
            self.console.print(what)

    def advance(self, things: int) -> None:
        """So many more are done."""
        self.done += things
        if self.live is not None:
            self.live.update(self.live.task_ids[0], completed=self.done, count=f"{self.done:,} {self.unit}")
        elif self.total and self.done * 10 // self.total > self.shown:
            self.shown = self.done * 10 // self.total
            self.console.print(f"{self.what}: {self.done:,} of {self.total:,} {self.unit}")

    def note(self, note: str) -> None:
        """Says something that stays."""
        self.console.print(note)
