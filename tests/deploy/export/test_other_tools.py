"""What docs/fine-tuning.md shows of other tools, on an exported model, where they are installed."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from doubles import small_corpus, spread_weights

from statewise.deploy.export.export import export
from statewise.model.model import new_model
from statewise.model.recipes import read_recipe

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[3] / "docs" / "fine-tuning.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which tuned/ is an exported model of text."""
    pytest.importorskip("transformers", reason="needs the extra hf")
    folder = tmp_path_factory.mktemp("tools")
    corpus = small_corpus(folder)
    recipe = {
        "task": {"name": "text", "path": str(corpus.folder), "context": 64},
        "backbone": {"name": "gpt", "width": 64, "heads": 2, "layers": 2},
        "objective": "next_latent",
    }
    model = new_model(read_recipe(json.dumps(recipe)))
    spread_weights(model.objective)
    export(model, folder / "tuned")
    return folder


def run(words, place):
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(package):
    """The block of the page that imports the package."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if package in code]
    return code


@pytest.mark.parametrize(
    ("package", "shown"),
    [("nnsight", r"torch.Size\(\[1, \d+, 64\]\) tensor"), ("transformer_lens", r"torch.Size\(\[1, \d+, 64\]\)")],
)
def test_the_example_in_python_runs(package, shown, place):
    code = example(package)
    assert re.search(shown, run([sys.executable, "-c", code], place))


TASK = """\
task: local
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{end}}}}"
metric_list: [{{metric: acc}}]
"""


def test_the_harness_scores_the_folder(place):
    """As the page says, on a task of two lines, since the page's own needs the network."""
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("needs lm_eval")
    (line,) = re.findall(r"^(lm_eval .*)$", PAGE.read_text(), re.MULTILINE)
    rows = [{"text": "Story 1: the cat saw", "end": " the boat,"}, {"text": "Story 2: a", "end": " dog"}]
    (place / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (place / "local.yaml").write_text(TASK.format(file=place / "rows.jsonl"))
    words = line.replace("arc_easy", "local").split()[1:]
    printed = run([sys.executable, "-m", "lm_eval", *words, "--include_path", str(place)], place)
    assert re.search(r"\|local\|.*acc", printed)
