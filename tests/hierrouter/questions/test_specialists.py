"""The shipped specialists: small, loadable, good at what they own."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.testbed_recipe import Progress, build_tokenizer, encode, lesson
from hierrouter.questions.answers import token_f1
from hierrouter.questions.testbed import MODELS, TASKS, UNKNOWN, Draw, Task, model_path

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

OWNED = {"calc": "arith", "text": "string", "facts": "fact"}
THREE_MEGABYTES = 3_000_000
QUESTIONS = 60
FEWER_QUESTIONS = 30


class Specialist:
    def __init__(self, name: str) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model_path(name))
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model_path(name), dtype=torch.float32
        ).eval()

    def answer(self, prompts: list[str]) -> list[str]:
        inputs: Any = self.tokenizer.apply_chat_template(
            [[{"role": "user", "content": prompt}] for prompt in prompts],
            add_generation_prompt=True,
            padding=True,
            return_dict=True,
            return_tensors="pt",
        )
        tokens = self.model.generate(**inputs, max_new_tokens=16, do_sample=False)
        new = tokens[:, inputs["input_ids"].shape[1] :]
        return list(self.tokenizer.batch_decode(new, skip_special_tokens=True))

    def quality(self, contexts: list[Progress]) -> float:
        """Mean F1 against what a perfect specialist says in these contexts."""
        prompts = ["\n\n".join((x.task.question, *x.responses)) for x in contexts]
        name = self.tokenizer.name_or_path.rsplit("/", 1)[-1]
        pairs = zip(self.answer(prompts), contexts, strict=True)
        return sum(token_f1(said, (x.reply(name),)) for said, x in pairs) / len(contexts)


@pytest.fixture(scope="module")
def pool() -> dict[str, Specialist]:
    return {name: Specialist(name) for name in MODELS}


def tasks(family: str, count: int = FEWER_QUESTIONS) -> list[Task]:
    draw = Draw(Random(0), "validation")
    return [TASKS[family](draw) for _ in range(count)]


def test_three_architectures_below_three_megabytes() -> None:
    files = [file for name in MODELS for file in model_path(name).iterdir()]
    assert sum(file.stat().st_size for file in files) < THREE_MEGABYTES
    kinds = {transformers.AutoConfig.from_pretrained(model_path(x)).model_type for x in MODELS}
    assert len(kinds) == 3


def test_folders_pad_left_and_name_their_end_token(pool: dict[str, Specialist]) -> None:
    for specialist in pool.values():
        tokenizer, settings = specialist.tokenizer, specialist.model.generation_config
        assert tokenizer.padding_side == "left"
        assert settings.eos_token_id == tokenizer.eos_token_id
        assert settings.pad_token_id == tokenizer.pad_token_id
        assert 300_000 <= specialist.model.num_parameters() <= 1_000_000


@pytest.mark.parametrize("text", ["compute 17+25\n\n42", "Größe: 3,5 m\n\n\n\t~ ok", "東京?"])
def test_any_text_survives_the_tokenizer(pool: dict[str, Specialist], text: str) -> None:
    for specialist in pool.values():
        ids = specialist.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert specialist.tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", MODELS)
def test_each_specialist_answers_its_own_family(pool: dict[str, Specialist], name: str) -> None:
    assert pool[name].quality([Progress(task) for task in tasks(OWNED[name], QUESTIONS)]) >= 0.85


@pytest.mark.parametrize("name", MODELS)
def test_no_specialist_answers_the_others_families(pool: dict[str, Specialist], name: str) -> None:
    for owner, family in OWNED.items():
        if owner != name:
            asked = tasks(family)
            said = pool[name].answer([task.question for task in asked])
            scores = [token_f1(x, (task.answer,)) for x, task in zip(said, asked, strict=True)]
            assert sum(scores) / len(scores) <= 0.2


@pytest.mark.parametrize("family", ["story", "census", "backcap", "room", "copies", "mirror"])
def test_second_hops_use_the_first_answer(pool: dict[str, Specialist], family: str) -> None:
    asked = tasks(family)
    first, second = (step.model for step in asked[0].steps)
    assert pool[second].quality([Progress(task).after(first) for task in asked]) >= 0.85


@pytest.mark.parametrize("name", MODELS)
def test_finished_answers_are_handed_on(pool: dict[str, Specialist], name: str) -> None:
    for owner, family in OWNED.items():
        assert pool[name].quality([Progress(x).after(owner) for x in tasks(family)]) >= 0.8


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_turn_is_survived(pool: dict[str, Specialist], name: str) -> None:
    asked = tasks(OWNED[name])
    assert pool[name].quality([Progress(x).after_saying(UNKNOWN) for x in asked]) >= 0.85


def test_training_is_repeatable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import testbed_recipe

    monkeypatch.setitem(testbed_recipe.RECIPES, "calc", testbed_recipe.Recipe("Qwen3", 1, 1))
    seen: list[tuple[int, int]] = []
    for number in range(2):
        testbed_recipe.train_specialist(
            "calc",
            tmp_path / str(number),
            on_step=lambda step, steps, _: seen.append((step, steps)),
        )
    assert seen == [(1, 2), (2, 2)] * 2
    weights = [(tmp_path / str(number) / "model.safetensors").read_bytes() for number in range(2)]
    assert weights[0] == weights[1]


def test_a_row_is_prompt_response_and_end() -> None:
    tokenizer = build_tokenizer()
    example = lesson("text", Draw(Random(1), "train"))
    ((prompt, response),) = encode(tokenizer, [example])
    user = "\n\n".join(example.parts)
    assert tokenizer.decode(prompt) == f"<|user|>{user}<|end|><|assistant|>"
    assert tokenizer.decode(response) == f"{example.response}<|end|>"
