"""`hierrouter route --file` between pipes: one that falls silent, one that nobody reads."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from hierrouter.serving.router import piped_lines
from hierrouter_cache.errors import InputError
from tests.conftest import COMMAND, environment
from tests.security.world import served_pool
from tests.servers import Server, good, late, serving

QUESTION = json.dumps({"question": "compute 12+7"}) + "\n"
MANY = 300


@contextmanager
def routing(run: Path, *flags: str | Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """The command between pipes; killed if it still works at the end."""
    process = subprocess.Popen(
        [*COMMAND, "route", "--checkpoint", str(run), "--file", *map(str, flags)],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_ctrl_c_ends_it_while_the_pipe_is_silent(live_run: Path, tmp_path: Path) -> None:
    with routing(live_run, "-", cwd=tmp_path) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(QUESTION)
        assert json.loads(process.stdout.readline())["question"] == "compute 12+7"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130  # with the pipe still open
        assert process.stderr.read().splitlines()[-1].startswith("error: interrupted")


def test_a_stdin_that_is_closed_is_said(tmp_path: Path) -> None:
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "route", "--file", "-"]
    done = subprocess.run(
        shell, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: stdin is closed: --file -")


def test_nothing_is_asked_that_nobody_reads(live_run: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"question": f"compute {n}+1"}) for n in range(MANY)]
    (tmp_path / "asked.jsonl").write_text("\n".join(lines))
    with serving(Server(lambda prompt, before: late(good(prompt), 0.05))) as server:
        (tmp_path / "pool.toml").write_text(served_pool(server.url))
        flags = ("asked.jsonl", "--pool", "pool.toml")
        with routing(live_run, *flags, cwd=tmp_path) as process:
            assert process.stdin and process.stdout and process.stderr
            assert "answer" in json.loads(process.stdout.readline())
            process.stdout.close()
            assert process.wait(60) == 0, process.stderr.read()
    assert 0 < sum(server.asked.values()) < MANY


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n\ntwo\n", [b"one", b"", b"two"]),
        (b"x" * 200_000 + b"\ny", [b"x" * 200_000, b"y"]),
    ],
)
def test_the_lines_of_a_pipe(tmp_path: Path, written: bytes, lines: list[bytes]) -> None:
    (tmp_path / "lines").write_bytes(written)
    with subprocess.Popen(["cat", tmp_path / "lines"], stdout=subprocess.PIPE) as cat:
        assert cat.stdout
        found = list(piped_lines(cat.stdout.fileno(), Event(), "stdin"))
    assert found == list(enumerate(lines, start=1))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(InputError, match="cannot be read: stdin: Is a directory"):
        next(piped_lines(folder, Event(), "stdin"))
    os.close(folder)
