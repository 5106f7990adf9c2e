"""Python processes that start at once: forks of a server which has imported PyTorch and statewise.

`python(...)` is a command line for `subprocess` that does what `[sys.executable, ...]` would do, for `-m statewise`,
`-c CODE` or a script. Its process is a small client: it hands its arguments, environment and standard files to the
server, passes signals on to the fork, and ends as the fork ends. If the client is killed, so is the fork. Only for
tests that do not ask what a fresh process imports.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

PASSED_ON = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP]
_address = None


def python(*words):
    """The command line of a Python process that starts as a fork. The first call starts the server."""
    global _address
    if _address is None:
        _address = str(Path(tempfile.mkdtemp(prefix="forked-")) / "socket")
        ready, told = os.pipe()
        command = [sys.executable, __file__, "serve", _address, str(os.getpid()), str(told)]
        subprocess.Popen(command, pass_fds=[told], stdin=subprocess.DEVNULL, start_new_session=True)
        os.close(told)
        assert os.read(ready, 1) == b"+", "the server did not start"
        os.close(ready)
    return [sys.executable, "-I", "-S", __file__, "run", _address, *map(str, words)]


def run(address, words):
    """The client: returns the exit code of the fork, or ends by the signal that ended it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        asked = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
        socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(asked)
        for number in PASSED_ON:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
        answer = b""
        while len(answer) < 4:
            part = server.recv(4)
            if not part:
                return 1
            answer += part
    code = int.from_bytes(answer, "big", signed=True)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def serve(address, owner, told):
    """The server: forks for every client until the process `owner` ends."""
    import jsonargparse  # noqa: F401
    import lightning_fabric  # noqa: F401
    import rich.progress  # noqa: F401
    import torch  # noqa: F401
    import yaml  # noqa: F401

    import statewise.cli.train
    import statewise.evaluation.evaluate
    import statewise.experiments.launch
    import statewise.model.model  # noqa: F401

    gc.freeze()  # what forks share is no garbage

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for the forks
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        os.write(told, b"+")
        os.close(told)
        ended = os.pidfd_open(owner)
        while True:
            if ended in select.select([listening, ended], [], [])[0]:
                return
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                os.close(ended)
                os._exit(_attend(client))
            client.close()


def _received(client):
    size, files, _, _ = socket.recv_fds(client, 4, 3)
    asked = b""
    while len(asked) < int.from_bytes(size, "big"):
        asked += client.recv(1 << 16)
    return json.loads(asked), files


def _attend(client):
    """Forks the process for a client, passes its signals on, and tells it how the process ended."""
    asked, files = _received(client)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process == 0:
        client.close()
        _become(asked, files)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(process)
    while True:
        ready = select.select([client, ended], [], [])[0]
        if ended in ready:
            break
        signals = client.recv(16)
        for number in signals or [signal.SIGKILL]:
            os.kill(process, number)
        if not signals:
            break
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        client.sendall(code.to_bytes(4, "big", signed=True))
    return 0


def _become(asked, files):
    """Runs what was asked in this process, and ends it."""
    import runpy
    import threading

    code = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        first, *rest = asked["words"]
        path = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [each for each in path if each and each not in sys.path]
        sys.modules.pop("__main__")
        try:
            if first == "-m":
                sys.path.insert(0, os.getcwd())
                sys.argv = ["-m", *rest[1:]]
                runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
            elif first == "-c":
                sys.argv = ["-c", *rest[1:]]
                exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
            else:
                sys.argv = [first, *rest]
                sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
                runpy.run_path(first, run_name="__main__")
            code = 0
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except KeyboardInterrupt:
            traceback.print_exc()
            code = 130
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(run(sys.argv[2], sys.argv[3:]))
