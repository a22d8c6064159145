"""A process that has imported what the tests import, and forks for each Python they start.

The tests start some hundred Pythons, and half of what those do is imports. `Warm.start` is
`python -m MODULE ...` or `python -c CODE ...` in a process of its own, with arguments, folder,
environment, files and exit code of its own, but without that half: `Running` is what
`subprocess.Popen` would be. One such process serves all workers of a run of the tests. What must
be seen from the first instruction on (start-up, settings that libraries read while they are
imported, equal bytes whatever the hash seed) starts cold; see `conftest`.
"""

import atexit
import ctypes
import gc
import io
import json
import os
import re
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO
from weakref import finalize

TIMEOUT = 600.0
LARGE_PAGE, MADV_COLLAPSE = 1 << 21, 25
HEAVY = """
    hierrouter.learning.baselines.registry hierrouter.collection.scheduler hierrouter.learning.ppo
    hierrouter.reports.fold_report hierrouter.learning.sweep hierrouter.runs.checkpoint ray.dag
    hierrouter.reports.page hierrouter.reports.figures hierrouter.reports.results torch._dynamo
    hierrouter.replay.opening hierrouter_cli.app hierrouter.serving.http_app
    hierrouter.engines.endpoint sklearn.feature_extraction.text
"""


@dataclass
class Running:
    """A Python under way."""

    pid: int
    returncode: int | None
    _answer: socket.socket
    _out: IO[bytes]
    _err: IO[bytes]
    _open: ExitStack

    def poll(self) -> int | None:
        """The exit code if it has ended."""
        if self.returncode is None and select.select([self._answer], [], [], 0)[0]:
            self.returncode = int(self._answer.recv(16))
        return self.returncode

    def send_signal(self, how: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, how)

    def said(self) -> str:
        """What stands on its stderr until now."""
        return _text(self._err)

    def wait_for(self, pattern: str) -> str:
        """The first group, or all, of what it says on stderr; it must not end before."""
        while not (found := re.search(pattern, self.said())):
            assert self.poll() is None, self.said()
            time.sleep(0.005)
        return found[found.lastindex or 0]

    def result(self, timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
        """Wait for the end."""
        if self.returncode is None and not select.select([self._answer], [], [], timeout)[0]:
            self.send_signal(signal.SIGKILL)
            raise TimeoutError(f"still at work after {timeout} s: {self.said()}")
        code = self.poll()
        assert code is not None
        done = subprocess.CompletedProcess([], code, _text(self._out), self.said())
        self._open.close()
        return done


@dataclass(frozen=True)
class Warm:
    """The client's side: where the process listens."""

    address: str

    def start(
        self,
        *command: str,
        cwd: Path,
        env: dict[str, str],
        stdin: str | int = "",
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Running:
        """Start `-m MODULE` or `-c CODE` and arguments.

        `stdin`: all of it, or a file to read from; `stdout`: a file to write to instead of one that
        `Running` reads; `stderr`: the same.
        """
        with ExitStack() as opened:
            answer = opened.enter_context(socket.socket(socket.AF_UNIX))
            given, out, err = (opened.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            if isinstance(stdin, str):
                given.write(stdin.encode())
                given.seek(0)
                stdin = given.fileno()
            files = [
                stdin,
                out.fileno() if stdout is None else stdout,
                err.fileno() if stderr is None else stderr,
            ]
            asked = json.dumps([command, str(cwd), env]).encode()
            answer.connect(self.address)
            socket.send_fds(answer, [len(asked).to_bytes(4, "big")], files)
            answer.sendall(asked)
            pid = int.from_bytes(answer.recv(4, socket.MSG_WAITALL), "big")
            return Running(pid, None, answer, out, err, opened.pop_all())


def _text(file: IO[bytes]) -> str:
    # Not by seek and read: whoever writes shares the position.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


class WarmProcess:
    """The process itself; whoever holds this ends it."""

    def __init__(self, environment: dict[str, str], sources: Path) -> None:
        self._folder = tempfile.mkdtemp()
        self.warm = Warm(f"{self._folder}/asked")
        listener = socket.socket(socket.AF_UNIX)
        with listener:
            listener.bind(self.warm.address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(listener.fileno())],
                cwd=sources,
                env=environment,
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
            )

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=30)
        shutil.rmtree(self._folder)


def serve(listener: socket.socket) -> None:
    """Fork for each request, and tell each end, until whoever started this has gone."""
    # One process only stands between a test and its Python: a fork of this size takes a while.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    asking: dict[int, socket.socket] = {}
    while sys.stdin not in (ready := select.select([listener, sys.stdin, woken], [], [])[0]):
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(asking)
        if listener in ready:
            answer, _ = listener.accept()
            _warm_up()
            head, files, _, _ = socket.recv_fds(answer, 4, 3)
            asked = answer.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for held in (woken, wake):
                    os.close(held)
                for end in (listener, answer, *asking.values()):
                    end.close()
                _run(*json.loads(asked), files)
            answer.sendall(pid.to_bytes(4, "big"))
            asking[pid] = answer
            for file in files:
                os.close(file)


def _tell_ends(asking: dict[int, socket.socket]) -> None:
    """The exit code of each that has ended to whoever asked for it."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with asking.pop(ended[0]) as answer, suppress(OSError):  # it may be gone itself
                answer.sendall(str(os.waitstatus_to_exitcode(ended[1])).encode())


@cache
def _warm_up() -> None:
    """Import, once and only if anything is asked for."""
    from hierrouter_cli.app import LIBRARY_SETTINGS

    for name, value in LIBRARY_SETTINGS.items():
        os.environ.setdefault(name, value)
    # What imports leave for the end of Python, such as torch's talk of how often it compiled, takes
    # longer than a short command. These end clusters, processes and what is to be finalised.
    register, kept = atexit.register, ("ray.", "multiprocessing.", "weakref")
    atexit.register = lambda last, *given, **more: (
        register(last, *given, **more) if str(last.__module__).startswith(kept) else last
    )
    for module in HEAVY.split():
        __import__(module)
    _practise()
    atexit.register = register
    for item in finalize._registry:
        item.atexit = False
    gc.collect()
    gc.freeze()
    _take_large_pages()


def _practise() -> None:
    """Do what many commands begin with: what it imports, compiles and looks up is there then."""
    from matplotlib.figure import Figure

    from hierrouter.engines import backend
    from hierrouter.pools.files import load_pool
    from hierrouter_cli.app import root_command

    waiting = [root_command()]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        for parameter in command.params:
            getattr(parameter, "get_runtime_param", list)()
    for spec in load_pool("testbed").models:
        list(backend(spec.backend).load(spec).generate(["compute 1+2"]))
    figure = Figure(layout="constrained")
    figure.subplots().set(xscale="log", xlabel="$x$", title="a")
    figure.savefig(io.StringIO(), format="svg")


def _take_large_pages() -> None:
    """A fork copies the tables of all pages: with large ones, where there are some, a third."""
    maps, own = Path("/proc/self/maps"), r"^(\w+)-(\w+) rw-p 0+ 00:00 0 *(?:\[heap\])?$"
    for found in re.findall(own, maps.read_text(), re.M) if maps.exists() else ():
        start, end = (int(address, 16) for address in found)
        start, end = -(-start // LARGE_PAGE) * LARGE_PAGE, end // LARGE_PAGE * LARGE_PAGE
        if start < end:
            size = ctypes.c_size_t(end - start)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), size, MADV_COLLAPSE)


def _run(command: list[str], cwd: str, env: dict[str, str], files: list[int]) -> None:
    """Be that Python."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs behind a shell ignores it
    for target, source in enumerate(files):
        os.dup2(source, target)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = cwd
    if encoding := env.get("PYTHONIOENCODING"):
        name, _, errors = encoding.partition(":")
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.reconfigure(encoding=name, errors=errors or "strict")
    code = 1
    try:
        _execute(*command)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _execute(flag: str, what: str, *arguments: str) -> None:
    sys.argv = [flag, *arguments]
    if flag == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        serve(listener)
    os._exit(0)  # what is frozen cannot be taken down in order


if __name__ == "__main__":
    main()
