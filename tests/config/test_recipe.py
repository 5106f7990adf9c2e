import dataclasses
import json
import operator

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

import statewise
from statewise.analysis import ANALYSES
from statewise.backbones.gpt import GPTConfig
from statewise.config.field_help import Declared, declared_fields
from statewise.config.recipe import field_help, field_names, parse
from statewise.config.recipes import recipe_names, recipe_text
from statewise.config.trainer import TrainerConfig, token_count
from statewise.model.building import TABLES
from statewise.model.recipes import read_recipe
from statewise.objectives import OBJECTIVES
from statewise.runtime.yaml_files import read_yaml

BASE = {"task": "path_star", "backbone": "gpt", "objective": "next_token"}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_parses_and_round_trips(name):
    recipe = read_recipe(recipe_text(name))
    assert parse(recipe.as_dict(), [], TABLES) == recipe
    assert recipe_text(name).startswith("# ")
    assert "statewise train" in recipe_text(name)


def test_a_recipe_may_rest_on_another():
    text = "base: two-stream-xs\nbackbone: {layers: 12}\ntrainer: {clip: 3.0}\nseed: 7\n"
    below, recipe = read_recipe(recipe_text("two-stream-xs")), read_recipe(text)
    assert recipe.backbone.config == dataclasses.replace(below.backbone.config, layers=12)
    assert recipe.trainer == dataclasses.replace(below.trainer, clip=3.0)
    assert (recipe.task, recipe.objective, recipe.seed) == (below.task, below.objective, 7)
    assert read_recipe(text, ["--backbone.layers=2"]).backbone.config.layers == 2
    other = read_recipe("base: two-stream-xs\nbackbone: {name: gpt, layers: 3}\n")
    assert other.backbone.config == GPTConfig(layers=3)  # nothing of another part's fields


def test_a_base_must_be_a_recipe():
    with pytest.raises(ValueError, match="unknown recipe 'two-stream-xxs': did you mean"):
        read_recipe("base: two-stream-xxs\n")
    with pytest.raises(ValueError, match=r"mine.yaml: base is the name of a recipe, not \[1\]"):
        read_recipe("base: [1]\n", source="mine.yaml")


@given(
    st.fixed_dictionaries(
        {
            "steps": st.integers(1, 10**6),
            "learning_rate": st.floats(1e-8, 10),
            "compile": st.booleans(),
            "clip": st.floats(0, 5),
            "threads": st.none() | st.integers(1, 64),
            "tokens": st.none() | st.integers(1, 10**12) | st.sampled_from(["300k", "1.5B"]),
            "schedule": st.sampled_from(["linear", "cosine"]),
        }
    )
)
@settings(deadline=None, max_examples=30)
@example({"learning_rate": 1e-08, "tokens": "300k", "threads": None, "clip": 0.0})
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


