"""statewise generate: completions of a prompt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.cli.commands import listed, terminal_width
from statewise.cli.counter import shown_progress
from statewise.config.field_help import declared_fields
from statewise.decoding import DECODERS
from statewise.runtime.arguments import Parser, at_least, pairs
from statewise.runtime.json_files import printable
from statewise.runtime.messages import escaped, say
from statewise.runtime.overwriting import check_file

if TYPE_CHECKING:
    from statewise.data_types import Completion
    from statewise.tasks.base import Task


def _decoder_options() -> str:
    """Each decoder with its fields; nothing is imported."""
    fields = {name: declared_fields(DECODERS.target(name)) for name in DECODERS}
    return listed(
        {
            name: ", ".join(f"--{field}={_shown(one.default)}" for field, one in of_decoder.items())
            for name, of_decoder in fields.items()
            if of_decoder
        }
    )


def _shown(default: Any) -> str:
    return "null" if default is None else str(default)


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "generate",
        "Completes a prompt, or shows the best candidates of a search.\n\n"
        "  statewise generate runs/nl-1 --prompt '6,4|8,1|7,8|0,5|7,0|7,6/7,4='\n"
        "  statewise generate runs/mine --prompt 'a b c' --decoder sample \\\n"
        "      --temperature 0.8 --seed 3\n"
        "  statewise generate runs/mine --prompt 'a b' --goal 'y z' \\\n"
        "      --decoder goal_search --candidates 5\n\n"
        f"Options of the decoders, with their defaults:\n{_decoder_options()}",
    )
    parser.add_run()
    parser.add_argument("--prompt", default="", help="in the format of the task's files")
    parser.add_argument("--goal", help="text that should follow the completion (models trained with goals)")
    parser.add_argument("--decoder", default="greedy", help="`statewise list` shows them (default: greedy)")
    parser.add_argument(
        "--limit",
        "--max-tokens",
        type=at_least(1),
        help="maximum tokens to generate; with a goal, exactly this many, unless the model reads goals first, as with "
        "the encoding fill_in_the_middle (default: what the context leaves; with a carried state, 100)",
    )
    parser.add_argument(
        "--free-length",
        action="store_true",
        help="with a goal: the model ends the completion with its closing symbol (belief_state with min_gap 1), as "
        "those that read goals first always do with the end token",
    )
    parser.add_argument(
        "--reverse",
        action="store_true",
        help="decode from the last token to the first with the previous-token head (belief_state)",
    )
    parser.add_argument(
        "--candidates", metavar="K", type=at_least(1), help="show the K best of a search (beam, goal_search)"
    )
    parser.add_argument(
        "--warmup",
        type=at_least(0),
        default=0,
        metavar="N",
        help="passes over each chunk of the prompt before it is read (models that carry a state)",
    )
    parser.add_argument("--state", metavar="FILE", help="continue from a saved state (models with a carried state)")
    parser.add_argument("--save-state", metavar="FILE", help="save the state for --state (models with a carried state)")
    parser.add_overwrite("replace the file of --save-state")
    parser.add_argument("--json", action="store_true", help="print JSON with the log-probability")
    options, rest = parser.split(words)
    fields: dict[str, Any] = dict(pairs(rest))
    how: dict[str, bool] = {"free_length": options.free_length, "reverse": options.reverse}

    carried = options.state is not None or options.save_state is not None or options.warmup > 0
    if options.free_length and options.goal is None:
        raise ValueError("--free-length needs --goal: without a goal, completions have no fixed length anyway")
    if options.reverse and carried:
        raise ValueError("--reverse does not support a carried state: omit one of them")
    if options.candidates is not None and carried:
        raise ValueError("--candidates needs several sequences, and a carried state is of one: omit one of them")

    if options.overwrite and options.save_state is None:
        raise ValueError("--overwrite needs --save-state, the file that it may replace")
    if options.save_state is not None:
        check_file(Path(options.save_state), options.overwrite, "--save-state")  # before the model is loaded

    from statewise.decoding import as_search, make_decoder
    from statewise.model.model import load_model

    # Wrong options fail before the model is loaded.
    decoder = make_decoder(options.decoder, **fields)
    search = None if options.candidates is None else as_search(decoder, options.decoder)
    model = load_model(options.run, options.checkpoint, options.device)
    if search is not None:
        with shown_progress():
            candidates = model.search(options.prompt, search, options.goal, options.limit, **how)
        say(ranked(candidates[: options.candidates], model.task, options.prompt, options.json))
        return 0
    before: str | list[int] = options.prompt
    if carried:
        if options.goal is not None:
            raise ValueError("a goal cannot be combined with a carried state: omit one of them")
        from statewise.decoding.continuing import continue_generation, read_state

        if options.state is not None and not options.prompt:  # read now, since --save-state may replace the file
            kept = read_state(Path(options.state), model.fingerprint())
            before = kept["pending"].tolist() if "pending" in kept else before
        with shown_progress(), model.asking() as predictor:
            completion = continue_generation(
                predictor,
                model.task,
                options.prompt,
                decoder,
                options.limit or 100,
                fingerprint=model.fingerprint(),
                state=options.state,
                save_state=options.save_state,
                overwrite=options.overwrite,
                warmup=options.warmup,
            )
    else:
        with shown_progress():
            (completion,) = model.generate([options.prompt], decoder, options.limit, options.goal, **how)
    text = model.task.continuation(before, completion.tokens)
    if options.json:
        say(printable({"completion": text, "log_probability": completion.log_probability}, indent=None))
    else:
        say(text)
    return 0


def ranked(candidates: list[Completion], task: Task, prompt: str, as_json: bool) -> str:
    """Candidates for the continuation of a prompt, best first, as a table or a JSON list."""
    from statewise.reporting.tables import number, with_texts

    texts = [task.continuation(prompt, completion.tokens) for completion in candidates]
    if as_json:
        objects = [
            {"completion": text, "score": completion.score, "log_probability": completion.log_probability}
            for text, completion in zip(texts, candidates)
        ]
        return printable(objects)
    rows = [
        [number(completion.score), number(completion.log_probability), escaped(text)]
        for text, completion in zip(texts, candidates)
    ]
    width = terminal_width() if sys.stdout.isatty() else None
    return with_texts(["score", "log-probability", "completion"], rows, width)
