"""Columns that order events: numbers and times, read exactly and as arrays.

The cells of a column have few shapes: `2024-06-01T12:00:00.5Z` and `2025-01-31T08:15:30.1Z` differ in digits alone. A
shape is understood once, by a regular expression, and the digits of all its cells are read together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import numpy as np

from statewise.runtime.messages import cut
from statewise.tasks.own_files.sources import Ids

EPOCHS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units of numbers since 1970, by how many of them make a second."""
EPOCH_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
EARLIEST, LATEST = 10**9, 42 * 10**8
"""Seconds since 1970, 2001 to 2103, between which a number without a unit is understood as a time."""
FARTHEST = 2**63 // 10**9 - 1
"""Seconds from 1970 that nanoseconds in 64 bits hold."""
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
NUMBER, LOCAL, ZONED = range(3)
KINDS = ("a number", "a time without a zone", "a time with a zone")
LONGEST = 19
"""Most digits of a whole number in 64 bits."""
NUMBERS = re.compile(r"(?P<sign>[+-]?)(?P<whole>0{1,19})(?:\.(?P<fraction>0*))?")

_MONTH = rf"(?P<name>{'|'.join(MONTHS)})[a-z]*\.?"
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s+)?"
_CLOCK = r"(?P<hour>00?)(?::(?P<minute>00)(?::(?P<second>00)(?:[.,](?P<fraction>0+))?)?)?\s*(?P<half>[ap]\.?m\.?)?"
_COMPACT = r"(?P<hour>00)(?:(?P<minute>00)(?:(?P<second>00)(?:[.,](?P<fraction>0+))?)?)?"
_ZONE = r"\s*(?P<zone>z|utc|gmt|(?:utc|gmt)?(?P<sign>[+-])(?P<ahead>00)(?::?(?P<ahead_minutes>00))?)?"
_DATES = (
    r"(?P<year>0000)(?P<s>[-/.])(?P<month>00?)(?P=s)(?P<day>00?)",
    r"(?P<first>00?)(?P<s>[-/.])(?P<second_part>00?)(?P=s)(?P<year>0000)",
    rf"{_WEEKDAY}(?P<day>00?)[-/.\s]\s*{_MONTH}[-/\s,]\s*(?P<year>0000)",
    rf"{_WEEKDAY}{_MONTH}\s+(?P<day>00?),?\s+(?P<year>0000)",
)
TIMES = (
    *(re.compile(rf"{date}(?:(?:t|,?\s+){_CLOCK})?{_ZONE}", re.IGNORECASE) for date in _DATES),
    re.compile(rf"(?P<year>0000)(?P<month>00)(?P<day>00)[t ]{_COMPACT}{_ZONE}", re.IGNORECASE),
)
DIRECTIVES = {
    "Y": ("year", "0000"),
    "y": ("short_year", "00"),
    "m": ("month", "00?"),
    "d": ("day", "00?"),
    "b": ("name", None),
    "B": ("name", None),
    "H": ("hour", "00?"),
    "I": ("hour", "00?"),
    "M": ("minute", "00?"),
    "S": ("second", "00?"),
    "f": ("fraction", "0+"),
    "p": ("half", None),
    "z": ("zone", None),
    "Z": ("zone", None),
}
"""What stands for a directive of `task.time_format` in a shape; None: part of a pattern that it shares."""
_SHAPE = bytes.maketrans(b"123456789", b"000000000")


