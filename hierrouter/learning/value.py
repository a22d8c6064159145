"""The value model: Q and C after every action, for every alpha, in closed form.

At each state one kernel ridge regression predicts what follows each action until the episode ends,
once for each of some alphas (knots): what follows depends on what is chosen then. It goes from the
last decisions to the first, and each choice on a query is predicted without that query
(leave-one-out in closed form), so that no fold is put aside. No epochs, nothing random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hierrouter.declarations.checks import MAX_ALPHA
from hierrouter.evaluation.budget import policy_break_points
from hierrouter.evaluation.outcome import Actions, ending_table
from hierrouter.learning.config import Objective, ValueConfig
from hierrouter.learning.forward import softmax
from hierrouter.replay.opening import LEARNED_FROM
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

Array = NDArray[np.float32]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
# From a state, its legal actions int64[a] and what followed them float64[n, a, K, 2] to predictions
# of that: Q, and C from the state on.
Settle = Callable[[int, Integers, Floats], Floats]

GAUSS = (0.5, 2.0)  # Gauss's kernels; the next one is Laplace's
KERNELS = len(GAUSS) + 1
RIDGES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)  # of equal ones the strongest
LEAN = 0.15  # how much more large directions of a text weigh: a power of their variance
SKETCH = 256  # landmarks with which kernels are compared
QUANTILES = 33  # by which a number is ranked
JITTER = 1e-6  # on the diagonal, so that rounding leaves a kernel positive
MOST = 0.9999  # of leverage: a query that alone decides its own prediction
SAME = 1e-9  # two R that differ by less, in standard deviations, are equal; the least chance
SAMPLE = 8192  # vectors of a text, at most about, that its directions are taken from
KNOTS = 32
BEYOND_LAST_BREAK_POINT = 2.0  # the last knot, as a multiple of the last break-point
TEMPERATURES = np.geomspace(0.003, 3.0, 25)  # in standard deviations of R
HELD = 1 << 26  # predictions that are kept, for the next alpha


@dataclass(frozen=True, eq=False)
class Text:
    """The main directions of a text's vectors, of which the largest weigh a little more.

    Attributes:
        mean: float32[dim].
        basis: float32[dim, components], orthogonal.
    """

    mean: Array
    basis: Array

    @classmethod
    def of(cls, vectors: Array, components: int) -> Text:
        """Those of some vectors, float32[n, dim]."""
        mean = vectors.mean(axis=0, dtype=np.float32)
        centred = vectors - mean
        spread, basis = np.linalg.eigh((centred.T @ centred).astype(np.float64))
        spread, basis = spread[::-1][:components].clip(min=0), basis[:, ::-1][:, :components]
        weight = spread**LEAN
        # Distances stay as large as they were, in the mean.
        weight *= np.sqrt(spread.sum() / max((spread * weight**2).sum(), SAME))
        return cls(mean, np.ascontiguousarray(basis * weight, np.float32))

    def __call__(self, vectors: Array) -> Array:
        """float32[n, components]."""
        return np.asarray((vectors - self.mean) @ self.basis, np.float32)


@dataclass(frozen=True, eq=False)
class Seen:
    """What a kernel compares of some visits of a state: float32[n, ...] each.

    Attributes:
        texts: components of all texts, side by side.
        ranks: numbers by their ranks in training, from 0 to 1.
    """

    texts: Array
    ranks: Array

    def at(self, rows: slice | Integers) -> Seen:
        """Some of the visits."""
        return Seen(self.texts[rows], self.ranks[rows])

    def kernel(self, other: Seen, number: int) -> Floats:
        """float64[n, m]: how alike these are to those, at most 1; `number`: of the kernel.

        Each number halves it at most, so that one that tells nothing does little harm.
        """
        mine, others = self.texts.astype(np.float64), other.texts.astype(np.float64)
        lengths = (mine**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)
        apart = np.maximum(lengths - 2 * mine @ others.T, 0)
        gauss = number < len(GAUSS)
        found: Floats = np.exp(-GAUSS[number] * apart if gauss else -np.sqrt(apart))
        for here, there in zip(self.ranks.T, other.ranks.T, strict=True):
            found *= (1 + np.exp(-8 * (here[:, None].astype(np.float64) - there) ** 2)) / 2
        return found


@dataclass(frozen=True, eq=False)
class Position:
    """The regression at one state, of a actions and K knots.

    Attributes:
        kernel: int64[1], see `Seen.kernel`.
        texts: float32[m, components], of the landmarks.
        ranks: float32[m, c], of the landmarks.
        columns: int64[c], which numbers are read, C so far being the last of all.
        quantiles: float32[c, QUANTILES], by which they are ranked.
        weight: float32[m, a * K * 2].
        added: float32[a * K * 2].
        temperature: float32[K], in units of R.
        leverage: float32[n, a], of each query that was learned from; 0 where nobody called; of
            equal columns only one.
    """

    kernel: Integers
    texts: Array
    ranks: Array
    columns: Integers
    quantiles: Array
    weight: Array
    added: Array
    temperature: Array
    leverage: Array

    def seen(self, texts: Array, numbers: Array) -> Seen:
        """Visits of this state as the kernel compares them."""
        return Seen(texts, ranked(numbers[:, self.columns], self.quantiles))

    def predict(self, texts: Array, numbers: Array) -> Array:
        """float32[n, a * K * 2]."""
        landmarks = Seen(self.texts, self.ranks)
        alike = self.seen(texts, numbers).kernel(landmarks, int(self.kernel[0]))
        return (alike @ self.weight + self.added).astype(np.float32)


def ranked(numbers: Array, quantiles: Array) -> Array:
    """float32[n, c]: each number's rank among the quantiles, float32[c, QUANTILES], of its kind."""
    places, found = np.linspace(0, 1, quantiles.shape[1]), np.empty(numbers.shape, np.float32)
    for at, points in enumerate(quantiles):
        low = np.searchsorted(points, numbers[:, at], "left")
        high = np.searchsorted(points, numbers[:, at], "right")
        # Of equal quantiles the middle; between two of them, in proportion.
        tied = (places[np.minimum(low, len(places) - 1)] + places[np.maximum(high - 1, 0)]) / 2
        found[:, at] = np.where(high > low, tied, np.interp(numbers[:, at], points, places))
    return found


