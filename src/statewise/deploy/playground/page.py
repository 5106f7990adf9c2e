"""The page as one HTML file: markup, style, scripts, and recorded traces if there are any. Nothing is loaded."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from typing import Any

SCRIPTS = ("core.js", "parts.js", "app.js")
"""Scripts in their order; views come between the second and the last."""
MARK = "<!-- the playground of statewise -->"
"""A mark in each page that statewise writes, by which it is recognised."""


def page(recorded: dict[str, Any] | None = None) -> bytes:
    """The page; `recorded`: what it shows without a server."""
    script, style = _script(), _file("style.css")
    data = "null" if recorded is None else json.dumps(recorded, separators=(",", ":"), allow_nan=False)
    # In a script element only `<` could end it or begin a comment.
    parts = {
        "style": style,
        "script": script,
        "recorded": data.replace("<", "\\u003c"),
        "mark": MARK,
        "policy": "" if recorded is None else f'<meta http-equiv="Content-Security-Policy" content="{_rules("")}">',
    }
    pieces = re.split(r"\{\{ (\w+) \}\}", _file("index.html"))
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces).encode()


def policy() -> str:
    """The Content-Security-Policy of the page on a server: its own script and style, and requests to that server."""
    return _rules("connect-src 'self'; ") + "; frame-ancestors 'none'"


def _rules(more: str) -> str:
    script, style = (_digest(text) for text in (_script(), _file("style.css")))
    return (
        f"default-src 'none'; {more}script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _script() -> str:
    folder = resources.files(__package__) / "page" / "views"
    views = sorted(file.name for file in folder.iterdir() if file.name.endswith(".js"))
    *before, last = SCRIPTS
    names = [*before, *(f"views/{name}" for name in views), last]
    return "\n".join(_file(name) for name in names)


def _file(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")
