"""One function prints, and what it prints cannot steer a terminal."""

import ast
import io
import json
import logging
import re
import sys
import warnings
from pathlib import Path

import pytest
from doubles import make_run
from rich.console import Console
from small_worlds import model_of

import statewise
from statewise.cli import counter, main
from statewise.experiments.progress import Count, console
from statewise.runtime.json_files import printable
from statewise.runtime.messages import escaped, say, say_in_place
from statewise.strips.model.model import ActionModel

SOURCES = Path(statewise.__file__).parent
HOSTILE = {
    "colour": "\x1b[31mred\x1b[0m",
    "bell": "ding\x07",
    "title": "\x1b]0;mine\x07",
    "link": "\x1b]8;;http://example.org\x1b\\here\x1b]8;;\x1b\\",
    "csi_of_8_bits": "\x9b2J",
    "osc_of_8_bits": "\x9d0;mine\x9c",
    "device_control": "\x90+q\x9c",
    "backspace": "good\b\b\b\bevil",
    "return": "good\revil",
    "bidi_override": "abc\u202etxt.exe",
    "bidi_isolate": "\u2066abc\u2069",
    "tags": "\U000e0041",
    "line_separator": "a\u2028b",
}
STEERING = {letter for text in HOSTILE.values() for letter in text if not letter.isprintable()}
MARKUP = "[red]x[/red] [/b] [link=http://example.org]y[/link] :smile:"
ALL = MARKUP + "".join(HOSTILE.values())


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def on_screen(monkeypatch):
    """A function after which standard output is a terminal of 100 columns, which it returns. Not the fixture itself:
    what it sets, pytest's capturing would set back before the test."""

    def show():
        made = Screen()
        monkeypatch.setattr(sys, "stdout", made)
        return made

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return show


def assert_safe(text):
    assert not STEERING.intersection(text), repr(text)


PRINTERS = {
    "print",
    "sys.stdout.write",
    "sys.stderr.write",
    "sys.stdout.buffer.write",
    "os.write",
    "pprint",
    "pprint.pprint",
    "traceback.print_exc",
    "traceback.print_exception",
    "Console",
    "rich.print",
    "sys.stdout.writelines",
    "sys.stderr.writelines",
}
ALLOWED = {
    ("runtime/messages.py", "sys.stderr.write"),
    ("runtime/durable.py", "os.write"),
    ("experiments/progress.py", "Console"),
    ("strips/amlgym/cell.py", "sys.stdout.write"),
}
"""The function that prints, the consoles of progress bars, a write to files, and what a process says to its parent."""


def printers(path):
    """The names of printers that a module calls."""
    last = {name.rpartition(".")[2] for name in PRINTERS}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None)) in last:
            yield from {ast.unparse(node.func)} & PRINTERS


def test_nothing_prints_otherwise():
    found = {(path.relative_to(SOURCES).as_posix(), name) for path in SOURCES.rglob("*.py") for name in printers(path)}
    assert found <= ALLOWED
    assert ("runtime/messages.py", "sys.stderr.write") in found  # the scan sees calls
    importers = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if re.search(r"^\s*(from|import) rich\b", path.read_text(), re.MULTILINE)
    }
    assert importers == {"experiments/progress.py"}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_terminal_gets_no_control_characters(on_screen, capsys, text):
    screen = on_screen()
    say(text, MARKUP)
    assert_safe(screen.getvalue().removesuffix("\n"))
    assert screen.getvalue().endswith(f"{MARKUP}\n")
    for letter in text:
        assert letter in screen.getvalue() or repr(letter)[1:-1] in screen.getvalue()  # nothing is lost


def test_line_ends_tabs_and_other_languages_remain(on_screen):
    screen = on_screen()
    text = "a\tb\nGrüße, 数\u3000字 می\u200cخواهم 👩\u200d🔬 1\u00a0000"
    say(text)
    assert screen.getvalue() == f"{text}\n"


def test_what_is_redirected_stays_exact_and_standard_error_is_always_escaped(capfd):
    say(ALL)
    say(ALL, file=sys.stderr)
    out, err = capfd.readouterr()
    assert out.encode() == f"{ALL}\n".encode() or out == f"{ALL}\n".replace("\r", "\n")
    assert_safe(err.removesuffix("\n"))


def test_characters_that_a_stream_lacks_are_escaped():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    say("ü", "\udc80", file=stream, flush=True)
    assert stream.buffer.getvalue() == b"\\xfc \\udc80\n"


