"""A model with its task, asked through functions that take a predictor."""

from types import SimpleNamespace

import pytest
import torch
from doubles import SMALL_RUN

import statewise
from statewise.analysis import make_analysis
from statewise.config.recipes import recipe_text
from statewise.decoding import make_decoder, make_search
from statewise.model.model import new_model
from statewise.model.recipes import read_recipe
from statewise.tasks.base import running_text


@pytest.fixture
def model():
    flags = [*SMALL_RUN, "--task.held_out_graphs=20", "--backbone.dropout=0.5"]
    return new_model(read_recipe(recipe_text("path-star-small"), flags))


def test_asking_gives_the_predictor_in_evaluation_mode(model):
    batch = model.batch([next(iter(model.task.lines(model.task.held_out(1))))])
    model.objective.train()
    with model.asking() as predictor:
        torch.testing.assert_close(predictor.states(batch).state, model.states(batch).state)
    assert not model.objective.training


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_asking_computes_in_the_precision_of_the_run(model, precision):
    model.run = SimpleNamespace(precision=lambda: precision)
    with model.asking():
        assert torch.is_autocast_enabled("cpu") == (precision == "bf16")
    assert not torch.is_autocast_enabled("cpu")


def test_asking_says_who_has_a_capability_that_is_missing(model):
    with pytest.raises(ValueError, match="such tasks are stories and text"), model.asking():
        running_text(model.task)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([], ValueError, "sequences is empty: give at least one sequence"),
        ([""], ValueError, r"sequences\[0\] is empty: give at least one symbol"),
        (
            "3,4|4,5/3,5=",
            TypeError,
            r'sequences must be a list of sequences as text, not one text: write \["3,4\|4,5/3',
        ),
        ([3, 4], TypeError, r"sequences\[0\] must be text, not int 3"),
        (["3,4|4,5/3,5=", None], TypeError, r"sequences\[1\] must be text, not NoneType null"),
        (None, TypeError, "sequences must be a list of sequences as text, not NoneType"),
        (7, TypeError, "sequences must be a list of sequences as text, not int"),
    ],
)
def test_sequences_that_are_no_list_of_text_are_refused(model, given, error, message):
    for ask in (model.states, model.batch, lambda x: model.activations(x, ["*"])):
        with pytest.raises(error, match=message):
            ask(given)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("blocks.*.hook_resid_post", r'names must be a list of activations, not one text: write \["blocks'),
        ([3], r"names\[0\] must be text, not int 3"),
        (None, "names must be a list of activations, not NoneType"),
    ],
)
def test_names_that_are_no_list_of_text_are_refused(model, names, message):
    with pytest.raises(TypeError, match=message):
        model.activations(["1,2|2,3/1,3="], names)


def test_prompts_and_files_of_other_types_are_refused(model):
    with pytest.raises(TypeError, match=r'prompts must be a list of prompts as text, not one text: write \["1,2'):
        model.generate("1,2|2,3/1,3=")
    with pytest.raises(TypeError, match="embed reads a file: give its path, not list; `states` takes sequences"):
        model.embed(["1,2|2,3/1,3="])


def test_a_list_may_be_any_iterable_of_text_with_a_length(model):
    texts = ["1,2|2,3/1,3=", "4,5|5,6/4,6="]
    torch.testing.assert_close(model.states(tuple(texts)).state, model.states(texts).state)


@pytest.mark.parametrize("reverse", [False, True])
def test_beginnings_are_made_where_sequences_have_no_prompt(tmp_path, reverse):
    flags = ["--objective=belief_state", *SMALL_RUN]
    graphs = new_model(read_recipe(recipe_text("path-star-small"), [*flags, "--task.held_out_graphs=20"]))
    with pytest.raises(ValueError, match="the prompt is empty, and sequences of this task begin with one: give it"):
        graphs.generate([""], goal="3", limit=2, reverse=reverse)
    (tmp_path / "letters.txt").write_text("a b c d\nb c d a\nc d a b\n" * 20)
    letters = new_model(
        read_recipe(recipe_text("sequences-small"), [*flags, f"--task.path={tmp_path / 'letters.txt'}"])
    )
    (found,) = letters.generate([""], goal="c d", limit=2, reverse=reverse)
    assert len(found.tokens) == 2


def test_a_decoder_is_given_by_name_or_as_one_made_before(model):
    prompt = model.task.decode(model.task.held_out(1).prompt(0))
    named = model.generate([prompt], "sample", limit=4, seed=3)
    made = model.generate([prompt], make_decoder("sample", seed=3), limit=4)
    assert [one.tokens.tolist() for one in made] == [one.tokens.tolist() for one in named]
    named = model.search(prompt, "beam", limit=4, beams=3)
    made = model.search(prompt, make_search("beam", beams=3), limit=4)
    assert [one.tokens.tolist() for one in made] == [one.tokens.tolist() for one in named]
    with pytest.raises(ValueError, match="seed goes with a name, and this Sample has its fields already"):
        model.generate([prompt], make_decoder("sample"), seed=3)
    with pytest.raises(ValueError, match="positions goes with a name, and this EffectiveRank has its fields already"):
        model.analyze(make_analysis("effective-rank"), positions=3)


def test_the_class_of_models_is_in_the_package(model):
    assert type(model) is statewise.Model
    assert "Model" in dir(statewise)
    with pytest.raises(AttributeError, match="'statewise' has no attribute 'nothing_of_ours'"):
        statewise.nothing_of_ours  # noqa: B018
