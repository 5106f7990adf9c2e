"""The table docs/recipe-costs.csv is what the recipes need."""

import csv
from pathlib import Path

import pytest
import torch

from statewise.config.recipes import recipe_names, recipe_text
from statewise.experiments.dry_run import STATE, Data, count_parameters, random_data, task_data
from statewise.model.building import make_objective, read_recipe
from statewise.training.schedule import Schedule

TABLE = Path(__file__).parents[1] / "docs" / "recipe-costs.csv"

SLOW = {"countdown", "city-small", *(name for name in recipe_names() if name.endswith("-fixed"))}
"""Recipes whose first step takes seconds to draw."""


def rows() -> dict[str, list[str]]:
    with TABLE.open() as file:
        _, *table = csv.reader(file)
    return {name: cells for name, *cells in table}


def test_every_recipe_is_listed_in_the_order_of_its_cost():
    assert set(rows()) == set(recipe_names())
    operations = [float(row[4]) for row in rows().values()]
    assert operations == sorted(operations)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in recipe_names()]
)
def test_a_recipe_needs_what_the_table_says(name):
    objective, parameters, batch, steps, operations, gigabytes, given = rows()[name]
    recipe = read_recipe(recipe_text(name), source=name)
    data: Data
    if given:
        vocabulary, length = (int(part.split("=")[1].replace(",", "")) for part in given.split(", "))
        data = random_data(recipe, vocabulary, length)
    else:
        data = task_data(recipe)
    with torch.device("meta"):
        model = make_objective(recipe, data)
    total = sum(count_parameters(model).values())
    taken = Schedule.of(recipe.trainer, data.context).steps
    assert objective == recipe.objective.name
    assert f"{total:,}" == parameters
    assert batch == f"{recipe.trainer.batch_size} x {data.context}"
    assert steps == f"{taken:,}"
    assert f"{taken * sum(model.flops(part) for part in data.parts):.1e}" == operations
    assert gigabytes == f"{STATE * total / 2**30:.2f}"
