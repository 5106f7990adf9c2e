"""Rows of requests, without a server."""

import json

import pytest

from statewise.deploy.serving.rows import DecodingOptions, Stops
from statewise.deploy.serving.served import Served
from statewise.model.model import new_model
from statewise.model.recipes import read_recipe


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = tmp_path_factory.mktemp("symbols") / "data.jsonl"
    path.write_text('["view", "cart"]\n["cart", "view", "cart"]\n["pay now", "cart"]\n' * 4)
    recipe = {
        "task": {"name": "sequences", "path": str(path), "held_out_share": 0.4},
        "backbone": {"name": "gpt", "width": 16, "heads": 2, "layers": 1},
        "objective": "next_token",
    }
    return Served("symbols", new_model(read_recipe(json.dumps(recipe))))


@pytest.mark.parametrize(
    ("given", "echo", "stops", "said", "text"),
    [
        ("view cart", False, [], ["cart", "cart"], " cart cart"),
        ("view cart", True, [], ["cart", "cart"], "view cart cart cart"),
        ('["view", "cart"]', False, [], ["cart"], ' ["cart"]'),
        ([0, 1], False, [], ["cart", "pay now"], ' cart ["pay now"]'),
        ("view", False, [" cart"], ["view", "cart"], " view"),
    ],
)
def test_a_completion_of_symbols_follows_its_prompt(served, given, echo, stops, said, text):
    decoding = DecodingOptions(None, 0, Stops(stops), None, echo)
    prompt = served.encode(given, "prompt")
    (row,) = served.rows(prompt, None, decoding, limit=4, numbers=[0], exact=False, original=given)
    released = [row.text[: row.released]]
    for symbol in said:
        row.add(served.task.vocab.ids[symbol], 0.0, [])
        released.append(row.text[: row.released])
    row.finish_without_tokens()
    assert row.text == text
    assert all(text.startswith(part) for part in released)
    if not stops:
        whole = text if echo else (given if isinstance(given, str) else served.decode(given)) + text
        assert served.task.vocab.decode(served.encode(whole, "prompt")) == [*served.task.vocab.decode(prompt), *said]
