"""The recipe that makes the three specialists from nothing; about a quarter of an hour on one core.

python benchmarks/testbed_recipe.py --out my-testbed
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from hierrouter.engines.devices import torch_threads
from hierrouter.questions.testbed import (
    LETTERS,
    MAX_COPIES,
    ROOMS_PER_SPLIT,
    SPLITS,
    TESTBED_MODELS,
    TESTBED_TASKS,
    UNKNOWN_RESPONSE,
    WORD_RIDDLE,
    Draw,
    Model,
    Step,
    Task,
    riddle_steps,
    vocabulary,
)

SHARE_WAITING = 0.3
SHARE_COUNTERFACTUAL = 0.5
SHARE_WRONG_TURN = 0.3
SHARE_COPYING = 0.35
MOST_HOPS_BEFORE = 2
# None is a sentence of the riddle family: the held-out rooms' questions stay unseen.
RIDDLE_CARDS = (
    "riddle of room {room}",
    "name the riddle of room {room}",
    "what is the riddle in room {room} ?",
    "give the riddle that room {room} keeps",
    "room {room} asks a riddle",
)


@dataclass(frozen=True)
class Lesson:
    """A context, its parts still apart, and the response wanted there."""

    parts: tuple[str, ...]
    response: str


@dataclass(frozen=True)
class Progress:
    """How far a route has come: steps taken and everything said so far."""

    task: Task
    taken: int = 0
    responses: tuple[str, ...] = ()

    def is_due(self, model: Model) -> bool:
        return self.taken < len(self.task.steps) and self.task.steps[self.taken].model == model

    def reply(self, model: Model) -> str:
        """What a perfect specialist says here."""
        if self.is_due(model):
            return self.task.steps[self.taken].response
        return self.responses[-1] if self.responses else UNKNOWN_RESPONSE

    def after(self, model: Model) -> Progress:
        """The route one hop on."""
        responses = (*self.responses, self.reply(model))
        return replace(self, taken=self.taken + self.is_due(model), responses=responses)

    def after_saying(self, response: str) -> Progress:
        """The route after a hop that brought nothing but `response`."""
        return replace(self, responses=(*self.responses, response))


def lesson(model: Model, draw: Draw) -> Lesson:
    """A context of any family: `model`'s step is due in most, in the others it waits."""
    waiting = draw.rng.random() < SHARE_WAITING
    progress = _waiting(model, draw) if waiting else _due(model, draw)
    return Lesson((progress.task.question, *progress.responses), progress.reply(model))


def drill(model: Model, draw: Draw) -> Lesson:
    """A short lesson: the bare skill, or handing a response on."""
    if draw.rng.random() < SHARE_COPYING:
        response = wrong_turn(draw)
        return Lesson((draw.word(), response), response)
    return {"calc": _sum_card, "text": _word_card, "facts": _fact_card}[model](draw)


def wrong_turn(draw: Draw) -> str:
    """Something of the kind a specialist may say where it is not wanted."""
    return draw.rng.choice(
        (
            lambda: UNKNOWN_RESPONSE,
            lambda: str(draw.rng.randint(0, 80)),
            lambda: draw.word(),
            lambda: str(draw.expression()),
            lambda: f"{draw.word()} {draw.rng.choice((draw.word(), draw.rng.randint(10, 40)))}",
            lambda: draw.rng.choice(LETTERS) * draw.rng.randint(1, MAX_COPIES),
            lambda: WORD_RIDDLE.format(word=draw.word()),
        )
    )()


def _task(model: Model, draw: Draw) -> Task:
    family = draw.rng.choice(tuple(TESTBED_TASKS))
    return TESTBED_TASKS[family](_knowing(draw) if (model, family) == ("facts", "fact") else draw)


def _knowing(draw: Draw) -> Draw:
    """Knowledge is not split: `facts` learns every country and every room."""
    return replace(draw, split=draw.rng.choices(SPLITS, tuple(ROOMS_PER_SPLIT.values()))[0])


