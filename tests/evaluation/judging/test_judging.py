"""Judging against a server of our own on this machine: one that answers well, badly, late, or not at all."""

import gzip
import json
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from scipy import stats

from statewise.cli import counter, main
from statewise.evaluation.judging.files import judge_files
from statewise.evaluation.judging.judgements import (
    INSTRUCTIONS,
    NEEDED,
    VERDICT_FORM,
    Judge,
    JudgementRequest,
    Pair,
    judge,
    questions,
    summarise,
)
from statewise.reporting.statistics import wilson
from statewise.runtime.ledger import Ledger
from statewise.runtime.messages import to_install
from statewise.runtime.progress import listening

pytestmark = pytest.mark.usefixtures("forked")


def longer_wins(question):
    """A judge that goes by length, wherever the story stands."""
    first, second = question.removeprefix("Story 1:").split("Story 2:")
    first, second = len(first.strip()), len(second.strip())
    return f"I looked.\n\n**VERDICT: {1 if first > second else 2 if second > first else 'EQUAL'}**\n"


class Server:
    """Answers with `answer(question)`; the first requests get what `before` lists: a status, headers, or a pause."""

    def __init__(self, answer=longer_wins, before=()):
        self.answer, self.before = answer, list(before)
        self.questions, self.requests, self.times = [], [], []
        self.most, self.now = 0, 0
        self.lock = threading.Lock()
        self.stopped, self.left, self.sent = threading.Event(), threading.Event(), 0

    def handle(self, handler):
        with self.lock:
            self.times.append(time.monotonic())
            self.now += 1
            self.most = max(self.most, self.now)
            what = self.before.pop(0) if self.before else {}
        try:
            body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in handler.headers.items()}
            self.requests.append((handler.path, headers, body))
            if "hang" in what:
                self.stopped.wait(what["hang"])
            if "status" in what:
                said = what.get("said", {"error": {"message": "no luck"}})
                return self.send(handler, what["status"], said, what.get("headers", {}))
            if "endless" in what:
                return self.send_endlessly(handler, what)
            if "raw" in what:
                return self.send(handler, 200, what["raw"], {})
            question = body["messages"][1]["content"]
            self.questions.append(question)
            message = {"role": "assistant", "content": self.answer(question)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            reply = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
            return self.send(handler, 200, reply, {})
        finally:
            with self.lock:
                self.now -= 1

    def send_endlessly(self, handler, what):
        """Sends parts until whoever asked has left, or the test is over; `sent` counts their bytes."""
        if what.get("within") == "headers":
            handler.send_response(200)
            handler.flush_headers()
        else:
            handler.send_response(200)
            for name, value in {"Content-Type": "application/json", **what.get("headers", {})}.items():
                handler.send_header(name, value)
            handler.end_headers()
        try:
            while not self.stopped.wait(what.get("pause", 0)):
                handler.wfile.write(what["endless"])
                handler.wfile.flush()
                self.sent += len(what["endless"])
        finally:
            self.left.set()

    def send(self, handler, status, content, headers):
        text = json.dumps(content).encode() if isinstance(content, dict) else content.encode()
        handler.send_response(status)
        kind = "application/json" if isinstance(content, dict) else "text/html"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(text)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(text)


@contextmanager
def serving(server):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            try:
                server.handle(self)
            except (BrokenPipeError, ConnectionResetError):  # whoever asked has given up
                self.close_connection = True

        def log_message(self, *_):
            return

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.daemon_threads = True
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_port}/v1"
    finally:
        server.stopped.set()
        found.shutdown()
        thread.join()
        found.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("STATEWISE_JUDGE_KEY", raising=False)
    monkeypatch.setattr(
        "openai._base_client.INITIAL_RETRY_DELAY", 0.02, raising=False
    )  # the package's backoff, in small


def rows(completions, **more):
    return [{"prompt": f"Once {n} ", "completion": text, "goal": " End.", **more} for n, text in enumerate(completions)]


def write(path, content):
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return str(path)


