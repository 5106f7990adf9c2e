"""Display of training: a live progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from statewise.config.recipe import Recipe
from statewise.data_types import DETAILS
from statewise.model.recipes import declared_defaults
from statewise.reporting.tables import baselines_table
from statewise.run import Record, Run
from statewise.runtime.messages import escaped, say

if TYPE_CHECKING:
    from statewise.experiments.launch import Listener

NOT_A_METRIC = {
    *("kind", "step", "tokens", "seconds", "epoch", "learning_rate"),
    *("tokens_per_second", "flops_per_second", "mfu"),
}

PACE_SECONDS = 30.0
"""The pace is measured over so many last seconds."""


def metric_texts(record: Record) -> list[str]:
    """`name value` for each metric of a record. A loss of a single part is shown once."""
    shown = {name: value for name, value in record.items() if name not in NOT_A_METRIC}
    parts = [name for name in shown if name not in ("loss", "gradient_norm")]
    if record.get("kind") == "train" and len(parts) == 1 and shown[parts[0]] == shown["loss"]:
        del shown[parts[0]]
    return [f"{name} {value:.4f}" for name, value in shown.items()]


def duration(seconds: float) -> str:
    """Seconds as text, `1:02:03` or `2:03`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def pace_texts(record: Record) -> list[str]:
    """`12,345 tokens/s`, and MFU where it is known."""
    used = [f"MFU {record['mfu']:.1%}"] if "mfu" in record else []
    return [f"{record['tokens_per_second']:,.0f} tokens/s", *used]


def total_steps(run: Run, recipe: Mapping[str, Any]) -> int:
    """Number of steps of a whole run, from its environment, which resolves token budgets, or from its recipe."""
    trainer: dict[str, Any] = {**declared_defaults("trainer", ""), **(recipe.get("trainer") or {})}
    return int(run.environment().get("steps", trainer["steps"]))


def record_texts(record: Record, steps: int, started: tuple[int, float] = (0, 0.0)) -> list[str]:
    """The texts of a line about a record; `started` is the step and second of the last resume."""
    place = f"step {record['step']:>{len(str(steps))}}/{steps}"
    if record["kind"] == "evaluation":
        shown = {name: value for name, value in record.items() if not name.startswith(DETAILS)}
        texts = metric_texts(shown)
        return [place, " ".join(["held out:", *texts[:1]]), *texts[1:]]
    if record["kind"] == "end":
        seconds = f" after {duration(record['seconds'])}" if "seconds" in record else ""
        return [place, f"end: {record['reason']}{seconds}"]
    pace = (record["seconds"] - started[1]) / max(1, record["step"] - started[0])
    left = duration(pace * (steps - record["step"]))
    return [place, *metric_texts(record), *pace_texts(record), f"{left} left"]


def record_line(record: Record, steps: int) -> str:
    """One line of text about a record."""
    return "  ".join(record_texts(record, steps))


@dataclass(frozen=True)
class Texts:
    """Texts side by side, wrapped between texts only."""

    texts: Sequence[str]
    gap: str = "  "

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = ""
        for text in self.texts:
            longer = f"{line}{self.gap}{text}" if line else text
            if line and cell_len(longer) > options.max_width:
                yield Text(line)
                longer = text
            line = longer
        yield Text(line)


