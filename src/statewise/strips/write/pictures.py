"""Plots of action models: the learned theta, the learned and the true model, attention on a trace."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from statewise.reporting.plots import plain_text
from statewise.runtime.durable import write_atomically
from statewise.strips.model.heads import heads
from statewise.strips.model.model import ActionModel
from statewise.strips.model.schemas import Schema
from statewise.strips.write.brasp import NOWHERE, run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
PANELS = {"required": "query", "affected": "key", "deleted": "value"}
"""The meaning of each entry of theta's last axis, and the corresponding vector of the head."""
MOST_DRAWN = 1_000
"""The most actions, and the most atoms, of models that `statewise strips show` draws: larger ones take minutes."""
KINDS = {"requires": "pre", "adds": "add", "deletes": "delete"}
"""Titles of panels, with the field of an action or a schema that they show."""

SAME, EXCESS, MISSING, ABSENT, OPPOSITE = "#3b6fb6", "#d1432f", "#f0b429", "#ececec", "#9fb0c4"
GRID = "#d5d9df"


@plain_text
def save_theta(theta: np.ndarray, path: Path, atoms: Sequence[str], actions: Sequence[str]) -> None:
    """Plots the parameters as a PNG: three heat maps, atoms by actions (equations 8 to 13).

    `theta` is [L, A, 3] in [0, 1], in the order query, key, value; `atoms` and `actions` are its L and A names. Raises
    `ValueError` if they do not fit.
    """
    theta = np.asarray(theta, float)
    if theta.shape != (len(atoms), len(actions), 3) or not theta.size:
        raise ValueError(
            f"theta must have the shape (atoms, actions, 3) = ({len(atoms)}, {len(actions)}, 3) and not be empty, "
            f"not {theta.shape}"
        )
    if not ((theta >= 0) & (theta <= 1)).all():
        raise ValueError("theta must lie between 0 and 1")
    figure, grid = _panels(1, atoms, actions)
    cell = _cell_size(theta.shape)
    for place, (what, letter) in enumerate(PANELS.items()):
        axes = grid[0][place]
        drawn = _cells(axes, theta[:, :, place], vmin=0, vmax=1, cmap="Blues")
        axes.set_title(f"{what} ({letter})", fontsize=9)
        _names(axes, atoms if place == 0 else [], actions, cell)
    beside = grid[0][-1].inset_axes((1 + 0.15 / (len(actions) * cell), 0, 0.15 / (len(actions) * cell), 1))
    figure.colorbar(drawn, cax=beside).ax.tick_params(labelsize=8)
    _save(figure, path)


@plain_text
def save_model(model: ActionModel, path: Path) -> None:
    """Plots an action model as a PNG: what each action requires, adds and deletes. Raises `ValueError` if there are no
    atoms or no actions."""
    from matplotlib.colors import ListedColormap

    if not model.atoms or not model.actions:
        raise ValueError("models without atoms or without actions cannot be plotted")
    figure, grid = _panels(1, model.atoms, model.names)
    cell = _cell_size((len(model.atoms), len(model.names)))
    for axes, (title, kind) in zip(grid[0], KINDS.items()):
        shown = [[getattr(action, kind) >> place & 1 for action in model.actions] for place in range(len(model.atoms))]
        _cells(axes, np.array(shown), vmin=0, vmax=1, cmap=ListedColormap(["white", SAME]))
        axes.set_title(title, fontsize=9)
        _names(axes, model.atoms if axes is grid[0][0] else [], model.names, cell)
    _save(figure, path)


