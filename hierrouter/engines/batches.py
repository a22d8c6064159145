"""How local models decode many prompts: in batches of fixed shapes.

A response must not depend on who is in its batch, so a batch has one of few shapes, which
follows from the lengths of its prompts, and is filled up. Draws have a source of their own for each
prompt. Small models, which gain nothing from a second thread, decode in several processes instead.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from hierrouter.engines.devices import give_back_memory, is_out_of_memory, memory, torch_threads
from hierrouter.engines.generator import Confidence, Stop
from hierrouter.engines.soundness import Recorder
from hierrouter.pools.pool import Generation
from hierrouter_cache.keys import digest

# What a device works on at once; more is slower on a CPU, whose caches it leaves.
ROWS = {"cpu": 32, "cuda": 512}
PROMPT_TOKENS = {"cpu": 2_048, "cuda": 131_072}
TINY = 2_000_000  # parameters; below, a CPU takes twice as much
# Keys, values and logits get this much of the free memory; the rest is for all between.
CACHE_SHARE = 0.6
# Below this size an operation is over before a second thread has woken up.
ONE_THREAD_PARAMETERS = 10_000_000
WORTH_A_FORK = 4  # so many batches

# (key of the prompt, the token it was continued with)
OnToken = Callable[[int, int], None]


@dataclass(frozen=True)
class Prompt:
    """Tokens as the model sees them, and the seed of the prompt's own draws."""

    tokens: Sequence[int]
    seed: int


