"""Tables of fixed routes: by data set, by the user's label, and by cluster."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter.evaluation.bounds import best_fixed_route, best_route_per_dataset
from hierrouter.evaluation.outcome import LegalActions, is_plain
from hierrouter.learning.config import (
    ClustersConfig,
    GroupsConfig,
    MeanConfig,
    Objective,
    TableConfig,
)
from hierrouter.learning.cross_fit import Repetition, sweep_with_fallback, with_fallback
from hierrouter.learning.policy_classes import MeanRouter, RouteTable, TableRouter
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.training import train
from hierrouter.learning.value import query_digests
from hierrouter.runs.checkpoint import load_checkpoint, save_checkpoint
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree, StatePart
from tests.hierrouter.learning.test_training import ragged_fold
from tests.hierrouter.learning.trainings import ALPHA, GRID, OBJECTIVE, digest
from tests.hierrouter.trees import one_part, planted_tree, random_tree

GROUPS = GroupsConfig()
CLUSTERS = ClustersConfig()
each_class = pytest.mark.parametrize("config", [GROUPS, CLUSTERS], ids=["groups", "clusters"])


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    """Five families, each with its route, which a look at the question tells apart."""
    return replace(planted_tree(noise=0.5), encoder="planted")


def table_of(trained: TrainedRouter) -> RouteTable:
    assert isinstance(trained.router, TableRouter)
    return trained.router.table


def with_vectors(tree: RouteTree, value: float) -> RouteTree:
    """The same tree, whose embeddings are all the same constant."""
    return replace(tree, parts=one_part(np.full_like(tree.embedding, value)))


def test_by_group_it_is_the_best_route_of_each_data_set(tree: RouteTree) -> None:
    trained = with_fallback(train(tree, OBJECTIVE, GROUPS, 0), tree, Repetition())
    assert trained.constant is None
    test = tree.split("test")
    learned = replace(
        tree, splits=tuple(name.replace("validation", "train") for name in tree.splits)
    )
    expected = best_route_per_dataset(learned.split("train"), ALPHA, test)
    np.testing.assert_array_equal(trained.outcome(test).quality, expected.quality)
    np.testing.assert_array_equal(trained.outcome(test).cost, expected.cost)
    assert trained.table_in_words.startswith("a route for each group: family-0: ")
    assert trained.router.groups == tuple(sorted(set(tree.datasets)))


def test_clusters_find_the_families(tree: RouteTree) -> None:
    trained = with_fallback(train(tree, OBJECTIVE, CLUSTERS, 0), tree, Repetition())
    assert trained.constant is None
    test = tree.split("test")
    reward = trained.outcome(test).reward(ALPHA).mean()
    by_family = best_route_per_dataset(tree.split("train"), ALPHA, test).reward(ALPHA).mean()
    constant = best_fixed_route(tree.split("train"), ALPHA, test).reward(ALPHA).mean()
    assert reward - constant > 0.8 * (by_family - constant) > 0.1
    assert trained.router.groups == ()


@each_class
def test_a_checkpoint_gives_the_same_routes(
    tree: RouteTree, config: TableConfig, tmp_path: Path
) -> None:
    trained = with_fallback(train(tree, OBJECTIVE, config, 0), tree, Repetition())
    save_checkpoint(trained, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter)
    assert loaded.table_in_words == trained.table_in_words
    np.testing.assert_array_equal(loaded.probabilities(tree), trained.probabilities(tree))
    assert digest(
        with_fallback(train(tree, OBJECTIVE, config, 0), tree, Repetition()), tmp_path
    ) == digest(loaded, tmp_path / "again")


@each_class
def test_a_live_state_gets_the_action_of_the_tree(tree: RouteTree, config: TableConfig) -> None:
    trained = train(tree, OBJECTIVE, config, 0)
    test = tree.split("test")
    rows = np.arange(len(test))
    roots = test.embedding_at(rows, np.zeros_like(rows))
    table = trained.probabilities(test)
    for state in range(test.layout.states):
        embedding = test.embedding_at(rows, np.full_like(rows, state))
        path = [test.layout.path(state)] * len(test)
        cost = test.cost[:, state].tolist()
        states = trained.live_states(embedding, path, cost, test.datasets, roots)
        live = trained.decide_each(states)
        np.testing.assert_array_equal(live, table[:, state])
        orders = trained.rank_each(states, live)
        assert [order[0] for order in orders] == live.argmax(axis=1).tolist()
        assert all(sorted(order) == list(range(trained.actions.count)) for order in orders)
        expected = trained.router.expected(states)
        assert expected is not None
        assert np.isfinite(expected).all()


def test_a_live_question_of_an_unknown_group_takes_the_route_of_all(tree: RouteTree) -> None:
    trained = train(tree, OBJECTIVE, GROUPS, 0)
    learned = tree.select(np.flatnonzero(np.isin(tree.splits, ("train", "validation"))))
    best = table_of(trained).best[0]
    first = learned.layout.path(int(best))[0]
    embedding = np.zeros((3, tree.dim), np.float32)
    for groups in ((), ("", "never seen", "Family-0")):
        live = trained.decide_each(trained.live_states(embedding, [()] * 3, [0.0] * 3, groups))
        assert live.argmax(axis=1).tolist() == [first] * 3


@each_class
def test_a_query_is_decided_without_itself(config: TableConfig) -> None:
    """Where nothing can be learned, the routes chosen with a query would be better on it."""
    gains = []
    for seed in range(10):
        noise = replace(random_tree(Layout.full(3, 2), 200, seed), encoder="planted")
        shuffled = np.random.default_rng(seed).permutation(len(noise))
        names = tuple(f"group-{number % 40}" for number in shuffled)
        mixed = replace(noise, datasets=names, content=f"{seed:032d}")
        trained = train(mixed, Objective(0.0), config, seed)
        best = noise.score[:, noise.layout.inner :].mean(axis=0).max()
        gains.append(trained.outcome(mixed).quality.mean() - best)
    assert -0.1 < np.mean(gains) < 0.01


@each_class
def test_all_groups_alike_give_one_route(config: TableConfig) -> None:
    same = replace(random_tree(Layout.full(2, 1), 60, seed=2), encoder="planted")
    same = replace(same, score=np.tile(np.array([0.0, 0.2, 0.9]), (60, 1)))
    same = replace(same, datasets=("left", "right") * 30)
    trained = train(same, OBJECTIVE, config, 0)
    assert table_of(trained).groups == 0
    assert trained.table_in_words.startswith("no grouping did better than one route on ")
    shipped = with_fallback(trained, same, Repetition())
    assert shipped.constant is not None
    assert "the best router found does the same" in shipped.why_constant


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_embeddings_of_constants_give_one_route(tree: RouteTree, value: float) -> None:
    trained = train(with_vectors(tree, value), OBJECTIVE, CLUSTERS, 0)
    assert table_of(trained).groups == 0


@each_class
@pytest.mark.parametrize("queries", [1, 2, 3])
def test_few_questions_give_a_constant(queries: int, config: TableConfig) -> None:
    few = replace(random_tree(Layout.full(3, 2), queries, seed=4), encoder="planted")
    few = replace(few, datasets=tuple(f"group-{number}" for number in range(queries)))
    shipped = with_fallback(train(few, OBJECTIVE, config, 0), few, Repetition())
    assert shipped.constant is not None
    assert shipped.why_constant
    assert len(shipped.outcome(few).quality) == queries


def test_a_group_of_one_question_takes_the_route_of_all_in_doubt(tree: RouteTree) -> None:
    names = list(tree.datasets)
    row = names.index("family-0")
    names[row] = "alone"
    alone = replace(tree, datasets=tuple(names), content="0" * 32)
    table = table_of(train(alone, OBJECTIVE, GROUPS, 0))
    assert "alone" in table.names
    number = 1 + table.names.index("alone")
    assert table.count[number] == 1
    # Without itself nothing is known of its group.
    digest_row = np.flatnonzero(table.learned == _digest_of(alone, row))
    assert table.route[table.without_self[digest_row]] == table.best[0]


def _digest_of(tree: RouteTree, row: int) -> int:
    return int(query_digests(tree.select(np.array([row])))[0])


@each_class
@pytest.mark.parametrize("objective", [Objective(ALPHA, True), Objective(ALPHA, False, True)])
def test_routes_may_end_early(tree: RouteTree, config: TableConfig, objective: Objective) -> None:
    view = tree
    if objective.allow_return:
        view = replace(tree, parts=_with_leaves(tree))
    trained = train(view, objective, config, 0)
    test = view.split("test")
    outcome = trained.outcome(test)
    assert np.isfinite(outcome.reward(ALPHA)).all()
    assert outcome.cost.mean() <= train(tree, OBJECTIVE, config, 0).outcome(test).cost.mean() + 1e-9


def _with_leaves(tree: RouteTree) -> tuple[StatePart, ...]:
    [part] = tree.parts
    row = np.pad(part.row, ((0, 0), (0, tree.layout.nodes - part.row.shape[1])))
    return (replace(part, row=row),)


@each_class
def test_a_sweep_has_a_table_for_each_alpha(
    tree: RouteTree, config: TableConfig, tmp_path: Path
) -> None:
    sweep = sweep_with_fallback(train_sweep(tree, GRID, OBJECTIVE, config, 0), tree, Repetition())
    save_checkpoint(sweep, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert not isinstance(loaded, TrainedRouter)
    for alpha in (*GRID, 0.02):
        expected = sweep.at(alpha).probabilities(tree)
        np.testing.assert_array_equal(loaded.at(alpha).probabilities(tree), expected)
    costs = [sweep.at(alpha).outcome(tree).cost.mean() for alpha in (0.0, 1e6)]
    assert costs[0] >= costs[1]


@each_class
def test_another_tree_is_refused(tree: RouteTree, config: TableConfig) -> None:
    other = planted_tree(models=2, per_family=(3, 3, 3))
    with pytest.raises(InputError, match="other models"):
        train(tree, OBJECTIVE, config, 0).outcome(other)


@each_class
@pytest.mark.parametrize("stop", [False, True])
def test_it_learns_where_calls_have_draws_and_queries_lack_routes(
    config: TableConfig, stop: bool, tmp_path: Path
) -> None:
    ragged, objective = ragged_fold(2, stop)
    assert not is_plain(ragged)
    trained = train(ragged, objective, config, 0)
    legal = LegalActions.of(ragged, trained.actions).table
    chosen = trained.probabilities(ragged) > 0
    assert not chosen[~legal & legal.any(axis=2, keepdims=True)].any()
    assert np.isfinite(trained.outcome(ragged).reward(objective.alpha)).all()
    save_checkpoint(with_fallback(trained, ragged, Repetition()), tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, TrainedRouter)
    assert np.isfinite(loaded.outcome(ragged).reward(objective.alpha)).all()


MEAN = MeanConfig()


def test_a_mean_takes_the_action_of_the_highest_mean_of_its_parts(tree: RouteTree) -> None:
    trained = train(tree, OBJECTIVE, MEAN, 0)
    assert isinstance(trained.router, MeanRouter)
    test = tree.split("test")
    parts = [*trained.router.values, *trained.router.tables]
    assert len(parts) == 3
    mean = np.mean([part.rewards(test) for part in parts], axis=0)
    np.testing.assert_array_equal(trained.probabilities(test).argmax(axis=2), mean.argmax(axis=2))
    constant = best_fixed_route(tree.split("train"), ALPHA, test).reward(ALPHA).mean()
    assert trained.outcome(test).reward(ALPHA).mean() > constant + 0.2
    assert with_fallback(trained, tree, Repetition()).constant is None


def test_a_mean_is_stored_and_decides_live(tree: RouteTree, tmp_path: Path) -> None:
    trained = train(tree, OBJECTIVE, MEAN, 0)
    save_checkpoint(trained, tmp_path / "one")
    loaded = load_checkpoint(tmp_path / "one")
    assert isinstance(loaded, TrainedRouter)
    np.testing.assert_array_equal(loaded.probabilities(tree), trained.probabilities(tree))
    test = tree.split("test")
    rows = np.arange(len(test))
    roots = test.embedding_at(rows, np.zeros_like(rows))
    for state in range(test.layout.states):
        embedding = test.embedding_at(rows, np.full_like(rows, state))
        path = [test.layout.path(state)] * len(test)
        cost = test.cost[:, state].tolist()
        states = loaded.live_states(embedding, path, cost, test.datasets, roots)
        live = loaded.decide_each(states)
        np.testing.assert_allclose(live, trained.probabilities(test)[:, state], atol=1e-5)
        loaded.rank_each(states, live)
    sweep = train_sweep(tree, GRID, OBJECTIVE, MEAN, 0)
    save_checkpoint(sweep, tmp_path / "many")
    again = load_checkpoint(tmp_path / "many")
    assert not isinstance(again, TrainedRouter)
    for alpha in (*GRID, 0.02):
        expected = sweep.at(alpha).probabilities(test)
        np.testing.assert_array_equal(again.at(alpha).probabilities(test), expected)


@each_class
def test_expected_rewards_leave_the_query_out(tree: RouteTree, config: TableConfig) -> None:
    """As if the table had been made without it, with the same groups and the same pooling."""
    trained = train(tree, OBJECTIVE, config, 0)
    assert isinstance(trained.router, TableRouter)
    table = trained.router.table
    learned = tree.select(np.flatnonzero(np.isin(tree.splits, ("train", "validation"))))
    found = trained.router.rewards(learned)
    rows = np.arange(len(learned))
    roots = learned.embedding_at(rows, np.zeros_like(rows))
    group = table.row_of(learned.datasets, roots)
    reward = learned.node_reward(ALPHA)[:, table.route]
    for query in (0, 57, len(learned) - 1):
        others = rows != query
        of_group = others & (group == group[query])
        count = of_group.sum()
        share = count / (count + table.pooling)
        mean = reward[others].mean(axis=0)
        mean = mean + share * (reward[of_group].mean(axis=0) - mean)
        expected = mean.reshape(3, 3).max(axis=1)  # of the first calls
        np.testing.assert_allclose(found[query, 0], expected, atol=1e-9)


@pytest.mark.parametrize("queries", [2, 3])
def test_few_questions_give_a_mean_that_is_a_constant(queries: int) -> None:
    few = replace(random_tree(Layout.full(3, 2), queries, seed=4), encoder="planted")
    shipped = with_fallback(train(few, OBJECTIVE, MEAN, 0), few, Repetition())
    assert shipped.constant is not None
    assert len(shipped.outcome(few).quality) == queries


def test_a_mean_learns_where_calls_have_draws_and_queries_lack_routes() -> None:
    ragged, objective = ragged_fold(2, True)
    trained = train(ragged, objective, MEAN, 0)
    legal = LegalActions.of(ragged, trained.actions).table
    chosen = trained.probabilities(ragged) > 0
    assert not chosen[~legal & legal.any(axis=2, keepdims=True)].any()
    assert np.isfinite(trained.outcome(ragged).reward(objective.alpha)).all()
