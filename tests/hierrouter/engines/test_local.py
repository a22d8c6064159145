"""The local engine: shapes of batches, full memory, devices, threads; models of the hub."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from hierrouter.engines import backend
from hierrouter.engines.batches import (
    Limits,
    Shape,
    cache_bytes,
    fork_workers,
    limits_for,
    plan_batches,
    step_below,
    width_for,
)
from hierrouter.engines.devices import is_out_of_memory, placement, torch_threads
from hierrouter.engines.identity import INDEX_FILE, WEIGHTS_FILE, weight_bytes
from hierrouter.pools.pool import Generation, ModelSpec
from hierrouter_cache.errors import InputError
from tests.conftest import SOURCES, environment, spawned, works
from tests.hub import Files, Model, hub
from tests.models import save_random_model
from tests.warm import Warm

LIMITS = Limits(rows=64, prompt_tokens=2_048, cache_tokens=10**9, new_tokens=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model") / "m", "llama", window=100_000)


def timeless(answers: Iterable[tuple[int, object]]) -> list[tuple[int, dict[str, object]]]:
    """Answers with their places and all that they have, but how long they took."""
    return [(place, {**vars(answer), "time": None}) for place, answer in answers]


def spec(folder: Path, **changes: object) -> ModelSpec:
    plain = ModelSpec("m", str(folder), 0.1, dtype="float32", generation=Generation(4))
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_shape_follows_from_the_length_and_hardly_from_the_memory() -> None:
    assert LIMITS.shape(29) == LIMITS.shape(32) == Shape(64, 32)
    assert LIMITS.shape(100) == Shape(18, 112)
    assert LIMITS.shape(5_000) == Shape(1, 5_120)
    for rows in range(48, 64):
        assert replace(LIMITS, cache_tokens=rows * (32 + 16)).shape(32) == Shape(48, 32)


def test_halved_limits_halve_the_batch_that_was_too_large() -> None:
    shape = LIMITS.shape(32)
    while shape.height > 1:
        limits = LIMITS.halved(shape)
        assert limits.shape(32).height in (shape.height // 2, step_below(shape.height // 2))
        shape = limits.shape(32)


def test_every_prompt_is_in_one_batch_and_the_widest_come_first() -> None:
    lengths = dict(enumerate([5, 700, 18, 5, 33, 31] * 40))
    planned = plan_batches(lengths, LIMITS)
    assert sorted(row for _, rows in planned for row in rows) == sorted(lengths)
    assert all(len(rows) <= shape.height for shape, rows in planned)
    assert all(lengths[row] <= shape.width for shape, rows in planned for row in rows)
    widths = [shape.width for shape, _ in planned]
    assert widths == sorted(widths, reverse=True)


def test_steps_round_up_and_down() -> None:
    steps = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert [step_below(step) for step in steps] == steps
    assert (step_below(5), step_below(0)) == (4, 0)
    assert [width_for(n) for n in (1, 16, 17, 31, 33, 64, 65)] == [16, 16, 20, 32, 40, 64, 80]


def test_the_cache_of_a_token_is_as_large_as_the_models_own(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")
    with torch.inference_mode():
        cache = model(torch.ones((1, 10), dtype=torch.long), use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert 10 * cache_bytes(model.config, torch.bfloat16) == held
    assert limits_for(model, 4).cache_tokens > 10**5  # two gigabytes free, and more


def test_where_memory_runs_out_batches_are_halved(folder: Path, warm: Warm) -> None:
    """200 prompts of 240 tokens at a time need more than is there, and so does one of 49,152."""
    command = ["-m", "tests.hierrouter.engines.little_memory", str(folder)]
    done = works(warm.start(*command, cwd=SOURCES, env=environment()).result())
    live, stored, error, still_well = json.loads(done.stdout)
    # A live batch is no higher than needed, and what it learns is forgotten.
    answered, limit, batches = live
    assert (answered, limit > 200 * 260) == (200, True)
    assert batches[0][0] == 200
    assert batches[1][0] <= 100
    assert all(height == prompts for height, prompts in batches)
    answered, limit, _ = stored
    assert (answered, limit < 200 * 260) == (200, True)
    assert error.startswith("out of memory with one prompt of 49152 tokens and 4 new ones")
    assert still_well


def no_fork() -> int:
    """What the kernel says beyond the limit of processes."""
    raise BlockingIOError(11, "Resource temporarily unavailable")


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")
def test_a_small_model_answers_in_two_processes_as_in_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"question {n} " + "and " * (n % 40) for n in range(900)]
    load = backend("transformers").load
    with torch_threads(1):
        expected = timeless(load(spec(folder)).generate(prompts))
    with torch_threads(2):
        model: Any = load(spec(folder))
    # To the last digit of how sure it was, and in the same order.
    assert timeless(model.generate(prompts)) == expected
    asked = count()
    begun = [place for place, _ in model.generate(prompts, lambda: next(asked) == 1)]
    assert begun == [place for place, _ in expected[: len(begun)]]
    assert 5 * 8 < len(begun) < len(prompts)  # one group of batches
    answers = model.generate(prompts)
    next(answers)
    answers.close()  # as by Ctrl-C: nobody waits for the others
    assert multiprocessing.active_children() == []
    monkeypatch.setattr(os, "fork", no_fork)
    assert timeless(model.generate(prompts)) == expected
    monkeypatch.undo()
    model._decoder._batches_per_group = 1  # so that much is left to do
    answers = model.generate(prompts)
    next(answers)
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="one of its processes was killed"):
        list(answers)
    assert multiprocessing.active_children() == []


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")
def test_nobody_waits_for_a_copy_that_was_killed_when_it_had_nothing_to_do() -> None:
    """It may have held the lock of the queue that the other one waits for."""
    for _ in range(10):
        with fork_workers(os.getpid, 2) as begin:
            os.kill(begin().result(), signal.SIGKILL)
        assert multiprocessing.active_children() == []


WAITING = """
import os, time
from hierrouter.engines.batches import fork_workers
with fork_workers(os.getpid, 2) as begin:
    print(begin().result(), flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")
def test_no_copy_outlives_a_process_that_is_killed() -> None:
    command, env = [sys.executable, "-c", WAITING], environment()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        one = int(process.stdout.readline())
        copies = psutil.Process(process.pid).children()
        assert one in [copy.pid for copy in copies]
        assert len(copies) == 2
        for copy in copies:
            copy.send_signal(signal.SIGINT)  # Ctrl-C goes to all, and is the first one's to heed
        assert psutil.wait_procs(copies, timeout=1)[0] == []
        process.kill()
        assert psutil.wait_procs(copies, timeout=60)[1] == []


def test_another_failure_is_no_lack_of_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    assert is_out_of_memory(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "balanced"])
def test_a_gpu_that_is_not_there(folder: Path, device: str) -> None:
    with pytest.raises(InputError, match=f"cuda is not available.*{device}.*use --device cpu"):
        backend("transformers").identify(spec(folder, device=device))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_that_is_named_is_used(folder: Path) -> None:
    assert placement(spec(folder, device="cuda"), 1) == "cuda:0"
    assert placement(spec(folder, device="cpu"), 1) == "cpu"
    with pytest.raises(InputError, match="cuda:99 is not available"):
        placement(spec(folder, device="cuda:99"), 1)
    identity = backend("transformers").identify
    assert identity(spec(folder)) == identity(spec(folder, device="cuda:0"))


