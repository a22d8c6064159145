"""The recipe that makes the five models of the graded pool from nothing; an hour on one core.

python benchmarks/graded_recipe.py --out graded-models [--models nano,calc]

All five learn to answer every question at once, given what others have said so far, right or
wrong. A specialist learns little of that: most of its questions are on its own ground, and of a
question that needs several steps it gives its own step.
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
# Of the answers that others have given. Where one step is enough, whoever hears an answer must not
# lean on it; where several are needed, it must.
SHARE_WRONG = {1: 0.8, 2: 0.3, 3: 0.3}
SHARE_NEAR = 1 / 3  # of wrong answers to such a question; the others belong to another question
OFF_GROUND = 0.15  # of a specialist's questions
GROUNDS = {
    "calc": (
        *("small", "small", "plus", "plus", "total", "total", "total"),
        *("bothpeople", "backsum", "backpeople"),
    ),
    "text": ("spell", "letters", "letters", "backcapital", "backsum", "backpeople"),
    "facts": ("capital", "people", "backcapital", "bothpeople", "backpeople"),
}
# What the others are asked, most often what takes longest to learn: for a small one sums, for a
# large one what needs several steps. What is beyond a small one it would only guess.
BEYOND_NANO = {"bothpeople", "backpeople"}
GROUNDS["nano"] = (
    *(family for family in GRADED_FAMILIES if family not in BEYOND_NANO),
    *["plus"] * 5,
    *["total"] * 3,
)
GROUNDS["general"] = (
    *GRADED_FAMILIES,
    *["plus", "plus", "total", "letters", "capital", "people"],
    *GRADED_FAMILIES[-4:],
)


@dataclass(frozen=True)
class Size:
    """A model's recipe, the seed of its first weights, and how often nobody has answered before."""

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
    "nano": Size(_recipe("Qwen3", 13000, layers=2, width=48, heads=3), 1),
    # Sums of three terms are learned late, and later the more others say beside them.
    "calc": Size(_recipe("Qwen3", 10000, layers=3, width=96, heads=4), 12, at_root=0.7),
    "text": Size(_recipe("HunYuanDenseV1", 2500, layers=3, width=96, heads=4), 3),
    "facts": Size(_recipe("Olmo2", 4000, layers=3, width=96, heads=4), 4),
    "general": Size(_recipe("Qwen3", 4500, layers=4, width=160, heads=5), 5),
}


def lesson(model: str, rng: Random) -> Lesson:
    """A question, what others have answered to it so far, and what `model` should say."""
    is_off = rng.random() < OFF_GROUND
    family = rng.choice(GRADED_FAMILIES if is_off else GROUNDS[model])
    task = GRADED_TASKS[family](Draw(rng, TAUGHT))
    # Of what another has to begin a specialist learns no more than how to go on.
    waits = not is_off and model in [step.model for step in task.steps[1:]]
    is_first = rng.random() < RECIPES[model].at_root and not waits
    said = () if is_first else heard(task, rng)
    return Lesson((task.question, *said), reply(model, task, said))


def heard(task: Task, rng: Random) -> tuple[str, ...]:
    """One or two answers that others may have given."""
    steps = [step.response for step in task.steps]
    said = [rng.choice(steps)]
    if rng.random() < SHARE_WRONG[len(steps)]:
        is_near = len(steps) > 1 or rng.random() < SHARE_NEAR
        other = GRADED_TASKS[task.family](Draw(rng, TAUGHT))
        said[0] = spoiled(said[0], rng) if is_near else other.answer
    if rng.random() < 0.2:
        said.append(rng.choice(steps[steps.index(said[0]) :]) if said[0] in steps else said[0])
    return tuple(said)


def spoiled(text: str, rng: Random) -> str:
    """A wrong answer of the same kind: a character is another one, or it is of another place."""
    if rng.random() < 0.4 and text.isalpha():
        other = rng.choice(world()).capital
        return other if other != text else other[::-1]
    places = [at for at, letter in enumerate(text) if letter.isalnum()]
    for at in rng.sample(places, min(len(places), rng.randint(1, 2))):
        kind = "0123456789" if text[at].isdigit() else LETTERS
        text = text[:at] + rng.choice(kind.replace(text[at], "")) + text[at + 1 :]
    return text


def reply(model: str, task: Task, said: tuple[str, ...]) -> str:
    """What a model that knows everything of its kind says."""
    last, kinds = (said[-1] if said else ""), [step.model for step in task.steps]
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
    """Train the models, each into a folder of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("graded-models"))
    parser.add_argument("--models", default=",".join(RECIPES))
    parser.add_argument("--steps", type=float, default=1.0, help="a share of them, to try it")
    args = parser.parse_args()
    for name in args.models.split(","):
        size, rng = RECIPES[name], Random(f"graded {name}")
        steps = int(size.recipe.mix_steps * args.steps)

        def block(lessons: int, drills: float, name: str = name, rng: Random = rng) -> list[Lesson]:
            return [lesson(name, rng) for _ in range(lessons)]

        def on_step(step: int, steps: int, loss: float, name: str = name) -> None:
            if step % 50 == 0 or step == steps:
                print(f"\r{name}: step {step} of {steps}, loss {loss:.3f}", end="", flush=True)

        recipe = replace(size.recipe, mix_steps=steps)
        tokenizer = build_tokenizer(vocabulary())
        train_model(recipe, tokenizer, block, rng, args.out / name, size.seed, on_step)
        print(f"\r{args.out / name}")


if __name__ == "__main__":
    main()
