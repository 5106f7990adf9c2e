"""Any objective goes with any world: it trains on its rides and problems, packed or not, and answers are scored."""

import numpy as np
import pytest
import torch

from statewise.config.recipes import recipe_text
from statewise.model.model import new_model
from statewise.model.recipes import read_recipe
from statewise.objectives import OBJECTIVES
from statewise.tasks.batches import Stream

CITY = [
    "--task.rows=5",
    "--task.columns=5",
    "--task.max_moves=20",
    "--task.held_out_moves=9",
    "--task.held_out_rides=8",
]
WORLDS = {
    "rides": ("city-small", CITY, "valid_trajectories"),
    "packed rides": ("city-small", [*CITY, "--task.row=60"], "next_token_test"),
    "countdown": ("countdown-small", ["--task.held_out_problems=20"], "equation_1_valid"),
}


@pytest.mark.parametrize("world", [pytest.param("rides", marks=pytest.mark.slow), "packed rides", "countdown"])
@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_every_objective_learns_every_world(objective, world):
    recipe, flags, metric = WORLDS[world]
    small = ["--backbone.width=16", "--backbone.heads=2", "--backbone.layers=2", f"--objective={objective}"]
    model = new_model(read_recipe(recipe_text(recipe), [*flags, *small]))
    stream = Stream(model.task, seed=1, batch_size=8)
    optimiser = torch.optim.Adam(model.objective.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = model.objective(stream.batch(0)).value()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    evaluation = model.evaluate(num=4)
    assert metric in evaluation.metrics
    assert all(np.isfinite(value) for value in evaluation.metrics.values())
