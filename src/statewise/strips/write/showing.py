"""An action model as text, and its B-RASP program on a trace (Figures 1 and 3 of the paper).

`pictures` draws the same as images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statewise.reporting.tables import narrowed, text_table, widened
from statewise.strips.model.model import ActionModel, Atoms
from statewise.strips.model.schemas import PAGE, literal_lines, wrapped
from statewise.strips.model.traces import Trace
from statewise.strips.write.brasp import NOWHERE, Execution, run
from statewise.strips.write.pictures import save_attention, save_model, save_models, save_schemas, save_theta

__all__ = [
    "model_table",
    "parse_trace",
    "save_attention",
    "save_model",
    "save_models",
    "save_schemas",
    "save_theta",
    "show",
]

WIDTH = 34
"""The most characters of a line of atoms in the table of actions; longer lists are wrapped."""
SHORT = 3
"""Action names of up to this many characters head their columns; for longer ones the position is shown."""
INVALID = "!"
"""Marks actions that are not applicable."""


def show(model: ActionModel, trace: Sequence[int] | None = None, width: int = PAGE) -> str:
    """The action model as `model_table` of this width; with a trace of action numbers, its vectors (Figure 1) and
    attention (Figure 3) instead.

    Rows and heads that are zero on the whole trace are omitted from its tables and listed below them. Positions count
    from 1 as in the paper. Raises `ValueError` if the trace is empty or has actions that the model lacks.
    """
    return model_table(model, width) if trace is None else "\n\n".join(_trace_parts(model, trace))


def parse_trace(model: ActionModel, text: str) -> Trace:
    """Parses action names separated by white space or commas, such as `a c c b` or `pickup b1, stack b1 b2`.

    Takes the longest matching name. Raises `ValueError` where no action matches.
    """
    names = sorted(model.names, key=len, reverse=True)
    numbers, left = [], text.lstrip(" \t\n,")
    while left:
        name = next((name for name in names if left.startswith(name) and left[len(name) :][:1] in _BETWEEN), None)
        if name is None:
            raise ValueError(f"no action of the model begins here: {left[:40]!r}")
        numbers.append(model.number[name])
        left = left[len(name) :].lstrip(" \t\n,")
    return tuple(numbers)


_BETWEEN = ("", " ", "\t", "\n", ",")


def model_table(model: ActionModel, width: int = PAGE) -> str:
    """What each action requires, adds and deletes: a table if the names fit into `width` characters, otherwise lines
    below each action, as for schemas."""
    longest = max((len(action.name) for action in model.actions), default=0)
    room = min(WIDTH, (width - max(longest, len("action")) - 6) // 3)
    if max(map(len, model.atoms), default=0) < room:
        body = _table(model, room)
    else:
        lines = (
            literal_lines(
                action.name,
                [
                    ("pre", model.spelled(action.pre)),
                    ("add", model.spelled(action.add)),
                    ("del", model.spelled(action.delete)),
                ],
                width,
            )
            for action in model.actions
        )
        body = "\n".join(line for each in lines for line in each)
    atoms, actions = (
        f"{len(all_)} {what}{'' if len(all_) == 1 else 's'}"
        for all_, what in ((model.atoms, "atom"), (model.actions, "action"))
    )
    return f"{_listing(atoms, model.atoms, width)}\n{actions}\n\n{body}"


def _table(model: ActionModel, room: int) -> str:
    """A table with `room` characters for each list of atoms."""

    def cell(atoms: Atoms) -> list[str]:
        return wrapped("", model.spelled(atoms), room) or ["-"]

    rows = []
    for action in model.actions:
        cells = [[action.name], cell(action.pre), cell(action.add), cell(action.delete)]
        rows += [[each[line] if line < len(each) else "" for each in cells] for line in range(max(map(len, cells)))]
    return text_table(["action", "requires", "adds", "deletes"], rows)


def _trace_parts(model: ActionModel, trace: Sequence[int]) -> Iterator[str]:
    done = run(model, trace)
    names = [model.names[number] for number in done.word]
    negative = "negative" if done.output else "positive"
    yield f"{negative} trace of {len(names)} action{'s' if len(names) > 1 else ''}"
    if max(map(len, names)) > SHORT or done.output:
        yield "\n".join(_steps(model, done))
    yield "The B-RASP program's vectors (equations 2 to 7)\n\n" + _vectors_table(model, done)
    yield "Attention: queries i down, keys j across, [ ] where i attends, y the output (equation 5)"
    silent = []
    for atom in model.atoms:
        if (done.attended[f"Y_{atom}"] != NOWHERE).any():
            yield _attention_table(model, done, atom)
        else:
            silent.append(atom)
    if silent:
        yield _listing("Heads that attend to nothing, so that y is 0", silent)


def _steps(model: ActionModel, done: Execution) -> Iterator[str]:
    """The actions, one on each line; inapplicable ones with the missing atoms and the actions that deleted them."""
    wide = len(str(len(done.word)))
    for position, number in enumerate(done.word):
        reasons = [
            f"{atom} was deleted by {done.attended[f'Y_{atom}'][position] + 1}"
            for atom in model.atoms
            if done[f"Y_{atom}"][position]
        ]
        mark, note = (INVALID, f"   not applicable: {', '.join(reasons)}") if reasons else (" ", "")
        yield f"{mark}{position + 1:>{wide}}  {model.names[number]}{note}"


def _heading(model: ActionModel, done: Execution) -> list[list[str]]:
    """Rows above the columns of positions: their numbers, and the actions if their names are short."""
    marks = [INVALID if wrong else "" for wrong in done["Y"]]
    names = [model.names[number] for number in done.word]
    if max(map(len, names)) > SHORT:
        return [[f"{mark}{position + 1}" for position, mark in enumerate(marks)]]
    return [[str(position + 1) for position in range(len(names))], [mark + name for mark, name in zip(marks, names)]]


def _vectors_table(model: ActionModel, done: Execution) -> str:
    heading = [["", *row] for row in _heading(model, done)]
    present = [number for number in range(len(model.names)) if number in done.word]
    used = [atom for atom in model.atoms if done[f"Q_{atom}"].any() or done[f"K_{atom}"].any()]
    blocks = [[f"I_{model.names[number]}" for number in present]]
    blocks += [[f"{letter}_{atom}" for letter in "QKVY"] for atom in used]
    blocks.append(["Y", "Z"])
    cells = [[[name, *("1" if bit else "0" for bit in done[name])] for name in block] for block in blocks]
    parts = [_aligned(heading, *cells)]
    absent = [name for number, name in enumerate(model.names) if number not in present]
    unused = [atom for atom in model.atoms if atom not in used]
    parts += [_listing("Not in the trace", absent)] if absent else []
    parts += [_listing("Atoms that no action of the trace requires or affects", unused)] if unused else []
    return "\n".join(parts)


def _attention_table(model: ActionModel, done: Execution, atom: str) -> str:
    query, key, out, attended = done[f"Q_{atom}"], done[f"K_{atom}"], done[f"Y_{atom}"], done.attended[f"Y_{atom}"]
    n = len(done.word)
    heading = _heading(model, done)
    top = [["", *(f"{cell} " for cell in row), last] for row, last in zip(heading, ["y", ""])]
    left = [" ".join(column) for column in zip(*heading)]
    rows = []
    for i in range(n):
        scores = [f" {int(query[i] and key[j])} " if j < i else "" for j in range(n)]
        if attended[i] != NOWHERE:
            scores[attended[i]] = "[1]"
        rows.append([left[i], *scores, str(int(out[i]))])
    return f"head {atom}\n" + _aligned(top, rows)


def _aligned(*blocks: list[list[str]]) -> str:
    """Blocks of rows separated by rules; the first column left-aligned, the others right-aligned."""
    blocks = tuple([[widened(cell) for cell in row] for row in block] for block in blocks)
    widths = [max(len(row[place]) for block in blocks for row in block) for place in range(len(blocks[0][0]))]

    def line(row: list[str]) -> str:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        return " ".join([row[0].ljust(widths[0]), *cells]).rstrip()

    rule = "-" * (sum(widths) + len(widths) - 1)
    return narrowed(f"\n{rule}\n".join("\n".join(line(row) for row in block) for block in blocks))


def _listing(title: str, names: Sequence[str], width: int = PAGE) -> str:
    return "\n".join(wrapped(f"{title}: ", names, width, indent=2)).rstrip()
