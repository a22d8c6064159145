"""Servers that tests start on 127.0.0.1: one that is told what to do wrong, and a real one."""

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hierrouter.engines.dialects import MEMORY
from hierrouter.questions.shipped import model_path
from tests.conftest import environment
from tests.engines import scripted_answer

MODEL = "served"


@dataclass(frozen=True)
class Reply:
    """What goes over the wire.

    `cut` announces more bytes than it sends; `delay_s` passes before the first byte. A completion
    asked for as a stream goes word by word; cut, it ends in the middle.
    """

    body: str | dict[str, Any] = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: bool = False

    @property
    def raw(self) -> bytes:
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return text.encode("utf-8", "surrogatepass")


def completion(
    text: str | None, tokens_in: int = 7, tokens_out: int = 3, **changes: Any
) -> dict[str, Any]:
    """The body of a chat completion; `changes` replace its fields, None takes one out."""
    body = {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens_in, "completion_tokens": tokens_out},
    }
    return {key: value for key, value in (body | changes).items() if value is not None}


def good(prompt: str) -> Reply:
    """The answer that the scripted engine gives too."""
    answer = scripted_answer(MODEL, prompt)
    return Reply(completion(answer.text, answer.tokens_in, answer.tokens_out))


def embedded(vectors: Iterable[Iterable[float]], model: str = MODEL) -> Reply:
    """The answer to a request for embeddings."""
    data = [{"index": at, "embedding": [*map(float, row)]} for at, row in enumerate(vectors)]
    return Reply({"object": "list", "model": model, "data": data[::-1]})