@plain_text
def save_schemas(schemas: Mapping[str, Schema], path: Path) -> None:
    """Plots action schemas as a PNG: of which of its arguments, numbered from 1, each action requires, adds and deletes
    a predicate; a dot if the predicate has none. Raises `ValueError` if there are no predicates."""
    from matplotlib.colors import ListedColormap

    literals = {
        (title, name): sorted(getattr(schema, kind))
        for title, kind in KINDS.items()
        for name, schema in schemas.items()
    }
    predicates = sorted({predicate for each in literals.values() for predicate, _ in each})
    if not predicates:
        raise ValueError("schemas without predicates cannot be plotted")

    def text(title: str, name: str, predicate: str) -> str:
        mine = [places for each, places in literals[title, name] if each == predicate]
        return "\n".join(" ".join(str(at + 1) for at in places) or "." for places in mine)

    cells = {title: [[text(title, name, each) for name in schemas] for each in predicates] for title in KINDS}
    longest = max(len(line) for rows in cells.values() for row in rows for cell in row for line in cell.split("\n"))
    tall = [
        max(cells[title][place][at].count("\n") + 1 for title in KINDS for at in range(len(schemas)))
        for place in range(len(predicates))
    ]
    colours = ListedColormap(["white", "#c9daef"])
    wide, line, letter = max(0.3, 0.085 * longest + 0.12), 0.2, 0.075
    tops = np.concatenate([[0], np.cumsum(tall)]) * line
    lefts = np.arange(len(schemas) + 1) * wide
    figure = _canvas(
        3 * (lefts[-1] + 0.3) + max(map(len, predicates)) * letter + 0.4,
        tops[-1] + max(map(len, schemas)) * letter + 0.7,
    )
    for place, (title, rows) in enumerate(cells.items()):
        axes = figure.add_subplot(1, 3, place + 1)
        marked = np.array([[cell != "" for cell in row] for row in rows])
        axes.pcolormesh(lefts, tops, marked, edgecolors=GRID, linewidth=0.4, vmin=0, vmax=1, cmap=colours)
        for down, row in enumerate(rows):
            for across, cell in enumerate(row):
                axes.text(
                    (across + 0.5) * wide, (tops[down] + tops[down + 1]) / 2, cell, ha="center", va="center", fontsize=8
                )
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_title(title, fontsize=9)
        axes.set_xticks(lefts[:-1] + wide / 2, list(schemas), rotation=90, fontsize=9)
        axes.set_yticks((tops[:-1] + tops[1:]) / 2, predicates if place == 0 else [""] * len(predicates), fontsize=9)
        _bare(axes)
    _save(figure, path)


