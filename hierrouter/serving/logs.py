"""Logged episodes: the JSON lines of a log file, and the arrays that estimators read."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.engines.encoders import Encoder
from hierrouter.engines.generator import Confidence
from hierrouter.evaluation.outcome import Actions, greedy
from hierrouter.learning.training import TrainedRouter
from hierrouter.questions.files import json_lines
from hierrouter.replay.states import LiveAnswer, numbers_kind, state_texts
from hierrouter.serving.decisions import live_numbers
from hierrouter.serving.estimators import Log, LoggedStates, logged_states
from hierrouter_cache.errors import InputError, suggestion

SMALLEST_PROPENSITY = 1e-9
FREE_NAME = 200  # characters of a policy's name


@dataclass(frozen=True)
class Step:
    """One call of a logged episode.

    Attributes:
        model: its number in the pool.
        propensity: the probability with which the logging policy did this there, in (0, 1].
        stop: whether the policy chose to end the episode with this call; not where it had to.
        cost: of this call, in money.
        response: the answer; None where nobody need see it.
        tokens_out, finish_reason, confidence: what else a router may see of the answer; None where
            the log does not say.
    """

    model: int
    propensity: float
    stop: bool
    cost: float
    response: str | None = None
    tokens_out: int | None = None
    finish_reason: str | None = None
    confidence: Confidence | None = None


@dataclass(frozen=True)
class Episode:
    """One line of a log.

    Attributes:
        question: its text; equal ones are one.
        steps: the calls, 1 to L.
        quality: Q of the answer that was given, in [0, 1].
        policy: name and version of what chose the calls, free text.
        where: file and line, for messages.
        returned: number of the answer that the policy chose to give after it was there, and the
            probability with which it did; None where the last call ended the episode.
    """

    question: str
    steps: tuple[Step, ...]
    quality: float
    policy: str = ""
    where: str = ""
    returned: tuple[int, float] | None = None


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
    rate: Sequence[tuple[float, float]]


def read_log(
    path: Path, shape: LogShape, on_left_out: Callable[[str], None] = lambda said: None
) -> list[Episode]:
    """Every episode of a log.

    Raises InputError: the file cannot be read or has no episodes, or its first bad line.

    `on_left_out`: told how many lines of a server are none: questions without an answer, and routes
    that went on with another model than the policy chose, or were handed over in doubt.
    """
    episodes, left_out = [], 0
    for number, line in json_lines(path):
        if "event" in line:  # of a server, and no question
            continue
        if _is_episode(line):
            episodes.append(_episode(line, f"{path}:{number}", shape))
        else:
            left_out += 1
    if left_out:
        on_left_out(
            f"{left_out} lines are left out: a model gave no answer, or got what was in doubt; "
            "what the router would earn on such questions is not in the estimate"
        )
    if not episodes:
        raise InputError(f"a log without episodes: {path}; one JSON object a line")
    return episodes


def _is_episode(line: Mapping[str, Any]) -> bool:
    """Whether the policy's own choices led to the end, as far as a server says."""
    if "otherwise" in line or line.get("status") not in (None, 200):
        return False
    steps = line.get("steps")
    made = [*(steps if isinstance(steps, list) else ()), line.get("returned")]
    return not any(
        one.get("instead_of") or one.get("deferred") for one in made if isinstance(one, dict)
    )


def _episode(line: Mapping[str, Any], where: str, shape: LogShape) -> Episode:
    steps = line.get("steps")
    if not isinstance(steps, list) or not steps:
        raise InputError(f"steps is no list of calls: {where}; give one object a call, in order")
    if len(steps) > shape.hops:
        raise InputError(
            f"{len(steps)} steps: {where}; the router makes at most {shape.hops} calls"
        )
    made = tuple(
        _step(step, f"{where} step {number}", shape) for number, step in enumerate(steps, start=1)
    )
    returned = _returned(line.get("returned"), f"{where} returned", len(made))
    if any(step.stop for step in (made if returned else made[:-1])):
        raise InputError(f"a step after one that stops: {where}; stop belongs to the last step")
    if len(made) < shape.hops and not made[-1].stop and not returned:
        raise InputError(
            f"{len(made)} of {shape.hops} steps and no stop: {where}; log whole episodes, with "
            '"stop": true where the policy chose to end early'
        )
    needed = made if returned else made[:-1]
    if any(step.response is None for step in needed):
        raise InputError(f"a response is missing: {where}; give it with every step but the last")
    return Episode(
        question=_text(line, "question", where) or "",
        steps=made,
        quality=_number(line, "quality", where, 0.0, 1.0),
        policy=(_text(line, "policy", where, required=False) or "")[:FREE_NAME],
        where=where,
        returned=returned,
    )


