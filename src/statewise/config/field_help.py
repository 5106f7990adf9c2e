"""The fields of a configuration as its source declares them, read without importing it: help needs no torch."""

from __future__ import annotations

import ast
import importlib.util
import itertools
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Declared:
    """A field of a dataclass."""

    default: Any
    """Default value, or its expression as text if it contains names or calls; None: the field has no default."""
    text: str
    """The docstring below it, on one line."""
    choices: tuple[str, ...] = ()
    """Words that it may be, if its type names them."""


def declared_fields(target: str) -> dict[str, Declared]:
    """Fields by name, those of parents first, of the dataclass that is `Config` of the class `target`
    (`"module:Class"`), or of `target` itself if it has no `Config`; dotted where a field's default is a dataclass
    again. Raises `ValueError` if the source does not tell."""
    module, _, name = target.partition(":")
    try:
        place, node = _find(module, name)
        return _fields(*(_config(place, node) or (place, node)))
    except (LookupError, OSError, ImportError, SyntaxError) as error:
        raise ValueError(f"the fields of {target} cannot be read from its source: {error}") from None


@cache
def _statements(module: str) -> list[ast.stmt]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"there is no source of the module {module}")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body


def _find(module: str, name: str) -> tuple[str, ast.ClassDef]:
    """The class that `name` is in a module, and the module that defines it."""
    for node in _statements(module):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _find(node.module, alias.name)
    raise LookupError(f"{module} defines no class {name}")


def _parents(module: str, node: ast.ClassDef) -> list[tuple[str, ast.ClassDef]]:
    return [_find(module, base.id) for base in node.bases if isinstance(base, ast.Name) and base.id != "object"]


def _config(module: str, node: ast.ClassDef) -> tuple[str, ast.ClassDef] | None:
    """The `Config` of a class, or else of a parent."""
    for statement in node.body:
        if isinstance(statement, ast.ClassDef) and statement.name == "Config":
            return module, statement
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        if any(isinstance(target, ast.Name) and target.id == "Config" for target in targets):
            if isinstance(value, ast.Name):
                return _find(module, value.id)
            if value is not None:
                raise LookupError(f"Config is {ast.unparse(value)}")
    return next((owner for parent in _parents(module, node) if (owner := _config(*parent))), None)


def _fields(module: str, node: ast.ClassDef) -> dict[str, Declared]:
    all_declared: dict[str, Declared] = {}
    for parent in reversed(_parents(module, node)):
        all_declared |= _fields(*parent)
    for statement, following in zip(node.body, [*node.body[1:], None]):
        if (
            not isinstance(statement, ast.AnnAssign)
            or not isinstance(statement.target, ast.Name)
            or "ClassVar" in ast.unparse(statement.annotation)
        ):
            continue
        kind = statement.annotation.id if isinstance(statement.annotation, ast.Name) else None
        if isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func) == kind:
            group = _fields(*_find(module, kind))
            all_declared |= {f"{statement.target.id}.{name}": declared for name, declared in group.items()}
            continue
        text = following.value if isinstance(following, ast.Expr) else None
        documentation = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
        all_declared[statement.target.id] = Declared(
            _value(statement.value), " ".join(documentation.split()), _choices(module, statement.annotation)
        )
    return all_declared


def _choices(module: str, annotation: ast.expr) -> tuple[str, ...]:
    """The words in an annotation of `Literal[...]`, or of a name that the module gives to one; none if the field may be
    something else, too, but None."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        sides = [side for side in (annotation.left, annotation.right) if ast.unparse(side) != "None"]
        every = [_choices(module, side) for side in sides]
        return tuple(itertools.chain(*every)) if all(every) else ()
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        words = [word.value for word in ast.walk(annotation.slice) if isinstance(word, ast.Constant)]
        return tuple(word for word in words if isinstance(word, str))
    for statement in _statements(module) if isinstance(annotation, ast.Name) else ():
        if isinstance(statement, ast.Assign) and ast.unparse(annotation) in map(ast.unparse, statement.targets):
            return _choices(module, statement.value)
    return ()


def _value(node: ast.expr | None) -> Any:
    if node is None:
        return None
    if any(isinstance(part, (ast.Name, ast.Call)) for part in ast.walk(node)):
        return ast.unparse(node)
    return eval(compile(ast.Expression(node), "default", "eval"))  # numbers and texts, such as 8 / 3
