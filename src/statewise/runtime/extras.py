"""The packages of the extra `hf`, imported when they are needed."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from statewise.runtime.messages import to_install


def needed(package: str, what: str) -> Any:
    """The package. Raises `ValueError` with the command that installs it; `what` names, in the plural, what needs
    it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in (package, ""):
            raise ValueError(f"{package} is installed, but cannot be imported: {error}") from None
        raise ValueError(f"{what} need the extra `hf`: {to_install('hf')}") from None


def may_be_on_hub(name: str) -> bool:
    """Whether a model on the hub may be called `name`: NAME or OWNER/NAME, unlike most paths."""
    return re.fullmatch(r"(?![.-])[\w.-]+(/[\w.-]+)?", name, re.ASCII) is not None


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Turns whatever the `tokenizers` package raises into a `ValueError` that begins with `what`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # panics of its Rust code are no Exception
        raise ValueError(f"{what}: {error}") from None


@contextmanager
def quiet_hub(what: str) -> Iterator[None]:
    """Keeps the client of the hub from printing that it tries again. Raises `ValueError` as `needed` does."""
    needed("huggingface_hub", what)
    logging = importlib.import_module("huggingface_hub.utils").logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
