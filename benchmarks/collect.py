"""Batched collection against one-by-one `generate`, same answers.

    python benchmarks/collect.py [--queries 40]

Both sides run the testbed's `calc` on the same prompts in the same process, one torch thread.
Prints calls a CPU-second of each and their ratio, and that the answers are equal.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import torch
import transformers

from hierrouter.collect.backends import Response, answers_in_order, backend
from hierrouter.collect.datasets import load_queries
from hierrouter.pool_file import load_pool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=40, help="of each of the ten families")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    spec = load_pool("testbed").models[0]
    queries = load_queries(["testbed"], asked.queries, 42, Path())
    prompts = [query.question for query in queries]
    generator = backend("transformers").load(spec)
    answers_in_order(generator, prompts[:2])

    started = time.process_time()
    alone: list[Response] = [plain_generate(generator, prompt) for prompt in prompts]
    slow = time.process_time() - started
    started = time.process_time()
    batched = answers_in_order(generator, prompts)
    fast = time.process_time() - started
    equal = sum(left.text == right.text for left, right in zip(alone, batched, strict=True))
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{platform.machine()}, {versions}, {len(prompts)} prompts")
    print(f"one by one: {len(prompts) / slow:8.0f} calls/CPU-s")
    print(f"batched:    {len(prompts) / fast:8.0f} calls/CPU-s")
    print(f"ratio {slow / fast:.1f}, equal answers {equal} of {len(prompts)}")


def plain_generate(generator: object, prompt: str) -> Response:
    """What a user would write: encode, `model.generate`, decode."""
    model, tokenizer = generator._model, generator._tokenizer  # type: ignore[attr-defined]
    message = [{"role": "user", "content": prompt}]
    tokens = tokenizer.apply_chat_template(
        message, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        output = model.generate(**tokens, max_new_tokens=16, do_sample=False)
    new = output[0, tokens["input_ids"].shape[1] :]
    text = tokenizer.decode(new, skip_special_tokens=True).strip()
    return Response(text, tokens["input_ids"].shape[1], len(new), "stop")


if __name__ == "__main__":
    main()
