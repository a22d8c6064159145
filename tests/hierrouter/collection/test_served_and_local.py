"""What collects on this machine collects from servers, too: the same answers by as many calls."""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock

import anyio
import numpy as np
import pytest

import hierrouter as hr
from hierrouter.collection import adaptive
from hierrouter.collection.adaptive import Adaptive, fill_adaptively
from hierrouter.collection.plan import Shard
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import backend
from hierrouter.engines.generator import Engines, Response
from hierrouter.learning.config import Objective
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import Endpoint, ModelSpec, Pool
from hierrouter.questions.datasets import load_queries
from hierrouter.replay.inspection import ask_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter.serving.monitoring import RequestLog, check_canaries
from hierrouter.serving.router import Router
from hierrouter_cache.errors import Interrupted
from hierrouter_cache.tree import RouteTree
from tests.conftest import Run, Start, works
from tests.engines import Counting
from tests.hierrouter.serving.serving import run_in
from tests.servers import Reply, Server, completion, serving

ROUTERS = Adaptive((0.005, 1.6))
PILOT = 8
TESTBED = load_pool("testbed")
QUERIES = load_queries(["arith", "copies"], 20, 5, Path())


@dataclass
class Place:
    """Where the testbed's models are called.

    Attributes:
        pool: the models.
        engines: load them.
        asked: number of calls by model and prompt.
    """

    pool: Pool
    engines: Engines
    asked: Counter[tuple[str, str]]


def reply_of(spec: ModelSpec, lock: Lock, prompt: str) -> Reply:
    """What a server of this model answers, with log-probabilities that sum up to the model's."""
    with lock:
        [(_, answer)] = Counting().load(spec).generate([prompt])
    assert isinstance(answer, Response)
    body = completion(answer.text, answer.tokens_in, answer.tokens_out, model=spec.name)
    [choice] = body["choices"]
    choice["finish_reason"] = answer.finish_reason
    confidence = answer.confidence
    if confidence:
        rest = confidence.tokens - 1
        share = (confidence.total - confidence.lowest) / max(rest, 1)
        logprobs = [confidence.lowest, *[share] * rest]
        choice["logprobs"] = {"content": [{"token": "x", "logprob": one} for one in logprobs]}
    return Reply(body)


@contextmanager
def place_of(kind: str) -> Iterator[Place]:
    """The testbed on this machine, or one server for each of its models."""
    if kind == "local":
        counting = Counting()
        yield Place(TESTBED, counting, counting.asked)
        return
    lock = Lock()
    with ExitStack() as stack:
        models = []
        servers = {}
        for spec in TESTBED.models:
            server = Server(lambda prompt, before, spec=spec: reply_of(spec, lock, prompt))  # type: ignore[misc]
            server.listing = Reply({"object": "list", "data": [{"id": spec.name}]})
            servers[spec.name] = stack.enter_context(serving(server))
            endpoint = Endpoint(server.url, deployment="testbed", concurrency=4)
            models.append(
                replace(spec, model=spec.name, backend="openai", endpoint=endpoint, revision=None)
            )
        pool = replace(TESTBED, models=tuple(models), encoder="hashed-ngrams")
        yield Place(pool, backend, _Asked(servers))


