import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hierrouter.evaluate.exact import policy_outcome
from hierrouter.replay.env import ReplayEnv
from tests.hierrouter.trees import planted_tree

ALPHA = 0.005
HEADINGS = [
    "Description",
    "Action Space",
    "Observation Space",
    "Starting State",
    "Rewards",
    "Episode End",
    "Version History",
]


@pytest.fixture(scope="module")
def env() -> ReplayEnv:
    return ReplayEnv(planted_tree(), ALPHA)


def test_gymnasium_finds_nothing_to_warn_of(env: ReplayEnv) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Rendering is not what a replayed tree is for.
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_docstring_has_the_usual_headings(heading: str) -> None:
    assert f"## {heading}" in (ReplayEnv.__doc__ or "")


def test_sampled_returns_agree_with_the_exact_value(env: ReplayEnv) -> None:
    """10,000 episodes of a stochastic policy, within four standard errors of enumeration."""
    rng = np.random.default_rng(0)
    tree = env.tree
    states, models = tree.routes.states, len(tree.models)
    policy = rng.dirichlet(np.ones(models), size=(len(tree), states))
    returns = np.empty(10_000)
    env.reset(seed=1)
    for episode in range(len(returns)):
        _, info = env.reset()
        total, ended = 0.0, False
        while not ended:
            query, node = divmod(info["state"], states)
            action = rng.choice(models, p=policy[query, node])
            _, reward, ended, _, info = env.step(action)
            total += reward
        returns[episode] = total
    exact = policy_outcome(tree, policy, "random", "baseline").reward(ALPHA).mean()
    error = returns.std() / np.sqrt(len(returns))
    assert error < 0.01
    assert abs(returns.mean() - exact) < 4 * error


def test_every_episode_is_the_tree(env: ReplayEnv) -> None:
    tree, routes = env.tree, env.tree.routes
    for query in (0, len(tree) - 1):
        for leaf in range(routes.states, routes.nodes):
            seen, info = env.reset(options={"query": query})
            assert (info["query"], info["node"], seen["stage"]) == (tree.query_ids[query], 0, 0)
            for hop, action in enumerate(routes.path(leaf), start=1):
                seen, reward, ended, truncated, info = env.step(np.int64(action))
                assert seen["stage"] == hop
                assert seen["cost"][0] == pytest.approx(tree.cost[query, info["node"]])
                assert ended == (hop == routes.hops)
                assert not truncated
                if not ended:
                    assert reward == 0
                    assert np.array_equal(seen["embedding"], tree.embedding[query, info["node"]])
            assert info["node"] == leaf
            assert reward == tree.score[query, leaf] - ALPHA * tree.cost[query, leaf]
            assert not seen["embedding"].any()


def test_a_step_after_the_end_is_refused(env: ReplayEnv) -> None:
    env.reset(seed=0)
    for _ in range(env.tree.hops):
        env.step(np.int64(0))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.int64(0))
