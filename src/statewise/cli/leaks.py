"""statewise leaks: does anything but the past change a state?"""

from __future__ import annotations

from statewise.runtime.arguments import Parser, at_least
from statewise.runtime.json_files import printable
from statewise.runtime.messages import say

CHECKS = {
    "packed": "other documents of a packed row (position_ids, cu_seqlens, documents)",
    "padding": "padding, on the right and on the left",
    "batch": "other rows of the batch",
    "cache": "reading in steps from a cache instead of at once",
}


def run(words: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        "leaks",
        "Checks on random tokens whether anything but the past changes a state of a causal model. Prints what was\n"
        "checked, and for each leak the first module that leaks and how much every layer changes, relative to its\n"
        "largest number. Exit code 0: nothing leaks, 1: something does, 2: bad input.\n\n"
        "  statewise leaks runs/nl-1\n"
        "  statewise leaks HuggingFaceTB/SmolLM2-135M --packed\n"
        "  statewise leaks my_models:make_model\n\n"
        "Later tokens are always checked. Of the others, all that the model allows are, unless you choose.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a run, an exported folder, a folder or name of Hugging Face, or MODULE:NAME, a torch module of your own "
        "or a function that makes one",
    )
    for name, what in CHECKS.items():
        parser.add_argument(f"--{name}", action="store_true", help=what)
    parser.add_argument("--length", metavar="N", type=at_least(1), help="tokens of a row (default: up to 47)")
    parser.add_checkpoint()
    parser.add_device()
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    chosen = [name for name in CHECKS if getattr(options, name)]

    from statewise.deploy.leaks import leaks

    found = leaks(
        options.model, chosen or None, length=options.length, checkpoint=options.checkpoint, device=options.device
    )
    say(printable(found.as_json()) if options.json else found.as_text())
    return 0 if found.clean else 1