def check_format(text: str) -> re.Pattern[str]:
    """The pattern of the shapes of a format such as %d/%m/%Y %H:%M:%S. Raises `ValueError` for what is not known, and
    unless it has year, month and day."""
    parts = re.split(r"(%.?)", text)
    pattern, used = "", set()
    for place, part in enumerate(parts):
        if not part.startswith("%"):
            shape = part.encode().translate(_SHAPE).decode()
            pattern += r"\s+".join(map(re.escape, re.split(r"\s+", shape)))
            continue
        if part == "%%":
            pattern += "%"
            continue
        if part[1:] not in DIRECTIVES:
            known = " ".join(f"%{name}" for name in DIRECTIVES)
            raise ValueError(f"task.time_format has {part!r}: it must be made of {known}, or be s, ms, us or ns")
        name, digits = DIRECTIVES[part[1:]]
        if name in used:
            raise ValueError(f"task.time_format has {part!r}, but its {name.replace('_', ' ')} is there already")
        used.add(name)
        if name == "name":
            pattern += _MONTH
        elif name == "half":
            pattern += r"(?P<half>[ap]\.?m\.?)"
        elif name == "zone":
            pattern += _ZONE.removesuffix("?")
        else:
            assert digits is not None
            beside = (place > 1 and not parts[place - 1]) or (place + 2 < len(parts) and not parts[place + 1])
            pattern += f"(?P<{name}>{digits.replace('?', '') if beside else digits})"
    dated = used & {"year", "short_year"} and used & {"month", "name"} and "day" in used
    if not dated:
        raise ValueError(
            f"task.time_format must have year, month and day, such as %d/%m/%Y %H:%M, or be s, ms, us or ns, not "
            f"{text!r}"
        )
    return re.compile(pattern, re.IGNORECASE)


@dataclass
class Moments:
    """The cells of some rows, as arrays (n,). A number is `major` + `minor` / 10^9, a time so many seconds since
    1970."""

    lines: np.ndarray
    kind: np.ndarray
    major: np.ndarray
    minor: np.ndarray
    parts: np.ndarray
    """(n, 3) first and second part and year of dates whose day and month are to be found out; 0: no such date."""
    dots: np.ndarray
    """(n,) bool: whether dots separate these parts."""
    further: dict[int, str] = field(default_factory=dict)
    """Digits after the ninth of a fraction, without final zeros, of those that have them."""
    exact: dict[int, int | Decimal] = field(default_factory=dict)
    """Numbers that `major` and `minor` do not hold."""
    undecided: str = ""
    """A cell whose day and month are to be found out, and the two formats."""
    formats: tuple[str, str] = ("", "")

    @classmethod
    def empty(cls, lines: np.ndarray) -> Moments:
        """Rows without values yet."""
        n = len(lines)
        return cls(
            lines,
            np.full(n, -1, np.int8),
            np.zeros(n, np.int64),
            np.zeros(n, np.int32),
            np.zeros((n, 3), np.int16),
            np.zeros(n, bool),
        )

    def take(self, rows: np.ndarray) -> Moments:
        """Those of the rows (n,) bool."""
        place = np.cumsum(rows) - 1
        kept = Moments(
            self.lines[rows],
            self.kind[rows],
            self.major[rows],
            self.minor[rows],
            self.parts[rows],
            self.dots[rows],
            {int(place[row]): text for row, text in self.further.items() if rows[row]},
            {int(place[row]): number for row, number in self.exact.items() if rows[row]},
        )
        if kept.parts.any():
            kept.undecided, kept.formats = self.undecided, self.formats
        return kept

    @classmethod
    def joined(cls, blocks: Sequence[Moments]) -> Moments:
        """One or more blocks of rows, in their order."""
        starts = np.cumsum([0, *(len(block.lines) for block in blocks)]).tolist()
        further = {start + row: text for start, block in zip(starts, blocks) for row, text in block.further.items()}
        exact = {start + row: number for start, block in zip(starts, blocks) for row, number in block.exact.items()}
        asked = next((block for block in blocks if block.undecided), blocks[0])
        return cls(
            np.concatenate([block.lines for block in blocks]),
            np.concatenate([block.kind for block in blocks]),
            np.concatenate([block.major for block in blocks]),
            np.concatenate([block.minor for block in blocks]),
            np.concatenate([block.parts for block in blocks]),
            np.concatenate([block.dots for block in blocks]),
            further,
            exact,
            asked.undecided,
            asked.formats,
        )


