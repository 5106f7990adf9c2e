"""Tokenizers of tasks convert text as the tasks do."""

import json
import re

import numpy as np
import pytest
from doubles import small_corpus, small_stories

tokenizers = pytest.importorskip("tokenizers")

from statewise.interop.tokenizer import is_exact, tokenizer_config, tokenizer_json  # noqa: E402
from statewise.tasks import TASKS  # noqa: E402
from statewise.tasks.text_format import TextFormat, separated_by  # noqa: E402

LINES = {
    None: "ab c d,e\nf f g\n" * 6 + "c g\n",
    ",": "a b, c,d\nd ,a b,  x y z\n" * 6 + "c,c\n",
    "->": "a->b c -> d-e\nd-e->a\n" * 6 + "b c->a\n",
    "\\t": "a b\tc\nc\ta b\n" * 6 + "c\tc\n",
    "": "abc d\n(+)\nb[1]a\n" * 6 + "cb\n",
}
CASES = {
    "automaton": [{"length": 16}, {"process": "flip-flop", "length": 16, "ask": "query"}],
    "hmm": [{"process": "rrxor"}, {"process": "mess3", "length": 8}],
    "countdown": [
        {"training_problems": 50, "held_out_problems": 30},
        {"training_problems": 50, "held_out_problems": 30, "numbers": 3, "pauses": 3, "held_out_targets": 0},
    ],
    "manhattan": [
        {"rows": 6, "columns": 7, "max_moves": 20, "held_out_moves": 12, "held_out_rides": 40, "row": 50},
    ],
    "path_star": [
        {"degree": 2, "length": 4, "nodes": 12, "held_out_graphs": 30},
        {"degree": 2, "length": 5, "nodes": 12, "held_out_graphs": 30, "encoding": "fill_in_the_middle"},
        {"degree": 2, "length": 5, "nodes": 12, "held_out_graphs": 30, "encoding": "goal_augmentation"},
    ],
    "recall": [{"held_out_sequences": 30}, {"held_out_sequences": 30, "own_symbols": False}],
    "sequences": [{"separator": separator} for separator in LINES],
    "stories": [
        {"vocabulary": 300, "context": 64, "held_out_share": 0.2},
        {"vocabulary": 300, "context": 64, "held_out_share": 0.2, "encoding": "fill_in_the_middle"},
    ],
    "strips_traces": [{"held_out_traces": 30}, {"domain": "ferry:2x1", "max_length": 20, "held_out_traces": 30}],
    "text": [{"context": 32}],
}
every_task = pytest.mark.parametrize(
    ("name", "fields"), [(name, fields) for name in CASES for fields in CASES[name]], ids=str
)


def make(name, fields, folder):
    fields = dict(fields)
    if name == "sequences":
        (folder / "data.txt").write_text(LINES[fields["separator"]])
        fields = {"format": "text", **fields, "path": str(folder / "data.txt"), "held_out_share": 0.5}
    if name == "stories":
        (folder / "stories.txt").write_text(small_stories(60))
        fields["path"] = str(folder / "stories.txt")
    if name == "text":
        fields["path"] = str(small_corpus(folder).folder)
    return TASKS[name](TASKS[name].Config(**fields))


def test_every_task_is_tried():
    assert set(CASES) == set(TASKS)


@every_task
def test_prompts_and_whole_sequences_give_the_ids_and_the_text_of_the_task(name, fields, tmp_path):
    task = make(name, fields, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(task))
    assert tokenizer.get_vocab_size() == len(task.vocab)
    examples = task.held_out(30)
    for row in range(len(examples)):
        for tokens in (examples.prompt(row), examples.tokens[row, : examples.lengths[row]]):
            text = task.decode(tokens)
            assert tokenizer.decode(tokens.tolist(), skip_special_tokens=False) == text
            found = tokenizer.encode(text, add_special_tokens=False).ids
            assert found == task.encode(text).tolist()


