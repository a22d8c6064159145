"""How local models decode many prompts: in batches of fixed shapes.

A response must not depend on the other prompts of its batch. So a batch has one of a few shapes,
which follows from the lengths of its prompts, and is filled up to it. Each prompt has its own
source of random draws. Small models, which gain nothing from a second thread, decode in several
processes instead.
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
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from threading import Thread
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from hierrouter.engines.devices import give_back_memory, is_out_of_memory, memory, torch_threads
from hierrouter.engines.generator import CallTime, Confidence, Stop, draw_digest, never
from hierrouter.engines.rows import PauseCriterion, Rows, ShouldPause, WaitingRows, empty_cache
from hierrouter.engines.soundness import Recorder
from hierrouter.pools.pool import Generation

# Part of a local model's identity, because a response's last digits, and sometimes its text, depend
# on the shape of its batch. Change it with any change of the shapes.
SHAPES_VERSION = "2"
# The most that a device works on at once; larger batches are slower on a CPU, because they do not
# fit its caches.
BATCH_ROWS = {"cpu": 32, "cuda": 512}
BATCH_PROMPT_TOKENS = {"cpu": 2_048, "cuda": 131_072}
TINY_MODEL_PARAMETERS = 2_000_000  # for models below this size a CPU takes batches twice as large
# Share of the free memory for keys, values and logits; the rest is for activations.
CACHE_SHARE = 0.6
# Below this size an operation is over before a second thread has woken up.
ONE_THREAD_PARAMETERS = 10_000_000
# A further process pays off only if it has this many batches to decode.
MIN_BATCHES_PER_PROCESS = 4
# Batches of a small model that one process decodes together; more would leave the others without.
BATCHES_PER_GROUP = 8
MIN_WIDTH = 16  # tokens of the narrowest shape

# Called with the key of a prompt and the token that continues it.
OnToken = Callable[[int, int], None]


@dataclass(frozen=True)
class Prompt:
    """A prompt's tokens as the model sees them, and the seed of its random draws."""

    tokens: Sequence[int]
    seed: int


@dataclass(frozen=True)
class DecodedResponse:
    """A response's tokens, the end token included if there is one.

    Attributes:
        tokens: the tokens.
        confidence: of the model; None if it is not known.
        time: from the admission of the prompt's row to a batch to its last token. It is ignored by
            comparisons.
    """

    tokens: list[int]
    confidence: Confidence | None
    time: CallTime | None = field(default=None, compare=False)


