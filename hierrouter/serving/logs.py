"""Logged episodes: the JSON lines of a log file, and the arrays that estimators read.

This module only reads logs; a server writes them with `hierrouter.serving.monitoring.RequestLog`.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hierrouter.declarations.declaration import OnNote, ignore_note
from hierrouter.engines.encoders import Encoder
from hierrouter.engines.generator import Confidence, Response
from hierrouter.evaluation.outcome import Actions, greedy
from hierrouter.learning.router import TrainedRouter
from hierrouter.questions.files import parse_object, raw_lines
from hierrouter.replay.states import numbers_kind, state_texts
from hierrouter.serving.decisions import live_numbers
from hierrouter.serving.estimators import Log, LoggedStates, logged_states
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.layout import NOT_OFFERED, Layout, route_name
from hierrouter_cache.tree import Rate

MIN_PROPENSITY = 1e-9  # smaller ones would make the weights of their episodes explode
MAX_POLICY_NAME = 200  # characters
MAX_BAD_SHARE = 0.2  # of the lines of a log; if more are bad, it is refused

Row = TypeVar("Row")


@dataclass(frozen=True)
class Step:
    """One call of a logged episode.

    Attributes:
        model: its number in the pool.
        propensity: the probability with which the logging policy took this action, in (0, 1].
        stop: whether the policy chose to end the episode with this call; False if it had to end.
        cost: of this call, in money.
        response: what policies read of it; None if no policy will read it.
        tokens_out: of the response; None if the log does not say. This and the next two are what
            some policies read of a response besides its text.
        finish_reason: of the response; None if the log does not say.
        confidence: of the response; None if the log does not say.
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
        question: its text; episodes with equal texts are of one question.
        steps: the calls, 1 to L.
        quality: Q of the answer that was returned, in [0, 1].
        policy: name and version of the policy that chose the calls, free text.
        where: file and line, for messages.
        returned: number of the earlier answer that the policy chose to return, and the probability
            with which it did; None if the last call ended the episode.
        group: data set or label of the question; "" if it is unknown.
    """

    question: str
    steps: tuple[Step, ...]
    quality: float
    policy: str = ""
    where: str = ""
    returned: tuple[int, float] | None = None
    group: str = ""


@dataclass(frozen=True)
class LogShape:
    """The pool and the hops that the lines of a log must fit.

    Attributes:
        models: M names.
        hops: L.
        rate: M pairs, cost of a token in and of a token out, for steps that give tokens.
        layout: the routes that the router may take; by default every model at every hop.
    """

    models: tuple[str, ...]
    hops: int
    rate: Sequence[tuple[float, ...]]
    layout: Layout = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.layout is None:
            object.__setattr__(self, "layout", Layout.full(len(self.models), self.hops))

    @property
    def first_actions(self) -> dict[int, str]:
        """The names of the actions that are offered at the first hop, by number."""
        offered = self.layout.children[0] != NOT_OFFERED
        return {number: self.models[number] for number in np.flatnonzero(offered).tolist()}


def read_lines(
    path: Path, read: Callable[[Mapping[str, Any], str], Row | None], on_note: OnNote = ignore_note
) -> list[Row]:
    """Read the lines of a log, and leave out a few that cannot be read.

    A server's log grows for months, so one line that a crash, a full disk or an odd request left
    must not take all others along. A file with many of them is no log, or was written by a script
    with a fault, which its user wants to hear of.

    Args:
        path: of the file of JSON lines.
        read: reads (line, file and line for messages); None if the line has nothing to read. Lines
            about changes of models are not for it.
        on_note: receives how many lines are left out, and what is wrong with the first.

    Returns:
        What `read` returned, in the order of the file.

    Raises:
        InputError: the file cannot be read, or more than `MAX_BAD_SHARE` of its lines are bad; the
            message is that of the first one.
    """
    rows: list[Row] = []
    faults: list[InputError] = []
    bad_lines = 0
    lines = 0
    for number, data in raw_lines(path):
        if not data.strip():
            continue
        lines += 1
        where = f"{path}:{number}"
        try:
            line = parse_object(data, where)
            row = None if "event" in line else read(line, where)
        except InputError as fault:
            bad_lines += 1
            faults.append(fault)
            del faults[1:]
            continue
        if row is not None:
            rows.append(row)
    if bad_lines > MAX_BAD_SHARE * lines:
        raise faults[0]
    if bad_lines:
        on_note(f"{bad_lines} of {lines} lines are left out, they cannot be read: {faults[0]}")
    return rows


def read_log(path: Path, shape: LogShape, on_note: OnNote = ignore_note) -> list[Episode]:
    """Read every episode of a log.

    Args:
        path: of the file of JSON lines.
        shape: of its episodes.
        on_note: receives a message if lines of a server are left out: questions without an answer,
            routes where a failed model was replaced, and deferrals. And one if bad lines are.

    Raises:
        InputError: the file cannot be read, has no episodes, or has many bad lines.
    """
    left_out = 0

    def read(line: Mapping[str, Any], where: str) -> Episode | None:
        nonlocal left_out
        if _is_episode(line):
            return _episode(line, where, shape)
        left_out += 1
        return None

    episodes = read_lines(path, read, on_note)
    if left_out:
        on_note(
            f"{left_out} lines are left out: a model gave no answer, or got what was in doubt; "
            "what the router would earn on such questions is not in the estimate"
        )
    if not episodes:
        raise InputError(f"a log without episodes: {path}; one JSON object a line")
    return episodes


def _is_episode(line: Mapping[str, Any]) -> bool:
    """Whether all actions of a line are the policy's own, as far as the log says."""
    if "otherwise" in line or "left_out" in line or line.get("status") not in (None, 200):
        return False
    steps = line.get("steps")
    actions = [*(steps if isinstance(steps, list) else ()), line.get("returned")]
    return not any(
        action.get("instead_of") or action.get("deferred")
        for action in actions
        if isinstance(action, dict)
    )


