"""A process that has imported what the command imports, and forks for each run of it.

The tests start the command some hundred times, and half of a run is imports. `Warm.run` is a run of
`python -m hierrouter_cli` in a process of its own, with arguments, folder, output files and exit
code of its own, but without that half. What must be seen from the first instruction on (start-up,
another environment, equal bytes whatever the hash seed) starts cold; see `conftest`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import IO, Any

TIMEOUT = 600.0
HEAVY = """
    hierrouter.baselines.registry hierrouter.collect.backends.local
    hierrouter.collect.backends.static hierrouter.collect.scheduler hierrouter.comparison
    hierrouter.learn.conditioned hierrouter.learn.ppo hierrouter.learn.resume
    hierrouter.report.page hierrouter.report.figures hierrouter.report.serialise hierrouter.trees
    hierrouter_cli.app sklearn.feature_extraction.text transformers.models.qwen3
    transformers.models.olmo2 transformers.models.hunyuan_v1_dense
"""


class Warm:
    """The client's side; the process ends with it."""

    def __init__(self, environment: dict[str, str], sources: Path) -> None:
        self.environment = environment
        self._here, there = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(there.fileno())],
            cwd=sources,
            env=environment,
            pass_fds=[there.fileno()],
        )
        there.close()

    def run(self, arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` with captured text."""
        mine, its = socket.socketpair()
        with mine, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            asked = json.dumps([arguments, str(cwd)]).encode()
            files = [its.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(self._here, [len(asked).to_bytes(4, "big") + asked], files)
            its.close()
            mine.settimeout(TIMEOUT)
            code = int(mine.recv(16) or b"-9")  # nothing: whoever waits for it was killed too
            return subprocess.CompletedProcess(arguments, code, _text(out), _text(err))

    def close(self) -> None:
        """Let the process end."""
        self._here.close()
        self._process.wait(timeout=30)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def serve(asking: socket.socket) -> None:
    """Fork for each request until the client has gone."""
    while received := socket.recv_fds(asking, 4, 3):
        head, files, _, _ = received
        if not head:
            return
        asked = asking.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        if os.fork() == 0:
            asking.close()
            _wait_for_the_run(json.loads(asked), *files)
        for file in files:
            os.close(file)


def _wait_for_the_run(asked: list[Any], answer: int, out: int, err: int) -> None:
    """In a process of its own: fork once more, tell the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (pid := os.fork()) == 0:
        os.close(answer)
        _run(*asked, out, err)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(answer, str(code).encode())
    os._exit(0)


def _run(arguments: list[str], cwd: str, out: int, err: int) -> None:
    """Be the command."""
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    os.chdir(cwd)
    sys.path[0] = cwd
    sys.argv = ["hierrouter", *arguments]
    code = 1
    try:
        runpy.run_module("hierrouter_cli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def main() -> None:
    from hierrouter_cli.app import LIBRARY_SETTINGS

    for name, value in LIBRARY_SETTINGS.items():
        os.environ.setdefault(name, value)
    for module in HEAVY.split():
        __import__(module)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        serve(asking)


if __name__ == "__main__":
    main()
