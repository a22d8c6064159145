"""Trainings are reproducible, watched and chosen on validation; what they reach; presets."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.featured import train_featured
from hierrouter.evaluation import bounds
from hierrouter.evaluation.outcome import (
    Actions,
    LegalActions,
    ending_probabilities,
    ending_reward,
    greedy,
    policy_outcome,
)
from hierrouter.learning import config as presets
from hierrouter.learning import exact, network
from hierrouter.learning.config import (
    ExactConfig,
    NetworkConfig,
    Objective,
    PPOConfig,
    TrainConfig,
    ValueConfig,
)
from hierrouter.learning.forward import STATES_PER_PASS
from hierrouter.learning.network import RouterNetwork, TrainingFold, evaluate_in_chunks, state_table
from hierrouter.learning.router import Constant, TrainedRouter
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.learning.training import train
from hierrouter.runs.checkpoint import load_checkpoint, save_checkpoint
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import NEWEST, Layout
from hierrouter_cache.tree import CALL_MEASURES, RouteTree
from tests.conftest import SOURCES, environment
from tests.hierrouter.evaluation.test_outcome import random_table
from tests.hierrouter.learning import trainings
from tests.hierrouter.learning.trainings import ALPHA, EXACT_GLIMPSE, OBJECTIVE, digest, small_tree
from tests.hierrouter.trees import (
    FOLDS,
    one_part,
    planted_tree,
    ragged_tree,
    random_tree,
    sub_pool,
    two_step_tree,
)
from tests.warm import Warm

Training = Callable[[RouteTree, int], TrainedRouter | TrainedSweep]

TRAININGS: dict[str, Training] = {
    "ppo": lambda tree, seed: trainings.glimpse(tree, seed),
    "exact": lambda tree, seed: trainings.glimpse(tree, seed, config=EXACT_GLIMPSE),
    "value": lambda tree, seed: trainings.glimpse(tree, seed, config=trainings.VALUE),
    "every alpha": lambda tree, seed: trainings.sweep_glimpse(tree, seed),
}
PRINT_DIGESTS = """
import sys, torch
from pathlib import Path
from tests.hierrouter.learning.trainings import digest, small_tree
from tests.hierrouter.learning.test_training import TRAININGS
torch.set_num_threads(int(sys.argv[2]))
for name, training in TRAININGS.items():
    print(digest(training(small_tree(), 0), Path(sys.argv[1]) / name))
