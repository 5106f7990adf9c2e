"""The command line: a file a verb. Heavy imports happen inside the verbs, so that help answers at once."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from statewise.types import NotFinite

VERBS = {
    "list": "tasks, objectives, backbones, decoders, analyses and recipes, a line each",
    "data": "make a corpus of token shards from text, or a street map",
    "train": "train a run from a recipe, or resume one",
    "evaluate": "score a run on held-out data, or on a file",
    "score": "answer the multiple-choice or last-word questions of a file by likelihood",
    "lm-eval": "score a run on benchmarks of lm-evaluation-harness",
    "generate": "complete a prompt",
    "analyze": "look into the states of a run",
    "embed": "write the belief vectors of sequences as a NumPy file",
    "fill": "tell held-out stories from their beginning towards their end",
    "judge": "let a language model say which of two files of stories is better",
    "bench-decode": "how fast a run decodes, and in how much memory, against a standard transformer",
    "compare": "set runs side by side: table, curves, report.html",
    "rides": "check a file of taxi rides, or draw the map that they imply",
    "strips": "learn STRIPS action models from traces, prove them right, plan with them",
}

USAGE = "usage: statewise VERB ...   (statewise VERB --help explains a verb)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code: 0, 1 (failed), 2 (bad input), 130 or 143 (told to stop)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return _dispatch(words)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        no_fault_of_the_user = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
        return _fail(1 if no_fault_of_the_user else 2, error, debug)
    except NotFinite as error:
        return _fail(1, error, debug)
    except KeyboardInterrupt:
        return 130


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, "", *(f"  {verb:12} {what}" for verb, what in VERBS.items()), sep="\n")
        print("\n  --version    print the version\n  --debug      show the traceback of an error")
        return 0 if words else 2
    if words[0] == "--version":
        from statewise import __version__

        print(f"statewise {__version__}")
        return 0
    if words[0] not in VERBS:
        from statewise.config import unknown

        raise ValueError(unknown("verb", words[0], VERBS))
    module = importlib.import_module(f"statewise.cli.{words[0].replace('list', 'listing').replace('-', '_')}")
    code: int = module.run(words[1:])
    return code


def _fail(code: int, error: BaseException, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        message = f"{error.filename}: {error.strerror}"
    if os.environ.get("LOCAL_RANK", "0") == "0":  # of several processes one speaks
        print(f"statewise: {message}", file=sys.stderr)
    return code
