import re

import pytest

from statewise.runtime import yaml_files
from statewise.runtime.yaml_files import read_yaml


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trainer: {}\nseed: 1\ntrainer: {steps: 4}\n", 'x.yaml:3: not YAML: the key "trainer" occurs twice'),
        ("trainer: &a {steps: *a}", "x.yaml: keys and lists are nested too deeply, or contain themselves"),
        ('about: "\\ud800"', "contains half of a surrogate pair"),
        ('{a: {"x\\udfff": 1}}', "contains half of a surrogate pair"),
        (
            "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10) if n else 'a'}]\n" for n in range(30)),
            "x.yaml: more than 100,000 keys and values",
        ),
        ("trainer: {compile: !!bool maybe}", "x.yaml: not YAML: a value does not match its tag"),
        ("seed: !!int ''", "x.yaml: not YAML: a value does not match its tag"),
        ("a: " + "[" * 60 + "]" * 60, "x.yaml: keys and lists are nested too deeply"),
    ],
)
def test_keys_that_stand_twice_and_data_that_hold_themselves_are_refused(text, said):
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        read_yaml(text, "x.yaml")
    assert str(raised.value).count("x.yaml") == 1


@pytest.mark.parametrize("text", ["no", "On", "010", "1:30", "-1:30.5", "2026-11-26", "2026-11-26 10:00:00"])
def test_what_yaml_takes_for_something_else_stays_as_it_is_written(text):
    assert read_yaml(f"a: {text}\nb: [{text}]", "x.yaml") == {"a": text, "b": [text]}


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("10", 10), ("0", 0), ("1_000", 1000), ("0x1F", 31), ("-0.5", -0.5), ("null", None)],
)
def test_plain_values_are_what_they_say(text, value):
    assert read_yaml(f"a: {text}", "x.yaml") == {"a": value}


def test_merged_keys_are_bounded(monkeypatch):
    """PyYAML before 6.0.4 repeats the keys of a mapping that is merged twice; so the keys here are all different."""
    monkeypatch.setattr(yaml_files, "MOST_VALUES", 100)
    text = "".join(f"x{n}: &x{n} {{{', '.join(f'k{n}_{k}: 1' for k in range(30))}}}\n" for n in range(4))
    with pytest.raises(ValueError, match=r"x\.yaml:5: not YAML: more than 100 merged keys"):
        read_yaml(text + "all: {<<: [*x0, *x1, *x2, *x3]}", "x.yaml")


def test_merged_keys_may_be_given_anew():
    assert read_yaml("base: &b {a: 1, c: 3}\nown: {<<: *b, a: 2}", "x.yaml")["own"] == {"a": 2, "c": 3}
