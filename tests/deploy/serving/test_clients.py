"""What the `openai` package and plain requests get: the model's own completions and belief vectors."""

import asyncio
import json

import numpy as np
import pytest
from running_server import running, story_model

from statewise.analysis.beliefs.vectors import beliefs
from statewise.data_types import Examples
from statewise.evaluation.zero_shot.likelihood import Continuation, likelihoods, windows
from statewise.model.snapshots import snapshot
from statewise.tasks.batches import collate

PROMPT, SUFFIX = "Once Ann had a café", " was happy."


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stories")
    models = {
        "plain": story_model(folder),
        "bst": story_model(folder, "belief_state", experts=2, min_gap=1),
        "fixed": story_model(folder, "belief_state", experts=2),
        "middle": story_model(folder, encoding="fill_in_the_middle"),
    }
    with running(models, max_body=50_000, chunk_seconds=0.0) as made:
        yield made


@pytest.fixture(scope="module")
def openai():
    """Takes as long to import as to test, and only one of the processes that run tests needs it."""
    import openai

    return openai


@pytest.fixture(scope="module")
def client(openai, server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def text_of(model, tokens, closing=None):
    """Without what ends a completion."""
    kept = [token for token in np.asarray(tokens).tolist() if token != model.task.end]
    return model.task.decode(kept)


def own(server, name, prompt=PROMPT, **fields):
    model = server.models[name]
    return [text_of(model, one.tokens) for one in model.generate([prompt], **fields)]


def test_greedy_completions_are_those_of_generate(server, client):
    found = client.completions.create(model="plain", prompt=[PROMPT, "Tim"], max_tokens=20, temperature=0)
    assert [choice.text for choice in found.choices] == own(server, "plain", limit=20) + own(
        server, "plain", "Tim", limit=20
    )
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.object == "text_completion"
    assert found.model == "plain"
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found.system_fingerprint.endswith("-fp32")


def test_a_seed_gives_one_text_and_choices_differ(server, client):
    asked = {"model": "plain", "prompt": [PROMPT, "Tim"], "max_tokens": 12, "seed": 7, "top_p": 0.9, "n": 2}
    one, again = (client.completions.create(**asked) for _ in range(2))
    texts = [choice.text for choice in one.choices]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) == 4
    expected = own(server, "plain", decoder="sample", seed=7, top_p=0.9, limit=12)
    assert texts[0] == expected[0]
    other = client.completions.create(**{**asked, "seed": 8})
    assert texts != [choice.text for choice in other.choices]


@pytest.mark.parametrize("name", ["bst", "fixed", "middle"])
def test_a_suffix_conditions(server, client, name):
    asked = {"model": name, "prompt": PROMPT, "max_tokens": 10, "temperature": 0}
    found = client.completions.create(**asked, suffix=SUFFIX)
    fields = {"goal": SUFFIX, "limit": 10, "free_length": name == "bst"}
    assert [choice.text for choice in found.choices] == own(server, name, **fields)
    assert found.choices[0].text != client.completions.create(**asked).choices[0].text
    if name == "fixed":
        assert found.usage.completion_tokens == 10
        assert found.choices[0].finish_reason == "length"


def test_a_model_that_cannot_condition_says_so(openai, client):
    with pytest.raises(openai.BadRequestError, match="cannot condition on a suffix") as refused:
        client.completions.create(model="plain", prompt=PROMPT, suffix=SUFFIX)
    assert refused.value.param == "suffix"


@pytest.mark.parametrize(
    "fields", [{}, {"echo": True}, {"logprobs": 2}, {"echo": True, "logprobs": 0}, {"n": 3}], ids=str
)
def test_a_stream_is_the_whole_answer_in_parts(client, fields):
    asked = {"model": "plain", "prompt": PROMPT, "max_tokens": 25, "seed": 3, "temperature": 2.0, **fields}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 5
    for choice in whole.choices:
        parts = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert "".join(one.text for one in parts) == choice.text
        assert [one.finish_reason for one in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1].finish_reason == choice.finish_reason
        if "logprobs" in fields:
            for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
                joined = [value for one in parts for value in getattr(one.logprobs, name)]
                assert joined == getattr(choice.logprobs, name)