SAID = {
    "countdown": ["07, 3 ,12|", "5*4=20 , 1", "1||2", "|"],
    "manhattan": ["  0.0 \t 1.1  "],
    "path_star": ["3,04 | 4,5/3,5 =", "3,4|4,5 / 3,5=3, 4 ,5", "00,1"],
    "strips_traces": [" pickup   b1 ,stack b1 b2", "pickup b1,, putdown b1,"],
}


@pytest.mark.parametrize("name", SAID)
def test_text_as_people_write_it_gives_the_ids_of_the_task(name, tmp_path):
    task = make(name, CASES[name][0], tmp_path)
    if name == "manhattan":
        SAID[name] = [f"  {task.vocab.symbols[0]} \t {task.vocab.symbols[3]}\n"]
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(task))
    for text in SAID[name]:
        assert tokenizer.encode(text).ids == task.encode(text).tolist(), text


@pytest.mark.parametrize("name", ["path_star", "manhattan", "recall"])
def test_unknown_symbols_are_an_error_as_they_are_for_the_task(name, tmp_path):
    task = make(name, CASES[name][0], tmp_path)
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(task))
    with pytest.raises(ValueError, match="unknown symbol"):
        task.encode("nonsense")
    with pytest.raises(Exception, match="Missing"):
        tokenizer.encode("nonsense")


def test_the_end_symbol_is_special_where_that_changes_no_text(tmp_path):
    """Special tokens are found anywhere in a text, so an end symbol that is part of another one cannot be special."""
    ends = {}
    for end, lines in {"<end>": "a b\nb a\n" * 6, "a": "ab b\nb ab\n" * 6}.items():
        (tmp_path / "data.txt").write_text(lines + "b b\n")
        config = TASKS["sequences"].Config(path=str(tmp_path / "data.txt"), end=end, held_out_share=0.5)
        task = TASKS["sequences"](config)
        content = tokenizer_json(task)
        ends[end] = [token["content"] for token in json.loads(content)["added_tokens"]]
        facts = tokenizer_config(content, end, task.context)
        assert (facts.get("eos_token"), facts.get("pad_token")) == ((end, end) if ends[end] else (None, None))
    assert ends == {"<end>": ["<end>"], "a": []}


def test_no_tokenizer_where_text_has_no_such_rule(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('["a b", "c"]\n["c", "a b"]\n' * 4 + '["c", "c"]\n')
    task = TASKS["sequences"](TASKS["sequences"].Config(path=str(path), held_out_share=0.5))
    assert task.decode(task.encode('["a b", "c"]')) == '["a b", "c"]'
    assert tokenizer_json(task) is None
    task.text_format = None
    assert tokenizer_json(task) is None


def test_a_tokenizer_that_differs_in_one_symbol_is_not_exact(tmp_path):
    task = make("path_star", CASES["path_star"][0], tmp_path)
    content = json.loads(tokenizer_json(task))
    assert is_exact(json.dumps(content), task)
    for change in ({"7": 8, "8": 7}, {"$": 99}):
        other = {**content, "model": {**content["model"], "vocab": content["model"]["vocab"] | change}}
        assert not is_exact(json.dumps(other), task)
    assert not is_exact(json.dumps({**content, "normalizer": None, "decoder": None}), task)


def test_the_config_names_a_class_that_old_and_new_versions_load_and_adds_no_tokens():
    content = json.dumps({"added_tokens": [{"content": "<|endoftext|>"}]})
    assert tokenizer_config(content, "<|endoftext|>", 64) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 64,
        "padding_side": "left",
    }


@pytest.mark.parametrize("separator", [None, ",", "->", "|", "\t", " . "])
def test_a_text_format_finds_what_splitting_finds(separator):
    """The rule by Python's own `re`, on random text."""
    form, rng = separated_by(separator), np.random.default_rng(0)
    assert isinstance(form, TextFormat)
    pieces = ["a", "b c", "-", ">", " ", ".", *([separator] * 3 if separator else [])]
    for _ in range(200):
        text = "".join(rng.choice(pieces, 12))
        wanted = [part.strip() for part in text.split(separator)]
        parts = text.split(form.cut_at) if form.cut_at else [text]
        found = [symbol for part in parts for symbol in re.findall(form.symbol, part)]
        assert found == [part for part in wanted if part], text
