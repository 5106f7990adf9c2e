"""Text that transformers' pipelines write from an export is the text that we write."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import json

import pytest
import torch
from doubles import path_star_model, spread_weights
from exported import TEXTS, load, same

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

from statewise.deploy.export.export import export  # noqa: E402
from statewise.model.model import new_model  # noqa: E402
from statewise.model.recipes import read_recipe  # noqa: E402

transformers.logging.disable_progress_bar()


def of_symbols(name, folder, objective="next_token", **fields):
    """A model of a task of symbols."""
    if name == "sequences":
        (folder / "data.txt").write_text("view cart\ncart view cart\nview pay cart\npay cart\n" * 4)
        fields["path"] = str(folder / "data.txt")
        fields["context"] = 12
    recipe = {
        "task": {"name": name, **fields},
        "backbone": {"name": "gpt", "width": 16, "heads": 2, "layers": 2},
        "objective": objective,
    }
    model = new_model(read_recipe(json.dumps(recipe)))
    spread_weights(model.objective)
    return model


def piped(folder):
    """Text for prompts, by a pipeline."""
    pipe = transformers.pipeline("text-generation", str(folder), device="cpu")
    return lambda prompts, **options: [found[0]["generated_text"] for found in pipe(prompts, **options)]


BATCHES = [
    ("sequences", {}, ["view cart", "pay", "view pay cart view"]),
    ("hmm", {"process": "mess3", "length": 12}, ["0 1", "2 2", "1 0"]),  # equally long, since nothing can pad
    ("automaton", {"process": "parity", "length": 12, "held_out_sequences": 20}, ["0 1 1", "1 0 1"]),
    ("strips_traces", {"held_out_traces": 30}, None),
    (
        "path_star",
        {"degree": 2, "length": 4, "nodes": 12, "held_out_graphs": 12},
        ["0,1|1,2|0,3|3,4|0,5|5,6/0,2=", "0,1|1,2/0,2=", "3,4/3,4="],
    ),
]


@pytest.mark.parametrize("objective", ["next_token", "belief_state"])
@pytest.mark.parametrize(
    ("name", "fields", "prompts"), BATCHES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_pipeline_appends_what_we_generate_in_batches_too(name, fields, prompts, objective, tmp_path):
    model = of_symbols(name, tmp_path, objective, **fields)
    task = model.task
    if prompts is None:
        prompts = [task.decode(task.held_out(3).tokens[row, :3]) for row in range(3)]
    if objective == "belief_state" and task.end is None and task.filler is None:  # our class reads padding of any id
        prompts = [*prompts, prompts[0] + task.continuation(prompts[0], task.encode(prompts[0])[:1])]
    notes = export(model, tmp_path / "out").notes
    assert any("as many tokens" in note for note in notes) is (
        objective == "next_token" and task.end is None and task.filler is None
    )
    pipe = piped(tmp_path / "out")
    found = pipe(prompts, max_new_tokens=4, batch_size=2)
    assert found == [one for prompt in prompts for one in pipe([prompt], max_new_tokens=4)]
    for prompt, text, ours in zip(prompts, found, model.generate(prompts, limit=4)):
        kept = [token for token in ours.tokens.tolist() if token not in (task.end, task.filler)]
        assert text == prompt + task.continuation(prompt, kept)


def test_stop_strings_end_what_is_generated(tmp_path):
    for name, prompt in (("sequences", "view cart"), ("path_star", "0,1|1,2|0,3|3,4|0,5|5,6/0,2=")):
        model = of_symbols("sequences", tmp_path) if name == "sequences" else path_star_model()
        export(model, tmp_path / name)
        tokenizer, theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name), load(tmp_path / name)
        given = tokenizer([prompt], return_tensors="pt")
        whole = theirs.generate(**given, eos_token_id=None, max_new_tokens=4)[0, given["input_ids"].shape[1] :].tolist()
        for token in set(whole):
            stop = model.task.continuation(prompt, [token])
            found = theirs.generate(
                **given, eos_token_id=None, max_new_tokens=4, stop_strings=[stop], tokenizer=tokenizer
            )
            assert found[0, given["input_ids"].shape[1] :].tolist() == whole[: whole.index(token) + 1]


def test_a_pipeline_extracts_the_features_of_our_class(tmp_path):
    model = path_star_model("belief_state")
    export(model, tmp_path / "out")
    text = model.task.decode(model.task.held_out(1).tokens[0])
    found = transformers.pipeline("feature-extraction", str(tmp_path / "out"), device="cpu")(text)
    same(torch.tensor(found), model.states([text]).readout)


def test_unknown_text_has_a_token_of_its_own(tmp_path):
    export(path_star_model("belief_state"), tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.convert_ids_to_tokens(tokenizer("0,1|nonsense")["input_ids"][3:]) == ["[UNK]"] * 8
    with pytest.raises(ValueError, match="not one of the task's symbols"):
        load(tmp_path / "out").generate(**tokenizer("0,1|x", return_tensors="pt"))


def test_text_ends_where_ours_does_and_converts_to_the_same_ids(of_text, tmp_path):
    export(of_text, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = load(tmp_path / "out")
    for text in [*TEXTS, "naïve — 中文 \n\t<|endoftext|>x", "  two  spaces ", "don't"]:
        ids = tokenizer(text)
        assert ids["input_ids"] == of_text.task.encode(text).tolist()
        assert set(ids) == {"input_ids", "attention_mask"}
        assert tokenizer.decode(ids["input_ids"]) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (of_text.task.end,) * 2 + (None,)
    assert (tokenizer.padding_side, tokenizer.model_max_length) == ("left", 32)
    with torch.no_grad():
        given = tokenizer(TEXTS, return_tensors="pt", padding=True)
        found = theirs.generate(**given)[:, given["input_ids"].shape[1] :].tolist()
    wanted = [one.tokens.tolist() for one in of_text.generate(TEXTS)]
    end = of_text.task.end
    assert any(row[-1] == end for row in wanted)
    for text, ids, row in zip(TEXTS, found, wanted):
        length = min(len(row), len(ids))  # rows padded on the left have less room
        assert ids[:length] == row[:length], text
        assert set(ids[length:]) <= {end}


def test_ids_in_config_are_null_where_the_architecture_has_defaults(of_text, tmp_path):
    export(of_text, tmp_path / "text")
    export(path_star_model(), tmp_path / "graphs")
    for folder, end in (("text", of_text.task.end), ("graphs", None)):
        config = transformers.AutoConfig.from_pretrained(tmp_path / folder)
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, end, None)
