"""What goes wrong on one connection, or in one pass of a model, is that request's alone."""

import json
import logging
import socket
import threading
import time

import pytest
from running_server import Running, read_answer, request, running, story_model, wait_until

PROMPT = "Once Ann had a"
LONG = {"prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return story_model(tmp_path_factory.mktemp("stories"), context=5000)


class Slowed:
    """The model's predictor, which can be made to wait, and to fail, at every pass."""

    def __init__(self, batch):
        self.predictor, self.gate, self.failing = batch.predictor, threading.Event(), None
        self.gate.set()
        batch.predictor = self

    def __getattr__(self, name):
        return getattr(self.predictor, name)

    def extend(self, *given):
        self.gate.wait(60)
        if self.failing is not None:
            failing, self.failing = self.failing, None
            raise failing
        time.sleep(0.001)
        return self.predictor.extend(*given)


def slowed(server) -> Slowed:
    return Slowed(server.engine.lanes["m"].batch)


def ask(server, body):
    """A connection that has asked, and whose answer has not been read."""
    connection = server.connect()
    connection.sendall(request("/v1/completions", json.dumps(body).encode()))
    return connection


def test_a_client_that_leaves_frees_its_row(model):
    with running({"m": model}) as server:
        slowed(server)
        for stream in (True, False):
            connection = ask(server, {**LONG, "stream": stream, "n": 2})
            wait_until(lambda: server.metric("statewise_num_requests_running") == 2)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # as a killed process
            connection.close()
            wait_until(lambda: server.metric("statewise_num_requests_running") == 0)
            wait_until(lambda: not server.engine.lanes["m"].batch.rows)  # removed before the next pass
        assert server.metric("statewise_requests_cancelled_total") == 2


def test_a_waiting_client_that_leaves_frees_the_queue(model):
    with running({"m": model}, max_rows=1, max_waiting=2) as server:
        gate = slowed(server).gate
        first = ask(server, LONG)
        wait_until(lambda: server.engine.lanes["m"].batch.live == 1)
        gate.clear()
        second, third = ask(server, LONG), ask(server, LONG)
        wait_until(lambda: len(server.engine.lanes["m"].batch.waiting) == 2)
        status, answer = server.post("/v1/completions", LONG)
        assert (status, answer["error"]["code"]) == (429, "queue_full")
        second.close()
        wait_until(lambda: len(server.engine.lanes["m"].batch.waiting) == 1)
        gate.set()
        first.close()
        third.close()
        wait_until(lambda: not server.engine.lanes["m"].busy)


def test_a_full_queue_says_when_to_come_back(model):
    with running({"m": model}, max_rows=1, max_waiting=1) as server:
        gate = slowed(server).gate
        first = ask(server, LONG)
        wait_until(lambda: server.engine.lanes["m"].batch.live == 1)
        gate.clear()
        second = ask(server, LONG)
        wait_until(lambda: len(server.engine.lanes["m"].batch.waiting) == 1)
        with ask(server, LONG) as connection:
            head = connection.recv(10_000)
        assert head.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 1" in head
        assert server.post("/v1/completions", {**LONG, "n": 2})[0] == 400  # more than may ever wait
        gate.set()
        first.close()
        second.close()


def test_a_slow_reader_keeps_nobody_waiting(model):
    with running({"m": model}) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", server.port))
        body = {**LONG, "stream": True, "n": 8, "max_tokens": 300}
        slow.sendall(request("/v1/completions", json.dumps(body).encode()))
        wait_until(lambda: server.engine.lanes["m"].batch.live == 8)
        assert server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 5})[0] == 200
        wait_until(lambda: not server.engine.lanes["m"].busy)  # its rows end although it has read nothing
        content = b""
        while part := slow.recv(65536):
            content += part
        assert content.count(b'"finish_reason":"length"') == 8
        assert b"data: [DONE]" in content


