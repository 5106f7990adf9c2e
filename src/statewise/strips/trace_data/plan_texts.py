"""Plans as planners and planning libraries print them: one or several in a text.

`READERS` is the table of the ways in which a line can be written, `OUTPUTS` of the planners whose whole output is read.
Several plans in one text are told by their lines:

| lines | one plan is |
| --- | --- |
| several actions in parentheses, or separated by commas | a line |
| one action in parentheses on every line | the text; with times, in the order of these |
| numbered steps (FF) | the lines until the numbers begin again |
| what unified-planning prints | the block below a title; a list in brackets |
| trajectories | a list in parentheses |

`;` begins a comment. Times before actions and, in brackets, durations and costs are left out; actions are ordered by
their starts. PDDL ignores the case of letters: names are in lower case unless they are separated by commas only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

from statewise.runtime.messages import cut, short

STATE_WORDS = {"state", "observation", "observed", "obs", "fluent", "atom", "fact", "predicate", "init", "initial"}
"""Words that name what is observed of states."""
HOW_TO_IGNORE = (
    "remove them, or read the actions alone (--ignore-states of `statewise strips`, in Python ignore_states=True)"
)

MEASURED = r"\[(?:[A-Za-z]+:)?[-+.\deE]+(?:[;,] ?(?:[A-Za-z]+:)?[-+.\deE]+)*\]"
"""Durations and costs in brackets: `[1.0]`, `[D:1.00; C:0.10]`."""
COLUMNS = ({"action", "actions", "action_id"}, {"trace", "trace_id", "case", "case_id", "step", "label", "state"})
"""A line with names of both sets names the columns of a table."""

IN_PARENTHESES, BY_COMMAS, STEP, CALL, CALLS, WITH_COST, TITLE, COST = range(8)
"""The ways in which a line can be written."""
TIME = r"(\d{1,18}(?:\.\d*)?(?:[eE][+-]?\d{1,3})?)"
"""The time before an action."""
MOST_WORDS = 12
"""A name of more words is prose."""
PROSE = re.compile(r"^[#*=]|[.!?:;]$|\w:\s|[\x00-\x08\x0e-\x1f\x7f{}|\\`]")
"""What no name of an action has, but sentences, settings and binary files have."""


class Place(NamedTuple):
    """A line of a file."""

    path: Path
    line: int

    def fail(self, message: str) -> NoReturn:
        """Raises `ValueError` with file and line."""
        raise ValueError(f"{self.path}:{self.line}: {message}")


@dataclass
class Plan:
    """A trace as a file writes it."""

    line: int
    file: str = ""
    """The name of its file, if the traces come from a folder."""
    actions: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    pddl: bool = False
    """Whether it is written in a form of PDDL, which ignores the case of letters."""

    def add(self, actions: Sequence[str], line: int) -> None:
        """Adds actions without labels."""
        self.actions += actions
        self.lines += [line] * len(actions)
        self.labels += [None] * len(actions)


class _Line(NamedTuple):
    number: int
    form: int
    actions: list[str]
    step: float = -1
    """The number of a step, or the time before an action; -1 if the line has neither."""
    text: str = ""
    after_blank: bool = False
    lasts: bool = False
    """Whether the line has a duration or a cost in brackets."""


def read_plans(text: str, path: Path, *, ignore_states: bool = False) -> list[Plan]:
    """The plans of a text file. Raises `ValueError` with file and line."""
    return _read(text, path, False, ignore_states)


def read_plan(text: str, path: Path, *, ignore_states: bool = False) -> Plan | None:
    """The only plan of a text file, whose lines all belong to it; None if it has no action. Raises `ValueError` with
    file and line, also if the file has several plans."""
    plans = _read(text, path, True, ignore_states)
    if len(plans) > 1:
        Place(path, plans[1].line).fail(
            "a second plan begins here, but in a folder each file is one plan: give this file "
            "itself, or write each plan to a file of its own"
        )
    return plans[0] if plans else None


def holds_states(name: str) -> bool:
    """Whether a column or key has a name of observed states, such as `state`, `next_state`, `initialState`."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    return any(word in STATE_WORDS or word.removesuffix("s") in STATE_WORDS for word in words)


