"""Any generator must pass these; a new one is a name and a branch in the fixture `generator`."""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, AutoTokenizer

from hierrouter.engines import backend
from hierrouter.engines.batches import draw_source, processors
from hierrouter.engines.generator import STATUSES, Answer, Confidence, Failure, Generator, Response
from hierrouter.pools.pool import Generation, ModelSpec
from hierrouter_cache.errors import InputError, WorldError
from tests.engines import Scripted, answers_in_order
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
TOO_LONG = "word " * 3000


@pytest.fixture(scope="module", params=[*VARIANTS, "scripted"])
def generator(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Generator:
    if request.param == "scripted":  # the double must keep the promises that it stands for
        return Scripted().load(spec(folders["llama"]))
    name, dtype, generation = VARIANTS[request.param]
    return backend("transformers").load(spec(folders[name], dtype, generation))


@pytest.fixture(scope="module")
def together(generator: Generator) -> dict[str, Answer]:
    """The answer to each of 50 prompts that were asked at once, in more than one batch."""
    asked = prompts(50)
    return dict(zip(asked, answers_in_order(generator, asked), strict=True))


def test_one_response_a_prompt_in_order(together: dict[str, Answer]) -> None:
    for answer in together.values():
        assert isinstance(answer, Response)
        assert answer.finish_reason in ("stop", "length")
        assert answer.tokens_in > 0
        assert 1 <= answer.tokens_out <= NEW_TOKENS
        assert answer.text == answer.text.strip()
    assert len(set(together.values())) > 35  # else nothing below can fail


@pytest.mark.parametrize(
    "companions",
    [
        pytest.param(lambda asked, rng: rng.sample(asked, len(asked)), id="shuffled"),
        pytest.param(lambda asked, rng: asked[:5], id="fewer"),
        pytest.param(lambda asked, rng: asked[:3] * 15, id="repeated"),
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


def test_a_prompt_that_cannot_be_answered_is_a_failure_and_spoils_no_other(
    generator: Generator, together: dict[str, Answer]
) -> None:
    asked = [*prompts(5), TOO_LONG, *prompts(3)]
    answers = list(generator.generate(asked))
    assert sorted(place for place, _ in answers) == list(range(len(asked)))  # once each
    failure = dict(answers)[5]
    assert isinstance(failure, Failure)
    assert failure.status in STATUSES
    assert len(failure.detail.splitlines()) == 1
    assert all(answer == together[asked[place]] for place, answer in answers if place != 5)


def test_after_stop_only_what_has_begun_is_delivered(generator: Generator) -> None:
    more_than_one_batch = 1_200 if torch.cuda.is_available() else 150
    asked = [" ".join(WORDS) + f" {n}" for n in range(more_than_one_batch)]
    delivered: list[int] = []
    for place, _ in generator.generate(asked, lambda: bool(delivered)):
        delivered.append(place)
    assert 0 < len(delivered) < len(asked)
    assert list(generator.generate(asked, lambda: True)) == []
    assert list(generator.generate([])) == []


def test_tokens_are_counted_by_the_models_own_tokenizer(folders: dict[str, Path]) -> None:
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
    generator._ends = generator._decoder._ends = frozenset(range(10_000))  # type: ignore[attr-defined]
    (answer,) = answers_in_order(generator, ["compute"])
    assert isinstance(answer, Response)
    assert answer == Response("", answer.tokens_in, 1, "stop")  # empty, and yet an answer


@pytest.mark.parametrize("generation", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_how_sure_an_answer_is_is_what_the_model_itself_says(
    folders: dict[str, Path], generation: Generation
) -> None:
    """Its log-probabilities of what it said, asked for in one pass without a batch."""
    generator: Any = backend("transformers").load(spec(folders["llama"], generation=generation))
    fitting, _ = generator._fitting(prompts(40))
    model = generator._decoder._model
    for place, decoded in list(generator._decoder.decode(fitting, lambda: False)):
        asked = [*fitting[place].tokens, *decoded.tokens]
        with torch.inference_mode():
            logits = (
                model(input_ids=torch.tensor([asked], device=model.device))
                .logits[0]
                .log_softmax(-1)
            )
        start = len(fitting[place].tokens) - 1
        each = [float(logits[start + n, token]) for n, token in enumerate(decoded.tokens)]
        sure = decoded.confidence
        assert sure.tokens == len(each)
        assert sure.total == pytest.approx(sum(each), abs=1e-4)
        assert sure.lowest == pytest.approx(min(each), abs=1e-4)


@pytest.mark.parametrize(
    ("logprobs", "found"),
    [
        ([-0.5, -0.25, 0.0], Confidence(-0.75, -0.5, 3)),
        ([-0.5, -0.25], Confidence(-0.75, -0.5, 2)),  # the end token left out
        ([-0.5], None),
        ([-0.5] * 4, None),
        ([], None),
        ([-0.5, -9999.0, -0.1], None),
        ([-0.5, math.nan, -0.1], None),
        ([-0.5, 0.7, -0.1], None),
        ([-0.5, None, -0.1], None),
        ([-0.5, "-0.1", -0.1], None),
    ],
)
def test_what_is_no_log_probability_is_not_one(
    logprobs: list[Any], found: Confidence | None
) -> None:
    assert Confidence.of(logprobs, 3, has_end=True) == found


def test_logits_that_are_not_finite_keep_nothing_of_the_batch(folders: dict[str, Path]) -> None:
    generator: Any = backend("transformers").load(spec(folders["llama"]))
    head = generator._decoder._model.lm_head
    steps = iter([False, False, True, False, False, False, False, False])
    head.register_forward_hook(lambda _, __, out: out * math.nan if next(steps) else None)
    with pytest.raises(RuntimeError, match="logits are NaN or infinite; nothing of this batch"):
        answers_in_order(generator, ["compute 12+7"])


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
    smaller = backend("transformers").load(replace(spec(folder), window=39))
    assert answers_in_order(smaller, [fits]) == [
        Failure("too_long", "32 tokens of prompt and 8 new ones exceed the window of 39")
    ]


def test_identity_changes_with_weights_dtype_template_and_nothing_else(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    identify = backend("transformers").identify
    same = save_random_model(tmp_path / "same", "qwen2", seed=0)
    other = save_random_model(tmp_path / "other", "qwen2", seed=1)
    before = identify(spec(same))
    assert before == identify(spec(folders["qwen2"]))
    assert identify(spec(other)) != before != identify(spec(same, "bfloat16"))
    (same / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert identify(spec(same)) != before


def test_models_that_cannot_be_loaded(tmp_path: Path) -> None:
    identify = backend("transformers").identify
    with pytest.raises(WorldError, match="nobody/nothing is not on this machine"):
        identify(ModelSpec("x", "nobody/nothing"))
    for model, said in (
        (tmp_path, r"config\.json is missing"),
        (tmp_path / "gone", "model folder not found"),
        ("testbed:clac", "unknown testbed model clac"),
    ):
        with pytest.raises(InputError, match=said):
            identify(ModelSpec("x", str(model)))


# What sampled decoding promises besides.
ONE_TOKEN = Generation(1, temperature=0.7)


def loaded(folder: Path, generation: Generation) -> Any:
    return backend("transformers").load(spec(folder, generation=generation))


def texts(generator: Generator, asked: list[str]) -> list[str]:
    answers = answers_in_order(generator, asked)
    return [answer.text for answer in answers if isinstance(answer, Response)]


def numbered(count: int) -> list[str]:
    rng = random.Random(0)
    return [f"{n} {' '.join(rng.choices(WORDS, k=4))}" for n in range(count)]


def test_first_tokens_follow_the_models_own_softmax(folders: dict[str, Path]) -> None:
    """Of 800 prompts, as many get their likeliest token as the model's probabilities say."""
    asked = numbered(800)
    drawn = texts(loaded(folders["llama"], ONE_TOKEN), asked)
    tokenizer = AutoTokenizer.from_pretrained(folders["llama"])
    model = AutoModelForCausalLM.from_pretrained(folders["llama"]).eval()
    words = [tokenizer.decode([n], skip_special_tokens=True).strip() for n in range(len(tokenizer))]
    excess, variance = Counter[int](), Counter[int]()
    for prompt, text in zip(asked, drawn, strict=True):
        message = [{"role": "user", "content": prompt}]
        shown = tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            logits = model(**shown).logits[0, -1]
        share = Counter[str]()
        for word, chance in zip(words, (logits / 0.7).softmax(0).tolist(), strict=True):
            share[word] += chance
        for rank, (word, chance) in enumerate(share.most_common(5)):
            excess[rank] += (text == word) - chance
            variance[rank] += chance * (1 - chance)
    assert variance[0] > 50  # else the test could not fail
    assert all(excess[rank] ** 2 < 3.5**2 * variance[rank] for rank in range(5)), excess


def test_another_seed_draws_other_responses(folders: dict[str, Path]) -> None:
    asked = numbered(40)
    one = texts(loaded(folders["llama"], Generation(8, 0.8, seed=1)), asked)
    two = texts(loaded(folders["llama"], Generation(8, 0.8, seed=2)), asked)
    assert sum(a != b for a, b in zip(one, two, strict=True)) > 30
    assert one == texts(loaded(folders["llama"], Generation(8, 0.8, seed=1)), asked)


def test_two_models_draw_independently(folders: dict[str, Path], tmp_path: Path) -> None:
    """The same random numbers would make the models of a pool right and wrong together."""
    moved = save_random_model(tmp_path / "moved", "llama")
    other = save_random_model(tmp_path / "other", "llama", seed=1)
    here, there, others = (
        [loaded(path, ONE_TOKEN)._seed(prompt) for prompt in numbered(2)]
        for path in (folders["llama"], moved, other)
    )
    assert here == there
    assert len({*here, *others}) == 4


def test_a_small_top_p_is_greedy_and_a_low_temperature_nearly(folders: dict[str, Path]) -> None:
    asked = numbered(40)
    greedy = texts(loaded(folders["llama"], Generation(8)), asked)
    assert texts(loaded(folders["llama"], Generation(8, 1.0, top_p=1e-6)), asked) == greedy
    cold, hot = (
        texts(loaded(folders["llama"], Generation(8, heat)), asked) for heat in (0.01, 1.0)
    )
    assert sum(a == b for a, b in zip(cold, greedy, strict=True)) > 30
    assert sum(a == b for a, b in zip(hot, greedy, strict=True)) < 10


def test_top_p_draws_from_the_likeliest_only() -> None:
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1])).repeat(2000, 1)
    sources = [draw_source(seed, logits.device) for seed in range(2000)]
    chain = processors(Generation(1, 1.0, top_p=0.65), sources)
    drawn = torch.bincount(chain(torch.empty(0), logits).argmax(dim=1), minlength=4).tolist()
    assert drawn[2:] == [0, 0]
    assert chisquare(drawn[:2], [2000 * 4 / 7, 2000 * 3 / 7]).pvalue > 0.01


def test_greedy_knows_no_seed_and_no_top_p() -> None:
    plain, sampled = Generation(8), Generation(8, 0.7)
    assert replace(plain, seed=5, top_p=0.5).settings == plain.settings
    assert plain.settings == {"max_new_tokens": 8, "temperature": 0.0}  # keys of older caches
    changes: list[dict[str, Any]] = [{}, {"seed": 1}, {"top_p": 0.9}, {"temperature": 1}]
    assert len({str(replace(sampled, **change).settings) for change in changes}) == 4
