"""Help texts fit the terminal; examples break with a backslash."""

import os
import pkgutil
import shutil

import pytest

from statewise import cli
from statewise.analysis import ANALYSES
from statewise.cli import COMMANDS, data, main, strips
from statewise.recipes import recipe_names

BELOW = {"data": data, "strips": strips, "rides": None}
ASKED = [
    [],
    *([name] for name in COMMANDS),
    *([name, below.name] for name, package in BELOW.items() if package
      for below in pkgutil.iter_modules(package.__path__) if below.name != "sources"),
    *(["rides", below] for below in ("check", "map")),
    *(["analyze", "RUN", name] for name in ANALYSES),
    *(["train", name] for name in recipe_names()),
]  # fmt: skip


def lines_of_help(capsys, words):
    try:
        code = main([*words, "--help"])
    except SystemExit as leave:
        code = leave.code
    assert code == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_no_line_of_help_is_wider_than_the_terminal(capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    assert [line for line in lines_of_help(capsys, words) if len(line) > 80] == []


@pytest.mark.parametrize("words", [["analyze", "RUN", "future-probe"], ["analyze"], ["train", "path-star-small"], []])
def test_help_is_wrapped_without_a_terminal(capsys, monkeypatch, words):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda fallback=(80, 24): os.terminal_size(fallback))
    assert [line for line in lines_of_help(capsys, words) if len(line) > 80] == []


def test_embed_explains_its_positions(capsys):
    assert "after the last token" in " ".join(" ".join(lines_of_help(capsys, ["embed"])).split())


def test_all_commands_are_asked():
    modules = {module.name for module in pkgutil.iter_modules(cli.__path__)}
    assert {name for name in COMMANDS if name.replace("-", "_") not in modules} == {"list"}
    assert {words[0] for words in ASKED if words} == {*COMMANDS}
