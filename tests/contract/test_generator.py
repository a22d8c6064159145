"""Any generator must pass these; a new one is a name and a branch in the fixture `generator`."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.engines import backend
from hierrouter.engines.generator import (
    STATUSES,
    Answer,
    Failure,
    Generator,
    Response,
    answers_in_order,
)
from hierrouter.pools.pool import Generation, ModelSpec
from hierrouter_cache.errors import InputError, WorldError
from tests.engines import Scripted
from tests.models import ARCHITECTURES, save_random_model

WORDS = ["compute", "12+7", "reverse", "the", "word", "takomi", "31", "-", "room 17", "ß✓", "\n\n"]
NEW_TOKENS = 8


def prompts(count: int) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 40))) for _ in range(count)]


GREEDY = Generation(NEW_TOKENS)
SAMPLED = Generation(NEW_TOKENS, temperature=0.8, top_p=0.95, seed=3)


def spec(folder: Path, dtype: str = "float32", generation: Generation = GREEDY) -> ModelSpec:
    return ModelSpec(folder.name, str(folder), 0.01, dtype=dtype, generation=generation)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: save_random_model(root / name, name) for name in ARCHITECTURES}


VARIANTS = {
    **{f"{name}-float32": (name, "float32", GREEDY) for name in ARCHITECTURES},
    "llama-bfloat16": ("llama", "bfloat16", GREEDY),
    "qwen2-sampled": ("qwen2", "float32", SAMPLED),
    "phi3-bfloat16-sampled": ("phi3", "bfloat16", SAMPLED),
}
# Equal in float32 on CPU; in bfloat16, about one response in ten follows its companions.
CONTINUOUS = {f"{name}-continuous": name for name in ("llama", "phi3")}
TOO_LONG = "word " * 3000


@pytest.fixture(scope="module", params=[*VARIANTS, *CONTINUOUS, "scripted"])
def generator(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Generator:
    if request.param == "scripted":  # the double must keep the promises that it stands for
        return Scripted().load(spec(folders["llama"]))
    if request.param in CONTINUOUS:
        one = spec(folders[CONTINUOUS[request.param]])
        return backend("transformers").load(replace(one, batching="continuous", device="cpu"))
    name, dtype, generation = VARIANTS[request.param]
    return backend("transformers").load(spec(folders[name], dtype, generation))


@pytest.fixture(scope="module")
def together(generator: Generator) -> dict[str, Answer]:
    """The answer to each of 70 prompts that were asked at once."""
    asked = prompts(70)
    return dict(zip(asked, answers_in_order(generator, asked), strict=True))


def test_one_response_a_prompt_in_order(together: dict[str, Answer]) -> None:
    for answer in together.values():
        assert isinstance(answer, Response)
        assert answer.finish_reason in ("stop", "length")
        assert answer.tokens_in > 0
        assert 1 <= answer.tokens_out <= NEW_TOKENS
        assert answer.text == answer.text.strip()
    assert len(set(together.values())) > 50  # else nothing below can fail


@pytest.mark.parametrize(
    "companions",
    [
        pytest.param(lambda asked, rng: rng.sample(asked, len(asked)), id="shuffled"),
        pytest.param(lambda asked, rng: asked[:5], id="fewer"),
        pytest.param(lambda asked, rng: asked[:3] * 30, id="repeated"),
        pytest.param(lambda asked, rng: asked[:1], id="alone"),
    ],
)
def test_batch_composition_changes_no_response(
    generator: Generator,
    together: dict[str, Answer],
    companions: Callable[[list[str], random.Random], list[str]],
) -> None:
    batch = companions(list(together), random.Random(1))
    assert answers_in_order(generator, batch) == [together[prompt] for prompt in batch]


def test_the_same_prompts_give_the_same_responses(generator: Generator) -> None:
    assert answers_in_order(generator, prompts(20)) == answers_in_order(generator, prompts(20))


def test_a_prompt_that_cannot_be_answered_is_a_failure_and_spoils_no_other(
    generator: Generator,
) -> None:
    asked = prompts(5)
    first, failure, *rest = answers_in_order(generator, [asked[0], TOO_LONG, *asked[1:]])
    assert isinstance(failure, Failure)
    assert failure.status in STATUSES
    assert len(failure.detail.splitlines()) == 1
    assert [first, *rest] == answers_in_order(generator, asked)


def test_every_prompt_is_answered_once(generator: Generator) -> None:
    asked = [TOO_LONG, *prompts(70), *prompts(3)]
    places = [place for place, _ in generator.generate(asked)]
    assert sorted(places) == list(range(len(asked)))


def test_after_stop_only_what_has_begun_is_delivered(generator: Generator) -> None:
    asked = [" ".join(WORDS) + f" {n}" for n in range(1_200)]  # more than one batch
    delivered: list[int] = []
    for place, _ in generator.generate(asked, lambda: bool(delivered)):
        delivered.append(place)
    assert 0 < len(delivered) < len(asked)
    assert list(generator.generate(asked, lambda: True)) == []


def test_no_prompts_no_responses(generator: Generator) -> None:
    assert list(generator.generate([])) == []


def test_tokens_are_counted_by_the_models_own_tokenizer(folders: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folders["llama"])
    generator = backend("transformers").load(spec(folders["llama"]))
    (answer,) = answers_in_order(generator, ["compute 12+7"])
    assert isinstance(answer, Response)
    message = [{"role": "user", "content": "compute 12+7"}]
    shown = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)
    assert answer.tokens_in == len(shown["input_ids"])
    assert answer.finish_reason == "length"
    assert answer.tokens_out == NEW_TOKENS


def test_an_end_token_stops_and_counts(folders: dict[str, Path]) -> None:
    """Generation ends at the first end token; here every token but one is an end token."""
    generator = backend("transformers").load(spec(folders["qwen2"]))
    generator._ends = frozenset(range(10_000))  # type: ignore[attr-defined]
    (answer,) = answers_in_order(generator, ["compute"])
    assert isinstance(answer, Response)
    assert answer == Response("", answer.tokens_in, 1, "stop")  # empty, and yet an answer


def test_the_window_holds_prompt_and_response(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path / "m", "qwen2", window=40)
    generator = backend("transformers").load(spec(folder))
    overhead = 3  # the chat template's own tokens
    fits, too_long = "1" * (40 - NEW_TOKENS - overhead), "1" * (41 - NEW_TOKENS - overhead)
    answer, failure = answers_in_order(generator, [fits, too_long])
    assert isinstance(answer, Response)
    assert answer.tokens_in == 40 - NEW_TOKENS
    assert failure == Failure(
        "too_long", "33 tokens of prompt and 8 new ones exceed the window of 40"
    )


def test_identity_changes_with_weights_dtype_and_nothing_else(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    identify = backend("transformers").identify
    same = save_random_model(tmp_path / "same", "qwen2", seed=0)
    other = save_random_model(tmp_path / "other", "qwen2", seed=1)
    assert identify(spec(same)) == identify(spec(folders["qwen2"]))
    assert identify(spec(other)) != identify(spec(same))
    assert identify(spec(same, "bfloat16")) != identify(spec(same))


def test_a_changed_chat_template_is_another_model(tmp_path: Path) -> None:
    identify = backend("transformers").identify
    folder = save_random_model(tmp_path / "m", "llama")
    before = identify(spec(folder))
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert identify(spec(folder)) != before


def test_models_that_cannot_be_loaded(tmp_path: Path) -> None:
    engine = backend("transformers")
    with pytest.raises(WorldError, match="nobody/nothing not found on this machine"):
        engine.identify(ModelSpec("x", "nobody/nothing", 0.1))
    with pytest.raises(InputError, match=r"config\.json is missing"):
        engine.identify(ModelSpec("x", str(tmp_path), 0.1))
    with pytest.raises(InputError, match="model folder not found"):
        engine.identify(ModelSpec("x", str(tmp_path / "gone"), 0.1))
    with pytest.raises(InputError, match="unknown testbed model clac"):
        engine.identify(ModelSpec("x", "testbed:clac", 0.1))


def test_remote_code_is_never_run(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = save_random_model(tmp_path / "rc", "llama")
    config = (folder / "config.json").read_text()
    remote = '{"auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},'
    changed = remote + config[1:].replace('"model_type": "llama"', '"model_type": "evil"')
    (folder / "config.json").write_text(changed)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')")
    with pytest.raises(WorldError, match=r"trust_remote_code|custom code"):
        backend("transformers").load(spec(folder))
    assert not (tmp_path / "pwned").exists()
