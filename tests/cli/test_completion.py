"""`statewise completion`: what a shell offers at Tab."""

import os
import pty
import select
import shutil
import subprocess
import time

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


def test_every_command_is_offered(every):
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


ASKED = {
    "statewise strips v": "verify",
    "statewise train x --objective next_l": "next_latent",
    "statewise train x --trainer.prec": "--trainer.precision",
}
"""Lines that have one completion, and their last words once completed."""


@pytest.mark.parametrize(
    ("words", "setup"),
    [
        (["bash", "--norc", "--noprofile", "-i"], "source ./script"),
        (["zsh", "-f", "-i"], "autoload -U compinit && compinit -u -D; source ./script"),
    ],
    ids=["bash", "zsh"],
)
def test_a_shell_completes_at_tab(every, tmp_path, words, setup):
    """A real shell at a terminal, to which the Tab key is sent."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    (tmp_path / "script").write_text(SCRIPTS[words[0]](every))
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvpe(words[0], words, {**os.environ, "TERM": "dumb", "HOME": str(tmp_path)})
    try:
        os.write(terminal, f"{setup}; echo rea''dy\n".encode())
        _read_until(terminal, "ready")
        for line, wanted in ASKED.items():
            os.write(terminal, f"{line}\t".encode())
            _read_until(terminal, f"{wanted} ")
            os.write(terminal, b"\x15")  # Ctrl-U deletes the line
    finally:
        os.close(terminal)  # which ends the shell
        os.waitpid(child, 0)


def _read_until(terminal, wanted, seconds=60):
    """Reads what a terminal shows until it shows `wanted`."""
    shown, end = "", time.monotonic() + seconds
    while wanted not in shown:
        assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], f"{wanted!r} is not in {shown!r}"
        shown += os.read(terminal, 65536).decode(errors="replace")


def test_fish_offers_commands_and_values_with_what_they_are(every, tmp_path):
    if (program := shutil.which("fish")) is None:
        pytest.skip("needs fish")
    (tmp_path / "script").write_text(SCRIPTS["fish"](every))

    def offers(line):
        asked = ["-c", "source $argv[1]; complete -C $argv[2]", tmp_path / "script", line]
        done = subprocess.run([program, "--no-config", *asked], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    assert offers("statewise tr") == [f"train\t{COMMANDS['train']}"]
    for line, wanted in ASKED.items():
        assert [one.partition("\t")[0] for one in offers(line)] == [wanted]


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "more"], ["--shell"]])
def test_other_shells_are_refused(capsys, words):
    code, out, err = called(capsys, "completion", *words)
    assert (code, out) == (2, "")
    assert err.startswith("statewise: ")
    assert "Traceback" not in err