def _returned(given: Any, where: str, calls: int) -> tuple[int, float] | None:
    """The choice of an answer among so many; None where there was none."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise InputError(f"it is no object: {where}; give answer and propensity")
    answer = given.get("answer")
    if isinstance(answer, bool) or answer not in range(1, calls + 1):
        raise _unfit(given, "answer", where, f"a whole number from 1 to {calls}")
    return int(given["answer"]), _number(given, "propensity", where, SMALLEST_PROPENSITY, 1.0)


def _step(step: Any, where: str, shape: LogShape) -> Step:
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
        response=_text(step, "response", where, required=False, empty=True),
        tokens_out=_count(step, "tokens_out", where),
        finish_reason=_text(step, "finish_reason", where, required=False),
        confidence=_confidence(step, where),
    )


def _confidence(step: Mapping[str, Any], where: str) -> Confidence | None:
    tokens = _count(step, "logprob_tokens", where)
    if not tokens:
        return None
    total, lowest = (
        min(_number(step, name, where, -1e9, 1e-3 * tokens), 0.0)
        for name in ("logprob_sum", "logprob_min")
    )
    return Confidence(total, lowest, tokens)


def _count(step: Mapping[str, Any], name: str, where: str) -> int | None:
    return None if step.get(name) is None else int(_number(step, name, where, 0.0))


def _cost(step: Mapping[str, Any], where: str, rate: tuple[float, float]) -> float:
    if step.get("cost") is not None:
        return _number(step, "cost", where, 0.0)
    if step.get("tokens_in") is None or step.get("tokens_out") is None:
        raise InputError(f"no cost: {where}; give cost, or tokens_in and tokens_out")
    tokens = [_number(step, name, where, 0.0) for name in ("tokens_in", "tokens_out")]
    return math.fsum(count * price for count, price in zip(tokens, rate, strict=True))


def _number(
    row: Mapping[str, Any], name: str, where: str, low: float, high: float = math.inf
) -> float:
    """A finite number from `low` to `high`."""
    found, most = row.get(name), min(high, sys.float_info.max)  # which NaN and inf are not within
    if isinstance(found, int | float) and not isinstance(found, bool) and low <= found <= most:
        return float(found)
    above = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
    raise _unfit(row, name, where, f"a finite number {above}")


def _text(
    row: Mapping[str, Any], name: str, where: str, *, required: bool = True, empty: bool = False
) -> str | None:
    """A text, or None where it may be and is missing."""
    found = row.get(name)
    if found is None and not required:
        return None
    if not isinstance(found, str) or not (found or empty):
        raise _unfit(row, name, where, "a text")
    return found


def _unfit(row: Mapping[str, Any], name: str, where: str, wanted: str) -> InputError:
    given = "missing" if row.get(name) is None else f"{row[name]!r:.40}"
    return InputError(f"{name} is {given}: {where}; give {wanted}")


@dataclass(frozen=True)
class Spending:
    """What a server's answers cost, and how probable each first call was; a row each of n answers.

    Attributes:
        query: int64[n], number of the question.
        own: float64[n, 3]: money and seconds of the whole route, Q of its answer; NaN where it is
            not known.
        first: float64[n, 3]: of the first call alone; Q only where it gave the answer.
        model: int64[n], who was called first; -1 where the question was handed over at once.
        called: float64[n, M], the probability that a model was called first.
        alone: float64[n, M], and that the route ended there.
    """

    query: NDArray[np.int64]
    own: NDArray[np.float64]
    first: NDArray[np.float64]
    model: NDArray[np.int64]
    called: NDArray[np.float64]
    alone: NDArray[np.float64]


def read_spending(
    path: Path, shape: LogShape, on_left_out: Callable[[str], None] = lambda said: None
) -> Spending:
    """The answers in the log of `hierrouter serve`, judged or not.

    Raises InputError: the file cannot be read, has a bad line, or fewer than 2 questions.

    `on_left_out`: told how many lines are none, or do not say how probable the first call was.
    """
    numbers: dict[str, int] = {}
    rows, left_out, count = [], 0, len(shape.models)
    for number, line in json_lines(path):
        steps, where = line.get("steps"), f"{path}:{number}"
        if not isinstance(steps, list) or not steps or line.get("status") not in (None, 200):
            left_out += "event" not in line
            continue
        if any(not isinstance(step, dict) for step in steps):
            raise InputError(f"a step is no object: {where}; give model, propensity and cost")
        told, (first, *more) = steps[0].get("chances"), steps
        told = [{"chance": chance} for chance in (told if isinstance(told, list) else [])]
        chances = np.array([_number(one, "chance", where, 0.0, 1.0) for one in told])
        name, propensity = first.get("model"), first.get("propensity")
        action = shape.models.index(name) if name in shape.models else -1
        handed = bool(first.get("deferred"))
        if not handed and first.get("stop") and len(chances) >= 2 * count:
            action += count
        if propensity == 1 or handed:  # not drawn
            chances = np.eye(max(len(chances), 2 * count))[action] * (not handed)
        elif len(chances) <= action or action < 0 or chances[action] != propensity:
            left_out += 1  # others could not do what was asked for, or had failed
            continue
        one, two = chances[:count], chances[count : 2 * count]
        stops = two if len(two) == count else np.zeros(count)  # else answers that are returned
        ends, called = (one, one) if shape.hops == 1 else (stops, one + stops)
        cost = [_cost(step, where, (0.0, 0.0)) for step in steps]
        taken = [
            math.fsum(_number(step, key, where, 0.0) for key in ("router_s", "model_s"))
            for step in steps
        ]
        judged = line.get("quality") is not None
        quality = _number(line, "quality", where, 0.0, 1.0) if judged else math.nan
        query = numbers.setdefault(_text(line, "query", where) or "", len(numbers))
        rows.append(
            (
                query,
                (math.fsum(cost), math.fsum(taken), quality),
                (cost[0], taken[0], math.nan if more else quality),
                -1 if handed else action % count,
                called,
                ends,
            )
        )
    if left_out:
        on_left_out(f"{left_out} lines are left out: no answer, or nobody drew the first call")
    if len(numbers) < 2:
        raise InputError(f"answers to {len(numbers)} questions: {path}; log at least 2 questions")
    return Spending(*map(np.array, zip(*rows, strict=True)))


def from_texts(
    episodes: Sequence[Episode], trained: TrainedRouter, encoder: Encoder
) -> tuple[Log, LoggedStates]:
    """The episodes as arrays, and what was seen on their way.

    `encoder`: the one whose embeddings the router reads.
    """
    numbers: dict[str, int] = {}
    query = [numbers.setdefault(episode.question, len(numbers)) for episode in episodes]
    log = log_of(episodes, trained, np.array(query))
    embedding = _embedded(episodes, log, trained, encoder)
    node, spent = log.node[log.alive], log.spent[log.alive]
    row = np.zeros(log.action.shape, dtype=np.int64)
    row[log.alive] = np.arange(len(node))
    paths = [trained.origin.routes.path(at) for at in node.tolist()]
    chances = trained.decide_each(embedding, paths, spent.tolist())
    target = greedy(chances, trained.origin.base_rate, trained.actions.returns)
    return log, logged_states(log, row, node, spent, embedding, target)


def _embedded(
    episodes: Sequence[Episode], log: Log, trained: TrainedRouter, encoder: Encoder
) -> NDArray[np.float32]:
    """float32[states, dim]: what the view shows before each choice, episode after episode."""
    view = trained.origin.view
    numbers = numbers_kind(view)
    states, seen = [], list[list[LiveAnswer]]()
    for episode, length in zip(episodes, log.length.tolist(), strict=True):
        responses = [step.response or "" for step in episode.steps]
        if length > len(responses) and episode.steps[-1].response is None:
            raise InputError(f"a response is missing: {episode.where}; this router reads the last")
        read = episode.steps[: length - 1] if numbers else ()
        answers = [_answer(step, f"{episode.where} step {at}") for at, step in enumerate(read, 1)]
        for made in range(length):
            states.append(state_texts(view, episode.question, responses[:made]))
            seen.append(answers[:made])
    distinct = sorted({text for texts in states for text in texts})
    vectors = encoder.encode(distinct)
    place = {text: at for at, text in enumerate(distinct)}
    parts = [vectors[[place[texts[at]] for texts in states]] for at in range(len(states[0]))]
    return np.concatenate([*parts, live_numbers(view, trained.actions, seen)], axis=1)


def _answer(step: Step, where: str) -> LiveAnswer:
    """What a router that reads numbers sees of a step; raises InputError: the log lacks it."""
    if step.tokens_out is None:
        raise InputError(
            f"tokens_out is missing: {where}; this router reads how long answers are, give it and "
            "finish_reason, and logprob_sum, _min and _tokens where it reads these"
        )
    cut = step.finish_reason == "length"
    return LiveAnswer(step.model, step.response or "", step.tokens_out, cut, step.confidence)


def log_of(episodes: Sequence[Episode], trained: TrainedRouter, query: NDArray[np.int64]) -> Log:
    """The episodes as arrays.

    Where the router may return answers, giving the last one after L calls is a choice that others
    had to make. Raises InputError: answers were returned in the log, and the router never does.

    `trained`: the router to be valued; where it never stops early and the log does, the log's
    actions have stops all the same; `query`: int64[episodes], number of each question.
    """
    routes, returns = trained.origin.routes, trained.objective.allow_return
    stops = trained.objective.allow_stop or any(e.steps[-1].stop for e in episodes)
    actions = Actions(routes, stops, returns)
    shape = len(episodes), actions.steps
    action, propensity = np.zeros(shape, dtype=np.int64), np.ones(shape)
    cost, length = np.zeros(shape), np.array([len(episode.steps) for episode in episodes])
    for row, episode in enumerate(episodes):
        if episode.returned and not returns:
            raise InputError(f"an answer is returned: {episode.where}; this router never does")
        last = length[row]
        if episode.returned or (returns and last == routes.hops):
            answer, chance = episode.returned or (last, 1.0)
            action[row, last], propensity[row, last] = actions.calls + answer - 1, chance
            length[row] += 1
        for hop, step in enumerate(episode.steps):
            early = step.stop and hop + 1 < routes.hops
            action[row, hop] = step.model + (routes.models if early else 0)
            propensity[row, hop], cost[row, hop] = step.propensity, step.cost
    return Log(
        actions=actions,
        query=query,
        action=action,
        propensity=propensity,
        length=length,
        quality=np.array([episode.quality for episode in episodes]),
        cost=cost,
    )