@plain_text
def save_models(learned: ActionModel, reference: ActionModel, path: Path) -> None:
    """Plots a learned action model above the true one as a PNG: what each action requires, adds and deletes.

    Atoms are matched by position, not by name; the model with fewer atoms gets empty rows. Actions are matched by name.
    Learned atoms that are no match, but have the effects of a true atom with adds and deletes exchanged, are drawn and
    counted apart. Raises `ValueError` if the actions differ, or if there are no atoms or actions.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    learned = learned.covering(reference.names)
    rows = max(len(learned.atoms), len(reference.atoms))
    if not rows or not reference.actions:
        raise ValueError("models without atoms or without actions cannot be plotted")
    has = {
        (model, kind): np.array(
            [[getattr(action, kind) >> place & 1 for action in model.actions] for place in range(rows)], bool
        )
        for model in (learned, reference)
        for kind in KINDS.values()
    }
    labels = {model: [*model.atoms, *["-"] * (rows - len(model.atoms))] for model in (learned, reference)}
    cell = _cell_size((rows, len(reference.actions)))
    figure, grid = _panels(2, max(labels.values(), key=lambda names: max(map(len, names))), reference.names)
    colours = ListedColormap(["white", SAME, EXCESS, MISSING, ABSENT, OPPOSITE])
    opposite = _opposites(learned, reference)
    for line, (model, who) in enumerate(((learned, "learned"), (reference, "true"))):
        for place, (title, kind) in enumerate(KINDS.items()):
            mine, truth = has[learned, kind], has[reference, kind]
            shown = np.where(mine & truth, 1, 0)
            shown[truth & ~mine] = 3
            shown[mine & ~truth] = 2 if model is learned else 0
            if model is learned:
                shown[mine & opposite[:, None]] = 5
            shown[len(model.atoms) :] = 4
            axes = grid[line][place]
            _cells(axes, shown, vmin=-0.5, vmax=5.5, cmap=colours)
            _crosses(axes, shown, cell)
            axes.set_title(f"{who}: {title}", fontsize=9)
            _names(axes, labels[model] if place == 0 else [], reference.names if line else [], cell)
    count = {EXCESS: 0, MISSING: 0, OPPOSITE: 0}
    for kind in KINDS.values():
        alone = has[learned, kind] & ~has[reference, kind]
        count[EXCESS] += int(alone[~opposite].sum())
        count[OPPOSITE] += int(alone[opposite].sum())
        count[MISSING] += int((has[reference, kind] & ~has[learned, kind]).sum())
    patches = [
        Patch(color=SAME, label="in both"),
        Patch(color=EXCESS, label=f"x  learned alone ({count[EXCESS]})"),
        Patch(color=MISSING, label=f"o  true alone ({count[MISSING]})"),
    ]
    if count[OPPOSITE]:
        patches.append(Patch(color=OPPOSITE, label=f"-  complement of a true atom ({count[OPPOSITE]})"))
    if len(learned.atoms) != len(reference.atoms):
        patches.append(Patch(color=ABSENT, label="no such atom"))
    figure.legend(
        handles=patches,
        loc="outside upper center",
        ncols=3,
        frameon=False,
        fontsize=9,
        title_fontsize=9,
        title="models with different atoms can be equivalent: `strips verify` decides",
    )
    _save(figure, path)


def _opposites(learned: ActionModel, reference: ActionModel) -> np.ndarray:
    """[L] whether a row of `save_models` is a learned atom that shares nothing with the true atom beside it, and has
    the effects of some true atom with adds and deletes exchanged: it says that this one is false. L is the larger
    number of atoms; both models have the same actions in the same order."""
    true = heads(reference)
    swapped = {(head.delete, head.add) for head in true if head.touching}
    opposite = np.zeros(max(len(learned.atoms), len(true)), bool)
    for row, head in enumerate(heads(learned)):
        beside = true[row] if row < len(true) else None
        shares = beside is not None and (head.pre & beside.pre | head.add & beside.add | head.delete & beside.delete)
        opposite[row] = not shares and (head.add, head.delete) in swapped
    return opposite


@plain_text
def save_attention(model: ActionModel, trace: Sequence[int], path: Path) -> None:
    """Plots attention on a trace of action numbers as a PNG (Figure 3 of the paper).

    For each head that attends anywhere, a matrix of scores, queries by keys: masked entries are blank and attended ones
    grey; y is at the right, red where an action is not applicable. Raises `ValueError` if the trace is empty or has
    actions that the model lacks.
    """
    done = run(model, trace)
    n = len(done.word)
    heads = [atom for atom in model.atoms if (done.attended[f"Y_{atom}"] != NOWHERE).any()]
    names = [model.names[number] for number in done.word]
    short = max(map(len, names)) <= 3
    down = names if short else [f"{position + 1} {name}" for position, name in enumerate(names)]
    across = names if short else [str(position + 1) for position in range(n)]
    columns = min(4, max(1, len(heads)))
    lines = max(1, -(-len(heads) // columns))
    cell = float(np.clip(6 / n, 0.17, 0.32))
    left = max(map(len, down)) * 0.075
    figure = _canvas(columns * ((n + 2) * cell + 0.6) + left, lines * (n * cell + 0.8) + 0.5, 0.15)
    verdict = "negative" if done.output else "positive"
    silent = len(model.atoms) - len(heads)
    rest = f"; {silent} heads attend to nothing" if silent else ""
    figure.suptitle(f"{verdict} trace{rest}", fontsize=10)
    for place, atom in enumerate(heads):
        axes = figure.add_subplot(lines, columns, place + 1)
        query, key, out, attended = done[f"Q_{atom}"], done[f"K_{atom}"], done[f"Y_{atom}"], done.attended[f"Y_{atom}"]
        font = cell * 72 * 0.5
        for i in range(n):
            for j in range(i):
                grey = "0.72" if attended[i] == j else "white"
                _square(axes, j, i, grey, str(int(query[i] and key[j])), font)
            _square(axes, n + 0.5, i, EXCESS if out[i] else "white", str(int(out[i])), font)
        axes.set(xlim=(-0.1, n + 1.6), ylim=(n + 0.1, -0.1), aspect="equal")
        axes.set_title(f"head {atom}", fontsize=9)
        axes.set_xticks([*np.arange(n) + 0.5, n + 1], [*across, "y"], fontsize=8)
        axes.set_yticks(np.arange(n) + 0.5, down if place % columns == 0 or short else across, fontsize=8)
        for labels in (axes.get_xticklabels()[:n], axes.get_yticklabels()):
            for label, wrong in zip(labels, done["Y"]):
                label.set_color(EXCESS if wrong else "black")
        _bare(axes)
    _save(figure, path)


def _canvas(width: float, height: float, gap: float = 0.04) -> Figure:
    """A figure of this size in inches, with a gap between its panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = ConstrainedLayoutEngine(w_pad=gap)
    figure = Figure(figsize=(max(width, 3.5), max(height, 2.5)), layout=engine)
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    """Crops the picture to its content, since text sizes are estimates."""
    buffer = io.BytesIO()
    figure.savefig(
        buffer, dpi=DPI, format="png", bbox_inches="tight", pad_inches=0.12, metadata={"Software": "statewise"}
    )  # by which `show` recognises it
    write_atomically(path, buffer.getvalue())


