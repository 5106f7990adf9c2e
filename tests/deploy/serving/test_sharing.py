"""Clients that come and go in a loop keep nobody out of the queue, and their work is not done for nobody."""

import asyncio
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from doubles import tiny_objective
from hypothesis import given
from hypothesis import strategies as st

from statewise.decoding.base import Request
from statewise.deploy.serving.batch import ContinuousBatch
from statewise.deploy.serving.engine import Engine, Waiting, displaced
from statewise.deploy.serving.metrics import Metrics
from statewise.deploy.serving.refusals import Refusal
from statewise.deploy.serving.rows import DecodingOptions, Row, Stops, Ticket, Written
from statewise.deploy.serving.settings import ServerSettings

CONTEXT = 24


def row_of(prompt, number=0, limit=12):
    request = Request([np.array(prompt, np.int64)], limit, end=None, rows=[number])
    decoding = DecodingOptions(None, 0, Stops(()), None, False)
    return Row(
        request, request.prompts[0], limit, decoding, Written(lambda before, tokens: " ".join(map(str, tokens)), [])
    )


CLIENTS = st.sampled_from("abcd")


@given(st.lists(st.tuples(CLIENTS, st.integers(1, 6)), max_size=60), st.integers(6, 24))
def test_each_of_k_addresses_can_have_its_share_of_a_full_queue(requests, most):
    queue = []
    for number, (client, places) in enumerate([*requests, ("honest", 1)]):
        leaving = displaced(queue, client, places, most)
        if leaving is not None:
            assert client not in {one.client for one in queue if one.item in leaving}
            queue = [one for one in queue if one.item not in leaving]
            queue.append(Waiting(number, client, places, False))
        shares = Counter()
        for one in queue:
            shares[one.client] += one.places
        assert shares.total() <= most
        addresses = len({*shares, client})
        if shares[client] + (0 if leaving is not None else places) <= most // addresses:
            assert leaving is not None


def test_the_newest_of_the_largest_leave_and_what_was_begun_stays():
    queue = [Waiting(1, "a", 2, True), Waiting(2, "b", 1, False), Waiting(3, "a", 1, False), Waiting(4, "a", 1, False)]
    assert displaced(queue, "c", 1, 6) == []
    assert displaced(queue, "c", 1, 5) == [4]
    assert displaced(queue, "c", 2, 5) == [4, 3]
    assert displaced(queue, "c", 3, 5) is None
    assert displaced(queue, "a", 1, 5) is None
    assert displaced([Waiting(1, "a", 5, True)], "c", 1, 5) is None


@pytest.fixture(scope="module")
def predictor():
    return tiny_objective("next_token", backbone={"context": CONTEXT}).eval().predictor()


@pytest.fixture
def engine(predictor):
    """An engine whose thread does not run: what waits goes on waiting."""
    served = SimpleNamespace(name="m", predictor=predictor, rounding=0.0, casts=False, computing=nullcontext)
    return Engine([served], ServerSettings(max_waiting=4), Metrics())


def ticket(client, rows=1):
    return Ticket([row_of([1, 2], number=number) for number in range(rows)], stream=False, client=client)


def gauge(engine, name):
    return engine.metrics.registry.get_sample_value(f"statewise_num_requests_{name}", {"model": "m"})


def test_a_client_that_fills_the_queue_again_and_again_keeps_no_other_out(engine):
    async def scenario():
        greedy, refused = [], 0
        for _ in range(50):
            coming = ticket("10.0.0.1")
            if gauge(engine, "waiting") == 4:
                with pytest.raises(Refusal, match="queue is full"):
                    engine.submit(coming, "m")
                refused += 1
            else:
                engine.submit(coming, "m")
                greedy.append(coming)
            if refused % 3 == 2:  # leaves, and comes again
                engine.cancel(greedy.pop(0))
                refused += 1
        assert refused > 0
        assert gauge(engine, "waiting") == 4
        honest = [ticket("10.0.0.2") for _ in range(2)]
        for one in honest:
            engine.submit(one, "m")
        assert not any(one.done for one in honest)
        for _ in range(20):
            with pytest.raises(Refusal):
                engine.submit(ticket("10.0.0.1"), "m")
        assert not any(one.done for one in honest)
        with pytest.raises(Refusal):  # more than its share
            engine.submit(ticket("10.0.0.2"), "m")
        displaced = [one for one in greedy if one.error is not None]
        assert {one.error.code for one in displaced} == {"queue_full"}
        assert len(displaced) == 2
        await asyncio.sleep(0)
        assert all(one.event.is_set() for one in displaced)  # they are told at once

    asyncio.run(scenario())


def test_the_number_that_wait_is_right_at_once_after_clients_have_left(engine):
    async def scenario():
        first, second = ticket("a", 2), ticket("b")
        engine.submit(first, "m")
        engine.submit(second, "m")
        assert gauge(engine, "waiting") == 3
        first.cancel()  # before the queue has been tidied
        assert gauge(engine, "waiting") == 1
        engine.cancel(first)
        engine.cancel(second)
        assert gauge(engine, "waiting") == gauge(engine, "running") == 0

    asyncio.run(scenario())


def test_work_whose_client_has_left_is_not_done(engine):
    done = []
    left = [engine.call("m", lambda: done.append("left"), client="a") for _ in range(4)]
    with pytest.raises(Refusal):
        engine.call("m", lambda: None, client="a")
    for future in left:
        future.cancel()
    kept = engine.call("m", lambda: done.append("kept"), client="a")
    others = [engine.call("m", lambda: done.append("b"), client="b") for _ in range(3)]
    newest = engine.call("m", lambda: done.append("c"), client="c")
    assert [type(one.exception(0)) for one in others if one.done()] == [Refusal]
    engine.start()
    for future in (kept, newest):
        future.result(60)
    engine.stop()
    assert done[0] == "kept"
    assert "left" not in done
    assert done.count("b") <= 2


@pytest.mark.parametrize("leave", ["while they wait", "while they are read", "while they run"])
def test_clients_that_leave_delay_a_request_by_a_bounded_number_of_rounds(predictor, leave):
    """In each round three clients come, and leave. The request begins after one round for each part of a prompt that
    was before it, and gets a token in every round from then on."""
    batch, longest, rounds = ContinuousBatch(predictor, most=2, part=4), 12, 0
    before = [row_of([1, 2, 5, 1, 7, 4], number=number) for number in range(3)]
    honest = row_of([2, 5, 1, 7], limit=longest)
    batch.waiting.extend([*before, honest])
    here, begun = list(before), None
    with torch.no_grad():
        while not honest.ended:
            if leave == "while they wait":
                leaving, here = here, []
            else:
                inside = batch.reading.all if leave == "while they are read" and batch.reading else batch.rows
                leaving = [row for row in inside if row is not honest]
            for row in leaving:
                row.cancelled = row.finish is None
            fresh = [row_of([1, 2, 5, 1, 7, 4], number=rounds) for _ in range(3)]
            here += fresh
            batch.waiting.extend(fresh)
            batch.admit()
            batch.read_prompts()
            batch.step()
            rounds += 1
            if honest.tokens and begun is None:
                begun = rounds
            assert begun is None or len(honest.tokens) >= min(longest, rounds - begun + 1)
            assert rounds < 60
    parts = 2 * len(before)  # each prompt of six tokens is read in two
    assert begun <= parts + len(before) + 1