class _Safe(Console):
    """Prints text as `messages.say` does: literally, without markup, and on a terminal without control characters of
    others. Goes on in silence when the reader of its output, such as `head`, has ended."""

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    @property
    @override
    def is_terminal(self) -> bool:
        """Whether the output is a terminal, or TTY_COMPATIBLE says that it takes what one does. FORCE_COLOR alone, with
        which rich assumes a terminal, would draw bars into files."""
        compatible = os.environ.get("TTY_COMPATIBLE") == "1"
        return super().is_terminal and (compatible or self.file.isatty())

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """See `Console`; the control characters of rich itself are segments of their own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escaped(segment.text, keep="\n\t"))

    def say(self, text: str) -> None:
        """Prints a text and a line end. On a terminal it is wrapped there; elsewhere it stays as it is."""
        if self.is_terminal:
            self.print(Text(escaped(text, keep="\n\t")))
        elif not self.quiet:
            try:
                say(text, file=self.file, flush=True)  # rich would leave out some characters
            except BrokenPipeError:
                self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Goes on in silence: to end the process, as rich does, would lose the training."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def console(*, stderr: bool = False) -> _Safe:
    """A console of rich whose texts cannot steer the terminal."""
    return _Safe(stderr=stderr)


class Display:
    """Shows one run. Use as a context manager."""

    def __init__(self) -> None:
        self.console = console()
        self.live: Live | None = None
        self.steps = 0
        self.started: tuple[int, float] = (0, 0.0)
        self.recent: deque[tuple[int, float]] = deque()
        self.metrics: list[str] = []

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    @property
    def listener(self) -> Listener:
        """The callbacks through which training updates the display."""
        from statewise.experiments.launch import Listener

        return Listener(
            begin=self.begin,
            note=self.note,
            baselines=self.baselines,
            record=self.record,
            step=self.step,
            report=self.report,
        )

    def _say(self, *texts: str, gap: str = "  ") -> None:
        """Prints texts side by side; a terminal wraps between texts only."""
        if self.console.is_terminal:
            self.console.print(Texts([escaped(text) for text in texts], gap))
        else:
            self.console.say(gap.join(texts))

    def begin(self, run: Run, recipe: Recipe, step: int) -> None:
        """Prints objective, task, folder and device."""
        self.steps = total_steps(run, recipe.as_dict())
        train = [record for record in run.metrics() if record["kind"] == "train"]
        # The clock of the records: the checkpoint may be some steps further.
        self.started = (train[-1]["step"], train[-1].get("seconds", 0.0)) if train else (step, 0.0)
        machine = run.environment()
        self._say(
            f"{recipe.objective.name} on {recipe.task.name}, seed {recipe.seed}:",
            f"{'from step ' + str(step) if step else 'training'} into {run.folder}",
            f"({recipe.trainer.device_of(machine)}, {machine['precision']}, threads: {machine['threads']})",
            gap=" ",
        )
        if self.console.is_terminal:
            self.recent.append((step, time.monotonic()))
            # Transient: the records are printed as lines of their own, so the bar need not stay.
            self.live = Live(get_renderable=self._now, console=self.console, refresh_per_second=4, transient=True)
            self.live.start()

    def note(self, note: str) -> None:
        """Prints a note about the data; on a terminal wrapped, and indented like its first line."""
        if self.console.is_terminal:
            text = escaped(note.lstrip(), keep="\n")
            self.console.print(Padding(Text(text), (0, 0, 0, len(note) - len(text)), expand=False), soft_wrap=False)
        else:
            self.console.say(note)

    def baselines(self, baselines: Mapping[str, Mapping[str, float]]) -> None:
        """Prints the metrics of baselines."""
        self.console.say("held out, baselines:")
        self.console.say(baselines_table(baselines))

    def step(self, step: int) -> None:
        """Updates the bar."""
        now = time.monotonic()
        self.recent.append((step, now))
        while now - self.recent[0][1] > PACE_SECONDS and len(self.recent) > 2:
            self.recent.popleft()

    def _now(self) -> RenderableType:
        """The bar with the current pace; below it the last metrics."""
        (before, begin), (step, now) = self.recent[0], self.recent[-1]
        texts = [f"step {step:,}/{self.steps:,}"]
        if step > before:
            each = max(now - begin, 1e-9) / (step - before)
            pace = f"{1 / each:,.1f} steps/s" if each < 1 else f"{each:,.1f} s/step"
            texts += [pace, f"{duration(each * (self.steps - step))} left"]
        line = Table.grid(expand=True, padding=(0, 2, 0, 0), pad_edge=False)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        for _ in texts[1:]:
            line.add_column(no_wrap=True)
        line.add_row(texts[0], ProgressBar(self.steps, step), *texts[1:])
        return Group(line, Texts(self.metrics)) if self.metrics else line

    def report(self, report: dict[str, Any]) -> None:
        """Prints the metrics of the best checkpoint, and what a model of the user's own sequences has learned."""
        shown = {name: value for name, value in report["metrics"].items() if not name.startswith(DETAILS)}
        self._say(f"best checkpoint (step {report['checkpoint']}) on {report['num']:,} held-out examples:")
        self._say("", *metric_texts(shown))
        if report["baselines"]:
            self.console.say(baselines_table(report["baselines"], report["metrics"]))
        if verdict := report.get("verdict"):
            self.note(verdict["sentence"])
            self.note(verdict["advice"])

    def record(self, record: Record) -> None:
        """Shows a record: training metrics below the bar, others as permanent lines."""
        if self.live is not None and record["kind"] == "train":
            self.metrics = [*metric_texts(record), *pace_texts(record)]
        else:
            self._say(*record_texts(record, self.steps, self.started))


