"""What is released: metadata, the Dockerfile, and distributions in empty environments."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from statewise import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [found[1] for one in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", one))]
ONLY_BY_HAND = {"dev", "docs", "browser"}
"""Extras that no command of users needs."""


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text()
    assert f"at {__version__} and" in (ROOT / "docs/stability.md").read_text()


def test_the_citation_file_has_what_version_1_2_0_of_its_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    known = {"cff-version", "message", "type", "title", "abstract", "authors", "version", "date-released", "license"}
    assert citation.keys() <= {*known, "keywords", "repository-code", "url", "doi"}
    assert citation["license"] == PROJECT["license"]
    assert citation["title"] == PROJECT["name"]
    assert all(author.keys() <= {"name"} for author in citation["authors"])
    assert citation["keywords"] == sorted({*citation["keywords"]}, key=citation["keywords"].index)
    assert {*citation["keywords"]} <= {*PROJECT["keywords"]}


def instructions():
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_dockerfile_copies_what_is_there_and_names_what_exists():
    parsed = instructions()
    assert {word for word, _ in parsed} <= {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "ENTRYPOINT", "CMD"}
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for rest in (rest for word, rest in parsed if word == "COPY" and "--from" not in rest):
        for source in rest.split()[:-1]:
            assert any(fnmatch.fnmatch(one, source) for one in allowed), source
            assert (ROOT / source).exists() or "[" in source, source
    bases = [rest.split()[0] for word, rest in parsed if word == "FROM"]
    assert {base.removeprefix("python:").removesuffix("-slim") for base in bases} <= {*PYTHONS}
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', (ROOT / "Dockerfile").read_text())
    assert {*extras.split(",")} <= PROJECT["optional-dependencies"].keys()
    (entry,) = [json.loads(rest) for word, rest in parsed if word == "ENTRYPOINT"]
    assert entry[0] in PROJECT["scripts"]
    assert [word for word, _ in parsed].index("USER") < [word for word, _ in parsed].index("ENTRYPOINT")


@pytest.mark.slow
def test_the_image_is_built_and_trains():
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, timeout=120).returncode:
        pytest.skip("needs Docker with a running daemon")
    subprocess.run([docker, "build", "-t", "statewise-test", ROOT], check=True, timeout=3600)
    tiny = ["train", "path-star-tiny", "--trainer.steps", "5", "--out", "run"]
    subprocess.run([docker, "run", "--rm", "statewise-test", *tiny], check=True, timeout=600)


def interpreter(version):
    """The path of a Python of this version, or None."""
    if "{}.{}".format(*sys.version_info) == version:
        return getattr(sys, "_base_executable", sys.executable)
    found = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for path in [*map(str, found[-1:]), shutil.which(f"python{version}")]:
        if path and subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return path
    return None


def ran(*words, **options):
    """What a command prints that succeeds, without the sources of this checkout."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    own |= {"PIP_NO_COMPILE": "1"}  # compiling all files of PyTorch takes longer than all else
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=3000, env=own, **options)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def environment(base, folder):
    """The Python of a new, empty environment."""
    ran(base, "-m", "venv", folder)
    return folder / "bin" / "python"


def pip(python, *words):
    return ran(python, "-m", "pip", "--disable-pip-version-check", *words, cwd=python.parent)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Wheel and source distribution."""
    scratch = tmp_path_factory.mktemp("built")
    python = environment(interpreter("{}.{}".format(*sys.version_info)), scratch / "venv")
    pip(python, "install", "--quiet", "hatchling>=1.27")
    copied = shutil.copytree(
        ROOT, scratch / "source", ignore=lambda folder, names: {*names} & {".git", ".venv", "runs"}
    )
    build = "import hatchling.build as made; print(made.build_sdist('out')); print(made.build_wheel('out'))"
    source, wheel = ran(python, "-c", f"import os; os.mkdir('out')\n{build}", cwd=copied).split()
    return copied / "out" / wheel, copied / "out" / source


@pytest.mark.slow
def test_the_source_distribution_has_what_a_build_and_a_reader_need(distributions):
    with tarfile.open(distributions[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "SECURITY.md", "CITATION.cff", "constraints.txt"} <= names
    assert "src/statewise/reporting/drawings.js" in names


def used(command, folder):
    """Uses an installation as a new user does, in a folder of its own: demo, 20 steps of training, compare, report."""
    folder.mkdir()
    assert ran(command, "--version", cwd=folder).strip() == f"statewise {__version__}"
    assert "path-star-tiny" in ran(command, "list", cwd=folder)
    ran(command, "demo", "--export", "demo.html", cwd=folder)
    assert "Star graph" in (folder / "demo.html").read_text()
    few = {"steps": 20, "evaluate_every": 10, "evaluate_num": 8}
    tiny = ["train", "path-star-tiny", *(f"--trainer.{name}={value}" for name, value in few.items())]
    for name, objective in (("a", "next_token"), ("b", "next_latent")):
        ran(command, *tiny, "--objective", objective, "--out", name, cwd=folder)
    told = ran(command, "compare", "a", "b", "--out", "report", cwd=folder)
    assert "report.html" in told
    page = (folder / "report" / "report.html").read_text()
    assert page.count('<svg class="panel"') >= 3


def extras_left(command, folder):
    """The extras, and how to install what is missing of each, as `doctor` says."""
    found = json.loads(ran(command, "doctor", "--json", cwd=folder))
    assert found["passed"] is True
    return {one["name"]: one["install"] for one in found["extras"]}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", PYTHONS)
def test_it_installs_and_works_in_an_empty_environment(distributions, tmp_path, version):
    base = interpreter(version)
    if base is None:
        pytest.skip(f"needs Python {version}")
    wheel, source = distributions
    python = environment(base, tmp_path / "venv")
    command, pinned = python.parent / "statewise", ["-c", ROOT / "constraints.txt"]
    torch = os.environ.get("TORCH") or re.search(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.M)[0]
    found = pip(python, "install", "--dry-run", "--no-deps", torch)
    if sys.platform == "linux" and "+cpu" not in found and not os.environ.get("TORCH"):
        others = [one for one in PROJECT["dependencies"] if not one.startswith("torch")]
        pip(python, "install", "--quiet", *pinned, *others)
        pip(python, "install", "--quiet", "--no-deps", wheel)
        assert ran(command, "--version").strip() == f"statewise {__version__}"
        assert "path-star-tiny" in ran(command, "list")
        assert "--trainer.steps" in ran(command, "train", "path-star-tiny", "--help")
        pytest.skip(
            f"all but PyTorch works: for Python {version}, its wheel brings CUDA (several GB); set TORCH to one"
        )
    pip(python, "install", "--quiet", *pinned, torch)
    pip(python, "install", "--quiet", *pinned, source)
    pip(python, "install", "--quiet", "--force-reinstall", "--no-deps", wheel)
    pip(python, "check")
    used(command, tmp_path / "core")
    user_extras = PROJECT["optional-dependencies"].keys() - ONLY_BY_HAND
    missing = extras_left(command, tmp_path)
    assert missing.keys() >= user_extras
    assert all(missing[name] for name in user_extras), "an empty environment has no extra"
    for extra in sorted(user_extras):
        pip(python, "install", "--quiet", *pinned, f"{wheel}[{extra}]")
        used(command, tmp_path / extra)
    installed = extras_left(command, tmp_path)
    assert [name for name in user_extras if installed[name]] == []
    pip(python, "check")
