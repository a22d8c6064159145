"""Compare our batches with the engine alone, on the paper's five models at their true shapes.

    python benchmarks/collect_gpu.py              one GPU; weights are random, nothing is downloaded
    python benchmarks/collect_gpu.py --shrink     the same at reduced shapes, for a processor

There are 300 prompts of 150 tokens. In the first table each has 300 new tokens: the end token is
never drawn. In the second, lengths are log-normal: their median is 150, and 5 % are cut at 1,500.
`ours` is our engine; `whole` is the same with rectangles that wait for their longest row, with the
same texts. `alone` is `model.generate` on all prompts in one batch, halved until it fits; `1 by 1`
is extrapolated from a few prompts, in the first table only. `busy` is the mean use of the GPU as
nvidia-smi reports it, while our batches run. Each figure is printed as soon as it is measured.
"""

from __future__ import annotations

import argparse
import gc
import platform
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import measuring  # noqa: F401  makes `tests` importable
import torch
import transformers
from lengths import CAP_FACTOR, LongTail
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from hierrouter.engines.batches import up_to_end
from hierrouter.engines.generator import Response, tokenize_prompt
from hierrouter.engines.local import TransformersGenerator
from hierrouter.pools.pool import Generation, ModelSpec
from hierrouter.questions.shipped import model_path
from tests.engines import answers_in_order


