"""statewise bench-decode: decoding speed and memory of a run, beside a standard transformer of its size."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "bench-decode",
        "Decodes greedily from random prompts, each model in its own process. Measures new tokens\n"
        "per second over all rows, and peak memory. A backbone with a standard variant, such as two_stream, is\n"
        "compared with it.\n\n"
        "  statewise bench-decode runs/sps-1 --batch 16 --prefill 1024 --decode 3072\n\n"
        "With --draft: the trained model on held-out prompts with --decoder speculative, by draft length, and\n"
        "the share of drafted tokens accepted at each place where all before them were accepted.\n\n"
        "  statewise bench-decode runs/nl-1 --draft 0-8,auto",
    )
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("--batch", type=at_least(1), help="prompts at once (default: 16, with --draft 1)")
    parser.add_argument("--prefill", type=at_least(1), help="tokens per prompt (default: a quarter of the context)")
    parser.add_argument("--decode", type=at_least(1), help="new tokens per prompt (default: the rest of the context)")
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="measurements per model; the median is shown (default: 3)"
    )
    parser.add_argument("--draft", metavar="LENGTHS", help="draft lengths to compare, such as 0-8 or 0,4,auto")
    parser.add_argument(
        "--drafter", choices=("model", "prompt_lookup"), help="with --draft: what drafts (default: model)"
    )
    parser.add_argument(
        "--draft-vocabulary", type=at_least(1), metavar="K", help="with --draft: draft from K frequent tokens"
    )
    parser.add_argument(
        "--without-cache",
        action="store_true",
        help="with --draft: also as published, without a cache and with two passes per cycle",
    )
    parser.add_argument("--temperature", type=float, help="with --draft: of sampling (default: 0, greedy)")
    parser.add_device()
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(words)

    if options.draft is not None:
        return _drafts(options)
    for option in ("drafter", "temperature", "draft_vocabulary", "without_cache"):
        if getattr(options, option) not in (None, False):
            raise ValueError(f"--{option.replace('_', '-')} needs --draft")

    from statewise.experiments.decode_speed import speeds_of_run
    from statewise.reporting.tables import text_table

    speeds = speeds_of_run(
        options.run,
        batch=options.batch or 16,
        prefill=options.prefill,
        decode=options.decode,
        rounds=options.rounds,
        device=options.device,
    )
    if options.json:
        say(printable(dataclasses.asdict(speeds)))
        return 0
    say(
        f"{options.run}: {speeds.batch} rows, prompts of {speeds.prefill} tokens, {speeds.decode} more, {speeds.device}"
    )
    models: dict[str, Any] = speeds.models
    known = all(one["megabytes"] is not None for one in models.values())
    rows = [
        [
            name,
            f"{one['tokens_per_second']:,.0f}",
            f"{one['prefill_seconds']:.2f}",
            f"{one['decode_seconds']:.2f}",
            f"{one['megabytes']:,.0f}" if known else "-",
        ]
        for name, one in models.items()
    ]
    say(text_table(["", "tokens/s", "prompt (s)", "decoding (s)", "peak MB"], rows))
    if "standard" in models:
        ours, other = models["this model"], models["standard"]
        against = [f"{ours['tokens_per_second'] / other['tokens_per_second']:.2f} times the tokens per second"]
        against += [f"{ours['megabytes'] / other['megabytes']:.3f} times the memory"] if known else []
        say(f"against standard: {', '.join(against)}")
    return 0


def _drafts(options: argparse.Namespace) -> int:
    """Prints the speed by draft length."""
    from statewise.experiments.draft_speed import draft_lengths, draft_speeds, two_pass_speeds
    from statewise.model.model import load_model

    lengths, batch = draft_lengths(options.draft), options.batch or 1
    names = ("drafter", "temperature", "draft_vocabulary")
    fields = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.without_cache and (batch > 1 or options.drafter == "prompt_lookup"):
        raise ValueError(
            "--without-cache measures drafts of the model itself, one prompt at a time: omit --batch and --drafter"
        )
    if options.without_cache and options.draft_vocabulary is not None:
        raise ValueError("--without-cache drafts from all tokens, as published: omit --draft-vocabulary")
    model = load_model(options.run, "best", options.device)
    how = {"rounds": options.rounds, "prefill": options.prefill, "decode": options.decode, **fields}
    tables = {"drafts": draft_speeds(model, lengths, batch=batch, **how)}
    if options.without_cache:
        tables["without_cache"] = two_pass_speeds(model, lengths, **how)
    if options.json:
        say(printable({"batch": batch, "rounds": options.rounds, **fields, **tables}))
        return 0
    say(f"{options.run}: {options.rounds} times {batch} rows, each draft length on the same prompts")
    say(_table(tables["drafts"]))
    if options.without_cache:
        say("\nwithout a cache, two passes per cycle; plain: one pass per token")
        say(_table(tables["without_cache"]))
    return 0


def _table(speeds: dict[str, dict[str, Any]]) -> str:
    """The table of what `draft_speeds` returns."""
    from statewise.reporting.tables import text_table

    plain = speeds["plain"]["tokens_per_second"]
    rows = [
        [
            name,
            f"{one['tokens_per_second']:,.0f}",
            f"{one['tokens_per_second'] / plain:.2f}",
            "" if name in ("plain", "0") else f"{one['accepted_per_cycle']:.2f}",
            " ".join(f"{share:.2f}" for share in one["accepted_by_place"]),
        ]
        for name, one in speeds.items()
    ]
    return text_table(["draft", "tokens/s", "times plain", "accepted per cycle", "by place"], rows, left=(0, 4))
