"""Options of the verbs: like argparse, but an unknown one is answered with the near misses."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """The parser of one verb. Raises `ValueError` where argparse would print its usage and exit."""

    def __init__(self, verb: str, description: str, *, add_help: bool = True) -> None:
        super().__init__(
            prog=f"statewise {verb}",
            description=description,
            add_help=add_help,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raises `ValueError`."""
        raise ValueError(f"{message} (see {self.prog} --help)")

    def parse_args(self, words: Sequence[str]) -> argparse.Namespace:  # type: ignore[override]
        """The options. Raises `ValueError` for words that are none of them."""
        found, rest = self.parse_known_args(words)
        if rest:
            known = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(rest[0].partition("=")[0], known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            self.error(f"unknown option {rest[0]!r}: {hint}options: {', '.join(o for o in known if o != '-h')}")
        return found

    def split(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The verb's own options, and all other options as `--key=value`."""
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
        return self.parse_args(mine), others


def pairs(options: Sequence[str]) -> dict[str, str]:
    """`--key=value` words as a mapping; `-` and `_` within a key are the same."""
    found: dict[str, str] = {}
    for option in options:
        key, equals, value = option.removeprefix("--").partition("=")
        if not equals:
            raise ValueError(f"option --{key} needs a value")
        found[key.replace("-", "_")] = value
    return found
