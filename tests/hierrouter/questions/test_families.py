"""The testbed's questions, distinct and consistent, and its specialists, small and good."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks import testbed_recipe
from benchmarks.testbed_recipe import Progress, counterfactual
from hierrouter.questions import testbed
from hierrouter.questions.answers import token_f1
from hierrouter.questions.shipped import GROUP_BY_FAMILY, model_path, questions
from hierrouter.questions.testbed import TESTBED_MODELS, TESTBED_TASKS, UNKNOWN_RESPONSE, Draw, Task
from hierrouter_cache.errors import InputError

NUMBERS = {
    "arith": r"(\d+)\D+(\d+)",
    "story": r"(\d+)\D+(\d+)",
    "room": r"(\d+)[+-](\d+)",
    "copies": r"(\d+)[+-](\d+)",
    "riddle": r"(\d+)",
    "fact": r"(\d+)",
}
SIGNS = r"[+-]|plus|minus"


def pieces(family: str, question: str) -> set[object]:
    """What the splits must not share: operands, room numbers and words outside the templates."""
    words = {
        word for word in re.findall(r"[a-z]{2,}", question) if word not in testbed.vocabulary()
    }
    found = re.search(NUMBERS[family], question) if family in NUMBERS else None
    sign = re.search(SIGNS, question)
    taken_away = family == "story" and re.search("loses|takes", question) is not None
    numbers = {(found.groups(), sign and sign[0], taken_away)} if found else set()
    return {*words, *numbers}


@pytest.mark.parametrize("family", GROUP_BY_FAMILY)
def test_three_hundred_distinct_questions_in_the_promised_shares(family: str) -> None:
    asked = questions(family)
    assert len({question.question for question in asked}) == len(asked) == 300
    assert [question.id for question in asked] == [f"{family}-{n:04d}" for n in range(300)]
    counts = Counter(question.split for question in asked)
    assert counts == {"train": 168, "validation": 42, "test": 90}
    assert asked[:100] == questions(family, limit=100) != questions(family, seed=43, limit=100)


@pytest.mark.parametrize("family", testbed.TESTBED_FAMILIES)
def test_no_piece_occurs_in_two_splits(family: str) -> None:
    found: dict[str, set[object]] = {split: set() for split in testbed.SPLITS}
    for question in questions(family, limit=600):
        assert pieces(family, question.question), question.question
        found[question.split] |= pieces(family, question.question)
    for one, other in combinations(testbed.SPLITS, 2):
        assert not found[one] & found[other]


def test_a_shared_piece_would_be_noticed() -> None:
    assert pieces("arith", "compute 3+4") & pieces("arith", "how much is 3+4 ?")
    assert not pieces("arith", "compute 3+4") & pieces("arith", "compute 3-4")
    assert pieces("mirror", "reverse ulot and name the capital of that place") == {"ulot"}


def test_a_finite_family_gives_what_it_has() -> None:
    assert len(questions("mirror", limit=10_000)) == 5 * len(testbed.world().countries)
    assert len(questions("riddle", limit=10_000)) == 5 * len(testbed.world().rooms)


def test_unknown_names_and_negative_limits_are_refused() -> None:
    with pytest.raises(InputError, match="unknown family: 'poetry'; choose from arith"):
        questions("poetry")
    with pytest.raises(InputError, match="a limit cannot be negative: -1"):
        questions("arith", limit=-1)
    with pytest.raises(InputError, match="unknown testbed model gpt; known: calc"):
        model_path("testbed:gpt")


def test_the_world_is_consistent() -> None:
    rooms = testbed.world().rooms
    countries = testbed.world().countries
    names = [name for country in countries for name in (country.name, country.capital)]
    names += [room.occupant for room in rooms]
    assert len(set(names)) == len(names) == len(testbed.world().names)
    assert [room.number for room in rooms] == list(range(1, 81))
    for room in rooms:
        sums = isinstance(room.riddle, testbed.Expression)
        assert room.split == (room.riddle.split if sums else testbed.word_split(room.riddle))


def test_answers_follow_from_the_question_and_the_world() -> None:
    capitals = {country.name: country.capital for country in testbed.world().countries}
    for question in questions("backcap"):
        (name,) = pieces("backcap", question.question)
        assert question.answers == (capitals[str(name)][::-1],)
    for question in questions("arith"):
        left, sign, right = re.findall(rf"\d+|{SIGNS}", question.question)
        value = int(left) + int(right) * (1 if sign in ("+", "plus") else -1)
        assert question.answers == (str(value),)


@pytest.mark.parametrize("family", testbed.TESTBED_FAMILIES)
def test_perfect_specialists_solve_a_task_in_its_order_only(family: str) -> None:
    draw = testbed.Draw(Random(0), "train")
    for _ in range(50):
        task = testbed.TESTBED_TASKS[family](draw)
        owners = [step.model for step in task.steps]
        right = Progress(task)
        for model in owners:
            right = right.after(model)
        assert right.responses[-1] == task.answer
        assert all(right.reply(model) == task.answer for model in testbed.TESTBED_MODELS)
        if len(owners) == 2:
            wrong = Progress(task).after(owners[1]).after(owners[0])
            assert wrong.responses[0] == testbed.UNKNOWN_RESPONSE
            assert wrong.responses[1] != task.answer
        other = counterfactual(task, draw)
        assert other.question == task.question
        assert [step.model for step in other.steps] == owners


torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

OWNED = {"calc": "arith", "text": "string", "facts": "fact"}
THREE_MEGABYTES = 3_000_000


class Specialist:
    def __init__(self, name: str) -> None:
        self.name = name
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model_path(f"testbed:{name}"))
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model_path(f"testbed:{name}"), dtype=torch.float32
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
    return {name: Specialist(name) for name in TESTBED_MODELS}


def tasks(family: str, count: int = 30) -> list[Task]:
    draw = Draw(Random(0), "validation")
    return [TESTBED_TASKS[family](draw) for _ in range(count)]


def test_folders_are_small_pad_left_and_name_their_end_token(pool: dict[str, Specialist]) -> None:
    files = [file for name in TESTBED_MODELS for file in model_path(f"testbed:{name}").iterdir()]
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


@pytest.mark.parametrize("name", TESTBED_MODELS)
def test_a_specialist_answers_its_own_family_alone(pool: dict[str, Specialist], name: str) -> None:
    """Also after a wrong turn; and it hands on what another has finished."""
    one, asked = pool[name], tasks(OWNED[name], 60)
    assert one.quality([Progress(task) for task in asked]) >= 0.85
    assert one.quality([Progress(task).after_saying(UNKNOWN_RESPONSE) for task in asked]) >= 0.85
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