class Reader:
    """Reads the cells of one column, some rows at a time. `time_format` as in `SequenceFile`."""

    def __init__(self, column: str, time_format: str | None = None) -> None:
        self.column, self.epoch = column, time_format if time_format in EPOCHS else None
        self.format = time_format
        given = None if time_format is None or self.epoch else check_format(time_format)
        self.patterns = TIMES if given is None else (given,)
        self.given = given is not None

    def read(self, values: Sequence[Any], lines: np.ndarray) -> tuple[Moments, dict[int, str]]:
        """The moments of cells of rows that begin in `lines`, and what is wrong with the cells that are neither a
        number nor a time, by row."""
        texts, wrong = _texts(values)
        moments = Moments.empty(lines)
        if not texts:
            return moments, wrong
        joined = "\n".join(texts).encode("utf-8", "surrogatepass")
        shapes = joined.translate(_SHAPE).split(b"\n")
        if len(shapes) != len(texts):
            texts = [text.replace("\n", " ") for text in texts]
            joined = "\n".join(texts).encode("utf-8", "surrogatepass")
            shapes = joined.translate(_SHAPE).split(b"\n")
        raw = np.frombuffer(joined + b"\n", np.uint8)
        widths = np.fromiter(map(len, shapes), np.int64, len(shapes))
        starts = np.cumsum(widths + 1) - widths - 1
        ids = Ids()
        of_row = ids.of(shapes)
        by_shape = np.split(np.argsort(of_row, kind="stable"), np.cumsum(np.bincount(of_row, minlength=len(ids)))[:-1])
        for (shape, _), rows in zip(ids.items(), by_shape):
            self._of_shape(shape.decode("utf-8", "replace"), rows, raw, starts, texts, moments)
        for row in np.flatnonzero(moments.kind < 0).tolist():
            if row not in wrong:
                wrong[row] = self._what(values[row])
        return moments, wrong

    def _what(self, value: Any) -> str:
        if self.epoch:
            must = f"a number of {EPOCH_NAMES[self.epoch]} since 1970"
        elif self.given:
            must = f"a time written as {self.format}, as task.time_format says"
        else:
            must = (
                "a number or an ISO 8601 time such as 2024-05-31 09:30; set --task.time_format if times are written "
                "differently"
            )
        return f"column {self.column!r} is {cut(repr(value))}: the order must be {must}"

    def _of_shape(
        self, shape: str, rows: np.ndarray, raw: np.ndarray, starts: np.ndarray, texts: list[str], moments: Moments
    ) -> None:
        left = len(shape) - len(shape.lstrip())
        bare = shape.strip()
        number = None if self.given else NUMBERS.fullmatch(bare)
        if number and not (number["sign"] == "-" and len(number["fraction"] or "") > 9):
            if len(number["whole"]) == LONGEST:  # may be beyond 64 bits
                large = raw[starts[rows] + left + number.start("whole")] == ord("9")
                for row in rows[large].tolist():
                    self._read_alone(texts[row], row, moments)
                rows = rows[~large]
            _read_numbers(number, left, rows, raw, starts, texts, moments)
            return
        if not self.epoch:
            for pattern in self.patterns:
                match = pattern.fullmatch(bare)
                if match:
                    self._read_times(match, left, rows, raw, starts, texts, moments)
                    return
        if not self.given:
            for row in rows.tolist():
                self._read_alone(texts[row], row, moments)

    def _read_alone(self, text: str, row: int, moments: Moments) -> None:
        """What only Python reads: numbers with exponents, or of many digits, and rare forms of ISO 8601."""
        number = None if ":" in text else number_of(text)
        if number is not None:
            moments.kind[row], moments.exact[row] = NUMBER, number
            return
        if self.epoch:
            return
        time = _time(text)
        if time is not None:
            moment, digits = time
            moments.kind[row] = LOCAL if moment.utcoffset() is None else ZONED
            whole = moment.replace(microsecond=0)
            aware = whole.replace(tzinfo=UTC) if whole.utcoffset() is None else whole
            moments.major[row] = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // _SECOND
            digits = f"{moment.microsecond:06}{digits}"
            moments.minor[row] = int(f"{digits:0<9}"[:9])
            if digits[9:].rstrip("0"):
                moments.further[row] = digits[9:].rstrip("0")

    def _read_times(
        self,
        match: re.Match[str],
        left: int,
        rows: np.ndarray,
        raw: np.ndarray,
        starts: np.ndarray,
        texts: list[str],
        moments: Moments,
    ) -> None:
        found = match.groupdict()

        def digits(name: str, default: int = 0) -> np.ndarray:
            if not found.get(name):
                return np.full(len(rows), default, np.int64)
            begin, end = match.span(name)
            return _digits(raw, starts[rows] + left + begin, end - begin)

        year, month, day = digits("year"), digits("month", 1), digits("day", 1)
        if found.get("short_year"):  # POSIX: 69 to 99 are of the last century
            year = digits("short_year")
            year = year + np.where(year < 69, 2000, 1900)
        if found.get("name"):
            month = np.full(len(rows), MONTHS.index(found["name"][:3].lower()) + 1)
        hour, minute, second = digits("hour"), digits("minute"), digits("second")
        valid = (hour < 24) & (minute < 60) & (second < 60) & (year > 0)
        if found.get("half"):
            valid &= (hour >= 1) & (hour <= 12)
            hour = hour % 12 + 12 * (found["half"][0] in "pP")
        clock = 3600 * hour + 60 * minute + second
        if found.get("sign"):
            ahead, minutes = digits("ahead"), digits("ahead_minutes")
            valid &= (ahead < 24) & (minutes < 60)
            clock = clock - (1 if found["sign"] == "+" else -1) * (3600 * ahead + 60 * minutes)
        if "first" in found:
            parts = np.stack([digits("first"), digits("second_part"), year], 1)
            valid &= (
                (parts[:, :2] >= 1).all(axis=1) & (parts[:, :2].min(axis=1) <= 12) & (parts[:, :2] <= 31).all(axis=1)
            )
            moments.parts[rows[valid]] = parts[valid]
            moments.dots[rows] = found["s"] == "."
            if not moments.undecided:
                moments.undecided = texts[rows[0]]
                moments.formats = _formats(match)
        else:
            valid &= _exists(year, month, day)
            clock = clock + 86400 * days(year, month, day)
        rows_, clock = rows[valid], clock[valid]
        moments.kind[rows_] = ZONED if found.get("zone") else LOCAL
        moments.major[rows_] = clock
        _read_fraction(match, left, rows_, raw, starts, texts, moments)