"""
every_training = pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())


@every_training
def test_the_same_seed_gives_the_same_bytes_and_leaves_generators_and_threads_alone(
    training: Training, tmp_path: Path
) -> None:
    tree, threads = small_tree(), torch.get_num_threads()
    first = digest(training(tree, 0), tmp_path / "first")
    torch.set_num_threads(2)
    drawn = []
    for _ in range(2):
        torch.manual_seed(99)
        np.random.seed(99)
        if not drawn:
            assert digest(training(tree, 0), tmp_path / "second") == first
        drawn.append((torch.rand(1).item(), np.random.random()))
    assert drawn[0] == drawn[1]
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    assert digest(training(tree, 1), tmp_path / "other") != first


def test_a_process_with_other_threads_gives_the_same_bytes(tmp_path: Path, warm: Warm) -> None:
    threads = 1 if torch.get_num_threads() > 1 else 2
    command = ("-c", PRINT_DIGESTS, str(tmp_path / "there"), str(threads))
    there = warm.start(*command, cwd=SOURCES, env=environment())
    here = [digest(made(small_tree(), 0), tmp_path / name) for name, made in TRAININGS.items()]
    assert there.result().stdout.split() == here


@every_training
def test_the_test_fold_has_no_influence(training: Training, tmp_path: Path) -> None:
    tree = small_tree()
    hidden = np.array(tree.splits) == "test"
    [part] = tree.parts
    unseen = np.repeat(hidden, tree.layout.inner)[:, None]
    spoilt = replace(
        tree,
        score=np.where(hidden[:, None], np.nan, tree.score),
        parts=(replace(part, vectors=np.where(unseen, np.float32(np.nan), part.vectors)),),
    )
    with_it, without_it = tmp_path / "with", tmp_path / "without"
    assert digest(training(tree, 0), with_it) == digest(training(spoilt, 0), without_it)


@pytest.mark.parametrize("config", [trainings.GLIMPSE, EXACT_GLIMPSE], ids=["ppo", "exact"])
def test_the_best_iterate_on_validation_is_kept(config: TrainConfig) -> None:
    tree, seen = planted_tree(per_family=(12, 6, 3), dim=16), []
    trained = train(
        tree, OBJECTIVE, replace(config, epochs=8), 0, lambda *values: seen.append(values)
    )
    reached = trained.outcome(tree.split("validation")).reward(ALPHA).mean()
    assert [(done, total) for done, total, *_ in seen] == [(done, 8) for done in range(1, 9)]
    assert tuple(validation for *_, validation in seen) == trained.history
    assert reached == max(trained.history)


def test_evaluations_come_when_planned() -> None:
    config = replace(trainings.GLIMPSE, epochs=8, iterations=2, evaluate_every=3)
    evaluated: list[int] = []
    train(small_tree(), OBJECTIVE, config, 0, lambda done, *_: evaluated.append(done))
    assert evaluated == [3, 6, 8]  # the last epoch always counts


def test_patience_ends_a_training_that_gets_no_better() -> None:
    config = replace(trainings.GLIMPSE, epochs=50, patience=2, learning_rate=0.0)
    assert len(train(small_tree(), OBJECTIVE, config, 0).history) == 3


def test_a_small_gain_is_kept_and_prolongs_no_training() -> None:
    best, module = network.BestIterate({}), nn.Linear(1, 1)
    for value, since in ((0.5, 0), (0.5004, 1), (0.5008, 0), (0.5009, 1), (0.2, 2)):
        best.offer(module, 0.0, value, min_gain=0.0005)
        assert best.evaluations_without_gain == since
    assert (best.validation, best.last_gain) == (0.5009, 0.5008)


def test_without_a_validation_fold_the_train_fold_chooses() -> None:
    tree = small_tree().split("train")
    trained = trainings.glimpse(tree)
    assert trained.outcome(tree).reward(ALPHA).mean() == max(trained.history)


FAR_SAMPLED = replace(trainings.GLIMPSE, learning_rate=1e38)
FAR_EXACT = replace(EXACT_GLIMPSE, learning_rate=1e38)
TWICE = replace(FAR_SAMPLED, iterations=2)


@pytest.mark.parametrize("config", [FAR_SAMPLED, TWICE, FAR_EXACT], ids=["ppo", "twice", "exact"])
def test_a_lost_network_is_neither_valued_nor_kept(config: TrainConfig) -> None:
    told: list[object] = []
    with pytest.raises(InputError, match=r"training diverged in epoch 1: .*; lower learning_rate"):
        train(small_tree(), OBJECTIVE, config, 0, lambda *values: told.append(values))
    assert told == []


@pytest.mark.parametrize("config", [trainings.GLIMPSE, trainings.VALUE], ids=["ppo", "value"])
def test_there_must_be_something_to_train_on(config: TrainConfig) -> None:
    with pytest.raises(InputError, match="train fold is empty"):
        trainings.glimpse(small_tree().split("test"), config=config)


def test_where_queries_look_alike_the_mean_decides() -> None:
    """One first model is right in 40 % of queries, the other always by 0.3; nothing tells which."""
    tree = two_step_tree(view="stage", models=2)
    right = np.arange(len(tree)) % 5 < 2
    score = np.full_like(tree.score, 0.3)
    score[:, [1, 3, 4]] = right[:, None]
    tree = replace(tree, score=score)
    for algo in ("exact", "value"):
        trained = train(tree, Objective(0.0), presets.preset("default", algo), seed=0)
        assert trained.outcome(tree).reward(0.0).mean() == pytest.approx(0.4)


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(epochs=16, rollouts=256, hidden=32, patience=0),
        ExactConfig(epochs=24, steps=35),
        trainings.VALUE,
    ],
    ids=["ppo", "exact", "value"],
)
@pytest.mark.parametrize(
    ("view", "expected"),
    [("context", 1.0), ("query+answer", 1.0), ("query", 1 / 2), ("stage", 1 / 6)],
)
def test_a_training_reaches_the_bound_of_its_view_and_no_more(
    config: TrainConfig, view: str, expected: float
) -> None:
    """What a view does not show, no training finds.

    The bound is the best that any policy does that sees no more than the view shows, on the
    queries it is valued on; here all folds hold the same ones, and every route costs the same.
    """
    tree = two_step_tree(view=view)
    trained = train(tree, Objective(0.0), config, seed=0)
    for name in FOLDS:
        fold = tree.split(name)
        reached = trained.outcome(fold).reward(0.0).mean()
        assert reached <= expected + 1e-9
        # Where routes tie, leaving a query out is a vote against what is right for it.
        is_left_out = trained.holds_out and name != "test"
        assert reached >= 0.95 * expected or (is_left_out and view == "stage")
        assert bounds.oracle(fold, 0.0).reward(0.0).mean() == 1


STOPPING = Objective(0.05, allow_stop=True)


def in_families(fold: RouteTree, families: tuple[int, ...]) -> np.ndarray:
    return np.isin(fold.datasets, [f"family-{number}" for number in families])


def mean_depth(trained: TrainedRouter, fold: RouteTree, families: tuple[int, ...]) -> float:
    """Mean number of calls of the greedy policy on the queries of these families."""
    table = greedy(trained.probabilities(fold), fold.base_rate)
    depth = ending_probabilities(trained.actions, table) @ fold.layout.depth()
    return float(depth[in_families(fold, families)].mean())


@pytest.mark.parametrize("algo", ["ppo", "exact", "value"])
@pytest.mark.parametrize("early", [(0, 1, 2, 3, 4), (0, 2, 4)], ids=["always", "by query"])
def test_it_stops_where_the_first_answer_is_right(algo: str, early: tuple[int, ...]) -> None:
    """In some families of the planted tree: the first model of the right route is right already."""
    tree = planted_tree(luck=0.0)
    first = tree.score[:, tree.layout.leaves].reshape(len(tree), len(tree.models), -1).max(axis=2)
    score = tree.score.copy()
    score[:, tree.layout.level(1)] = np.where(in_families(tree, early)[:, None], first, 0)
    tree = replace(tree, score=score)
    fold, alpha = tree.split("test"), STOPPING.alpha
    epochs = None if algo == "value" else 12
    trained = train(tree, STOPPING, presets.training_config("default", algo, epochs), seed=0)
    bound = bounds.oracle(fold, alpha, allow_stop=True).reward(alpha).mean()
    assert trained.outcome(fold).reward(alpha).mean() >= 0.95 * bound
    assert (
        bounds.oracle(fold, alpha).reward(alpha).mean() < 0.98 * bound
    )  # stopping is worth something
    near = 0.15 if algo == "value" else 0.05  # it goes on where little is lost by that
    assert mean_depth(trained, fold, early) == pytest.approx(1, abs=near)
    late = tuple({0, 1, 2, 3, 4} - set(early))
    assert not late or mean_depth(trained, fold, late) == pytest.approx(2, abs=near)


def test_a_model_that_joins_after_the_training_is_routed_to_and_known_by_its_answers() -> None:
    whole = planted_tree(models=5, families=8, per_family=(30, 10, 15))
    before = sub_pool(whole, whole.models[1:])
    policy = train_featured(before, OBJECTIVE, ExactConfig(epochs=4, queries=8))
    test, known = whole.split("test"), whole.split("train")
    reached = policy.outcome(test, known).reward(ALPHA).mean()
    assert reached > bounds.oracle(before.split("test"), ALPHA).reward(ALPHA).mean() + 0.1
    assert reached > bounds.best_route_per_dataset(known, ALPHA, test).reward(ALPHA).mean() + 0.05
    turned = sub_pool(whole, whole.models[::-1])
    first = policy.probabilities(test, known)[:, 0]
    other = policy.probabilities(turned.split("test"), turned.split("train"))[:, 0]
    np.testing.assert_allclose(other, first[:, ::-1], atol=1e-5)


# --- presets, and what contradicts itself


@pytest.mark.parametrize(
    ("config", "title"),
    [
        (presets.preset("paper"), "the paper's PPO"),
        (replace(presets.preset("paper"), keep_anyway=False), "the paper's PPO"),
        (presets.training_config("paper", "ppo", epochs=3), "PPO, preset paper, epochs 3"),
        (
            replace(presets.preset("paper"), entropy_coefficient=0.1, gamma=1.0),
            "PPO, preset paper, gamma 1.0, entropy_coefficient 0.1",
        ),
        (presets.preset("default"), "PPO, preset default"),
        (
            replace(presets.preset("default"), epochs=3, rollouts=64, minibatches=4, hidden=16),
            "PPO, preset default, epochs 3, hidden 16, rollouts 64, 1 more changes",
        ),
        (presets.preset("default", "exact"), "learned by enumeration"),
        (presets.preset("default", "value"), "value model"),
    ],
)
def test_only_the_papers_training_has_its_title(config: TrainConfig, title: str) -> None:
    assert presets.training_title(config) == title


def test_a_training_is_of_a_preset_and_takes_one_epoch_or_more() -> None:
    for (name, algo), config in presets.PRESET_CONFIGS.items():
        assert presets.training_config(name, algo) is config
        assert (config.preset, config.algo) == (name, algo)
        assert type(config) is presets.CONFIG_CLASSES[algo]
        kept: TrainConfig = presets.training_config(name, algo, keep_anyway=True)
        assert kept == replace(config, keep_anyway=True)
    assert presets.training_config("default", "exact", 1, seeds=3) == replace(
        presets.PRESET_CONFIGS["default", "exact"], epochs=1
    )
    with pytest.raises(InputError, match="epochs must be at least 1, got 0"):
        presets.training_config("default", "ppo", 0)


def test_a_budget_takes_the_value_model_and_nothing_that_contradicts_it() -> None:
    assert presets.algorithm(None, None, 0.1) == "ppo"
    assert presets.algorithm(None, 0.5, None) == presets.algorithm("value", 0.5, None) == "value"
    for name in ("ppo", "exact"):
        with pytest.raises(InputError, match=f"--budget with --algo {name}; leave --algo out"):
            presets.algorithm(name, 0.5, None)
    with pytest.raises(InputError, match="--budget and --alpha contradict each other"):
        presets.algorithm(None, 0.5, 0.1)


# --- the network, and exact values of what may be done


def test_chunks_are_put_together_in_order() -> None:
    table = state_table(random_tree(Layout.full(3, 2), STATES_PER_PASS // 2, seed=0), OBJECTIVE)
    assert len(table) == 2 * STATES_PER_PASS
    columns = evaluate_in_chunks(lambda states: states.cost[:, None], table)
    assert torch.equal(columns[:, 0], table.cost)
    some = torch.arange(0, len(table), 3).flip(0)
    costs = evaluate_in_chunks(lambda states: states.cost, table, some)
    assert torch.equal(costs, table.cost[some])


def new_router(tree: RouteTree, config: TrainConfig) -> RouterNetwork:
    torch.manual_seed(0)
    return RouterNetwork(network.shape_for(tree, Actions(tree.layout), config))


@pytest.mark.parametrize("knows_route", [False, True])
def test_only_a_router_that_knows_the_route_tells_the_nodes_of_a_stage_apart(
    knows_route: bool,
) -> None:
    tree = small_tree()
    router = new_router(tree, replace(trainings.GLIMPSE, knows_route=knows_route))
    same = torch.ones(4, tree.dim), torch.arange(4), torch.ones(4), torch.ones(4, 3).bool()
    root, *after = router(network.States(*same))[0].tolist()
    assert len({tuple(logits) for logits in after}) == (3 if knows_route else 1)
    assert root not in after


@pytest.mark.parametrize("scaled", [False, True])
def test_a_plain_start_is_as_torch_makes_one_map(scaled: bool) -> None:
    tree = small_tree()
    config = replace(trainings.GLIMPSE, hidden=64, scale_embedding=scaled, plain_start=True)
    router = new_router(tree, config)
    inputs = tree.dim + config.stage_dim + 1
    layers = {router.context: inputs, router.progress: inputs, router.policy: 64, router.value: 64}
    for layer, read in layers.items():
        bound = 1 / math.sqrt(read)
        assert 0.9 * bound < layer.weight.abs().max() <= bound
    assert router.policy.bias.any()


def test_a_router_that_sees_no_text_is_made_without_a_word() -> None:
    tree = two_step_tree(view="stage")
    assert tree.dim == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        router = new_router(tree, trainings.GLIMPSE)
    states = state_table(tree, OBJECTIVE).rows(slice(0, 8))
    assert states.embedding.shape == (8, 0)
    assert router(states)[0].shape == (8, 3)


PAYS = 0.05  # alpha
shapes = st.builds(Layout.full, st.integers(1, 3), st.integers(1, 3))
trees = st.builds(random_tree, shapes, st.integers(1, 4), st.integers(0, 2**16))


@given(trees, st.booleans(), st.integers(0, 2**16))
def test_values_of_an_action_are_those_of_all_that_may_follow(
    tree: RouteTree, allow_stop: bool, seed: int
) -> None:
    """By recursion: where a policy's actions are taken afterwards."""
    actions, pays = Actions(tree.layout, allow_stop), tree.node_reward(PAYS)
    table = random_table(tree, seed, allow_stop=allow_stop, legal=False)

    def value(query: int, node: int, action: int) -> float:
        child, _, over = actions.transition(node, action)
        if over:
            return float(pays[query, child])
        below = [value(query, child, after) for after in range(actions.count)]
        return float(table[query, child] @ below)

    reward = torch.from_numpy(pays)
    policy = exact.action_values(actions, torch.from_numpy(table), reward).numpy()
    for place in np.ndindex(*policy.shape):
        assert policy[place] == pytest.approx(value(*place))
    found = exact.expected_return(actions, torch.from_numpy(table), reward)
    assert found.numpy() == pytest.approx((table[:, 0] * policy[:, 0]).sum(axis=1))


