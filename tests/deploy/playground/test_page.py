"""The page is one file that loads nothing, and whatever it holds is no markup."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from command_line import called
from doubles import path_star_model
from running_server import story_model
from small_worlds import model_of

from statewise.deploy.playground import demo
from statewise.deploy.playground.page import by_task, export, page, policy, record
from statewise.deploy.serving.served import Served

HOSTILE = "</script><script>alert(1)</script><!-- {{ script }}\u2028"


def elements(content, name):
    return re.findall(rf"<{name}[^>]*>(.*?)</{name}>", content, flags=re.DOTALL)


@pytest.mark.parametrize("recorded", [None, {"models": [], "recordings": [], "text": HOSTILE}])
def test_nothing_is_loaded_and_only_its_own_script_runs(recorded):
    content = page(recorded).decode()
    data, script = elements(content, "script")
    (style,) = elements(content, "style")
    assert json.loads(data) == recorded
    assert set(re.findall(r"https?://[^\"' )]*", content)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(?:script|img|link|iframe)[^>]*\s(?:src|href)=(?!\"data:)", content)
    assert "innerHTML" not in script
    assert "eval(" not in script
    for text in (script, style):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy()
    (meta,) = re.findall(r"Content-Security-Policy\" content=\"([^\"]*)", content) or [""]
    assert ("default-src 'none'" in meta) == (recorded is not None)
    assert "connect-src" not in meta
    assert "{{" not in re.sub(r"\{\{ script \}\}", "", data)
    assert not re.search(r"\{\{ \w+ \}\}", script + style)


def test_the_page_in_the_docs_is_of_this_version():
    """`statewise demo --export docs/playground-demo.html --overwrite` writes it."""
    shown = Path(__file__).parents[3] / "docs" / "playground-demo.html"
    assert page(demo.recorded()) == shown.read_bytes()


@pytest.fixture(scope="module")
def run(two_steps):
    return two_steps


def test_the_export_holds_traces_of_the_models_side_by_side(capsys, run, tmp_path):
    path = tmp_path / "page.html"
    words = ["playground", f"one={run}", f"other={run}", "--export", path, "--examples", "2", "--seed", "3"]
    code, out, err = called(capsys, *words)
    assert (code, f"wrote {path}" in out) == (0, True), err
    (data,) = json.loads(elements(path.read_text(), "script")[0])["groups"]
    assert [model["name"] for model in data["models"]] == ["one", "other"]
    first, second = data["recordings"]
    assert first["prompt"] != second["prompt"]
    assert set(first["traces"]) == {"one", "other"}
    traces = first["traces"]
    assert {**traces["one"], "model": ""} == {**traces["other"], "model": ""}
    before = path.read_bytes()
    assert called(capsys, *words, "--overwrite")[0] == 0
    assert path.read_bytes() == before
    assert "only " not in out
    code, out, err = called(capsys, *words, "--overwrite", "--examples", "100000")
    assert (code, "prompts are held out" in out) == (0, True), err


def test_prompts_of_an_export_fit_the_shortest_context(tmp_path):
    models = [
        Served(
            str(longest),
            model_of(
                {"name": "automaton", "process": "parity", "length": 8, "longest": longest, "held_out_sequences": 60}
            ),
        )
        for longest in (24, 12)
    ]
    for order in (models, models[::-1]):
        shortest = min(one.context for one in order)
        found = record(order, 30, seed=0)
        assert found["recordings"]
        for recording in found["recordings"]:
            for trace in recording["traces"].values():
                assert len(trace["places"]) <= shortest


def test_what_cannot_be_shown_is_refused_with_a_sentence(capsys, run, tmp_path):
    mine = tmp_path / "mine.html"
    mine.write_text("<h1>years of work</h1>")
    (tmp_path / "no-run").mkdir()
    for words, message in [
        ([run, "--export", tmp_path / "none" / "page.html"], "is not a folder: create it, or choose another --export"),
        ([run, "--export", mine], "exists: choose another --export, or give --overwrite"),
        ([run, "--export", mine, "--overwrite"], "is not a page that statewise wrote"),
        ([run, "--export", tmp_path], "is a folder: --export names a file"),
        ([tmp_path / "no-run"], "is not a run directory: it has no config.json"),
        ([run, run], "two models have the name"),
        ([run, "--examples", "0", "--export", "x.html"], "--examples must be at least 1"),
        ([run, "--port", "70000"], "--port must be at most 65535"),
        ([], "RUN"),
    ]:
        code, _, err = called(capsys, "playground", *words)
        assert (code, message in err) == (2, True), err
    assert mine.read_text() == "<h1>years of work</h1>"


def test_models_of_different_tasks_are_groups(tmp_path):
    models = [Served("one", path_star_model()), Served("other", story_model(tmp_path))]
    models.append(Served("same", path_star_model("next_latent")))
    assert [[one.name for one in group] for group in by_task(models)] == [["one", "same"], ["other"]]
    path = tmp_path / "page.html"
    assert export(models, path, 2, 0) == 2
    groups = json.loads(elements(path.read_text(), "script")[0])["groups"]
    assert [group["name"] for group in groups] == ["path_star", "stories"]
    assert [set(group["recordings"][1]["traces"]) for group in groups] == [{"one", "same"}, {"other"}]
