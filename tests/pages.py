"""The documentation's pages, and the code that stands in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def page(name):
    return (ROOT / name).read_text()


def blocks(name, language):
    return re.findall(rf"```{language}\n(.*?)```", page(name), flags=re.DOTALL)


def run_code(code, name, names=None):
    """Runs code of the page `name` as a script, among `names` if given, and returns these.

    Without a `__name__` its classes would be of the module `builtins`; a dataclass then puts `__builtins__` into that
    module, which so holds itself, and `torch.compile` recurses without end where it walks a module's globals.
    """
    names = {} if names is None else names
    names.setdefault("__name__", "__main__")
    exec(compile(code, name, "exec"), names)
    return names
