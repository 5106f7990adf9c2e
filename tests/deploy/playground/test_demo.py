"""The models that the package ships are what its page says of them."""

import pytest

from statewise.deploy.playground import demo
from statewise.deploy.playground.page import page
from statewise.model.model import load_model
from statewise.run import Run

MOST = 1.5e6


@pytest.mark.parametrize(
    ("name", "least", "most"), [("next-token", 0.28, 0.39), ("next-latent", 0.99, 1), ("belief-state", 0.99, 1)]
)
def test_shipped_models_load_and_are_at_chance_or_solve_the_branch(name, least, most):
    model = load_model(demo.runs()[name], device="cpu")
    found = model.evaluate(num=500, details=False).metrics["branch_accuracy"]
    assert least <= found <= most
    recorded = [record for record in Run(demo.folder() / name).metrics() if record["kind"] == "evaluation"]
    assert least <= recorded[-1]["branch_accuracy"] <= most


def test_the_recorded_page_shows_these_models_at_the_branch():
    star, beliefs, city = demo.recorded()["groups"]
    assert [model["name"] for model in star["models"]] == list(demo.MODELS)
    first = [one["traces"] for one in star["recordings"]]
    for name, sure in (("next-token", False), ("next-latent", True), ("belief-state", True)):
        places = [traces[name]["places"][traces[name]["prompt"]] for traces in first]
        likeliest = [place["next"][0][1] for place in places]
        assert all((logp > -0.3) == sure for logp in likeliest)
    quality = {model["name"]: model["reading"]["quality"] for model in beliefs["models"]}
    assert quality["RRXOR, untrained"] < 0.5 < quality["RRXOR, next-token"] < 0.95 < quality["RRXOR, next-latent"]
    assert quality["Mess3, untrained"] > 0.9
    crossing = {model["name"]: model["reading"]["quality"] for model in city["models"]}
    assert crossing["untrained"] < 0.5 < 0.7 < crossing["trained"]
    assert all(trace["scene"]["streets"] for one in city["recordings"] for trace in one["traces"].values())
    assert b"Star graph" in page(demo.recorded())


def test_what_is_shipped_is_small():
    assert sum(path.stat().st_size for path in demo.folder().rglob("*") if path.is_file()) < MOST