def one_line(action: str) -> str:
    """A name with white space replaced by single spaces, so that `sail  x` and `sail x` are one action in every
    format."""
    return " ".join(action.split())


def _read(text: str, path: Path, whole: bool, ignore_states: bool) -> list[Plan]:
    if re.match(r"(?:\s|;[^\n]*\n)*\(\s*(?::?trajectory\b|\(\s*:(?:init|objects)\b)", text, re.IGNORECASE):
        return list(_trajectories(text, path, ignore_states))
    lines = list(_lines(_plans_of_output(text), path))
    actual = [each for each in lines if each.form not in (TITLE, COST)]
    forms = {each.form for each in actual}
    in_steps = bool(forms & {STEP, CALL, WITH_COST}) or any(each.form == TITLE for each in lines)
    if forms == {IN_PARENTHESES} and len(actual) > 1:
        in_steps = all(len(each.actions) == 1 for each in actual)
    if in_steps:
        return _by_steps(lines, path, whole)
    pddl = bool(forms - {BY_COMMAS})
    plans: list[Plan] = []
    for each in actual:
        if not (whole and plans):
            plans.append(Plan(1 if whole else each.number, pddl=pddl))
        plans[-1].add(each.actions, each.number)
    return plans


def _by_steps(lines: Sequence[_Line], path: Path, whole: bool) -> list[Plan]:
    """The plans of a text with one action on each line."""
    plans: list[list[_Line]] = []
    first: _Line | None = None
    begin = True
    last: float = -1
    for each in lines:
        if each.form in (TITLE, COST):
            begin = True
            continue
        first = first or each
        if each.form != first.form or len(each.actions) != 1:
            Place(path, each.number).fail(
                f"{short(each.text)} is not written like line {first.number}, which is one action of a plan: "
                "leave only the lines of the plan"
            )
        if each.form == STEP:
            begin = begin or each.step <= last
            if not begin and each.step != last + 1:
                Place(path, each.number).fail(f"the plan has a gap: step {each.step} follows {last}")
        elif not begin and each.step < last and not (each.lasts and each.step > plans[-1][0].step):
            Place(path, each.number).fail(
                f"the time goes back from {last:g} to {each.step:g}: order the actions by time, "
                "and write each plan to a file of its own"
            )
        elif each.after_blank and not begin and not whole:
            Place(path, each.number).fail(
                "each line has one action, so the file is one plan, but this line follows an empty "
                "one: if another plan begins here, write each plan on one line, or to a file of "
                "its own in a folder; otherwise remove the empty line"
            )
        if begin:
            plans.append([])
            begin = False
        last = each.step
        plans[-1].append(each)
    return list(map(_in_order, plans))


def _in_order(lines: Sequence[_Line]) -> Plan:
    """The plan of lines with one action each, ordered by the starts of the actions."""
    plan = Plan(lines[0].number, pddl=True)
    for each in sorted(lines, key=lambda line: line.step):
        plan.add(each.actions, each.number)
    return plan


class Output(NamedTuple):
    """Where the plans stand in all that a planner prints."""

    planner: str
    begin: str
    """The pattern of the line before a plan."""
    end: str
    """The pattern of the line after it."""
    skip: str = r"$."
    """The pattern of lines within a plan that are no actions."""


OUTPUTS = (
    Output("FF", r"ff: found legal plan", r"\s*(?:plan cost|time spent)\b.*"),
    Output(
        "Fast Downward", r"(?:\[t=.*\] )?Solution found[.!]", r"(?:\[t=.*\] )?Plan length:", r"\[t=|Actual search time"
    ),
    Output("LPG", r"\s*Plan computed:", r"\s*Solution number", r"\s*Time: \(ACTION\)"),
    Output("VAL", r"Plan size: \d+", r"Plan Validation|Checking|Plan executed|Plan valid", r"\d+(?:\.\d+)?:\s*$"),
    Output("ENHSP", r"Found Plan:", r"\s*Plan-Length"),
)
"""The planners, and the validator, whose output can be read as it is."""


