"""The command line: a file per command or family of commands, which parses and prints; nothing imports it.

May import every room but `training`, within the command that needs it, so that help is fast.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from statewise.cli.commands import dispatch, in_modules
from statewise.data_types import NotFinite
from statewise.runtime import launchers as processes
from statewise.runtime.arguments import with_flags
from statewise.runtime.messages import escaped, in_words, say

COMMANDS = {
    "demo": "show three small trained models in the browser at once, or train them",
    "list": "name all tasks, objectives, backbones, decoders, analyses and recipes",
    "data": "prepare data: token shards from text, street maps",
    "inspect": "say what a file of yours is, and how to train on it",
    "train": "train a run from a recipe, or resume one",
    "status": "show how far a run, the runs of several seeds, or a suite are",
    "suite": "train a set of recipes, objectives, backbones and seeds; one table, one page",
    "evaluate": "score a run on held-out data or on a file",
    "explain": "write a page on what a model of your own sequences has learned",
    "score": "surprise of every event of your own file, or answers to questions, by likelihood",
    "lm-eval": "score a run on benchmarks of lm-evaluation-harness",
    "generate": "complete a prompt",
    "analyze": "analyse the states of a run",
    "leaks": "check whether anything but the past changes a state of a causal model",
    "embed": "write the belief vectors of sequences as a NumPy file",
    "beliefs": "write sequences of a process with their exact beliefs, or describe it",
    "probe-beliefs": "measure the exact belief of a process in activations of any model",
    "fill": "write new middles for held-out stories",
    "judge": "let a language model compare two files of stories",
    "bench-decode": "measure decoding speed and memory of a run",
    "compare": "compare runs: table, curves, HTML report",
    "serve": "serve runs with the OpenAI protocol: completions, embeddings",
    "playground": "show runs token by token in the browser, or write that as one file",
    "export": "write a model for Hugging Face transformers, or as a GGUF file",
    "convert": "make a run of a checkpoint of the State-Prediction Separation paper's code",
    "rides": "check taxi rides, or draw the map that they imply",
    "strips": "learn STRIPS action models from traces, verify them, plan with them",
    "doctor": "check this installation and machine: versions, devices, extras, a self-test",
    "completion": "print the script that lets a shell complete commands and options",
}

OPTIONS = """\
  --version    print the version
  --debug      show the traceback of an error"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code: 0, 1 (failed), 2 (bad input), 130 or 143 (stopped by a signal)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        with others_escaped():
            return _run(words)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        full = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO
        system_failed = isinstance(error, OSError) and error.errno in full
        return _fail(1 if system_failed else 2, error, debug)
    except NotFinite as error:
        return _fail(1, error, debug)
    except MemoryError as error:
        return _fail(2, ValueError(f"this needs more memory than the machine has: {error}"), debug)
    except RuntimeError as error:
        if isinstance(error, _out_of_memory()):
            where = str(error).partition(". If reserved")[0].partition("\n")[0]
            return _fail(2, ValueError(f"this needs more memory than the device has: {where}"), debug)
        if "allocate memory" in str(error):
            return _fail(2, ValueError("this needs more memory than the machine has"), debug)
        if not (_connected() and _lost_another(error)):
            raise
        lost = "no connection to another process of this run; if that has ended, its own message says why"
        first_line = str(error).partition("\n")[0]
        return _fail(1, ValueError(f"{lost} (PyTorch: {first_line})"), debug)
    except KeyboardInterrupt:
        return 130


def _out_of_memory() -> tuple[type[BaseException], ...]:
    """The error that PyTorch raises if a GPU's memory is full; empty if PyTorch has not been imported."""
    torch = sys.modules.get("torch")
    return () if torch is None else (torch.OutOfMemoryError,)


def _run(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        from statewise.runtime.version import __version__

        say(f"statewise {__version__}")
        return 0
    import statewise.run  # noqa: F401 -- from then on no command replaces a file of a run by its name

    return dispatch(words, COMMANDS, "statewise", in_modules(__name__), lambda: OPTIONS)


def _fail(code: int, error: BaseException, debug: bool) -> int:
    if debug:
        say(traceback.format_exc(), end="", file=sys.stderr)
    message = with_flags(in_words(error))
    try:
        rank, own = processes.rank(), processes.started() is None
    except ValueError:
        rank, own = 0, True  # this is what failed
    if processes.OF_ANOTHER in getattr(error, "__notes__", ()):
        return code
    if rank == 0:
        say(f"statewise: {message}", file=sys.stderr)
    elif own or _connected():
        say(f"statewise, process {rank}: {message}", file=sys.stderr)
    return code


def _connected() -> bool:
    """Whether several processes have begun to train together: until then, what fails in one that a launcher has
    started fails in all. (A run starts others by itself when all has been checked in the first.)"""
    torch = sys.modules.get("torch")
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()


def _lost_another(error: RuntimeError) -> bool:
    """Whether torch raised `error` because it no longer reaches another process. NCCL's errors have a class; gloo's
    are recognised by their text."""
    gloo = ("gloo", "closed by peer", "reset by peer")
    return isinstance(error, sys.modules["torch"].distributed.DistError) or any(word in str(error) for word in gloo)


@contextmanager
def others_escaped() -> Iterator[None]:
    """Prints warnings, and log records without a handler, of other packages without control characters: they may quote
    text of files."""
    before = warnings.formatwarning, logging.lastResort

    def formatted(*arguments: Any, **named: Any) -> str:
        return escaped(before[0](*arguments, **named), keep="\n\t")

    warnings.formatwarning, logging.lastResort = formatted, _Last(logging.WARNING)
    try:
        yield
    finally:
        warnings.formatwarning, logging.lastResort = before


class _Last(logging.Handler):
    """Prints log records that have no other handler."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)
