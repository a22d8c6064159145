"""The testbed's models behind an OpenAI-compatible server, for `serve_load.py --served`.

Prints its port once it listens. Each model answers what waits for it in one batch.
"""

import socket
from typing import Any

import measuring  # noqa: F401  makes this copy of the project importable
import uvicorn
from fastapi import FastAPI

from hierrouter.engines import backend
from hierrouter.pools.files import load_pool
from hierrouter.serving.models import BatchedModel


def make_app() -> FastAPI:
    pool = load_pool("testbed")
    models = {
        spec.name: BatchedModel(spec.name, backend(spec.backend).load(spec)) for spec in pool.models
    }
    app = FastAPI()

    @app.get("/v1/models")
    async def listed() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        found = await models[body["model"]].answer(body["messages"][-1]["content"])
        message = {"role": "assistant", "content": found.text}
        return {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": found.finish_reason}],
            "usage": {
                "prompt_tokens": found.tokens_in,
                "completion_tokens": found.tokens_out,
                "total_tokens": found.tokens_in + found.tokens_out,
            },
        }

    return app


if __name__ == "__main__":
    app = make_app()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(app, log_level="warning", ws="none")
        uvicorn.Server(config).run(sockets=[listener])
