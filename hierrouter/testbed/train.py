"""The recipe that makes the three specialists from nothing.

In: a specialist's name, a folder, a seed. Out: an ordinary `from_pretrained` folder with float16
weights. A drill of bare skills comes first, then the mix of all families. Hidden matrices learn
with Muon, embeddings and gains with AdamW. One thread, so that the same seed gives the same
bits. Not covered: measuring the result, which `hierrouter report` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hierrouter.testbed.families import Draw, Model
from hierrouter.testbed.lessons import Lesson, drill, lesson
from hierrouter.testbed.muon import Muon
from hierrouter.testbed.tokenizer import BLANK_LINE, CONTEXT_TOKENS, build_tokenizer
from hierrouter.threads import torch_threads

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
    name: Model,
    out: Path,
    seed: int = 0,
    on_step: Callable[[int, int, float], None] | None = None,
) -> None:
    """Train specialist `name` and save it to `out`.

    `on_step(step, steps, loss)` is called after each of the `steps` steps, counted from 1; the
    loss is in nats per response token. Raises `KeyError` for a name without a recipe.
    """
    recipe, tokenizer = RECIPES[name], build_tokenizer()
    with torch_threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(recipe, tokenizer)
        rng = Random(seed)  # noqa: S311 - draws lessons
        fit(model, _batches(name, recipe, tokenizer, rng), recipe, on_step)
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
    name: Model, recipe: Recipe, tokenizer: Any, rng: Random
) -> Iterator[tuple[Tensor, Tensor]]:
    """First blocks of drill, then of the mix without end; rows of like length together."""
    draw, step = Draw(rng, "train"), 0
    while True:
        drilling = step < recipe.drill_steps
        size = recipe.drill_batch if drilling else recipe.mix_batch
        share = 1.0 if drilling else recipe.drill_share_in_mix
        teach = [
            drill if rng.random() < share else lesson for _ in range(size * BATCHES_SORTED_TOGETHER)
        ]
        rows = encode(tokenizer, [kind(name, draw) for kind in teach])
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
