"""Send what is nearly right, and what is not, to everything that takes something from outside.

    python benchmarks/fuzz.py surface [--seconds 600] [--requests N] [--files N] [--seed 1]
    python benchmarks/fuzz.py surface --requests 500 --files 100 --plant text|memory|native
    python benchmarks/fuzz.py importers|parts [-max_total_time=600] [failed-1]

`surface` sends requests to every route of the server (most in this process, every hundredth through
a socket, some of these no proper HTTP) and files to every reader: logs, tables, data sets in JSON
lines and Parquet, pools and prices in TOML, the JSON of runs, checkpoints and service. Each is a
sound one with a few places changed, or a hostile text of `tests/doors.py`, or has bytes damaged.
Nothing may come of it but an answer below status 500, a result, or one of the project's own errors;
and the memory may not grow. It works in a child process, so that a crash in code in C is seen, too.
`--plant` plants a fault that must be found: text of others that is not made sound, a reference kept
to each body, and a crash in code in C. The exit code is 1 if something was found.

`importers` and `parts` fuzz properties of `tests/properties/` by Atheris (`pip install atheris`);
the flags are libFuzzer's. Each failure is printed once, with its traceback, and its input is
written to a file `failed-N`; give that file as an argument to run it again. Not covered: values
that these properties do not draw. Code in C, such as Arrow and DuckDB, is run, not instrumented.
"""

import argparse
import copy
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit

import measuring  # noqa: F401  makes `tests` importable
import pyarrow as pa
import pyarrow.parquet as pq

from hierrouter.pools.files import parse_pool, parse_prices
from hierrouter.questions.datasets import load_queries
from hierrouter.runs.bundle import load_bundle
from hierrouter.runs.checkpoint import load_checkpoint, read_tensors, router_at, write_tensors
from hierrouter.runs.folders import LIVE, WEIGHTS, read_record
from hierrouter.runs.look_log import read_test_looks
from hierrouter.serving import chat, http_app, messages
from hierrouter.serving.learn import read_references, read_traffic
from hierrouter.serving.logs import read_log, read_spending
from hierrouter.serving.versions import load_service
from hierrouter_cache.errors import HierRouterError
from hierrouter_cache.keys import UNSOUND_PATTERN
from tests import doors
from tests.hierrouter.pools.examples import GOOD
from tests.hierrouter.serving.serving import served
from tests.hostile import resealed
from tests.properties.near import NUMBERS, TEXTS, places

Property = Callable[[bytes], object]
PADDING = 4096  # bytes after an input, because hypothesis rejects inputs that are too short
# An input that takes a minute hangs; one that takes 4 GiB has no bound.
LIMITS = ("-timeout=60", "-rss_limit_mb=4096", "-len_control=0", "-max_len=512")
ATHERIS_TARGETS = ("importers", "parts")

FILE_SHARE = 0.1  # of all that is sent, where neither number is given
SOCKET_EVERY = 100  # requests
WATCH_EVERY = 2000  # inputs between two looks at the memory
MAX_GROWTH_BYTES = 64 << 20  # of the memory, once caches are warm
SLOW_S = 20.0  # of one input; counted as a failure
SOCKET_S = 8.0  # a server waits 5 s for the rest of a body
MAX_SHOWN_FAILURES = 20
PLANTS = ("text", "memory", "native")


