"""A server for `soak.py`, a client that checks its answers, and a watch over its memory.

`running_server` starts `hierrouter serve` on a run. `Client` asks questions all the time, and
compares the answers with those of the replayed tree. `Watch` looks at memory and open files. Not
covered: how many requests a server can take (`serve_load.py`).
"""

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import openai
import psutil
from live_agreement import MODEL, RoutedAnswer, answer_of, routed_answer, user
from measuring import SERVER_ADDRESS_PATTERN
from soak_commands import CTRL_C, BrokenPromise, promise

PAUSE_S = 0.4  # between two requests of the client
# Largest factors between the first hours and a later one.
MAX_MEMORY_GROWTH = 1.1
MAX_ROW_GROWTH = 1.15
MAX_MORE_FILES = 3  # the client has one connection, and hangs up now and then


class Client(threading.Thread):
    """Asks the server one question after the other, in four ways, until it is stopped.

    Attributes:
        expected: the tree's answers by question; replaced as the tree grows.
        asked: number of requests in each way.
        wrong: the error that ended the client; empty if there was none.
        over: set to stop the client.
    """

    def __init__(self, url: str, expected: Mapping[str, RoutedAnswer], seed: int) -> None:
        super().__init__(daemon=True)
        self.expected = dict(expected)
        self.asked: Counter[str] = Counter()
        self.wrong = ""
        self.over = threading.Event()
        self._rng = random.Random(seed)
        self._openai = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)

    def run(self) -> None:
        ways = (self._plain, self._stream, self._leave, self._bad)
        try:
            while not self.over.wait(PAUSE_S):
                way = self._rng.choice(ways)
                question, answer = self._rng.choice(list(self.expected.items()))
                way(question, answer)
                self.asked[way.__name__.strip("_")] += 1
        except Exception as error:
            self.wrong = f"{type(error).__name__}: {error}"
        self._openai.close()

    def _plain(self, question: str, expected: RoutedAnswer) -> None:
        completion = self._openai.chat.completions.create(model=MODEL, messages=user(question))
        self._compare(question, answer_of(completion), expected)

    def _stream(self, question: str, expected: RoutedAnswer) -> None:
        with self._begin(question) as pieces:
            received = list(pieces)
        text = "".join(piece.choices[0].delta.content or "" for piece in received)
        self._compare(question, routed_answer(text, received[-1].model_extra), expected)

    def _leave(self, question: str, expected: RoutedAnswer) -> None:
        """Hang up after the first piece."""
        with self._begin(question) as pieces:
            next(iter(pieces))

    def _bad(self, question: str, expected: RoutedAnswer) -> None:
        with contextlib.suppress(openai.NotFoundError):
            self._openai.chat.completions.create(model="nobody", messages=user(question))
            raise BrokenPromise("an unknown model was answered")

    def _begin(self, question: str) -> openai.Stream[openai.types.chat.ChatCompletionChunk]:
        return self._openai.chat.completions.create(
            model=MODEL, messages=user(question), stream=True
        )

    def _compare(self, question: str, answer: RoutedAnswer, expected: RoutedAnswer) -> None:
        message = f"{question!r}: {answer} is not {expected} of the tree"
        promise(all(answer.agrees(expected)), message)


@contextlib.contextmanager
def running_server(run: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start `hierrouter serve` on a run, yield its process and address, and check how it ends."""
    command = [sys.executable, "-m", "hierrouter_cli", "serve", "--port", "0"]
    flags = ["--checkpoint", str(run), "--log", str(folder / "requests.jsonl")]
    errors = folder / "serve.err"
    with errors.open("wb") as file:
        process = subprocess.Popen([*command, *flags], stderr=file, cwd=folder)
    try:
        while not (match := SERVER_ADDRESS_PATTERN.search(errors.read_text())):
            promise(process.poll() is None, f"the server does not start: {errors.read_text()}")
            time.sleep(0.1)
        yield process, match[1]
        promise(process.poll() is None, f"the server has ended: {errors.read_text()[-600:]}")
        process.send_signal(signal.SIGINT)
        promise(process.wait(60) == CTRL_C, f"the server ended with {process.returncode}")
        promise("Traceback" not in errors.read_text(), errors.read_text()[-600:])
    finally:
        process.kill()
        process.wait()


@dataclass
class Watch:
    """Memory and open files of the server, and the size of a row, hour by hour.

    Attributes:
        server: the process.
        memory: MiB.
        files: open files.
        row_bytes: bytes of a row of the cache.
    """

    server: psutil.Process
    memory: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    row_bytes: list[float] = field(default_factory=list)

    def look(self, row_bytes: float) -> None:
        """Measure once an hour, and check that nothing grows.

        The first two measurements are of a server that warms up.
        """
        self.memory.append(self.server.memory_info().rss / 2**20)
        self.files.append(self.server.num_fds())
        self.row_bytes.append(row_bytes)
        summary = f"MiB {self.memory}, files {self.files}, bytes a row {self.row_bytes}"
        if len(self.memory) > 2:
            promise(
                self.memory[-1] <= MAX_MEMORY_GROWTH * self.memory[1], f"memory grows: {summary}"
            )
            promise(self.files[-1] <= self.files[1] + MAX_MORE_FILES, f"open files grow: {summary}")
        promise(row_bytes <= MAX_ROW_GROWTH * self.row_bytes[0], f"rows take more room: {summary}")