class StaticBatches:
    """One rectangle of tokens after the other, each decoded to its end.

    Args:
        pad: the token that fills up.

    Attributes:
        limits: of a batch; less after memory ran out.
    """

    def __init__(self, model: Any, pad: int, ends: frozenset[int], generation: Generation) -> None:
        self._model = model
        self._pad = pad
        self._ends = ends
        self._generation = generation
        self.limits = limits_for(model, generation.max_new_tokens)
        self._threads, self._processes = torch.get_num_threads(), 1
        if model.num_parameters() < ONE_THREAD_PARAMETERS:
            # Elsewhere a fork is not safe, and a fresh process takes longer than it saves.
            may_fork = model.device.type == "cpu" and sys.platform == "linux"
            may_fork = may_fork and not multiprocessing.current_process().daemon
            self._threads, self._processes = 1, self._threads if may_fork else 1

    def decode(
        self,
        prompts: Mapping[int, Prompt],
        stop: Stop,
        is_live: bool = False,
        on_token: OnToken | None = None,
    ) -> Iterator[tuple[int, DecodedResponse]]:
        """(key, response) of each prompt; longest prompts first.

        Raises RuntimeError: the model failed, e.g. one prompt alone needs too much memory, or
        memory ran out after a token was told.

        Args:
            stop: once it says so no further batch is begun.
            is_live: make batches no higher than needed: sooner, but the last bit may differ.
            on_token: for live prompts; told each token as it is generated, those after the end of
                a response too.
        """
        waiting = {row: len(prompt.tokens) for row, prompt in prompts.items()}
        limits = self.limits
        while waiting:
            due = batches(waiting, limits)
            if (count := self._processes_for(due, limits)) > 1 and not is_live:
                attempts = self._side_by_side(count, due, prompts, stop)
            else:
                attempts = self._in_turn(due, prompts, stop, is_live, on_token)
            for shape, rows, generated in attempts:
                if generated is None:
                    limits = self._less(limits, shape)
                    if not is_live:
                        self.limits = limits
                    break
                for row, decoded in zip(rows, generated, strict=True):
                    del waiting[row]
                    yield row, decoded
            else:
                return

    def _in_turn(
        self,
        due: Sequence[tuple[Shape, list[int]]],
        prompts: Mapping[int, Prompt],
        stop: Stop,
        is_live: bool = False,
        on_token: OnToken | None = None,
    ) -> Iterator[Attempt]:
        for shape, rows in due:
            if stop():
                return
            if is_live:
                shape = replace(shape, height=len(rows))
            follower = _Follower(rows, on_token) if on_token else None
            yield shape, rows, self._attempt([prompts[row] for row in rows], shape, follower)

    def _processes_for(self, due: Sequence[tuple[Shape, list[int]]], limits: Limits) -> int:
        """How many have enough to do, and room for the largest batch each."""
        new = limits.new_tokens
        largest = max(shape.height * (shape.width + new) for shape, _ in due)
        return min(self._processes, len(due) // WORTH_A_FORK, limits.cache_tokens // largest)

    def _side_by_side(
        self,
        processes: int,
        due: Sequence[tuple[Shape, list[int]]],
        prompts: Mapping[int, Prompt],
        stop: Stop,
    ) -> Iterator[Attempt]:
        """As `_in_turn`, to the same bits and in the same order, in processes of their own."""
        begun = deque[tuple[Shape, list[int], Future[list[DecodedResponse] | None]]]()
        with ExitStack() as held:
            try:
                begin = held.enter_context(fork_workers(self._attempt, processes))
            except (OSError, NotImplementedError):  # no more processes, or no semaphores
                yield from self._in_turn(due, prompts, stop)
                return
            for shape, rows in due:
                if stop():
                    break
                begun.append((shape, rows, begin([prompts[row] for row in rows], shape, None)))
                if len(begun) > processes:  # one waits, so that no process does
                    shape, rows, future = begun.popleft()
                    yield shape, rows, future.result()
            for shape, rows, future in begun:
                yield shape, rows, future.result()

    def _attempt(
        self, prompts: list[Prompt], shape: Shape, follower: _Follower | None
    ) -> list[DecodedResponse] | None:
        """The responses, or None where memory ran out."""
        try:
            with torch_threads(self._threads):
                return self._decode_batch(prompts, shape, follower)
        except (RuntimeError, MemoryError) as error:
            # What was told cannot be taken back.
            if (follower and follower.has_told) or not is_out_of_memory(error):
                raise
        return None  # not in the handler: the error's frames hold the batch

    def _less(self, limits: Limits, shape: Shape) -> Limits:
        """Limits after a batch of this shape was too much."""
        give_back_memory()
        if shape.height == 1:
            raise RuntimeError(
                f"out of memory with one prompt of {shape.width} tokens and "
                f"{self._generation.max_new_tokens} new ones; use less max_new_tokens or dtype"
            )
        return limits.halved(shape)

    @torch.inference_mode()
    def _decode_batch(
        self, prompts: list[Prompt], shape: Shape, follower: _Follower | None
    ) -> list[DecodedResponse]:
        filled = prompts + [prompts[0]] * (shape.height - len(prompts))
        tokens = torch.full((shape.height, shape.width), self._pad)
        mask = torch.zeros((shape.height, shape.width), dtype=torch.long)
        for row, prompt in enumerate(filled):
            start = shape.width - len(prompt.tokens)
            tokens[row, start:] = torch.tensor(prompt.tokens)
            mask[row, start:] = 1
        device = self._model.device
        seeds = [prompt.seed for prompt in prompts]
        with Recorder(self._model, len(prompts), self._ends) as recorder:
            output = self._model.generate(
                input_ids=tokens.to(device),
                attention_mask=mask.to(device),
                logits_processor=LogitsProcessorList(
                    [recorder, *processors(self._generation, seeds, device)]
                ),
                max_new_tokens=self._generation.max_new_tokens,
                do_sample=False,  # where sampling is on, the processors have drawn already
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
                pad_token_id=self._pad,
                streamer=follower,
            )
        recorder.finish(output[:, -1])
        sure = recorder.total.tolist(), recorder.lowest.tolist()
        rows = [
            up_to_end(row, self._ends) for row in output[: len(prompts), shape.width :].tolist()
        ]
        return [
            DecodedResponse(row, Confidence(total, lowest, len(row)))
            for row, total, lowest in zip(rows, *sure, strict=True)
        ]


# Shape and rows of a batch, and the responses of its rows; None where memory ran out.
Attempt = tuple["Shape", list[int], "list[DecodedResponse] | None"]


@contextmanager
def fork_workers(work: Callable[..., Any], processes: int) -> Iterator[Callable[..., Future[Any]]]:
    """A function that calls `work` in one of several copies of this process; gone with the block.

    What `work` refers to is not sent but there, as it was when the block began. A copy leaves
    Ctrl-C to this process, ends when this one is killed, and is killed when the block is left
    early. It computes and does nothing else: a lock that another thread held stays held in it.

    Raises RuntimeError: a copy was killed; OSError, NotImplementedError: none can be made here.
    """
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, context, _become_worker, (work,))
    try:
        pool.submit(int).result()  # with the first call all copies are made
        yield lambda *arguments: pool.submit(_work, arguments)
    except BaseException as error:
        for copy in set(multiprocessing.active_children()) - others:
            copy.kill()
        if isinstance(error, BrokenProcessPool):
            why = "one of its processes was killed, e.g. for lack of memory"
            raise RuntimeError(why) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _become_worker(work: Callable[..., Any]) -> None:
    global _working
    _working = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


def _work(arguments: Sequence[Any]) -> Any:
    return _working(*arguments)


_working: Callable[..., Any]  # of a copy


@dataclass(frozen=True)
class DecodedResponse:
    """Tokens of a response, the end token included where there is one, and how sure they are."""

    tokens: list[int]
    confidence: Confidence | None


def up_to_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """The tokens of a response without what follows its end token."""
    end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]


class _Follower(BaseStreamer):  # type: ignore[misc]
    """Hands on each row's tokens; the prompts come first and are left out.

    Attributes:
        has_told: whether anything was handed on.
    """

    def __init__(self, rows: Sequence[int], on_token: OnToken) -> None:
        self._rows = rows
        self._on_token = on_token
        self._has_begun = False
        self.has_told = False

    def put(self, value: torch.Tensor) -> None:
        """The prompts, or one more token of each row."""
        if self._has_begun:
            self.has_told = True
            for row, token in zip(self._rows, value.tolist(), strict=True):
                self._on_token(row, token)
        self._has_begun = True

    def end(self) -> None:
        """Every row is finished."""