@dataclass(frozen=True, eq=False)
class ValueModel:
    """What follows every action at every state, at any alpha.

    Attributes:
        knots: K alphas, ascending.
        rate: M pairs, the prices it was learned under.
        fingerprint: of the tree it was learned from.
        texts: one for each text of a state.
        numbers: int64[numbers], 1 where one was ever there.
        positions: one for each state.
        learned: uint64 digests of the queries it learned from, as int64[n], ascending.

    Raises:
        ValueError: the parts do not fit together.
    """

    actions: Actions
    knots: tuple[float, ...]
    rate: tuple[tuple[float, float], ...]
    fingerprint: str
    texts: tuple[Text, ...]
    numbers: Integers
    positions: tuple[Position, ...]
    learned: Integers
    _held: dict[Any, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        width, legal = sum(text.basis.shape[1] for text in self.texts), self.actions.legal()
        fits = [
            len(self.knots) > 0 and self.knots == tuple(sorted(set(self.knots))),
            all(0 <= knot <= MAX_ALPHA for knot in self.knots),
            len(self.positions) == self.actions.states,
            self.numbers.ndim == self.learned.ndim == 1,
            self.numbers.dtype == self.learned.dtype == np.int64,
            bool((self.learned[:-1] <= self.learned[1:]).all()),
            all(
                text.basis.ndim == 2 and text.mean.shape == text.basis.shape[:1]
                for text in self.texts
            ),
        ]
        for state, at in enumerate(self.positions):
            (count,), outputs = at.columns.shape, int(legal[state].sum()) * len(self.knots) * 2
            fits += [
                at.kernel.dtype == at.columns.dtype == np.int64,
                at.kernel.shape == (1,) and int(at.kernel[0]) in range(KERNELS),
                at.texts.shape == (len(at.weight), width),
                at.ranks.shape == (len(at.weight), count),
                at.quantiles.shape == (count, QUANTILES),
                all(0 <= column <= len(self.numbers) for column in at.columns),
                at.weight.shape == (len(at.texts), outputs) and at.added.shape == (outputs,),
                at.temperature.shape == (len(self.knots),) and bool((at.temperature > 0).all()),
                len(at.leverage) == len(self.learned),
                at.leverage.shape[1:] in ((1,), (legal[state].sum(),)),
                bool(((at.leverage >= 0) & (at.leverage < 1)).all()),
            ]
        if not all(fits):
            raise ValueError("the parts of a value model do not fit")

    @property
    def dim(self) -> int:
        """Length of the embeddings that it reads."""
        return sum(len(text.mean) for text in self.texts) + len(self.numbers)

    def predictions(self, tree: RouteTree) -> Array:
        """float32[queries, S, A, K, 2]: Q and C from each state on; 0 for what is not legal.

        Of a query that was learned from, what is predicted without it.
        """
        found = self._held.get(key := (tree.fingerprint, tree.datasets, tree.query_ids))
        if found is not None:
            return found
        known = self._own(tree)
        new, own = np.flatnonzero(known < 0), np.flatnonzero(known >= 0)
        found = np.empty((len(tree), *self._width), np.float32)
        found[new] = self._plain(tree.select(new))
        found[own] = self._held_out(tree.select(own), known[own])
        if sum(map(np.size, self._held.values())) + found.size > HELD:
            self._held.clear()
        self._held[key] = found
        return found

    def _plain(self, tree: RouteTree) -> Array:
        """The predictions of queries, whether learned from or not."""
        found, legal = np.zeros((len(tree), *self._width), np.float32), self.actions.legal()
        with threadpool_limits(1):
            for state, at in enumerate(self.positions):
                predicted = at.predict(*_visits(tree, np.arange(len(tree)), state, self.texts))
                shape = len(tree), int(legal[state].sum()), len(self.knots), 2
                found[:, state, legal[state]] = predicted.reshape(shape)
        return found

    def _held_out(self, tree: RouteTree, place: Integers) -> Array:
        """The predictions of queries, each without itself; `place`: int64[n], which one it is.

        At the prices it was learned under, whatever they are now: only there is this exact.
        """
        tree = replace(tree, rate=np.array(self.rate))
        found = self._plain(tree)

        def settle(state: int, choices: Integers, target: Floats) -> Floats:
            leverage = self.positions[state].leverage[place][:, :, None, None]
            without = _left_out(found[:, state, choices], target, leverage)
            found[:, state, choices] = without
            return without.astype(np.float64)

        _induce(tree, self.actions, self.knots, settle)
        return found

    def _own(self, tree: RouteTree) -> Integers:
        """int64[queries]: the place of each query among those that were learned from, or -1."""
        content = self.fingerprint.rpartition("-")[0]
        if not len(self.learned) or tree.content != content:
            return np.full(len(tree), -1)
        digests = _digests(tree)
        place = np.searchsorted(self.learned, digests).clip(max=len(self.learned) - 1)
        return np.where(self.learned[place] == digests, place, -1)

    @property
    def _width(self) -> tuple[int, int, int, int]:
        return self.actions.states, self.actions.count, len(self.knots), 2

    def at(self, predicted: Array, alpha: float) -> Array:
        """[..., 2]: what is between the knots, of values at all of them, [..., K, 2]."""
        low, share = self._between(alpha)
        found: Array = predicted[..., low, :]
        if not share:
            return found
        following: Array = predicted[..., low + 1, :]
        return found + share * (following - found)  # pyright: ignore[reportReturnType]

    def temperatures(self, alpha: float) -> Floats:
        """float64[S]: in units of R."""
        low, share = self._between(alpha)
        each = np.log(np.stack([at.temperature for at in self.positions]).astype(np.float64))
        high = min(low + 1, len(self.knots) - 1)
        return np.exp(each[:, low] + share * (each[:, high] - each[:, low]))

    def _between(self, alpha: float) -> tuple[int, np.float32]:
        """The knot below, and how far alpha is from there to the next one, from 0 to 1."""
        place = float(np.interp(alpha, self.knots, range(len(self.knots))))
        return int(place), np.float32(place - int(place))


@dataclass(frozen=True)
class ValueRouter:
    """The value model at one alpha: it takes what it expects most R of."""

    model: ValueModel
    alpha: float

    def has_learned(self, number: int) -> bool:
        """Whether one of the numbers was there in training."""
        return bool(self.model.numbers[number])

    def rewards(self, tree: RouteTree) -> Floats:
        """float64[queries, S, A]: R expected from each state on; `-inf` for what is not legal."""
        model, width = self.model, int(np.prod(self.model._width))
        found = np.empty((len(tree), *model._width[:2]))
        size = max(1, HELD // 4 // width)
        for start in range(0, len(tree), size):
            rows = np.arange(start, min(start + size, len(tree)))
            predicted = model.predictions(tree.select(rows) if size < len(tree) else tree)
            found[rows] = self._reward(model.at(predicted, self.alpha))
        return np.where(model.actions.legal(), found, -np.inf)

    def probabilities(self, tree: RouteTree) -> Floats:
        """float64[queries, S, A]: how likely each action is to be the best at each state."""
        logits = self.rewards(tree) / self.model.temperatures(self.alpha)[:, None]
        return softmax(logits)

    def expected(self, embedding: Array, node: Sequence[int], cost: Sequence[float]) -> Floats:
        """float64[n, A, 2]: Q, and C from there on, after each action; NaN where it is not legal.

        `embedding`: float32[n, dim]; `node`: n states; `cost`: n C so far.
        """
        model, nodes = self.model, np.array(node)
        legal = model.actions.legal()
        found = np.full((len(nodes), model.actions.count, 2), np.nan)
        for state in np.unique(nodes).tolist():
            rows = np.flatnonzero(nodes == state)
            seen = _split(embedding[rows], np.array(cost)[rows], model.texts)
            predicted = model.positions[state].predict(*seen)
            values = model.at(predicted.reshape(len(rows), -1, len(model.knots), 2), self.alpha)
            found[np.ix_(rows, np.flatnonzero(legal[state]))] = values
        return found

    def live(self, embedding: Array, node: Sequence[int], cost: Sequence[float]) -> Floats:
        """float64[n, A]: how likely each action is to be the best; see `expected`."""
        reward = self._reward(self.expected(embedding, node, cost))
        logits = reward / self.model.temperatures(self.alpha)[np.array(node)][:, None]
        return softmax(np.where(np.isnan(logits), -np.inf, logits))

    def _reward(self, values: Array | Floats) -> Floats:
        return values[..., 0] - self.alpha * values[..., 1].astype(np.float64)


def fit(
    tree: RouteTree,
    alphas: Sequence[float],
    objective: Objective,
    config: ValueConfig,
    on_state: Callable[[int, int], None] = lambda done, total: None,
) -> ValueModel:
    """Learn from the folds "train" and "validation", or from so many of their queries.

    Args:
        alphas: knots, beside those at which decisions change on the tree.
        objective: what may be done; its alpha is not looked at.
        on_state: told (done, total) after each state.

    Raises:
        InputError: there is nothing to learn from.
    """
    actions = Actions(tree.routes, objective.allow_stop, objective.allow_return)
    fold = learned_from(tree).with_pruned()
    fold = fold.select(np.argsort(_digests(fold), kind="stable")[: config.queries])
    parts, knots = fold.require_embedded(actions.allow_return), _knots(fold, alphas, objective)
    # In the order of their digests, so the first ones are any.
    landmarks, positions = slice(config.landmarks), dict[int, Position]()

    def settle(state: int, choices: Integers, target: Floats) -> Floats:
        rows, predicted = _reached(fold, state), np.full(target.shape, np.nan)
        seen = _visits(fold, rows, state, texts)
        found, predicted[rows] = _fit_state(*seen, target[rows], np.array(knots), landmarks)
        leverage = np.zeros((len(fold), found.leverage.shape[1]), np.float32)
        leverage[rows] = found.leverage
        positions[state] = replace(found, leverage=leverage)
        on_state(len(positions), actions.states)
        return predicted

    with threadpool_limits(1):  # another number of threads adds up in another order
        rows = [(part.vectors, np.unique(part.row)) for part in parts if part.is_text]
        few = [vectors[row[:: 1 + len(row) // SAMPLE]] for vectors, row in rows]
        texts = tuple(Text.of(vectors, config.components) for vectors in few)
        _induce(fold, actions, knots, settle)
    ever = [(part.vectors[part.row] != 0).any(axis=(0, 1)) for part in parts if not part.is_text]
    return ValueModel(
        actions=actions,
        knots=knots,
        rate=tuple((tokens_in, tokens_out) for tokens_in, tokens_out in tree.rate.tolist()),
        fingerprint=tree.fingerprint,
        texts=texts,
        numbers=np.concatenate([np.empty(0, bool), *ever]).astype(np.int64),
        positions=tuple(positions[state] for state in range(actions.states)),
        learned=_digests(fold),
    )


def learned_from(tree: RouteTree) -> RouteTree:
    """The queries of the folds "train" and "validation"; raises InputError: there are none."""
    rows = np.flatnonzero(np.isin(tree.splits, LEARNED_FROM))
    if not len(rows):
        raise InputError("no query to train on: the train fold is empty; add queries")
    return tree.select(rows)


def _reached(tree: RouteTree, state: int) -> Integers:
    """int64[n]: the queries on which somebody called what leads to a state."""
    return np.flatnonzero(~np.isnan(tree.score[:, state]))


def _knots(tree: RouteTree, alphas: Sequence[float], objective: Objective) -> tuple[float, ...]:
    """Where decisions change on the tree, 0, an alpha beyond, and those that are asked for."""
    points = policy_break_points(tree, objective.ends_early)
    evenly = np.quantile(points, np.linspace(0, 1, KNOTS)) if len(points) else np.empty(0)
    found = np.concatenate([[0.0], alphas, evenly, BEYOND_LAST_BREAK_POINT * evenly[-1:]])
    return tuple(np.unique(np.minimum(found, MAX_ALPHA)).tolist())


def _digests(tree: RouteTree) -> Integers:
    """int64[queries]: what names each query, in any tree."""
    named = zip(tree.datasets, tree.query_ids, strict=True)
    digests = (hashlib.sha256(f"{dataset}\n{query}".encode()).digest() for dataset, query in named)
    return np.array([int.from_bytes(one[:8], "big", signed=True) for one in digests], np.int64)


def _visits(
    tree: RouteTree, query: Integers, state: int, texts: Sequence[Text]
) -> tuple[Array, Array]:
    """What is seen of a state on some queries, see `_split`; C so far is the last number."""
    seen = tree.embedding_at(query, np.full(len(query), state))
    return _split(seen, tree.cost[query, state], texts)


def _split(seen: Array, cost: Floats, texts: Sequence[Text]) -> tuple[Array, Array]:
    """Components of the texts, float32[n, components], and the numbers, float32[n, numbers + 1].

    `seen`: float32[n, dim]; `cost`: float64[n], C so far.
    """
    components, start = [np.empty((len(seen), 0), np.float32)], 0
    for text in texts:
        components.append(text(seen[:, start : start + len(text.mean)]))
        start += len(text.mean)
    numbers = np.concatenate([seen[:, start:], cost[:, None].astype(np.float32)], axis=1)
    return np.concatenate(components, axis=1), numbers


def _induce(tree: RouteTree, actions: Actions, knots: Sequence[float], settle: Settle) -> None:
    """From the last decisions to the first: what follows each action, and what is chosen then.

    What follows is NaN for a call that nobody made, and is its prediction where that is chosen.
    """
    score, cost, alphas = tree.score, tree.cost, np.array(knots)
    endings = ending_table(tree.routes)
    legal, ahead = actions.legal(), dict[int, Floats]()
    for state in reversed(range(actions.states)):
        choices = np.flatnonzero(legal[state])
        target = np.empty((len(tree), len(choices), len(knots), 2))
        for place, action in enumerate(choices.tolist()):
            reached, ending, is_over = actions.transition(state, action)
            if is_over:
                target[:, place, :, 0] = score[:, endings.answer_node[ending], None]
                target[:, place, :, 1] = (cost[:, endings.node[ending]] - cost[:, state])[:, None]
            else:
                target[:, place] = ahead.pop(int(reached))
                target[:, place, :, 1] += (cost[:, reached] - cost[:, state])[:, None]
        predicted = settle(state, choices, target)
        best = (predicted[..., 0] - alphas * predicted[..., 1]).argmax(axis=1)
        chosen = best[:, None, :, None]
        followed, told = (np.take_along_axis(each, chosen, 1) for each in (target, predicted))
        ahead[state] = np.where(np.isnan(followed), told, followed)[:, 0]


def _fit_state(
    texts: Array, numbers: Array, target: Floats, knots: Floats, landmarks: slice
) -> tuple[Position, Floats]:
    """The regression at one state, and its prediction of each query without that query.

    Args:
        texts: float32[n, components].
        numbers: float32[n, numbers + 1].
        target: float64[n, a, K, 2], what followed each action; NaN where nobody called.
        knots: float64[K].
        landmarks: which of the queries the kernel is spanned by.
    """
    columns = np.flatnonzero(np.ptp(numbers, axis=0) > 0)
    quantiles = np.quantile(numbers[:, columns], np.linspace(0, 1, QUANTILES), axis=0).T
    quantiles = quantiles.astype(np.float32).reshape(-1, QUANTILES)
    seen = Seen(texts, ranked(numbers[:, columns], quantiles))
    known, shape = ~np.isnan(target[:, :, 0, 0]), target.shape[1:]
    # Actions that are known on the same queries go together: what is not known is not asked.
    groups = [
        (np.flatnonzero(called), np.flatnonzero((known == called[:, None]).all(axis=0)))
        for called in np.unique(known, axis=1).T
    ]
    # What is compared: R of each action less the mean of all, at each knot in its own scale.
    reward = target[..., 0] - knots * target[..., 1]
    usual = np.where(known[..., None], reward, np.nanmean(reward, axis=0))
    apart = reward - usual.mean(axis=1, keepdims=True)
    scale = apart[known].std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)

    def spanned(kernel: int, among: Seen) -> list[_Spanned]:
        """Of each group."""
        return [_Spanned(seen.at(rows), kernel, among) for rows, _ in groups]

    def errors(regressions: Sequence[_Spanned]) -> Floats:
        """float64[ridges]: of all actions."""
        found = np.zeros(len(RIDGES))
        for (rows, group), each in zip(groups, regressions, strict=True):
            wanted = (apart[np.ix_(rows, group)] / scale).reshape(len(rows), -1)
            found += wanted.size * each.errors(wanted)
        return found

    among = seen.at(slice(min(SKETCH, landmarks.stop)))
    kernel = int(np.argmin([errors(spanned(each, among)).min() for each in range(KERNELS)]))
    among = seen.at(landmarks)
    regressions = spanned(kernel, among)
    ridge = RIDGES[int(errors(regressions).argmin())]
    weight, added = np.empty((len(among.texts), *shape)), np.empty(shape)
    without, leverage = np.empty(target.shape), np.zeros(known.shape)
    for (rows, group), regression in zip(groups, regressions, strict=True):
        flat = target[np.ix_(rows, group)].reshape(len(rows), -1)
        slopes, level, plain = regression.fit(flat, ridge)
        weight[:, group] = slopes.reshape(-1, len(group), *shape[1:])
        added[group] = level.reshape(-1, *shape[1:])
        leverage[np.ix_(rows, group)] = regression.leverage(ridge)[:, None]
        predicted = _left_out(plain, flat, leverage[rows][:, group[:1]])
        without[np.ix_(rows, group)] = predicted.reshape(len(rows), len(group), *shape[1:])
        if len(others := np.flatnonzero(~known[:, group[0]])):
            told = seen.at(others).kernel(among, kernel) @ slopes + level
            without[np.ix_(others, group)] = told.reshape(len(others), len(group), *shape[1:])
    held_out = without[..., 0] - knots * without[..., 1]
    held_out[~known] = reward[~known] = -np.inf
    some = known.any(axis=1)
    position = Position(
        kernel=np.array([kernel]),
        texts=among.texts,
        ranks=among.ranks,
        columns=columns,
        quantiles=quantiles,
        weight=weight.reshape(len(weight), -1).astype(np.float32),
        added=added.ravel().astype(np.float32),
        temperature=_temperature(held_out[some], reward[some], scale).astype(np.float32),
        leverage=(leverage[:, :1] if known.all() else leverage).astype(np.float32),
    )
    return position, without


def _left_out(predicted: Array | Floats, wanted: Floats, leverage: Array | Floats) -> Floats:
    """What a ridge regression predicts of each row without it, see `_Spanned.leverage`.

    Of what nobody called, NaN in `wanted`, it learned nothing.
    """
    without = (predicted - leverage * wanted) / (1 - leverage)
    return np.where(np.isnan(wanted), predicted, without)


class _Spanned:
    """Ridge regressions on a kernel that some landmarks span (Nystroem's method).

    Where the rows are among the landmarks it is kernel ridge regression itself.

    Args:
        seen: n rows.
        kernel: see `Seen.kernel`.
        among: m landmarks.
    """

    def __init__(self, seen: Seen, kernel: int, among: Seen) -> None:
        own = among.kernel(among, kernel)
        root = np.linalg.cholesky(own + JITTER * np.eye(len(own)))
        wide = seen.kernel(among, kernel)
        self._middle = wide.mean(axis=0)
        from scipy.linalg import solve_triangular  # a fit's; who only decides waits for no scipy

        rows = solve_triangular(root, (wide - self._middle).T, lower=True).T
        self._size, turn = np.linalg.eigh(rows.T @ rows)
        self._rows = rows @ turn
        self._squares = self._rows**2
        self._back = solve_triangular(root.T, turn)

    def leverage(self, ridge: float) -> Floats:
        """float64[n]: how much of its own prediction each row decides, the mean included."""
        found: Floats = self._squares @ (1 / (self._size + ridge)) + 1 / len(self._rows)
        return found.clip(max=MOST)

    def errors(self, wanted: Floats) -> Floats:
        """float64[ridges]: mean square error, each row left out, of float64[n, outputs]."""
        centred = wanted - wanted.mean(axis=0)
        seen, found = self._rows.T @ centred, []
        for ridge in RIDGES:
            missed = centred - self._rows @ (seen / (self._size + ridge)[:, None])
            found.append(np.mean((missed / (1 - self.leverage(ridge))[:, None]) ** 2))
        return np.array(found)

    def fit(self, wanted: Floats, ridge: float) -> tuple[Floats, Floats, Floats]:
        """Weights of the landmarks, float64[m, outputs], what is added, and what they predict."""
        mean = wanted.mean(axis=0)
        inner = (self._rows.T @ (wanted - mean)) / (self._size + ridge)[:, None]
        weight = self._back @ inner
        return weight, mean - self._middle @ weight, self._rows @ inner + mean


def _temperature(expected: Floats, reward: Floats, scale: Floats) -> Floats:
    """float64[K]: with which the softmax of what is expected is the likeliest to name the best.

    `expected`, `reward`: float64[n, a, K], before and after; `scale`: float64[K], of R.
    """
    is_best = reward >= reward.max(axis=1, keepdims=True) - SAME * scale
    apart = (expected - expected.max(axis=1, keepdims=True)) / scale
    likely = []
    for temperature in TEMPERATURES:
        chance = np.exp(apart / temperature)
        named = (chance * is_best).sum(axis=1) / chance.sum(axis=1)
        likely.append(np.log(named.clip(SAME)).mean(axis=0))
    return TEMPERATURES[np.argmax(likely, axis=0)] * scale