def test_log_probabilities_are_those_of_the_model(server, client):
    found = client.completions.create(model="plain", prompt=PROMPT, max_tokens=0, echo=True, logprobs=5)
    (choice,) = found.choices
    model = server.models["plain"]
    row = model.task.encode(PROMPT)
    expected = model.predictor().logits(collate(Examples.of([row], [0])))[0].log_softmax(-1)
    given = choice.logprobs
    assert choice.text == PROMPT
    assert given.token_logprobs[0] is None
    assert given.token_logprobs[1:] == pytest.approx(expected[range(len(row) - 1), row[1:]].tolist())
    assert [max(one.values()) for one in given.top_logprobs[1:]] == pytest.approx(expected.max(-1).values[:-1].tolist())
    for token, offset in zip(given.tokens, given.text_offset):
        assert token.startswith("bytes:") or PROMPT[offset:].startswith(token)
    assert any(token.startswith("bytes:") for token in given.tokens)
    assert found.usage.completion_tokens == 0


def test_a_scored_text_may_fill_the_context(openai, server, client):
    """The windows of a long text that `statewise lm-eval` scores get the same log-probabilities, asked for as
    lm-evaluation-harness does: its client lets the server generate one token after each."""
    model = server.models["plain"]
    context = model.predictor().context
    row = [model.task.end, *model.task.encode((PROMPT + " ") * 40).tolist()][: 2 * context + 7]
    (expected,) = likelihoods(model.predictor(), [Continuation(row, 1)], 4)
    parts = list(windows(len(row), 1, context))
    assert [part.stop - part.start for part in parts] == [context] * 3
    total = 0.0
    for part in parts:
        given = row[part.start : part.stop]
        asked = client.completions.create(
            model="plain", prompt=given, max_tokens=1, echo=True, logprobs=1, temperature=0
        )
        scores = asked.choices[0].logprobs.token_logprobs
        assert len(scores) == context + 1
        total += sum(scores[part.scored - part.start : -1])
        assert asked.usage.completion_tokens == 1
    assert total == pytest.approx(expected.log_probability)
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model="plain", prompt=row[:context], max_tokens=1)
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model="plain", prompt=row[: context + 1], max_tokens=1, echo=True, logprobs=1)


def test_stop_strings_cut(server, client):
    asked = {"model": "plain", "prompt": PROMPT, "max_tokens": 30, "seed": 5}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[6:9]
    cut = client.completions.create(**asked, stop=[stop, "never said"], logprobs=0)
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert all(offset < len(cut.choices[0].text) for offset in cut.choices[0].logprobs.text_offset)
    assert cut.usage.completion_tokens < 30
    streamed = client.completions.create(**asked, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == cut.choices[0].text


def test_ignoring_the_end_gives_the_full_length(server, client):
    found = client.completions.create(
        model="plain",
        prompt=PROMPT,
        max_tokens=50,
        seed=1,
        n=8,
        temperature=3,
        extra_body={"ignore_eos": True, "top_k": 50},
    )
    assert found.usage.completion_tokens == 8 * 50
    assert {choice.finish_reason for choice in found.choices} == {"length"}


def test_token_ids_are_prompts_too(server, client):
    ids = server.models["plain"].task.encode(PROMPT).tolist()
    assert server.post("/tokenize", {"model": "plain", "prompt": PROMPT})[1]["tokens"] == ids
    assert server.post("/detokenize", {"model": "plain", "tokens": ids})[1] == {"prompt": PROMPT}
    asked = {"model": "plain", "max_tokens": 5, "temperature": 0}
    for prompt in (ids, [ids, ids]):
        found = client.completions.create(prompt=prompt, **asked)
        assert {choice.text for choice in found.choices} == set(own(server, "plain", limit=5))


def test_embeddings_are_belief_vectors(openai, server, client):
    texts = [PROMPT, "Tim", "Zoë saw a kite", "Tim"]
    model = server.models["bst"]
    rows = [model.task.encode(text) for text in texts]
    for of in ("prefix", "suffix"):
        expected = beliefs(snapshot(model.objective), Examples.of(rows, [0] * 4), "last", of).vectors
        for options in ({}, {"encoding_format": "float"}):
            found = client.embeddings.create(model="bst", input=texts, extra_body={"of": of}, **options)
            assert np.allclose([one.embedding for one in found.data], expected, atol=1e-6)
            assert found.usage.prompt_tokens == sum(map(len, rows))
    ids = client.embeddings.create(model="bst", input=[row.tolist() for row in rows])
    assert np.allclose(ids.data[0].embedding, client.embeddings.create(model="bst", input=PROMPT).data[0].embedding)
    with pytest.raises(openai.BadRequestError, match="reads backwards") as refused:
        client.embeddings.create(model="plain", input="Tim", extra_body={"of": "suffix"})
    assert refused.value.param == "of"


def test_models_are_listed(openai, client):
    assert [one.id for one in client.models.list()] == ["plain", "bst", "fixed", "middle"]
    assert client.models.retrieve("bst").owned_by == "statewise"
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="Tim")


