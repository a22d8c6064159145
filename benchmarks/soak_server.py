"""What `soak.py` promises of a server, and a client that holds it to that.

In: a run of `train`, the answers that the replayed tree gives to its questions. Out: a running
`hierrouter serve`, a client that asks it all the time, and looks at its memory and open files.
Not covered: how much a server carries (`serve_load.py`).
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
from live_agreement import MODEL, Found, user, whole, with_route
from measuring import SERVER_ADDRESS_PATTERN
from soak_commands import CTRL_C, BrokenPromise, promise

PAUSE_S = 0.4  # between two requests of the client
MEMORY_GROWTH, ROW_GROWTH = 1.1, 1.15
MORE_FILES = 3  # the client has one connection, and hangs up now and then


class Client(threading.Thread):
    """Asks the server one question after the other, in four ways, until it is told to end."""

    def __init__(self, url: str, wanted: Mapping[str, Found], seed: int) -> None:
        super().__init__(daemon=True)
        self.wanted = dict(wanted)  # replaced as the tree grows
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
                question, answer = self._rng.choice(list(self.wanted.items()))
                way(question, answer)
                self.asked[way.__name__.strip("_")] += 1
        except Exception as error:
            self.wrong = f"{type(error).__name__}: {error}"
        self._openai.close()

    def _plain(self, question: str, wanted: Found) -> None:
        said = self._openai.chat.completions.create(model=MODEL, messages=user(question))
        self._compare(question, whole(said), wanted)

    def _stream(self, question: str, wanted: Found) -> None:
        with self._begin(question) as pieces:
            heard = list(pieces)
        text = "".join(piece.choices[0].delta.content or "" for piece in heard)
        self._compare(question, with_route(text, heard[-1].model_extra), wanted)

    def _leave(self, question: str, wanted: Found) -> None:
        """Hang up after the first piece."""
        with self._begin(question) as pieces:
            next(iter(pieces))

    def _bad(self, question: str, wanted: Found) -> None:
        with contextlib.suppress(openai.NotFoundError):
            self._openai.chat.completions.create(model="nobody", messages=user(question))
            raise BrokenPromise("an unknown model was answered")

    def _begin(self, question: str) -> openai.Stream[openai.types.chat.ChatCompletionChunk]:
        return self._openai.chat.completions.create(
            model=MODEL, messages=user(question), stream=True
        )

    def _compare(self, question: str, found: Found, wanted: Found) -> None:
        promise(all(found.agrees(wanted)), f"{question!r}: {found} is not {wanted} of the tree")


@contextlib.contextmanager
def served(run: Path, place: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`hierrouter serve` on a run, and where it listens; it must end well."""
    command = [sys.executable, "-m", "hierrouter_cli", "serve", "--port", "0"]
    flags = ["--checkpoint", str(run), "--log", str(place / "requests.jsonl")]
    told = place / "serve.err"
    with told.open("wb") as file:
        process = subprocess.Popen([*command, *flags], stderr=file, cwd=place)
    try:
        while not (found := SERVER_ADDRESS_PATTERN.search(told.read_text())):
            promise(process.poll() is None, f"the server does not start: {told.read_text()}")
            time.sleep(0.1)
        yield process, found[1]
        promise(process.poll() is None, f"the server has ended: {told.read_text()[-600:]}")
        process.send_signal(signal.SIGINT)
        promise(process.wait(60) == CTRL_C, f"the server ended with {process.returncode}")
        promise("Traceback" not in told.read_text(), told.read_text()[-600:])
    finally:
        process.kill()
        process.wait()


@dataclass
class Watch:
    """The server's memory and open files, and the size of a row, hour by hour."""

    server: psutil.Process
    memory: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    row_bytes: list[float] = field(default_factory=list)

    def look(self, row_bytes: float) -> None:
        """One look an hour; the first two are those of a server that warms up.

        The client opens one connection, and hangs up now and then: three files are room for that.
        """
        self.memory.append(self.server.memory_info().rss / 2**20)
        self.files.append(self.server.num_fds())
        self.row_bytes.append(row_bytes)
        told = f"MiB {self.memory}, files {self.files}, bytes a row {self.row_bytes}"
        if len(self.memory) > 2:
            promise(self.memory[-1] <= MEMORY_GROWTH * self.memory[1], f"memory grows: {told}")
            promise(self.files[-1] <= self.files[1] + MORE_FILES, f"open files grow: {told}")
        promise(row_bytes <= ROW_GROWTH * self.row_bytes[0], f"rows take more room: {told}")
