"""The testbed's models behind an OpenAI-compatible server, for other benchmarks.

It prints its port once it listens. Each model answers all waiting prompts in one batch. Arguments:
the port (0 for a free one), then the names of the models. Without arguments: all models at a free
port.
"""

import socket
import sys
from typing import Any

import measuring  # noqa: F401  makes this copy of the project importable
import uvicorn
from fastapi import FastAPI

from hierrouter.engines import backend
from hierrouter.pools.files import load_pool
from hierrouter.serving.models import BatchedModel


def make_app(names: list[str]) -> FastAPI:
    models = {
        spec.name: BatchedModel(spec.name, backend(spec.backend).load(spec))
        for spec in load_pool("testbed").models
        if not names or spec.name in names
    }
    app = FastAPI()

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        answer = await models[body["model"]].answer(body["messages"][-1]["content"])
        message = {"role": "assistant", "content": answer.text}
        return {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
            "usage": {
                "prompt_tokens": answer.tokens_in,
                "completion_tokens": answer.tokens_out,
                "total_tokens": answer.tokens_in + answer.tokens_out,
            },
        }

    return app


if __name__ == "__main__":
    port, *names = sys.argv[1:] or ["0"]
    app = make_app(names)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(port)))
        listener.listen()
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(app, log_level="warning", ws="none")
        uvicorn.Server(config).run(sockets=[listener])