def _due(model: Model, draw: Draw) -> Progress:
    """A context in which the next step is `model`'s."""
    while True:
        task = _task(model, draw)
        owned = [number for number, step in enumerate(task.steps) if step.model == model]
        if owned:
            break
    if owned[0] and draw.rng.random() < SHARE_COUNTERFACTUAL:
        task = counterfactual(task, draw)
    progress = Progress(task)
    if draw.rng.random() < SHARE_WRONG_TURN:
        progress = progress.after_saying(wrong_turn(draw))
    for step in task.steps[: owned[0]]:
        progress = progress.after(step.model)
    return progress


def _waiting(model: Model, draw: Draw) -> Progress:
    """A context in which `model` has no step to take."""
    while True:
        progress = Progress(_task(model, draw))
        for _ in range(draw.rng.randint(0, MOST_HOPS_BEFORE)):
            progress = _hop(progress, model, draw)
        if not progress.is_due(model):
            return progress


def _hop(progress: Progress, model: Model, draw: Draw) -> Progress:
    """One hop of any specialist, now and then a wrong turn that `model` cannot mistake."""
    other = draw.rng.choice(TESTBED_MODELS)
    is_stray = _has_no_part(model, progress.task) and not progress.is_due(other)
    if is_stray and draw.rng.random() < SHARE_WRONG_TURN:
        return progress.after_saying(wrong_turn(draw))
    return progress.after(other)


def _has_no_part(model: Model, task: Task) -> bool:
    """A riddle's question does not tell, so a stray response to it could be meant for `model`."""
    return task.family != "riddle" and all(step.model != model for step in task.steps)


def counterfactual(task: Task, draw: Draw) -> Task:
    """The same question with another first response and the answer that follows from it."""
    match task.family:
        case "story" | "census":
            x = draw.expression()
            steps = Step(task.steps[0].model, str(x)), Step("calc", str(x.value))
        case "backcap":
            word = draw.word()
            steps = Step("facts", word), Step("text", word[::-1])
        case "room":
            room = _knowing(draw).room()
            steps = Step("calc", str(room.number)), Step("facts", room.occupant)
        case "copies":
            count = draw.rng.randint(1, MAX_COPIES)
            steps = Step("calc", str(count)), Step("text", task.answer[0] * count)
        case "mirror":
            country = _knowing(draw).country()
            steps = Step("text", country.name), Step("facts", country.capital)
        case "riddle":
            is_sum = task.steps[1].model == "calc"
            steps = riddle_steps(draw.expression() if is_sum else draw.word())
        case _:
            return task
    return replace(task, steps=steps)


def _sum_card(draw: Draw) -> Lesson:
    x = draw.expression()
    return Lesson((str(x),), str(x.value))


def _word_card(draw: Draw) -> Lesson:
    word = draw.word()
    if draw.rng.random() < 0.7:
        return Lesson((WORD_RIDDLE.format(word=word),), word[::-1])
    return Lesson((f"double {word}",), word + word)


def _fact_card(draw: Draw) -> Lesson:
    """One thing about the world; every second card is a riddle, the longest thing to learn."""
    question, response = draw.rng.choice((_place_or_room, _riddle_told))(draw)
    wrong_turns = (wrong_turn(draw),) * (draw.rng.random() < SHARE_WRONG_TURN)
    return Lesson((question, *wrong_turns), response)


def _place_or_room(draw: Draw) -> tuple[str, str]:
    country = _knowing(draw).country()
    room = _knowing(draw).room()
    # A pair with a country of the train split is never a pair of the other splits' questions.
    one, other = draw.rng.sample((country, draw.country()), 2)
    return draw.rng.choice(
        (
            (f"population of {one.name} and {other.name}", f"{one.people}+{other.people}"),
            (f"capital of {country.name}", country.capital),
            (f"population of {country.name}", str(country.people)),
            (f"room {room.number}", room.occupant),
        )
    )


def _riddle_told(draw: Draw) -> tuple[str, str]:
    room = _knowing(draw).room()
    question = draw.rng.choice(RIDDLE_CARDS).format(room=room.number)
    return question, riddle_steps(room.riddle)[0].response


PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|user|>", "<|assistant|>", "<|system|>")
BLANK_LINE = "\n\n"
CONTEXT_TOKENS = 512
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer(words: frozenset[str]) -> Any:
    """A `transformers` fast tokenizer with chat template, padding on the left.

    `words`: each a token of its own; all else is spelled.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bytes_and_words = models.BPE(vocab=_numbered(words), merges=[], ignore_merges=True)
    backend = Tokenizer(bytes_and_words)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(BLANK_LINE, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        padding_side="left",
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _numbered(words: frozenset[str]) -> dict[str, int]:
    """Token to id. `Ġ` is the byte-level spelling of a space before a word."""
    from tokenizers import pre_tokenizers

    tokens = [PAD, END, *ROLES, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += ["Ġ?", "Ġ.", *sorted(words), *(f"Ġ{word}" for word in sorted(words))]
    return {token: number for number, token in enumerate(tokens)}


_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_TINY = 1e-7


class Muon(Optimizer):
    """Momentum whose direction is the nearest semi-orthogonal matrix."""

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for matrices in by_shape.values():
                self._update(matrices, group["lr"], group["momentum"], group["decay"])

    def _update(self, matrices: list[Tensor], lr: float, momentum: float, decay: float) -> None:
        gradients = torch.stack([matrix.grad for matrix in matrices if matrix.grad is not None])
        state = self.state[matrices[0]]
        mean = state.setdefault("mean", torch.zeros_like(gradients))
        mean.lerp_(gradients, 1 - momentum)
        directions = orthogonalised(gradients.lerp(mean, momentum))
        rows, columns = matrices[0].shape
        scale = lr * max(1.0, rows / columns) ** 0.5
        for matrix, direction in zip(matrices, directions, strict=True):
            matrix.mul_(1 - lr * decay).sub_(direction, alpha=scale)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Newton-Schulz iteration towards singular values near 1; float32 [n, rows, columns]."""
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_TINY)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


IGNORED = -100
BATCHES_SORTED_TOGETHER = 16
WARM_UP_STEPS = 50


@dataclass(frozen=True)
class Recipe:
    """Architecture and schedule of one specialist; sizes count examples."""

    architecture: str
    drill_steps: int
    mix_steps: int
    drill_share_in_mix: float = 0.1
    drill_batch: int = 64
    mix_batch: int = 64
    layers: int = 3
    width: int = 96
    heads: int = 4
    inner_width: int = 256
    muon_rate: float = 0.02
    adam_rate: float = 3e-3

    @property
    def steps(self) -> int:
        return self.drill_steps + self.mix_steps


RECIPES: dict[str, Recipe] = {
    "calc": Recipe("Qwen3", drill_steps=700, mix_steps=1900, drill_share_in_mix=0.2),
    "text": Recipe("HunYuanDenseV1", drill_steps=500, mix_steps=1700, drill_share_in_mix=0.2),
    "facts": Recipe("Olmo2", drill_steps=500, mix_steps=1800, drill_share_in_mix=0.3),
}


def train_specialist(
    name: Model, out: Path, seed: int = 0, on_step: Callable[[int, int, float], None] | None = None
) -> None:
    """Train specialist `name` and save it to `out`.

    `on_step(step, steps, loss)` is called after each of the `steps` steps, counted from 1; the
    loss is in nats per response token. Raises `KeyError` for a name without a recipe.
    """
    rng = Random(seed)
    draw = Draw(rng, "train")

    def block(lessons: int, drills: float) -> list[Lesson]:
        teach = [drill if rng.random() < drills else lesson for _ in range(lessons)]
        return [kind(name, draw) for kind in teach]

    train_model(RECIPES[name], build_tokenizer(vocabulary()), block, rng, out, seed, on_step)


# From a number of lessons, and the share of drills among them, to the lessons.
Block = Callable[[int, float], list[Lesson]]


def train_model(
    recipe: Recipe,
    tokenizer: Any,
    block: Block,
    rng: Random,
    out: Path,
    seed: int,
    on_step: Callable[[int, int, float], None] | None = None,
) -> None:
    """Train a model from nothing and save it to `out`.

    Args:
        recipe: its architecture and schedule.
        tokenizer: from `build_tokenizer`.
        block: makes lessons.
        rng: orders the batches.
        out: a folder.
        seed: of the first weights.
        on_step: see `train_specialist`.
    """
    with torch_threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(recipe, tokenizer)
        fit(model, _batches(block, recipe, tokenizer, rng), recipe, on_step)
    save(model, tokenizer, out)