@pytest.fixture
def files(tmp_path):
    """Four pairs: a is longer, b is longer, alike, a is longer."""
    return [
        write(tmp_path / "mine.jsonl", rows(["long long", "x", "same", "longer"])),
        write(tmp_path / "other.jsonl", rows(["short", "yyyyy", "emas", "x"])),
    ]


def judged(capsys, files, url, out, *words, model="m"):
    code = main(
        [
            "judge",
            *files,
            "--url",
            url,
            "--model",
            model,
            "--out",
            str(out),
            "--retries",
            "3",
            "--timeout",
            "10",
            *words,
        ]
    )
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out, captured.err


def ledger(out):
    return [json.loads(line) for line in out.read_text().splitlines()][1:]


def test_every_pair_is_judged_six_times_nameless_and_in_both_orders(capsys, tmp_path, files, monkeypatch):
    monkeypatch.setattr(counter, "LINE_SECONDS", 0.0)
    server, out = Server(), tmp_path / "judged.jsonl"
    with serving(server) as url:
        code, text, err = judged(capsys, files, url, out)
    assert code == 0
    assert len(server.questions) == 24
    assert server.questions.count("Story 1:\n\nOnce 0 long long End.\n\nStory 2:\n\nOnce 0 short End.") == 3
    assert server.questions.count("Story 1:\n\nOnce 0 short End.\n\nStory 2:\n\nOnce 0 long long End.") == 3
    path, _, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["model"] == "m"
    assert body["messages"][0] == {"role": "system", "content": INSTRUCTIONS}
    assert not any(word in json.dumps(server.requests) for word in ("mine", "other.jsonl"))
    assert len({(row["story"], row["first"], row["repeat"]) for row in ledger(out)}) == 24
    summary = json.loads((tmp_path / "judged.summary.json").read_text())
    assert summary["judgements"] == {"a": 12, "b": 6, "equal": 6, "unreadable": 0}
    assert summary["win_rate"]["value"] == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert summary["win_rate"]["of"] == 4
    assert {key: summary["majority"][key] for key in ("a", "b", "tie")} == {"a": 2, "b": 1, "tie": 1}
    assert summary["first_shown"] == 0.5  # this judge does not look at the place
    assert "24 judgements of 4 stories" in text
    assert "24/24 judgements" in err


def test_the_key_comes_from_its_own_variable_and_nothing_else_is_told(capsys, tmp_path, files, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "private")
    server = Server()
    with serving(server) as url:
        judged(capsys, files, url, tmp_path / "one.jsonl")
        assert "private" not in json.dumps(server.requests)
        server.requests.clear()
        monkeypatch.setenv("STATEWISE_JUDGE_KEY", "secret\n")
        judged(capsys, files, url, tmp_path / "two.jsonl")
    assert {headers["authorization"] for _, headers, _ in server.requests} == {"Bearer secret"}
    assert "secret" not in (tmp_path / "two.jsonl").read_text()


def test_nonsense_is_counted_and_never_dropped(capsys, tmp_path, files):
    def answer(question):
        return "They are both nice." if "Once 1" in question else "" if "Once 3" in question else longer_wins(question)

    out = tmp_path / "judged.jsonl"
    with serving(Server(answer)) as url:
        code, text, _ = judged(capsys, files, url, out)
        assert code == 0
        again = judged(capsys, files, url, out)[1]  # an answer without a verdict is an answer: not asked for again
    assert again == text
    summary = json.loads((tmp_path / "judged.summary.json").read_text())
    assert summary["judgements"] == {"a": 6, "b": 0, "equal": 6, "unreadable": 12}
    assert summary["unjudged"] == 2
    assert summary["win_rate"]["of"] == 2
    assert "12 unreadable" in text
    assert "2 stories have no readable judgement" in text
    assert sum(row["answer"] == "They are both nice." for row in ledger(out)) == 6
    assert len(summary["unreadable_answers"]) == 12
    assert summary["unreadable_answers"][1] == {
        "story": 2,
        "repeat": 1,
        "first": "b",
        "last_line": "They are both nice.",
    }
    mine, other = files
    assert f"  story 2, {mine} first, judgement 1: 'They are both nice.'\n  story 2, {other} first, judgement 1" in text
    assert f"  story 4, {mine} first, judgement 1: empty answer" in text
    assert text.count(" first, judgement ") == 10
    assert "and 2 more, in the summary file" in text


