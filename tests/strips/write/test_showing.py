"""What is shown of a model and of a trace holds what the equations say, and the pictures are pictures."""

import re

import numpy as np
import pytest

from statewise.strips.model.model import Action, ActionModel
from statewise.strips.model.schemas import Schema, schema_lines
from statewise.strips.trace_data.domains import domain
from statewise.strips.write import pictures
from statewise.strips.write.pictures import ABSENT, EXCESS, MISSING
from statewise.strips.write.showing import (
    parse_trace,
    save_attention,
    save_model,
    save_models,
    save_schemas,
    save_theta,
    show,
)

pytestmark = pytest.mark.usefixtures("rendered")
SIMPLE = domain("simple").model
BLOCKS = domain("blocksworld:3").model

POSITIVE = """
I_a 1 0 0 0 0 1
I_b 0 0 0 1 0 0
I_c 0 1 1 0 1 0
Q_p 1 0 0 0 0 1
K_p 1 0 0 1 0 1
V_p 1 0 0 0 0 1
Y_p 0 0 0 0 0 0
Q_q 0 0 0 1 0 0
K_q 1 0 0 1 0 1
V_q 0 0 0 1 0 0
Y_q 0 0 0 0 0 0
Q_r 1 0 0 1 0 1
K_r 1 1 1 1 1 1
V_r 1 0 0 1 0 1
Y_r 0 0 0 0 0 0
Y 0 0 0 0 0 0
Z 0 0 0 0 0 0
"""
NEGATIVE = """
I_a 1 0 1 0 0 0
I_b 0 0 0 0 1 1
I_c 0 1 0 1 0 0
Q_p 1 0 1 0 0 0
K_p 1 0 1 0 1 1
V_p 1 0 1 0 0 0
Y_p 0 0 1 0 0 0
Q_q 0 0 0 0 1 1
K_q 1 0 1 0 1 1
V_q 0 0 0 0 1 1
Y_q 0 0 0 0 0 1
Q_r 1 0 1 0 1 1
K_r 1 1 1 1 1 1
V_r 1 0 1 0 1 1
Y_r 0 0 0 0 0 1
Y 0 0 1 0 0 1
Z 1 1 1 1 1 1
"""


def shown(text, model=SIMPLE):
    return show(model, parse_trace(model, text))


@pytest.mark.parametrize(("trace", "expected"), [("a c c b c a", POSITIVE), ("a c a c b b", NEGATIVE)])
def test_the_table_of_figure_1(trace, expected):
    text = shown(trace)
    rows = [" ".join(line.split()) for line in text.splitlines() if re.match(r"[IQKVYZ](_\S+)? ", line)]
    assert rows == expected.split("\n")[1:-1]
    rules = [place for place, line in enumerate(text.splitlines()) if set(line) == {"-"}][:5]
    assert np.diff(rules).tolist() == [4, 5, 5, 5]  # inputs, then the three heads


def test_invalid_actions_are_marked_with_the_reason():
    text = shown("a c a c b b")
    assert "negative trace of 6 actions" in text
    assert re.search(r"^ *a +c +!a +c +b +!b$", text, re.M)
    assert re.search(r"^!3  a +not applicable: p was deleted by 1$", text, re.M)
    assert re.search(r"^!6  b +not applicable: q was deleted by 5, r was deleted by 5$", text, re.M)
    assert "!" not in shown("a c c b c a")


def test_the_attention_of_figure_3():
    head = shown("a c a c b b").split("head q\n")[1].split("\n\n")[0].splitlines()
    assert [" ".join(line.split()) for line in head[3:]] == [
        "1 a 0",
        "2 c 0 0",
        "3 !a 0 0 0",
        "4 c 0 0 0 0",
        "5 b 1 0 [1] 0 0",
        "6 !b 1 0 1 0 [1] 1",
    ]
    assert len({len(line) for line in head[2:]}) == 1  # columns line up
    # Keys stand under their positions, masked cells are blank.
    assert head[0].index("3") == head[7].index("[1]") + 1
    assert not head[3][4:-2].strip()


def test_what_a_trace_leaves_at_zero_is_named_and_not_shown():
    text = shown("pickup b1, stack b1 b2, putdown b3", BLOCKS)
    assert not re.search("^K_on b2 b1", text, re.M)
    assert "on b2 b1" in text.split("requires or affects: ")[1].split("\n\n")[0]
    assert "pickup b3" in text.split("Not in the trace: ")[1].split("\nAtoms")[0]
    assert re.search(r"^ +2  stack b1 b2$", text.replace("!", " "), re.M)


def test_a_model_as_text():
    lines = [line.split() for line in show(SIMPLE).splitlines()]
    assert ["a", "p,", "r", "q", "p,", "r"] in lines
    assert ["c", "-", "r", "-"] in lines
    text = show(BLOCKS)
    assert all(name in text for name in (*BLOCKS.names, *BLOCKS.atoms))
    assert max(map(len, text.splitlines())) <= 120