def _texts(values: Sequence[Any]) -> tuple[list[str], dict[int, str]]:
    """Text of cells; what is not text, a whole number or a decimal becomes empty."""
    if set(map(type, values)) <= {str}:
        return list(values), {}
    texts = [
        value if isinstance(value, str) else _written(value) if isinstance(value, (int, Decimal)) else ""
        for value in values
    ]
    return texts, {}


def _written(value: int | Decimal) -> str:
    if isinstance(value, bool):
        return ""
    try:
        return str(value)
    except ValueError:  # longer than Python writes
        return str(Decimal(value))


def _digits(raw: np.ndarray, begin: np.ndarray, width: int) -> np.ndarray:
    """(m,) whole numbers of `width` digits that begin at the offsets `begin` (m,)."""
    number = np.zeros(len(begin), np.int64)
    for place in range(width):
        number = 10 * number + (raw[begin + place] - 48)
    return number


def _read_fraction(
    match: re.Match[str],
    left: int,
    rows: np.ndarray,
    raw: np.ndarray,
    starts: np.ndarray,
    texts: list[str],
    moments: Moments,
) -> None:
    if not match.groupdict().get("fraction"):
        return
    begin, end = match.span("fraction")
    width = min(9, end - begin)
    moments.minor[rows] = _digits(raw, starts[rows] + left + begin, width) * 10 ** (9 - width)
    if end - begin > 9:
        for row in rows.tolist():
            if digits := texts[row].strip()[begin + 9 : end].rstrip("0"):
                moments.further[row] = digits


def _read_numbers(
    match: re.Match[str],
    left: int,
    rows: np.ndarray,
    raw: np.ndarray,
    starts: np.ndarray,
    texts: list[str],
    moments: Moments,
) -> None:
    begin, end = match.span("whole")
    moments.kind[rows] = NUMBER
    moments.major[rows] = _digits(raw, starts[rows] + left + begin, end - begin)
    _read_fraction(match, left, rows, raw, starts, texts, moments)
    if match["sign"] == "-":
        part = moments.minor[rows] > 0
        moments.major[rows] = -moments.major[rows] - part
        moments.minor[rows] = np.where(part, 10**9 - moments.minor[rows], 0)


