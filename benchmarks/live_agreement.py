"""Live routes against the replayed tree: the same answers, for the same questions.

Asks the installed command, `route` and `serve`, the questions of a fold, the server through the
official client in three ways, and counts the answers, routes and costs that are those of the tree
that the policy learned from. Nothing is tuned here, so the fold is that of the test.

    python benchmarks/live_agreement.py --checkpoint runs/mine --cache caches/default
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
from measuring import versions
from serve_load import address, served

from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import load_texts
from hierrouter.runs.checkpoint import router_at

MODEL = "hierrouter"
AT_ONCE = 16


@dataclass(frozen=True)
class Found:
    """What became of one question."""

    answer: str
    route: str
    cost: float

    def agrees(self, other: Found) -> tuple[bool, bool, bool]:
        """Whether answer, route and cost are those of another."""
        near = math.isclose(self.cost, other.cost, rel_tol=1e-6)
        return self.answer == other.answer, self.route == other.route, near


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--fold", default="test")
    parser.add_argument("--questions", type=int, default=200)
    args = parser.parse_args()
    print(versions(openai))
    wanted = replayed(args.checkpoint, args.cache, args.fold, args.questions)
    show("route --file", by_command(args.checkpoint, list(wanted)), wanted)
    with served(args.checkpoint, None) as process:
        url = address(process)
        ways: dict[str, Callable[[str, list[str]], dict[str, Found]]] = {
            "serve, plain": plain,
            "serve, streaming": streaming,
            f"serve, {AT_ONCE} at once": together,
        }
        for name, way in ways.items():
            show(name, way(url, list(wanted)), wanted)


def replayed(run: Path, cache: Path, fold: str, count: int) -> dict[str, Found]:
    """What the tree says, by question."""
    tree = OpenTree(cache=cache).run().split(fold)
    tree = tree.select(np.arange(min(count, len(tree))))
    ends = router_at(run, None).endings(tree).argmax(axis=1).tolist()
    return {
        texts.question: Found(
            texts.answers[end], tree.routes.name(end, tree.models), float(tree.cost[row, end])
        )
        for row, (texts, end) in enumerate(zip(load_texts(cache, tree), ends, strict=True))
    }


def by_command(run: Path, questions: list[str]) -> dict[str, Found]:
    """`hierrouter route --file -`."""
    lines = "".join(json.dumps({"question": question}) + "\n" for question in questions)
    command = [sys.executable, "-m", "hierrouter_cli", "route", "--checkpoint", str(run)]
    done = subprocess.run(
        [*command, "--file", "-"], input=lines, stdout=subprocess.PIPE, text=True, check=True
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["question"]: Found(row["answer"], row["route"], row["cost"]) for row in rows}


def plain(url: str, questions: list[str]) -> dict[str, Found]:
    """One after the other."""
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    return {
        question: whole(client.chat.completions.create(model=MODEL, messages=user(question)))
        for question in questions
    }


def streaming(url: str, questions: list[str]) -> dict[str, Found]:
    """One after the other, put together from their pieces."""
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    found = {}
    for question in questions:
        pieces = list(
            client.chat.completions.create(model=MODEL, messages=user(question), stream=True)
        )
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
        found[question] = with_route(text, pieces[-1].model_extra)
    return found


def together(url: str, questions: list[str]) -> dict[str, Found]:
    """Some at a time, by the asynchronous client."""

    async def all_of_them() -> dict[str, Found]:
        places = asyncio.Semaphore(AT_ONCE)
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def one(question: str) -> Found:
                async with places:
                    asked = client.chat.completions.create(model=MODEL, messages=user(question))
                    return whole(await asked)

            found = await asyncio.gather(*(one(question) for question in questions))
        return dict(zip(questions, found, strict=True))

    return asyncio.run(all_of_them())


def user(question: str) -> Any:
    return [{"role": "user", "content": question}]


def whole(completion: Any) -> Found:
    return with_route(completion.choices[0].message.content, completion.model_extra)


def with_route(answer: str, extra: Mapping[str, Any] | None) -> Found:
    told = (extra or {})["hierrouter"]
    return Found(answer, told["route"], told["cost"])


def show(name: str, found: Mapping[str, Found], wanted: Mapping[str, Found]) -> None:
    agreed = [found[question].agrees(tree) for question, tree in wanted.items()]
    counts = [sum(column) for column in zip(*agreed, strict=True)]
    answers, routes, costs = counts
    print(
        f"{name:<20} of {len(wanted)} questions as in the tree: "
        f"answers {answers}, routes {routes}, costs {costs}"
    )


if __name__ == "__main__":
    main()