class StaticBatches:
    """Decodes prompts in rectangles of tokens.

    Args:
        model: a causal language model.
        pad: the token that fills up rows.
        ends: the tokens that end a response.
        generation: the decoding settings.

    Attributes:
        limits: of a batch; they shrink when memory runs out.
    """

    def __init__(self, model: Any, pad: int, ends: frozenset[int], generation: Generation) -> None:
        self._model = model
        self._pad = pad
        self._ends = ends
        self._generation = generation
        self.limits = limits_for(model, generation.max_new_tokens)
        self._can_pause = empty_cache(model) is not None
        self._threads = torch.get_num_threads()
        self._processes = 1
        self._batches_per_group: int | None = None
        if model.num_parameters() < ONE_THREAD_PARAMETERS:
            # On other systems a fork is not safe, and starting a fresh process takes longer than
            # it saves. A daemonic process may not have children.
            can_fork = (
                model.device.type == "cpu"
                and sys.platform == "linux"
                and not multiprocessing.current_process().daemon
            )
            if can_fork:
                self._processes = self._threads
            self._threads = 1
            # With one process, too: the order of the responses is the same with any number.
            self._batches_per_group = BATCHES_PER_GROUP

    def decode(
        self,
        prompts: Mapping[int, Prompt],
        stop: Stop,
        is_live: bool = False,
        on_token: OnToken | None = None,
    ) -> Iterator[tuple[int, DecodedResponse]]:
        """Decode prompts, the longest ones first.

        Args:
            prompts: prompts by key.
            stop: once it returns true, no further batch is begun; rows that wait are finished.
            is_live: make batches no higher than needed. Responses come sooner, but their last
                digits may differ.
            on_token: for live prompts; called with each token as it is generated, including tokens
                after the end of a response.

        Yields:
            (key, response) of each prompt.

        Raises:
            RuntimeError: the model failed, e.g. one prompt alone needs too much memory, or memory
                ran out after `on_token` was called.
        """
        lengths = {key: len(prompt.tokens) for key, prompt in prompts.items()}
        limits = self.limits
        while lengths:
            planned = plan_batches(lengths, limits)
            processes = self._count_processes(planned, limits)
            if is_live:
                results = self._decode_live(planned, prompts, stop, on_token)
            elif processes > 1:
                results = self._decode_in_parallel(processes, planned, prompts, stop)
            else:
                results = self._decode_in_turn(planned, prompts, stop)
            for result in results:
                if result.responses is None:
                    if result.has_waiting_rows:
                        # Without them the batch may fit as it is.
                        self._can_pause = False
                        give_back_memory()
                        break
                    limits = self._shrink(limits, result.shape)
                    # Live batches are small already: their limits say little about others.
                    if not is_live:
                        self.limits = limits
                    break
                for key, response in result.responses.items():
                    del lengths[key]
                    yield key, response
            else:
                # No batch ran out of memory: all are decoded, or `stop` returned true.
                return

    def _decode_live(
        self,
        planned: Sequence[Batch],
        prompts: Mapping[int, Prompt],
        stop: Stop,
        on_token: OnToken | None,
    ) -> Iterator[BatchResult]:
        """Decode batches without filling them up; after a pause they have fewer rows."""
        for shape, keys in planned:
            if stop():
                return
            rows = self._begin(keys, prompts, shape.width)
            streamer = _TokenStreamer(on_token) if on_token else None
            while rows.keys:
                height = len(rows)
                if streamer:
                    streamer.begin(rows.keys)

                def should_pause(_: int, unfinished: int, height: int = height) -> bool:
                    return unfinished < height

                responses = self._attempt(rows, height, should_pause, streamer)
                yield BatchResult(replace(shape, height=height), responses)
                if responses is None:
                    return

    def _decode_in_turn(
        self, planned: Sequence[Batch], prompts: Mapping[int, Prompt], stop: Stop
    ) -> Iterator[BatchResult]:
        for group in group_batches(planned, self._batches_per_group):
            if stop():
                return
            yield from self._decode_group(group, prompts, self._room(group, 1), stop)

    def _decode_group(
        self, group: Sequence[Batch], prompts: Mapping[int, Prompt], room: int, stop: Stop
    ) -> Iterator[BatchResult]:
        """Decode batches of one height; unfinished rows continue in another batch.

        Args:
            group: the batches.
            prompts: prompts by key.
            room: tokens that may wait, for memory.
            stop: once it returns true, no further batch is begun.

        Yields:
            The responses that were completed before each pause or end of a batch.
        """
        height = group[0][0].height
        is_on_host = self._model.device.type != "cpu"
        waiting = WaitingRows(height, self._generation.max_new_tokens, room, is_on_host)
        remaining = deque(group)
        while True:
            rows = waiting.take_full_batch()
            if rows is None and remaining and not stop():
                shape, keys = remaining.popleft()
                rows = self._begin(keys, prompts, shape.width)
            if rows is None:
                rows = waiting.take_shortest()
            if rows is None:
                return
            widest = Shape(height, max(rows.widths))
            should_pause = partial(waiting.should_pause, rows, bool(remaining))
            responses = self._attempt(rows, height, should_pause, None)
            yield BatchResult(widest, responses, has_waiting_rows=bool(len(waiting)))
            if responses is None:
                return
            if rows.keys:
                waiting.add(rows)

    def _count_processes(self, planned: Sequence[Batch], limits: Limits) -> int:
        """Count the processes that have enough to do, and memory for the largest batch each."""
        largest = max(shape.height * (shape.width + limits.new_tokens) for shape, _ in planned)
        return min(
            self._processes, len(planned) // MIN_BATCHES_PER_PROCESS, limits.cache_tokens // largest
        )

    def _room(self, group: Sequence[Batch], processes: int) -> int:
        """Count the tokens that may wait beside a batch, for memory."""
        if self._model.device.type == "cpu":
            widest, _ = group[0]
            largest = widest.height * (widest.width + self.limits.new_tokens)
            return self.limits.cache_tokens // processes - largest
        host_bytes, _ = memory([torch.device("cpu")])
        token_bytes = cache_bytes(self._model.config.get_text_config(), self._model.dtype)
        return int(CACHE_SHARE * host_bytes) // token_bytes

    def _decode_in_parallel(
        self, processes: int, planned: Sequence[Batch], prompts: Mapping[int, Prompt], stop: Stop
    ) -> Iterator[BatchResult]:
        """As `_decode_in_turn`, in several processes, with the same results in the same order."""
        running = deque[Future[list[BatchResult]]]()
        with ExitStack() as stack:
            try:
                submit = stack.enter_context(fork_workers(self._decode_whole_group, processes))
            except (OSError, NotImplementedError):  # no more processes, or no semaphores
                yield from self._decode_in_turn(planned, prompts, stop)
                return
            for group in group_batches(planned, self._batches_per_group):
                if stop():
                    break
                group_prompts = {key: prompts[key] for _, keys in group for key in keys}
                running.append(submit(group, group_prompts, self._room(group, processes)))
                # One group more than there are processes, so that no process waits for work.
                if len(running) > processes:
                    yield from running.popleft().result()
            for future in running:
                yield from future.result()

    def _decode_whole_group(
        self, group: Sequence[Batch], prompts: Mapping[int, Prompt], room: int
    ) -> list[BatchResult]:
        return list(self._decode_group(group, prompts, room, never))

    def _begin(self, keys: Sequence[int], prompts: Mapping[int, Prompt], width: int) -> Rows:
        """Make the rows of a batch's prompts."""
        device = self._model.device
        sources = []
        if self._generation.temperature:
            sources = [draw_source(prompts[key].seed, device) for key in keys]
        cache = empty_cache(self._model) if self._can_pause else None
        tokens = {key: prompts[key].tokens for key in keys}
        return Rows.of_prompts(tokens, width, self._pad, sources, cache, device)

    def _attempt(
        self, rows: Rows, height: int, should_pause: ShouldPause, streamer: _TokenStreamer | None
    ) -> dict[int, DecodedResponse] | None:
        """Decode rows as `_decode_batch` does; None if memory ran out, which spoils the rows."""
        try:
            with torch_threads(self._threads):
                return self._decode_batch(rows, height, should_pause, streamer)
        except (RuntimeError, MemoryError) as error:
            # Tokens that were streamed cannot be taken back: a second attempt may differ.
            if streamer and streamer.has_streamed:
                raise
            if not is_out_of_memory(error):
                raise
        return None  # outside the handler, because the error's frames keep the batch in memory

    def _shrink(self, limits: Limits, shape: Shape) -> Limits:
        """Return limits that are smaller than a batch of this shape, which ran out of memory."""
        give_back_memory()
        if shape.height == 1:
            raise RuntimeError(
                f"out of memory with one prompt of {shape.width} tokens and "
                f"{self._generation.max_new_tokens} new ones; use less max_new_tokens or dtype"
            )
        return limits.halved(shape)

    @torch.inference_mode()
    def _decode_batch(
        self, rows: Rows, height: int, should_pause: ShouldPause, streamer: _TokenStreamer | None
    ) -> dict[int, DecodedResponse]:
        """Decode rows until all have ended, or until a pause.

        Args:
            rows: the rows; the unfinished ones are left.
            height: rows of the batch, which is filled up.
            should_pause: decides on pauses.
            streamer: receives the tokens.

        Returns:
            The completed responses by key.
        """
        new_tokens = self._generation.max_new_tokens
        remaining = [width + new_tokens - rows.length for width in rows.widths]
        tokens, mask = rows.fill_up(height)
        pause = PauseCriterion(
            rows, height, new_tokens, self._ends, should_pause if rows.cache is not None else None
        )
        with Recorder(self._model, rows.total, rows.lowest, remaining, self._ends) as recorder:
            sequences = self._model.generate(
                input_ids=tokens,
                attention_mask=mask,
                logits_processor=LogitsProcessorList(
                    [recorder, *processors(self._generation, rows.sources)]
                ),
                stopping_criteria=StoppingCriteriaList([pause]),
                max_new_tokens=max(remaining),
                do_sample=False,  # to sample, the processors add noise, and the maximum is drawn
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
                repetition_penalty=self._generation.repetition_penalty,
                pad_token_id=self._pad,
                eos_token_id=sorted(self._ends),
                past_key_values=rows.cache,
                streamer=streamer,
            )
        recorder.finish(sequences[:, -1])
        for row, width in enumerate(rows.widths):
            if rows.length == width:  # these are its first tokens
                rows.first_token_s[row] = pause.moments[width + 1] - rows.admitted[row]
        rows.extend(sequences)
        all_tokens = rows.tokens.tolist()
        totals = rows.total.tolist()
        lowest_values = rows.lowest.tolist()
        responses: dict[int, DecodedResponse] = {}
        unfinished = []
        for row, key in enumerate(rows.keys):
            start = rows.widths[row]
            response = up_to_end(all_tokens[row][start : start + new_tokens], self._ends)
            if len(response) < new_tokens and response[-1] not in self._ends:
                unfinished.append(row)
                continue
            confidence = Confidence(totals[row], lowest_values[row], len(response))
            seconds = pause.moments[start + len(response)] - rows.admitted[row]
            time = CallTime(seconds, rows.first_token_s[row])
            responses[key] = DecodedResponse(response, confidence, time)
        rows.keep(unfinished)
        return responses


