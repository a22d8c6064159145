"""The network, and a policy over features of models in pools that it was not trained on."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.bounds import best_route_per_dataset, oracle
from hierrouter.evaluation.outcome import Actions, Outcome
from hierrouter.learning import network
from hierrouter.learning.config import ExactConfig, Objective, TrainConfig
from hierrouter.learning.featured import Examples, TrainedFeatured, pools_of, train_featured
from hierrouter.learning.loop import Snapshot, Watch
from hierrouter.learning.network import Router, in_chunks, state_table
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree, sub_pool
from tests.hierrouter.evaluation.test_outcome import random_table
from tests.hierrouter.learning.runs import ALPHA, GLIMPSE, OBJECTIVE, glimpse, small_tree
from tests.hierrouter.trees import planted_tree, random_tree, two_step_tree


def test_a_table_holds_the_states_in_the_order_of_their_numbers() -> None:
    tree = random_tree(Routes(3, 2), 5, seed=0)
    table = state_table(tree, OBJECTIVE)
    query, node = 3, 2
    embedding, stage, cost, legal = table.rows(torch.tensor([query * tree.routes.states + node]))
    np.testing.assert_array_equal(embedding[0], tree.embedding[query, node])
    assert (stage.tolist(), legal.tolist()) == ([1], [[True] * 3])
    np.testing.assert_allclose(cost, tree.cost[query, [node]])
    found = table.trees(torch.tensor([3, 1]))
    expected = table.rows(torch.tensor([12, 13, 14, 15, 4, 5, 6, 7]))
    assert all(torch.equal(*columns) for columns in zip(found, expected, strict=True))


def test_chunks_are_put_together_in_order() -> None:
    table = state_table(random_tree(Routes(3, 2), network.CHUNK // 2, seed=0), OBJECTIVE)
    assert len(table) == 2 * network.CHUNK
    assert torch.equal(in_chunks(lambda states: states.cost[:, None], table)[:, 0], table.cost)
    some = torch.arange(0, len(table), 3).flip(0)
    assert torch.equal(in_chunks(lambda states: states.cost, table, some), table.cost[some])


def test_a_live_state_gets_the_answer_of_the_table() -> None:
    tree = small_tree()
    trained = glimpse(tree)
    table = trained.probabilities(tree)
    for query, node in [(0, 0), (4, 2), (10, 3)]:
        live = tree.embedding[query, node], tree.routes.path(node), float(tree.cost[query, node])
        np.testing.assert_allclose(trained.decide(*live), table[query, node], atol=1e-6)
        assert trained.choose(*live) == table[query, node].argmax()


def new_router(tree: RouteTree, config: TrainConfig) -> Router:
    torch.manual_seed(0)
    return Router(network.shape_for(tree, Actions(tree.routes), config))


def test_the_first_layer_is_one_map_of_the_concatenation() -> None:
    tree = small_tree()
    router = new_router(tree, GLIMPSE)
    states = state_table(tree, OBJECTIVE).rows(slice(0, 7))
    embedding, stage, cost, _ = states
    scale, per_cost = router.shape.embedding_scale, router.shape.cost_scale
    joined = torch.cat([embedding * scale, router.stage(stage), cost[:, None] / per_cost], dim=1)
    weight = torch.cat([router.context.weight, router.progress.weight], dim=1)
    first = torch.tanh(joined @ weight.T + router.progress.bias)
    torch.testing.assert_close(router(states)[0], router.policy(torch.tanh(router.second(first))))


@pytest.mark.parametrize("scaled", [False, True])
def test_a_plain_start_is_as_torch_makes_one_map(scaled: bool) -> None:
    tree = small_tree()
    config = replace(GLIMPSE, hidden=64, scale_embedding=scaled, plain_start=True)
    router = new_router(tree, config)
    inputs = tree.dim + config.stage_dim + 1
    layers = {router.context: inputs, router.progress: inputs, router.policy: 64, router.value: 64}
    for layer, read in layers.items():
        bound = 1 / math.sqrt(read)
        assert 0.9 * bound < layer.weight.abs().max() <= bound
    assert router.policy.bias.any()


def test_without_a_plain_start_the_heads_start_orthogonal_and_have_no_favourite() -> None:
    tree = small_tree()
    router = new_router(tree, replace(GLIMPSE, scale_embedding=False))
    weight = router.policy.weight
    torch.testing.assert_close(weight @ weight.T, 1e-4 * torch.eye(3))
    assert not router.policy.bias.any()
    probabilities = network.action_probabilities(router, state_table(tree, OBJECTIVE))
    np.testing.assert_allclose(probabilities, 1 / 3, atol=0.02)


def test_costs_are_scaled_but_not_in_the_papers_preset_nor_where_there_are_none() -> None:
    assert network.cost_scale(random_tree(Routes(2, 1), 3, seed=0)) == 1.0
    tree = random_tree(Routes(2, 2), 3, seed=0)
    assert new_router(tree, replace(GLIMPSE, scale_cost=False)).shape.cost_scale == 1.0
    assert new_router(tree, GLIMPSE).shape.cost_scale == network.cost_scale(tree) != 1.0


def test_a_router_that_sees_no_text_is_made_without_a_word() -> None:
    tree = two_step_tree(view="stage")
    assert tree.dim == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        router = new_router(tree, GLIMPSE)
    states = state_table(tree, OBJECTIVE).rows(slice(0, 8))
    assert states.embedding.shape == (8, 0)
    assert router(states)[0].shape == (8, 3)


PAYS = 0.05  # alpha
shapes = st.builds(Routes, st.integers(1, 3), st.integers(1, 3))
trees = st.builds(random_tree, shapes, st.integers(1, 4), st.integers(0, 2**16))


@given(trees, st.booleans(), st.integers(0, 2**16))
def test_values_of_an_action_are_those_of_all_that_may_follow(
    tree: RouteTree, allow_stop: bool, seed: int
) -> None:
    """By recursion: where the best, a random, or a policy's actions are taken afterwards."""
    actions, pays = Actions(tree.routes, allow_stop), tree.node_reward(PAYS)
    table = random_table(tree, seed, allow_stop=allow_stop, legal=False)

    def value(query: int, node: int, action: int) -> tuple[float, float, float]:
        child, _, over = actions.after(node, action)
        if over:
            return (pays[query, child],) * 3
        below = [value(query, child, after) for after in range(actions.count)]
        best, mean, followed = zip(*below, strict=True)
        return max(best), float(np.mean(mean)), float(table[query, child] @ followed)

    reward = torch.from_numpy(pays)
    ours = network.best_and_random_values(actions, reward).numpy()
    policy = network.action_values(actions, torch.from_numpy(table), reward).numpy()
    for place in np.ndindex(*policy.shape):
        assert (*ours[place], policy[place]) == pytest.approx(value(*place))
    found = network.expected_return(actions, torch.from_numpy(table), reward)
    assert found.numpy() == pytest.approx((table[:, 0] * policy[:, 0]).sum(axis=1))


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


def test_a_model_is_known_by_its_answers(whole: RouteTree, before: TrainedFeatured) -> None:
    turned = sub_pool(whole, whole.models[::-1])
    chances = [
        before.probabilities(tree.split("test"), tree.split("train")) for tree in (whole, turned)
    ]
    assert chances[1][:, 0] == pytest.approx(chances[0][:, 0, ::-1], abs=1e-5)
    assert chances[1][:, 2] == pytest.approx(chances[0][:, 4, ::-1], abs=1e-5)


def test_a_question_is_not_looked_up_itself(before: TrainedFeatured, whole: RouteTree) -> None:
    known = Examples.of(sub_pool(whole, whole.models[1:]).split("train"), OBJECTIVE)
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


def test_a_live_decision_is_the_folds(before: TrainedFeatured, whole: RouteTree) -> None:
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