def test_consoles_of_bars_escape_too(on_screen, monkeypatch):
    screen = on_screen()
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    made = console()
    assert isinstance(made, Console)
    made.say(ALL)
    made.print(ALL)
    with Count("tokens") as count:
        count.bars.console = made
        count.stage(ALL, 10)
        count.advance(1)
        count.note(ALL)
    shown = screen.getvalue()
    for own in ("\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[1A", "\r"):  # rich's own
        shown = shown.replace(own, "")
    assert_safe(shown.replace("\n", ""))
    assert "[red]x[/red] [/b]" in shown


def test_consoles_leave_redirected_text_as_it_is(capfd):
    console().say(ALL.replace("\r", ""))
    assert capfd.readouterr().out == ALL.replace("\r", "") + "\n"


def test_a_line_in_place_escapes_what_it_says(monkeypatch):
    stream = Screen()
    monkeypatch.setattr(sys, "stderr", stream)
    say_in_place("\x1b[2J")
    assert stream.getvalue() == "\r\x1b[K\\x1b[2J"
    monkeypatch.setattr(counter, "SILENT_SECONDS", 0.0)
    with counter.shown_progress():
        from statewise.runtime.progress import announced

        list(announced(range(3), HOSTILE["colour"], 3))
    assert "\\x1b[31mred" in stream.getvalue()
    assert "\x1b[31m" not in stream.getvalue()


def test_models_of_others_are_shown_without_their_control_characters(on_screen, tmp_path, capsys):
    screen = on_screen()
    folder = tmp_path / escaped(ALL).replace("/", "")[:60]
    folder.mkdir()
    model = ActionModel.of([ALL], {f"move {ALL}": ([ALL], [], [])})
    (folder / "model.json").write_text(model.as_json())
    assert main(["strips", "show", str(folder)]) == 0
    assert_safe(screen.getvalue().replace("\n", ""))
    assert "\\x1b[31mred" in screen.getvalue()
    assert "[red]x[/red]" in screen.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_generated_text_is_escaped_on_terminals_alone(on_screen, monkeypatch, tmp_path, capfd, terminal):
    (tmp_path / "data.txt").write_text("a b c\n" * 9 + "c b a\n")
    model = model_of({"name": "sequences", "path": str(tmp_path / "data.txt")})
    monkeypatch.setattr(model.task, "continuation", lambda before, tokens: ALL)
    monkeypatch.setattr("statewise.model.model.load_model", lambda *given: model)
    screen = on_screen() if terminal else None
    assert main(["generate", "run", "--prompt", "a"]) == 0
    if screen is None:
        assert capfd.readouterr().out in (f"{ALL}\n", f"{ALL}\n".replace("\r", "\n"))
    else:
        assert screen.getvalue() == f"{escaped(ALL)}\n"
        assert_safe(screen.getvalue().replace("\n", ""))


def test_warnings_and_log_records_of_other_packages_are_escaped(monkeypatch, capsys):
    def run(words):
        sys.stderr.write(warnings.formatwarning(ALL, UserWarning, "a.py", 1, "x = 1"))  # pytest takes warnings itself
        logging.getLogger("another.package").error("%s", ALL)
        return 0

    monkeypatch.setattr("statewise.cli._run", run)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    before = warnings.formatwarning, logging.lastResort
    assert main(["list"]) == 0
    error = capsys.readouterr().err
    assert error.count("\\x1b[31mred") == 2
    assert_safe(error.replace("\n", ""))
    assert (warnings.formatwarning, logging.lastResort) == before


def test_names_and_content_of_files_are_shown_so_in_tables_and_errors(on_screen, tmp_path, capsys):
    screen = on_screen()
    named = tmp_path / ALL.replace("/", "").replace("\0", "")[:120]
    make_run(named, 1, 0.5, note=ALL)
    edited = json.loads((named / "environment.json").read_text())
    (named / "environment.json").write_text(printable({**edited, "device": ALL, "precision": "fp32", "threads": 1}))
    assert main(["status", str(named)]) == 0
    assert_safe(screen.getvalue().replace("\n", ""))
    assert main(["status", str(tmp_path / HOSTILE["link"].replace("/", ""))]) == 2
    (tmp_path / "bad.json").write_text(printable({ALL: 1}))
    assert main(["strips", "show", str(tmp_path / "bad.json")]) == 2
    error = capsys.readouterr().err
    assert "statewise: " in error
    assert_safe(error.replace("\n", ""))