def limits_for(model: Any, new_tokens: int) -> Limits:
    """What fits the free memory beside the weights.

    `model`: loaded already; `new_tokens`: the longest response.
    """
    free, _ = memory({parameter.device for parameter in model.parameters()})
    config = model.config.get_text_config()
    # As they come, recorded, processed, compared.
    logits = config.vocab_size * torch.float32.itemsize * 4
    token = cache_bytes(config, model.dtype) + logits // (new_tokens + 1)
    kind = model.device.type
    cache_tokens = int(CACHE_SHARE * free) // token
    times = 2 if kind == "cpu" and model.num_parameters() < TINY else 1
    return Limits(times * ROWS[kind], times * PROMPT_TOKENS[kind], cache_tokens, new_tokens)


def cache_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values in all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * dtype.itemsize)


NARROWEST = 16  # tokens
SHAPES_VERSION = (
    "2"  # of static batches; another shape, another last digit, and now and then another text
)


@dataclass(frozen=True)
class Shape:
    """Rows and columns of a batch of prompts, in tokens."""

    height: int
    width: int


@dataclass(frozen=True)
class Limits:
    """What a batch may be at most.

    Attributes:
        rows: prompts at a time.
        prompt_tokens: height times width, since more than a device can work on at once is no gain.
        cache_tokens: height times width and response, for memory.
        new_tokens: the longest response.
    """

    rows: int
    prompt_tokens: int
    cache_tokens: int
    new_tokens: int

    def shape(self, length: int) -> Shape:
        """The shape of the batch in which a prompt of `length` tokens is decoded."""
        width = width_for(length)
        room = step_below(self.cache_tokens // (width + self.new_tokens))
        return Shape(max(1, min(self.rows, self.prompt_tokens // width, room)), width)

    def halved(self, shape: Shape) -> Limits:
        """Limits under which a batch of this width has half the rows; it has more than one."""
        rows = step_below(shape.height // 2)
        return replace(self, cache_tokens=rows * (shape.width + self.new_tokens))


def batches(lengths: Mapping[int, int], limits: Limits) -> list[tuple[Shape, list[int]]]:
    """Shape and rows of each batch, widest first: out of memory then shows at once.

    `lengths`: of the prompts in tokens, by row; `limits`: of each batch.
    """
    by_shape: dict[Shape, list[int]] = {}
    for row, length in lengths.items():
        by_shape.setdefault(limits.shape(length), []).append(row)
    ordered = sorted(by_shape.items(), key=lambda item: item[0].width, reverse=True)
    return [
        (shape, rows[start : start + shape.height])
        for shape, rows in ordered
        for start in range(0, len(rows), shape.height)
    ]


STEPS = sorted(first << n for n in range(60) for first in (1, 3))  # 1, 2, 3, 4, 6, 8, 12, ...


def width_for(length: int) -> int:
    """The least of 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, ... that is not below `length`."""
    step = 1 << max((length - 1).bit_length() - 3, 2)  # an eighth to a quarter of the width
    return max(NARROWEST, -(-length // step) * step)


def step_below(number: int) -> int:
    """The largest of 1, 2, 3, 4, 6, 8, 12, 16, ... that is not above `number`; 0 below 1."""
    return STEPS[bisect_right(STEPS, number) - 1] if number >= 1 else 0


def prompt_seed(weights: str, seed: int, prompt: str) -> int:
    """60 bits that are this prompt's own.

    `weights`: name of the content of the weights; with the same numbers the models of a pool would
    tend to be right and wrong together; `seed`: of the decoding settings; `prompt`: the text.
    """
    return int(digest(["draw", weights, seed, prompt])[:15], 16)


class GumbelNoise(LogitsProcessor):  # type: ignore[misc]
    """Add standard Gumbel noise to the logits of the first `len(seeds)` rows.

    Args:
        seeds: one a row; rows beyond are left as they are.
        device: where the logits are.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._sources = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """float32[rows, vocabulary]: the logits with this step's noise."""
        waits = torch.ones_like(scores)
        for row, source in zip(waits, self._sources, strict=False):
            row.exponential_(generator=source)
        # -log of an exponential draw is a Gumbel draw; 0 would win against every logit.
        return scores - waits.clamp_min_(torch.finfo(waits.dtype).tiny).log_()


def processors(
    generation: Generation, seeds: Sequence[int], device: torch.device
) -> LogitsProcessorList:
    """What greedy `generate` must apply to draw by these settings; nothing at temperature 0."""
    chain = LogitsProcessorList()
    if generation.temperature == 0:
        return chain
    chain.append(TemperatureLogitsWarper(generation.temperature))
    if generation.top_p < 1:
        chain.append(TopPLogitsWarper(generation.top_p))
    chain.append(GumbelNoise(seeds, device))
    return chain
