"""statewise bench-decode: decoding speed and memory of a run, beside a standard transformer of its size."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

from statewise.cli.arguments import Parser, at_least
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
        "the share of drafted tokens accepted at each place, of those before which all were accepted.\n\n"
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
    batch = options.batch or 16

    from statewise.backbones.capabilities import HasStandard
    from statewise.experiments.decode_speed import in_own_process
    from statewise.model.loading import model_of_run
    from statewise.reporting.tables import text_table
    from statewise.run import Run

    opened = Run.open(Path(options.run))
    recipe: dict[str, Any] = dict(opened.recipe())
    model = model_of_run(opened)
    context, config = model.task.context, model.recipe.backbone.config
    prefill = options.prefill or max(1, context // 4)
    if options.decode is None and prefill >= context:
        raise ValueError(
            f"a prompt of {prefill} tokens leaves nothing of the context of {context} to decode: set --prefill lower"
        )
    decode = options.decode or context - prefill
    environment = opened.environment()
    recipes = {"this model": recipe}
    standard: Any = config.standard() if isinstance(config, HasStandard) else None
    if standard is not None:
        recipes["standard"] = {**recipe, "backbone": {**recipe["backbone"], **dataclasses.asdict(standard)}}
    measured = {
        name: [
            in_own_process(
                one,
                opened.task_files(),
                batch,
                prefill,
                decode,
                options.device,
                environment["precision"],
                environment["threads"],
            )
            for _ in range(options.rounds)
        ]
        for name, one in recipes.items()
    }
    one_of_all = next(iter(measured.values()))[0]
    device = one_of_all.device
    fields = [field.name for field in dataclasses.fields(one_of_all) if field.name != "device"]
    medians = {
        name: {field: _median([getattr(one, field) for one in many]) for field in fields}
        for name, many in measured.items()
    }
    content = {"batch": batch, "prefill": prefill, "decode": decode, "device": device, "models": medians}
    if options.json:
        say(printable(content))
        return 0
    say(f"{options.run}: {batch} rows, prompts of {prefill} tokens, {decode} more, {device}")
    told = all(one["megabytes"] is not None for one in medians.values())
    rows = [
        [
            name,
            f"{one['tokens_per_second']:,.0f}",
            f"{one['prefill_seconds']:.2f}",
            f"{one['decode_seconds']:.2f}",
            f"{one['megabytes']:,.0f}" if told else "-",
        ]
        for name, one in medians.items()
    ]
    say(text_table(["", "tokens/s", "prompt (s)", "decoding (s)", "peak MB"], rows))
    if "standard" in medians:
        ours, other = medians["this model"], medians["standard"]
        against = [f"{ours['tokens_per_second'] / other['tokens_per_second']:.2f} times the tokens per second"]
        against += [f"{ours['megabytes'] / other['megabytes']:.3f} times the memory"] if told else []
        say(f"against standard: {', '.join(against)}")
    return 0


def _median(values: list[Any]) -> Any:
    """None where the system does not tell them."""
    return None if None in values else statistics.median(values)


def _drafts(options: Any) -> int:
    from statewise.experiments.draft_speed import draft_lengths, draft_speeds, draft_table, two_pass_speeds
    from statewise.model.loading import load_model

    lengths, batch = draft_lengths(options.draft), options.batch or 1
    given = {name: getattr(options, name) for name in ("drafter", "temperature", "draft_vocabulary")}
    fields = {name: value for name, value in given.items() if value is not None}
    if options.without_cache and (batch > 1 or options.drafter == "prompt_lookup"):
        raise ValueError(
            "--without-cache measures drafts of the model itself, one prompt at a time: omit --batch and --drafter"
        )
    if options.without_cache and options.draft_vocabulary is not None:
        raise ValueError("--without-cache drafts from all tokens, as published: omit --draft-vocabulary")
    model = load_model(options.run, "best", options.device)
    asked = {"rounds": options.rounds, "prefill": options.prefill, "decode": options.decode, **fields}
    tables = {"drafts": draft_speeds(model, lengths, batch=batch, **asked)}
    if options.without_cache:
        tables["without_cache"] = two_pass_speeds(model, lengths, **asked)
    if options.json:
        say(printable({"batch": batch, "rounds": options.rounds, **fields, **tables}))
        return 0
    say(f"{options.run}: {options.rounds} times {batch} rows, each draft length on the same prompts")
    say(draft_table(tables["drafts"]))
    if options.without_cache:
        say("\nwithout a cache, two passes per cycle; plain: one pass per token")
        say(draft_table(tables["without_cache"]))
    return 0
