"""Pages of reports in a real browser."""

from dataclasses import asdict

import numpy as np
import pytest
from doubles import make_run

from statewise.reporting.drawings import save_page
from statewise.reporting.figures import Drawing, Layer, Points
from statewise.reporting.grouping import compare
from statewise.reporting.report import write_report
from statewise.run import Run

pytestmark = pytest.mark.slow
PAINTED = """canvas => [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]
  .filter((value, index) => index % 4 === 3 && value > 0).length"""
"""Pixels that something is drawn on."""


def drawings(planes=("beliefs",)):
    """Of each plane true beliefs, predictions, and twelve steps; then a map."""
    rng = np.random.default_rng(0)
    found = []
    for plane in planes:
        titles = {"plane": plane, "x_title": "axis 1", "y_title": "axis 2"}
        shown = [(f"{plane}: true", {"true": True}), (f"{plane}: untrained", {})]
        shown += [(f"{plane}: step {step}", {"step": step}) for step in range(12)]
        for place, (title, fields) in enumerate(shown):
            places = (rng.random((50, 2)) * (1 + place)).tolist()
            points = Points(places, ["#203080"] * 50, [f"prefix {row}" for row in range(50)])
            found.append(Drawing(title, [], [points], **titles, **fields))
    streets = [[[0.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [2.0, 0.0]]]
    return [*found, Drawing("map", [Layer("true", streets, ["a street", "another"]), Layer("new", [], [], True)])]


def opened(browser, path, **options):
    """The page and what it reported as wrong."""
    page, problems = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options}), []
    page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(path.as_uri())
    return page, problems


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 800}}])
def test_many_drawings_are_all_painted_and_the_slider_shows_each_step(browser, tmp_path, options):
    path = tmp_path / "page.html"
    save_page(drawings([f"factor {place}" for place in range(8)]), path, "run")
    page, problems = opened(browser, path, **options)
    canvases = page.locator("canvas")
    assert canvases.count() == 8 * 3 + 1
    assert all(canvases.nth(place).evaluate(PAINTED) > 100 for place in range(canvases.count()))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    plot = page.locator(".drawing", has=page.locator("input")).first
    assert plot.locator("h3").text_content() == "factor 0: step 11"
    before = plot.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    plot.locator("input").fill("3")
    assert plot.locator("h3").text_content() == "factor 0: step 3"
    assert plot.locator("canvas").evaluate("canvas => canvas.toDataURL()") != before
    assert problems == []


def test_a_drawing_is_enlarged_moved_and_names_what_the_mouse_is_on(browser, tmp_path):
    path = tmp_path / "page.html"
    save_page(drawings()[-1:], path, "map")
    page, problems = opened(browser, path)
    canvas, tip = page.locator("canvas"), page.locator(".tip")
    box = canvas.bounding_box()
    picture = "canvas => canvas.toDataURL()"
    whole = canvas.evaluate(picture)
    page.mouse.move(box["x"] + 0.264 * box["width"] + 4, box["y"] + box["height"] / 2 - 4)  # of the line
    assert tip.is_visible()
    assert tip.text_content() == "a street"
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    enlarged = canvas.evaluate(picture)
    assert enlarged != whole
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 60, box["y"] + box["height"] / 2 + 30, steps=3)
    page.mouse.up()
    assert canvas.evaluate(picture) != enlarged
    page.get_by_role("button", name="Show all").click()
    assert canvas.evaluate(picture) == whole
    assert problems == []


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_the_report_of_a_comparison_fits_and_can_be_read(browser, tmp_path, look):
    runs = [make_run(tmp_path / name, 1, 0.5, name) for name in ("next_token", "next_latent")]
    for folder in runs:
        drawn = [asdict(drawing) for drawing in drawings()]
        Run(folder).write_report(
            "map", {"checkpoint": 10, "settings": {}, "metrics": {}, "main": [], "panels": [], "drawings": drawn}
        )
    path = write_report(compare(runs, metrics="all"), tmp_path / "report")[-1]
    options = {"viewport": {"width": 390, "height": 800}} if look == "phone" else {}
    page, problems = opened(browser, path, color_scheme="dark" if look == "dark" else "light", **options)
    assert page.locator("svg.panel").count() == 3
    assert all(box["width"] <= 560 for box in (one.bounding_box() for one in page.locator("svg.panel").all()))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    canvases = page.locator(".drawing canvas")
    assert canvases.count() == 2 * 4
    assert all(canvases.nth(place).evaluate(PAINTED) > 100 for place in range(canvases.count()))
    colours = page.evaluate("""() => [getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector('svg.panel text')).fill]""")
    back, ink = (sum(map(int, colour.strip("rgb()").split(","))) for colour in colours)
    assert abs(back - ink) > 400
    assert (back < 200) == (look == "dark")
    assert problems == []
