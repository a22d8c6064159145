"""Collecting the testbed's trees against one-by-one `generate`, same prompts, same answers.

    python benchmarks/collect.py [--queries 40]

Collects two-hop trees with the three shipped models, one torch thread, and writes down every prompt
that a model was shown. Then each prompt is given to plain `model.generate` alone. Prints tokens a
CPU-second of each side, equal answers, calls against distinct (model, prompt) pairs, and how much
of the prompts a prefix cache could reuse: tokens with which an earlier prompt of the same model
began, at each level.

Last, for each model, 1,024 prompts through the engine and through the barest loop with a key-value
cache, sorted by length, at its best batch size; that loop stores nothing of how sure the model is.
Also printed: CPU seconds of the engine over those of the engine that does not look at it, either.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from measuring import measure_cpu, measure_interleaved, versions

from hierrouter.collection.progress import Progress
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import backend, batches
from hierrouter.engines.batches import up_to_end
from hierrouter.engines.generator import (
    Answer,
    Generator,
    Response,
    Stop,
    never,
    tokenize_prompt,
    tokenize_prompts,
)
from hierrouter.engines.soundness import Recorder
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import Identity, ModelSpec
from hierrouter.questions.datasets import load_queries
from tests.engines import answers_in_order


@dataclass
class Seen:
    """The transformers engine, with CPU seconds in its models and every prompt by stage."""

    stage: str = ""
    seconds: float = 0.0
    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)
    shown: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    models: dict[str, Any] = field(default_factory=dict)

    def __call__(self, name: str) -> Seen:
        return self

    def identify(self, spec: ModelSpec) -> Identity:
        return backend("transformers").identify(spec)

    def weight_bytes(self, spec: ModelSpec) -> int:
        return backend("transformers").weight_bytes(spec)

    def load(self, spec: ModelSpec) -> Generator:
        self.models[spec.name] = backend("transformers").load(spec)
        return SeenModel(spec.name, self.models[spec.name], self)

    def on_level(self, label: str, calls: int) -> None:
        self.stage = label.removesuffix(label.split()[-1]).strip()

    def responses(self) -> dict[tuple[str, str], Response]:
        """What was answered, by model and prompt; here nothing may fail."""
        found = {}
        for pair, answer in self.answers.items():
            assert isinstance(answer, Response)
            found[pair] = answer
        return found


@dataclass
class SeenModel:
    name: str
    model: Generator
    seen: Seen

    def generate(
        self, prompts: Sequence[str], stop: Stop = never, draws: Sequence[int] = ()
    ) -> Iterator[tuple[int, Answer]]:
        answers, spent = measure_cpu(lambda: list(self.model.generate(prompts, stop, draws)))
        self.seen.seconds += spent
        for place, answer in answers:
            self.seen.shown[self.seen.stage].append((self.name, prompts[place]))
            self.seen.answers[self.name, prompts[place]] = answer
        yield from answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=40, help="of each of the ten families")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pool = load_pool("testbed")
    queries = load_queries(["testbed"], args.queries, 42, Path())
    seen = Seen()
    for model in pool.models:  # so that no side pays for what is done once in a process
        answers_in_order(backend("transformers").load(model), ["compute 1+2"])
    with tempfile.TemporaryDirectory() as folder:
        progress = Progress(on_level=seen.on_level)
        summary = fill_cache(pool, queries, Path(folder), progress, engines=seen)
    calls = [pair for pairs in seen.shown.values() for pair in pairs]
    print(f"{versions(torch, transformers)}, {len(queries)} queries")
    print(f"nodes {summary.wanted}, calls {len(calls)}, distinct pairs {len(set(calls))}")
    compare(seen)
    print_prefixes(seen)
    for model in pool.models:
        print_beside_loop(seen, model.name)


def compare(seen: Seen) -> None:
    """Tokens a CPU-second of two ways to answer the same prompts."""
    tokens = sum(answer.tokens_out for answer in seen.responses().values())
    batched = tokens / seen.seconds
    alone, spent = measure_cpu(lambda: one_by_one(seen))
    plain = tokens / spent
    print(f"one by one {plain:8.0f} tokens/CPU-s")
    print(f"batches    {batched:8.0f} tokens/CPU-s, {batched / plain:.1f} x, {equal(seen, alone)}")


LOOPED = 1_024
LOOP_ROWS = (32, 64, 96, 128)


def print_beside_loop(seen: Seen, name: str) -> None:
    """Tokens a CPU-second of the engine and of the barest loop, medians of five rounds."""
    generator = seen.models[name]
    prompts = [prompt for model, prompt in seen.answers if model == name][:LOOPED]
    ways: dict[str, Any] = {"engine": lambda: texts_of(answers_in_order(generator, prompts))}
    ways["blind"] = lambda: without_signals(ways["engine"])
    for rows in LOOP_ROWS:
        ways[f"loop of {rows}"] = partial(bare_loop, generator, prompts, rows)
    rounds = measure_interleaved(ways, 5)
    tokens = sum(seen.responses()[name, prompt].tokens_out for prompt in prompts)
    speed = {way: tokens / median(spent for _, spent in runs) for way, runs in rounds.items()}
    same = sum(map(str.__eq__, rounds["engine"][0][0], rounds[f"loop of {rows}"][0][0]))
    engine, blind = speed.pop("engine"), speed.pop("blind")
    best = max(speed, key=lambda way: speed[way])
    print(
        f"{name:8} engine {engine:.0f} tokens/CPU-s, {best} {speed[best]:.0f}: "
        f"{engine / speed[best]:.2f}, equal answers {same} of {len(prompts)}, "
        f"signals cost {blind / engine:.2f}"
    )


class Blind(Recorder):
    """Sees nothing."""

    def _store_logits(self, model: Any, inputs: object, output: Any) -> None:
        pass


def without_signals(work: Any) -> Any:
    vars(batches)["Recorder"] = Blind
    try:
        return work()
    finally:
        vars(batches)["Recorder"] = Recorder


def texts_of(answers: Sequence[Answer]) -> list[str]:
    return [answer.text for answer in answers if isinstance(answer, Response)]


@torch.inference_mode()
def bare_loop(generator: Any, prompts: Sequence[str], rows: int) -> list[str]:
    """Texts to texts: the longest prompts first, each batch until its last row has ended."""
    model, tokenizer = generator._model, generator._tokenizer
    ends, pad = torch.tensor(sorted(generator._ends)), tokenizer.pad_token_id
    encoded = tokenize_prompts(tokenizer, prompts)
    order = sorted(range(len(encoded)), key=lambda place: -len(encoded[place]))
    texts = [""] * len(prompts)
    for start in range(0, len(order), rows):
        places = order[start : start + rows]
        width = len(encoded[places[0]])
        lacking = [width - len(encoded[place]) for place in places]
        filled = zip(lacking, places, strict=True)
        tokens = torch.tensor([[pad] * lack + encoded[place] for lack, place in filled])
        mask = (torch.arange(width) >= torch.tensor(lacking)[:, None]).long()
        position = (mask.cumsum(1) - 1).clamp(min=0)
        cache: Any = None
        said: list[torch.Tensor] = []
        over = torch.zeros(len(places), dtype=torch.bool)
        while not over.all() and len(said) < 16:
            output = model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            tokens = output.logits[:, -1].argmax(-1)[:, None]
            said.append(tokens)
            over |= torch.isin(tokens[:, 0], ends)
            mask = torch.cat([mask, torch.ones(len(places), 1, dtype=torch.long)], dim=1)
            position = position[:, -1:] + 1
        for place, row in zip(places, torch.cat(said, dim=1).tolist(), strict=True):
            kept = up_to_end(row, generator._ends)
            texts[place] = tokenizer.decode(kept, skip_special_tokens=True).strip()
    return texts


def equal(seen: Seen, others: dict[tuple[str, str], str]) -> str:
    same = sum(answer.text == others[pair] for pair, answer in seen.responses().items())
    return f"equal answers {same} of {len(others)}"


def one_by_one(seen: Seen) -> dict[tuple[str, str], str]:
    return {(name, text): plain_generate(seen.models[name], text) for name, text in seen.answers}


def plain_generate(generator: Any, prompt: str) -> str:
    """What a user would write: encode, `model.generate`, decode."""
    model, tokenizer = generator._decoder._model, generator._tokenizer
    message = [{"role": "user", "content": prompt}]
    tokens = tokenizer.apply_chat_template(
        message, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        output = model.generate(**tokens, max_new_tokens=16, do_sample=False)
    new = output[0, tokens["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True).strip())


def print_prefixes(seen: Seen) -> None:
    """At each level, the share of prompt tokens that an earlier prompt had begun with."""
    known: dict[str, dict[int, Any]] = defaultdict(dict)
    for stage, pairs in seen.shown.items():
        counts: Counter[str] = Counter()
        for name, prompt in pairs:
            tokens = tokenize_prompt(seen.models[name]._tokenizer, prompt)
            counts["all"] += len(tokens)
            counts["reused"] += remember(known[name], tokens)
        print(
            f"{stage:8} {len(pairs):6} prompts {counts['all']:8} tokens, "
            f"{counts['reused'] / counts['all']:.0%} begin like an earlier one, "
            f"{counts['all'] - counts['reused']} differ"
        )


def remember(known: dict[int, Any], tokens: Sequence[int]) -> int:
    """How many tokens from the beginning are in the trie; all are in it afterwards."""
    found, place = 0, known
    for token in tokens:
        found += token in place
        place = place.setdefault(token, {})
    return found


if __name__ == "__main__":
    main()