# A planned batch: its shape and the keys of its prompts.
Batch = tuple["Shape", list[int]]


@dataclass(frozen=True)
class BatchResult:
    """The result of decoding a batch until its end or a pause.

    Attributes:
        shape: of the batch.
        responses: the completed responses by key; None if memory ran out.
        has_waiting_rows: whether rows that had paused took memory, too.
    """

    shape: Shape
    responses: dict[int, DecodedResponse] | None
    has_waiting_rows: bool = False


@contextmanager
def fork_workers(work: Callable[..., Any], processes: int) -> Iterator[Callable[..., Future[Any]]]:
    """Fork copies of this process that call a function; they end with the block.

    What `work` refers to is not sent: the copies have it as it was when the block began. A copy
    leaves Ctrl-C to this process, ends when this process is killed, and is killed when the block is
    left: take all results before. Use it for pure computation only: a lock that another thread held
    at the fork stays locked in the copy.

    Args:
        work: the function.
        processes: number of copies.

    Yields:
        A function that takes the arguments of `work`, calls it in a copy, and returns a future.

    Raises:
        RuntimeError: a copy was killed.
        OSError: no copies can be made on this machine.
        NotImplementedError: likewise.
    """
    other_children = set(multiprocessing.active_children())
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, context, _become_worker, (work,))
    try:
        pool.submit(int).result()  # the first call makes all copies
        yield lambda *arguments: pool.submit(_work, arguments)
    except BrokenProcessPool as error:
        reason = "one of its processes was killed, e.g. for lack of memory"
        raise RuntimeError(reason) from error
    finally:
        # They are not asked to end. A copy that was killed while it had nothing to do may have held
        # the lock of the queue: the others would wait for it for ever, and the pool for them.
        for worker in set(multiprocessing.active_children()) - other_children:
            worker.kill()
        pool.shutdown(cancel_futures=True)


