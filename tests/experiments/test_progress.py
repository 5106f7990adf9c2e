"""What a terminal of a given width shows while a run trains."""

import io
import re
import subprocess
import sys

import pytest
from doubles import SMALL_RUN
from rich.console import Console

from statewise.config.recipes import recipe_text
from statewise.experiments import progress
from statewise.experiments.progress import Bars, Display, record_line
from statewise.model.recipes import read_recipe
from statewise.run import Run

pytestmark = pytest.mark.usefixtures("forked")

PARTS = {"next_token": 1.37091, "latent": 0.18192, "kl": 0.55293}
TRAIN = {
    **{"kind": "train", "step": 12345, "loss": 2.10582, **PARTS, "gradient_norm": 3.78662, "learning_rate": 1e-3},
    **{"epoch": 0.0, "tokens_per_second": 1234567.0, "seconds": 100.0, "flops_per_second": 1e12, "mfu": 0.4321},
}
EVALUATION = {
    "kind": "evaluation",
    "step": 12345,
    "path_accuracy": 0.98765,
    "branch_accuracy": 0.12345,
    "loss": 2.20931,
    "perplexity": 1234567.8912,
    "token_accuracy": 0.54321,
    "seconds": 100.0,
}


@pytest.fixture(params=[80, 100])
def shown(request, tmp_path, monkeypatch):
    """(display, width, function that gives the lines on the terminal)."""
    terminal = Console(
        file=io.StringIO(),
        width=request.param,
        height=24,
        force_terminal=True,
        color_system=None,
        highlight=False,
        soft_wrap=True,
        markup=False,
        emoji=False,
    )
    clock = iter(range(10**6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    display = Display()
    display.console = terminal
    recipe = read_recipe(recipe_text("path-star-small"), ["--trainer.steps=1000000", "--objective=next_latent"])
    environment = {"device": "cpu", "precision": "bf16", "threads": 2, "steps": 1000000}
    run = Run.create(tmp_path / "run", recipe.as_dict(), {}, environment, overwrite=False)

    def lines():
        with terminal.capture() as capture:
            terminal.print(display._now())
        return capture.get().rstrip("\n").split("\n")

    display.begin(run, recipe, 12340)
    display.live.stop()
    return display, request.param, lines


def test_step_pace_and_time_left_are_there_from_the_first_step(shown):
    display, width, lines = shown
    assert lines()[0].startswith("step 12,340/1,000,000 ")
    display.step(12341)
    (line,) = lines()
    assert len(line) <= width
    assert re.fullmatch(r"step 12,341/1,000,000 [ ━╸╺]+ 1.0 s/step  274:20:59 left", line.rstrip())


def test_nothing_is_cut_and_no_number_broken(shown):
    display, width, lines = shown
    display.step(12345)
    display.record(TRAIN)
    first, *others = lines()
    assert first.startswith("step 12,345/1,000,000  ")
    assert first.rstrip().endswith(" left")
    assert max(map(len, [first, *others])) <= width
    told = [text for line in others for text in line.strip().split("  ")]
    assert told == [
        "loss 2.1058",
        "next_token 1.3709",
        "latent 0.1819",
        "kl 0.5529",
        "gradient_norm 3.7866",
        "1,234,567 tokens/s",
        "MFU 43.2%",
    ]


def test_lines_that_stay_are_broken_between_their_numbers(shown):
    display, width, _ = shown
    with display.console.capture() as capture:
        display.record(EVALUATION)
        display.note(
            "the warm-up of 1,000,000 steps lasts for all 1,000,000 steps of training: it never ends, 1,000,000"
        )
    lines = capture.get().rstrip("\n").split("\n")
    assert len(lines) > 2
    assert max(map(len, lines)) <= width
    assert "perplexity 1234567.8912" in " ".join(lines)
    assert " ".join(lines).count("1,000,000") == 3


def test_a_loss_of_one_part_is_told_once():
    one = {key: value for key, value in TRAIN.items() if key not in PARTS} | {"next_token": TRAIN["loss"]}
    assert "next_token" not in record_line(one, 10**6)
    assert "loss 2.1058  gradient_norm" in record_line(one, 10**6)
    assert "next_token 1.3709  latent 0.1819" in record_line(TRAIN, 10**6)
    weighted = {**one, "next_token": 2 * TRAIN["loss"]}
    assert "next_token 4.2116" in record_line(weighted, 10**6)


def test_training_goes_on_when_nobody_reads_its_output(tmp_path):
    """It ended without a word, and without a checkpoint."""
    words = ["path-star-small", *SMALL_RUN, "--trainer.steps=20", "--trainer.log_every=2", "--trainer.threads=1"]
    words += ["--task.held_out_graphs=40"]
    command = [sys.executable, "-m", "statewise", "train", *words, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("recipe path-star-small into")
    process.stdout.close()  # as `| head -1` does
    assert (process.stderr.read(), process.wait()) == ("", 0)
    assert Run(tmp_path / "run").complete()


def test_each_of_several_works_has_a_bar_that_says_how_far_it_is():
    bars = Bars("steps")
    bars.console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
    with bars:
        for name, done, total in (("first", 0, 0), ("second", 0, 0), ("first", 250, 1000), ("third", 7, None)):
            bars.show(name, done, total)
    drawn = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", bars.console.file.getvalue()).replace("\r", "\n").split("\n")
    first, second, third = [line.rstrip() for line in drawn if line.strip()][-3:]
    assert re.fullmatch(r"first +[━╸╺ ]+ 250/1,000 steps +\S+", first)
    assert re.fullmatch(r"second +[━ ]+ waiting +\S+", second)
    assert re.fullmatch(r"third +━+ 7 steps", third)
    assert max(map(len, (first, second, third))) <= 80


@pytest.mark.parametrize("colour", ["", "1"])
def test_without_a_terminal_each_tenth_of_a_work_has_a_line(capsys, monkeypatch, colour):
    monkeypatch.setenv("FORCE_COLOR", colour)
    with Bars("steps") as bars:
        for done in (0, 99, 100, 110, 250, 1000):
            bars.show("first", done, 1000)
            bars.show("second", 0, 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"first: {done} of 1,000 steps" for done in ("100", "250", "1,000")]
