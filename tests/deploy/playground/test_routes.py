"""The page on a server: who gets it, and that no body of a request breaks it."""

import json
import urllib.error
import urllib.request

import pytest
from doubles import path_star_model
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from running_server import running

from statewise.deploy.playground.routes import TRACE

PROMPT = "0,1|1,2|2,3|0,4|4,5|5,6/0,3="
NUMBERS = st.one_of(st.integers(-5, 20), st.integers(), st.floats(), st.sampled_from([2**31, 2**63, 10**400, 1e308]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text("0123456789|/=$, x", max_size=20), st.just(PROMPT)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
BODIES = st.dictionaries(st.one_of(st.sampled_from(sorted(TRACE)), st.text(max_size=5)), VALUES, max_size=5)


@pytest.fixture(scope="module")
def server():
    with running({"plain": path_star_model(), "bst": path_star_model("belief_state")}, max_tokens=6) as made:
        yield made


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BODIES, st.sampled_from(["plain", "bst"]))
@example({"prompt": [14]}, "plain")
@example({"prompt": PROMPT, "forced": [12, 13, 14, 15]}, "bst")
@example({"prompt": PROMPT, "goal": [15, 15, 15]}, "bst")
@example({"prompt": PROMPT, "seed": -1, "temperature": 1}, "plain")
@example({"prompt": PROMPT, "seed": 2**64 - 1, "temperature": 1e-300}, "plain")
def test_no_body_breaks_it(server, fields, name):
    for body in (fields, {"prompt": PROMPT, "model": name, **fields}):
        status, answer = server.post("/v1/trace", json.dumps(body).encode())
        if status == 200:
            assert answer["places"]
            continue
        assert 400 <= status < 500, answer
        assert set(answer["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt is missing"),
        ({"prompt": PROMPT, "model": "none"}, "there is no model 'none'"),
        ({"prompt": PROMPT, "model": "plain", "goal": "3"}, "cannot condition on a suffix"),
        ({"prompt": PROMPT, "model": "plain", "temperature": 1e-300}, "temperature must be 0, or a number from 1e-100"),
        ({"prompt": PROMPT, "model": "plain", "top": 0}, "top must be a whole number from 1 to 100"),
        ({"prompt": PROMPT, "model": "plain", "forced": [99]}, "no token has the id 99"),
        ({"prompt": PROMPT, "model": "plain", "temperature": 1, "seed": -3}, "seed must be at least 0"),
        ({"prompt": [0] * 40, "model": "plain"}, "the model's context is"),
    ],
)
def test_what_is_wrong_is_said(server, body, message):
    status, answer = server.post("/v1/trace", {"model": "plain", **body})
    assert 400 <= status < 500
    assert message in answer["error"]["message"]


def test_models_are_described(server):
    status, found = server.get("/v1/trace")
    assert status == 200
    assert [(model["name"], model["view"], model["goal"]) for model in found["models"]] == [
        ("plain", "star", False),
        ("bst", "star", True),
    ]
    example = found["models"][0]["examples"][0]
    status, trace = server.post("/v1/trace", {"model": "plain", "prompt": example["prompt"], "max_tokens": 4})
    assert status == 200
    assert len(trace["places"]) == trace["prompt"] + 4


def test_a_model_whose_data_are_gone_is_left_out(monkeypatch):
    models = {"kept": path_star_model(), "lost": path_star_model()}

    def gone(*_):
        raise FileNotFoundError(2, "No such file or directory", "graphs.txt")

    monkeypatch.setattr(models["lost"].task, "held_out", gone)
    with running(models) as made:
        status, found = made.get("/v1/trace")
        assert (status, [model["name"] for model in found["models"]]) == (200, ["kept"])
        assert "graphs.txt" in found["left_out"]["lost"]
        status, answer = made.post("/v1/trace", {"model": "lost", "prompt": PROMPT})
        assert (status, answer["error"]["code"]) == (503, "no_data")
        assert answer["error"]["message"].startswith("lost cannot be shown: ")
        assert made.post("/v1/trace", {"model": "kept", "prompt": PROMPT})[0] == 200
    with running({"lost": models["lost"]}) as made:
        assert made.get("/v1/trace")[0] == 503


def test_the_page_needs_no_key_and_its_data_do():
    with running({"plain": path_star_model()}, key="secret") as made:
        for path in ("/", "/playground"):
            with urllib.request.urlopen(f"{made.url}{path}") as answer:
                assert "default-src 'none'" in answer.headers["content-security-policy"]
                assert answer.read().startswith(b"<!doctype html>")
        for path in ("/v1/trace", "/v1/models", "/metrics", "/playground/x"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{made.url}{path}")
        assert made.get("/v1/trace", "authorization: Bearer secret\r\n")[0] == 200