def test_long_lists_of_atoms_go_on_below_and_break_between_names():
    atoms = tuple(f"atom number {number}" for number in range(20))
    text = show(ActionModel(atoms, (Action("wait", 2**20 - 1, 0, 1),)))
    assert max(map(len, text.splitlines())) <= 120
    listed = [re.split(r"  +", line)[1] for line in text.split("wait ")[1].splitlines()]
    assert [name for line in listed for name in line.strip(", ").split(", ")] == list(atoms)


@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_a_model_fits_the_terminal_whatever_its_names(width):
    atoms = [f"after-{name.replace(' ', '-')} of it" for name in BLOCKS.atoms]
    text = show(BLOCKS.with_atoms(range(len(atoms)), atoms), width=width)
    assert max(map(len, text.splitlines())) <= width
    body = text.partition(" actions\n\n")[2]
    if "requires" not in body:  # lines below each action
        for each in re.split(r"\n(?=\S)", body):
            name, *parts = re.split(r"\n  (?=pre|add|del)", each)
            action = BLOCKS.actions[BLOCKS.number[name]]
            for part, expected in zip(parts, (action.pre, action.add, action.delete), strict=True):
                names = [] if part.endswith("-") else [" ".join(one.split()) for one in part[5:].split(",")]
                assert names == [atoms[at] for at in range(len(atoms)) if expected >> at & 1]
    assert ("requires" in body) == (width >= 100)


def test_schemas_fit_the_terminal():
    long = frozenset((f"predicate-{number}", (0, 1)) for number in range(12))
    lines = schema_lines({"move": Schema(long, frozenset(), frozenset())}, 60)
    assert max(map(len, lines)) <= 60
    assert lines[2].startswith("       predicate-")  # below the first literal
    assert ", ".join(line.strip(" ,") for line in lines[1:-2]).removeprefix("pre  ").split(", ") == [
        f"{name} x1 x2" for name, _ in sorted(long)
    ]


def drawn(monkeypatch, tmp_path, save, *what):
    """The figure, and not a file."""
    figures = []
    monkeypatch.setattr(pictures, "_save", lambda figure, path: figures.append(figure))
    save(*what, tmp_path / "x.png")
    return figures[0]


def test_the_picture_of_a_model_has_its_entries(monkeypatch, tmp_path):
    panels = drawn(monkeypatch, tmp_path, save_model, BLOCKS).axes
    for axes, kind in zip(panels, ("pre", "add", "delete"), strict=True):
        cells = np.asarray(axes.collections[0].get_array()).reshape(len(BLOCKS.atoms), len(BLOCKS.names))
        expected = [[getattr(action, kind) >> at & 1 for action in BLOCKS.actions] for at in range(len(BLOCKS.atoms))]
        assert cells.tolist() == expected
    assert [label.get_text() for label in panels[0].get_yticklabels()] == list(BLOCKS.atoms)
    with pytest.raises(ValueError, match="without atoms"):
        save_model(ActionModel((), (Action("wait", 0, 0, 0),)), tmp_path / "x.png")


def test_the_picture_of_schemas_has_their_arguments(monkeypatch, tmp_path):
    on, free, full = ("on", (1, 0)), ("free", ()), ("on", (0, 2))
    schemas = {
        "put": Schema(frozenset({free, on, full}), frozenset({on}), frozenset({free})),
        "wait": Schema(frozenset(), frozenset(), frozenset()),
    }
    panels = drawn(monkeypatch, tmp_path, save_schemas, schemas).axes
    shown = [[text.get_text() for text in axes.texts] for axes in panels]  # free of put, of wait, then on
    assert shown == [[".", "", "1 3\n2 1", ""], ["", "", "2 1", ""], [".", "", "", ""]]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["free", "on"]
    with pytest.raises(ValueError, match="without predicates"):
        save_schemas({"wait": schemas["wait"]}, tmp_path / "x.png")


def test_traces_are_read_from_names_with_spaces():
    expected = [BLOCKS.number[name] for name in ("pickup b1", "stack b1 b2", "pickup b3")]
    for text in (
        "pickup b1, stack b1 b2, pickup b3",
        "pickup b1 stack b1 b2 pickup b3",
        " pickup b1,stack b1 b2\npickup b3 ",
    ):
        assert list(parse_trace(BLOCKS, text)) == expected
    assert parse_trace(BLOCKS, "  ") == ()
    with pytest.raises(ValueError, match="no action of the model begins here: 'stack b1 b9'"):
        parse_trace(BLOCKS, "pickup b1 stack b1 b9")
    with pytest.raises(ValueError, match="begins here: 'ab'"):
        parse_trace(SIMPLE, "a ab")


def test_an_empty_trace_is_an_error():
    with pytest.raises(ValueError, match="one symbol or more"):
        show(SIMPLE, [])


def pixels(path):
    from matplotlib.image import imread

    return imread(path)


def is_picture(path):
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    levels = (pixels(path)[:, :, :3] * 255).round().astype(int)
    return len(np.unique(levels @ [1, 256, 65536])) > 3


def has_colour(path, hexadecimal, above=0):
    """Whether the picture has the colour, but for so many pixels at its top."""
    wanted = np.array([int(hexadecimal[place : place + 2], 16) for place in (1, 3, 5)])
    return bool((np.abs(pixels(path)[above:, :, :3] * 255 - wanted).max(axis=2) < 1).sum() > 50)


