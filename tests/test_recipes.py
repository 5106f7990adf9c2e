"""The recipes of the papers' sizes, held to what the papers print, and the page that lists all of them."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import statewise
from statewise.analysis.beliefs.geometry import FEW
from statewise.cli import main
from statewise.config.recipes import recipe_names, recipe_text
from statewise.config.trainer import kept_steps
from statewise.model.building import make_objective
from statewise.model.recipes import read_recipe

ROOT = Path(__file__).parent.parent
PATH_STAR = [name for name in recipe_names() if name.startswith("path-star-") and name.endswith("-fixed")]


def built(text, *flags, vocabulary=1000, context=256):
    """The objective of a recipe, of no memory: its task is a stand-in, since some need files."""
    with torch.device("meta"):
        task = SimpleNamespace(vocab=range(vocabulary), context=context)
        return make_objective(read_recipe(text, flags), task)


def count(module, *without):
    return sum(weight.numel() for name, weight in module.named_parameters() if not name.startswith(without))


def trunk(objective):
    return count(objective.backbone, "embedding", "head")


def test_the_papers_models_are_of_the_papers_sizes():
    """Figures printed by Teoh et al. 2026, v4: of all parameters, or of those without embedding and head."""
    text = recipe_text("tinystories")
    flags = ["--objective=next_latent", "--objective.dynamics_factor=1.333"]
    stories = built(text, *flags)
    assert round(count(stories.dynamics) / 1e6, 1) == 8.9
    assert round(trunk(stories) / 1e6) == 57
    assert round((trunk(stories) + count(stories.dynamics)) / 1e6) == 66
    assert stories.dynamics.first.out_features == 2048

    manhattan = built(recipe_text("manhattan"), vocabulary=4579 + 9)
    assert count(manhattan.backbone) == pytest.approx(89e6, rel=0.01)
    assert manhattan.dynamics.first.out_features == 1536

    countdown = built(recipe_text("countdown"), vocabulary=10_006)
    assert countdown.dynamics.first.out_features == 768

    a5 = built(recipe_text("a5"), vocabulary=121)
    assert round(trunk(a5) / 1e6, 2) == 6.43
    assert round(count(a5.dynamics) / 1e6, 2) == 2.62

    pretraining = ["--backbone.layers=22", "--backbone.width=2048", "--backbone.heads=16"]
    pretraining += ["--backbone.expansion=2.6875", "--objective.dynamics_factor=1.6"]
    fineweb = built(recipe_text("manhattan"), *pretraining, vocabulary=50257, context=1024)
    assert round(count(fineweb.backbone) / 1e9, 2) == 1.32
    assert round(count(fineweb) / 1e9, 2) == 1.40


def test_the_lstm_of_the_flip_flop_language_is_the_published_one():
    """Liu et al. 2023: one layer of 128 units, 133 thousand parameters."""
    lstm = built(recipe_text("flip-flop"), vocabulary=5)
    assert round(count(lstm) / 1e3) == 133


def test_runs_of_known_beliefs_keep_what_shows_their_training():
    names = [name for name in recipe_names() if name.startswith(("hmm-", "pomdp-"))]
    assert len(names) == 9
    for name in names:
        trainer = read_recipe(recipe_text(name)).trainer
        steps = set().union(*kept_steps(trainer.keep, trainer.steps))
        assert {0, 1, trainer.steps} <= steps
        assert len(steps) > FEW, "belief-geometry --checkpoints all asks for more of a run with fewer"


@pytest.mark.parametrize("name", PATH_STAR)
def test_path_star_models_are_those_of_the_next_latent_paper(name):
    objective = built(recipe_text(name), vocabulary=104)
    assert objective.dynamics.first.out_features == 384
    blocks = 12 * (4 * 384**2 + 3 * 384 * 1024 + 2 * 384)  # four maps of attention, three of SwiGLU, two norms
    assert trunk(objective) == blocks + 384


@pytest.mark.parametrize(
    ("names", "published"),
    [
        (["manhattan"], (400_000, 256, 1e-4, 0.01, 0, 48, 8, 384, 8, 1.0, 0.1)),
        (["countdown"], (100_000, 1024, 3e-4, 0.1, 1, 12, 12, 768, 1, 2.0, 1.0)),
        (PATH_STAR, (20_000, 512, 5e-4, 0.1, 100, 12, 6, 384, None, 1.0, 1.0)),
        (["tinystories"], (100_000, 256, 3e-4, 0.1, 1, 8, 8, 768, None, 1.0, 1.0)),
        (["a5"], (400_000, 1024, 1e-4, 0.01, 1, 2, 8, 512, 1, 1.0, 0.0)),
    ],
    ids=["manhattan", "countdown", "path-star", "tinystories", "a5"],
)
def test_training_is_that_of_table_5(names, published):
    assert names
    *published, horizon, latent, kl = published
    for name in names:
        recipe = read_recipe(recipe_text(name), ["--objective=next_latent"])
        backbone, objective, trainer = recipe.backbone.config, recipe.objective.config, recipe.trainer
        assert [
            trainer.steps,
            trainer.batch_size,
            trainer.learning_rate,
            trainer.weight_decay,
            trainer.clip,
            backbone.layers,
            backbone.heads,
            backbone.width,
        ] == published, name
        assert (objective.latent_weight, objective.kl_weight) == (latent, kl)
        assert objective.horizon == (horizon if horizon else objective.horizon)
        assert (trainer.betas, trainer.warmup_steps, trainer.decay_share) == ((0.9, 0.95), 0, 0.0)
        assert (backbone.positions, backbone.mlp, backbone.norm) == ("rope", "swiglu", "rms")
        inner = {"a5": 1408}.get(name, backbone.width * 8 // 3)  # of which the printed 6.43 million follow
        assert (backbone.bias, backbone.tied, backbone.hidden_width) == (False, False, inner)


SMALL = {
    "path-star-demo": 96,
    "path-star-small": 96,
    "path-star-g2-4": 64,
    "city-small": 96,
    "countdown-small": 128,
    "stories-small": 192,
    "strips-traces": 96,
}


@pytest.mark.parametrize("name", SMALL)
def test_published_results_of_small_recipes_stay_those_of_the_same_models(name):
    """Widths of the dynamics with which docs/results were measured, before they were given as a factor."""
    objective = built(recipe_text(name), "--objective=next_latent")
    assert objective.dynamics.first.out_features == SMALL[name]


def test_the_page_of_recipes_lists_every_one_once():
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/recipes.md").read_text(), flags=re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(listed) == recipe_names()


def test_a_recipe_is_given_by_name_by_file_or_as_a_run_to_repeat(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("base: path-star-demo\nseed: 3\ntrainer: {steps: 2, batch_size: 4}\n")
    first = statewise.train("mine.yaml", "--task.held_out_graphs=8", backbone={"width": 16, "layers": 1, "heads": 2})
    assert (first.folder, first.step) == (Path("runs/mine"), 2)
    assert statewise.build(Path("mine.yaml")).recipe.seed == 3
    Path("s3").write_text("base: path-star-demo")
    assert statewise.build(Path("s3")).recipe.task.name == "path_star"
    assert statewise.build("s3").recipe.task.name == "automaton"
    again = statewise.build(first.folder, seed=4)
    assert (again.recipe.seed, again.objective.backbone.config.width) == (4, 16)
    assert main(["train", "mine.yaml", "--print_config"]) == 0
    assert "seed: 3" in capsys.readouterr().out
    refused = {
        "mien.yaml": "mien.yaml: No such file",
        "pathstar": "unknown recipe 'pathstar'",
        "runs": "unknown recipe 'runs'",
        "runs/none": "runs/none: No such file",
    }
    for given, message in refused.items():
        assert main(["train", given, "--out", "x"]) == 2
        told = capsys.readouterr().err
        assert message in told, told
