"""Run by an interpreter that has LiteLLM: asks questions through its router and writes who answers.

Arguments: the strategy's file, the address of the router's server, and JSON with the addresses of
the models and the questions.
"""

import asyncio
import importlib.util
import json
import sys
from typing import Any

import litellm


def main() -> None:
    file, url, request_file = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("strategy", file)
    assert spec and spec.loader
    strategy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(strategy)
    with open(request_file) as source:  # noqa: PTH123
        request = json.load(source)
    router = litellm.Router(
        model_list=[
            {
                "model_name": "pool",
                "litellm_params": {"model": f"openai/{name}", "api_base": base, "api_key": "any"},
                "model_info": {"id": name},
            }
            for name, base in request["models"].items()
        ],
        num_retries=0,
    )
    router.register_plugin(
        strategy.HierRouterStrategy(router, url, otherwise=request.get("otherwise"))
    )

    async def answering_model(messages: list[dict[str, Any]]) -> str:
        try:
            reply = await router.acompletion(model="pool", messages=messages)
        except Exception as error:
            return f"error: {error}"
        return str(reply._hidden_params["model_id"])

    async def ask_all() -> list[str]:
        return [await answering_model(messages) for messages in request["messages"]]

    sys.stdout.write(json.dumps(asyncio.run(ask_all())) + "\n")


main()