def true_theta(model):
    return np.array(
        [
            [
                [bool(atoms >> place & 1) for atoms in (action.pre, action.add | action.delete, action.delete)]
                for action in model.actions
            ]
            for place in range(len(model.atoms))
        ],
        float,
    )


@pytest.mark.parametrize("model", [SIMPLE, BLOCKS], ids=["simple", "blocksworld:3"])
def test_theta_is_drawn(model, tmp_path):
    save_theta(true_theta(model), tmp_path / "theta.png", model.atoms, model.names)
    assert is_picture(tmp_path / "theta.png")


def test_theta_that_does_not_fit_is_an_error(tmp_path):
    theta = true_theta(SIMPLE)
    with pytest.raises(ValueError, match=r"\(4, 3, 3\).*not \(3, 3, 3\)"):
        save_theta(theta, tmp_path / "x.png", ["a"] * 4, SIMPLE.names)
    with pytest.raises(ValueError, match="between 0 and 1"):
        save_theta(theta * 2, tmp_path / "x.png", SIMPLE.atoms, SIMPLE.names)
    with pytest.raises(ValueError, match="between 0 and 1"):
        save_theta(theta * np.nan, tmp_path / "x.png", SIMPLE.atoms, SIMPLE.names)


def coloured(learned, tmp_path):
    """Which colours of differences there are below the legend."""
    path = tmp_path / "models.png"
    save_models(learned, SIMPLE, path)
    assert is_picture(path)
    return [has_colour(path, colour, above=90) for colour in (EXCESS, MISSING, ABSENT)]


def test_differences_between_models_are_seen(tmp_path):
    a, b, c = SIMPLE.actions
    others = ("p0", "p1", "p2")
    assert coloured(ActionModel(others, SIMPLE.actions), tmp_path) == [False, False, False]
    assert coloured(ActionModel(others, (a, b, Action("c", 1, c.add, 0))), tmp_path) == [True, False, False]
    assert coloured(ActionModel(others, (c, b, Action("a", 0, a.add, a.delete))), tmp_path) == [False, True, False]
    assert coloured(SIMPLE.with_atoms([0, 1]), tmp_path) == [False, True, True]
    with pytest.raises(ValueError, match="different actions"):
        save_models(BLOCKS, SIMPLE, tmp_path / "x.png")


def test_complements_are_drawn_and_counted_apart(monkeypatch, tmp_path):
    """Of three further atoms one has the effects of p exchanged, one is a copy of p, and one has no effects."""
    true = ActionModel.of(["p", "q"], {"a": (["p"], ["q"], ["p"]), "b": (["q"], ["p"], []), "c": ([], [], [])})
    a, b, _ = true.actions
    learned = ActionModel(
        ("p", "q", "opposite", "copy", "idle"),
        (
            Action("a", a.pre | 1 << 3, a.add | 1 << 2, a.delete | 1 << 3),
            Action("b", b.pre | 1 << 2, b.add | 1 << 3, b.delete | 1 << 2),
            Action("c", 1 << 4, 0, 0),
        ),
    )
    figure = drawn(monkeypatch, tmp_path, save_models, learned, true)
    cells = [np.asarray(axes.collections[0].get_array()).reshape(5, 3).astype(int).tolist() for axes in figure.axes[:3]]
    assert [panel[2] for panel in cells] == [[0, 5, 0], [5, 0, 0], [0, 5, 0]]
    assert [panel[3] for panel in cells] == [[2, 0, 0], [0, 2, 0], [2, 0, 0]]
    assert [panel[4] for panel in cells] == [[0, 0, 2], [0, 0, 0], [0, 0, 0]]
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert "x  learned alone (4)" in texts
    assert "-  complement of a true atom (3)" in texts
    assert "`strips verify` decides" in legend.get_title().get_text()


def test_an_atom_that_is_matched_is_no_complement(monkeypatch, tmp_path):
    """Between two places each is the other's opposite."""
    true = ActionModel.of(["l", "r"], {"go": (["l"], ["r"], ["l"]), "back": (["r"], ["l"], ["r"])})
    figure = drawn(monkeypatch, tmp_path, save_models, true, true)
    shown = [np.asarray(axes.collections[0].get_array()) for axes in figure.axes]
    assert {int(each) for panel in shown for each in panel.ravel()} == {0, 1}
    assert not any("complement" in text.get_text() for text in figure.legends[0].get_texts())


def test_attention_is_drawn(tmp_path):
    path = tmp_path / "attention.png"
    save_attention(SIMPLE, parse_trace(SIMPLE, "a c c b c a"), path)
    assert is_picture(path)
    assert not has_colour(path, EXCESS)
    save_attention(SIMPLE, parse_trace(SIMPLE, "a c a c b b"), path)
    assert has_colour(path, EXCESS)  # where y is 1
    save_attention(BLOCKS, parse_trace(BLOCKS, "pickup b1 stack b1 b2"), path)
    assert is_picture(path)