def _plans_of_output(text: str) -> str:
    """The plans in the output of a planner, every other line a comment; another text as it is."""
    lines = text.split("\n")
    output = next((each for each in OUTPUTS if any(re.match(each.begin, line, re.I) for line in lines)), None)
    if output is None:
        return text
    within = False
    for at, line in enumerate(lines):
        if re.match(output.begin, line, re.I):
            within, lines[at] = True, "; cost = of another plan"
            continue
        within = within and not re.match(output.end, line, re.I)
        if not within or not line.strip() or re.match(output.skip, line):
            lines[at] = "; -"
    return "\n".join(lines)


def _lines(text: str, path: Path) -> Iterator[_Line]:
    """The non-empty lines, without comments."""
    in_calls = blank = False
    for number, content in enumerate(text.split("\n"), 1):
        place = Place(path, number)
        bare = content
        if "(" in content.partition(";")[0]:
            content = re.sub(rf"(\([^()]*\))|{MEASURED}", lambda match: match[1] or "", content)
        code, _, comment = content.partition(";")
        code = code.strip()
        if not code:
            blank = blank or not comment
            if re.match(r"\W*(?:total[ -])?cost\s*=", comment, re.IGNORECASE):
                yield _Line(number, COST, [])
            elif re.fullmatch(
                r"\W*(?:initial |current |next |final |goal )?(?:state|observation)s?\s*\d*\W*", comment, re.IGNORECASE
            ):
                place.fail(
                    f"the comment {short(content.strip())} begins a state, not actions: remove the "
                    "states, since only actions are read"
                )
            continue
        lasts = bare.partition(";")[0].rstrip().endswith("]") and not content.partition(";")[0].rstrip().endswith("]")
        line = _line(code, place, in_calls)._replace(text=code, after_blank=blank)
        line = line._replace(lasts=line.lasts or lasts)
        in_calls = in_calls or line.form == TITLE
        blank = False
        if line.form != TITLE:
            for action in line.actions:
                _check(action, place)
        yield line


def _line(code: str, place: Place, in_calls: bool) -> _Line:
    """The content of a line. `in_calls` says that an earlier line was the title that unified-planning prints."""
    line = next(filter(None, (reader.read(code, place, in_calls) for reader in READERS)), None)
    if line is None:
        place.fail(f"{short(code)} is no plan that can be read; expected is one of these: {expected()}")
    return line


def _no_plan(code: str, place: Place, in_calls: bool) -> None:
    """Raises `ValueError` for texts of well-known other kinds."""
    if code[0] in "<>{" or code.lower().startswith("(define"):
        what = {"<": "XML", "{": "JSON", "(": "a PDDL domain or problem", ">": "FASTA"}[code[0]]
        place.fail(
            f"{short(code)} is {what}, not a plan: a line of a plan looks like (pick a) (put a b), or pick a, put a b"
        )
    names = [each.strip() for each in code.split(",")]
    if all(not each.isdisjoint(names) for each in COLUMNS):
        place.fail(f"{short(code)} names the columns of a table, which must be trace_id and action")


def _title(code: str, place: Place, in_calls: bool) -> _Line | None:
    title = re.match(r"(\w*Plan)\s*(?::$|\(\s*(\[.*\])\s*\)$)", code)
    if title is None:
        return None
    if title[1] not in ("SequentialPlan", "TimeTriggeredPlan") or (title[2] and title[1] != "SequentialPlan"):
        place.fail(f"{title[1]} is not a sequence of actions: give a SequentialPlan or a TimeTriggeredPlan")
    return _Line(place.line, CALLS, _calls(title[2][1:-1], place)) if title[2] else _Line(place.line, TITLE, [])


def _list_of_calls(code: str, place: Place, in_calls: bool) -> _Line | None:
    if code[0] != "[" or not (code[-1] == "]" or "(" in code):
        return None
    inner = code[1:].removesuffix("]")
    if code[-1] != "]" or not re.fullmatch(r"(?:[^()]*\([^()]*\))*[^()]*", inner):
        place.fail("a list of actions such as [pick(a), put(a, b)] must be closed on its line")
    return _Line(place.line, CALLS, _calls(inner, place))


