"""A policy over features of models routes in pools that it was not trained on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hierrouter.evaluation.bounds import best_route_per_dataset, oracle
from hierrouter.evaluation.outcome import Actions, Outcome
from hierrouter.learning.config import ExactConfig, Objective
from hierrouter.learning.featured import Examples, TrainedFeatured, pools_of, train_featured
from hierrouter.learning.loop import Snapshot, Watch
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, sub_pool
from tests.hierrouter.learning.runs import ALPHA, OBJECTIVE, small_tree
from tests.hierrouter.trees import planted_tree

SHORT = ExactConfig(epochs=4, queries=8)
SHORTEST = replace(SHORT, steps=5)


@pytest.fixture(scope="module")
def whole() -> RouteTree:
    return planted_tree(models=5, families=8, per_family=(30, 10, 15))


@pytest.fixture(scope="module")
def before(whole: RouteTree) -> TrainedFeatured:
    """Trained before model-0 was there."""
    return train_featured(sub_pool(whole, whole.models[1:]), OBJECTIVE, SHORT)


@pytest.fixture(scope="module")
def retrained(whole: RouteTree) -> TrainedFeatured:
    """Trained on all models."""
    return train_featured(whole, OBJECTIVE, SHORT)


def reward(outcome: Outcome) -> float:
    return float(outcome.reward(ALPHA).mean())


def test_a_model_added_after_the_training_is_routed_to(
    whole: RouteTree, before: TrainedFeatured, retrained: TrainedFeatured
) -> None:
    test, known = whole.split("test"), whole.split("train")
    joined = before.outcome(test, known)
    assert reward(joined) > reward(oracle(sub_pool(test, whole.models[1:]), ALPHA)) + 0.1
    assert reward(joined) > reward(best_route_per_dataset(known, ALPHA, test)) + 0.05
    assert reward(joined) > reward(retrained.outcome(test, known)) - 0.02


def test_a_model_that_leaves_is_not_missed(
    whole: RouteTree, before: TrainedFeatured, retrained: TrainedFeatured
) -> None:
    part = sub_pool(whole, whole.models[1:])
    test, known = part.split("test"), part.split("train")
    assert reward(retrained.outcome(test, known)) > reward(before.outcome(test, known)) - 0.02


def test_a_model_is_known_by_its_answers_not_by_its_place(
    whole: RouteTree, before: TrainedFeatured
) -> None:
    turned = sub_pool(whole, whole.models[::-1])
    chances = [
        before.probabilities(tree.split("test"), tree.split("train")) for tree in (whole, turned)
    ]
    assert chances[1][:, 0] == pytest.approx(chances[0][:, 0, ::-1], abs=1e-5)
    assert chances[1][:, 2] == pytest.approx(chances[0][:, 4, ::-1], abs=1e-5)


def test_a_question_is_not_looked_up_itself(before: TrainedFeatured, whole: RouteTree) -> None:
    part = sub_pool(whole, whole.models[1:]).split("train")
    known = Examples.of(part, OBJECTIVE)
    changed = replace(known, reward=known.reward.clone())
    changed.reward[3] = 100
    query = torch.tensor([3])
    states = known.fold.table.trees(query)
    blind = [before.network(states, what, query) for what in (known, changed)]
    assert torch.allclose(*blind)
    assert not torch.allclose(before.network(states, changed), blind[0])


def test_nor_is_it_where_the_train_fold_chooses() -> None:
    tree = small_tree().split("train")
    trained = train_featured(tree, OBJECTIVE, SHORT)
    assert max(trained.history) < reward(trained.outcome(tree, tree)) - 0.1


def test_a_live_decision_is_that_of_the_fold(before: TrainedFeatured, whole: RouteTree) -> None:
    fold, train = whole.split("validation").select(np.arange(5)), whole.split("train")
    expected, known = before.probabilities(fold, train), Examples.of(train, OBJECTIVE)
    embedding = fold.embedding
    for query, state in np.ndindex(len(fold), fold.routes.states):
        live = before.decide(embedding[query, state], fold.routes.path(state), known)
        assert live == pytest.approx(expected[query, state], abs=1e-5)


def test_with_stop_only_what_is_legal_is_chosen() -> None:
    tree = small_tree()
    trained = train_featured(tree, Objective(0.05, allow_stop=True), SHORTEST)
    chances = trained.probabilities(tree, tree.split("train"))
    assert chances.shape == (len(tree), 4, 6)
    assert not chances[:, ~Actions(tree.routes, allow_stop=True).legal()].any()
    assert chances.sum(axis=2) == pytest.approx(1)


def test_resumed_it_ends_in_the_same_bits() -> None:
    tree, config = small_tree(), replace(SHORTEST, checkpoint_every=2)
    halves: list[Snapshot] = []
    straight = train_featured(tree, OBJECTIVE, config, 1, Watch(on_snapshot=halves.append))
    resumed = train_featured(tree, OBJECTIVE, config, 1, resumed=halves[0])
    assert straight.history == resumed.history
    weights = zip(straight.network.parameters(), resumed.network.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in weights)


def test_it_is_trained_on_the_pool_and_on_all_of_one_model_less() -> None:
    names = small_tree().models
    pools = [names, names[1:], (names[0], names[2]), names[:2]]
    assert [pool.models for pool in pools_of(small_tree())] == pools
    assert len(pools_of(sub_pool(small_tree(), names[:2]))) == 1


def test_without_any_text_the_mean_skill_decides() -> None:
    tree = replace(small_tree(), parts=(), view="stage")
    trained = train_featured(tree, OBJECTIVE, SHORTEST)
    chances = trained.probabilities(tree.split("test"), tree.split("train"))
    assert np.ptp(chances, axis=0).max() < 1e-6


def test_another_view_or_pool_an_empty_train_fold_and_a_limit_are_refused(
    before: TrainedFeatured, whole: RouteTree
) -> None:
    test, known = whole.split("test"), whole.split("train")
    for fold, examples, message in (
        (replace(test, view="query"), known, "another view"),
        (test, sub_pool(known, whole.models[1:]), "is of other models: model-1, .* same pool"),
        (test, known.select(np.arange(0)), "nothing is known"),
    ):
        with pytest.raises(InputError, match=message):
            before.outcome(fold, examples)
    with pytest.raises(InputError, match="max_cost cannot be kept in pools that change"):
        train_featured(small_tree(), Objective(0.0, max_cost=1.0))
