"""Versions of dependencies: bounds, pins, and pins with hashes."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def pins(text):
    found = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found.items()}


def requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = map(Requirement, sum(project["optional-dependencies"].values(), project["dependencies"]))
    return [each for each in listed if each.name != "statewise"]


def test_pins_with_hashes_are_those_of_the_constraints():
    constraints = pins((ROOT / "constraints.txt").read_text())
    text = (ROOT / "requirements-hashed.txt").read_text()
    hashed = pins(text)
    assert hashed.items() <= constraints.items()
    assert "torch" not in hashed
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in block for block in blocks)


def test_lower_bounds_and_constraints_are_within_the_bounds():
    lower = subprocess.run([sys.executable, ROOT / "tools" / "lower_bounds.py"], capture_output=True, text=True).stdout
    for versions in (pins(lower), pins((ROOT / "constraints.txt").read_text())):
        for requirement in requirements():
            version = versions.get(requirement.name.lower().replace("_", "-"))
            assert version is None or requirement.specifier.contains(version, prereleases=True), requirement
    assert pins(lower).keys() == {requirement.name.lower().replace("_", "-") for requirement in requirements()}
