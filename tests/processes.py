"""A script that tests run as two processes of one training run."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_as_two(*command):
    """Runs `python COMMAND` twice, as ranks 0 and 1 of PyTorch's process group; both must end well. However slow the
    machine: the time limit is that of the tests. No process is left."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    shared = {**os.environ, "PYTHONPATH": paths, "MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    started = []
    try:
        for rank in ("0", "1"):
            own = {**shared, "RANK": rank, "LOCAL_RANK": rank}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            started.append(subprocess.Popen([sys.executable, *map(str, command)], env=own, **pipes))
        said = [process.communicate()[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