def test_the_judge_is_told_what_a_file_says_and_always_how_to_answer(capsys, tmp_path, files):
    server, out, own = Server(), tmp_path / "judged.jsonl", tmp_path / "own.txt"
    own.write_text("Which one rhymes?\n\n")
    words = ["--instructions", str(own), "--temperature", "0"]
    with serving(server) as url:
        assert judged(capsys, files, url, out, *words)[0] == 0
        told = server.requests[0][2]
        assert told["messages"][0]["content"] == f"Which one rhymes?\n\n{VERDICT_FORM}"
        assert told["temperature"] == 0
        assert "temperature was 0.0, is 1.0" in judged(capsys, files, url, out, *words[:3], "1")[2]
        assert "temperature was 0.0, is not set" in judged(capsys, files, url, out, *words[:2])[2]
        own.write_text("Which one is longer?")
        assert "instructions was" in judged(capsys, files, url, out, *words)[2]
        server.requests.clear()
        assert judged(capsys, files, url, tmp_path / "plain.jsonl")[0] == 0
        assert "temperature" not in server.requests[0][2]
    summary = json.loads((tmp_path / "judged.summary.json").read_text())
    assert (summary["instructions"], summary["temperature"]) == (f"Which one rhymes?\n\n{VERDICT_FORM}", 0.0)
    own.write_text(" \n")
    assert "own.txt: the instructions are empty" in judged(capsys, files, "http://x", tmp_path / "x.jsonl", *words)[2]
    own.write_bytes(b"\xff\xfe")
    assert "own.txt: byte 0: not UTF-8 text" in judged(capsys, files, "http://x", tmp_path / "x.jsonl", *words)[2]
    assert "must be at least 0, not -1" in judged(capsys, files, "http://x", out, "--temperature", "-1")[2]
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("Fine.\nVERDICT: 1", "b"),
        ("verdict: 2\n\n", "a"),
        ("**Verdict: Story 2**", "a"),
        ("VERDICT: 1\nVERDICT: EQUAL.", "equal"),
        ("VERDICT: 1\nThat is all.", None),
        ("VERDICT: 1 or 2", None),
        ("VERDICT: 3", None),
        ("VERDICT: 12", None),
        ("1", None),
        ("", None),
    ],
)
def test_verdicts_are_read_off_the_last_line(answer, verdict):
    assert JudgementRequest(1, "b", 1).verdict(answer) == verdict


def test_a_busy_or_broken_server_is_asked_again(capsys, tmp_path, files):
    server = Server(before=[{"status": 500}, {"status": 429, "headers": {"Retry-After": "0.5"}}, {"status": 503}])
    with serving(server) as url:
        code, _, _ = judged(capsys, files, url, tmp_path / "judged.jsonl", "--jobs", "1")
    assert code == 0
    assert len(server.requests) == 24 + 3
    assert server.times[2] - server.times[1] >= 0.5  # as long as it asked for


def test_an_answer_that_is_too_large_is_not_read_to_its_end(capsys, tmp_path, files):
    server = Server(before=[{"endless": b" " * 65536}] * 50)
    with serving(server) as url:
        code, _, err = judged(capsys, files, url, tmp_path / "out.jsonl", "--jobs", "1", "--max-answer", "500000")
        assert server.left.wait(30)  # the connection was closed
    assert (code, len(server.requests)) == (2, 1)
    assert f"{url} answers with more than 500,000 bytes" in err
    assert server.sent < 20_000_000  # what the system's buffers hold on top


