import pytest
from doubles import make_run

from statewise.reporting.grouping import compare
from statewise.reporting.labels import setting_words

pytestmark = pytest.mark.usefixtures("rendered")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("objective.kl_weight", 0.1, "KL weight 0.1"),
        ("trainer.clip", 0, "without gradient clipping"),
        ("trainer.clip", 1.0, "gradient clipping 1"),
        ("trainer.tokens", None, "tokens not set"),
        ("trainer.betas", [0.9, 0.95], "AdamW betas 0.9, 0.95"),
        ("trainer.learning_rate", 3e-4, "learning rate 0.0003"),
        ("backbone.tied", False, "without tied head"),
        ("objective.stop_gradient", True, "with stop-gradient"),
        ("backbone", "two_stream", "backbone two stream"),
        ("backbone", "mine:Some_model", "backbone mine:Some_model"),
        ("objective.pairs", "any_prefix", "pairs any prefix"),
        ("task.held_out_graphs", 20, "held out graphs 20"),
        ("task.path", "my_file", "path my_file"),
        ("backbone.model", "my_tiny_gpt2", "model my_tiny_gpt2"),
    ],
)
def test_settings_are_told_in_words(key, value, words):
    assert setting_words(key, value) == words


def test_fields_that_only_one_backbone_has_tell_apart_those_of_it(tmp_path):
    slots = [{"name": "belief_slots", "width": 8, "slots": count, "chunk": 16} for count in (1, 2)]
    kinds = [{"name": "gpt", "width": 8}, *slots]
    folders = [make_run(tmp_path / str(place), 1, 0.5, backbone=kind) for place, kind in enumerate(kinds)]
    assert [group.label for group in compare(folders).groups] == [
        "next-token (backbone gpt)",
        "next-token (backbone belief slots, slots 1)",
        "next-token (backbone belief slots, slots 2)",
    ]


def test_runs_that_only_a_field_tells_apart_are_told_apart(tmp_path):
    kinds = [{"name": "gpt"}, {"name": "gpt", "width": 8}]
    folders = [make_run(tmp_path / str(place), 1, 0.5, backbone=kind) for place, kind in enumerate(kinds)]
    assert [group.label for group in compare(folders).groups] == ["next-token (width not set)", "next-token (width 8)"]
