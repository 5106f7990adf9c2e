"""A server in a thread of the test process, and raw connections to it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from doubles import small_stories, spread_weights

from statewise.deploy.playground.routes import OPEN_PATHS, routes
from statewise.deploy.serving.app import create_app
from statewise.deploy.serving.engine import Engine
from statewise.deploy.serving.metrics import Metrics
from statewise.deploy.serving.served import Served
from statewise.deploy.serving.server import Server, listen
from statewise.deploy.serving.settings import ServerSettings
from statewise.model.model import Model, new_model
from statewise.model.recipes import read_recipe


def story_model(
    folder: Path, objective: str = "next_token", encoding: str = "plain", context: int = 160, **fields: Any
) -> Model:
    """A small untrained model of stories in float64; `fields` are those of the objective."""
    path = folder / "stories.txt"
    path.write_text(small_stories(40))
    recipe = {
        "task": {"name": "stories", "path": str(path), "vocabulary": 300, "context": context, "encoding": encoding},
        "backbone": {"name": "gpt", "width": 16, "heads": 2, "layers": 1},
        "objective": {"name": objective, **fields},
    }
    model = new_model(read_recipe(json.dumps(recipe)))
    spread_weights(model.objective)
    model.objective.double()
    return model


class Running:
    """A server that runs."""

    def __init__(self, models: dict[str, Model], **settings: Any) -> None:
        served = [Served(name, model) for name, model in models.items()]
        self.models = models
        self.engine = Engine(served, ServerSettings(**settings), Metrics())
        self.server = Server(self.engine, create_app(self.engine, routes=routes(served), open_paths=OPEN_PATHS))
        self._socket = listen("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._socket]})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def keep_little_unsent(self) -> None:
        """Makes the system's buffers of answers small. Call it before `start`."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def start(self) -> None:
        self.engine.start()
        self._thread.start()
        wait_until(lambda: self.server.started)

    def stop(self) -> None:
        self.server.handle_exit(15, None)
        self.join()

    def join(self) -> None:
        """Waits for the end of a server that was told to stop."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.engine.stop()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def send(self, content: bytes) -> tuple[int, Any]:
        """What is answered to raw bytes: the status, and the body as JSON."""
        with self.connect() as connection:
            connection.sendall(content)
            return read_answer(connection)

    def post(self, path: str, body: Any, headers: str = "") -> tuple[int, Any]:
        return self.send(request(path, body if isinstance(body, bytes) else json.dumps(body).encode(), headers))

    def get(self, path: str, headers: str = "") -> tuple[int, Any]:
        return self.send(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n\r\n".encode())

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.engine.metrics.text().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split()[0] == name)


def request(path: str, body: bytes, headers: str = "") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{headers}\r\n"
    )
    return head.encode() + body


def read_answer(connection: socket.socket) -> tuple[int, Any]:
    content = b""
    while part := connection.recv(65536):
        content += part
    head, _, body = content.partition(b"\r\n\r\n")
    try:
        return int(head.split()[1]), json.loads(body)
    except ValueError:
        return int(head.split()[1]), body


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


@contextmanager
def running(models: dict[str, Model], **settings: Any) -> Iterator[Running]:
    made = Running(models, **settings)
    made.start()
    try:
        yield made
    finally:
        made.stop()
