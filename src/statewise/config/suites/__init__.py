"""Suites: named sets of recipes x objectives x backbones, trained on several seeds and reported together. Of
`config` it imports `recipe` and `recipes`.

A suite is a YAML file, of this package or of the user:

    about: what it is for
    recipes:                        # each a recipe, or what differs from the recipe that it names as base
      parity: {base: parity, trainer: {steps: 500}}
      s3: s3
    objectives:                     # each with its fields; `name` if it is not the key
      next_token: {}
      far: {name: next_latent, horizon: 4}
    backbones:
      gpt: {layers: 2, width: 64}
      lstm: {name: recurrent, cell: lstm}
    without:                        # combinations to leave out
      - {objectives: [multi_token], backbones: [two_stream]}
    settings:                       # what differs in some combinations, the later ones over the earlier
      - {backbones: [gpt], recipes: [s3], backbone: {init: fan_in}, trainer: {optimizer: muon}}
      - {objectives: [far], then: [analyze rollout-drift]}    # commands besides those of the recipe
    seeds: 1-5
    then:                           # commands on each trained run, by recipe
      parity: ["evaluate --length 64,128"]
    metrics:                        # shown besides the headline metric, where a report has them, and what they are
      accuracy_length_64: accuracy at 64 tokens
    pictures:                       # each OUT/pictures/NAME.png, with NAME.md
      memory: {recipes: [parity, s3], metrics: [accuracy], curves: [held out], title: Who remembers?}
    smoke:                          # rows like those of settings, for `--smoke`; `then` replaces all commands
      - {trainer: {steps: 2}, then: ["evaluate --num 10"]}
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from statewise.config.recipe import unknown
from statewise.config.recipes import merged, recipe_fields
from statewise.runtime.json_files import FLAG, TEXT, Maybe, Shape, check
from statewise.runtime.yaml_files import read_yaml

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
SHAPE: Shape = {
    "about?": TEXT,
    "recipes": {},
    "objectives": {},
    "backbones": {},
    "without?": [{...: [TEXT]}],
    "settings?": [{}],
    "then?": {...: [TEXT]},
    "metrics?": {...: Maybe(TEXT)},
    "pictures?": {...: {"recipes": [TEXT], "title?": TEXT, "metrics?": [TEXT], "curves?": [TEXT], "drawings?": FLAG}},
    "smoke?": [{}],
}
AXES = ("recipes", "objectives", "backbones")
PARTS = ("task", "objective", "backbone", "trainer")
"""Parts of a recipe that `settings` may change."""
THEN = "then"
FILES = ("suite.yaml", "table.md", "results.json", "index.html", "submitted", "pictures")
"""Files that are written beside the folders of the recipes."""
COMMANDS = ("analyze", "evaluate")
"""Commands that may be run on a trained run; their words are checked where the recipes are read."""


@dataclass(frozen=True)
class Cell:
    """One recipe with one objective and one backbone: runs that differ in the seed alone."""

    recipe: str
    objective: str
    backbone: str
    fields: dict[str, Any]
    """The keys of its recipe, all of them in one mapping."""
    then: list[list[str]]
    """The words of commands on each of its runs, without the run."""

    @property
    def text(self) -> str:
        """The recipe of the run as YAML."""
        return yaml.safe_dump(self.fields, sort_keys=False)

    @property
    def name(self) -> str:
        """Folder of the cell, as a relative path."""
        return f"{self.recipe}/{self.objective}-{self.backbone}"


@dataclass(frozen=True)
class Setting:
    """Settings of some combinations."""

    among: dict[str, list[str]]
    """Which combinations: names by axis; all of an axis that is missing."""
    parts: dict[str, Any]
    """Fields of their recipes, by part."""
    then: list[list[str]]
    """Further commands, after those of the recipe."""

    def names(self, cell: Cell) -> bool:
        """Whether it is about the combination."""
        combination = {"recipes": cell.recipe, "objectives": cell.objective, "backbones": cell.backbone}
        return all(combination[axis] in some for axis, some in self.among.items())


@dataclass(frozen=True)
class Picture:
    """What one picture of a suite shows."""

    name: str
    title: str
    recipes: list[str]
    metrics: list[str]
    """Metrics that have a dot for each run."""
    curves: list[str]
    """Texts in the titles of the panels that `statewise compare` draws of the recipes' runs."""
    drawings: bool
    """Whether to show drawings of analyses, of each combination's first run."""


