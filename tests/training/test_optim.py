import copy
import itertools

import pytest
import torch
from doubles import tiny_objective

from statewise.config.trainer import TrainerConfig
from statewise.training.optim import learning_rate, load_state_by_name, make_optimizer, state_by_name
from statewise.training.schedule import Schedule


def rates(**fields):
    config = TrainerConfig(**{"learning_rate": 1.0, "warmup_steps": 4, "steps": 20, **fields})
    schedule = Schedule.of(config, row_length=10)
    return [learning_rate(step, config, schedule) for step in range(schedule.steps)]


def test_linear_warms_up_stays_and_decays():
    found = rates(decay_share=0.25, final_rate=0.1)
    assert found[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert found[4:16] == [1.0] * 12
    assert found[15:] == pytest.approx([1.0, 0.82, 0.64, 0.46, 0.28])


@pytest.mark.parametrize("course", [{"decay_share": 0.25, "final_rate": 0.1}, {"schedule": "cosine"}])
def test_a_budget_of_tokens_gives_the_rates_of_as_many_steps(course):
    in_tokens = {"batch_size": 8, "tokens": 20 * 8 * 10, "warmup_tokens": 4 * 8 * 10, "steps": 3, "warmup_steps": 1}
    assert rates(**in_tokens, **course) == rates(**course)
    cut_short = {**in_tokens, "tokens": 19 * 8 * 10 + 1, "warmup_tokens": 3 * 8 * 10 + 1}  # rounded up to whole steps
    assert rates(**cut_short, **course) == rates(**course)


def test_a_warm_up_may_be_counted_apart_from_the_length():
    assert Schedule.of(TrainerConfig(steps=7, batch_size=2, warmup_tokens="1k"), 100) == Schedule(7, 5)
    assert Schedule.of(TrainerConfig(steps=5, decay_share=0.01), 100).decay_steps == 1, "a share is never nothing"
    assert Schedule.of(TrainerConfig(steps=5), 100).decay_steps == 0
    assert Schedule.of(TrainerConfig(tokens="1k", batch_size=2, warmup_steps=3), 100) == Schedule(5, 3)
    assert Schedule.of(TrainerConfig(tokens="2B", warmup_tokens=0, batch_size=96), 4096) == Schedule(5087, 0)


def test_the_weights_of_other_losses_decay_at_the_end():
    schedule = Schedule.of(TrainerConfig(steps=12, warmup_steps=0, auxiliary_decay_share=1 / 3), 10)
    assert [schedule.auxiliary_factor(step) for step in range(13)] == [1.0] * 9 + [0.75, 0.5, 0.25, 0.0]
    kept = Schedule.of(TrainerConfig(steps=3, warmup_steps=0), 10)
    assert [kept.auxiliary_factor(step) for step in range(3)] == [1.0] * 3
    with pytest.raises(ValueError, match="auxiliary_decay_share must be at least 0 and at most 1"):
        TrainerConfig(auxiliary_decay_share=1.5)


@pytest.mark.parametrize(("steps", "share"), [(4, "100%"), (3, "75%"), (1, "25%")])
def test_a_warm_up_that_never_ends_is_noted(steps, share):
    schedule = Schedule.of(TrainerConfig(steps=steps, warmup_steps=4), 10)
    (note,) = schedule.notes
    assert f"the warm-up of 4 steps lasts for all {steps} steps" in note
    assert f"to {share} of trainer.learning_rate" in note
    assert rates(steps=steps)[-1] == pytest.approx(float(share.rstrip("%")) / 100)
    assert not Schedule.of(TrainerConfig(steps=5, warmup_steps=4), 10).notes
    assert not Schedule.of(TrainerConfig(steps=5, warmup_steps=0), 10).notes


def test_a_warm_up_that_ends_within_the_decay_is_noted():
    fields = {"steps": 100, "warmup_steps": 50, "decay_share": 0.9}
    (note,) = Schedule.of(TrainerConfig(**fields), 10).notes
    assert "the warm-up of 50 steps ends within the decay over the last 90 of 100" in note
    assert rates(**fields)[49:51] == pytest.approx([1.0, 50 / 90])  # what the note is about
    for other in ({"decay_share": 0.5}, {"warmup_steps": 10}, {"schedule": "cosine", "decay_share": 0.0}):
        assert not Schedule.of(TrainerConfig(**{**fields, **other}), 10).notes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"final_rate": 0.1}, "final_rate has no effect without a decay: set decay_share"),
        ({"schedule": "cosine", "decay_share": 0.2}, "decay_share belongs to the schedule linear: set it to 0"),
    ],
)
def test_fields_of_a_schedule_that_would_do_nothing_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        TrainerConfig(**fields)


