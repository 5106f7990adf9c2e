"""Extraction from predictors that are exactly right, that err, and that merge states."""

import math
import zlib

import numpy as np
import pytest

from statewise.strips import Acceptance, domain, extract, read_learned_model, read_schemas, verify
from statewise.strips.exact.verdicts import Seen
from statewise.strips.trace_data.domains import Domain


class Walker:
    """Predicts every action that is applicable in the real state with the same probability."""

    longest = 30

    def __init__(self, world, wrong=0.0):
        self.world, self.wrong, self.actions = world, wrong, world.model.names

    def begin(self, rng, count):
        return [()] * count

    def log_probabilities(self, prefixes):
        model = self.world.model
        found = np.zeros((len(prefixes), len(self.actions)))
        for row, prefix in zip(found, prefixes):
            state = self.world.start[0]
            for action in prefix:
                state = model.result(state, action)
            row[model.applicable(state)] = 1.0
            wrong = np.random.default_rng(zlib.crc32(repr(prefix).encode())).random(len(row)) < self.wrong
            row[:] = np.where(wrong, np.where(row > 0, 0.0, 0.03), row)
            if not row.any():
                row[:] = 1.0
        with np.errstate(divide="ignore"):
            return np.log(found / found.sum(1, keepdims=True))


def without(world, atom):
    """The domain without an atom: states that only it distinguishes are one."""
    kept = [at for at, name in enumerate(world.model.atoms) if name != atom]
    assert len(kept) < len(world.model.atoms)
    start = tuple({sum((state >> at & 1) << new for new, at in enumerate(kept)) for state in world.start})
    return Domain(world.name, world.model.with_atoms(kept), start)


@pytest.mark.parametrize(
    ("name", "seed"), [("simple", 1), ("blocksworld:2", 2), ("blocksworld:3", 1), ("ferry:3x2", 2), ("gripper:2", 1)]
)
def test_a_right_predictor_gives_a_model_that_is_proven_equivalent(name, seed):
    world = domain(name)
    made = extract(Walker(world), questions=200, seed=seed)
    assert verify(made.model, world, drawn_only=True)
    agreed = made.agreement
    assert (made.noisy, made.uncertain, agreed.share) == (False, 0.0, 1.0)
    assert agreed.promised_and_accepted == agreed.promised > 0
    assert 200 <= made.questions < 200 + Walker.longest + 1


def test_wrong_answers_are_treated_as_noise():
    world, said = domain("blocksworld:3"), []
    made = extract(Walker(world, wrong=0.03), questions=1000, seed=1, say=said.append)
    assert made.noisy
    assert "contradict" in " ".join(said)
    assert made.uncertain > 0.01
    assert 0.9 < made.agreement.share < 1
    assert verify(made.model, world, drawn_only=True)


def test_states_that_a_predictor_merges_are_merged_in_its_model():
    world = domain("blocksworld:3")
    merging = without(world, "handempty")
    made = extract(Walker(merging), questions=400, seed=1)
    assert verify(made.model, merging, drawn_only=True)
    verdict = verify(made.model, world, drawn_only=True)
    assert (verdict.outcome, verdict.accepted_by) == ("different", "learned")


def test_fidelity_counts_what_the_model_gets_wrong():
    """A predictor that is no STRIPS model: what it accepts depends on the length of the prefix."""

    class Tired(Walker):
        def log_probabilities(self, prefixes):
            logs = super().log_probabilities(prefixes)
            for row, prefix in zip(logs, prefixes):
                if len(prefix) % 7 == 6:
                    row[:] = np.roll(row, 1)
            return logs

    made = extract(Tired(domain("blocksworld:2")), questions=200)
    assert made.agreement.share < 1
    assert made.agreement.accepted_by_both < made.agreement.accepted


def test_the_folder_is_one_of_learning(tmp_path):
    world, place = domain("blocksworld:2"), tmp_path / "m"
    made = extract(Walker(world), questions=200, folder=place, facts={"run": "runs/gpt"})
    assert read_learned_model(place) == made.model
    assert read_schemas(place) == made.schemas.schemas
    verdicts = [Seen.load(place).verdict(names).outcome for names in (["pickup b1"] * 2, ["pickup b1", "putdown b1"])]
    assert verdicts == ["invalid", "valid"]
    with pytest.raises(FileExistsError):
        extract(Walker(world), questions=200, folder=place)
    extract(Walker(world, wrong=0.03), questions=200, folder=place, overwrite=True)
    assert not (place / "seen.json").exists()  # nothing is certain of noisy answers


def test_what_is_accepted():
    logs = np.log(np.array([[0.5, 0.4, 0.09, 0.01], [0.25, 0.25, 0.25, 0.25]]))
    accepted = {share: (logs >= Acceptance("uniform", share).least(logs)).tolist() for share in (0.5, 0.03)}
    assert accepted[0.5] == [[True, True, False, False], [True] * 4]
    assert accepted[0.03] == [[True] * 4, [True] * 4]
    assert (logs >= Acceptance("gap", 0.2).least(logs)).tolist() == [[True, True, True, False], [True] * 4]
    with np.errstate(divide="ignore"):
        zeros = np.log(np.array([[0.5, 0.5, 0.0, 0.0]]))
    assert (zeros >= Acceptance("gap").least(zeros)).tolist() == [[True, True, False, False]]
    for rule, share in (("uniform", 0.0), ("uniform", 1.0), ("gap", math.nan), ("other", 0.5)):
        with pytest.raises(ValueError, match="must be"):
            Acceptance(rule, share)


def test_the_gap_gives_the_same_model():
    world = domain("blocksworld:2")
    assert verify(extract(Walker(world), questions=200, acceptance=Acceptance("gap")).model, world, drawn_only=True)


class Odd(Walker):
    def __init__(self, answer, **changes):
        super().__init__(domain("blocksworld:2"))
        self.answer = answer
        vars(self).update(changes)

    def log_probabilities(self, prefixes):
        return np.full((len(prefixes), len(self.actions)), self.answer)


@pytest.mark.parametrize(
    ("predictor", "said"),
    [
        (Odd(math.nan), "not a number"),
        (Odd(-math.inf), "accepts no action"),
        (Odd(0.0, longest=1), "fewer than two actions"),
        (Odd(0.0, actions=["a"]), "at least two actions"),
        (Odd(0.0, actions=["a", "a"]), "at least two actions"),
    ],
)
def test_odd_predictors_are_refused(predictor, said):
    with pytest.raises(ValueError, match=said):
        extract(predictor, questions=20)


def test_a_predictor_that_accepts_everything_gives_a_model_without_atoms():
    made = extract(Odd(math.log(1 / 8)), questions=60)
    assert made.model.possible((1 << len(made.model.atoms)) - 1) == list(range(8))
    assert (made.agreement.rejected, made.agreement.share) == (0, 1.0)


def test_numbers_below_1_are_refused():
    for words in ({"questions": 0}, {"seconds": 0.0}, {"seconds": math.nan}):
        with pytest.raises(ValueError, match="at least 1"):
            extract(Walker(domain("simple")), **words)
