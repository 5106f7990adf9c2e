"""`statewise completion`: what a shell offers at Tab."""

import shutil
import subprocess

import pytest
from command_line import called

from statewise.analysis import ANALYSES
from statewise.cli import COMMANDS, data, strips
from statewise.cli.completion import SCRIPTS, bash, places
from statewise.config.recipes import recipe_names

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def every():
    return places()


@pytest.fixture(scope="module")
def offered(every, tmp_path_factory):
    """What bash offers for each of some command lines, of which the last word is completed."""
    if BASH is None:
        pytest.skip("needs bash")
    script = tmp_path_factory.mktemp("completion") / "script"
    script.write_text(bash(every))

    def offers(line):
        asked = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _statewise; echo "${COMPREPLY[@]}"'
        words = line.split(" ")
        done = subprocess.run(
            [BASH, "-u", "-c", asked, "bash", script, *words], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    return offers


def test_commands_subcommands_and_names_are_offered(offered):
    assert offered("statewise ") == [*COMMANDS, "--version", "--help"]
    assert offered("statewise tr") == ["train"]
    assert offered("statewise data ") == list(data.COMMANDS)
    assert offered("statewise strips v") == ["verify"]
    assert offered("statewise train path-star-s") == [name for name in recipe_names() if name.startswith("path-star-s")]
    assert offered("statewise analyze run ") == list(ANALYSES)
    assert offered("statewise completion f") == ["fish"]


def test_options_and_their_values_are_offered(offered):
    assert offered("statewise train x --trainer.pre") == ["--trainer.precision"]
    assert offered("statewise train x --objective next_") == ["next_token", "next_latent"]
    assert offered("statewise generate run --decoder gr") == ["greedy"]
    assert offered("statewise export run --to ") == ["hf", "gguf"]
    assert "--held-out" in offered("statewise data text docs --")
    assert "--held-out" not in offered("statewise data city --")
    assert offered("statewise train x --out ") == [], "then bash completes files"


def test_nobody_s_word_is_lost(every):
    assert {one.command[0] for one in every} == {*COMMANDS}
    assert {one.command[1] for one in every if one.command[0] == "strips" and len(one.command) > 1} == {
        *strips.COMMANDS
    }
    for one in every:
        assert one.names or one.options


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_the_script_is_printed_and_reads_in_its_shell(capsys, tmp_path, shell):
    code, out, err = called(capsys, "completion", shell)
    assert (code, err) == (0, "")
    assert "--objective" in out.replace("-l objective", "--objective")
    if program := shutil.which(shell):
        (tmp_path / "script").write_text(out)
        assert subprocess.run([program, "-n", tmp_path / "script"], timeout=60).returncode == 0


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "more"], ["--shell"]])
def test_other_shells_are_refused(capsys, words):
    code, out, err = called(capsys, "completion", *words)
    assert (code, out) == (2, "")
    assert err.startswith("statewise: ")
    assert "Traceback" not in err
