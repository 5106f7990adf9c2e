import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.config import TrainerConfig, field_help, parse, token_count
from statewise.experiment import TABLES, read_recipe
from statewise.recipes import recipe_names, recipe_text

BASE = {"task": "path_star", "backbone": "gpt", "objective": "next_token"}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_parses_and_round_trips(name):
    recipe = read_recipe(recipe_text(name))
    assert parse(recipe.as_dict(), [], TABLES) == recipe
    assert recipe_text(name).startswith("# ")
    assert "statewise train" in recipe_text(name)


@given(
    st.fixed_dictionaries({
        "steps": st.integers(1, 10**6), "learning_rate": st.floats(1e-8, 10), "compile": st.booleans(),
        "clip": st.floats(0, 5), "threads": st.none() | st.integers(1, 64),
        "tokens": st.none() | st.integers(1, 10**12) | st.sampled_from(["300k", "1.5B"]),
        "schedule": st.sampled_from(["linear", "cosine"]),
    })
)  # fmt: skip
@settings(deadline=None)
def test_every_value_round_trips(fields):
    recipe = parse({**BASE, "trainer": fields}, [], TABLES)
    assert {name: getattr(recipe.trainer, name) for name in fields} == fields
    assert parse(recipe.as_dict(), [], TABLES) == recipe


def test_flags_win_over_the_file():
    base = {**BASE, "trainer": {"steps": 5, "learning_rate": "1e-4"}}
    recipe = parse(base, ["--trainer.steps=7", "--seed=3", "--task.nodes=60"], TABLES)
    assert (recipe.trainer.steps, recipe.trainer.learning_rate, recipe.seed) == (7, 1e-4, 3)
    assert recipe.task.config.nodes == 60


def test_a_length_by_flag_replaces_that_of_the_file_in_either_unit():
    in_tokens = {**BASE, "trainer": {"tokens": "2B", "warmup_tokens": "50M", "steps": 5}}

    def lengths(*flags, base=in_tokens):
        trainer = parse(base, flags, TABLES).trainer
        return trainer.tokens, trainer.steps, trainer.warmup_tokens, trainer.warmup_steps

    assert lengths() == ("2B", 5, "50M", 100)
    assert lengths("--trainer.steps=7") == (None, 7, "50M", 100)
    assert lengths("--trainer.warmup_steps=7") == ("2B", 5, None, 7)
    assert lengths("--trainer.tokens=300k", base={**BASE, "trainer": {"steps": 5}}) == ("300k", 5, None, 100)
    assert lengths("--trainer.tokens=null", "--trainer.steps=7") == (None, 7, "50M", 100)


@pytest.mark.parametrize(
    ("given", "count"),
    [(12, 12), ("12", 12), ("300k", 300_000), ("1.5M", 1_500_000), ("2B", 2 * 10**9), ("1_000", 1000), ("0.1B", 10**8)],
)
def test_numbers_of_tokens_are_read_as_written(given, count):
    assert token_count(given) == count


def test_a_flag_that_names_another_part_drops_the_fields_of_the_old_one():
    base = {**BASE, "objective": {"name": "next_latent", "horizon": 3}}
    assert parse(base, [], TABLES).objective.config.horizon == 3
    assert parse(base, ["--objective=next_token"], TABLES).objective.name == "next_token"


@pytest.mark.parametrize(
    ("base", "flags", "message"),
    [
        ({**BASE, "task": "path_stra"}, [], "unknown task 'path_stra': did you mean path_star"),
        (BASE, ["--objective=next_lataent"], "unknown objective 'next_lataent': did you mean next_latent"),
        ({**BASE, "trainer": {"step": 3}}, [], "my.yaml: unknown key 'trainer.step': did you mean trainer.steps"),
        ({**BASE, "traner": {"steps": 3}}, [], "my.yaml: unknown key 'traner': did you mean trainer"),
        ({**BASE, "trainer": 3}, [], "my.yaml: trainer must hold keys"),
        (BASE, ["--task.lenght=4"], "unknown option '--task.lenght': did you mean --task.length"),
        (BASE, ["--trainer.steps=soon"], "trainer.steps: expected int, not 'soon'"),
        (BASE, ["--trainer.precision=fp8"], "trainer.precision: expected one of"),
        (BASE, ["--trainer.steps=0"], "trainer.steps must be at least 1"),
        (BASE, ["--trainer.batch_size=10", "--trainer.accumulate=3"], "choose a multiple of 3"),
        (BASE, ["--trainer.learning_rate=-1"], "learning_rate must be positive"),
        (BASE, ["--trainer.tokens=soon"], "trainer.tokens: expected a number of tokens such as 300k, 50M or 2B, not"),
        (BASE, ["--trainer.tokens=2b"], "trainer.tokens: expected a number of tokens"),
        (BASE, ["--trainer.tokens=1.5"], "trainer.tokens: expected a whole number"),
        (BASE, ["--trainer.tokens=0"], "trainer.tokens must be at least 1"),
        (BASE, ["--trainer.warmup_tokens=-1M"], "trainer.warmup_tokens must be at least 0"),
        (BASE, ["--trainer.tokens=1M", "--trainer.steps=9"], "give --trainer.steps or --trainer.tokens, not both"),
        (BASE, ["--trainer.steps"], "option --trainer.steps needs a value"),
        ({"task": "path_star", "backbone": "gpt"}, [], "no objective is named"),
    ],
)
def test_mistakes_are_named(base, flags, message):
    with pytest.raises(ValueError, match=message):
        parse(base, flags, TABLES, source="my.yaml")


def test_broken_yaml_is_named_with_its_line():
    with pytest.raises(ValueError, match=r"my\.yaml:2: not YAML"):
        read_recipe("task: path_star\n  nodes: [3", source="my.yaml")
    with pytest.raises(ValueError, match="must hold keys, not list"):
        read_recipe("- a\n- b\n")


def test_help_explains_every_field():
    text = field_help({**BASE, "objective": "next_latent"}, [], TABLES)
    for field in ("--task.degree", "--backbone.width", "--backbone.tied", "--objective.horizon", "--trainer.steps"):
        following = text.partition(field)[2].splitlines()[1]
        assert len(following.strip()) > 10, field


def test_impossible_shares_are_refused():
    with pytest.raises(ValueError, match="decay_share must lie between 0 and 1"):
        TrainerConfig(decay_share=1.5)