class Bars:
    """A bar on a terminal for each of several works; elsewhere a line for each tenth of one. Use as a context
    manager."""

    def __init__(self, unit: str, *, stderr: bool = False) -> None:
        self.unit = unit
        self.console = console(stderr=stderr)
        self.live: Progress | None = None
        self._works: dict[str, TaskID] = {}
        self._tenths: dict[str, int] = {}

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Leaves the bars as they are; what `show` gets next has new ones below."""
        if self.live is not None:
            self.live.stop()
        self.live = None
        self._works.clear()
        self._tenths.clear()

    def show(self, name: str, done: int, total: int | None) -> None:
        """Shows that `done` of `total` are done; 0 of 0: the work waits for others; None: the total is not known."""
        if self.console.is_terminal:
            self._draw(name, done, total)
        elif total and done * 10 // total > self._tenths.get(name, 0):
            self._tenths[name] = done * 10 // total
            self.console.say(f"{name}: {done:,} of {total:,} {self.unit}")

    def _draw(self, name: str, done: int, total: int | None) -> None:
        if self.live is None:
            text, count = (TextColumn(form, markup=False) for form in ("{task.description}", "{task.fields[count]}"))
            left = TimeRemainingColumn(elapsed_when_finished=True)
            self.live = Progress(text, BarColumn(None), count, left, console=self.console, refresh_per_second=4)
            self.live.start()
        if name not in self._works:
            self._works[name] = self.live.add_task(escaped(name), total=total, count="")
        of = f"{done:,}" if total is None else f"{done:,}/{total:,}"
        shown = "waiting" if total == 0 else f"{of} {self.unit}"
        # rich shows a bar of 0 as full, and one without a total as moving.
        self.live.update(self._works[name], total=1 if total == 0 else total, completed=done, count=shown)


class Count:
    """Progress of stages on stderr, one after the other, each with one of `Bars`. Use as a context manager."""

    def __init__(self, unit: str) -> None:
        self.bars = Bars(unit, stderr=True)
        self.what, self.done = "", 0
        self.total: int | None = None

    def __enter__(self) -> Count:
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def stage(self, what: str, total: int | None) -> None:
        """Begins a stage of `total` things; None: their number is not known."""
        self.bars.stop()
        self.what, self.total, self.done = what, total or None, 0
        if not self.bars.console.is_terminal:
            self.bars.console.say(what)
        self.advance(0)

    def advance(self, things: int) -> None:
        """Adds to what is done."""
        self.done += things
        self.bars.show(self.what, self.done, self.total)

    def note(self, note: str) -> None:
        """Prints a permanent line."""
        self.bars.console.say(note)
