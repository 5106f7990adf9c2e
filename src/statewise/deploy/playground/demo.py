"""What `statewise demo` shows: small models that the package ships, and recorded traces of these and of others.

`shipped/` holds a run directory for each model, and `recorded.json.xz`, the groups of `page`; `tools/demo.py` makes
both. Weights are stored in float8 (e4m3), so that the package stays small, and loaded as those of any run.
"""

from __future__ import annotations

import lzma
from importlib import resources
from pathlib import Path
from typing import Any

from statewise.runtime.json_files import ANYTHING, parse_json

MODELS = ("next-token", "next-latent", "belief-state")
"""Names of the models and of their run directories."""
RECORDED = "recorded.json.xz"
LIVE = 0
"""The recorded group of these models, for which a server answers once it has loaded them."""


def folder() -> Path:
    """The folder `shipped` of the installed package."""
    return Path(str(resources.files(__package__) / "shipped"))


def runs() -> dict[str, str]:
    """The run directory of each model, by its name."""
    return {name: str(folder() / name) for name in MODELS}


def recorded() -> dict[str, Any]:
    """The recorded groups, `groups` of `statewise.deploy.playground.page.page`."""
    path = folder() / RECORDED
    content: dict[str, Any] = parse_json(lzma.decompress(path.read_bytes()), {"groups": [ANYTHING]}, str(path))
    return content