_working: Callable[..., Any]  # the function of a worker process


def _become_worker(work: Callable[..., Any]) -> None:
    global _working
    _working = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
    os._exit(1)


def _work(arguments: Sequence[Any]) -> Any:
    return _working(*arguments)


def up_to_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """Return the tokens up to the first end token, which is included."""
    for position, token in enumerate(tokens):
        if token in ends:
            return tokens[: position + 1]
    return tokens


class _TokenStreamer(BaseStreamer):  # type: ignore[misc]
    """Passes each row's tokens to a callback.

    Args:
        on_token: called with the key of a row and each token.

    Attributes:
        has_streamed: whether the callback was called.
    """

    def __init__(self, on_token: OnToken) -> None:
        self._on_token = on_token
        self._keys: Sequence[int] = ()
        self._has_prompts = False
        self.has_streamed = False

    def begin(self, keys: Sequence[int]) -> None:
        """Expect other rows.

        Args:
            keys: the key of each row's prompt.
        """
        self._keys = keys
        self._has_prompts = False

    def put(self, value: torch.Tensor) -> None:
        """Receive all tokens so far in the first call, then the next token of each row."""
        if self._has_prompts:
            self.has_streamed = True
            for key, token in zip(self._keys, value.tolist(), strict=True):
                self._on_token(key, token)
        self._has_prompts = True

    def end(self) -> None:
        """Do nothing when all rows are finished."""


