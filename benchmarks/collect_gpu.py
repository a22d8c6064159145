"""Compare our batches with the engine alone, on the paper's five models at their true shapes.

    python benchmarks/collect_gpu.py              one GPU; weights are random, nothing is downloaded
    python benchmarks/collect_gpu.py --shrink     the same at reduced shapes, for a processor

There are 300 prompts of 150 tokens, with 300 new tokens each. The end token is never drawn, so that
all responses have this length. `alone` is `model.generate` on all prompts in one batch, halved
until it fits; `1 by 1` is extrapolated from a few prompts. `busy` is the mean use of the GPU as
nvidia-smi reports it, while our batches run.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import measuring  # noqa: F401  makes `tests` importable
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from hierrouter.engines.generator import tokenize_prompt
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
        new: new tokens of a response.
        alone: how many prompts are decoded one by one.
    """

    prompts: int = 300
    length: int = 150
    new: int = 300
    alone: int = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shrink", action="store_true", help="reduced shapes, a short run")
    parser.add_argument("--models", default=",".join(SHAPES), help="names, with commas between")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.shrink:
        parser.error("there is no GPU; use --shrink")
    work = Work(prompts=72, length=30, new=20, alone=6) if args.shrink else Work()
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    print(f"{machine}, torch {torch.__version__}, transformers {transformers.__version__}, {work}")
    print(f"{'tokens/s':26}{'alone':>9}{'ours':>9}{'ratio':>7}{'1 by 1':>8}{'x':>7}", end="")
    print("  busy")
    for name in args.models.split(","):
        shape = SHAPES[name].shrunk() if args.shrink else SHAPES[name]
        print(measure(name, shape, work, device), flush=True)
        gc.collect()


def measure(name: str, shape: Shape, work: Work, device: str) -> str:
    """Build a model, decode in all three ways, and return the line to print."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(shape.config(), dtype=dtype).eval()
    end = shape.vocabulary - 1
    model.generation_config.eos_token_id = end
    model.get_output_embeddings().weight.data[end] = 0  # so that it is never the most likely token
    spec = ModelSpec(name, name, 0.0, device=device, generation=Generation(work.new))
    tokenizer = AutoTokenizer.from_pretrained(model_path("testbed:calc"))
    static = TransformersGenerator(model, tokenizer, spec, "")
    prompts = digits(work)
    answers_in_order(static, prompts[:1])  # the first call prepares caches and kernels
    total = work.prompts * work.new
    with GpuMonitor() as monitor:
        started = time.perf_counter()
        answers_in_order(static, prompts)
        batched = total / (time.perf_counter() - started)
    best = total / seconds(lambda: in_one_batch(model, tokenizer, prompts, work.new))

    def one_by_one() -> None:
        for prompt in prompts[: work.alone]:
            in_one_batch(model, tokenizer, [prompt], work.new)

    single = work.alone * work.new / seconds(one_by_one)
    return (
        f"{name:26}{best:9.0f}{batched:9.0f}{batched / best:7.2f}"
        f"{single:8.0f}{batched / single:7.1f}{monitor.share:>6}"
    )


def digits(work: Work) -> list[str]:
    """Make prompts of the right length: each digit is a token, the chat template adds three."""
    rng = random.Random(0)
    return ["".join(rng.choices("0123456789", k=work.length - 3)) for _ in range(work.prompts)]


def seconds(run: Callable[[], object]) -> float:
    """Call a function, and return the seconds it took."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


@torch.inference_mode()
def in_one_batch(model: Any, tokenizer: Any, prompts: Sequence[str], new: int) -> None:
    """Decode as a user would: one call for prompts of equal length, halved if memory runs out."""
    encoded = [tokenize_prompt(tokenizer, prompt) for prompt in prompts]
    tokens = torch.tensor(encoded, device=model.device)
    with suppress(torch.OutOfMemoryError):
        model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=new,
            do_sample=False,
        )
        return
    torch.cuda.empty_cache()
    middle = len(prompts) // 2
    in_one_batch(model, tokenizer, prompts[:middle], new)
    in_one_batch(model, tokenizer, prompts[middle:], new)


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