def _episode(line: Mapping[str, Any], where: str, shape: LogShape) -> Episode:
    """Read a line.

    Raises:
        InputError: it is no complete episode of this shape.
    """
    objects = line.get("steps")
    if not isinstance(objects, list) or not objects:
        raise InputError(f"steps is no list of calls: {where}; give one object a call, in order")
    if len(objects) > shape.hops:
        raise InputError(
            f"{len(objects)} steps: {where}; the router makes at most {shape.hops} calls"
        )
    steps = tuple(
        _step(step, f"{where} step {number}", shape) for number, step in enumerate(objects, start=1)
    )
    returned = _returned(line.get("returned"), f"{where} returned", len(steps))
    # With return, the last action is no call, so every call must go on and have a response.
    earlier = steps if returned else steps[:-1]
    if any(step.stop for step in earlier):
        raise InputError(f"a step after one that stops: {where}; stop belongs to the last step")
    path = [step.model for step in steps]
    try:
        node = shape.layout.node(path)
    except KeyError:
        name = route_name([shape.models[model] for model in path])
        raise InputError(
            f"no route of the router: {name:.200}: {where}; give calls that it may make one after "
            "the other"
        ) from None
    if node < shape.layout.inner and not steps[-1].stop and not returned:
        raise InputError(
            f"{len(steps)} of {shape.hops} steps and no stop: {where}; log whole episodes, with "
            '"stop": true where the policy chose to end early'
        )
    if any(step.response is None for step in earlier):
        raise InputError(f"a response is missing: {where}; give it with every step but the last")
    return Episode(
        question=_text(line, "question", where) or "",
        steps=steps,
        quality=_number(line, "quality", where, 0.0, 1.0),
        policy=(_text(line, "policy", where, required=False) or "")[:MAX_POLICY_NAME],
        where=where,
        returned=returned,
        group=(_text(line, "group", where, required=False, may_be_empty=True) or ""),
    )


def _returned(action: Any, where: str, calls: int) -> tuple[int, float] | None:
    """Read the choice of an earlier answer: its number and propensity; None without a choice."""
    if action is None:
        return None
    if not isinstance(action, dict):
        raise InputError(f"it is no object: {where}; give answer and propensity")
    answer = action.get("answer")
    if isinstance(answer, bool) or answer not in range(1, calls + 1):
        raise _bad_value(action, "answer", where, f"a whole number from 1 to {calls}")
    return int(action["answer"]), _number(action, "propensity", where, MIN_PROPENSITY, 1.0)


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
    response = _text(step, "response", where, required=False, may_be_empty=True)
    visible = _text(step, "visible", where, required=False, may_be_empty=True)
    return Step(
        model=model,
        propensity=_number(step, "propensity", where, MIN_PROPENSITY, 1.0),
        stop=bool(stop),
        cost=_cost(step, where, shape.rate[model]),
        response=response if visible is None else visible,
        tokens_out=_count(step, "tokens_out", where),
        finish_reason=_text(step, "finish_reason", where, required=False),
        confidence=_confidence(step, where),
    )


