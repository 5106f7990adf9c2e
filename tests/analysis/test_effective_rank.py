import dataclasses
import json
import re
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from doubles import (
    SMALL_RUN,
    FixedTask,
    MarkovPredictor,
    random_examples,
    spread_weights,
    subject,
    tiny_belief_slots,
    tiny_gpt,
    tiny_objective,
    tiny_recurrent,
)

from statewise.analysis import ANALYSES, make_analysis
from statewise.analysis.base import Findings, Snapshot
from statewise.analysis.beliefs.vectors import beliefs
from statewise.analysis.effective_rank import effective_rank
from statewise.cli import main
from statewise.runtime.messages import explained, percent
from statewise.tasks.batches import collate


def test_equal_values_count_fully_and_tiny_ones_not():
    assert effective_rank(np.array([2.0, 2.0, 2.0, 1e-13])) == pytest.approx(3.0)
    assert effective_rank(np.array([5.0])) == pytest.approx(1.0)
    p = np.array([0.7, 0.2, 0.1])
    assert effective_rank(10 * p) == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    with pytest.raises(ValueError, match="no effective rank"):
        effective_rank(np.zeros(3))


def test_the_spectrum_has_a_logarithmic_axis_without_zeros():
    examples = random_examples(np.random.default_rng(0), n=5)
    rank = len({*examples.tokens[:, :1].ravel().tolist()})
    assert rank < 11
    found = make_analysis("effective-rank", positions=1).analyze(
        subject(MarkovPredictor(torch.full((11, 11), 1 / 11)), FixedTask(examples))
    )
    (panel,) = found.panels
    assert panel.log_y
    assert panel.curves[0].x == [float(place) for place in range(1, rank + 1)]
    assert min(panel.curves[0].y) > 0


def test_one_hot_states_have_the_spectrum_of_their_counts():
    examples = random_examples(np.random.default_rng(0), n=30)
    real = np.arange(examples.tokens.shape[1]) < examples.lengths[:, None]
    for positions in (4, 256):
        seen = examples.tokens[:, :positions][real[:, :positions]]
        counts = np.sqrt(np.bincount(seen, minlength=11))  # singular values of a matrix of one-hot rows
        found = make_analysis("effective-rank", positions=positions).analyze(
            subject(MarkovPredictor(torch.full((11, 11), 1 / 11)), FixedTask(examples))
        )
        assert found.metrics["effective_rank"] == pytest.approx(effective_rank(counts), rel=1e-6)
        assert found.metrics["states"] == len(seen)