class Surface:
    """Fuzzed requests and files, and what came of them.

    Args:
        world: with the router, its server and what files are made from.
        random: draws everything.

    Attributes:
        counts: inputs by kind and by result.
        failures: each kind of failure with its first example.
    """

    def __init__(self, world: doors.World, random: Random) -> None:
        self.world = world
        self.random = random
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.texts = [*doors.hostile_texts(random_texts=200).values(), *TEXTS]
        self.unsound = [text for text in self.texts if UNSOUND_PATTERN.search(text)]
        self.values: list[Any] = [None, True, False, *NUMBERS, [], {}, [[]], {"": ""}]
        ask = {"model": "hierrouter", "messages": [{"role": "user", "content": "compute 1+2"}]}
        answer = {"model": "calc", "content": "3", "tokens_in": 3, "tokens_out": 1}
        answer |= {"finish_reason": "stop", "logprobs": [-0.1]}
        settings = {"temperature": 0, "stop": ["x"], "n": 1, "seed": 1, "max_tokens": 5}
        parts = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]
        self.bodies: list[tuple[str, Any]] = [
            ("/v1/chat/completions", ask),
            ("/v1/chat/completions", ask | settings | {"stream": True}),
            ("/v1/chat/completions", {"messages": [*parts, *ask["messages"]], "tools": []}),
            ("/v1/decide", {**ask, "answers": [answer], "hierrouter": {"alpha": 0.1}}),
            ("/v1/decide", ask),
            ("/admin/reload", {}),
        ]
        live = json.loads((world.run / LIVE).read_text())
        self.tensors, header = read_tensors(world.run / WEIGHTS)
        self.sound: dict[str, Any] = {
            "log": doors.log_lines("x")[:4],
            "data set": [
                {"id": "q1", "question": "1+1?", "answer": "2", "split": "train"},
                {"question": "which?", "answer": "B", "choices": {"A": "no", "B": "yes"}},
            ],
            "table": [
                {
                    "query_id": "q",
                    "question": "1+1?",
                    "answer": "2",
                    "model": name,
                    "response": "2",
                    "tokens_in": 5,
                    "tokens_out": 1,
                    "usage": None,
                    "hop": 0,
                    "score": 1.0,
                }
                for name in "ab"
            ],
            "live": live,
            "weights": json.loads(header),
            "service": {"run": "runs/a", "share": 0.5, "before": [], "refused": {"runs/b": "no"}},
            "references": [{"question": "1+1?", "answers": ["2"]}],
            "pool": GOOD,
            "prices": 'source = "x"\n[prices]\na = 0.003\nb = { in = 0.001, out = 0.004 }\n',
        }

    def request(self, number: int, address: str) -> None:
        """Send one request; every hundredth goes to the server at `address`."""
        path, body = self.random.choice(self.bodies)
        method = "POST"
        headers: doors.Headers = doors.JSON_HEADERS
        if self.random.random() < 0.2:
            method = self.random.choice(("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"))
            text = quote(self.text()[:500].encode("utf-8", "surrogatepass"))
            paths = (*doors.GET_PATHS, "/v1/models/hierrouter", f"/v1/models/{text}", f"/{text}")
            path = self.random.choice(paths)
        if self.random.random() < 0.1:
            name = self.random.choice((b"host", b"content-type", b"content-length", b"x-any"))
            value = self.text()[:500].encode("utf-8", "surrogatepass")
            headers = (*headers[:1], (name, value)) if name != b"host" else ((name, value),)
        data = self.edited_json(body)
        if self.random.random() < 0.3:
            data = self.damaged(data)
        kind = f"{method} {path}" if path in dict(self.bodies) else f"{method} other"
        if number % SOCKET_EVERY == 0:
            self.run_input("socket", lambda: self.over_socket(address, method, path, data), data)
        else:
            send = lambda: self.world.ask(method, path, data, headers)[0]  # noqa: E731
            self.run_input(kind, send, data)

    def over_socket(self, address: str, method: str, path: str, data: bytes) -> str:
        """Send bytes that are HTTP, or nearly, to a server.

        Returns:
            The status; "closed" if the server only closed the connection.
        """
        head = f"{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        request = head.encode("utf-8", "surrogatepass") + data
        if self.random.random() < 0.3:
            request = self.damaged(request)
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=SOCKET_S) as connection:
            try:
                connection.sendall(request)
                reply = connection.recv(1 << 16)
            except (ConnectionError, TimeoutError):
                reply = b""
        status = reply[9:12].decode("ascii", "replace") if reply else "closed"
        assert status < "500" or status == "closed", reply[:300]
        return status

    def file(self) -> None:
        """Write one file, and read it by everything that reads its kind."""
        kind = self.random.choice(list(self.sound))
        sound = self.sound[kind]
        if kind in ("pool", "prices"):
            data = self.near_text(sound).encode("utf-8", "surrogatepass")
        elif isinstance(sound, list):
            lines = [self.edited_json(row) for row in sound]
            data = b"\n".join(lines) + b"\n"
        else:
            data = self.edited_json(sound)
        if self.random.random() < 0.3:
            data = self.damaged(data)
        self.run_input(f"file: {kind}", lambda: self.read(kind, data), data)

    def read(self, kind: str, data: bytes) -> str:
        """Read a file of a kind.

        Returns:
            "taken" or "refused".
        """
        world = self.world
        folder = world.folder / "odd"
        folder.mkdir(exist_ok=True)
        results = []
        if kind == "log":
            path = world.file("odd/log.jsonl", data)
            results = [
                doors.refusable(read_log, path, doors.SHAPE),
                doors.refusable(read_spending, path, doors.SHAPE),
                doors.refusable(read_traffic, path, 5, 0),
            ]
        elif kind == "references":
            results = [doors.refusable(read_references, world.file("odd/r.jsonl", data))]
        elif kind in ("data set", "table"):
            path = self.random.choice(self.table_files(data))
            if kind == "table":
                results = [doors.refusable(doors.gathered, path)]
            else:
                load = load_queries
                results = [doors.refusable(load, [str(path)], None, 42, folder)]
        elif kind == "pool":
            text = data.decode("utf-8", "surrogatepass" if _is_text(data) else "replace")
            results = [doors.refusable(parse_pool, text, "p.toml")]
        elif kind == "prices":
            results = [doors.refusable(parse_prices, world.file("odd/p.toml", data))]
        elif kind == "service":
            world.file("odd/service.json", data)
            results = [doors.refusable(load_service, folder)]
        elif kind == "live":
            for name in (LIVE, "run.json", "looks.jsonl"):
                world.file(f"odd/{name}", self.sealed(data))
            readers = (load_bundle, read_record, read_test_looks)
            results = [doors.refusable(read, folder) for read in readers]
        elif kind == "weights":
            header = data.decode("utf-8", "replace")
            write_tensors(folder / WEIGHTS, self.tensors, header)
            at_alpha = lambda run: router_at(run, 0.1)  # noqa: E731
            results = [doors.refusable(load, folder) for load in (load_checkpoint, at_alpha)]
        return "taken" if any(result is not None for result in results) else "refused"

    def table_files(self, data: bytes) -> list[Path]:
        """Files of one table: lines of JSON, CSV, and Parquet where its rows can be written so."""
        paths = [self.world.file(f"odd/t.{suffix}", data) for suffix in ("jsonl", "csv")]
        try:
            rows = [json.loads(line) for line in data.splitlines()]
            pq.write_table(pa.Table.from_pylist(rows), self.world.folder / "odd/t.parquet")
        except (
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
            KeyError,
            pa.ArrowException,
        ):
            return paths
        return [*paths, self.world.folder / "odd/t.parquet"]

    def sealed(self, data: bytes) -> bytes:
        """The file of a run with a checksum that is right, every second time."""
        if self.random.random() < 0.5:
            try:
                return resealed(json.loads(data)).encode()
            except (ValueError, RecursionError):
                pass
        return data

    def text(self) -> str:
        return self.random.choice(self.unsound if self.random.random() < 0.2 else self.texts)

    def value(self) -> Any:
        """A value that may stand anywhere in JSON."""
        draw = self.random.random()
        if draw < 0.5:
            return self.text()
        if draw < 0.9:
            return copy.copy(self.random.choice(self.values))
        return [self.value(), {self.text()[:100]: self.value()}]

    def edited_json(self, sound: Any) -> bytes:
        """A sound value with up to three places changed, taken out or added, as JSON."""
        value = copy.deepcopy(sound)
        for _ in range(self.random.randrange(4)):
            ways = list(places(value))[1:]
            if not ways:
                break
            *way, name = self.random.choice(ways)
            inner = value
            for step in way:
                inner = inner[step]
            draw = self.random.random()
            if draw < 0.6:
                inner[name] = self.value()
            elif draw < 0.8 and isinstance(inner, dict):
                inner[self.text()[:200]] = self.value()
            else:
                del inner[name]
        text = json.dumps(value, ensure_ascii=self.random.random() < 0.7)
        return text.encode("utf-8", "surrogatepass")

    def near_text(self, sound: str) -> str:
        """A sound text with a few words replaced by hostile ones, quoted or not."""
        words = sound.split(" ")
        for _ in range(self.random.randrange(4)):
            text = self.text()[:2000]
            written = self.random.choice((text, json.dumps(text), f"'{text}'", "1", "[[]]", "{}"))
            words[self.random.randrange(len(words))] = written
        return " ".join(words)

    def damaged(self, data: bytes) -> bytes:
        """Bytes with up to four places changed, cut out, repeated or added."""
        changed = bytearray(data)
        for _ in range(self.random.randrange(1, 5)):
            place = self.random.randrange(len(changed) + 1)
            match self.random.randrange(4):
                case 0 if place < len(changed):
                    changed[place] = self.random.randrange(256)
                case 1:
                    del changed[place : place + self.random.randrange(1, 64)]
                case 2:
                    changed[place:place] = self.random.randbytes(self.random.randrange(1, 8))
                case _:
                    changed[place:place] = changed[max(0, place - 40) : place]
        return bytes(changed)

    def run_input(self, kind: str, send: Callable[[], object], data: bytes) -> None:
        """Send one input and count what came of it."""
        started = time.monotonic()
        self.counts[kind] += 1
        try:
            self.counts[f"-> {send()}"] += 1
        except HierRouterError:
            self.counts["-> refused"] += 1
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if "hierrouter" in frame.filename] or frames
            place = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
            self.failed(
                f"{kind}: {type(error).__name__} at {place}", f"{error!r:.300} {data!r:.300}"
            )
        if time.monotonic() - started > SLOW_S:
            self.failed(f"{kind}: takes over {SLOW_S:g} s", f"{data!r:.300}")

    def failed(self, kind: str, example: str) -> None:
        self.counts["FAILED"] += 1
        if kind not in self.failures and len(self.failures) < MAX_SHOWN_FAILURES:
            print(f"FOUND {kind}: {example}", flush=True)
        self.failures.setdefault(kind, example)


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def plant(fault: str, surface: Surface) -> None:
    """Plant a fault that the fuzz must find: one of `PLANTS`."""
    if fault == "text":
        setattr(chat, "sound_values", lambda value: value)  # noqa: B010  not for type checkers
        setattr(messages, "sound_text", lambda text: text)  # noqa: B010
        return
    read_messages = messages.text_and_images
    kept: list[bytes] = []

    def faulty(asked: Sequence[Any]) -> tuple[str, list[Any]]:
        text, images = read_messages(asked)
        if fault == "memory":
            kept.append(b"x" * (1 << 20))
        elif "\N{REPLACEMENT CHARACTER}" in text:
            ctypes.string_at(0)
        return text, images

    for module in (chat, http_app):
        setattr(module, "text_and_images", faulty)  # noqa: B010


