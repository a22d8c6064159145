"""Rows that change companions: fewer steps, and the same bits as in rectangles."""

import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList

from hierrouter.engines import backend
from hierrouter.engines.batches import (
    DecodedResponse,
    Limits,
    Prompt,
    draw_source,
    group_batches,
    plan_batches,
    processors,
    up_to_end,
    width_for,
)
from hierrouter.engines.generator import never
from hierrouter.engines.rows import PAUSES, empty_cache
from hierrouter.pools.pool import Generation, ModelSpec
from tests.conftest import SOURCES, spawned, works
from tests.models import save_random_model

WORDS = ["compute", "12+7", "reverse", "the", "word", "takomi", "31", "-", "room 17", "ß✓", "\n\n"]
NEW_TOKENS = 48
ROWS = 8
# Where several tokens end a response, random models have responses of very different lengths.
ENDS = 24
SLIDING = "qwen2-sliding"
ARCHITECTURES = ("llama", "qwen2", "phi3", SLIDING)
GREEDY = Generation(NEW_TOKENS)
SAMPLED = Generation(NEW_TOKENS, temperature=0.8, top_p=0.95, seed=3)


def save_model(folder: Path, architecture: str) -> Path:
    """A random model whose responses have a long tail of lengths."""
    save_random_model(folder, architecture.partition("-")[0])
    settings: dict[str, dict[str, Any]] = {"generation_config.json": {}, "config.json": {}}
    ends = list(range(40, 40 + ENDS))
    settings["generation_config.json"]["eos_token_id"] = ends
    if architecture == SLIDING:
        window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
        kinds = ["full_attention", "sliding_attention"]
        settings["config.json"] = {**window, "layer_types": kinds}
    for name, changes in settings.items():
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: save_model(root / name, name) for name in ARCHITECTURES}


def decoder_of(folder: Path, generation: Generation, dtype: str = "float32") -> Any:
    spec = ModelSpec("m", str(folder), 0.1, dtype=dtype, generation=generation, device="cpu")
    decoder = backend("transformers").load(spec)._decoder  # type: ignore[attr-defined]
    decoder.limits = replace(decoder.limits, rows=ROWS)
    return decoder


SHORT = (13, 15, 18, 23)
FULL = (16, 16, 20, 24)  # these fill their row; a batch of such prompts alone needs no mask


def prompts_of(count: int, lengths: Sequence[int] = SHORT + FULL) -> dict[int, Prompt]:
    """Prompts of few widths."""
    rng = random.Random(0)
    return {
        key: Prompt([rng.randrange(50, 90) for _ in range(length)], key)
        for key, length in enumerate(rng.choices(lengths, k=count))
    }


@dataclass
class Steps:
    """Counts the steps of a decoder's batches."""

    count: int = 0
    batches: int = 0


