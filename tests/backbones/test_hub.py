"""A model on a hub, which is here a server of this machine: loaded by its name, pinned by its commit, kept."""

import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from doubles import tiny_folder
from safetensors.torch import load_file, save_file

OLD, NEW = "a" * 40, "b" * 40
TRAIN = (
    "train path-star-small --backbone hf --backbone.model owner/tiny --backbone.lora.rank 2 --task.nodes 7 "
    "--task.held_out_graphs 4 --trainer.steps 1 --trainer.batch_size 2 --out run"
)

TRAIN_AND_EVALUATE = """
import os, sys, urllib.request
from statewise.cli import main

if main(sys.argv[1:]) == 0:
    urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/move")
    sys.exit(main(["evaluate", "run", "--num", "2"]) != 2)
sys.exit("not trained")
"""


@contextmanager
def hub(folder):
    """A server with `folder`/COMMIT/files as the model owner/tiny, whose branch `main` is at the commit OLD until
    somebody asks for /move."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.reply(False)

        def do_GET(self):
            self.reply(True)

        def reply(self, whole):
            match self.path.partition("?")[0].strip("/").split("/"):
                case ["api", "models", "owner", "tiny", *_]:
                    self.give(
                        json.dumps({"id": "owner/tiny", "sha": self.server.main}).encode(), self.server.main, whole
                    )
                case ["owner", "tiny", "resolve", revision, *path]:
                    commit = self.server.main if revision == "main" else revision
                    file = folder / commit / "/".join(path)
                    if file.is_file():
                        self.give(file.read_bytes(), commit, whole)
                    else:
                        self.refuse("EntryNotFound" if (folder / commit).is_dir() else "RevisionNotFound")
                case ["move"]:
                    self.server.main = NEW
                    self.give(b"", NEW, whole)
                case _:
                    self.refuse("RepoNotFound")

        def give(self, content, commit, whole):
            self.send_response(200)
            self.send_header("ETag", f'"{commit}-{len(content)}"')
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if whole:
                self.wfile.write(content)

        def refuse(self, what):
            self.send_response(404)
            self.send_header("X-Error-Code", what)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.main = OLD
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow  # two processes load transformers and peft, which takes five seconds
@pytest.mark.usefixtures("forked")
def test_a_model_of_the_hub_is_trained_on_with_its_commit(tmp_path):
    pytest.importorskip("peft")
    for commit in (OLD, NEW):
        shutil.copytree(tiny_folder(), tmp_path / "models" / commit)
    weights = tmp_path / "models" / NEW / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})
    with hub(tmp_path / "models") as server:
        there = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "home")}
        environment = {**os.environ, **there, "HF_HUB_OFFLINE": "0"}

        def python(*words, **variables):
            done = subprocess.run(
                [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, env={**environment, **variables}
            )
            assert "Traceback" not in done.stderr
            return done

        online = python("-c", TRAIN_AND_EVALUATE, *TRAIN.split())
        assert online.returncode == 0, online.stderr
        assert "commit aaaaaaaaaaaa" in online.stdout
        assert json.loads(Path(tmp_path, "run", "environment.json").read_text())["model_commit"] == OLD
        moved = "set backbone.revision in the run's config.json to the model_commit of its environment.json"
        assert moved in online.stderr
        recipe = Path(tmp_path, "run", "config.json")
        content = json.loads(recipe.read_text())
        content["backbone"]["revision"] = OLD
        recipe.write_text(json.dumps(content))
    gone = python("-m", "statewise", "evaluate", "run", "--num", "2", HF_HUB_OFFLINE="1")
    assert gone.returncode == 0, gone.stderr