def test_slow_headers_and_bodies_are_given_up(model):
    with running({"m": model}, body_seconds=0.4) as server:
        for begun in (b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-a: "):
            with server.connect() as connection:
                connection.sendall(begun)
                status, answer = read_answer(connection)
                assert (status, answer["error"]["code"]) == (408, "header_timeout")
        with server.connect() as connection:  # also behind a request that was answered
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
            connection.sendall(b"GET /heal")
            assert read_answer(connection)[0] == 408
        whole = request("/v1/completions", json.dumps(LONG).encode())
        with server.connect() as connection:
            connection.sendall(whole[:-5])
            status, answer = read_answer(connection)
            assert (status, answer["error"]["code"]) == (408, "body_timeout")


def test_a_request_to_upgrade_is_answered_as_http_and_not_logged(model, monkeypatch):
    logged, handler = [], logging.Handler()
    handler.emit = logged.append
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    with running({"m": model}) as server, server.connect() as connection:
        connection.sendall(
            b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        )
        assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
    assert not [record for record in logged if record.name.startswith("uvicorn")]


def is_closed_after(connection, byte):
    """Whether the server has closed a connection that sends another byte."""
    try:
        connection.sendall(byte)
        return not connection.recv(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_body_that_nobody_reads_must_end_in_time_as_well(model):
    with running({"m": model}, body_seconds=0.3, key="secret") as server, server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n{")
        assert connection.recv(10_000).startswith(b"HTTP/1.1 401")
        connection.settimeout(0.02)
        wait_until(lambda: is_closed_after(connection, b" "))  # each byte comes soon after the last one


def test_a_client_that_never_reads_is_cut_off(model):
    server = Running({"m": model}, request_seconds=2)
    server.keep_little_unsent()
    server.start()
    connection = server.connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(request("/v1/embeddings", json.dumps({"input": [PROMPT] * 1000}).encode()))
    wait_until(lambda: server.server.server_state.connections)
    wait_until(lambda: not server.server.server_state.connections, seconds=20)
    connection.close()
    server.stop()


def test_a_request_that_takes_too_long_is_ended(model):
    with running({"m": model}, request_seconds=2) as server:
        gate = slowed(server).gate
        connection, stream = ask(server, LONG), ask(server, {**LONG, "stream": True})
        wait_until(lambda: server.engine.lanes["m"].batch.live == 2)
        gate.clear()
        assert read_answer(connection)[0] == 504
        content = read_answer(stream)[1]
        assert b'"code":"timeout"' in content
        assert b"[DONE]" not in content
        gate.set()
        wait_until(lambda: not server.engine.lanes["m"].busy)


def test_a_failing_model_fails_its_requests_and_the_server_lives(model):
    with running({"m": model}) as server:
        slow = slowed(server)
        connection, stream = ask(server, LONG), ask(server, {**LONG, "stream": True})
        wait_until(lambda: server.engine.lanes["m"].batch.live == 2)
        slow.failing = RuntimeError("[enforce fail] cannot allocate memory")
        status, answer = read_answer(connection)
        assert status == 500
        assert answer["error"]["type"] == "server_error"
        assert "cannot allocate memory" in answer["error"]["message"]
        assert b'"code":"model_failed"' in read_answer(stream)[1]
        assert server.get("/health")[0] == 200
        assert server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3})[0] == 200
        assert server.metric("statewise_model_failures_total") == 1
        slow.start = lambda *given: (_ for _ in ()).throw(ValueError("in a prompt"))
        assert server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3})[0] == 500
        del slow.start
        assert server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3})[0] == 200


def test_if_the_models_thread_dies_health_says_so(model):
    with running({"m": model}) as server:
        slow = slowed(server)
        connection = ask(server, LONG)
        wait_until(lambda: server.engine.lanes["m"].batch.live == 1)
        slow.failing = SystemExit(3)
        assert read_answer(connection)[0] == 500
        wait_until(lambda: not server.engine.alive)
        assert server.get("/health")[0] == server.get("/ready")[0] == 503
        status, answer = server.post("/v1/completions", LONG)
        assert (status, answer["error"]["code"]) == (503, "stopped")
        assert server.post("/v1/embeddings", {"input": PROMPT})[0] == 503


def test_a_server_that_is_told_to_stop_finishes_what_runs(model):
    server = Running({"m": model})
    server.start()
    gate = slowed(server).gate
    body = {**LONG, "max_tokens": 100}
    connection, stream = ask(server, body), ask(server, {**body, "stream": True})
    wait_until(lambda: server.engine.lanes["m"].batch.live == 2)
    gate.clear()
    held = server.connect()
    held.sendall(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert held.recv(10_000).startswith(b"HTTP/1.1 200")
    server.server.handle_exit(15, None)
    assert server.engine.draining
    gate.set()
    status, answer = read_answer(connection)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 100)
    assert b"data: [DONE]" in read_answer(stream)[1]
    server.join()
    with pytest.raises(OSError):  # noqa: PT011 -- refused, or reset
        server.connect()


def in_parts(server):
    """Requests whose work is done in many calls: their answers, once they come."""
    asked = [("/v1/embeddings", {"input": [PROMPT] * 200}), ("/v1/trace", {"prompt": PROMPT, "max_tokens": 60})]
    connections = []
    for path, body in asked:
        connections.append(server.connect())
        connections[-1].sendall(request(path, json.dumps(body).encode()))
    return connections


