"""The loss in five training loops: each step's loss is that of a step of `statewise train`, with the same weights and
data, and few lines are ours."""

import re
import sys

import pytest
import torch
from doubles import VOCABULARY, tiny_folder, tiny_objective
from pages import example, run_code

from statewise.batch import Batch
from statewise.losses import NextLatentLoss

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

STEPS, RATE, WIDTH = 10, 0.01, 16
ROWS = list(torch.randint(VOCABULARY, (4 * STEPS, 12), generator=torch.Generator().manual_seed(0)))
LOOPS = {"own_trainer": "transformers", "own_trl": "trl", "own_lightning": "lightning", "own_accelerate": "accelerate"}


def model_of():
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_folder())


def start_loss():
    """The loss as every loop makes it first, from this seed."""
    torch.manual_seed(2)
    return NextLatentLoss(WIDTH, horizon=2)


@pytest.fixture(scope="module")
def ours():
    """The losses of our own steps."""
    from doubles import tiny_hf

    objective = tiny_objective("next_latent", backbone={"standardised_state": False}, make_backbone=tiny_hf, horizon=2)
    objective.dynamics.load_state_dict(start_loss().dynamics.state_dict())
    optimizer = torch.optim.AdamW(objective.parameters(), RATE, weight_decay=0)
    losses = []
    for step in range(STEPS):
        tokens = torch.stack(ROWS[4 * step : 4 * step + 4])
        batch = Batch.plain(tokens)
        scored = torch.ones_like(tokens, dtype=torch.bool)
        scored[:, 0] = False
        loss = objective(batch._replace(scored=scored, span=(1, tokens.shape[1]))).value()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    return losses


def test_a_plain_loop_takes_our_steps(ours):
    model, latent = model_of(), start_loss()
    optimizer = torch.optim.AdamW([*model.parameters(), *latent.parameters()], RATE, weight_decay=0)
    losses = []
    for step in range(STEPS):
        tokens = torch.stack(ROWS[4 * step : 4 * step + 4])
        hidden = model.model(tokens).last_hidden_state
        out = latent(hidden, tokens, head_weight=model.lm_head.weight, embedding=model.get_input_embeddings())
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        losses.append(out.loss.item())
    assert losses == pytest.approx(ours, abs=1e-6)


@pytest.mark.parametrize(("name", "package"), LOOPS.items())
def test_a_trainer_takes_our_steps(ours, name, package, tmp_path):
    pytest.importorskip(package, reason=f"needs pip install {package}")
    train = run_code(example(name), f"{name}.py", {"__name__": name})["train"]
    model = model_of()
    torch.manual_seed(2)
    folder = [str(tmp_path)] if name in ("own_trainer", "own_trl") else []
    assert train(model, ROWS, STEPS, RATE, *folder) == pytest.approx(ours, abs=1e-6)


def test_a_trainer_of_trl_takes_our_steps_without_logits(ours, tmp_path):
    """As docs/own-training-loop.md has it, without the argument that TRL gives up and the pass for its figures."""
    trl = pytest.importorskip("trl", reason="needs pip install trl")

    class BeliefTrainer(trl.SFTTrainer):
        compute_loss = transformers.Trainer.compute_loss

    def make(*given, compute_loss_func, **named):
        trainer = BeliefTrainer(*given, **named)
        trainer.compute_loss_func = compute_loss_func
        return trainer

    names = run_code(example("own_trl"), "own_trl.py", {"__name__": "own_trl"})
    loss_for = names["loss_for"]
    names |= {"SFTTrainer": make, "loss_for": lambda *given, **named: loss_for(*given, logits=False, **named)}
    model = model_of()
    torch.manual_seed(2)
    assert names["train"](model, ROWS, STEPS, RATE, str(tmp_path)) == pytest.approx(ours, abs=1e-6)


@pytest.mark.parametrize("name", ["own_loop", *LOOPS])
def test_at_most_eight_lines_are_for_statewise(name):
    lines = example(name).splitlines()
    marked = [line for line in lines if line.endswith("# statewise")]
    assert 1 <= len(marked) <= 8
    ours = re.compile(
        r"\b(import .*Loss|loss_for\(|with_loss\(|NextLatentLoss\(|latent\(|compute_loss_func|head_weight=)"
    )
    assert not [line for line in lines if ours.search(line) and line not in marked]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "package"), LOOPS.items())
def test_the_examples_run(name, package, capsys):
    pytest.importorskip(package, reason=f"needs pip install {package}")
    main = run_code(example(name), f"{name}.py", {"__name__": name})["main"]
    assert main() < 1  # ln 8 = 2.08 is chance
    assert "at last" in capsys.readouterr().out
    assert "statewise.losses" in sys.modules
