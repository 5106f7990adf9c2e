"""The checks: passes that must agree on some positions, and what they say of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from statewise.backbones.leaks import recording
from statewise.backbones.leaks.readers import Reader, States
from statewise.backbones.leaks.recording import Part, Pass, Recorder
from statewise.runtime.messages import counted, suggestion

CHECKS = {
    "future": "later tokens",
    "packed": "other documents",
    "padding": "padding",
    "batch": "other rows",
    "cache": "cache",
}
"""What may change a state, by the name of the check."""
LENGTH = 47
"""Tokens of a row, unless the model reads fewer."""
SHORTEST = 8
MOST_IN_FLOAT64 = 2**29
"""Parameters of the largest model that is copied in float64: 4 GiB."""
STEPS = 12
"""Single tokens that are read after a cache."""
ROWS = 3


@dataclass(frozen=True)
class Result:
    """What one check found. Amounts are differences relative to the largest number of a module's output."""

    check: str
    """One of `CHECKS`."""
    how: str = ""
    """How the model was asked, if there are several ways."""
    why_not: str | None = None
    """Why the model could not be asked."""
    module: str | None = None
    """The first module that leaks: it reads nothing that the check changed, and writes something else. Empty: the model
    itself; None: nothing leaks."""
    kind: str = ""
    """The class of that module."""
    before: str = ""
    """The first module below it that reads or writes something else, if it is another."""
    amount: float = 0.0
    """The amount in what the first module that leaks writes."""
    output: float = 0.0
    """The amount in what the model returns."""
    changed: str = ""
    """What changed what."""
    layers: dict[str, float] = field(default_factory=dict)
    """The amount in every layer; 0 where it is no more than rounding."""

    @property
    def leaks(self) -> bool:
        """Whether something leaks."""
        return self.module is not None

    @property
    def name(self) -> str:
        """The check in words."""
        return CHECKS[self.check] + (f" ({self.how})" if self.how else "")


