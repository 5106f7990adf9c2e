"""Command-line options: argparse, with near misses for an unknown option."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from statewise.runtime.bounds import LARGEST
from statewise.runtime.messages import cut_words, say, suggestion

PATHS = {"FILE": "file", "DIR": "folder", "PATH": "file or folder", "OUT.npy": "file", "OUT.jsonl": "file"}
"""Placeholders of options whose values are paths."""

Number = TypeVar("Number", int, float)


class _Formatter(argparse.HelpFormatter):
    """Wraps paragraphs to the terminal; indented lines, such as examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            if _preformatted(line) or not lines or _preformatted(lines[-1]):
                lines.append(line)
            else:
                lines[-1] += f" {line}"
        return "\n".join(line if _preformatted(line) else textwrap.fill(line, width) for line in lines)


def _preformatted(line: str) -> bool:
    return line[:1] in ("", " ")


_flags: dict[str, str] = {}
"""The flags of the command that runs, by the name of the library's argument."""


def with_flags(message: str) -> str:
    """A message of the library as the command's user knows it: `out` becomes --out if the command has that flag."""
    return re.sub(r"`([a-z_]+)`", lambda found: _flags.get(found[1], found[0]), message)


class Parser(argparse.ArgumentParser):
    """The parser of one command. Raises `ValueError` where argparse would print its usage and exit."""

    def __init__(self, command: str, description: str, *, add_help: bool = True) -> None:
        super().__init__(
            prog=f"statewise {command}",
            description=description,
            add_help=add_help,
            allow_abbrev=False,
            formatter_class=_Formatter,
        )

    def add_run(self, what: str = "run directory") -> None:
        """`RUN`, `--checkpoint` and `--device`: which model, and where it runs."""
        self.add_argument("run", metavar="RUN", help=what)
        self.add_checkpoint()
        self.add_device()

    def add_checkpoint(self) -> None:
        """Adds the option `--checkpoint`."""
        self.add_argument("--checkpoint", default="best", help="best, last, or a step (default: best)")

    def add_device(self) -> None:
        """Adds the option `--device`."""
        self.add_argument(
            "--device",
            default="auto",
            metavar="NAME",
            help="cpu, cuda, or another accelerator of PyTorch, such as mps (default: CUDA if available, else cpu)",
        )

    def add_overwrite(self, what: str = "replace an existing file") -> None:
        """`--overwrite`; without it no command replaces a file."""
        self.add_argument("--overwrite", action="store_true", help=what)

    def _print_message(self, message: str, file: object = None) -> None:
        """Prints help, which may quote a file."""
        say(message, end="")

    def error(self, message: str) -> NoReturn:
        """Raises `ValueError`."""
        message = re.sub(r"^argument (\S+): must", r"\1 must", message)
        raise ValueError(f"{cut_words(message)} (see {self.prog} --help)")

    def parse_args(self, words: Sequence[str]) -> argparse.Namespace:  # type: ignore[override]
        """The options. Raises `ValueError` for an unknown one, with the near misses, and for an empty path."""
        if _only_parsers:
            raise _ParserMade(self)
        _flags.clear()
        _flags.update((each.dest, each.option_strings[-1]) for each in reversed(self._actions) if each.option_strings)
        arguments, rest = self.parse_known_args(words)
        if rest:
            if not rest[0].startswith("-"):
                self.error(f"{rest[0]!r} is one argument too many")
            known = [option for action in self._actions for option in action.option_strings]
            hint = suggestion(rest[0].partition("=")[0], known)
            self.error(f"unknown option {rest[0]!r}: {hint}options: {', '.join(o for o in known if o != '-h')}")
        for action in self._actions:
            if action.metavar in PATHS and getattr(arguments, action.dest) == "":
                name = action.option_strings[0] if action.option_strings else action.metavar
                self.error(f"{name} is empty: give the path of a {PATHS[action.metavar]}")
        return arguments

    def split(self, words: Sequence[str], besides: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
        """The command's own options, and all others as `--key=value`. With `besides`, other options have a dot or are
        among `besides`. Raises `ValueError` for one that resembles an own option, and for one with a single dash."""
        own = {option for action in self._actions for option in action.option_strings}
        mine: list[str] = []
        others: list[str] = []
        target = mine
        for word in words:
            if word.startswith("-") and not word[1:2].isdigit():
                target = mine if word.partition("=")[0] in own else others
                target.append(word)
            elif target is others and "=" not in others[-1]:
                others[-1] += f"={word}"
                target = mine
            else:
                mine.append(word)
        for other in others:
            name = other.partition("=")[0]
            slip = besides is not None and "." not in name and name not in besides
            near = difflib.get_close_matches(name, own, cutoff=0.85) if slip else []
            if near or not name.startswith("--"):
                hint = suggestion(name, near or [*(own - {"-h"}), *(besides or ())])
                self.error(f"unknown option {name!r}: {hint or 'options begin with two dashes'}".rstrip())
        options = self.parse_args(mine)
        for other in others:
            flag = other.partition("=")[0]
            _flags.setdefault(flag.removeprefix("--").replace("-", "_"), flag)
        return options, others


_only_parsers: list[bool] = []
"""Not empty while `parser_of` looks for a parser."""


class _ParserMade(BaseException):
    """Carries the parser of a command to `parser_of`; no command catches it."""


def parser_of(run: Callable[[list[str]], object]) -> Parser:
    """The parser of a command, whose function `run` makes it before it does anything else; the command is not run."""
    _only_parsers.append(True)
    try:
        run([])
    except _ParserMade as made:
        parser: Parser = made.args[0]
        return parser
    finally:
        _only_parsers.pop()
    raise AssertionError(f"{run} reads its words without a parser")


def _number(kind: type[Number], holds: Callable[[Number], bool], bound: str) -> Callable[[str], Number]:
    """Type of an option: a number below `LARGEST` for which `holds`, the `bound` of its message, is true."""

    def number(text: str) -> Number:
        value = kind(text)
        if value >= LARGEST:
            raise argparse.ArgumentTypeError(f"must be below {LARGEST:,}, not {text}")
        if not holds(value):
            raise argparse.ArgumentTypeError(f"must be {bound}, not {text}")
        return value

    number.__name__ = kind.__name__  # argparse names the type in its message
    return number


def at_least(least: int) -> Callable[[str], int]:
    """Type of an option: a whole number, at least `least`."""
    return _number(int, lambda number: least <= number, f"at least {least}")


def not_below(least: float) -> Callable[[str], float]:
    """Type of an option: a finite number, at least `least`."""
    return _number(float, lambda number: least <= number, f"at least {least:g}")


def above(least: float) -> Callable[[str], float]:
    """Type of an option: a finite number above `least`."""
    return _number(float, lambda number: least < number, f"above {least:g}")


def pairs(options: Sequence[str]) -> dict[str, str]:
    """`--key=value` words as a mapping; `-` in a key becomes `_`."""
    values: dict[str, str] = {}
    for option in options:
        key, equals, value = option.removeprefix("--").partition("=")
        if not equals:
            raise ValueError(f"option --{key} is unknown, or lacks its value: see --help, or write --{key} VALUE")
        values[key.replace("-", "_")] = value
    return values