@pytest.mark.parametrize(
    "what", [{"endless": b" ", "pause": 0.02}, {"endless": b"x-a: b\r\n", "pause": 0.02, "within": "headers"}]
)
def test_an_answer_must_be_complete_before_the_deadline(capsys, tmp_path, files, what):
    """Each part comes well within --timeout."""
    server = Server(before=[what] * 50)
    with serving(server) as url:
        code, _, err = judged(capsys, files, url, tmp_path / "out.jsonl", "--jobs", "1", "--deadline", "0.5")
    assert (code, len(server.requests)) == (2, 1)
    assert f"{url} did not complete its answer within 0.5 seconds" in err


def test_a_compressed_answer_is_not_unpacked(capsys, tmp_path, files):
    bomb = gzip.compress(b" " * 10_000_000)
    server = Server(before=[{"endless": bomb, "headers": {"Content-Encoding": "gzip"}}] * 50)
    with serving(server) as url:
        code, _, err = judged(capsys, files, url, tmp_path / "out.jsonl", "--jobs", "1", "--max-answer", "100000")
    assert code == 2
    assert "answers with more than 100,000 bytes" in err
    assert server.requests[0][1]["accept-encoding"] == "identity"


def test_a_server_that_hangs_is_given_up_in_bounds(capsys, tmp_path, files):
    server = Server(before=[{"hang": 30}])
    with serving(server) as url:
        words = ("--timeout", "1", "--jobs", "1")
        assert judged(capsys, files, url, tmp_path / "judged.jsonl", *words)[0] == 0
    assert len(server.requests) > 24
    assert len(ledger(tmp_path / "judged.jsonl")) == 24
    server = Server(before=[{"hang": 30}] * 50)
    with serving(server) as url:
        words = ("--timeout", "0.1", "--retries", "2", "--jobs", "1")
        code, _, err = judged(capsys, files, url, tmp_path / "late.jsonl", *words)
    assert code == 2
    assert "timed out 3 times" in err
    assert "0 judgements are in" in err


@pytest.mark.parametrize(
    "said",
    [
        {"error": {"message": "no such model"}},
        {"error": "no such model"},
        {"detail": "no such model"},
        {"object": "error", "message": "no such model"},
        "<p>no such\nmodel\x1b</p>",
    ],
)
def test_the_message_of_a_server_is_shown_in_whatever_form(capsys, tmp_path, files, said):
    with serving(Server(before=[{"status": 404, "said": said}] * 9)) as url:
        code, _, err = judged(capsys, files, url, tmp_path / "judged.jsonl")
    assert code == 2
    assert "refuses: Error code: 404" in err
    assert "no such model" in err
    assert "\x1b" not in err


