"""Command lines, as tests call them."""

from pathlib import Path
from typing import Any

from doubles import SMALL_RUN

from statewise.cli import main


def called(capsys: Any, *words: object) -> tuple[int, str, str]:
    """Exit code, output and error output of a command line."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def two_steps(folder: Path) -> Path:
    """A run of path-star-small after two steps, in `folder`."""
    flags = ["--task.held_out_graphs=40", "--trainer.steps=2", "--trainer.warmup_steps=0"]
    assert main(["train", "path-star-small", *SMALL_RUN, *flags, "--out", str(folder)]) == 0
    return folder


def refused(capsys: Any, *words: object) -> str:
    """The sentence with which a command line is refused."""
    code, _, err = called(capsys, *words)
    assert code == 2, err
    assert err.startswith("statewise: ")
    assert len(err.splitlines()) == 1, err
    return err
