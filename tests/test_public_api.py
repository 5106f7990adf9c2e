"""The public names with their signatures are those of public_api.txt, so that no change of them goes unnoticed.

`python tests/test_public_api.py` writes the file anew.
"""

import dataclasses
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("public_api.txt")
FIRST_LINE = "# The public names of statewise. After an intended change: python tests/test_public_api.py"
MODULES = [
    "statewise",
    "statewise.tasks",
    "statewise.objectives",
    "statewise.backbones",
    "statewise.decoding",
    "statewise.analysis",
    "statewise.beliefs",
    "statewise.strips",
    "statewise.explain",
    "statewise.config.registry",
    "statewise.data_types",
    "statewise.losses",
]


class Bare(str):
    """Text that stands in a signature without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def signature_of(thing: object) -> str:
    """The signature as the source has it; defaults that have no fixed text are `...`."""
    found = inspect.signature(thing)

    def bare(annotation: object) -> object:
        return Bare(annotation) if isinstance(annotation, str) else annotation

    parameters = [
        one.replace(
            annotation=bare(one.annotation),
            default=Bare("...") if one.default is not one.empty and " at 0x" in repr(one.default) else one.default,
        )
        for one in found.parameters.values()
    ]
    return str(found.replace(parameters=parameters, return_annotation=bare(found.return_annotation)))


def lines_of(name: str, thing: object) -> list[str]:
    """A function, or a class with its public members, or the type of a value."""
    if not isinstance(thing, type):
        kind = signature_of(thing) if inspect.isfunction(thing) else f": {type(thing).__name__}"
        return [f"{name}{kind}"]
    bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
    lines = [f"class {name}{f'({bases})' if bases else ''}"]
    if "__init__" in vars(thing) and not dataclasses.is_dataclass(thing):
        lines.append(f"    __init__{signature_of(thing.__init__)}")
    fields = inspect.get_annotations(thing)
    lines += [f"    {field}: {getattr(kind, '__forward_arg__', kind)}" for field, kind in fields.items()]
    for member, value in vars(thing).items():
        if member.startswith("_") or member in fields:
            continue
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        kind = f"{type(value).__name__} " if isinstance(value, (classmethod, staticmethod)) else ""
        if isinstance(value, property):
            lines.append(f"    property {member} -> {value.fget.__annotations__.get('return')}")
        elif inspect.isfunction(function):
            lines.append(f"    {kind}{member}{signature_of(function)}")
    return lines


def listing() -> str:
    lines = [FIRST_LINE]
    for module in MODULES:
        loaded = importlib.import_module(module)
        lines += ["", module]
        for name in sorted(loaded.__all__):
            lines += [f"    {line}" for line in lines_of(name, getattr(loaded, name))]
    return "\n".join(lines) + "\n"


def test_the_public_names_are_those_of_the_listing():
    assert listing().splitlines() == FILE.read_text(encoding="utf-8").splitlines(), FIRST_LINE.removeprefix("# ")


def test_importing_statewise_loads_little():
    code = "import sys, statewise; dir(statewise); print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "jsonargparse", "rich"} & set(done.stdout.split())


@pytest.mark.parametrize("module", ["statewise", "statewise.strips"])
def test_unknown_names_are_attribute_errors(module):
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        importlib.import_module(module).nothing_of_ours  # noqa: B018


if __name__ == "__main__":
    FILE.write_text(listing(), encoding="utf-8")
