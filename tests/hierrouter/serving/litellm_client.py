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
    file, url, given = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("strategy", file)
    assert spec and spec.loader
    strategy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(strategy)
    with open(given) as source:  # noqa: PTH123
        asked = json.load(source)
    router = litellm.Router(
        model_list=[
            {
                "model_name": "pool",
                "litellm_params": {"model": f"openai/{name}", "api_base": base, "api_key": "any"},
                "model_info": {"id": name},
            }
            for name, base in asked["models"].items()
        ],
        num_retries=0,
    )
    router.register_plugin(
        strategy.HierRouterStrategy(router, url, otherwise=asked.get("otherwise"))
    )

    async def answered(messages: list[dict[str, Any]]) -> str:
        try:
            found = await router.acompletion(model="pool", messages=messages)
        except Exception as error:
            return f"error: {error}"
        return str(found._hidden_params["model_id"])

    async def everything() -> list[str]:
        return [await answered(messages) for messages in asked["messages"]]

    sys.stdout.write(json.dumps(asyncio.run(everything())) + "\n")


main()