def test_the_number_of_threads_is_as_before_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(KeyError), torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before


FIRST, SECOND = "a" * 40, "b" * 40
COPY = "consolidated.safetensors"
USE = """
import json
from hierrouter.engines import backend
from hierrouter.engines.identity import weight_bytes
from hierrouter.pools.pool import ModelSpec
engine, spec = backend("transformers"), ModelSpec("m", "made/up", 0.1, device="cpu")
weights = engine.identify(spec)["weights"]
model = engine.load(spec)._decoder._model
total = sum(each.detach().double().sum().item() for each in model.parameters())
in_parts = ModelSpec("n", "made/in-parts", 0.1)
print(json.dumps([weights, total, weight_bytes(spec), weight_bytes(in_parts)]))
"""


def files_of(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def total_of(folder: Path) -> float:
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return sum(each.detach().double().sum().item() for each in loaded.parameters())


def test_what_is_loaded_is_the_commit_that_was_named(tmp_path: Path) -> None:
    """The branch moves right after it was asked for. Of two copies the indexed one is fetched."""
    one, two = (save_random_model(tmp_path / name, "llama", int(name)) for name in "12")
    first = files_of(one)
    model = Model({FIRST: {**first, COPY: first[WEIGHTS_FILE]}, SECOND: files_of(two)})
    # Sharded, and all of it once more beside. Equal parts would be one download.
    index = {"weight_map": {"x": "model-1-of-2.safetensors", "y": "model-2-of-2.safetensors"}}
    whole = first.pop(WEIGHTS_FILE)
    parts = dict(zip(index["weight_map"].values(), (whole, whole[:-1] + b"\0"), strict=True))
    in_two = {**first, **parts, COPY: whole, INDEX_FILE: json.dumps(index).encode()}
    sharded = Model({FIRST: in_two})
    with hub({}, {"made/up": model, "made/in-parts": sharded}) as url:
        settings = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        done = spawned(sys.executable, "-c", USE, **settings, HF_HUB_DISABLE_TELEMETRY="1")
    assert done.returncode == 0, done.stderr
    weights, total, size, size_in_parts = json.loads(done.stdout)
    assert weights == f"made/up@{FIRST}"
    assert total == pytest.approx(total_of(one), rel=1e-12)
    assert total != pytest.approx(total_of(two), rel=1e-3)
    assert size == weight_bytes(ModelSpec("m", str(one), 0.1)) == size_in_parts / 2
    assert model.asked == 1
    assert COPY not in model.fetched | sharded.fetched
    assert {"model-1-of-2.safetensors", "model-2-of-2.safetensors"} <= sharded.fetched