def _timed_call(code: str, place: Place, in_calls: bool) -> _Line | None:
    """A line of a TimeTriggeredPlan; its times may be fractions."""
    timed = re.fullmatch(r"(\d{1,18}(?:\.\d+|/\d{1,18})?)\s*:\s+(.+?)(?:\s*\[[\d./]+\])?", code) if in_calls else None
    if timed is None:
        return None
    above, _, below = timed[1].partition("/")
    if below and not int(below):
        place.fail(f"the time {timed[1]} divides by 0")
    calls = _calls(timed[2], place)
    return _Line(place.line, CALL, calls, float(above) / int(below or 1), lasts=True)


def _step(code: str, place: Place, in_calls: bool) -> _Line | None:
    step = re.fullmatch(r"(?:step\s*)?(\d{1,18})\s*:\s+([^(,][^,(]*(?:\([^()]*\))?)", code, re.IGNORECASE)
    if step is None:
        return None
    action = _calls(step[2], place)[0] if step[2].endswith(")") else step[2]
    return _Line(place.line, STEP, [_named(action, place)], int(step[1]))


def _call(code: str, place: Place, in_calls: bool) -> _Line | None:
    if not re.match(r"[^\s(),;:\[\]]+\(", code):
        return None
    calls = _calls(code, place)
    return _Line(place.line, CALL if in_calls or len(calls) == 1 else CALLS, calls)


def _with_cost(code: str, place: Place, in_calls: bool) -> _Line | None:
    action = re.fullmatch(r"([^\s(),;:\[\]]+(?:\s+[^\s(),;:\[\]]+)*)\s+\(\d+(?:\.\d+)?\)", code)
    return action and _Line(place.line, WITH_COST, [_named(action[1], place)])


def _parentheses(code: str, place: Place, in_calls: bool) -> _Line | None:
    if "(" not in code and ")" not in code:
        return None
    time = re.match(TIME + r"\s*:", code)
    return _Line(place.line, IN_PARENTHESES, _in_parentheses(code, place), float(time[1]) if time else -1)


def _names(code: str, place: Place, in_calls: bool) -> _Line | None:
    actions = code.split(",")
    numbered = [re.fullmatch(r"\s*(?:step\s*)?\d+\s*:\s+(.*)", each, re.IGNORECASE) for each in actions]
    if any(numbered):
        if not all(numbered):
            place.fail("some actions of this line have a number before them, and others do not")
        actions = [each[1] for each in numbered if each]
    named = [_named(action, place) for action in actions]
    for each in named:
        _check(each, place)
        if PROSE.search(each) or each.count(" ") >= MOST_WORDS:
            return None
    return _Line(place.line, CALL if in_calls else BY_COMMAS, named)


class Reader(NamedTuple):
    """One way to write the actions of a line."""

    name: str
    """Who writes it so."""
    example: str
    read: Callable[[str, Place, bool], _Line | None]
    """From a line without comments, its place, and whether a title of unified-planning came before it, to its content;
    None if the line is written in another way. Raises `ValueError` for a line that is written so, but wrongly."""


READERS = (
    Reader("", "", _no_plan),
    Reader("unified-planning", "SequentialPlan:", _title),
    Reader("unified-planning", "[pick(a), put(a, b)]", _list_of_calls),
    Reader("", "0.0: pick(a) [1.0]", _timed_call),
    Reader("FF", "step 0: PICK A", _step),
    Reader("unified-planning", "put(a, b)", _call),
    Reader("Fast Downward", "pick a (1)", _with_cost),
    Reader("Fast Downward, LPG, VAL", "0.5: (put a b) [1.0]", _parentheses),
    Reader("names alone", "pick a, put a b", _names),
)
"""The table of readers, in the order in which they are tried."""


def expected() -> str:
    """The ways to write a plan, in words."""
    return "; ".join(f"{each.example} ({each.name})" for each in READERS if each.name)


