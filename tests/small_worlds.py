"""Small tasks whose true state is known, and untrained models of them."""

from __future__ import annotations

import json
from typing import Any

from doubles import spread_weights

from statewise.model.model import Model, new_model
from statewise.model.recipes import read_recipe

HMM = {"name": "hmm", "process": "mess3", "length": 8, "held_out_sequences": 64}
CITY = {"name": "manhattan", "rows": 4, "columns": 5, "max_moves": 12, "held_out_moves": 8, "held_out_rides": 40}


def model_of(task: dict[str, Any], objective: str = "next_token") -> Model:
    """A small model of a task, with spread weights."""
    recipe = {"task": task, "backbone": {"name": "gpt", "width": 16, "layers": 1, "heads": 2}, "objective": objective}
    model = new_model(read_recipe(json.dumps(recipe)))
    spread_weights(model.objective)
    return model
