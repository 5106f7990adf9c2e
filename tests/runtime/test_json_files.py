"""JSON as it is printed, and text that is refused wherever JSON is read."""

import json
import math

import pytest

from statewise.runtime.json_files import ANYTHING, DEEPEST, loads, parse_json, printable


def test_a_number_that_is_not_finite_is_printed_as_null():
    value = {"perplexity": math.inf, "rows": [(1.5, -math.inf), {"mean": math.nan}], "text": "NaN"}
    expected = {"perplexity": None, "rows": [[1.5, None], {"mean": None}], "text": "NaN"}
    assert json.loads(printable(value)) == expected
    assert "\n" not in printable(value, indent=None)


def test_what_is_nested_deeper_than_anything_needs_is_refused_however_deep():
    def nested(levels):
        return "[" * levels + "]" * levels

    assert loads(nested(DEEPEST)) is not None
    for levels in (DEEPEST + 1, 900, 10**6):
        with pytest.raises(ValueError, match="not JSON: brackets are nested too deeply"):
            loads('{"task": ' + nested(levels - 1) + "}")


@pytest.mark.parametrize("kind", [str, str.encode])
def test_half_of_a_surrogate_pair_is_refused(kind):
    for content in (r'{"title": "\ud83d"}', r'["\uDC00"]', r'{"\udfff": 1}'):
        with pytest.raises(ValueError, match=r"^reports/a\.json: it contains half of a surrogate pair"):
            parse_json(kind(content), ANYTHING, "reports/a.json")
    assert parse_json(kind(r'["\ud83d\ude00", "\\ud83d"]'), ANYTHING, "a.json") == ["\U0001f600", r"\ud83d"]


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": null}}]'])
def test_a_key_that_occurs_twice_is_refused(text):
    with pytest.raises(ValueError, match='file: the key "a" occurs twice in one object: give it once'):
        parse_json(text, ANYTHING, "file")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"a": x}', "Expecting value at column 7"),
        (b'{"a": x}\r\n', "Expecting value at column 7"),
        ('{"a":\n', "Expecting value at the end"),
        ('{"a": 1,\n "b": x}\n', "Expecting value at line 2, column 7"),
        ('"a', "Unterminated string starting at column 1"),
        ('"a\tb"', "Invalid control character at column 3"),
    ],
)
def test_the_place_of_an_error_names_a_line_only_if_there_are_several(text, where):
    """A text of one line is often a line of a file, whose number is named before."""
    with pytest.raises(ValueError, match=f"^runs.jsonl:7: not JSON: {where}$"):
        parse_json(text, ANYTHING, "runs.jsonl:7")
