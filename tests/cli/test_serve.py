"""The command itself: what it refuses, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from doubles import SMALL_RUN

from statewise.cli import main
from statewise.cli.served import names_of

pytestmark = pytest.mark.usefixtures("forked")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "stars"
    graphs = ["--task.held_out_graphs=20", "--trainer.steps=2", "--trainer.warmup_steps=0"]
    assert main(["train", "path-star-small", *SMALL_RUN, *graphs, "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}", "--host", "0.0.0.0"], "set a key with --api-key-file, or add --no-auth"),
        (["{run}", "{run}"], "two models have the name 'stars'"),
        (["{run}", "--port", "70000"], "--port must be at most 65535"),
        (["{run}", "--api-key", "a", "--api-key-file", "b"], "omit one"),
        (["{run}", "--api-key", ""], "the key is empty"),
        (["{run}", "--api-key", "schl\u00fcssel"], "printable ASCII characters only"),
        (["{run}", "--api-key", "two words"], "printable ASCII characters only"),
        (["{run}", "--allowed-host", "a.example:80"], "without a port, not 'a.example:80'"),
        (["{run}", "--cors-origin", "https://a.example/"], "without a path, not 'https://a.example/'"),
        (["n\udcff={run}"], "cannot be written"),
        (["n="], "is not a run directory"),
        (["{run}", "--draft", "some"], "must be a whole number or auto, not some"),
        (["{run}", "--draft", "4"], "drafts need a model that can guess several tokens ahead"),
        (["{run}", "--draft", "99999", "--drafter", "prompt_lookup"], "does not fit the context"),
        (["nothing-here"], "nothing-here"),
        ([], "RUN"),
    ],
)
def test_wrong_options_are_refused(run, capsys, words, message):
    port = [] if "--port" in words else ["--port", "0"]
    assert main(["serve", *(word.format(run=run) for word in words), *port]) == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_named(run, capsys):
    from statewise.deploy.serving.server import listen

    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(run), "--port", str(port)]) == 2
    assert f"127.0.0.1:{port}: Address already in use: choose another --port" in capsys.readouterr().err


def test_models_are_named_after_their_folders(tmp_path):
    (tmp_path / "odd=name").mkdir()
    named = names_of(["runs/a", "other=runs/a/", str(tmp_path / "odd=name")])
    assert named == {"a": "runs/a", "other": "runs/a/", "odd=name": str(tmp_path / "odd=name")}


def test_it_serves_until_it_is_told_to_stop_and_exits_with_0(run):
    command = [sys.executable, "-m", "statewise", "serve", f"stars={run}", "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "STATEWISE_SERVE_KEY": "secret"},
    ) as process:
        try:
            line = process.stdout.readline()
            url = re.search(r"^serving stars at (http://127.0.0.1:\d+)/v1;", line)[1]
            body = {"prompt": "0,1|1,2|2,3|0,4|4,5|5,6/0,3=", "max_tokens": 3, "stream": True}
            asked = urllib.request.Request(
                f"{url}/v1/completions", json.dumps(body).encode(), {"authorization": "Bearer secret"}
            )
            with urllib.request.urlopen(asked, timeout=60) as answer:
                process.send_signal(signal.SIGTERM)
                assert answer.read().endswith(b"data: [DONE]\n\n")
            assert process.wait(60) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
