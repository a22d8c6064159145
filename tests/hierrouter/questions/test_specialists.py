"""The shipped specialists: small, loadable, good at what they own."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks import testbed_recipe
from benchmarks.testbed_recipe import Progress
from hierrouter.questions.answers import token_f1
from hierrouter.questions.testbed import MODELS, TASKS, UNKNOWN, Draw, Task, model_path

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

OWNED = {"calc": "arith", "text": "string", "facts": "fact"}
THREE_MEGABYTES = 3_000_000


class Specialist:
    def __init__(self, name: str) -> None:
        self.name = name
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
        pairs = zip(self.answer(prompts), contexts, strict=True)
        return sum(token_f1(said, (x.reply(self.name),)) for said, x in pairs) / len(contexts)


@pytest.fixture(scope="module")
def pool() -> dict[str, Specialist]:
    return {name: Specialist(name) for name in MODELS}


def tasks(family: str, count: int = 30) -> list[Task]:
    draw = Draw(Random(0), "validation")
    return [TASKS[family](draw) for _ in range(count)]


def test_folders_are_small_pad_left_and_name_their_end_token(pool: dict[str, Specialist]) -> None:
    files = [file for name in MODELS for file in model_path(name).iterdir()]
    assert sum(file.stat().st_size for file in files) < THREE_MEGABYTES
    assert len({specialist.model.config.model_type for specialist in pool.values()}) == 3
    for specialist in pool.values():
        tokenizer, settings = specialist.tokenizer, specialist.model.generation_config
        assert tokenizer.padding_side == "left"
        assert settings.eos_token_id == tokenizer.eos_token_id
        assert settings.pad_token_id == tokenizer.pad_token_id
        assert 300_000 <= specialist.model.num_parameters() <= 1_000_000
        for text in ("compute 17+25\n\n42", "Größe: 3,5 m\n\n\n\t~ ok", "東京?"):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", MODELS)
def test_each_specialist_answers_its_own_family_alone(
    pool: dict[str, Specialist], name: str
) -> None:
    """Also after a wrong turn; and it hands on what another has finished."""
    one, asked = pool[name], tasks(OWNED[name], 60)
    assert one.quality([Progress(task) for task in asked]) >= 0.85
    assert one.quality([Progress(task).after_saying(UNKNOWN) for task in asked]) >= 0.85
    for owner, family in OWNED.items():
        asked = tasks(family)
        assert one.quality([Progress(task).after(owner) for task in asked]) >= 0.8
        if owner != name:
            said = one.answer([task.question for task in asked])
            scores = [token_f1(x, (task.answer,)) for x, task in zip(said, asked, strict=True)]
            assert sum(scores) / len(scores) <= 0.2


@pytest.mark.parametrize("family", ["story", "census", "backcap", "room", "copies", "mirror"])
def test_second_hops_use_the_first_answer(pool: dict[str, Specialist], family: str) -> None:
    asked = tasks(family)
    first, second = (step.model for step in asked[0].steps)
    assert pool[second].quality([Progress(task).after(first) for task in asked]) >= 0.85


def test_training_is_repeatable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(testbed_recipe.RECIPES, "calc", testbed_recipe.Recipe("Qwen3", 1, 1))
    weights = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        testbed_recipe.train_specialist("calc", folder, on_step=lambda step, steps, _: None)
        weights.append((folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
