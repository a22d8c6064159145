"""Routers that learn vectors of questions and arms: matrix factorisation, dual encoder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.learning.baselines import arms
from hierrouter.learning.baselines.arms import Arms, Candidates, GridSearch, Play, Seen

Array = NDArray[np.float32]


def descend(
    start: Sequence[Array],
    loss: Callable[[Sequence[Tensor]], Tensor],
    stops: Sequence[int],
    learning_rate: float,
) -> Iterator[tuple[int, list[Array]]]:
    """Follow the gradient of a loss.

    `start`: float32 arrays to be learned; they are not changed; `loss`: of tensors in the order of
    `start`; called once a step, it may draw a batch; `stops`: numbers of steps, rising.

    Yields:
        The number of steps made and a copy of the arrays, at each stop.
    """
    weights = [torch.tensor(values, requires_grad=True) for values in start]
    adam = torch.optim.Adam(weights, lr=learning_rate)
    made = 0
    for stop in stops:
        for _ in range(stop - made):
            adam.zero_grad()
            loss(weights).backward()  # type: ignore[no-untyped-call]
            adam.step()
        made = stop
        yield made, [weight.detach().numpy().copy() for weight in weights]


def random_map(rng: np.random.Generator, inputs: int, outputs: int, spread: float) -> Array:
    """float32[inputs, outputs], normal with a standard deviation of `spread`."""
    return rng.normal(0, spread, (inputs, outputs)).astype(np.float32)


def arm_loss(likeness: Tensor, reward: Tensor, positives: int) -> Tensor:
    """Contrast of each of a question's best arms with its worse ones.

    `likeness`: float32[queries, arms]; `reward`: float32[queries, arms]; `positives`: how many arms
    are best; the others are negatives.
    """
    order = reward.argsort(dim=1, descending=True, stable=True)
    best, worst = order[:, :positives], order[:, positives:]
    against = likeness.gather(1, worst).logsumexp(dim=1, keepdim=True)
    loss = functional.softplus(against - likeness.gather(1, best)).mean(dim=1)
    spread = reward.gather(1, best).mean(dim=1) - reward.gather(1, worst).mean(dim=1)
    return (spread * loss).sum() / spread.sum().clamp(min=torch.finfo(spread.dtype).tiny)


def question_loss(place: Tensor, group: Tensor) -> Tensor:
    """Contrast of questions of the same group with all others.

    `place`: float32[queries, rank], of length 1; `group`: int[queries].
    """
    likeness = (place @ place.T).fill_diagonal_(-torch.inf)
    same = (group[:, None] == group[None, :]).fill_diagonal_(False)
    share = torch.log_softmax(likeness, dim=1).masked_fill(~same, 0)
    return -(share.sum(dim=1) / same.sum(dim=1).clamp(min=1)).mean()


Battles = Literal["all", "best"]


@dataclass(frozen=True)
class Factorisation(GridSearch):
    """Grid: who meets whom, and the steps of training.

    Attributes:
        battles: "all" with all, or the "best" arm of a query with all others.
        steps: of Adam, over all train queries each; rising.
        rank: length of the vectors.
        weighed: a win counts as much as it gains in R; False is the source's way.
    """

    battles: tuple[Battles, ...] = ("all", "best")
    steps: tuple[int, ...] = (50, 150, 400)
    rank: int = 32
    weighed: bool = True
    learning_rate: float = 0.01
    name: ClassVar[str] = "matrix factorisation"
    source: ClassVar[str] = "Ong et al. 2024, arXiv 2406.18665"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One training for each kind of battles, which is looked at after each number of steps."""
        for battles in self.battles:
            yield from self._trained(train, alpha, battles, rng)

    def _trained(
        self, train: Arms, alpha: float, battles: Battles, rng: np.random.Generator
    ) -> Candidates:
        question = torch.from_numpy(arms.columns(train.seen.question))
        reward = torch.from_numpy(train.reward(alpha).astype(np.float32))
        best = torch.from_numpy(cheapest_best(train.reward(alpha), train.cost))[:, None]

        def loss(weights: Sequence[Tensor]) -> Tensor:
            into, places = weights
            drawn = torch.from_numpy(rng.permutation(len(places)))
            opponent = (best if battles == "best" else drawn).expand(reward.shape)
            lead, gap = (
                value - value.gather(1, opponent) for value in (question @ into @ places.T, reward)
            )
            return lost_battles(lead, gap, self.weighed)

        # Arms start as equals, so that the cheapest is chosen where there is nothing to learn.
        start = [
            random_map(rng, question.shape[1], self.rank, self.rank**-0.5),
            np.zeros((train.seen.arms, self.rank), dtype=np.float32),
        ]
        for steps, (into, places) in descend(start, loss, self.steps, self.learning_rate):
            play = partial(_factored, into, places, train.cost.mean(axis=0))
            yield {"battles": battles, "steps": steps}, play


