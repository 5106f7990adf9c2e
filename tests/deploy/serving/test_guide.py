"""What the guide of the server shows works as it stands, but for the port."""

import json
import re
import shlex
import shutil
import subprocess

import pytest
import torch
from pages import blocks, page, run_code
from running_server import running, story_model

PAGE = "docs/serving.md"
DEFAULT = "127.0.0.1:8000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stories")


@pytest.fixture(scope="module")
def server(folder):
    with running({"bst": story_model(folder, "belief_state", experts=2), "nl": story_model(folder)}) as made:
        yield made


def test_curl_gets_a_completion(server):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    (line,) = (line for block in blocks(PAGE, "sh") for line in block.splitlines())
    words = shlex.split(line.replace(DEFAULT, f"127.0.0.1:{server.port}"))
    done = subprocess.run([*words, "--silent"], capture_output=True, check=True, timeout=60)
    answer = json.loads(done.stdout)
    (expected,) = server.models["bst"].generate(["Once"], goal=" the end.", limit=40, decoder="greedy")
    assert len(expected.tokens) == answer["usage"]["completion_tokens"] == 40


def test_the_openai_package_gets_completions_and_vectors(server, capsys):
    (code,) = blocks(PAGE, "python")
    run_code(code.replace(DEFAULT, f"127.0.0.1:{server.port}"), "serving.md")
    *_, last = capsys.readouterr().out.splitlines()
    assert last.endswith("16")


@pytest.mark.slow
def test_lm_evaluation_harness_gets_the_figures_of_statewise_lm_eval(folder, tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    pytest.importorskip("tenacity", reason="its client needs lm_eval[api]")
    from lm_eval.tasks import TaskManager

    from statewise.evaluation.zero_shot import harness

    story = "Once Ann had a kite and 3 stars. They ran. Tim was happy."
    rows = {
        "mine": [
            {"context": f"Once {name} had a", "choices": ["kite", "big red boat", "cat"], "answer": place % 3}
            for place, name in enumerate(["Ann", "Böb", "Zoë", "Tim", "Ann and Tim " * 60])
        ],
        "whole": [{"text": story}, {"text": story[5:30]}, {"text": f"{story} " * 30}],
        "told": [{"text": given, "answer": "kite"} for given in (story[:20], "Zoë", f"{story} " * 30)],
    }
    kinds = {
        "mine": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{context}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": metric, "aggregation": "mean"} for metric in ("acc", "acc_norm")],
        },
        "whole": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}, {"metric": "word_perplexity"}],
        },
        "told": {
            "output_type": "generate_until",
            "doc_to_text": "{{text}}",
            "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": [".", "e"], "max_gen_toks": 12},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, records in rows.items():
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        options = {"data_files": {"test": str(data)}, "cache_dir": str(tmp_path / "cache")}
        fields = {"task": name, "dataset_path": "json", "test_split": "test", "dataset_kwargs": options, **kinds[name]}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(fields))  # JSON is YAML
    (command,) = re.findall(r"lm_eval --model local-completions.*?```", page(PAGE), flags=re.DOTALL)
    given = re.search(r"--model_args (\S+)", command)[1]
    model = story_model(folder)
    assert model.predictor().context == 160  # the page's example is of this context
    with torch.no_grad():
        own = harness.run(model.predictor(), model.task, harness.find(list(rows), tmp_path), limit=None, batch=4)
    with running({"nl": model}) as server:
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args=given.replace(DEFAULT, f"127.0.0.1:{server.port}"),
            tasks=list(rows),
            task_manager=TaskManager(include_path=str(tmp_path)),
            bootstrap_iters=0,
            log_samples=True,
        )
        assert server.metric("statewise_batch_rows_count") > 0 or server.metric("statewise_prompt_tokens_total") > 0
    assert own["counts"]["in_pieces"] == own["counts"]["cut_prompts"] == 1
    assert own["counts"]["cut"] == 3
    for name, report in own["benchmarks"].items():
        theirs = found["results"][name]
        compared = [metric for metric in report["metrics"] if "stderr" not in metric]
        assert compared
        for metric in compared:
            (value,) = [theirs[key] for key in theirs if key.split(",")[0] == metric.split(",")[0]]
            assert value == pytest.approx(report["metrics"][metric], rel=1e-6), (name, metric)
