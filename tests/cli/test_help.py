"""Help texts fit the terminal; examples break with a backslash."""

import os
import pkgutil
import shutil

import pytest

from statewise import cli
from statewise.analysis import ANALYSES
from statewise.cli import COMMANDS, data, main, strips
from statewise.config.field_help import declared_fields
from statewise.config.recipes import recipe_names

BELOW = {"data": data, "strips": strips, "rides": None}
ASKED = [
    [],
    *([name] for name in COMMANDS),
    *([name, below] for name, module in BELOW.items() if module for below in module.COMMANDS),
    *(["rides", below] for below in ("check", "map")),
    *(["analyze", "RUN", name] for name in ANALYSES),
    *(["train", name] for name in recipe_names()),
]


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


def test_fields_name_the_words_that_they_may_be(capsys):
    assert main(["train", "path-star-small", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "RMSNorm, or LayerNorm. One of rms, layer." in told
    assert "--backbone.init" in told
    assert "One of gpt2" not in told  # it may also be a number


def test_only_words_that_are_all_there_is_are_named():
    speculative = declared_fields("statewise.decoding.speculative:SpeculativeConfig")
    assert speculative["drafter"].choices == ("model", "prompt_lookup")
    assert speculative["draft"].choices == ()  # a number, too
    assert declared_fields("statewise.backbones.belief_slots:BeliefSlotsConfig")["update"].choices == ("ema", "gated")