def _confidence(step: Mapping[str, Any], where: str) -> Confidence | None:
    tokens = _count(step, "logprob_tokens", where)
    if not tokens:
        return None
    # Log-probabilities are at most 0; sums of rounded ones may be a little more.
    rounding = 1e-3 * tokens
    total = _number(step, "logprob_sum", where, -1e9, rounding)
    lowest = _number(step, "logprob_min", where, -1e9, rounding)
    return Confidence(min(total, 0.0), min(lowest, 0.0), tokens)


def _count(step: Mapping[str, Any], name: str, where: str) -> int | None:
    return None if step.get(name) is None else int(_number(step, name, where, 0.0))


def _cost(step: Mapping[str, Any], where: str, rate: tuple[float, ...]) -> float:
    """Read a call's cost, or compute it from its tokens, in money."""
    if step.get("cost") is not None:
        return _number(step, "cost", where, 0.0)
    if step.get("tokens_in") is None or step.get("tokens_out") is None:
        raise InputError(f"no cost: {where}; give cost, or tokens_in and tokens_out")
    tokens_in = _number(step, "tokens_in", where, 0.0)
    tokens_out = _number(step, "tokens_out", where, 0.0)
    return Rate(*rate).cost(tokens_in, tokens_out)


def _number(
    row: Mapping[str, Any], name: str, where: str, low: float, high: float = math.inf
) -> float:
    """Read a finite number from `low` to `high`."""
    value = row.get(name)
    largest = min(high, sys.float_info.max)  # neither NaN nor infinity is up to it
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= largest:
        return float(value)
    bounds = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
    raise _bad_value(row, name, where, f"a finite number {bounds}")


def _text(
    row: Mapping[str, Any],
    name: str,
    where: str,
    *,
    required: bool = True,
    may_be_empty: bool = False,
) -> str | None:
    """Read a text; None if it is missing and not required."""
    value = row.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, str) or not (value or may_be_empty):
        raise _bad_value(row, name, where, "a text")
    return value


def _bad_value(row: Mapping[str, Any], name: str, where: str, remedy: str) -> InputError:
    value = "missing" if row.get(name) is None else f"{row[name]!r:.40}"
    return InputError(f"{name} is {value}: {where}; give {remedy}")


@dataclass(frozen=True)
class Spending:
    """The cost of a server's answers, and how probable their first calls were; one row an answer.

    Attributes:
        query: int64[n], number of the question.
        route: float64[n, 3]: money and seconds of the whole route, and Q of its answer; NaN if it
            is not known.
        first: float64[n, 3]: of the first call alone; its Q is known only if it gave the answer.
        model: int64[n], the model that was called first; -1 if the question was deferred at once.
        called: float64[n, M], the probability that a model was called first.
        ended: float64[n, M], the probability that it was called first and ended the route.
    """

    query: NDArray[np.int64]
    route: NDArray[np.float64]
    first: NDArray[np.float64]
    model: NDArray[np.int64]
    called: NDArray[np.float64]
    ended: NDArray[np.float64]


