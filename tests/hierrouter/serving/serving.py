"""A router on 127.0.0.1, in a thread of the test, and who asks it."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from hierrouter.engines.generator import NO_OPTIONS, CallOptions, Response
from hierrouter.learning.config import Objective, TrainConfig
from hierrouter.learning.training import train
from hierrouter.pools.pool import Ability, Endpoint, Pool
from hierrouter.replay.tree import Tree
from hierrouter.runs.bundle import bundle_of, load_bundle, save_bundle
from hierrouter.runs.checkpoint import save_checkpoint
from hierrouter.serving import ServerSettings
from hierrouter.serving.chat import ModelNames
from hierrouter.serving.http_app import make_app
from hierrouter.serving.models import OnText
from hierrouter.serving.monitoring import RequestLog
from hierrouter.serving.router import Router
from hierrouter.serving.versions import Lineup, Version, Versions
from tests.engines import scripted_answer
from tests.hierrouter.learning.trainings import VALUE
from tests.servers import MODEL, Server

MODELS = ("calc", "text", "facts")


@dataclass
class Double:
    """A live model with scripted answers and a scripted end."""

    answers: Callable[[str], Response] = lambda prompt: scripted_answer("m", prompt)
    closes: Callable[[], object] = bool

    abilities: frozenset[Ability] = frozenset()
    takes_settings = False
    fault = ""
    has_changed = False

    async def answer(
        self, prompt: str, on_text: OnText | None = None, options: CallOptions = NO_OPTIONS
    ) -> Response:
        return self.answers(prompt)

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        self.closes()


def over(run: Path, *models: Double) -> Router:
    """The policy of a run over these models, or over one for all."""
    router = Router(run, load=False)
    router.models = dict(zip(MODELS, models * (3 // len(models)), strict=True))
    return router


def run_in(
    folder: Path, tree: Tree, objective: Objective, config: TrainConfig = VALUE, seed: int = 0
) -> Path:
    """The folder, with a router trained on a tree and what it needs to answer."""
    save_checkpoint(train(tree, objective, config, seed), folder)
    save_bundle(bundle_of(tree.root, tree), folder)
    return folder


def figures_of(url: str, name: str) -> dict[str, float]:
    """Of each sample of this name its value, by first label, as Prometheus' own parser reads it."""
    families = text_string_to_metric_families(httpx2.get(f"{url}/metrics").text)
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return {next(iter(sample.labels.values()), ""): sample.value for sample in samples}


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@contextmanager
def served(router: Router, **settings: Any) -> Iterator[str]:
    """The address of a server for `router`, which is closed with it."""
    names = settings.pop("names", None) or ModelNames.of(router.policy)
    lineup = settings.pop("lineup", None) or Lineup(Version("test", router, names))
    versions = Versions(lineup, settings.pop("make_next", lambda current: current))
    log = RequestLog(settings.pop("log", None))
    app = make_app(versions, ServerSettings(**settings), log)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


def with_server(run: Path, upstream: Server, *names: str, **endpoint: Any) -> Pool:
    """The run's pool, some of its models, or all of them, answered for by a server."""
    pool = load_bundle(run).pool
    where = Endpoint(upstream.url, **endpoint)
    models = tuple(
        replace(model, model=MODEL, backend="openai", endpoint=where)
        if not names or model.name in names
        else model
        for model in pool.models
    )
    return replace(pool, models=models)


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


QUESTION = "compute 12+7"
GOOD = {"model": "hierrouter", "messages": user(QUESTION)}


def ask(url: str, timeout: float = 60, **changed: object) -> httpx2.Response:
    """The response to a good request with some of its keys changed."""
    return httpx2.post(f"{url}/v1/chat/completions", json={**GOOD, **changed}, timeout=timeout)