def test_keywords_name_parts_and_fields():
    given = {
        "objective": {"name": "next_latent", "horizon": 2},
        "backbone": {"width": 32, "heads": 2},
        "task.nodes": 30,
        "trainer": {"betas": (0.8, 0.9)},
        "seed": 7,
        "steps": 20,
        "device": "cpu",
        "tokens": None,
        "keep": [0, "log:5"],
        "stop_when_solved": True,
    }
    recipe = statewise.build("path-star-small", "--backbone.layers=1", **given).recipe
    assert (recipe.objective.name, recipe.objective.config.horizon) == ("next_latent", 2)
    assert (recipe.backbone.config.width, recipe.backbone.config.layers) == (32, 1)
    assert (recipe.task.config.nodes, recipe.seed) == (30, 7)
    trainer = recipe.trainer
    assert (trainer.steps, trainer.device, trainer.tokens, trainer.betas) == (20, "cpu", None, (0.8, 0.9))
    assert (trainer.keep, trainer.stop_when_solved) == ([0, "log:5"], True)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"objectve": "next_latent"}, r"unknown keyword 'objectve': did you mean objective"),
        ({"ovewrite": True}, r"unknown keyword 'ovewrite': did you mean overwrite"),
        ({"step": 20}, r"did you mean steps"),
        ({"width": 64}, r'other fields go with their part, as in backbone=\{"width": 64\}'),
        ({"backbone": {"widht": 64}}, r"did you mean --backbone.width"),
        ({"backbone.widht": 64}, r"did you mean --backbone.width"),
        ({"steps": 1.5}, r"trainer.steps: expected a whole number, not"),
        ({"steps": object()}, r"is not plain data"),
        ({"steps": 20, "trainer": {"tokens": "1M"}}, r"give --trainer.steps or --trainer.tokens, not both"),
        ({"objective": "next_latnt"}, r"did you mean next_latent"),
    ],
)
def test_keywords_that_are_wrong_are_answered_with_what_is_right(keywords, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        statewise.train("path-star-small", out=tmp_path / "run", **keywords)
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_directory_gets_a_new_one_of_its_recipes_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {"backbone": {"width": 16, "heads": 2, "layers": 1}, "batch_size": 8, "steps": 2, "evaluate_num": 8}
    folders = [statewise.train("path-star-small", report_num=8, **small).folder for _ in range(3)]
    assert [str(folder) for folder in folders] == [f"runs/path-star-small{end}" for end in ("", "-2", "-3")]
    assert statewise.load(folders[1]).checkpoint.step == 2


def test_a_flag_that_names_another_part_drops_the_fields_of_the_old_one():
    base = {**BASE, "objective": {"name": "next_latent", "horizon": 3}}
    assert parse(base, [], TABLES).objective.config.horizon == 3
    assert parse(base, ["--objective=next_token"], TABLES).objective.name == "next_token"


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_cell_may_stand_for_the_recurrent_backbone_with_it(cell):
    text = yaml.safe_dump(BASE | {"backbone": {"name": "recurrent", "width": 24, "cell": "gru"}})
    for flags, width in ([f"--backbone={cell}"], 24), ([f"--backbone={cell}", "--backbone.width=8"], 8):
        read = read_recipe(text, flags).backbone
        assert (read.name, read.config.cell, read.config.width) == ("recurrent", cell, width)
    assert read_recipe(yaml.safe_dump(BASE), [f"--backbone={cell}"]).backbone.config.cell == cell
    with pytest.raises(ValueError, match="unknown option '--backbone\\.heads'"):
        read_recipe(text, [f"--backbone={cell}", "--backbone.heads=2"])


@pytest.mark.parametrize(
    ("base", "flags", "message"),
    [
        ({**BASE, "task": "path_stra"}, [], "unknown task 'path_stra': did you mean path_star"),
        (BASE, ["--objective=next_lataent"], "unknown objective 'next_lataent': did you mean next_latent"),
        ({**BASE, "trainer": {"step": 3}}, [], "my.yaml: unknown key 'trainer.step': did you mean trainer.steps"),
        ({**BASE, "traner": {"steps": 3}}, [], "my.yaml: unknown key 'traner': did you mean trainer"),
        ({**BASE, "trainer": 3}, [], "my.yaml: trainer must be keys"),
        (BASE, ["--task.lenght=4"], "unknown option '--task.lenght': did you mean --task.length"),
        (BASE, ["--steps=4"], r"unknown option '--steps': did you mean --trainer.steps\?$"),
        (BASE, ["--width=4"], r"unknown option '--width': did you mean --backbone.width\?$"),
        (BASE, ["--trainer.steps=soon"], "trainer.steps: expected a whole number, not 'soon'"),
        (BASE, ["--trainer.precision=fp8"], "trainer.precision: expected one of"),
        (BASE, ["--trainer.steps=0"], "trainer.steps must be at least 1"),
        (BASE, ["--trainer.batch_size=10", "--trainer.accumulate=3"], "choose a multiple of 3"),
        (BASE, ["--trainer.learning_rate=-1"], "learning_rate must be above 0"),
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
    with pytest.raises(ValueError, match=r"must be keys with values, not \["):
        read_recipe("- a\n- b\n")


def test_help_explains_every_field():
    text = help_of({**BASE, "objective": "next_latent"})
    for field in ("--task.degree", "--backbone.width", "--backbone.tied", "--objective.horizon", "--trainer.steps"):
        following = text.partition(field)[2].splitlines()[1]
        assert len(following.strip()) > 10, field


def help_of(base, *flags):
    return field_help(base, flags, lambda kind, name: TABLES[kind].target(name))


def test_help_shows_the_values_of_recipe_and_flags():
    base = {**BASE, "objective": {"name": "next_latent", "horizon": 3}, "trainer": {"tokens": "1M"}}
    text = help_of(base, "--backbone.width=48", "--trainer.steps=7", "--seed=5")
    for line in (
        "  --objective.horizon 3",
        "  --backbone.width 48",
        "  --trainer.steps 7",
        "  --trainer.tokens null",
        "  --trainer.betas [0.9, 0.95]",
        "  --seed 5",
        "objective: next_latent",
    ):
        assert f"{line}\n" in text, line
    with pytest.raises(ValueError, match=r"did you mean --backbone.width"):
        help_of(base, "--backbone.widht=48")
    with pytest.raises(ValueError, match=r"recipe: unknown key 'trainer.step'"):
        help_of({**base, "trainer": {"step": 1}})


@pytest.mark.parametrize("table", [*TABLES.values(), ANALYSES], ids=lambda table: table.kind)
def test_source_tells_the_fields_that_classes_have(table):
    for name in table:
        declared = declared_fields(table.target(name))
        assert list(declared) == list(field_names(table[name].Config))
        made = table[name].Config()
        for field, found in declared.items():
            assert found.default == operator.attrgetter(field)(made), (name, field)
            assert len(found.text) > 10, (name, field)


def test_source_of_other_packages_is_told_or_refused(tmp_path, monkeypatch):
    (tmp_path / "strange_part.py").write_text(
        "import dataclasses\nfrom statewise.objectives.next_latent import NextLatent as Parent\n"
        "class Child(Parent): pass\n"
        "class Nested:\n    @dataclasses.dataclass\n    class Config:\n        depth: int\n        'How deep.'\n"
        "class Made:\n    Config = dataclasses.make_dataclass('Config', ['depth'])\n"
        "raise RuntimeError('imported')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert declared_fields("strange_part:Child") == declared_fields(OBJECTIVES.target("next_latent"))
    assert declared_fields("strange_part:Nested") == {"depth": Declared(None, "How deep.")}
    for target in ("strange_part:Made", "strange_part:None_such", "no_such_part:Thing"):
        with pytest.raises(ValueError, match=f"the fields of {target} cannot be read from its source"):
            declared_fields(target)


def test_impossible_shares_are_refused():
    with pytest.raises(ValueError, match="decay_share must be at least 0 and at most 1"):
        TrainerConfig(decay_share=1.5)


def test_the_field_decides_what_a_text_means():
    base = {"task": "path_star", "backbone": "gpt", "objective": "next_token"}
    given = read_yaml("trainer: {steps: 010, compile: no}", "x.yaml")
    trainer = parse({**base, **given}, [], TABLES, "x.yaml").trainer
    assert (trainer.steps, trainer.compile) == (10, False)


@pytest.mark.parametrize("flag", ["trainer.steps=1:30", "trainer.learning_rate=1:30.5", "seed=1:30"])
def test_numbers_to_the_base_of_60_are_refused(flag):
    base = {"task": "path_star", "backbone": "gpt", "objective": "next_token"}
    key, _, value = flag.partition("=")
    with pytest.raises(ValueError, match=f"^{key}: expected a .*number, not '{value}'"):
        parse(base, [f"--{flag}"], TABLES)
    group, _, field = key.rpartition(".")
    own = read_yaml(f"{group}: {{{field}: {value}}}" if group else f"{field}: {value}", "x.yaml")
    with pytest.raises(ValueError, match=rf"^x\.yaml: {key}: expected a .*number, not '{value}'"):
        parse({**base, **own}, [], TABLES, "x.yaml")


@pytest.mark.parametrize("key", ["1: 2", "true: x", "1: {a: 2}", "null: {a: 2}"])
def test_keys_that_are_no_text_are_refused(key):
    given = read_yaml(f"task: path_star\nbackbone: gpt\nobjective: next_token\n{key}\n", "x.yaml")
    with pytest.raises(ValueError, match=r"x\.yaml: keys must be text, not .* put the key in quotes"):
        parse(given, [], TABLES, "x.yaml")


@pytest.mark.parametrize("text", ["#", "##", "#,", "~", "---", "# a comment", "-", "' '"])
def test_a_text_that_yaml_takes_for_nothing_stays_a_text(text):
    flags = [f"--task.separator={text}", "--task.path=x"]
    assert read_recipe(recipe_text("sequences-small"), flags).task.config.separator == text
    fields = {"base": "sequences-small", "task": {"separator": text, "path": "x"}}
    assert read_recipe(json.dumps(fields)).task.config.separator == text
    assert read_recipe(recipe_text("sequences-small"), ["--task.order=null", "--task.path=x"]).task.config.order is None


def test_no_field_is_an_empty_mapping():
    with pytest.raises(ValueError, match="width"):
        read_recipe(json.dumps({"base": "path-star-small", "backbone": {"width": {}}}))


def test_steps_over_a_recipe_with_tokens_replace_them():
    text = json.dumps({"base": "text-small", "trainer": {"steps": 5, "warmup_steps": 2}, "task": {"path": "x"}})
    trainer = read_recipe(text).trainer
    assert (trainer.steps, trainer.tokens, trainer.warmup_steps, trainer.warmup_tokens) == (5, None, 2, None)
    both = read_recipe(
        json.dumps({"base": "text-small", "trainer": {"steps": 5, "tokens": "3k"}, "task": {"path": "x"}})
    )
    assert both.trainer.tokens == "3k"