def _cell_size(shape: Sequence[int]) -> float:
    """Size in inches of a cell of a matrix with this shape."""
    return float(np.clip(5 / max(shape[:2]), 0.13, 0.3))


def _panels(lines: int, down: Sequence[str], across: Sequence[str]) -> tuple[Figure, list[list[Axes]]]:
    """Rows of three panels for matrices with row names `down` and column names `across`."""
    cell = _cell_size((len(down), len(across)))
    letter = _font(cell) * 0.6 / 72
    width = 3 * (max(len(across) * cell, 1.2) + 0.3) + max(map(len, down)) * letter + 1.0
    height = lines * (len(down) * cell + 0.45) + max(map(len, across)) * letter + 0.5
    figure = _canvas(width, height)
    return figure, [[figure.add_subplot(lines, 3, 3 * line + place + 1) for place in range(3)] for line in range(lines)]


def _font(cell: float) -> float:
    return min(9.0, cell * 72 * 0.72)


def _cells(axes: Axes, values: np.ndarray, **colours: Any) -> Any:
    return axes.pcolormesh(values, edgecolors=GRID, linewidth=0.4, **colours)


def _crosses(axes: Axes, shown: np.ndarray, cell: float) -> None:
    """Marks differences with a symbol as well as a colour."""
    for kind, sign in ((2, "x"), (3, "o"), (5, "_")):
        rows, columns = np.nonzero(shown == kind)
        axes.plot(columns + 0.5, rows + 0.5, sign, color="black", markerfacecolor="none", markersize=cell * 72 * 0.4)


def _names(axes: Axes, down: Sequence[str], across: Sequence[str], cell: float) -> None:
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set_xticks(np.arange(len(across)) + 0.5, across, rotation=90, fontsize=_font(cell))
    axes.set_yticks(np.arange(len(down)) + 0.5, down, fontsize=_font(cell))
    _bare(axes)


def _square(axes: Axes, x: float, y: float, colour: str, text: str, font: float) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="0.5", linewidth=0.6))
    pale = {"0": "0.65"}  # so that the ones stand out
    axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=font, color=pale.get(text, "black"))


def _bare(axes: Axes) -> None:
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
