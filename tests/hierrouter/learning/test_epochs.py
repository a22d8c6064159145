"""The loop over epochs: which weights it keeps, when it looks, when it ends, and on which fold."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from hierrouter.learning.config import ExactConfig, Objective
from hierrouter.learning.network import (
    BestIterate,
    LearnerState,
    RouterNetwork,
    TrainingFold,
    best_iterate,
    shape_for,
)
from hierrouter.learning.router import training_folds
from hierrouter.learning.training import train
from hierrouter.replay.env import ReplayEnv
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.trainings import EXACT_GLIMPSE, small_tree
from tests.hierrouter.trees import FOLDS, planted_tree

ALPHA = 0.05


class CountingLearner:
    """A learner whose network is the number of epochs that it has learned for."""

    def __init__(self) -> None:
        self.router = nn.Linear(1, 1, bias=False)
        self.router.requires_grad_(False).weight.fill_(0)

    def epoch(self) -> dict[str, float]:
        self.router.weight += 1  # in place, as an optimiser does it
        return {}

    def state(self) -> LearnerState:
        return LearnerState({}, {})

    def restore(self, state: LearnerState) -> None:
        """There is nothing to put back."""


@dataclass(frozen=True)
class Values:
    """Value of the network after each epoch on the fold to learn from, and on the other."""

    train: tuple[float, ...]
    validation: tuple[float, ...]


def run(values: Values, **settings: float) -> tuple[int, BestIterate, list[tuple[float, ...]]]:
    """The epoch whose weights are kept, the record, and all evaluations."""
    learner = CountingLearner()
    evaluations: list[tuple[float, ...]] = []

    def value(network: nn.Linear, fold: tuple[float, ...]) -> float:
        return fold[int(network.weight.item()) - 1]

    config = ExactConfig(**{"epochs": len(values.train), "patience": 0, **settings})
    folds = (values.train, values.validation)
    best = best_iterate(learner, value, folds, config, lambda *values: evaluations.append(values))
    return int(learner.router.weight.item()), best, evaluations


@pytest.mark.parametrize(
    ("train", "validation", "best_epoch"),
    [
        ((0.1, 0.2, 0.3), (0.5, 0.9, 0.7), 2),  # the best on validation, and not the last
        ((0.9, 0.2, 0.1), (0.1, 0.2, 0.3), 3),  # validation counts before train
        ((0.1, 0.3, 0.2), (0.5, 0.5, 0.5), 2),  # of equals there, the best on train
        ((0.2, 0.2, 0.2), (0.5, 0.5, 0.5), 1),  # of equals everywhere, the first
    ],
)
def test_the_kept_weights_are_the_best_on_validation(
    train: tuple[float, ...], validation: tuple[float, ...], best_epoch: int
) -> None:
    epoch, best, evaluations = run(Values(train, validation))
    assert epoch == best_epoch
    assert (best.train, best.validation) == (train[best_epoch - 1], validation[best_epoch - 1])
    assert best.history == list(validation)
    numbers = itertools.count(1)
    assert evaluations == [
        (next(numbers), len(train), *both) for both in zip(train, validation, strict=True)
    ]


def test_it_looks_after_every_so_many_epochs_and_after_the_last() -> None:
    values = tuple(range(8))
    epoch, _, evaluations = run(Values(values, values), evaluate_every=3)
    assert epoch == 8
    assert [done for done, *_ in evaluations] == [3, 6, 8]


@pytest.mark.parametrize(("patience", "epochs"), [(0, 6), (1, 3), (2, 4), (3, 6)])
def test_it_ends_after_so_many_looks_without_a_gain(patience: int, epochs: int) -> None:
    values = (0.1, 0.2, 0.2, 0.1, 0.2004, 0.3)
    _, _, evaluations = run(Values(values, values), patience=patience, min_gain=0.0001)
    assert len(evaluations) == epochs


def test_one_fold_that_is_both_is_valued_once() -> None:
    valued_epochs = []
    fold = (0.1, 0.3, 0.2)
    learner = CountingLearner()

    def value(network: nn.Linear, fold: tuple[float, ...]) -> float:
        valued_epochs.append(int(network.weight.item()))
        return fold[valued_epochs[-1] - 1]

    best_iterate(learner, value, (fold, fold), ExactConfig(epochs=3, patience=0))
    assert valued_epochs == [1, 2, 3]
    assert learner.router.weight.item() == 2


def test_it_learns_from_train_and_chooses_on_validation() -> None:
    tree = small_tree()
    learn_from, choose_on = training_folds(tree)
    assert set(learn_from.splits) == {"train"} and set(choose_on.splits) == {"validation"}
    assert {*learn_from.query_ids, *choose_on.query_ids} == {
        name for name, fold in zip(tree.query_ids, tree.splits, strict=True) if fold != "test"
    }
    only_fold, same_fold = training_folds(tree.split("train"))
    assert same_fold is only_fold


@pytest.mark.parametrize("fold", ["train", "validation"])
def test_the_values_of_an_evaluation_are_those_of_the_folds(fold: str) -> None:
    """A fold on which nothing is worth anything has the value 0, and no other has."""
    tree = planted_tree(per_family=(6, 4, 2), dim=8)
    spoilt = np.array(tree.splits) == fold
    tree = replace(
        tree,
        score=np.where(spoilt[:, None], 0.0, np.maximum(tree.score, 0.5)),
        rate=np.zeros_like(tree.rate),
    )
    evaluations: list[dict[str, float]] = []
    train(
        tree,
        Objective(ALPHA),
        replace(EXACT_GLIMPSE, epochs=1),
        0,
        lambda done, total, *values: evaluations.append(dict(zip(FOLDS, values, strict=False))),
    )
    [values] = evaluations
    assert values.pop(fold) == 0
    assert min(values.values()) >= 0.5


@pytest.mark.parametrize("stop", [False, True])
def test_a_router_is_worth_what_its_likeliest_actions_earn(stop: bool) -> None:
    """Mean R over all queries, not standardised: as the environment pays for each."""
    tree = planted_tree(per_family=(3, 2, 1), dim=8).split("train")
    fold = TrainingFold.of(tree, Objective(ALPHA, allow_stop=stop))
    torch.manual_seed(0)
    config = ExactConfig(hidden=8, plain_start=True)
    router = RouterNetwork(shape_for(tree, fold.actions, config))
    table = router.export().policy(tree, fold.actions)
    assert fold.value(router, ALPHA) == pytest.approx(played(tree, table, stop))


def played(tree: RouteTree, table: np.ndarray, stop: bool) -> float:
    """Mean reward of the likeliest actions."""
    env = ReplayEnv(tree, ALPHA, stop)
    total = 0.0
    for query in range(len(tree)):
        _, info = env.reset(options={"query": query})
        ended = False
        while not ended:
            action = table[query, info["node"]].argmax()
            _, reward, ended, _, info = env.step(np.int64(action))
            total += reward
    return total / len(tree)