def ragged_fold(seed: int, stop: bool = True) -> tuple[RouteTree, Objective]:
    """A tree of roles with two draws of a call and holes, whose parts are of all three folds."""
    layout = Layout.grown(
        2, lambda path: [0, 1][len(path) :] if len(path) < 2 else [], lambda action: 1 + action
    )
    tree = ragged_tree(layout, 12, seed)
    splits = ("train",) * 6 + ("validation",) * 3 + ("test",) * 3
    return replace(tree, splits=splits), Objective(alpha=ALPHA, allow_stop=stop)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("ends", ["calls", "stop", "returns", "newest"])
def test_exact_values_on_draws_and_holes_are_those_of_the_episodes(seed: int, ends: str) -> None:
    """The forest of some queries has the values of a plain walk over their own routes."""
    tree, objective = ragged_fold(seed, stop=ends == "stop")
    objective = replace(objective, allow_return=ends == "returns")
    vectors = np.random.default_rng(seed).normal(size=(len(tree), tree.layout.nodes, 4))
    tree = replace(tree, parts=one_part(vectors))
    if ends == "newest":
        tree = tree.with_layout(tree.layout.with_give_backs((NEWEST,)))
    fold = TrainingFold.of(tree, objective)
    layout = fold.actions.layout
    legal = LegalActions.of(fold.tree, fold.actions).table
    table = np.random.default_rng(seed).gamma(1.0, size=legal.shape) * legal
    table /= np.maximum(table.sum(axis=2, keepdims=True), 1e-300)
    reward = ending_reward(fold.tree, ALPHA)
    assert fold.tree.weight is not None

    def value(query: int, node: int) -> float:
        """By recursion over the calls that the query has."""
        if node >= fold.actions.states or not legal[query, node].any():
            return float(reward[query, node])
        total = 0.0
        for action in np.flatnonzero(table[query, node]).tolist():
            if action >= fold.actions.calls:
                ending = layout.give_back[node, action - fold.actions.calls]
                after = float(reward[query, ending])
            else:
                draws = layout.draws_of_calls[node, action % layout.call_actions]
                after = 0.0
                for child in draws[draws >= 0].tolist():
                    stops = action >= layout.call_actions
                    own = float(reward[query, child]) if stops else value(query, child)
                    after += float(fold.tree.weight[query, child]) * own
            total += float(table[query, node, action]) * after
        return total

    expected = np.array([value(query, 0) for query in range(len(tree))])
    outcome = policy_outcome(fold.tree, fold.actions, table, "x", "router")
    np.testing.assert_allclose(outcome.reward(ALPHA), expected, atol=1e-9)
    for queries in ([3], [0, 1, 2], [5, 5, 8, 5], list(range(12))):
        forest = fold.forest(np.array(queries))
        policy = np.zeros((1, *forest.legal.shape))
        policy[0, 0, 0] = 1
        of_query = forest.query[1 : forest.actions.states]
        policy[0, 1:] = table[of_query, forest.node[1 : forest.actions.states]]
        mean = expected[queries].mean()
        [own_mean] = forest.means(policy[0], [reward])
        assert own_mean == pytest.approx(mean, abs=1e-9)
        rewards = torch.from_numpy(forest.rewards(reward))[None]
        weight = torch.from_numpy(forest.weight)[None]
        values = exact.action_values(forest.actions, torch.from_numpy(policy), rewards, weight)
        assert float(values[0, 0, 0]) == pytest.approx(mean, abs=1e-9)
        returned = exact.expected_return(forest.actions, torch.from_numpy(policy), rewards, weight)
        assert float(returned) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        ExactConfig(epochs=2, hidden=8),
        PPOConfig(epochs=2, hidden=8),
        PPOConfig(epochs=2, hidden=8, advantages="exact"),
    ],
    ids=["exact", "ppo", "ppo with exact advantages"],
)
def test_a_router_learns_on_draws_and_holes_and_is_stored(
    config: NetworkConfig, tmp_path: Path
) -> None:
    tree, objective = ragged_fold(2)
    router = train(tree, objective, config, seed=0)
    outcome = router.outcome(tree)
    table = router.probabilities(tree)
    legal = LegalActions.of(tree, router.actions).table
    assert not table[~legal & legal.any(axis=2, keepdims=True)].any()
    assert np.isfinite(outcome.reward(ALPHA)).all()
    validation = tree.split("validation")
    assert max(router.history) == pytest.approx(router.outcome(validation).reward(ALPHA).mean())
    save_checkpoint(router, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert loaded.origin.layout == tree.layout
    np.testing.assert_array_equal(loaded.probabilities(tree), table)
    other = ragged_tree(Layout.full(2, 3), 3, 0)
    with pytest.raises(InputError, match=r"^checkpoint is for at most 2 hops, the cache has 3"):
        loaded.probabilities(other)


def on_nodes(tree: RouteTree, layout: Layout, nodes: Sequence[int]) -> RouteTree:
    """A tree of another layout, each of whose nodes has what one of this tree's has."""
    columns = np.array(nodes)
    parts = tuple(replace(part, row=part.row[:, columns[: layout.inner]]) for part in tree.parts)
    measures = {name: getattr(tree, name)[:, columns] for name in CALL_MEASURES}
    weight = None if tree.weight is None else tree.weight[:, columns]
    return replace(tree, layout=layout, parts=parts, weight=weight, **measures)


def without(tree: RouteTree, dropped: Sequence[int]) -> tuple[RouteTree, RouteTree]:
    """The tree whose queries all lack some nodes, and the one whose layout has not got them."""
    layout = tree.layout
    is_dropped = np.isin(np.arange(layout.nodes), dropped)
    for node in range(1, layout.nodes):
        is_dropped[node] |= is_dropped[layout.parent[node]]
    weight = np.ones(tree.score.shape) if tree.weight is None else tree.weight.copy()
    weight[:, is_dropped] = 0
    for draws in layout.draws_of_calls.reshape(-1, layout.draws):
        total = weight[:, draws[draws >= 0]].sum(axis=1, keepdims=True)
        weight[:, draws[draws >= 0]] /= np.where(total > 0, total, 1)
    lacking = replace(tree, weight=weight)
    kept = np.flatnonzero(~is_dropped)
    number = np.cumsum(~is_dropped) - 1
    parent = np.where(layout.parent[kept] < 0, -1, number[layout.parent[kept]])
    smaller, order = Layout.sorted(
        layout.call_actions, parent, layout.action[kept], layout.draw[kept]
    )
    return lacking, on_nodes(lacking, smaller, kept[order].tolist())


def assert_same_decisions(router: TrainedRouter, first: RouteTree, second: RouteTree) -> None:
    assert first.layout != second.layout or first.models != second.models
    one = router.outcome(first)
    other = router.outcome(second)
    np.testing.assert_allclose(one.quality, other.quality, atol=1e-12)
    np.testing.assert_allclose(one.cost, other.cost, atol=1e-12)


def roles_with_draws() -> RouteTree:
    """Three actions, two of them at each hop; one at each has two draws."""
    layout = Layout.grown(
        3,
        lambda path: [[0, 1], [0, 2]][len(path)] if len(path) < 2 else [],
        lambda action: 1 + (action > 0),
    )
    tree = ragged_tree(layout, 12, seed=4, missing=0.0)
    return replace(tree, splits=("train",) * 6 + ("validation",) * 3 + ("test",) * 3)


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("knows_route", [False, True])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_network_decides_on_other_routes_of_its_actions(
    stop: bool, knows_route: bool, is_full: bool
) -> None:
    tree = roles_with_draws()
    if is_full:
        tree = replace(random_tree(Layout.full(3, 2), 12, seed=4), splits=tree.splits)
    config = ExactConfig(epochs=2, hidden=8, knows_route=knows_route, keep_anyway=True)
    router = train(tree, Objective(alpha=ALPHA, allow_stop=stop), config, seed=0)
    layout = tree.layout
    # Without one call at the question, or what follows one of them; a draw less of another call.
    first, second = layout.level(1).start, layout.level(1).stop - 1
    followers = np.flatnonzero(layout.parent == first).tolist()
    for dropped in ([second], followers[1:], [*followers[:1], second]):
        assert_same_decisions(router, *without(tree, dropped))
    # With every call made twice, with the same answers.
    twice = Layout.grown(
        3,
        lambda path: (
            np.flatnonzero(layout.children[layout.node(path)] >= 0).tolist()
            if layout.node(path) < layout.inner
            else []
        ),
        lambda action: 2,
    )
    once = without(tree, np.flatnonzero(layout.draw).tolist())[1]
    nodes = [once.layout.node(twice.path(node)) for node in range(twice.nodes)]
    doubled = on_nodes(once, twice, nodes)
    weight = np.full(doubled.score.shape, 0.5)
    weight[:, 0] = 1
    assert_same_decisions(router, once, replace(doubled, weight=weight))
    # With the actions in another order.
    order = np.array([2, 0, 1])
    position = np.argsort(order)
    action = np.where(layout.action < 0, -1, position[layout.action])
    moved, nodes_moved = Layout.sorted(3, layout.parent, action, layout.draw)
    other = on_nodes(tree, moved, nodes_moved.tolist())
    models = tuple(tree.models[number] for number in order)
    other = replace(other, models=models, callers=models, rate=tree.rate[order])
    if is_full:
        other = replace(other, layout=layout)
        with pytest.raises(InputError, match=r"^checkpoint is for other models"):
            router.outcome(other)
    else:
        assert_same_decisions(router, tree, other)


def test_what_a_router_has_not_learned_is_named() -> None:
    tree = roles_with_draws()
    objective = Objective(alpha=ALPHA)
    network = train(tree, objective, ExactConfig(epochs=1, hidden=8, keep_anyway=True), seed=0)
    with pytest.raises(InputError, match=r"^checkpoint has not learned to call critic, which"):
        network.outcome(replace(tree, models=("model-0", "model-1", "critic")))
    stopping = tree.with_layout(tree.layout.with_give_backs((NEWEST,)))
    smaller = without(stopping, [tree.layout.nodes - 1])[1]
    smaller = smaller.with_layout(smaller.layout.with_give_backs((NEWEST,)))
    with pytest.raises(InputError, match=r"^checkpoint has not learned to stop after an answer"):
        network.outcome(smaller)
    value = train(tree, objective, ValueConfig(keep_anyway=True), seed=0)
    dropped = tree.layout.level(1).stop - 1
    with pytest.raises(InputError, match=r"up to 2 draws, in the training 2; .*--algo exact"):
        value.outcome(without(tree, [dropped])[1])


def test_a_constant_route_is_followed_on_other_routes() -> None:
    tree = roles_with_draws()
    router = train(tree, Objective(alpha=ALPHA), ExactConfig(epochs=1, hidden=8), seed=0)
    layout = tree.layout
    node = layout.node((1, 2))
    router = replace(router, constant=Constant(node, 0.0, 0.0, 0.0, 0))
    second_draw = layout.level(1).stop - 1
    assert_same_decisions(router, *without(tree, [second_draw]))
    gone = np.flatnonzero(np.isin(layout.parent, [0]) & (layout.action == 1)).tolist()
    with pytest.raises(InputError, match=r"^checkpoint is the route model-1>model-2 for every"):
        router.outcome(without(tree, gone)[1])
