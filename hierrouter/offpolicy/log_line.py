"""One line of a log: what it must be.

In: the object on a line. Out: an `Episode`, checked key by key, and back. docs/off_policy.md
describes every key; null is as if the key were not there. Not covered: files (`log_file`), and
where a question is cached (`given`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hierrouter.pool import suggestion
from hierrouter_cache.errors import InputError

SMALLEST_PROPENSITY = 1e-9
FREE_NAME = 200  # characters of a policy's name

Rates = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Step:
    """One call of a logged episode.

    Attributes:
        model: its number in the pool.
        propensity: the probability with which the logging policy did this there, in (0, 1].
        stop: whether the policy chose to end the episode with this call; not where it had to.
        cost: of this call, in price * token.
        response: the answer, where the log has texts.
    """

    model: int
    propensity: float
    stop: bool
    cost: float
    response: str | None = None


@dataclass(frozen=True)
class Episode:
    """One line of a log.

    Attributes:
        query: id of the question.
        dataset: that it is of; "" where the log does not say.
        steps: the calls, 1 to L.
        quality: Q of the last answer, in [0, 1].
        policy: name and version of what chose the calls, free text.
        question: its text, where the log has texts.
        where: file and line, for messages.
    """

    query: str
    dataset: str
    steps: tuple[Step, ...]
    quality: float
    policy: str = ""
    question: str | None = None
    where: str = ""


@dataclass(frozen=True)
class LogShape:
    """What the lines of a log must fit to.

    Attributes:
        models: M names.
        hops: L.
        rate: M pairs, cost of a token in and of a token out, for steps that give tokens.
    """

    models: tuple[str, ...]
    hops: int
    rate: Rates


def episode_of(line: Mapping[str, Any], where: str, shape: LogShape) -> Episode:
    """The episode on a line.

    Args:
        where: file and number of the line.

    Raises:
        InputError: a key is missing or holds what it must not.
    """
    question = _text(line, "question", where, required=False)
    steps = line.get("steps")
    if not isinstance(steps, list) or not steps:
        raise InputError(f"steps is no list of calls: {where}; give one object a call, in order")
    if len(steps) > shape.hops:
        raise InputError(
            f"{len(steps)} steps: {where}; the router makes at most {shape.hops} calls"
        )
    made = [
        _step(step, f"{where} step {number}", shape, text=question is not None)
        for number, step in enumerate(steps, start=1)
    ]
    _check_end(made, where, shape.hops)
    if question is not None and any(step.response is None for step in made[:-1]):
        raise InputError(f"a response is missing: {where}; give it with every step but the last")
    return Episode(
        query=_text(line, "query", where) or "",
        dataset=_text(line, "dataset", where, required=False) or "",
        steps=tuple(made),
        quality=_number(line, "quality", where, 0.0, 1.0),
        policy=(_text(line, "policy", where, required=False) or "")[:FREE_NAME],
        question=question,
        where=where,
    )


def line_of(episode: Episode, models: Sequence[str]) -> dict[str, Any]:
    """The object on the line of an episode; what it does not have is left out."""
    steps = [
        _given(
            {
                "model": models[step.model],
                "propensity": step.propensity,
                "stop": step.stop or None,
                "cost": step.cost,
                "response": step.response,
            }
        )
        for step in episode.steps
    ]
    return _given(
        {
            "query": episode.query,
            "dataset": episode.dataset or None,
            "policy": episode.policy or None,
            "question": episode.question,
            "steps": steps,
            "quality": episode.quality,
        }
    )


def _given(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _step(step: Any, where: str, shape: LogShape, *, text: bool) -> Step:
    if not isinstance(step, dict):
        raise InputError(f"a step is no object: {where}; give model, propensity and cost")
    name = _text(step, "model", where) or ""
    if name not in shape.models:
        hint = suggestion(name, shape.models)
        raise InputError(f"unknown model {name:.60}: {where}; {hint}".rstrip("; "))
    stop = step.get("stop")
    if stop is not None and not isinstance(stop, bool):
        raise InputError(f"stop is neither true nor false: {where}; leave it out where unsure")
    model = shape.models.index(name)
    return Step(
        model=model,
        propensity=_number(step, "propensity", where, SMALLEST_PROPENSITY, 1.0),
        stop=bool(stop),
        cost=_cost(step, where, shape.rate[model]),
        response=_text(step, "response", where, required=False, empty=True) if text else None,
    )


def _check_end(steps: Sequence[Step], where: str, hops: int) -> None:
    """An episode ends where it stops, or at the last hop."""
    if any(step.stop for step in steps[:-1]):
        raise InputError(f"a step after one that stops: {where}; stop belongs to the last step")
    if len(steps) < hops and not steps[-1].stop:
        raise InputError(
            f"{len(steps)} of {hops} steps and no stop: {where}; log whole episodes, with "
            '"stop": true where the policy chose to end early'
        )


def _cost(step: Mapping[str, Any], where: str, rate: tuple[float, float]) -> float:
    """Of one call, as given or of its tokens."""
    if step.get("cost") is not None:
        return _number(step, "cost", where, 0.0, math.inf)
    if any(step.get(name) is None for name in ("tokens_in", "tokens_out")):
        raise InputError(f"no cost: {where}; give cost, or tokens_in and tokens_out")
    tokens = [_number(step, name, where, 0.0, math.inf) for name in ("tokens_in", "tokens_out")]
    return math.fsum(count * price for count, price in zip(tokens, rate, strict=True))


def _number(row: Mapping[str, Any], name: str, where: str, low: float, high: float) -> float:
    """A finite number from `low` to `high`.

    Raises:
        InputError: anything else.
    """
    found = row.get(name)
    if isinstance(found, int | float) and not isinstance(found, bool):
        try:
            value = float(found)
        except OverflowError:
            value = math.inf
        if math.isfinite(value) and low <= value <= high:
            return value
    above = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
    raise InputError(f"{name} is {_shown(row, name)}: {where}; give a finite number {above}")


def _text(
    row: Mapping[str, Any], name: str, where: str, *, required: bool = True, empty: bool = False
) -> str | None:
    """A text, or None where it may be and is missing.

    Raises:
        InputError: anything else.
    """
    found = row.get(name)
    if found is None and not required:
        return None
    if not isinstance(found, str) or not (found or empty):
        raise InputError(f"{name} is {_shown(row, name)}: {where}; give a text")
    return found


def _shown(row: Mapping[str, Any], name: str) -> str:
    return "missing" if row.get(name) is None else f"{row[name]!r:.40}"
