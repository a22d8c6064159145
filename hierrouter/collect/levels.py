"""The tree, level by level, as far as it is known.

In: a pool and its content keys, queries, the answers so far. Out: the stages in the order in which
they are called, the calls of each, and the contexts that their answers lead to. All that asks a
tree for its calls walks it this way. Not covered: making the calls (`scheduler`), counting those
that lie below answers not yet given (`estimate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hierrouter.collect.prompts import prompt_text
from hierrouter.collect.rows import Call
from hierrouter.pool import ModelSpec, Pool
from hierrouter_cache.fingerprint import call_key, next_context, root_context
from hierrouter_cache.walk import TreeSpec

# The question and the responses so far, by the key of the context.
Contexts = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Stage:
    """One model at one level.

    Attributes:
        label: how people call it, e.g. `hop 1 calc`.
        model: who is called.
        step: names model, settings and instruction.
        instruction: what stands below the context in the prompt.
    """

    label: str
    model: ModelSpec
    step: str
    instruction: str


def direct_stages(pool: Pool, spec: TreeSpec) -> list[Stage]:
    """The question alone, to every model and reference."""
    return [
        Stage(f"direct {model.name}", model, step, "")
        for model, (_, step) in zip(pool.everyone, spec.direct, strict=True)
    ]


def hop_stages(pool: Pool, spec: TreeSpec, level: int) -> list[Stage]:
    """Every model of the pool at one level of the tree, counted from 0."""
    return [
        Stage(f"hop {level + 1} {model.name}", model, step, pool.instruction(level))
        for model, step in zip(pool.models, spec.steps[level], strict=True)
    ]


def distinct(stages: Iterable[Stage]) -> list[Stage]:
    """Without those that make the very calls of one before: two names of one model."""
    first: dict[str, Stage] = {}
    for stage in stages:
        first.setdefault(stage.step, stage)
    return list(first.values())


def root_contexts(questions: Iterable[str]) -> Contexts:
    """The contexts before the first hop; equal questions are one."""
    return {root_context(question): (question,) for question in questions}


def calls_of(stage: Stage, contexts: Contexts) -> Iterator[Call]:
    """The stage's call at each context, in the order of the contexts."""
    for context, (question, *said) in contexts.items():
        yield Call(
            key=call_key(stage.step, context),
            step=stage.step,
            context=context,
            prompt=prompt_text(question, said, stage.instruction),
        )


def next_contexts(
    stages: Sequence[Stage], contexts: Contexts, responses: Mapping[str, str]
) -> Contexts:
    """The contexts after one more hop, as far as these calls are answered.

    Args:
        stages: those of the level.
        contexts: before the hop.
        responses: of every answered call, by its key.
    """
    following = {}
    for context, said in contexts.items():
        for response in responses_to(stages, context, responses):
            following[next_context(context, response)] = (*said, response)
    return following


def responses_to(stages: Sequence[Stage], context: str, responses: Mapping[str, str]) -> list[str]:
    """What the stages answered to a context, as far as they have."""
    keys = [call_key(stage.step, context) for stage in stages]
    return [responses[key] for key in keys if key in responses]
