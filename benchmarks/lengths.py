"""Responses of very different lengths: rows that change companions, against whole rectangles.

    python benchmarks/lengths.py [--prompts 640] [--median 32] [--rounds 3]

The three shipped models answer testbed questions at temperature 1. Their weights are the shipped
ones, and their own answers are all short, so the chance of the end token is set: lengths are
log-normal, and 5 % of the responses are cut at ten times the median, as with a model that reasons.
The second table is of the testbed's own setting: greedy, at most 16 tokens.

Both ways are one engine, with and without pauses (`hierrouter/engines/rows.py`), in one process
with one thread and in turn. Tokens a second are medians over the rounds. Tokens and
log-probabilities of both are compared to the last bit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from measuring import versions
from scipy.stats import lognorm

from hierrouter.engines import backend
from hierrouter.engines.batches import DecodedResponse, StaticBatches
from hierrouter.engines.devices import torch_threads
from hierrouter.engines.generator import never
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import Generation, ModelSpec
from hierrouter.questions.datasets import load_queries

CUT_SHARE = 0.05
CAP_FACTOR = 10  # the longest response over the median one
CUT_QUANTILE = 1.6449  # standard deviations above the mean that 5 % of a normal distribution exceed
Responses = Mapping[int, DecodedResponse]


class LongTail:
    """Sets the chance of the end token, so that lengths are log-normal at temperature 1.

    Args:
        model: the model; its logits are changed from now on.
        end: the end token.
        middle: median length of a response.
        cap: the largest number of new tokens; 5 % of the responses would be longer.

    Attributes:
        widths: int64[rows or 1], tokens of the prompts that are decoded next, with those that fill
            them up.
    """

    def __init__(self, model: Any, end: int, middle: int, cap: int) -> None:
        sigma = torch.tensor(cap / middle).log().item() / CUT_QUANTILE
        lengths = torch.arange(cap + 2) - 0.5
        survival = torch.tensor(lognorm.sf(lengths.clamp(min=0).numpy(), sigma, scale=middle))
        chances = 1 - survival[1:] / survival[:-1]
        # The n-th entry is for the n-th new token.
        self._log_odds = (chances.log() - (-chances).log1p()).float()
        self._end = end
        self.widths = torch.zeros(1, dtype=torch.long)
        model.register_forward_hook(self._set_chance)

    def _set_chance(self, model: Any, inputs: object, output: Any) -> None:
        numbers = output.past_key_values.get_seq_length() - self.widths + 1
        logits = output.logits[:, -1]
        logits[:, self._end] = -torch.inf
        total = logits.float().logsumexp(dim=-1)
        odds = self._log_odds[numbers.clamp(max=len(self._log_odds) - 1)].to(logits.device)
        logits[:, self._end] = (total + odds).to(logits.dtype)

    def follow(self, decoder: StaticBatches) -> None:
        """Learn the widths of each batch from an engine's decoder."""
        decode_batch = decoder._decode_batch

        def decode(rows: Any, height: int, *arguments: Any) -> Any:
            fillers = rows.widths[:1] * (height - len(rows))
            self.widths = torch.tensor([*rows.widths, *fillers])
            return decode_batch(rows, height, *arguments)

        vars(decoder)["_decode_batch"] = decode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=640)
    parser.add_argument("--median", type=int, default=32, help="of the lengths, in tokens")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    queries = load_queries(["testbed"], -(-args.prompts // 10), 42, Path())
    prompts = [query.question for query in queries][: args.prompts]
    print(f"{versions(torch, transformers)}, {len(prompts)} prompts")
    tail = Generation(CAP_FACTOR * args.median, temperature=1.0)
    for name, generation in (("long-tailed lengths", tail), ("the testbed's own setting", None)):
        print(f"\n{name}")
        print(f"{'tokens/s':9}{'median':>7}{'longest':>8}{'cut':>6}", end="")
        print(f"{'rectangles':>12}{'rows':>8}{'ratio':>7}")
        for spec in load_pool("testbed").models:
            decoder, fitting = load(spec, generation, args.median, prompts)
            print(f"{spec.name:9}{compare(decoder, fitting, args.rounds)}", flush=True)


def load(
    spec: ModelSpec, generation: Generation | None, middle: int, prompts: Sequence[str]
) -> tuple[StaticBatches, Mapping[int, Any]]:
    """Load a model in one process with one thread, and tokenize the prompts that fit."""
    with torch_threads(1):
        generator: Any = backend("transformers").load(
            replace(spec, generation=generation or spec.generation)
        )
    decoder = generator._decoder
    if generation:
        tail = LongTail(decoder._model, min(decoder._ends), middle, generation.max_new_tokens)
        tail.follow(decoder)
    fitting, _ = generator._fitting(prompts)
    return decoder, fitting


def compare(decoder: StaticBatches, prompts: Mapping[int, Any], rounds: int) -> str:
    """Decode prompts both ways, and return the rest of the line to print."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    results: dict[bool, Responses] = {}
    for turn in range(rounds + 1):
        for pauses in seconds:
            vars(decoder)["_can_pause"] = pauses
            results[pauses], spent = timed(partial(decoder.decode, prompts, never))
            if turn > 0:  # the first turn prepares what is made once
                seconds[pauses].append(spent)
    assert results[True] == results[False], "pauses changed a response"
    lengths = sorted(len(response.tokens) for response in results[True].values())
    cap = decoder.limits.new_tokens
    speeds = {pauses: sum(lengths) / median(values) for pauses, values in seconds.items()}
    return (
        f"{lengths[len(lengths) // 2]:7}{lengths[-1]:8}{lengths.count(cap) / len(lengths):6.1%}"
        f"{speeds[False]:12.0f}{speeds[True]:8.0f}{speeds[True] / speeds[False]:7.2f}"
    )


def timed(decode: Callable[[], Any]) -> tuple[Responses, float]:
    """Return what was decoded, and the seconds that it took."""
    started = time.perf_counter()
    responses = dict(decode())
    return responses, time.perf_counter() - started


if __name__ == "__main__":
    main()
