"""A log from a file, ready to be estimated from.

In: `Episode`s, and a tree that holds their questions or a router that reads their texts. Out: the
`Log`, with its questions' positions in the tree or its `LoggedStates`. Not covered: the file's
format, see `log_line`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.collect.encoders import Encoder
from hierrouter.collect.views import state_texts
from hierrouter.evaluate.exact import greedy
from hierrouter.learn.trained import TrainedRouter
from hierrouter.offpolicy.log import Log
from hierrouter.offpolicy.log_line import Episode
from hierrouter.offpolicy.states import LoggedStates, state_features, widened
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree


def log_of(episodes: Sequence[Episode], trained: TrainedRouter, query: NDArray[np.int64]) -> Log:
    """The episodes as arrays.

    Args:
        trained: the router to be valued; where it never stops early and the log does, the log's
            actions have stops all the same.
        query: int64[episodes], number of each question.
    """
    routes = trained.origin.routes
    stops = trained.objective.allow_stop or any(e.steps[-1].stop for e in episodes)
    shape = len(episodes), routes.hops
    action, propensity = np.zeros(shape, dtype=np.int64), np.ones(shape)
    cost = np.zeros(shape)
    for row, episode in enumerate(episodes):
        for hop, step in enumerate(episode.steps):
            early = step.stop and hop + 1 < routes.hops
            action[row, hop] = step.model + (routes.models if early else 0)
            propensity[row, hop], cost[row, hop] = step.propensity, step.cost
    return Log(
        actions=Actions(routes, stops),
        query=query,
        action=action,
        propensity=propensity,
        length=np.array([len(episode.steps) for episode in episodes]),
        quality=np.array([episode.quality for episode in episodes]),
        cost=cost,
    )


def in_cache(episodes: Sequence[Episode], trained: TrainedRouter, tree: RouteTree) -> Log:
    """The log of episodes whose questions are in a tree.

    Raises:
        InputError: one of them is not, or its id alone does not tell which one it is.
    """
    index = _Positions(tree)
    position = np.array([index.find(episode) for episode in episodes])
    return log_of(episodes, trained, position)


class _Positions:
    """Where questions are in a tree, by id and dataset."""

    def __init__(self, tree: RouteTree) -> None:
        self._places: dict[str, dict[str, int]] = {}
        for at, (query, dataset) in enumerate(zip(tree.query_ids, tree.datasets, strict=True)):
            self._places.setdefault(query, {})[dataset] = at

    def find(self, episode: Episode) -> int:
        """The position of an episode's question.

        Raises:
            InputError: there is none, or there are several.
        """
        found = self._places.get(episode.query, {})
        if episode.dataset:
            found = {name: at for name, at in found.items() if name == episode.dataset}
        if len(found) > 1:
            raise InputError(
                f"query {episode.query:.40} is in {len(found)} datasets: {episode.where}; give "
                f"dataset: {', '.join(found):.80}"
            )
        if not found:
            raise InputError(
                f"query {episode.query:.40} is not in the cache: {episode.where}; collect it, or "
                "log question and responses"
            )
        return next(iter(found.values()))


def from_texts(
    episodes: Sequence[Episode], trained: TrainedRouter, encoder: Encoder
) -> tuple[Log, LoggedStates]:
    """The log of episodes that carry their texts; no tree is needed.

    Args:
        encoder: the one whose embeddings the router reads.

    Raises:
        InputError: the router's limit on cost asks for what no log has.
    """
    if trained.objective.max_cost is not None:
        raise InputError(
            "a router with a limit on cost needs the tokens of every prompt, and a log has only "
            "those of the calls made; collect the questions and log without texts"
        )
    numbers: dict[tuple[str, str], int] = {}
    query = [numbers.setdefault((e.dataset, e.query), len(numbers)) for e in episodes]
    log = log_of(episodes, trained, np.array(query))
    embedding = _embedded(episodes, trained.origin.view, encoder)
    node, spent = log.node[log.alive], log.spent[log.alive]
    row = np.zeros(log.action.shape, dtype=np.int64)
    row[log.alive] = np.arange(len(node))
    routes = trained.origin.routes
    paths = [routes.path(at) for at in node.tolist()]
    chances = trained.decide_each(embedding, paths, spent.tolist(), [None] * len(paths))
    target = greedy(chances, trained.origin.base_rate)
    return log, LoggedStates(
        row=row,
        features=state_features(routes, embedding, node, spent),
        target=widened(target, log.actions.count),
    )


def _embedded(episodes: Sequence[Episode], view: str, encoder: Encoder) -> NDArray[np.float32]:
    """float32[states, dim]: what the view shows before each call, each text encoded once."""
    seen = list(_texts(episodes, view))
    if not seen[0]:
        return np.empty((len(seen), 0), np.float32)
    distinct = sorted({text for texts in seen for text in texts})
    vectors = encoder.encode(distinct)
    place = {text: at for at, text in enumerate(distinct)}
    parts = [vectors[[place[texts[at]] for texts in seen]] for at in range(len(seen[0]))]
    return np.concatenate(parts, axis=1)


def _texts(episodes: Sequence[Episode], view: str) -> Iterator[tuple[str, ...]]:
    """What the view shows before each call, call after call, episode after episode."""
    for episode in episodes:
        answers = [step.response or "" for step in episode.steps]
        for made in range(len(answers)):
            assert episode.question is not None  # `has_texts` says so
            yield state_texts(view, episode.question, answers[:made])