def days(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> np.ndarray:
    """Days since 1970-01-01 of dates of the Gregorian calendar, years from 1 on."""
    shifted = year - (month <= 2)
    era, of_era = shifted // 400, shifted % 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def _exists(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> np.ndarray:
    lengths = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    within = (month >= 1) & (month <= 12) & (day >= 1)
    return within & (day <= lengths[np.where(within, month, 1)] + (leap & (month == 2)))


def _formats(match: re.Match[str]) -> tuple[str, str]:
    """The formats, for `task.time_format`, of a date with the day first and with the month first."""
    shape, texts = match.string, []
    for first, second in (("%d", "%m"), ("%m", "%d")):
        names = {"first": first, "second_part": second, "year": "%Y", "minute": "%M", "second": "%S", "fraction": "%f"}
        names |= {"hour": "%I" if match.groupdict().get("half") else "%H", "half": "%p", "zone": "%z"}
        spans = sorted((*match.span(name), text) for name, text in names.items() if match.groupdict().get(name))
        text, at = "", 0
        for begin, end, directive in spans:
            text += shape[at:begin] + directive
            at = end
        texts.append(text + shape[at:])
    return texts[0], texts[1]


class Ordered(NamedTuple):
    """The order of rows."""

    keys: list[np.ndarray]
    """Keys (n,) for `numpy.lexsort`, the most important last."""
    times: np.ndarray | None
    """(n,) int64 nanoseconds since 1970; None: the numbers are no times, or times are too far from 1970."""
    steps: np.ndarray | None
    """(n,) float64: the numbers, for their differences; None: they are times."""
    how: str
    """What was found out about the column, for the user."""
    wrong: dict[int, str]
    """What is wrong with a row, by row."""


def ordered(moments: Moments, column: str, epoch: str | None = None) -> Ordered:
    """The order of one or more rows whose `kind` is known. `epoch`: the unit of numbers since 1970; None: as their size
    shows. Raises `ValueError` if the order of day and month cannot be found out, without the file's name."""
    wrong: dict[int, str] = {}
    first = int(moments.kind[0])
    for row in np.flatnonzero(moments.kind != first).tolist():
        wrong[row] = (
            f"column {column!r} is {KINDS[moments.kind[row]]}, but {KINDS[first]} in line {int(moments.lines[0])}"
        )
    major, how = moments.major, ""
    dated = moments.parts[:, 2] > 0
    if dated.any():
        major, how, impossible = _day_and_month(moments, column, dated)
        wrong |= impossible
    further = _ranks(moments.further, len(major))
    if moments.exact:
        ranks = _exact_ranks(moments)
        steps = None if first != NUMBER else _floats(moments)
        return Ordered([ranks], None, steps, how, wrong)
    keys = [moments.minor, major] if further is None else [further, moments.minor, major]
    if first != NUMBER:
        times, far = _nanoseconds(major, moments.minor)
        return Ordered(keys, times, None, how or far, wrong)
    steps = major + moments.minor / 1e9
    unit = epoch or _unit(major)
    if unit is None:
        return Ordered(keys, None, steps, how, wrong)
    scale = EPOCHS[unit]
    seconds = major // scale
    # What is left of a number below its unit's second, and the fraction of the number itself.
    nanoseconds = (major % scale) * (10**9 // scale) + moments.minor // scale
    times, far = _nanoseconds(seconds, nanoseconds)
    return Ordered(keys, times, None, far or f"{EPOCH_NAMES[unit]} since 1970", wrong)


def _unit(numbers: np.ndarray) -> str | None:
    low, high = int(numbers.min()), int(numbers.max())
    fits = [unit for unit, scale in EPOCHS.items() if EARLIEST * scale <= low and high < LATEST * scale]
    return fits[0] if fits else None


def _nanoseconds(seconds: np.ndarray, nanoseconds: np.ndarray) -> tuple[np.ndarray | None, str]:
    if len(seconds) and (int(seconds.min()) < -FARTHEST or int(seconds.max()) > FARTHEST):
        return None, "some before 1678 or after 2261, so that durations are unknown"
    return seconds * 10**9 + nanoseconds, ""


def _day_and_month(moments: Moments, column: str, dated: np.ndarray) -> tuple[np.ndarray, str, dict[int, str]]:
    """Seconds since 1970, how dates were read, and the rows whose date does not exist."""
    parts = moments.parts.astype(np.int64)
    day_first, month_first = (np.flatnonzero(parts[:, place] > 12) for place in (0, 1))
    if len(day_first) and len(month_first):
        lines = moments.lines
        raise ValueError(
            f"column {column!r} has dates with the day first, as in line {lines[day_first[0]]}, and with the month "
            f"first, as in line {lines[month_first[0]]}: write them alike"
        )
    if not len(day_first) and not len(month_first) and not moments.dots[dated].all():
        one, other = moments.formats
        raise ValueError(
            f"column {column!r} has dates such as {moments.undecided!r}, and none shows whether the day or the month "
            f"is first: set --task.time_format {one!r} if the day is, or {other!r}"
        )
    places = (1, 0) if len(month_first) else (0, 1)
    day, month, year = parts[:, places[0]], parts[:, places[1]], parts[:, 2]
    exists = _exists(year, month, day)
    wrong = {
        int(row): f"column {column!r} has the date {parts[row, 0]}/{parts[row, 1]}/{year[row]}, which does not exist"
        for row in np.flatnonzero(dated & ~exists)
    }
    major = moments.major + np.where(dated & exists, 86400 * days(year, month, day), 0)
    if len(day_first) or len(month_first):
        line = moments.lines[(day_first if len(day_first) else month_first)[0]]
        shown = f", as line {line} shows"
    else:
        shown = ", as is usual with dots"
    return major, ("month before day" if len(month_first) else "day before month") + shown, wrong


def _ranks(further: dict[int, str], n: int) -> np.ndarray | None:
    """(n,) ranks of digits that follow the ninth, which as text are in the order of what they mean."""
    if not further:
        return None
    rank = {text: place for place, text in enumerate(sorted({"", *further.values()}))}
    ranks = np.zeros(n, np.int64)
    ranks[list(further)] = [rank[text] for text in further.values()]
    return ranks


def _exact_ranks(moments: Moments) -> np.ndarray:
    """(n,) ranks of numbers, of which some need Python's."""
    numbers = [
        moments.exact[row]
        if row in moments.exact
        else int(major)
        if not minor and row not in moments.further
        else Decimal(f"{major}.{minor:09}{moments.further.get(row, '')}")
        if major >= 0
        else Decimal(int(major)) + Decimal(int(minor)).scaleb(-9)
        for row, (major, minor) in enumerate(zip(moments.major.tolist(), moments.minor.tolist()))
    ]
    rank = {number: place for place, number in enumerate(sorted(set(numbers)))}
    return np.array([rank[number] for number in numbers], np.int64)


def _floats(moments: Moments) -> np.ndarray | None:
    steps = moments.major + moments.minor / 1e9
    for row, number in moments.exact.items():
        try:
            steps[row] = float(number)
        except OverflowError:
            return None
    return steps if np.isfinite(steps).all() else None


def number_of(text: str) -> int | Decimal | None:
    """A number without rounding: a float holds neither nanoseconds since 1970 nor their fractions. None: not a finite
    number."""
    try:
        return int(text)
    except ValueError:  # not whole, or longer than Python converts
        pass
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def fraction(text: str) -> Decimal | float:
    """A JSON number that is not whole, without rounding unless its exponent is absurd."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


def _time(text: str) -> tuple[datetime, str] | None:
    """A time to the microsecond, and the further digits of its fraction. None: not an ISO 8601 time, or one with a
    fraction of anything but seconds."""
    further, mark = "", max(text.find("."), text.find(","))
    if mark >= 0:
        # Not left to Python, which drops further digits and reads a fraction of a minute as one of a second.
        before, after = text[:mark], text[mark + 1 :]
        extended = before[-6::3] == "::" and before[-9:-8] not in _SIGNS
        if not extended and not (before[-6:].isdecimal() and before[-7:-6] not in _NUMERALS + _SIGNS):
            return None
        zone = after.lstrip(_NUMERALS)
        if "." in zone or "," in zone:
            return None
        if len(after) - len(zone) > 6:
            further = after[6 : len(after) - len(zone)]
            text = before + "." + after[:6] + zone
    try:
        return datetime.fromisoformat(text), further
    except ValueError:
        return None


_NUMERALS, _SIGNS = "0123456789", "+-"
_SECOND = datetime(1970, 1, 1, 0, 0, 1) - datetime(1970, 1, 1)
