"""Shows text of users (paths, names of atoms, labels) literally: renderers must not read markup or formulas in it.

Two others are set where they are used: jinja escapes by its setting, the terminal in
`statewise.experiments.progress.console`.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Drawn = TypeVar("Drawn")


def plain_text(draw: Callable[Given, Drawn]) -> Callable[Given, Drawn]:
    """Decorates a function that draws with matplotlib: dollar signs in texts do not start formulas."""

    @functools.wraps(draw)
    def drawn(*args: Given.args, **fields: Given.kwargs) -> Drawn:
        import matplotlib

        # Tick labels are made while the figure is saved, so saving must happen inside, too.
        with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}):
            return draw(*args, **fields)

    return drawn


def for_plotly(text: str) -> str:
    """Text for titles, names and hover templates of plotly, with its HTML tags and `%{...}` escaped."""
    return html.escape(text, quote=False).replace("%", "&#37;").replace("$", "&#36;").replace("\n", "<br>")