def limits_for(model: Any, new_tokens: int) -> Limits:
    """Return the limits of batches that fit the free memory beside the weights.

    Args:
        model: the loaded model.
        new_tokens: tokens of the longest response.

    Returns:
        The limits.
    """
    free, _ = memory({parameter.device for parameter in model.parameters()})
    return batch_limits(
        model.config.get_text_config(),
        model.dtype,
        model.device.type,
        model.num_parameters(),
        free,
        new_tokens,
    )


def batch_limits(
    config: Any, dtype: torch.dtype, kind: str, parameters: int, free: int, new_tokens: int
) -> Limits:
    """Return the limits of batches of a model, which need not be loaded.

    Args:
        config: the configuration of its language model.
        dtype: of keys and values.
        kind: of its device, "cpu" or "cuda".
        parameters: their number.
        free: bytes of memory beside the weights.
        new_tokens: tokens of the longest response.

    Returns:
        The limits.
    """
    # Four copies of a step's logits: as returned, recorded, processed, and compared.
    logits_bytes = config.vocab_size * torch.float32.itemsize * 4
    token_bytes = cache_bytes(config, dtype) + logits_bytes // (new_tokens + 1)
    cache_tokens = int(CACHE_SHARE * free) // token_bytes
    is_tiny = kind == "cpu" and parameters < TINY_MODEL_PARAMETERS
    factor = 2 if is_tiny else 1
    return Limits(
        factor * BATCH_ROWS[kind], factor * BATCH_PROMPT_TOKENS[kind], cache_tokens, new_tokens
    )


def cache_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return the bytes of one token's keys and values in all layers.

    Args:
        config: the model's configuration.
        dtype: of keys and values.

    Returns:
        Bytes.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * head_dim * dtype.itemsize)


@dataclass(frozen=True)
class Shape:
    """The shape of a batch.

    Attributes:
        height: rows, one for each prompt.
        width: tokens of a row.
    """

    height: int
    width: int


