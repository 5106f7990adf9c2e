"""What heads say about traces, and which of them a pool takes together."""

import numpy as np
import pytest
from random_heads import NAMES, grouped, random_heads, true_and_junk

from statewise.strips.model import heads as heads_module
from statewise.strips.model.heads import Candidates, Heads, Judge, sound
from statewise.strips.model.traces import Traces
from statewise.strips.neural.learning import pool
from statewise.strips.trace_data.domains import domain
from statewise.strips.trace_data.random_traces import traces, with_noise
from statewise.strips.verification.containment import prune
from statewise.strips.verification.verification import verify

# heads


# the pool


@pytest.mark.parametrize(("spec", "num"), [("simple", 200), ("blocksworld:2", 400), ("ferry:2x2", 800)])
def test_a_pool_finds_the_true_model_among_junk(spec, num):
    world, given_traces, heads, _ = true_and_junk(spec, num, 400)
    judge = Judge(given_traces)
    found = pool(Candidates.alone(heads), judge)
    assert found.accuracy == found.caught == 1
    assert len(found.heads) == len(found.chosen) >= len(world.model.atoms)
    assert np.array_equal(found.heads.pre, heads.only(found.chosen).pre)
    model = found.heads.model(world.model.names)
    assert verify(model, world, drawn_only=True)  # what no walk can show remains open
    kept = prune(Candidates.alone(found.heads), world.model.names)
    assert len(kept) < len(found.heads)
    assert verify(found.heads.only(kept).model(world.model.names), model)


def test_with_noise_true_heads_stay_and_most_junk_goes():
    _, clean, heads, true = true_and_junk("blocksworld:2", 500, 300)
    noisy = Judge(with_noise(clean, 0.05, "labels", 1))
    assert not set(true) <= set(sound(Candidates.alone(heads), noisy))
    places = sound(Candidates.alone(heads), noisy, noise=0.05)
    assert set(true) <= set(places)
    assert len(places) < len(true) + 60


def test_a_pool_without_time_for_its_cover_says_so(monkeypatch):
    _, given_traces, heads, _ = true_and_junk("ferry:2x1", 300, 200)
    judge, candidates = Judge(given_traces), Candidates.alone(heads)
    assert pool(candidates, judge, threshold=float("inf")).proven
    assert pool(candidates, judge, threshold=0).proven  # no cover is needed
    monkeypatch.setattr(heads_module, "_solve", lambda *_: (None, False))
    hasty = pool(candidates, judge, threshold=float("inf"))
    assert not hasty.proven
    assert hasty.caught == 1


def test_without_evidence_the_smallest_set_that_catches_all_is_taken():
    world, given_traces, heads, _ = true_and_junk("ferry:2x1", 300, 200)
    judge, candidates = Judge(given_traces), Candidates.alone(heads)
    least = pool(candidates, judge, threshold=float("inf"))
    assert least.supported == 0
    assert least.caught == least.accuracy == 1
    assert len(least.chosen) <= len(world.model.atoms)
    everything = pool(candidates, judge, threshold=0)
    assert len(everything.chosen) == everything.sound == everything.supported == len(sound(candidates, judge))
    between = pool(candidates, judge)
    assert len(least.chosen) <= len(between.chosen) <= everything.sound


def test_negatives_that_no_head_catches_stay_uncaught():
    head = Heads(*(np.array([part], dtype=bool) for part in ([0, 0, 1], [0, 1, 0], [1, 0, 0])))
    found = pool(Candidates.alone(head), Judge(Traces(NAMES, ((0, 2), (1, 1)), (1, 1))))
    assert (found.caught, found.accuracy) == (0.5, 0.5)


def test_an_empty_pool():
    given_traces = traces(domain("simple"), 20, 8, 1)
    found = pool(Candidates.alone(random_heads(1, 0)), Judge(given_traces))
    assert (len(found.heads), found.sound, found.caught) == (0, 0, 0.0)
    assert found.accuracy == given_traces.positives / 20


# groups


def test_groups_stand_or_fall_together():
    good = ([0, 0, 1], [0, 1, 0], [1, 0, 0])  # a b c: c is rejected after a, unless b came between
    bad = ([0, 1, 0], [0, 0, 0], [1, 0, 0])  # b is rejected after a
    heads = Heads(*(np.array(columns, dtype=bool) for columns in zip(good, bad, good)))
    judge = Judge(Traces(NAMES, ((0, 2), (0, 1, 0, 2)), (1, 1)))
    assert sound(grouped(heads, [0, 1, 2]), judge).tolist() == [0, 2]
    assert sound(grouped(heads, [0, 0, 1]), judge).tolist() == [1]
    assert sound(grouped(heads, [0, 1, 1]), judge).tolist() == [0]
    assert len(grouped(heads, [0, 0, 1])) == 2
    alarms, catches = grouped(heads, [0, 0, 1]).verdicts(judge)
    assert alarms.tolist() == [[False, True], [False, False]]
    assert catches.tolist() == [[True, True], [True, True]]
    rejects = Candidates.alone(heads).rejects(judge)
    assert grouped(heads, [0, 0, 1]).rejects(judge).tolist() == pytest.approx([rejects[0] + rejects[1], rejects[2]])


def test_a_group_is_chosen_whole():
    world, given_traces, heads, true = true_and_junk("ferry:2x1", 300, 60)
    order = np.concatenate((true, np.setdiff1d(np.arange(len(heads)), true)))
    sorted_heads = heads.only(order)
    pairs = np.arange(len(order)) // 2  # the true heads come first: three good pairs
    found = pool(grouped(sorted_heads, pairs), Judge(given_traces))
    assert {0, 1, 2} <= set(found.chosen)
    assert len(found.heads) == 2 * len(found.chosen)
    assert verify(found.heads.model(world.model.names), world)


# what is superfluous