@dataclass(frozen=True)
class Leaks:
    """What changes the states of a model besides the past, by `results`."""

    results: list[Result]
    precision: str
    """The type in which the model computed."""
    length: int
    """Tokens of the rows."""
    notes: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether no check found a leak."""
        return not self.found()

    def found(self, check: str | None = None) -> list[Result]:
        """The results that leak, of one check or of all."""
        return [one for one in self.results if one.leaks and check in (None, one.check)]

    def finding(self) -> str:
        """One sentence."""
        if self.clean:
            return "Nothing but the past changes a state."
        names = [one.name for one in self.found()]
        said = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
        return f"States depend on more than the past: {said}."

    def as_text(self) -> str:
        """The sentence, a table of the checks, and one of the layers if something leaks."""
        from statewise.reporting.tables import text_table

        header = ["what may change a state", "result", "first module that leaks", "amount there", "in the output"]
        rows = []
        for one in self.results:
            if one.why_not is not None:
                rows.append([one.name, "not checked", "", "", ""])
            elif one.leaks:
                rows.append([one.name, "leaks", one.module or "the model", _shown(one.amount), _shown(one.output)])
            else:
                rows.append([one.name, "clean", "", "", ""])
        found = self.found()
        if not found:
            header, rows = header[:2], [row[:2] for row in rows]
        parts = [f"{self.finding()} Computed in {self.precision}, rows of {self.length} tokens.", *self.notes]
        parts += ["", text_table(header, rows, left={0, 1, 2})]
        if found:
            columns = [f"{one.check}{f', {one.how}' if one.how else ''}" for one in found]
            layers = list(found[0].layers)
            cells = [[name, *(_shown(one.layers.get(name, 0.0)) for one in found)] for name in layers]
            parts += ["", text_table(["layer", *columns], [*cells, ["output", *(_shown(one.output) for one in found)]])]
        said = [f"{one.name}: {one.changed}, first in {_place(one)}" for one in found]
        said += [f"{one.name}: not checked, {one.why_not}" for one in self.results if one.why_not is not None]
        return "\n".join([*parts, *(["", *said] if said else [])])

    def as_json(self) -> dict[str, Any]:
        """For JSON."""
        return {"clean": self.clean, "finding": self.finding(), **asdict(self)}


def _shown(amount: float) -> str:
    return f"{amount:.1e}" if 0 < amount < 1e-3 else f"{amount:.3f}" if amount else "0"


def _place(one: Result) -> str:
    place = (one.module or "the model itself") + (f" ({one.kind})" if one.kind else "")
    return f"{place}, before {one.before}" if one.before else place


def find(reader: Reader, checks: Collection[str] | None = None, length: int | None = None) -> Leaks:
    """Tries a model on random tokens, with a copy of it that computes in float64 where it can. The later tokens are
    always checked; `checks` names others, None means all. `length` is that of the rows.

    Raises `ValueError` for unknown checks, for those named that the model cannot be asked, for a model that cannot be
    copied, reads too few tokens, or returns no states of all positions, NaN, or other numbers each time.
    """
    asked = list(CHECKS) if checks is None else ["future", *(name for name in CHECKS if name in checks)]
    for name in checks or ():
        if name not in CHECKS:
            raise ValueError(f"there is no check {name!r}: {suggestion(name, CHECKS)}checks: {', '.join(CHECKS)}")
    tester = Tester.in_best_precision(reader, length)
    try:
        results = [result for name in asked for result in tester.check(name)]
    finally:
        tester.close()
    for name in checks or ():
        reasons = [one.why_not for one in results if one.check == name]
        if all(reasons):
            raise ValueError(f"{CHECKS[name]} cannot be checked: {reasons[0]}")
    return Leaks(results, str(tester.dtype).removeprefix("torch."), tester.length, tester.notes)


class Tester:
    """Passes of a model over random tokens, which are compared. The model should be a copy."""

    def __init__(self, reader: Reader, length: int, *, computes_in: torch.dtype, modules: bool = True) -> None:
        """`modules`: whether those that leak are named; else only what the model returns is compared."""
        self.reader, self.dtype, self.allowed = reader, computes_in, recording.ALLOWED[computes_in]
        self.notes: list[str] = []
        network = reader.network
        self.length = length
        self.generator = torch.Generator().manual_seed(0)
        self.ids = torch.tensor([one for one in range(min(reader.vocabulary, 2**20)) if one not in reader.unused])
        if len(self.ids) < 2:
            raise ValueError(f"the model has {counted(len(self.ids), 'token id')} to read: it needs two")
        self.layers = _layers(network) if modules else []
        self.recorder = Recorder(network, modules=modules)
        self.buffers = [(buffer, buffer.clone()) for buffer in network.buffers()] if modules else []
        self.devices = [reader.device]

    @classmethod
    def in_best_precision(cls, reader: Reader, length: int | None) -> Tester:
        """A copy in float64 if the model runs in it, else in float32, else in its own types. Raises `ValueError` if it
        runs in none."""
        size, length = sum(each.numel() for each in reader.network.parameters()), _length(reader, length)
        own = next((x.dtype for x in reader.network.parameters() if x.is_floating_point()), torch.float32)
        kinds: list[torch.dtype | None] = [torch.float64, torch.float32, None]
        reasons: list[str] = []
        if size > MOST_IN_FLOAT64:
            kinds, reasons = [None], [f"it has {size:,} parameters"]
        for dtype in kinds:
            tester = None
            try:
                tester = cls(reader.copy(dtype), length, computes_in=dtype or own)
                tester.settle()
            except (ValueError, torch.OutOfMemoryError):
                if tester is not None:
                    tester.close()
                raise
            except Exception as error:  # whatever the code of the model raises
                if tester is not None:
                    tester.close()
                reasons.append(f"{type(error).__name__}: {str(error)[:200]}")
                continue
            if tester.dtype != torch.float64:
                why = " ".join(reasons[0].split())
                tester.notes.append(f"Not in float64, so small leaks may go unseen: {why}")
            return tester
        raise ValueError(f"the model cannot be read by token ids alone ({reasons[-1]}): give a causal model")

    def close(self) -> None:
        """Removes the hooks."""
        self.recorder.remove()

    def settle(self) -> None:
        """Raises `ValueError` if the model returns NaN or infinity, or other numbers each time."""
        tokens = self.draw(1)
        one, *others = self.read(tokens), self.read(tokens), self.read(tokens, seed=1)
        for state in one["", 0].outputs:
            if not state.isfinite().all():
                raise ValueError("the model returns numbers that are not finite, so no change can be seen")
        everything = Part([0], slice(None))
        change = max([*recording.differences(one, other, everything, everything)][-1].written for other in others)
        if change > self.allowed:
            raise ValueError(
                f"the model computes something else each time it reads the same tokens (by {change:.1e} of the "
                "largest number), so no leak can be seen: switch off what it draws at random"
            )

    def check(self, name: str) -> Iterator[Result]:
        """The results of one of `CHECKS`."""
        results = {
            "future": self._future,
            "packed": self._packed,
            "padding": self._padding,
            "batch": self._batch,
            "cache": self._cache,
        }[name]()
        try:
            yield from results
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the code of the model raises
            yield Result(name, why_not=_said(error))

    def first_leak(self) -> Result | None:
        """The first leak that one comparison for each of later tokens, other documents and a cache shows: for a model
        that is to be used, not examined."""
        for results in (self._future(brief=True), self._packed(brief=True), self._cache(brief=True)):
            for result in results:
                if result.why_not is not None:
                    raise ValueError(f"{CHECKS[result.check]}: {result.why_not}")
                if result.leaks:
                    return result
        return None

    # Passes

    def shorter(self, tokens: Tensor) -> Pass | None:
        """A pass over fewer or shorter rows than others; None, with a note, if the model cannot read them."""
        try:
            return self.read(tokens)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the code of the model raises
            shape = " x ".join(map(str, tokens.shape))
            self.notes.append(f"The model cannot read {shape} tokens, so these are not compared: {_said(error)}")
            return None

    def draw(self, rows: int, length: int | None = None) -> Tensor:
        """Random tokens (rows, T)."""
        found = torch.randint(len(self.ids), (rows, length or self.length), generator=self.generator)
        return self.ids[found].to(self.reader.device)

    def other(self, tokens: Tensor, columns: slice, rows: Sequence[int] = (0,)) -> Tensor:
        """A copy of `tokens` with other tokens in `columns` of `rows`."""
        found = tokens.clone()
        for row in rows:
            before = torch.searchsorted(self.ids, found[row, columns].cpu())
            shift = torch.randint(1, len(self.ids), before.shape, generator=self.generator)
            found[row, columns] = self.ids[(before + shift) % len(self.ids)].to(found)
        return found

    def read(
        self, tokens: Tensor, how: Callable[[Tensor], States] | None = None, *, training: bool = False, seed: int = 0
    ) -> Pass:
        """A pass over rows (B, T), with random numbers of `seed`."""
        for buffer, kept in self.buffers:
            if buffer.shape == kept.shape:
                buffer.copy_(kept)
        self.reader.network.train(training)
        with recording.quiet_passes(seed, self.dtype, self.devices):
            return self.recorder.record(len(tokens), tokens.shape[1], lambda: (how or self.reader.read)(tokens))

    # Checks

    def _future(self, *, brief: bool = False) -> Iterator[Result]:
        tokens, T = self.draw(1), self.length
        cuts = [T - 1] if brief else sorted({T // 4, T // 2, T // 2 + T // 4 + 1, T - 1})
        for training in (False,) if brief else (False, True):
            findings = _Findings(self, "future", "in training mode" if training else "")
            base = self.read(tokens, training=training)
            if training:
                again = self.read(tokens, training=True)
                if not findings.same(base, again):
                    yield Result("future", findings.how, "the model computes something else each time it is read")
                    continue
            for cut in cuts:
                other = self.read(self.other(tokens, slice(cut, None)), training=training)
                seen = Part([0], slice(0, cut))
                findings.add(base, other, seen, seen, f"tokens from place {cut} on change those before")
            if not training and not brief:
                short = self.shorter(tokens[:, : T // 2])
                seen = Part([0], slice(0, T // 2))
                findings.add(base, short, seen, seen, f"the first {T // 2} tokens give other numbers alone")
            yield findings.result()

    def _packed(self, *, brief: bool = False) -> Iterator[Result]:
        if "packed" in self.reader.lacks:
            yield Result("packed", why_not=self.reader.lacks["packed"])
        spans = [slice(*pair) for pair in pairwise(_bounds(self.length, _sizes(self.reader.network)))]
        documents = torch.zeros(1, self.length, dtype=torch.long, device=self.reader.device)
        for number, span in enumerate(spans):
            documents[:, span] = number + 1
        tokens = self.draw(1)
        for how, pack in self.reader.packings.items():
            findings = _Findings(self, "packed", how)

            def read(rows: Tensor, pack: Callable[[Tensor, Tensor], States] = pack) -> Pass:
                return self.read(rows, lambda tokens: pack(tokens, documents))

            try:
                base = read(tokens)
            except Exception as error:  # whatever the code of the model raises
                yield Result("packed", how, _said(error))
                continue
            for number, span in enumerate(() if brief else spans):
                other = read(self.other(tokens, span))
                for place, seen in enumerate(spans):
                    if place != number:
                        part = Part([0], seen)
                        findings.add(base, other, part, part, f"document {number + 1} changes document {place + 1}")
            for number, span in enumerate(spans):
                alone = self.shorter(tokens[:, span])
                there = Part([0], slice(None))
                said = f"document {number + 1} depends on where in the row it stands"
                findings.add(base, alone, Part([0], span), there, said)
            yield findings.result()

    def _padding(self) -> Iterator[Result]:
        if "padding" in self.reader.lacks:
            yield Result("padding", why_not=self.reader.lacks["padding"])
        tokens, pad = self.draw(1), self.length // 3
        for side, padded in self.reader.paddings.items():
            findings = _Findings(self, "padding", f"on the {side}")
            seen, rest = slice(0, self.length - pad), slice(self.length - pad, None)
            if side == "left":
                seen, rest = slice(pad, None), slice(0, pad)
            real = torch.ones_like(tokens, dtype=torch.bool)
            real[:, rest] = False

            def read(rows: Tensor, padded: Any = padded, real: Tensor = real) -> Pass:
                return self.read(rows, lambda tokens: padded(tokens, real))

            try:
                base, other = read(tokens), read(self.other(tokens, rest))
            except Exception as error:  # whatever the code of the model raises
                yield Result("padding", findings.how, _said(error))
                continue
            here, there = Part([0], seen), Part([0], slice(None))
            findings.add(base, other, here, here, "the tokens under the padding change the others")
            findings.add(
                base, self.shorter(tokens[:, seen]), here, there, "the row gives other numbers without padding"
            )
            yield findings.result()

    def _batch(self) -> Iterator[Result]:
        tokens, every = self.draw(ROWS), slice(None)
        for training in (False, True):
            findings = _Findings(self, "batch", "in training mode" if training else "")
            base = self.read(tokens, training=training)
            if training and not findings.same(base, self.read(tokens, training=True)):
                yield Result("batch", findings.how, "the model computes something else each time it is read")
                continue
            for row in range(ROWS):
                others = [one for one in range(ROWS) if one != row]
                other = self.read(self.other(tokens, every, [row]), training=training)
                part = Part(others, every)
                findings.add(base, other, part, part, f"row {row + 1} changes other rows")
            for row in () if training else range(ROWS):
                alone = self.shorter(tokens[row : row + 1])
                findings.add(
                    base, alone, Part([row], every), Part([0], every), f"row {row + 1} gives other numbers alone"
                )
            yield findings.result()

    def _cache(self, *, brief: bool = False) -> Iterator[Result]:
        if "cache" in self.reader.lacks:
            yield Result("cache", why_not=self.reader.lacks["cache"])
            return
        tokens, T = self.draw(2), self.length
        whole, rows = self.read(tokens), range(2)
        half = T // 2
        ways = {
            "one token at a time": [half, *[1] * min(STEPS, T - half)],
            "several at a time": [half, T // 4, T - half - T // 4],
        }
        for how, sizes in () if brief else ways.items():
            findings, start, cache = _Findings(self, "cache", how), 0, None
            try:
                for size in sizes:
                    new, kept = tokens[:, start : start + size], [cache]

                    def step(rows: Tensor, kept: list[Any] = kept) -> States:
                        states, kept[0] = self.reader.step(rows, kept[0])
                        return states

                    found = self.read(new, step)
                    cache = kept[0]
                    said = f"{counted(size, 'token')} after a cache of {start} gave other numbers than all at once"
                    findings.add(found, whole, Part(rows, slice(0, size)), Part(rows, slice(start, start + size)), said)
                    start += size
            except Exception as error:  # whatever the code of the model raises
                yield Result("cache", how, _said(error))
                continue
            yield findings.result()
        findings = _Findings(self, "cache", "rows that go apart, back and change places")
        try:
            with recording.quiet_passes(0, self.dtype, self.devices):
                parts = list(self.reader.uneven(tokens))
        except Exception as error:  # whatever the code of the model raises
            yield Result("cache", findings.how, _said(error))
            return
        for states, row, columns in parts:
            part = {("", 0): recording.Written("", [], [each.flatten(2) for each in states], certain=True)}
            findings.add(
                part,
                whole,
                Part([0], slice(None)),
                Part([row], columns),
                f"row {row + 1} gave other numbers than at once",
            )
        if parts:
            yield findings.result()


class _Findings:
    """What the comparisons of one check have in common."""

    def __init__(self, tester: Tester, check: str, how: str) -> None:
        self.check, self.how, self.allowed, self.names = check, how, tester.allowed, tester.layers
        self.largest: dict[str, float] = {}
        self.first: dict[str, Any] = {}

    def same(self, one: Pass, other: Pass) -> bool:
        """Whether two passes return the same."""
        every = Part(range(len(one["", 0].outputs[0])), slice(None))
        *_, output = recording.differences(one, other, every, every)
        return output.written <= self.allowed

    def add(self, one: Pass, other: Pass | None, here: Part, there: Part, changed: str) -> None:
        """Compares the part `here` of a pass with the part `there` of another, unless that is None."""
        if other is None:
            return
        found = list(recording.differences(one, other, here, there))
        for each in found:
            if each.written > self.allowed:
                self.largest[each.module] = max(self.largest.get(each.module, 0.0), each.written)
        leaking = [each for each in found if each.written > self.allowed]
        if self.first or not any(each.certain and each.module in {"", *self.names} for each in leaking):
            return  # what only modules within a layer show may be masked or cut off there
        source = next((each for each in leaking if each.read <= self.allowed), leaking[0])
        below, prefix = leaking[0].module, f"{source.module}." if source.module else ""
        self.first = {
            "module": source.module,
            "kind": source.kind,
            "amount": source.written,
            "before": below.removeprefix(prefix) if below != source.module and below.startswith(prefix) else "",
            "changed": changed,
        }

    def result(self) -> Result:
        """The largest differences of all comparisons, and the first module that leaks in the first that shows one."""
        layers = {name: self.largest.get(name, 0.0) for name in self.names}
        found = self.first if self.first else {}
        return Result(self.check, self.how, output=self.largest.get("", 0.0), layers=layers, **found)


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def _sizes(network: nn.Module) -> set[int]:
    """The sizes of all axes of parameters, which no row should have: axes are recognised by their sizes."""
    return {size for each in network.parameters() for size in each.shape}


def _length(reader: Reader, asked: int | None) -> int:
    """Tokens of a row: as many as asked for, or about `LENGTH`. Raises `ValueError` if the model reads too few."""
    most = reader.longest
    if asked is not None:
        if asked < SHORTEST or (most is not None and asked > most):
            limit = f"from {SHORTEST} to {most:,}" if most is not None else f"at least {SHORTEST}"
            raise ValueError(f"length is {asked:,}, and must be {limit} tokens for this model")
        return asked
    longest = LENGTH if most is None else min(LENGTH, most)
    if longest < SHORTEST:
        raise ValueError(f"the model reads {counted(longest, 'token')}, and the checks need {SHORTEST}")
    sizes = _sizes(reader.network)
    return next((one for one in range(longest, SHORTEST - 1, -1) if one not in sizes), longest)


def _bounds(length: int, sizes: set[int]) -> list[int]:
    """Where three documents of different lengths begin, and the end of the last."""
    best = [0, length * 2 // 7, length * 5 // 7, length]
    for shift in range(length // 8 + 1):
        for moved in ([0, best[1] + shift, best[2], length], [0, best[1], best[2] + shift, length]):
            parts = [end - start for start, end in pairwise(moved)]
            if len(set(parts)) == 3 and min(parts) > 1 and not sizes & set(parts):
                return moved
    return best


def _layers(network: nn.Module) -> list[str]:
    """The names of the elements of the longest list of modules, or of the parts of the network if it has none."""
    lists = [
        (name, module)
        for name, module in network.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 1
    ]
    name, longest = max(lists, key=lambda each: len(each[1]), default=("", network))
    return [f"{name}.{child}" if name else child for child, _ in longest.named_children()]