def memory_bytes() -> int:
    """The memory of this process that is in use, without what it shares."""
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")


def work(arguments: argparse.Namespace) -> int:
    """Fuzz in this process, print what came of it, and return the exit code."""
    started = time.monotonic()
    surface_failures = 0
    with tempfile.TemporaryDirectory() as folder:
        world = doors.World(Path(folder))
        with world.exits:
            surface = Surface(world, Random(arguments.seed))
            address = urlsplit(world.exits.enter_context(served(world.router))).netloc
            if arguments.plant:
                plant(arguments.plant, surface)
            memory: list[int] = []
            requests = 0
            files = 0
            while time.monotonic() - started < arguments.seconds:
                wants_request = requests < arguments.requests
                wants_file = files < arguments.files
                if not wants_request and not wants_file:
                    break
                if wants_file and (not wants_request or surface.random.random() < FILE_SHARE):
                    files += 1
                    surface.file()
                else:
                    requests += 1
                    surface.request(requests, address)
                if world.log.exists() and world.log.stat().st_size > 1 << 26:
                    os.truncate(world.log, 0)
                if (requests + files) % arguments.watch == 0:
                    memory.append(memory_bytes())
            surface_failures = report(surface, requests, files, memory, started)
    return int(surface_failures > 0)


def report(
    surface: Surface, requests: int, files: int, memory: Sequence[int], started: float
) -> int:
    """Print the figures, and return how many kinds of failure there were."""
    # The first quarter fills caches: of decisions, of patterns, of Arrow's pool.
    warm = memory[len(memory) // 4 :]
    growth = warm[-1] - warm[0] if len(warm) > 1 else 0
    if growth > MAX_GROWTH_BYTES:
        surface.failed("memory: grows", f"{growth:,} bytes after it was warm")
    results = {name: count for name, count in surface.counts.items() if name.startswith("-> ")}
    kinds = {name: count for name, count in surface.counts.items() if name not in results}
    print(f"sent      {json.dumps(kinds)}")
    print(f"results   {json.dumps(results)}")
    megabytes = [f"{size / 2**20:.0f}" for size in memory[:: max(1, len(memory) // 10)]]
    print(f"memory    {' '.join(megabytes)} MB; grew {growth / 2**20:.1f} MB after a quarter")
    seconds = time.monotonic() - started
    print(
        f"fuzz      {requests:,} requests, {files:,} files in {seconds:.0f} s: "
        f"{surface.counts['FAILED']} failures of {len(surface.failures)} kinds",
        flush=True,
    )
    return len(surface.failures)


def fuzz_surface(flags: Sequence[str]) -> int:
    """Fuzz in a child process, and return the exit code."""
    parser = argparse.ArgumentParser(prog="fuzz.py surface")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after this time")
    parser.add_argument("--requests", type=int, default=10**9, help="send this many")
    parser.add_argument("--files", type=int, default=10**9, help="read this many")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn")
    parser.add_argument("--watch", type=int, default=WATCH_EVERY, help="inputs between two looks")
    parser.add_argument("--plant", choices=PLANTS, help="a fault that must be found")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(flags)
    if arguments.child:
        return work(arguments)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", __file__, "surface", *flags, "--child"]
    )
    if done.returncode < 0:
        print(f"FOUND crash: the process was ended by signal {-done.returncode}")
    return int(done.returncode != 0)


def main() -> None:
    if sys.argv[1:2] == ["surface"]:
        raise SystemExit(fuzz_surface(sys.argv[2:]))
    if len(sys.argv) < 2 or sys.argv[1] not in ATHERIS_TARGETS:
        raise SystemExit(__doc__)
    fuzz_properties(sys.argv[1], sys.argv[2:])


def fuzz_properties(target: str, flags: Sequence[str]) -> None:
    """Fuzz properties by Atheris until the process ends.

    Args:
        target: one of `ATHERIS_TARGETS`.
        flags: of libFuzzer.
    """
    import atheris

    with atheris.instrument_imports(include=["hierrouter", "hierrouter_cache"]):
        from tests.properties import test_importers, test_parts

    targets: dict[str, list[Any]] = {
        "importers": [
            test_importers.test_any_table_is_taken_or_refused,
            test_importers.test_any_lines_of_ours_are_taken_or_refused,
        ],
        "parts": [test_parts.test_any_part_is_served_or_refused],
    }
    test_parts.sound()  # prepared here, so that it does not count as a slow input
    properties: list[Property] = [test.hypothesis.fuzz_one_input for test in targets[target]]
    failures: set[tuple[str, str]] = set()

    def run_input(data: bytes) -> None:
        check = properties[data[0] % len(properties)] if data else properties[0]
        try:
            check(data[1:] + Random(data).randbytes(PADDING))
        except Exception as error:
            *_, last = traceback.extract_tb(error.__traceback__)
            failure = (type(error).__name__, f"{last.filename}:{last.lineno}")
            if failure not in failures:
                failures.add(failure)
                Path(f"failed-{len(failures)}").write_bytes(data)
                traceback.print_exc()

    atheris.Setup([sys.argv[0], *LIMITS, *flags], run_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
