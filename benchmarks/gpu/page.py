"""The figures of `make gpu` as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def page(found: Mapping[str, Any]) -> str:
    """Markdown of the content of figures.json."""
    at = found["machine"]
    lines = [
        "# On a GPU",
        "",
        f"{found['date']}. {at['device_name']}; PyTorch {at['torch']}, Python {at['python']}, "
        f"{at['precision']}. By `make gpu`; each step has the seconds that it took.",
        "",
    ]
    lines += ["| bar | value | bar | |", "| --- | ---: | ---: | --- |"]
    for step in found["steps"].values():
        for what, value, sign, bar in step.get("bars", []):
            lines.append(f"| {what} | {shown(value)} | {sign} {bar:g} | {'' if met(value, sign, bar) else 'short'} |")
    for name, step in found["steps"].items():
        lines += ["", f"## {name}", "", f"{step['seconds']:.0f} seconds.", ""]
        if "error" in step:
            lines += ["Failed:", "", *(f"    {line}" for line in step["error"].splitlines())]
            continue
        lines += table(step["values"])
    return "\n".join(lines) + "\n"


def met(value: float, sign: str, bar: float) -> bool:
    """Whether a bar is met; NaN meets none."""
    return value >= bar if sign == ">=" else value <= bar


def table(values: Mapping[str, Any]) -> list[str]:
    """Rows of figures; if every one has several, a column each."""
    several = [value for value in values.values() if isinstance(value, Mapping)]
    if several and len(several) == len(values):
        names = list(dict.fromkeys(name for row in several for name in row))
        head = [f"| | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
        return head + [
            f"| {key} | {' | '.join(shown(row.get(name)) for name in names)} |" for key, row in values.items()
        ]
    return ["| | |", "| --- | ---: |", *(f"| {key} | {shown(value)} |" for key, value in values.items())]


def shown(value: Any) -> str:
    """A figure in a cell."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(": ".join(map(shown, one)) if isinstance(one, list) else shown(one) for one in value)
    return "" if value is None else str(value)