def lost_battles(lead: Tensor, gap: Tensor, weighed: bool) -> Tensor:
    """Mean negative log-likelihood of who won.

    Args:
        lead: float32[...], strength of one arm less that of its opponent.
        gap: float32[...], its reward less the opponent's; 0 is no battle.
        weighed: a battle counts as much as its gap is wide.
    """
    weight = gap.abs() if weighed else (gap != 0).float()
    loss = torch.nn.functional.softplus(-torch.sign(gap) * lead)
    return (weight * loss).sum() / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)


def _factored(into: Array, places: Array, cost: NDArray[np.float64], seen: Seen) -> Play:
    return arms.strongest(seen, arms.columns(seen.question) @ into @ places.T, cost)


@dataclass(frozen=True)
class DualEncoder(GridSearch):
    """Grid: how many arms suit a question, and the steps of training.

    Attributes:
        positives: best arms of a question, at most all but one.
        steps: of Adam; rising.
        batch: queries a step.
        clusters: of the train questions, at most as many as there are.
        cluster_weight: of the loss between questions.
        hidden: width of the network.
        rank: length of the vectors.
    """

    positives: tuple[int, ...] = (1, 3)
    steps: tuple[int, ...] = (100, 300)
    batch: int = 256
    clusters: int = 8
    cluster_weight: float = 1.0
    hidden: int = 64
    rank: int = 32
    learning_rate: float = 0.003
    name: ClassVar[str] = "dual encoder"
    source: ClassVar[str] = "Chen et al. 2024, arXiv 2409.19886"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One training for each number of positives, looked at after each number of steps."""
        question = arms.columns(train.seen.question)
        clusters = min(self.clusters, len(np.unique(question, axis=0)))
        means = KMeans(clusters, n_init=1, random_state=int(rng.integers(2**31)))
        cluster = means.fit_predict(question)
        for count in sorted({min(count, train.seen.arms - 1) for count in self.positives}):
            yield from self._trained(train, alpha, count, cluster, rng)

    def _trained(
        self,
        train: Arms,
        alpha: float,
        positives: int,
        cluster: NDArray[np.int32],
        rng: np.random.Generator,
    ) -> Candidates:
        question = torch.from_numpy(arms.columns(train.seen.question))
        reward = torch.from_numpy(train.reward(alpha).astype(np.float32))
        group = torch.from_numpy(cluster)

        def loss(weights: Sequence[Tensor]) -> Tensor:
            rows = torch.from_numpy(rng.integers(0, len(question), self.batch))
            place = _encoded(question[rows], *weights[:2])
            to_arms = arm_loss(place @ weights[2].T, reward[rows], positives)
            return to_arms + self.cluster_weight * question_loss(place, group[rows])

        # Arms start as equals, so that the cheapest is chosen where there is nothing to learn.
        start = [
            random_map(rng, question.shape[1], self.hidden, 1.0),
            random_map(rng, self.hidden, self.rank, self.hidden**-0.5),
            np.zeros((train.seen.arms, self.rank), dtype=np.float32),
        ]
        for steps, weights in descend(start, loss, self.steps, self.learning_rate):
            play = partial(_nearest_arm, weights, train.cost.mean(axis=0))
            yield {"positives": positives, "steps": steps}, play


def _encoded(question: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return functional.normalize(torch.tanh(question @ first) @ second, dim=1)


def _nearest_arm(weights: Sequence[Array], cost: NDArray[np.float64], seen: Seen) -> Play:
    first, second, places = (torch.from_numpy(weight) for weight in weights)
    question = torch.from_numpy(arms.columns(seen.question))
    return arms.strongest(seen, (_encoded(question, first, second) @ places.T).numpy(), cost)
