"""Tokenizers of tasks convert text as the tasks do."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from doubles import small_corpus, small_stories

tokenizers = pytest.importorskip("tokenizers")

from statewise.deploy.export.tokenizer import is_exact, lead, tokenizer_config, tokenizer_json, word_level  # noqa: E402
from statewise.tasks import TASKS  # noqa: E402
from statewise.tasks.base import TextFormat, separated_by  # noqa: E402

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
    "manhattan": [{"rows": 6, "columns": 7, "max_moves": 20, "held_out_moves": 12, "held_out_rides": 40, "row": 50}],
    "path_star": [
        {"degree": 2, "length": 4, "nodes": 12, "held_out_graphs": 30},
        {"degree": 2, "length": 5, "nodes": 12, "held_out_graphs": 30, "encoding": "fill_in_the_middle"},
        {"degree": 2, "length": 5, "nodes": 12, "held_out_graphs": 30, "encoding": "goal_augmentation"},
    ],
    "pomdp": [{"held_out_sequences": 30}],
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


@pytest.fixture(scope="module")
def task_of(tmp_path_factory):
    """Tasks that tests share."""
    made = {}

    def task(name, fields):
        key = name, repr(fields)
        if key not in made:
            made[key] = make(name, fields, tmp_path_factory.mktemp(name))
        return made[key]

    return task


def test_every_task_is_tried():
    assert set(CASES) == set(TASKS)


@every_task
def test_prompts_and_whole_sequences_give_the_ids_and_the_text_of_the_task(name, fields, task_of):
    task = task_of(name, fields)
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(task))
    first = "" if task.text_format is None else lead(task.text_format)
    examples = task.held_out(30)
    for row in range(len(examples)):
        for tokens in (examples.prompt(row), examples.tokens[row, : examples.lengths[row]]):
            text = task.decode(tokens)
            assert tokenizer.decode(tokens.tolist(), skip_special_tokens=False) == (first + text if text else "")
            found = tokenizer.encode(text, add_special_tokens=False).ids
            assert found == task.encode(text).tolist()


@every_task
def test_what_programs_append_to_a_prompt_is_its_continuation(name, fields, task_of):
    """They decode what was generated without the prompt."""
    task = task_of(name, fields)
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(task))
    examples, rng = task.held_out(10), np.random.default_rng(0)
    for row in range(len(examples)):
        tokens, given = examples.tokens[row, : examples.lengths[row]], examples.prompt_lengths[row]
        # Published prompts of tasks whose text has no separators end where none is needed.
        free = task.text_format is not None and bool(lead(task.text_format))
        for place in rng.integers(1, len(tokens), 3).tolist() if free else [given]:
            prompt = task.decode(tokens[:place])
            text = prompt + tokenizer.decode(tokens[place:].tolist(), skip_special_tokens=False)
            assert tokenizer.encode(text, add_special_tokens=False).ids == tokens.tolist()
            assert text == prompt + task.continuation(prompt, tokens[place:])
            assert task.encode(text).tolist() == tokens.tolist()


@every_task
def test_unknown_text_and_padding_have_tokens(name, fields, task_of):
    task = task_of(name, fields)
    content = tokenizer_json(task)
    tokenizer, facts = tokenizers.Tokenizer.from_str(content), tokenizer_config(content, task)
    padding = tokenizer.token_to_id(facts["pad_token"])
    if task.end is None and task.filler is None:
        assert padding == len(task.vocab) + 1
    else:
        assert padding == (task.filler if task.end is None else task.end)
    if task.text_format is not None:  # bytes are never unknown
        unknown = tokenizer.token_to_id(facts["unk_token"])
        assert unknown == len(task.vocab)
        assert set(tokenizer.encode("\u2603").ids) == {unknown}


SAID = {
    "countdown": ["07, 3 ,12|", "5*4=20 , 1", "1||2", "|"],
    "manhattan": ["  0.0 \t 1.1  "],
    "path_star": ["3,04 | 4,5/3,5 =", "3,4|4,5 / 3,5=3, 4 ,5", "00,1"],
    "strips_traces": [" pickup   b1 ,stack b1 b2", "pickup b1,, putdown b1,"],
}


@pytest.mark.parametrize("name", SAID)
def test_text_as_people_write_it_gives_the_ids_of_the_task(name, task_of):
    task = task_of(name, CASES[name][0])
    if name == "manhattan":
        SAID[name] = [f"  {task.vocab.symbols[0]} \t {task.vocab.symbols[3]}\n"]
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(task))
    for text in SAID[name]:
        assert tokenizer.encode(text).ids == task.encode(text).tolist(), text


def test_names_of_tokens_beyond_the_vocabulary_are_no_symbols():
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(word_level(separated_by(""), ["a", "[UNK]"], None, None)))
    assert tokenizer.encode("a?").tokens == ["a", "[[UNK]]"]
    assert (tokenizer.token_to_id("[UNK]"), tokenizer.token_to_id("[[UNK]]")) == (1, 2)


def test_unknown_text_is_beyond_all_that_the_model_has(tmp_path):
    """A tuned model has more rows than the task has symbols."""
    content = tokenizer_json(make("automaton", {"length": 16}, tmp_path), 100)
    tokenizer = tokenizers.Tokenizer.from_str(content)
    assert tokenizer.encode("0 x").ids == [0, 100]
    assert tokenizer.token_to_id("[PAD]") == 5, "the first id that is no symbol"
    assert tokenizer.decode(tokenizer.encode("0 0").ids) == " 0 0"


@pytest.mark.parametrize(
    ("end", "lines", "separator", "name"),
    [
        ("<end>", "a b\nb a\n", None, "Ġ<end>"),
        ("a", "ab b\nb ab\n", None, "Ġa"),
        ("<end>", "a,b\nb,a\n", ",", ",<end>"),
        ("a", "ab,b\nb,ab\n", ",", None),
        ("→→", "ab\nba\n", "", "âĨĴâĨĴ"),
    ],
)
def test_the_end_symbol_is_special_where_that_changes_no_text(end, lines, separator, name, tmp_path):
    """Special tokens are found anywhere in a text, so an end symbol with which another one begins cannot be special."""
    (tmp_path / "data.txt").write_text(lines * 6 + "b\n")
    config = TASKS["sequences"].Config(
        path=str(tmp_path / "data.txt"), format="text", end=end, separator=separator, held_out_share=0.5
    )
    task = TASKS["sequences"](config)
    content = tokenizer_json(task)
    facts = tokenizer_config(content, task)
    assert (facts.get("eos_token"), facts["pad_token"]) == (name, name or "[PAD]")
    row = [0, 1, task.end]
    tokenizer = tokenizers.Tokenizer.from_str(content)
    assert tokenizer.encode(task.decode(row)).ids == row
    assert tokenizer.decode(row, skip_special_tokens=True) == lead(task.text_format) + task.decode(
        row[: 2 if name else 3]
    )


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
    for change in ({"7": 8, "8": 7}, {"3": 99}):
        other = {**content, "model": {**content["model"], "vocab": content["model"]["vocab"] | change}}
        assert not is_exact(json.dumps(other), task)
    assert not is_exact(json.dumps({**content, "normalizer": None, "decoder": None}), task)


def test_the_config_names_a_class_that_old_and_new_versions_load_and_adds_no_tokens():
    content = json.dumps({"added_tokens": [{"id": 3, "content": "<|endoftext|>"}], "model": {"unk_token": None}})
    task = SimpleNamespace(end=3, filler=None, context=64)
    assert tokenizer_config(content, task) == {
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