def read_spending(path: Path, shape: LogShape, on_note: OnNote = ignore_note) -> Spending:
    """Read the answers in the log of `hierrouter serve`, with or without a quality.

    Args:
        path: of the log.
        shape: of the router that was in service.
        on_note: receives a message if lines are left out: those without an answer, those that do
            not say how probable the first call was, and bad ones.

    Raises:
        InputError: the file cannot be read, has many bad lines, or fewer than 2 questions.
    """
    queries: dict[str, int] = {}
    left_out = 0

    def read(line: Mapping[str, Any], where: str) -> tuple[Any, ...] | None:
        nonlocal left_out
        steps = line.get("steps")
        if not isinstance(steps, list) or not steps or line.get("status") not in (None, 200):
            left_out += 1
            return None
        if any(not isinstance(step, dict) for step in steps):
            raise InputError(f"a step is no object: {where}; give model, propensity and cost")
        choice = _first_choice(steps[0], where, shape)
        if choice is None:
            left_out += 1
            return None
        costs = [_cost(step, where, (0.0, 0.0)) for step in steps]
        seconds = [_seconds(step, where) for step in steps]
        quality = math.nan
        if line.get("quality") is not None:
            quality = _number(line, "quality", where, 0.0, 1.0)
        query = queries.setdefault(_text(line, "query", where) or "", len(queries))
        route = (math.fsum(costs), math.fsum(seconds), quality)
        first = (costs[0], seconds[0], quality if len(steps) == 1 else math.nan)
        return (query, route, first, *choice)

    rows = read_lines(path, read, on_note)
    if left_out:
        on_note(f"{left_out} lines are left out: no answer, or nobody drew the first call")
    if len(queries) < 2:
        raise InputError(f"answers to {len(queries)} questions: {path}; log at least 2 questions")
    return Spending(*(np.array(column) for column in zip(*rows, strict=True)))


def _first_choice(
    step: Mapping[str, Any], where: str, shape: LogShape
) -> tuple[int, NDArray[np.float64], NDArray[np.float64]] | None:
    """Read which first call was made, and how probable each first call was.

    Returns:
        As in `Spending`: model, float64[M] called and float64[M] ended. None if the call was not
        the policy's draw: a model had failed, or could not do what the client wanted.
    """
    models = len(shape.models)
    listed = step.get("chances")
    values = listed if isinstance(listed, list) else []
    chances = np.array(
        [_number({"chance": value}, "chance", where, 0.0, 1.0) for value in values], np.float64
    )
    name = step.get("model")
    propensity = step.get("propensity")
    action = shape.models.index(name) if name in shape.models else -1
    if step.get("deferred"):
        never = np.zeros(models)
        return -1, never, never
    if step.get("stop") and len(chances) >= 2 * models:
        action += models
    if propensity == 1:  # the action was not drawn, so all others had no chance
        chances = np.eye(max(len(chances), 2 * models))[action]
    elif len(chances) <= action or action < 0 or chances[action] != propensity:
        return None
    going_on = chances[:models]
    stopping = chances[models : 2 * models]
    if len(stopping) < models:  # the router may not stop; what follows are answers to return
        stopping = np.zeros(models)
    # After some first calls no other is offered; after none where there is only one hop.
    children = shape.layout.children[0]
    is_last = (children != NOT_OFFERED) & (children >= shape.layout.inner)
    return action % models, going_on + stopping, np.where(is_last, going_on, 0.0) + stopping


def _seconds(step: Mapping[str, Any], where: str) -> float:
    """Read how long deciding and calling took."""
    return math.fsum(_number(step, key, where, 0.0) for key in ("router_s", "model_s"))


def log_and_states(
    episodes: Sequence[Episode], trained: TrainedRouter, encoder: Encoder
) -> tuple[Log, LoggedStates]:
    """Return the episodes as arrays, and the states on their way.

    Args:
        episodes: of the log.
        trained: the router to be evaluated.
        encoder: the one whose embeddings the router reads.

    Raises:
        InputError: the log lacks what the router reads, or has actions that it lacks.
    """
    numbers: dict[str, int] = {}
    query = [numbers.setdefault(episode.question, len(numbers)) for episode in episodes]
    log = log_of(episodes, trained, np.array(query))
    embedding = _embed(episodes, log, trained, encoder)
    node = log.node[log.alive]
    spent = log.spent[log.alive]
    row = np.zeros(log.action.shape, dtype=np.int64)
    row[log.alive] = np.arange(len(node))
    paths = [trained.origin.layout.path(number) for number in node.tolist()]
    owner, _ = np.nonzero(log.alive)  # the episode of each state, ascending
    groups = [episodes[number].group for number in owner.tolist()]
    roots = embedding[np.searchsorted(owner, owner)]
    states = trained.live_states(embedding, paths, spent.tolist(), groups, roots)
    chances = trained.decide_each(states)
    target = greedy(chances, trained.origin.base_rate, trained.actions.returns)
    return log, logged_states(log, row, node, spent, embedding, target)


