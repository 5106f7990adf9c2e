"""statewise generate: complete a prompt with a trained run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from statewise.cli.arguments import Parser, pairs

if TYPE_CHECKING:
    from statewise.tasks.base import Task
    from statewise.types import Completion


def run(words: list[str]) -> int:
    """Runs the verb."""
    parser = Parser(
        "generate",
        "Completes a prompt, or shows the best of the completions that a search finds.\n\n"
        "  statewise generate runs/nl-1 --prompt '3,4|5,6|3,5|4,7/3,7='\n"
        "  statewise generate runs/mine --prompt 'a b c' --decoder sample --temperature 0.8 --seed 3\n"
        "  statewise generate runs/mine --prompt 'a b' --goal 'y z' --decoder goal_search --candidates 5\n\n"
        "Options of the decoders:\n"
        "  sample       --temperature, --top_k, --top_p, --floor, --seed\n"
        "  beam         --beams (sequences kept at every step)\n"
        "  goal_search  --rollouts (candidates to find), --candidates_from queue|beam, --score goal|previous|next,\n"
        "               --scored_tokens (how many last tokens are judged without a goal), --batch (run at a time)",
    )
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("--prompt", default="", help="as in the task's files")
    parser.add_argument("--goal", help="what shall follow the completion (models of the objective belief_state)")
    parser.add_argument("--decoder", default="greedy", help="`statewise list` shows them (default: greedy)")
    parser.add_argument(
        "--limit",
        "--max-tokens",
        type=int,
        help="most tokens to generate; with a goal, exactly so many (default: what the context leaves; of a sequence "
        "that is kept, gone on with or warmed up to, 100)",
    )
    parser.add_argument(
        "--candidates", metavar="K", type=int, help="show the K best that a search found (beam, goal_search)"
    )
    parser.add_argument(
        "--warmup",
        type=int,
        default=0,
        metavar="N",
        help="passes over each chunk of the prompt before it is read (models that carry a state: belief_slots)",
    )
    parser.add_argument("--state", metavar="FILE", help="go on from where --save-state stood (such models)")
    parser.add_argument("--save-state", metavar="FILE", help="keep the state, to go on later (such models)")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="print JSON with the log-probability")
    options, rest = parser.split(words)
    fields: dict[str, Any] = dict(pairs(rest))
    if options.candidates is not None and options.candidates < 1:
        raise ValueError(f"--candidates must be at least 1, not {options.candidates}")

    carried = options.state or options.save_state or options.warmup
    if options.candidates is not None and carried:
        raise ValueError("--candidates compares several sequences, and a state is of one: leave one of them away")

    from statewise.experiment import Experiment, make_decoder, make_search

    # A wrong option should not wait for the model to load.
    (make_decoder if options.candidates is None else make_search)(options.decoder, **fields)
    experiment = Experiment.load(options.run, options.checkpoint, options.device)
    if options.candidates is not None:
        found = experiment.search(options.prompt, options.decoder, options.goal, options.limit, **fields)
        print(ranked(found[: options.candidates], experiment.task, options.json))
        return 0
    if carried:
        if options.state and options.warmup:
            raise ValueError("--warmup passes over a prompt at the beginning; behind a kept state there is none")
        if options.goal is not None:
            raise ValueError("a goal and a kept state do not go together: leave one away")
        files = {"state": options.state, "save_state": options.save_state}
        limit = {} if options.limit is None else {"limit": options.limit}
        completion = experiment.go_on(
            options.prompt, options.decoder, warmup=options.warmup, **files, **limit, **fields
        )
    else:
        (completion,) = experiment.generate([options.prompt], options.decoder, options.limit, options.goal, **fields)
    text = experiment.task.decode(completion.tokens)
    if options.json:
        print(json.dumps({"completion": text, "log_probability": completion.log_probability}))
    else:
        print(text)
    return 0


def ranked(found: list[Completion], task: Task, as_json: bool) -> str:
    """Candidates, best first, as a table or a JSON list."""
    from statewise.reporting.tables import number, text_table

    texts = [task.decode(completion.tokens) for completion in found]
    if as_json:
        rows = [
            {"completion": text, "score": completion.score, "log_probability": completion.log_probability}
            for text, completion in zip(texts, found)
        ]
        return json.dumps(rows, indent=2)
    return text_table(
        ["score", "log-probability", "completion"],
        [
            [number(completion.score), number(completion.log_probability), text.replace("\n", "\\n")]
            for text, completion in zip(texts, found)
        ],
        left=(2,),
    )
