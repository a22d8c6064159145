"""Train the five models of the graded pool from scratch; it takes an hour on one core.

python benchmarks/graded_recipe.py --out graded-models [--models nano,calc]

All five models learn to answer any question directly, given the right or wrong responses of other
models. A specialist learns little of that: most of its questions are of its own families, and for a
question that needs several steps it learns to give the response of its step.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from hierrouter.questions.graded import (
    GRADED_FAMILIES,
    GRADED_TASKS,
    TAUGHT,
    Draw,
    vocabulary,
    world,
)
from hierrouter.questions.testbed import LETTERS, Task

sys.path.insert(0, str(Path(__file__).parent))  # tests import it as a module of a package
from testbed_recipe import Lesson, Recipe, build_tokenizer, train_model

SHARE_AT_ROOT = 0.5
# Share of wrong responses among those of other models, by the number of steps of a question. If one
# step is enough, a model must not rely on other responses; if it needs several, it must.
SHARE_WRONG = {1: 0.8, 2: 0.3, 3: 0.3}
SHARE_NEAR = 1 / 3  # share of corrupted responses among wrong ones; the rest answer other questions
SHARE_FOREIGN = 0.15  # share of questions of other families for a specialist
# The families that a model learns, each as often as it is listed.
MODEL_FAMILIES = {
    "calc": (
        *("small", "small", "plus", "plus", "total", "total", "total"),
        *("bothpeople", "backsum", "backpeople"),
    ),
    "text": ("spell", "letters", "letters", "backcapital", "backsum", "backpeople"),
    "facts": ("capital", "people", "backcapital", "bothpeople", "backpeople"),
}
# The generalists get all families, most often those that take longest to learn: sums for the small
# one, questions of several steps for the large one. Families that are too hard for the small one
# are left out, because it would only guess.
BEYOND_NANO = {"bothpeople", "backpeople"}
MODEL_FAMILIES["nano"] = (
    *(family for family in GRADED_FAMILIES if family not in BEYOND_NANO),
    *["plus"] * 5,
    *["total"] * 3,
)
MODEL_FAMILIES["general"] = (
    *GRADED_FAMILIES,
    *["plus", "plus", "total", "letters", "capital", "people"],
    *GRADED_FAMILIES[-4:],
)


@dataclass(frozen=True)
class ModelRecipe:
    """How one model is trained.

    Attributes:
        recipe: the training settings.
        seed: of the initial weights.
        at_root: share of questions without earlier responses.
    """

    recipe: Recipe
    seed: int
    at_root: float = SHARE_AT_ROOT


def _recipe(architecture: str, steps: int, layers: int, width: int, heads: int) -> Recipe:
    return Recipe(
        architecture,
        drill_steps=0,
        mix_steps=steps,
        layers=layers,
        width=width,
        heads=heads,
        inner_width=width * 8 // 3 // 16 * 16,
    )


RECIPES = {
    "nano": ModelRecipe(_recipe("Qwen3", 13000, layers=2, width=48, heads=3), 1),
    # Sums of three terms are learned late, and even later with more responses of other models.
    "calc": ModelRecipe(_recipe("Qwen3", 10000, layers=3, width=96, heads=4), 12, at_root=0.7),
    "text": ModelRecipe(_recipe("HunYuanDenseV1", 2500, layers=3, width=96, heads=4), 3),
    "facts": ModelRecipe(_recipe("Olmo2", 4000, layers=3, width=96, heads=4), 4),
    "general": ModelRecipe(_recipe("Qwen3", 4500, layers=4, width=160, heads=5), 5),
}


def lesson(model: str, rng: Random) -> Lesson:
    """Draw a question, earlier responses to it, and the response that `model` should give."""
    is_foreign = rng.random() < SHARE_FOREIGN
    family = rng.choice(GRADED_FAMILIES if is_foreign else MODEL_FAMILIES[model])
    task = GRADED_TASKS[family](Draw(rng, TAUGHT))
    # A question that another specialist must begin comes with that specialist's response.
    waits = not is_foreign and model in [step.model for step in task.steps[1:]]
    is_first = rng.random() < RECIPES[model].at_root and not waits
    responses = () if is_first else overheard_answers(task, rng)
    return Lesson((task.question, *responses), reply(model, task, responses))


def overheard_answers(task: Task, rng: Random) -> tuple[str, ...]:
    """Draw one or two responses that other models may have given."""
    steps = [step.response for step in task.steps]
    responses = [rng.choice(steps)]
    if rng.random() < SHARE_WRONG[len(steps)]:
        is_near = len(steps) > 1 or rng.random() < SHARE_NEAR
        other = GRADED_TASKS[task.family](Draw(rng, TAUGHT))
        responses[0] = corrupt(responses[0], rng) if is_near else other.answer
    if rng.random() < 0.2:
        first = responses[0]
        # A second model continues a right response, and repeats a wrong one.
        second = rng.choice(steps[steps.index(first) :]) if first in steps else first
        responses.append(second)
    return tuple(responses)


def corrupt(text: str, rng: Random) -> str:
    """Return a wrong response of the same kind: other characters, or another city."""
    if rng.random() < 0.4 and text.isalpha():
        other = rng.choice(world()).capital
        return other if other != text else other[::-1]
    positions = [position for position, character in enumerate(text) if character.isalnum()]
    for position in rng.sample(positions, min(len(positions), rng.randint(1, 2))):
        character = text[position]
        alphabet = "0123456789" if character.isdigit() else LETTERS
        replacement = rng.choice(alphabet.replace(character, ""))
        text = text[:position] + replacement + text[position + 1 :]
    return text


def reply(model: str, task: Task, responses: tuple[str, ...]) -> str:
    """Return the response of a model that knows everything of its kind."""
    last = responses[-1] if responses else ""
    kinds = [step.model for step in task.steps]
    if model == "facts" and "facts" in kinds:
        return task.steps[0].response
    if model == "calc":
        if kinds[0] == "calc":
            return task.steps[0].response
        if "calc" in kinds and "+" in last:
            return str(sum(map(int, last.split("+"))))
    if model == "text" and len(kinds) > 1 and kinds[-1] == "text" and last and "+" not in last:
        return last[::-1]
    return task.answer


def main() -> None:
    """Train the models, each into a separate folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("graded-models"))
    parser.add_argument("--models", default=",".join(RECIPES))
    parser.add_argument("--steps", type=float, default=1.0, help="share of the steps, for a trial")
    args = parser.parse_args()
    for name in args.models.split(","):
        model_recipe = RECIPES[name]
        rng = Random(f"graded {name}")
        steps = int(model_recipe.recipe.mix_steps * args.steps)

        def block(lessons: int, drills: float, name: str = name, rng: Random = rng) -> list[Lesson]:
            return [lesson(name, rng) for _ in range(lessons)]

        def on_step(step: int, steps: int, loss: float, name: str = name) -> None:
            if step % 50 == 0 or step == steps:
                print(f"\r{name}: step {step} of {steps}, loss {loss:.3f}", end="", flush=True)

        recipe = replace(model_recipe.recipe, mix_steps=steps)
        tokenizer = build_tokenizer(vocabulary())
        train_model(recipe, tokenizer, block, rng, args.out / name, model_recipe.seed, on_step)
        print(f"\r{args.out / name}")


if __name__ == "__main__":
    main()