@dataclass(frozen=True)
class Shape:
    """The sizes that decide the work of a model, from its published configuration."""

    kind: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False

    def config(self) -> Any:
        return AutoConfig.for_model(
            self.kind,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
            max_position_embeddings=32_768,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )

    def shrunk(self) -> Shape:
        """Return a shape with two layers, a small width and a small vocabulary."""
        heads = max(2, self.heads // 8)
        width = self.hidden // self.heads * heads // 4
        kv_heads = heads if self.kv_heads == self.heads else 1
        return Shape(self.kind, width, 2 * width, 2, heads, kv_heads, 1_024, self.tied)


SHAPES = {
    "qwen2.5-coder-3b": Shape("qwen2", 2048, 11008, 36, 16, 2, 151_936, tied=True),
    "deepseek-r1-distill-1.5b": Shape("qwen2", 1536, 8960, 28, 12, 2, 151_936),
    "phi-3.5-mini": Shape("phi3", 3072, 8192, 32, 32, 32, 32_064),
    "llama-3.1-8b": Shape("llama", 4096, 14336, 32, 32, 8, 128_256),
    "qwen2.5-14b": Shape("qwen2", 5120, 13824, 48, 40, 8, 152_064),
}


@dataclass(frozen=True)
class Work:
    """The work that is measured.

    Attributes:
        prompts: number of prompts.
        length: tokens of a prompt.
        new: most new tokens of a response.
        alone: how many prompts are decoded one by one.
        median: length of the median response, if lengths have a long tail; None if all have `new`.
    """

    prompts: int = 300
    length: int = 150
    new: int = 300
    alone: int = 1
    median: int | None = None

    def with_tail(self) -> Work:
        """Return the same work with a long tail of lengths."""
        return replace(self, new=CAP_FACTOR * self.length, median=self.length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shrink", action="store_true", help="reduced shapes, a short run")
    parser.add_argument("--models", default=",".join(SHAPES), help="names, with commas between")
    parser.add_argument("--lengths", default="equal,tail", help="equal, tail or both")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.shrink:
        parser.error("there is no GPU; use --shrink")
    work = Work(prompts=72, length=12, new=20, alone=6) if args.shrink else Work()
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    print(f"{machine}, torch {torch.__version__}, transformers {transformers.__version__}")
    for lengths in args.lengths.split(","):
        table_work = work if lengths == "equal" else work.with_tail()
        print(f"\n{table_work}")
        print(f"{'tokens/s':26}{'ours':>9}{'busy':>6}{'whole':>9}", end="")
        print(f"{'alone':>9}{'ratio':>7}{'1 by 1':>8}{'x':>7}")
        for name in args.models.split(","):
            shape = SHAPES[name].shrunk() if args.shrink else SHAPES[name]
            print(f"{name:26}", end="")
            for cells in measure(name, shape, table_work, device):
                print(cells, end="", flush=True)
            print()
            gc.collect()


def measure(name: str, shape: Shape, work: Work, device: str) -> Iterator[str]:
    """Build a model, decode in all ways, and yield the cells of its line."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(shape.config(), dtype=dtype).eval()
    end = shape.vocabulary - 1
    model.generation_config.eos_token_id = end
    tail = None
    if work.median is None:
        # So that it is never the most likely token.
        model.get_output_embeddings().weight.data[end] = 0
    else:
        tail = LongTail(model, end, work.median, work.new)
    generation = Generation(work.new, temperature=0.0 if tail is None else 1.0)
    spec = ModelSpec(name, name, 0.0, device=device, generation=generation)
    tokenizer = AutoTokenizer.from_pretrained(model_path("testbed:calc"))
    static = TransformersGenerator(model, tokenizer, spec, "")
    if tail:
        tail.follow(static._decoder)
    prompts = digits(work)
    answers_in_order(static, prompts[:1])  # the first call prepares caches and kernels
    with GpuMonitor() as monitor:
        batched, texts = tokens_per_second(static, prompts)
    yield f"{batched:9.0f}{monitor.share:>6}"
    if tail:
        vars(static._decoder)["_can_pause"] = False
        speed, same_texts = tokens_per_second(static, prompts)
        # Not the log-probabilities: on a GPU their last digits depend on a row's place.
        assert same_texts == texts, "pauses changed a response"
        tail.widths = torch.tensor([work.length])
        yield f"{speed:9.0f}"
    else:
        yield f"{'-':>9}"
    started = time.perf_counter()
    best = in_one_batch(model, tokenizer, prompts, work) / (time.perf_counter() - started)
    yield f"{best:9.0f}{batched / best:7.2f}"
    if tail is None:
        started = time.perf_counter()
        tokens = 0
        for prompt in prompts[: work.alone]:
            tokens += in_one_batch(model, tokenizer, [prompt], work)
        single = tokens / (time.perf_counter() - started)
        yield f"{single:8.0f}{batched / single:7.1f}"


def tokens_per_second(
    static: TransformersGenerator, prompts: Sequence[str]
) -> tuple[float, list[str]]:
    """Answer prompts, and return the tokens of a second, and the texts of the responses."""
    started = time.perf_counter()
    answers = answers_in_order(static, prompts)
    seconds = time.perf_counter() - started
    responses = [answer for answer in answers if isinstance(answer, Response)]
    assert len(responses) == len(prompts), "a prompt failed"
    tokens = sum(response.tokens_out for response in responses)
    return tokens / seconds, [response.text for response in responses]


def digits(work: Work) -> list[str]:
    """Make prompts of the right length: each digit is a token, the chat template adds three."""
    rng = random.Random(0)
    return ["".join(rng.choices("0123456789", k=work.length - 3)) for _ in range(work.prompts)]


@torch.inference_mode()
def in_one_batch(model: Any, tokenizer: Any, prompts: Sequence[str], work: Work) -> int:
    """Decode as a user would: one call for prompts of equal length, halved if memory runs out.

    Returns:
        The number of new tokens.
    """
    encoded = [tokenize_prompt(tokenizer, prompt) for prompt in prompts]
    tokens = torch.tensor(encoded, device=model.device)
    with suppress(torch.OutOfMemoryError):
        sequences = model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=work.new,
            do_sample=work.median is not None,
            top_k=0,
        )
        rows = sequences[:, tokens.shape[1] :].tolist()
        ends = frozenset(model.generation_config.eos_token_id)
        return sum(len(up_to_end(row, ends)) for row in rows)
    torch.cuda.empty_cache()
    middle = len(prompts) // 2
    first = in_one_batch(model, tokenizer, prompts[:middle], work)
    return first + in_one_batch(model, tokenizer, prompts[middle:], work)


class GpuMonitor:
    """Measures how busy the first GPU is, by nvidia-smi, five times a second.

    Attributes:
        share: mean use in percent, as text; "-" without a GPU.
    """

    def __enter__(self) -> GpuMonitor:
        self._smi = None
        if torch.cuda.is_available() and shutil.which("nvidia-smi"):
            query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0"]
            command = ["nvidia-smi", *query, "-lms", "200"]
            self._smi = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.share = "-"
        return self

    def __exit__(self, *_: object) -> None:
        if self._smi:
            self._smi.terminate()
            output = self._smi.communicate()[0]
            percentages = [float(line) for line in output.split() if line.isdigit()]
            self.share = f"{statistics.mean(percentages):.0f}%" if percentages else "-"


if __name__ == "__main__":
    main()
