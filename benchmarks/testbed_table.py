"""Token F1 of every route on every testbed family.

    python benchmarks/testbed_table.py [--split test] [--limit 300] [--models DIR]

Prints three direct calls, nine routes of two hops, the per-query oracle, and what a policy gets
that knows the family and, for riddles, what the first specialist answered. Greedy decoding,
float32, one thread. Not covered: costs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers

from hierrouter.scoring import token_f1
from hierrouter.testbed import FAMILIES, MODELS, Question, model_path, questions

Route = tuple[str, ...]
Scores = dict[Route, list[float]]
ROUTES: tuple[Route, ...] = tuple(
    route for hops in (1, 2) for route in product(MODELS, repeat=hops)
)
BATCH = 64
MAX_NEW_TOKENS = 16


class Specialist:
    """One model answering prompts; equal prompts are answered once."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
        self.known: dict[str, str] = {}

    def answer(self, prompts: Sequence[str]) -> list[str]:
        """Responses in the order of `prompts`."""
        new = sorted({prompt for prompt in prompts if prompt not in self.known}, key=len)
        for start in range(0, len(new), BATCH):
            batch = new[start : start + BATCH]
            self.known.update(zip(batch, self._generate(batch), strict=True))
        return [self.known[prompt] for prompt in prompts]

    @torch.inference_mode()
    def _generate(self, prompts: list[str]) -> list[str]:
        inputs: Any = self.tokenizer.apply_chat_template(
            [[{"role": "user", "content": prompt}] for prompt in prompts],
            add_generation_prompt=True,
            padding=True,
            return_dict=True,
            return_tensors="pt",
        )
        tokens = self.model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        new = tokens[:, inputs["input_ids"].shape[1] :]
        return list(self.tokenizer.batch_decode(new, skip_special_tokens=True))


def score_routes(asked: Sequence[Question], pool: dict[str, Specialist]) -> Scores:
    """F1 of every route on every question, in the order of `asked`."""
    said: dict[Route, list[str]] = {(): [question.question for question in asked]}
    scores: Scores = {}
    for route in ROUTES:
        contexts = said[route[:-1]]
        responses = pool[route[-1]].answer(contexts)
        said[route] = ["\n\n".join(turn) for turn in zip(contexts, responses, strict=True)]
        scores[route] = [
            token_f1(response, question.answers)
            for response, question in zip(responses, asked, strict=True)
        ]
    return scores


def informed(family: str, asked: Sequence[Question], scores: Scores) -> float:
    """F1 of the family's best route; of the best second hop per kind of riddle."""
    if family != "riddle":
        return max(fmean(column) for column in scores.values())
    is_sum = [question.answers[0].isdigit() for question in asked]
    pairs = zip(scores["facts", "calc"], scores["facts", "text"], is_sum, strict=True)
    return fmean(sum_first if wanted else word_first for sum_first, word_first, wanted in pairs)


def rows(
    split: str, limit: int, pool: dict[str, Specialist]
) -> Iterator[tuple[str, dict[str, float]]]:
    """A row a family: mean F1 per route, `oracle` and `informed`."""
    for family in FAMILIES:
        asked = [question for question in questions(family, limit=limit) if question.split == split]
        scores = score_routes(asked, pool)
        row = {">".join(word[0] for word in route): fmean(scores[route]) for route in ROUTES}
        row["oracle"] = fmean(max(column) for column in zip(*scores.values(), strict=True))
        row["informed"] = informed(family, asked, scores)
        yield f"{family} ({len(asked)})", row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"))
    parser.add_argument("--limit", type=int, default=300, help="questions per family, all splits")
    parser.add_argument("--models", type=Path, help="folder of calc/, text/ and facts/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    folder = options.models
    pool: dict[str, Specialist] = {
        name: Specialist(folder / name if folder else model_path(name)) for name in MODELS
    }
    table = dict(rows(options.split, options.limit, pool))
    columns = list(next(iter(table.values())))
    table["all"] = {name: fmean(row[name] for row in table.values()) for name in columns}
    print(" " * 14 + "".join(f"{name:>9s}" for name in columns))
    for family, row in table.items():
        print(f"{family:14s}" + "".join(f"{row[name]:9.3f}" for name in columns))


if __name__ == "__main__":
    main()
