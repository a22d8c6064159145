"""A router on 127.0.0.1, in a thread of the test."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

from hierrouter.learning.bundle import load_bundle
from hierrouter.pools.pool import Endpoint, Pool
from hierrouter.serving.chat import ModelNames
from hierrouter.serving.router import Router
from hierrouter.serving.server import RequestLog, Settings, make_app
from tests.servers import MODEL, Server


@contextmanager
def served(router: Router, **settings: Any) -> Iterator[str]:
    """The address of a server for `router`, which is closed with it."""
    names = settings.pop("names", None) or ModelNames.of(router.policy)
    log = RequestLog(settings.pop("log", None))
    app = make_app(router, Settings(names, "test", **settings), log)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
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


def with_server(
    run: Path, name: str, upstream: Server, pool: Pool | None = None, **endpoint: Any
) -> Pool:
    """The run's pool, or another one, one of its models answered for by a server."""
    bundle = load_bundle(run)
    assert bundle
    pool = pool or bundle.pool
    where = Endpoint(upstream.url, **endpoint)
    models = tuple(
        replace(model, model=MODEL, backend="openai", endpoint=where)
        if model.name == name
        else model
        for model in pool.models
    )
    return replace(pool, models=models)