@pytest.mark.parametrize(("hurried", "status"), [(False, 200), (True, 503)])
def test_what_runs_in_parts_is_finished_too_but_not_after_a_second_signal(model, hurried, status):
    server = Running({"m": model}, prompt_tokens=8)
    server.start()
    began, go_on = threading.Event(), threading.Event()

    def hold():
        began.set()
        go_on.wait(60)

    server.engine.call("m", hold)
    began.wait(60)
    connections = in_parts(server)
    work = server.engine.lanes["m"].work
    wait_until(lambda: len(work) == 2)
    server.server.handle_exit(15, None)
    if hurried:
        server.server.handle_exit(15, None)
        wait_until(lambda: not work)
    go_on.set()
    answers = [read_answer(connection) for connection in connections]
    assert [found for found, _ in answers] == [status, status], answers
    if hurried:
        assert {answer["error"]["code"] for _, answer in answers} == {"shutting_down"}
    server.join()


def test_vectors_take_no_longer_than_allowed_and_end_with_their_client(model):
    with running({"m": model}, prompt_tokens=8, request_seconds=0.5) as server:
        go_on = threading.Event()
        server.engine.call("m", lambda: go_on.wait(60))
        connections = in_parts(server)
        assert [read_answer(connection)[0] for connection in connections] == [504, 504]
        go_on.set()
    with running({"m": model}, prompt_tokens=8) as server:
        go_on = threading.Event()
        server.engine.call("m", lambda: go_on.wait(60))
        connections, work = in_parts(server), server.engine.lanes["m"].work
        wait_until(lambda: len(work) == 2)
        for connection in connections:
            connection.close()
        go_on.set()
        wait_until(lambda: server.metric("statewise_requests_cancelled_total") == 2)


def test_what_does_not_finish_in_time_is_told(model):
    server = Running({"m": model}, drain_seconds=0.2)
    server.start()
    slowed(server)
    connection, stream = ask(server, LONG), ask(server, {**LONG, "stream": True})
    wait_until(lambda: server.engine.lanes["m"].batch.live == 2)
    server.stop()
    status, answer = read_answer(connection)
    assert (status, answer["error"]["code"]) == (503, "shutting_down")
    assert b'"code":"shutting_down"' in read_answer(stream)[1]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("", 401),
        ("authorization: Bearer wrong\r\n", 401),
        ("authorization: Basic secret\r\n", 401),
        ("authorization: Bearer secret\r\n", 200),
        ("authorization: bearer secret\r\n", 200),
        ("authorization: Bearer secret\r\nauthorization: Bearer wrong\r\n", 400),
        ("authorization: Bearer wrong\r\nauthorization: Bearer secret\r\n", 400),
    ],
)
def test_keys_are_needed(model, headers, status):
    with running({"m": model}, key="secret") as server:
        assert server.get("/v1/models", headers)[0] == server.get("/metrics", headers)[0] == status
        assert server.post("/v1/completions", {"prompt": PROMPT}, headers)[0] == status
        assert server.get("/health")[0] == server.get("/ready")[0] == 200


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:80", None, 200),
        ("[::1]:80", None, 200),
        ("localhost", None, 200),
        ("good.example", None, 200),
        ("evil.example", None, 403),
        ("127.0.0.1.evil.example", None, 403),
        ("[::1", None, 403),
        ("", None, 403),
        ("localhost:8000", "http://localhost:8000", 200),
        ("localhost:8000", "http://localhost:9000", 403),
        ("localhost", "https://evil.example", 403),
        ("localhost", "null", 403),
        ("localhost", "http://[", 403),
        ("localhost", "https://friend.example", 200),
    ],
)
def test_other_sites_are_kept_out(model, host, origin, status):
    with running({"m": model}, hosts=("good.example",), origins=("https://friend.example",)) as server:
        more = "" if origin is None else f"origin: {origin}\r\n"
        content = f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n".encode()
        with server.connect() as connection:
            connection.sendall(content)
            head = connection.recv(10_000).lower()
        assert head.startswith(f"http/1.1 {status}".encode())
        assert (b"access-control-allow-origin: https://friend.example" in head) == (origin == "https://friend.example")


def test_memory_of_requests_is_given_back(model):
    with running({"m": model}) as server:
        for number in range(60):
            assert server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3 + number % 5})[0] == 200
        batch = server.engine.lanes["m"].batch
        wait_until(lambda: not batch.busy)
        assert batch._cursor is None
        assert not server.engine._to_wake
