"""Compare live routes with the replayed tree: the same questions must get the same answers.

The questions of a fold are asked by the installed commands `route` and `serve`, the latter through
the official client in three ways. The script counts answers, routes and costs that equal those of
the tree that the policy was trained on, and exits with 1 if any differs. Nothing is tuned here, so
the test fold may be used.

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
from serve_load import running_server, wait_for_address

from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import load_texts
from hierrouter.runs.checkpoint import router_at

MODEL = "hierrouter"
CONCURRENCY = 16


@dataclass(frozen=True)
class RoutedAnswer:
    """The answer to one question, its route and cost."""

    answer: str
    route: str
    cost: float

    def agrees(self, other: RoutedAnswer) -> tuple[bool, bool, bool]:
        """Return whether the answers, the routes and the costs are equal."""
        is_same_cost = math.isclose(self.cost, other.cost, rel_tol=1e-6)
        return self.answer == other.answer, self.route == other.route, is_same_cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--fold", default="test")
    parser.add_argument("--questions", type=int, default=200)
    args = parser.parse_args()
    print(versions(openai))
    expected = replay_answers(args.checkpoint, args.cache, args.fold, args.questions)
    differing = show("route --file", ask_command(args.checkpoint, list(expected)), expected)
    with running_server(args.checkpoint, None) as process:
        url = wait_for_address(process)
        clients: dict[str, Callable[[str, list[str]], dict[str, RoutedAnswer]]] = {
            "serve, plain": ask_in_turn,
            "serve, streaming": ask_streaming,
            f"serve, {CONCURRENCY} at once": ask_concurrently,
        }
        for name, client in clients.items():
            differing += show(name, client(url, list(expected)), expected)
    sys.exit(1 if differing else 0)


def replay_answers(run: Path, cache: Path, fold: str, count: int) -> dict[str, RoutedAnswer]:
    """Return the tree's answer to each question."""
    tree = OpenTree(cache=cache).run().split(fold)
    tree = tree.select(np.arange(min(count, len(tree))))
    ends = router_at(run, None).endings(tree).argmax(axis=1).tolist()
    return {
        texts.question: RoutedAnswer(
            texts.answers[end], tree.layout.name(end, tree.models), float(tree.cost[row, end])
        )
        for row, (texts, end) in enumerate(zip(load_texts(cache, tree), ends, strict=True))
    }


def ask_command(run: Path, questions: list[str]) -> dict[str, RoutedAnswer]:
    """Ask `hierrouter route --file -`."""
    lines = "".join(json.dumps({"question": question}) + "\n" for question in questions)
    command = [sys.executable, "-m", "hierrouter_cli", "route", "--checkpoint", str(run)]
    completed = subprocess.run(
        [*command, "--file", "-"], input=lines, stdout=subprocess.PIPE, text=True, check=True
    )
    rows = [json.loads(line) for line in completed.stdout.splitlines()]
    return {row["question"]: RoutedAnswer(row["answer"], row["route"], row["cost"]) for row in rows}


def ask_in_turn(url: str, questions: list[str]) -> dict[str, RoutedAnswer]:
    """Ask the server one question after the other."""
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    return {
        question: answer_of(client.chat.completions.create(model=MODEL, messages=user(question)))
        for question in questions
    }


def ask_streaming(url: str, questions: list[str]) -> dict[str, RoutedAnswer]:
    """Ask the server one question after the other, and join the pieces of each stream."""
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    answers = {}
    for question in questions:
        pieces = list(
            client.chat.completions.create(model=MODEL, messages=user(question), stream=True)
        )
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
        answers[question] = routed_answer(text, pieces[-1].model_extra)
    return answers


def ask_concurrently(url: str, questions: list[str]) -> dict[str, RoutedAnswer]:
    """Ask the server several questions at a time, by the asynchronous client."""

    async def ask_all() -> dict[str, RoutedAnswer]:
        slots = asyncio.Semaphore(CONCURRENCY)
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def ask(question: str) -> RoutedAnswer:
                async with slots:
                    completion = await client.chat.completions.create(
                        model=MODEL, messages=user(question)
                    )
                return answer_of(completion)

            answers = await asyncio.gather(*map(ask, questions))
        return dict(zip(questions, answers, strict=True))

    return asyncio.run(ask_all())


def user(question: str) -> Any:
    return [{"role": "user", "content": question}]


def answer_of(completion: Any) -> RoutedAnswer:
    return routed_answer(completion.choices[0].message.content, completion.model_extra)


def routed_answer(answer: str, extra: Mapping[str, Any] | None) -> RoutedAnswer:
    routing = (extra or {})["hierrouter"]
    return RoutedAnswer(answer, routing["route"], routing["cost"])


def show(name: str, live: Mapping[str, RoutedAnswer], expected: Mapping[str, RoutedAnswer]) -> int:
    """Print how many answers, routes and costs are those of the tree; return how many are not."""
    agreements = [live[question].agrees(answer) for question, answer in expected.items()]
    answers, routes, costs = (sum(column) for column in zip(*agreements, strict=True))
    print(
        f"{name:<20} of {len(expected)} questions as in the tree: "
        f"answers {answers}, routes {routes}, costs {costs}"
    )
    return 3 * len(expected) - answers - routes - costs


if __name__ == "__main__":
    main()
