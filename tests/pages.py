"""The documentation's pages, and the code and commands that stand in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"\n```\n(?:\n(?:[^`\n][^\n]*\n)+)?\n```text(?: figures within ([\d.]+))?\n(.*?)^```$", re.M | re.S)
"""What a page shows of the output: the block of language `text` that follows the code, after at most one paragraph."""
COMMAND = re.compile(r"^ *((?:[A-Z_]+=\S+ )?statewise .*)$", re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Shown:
    """Output that a page shows. A line of three dots stands for any lines."""

    text: str
    within: float
    """How far the figures may be off."""

    def check(self, said, *, figures):
        """Asserts that `said` is what is shown; without `figures`, whatever the numbers in it are."""
        wanted = [_words(line, figures) for line in self.text.splitlines()]
        found = [_words(line, figures) for line in said.splitlines()]
        parts, places = [[]], 0
        for line in wanted:
            if line[0] == "...":
                parts.append([])
            else:
                parts[-1].append(line)
        for part in parts:
            starts = range(places, len(found) - len(part) + 1)
            place = next((at for at in starts if self._equal(part, found[at : at + len(part)])), None)
            assert place is not None, f"the page shows\n{self.text}\nbut it is\n{said}"
            places = place + len(part)

    def _equal(self, part, lines):
        for wanted, found in zip(part, lines, strict=True):
            if len(wanted) != len(found):
                return False
            for one, other in zip(wanted, found, strict=True):
                if one != other and not (
                    isinstance(one, float) and isinstance(other, float) and abs(one - other) <= self.within
                ):
                    return False
        return True


def _words(line, figures):
    """The words and numbers of a line; a number is None without `figures`, and a line of dashes has no length."""
    parts, end = [], 0
    line = re.sub(r"-{3,}", "---", line)
    line = line if figures else re.sub(r"\bnone\b", "0%", line)  # a share in words
    for number in NUMBER.finditer(line):
        parts += [*line[end : number.start()].split(), float(number[0].replace(",", "")) if figures else None]
        end = number.end()
    return [*parts, *line[end:].split()] or [""]


@dataclass(frozen=True)
class Command:
    """A command line of a page."""

    page: str
    line: str
    """Without `statewise` and settings of variables before it."""
    shown: Shown | None

    @property
    def words(self):
        return shlex.split(self.line, comments=True)


def page(name):
    return (ROOT / name).read_text()


def example(name):
    """The code of a file of `examples`."""
    return page(f"examples/{name}.py")


def guides():
    """README.md and the pages of docs; those of results are records."""
    return ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def blocks(name, language):
    return [code for found, code in FENCE.findall(page(name)) if found == language]


def shown_after(text, end):
    """What a page shows of the output of the code that ends at `end`, or None."""
    found = SHOWN.match(text, end)
    return None if found is None else Shown(found[2], float(found[1] or 0))


def commands(name):
    """Every command of a page, in order. Lines that go on are joined, and variables are the first of their loop."""
    text = page(name).replace("\\\n", " ")
    loops = dict(re.findall(r"^ *for (\w+) in (\S+?);? ", text, flags=re.MULTILINE))
    for found in COMMAND.finditer(text):
        line = re.sub(r"\$(\w+)", lambda variable: loops.get(variable[1], variable[0]), found[1])
        yield Command(name, line.partition("statewise ")[2], shown_after(text, found.end()))


def run_code(code, name, names=None):
    """Runs code of the page or file `name` as a script, among `names` if given, and returns these.

    Without a `__name__` its classes would be of the module `builtins`; a dataclass then puts `__builtins__` into that
    module, which so holds itself, and `torch.compile` recurses without end where it walks a module's globals.
    """
    names = {} if names is None else names
    names.setdefault("__name__", "__main__")
    exec(compile(code, name, "exec"), names)
    return names