def test_a_folder_is_no_place_for_judgements(capsys, tmp_path, files, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (tmp_path, ".", ".."):
        code, _, err = judged(capsys, files, "http://127.0.0.1:9", out)
        assert (code, "is a folder: --out names a file" in err) == (2, True), err


def test_what_cannot_be_helped_stops_and_the_rest_is_kept(capsys, tmp_path, files):
    out = tmp_path / "judged.jsonl"
    server = Server(before=[{}] * 5 + [{"status": 401}])
    with serving(server) as url:
        code, _, err = judged(capsys, files, url, out, "--jobs", "1")
        assert code == 2
        assert "refuses: Error code: 401" in err
        assert f"5 judgements are in {out}: the same command continues from there" in err
        assert len(server.requests) == 6  # not tried again, and nothing after it
        assert not (tmp_path / "judged.summary.json").exists()
        assert judged(capsys, files, url, out)[0] == 0
    assert len(server.requests) == 25  # what was judged was not asked for again
    assert len(ledger(out)) == 24
    server = Server(before=[{"status": 500}] * 50)
    with serving(server) as url:
        code, _, err = judged(capsys, files, url, tmp_path / "broken.jsonl", "--jobs", "1")
    assert code == 2
    assert "still busy or broken after retries: Error code: 500" in err
    assert len(server.requests) == 4
    with serving(Server()) as url:
        pass  # a server that is gone
    code, _, err = judged(capsys, files, url, tmp_path / "gone.jsonl", "--retries", "0")
    assert code == 2
    assert "cannot be reached" in err


def said(content):
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


OTHER_REPLIES = ["<html>Welcome</html>", {"object": "list"}, {"choices": []}, {"choices": {}}, "[" * 100_000]


@pytest.mark.parametrize("reply", [*OTHER_REPLIES, said(3), said(["A"]), said({"text": "A"}), said(True)])
def test_a_server_of_another_kind_is_named(capsys, tmp_path, files, reply):
    with serving(Server(before=[{"raw": reply}] * 50)) as url:
        code, _, err = judged(capsys, files, url, tmp_path / "judged.jsonl")
    assert code == 2
    assert "does not answer in the chat protocol" in err


def test_an_answer_that_was_cut_within_a_character_is_kept_readable(capsys, tmp_path, files):
    out, cut = tmp_path / "judged.jsonl", "cut emoji \ud83d\nVERDICT: 1"
    with serving(Server(before=[{"raw": said(cut)}, {"status": 401}])) as url:
        assert judged(capsys, files, url, out, "--jobs", "1")[0] == 2
    assert [record["answer"] for record in ledger(out)] == ["cut emoji ?\nVERDICT: 1"]
    with serving(Server()) as url:
        assert judged(capsys, files, url, out)[0] == 0


def test_requests_under_way_are_kept_when_another_fails(capsys, tmp_path, files):
    out = tmp_path / "judged.jsonl"
    server = Server(before=[{"hang": 0.4}, {"hang": 0.4}, {"status": 401}])
    with serving(server) as url:
        code, _, _ = judged(capsys, files, url, out, "--jobs", "3")
    assert code == 2
    assert server.most <= 3
    assert len(ledger(out)) == len(server.questions) >= 2


def test_a_torn_line_is_judged_again_and_a_changed_file_is_refused(capsys, tmp_path, files):
    out = tmp_path / "judged.jsonl"
    server = Server()
    with serving(server) as url:
        judged(capsys, files, url, out)
        before = json.loads((tmp_path / "judged.summary.json").read_text())
        out.write_bytes(out.read_bytes()[:-40])
        server.questions.clear()
        assert judged(capsys, files, url, out)[0] == 0
        assert len(server.questions) == 1
        assert json.loads((tmp_path / "judged.summary.json").read_text()) == before

        content = out.read_text()
        code, _, err = judged(capsys, files, url, out, model="another")
        assert code == 2
        assert "model was m, is another: choose another --out" in err
        assert "repeats was 3, is 2" in judged(capsys, files, url, out, "--repeats", "2")[2]
        write(tmp_path / "mine.jsonl", rows(["long long", "x", "same", "changed"]))
        code, _, err = judged(capsys, files, url, out)
        assert code == 2
        assert "files was" in err
        assert out.read_text() == content
        for text, message in (
            ("hello\n", ":1: not JSON"),
            ("{}\n", "not a judging f"),
            ("torn", "not a judging f"),
            (content.splitlines()[0] + "\n[1]\n", ":2: not a judging record"),
        ):
            out.write_text(text)
            code, _, err = judged(capsys, files, url, out)
            assert code == 2
            assert message in err
            assert out.read_text() == text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_stopped_or_killed_it_goes_on_where_it_was(capsys, tmp_path, files, number, code):
    server, out = Server(before=[{"hang": 0.05}] * 4 + [{"hang": 60}] * 2), tmp_path / "judged.jsonl"
    words = [sys.executable, "-m", "statewise", "judge", *files, "--model", "m", "--jobs", "2", "--out", str(out)]
    with serving(server) as url:
        # Whoever runs the tests in the background has SIGINT ignored, and children inherit that.
        process = subprocess.Popen(
            [*words, "--url", url],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        # Six are asked for before the fourth answer need be written.
        while (len(server.requests) < 6 or len(ledger(out)) < 4) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        time.sleep(0.5)  # for the signal to come before these two answers
        server.stopped.set()
        err = process.communicate()[1]
        assert process.returncode == code, err
        kept = ledger(out)
        assert 4 <= len(kept) < 24
        if number == signal.SIGINT:  # the two under way were waited for, and no other was sent
            assert len(kept) == len(server.questions) == 6
            assert "6 judgements are in" in err
    again = Server()
    with serving(again) as url:
        assert judged(capsys, files, url, out)[0] == 0
    assert ledger(out)[: len(kept)] == kept
    assert len(again.questions) == 24 - len(kept)


@pytest.mark.parametrize("when", ["before it is written", "after it is written"])
def test_an_answer_that_is_being_kept_when_interrupted_is_there_once(tmp_path, when):
    class Answering(Judge):
        def ask(self, instructions, question):
            return "A"

    class Interrupted(Ledger):
        def _write(self, row):
            stopped, first = getattr(self, "stopped", False), "story" in row
            if when.startswith("after"):
                super()._write(row)
            if first and not stopped:
                self.stopped = True
                raise KeyboardInterrupt
            if when.startswith("before"):
                super()._write(row)

    path, known = tmp_path / "judged.jsonl", {"model": "m"}
    with Interrupted(path, "judging", known, NEEDED) as found, pytest.raises(KeyboardInterrupt):
        judge([Pair("x", "y")], Answering(), found, repeats=4, jobs=2)
    with Ledger(path, "judging", known, NEEDED) as found:
        before = len(found.records)
        told = []
        with listening(lambda works: told.append((works[0].done, works[0].total))):
            records = judge([Pair("x", "y")], Answering(), found, repeats=4, jobs=2)
    assert told == [(done, 8) for done in range(before + 1, 9)]
    assert before >= 1
    assert len(records) == len({(one["first"], one["repeat"]) for one in records}) == 8


def test_files_are_judged_from_python_and_go_on_after_an_error(tmp_path, files):
    class Failing(Judge):
        left = 5

        def ask(self, instructions, question):
            self.left -= 1
            if self.left < 0:
                raise ConnectionError("gone")
            return longer_wins(question)

    paths, reader = [*map(Path, files), tmp_path / "judged.jsonl"], Failing()
    with pytest.raises(ConnectionError) as caught:
        judge_files(*paths, reader, model="m", jobs=1)
    assert caught.value.__notes__ == [f"5 judgements are in {paths[2]}: the same command continues from there"]
    reader.left = 19
    summary, beside = judge_files(*paths, reader, model="m", jobs=1)
    assert summary["judgements"] == {"a": 12, "b": 6, "equal": 6, "unreadable": 0}
    assert json.loads(beside.read_text()) == summary
    assert reader.left == 0


def test_one_judging_at_a_time_writes_a_file(capsys, tmp_path, files):
    from filelock import FileLock

    out = tmp_path / "judged.jsonl"
    with FileLock(tmp_path / ".judged.jsonl.lock"), serving(Server()) as url:
        code, _, err = judged(capsys, files, url, out)
    assert code == 2
    assert "in use by another judging" in err


@pytest.mark.parametrize(
    ("mine", "other", "message"),
    [
        ([{"prompt": "a"}], None, "mine.jsonl:1: must be"),
        ([{"prompt": "a", "story": "b", "completion": "c"}], None, "mine.jsonl:1: must be"),
        ([{"prompt": "a", "story": 3}], None, "mine.jsonl:1: 'story' must be text"),
        ([{"prompt": "", "story": " "}], None, "mine.jsonl:1: the story is empty"),
        (["x", 3], None, "mine.jsonl:1: must be .*and 1 more"),
        ([{"title": "statewise filling"}], None, "mine.jsonl holds no stories"),
        ([{"prompt": "a", "story": "\ud800"}], None, "mine.jsonl:1: 'story' contains half of a surrogate pair"),
        (rows(["x", "y"]), rows(["x"]), "has 2 stories and .*other.jsonl 1"),
        (rows(["x"]), [{"prompt": "Twice", "story": "Twice."}], "other.jsonl:1: the prompt differs from that in"),
        (rows(["x"]), rows(["x"], goal="Fin."), "other.jsonl:1: the goal differs from that in"),
    ],
)
def test_files_that_do_not_pair_are_named(capsys, tmp_path, mine, other, message):
    files = [write(tmp_path / "mine.jsonl", mine), write(tmp_path / "other.jsonl", mine if other is None else other)]
    code, _, err = judged(capsys, files, "http://127.0.0.1:9/v1", tmp_path / "judged.jsonl")
    assert code == 2
    assert re.search(message, err)
    assert not (tmp_path / "judged.jsonl").exists()


def test_whole_stories_pair_with_parts(capsys, tmp_path):
    whole = [{"prompt": "Once 0 ", "story": "Once 0 ran. End.", "seed": 3}]
    files = [write(tmp_path / "mine.jsonl", rows(["went home."])), write(tmp_path / "other.jsonl", whole)]
    server = Server()
    with serving(server) as url:
        assert judged(capsys, files, url, tmp_path / "judged.jsonl", "--repeats", "1")[0] == 0
    assert sorted(server.questions) == [
        "Story 1:\n\nOnce 0 ran. End.\n\nStory 2:\n\nOnce 0 went home. End.",
        "Story 1:\n\nOnce 0 went home. End.\n\nStory 2:\n\nOnce 0 ran. End.",
    ]


def test_mistakes_are_named_before_anything_is_asked(capsys, tmp_path, files, monkeypatch):
    out = tmp_path / "judged.jsonl"
    assert main(["judge", *files, "--model", "m", "--out", str(out)]) == 2
    assert "--url is missing" in capsys.readouterr().err
    assert "must begin with http" in judged(capsys, files, "localhost:8000", out)[2]
    assert "is not a URL" in judged(capsys, files, "http://[::1", out)[2]
    assert "--jobs must be at least 1" in judged(capsys, files, "http://x", out, "--jobs", "0")[2]
    assert "one of the files to judge" in judged(capsys, files, "http://x", files[0])[2]
    monkeypatch.setitem(sys.modules, "openai", None)
    assert to_install("judge") in judged(capsys, files, "http://x", out)[2]
    assert not out.exists()


def test_the_interval_is_that_of_wilson():
    for wins, trials in ((64, 100), (0, 7), (7, 7), (1, 3)):
        exact = stats.binomtest(wins, trials).proportion_ci(method="wilson")
        assert wilson(wins / trials, trials) == pytest.approx((exact.low, exact.high))
    for trials in range(1, 300):  # a probability, whatever rounding does
        low, high = wilson(0, trials)
        assert 0 <= low < 1e-9 < high
        low, high = wilson(1, trials)
        assert low < 1 - 1e-9 < high <= 1


def test_rates_count_stories_not_judgements():
    """The same verdicts six times tell no more than once."""

    def records(repeats):
        return [
            {**question._asdict(), "verdict": "a" if question.story <= 64 else "b", "answer": ""}
            for question in questions(100, repeats)
        ]

    one, three = summarise(records(1), 100), summarise(records(3), 100)
    assert one["win_rate"] == three["win_rate"]
    assert three["win_rate"]["interval"] == pytest.approx([0.542, 0.727], abs=1e-3)
    assert three["majority"]["win_rate"]["interval"] == pytest.approx([0.542, 0.727], abs=1e-3)


def test_a_judge_that_looks_at_the_place_is_noticed():
    records = [{**question._asdict(), "verdict": question.first, "answer": ""} for question in questions(5, 3)]
    summary = summarise(records, 5)
    assert summary["first_shown"] == 1.0
    assert summary["win_rate"]["value"] == 0.5
    assert summary["majority"] == {"a": 0, "b": 0, "tie": 5, "win_rate": None}