def test_many_clients_at_once_get_what_each_gets_alone(openai, server):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def ask(number):
                name = ("plain", "bst", "middle")[number % 3]
                suffix = {"suffix": SUFFIX} if number % 2 and name != "plain" else {}
                asked = {
                    "model": name,
                    "prompt": f"{PROMPT} {'so ' * (number % 5)}",
                    "max_tokens": 5 + number,
                    **suffix,
                }
                asked |= {"temperature": 0} if number % 4 else {"seed": number}
                if number % 5:
                    found = await client.completions.create(**asked)
                    return asked, found.choices[0].text
                stream = await client.completions.create(**asked, stream=True)
                return asked, "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*map(ask, range(24)))

    found = asyncio.run(all_of_them())
    assert server.metric("statewise_batch_rows_sum") > server.metric("statewise_batch_rows_count")
    for asked, text in found:
        _, alone = server.post("/v1/completions", asked)
        assert alone["choices"][0]["text"] == text


def test_other_protocols_fill_gaps_too(server):
    expected = own(server, "bst", goal=SUFFIX, limit=9, free_length=True)[0]
    status, found = server.post(
        "/infill",
        {
            "model": "bst",
            "input_prefix": PROMPT[:5],
            "prompt": PROMPT[5:],
            "input_suffix": SUFFIX,
            "n_predict": 9,
            "temperature": 0,
            "samplers": ["top_k"],
            "cache_prompt": True,
        },
    )
    assert (status, found["content"], found["stop"]) == (200, expected, True)
    stop = expected[2:4]
    status, found = server.post(
        "/infill",
        {
            "model": "bst",
            "input_prefix": PROMPT[:5],
            "prompt": PROMPT[5:],
            "input_suffix": SUFFIX,
            "n_predict": 9,
            "temperature": 0,
            "stop": [stop],
        },
    )
    assert (found["content"], found["stop_type"], found["stopping_word"]) == (expected.partition(stop)[0], "word", stop)
    status, found = server.post("/infill", {"model": "bst", "input_prefix": PROMPT, "n_predict": 0})
    assert (status, found["content"], found["tokens_predicted"]) == (200, "", 0)
    asked = {"model": "bst", "prompt": PROMPT, "suffix": SUFFIX, "max_tokens": 9, "temperature": 0}
    assert server.post("/v1/fim/completions", {**asked, "max_tokens": 0})[0] == 400
    status, found = server.post("/v1/fim/completions", asked)
    assert (status, found["choices"][0]["message"]["content"]) == (200, expected)
    for path, body, text in (
        ("/v1/fim/completions", asked, lambda event: event["choices"][0]["delta"]["content"]),
        (
            "/infill",
            {"model": "bst", "input_prefix": PROMPT, "input_suffix": SUFFIX, "n_predict": 9, "temperature": 0},
            lambda event: event["content"],
        ),
    ):
        status, streamed = server.post(path, {**body, "stream": True})
        assert status == 200
        lines = streamed.decode().splitlines()
        events = [line[6:] for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
        assert "".join(text(json.loads(event)) for event in events) == expected


def test_the_tokenizer_is_described(server):
    status, found = server.get("/tokenizer_info?model=bst")
    assert status == 200
    assert found["eos_token"] == "<|endoftext|>"
    assert found["vocab_size"] == 300
    assert server.get("/tokenizer_info")[0] == 400  # which of the models?