def test_of_multi_token_prediction_the_first_head_has_the_rank_and_the_trunk_the_beliefs():
    predictor = tiny_objective("multi_token", horizon=2).predictor()
    task = FixedTask(random_examples(np.random.default_rng(0), n=6))
    batch = collate(task.held_out())
    state, readout = (part[batch.real].numpy() for part in predictor.states(batch))
    found = make_analysis("effective-rank").analyze(subject(predictor, task)).metrics["effective_rank"]
    of_state, of_readout = (effective_rank(np.linalg.svd(part, compute_uv=False)) for part in (state, readout))
    assert found == pytest.approx(of_readout, rel=1e-4)
    assert abs(of_state - of_readout) > 0.01
    found = beliefs(Snapshot("", predictor), task.held_out(), "all").vectors
    np.testing.assert_allclose(found, state, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("make", [partial(tiny_recurrent, cell="lstm"), tiny_belief_slots], ids=["lstm", "slots"])
def test_of_states_with_more_than_the_last_layer_that_layer_has_the_rank(make):
    objective = tiny_objective("next_token", make_backbone=make)
    spread_weights(objective)
    predictor = objective.eval().predictor()
    task = FixedTask(random_examples(np.random.default_rng(0), n=6))
    batch = collate(task.held_out())
    state, readout = predictor.states(batch)
    assert state.shape[-1] > readout.shape[-1]
    found = make_analysis("effective-rank").analyze(subject(predictor, task)).metrics
    last = readout[batch.real].numpy()
    assert found["width"] == last.shape[1]
    assert found["effective_rank"] == pytest.approx(effective_rank(np.linalg.svd(last, compute_uv=False)), rel=1e-4)


@pytest.mark.parametrize(
    "make", [tiny_gpt, partial(tiny_recurrent, cell="lstm"), tiny_belief_slots], ids=["gpt", "lstm", "slots"]
)
def test_tokens_after_the_first_positions_are_not_read(make):
    objective = tiny_objective("next_token", make_backbone=make)
    spread_weights(objective)
    predictor = objective.eval().predictor()
    examples = random_examples(np.random.default_rng(0), n=6)
    batch = collate(examples)
    assert batch.tokens.shape[1] > 5
    first = predictor.states(batch).readout[:, :5][batch.real[:, :5]].numpy()
    read = []
    predictor.states = lambda part, states=predictor.states: (read.append(part.tokens.shape[1]), states(part))[1]
    found = make_analysis("effective-rank", positions=5).analyze(subject(predictor, FixedTask(examples))).metrics
    assert read == [5]
    assert found["states"] == len(first)
    assert found["effective_rank"] == pytest.approx(effective_rank(np.linalg.svd(first, compute_uv=False)), rel=1e-4)


QUICK = {name: ["--training_sequences=40", "--steps=4"] if name.endswith("probe") else [] for name in ANALYSES}
QUICK |= {"gradient-ratio": ["--furthest=4", "--sequences=2"], "restricted-state": ["--keep=2"]}
QUICK |= {"compression": ["--trials=3"], "distinction": ["--trials=3"], "detours": ["--probabilities=0.5"]}
QUICK |= {"inductive-bias": ["--datasets=3", "--examples=20", "--training_sequences=40"]}
QUICK |= {"map": ["--sequences=5"], "belief-dynamics": ["--sequences=20"]}
QUICK |= {"strips-extract": ["--questions=30", "--seconds=2", "--test_traces=20"]}
QUICK |= {"suffixes": ["--prefixes=10", "--samples=2"]}
QUICK |= {"rollout-drift": ["--sequences=10", "--steps=3"]}
STAR = "path-star-small --task.held_out_graphs 40"
CITY = "city-small --task.rows 5 --task.columns 5 --task.held_out_rides 10"
RECIPES = dict.fromkeys(("compression", "distinction", "detours", "map"), CITY)
BELIEFS = "hmm-mess3 --task.held_out_sequences 20 --task.length 5"
RECIPES |= {"belief-geometry": BELIEFS, "belief-dynamics": f"{BELIEFS} --objective next_latent"}
RECIPES |= dict.fromkeys(("rollout-drift", "dynamics-accuracy"), f"{STAR} --objective next_latent")
RECIPES |= {"inductive-bias": "s3 --task.length 8 --task.longest 8 --task.held_out_sequences 40 --backbone gpt"}
RECIPES |= {"slot-trace": "recall-small --task.held_out_sequences 40"}
RECIPES |= {"answer-from-state": f"{STAR} --objective belief_state --objective.experts 2"}
RECIPES |= {"suffixes": "sequences-small --task.path LETTERS"}
RECIPES |= {"strips-extract": "strips-traces --task.domain blocksworld:3 --task.max_length 8 --task.held_out_traces 20"}
RECIPES |= {"equations": "countdown-small --task.held_out_problems 40"}
RECIPES |= dict.fromkeys(("restricted-state", "fetch"), f"{STAR} --backbone two_stream --backbone.window 2")


PROBES = ["accuracy", "accuracy_untrained", "accuracy_constant"]
STATED = {
    "answer-from-state": ["answer_accuracy", "decoded_answer_accuracy"],
    "belief-dynamics": ["r2_dynamics", "r2_beyond", "r2_backbone"],
    "belief-geometry": ["r2", "r2_held_out", "r2_untrained", "r2_next_token"],
    "compression": ["sequence_compression", "valid_continuations"],
    "detours": ["detours_random_0.5", "sequences"],
    "distinction": ["distinction_precision", "distinction_recall"],
    "dynamics-accuracy": ["dynamics", "backbone"],
    "effective-rank": ["effective_rank", "width"],
    "equations": ["accuracy", "equation_1_valid", "num"],
    "fetch": ["fetch", "fetch_uniform", "fetch_layer", "fetch_head"],
    "future-probe": PROBES,
    "gradient-ratio": ["input_mean"],
    "inductive-bias": [f"accuracy{of}" for of in ("", "_untrained", "_next_tokens", "_true_state")],
    "map": ["new_streets", "true_streets", "rides", "valid_rides"],
    "prompt-probe": PROBES,
    "restricted-state": ["rise", "loss", "restricted_loss"],
    "rollout-drift": ["step_1_greedy", "step_3_greedy"],
    "slot-trace": ["gain", "loss", "fresh_loss"],
    "strips-extract": ["test_accuracy", "fidelity", "questions"],
    "suffixes": [
        f"{what}{than}" for what in ("suffix_similarity", "remaining_steps_error") for than in ("", "_last_symbol")
    ],
    "world-probe": PROBES,
}
"""The metrics whose figures an analysis's verdict states: the finding, then what it is compared with."""
NOTHING = {
    "compression": r"^None of 90 continuations .* nothing can be said",
    "map": "none of 5 rides is readable",
    "distinction": "distinguishes none by any continuation",
}
"""Said instead where a model after two steps of training gives nothing to measure."""


def states(verdict, value):
    """Whether one of the figures of a verdict is `value`, as far as its digits go."""
    for figure, sign in re.findall(r"(\d+(?:\.\d+)?(?:e-?\d+)?)(%?)", verdict.replace(",", "")):
        digits = len(figure.partition(".")[2])
        if abs(float(figure) - abs(value) * (100 if sign else 1)) <= 0.5 * 10**-digits + 1e-9:
            return True
    return value <= 0 and "explain" in verdict and "none" in verdict


def assert_verdict(name, report):
    verdict = report["verdict"]
    assert re.fullmatch(r"[A-Z][^\n]*\.", verdict), verdict
    if name in NOTHING and re.search(NOTHING[name], verdict):
        return
    for metric in STATED[name]:
        assert states(verdict, report["metrics"][metric]), (metric, report["metrics"][metric], verdict)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.0, "0%"),
        (0.0003, "less than 0.1%"),
        (0.004, "0.4%"),
        (0.864, "86%"),
        (0.996, "99.6%"),
        (0.99996, "more than 99.9%"),
        (1.0, "100%"),
        (float("nan"), "an undefined share"),
    ],
)
def test_a_share_is_never_said_to_be_all_or_nothing_unless_it_is(share, said):
    assert percent(share) == said
    assert explained(-share) == ("none" if share >= 0 else said)