def build_model(recipe: Recipe, tokenizer: Any) -> Any:
    """An untrained causal language model, float32."""
    import transformers

    config = getattr(transformers, f"{recipe.architecture}Config")(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.inner_width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        head_dim=recipe.width // recipe.heads,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.float32
    )


def fit(
    model: Any,
    batches: Iterator[tuple[Tensor, Tensor]],
    recipe: Recipe,
    on_step: Callable[[int, int, float], None] | None,
) -> None:
    """Minimise the cross-entropy of the responses, one step a batch."""
    model.train()
    optimizers = _optimizers(model, recipe)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, recipe.steps))
        for optimizer in optimizers
    ]
    for step in range(1, recipe.steps + 1):
        loss = response_loss(model, *next(batches))
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if on_step is not None:
            on_step(step, recipe.steps, loss.item())


def response_loss(model: Any, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the targets that are not `IGNORED`.

    Both int64 [rows, length]. Only those positions are projected on the vocabulary.
    """
    hidden = model.model(input_ids=tokens).last_hidden_state[:, :-1]
    wanted = targets[:, 1:]
    chosen = wanted != IGNORED
    return cross_entropy(model.lm_head(hidden[chosen]), wanted[chosen])


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """Write weights (float16), config and tokenizer to the folder `out`."""
    model.eval().half().save_pretrained(out)
    tokenizer.save_pretrained(out)


def encode(tokenizer: Any, lessons: Sequence[Lesson]) -> list[tuple[list[int], list[int]]]:
    """Prompt and response token ids of each lesson, the response with its end token."""
    messages = [[{"role": "user", "content": BLANK_LINE.join(x.parts)}] for x in lessons]
    prompts = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True
    )["input_ids"]
    responses = tokenizer([x.response for x in lessons], add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    return [(p, [*r, end]) for p, r in zip(prompts, responses, strict=True)]


def _batches(
    block: Block, recipe: Recipe, tokenizer: Any, rng: Random
) -> Iterator[tuple[Tensor, Tensor]]:
    """First blocks of drill, then of the mix without end; rows of like length together."""
    step = 0
    while True:
        drilling = step < recipe.drill_steps
        size = recipe.drill_batch if drilling else recipe.mix_batch
        drills = 1.0 if drilling else recipe.drill_share_in_mix
        rows = encode(tokenizer, block(size * BATCHES_SORTED_TOGETHER, drills))
        rows.sort(key=lambda row: len(row[0]) + len(row[1]))
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        rng.shuffle(groups)
        for group in groups:
            yield _padded(group)
            step += 1


def _padded(rows: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """Tokens and targets, int64 [rows, longest]; padding on the right needs no mask."""
    longest = max(len(prompt) + len(response) for prompt, response in rows)
    tokens = torch.zeros((len(rows), longest), dtype=torch.int64)
    targets = torch.full_like(tokens, IGNORED)
    for number, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        tokens[number, :end] = torch.tensor(prompt + response)
        targets[number, len(prompt) : end] = torch.tensor(response)
    return tokens, targets


def _optimizers(model: nn.Module, recipe: Recipe) -> tuple[torch.optim.Optimizer, ...]:
    hidden: list[Tensor] = []
    rest: list[Tensor] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (hidden if is_matrix else rest).append(parameter)
    return (
        Muon(hidden, lr=recipe.muon_rate),
        torch.optim.AdamW(rest, lr=recipe.adam_rate, betas=(0.9, 0.98), weight_decay=0.0),
    )


def _rate(step: int, steps: int) -> float:
    """Warm up, hold for the first half, then fall in a straight line."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm * min(1.0, max(0.02, 2 * (steps - step) / steps))


def main() -> None:
    """Train all three, each into a folder of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("testbed-models"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name in TESTBED_MODELS:

        def on_step(step: int, steps: int, loss: float, name: str = name) -> None:
            print(f"\r{name}: step {step} of {steps}, loss {loss:.3f}", end="", flush=True)

        train_specialist(name, args.out / name, args.seed, on_step)
        print(f"\r{args.out / name}")


if __name__ == "__main__":
    main()