def count_steps(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = Steps()
    decode_batch = decoder._decode_batch

    def counting(rows: Any, *more: Any) -> Any:
        steps.batches += 1
        before = rows.length
        result = decode_batch(rows, *more)
        steps.count += rows.length - before
        return result

    monkeypatch.setattr(decoder, "_decode_batch", counting)
    return steps


@torch.inference_mode()
def rectangles(decoder: Any, prompts: dict[int, Prompt]) -> Iterator[tuple[int, list[int], float]]:
    """Keys, tokens and log-probabilities of plain `generate`, batch by batch, to the very end."""
    model, ends = decoder._model, decoder._ends
    lengths = {key: len(prompt.tokens) for key, prompt in prompts.items()}
    for shape, keys in plan_batches(lengths, decoder.limits):
        batch = [prompts[key] for key in keys]
        filled = batch + batch[:1] * (shape.height - len(batch))
        lacking = [shape.width - len(prompt.tokens) for prompt in filled]
        rows = [[decoder._pad] * n + [*p.tokens] for n, p in zip(lacking, filled, strict=True)]
        sources = [draw_source(prompt.seed, model.device) for prompt in batch]
        output = model.generate(
            torch.tensor(rows),
            attention_mask=(torch.arange(shape.width) >= torch.tensor(lacking)[:, None]).long(),
            logits_processor=LogitsProcessorList(processors(decoder._generation, sources)),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        for row, key in enumerate(keys):
            tokens = up_to_end(output.sequences[row, shape.width :].tolist(), ends)
            total = torch.zeros(())
            for step, token in zip(output.logits, tokens, strict=False):
                total += (step[row, token] - step[row].logsumexp(-1)).clamp(max=0.0)
            yield key, tokens, float(total)


VARIANTS = {
    **{f"{name}-float32": (name, "float32", GREEDY) for name in ARCHITECTURES},
    "llama-bfloat16": ("llama", "bfloat16", GREEDY),
    "qwen2-sampled": ("qwen2", "float32", SAMPLED),
    "sliding-bfloat16-sampled": (SLIDING, "bfloat16", SAMPLED),
    "llama-penalty": ("llama", "float32", replace(GREEDY, repetition_penalty=1.3)),
}


@pytest.fixture(params=VARIANTS)
def decoder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Any:
    name, dtype, generation = VARIANTS[request.param]
    return decoder_of(folders[name], generation, dtype)


def test_a_response_has_the_bits_that_it_has_in_a_rectangle(
    decoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and log-probabilities, in fewer steps."""
    prompts = prompts_of(90)
    steps = count_steps(decoder, monkeypatch)
    responses = dict(decoder.decode(prompts, never))
    paused = replace(steps)
    assert responses.keys() == prompts.keys()
    lengths = sorted(len(response.tokens) for response in responses.values())
    assert lengths[len(lengths) // 4] < NEW_TOKENS / 3
    assert lengths[-1] == NEW_TOKENS  # a long tail
    decoder._can_pause = False
    assert dict(decoder.decode(prompts, never)) == responses  # to the last bit
    assert paused.batches > steps.batches - paused.batches
    assert paused.count < 0.85 * (steps.count - paused.count)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_rectangle_is_what_generate_makes(folders: dict[str, Path], name: str) -> None:
    decoder = decoder_of(folders[name], GREEDY)
    prompts = prompts_of(30)
    responses: dict[int, DecodedResponse] = dict(decoder.decode(prompts, never))
    for key, tokens, total in rectangles(decoder, prompts):
        assert responses[key].tokens == tokens
        confidence = responses[key].confidence
        assert confidence and confidence.total == pytest.approx(total, abs=1e-4)


def test_companions_and_their_order_change_no_bit(folders: dict[str, Path]) -> None:
    """Except the last digits of prompts that fill their row, see docs/decisions.md."""
    decoder = decoder_of(folders["llama"], SAMPLED)
    prompts = prompts_of(60, SHORT)
    responses = dict(decoder.decode(prompts, never))
    keys = random.Random(1).sample(sorted(prompts), len(prompts))
    shuffled = {key: prompts[key] for key in keys}
    assert dict(decoder.decode(shuffled, never)) == responses
    few = {key: prompts[key] for key in keys[:20]}
    assert dict(decoder.decode(few, never)) == {key: responses[key] for key in few}


def test_without_room_no_row_waits(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_of(folders["llama"], GREEDY)
    prompts = prompts_of(60)
    expected = dict(decoder.decode(prompts, never))
    largest = ROWS * (24 + NEW_TOKENS)
    decoder.limits = replace(decoder.limits, cache_tokens=largest)
    steps = count_steps(decoder, monkeypatch)
    assert dict(decoder.decode(prompts, never)) == expected
    lengths = {key: len(prompt.tokens) for key, prompt in prompts.items()}
    assert steps.batches == len(plan_batches(lengths, decoder.limits))


def test_memory_that_runs_out_while_rows_wait_ends_the_pauses_first(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_of(folders["llama"], GREEDY)
    prompts = prompts_of(60)
    expected = dict(decoder.decode(prompts, never))
    limits = decoder.limits
    decode_batch = decoder._decode_batch

    def short_of_memory(rows: Any, *more: Any) -> Any:
        if rows.length > rows.widths[0]:  # rows that have paused
            raise torch.OutOfMemoryError("CUDA out of memory")
        return decode_batch(rows, *more)

    monkeypatch.setattr(decoder, "_decode_batch", short_of_memory)
    delivered = list(decoder.decode(prompts, never))
    assert len(delivered) == len(prompts)  # each of them once
    assert dict(delivered) == expected
    assert decoder.limits == limits


def test_after_stop_rows_that_wait_are_finished(folders: dict[str, Path]) -> None:
    decoder = decoder_of(folders["llama"], GREEDY)
    prompts = {key: Prompt([50 + key % 40] * 14, key) for key in range(10 * ROWS)}
    begun: list[int] = []

    def stop() -> bool:
        begun.append(1)
        return len(begun) > 4

    answered = dict(decoder.decode(prompts, stop))
    assert sorted(answered) == list(range(3 * ROWS))  # asked once for the group, once a batch


def test_live_rows_are_released_when_they_end(folders: dict[str, Path]) -> None:
    """People get their answers before the longest is there, and all tokens of each are streamed."""
    decoder = decoder_of(folders["llama"], GREEDY)
    prompts = {key: Prompt([50 + key] * 14, key) for key in range(ROWS)}
    tokens: dict[int, list[int]] = {key: [] for key in prompts}
    seen: list[int] = []

    def on_token(key: int, token: int) -> None:
        tokens[key].append(token)

    for key, response in decoder.decode(prompts, never, is_live=True, on_token=on_token):
        seen.append(max(map(len, tokens.values())))
        assert tokens[key][: len(response.tokens)] == response.tokens
    assert seen[0] < seen[-1] <= NEW_TOKENS


def test_a_model_with_other_states_decodes_in_rectangles(folders: dict[str, Path]) -> None:
    model = decoder_of(folders["llama"], GREEDY)._model
    assert empty_cache(model) is not None
    model.config.layer_types = ["full_attention", "linear_attention"]
    assert empty_cache(model) is None


def test_groups_have_one_height_and_a_largest_size() -> None:
    limits = Limits(rows=4, prompt_tokens=2_048, cache_tokens=10**9, new_tokens=16)
    planned = plan_batches(dict(enumerate([5] * 18 + [20] * 3 + [1_000])), limits)
    groups = list(group_batches(planned, 2))
    assert [len(group) for group in groups] == [1, 2, 2, 2]
    assert [batch for group in groups for batch in group] == planned
    assert [len(group) for group in group_batches(planned, None)] == [1, 6]


def test_pauses_become_rarer() -> None:
    assert sorted(PAUSES)[:9] == [16, 20, 24, 28, 32, 40, 48, 56, 64]
    assert all(width_for(length) == length for length in PAUSES)  # where rows begin, too


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_runs_on_a_processor() -> None:
    """It compares the texts of rows and of rectangles, and fails if they differ."""
    flags = ["--shrink", "--models", "phi-3.5-mini", "--lengths", "tail"]
    done = works(spawned(sys.executable, SOURCES / "benchmarks" / "collect_gpu.py", *flags))
    figures = r"^phi-3\.5-mini +\d+ +\S+ +\d+ +\d+ +\d+\.\d\d$"
    assert re.search(figures, done.stdout, re.MULTILINE), done.stdout