class _Asked(Counter[tuple[str, str]]):
    """The calls that servers have counted, by model and prompt."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        super().__init__()
        self._servers = servers

    def values(self):  # type: ignore[no-untyped-def, override]
        return [count for server in self._servers.values() for count in server.asked.values()]

    def total(self) -> int:
        return sum(self.values())


def in_rounds(place: Place, root: Path) -> None:
    fill_adaptively(place.pool, QUERIES, root, ROUTERS, engines=place.engines)


def interrupted_in_rounds(place: Place, root: Path) -> None:
    for limit in (60, 140, 180):
        stop = partial(lambda most: place.asked.total() > most, limit)
        try:
            fill_adaptively(place.pool, QUERIES, root, ROUTERS, engines=place.engines, stop=stop)
        except Interrupted:
            continue
    in_rounds(place, root)


def without_rounds(place: Place, root: Path) -> None:
    fill_cache(place.pool, QUERIES, root, engines=place.engines)


def in_shards(place: Place, root: Path) -> None:
    for index in (1, 2, 3):
        fill_cache(place.pool, QUERIES, root, engines=place.engines, shard=Shard(index, 3))


def interrupted(place: Place, root: Path) -> None:
    with pytest.raises(Interrupted):
        fill_cache(
            place.pool, QUERIES, root, engines=place.engines, stop=lambda: place.asked.total() > 99
        )
    without_rounds(place, root)


WAYS: dict[str, Callable[[Place, Path], None]] = {
    "adaptive": in_rounds,
    "adaptive, interrupted": interrupted_in_rounds,
    "complete": without_rounds,
    "in shards": in_shards,
    "interrupted": interrupted,
}


def figures_of(tree: RouteTree) -> list[np.ndarray]:  # type: ignore[type-arg]
    """Scores and tokens of all trees, those with holes included, in the order of the questions."""
    nodes = tree.with_pruned()
    order = np.lexsort((nodes.query_ids, nodes.datasets))
    return [
        getattr(nodes, name)[order] for name in ("score", "accuracy", "tokens_in", "tokens_out")
    ]


@pytest.mark.parametrize("way", WAYS)
def test_servers_give_the_same_trees_by_as_many_calls(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive, "PILOT_QUERIES", PILOT)
    totals = {}
    trees = {}
    for kind in ("local", "served"):
        with place_of(kind) as place:
            WAYS[way](place, tmp_path / kind)
            assert set(place.asked.values()) == {1}  # nothing is asked for twice
            totals[kind] = place.asked.total()
            WAYS[way.partition(",")[0] if "adaptive" in way else "complete"](place, tmp_path / kind)
            assert place.asked.total() == totals[kind]  # and nothing is missing
        trees[kind] = OpenTree(cache=tmp_path / kind).run()
        hops = ask_cache(tmp_path / kind, "SELECT DISTINCT hop FROM nodes")
        assert sorted(hops["hop"].to_pylist()) == [0, 1, 2]
    assert totals["local"] == totals["served"]
    for local, served in zip(*map(figures_of, trees.values()), strict=True):
        assert np.array_equal(local, served, equal_nan=True)
    assert (trees["local"].pruned is None) == (trees["served"].pruned is None)
    if "adaptive" in way:
        assert trees["served"].pruned is not None
        assert totals["served"] < len(QUERIES) * (TESTBED.layout.calls + len(TESTBED.models))


POOL_FILE = """[pool]
hops = 2
stage_prompts = ["Plan.", "Solve."]
"""
MODEL_OF_FILE = """
[[models]]
name = "{name}"
model = "{name}"
base_rate = {rate}
backend = "openai"
generation = {{ max_new_tokens = 16 }}
[models.endpoint]
base_url = "{url}"
deployment = "{name}"
"""
COLLECT = (
    "collect --datasets mine.jsonl --pool pool.toml --encoder hashed-ngrams --adaptive --alphas .05"
)


def knowing(name: str, prompt: str, before: int) -> Reply:
    """The answer of a model that knows sums: a small one those of even numbers alone."""
    number = int(prompt.partition("+")[0].split()[-1])
    is_right = name == "large" or number % 2 == 0
    return Reply(completion(str(3 * number) if is_right else "no idea", model=name))


def test_a_collection_killed_in_a_round_goes_on_to_the_same_end(
    tmp_path: Path, start: Start, hierrouter: Run
) -> None:
    questions = [
        {
            "id": f"q{number}",
            "question": f"compute {number}+{2 * number}",
            "answer": f"{3 * number}",
        }
        for number in range(100)
    ]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    command = [*COLLECT.split(), "--cache"]
    with ExitStack() as stack:
        text = POOL_FILE
        servers = []
        for name, rate in (("small", 0.01), ("large", 0.04)):
            server = Server(partial(knowing, name))
            server.listing = Reply({"object": "list", "data": [{"id": name}]})
            servers.append(stack.enter_context(serving(server)))
            text += MODEL_OF_FILE.format(name=name, rate=rate, url=server.url)
        (tmp_path / "pool.toml").write_text(text)

        def asked() -> int:
            return sum(server.asked.total() for server in servers)

        works(hierrouter(*command, "whole", cwd=tmp_path))
        calls = asked()
        running = start(*command, "killed", cwd=tmp_path)
        while not list((tmp_path / "killed/parts").glob("decisions-*")):
            assert running.poll() is None, running.said()
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        running.result()
        works(hierrouter(*command, "killed", cwd=tmp_path))
        made = asked() - calls
    # Only what was answered and not committed is asked again.
    assert calls <= made <= calls + 200
    killed, whole = (OpenTree(cache=tmp_path / name).run() for name in ("killed", "whole"))
    assert killed.fingerprint == whole.fingerprint


def test_canaries_are_asked_of_servers_alone(tmp_path: Path) -> None:
    """The weights of a model on this machine cannot change behind its name."""
    for kind in ("local", "served"):
        with place_of(kind) as place:
            without_rounds(place, tmp_path / kind)
            tree = OpenTree(cache=tmp_path / kind).run()
            run = run_in(tmp_path / f"run-{kind}", tree, Objective(0.1))
            before = place.asked.total()

            async def check(run: Path = run) -> tuple[int, list[str]]:
                router = Router(run, allow_endpoints=["127.0.0.1"])
                await check_canaries(router, RequestLog(None))
                await router.aclose()
                changed = [name for name, model in router.models.items() if model.has_changed]
                return sum(map(len, router.canaries.values())), changed

            canaries, changed = anyio.run(check)
            assert not changed
            assert (canaries > 0) == (kind == "served")
            if kind == "served":
                assert place.asked.total() - before == canaries


def test_a_log_teaches_on_servers_as_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = load_queries(["arith", "copies"], 35, 9, Path())
    log = [
        {"log": 1, "question": query.question, "status": 200, "answer": "x"} for query in queries
    ]
    right = [{"question": query.question, "answers": query.answers} for query in queries]
    results = {}
    for kind in ("local", "served"):
        folder = tmp_path / kind
        with place_of(kind) as place:
            without_rounds(place, folder / "cache")
            run_in(folder / "old", OpenTree(cache=folder / "cache").run(), Objective(0.1))
            monkeypatch.chdir(folder)
            for name, rows in (("log.jsonl", log), ("right.jsonl", right)):
                Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
            before = place.asked.total()
            result = hr.learn_from(
                "log.jsonl", run="old", judge="right.jsonl", allow_endpoints=["127.0.0.1"]
            )
            results[kind] = result.as_object()
            if kind == "served":
                assert place.asked.total() > before
                assert set(place.asked.values()) <= {1, 2}  # twice: in both of the caches
    for name in ("lines", "distinct", "old", "new", "better"):
        assert results["local"][name] == pytest.approx(results["served"][name])
