"""The model card, README.md of an exported folder."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from statewise.runtime.json_files import COUNT, MEASURED, Shape

EVALUATION: Shape = {"checkpoint": COUNT, "num": COUNT, "metrics": {...: MEASURED}}
"""What the card shows of a run's evaluation."""
USE = """\
```python
{imports}from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({folder})
{tokenizer}```
"""
TOKENIZER = """\
tokenizer = AutoTokenizer.from_pretrained({folder})
inputs = tokenizer(PROMPT, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0]))
"""
NO_TOKENIZER = "model.generate(input_ids)  # token ids alone; the folder has no tokenizer\n"


def model_card(
    folder: str,
    recipe: Mapping[str, Any],
    *,
    architecture: str,
    registered: bool,
    tokenizer: bool,
    parameters: int,
    context: int,
    version: str,
    step: int | None,
    report: Mapping[str, Any] | None,
    command: str,
    notes: Sequence[str],
) -> str:
    """Markdown with the metadata that the hub reads. `registered`: whether the architecture is one that
    `import statewise.hf` registers; `report`: the run's evaluation on held-out examples, if there is one."""
    names = {kind: recipe[kind]["name"] for kind in ("task", "objective", "backbone")}
    metadata = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["statewise", *names.values()],
    }
    quoted = json.dumps(folder, ensure_ascii=False)  # also a string of Python
    at = "" if step is None else f", step {step:,}"
    parts = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {_in_a_cell(folder)}",
        f"{architecture} of {parameters:,} parameters with a context of {context:,} tokens, trained by statewise "
        f"{version} on the task {names['task']} with the objective {names['objective']} and the backbone "
        f"{names['backbone']}{at}.",
        *([] if not notes else ["\n".join(f"- {note}" for note in notes)]),
        "## Use",
        USE.format(
            folder=quoted,
            imports="import statewise.hf  # registers the architecture\n" if registered else "",
            tokenizer=(TOKENIZER if tokenizer else NO_TOKENIZER).format(folder=quoted),
        ).rstrip(),
        *_metrics(report),
        "## Recipe",
        f"```yaml\n{yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True)}```",
        "## Export",
        f"```\n{command}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _metrics(report: Mapping[str, Any] | None) -> list[str]:
    if not report or not report.get("metrics"):
        return []
    rows = "\n".join(f"| {_in_a_cell(name)} | {value:.6g} |" for name, value in report["metrics"].items())
    where = f"On {report['num']:,} held-out examples, checkpoint of step {report['checkpoint']:,}:"
    return ["## Metrics", where, f"| metric | value |\n| --- | --- |\n{rows}"]


def _in_a_cell(name: str) -> str:
    """A name that someone has chosen, as text of one line, or of a cell of a table, in Markdown."""
    return " ".join(html.escape(name).replace("|", "&#124;").split())
