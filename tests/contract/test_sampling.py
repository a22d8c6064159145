"""What sampled decoding promises; greedy and sampled share the suite in `test_generator`."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, AutoTokenizer

from hierrouter.engines import backend
from hierrouter.engines.batches import processors
from hierrouter.engines.generator import Generator, Response, answers_in_order
from hierrouter.pools.pool import Generation, ModelSpec
from tests.models import save_random_model

ONE_TOKEN = Generation(1, temperature=0.7)
WORDS = ["compute", "12+7", "reverse", "the", "word", "room 17"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model") / "m", "llama")


def load(folder: Path, generation: Generation) -> Generator:
    spec = ModelSpec("m", str(folder), 0.1, dtype="float32", generation=generation)
    return backend("transformers").load(spec)


def texts(generator: Generator, asked: list[str]) -> list[str]:
    answers = answers_in_order(generator, asked)
    return [answer.text for answer in answers if isinstance(answer, Response)]


def prompts(count: int) -> list[str]:
    rng = random.Random(0)
    return [f"{n} {' '.join(rng.choices(WORDS, k=4))}" for n in range(count)]


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0])
    count = 20_000
    chain = processors(ONE_TOKEN, range(count), logits.device)
    drawn = chain(torch.empty(0), logits.repeat(count, 1)).argmax(dim=1)
    expected = torch.softmax(logits / ONE_TOKEN.temperature, dim=0) * count
    seen = torch.bincount(drawn, minlength=len(logits))
    assert chisquare(seen.numpy(), expected.numpy(), sum_check=False).pvalue > 0.01


def test_first_tokens_follow_the_models_own_softmax(folder: Path) -> None:
    """Of 2,000 prompts, as many get their likeliest token as the model's probabilities say."""
    asked = prompts(2000)
    drawn = texts(load(folder, ONE_TOKEN), asked)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    words = [tokenizer.decode([n], skip_special_tokens=True).strip() for n in range(len(tokenizer))]
    hits, expected, variance = Counter[int](), Counter[int](), Counter[int]()
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
            hits[rank] += text == word
            expected[rank] += chance
            variance[rank] += chance * (1 - chance)
    deviations = [(hits[rank] - expected[rank]) / variance[rank] ** 0.5 for rank in range(5)]
    assert variance[0] > 50  # else the test could not fail
    assert max(map(abs, deviations)) < 3.5, deviations


def test_another_seed_draws_other_responses(folder: Path) -> None:
    asked = prompts(40)
    one = texts(load(folder, Generation(8, 0.8, seed=1)), asked)
    two = texts(load(folder, Generation(8, 0.8, seed=2)), asked)
    assert sum(a != b for a, b in zip(one, two, strict=True)) > 30
    assert one == texts(load(folder, Generation(8, 0.8, seed=1)), asked)


def test_two_models_draw_independently(folder: Path, tmp_path: Path) -> None:
    """The same random numbers would make the models of a pool right and wrong together."""
    other = save_random_model(tmp_path / "other", "llama", seed=1)
    asked = prompts(2)
    seeds = [
        load(path, ONE_TOKEN)._seed(prompt)  # type: ignore[attr-defined]
        for path in (folder, other)
        for prompt in asked
    ]
    assert len(set(seeds)) == 4


def test_a_model_that_was_moved_draws_the_same(folder: Path, tmp_path: Path) -> None:
    moved = save_random_model(tmp_path / "moved", "llama")
    asked, settings = prompts(10), Generation(8, 0.8)
    assert texts(load(folder, settings), asked) == texts(load(moved, settings), asked)


def test_a_small_top_p_is_greedy_and_a_low_temperature_nearly(folder: Path) -> None:
    asked = prompts(40)
    greedy = texts(load(folder, Generation(8)), asked)
    assert texts(load(folder, Generation(8, 1.0, top_p=1e-6)), asked) == greedy
    cold, hot = (texts(load(folder, Generation(8, heat)), asked) for heat in (0.01, 1.0))
    assert sum(a == b for a, b in zip(cold, greedy, strict=True)) > 30
    assert sum(a == b for a, b in zip(hot, greedy, strict=True)) < 10


def test_top_p_draws_from_the_likeliest_only() -> None:
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1])).repeat(2000, 1)
    chain = processors(Generation(1, 1.0, top_p=0.65), range(2000), logits.device)
    drawn = torch.bincount(chain(torch.empty(0), logits).argmax(dim=1), minlength=4).tolist()
    assert drawn[2:] == [0, 0]
    assert chisquare(drawn[:2], [2000 * 4 / 7, 2000 * 3 / 7]).pvalue > 0.01


def test_greedy_knows_no_seed_and_no_top_p() -> None:
    plain = Generation(8)
    assert replace(plain, seed=5, top_p=0.5).settings == plain.settings
    assert plain.settings == {"max_new_tokens": 8, "temperature": 0.0}  # keys of older caches
    sampled = Generation(8, 0.7)
    others = [
        replace(sampled, seed=1),
        replace(sampled, top_p=0.9),
        replace(sampled, temperature=1),
    ]
    assert len({str(other.settings) for other in [plain, sampled, *others]}) == 5
