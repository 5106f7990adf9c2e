"""Which runs are seeds of one experiment: by their recipes, their data and their tokenizers."""

import json

import pytest
from doubles import make_run

from statewise.cli import main
from statewise.model.recipes import declared_defaults
from statewise.reporting.grouping import compare
from statewise.run import Run


def labels(folders, **options):
    return [group.label for group in compare(folders, **options).groups]


@pytest.mark.parametrize(
    ("one", "other"), [({}, {"clip": None}), ({"clip": 1}, {"clip": 1.0}), ({"betas": [0.9, 1]}, {"betas": [0.9, 1.0]})]
)
def test_recipes_that_say_the_same_are_one_group(tmp_path, one, other):
    assert labels([make_run(tmp_path / "a", 1, 0.5, **one), make_run(tmp_path / "b", 2, 0.5, **other)]) == [
        "next-token"
    ]


def test_a_field_that_was_added_later_has_its_default(tmp_path, capsys):
    clip, layers = declared_defaults("trainer", "")["clip"], declared_defaults("backbone", "gpt")["layers"]
    folders = [
        make_run(tmp_path / "a", 1, 0.5),
        make_run(tmp_path / "b", 2, 0.5, clip=clip),
        make_run(tmp_path / "c", 3, 0.5, backbone={"name": "gpt", "layers": layers}),
        make_run(tmp_path / "d", 1, 0.5, clip=clip + 1),
        make_run(tmp_path / "e", 1, 0.5, "elsewhere:Mine"),
    ]
    assert main(["compare", *map(str, folders), "--out", str(tmp_path / "report"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [group["label"] for group in found["groups"]] == [
        f"next-token (gradient clipping {clip:g})",
        f"next-token (gradient clipping {clip + 1:g})",
        "elsewhere:Mine",
    ]
    assert found["groups"][0]["runs"] == [str(folder) for folder in folders[:3]]
    assert len(labels(folders)) == 5, "without defaults, nothing is known of them"


def test_defaults_are_read_of_fields_within_fields():
    from statewise.reporting.members import completed

    known = {"a": 1, "inner.b": 2, "inner.c": 3}
    recipe = {"task": {"name": "x", "a": 5, "inner": {"b": 6}}, "seed": 1}
    whole = completed(recipe, lambda part, name: known)
    assert whole == {"task": {"name": "x", "a": 5, "inner": {"b": 6, "c": 3}}, "seed": 1}
    assert recipe["task"]["inner"] == {"b": 6}


def test_no_two_groups_have_one_label(tmp_path):
    rates = [0.001, 0.0010000001, 0.002]
    made = labels([make_run(tmp_path / str(rate), 1, 0.5, learning_rate=rate) for rate in rates])
    assert len(set(made)) == 3
    assert len(set(labels([make_run(tmp_path / f"x{on}", 1, 0.5, compile=on) for on in (1, True)]))) == 2


LOSS = {"metric": "loss", "higher_is_better": False, "solved_at": None}


def of_data(folder, seed, objective="next_token", tokenizer="t", path="/a", headline=None, **identity):
    """A run on data, of which it keeps checksums."""
    make_run(folder, seed, 0.5 + seed / 100, objective)
    recipe = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**recipe, "task": {"name": "text", "path": path}}))
    (folder / "data.json").write_text(json.dumps({"tokenizer": tokenizer, **identity}))
    run = Run(folder)
    report = {**run.report("evaluation"), "headline": headline or LOSS}
    report["metrics"]["loss"] = 0.4 + seed / 10
    run.write_report("evaluation", report)
    return folder


def notes(found, about):
    return [note for note in found.notes() if about in note]


def test_seeds_on_different_data_are_refused(tmp_path):
    same = [of_data(tmp_path / f"a{seed}", seed, data="x") for seed in (1, 2)]
    assert compare(same).unlike_data == []
    for name, identity in (("data", {"data": "y"}), ("tokenizer", {"data": "x", "tokenizer": "u"})):
        other = of_data(tmp_path / name, 3, **identity)
        with pytest.raises(ValueError, match=f"same recipe, but their {name} differ, so"):
            compare([*same, other])
    unknown = of_data(tmp_path / "unknown", 3, tokenizer="t")
    assert len(compare([*same, unknown]).groups) == 1, "what a run does not say is no difference"


def test_a_damaged_identity_is_named(tmp_path):
    folder = make_run(tmp_path / "run", 1, 0.5)
    (folder / "data.json").write_text('{"data": 1}')
    with pytest.raises(ValueError, match=r"data\.json: data must be text"):
        compare([folder])


def test_groups_on_different_data_are_told(tmp_path):
    same = [of_data(tmp_path / f"a{seed}", seed, data="x") for seed in (1, 2)]
    moved = of_data(tmp_path / "moved", 1, "next_latent", path="/b", data="x")
    assert not notes(compare([*same, moved]), "held-out sets")
    other = of_data(tmp_path / "other", 1, "next_latent", data="y")
    assert "(data)" in notes(compare([*same, other]), "held-out sets need not be the same")[0]
    unknown = of_data(tmp_path / "unknown", 1, "next_latent", path="/b")
    assert "(task.path)" in notes(compare([*same, unknown]), "held-out sets")[0]


def test_losses_per_token_of_different_tokenizers_are_not_tested(tmp_path):
    one = [of_data(tmp_path / f"a{seed}", seed) for seed in (1, 2)]
    other = [of_data(tmp_path / f"b{seed}", seed, "next_latent", tokenizer="u") for seed in (1, 2)]
    found = compare([*one, *other])
    assert notes(found, "loss is per token, and the tokenizers differ")
    assert "p (Welch)" not in found.table()[0]
    assert found.groups[1].metrics["loss"].p_value is None
    assert found.groups[1].metrics["path_accuracy"].p_value is not None
    for options in ({"better": one[0]}, {"margin": 0.1}):
        with pytest.raises(ValueError, match="loss_per_word"):
            compare([*one, *other], **options)
    for folder in (*one, *other):
        headline = {"metric": "path_accuracy", "higher_is_better": True, "solved_at": None}
        Run(folder).write_report("evaluation", {**Run(folder).report("evaluation"), "headline": headline})
    assert len(compare([*one, *other], better=one[0]).claims) == 1
    assert "p (Welch)" in compare([*one, *other]).table()[0]


def test_seeds_trained_on_different_machines_are_told(tmp_path):
    folders = [make_run(tmp_path / str(seed), seed, 0.5) for seed in (1, 2)]
    assert not notes(compare(folders), "differ in")
    for folder, precision in zip(folders, ("fp32", "bf16")):
        content = {"device": "cpu", "precision": precision, "threads": 1}
        (folder / "environment.json").write_text(json.dumps(content))
    (note,) = notes(compare(folders), "differ in")
    assert note == "The runs of next-token differ in precision: fp32, bf16."