def _embed(
    episodes: Sequence[Episode], log: Log, trained: TrainedRouter, encoder: Encoder
) -> NDArray[np.float32]:
    """Return what the router reads before each choice: float32[states, dim].

    The states are in the order of `log.alive`: episode after episode.
    """
    view = trained.origin.view
    reads_numbers = numbers_kind(view) is not None
    texts: list[tuple[str, ...]] = []  # of each state
    paths: list[list[int]] = []
    responses: list[list[Response]] = []
    for episode, length in zip(episodes, log.length.tolist(), strict=True):
        steps = episode.steps
        if length > len(steps) and steps[-1].response is None:
            raise InputError(f"a response is missing: {episode.where}; this router reads the last")
        path: list[int] = []
        read: list[Response] = []
        if reads_numbers:
            for number, step in enumerate(steps[: length - 1], start=1):
                path.append(step.model)
                read.append(_response(step, f"{episode.where} step {number}"))
        step_texts = [step.response or "" for step in steps]
        for calls in range(length):
            texts.append(state_texts(view, episode.question, step_texts[:calls]))
            paths.append(path[:calls])
            responses.append(read[:calls])
    distinct = sorted({text for state in texts for text in state})
    vectors = encoder.encode(distinct)
    position = {text: number for number, text in enumerate(distinct)}
    parts = [vectors[[position[state[part]] for state in texts]] for part in range(len(texts[0]))]
    numbers = live_numbers(view, trained.actions, paths, responses)
    return np.concatenate([*parts, numbers], axis=1)


def _response(step: Step, where: str) -> Response:
    """Return a step's response as a router reads it, which does not include its prompt's tokens.

    Raises:
        InputError: the log lacks its length.
    """
    if step.tokens_out is None:
        raise InputError(
            f"tokens_out is missing: {where}; this router reads how long answers are, give it and "
            "finish_reason, and logprob_sum, _min and _tokens where it reads these"
        )
    return Response(
        text=step.response or "",
        tokens_in=0,
        tokens_out=step.tokens_out,
        finish_reason=step.finish_reason or "stop",
        confidence=step.confidence,
    )


def log_of(episodes: Sequence[Episode], trained: TrainedRouter, query: NDArray[np.int64]) -> Log:
    """Return the episodes as arrays.

    If the router may return earlier answers, ending after L calls is a choice of the last answer;
    other routers had to make it, so its propensity is 1.

    Args:
        episodes: of the log.
        trained: the router to be evaluated. If it never stops early and the log does, the log's
            actions include stops all the same.
        query: int64[episodes], number of each question.

    Raises:
        InputError: the log returns earlier answers, and the router never does.
    """
    layout = trained.origin.layout
    allow_return = trained.objective.allow_return
    allow_stop = trained.objective.allow_stop or any(episode.steps[-1].stop for episode in episodes)
    actions = Actions(trained.objective.layout(layout), allow_stop)
    shape = (len(episodes), actions.steps)
    action = np.zeros(shape, dtype=np.int64)
    propensity = np.ones(shape)
    cost = np.zeros(shape)
    length = np.array([len(episode.steps) for episode in episodes])
    for row, episode in enumerate(episodes):
        if episode.returned and not allow_return:
            raise InputError(f"an answer is returned: {episode.where}; this router never does")
        calls = length[row]
        goes_on = layout.node([step.model for step in episode.steps]) < layout.inner
        if episode.returned or (allow_return and not goes_on):
            answer, chance = episode.returned or (calls, 1.0)
            action[row, calls] = actions.calls + answer - 1
            propensity[row, calls] = chance
            length[row] += 1
        for hop, step in enumerate(episode.steps):
            # Where nothing more is offered, every call ends the episode.
            stops_early = step.stop and goes_on
            action[row, hop] = step.model + (layout.call_actions if stops_early else 0)
            propensity[row, hop] = step.propensity
            cost[row, hop] = step.cost
    return Log(
        actions=actions,
        query=query,
        action=action,
        propensity=propensity,
        length=length,
        quality=np.array([episode.quality for episode in episodes]),
        cost=cost,
    )