def _in_parentheses(code: str, place: Place) -> list[str]:
    """The actions of `0.5: (go a b) (stay)`, without times."""
    actions = re.findall(r"\(([^()]*)\)", code)
    rest = re.sub(r"\([^()]*\)|[\d.]+(?:[eE][+-]?\d+)?:|[\s,]", "", code)
    if rest:
        if holds_states(rest.strip("(): ")):
            place.fail(f"{short(code)} is a state, not actions: remove the states, since only actions are read")
        place.fail(f"not a plan: there is text outside the parentheses of its actions: {short(rest)}")
    return [_named(action, place) for action in actions]


def _calls(text: str, place: Place) -> list[str]:
    """The actions of `pick(a), put(a, b), stop`."""
    text = one_line(text)
    parts = re.findall(r"\s*([^\s(),]+)\s*(?:\(([^()]*)\))?\s*(?:,|$)", text)
    whole = re.fullmatch(r"(?:\s*[^\s(),]+\s*(?:\([^()]*\))?\s*(?:,\s*(?=\S)|$))*", text)
    if not whole:
        place.fail(f"{short(text)} is not a list of actions such as pick(a), put(a, b)")
    return [_named(" ".join((name, *objects.split(","))), place) for name, objects in parts]


def _named(action: str, place: Place) -> str:
    named = one_line(action)
    if not named:
        place.fail("the plan has a gap: an action without a name")
    return named


def _check(action: str, place: Place) -> None:
    """Raises `ValueError` if an action is a piece of a state."""
    label = re.match(r"([\w -]+):(?:\s|$)", action)
    if action.startswith(":") or (label and holds_states(label[1])):
        place.fail(f"{short(action)} is a state, not an action: remove the states, since only actions are read")


class _Words(list["str | _Words"]):
    """A list in parentheses, and the line where it begins."""

    line: int

    def head(self) -> str:
        return self[0] if self and isinstance(self[0], str) else ""


def _trajectories(text: str, path: Path, ignore_states: bool) -> Iterator[Plan]:
    """The plans of a file of trajectories, in which actions alternate with observed states."""
    for whole in _groups(text, path):
        plan = Plan(whole.line, pddl=True)
        for part in whole[1:] if whole.head() else whole:
            if not isinstance(part, _Words):
                Place(path, whole.line).fail(f"a trajectory has parts in parentheses, not {short(part)}")
            kind = part.head().strip(":")
            if kind in ("action", "operator"):
                inner = part[1] if len(part) == 2 and isinstance(part[1], _Words) else part[1:]
                words = [each for each in inner if isinstance(each, str)]
                if not words or len(words) != len(inner):
                    Place(path, part.line).fail("expected one action here, such as (:action (pick a))")
                plan.add([" ".join(words)], part.line)
            elif holds_states(kind) and not ignore_states:
                Place(path, part.line).fail(
                    f"({part.head()} ...) is an observed state, which is not read yet: {HOW_TO_IGNORE}"
                )
            elif kind not in ("objects", "goal") and not holds_states(kind):
                Place(path, part.line).fail(
                    f"({short(part.head())} ...) is not a part of a trajectory that can be read: "
                    "there are :objects, :init, :action, :state, :goal"
                )
        yield plan


def _groups(text: str, path: Path) -> Iterator[_Words]:
    """The lists in parentheses of a text, as nested lists of words in lower case."""
    open_groups: list[_Words] = []
    for line, content in enumerate(text.split("\n"), 1):
        for token in re.findall(r"[()]|[^\s()]+", content.partition(";")[0].lower()):
            if token == "(":
                group = _Words()
                group.line = line
                if open_groups:
                    open_groups[-1].append(group)
                open_groups.append(group)
            elif not open_groups:
                Place(path, line).fail(f"{short(cut(token))} stands outside the parentheses of a trajectory")
            elif token == ")":
                closed = open_groups.pop()
                if not open_groups:
                    yield closed
            else:
                open_groups[-1].append(token)
    if open_groups:
        Place(path, open_groups[-1].line).fail("this parenthesis is not closed")
