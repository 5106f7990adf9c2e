"""A server that drafts answers as one that does not, and counts what was drafted."""

import pytest
from running_server import Running, story_model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {"plain": story_model(folder), "latent": story_model(folder, "next_latent")}


BODIES = [
    {"prompt": ["Once upon a time", "The"], "max_tokens": 12, "temperature": 0, "logprobs": 2},
    {"prompt": "Tom", "max_tokens": 12, "seed": 3, "n": 4, "top_p": 0.9},
    {"prompt": "Tom", "max_tokens": 6, "seed": -5, "echo": True, "logprobs": 1, "stop": ["e"]},
    {"prompt": "A", "max_tokens": 1, "temperature": 0},
]


def answers(models, **settings):
    running = Running(models, **settings)
    running.start()
    try:
        found = [running.post("/v1/completions", {"model": name, **body}) for name in models for body in BODIES]
        drafted, accepted, made = (
            running.metric(f"statewise_{name}_total")
            for name in ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "generation_tokens")
        )
    finally:
        running.stop()
    assert all(status == 200 for status, _ in found)
    assert made == sum(body["usage"]["completion_tokens"] for _, body in found)
    return [body["choices"] for _, body in found], drafted, accepted


def as_texts(choices):
    return [(one["text"], one["finish_reason"], one["logprobs"] and one["logprobs"]["tokens"]) for one in choices]


def test_texts_are_those_without_drafts(models):
    expected, drafted, _ = answers(models)
    assert drafted == 0
    for settings in ({"draft": 3}, {"draft": "auto"}, {"draft": 4, "drafter": "prompt_lookup"}):
        found, drafted, accepted = answers(models, **settings)
        assert 0 <= accepted <= drafted
        assert drafted > 0
        assert list(map(as_texts, found)) == list(map(as_texts, expected))
        for ours, theirs in zip(found[0] + found[2], expected[0] + expected[2]):
            kept, plain = (
                [value for value in one["logprobs"]["token_logprobs"] if value is not None] for one in (ours, theirs)
            )
            assert kept == pytest.approx(plain)
