"""What the guide shows works: its examples are run as they stand."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from doubles import pack, random_batch, small_stories, spread_weights, tiny_gpt

from statewise.cli import main
from statewise.config import parse
from statewise.experiment import TABLES, Experiment, read_recipe
from statewise.judging.pairs import read_pairs
from statewise.launch import train
from statewise.objectives import OBJECTIVES
from statewise.run import Run
from statewise.tasks import TASKS

ROOT = Path(__file__).parent.parent
TINY = ["--trainer.steps=3", "--trainer.batch_size=8", "--backbone.width=16", "--backbone.layers=1"]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


@pytest.fixture
def added(request, tmp_path, monkeypatch):
    """The page's file as a module, and its row in its table, as the page says."""
    page, table = request.param
    (code,) = blocks(page, "python")
    name, target = re.search(r'^    "(\w+)": \("([\w.:]+)"', (ROOT / page).read_text(), flags=re.MULTILINE).groups()
    path = tmp_path / f"{name}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(target.partition(":")[0], path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(table.rows, name, (target, "from the guide"))
    return name


@pytest.mark.parametrize("added", [("docs/adding-an-objective.md", OBJECTIVES)], indirect=True)
def test_the_objective_of_the_guide_trains_and_holds_the_contract(added, tmp_path):
    flags = [f"--objective={added}", "--objective.weight=0.3", "--task.held_out_graphs=20", *TINY]
    recipe = read_recipe("{task: path_star, backbone: gpt, objective: next_token}", flags)
    assert train(recipe, tmp_path / "run").reason == "steps"
    assert "second" in Run(tmp_path / "run").metrics()[0]
    kind = OBJECTIVES[added]
    objective = kind(kind.Config(), tiny_gpt).double()
    spread_weights(objective)
    batch = random_batch(longest=8)
    for name, part in objective(pack(batch)).parts.items():
        torch.testing.assert_close(part.total, objective(batch).parts[name].total)
        torch.testing.assert_close(part.terms, objective.counts(batch)[name])


@pytest.mark.parametrize("added", [("docs/adding-a-task.md", TASKS)], indirect=True)
def test_the_task_of_the_guide_trains_and_is_scored(added, tmp_path):
    recipe = read_recipe(f"{{task: {added}, backbone: gpt, objective: next_token}}", ["--task.bits=6", *TINY])
    assert train(recipe, tmp_path / "run").reason == "steps"
    run = Experiment.load(tmp_path / "run")
    assert 0 <= run.evaluate().metrics["accuracy"] <= 1
    examples = run.task.held_out()
    for row in range(len(examples)):
        for place in range(1, run.task.context):
            assert examples.tokens[row, place] in run.task.legal(examples.tokens[row, :place])
    assert (run.task.labels(examples)[:, 5] == examples.tokens[:, 7] - 3).all()


def test_the_readme_shows_its_library_in_under_15_lines_that_run(tmp_path, monkeypatch, capsys):
    (code,) = blocks("README.md", "python")
    assert len(code.splitlines()) < 15
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert "torch.Size([1, 21, 96])" in capsys.readouterr().out


def test_the_guide_tells_stories_towards_their_goals(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stories.txt").write_text(small_stories(60))
    small = ["--task.vocabulary=300", "--task.context=64", "--task.prompt_length=8", "--task.goal_length=10"]
    train_small = ["train", "stories-small", "--task.path=stories.txt", *small, *TINY, "--backbone.heads=2"]
    for name, more in {
        "middle": ["--task.encoding=fill_in_the_middle"],
        "bst": ["--objective=belief_state", "--objective.head_width=16"],
        "plain": [],
    }.items():
        assert main([*train_small, *more, "--out", f"runs/{name}"]) == 0
        out = capsys.readouterr().out
        assert re.search(r"^stories: \d+ to train on, \d+ held out; dropped: \d+ of more than 62 tokens$", out, re.M)
    report = Run(tmp_path / "runs" / "middle").report("evaluation")
    assert set(report["metrics"]) == {"loss", "perplexity", "token_accuracy"}  # nothing was decoded
    assert main(["evaluate", "runs/middle", "--data", "stories.txt"]) == 0
    assert "stories.txt: dropped: " in capsys.readouterr().err
    for line in re.findall(r"^statewise (generate .*)$", (ROOT / "docs/stories.md").read_text(), flags=re.MULTILINE):
        assert main([*shlex.split(line), "--limit", "3"]) == 0, line
    for line in re.findall(r"^statewise (fill .*)$", (ROOT / "docs/stories.md").read_text(), flags=re.MULTILINE):
        few = {"--rollouts": "2", "--beams": "2", "--num": "2"}
        words = shlex.split(line)
        assert main([few.get(before, word) for before, word in zip(["", *words], words)]) == 0, line
    assert len(read_pairs(tmp_path / "bst.jsonl", tmp_path / "fim.jsonl")) == 2


def test_the_recipe_of_the_guide_parses():
    import yaml

    (recipe,) = blocks("docs/recipes.md", "yaml")
    assert parse(yaml.safe_load(recipe), [], TABLES).trainer.learning_rate == 5e-4


def commands():
    pages = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]
    for page in pages:
        for line in re.findall(
            r"^ *(statewise train [^`\n#]*--[^`\n#]*)", (ROOT / page).read_text(), flags=re.MULTILINE
        ):
            yield pytest.param(line, id=f"{page}: {line[:60]}")


@pytest.mark.parametrize("line", list(commands()))
def test_every_train_command_of_the_guide_parses(line, tmp_path, monkeypatch, capsys):
    words = line.split()[1:]
    if "--resume" in words:
        return
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("a b\nb a\n")
    (tmp_path / "my.yaml").write_text(blocks("docs/recipes.md", "yaml")[0])
    if "two_ahead" not in words:
        assert main([*words, "--print_config"]) == 0, capsys.readouterr().err


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