def kept(keep, last=100):
    schedule = Schedule.of(TrainerConfig(keep=keep, steps=last), 10)
    return [step for step in range(last + 1) if schedule.keeps(step)]


def test_steps_to_keep_are_listed_regular_or_spaced_by_their_logarithm():
    assert kept(None) == []
    assert kept(7) == [7]
    assert kept("0, 10,99") == kept([0, 10, 99]) == [0, 10, 99]
    assert kept("every:30") == [30, 60, 90]
    assert kept("log:3") == [1, 10, 100]
    assert kept(["0", "log:2", "every:50"]) == [0, 1, 50, 100]
    assert len(kept("log:1000")) == 100


@pytest.mark.parametrize(
    "keep", ["", "every:0", "log:1", "log:1001", -1, "1.5", "10-20", "every:x", [0, "x"], "9" * 13]
)
def test_steps_to_keep_that_make_no_sense_are_refused(keep):
    with pytest.raises(ValueError, match=r"trainer.keep: expected steps such as 0,10,100, every:N"):
        TrainerConfig(keep=keep)


def test_without_a_decay_the_rate_stays():
    assert rates(decay_share=0.0)[4:] == [1.0] * 16


def test_cosine_falls_to_the_final_rate():
    found = rates(schedule="cosine", final_rate=0.1)
    assert found[4] == pytest.approx(1.0)
    assert found[12] == pytest.approx(0.55)
    assert 0.1 < found[-1] < 0.12
    assert all(a >= b for a, b in itertools.pairwise(found[4:]))


def test_decay_touches_matrices_alone():
    objective = tiny_objective("next_latent", backbone={"bias": True, "norm": "layer"})
    groups = make_optimizer(objective, TrainerConfig(weight_decay=0.3)).param_groups
    decayed, kept = ({id(p) for p in group["params"]} for group in groups)
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    for name, parameter in objective.named_parameters():
        vector = "norm" in name or name.endswith("bias")
        assert (id(parameter) in kept) == vector, name
        assert (id(parameter) in decayed) != vector, name
    assert isinstance(make_optimizer(objective, TrainerConfig()), torch.optim.AdamW)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_restored_moments_lie_in_memory_like_their_parameters(optimizer):
    """Fused kernels read them from end to end, whatever their strides."""
    objective = tiny_objective("next_token")
    one, two = (make_optimizer(objective, TrainerConfig(optimizer=optimizer)) for _ in range(2))
    for parameter in objective.parameters():
        parameter.grad = torch.ones_like(parameter)
    one.step()
    state = copy.deepcopy(state_by_name(one, objective))
    assert state["never_updated"] == []
    for kept in state["state"].values():
        kept |= {kind: torch.tensor(3.0).expand(t.shape) for kind, t in kept.items() if kind != "step"}
    load_state_by_name(two, objective, state)
    for parameter, kept in two.state.items():
        moments = [tensor for kind, tensor in kept.items() if kind != "step"]
        assert moments
        for tensor in moments:
            assert tensor.stride() == parameter.stride()
            assert (tensor == 3.0).all()


def test_parameters_without_a_gradient_so_far_have_no_state_and_others_must():
    objective = tiny_objective("next_token")
    one, two = (make_optimizer(objective, TrainerConfig()) for _ in range(2))
    load_state_by_name(two, objective, state_by_name(one, objective))  # before the first step
    names = [name for name, _ in objective.named_parameters()]
    objective.get_parameter(names[0]).grad = torch.ones_like(objective.get_parameter(names[0]))
    one.step()
    state = state_by_name(one, objective)
    assert set(state["never_updated"]) == set(names[1:])
    load_state_by_name(two, objective, state)
    assert len(two.state) == 1
    with pytest.raises(ValueError, match=f"state of {names[0]} is missing"):
        load_state_by_name(two, objective, {**state, "state": {}})