def refusal(status: int, message: str = "no", code: str | None = None, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply({"error": {"message": message, "code": code}}, status, named)


def ended(text: str | None, reason: str | None, tokens_out: int = 3) -> Reply:
    """An answer that ended for this reason."""
    choice = {"index": 0, "message": {"content": text}, "finish_reason": reason}
    return Reply(completion("", tokens_out=tokens_out, choices=[choice]))


HTML = Reply("<html><body>Welcome</body></html>", headers={"Content-Type": "text/html"})
JUNK = {
    "html": HTML,
    "cut json": Reply('{"model": "served", "choices": [{"mess'),
    "no choices": Reply(completion("", choices=[])),
    "a list": Reply("[1, 2]"),
    "an empty body": Reply(""),
    "no reason": Reply({**ended("x", None).body, "usage": None}),
    "no model": Reply(completion("x", model=None)),
    "an empty object": Reply("{}"),
    "an error with 200": Reply({"error": {"message": "oh no"}}),
}
# By (prompt, how often it was asked before).
Script = Callable[[str, int], Reply]
LISTED = Reply({"object": "list", "data": [{"id": MODEL}]})


@dataclass
class Server:
    """A chat-completions server whose replies are scripted.

    `asked` counts the prompts, `seen` keeps the headers of each request, `widest` is the largest
    number of calls that were under way at once.
    """

    script: Script = lambda prompt, before: good(prompt)
    listing: Reply = LISTED
    embed: Callable[[list[str]], Reply] = lambda texts: refusal(404)
    asked: Counter[str] = field(default_factory=Counter)
    requests: list[dict[str, Any]] = field(default_factory=list)
    seen: list[dict[str, str]] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    widest: int = 0
    under_way: int = 0
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)
    listener: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Take no more connections; `serving` ends as always."""
        assert self.listener
        self.listener.shutdown()
        self.listener.socket.close()

    def completed(self, request: dict[str, Any]) -> Reply:
        if "input" in request:
            self.requests.append(request)
            return self.embed(request["input"])
        prompt = request["messages"][0]["content"]
        with self.lock:
            before = self.asked[prompt]
            self.asked[prompt] += 1
            self.requests.append(request)
            self.moments.append(time.monotonic())
        return self.script(prompt, before)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the client to confirm its headers
    told: Server

    def do_GET(self) -> None:
        self.told.seen.append(self._named())
        if self._waited(self.told.listing):
            self.close_connection = True
        else:
            self._send(self.told.listing)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.told
        server.seen.append(self._named())
        with server.lock:
            server.under_way += 1
            server.widest = max(server.widest, server.under_way)
        try:
            reply = server.completed(request)
            gone = self._waited(reply)
        finally:  # before the caller can know that it is answered, and call again
            with server.lock:
                server.under_way -= 1
        streams = request.get("stream") and isinstance(reply.body, dict)
        if gone:
            self.close_connection = True
        elif streams and "choices" in reply.body:
            self._stream(reply, reply.body)
        else:
            self._send(reply)

    def _waited(self, reply: Reply) -> bool:
        """Wait as long as the reply takes; whether the server closed meanwhile."""
        return bool(reply.delay_s) and self.told.closing.wait(reply.delay_s)

    def _named(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _send(self, reply: Reply) -> None:
        headers = {"Content-Type": "application/json"} | reply.headers
        missing = 100 if reply.cut else 0
        try:
            self.send_response(reply.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.raw) + missing))
            self.end_headers()
            self.wfile.write(reply.raw)
        except OSError:  # the caller has gone
            self.close_connection = True
        self.close_connection = self.close_connection or reply.cut

    def _stream(self, reply: Reply, body: dict[str, Any]) -> None:
        """A completion as server-sent events."""
        events = list(pieces(body))
        if reply.cut:
            events = events[: len(events) // 2]
        self.close_connection = True
        try:
            self.send_response(reply.status)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            if reply.cut:
                self.send_header("Content-Length", "100000")
            self.end_headers()
            for event in events:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            if not reply.cut:
                self.wfile.write(b"data: [DONE]\n\n")
        except OSError:  # the caller has gone
            pass

    def log_message(self, *arguments: Any) -> None:
        pass


def pieces(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A completion as the chunks of a stream: a word each, then the reason, then the usage."""
    named = {"id": "x", "created": 0, "object": "chat.completion.chunk", "model": body.get("model")}
    [choice] = body["choices"]
    for name in ("reasoning_content", "refusal"):
        if choice["message"].get(name):
            delta = {name: choice["message"][name]}
            yield {**named, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    for word in (choice["message"]["content"] or "").split(" "):
        delta = {"content": word if word is None else f"{word} "}
        yield {**named, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    last = {"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason")}
    yield {**named, "choices": [last]}
    yield {**named, "choices": [], "usage": body.get("usage")}


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def serving(server: Server, port: int = 0) -> Iterator[Server]:
    """The server, listening on this port, or a free one; nothing is known about its dialect."""
    MEMORY.clear()
    with _Listener(("127.0.0.1", port), type("Handler", (_Handler,), {"told": server})) as listener:
        server.port = listener.server_address[1]
        server.listener = listener
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            listener.shutdown()
            thread.join()


def late(reply: Reply, seconds: float) -> Reply:
    return replace(reply, delay_s=seconds)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


# `transformers serve` reads the answers of some architectures with a template of its own, which
# takes the testbed's for something else; this one says what they look like.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {"content": {"close": ["<|end|>"], "content": "text"}},
}


def servable(name: str, folder: Path) -> Path:
    """The testbed's model `name`, copied so that `transformers serve` reads its answers."""
    target = Path(shutil.copytree(model_path(f"testbed:{name}"), folder / name))
    path = target / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"response_template": RESPONSE_TEMPLATE}
    path.write_text(json.dumps(config))
    return target


@contextmanager
def transformers_serve(log: Path) -> Iterator[str]:
    """A real server that loads whichever model folder it is asked for, in float32; its base_url."""
    port = free_port()
    command = [Path(sys.executable).parent / "transformers", "serve"]
    where = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    with running([*command, *where], f"http://127.0.0.1:{port}/health", log):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def running(
    command: Sequence[str | Path], ready: str, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process, with nothing of ours, from when it answers at the URL `ready`."""
    with log.open("ab") as output:
        env = {**environment(), "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        _wait_until_ready(ready, process, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
    raise AssertionError(f"the server does not start: {log.read_text()}")
