"""Prints the lower bound of each dependency in pyproject.toml as a constraint for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
for requirements in (project["dependencies"], *project["optional-dependencies"].values()):
    for requirement in requirements:
        if not requirement.startswith("statewise["):
            print(re.sub(r",<.*", "", requirement.replace(">=", "==")))