@pytest.mark.parametrize("verdict", ["", " ", "Two\nlines."])
def test_findings_need_a_sentence(verdict):
    with pytest.raises(ValueError, match="must be one sentence on one line, not "):
        Findings({}, [], verdict=verdict)


@pytest.mark.parametrize("name", list(ANALYSES))
def test_every_analysis_runs_on_a_run_and_leaves_data_and_a_picture(name, trained, tmp_path, capsys):
    letters = tmp_path / "letters.txt"
    letters.write_text("a b c\nb c a\nc b a b\na a\nb b c\n" * 3)
    words = [str(letters) if word == "LETTERS" else word for word in RECIPES.get(name, STAR).split()]
    run = shutil.copytree(trained(*words, *SMALL_RUN, "--trainer.steps=2"), tmp_path / "run")
    capsys.readouterr()
    assert main(["analyze", str(run), name, *QUICK[name], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((run / "reports" / f"{name}.json").read_text()) == printed
    assert all(np.isfinite(value) for value in printed["metrics"].values())
    assert_verdict(name, printed)
    picture = run / "reports" / f"{name}.png"
    assert picture.exists() == bool(printed["panels"])
    if name == "map":
        assert "no ride is readable, so there are no plots" in printed["notes"], "after two steps of training"
    elif printed["panels"]:
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["analyze", str(run), "efective-rank"]) == 2
    assert "did you mean effective-rank" in capsys.readouterr().err
    field = dataclasses.fields(ANALYSES[name].Config)[0].name
    assert main(["analyze", str(run), name, f"--{field}x", "4"]) == 2
    assert f"did you mean {field}" in capsys.readouterr().err
    assert main(["analyze", str(run), name, "--help"]) == 0
    assert f"--{field} " in capsys.readouterr().out