@dataclass(frozen=True)
class Limits:
    """The largest batch that is decoded at once.

    Attributes:
        rows: number of prompts.
        prompt_tokens: height times width; a device gains nothing from more than it can work on at
            once.
        cache_tokens: height times width and response together, for memory.
        new_tokens: tokens of the longest response.
    """

    rows: int
    prompt_tokens: int
    cache_tokens: int
    new_tokens: int

    def shape(self, length: int) -> Shape:
        """Return the shape of the batch in which a prompt of `length` tokens is decoded."""
        width = width_for(length)
        fitting_rows = step_below(self.cache_tokens // (width + self.new_tokens))
        height = min(self.rows, self.prompt_tokens // width, fitting_rows)
        return Shape(max(1, height), width)

    def halved(self, shape: Shape) -> Limits:
        """Return limits under which batches of a shape's width have half its rows.

        Args:
            shape: a shape of more than one row.

        Returns:
            The limits.
        """
        rows = step_below(shape.height // 2)
        return replace(self, cache_tokens=rows * (shape.width + self.new_tokens))


def plan_batches(lengths: Mapping[int, int], limits: Limits) -> list[Batch]:
    """Distribute prompts over batches, the widest first: a lack of memory then shows at once.

    Args:
        lengths: tokens of each prompt, by the prompt's key.
        limits: of each batch.

    Returns:
        The shape of each batch and the keys of its prompts.
    """
    by_shape: dict[Shape, list[int]] = {}
    for key, length in lengths.items():
        by_shape.setdefault(limits.shape(length), []).append(key)
    planned: list[Batch] = []
    for shape in sorted(by_shape, key=lambda shape: shape.width, reverse=True):
        keys = by_shape[shape]
        for start in range(0, len(keys), shape.height):
            planned.append((shape, keys[start : start + shape.height]))
    return planned


def group_batches(planned: Sequence[Batch], batches_per_group: int | None) -> Iterator[list[Batch]]:
    """Group batches of one height, whose rows may change companions.

    Args:
        planned: batches, the widest first.
        batches_per_group: the largest number of batches of a group; None is any number.

    Yields:
        The batches of each group.
    """
    for _, batches in groupby(planned, key=lambda batch: batch[0].height):
        group = list(batches)
        size = batches_per_group or len(group)
        for start in range(0, len(group), size):
            yield group[start : start + size]


HEIGHTS = sorted(first << n for n in range(60) for first in (1, 3))  # 1, 2, 3, 4, 6, 8, 12, ...


def width_for(length: int) -> int:
    """Return the least of 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, ... not below `length`."""
    step = 1 << max((length - 1).bit_length() - 3, 2)  # an eighth to a quarter of the width
    return max(MIN_WIDTH, -(-length // step) * step)


def step_below(number: int) -> int:
    """Return the largest of 1, 2, 3, 4, 6, 8, 12, 16, ... not above `number`; 0 below 1."""
    return HEIGHTS[bisect_right(HEIGHTS, number) - 1] if number >= 1 else 0


def prompt_seed(weights: str, seed: int, prompt: str, draw: int = 0) -> int:
    """Compute the seed of one prompt's random draws.

    Args:
        weights: name of the content of the weights. With the same random numbers, the models of a
            pool would tend to be right and wrong together.
        seed: of the decoding settings.
        prompt: the prompt's text.
        draw: which of the draws of the same call it is.

    Returns:
        A number of 60 bits.
    """
    return int(draw_digest(weights, seed, prompt, draw)[:15], 16)


def draw_source(seed: int, device: torch.device) -> torch.Generator:
    """Return the source of one prompt's random draws.

    Args:
        seed: see `prompt_seed`.
        device: where the logits are.

    Returns:
        The source; its state goes on from draw to draw.
    """
    return torch.Generator(device).manual_seed(seed)


class GumbelNoise(LogitsProcessor):  # type: ignore[misc]
    """Adds standard Gumbel noise to the logits of the first `len(sources)` rows.

    The token with the highest noisy logit is a draw from the model's distribution.

    Args:
        sources: one for each row; further rows get no noise.
    """

    def __init__(self, sources: Sequence[torch.Generator]) -> None:
        self._sources = sources

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Add this step's noise to the logits.

        Args:
            input_ids: int64[rows, length], ignored.
            scores: float32[rows, vocabulary], the logits.

        Returns:
            float32[rows, vocabulary], the logits with noise.
        """
        draws = torch.ones_like(scores)  # rows without a source keep 1, whose logarithm is 0
        for row, source in zip(draws, self._sources, strict=False):
            row.exponential_(generator=source)
        # -log of an exponential draw is a Gumbel draw; 0 would win against every logit.
        return scores - draws.clamp_min_(torch.finfo(draws.dtype).tiny).log_()


def processors(generation: Generation, sources: Sequence[torch.Generator]) -> LogitsProcessorList:
    """Return the processors with which greedy decoding draws by decoding settings.

    Args:
        generation: the decoding settings.
        sources: of random draws, one for each row.

    Returns:
        The processors; none at temperature 0.
    """
    chain = LogitsProcessorList()
    if generation.temperature == 0:
        return chain
    chain.append(TemperatureLogitsWarper(generation.temperature))
    if generation.top_p < 1:
        chain.append(TopPLogitsWarper(generation.top_p))
    chain.append(GumbelNoise(sources))
    return chain