@dataclass(frozen=True)
class Suite:
    """The content of a suite's file."""

    about: str
    cells: list[Cell]
    seeds: str
    metrics: dict[str, str] = field(default_factory=dict)
    """Metrics shown besides the headline metric, each with a description, which may be empty."""
    pictures: list[Picture] = field(default_factory=list)


def suite_names() -> list[str]:
    """Names of the package's suites, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def suite_given(source: str) -> tuple[bytes, str]:
    """The YAML and the source of a suite: the name of one of ours, or the path of a file. Raises `ValueError` with the
    choices for an unknown name, `OSError` for a path that cannot be read."""
    if source in suite_names():
        return (resources.files(__name__) / f"{source}.yaml").read_bytes(), f"suite {source}"
    path = Path(source)
    if (source and path.exists()) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path.read_bytes(), source
    raise ValueError(unknown("suite", source, suite_names()))


def read_suite(text: str | bytes, source: str, *, smoke: bool = False) -> Suite:
    """The suite in YAML `text`, with `smoke` as small as its rows of that name make it. Raises `ValueError`, naming
    `source`, if it is invalid; recipes are checked when they are read."""
    fields = read_yaml(text, source, "a suite")
    known = ("about", *AXES, "without", "settings", "seeds", THEN, "metrics", "pictures", "smoke")
    for key in fields:
        if key not in known:
            raise ValueError(f"{source}: {unknown('key', str(key), known)}")
    check(fields, SHAPE, source)
    axes = {axis: _axis(fields, axis, source) for axis in AXES}
    for place, combination in enumerate(fields.get("without", ()), 1):
        if not combination:
            raise ValueError(f"{source}: combination {place} of without is empty, and would leave out everything")
        for axis, names in combination.items():
            _all_known(names, axes.get(axis), axis, f"{source}: without")
    settings = [_setting(one, axes, f"{source}: settings") for one in fields.get("settings", ())]
    small = [_setting(one, axes, f"{source}: smoke") for one in fields.get("smoke", ())]
    if smoke and not small:
        raise ValueError(f"{source} has no small form: it lacks the key smoke, whose rows say how to make it small")
    where = f"{source}: {THEN}"
    _all_known(fields.get(THEN, {}), axes["recipes"], "recipes", where)
    then = {recipe: [_command(line, where) for line in lines] for recipe, lines in fields.get(THEN, {}).items()}
    seeds = fields.get("seeds", "1-5")
    cells = list(_cells(axes, fields.get("without", ()), settings, then, source))
    if smoke:
        cells, seeds = [_made_small(cell, small) for cell in cells], "1"
    if not cells:
        raise ValueError(f"{source}: without leaves out every combination")
    _check_folders(cells, source)
    metrics = {str(name): words or "" for name, words in fields.get("metrics", {}).items()}
    pictures = [_picture(str(name), of, axes, source) for name, of in fields.get("pictures", {}).items()]
    return Suite(fields.get("about", ""), cells, str(seeds), metrics, pictures)


def _axis(suite_fields: dict[str, Any], axis: str, source: str) -> dict[str, dict[str, Any]]:
    values = {}
    if not suite_fields[axis]:
        raise ValueError(f"{source}: {axis} is empty")
    for name, fields in suite_fields[axis].items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"{source}: {axis}: {name!r} is not a name: use letters, digits, dots, dashes")
        if axis == "recipes":
            fields = {"base": fields} if isinstance(fields, str) else fields
        if not isinstance(fields, dict | None):
            raise ValueError(f"{source}: {axis}.{name} must be a mapping of fields, not {fields!r}")
        values[name] = dict(fields or {})
        if axis != "recipes":
            values[name].setdefault("name", name)
    return values


def _check_folders(cells: list[Cell], source: str) -> None:
    """Raises `ValueError` unless each cell has a folder of its own, also where a file system ignores case."""
    cells_by_folder: dict[str, Cell] = {}
    for cell in cells:
        if cell.recipe.casefold() in FILES:
            raise ValueError(f"{source}: recipes: {cell.recipe} is the name of a file of the suite: choose another")
        other = cells_by_folder.setdefault(cell.name.casefold(), cell)
        if other is not cell:
            first, second = (f"{one.recipe}, {one.objective}, {one.backbone}" for one in (other, cell))
            raise ValueError(f"{source}: ({first}) and ({second}) would share the folder {cell.name}: rename one")


def _all_known(names: Any, axis: dict[str, Any] | None, what: str, where: str) -> None:
    if axis is None:
        raise ValueError(f"{where}: {unknown('key', what, AXES)}")
    for name in names:
        if name not in axis:
            raise ValueError(f"{where}: {unknown(what.removesuffix('s'), name, axis)}")


def _command(line: str, where: str) -> list[str]:
    words = line.split()
    if not words or words[0] not in COMMANDS:
        raise ValueError(f"{where}: {line!r} must begin with {' or '.join(COMMANDS)}; the run is appended to it")
    if {"-h", "--help"} & set(words):
        raise ValueError(f"{where}: {line!r} asks for help, and does nothing with a run")
    if any(word.partition("=")[0] in ("--out", "--overwrite") for word in words):
        raise ValueError(f"{where}: {line!r} writes into one folder for all seeds: omit --out, reports are in the run")
    if any(word.partition("=")[0] == "--losses" for word in words):
        raise ValueError(f"{where}: {line!r} writes one file for all seeds: omit --losses")
    return words


def _picture(name: str, fields: dict[str, Any], axes: dict[str, dict[str, dict[str, Any]]], source: str) -> Picture:
    where = f"{source}: pictures"
    if not NAME.fullmatch(name):
        raise ValueError(f"{where}: {name!r} is not a name: use letters, digits, dots, dashes")
    _all_known(fields["recipes"], axes["recipes"], "recipes", f"{where}.{name}")
    metrics, curves, drawings = fields.get("metrics", []), fields.get("curves", []), fields.get("drawings", False)
    if not fields["recipes"] or not (metrics or curves or drawings):
        raise ValueError(f"{where}.{name} shows nothing: give recipes, and metrics, curves or drawings")
    return Picture(name, fields.get("title", name), fields["recipes"], metrics, curves, drawings)


def _made_small(cell: Cell, small: list[Setting]) -> Cell:
    """The cell with the rows of `smoke` that name it; one with commands replaces those of the cell."""
    fields, then = cell.fields, cell.then
    for setting in small:
        if setting.names(cell):
            fields, then = merged(fields, setting.parts), setting.then or then
    return replace(cell, fields=fields, then=then)


def _setting(fields: dict[str, Any], axes: dict[str, dict[str, dict[str, Any]]], where: str) -> Setting:
    setting = Setting({}, {}, [])
    for key, value in fields.items():
        if key in AXES:
            setting.among[key] = check(value, [TEXT], where, key)
            _all_known(value, axes[key], key, where)
        elif key == THEN:
            setting.then.extend(_command(line, f"{where}: {THEN}") for line in check(value, [TEXT], where, key))
        elif key not in PARTS:
            raise ValueError(f"{where}: {unknown('key', str(key), (*AXES, *PARTS, THEN))}")
        elif not isinstance(value, dict):
            raise ValueError(f"{where}: {key} must be a mapping of fields, not {value!r}")
        else:
            setting.parts[key] = value
    return setting


def _cells(
    axes: dict[str, dict[str, dict[str, Any]]],
    without: Any,
    settings: list[Setting],
    then: dict[str, list[list[str]]],
    source: str,
) -> Iterator[Cell]:
    for names in itertools.product(*(axes[axis] for axis in AXES)):
        combination = dict(zip(AXES, names))

        def among(chosen: dict[str, list[str]]) -> bool:
            return all(combination[axis] in some for axis, some in chosen.items())  # noqa: B023

        if any(among(left_out) for left_out in without):
            continue
        recipe, objective, backbone = names
        fields = recipe_fields(yaml.safe_dump(axes["recipes"][recipe]), f"{source}: recipes.{recipe}")
        if "seed" in axes["recipes"][recipe]:
            raise ValueError(f"{source}: recipes.{recipe}: remove seed: the suite's `seeds` set it")
        own = {"objective": axes["objectives"][objective], "backbone": axes["backbones"][backbone]}
        here = [setting for setting in settings if among(setting.among)]
        for parts in (own, *(setting.parts for setting in here)):
            fields = merged(fields, parts)
        commands = [*then.get(recipe, []), *(words for setting in here for words in setting.then)]
        yield Cell(recipe, objective, backbone, fields, commands)
