"""Judging two files of stories: a file of judgements, and a summary beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statewise.evaluation.judging.judgements import (
    INSTRUCTIONS,
    NEEDED,
    Judge,
    checksum,
    facts,
    judge,
    read_instructions,
    read_pairs,
    summarise,
)
from statewise.runtime.durable import write_atomically
from statewise.runtime.json_files import json_bytes
from statewise.runtime.ledger import Ledger
from statewise.runtime.overwriting import check_derived


def judge_files(
    a: Path,
    b: Path,
    out: Path,
    reader: Judge,
    *,
    model: str,
    temperature: float | None = None,
    repeats: int = 3,
    jobs: int = 4,
    instructions: Path | None = None,
) -> tuple[dict[str, Any], Path]:
    """Lets `reader` compare the stories of `a` and `b`; returns the summary, as `summarise` does with the settings, and
    the file that it is in. The judgements are in `out`; a call with the same settings continues an interrupted one.

    `model` and `temperature` describe the reader. `instructions` is a file with criteria that replace ours. Raises
    `ValueError` if a file is not as it must be or `out` holds anything else; what interrupts the judging is raised with
    a note that says how many judgements are kept.
    """
    if out.resolve() in (a.resolve(), b.resolve()):
        raise ValueError(f"`out` {out} is one of the files to judge: choose another")
    if out.is_dir():
        raise ValueError(f"{out} is a folder: `out` names a file")
    beside = out.with_suffix(".summary.json")
    check_derived(beside, out)
    pairs = read_pairs(a, b)
    text = INSTRUCTIONS if instructions is None else read_instructions(instructions)
    known = facts(model, {"a": checksum(a), "b": checksum(b)}, repeats, text, temperature)
    with Ledger(out, "judging", known, NEEDED) as ledger:
        try:
            records = judge(pairs, reader, ledger, repeats=repeats, jobs=jobs, instructions=text)
        except BaseException as error:
            kept = f"{len(ledger.records)} judgements are in {out}"
            error.add_note(f"{kept}: the same command continues from there")
            raise
    settings = {"model": model, "instructions": text, "temperature": temperature}
    summary = {"a": str(a), "b": str(b), **settings, **summarise(records, len(pairs))}
    write_atomically(beside, json_bytes(summary))
    return summary, beside
