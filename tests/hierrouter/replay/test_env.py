"""Gymnasium's contract and the paper's; Stable-Baselines3 takes the environment as it is."""

import tracemalloc
import warnings
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from stable_baselines3.common import env_checker
from stable_baselines3.common.vec_env import DummyVecEnv

from hierrouter.replay.env import ReplayEnv, ReplayVectorEnv, feature_space
from hierrouter.runs.evaluate import evaluate
from hierrouter_cache.layout import Layout
from tests.hierrouter.trees import planted_tree, random_tree, showing_leaves, two_step_tree

ALPHA = 0.05


@pytest.fixture
def env() -> ReplayEnv:
    return ReplayEnv(planted_tree(dim=8, hops=3), ALPHA)


@pytest.mark.parametrize("allow_stop", [False, True])
@pytest.mark.parametrize("view", ["context", "query+answer", "query", "stage"])
def test_gymnasium_and_its_users_have_nothing_to_complain_about(
    view: str, allow_stop: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Without a registered spec the checker cannot build the other render modes: there are none.
        check_env(ReplayEnv(two_step_tree(view=view), ALPHA, allow_stop), skip_render_check=True)
        env_checker.check_env(ReplayEnv(two_step_tree(view=view), ALPHA, allow_stop))


def test_gymnasium_knows_the_environment() -> None:
    tree = two_step_tree()
    made = gymnasium.make("hierrouter/Replay-v0", tree=tree, alpha=ALPHA)
    assert isinstance(made.unwrapped, ReplayEnv)
    assert data_equivalence(made.reset(seed=3)[1], ReplayEnv(tree, ALPHA).reset(seed=3)[1])
    assert len({made.reset()[1]["query"] for _ in range(20)}) > 5
    many = gymnasium.make_vec(
        "hierrouter/Replay-v0",
        num_envs=4,
        vectorization_mode="vector_entry_point",
        tree=tree,
        alpha=ALPHA,
        allow_stop=True,
    )
    assert isinstance(many.unwrapped, ReplayVectorEnv)


@pytest.mark.parametrize(
    ("stop", "made"), [(False, (2, 0, 1)), (True, (5,)), (True, (1, 5)), (True, (1, 2, 3))]
)
def test_an_episode_is_a_route_of_its_query(stop: bool, made: tuple[int, ...]) -> None:
    """With stop an action of the second half ends it."""
    env, query = ReplayEnv(planted_tree(dim=8, hops=3), ALPHA, stop), 7
    tree, path = env.tree, tuple(action % 3 for action in made)
    assert env.action_space.n == (6 if stop else 3)
    observation, info = env.reset(options={"query": query})
    assert info.pop("action_mask").tolist() == env.action_masks().tolist()
    assert info == {"query": "q7", "node": 0, "state": query * tree.layout.inner}
    for hop, action in enumerate(made):
        node = tree.layout.node(path[:hop])
        assert observation["stage"] == hop
        assert observation["cost"][0] == pytest.approx(tree.cost[query, node])
        np.testing.assert_array_equal(observation["embedding"], tree.embedding[query, node])
        observation, reward, terminated, truncated, info = env.step(np.int64(action))
        assert (terminated, truncated) == (hop == len(made) - 1, False)
        assert terminated or reward == 0
    end = tree.layout.node(path)
    assert reward == tree.score[query, end] - ALPHA * tree.cost[query, end]
    assert not info.pop("action_mask").any()
    assert info == {"query": "q7", "node": end, "state": len(tree) * tree.layout.inner}
    assert not observation["embedding"].any()
    assert observation["stage"] == len(made)


ABILITIES = [(False, False), (True, False), (False, True), (True, True)]


def masked_env(hops: int, stop: bool, returns: bool) -> ReplayEnv:
    tree = random_tree(Layout.full(3, hops), 5, seed=hops)
    return ReplayEnv(showing_leaves(tree), ALPHA, stop, allow_return=returns)


def legal_by_hand(stage: int, hops: int, stop: bool, returns: bool) -> list[bool]:
    """What may be done after some calls of three models, spelled out."""
    can_call = stage < hops
    calls = [can_call] * 3
    stops = [can_call and stage < hops - 1] * 3 if stop else []
    answers = [number < stage for number in range(hops)] if returns else []
    return [*calls, *stops, *answers]


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize(("stop", "returns"), ABILITIES)
def test_a_mask_has_the_legal_actions_and_random_legal_play_never_fails(
    hops: int, stop: bool, returns: bool
) -> None:
    """Under the name, and of the type and shape, that sb3-contrib's MaskablePPO asks for."""
    env = masked_env(hops, stop, returns)
    assert not env.action_masks().any()  # no episode is under way
    env.action_space.seed(0)
    for seed in range(30):
        _, info = env.reset(seed=seed)
        stage, over = 0, False
        while not over:
            mask = env.action_masks()
            assert mask.dtype == np.bool_ and mask.shape == (env.action_space.n,)
            assert mask.tolist() == legal_by_hand(stage, hops, stop, returns)
            assert info["action_mask"].dtype == np.int8  # as `Discrete.sample` takes it
            assert info["action_mask"].tolist() == mask.tolist()
            action = env.action_space.sample(info["action_mask"])
            mask[:] = True  # the mask is the caller's own
            observation, _, over, _, info = env.step(action)
            stage = int(observation["stage"])
        assert not env.action_masks().any() and not info["action_mask"].any()


def test_a_mask_leaves_no_route_out_and_no_two_actions_that_do_the_same() -> None:
    """With stop and return: each ending of the tree is reached by legal play, once."""
    env = masked_env(2, True, True)
    _, endings = env.reset(options={"query": 0}), []

    def play(taken: list[int]) -> None:
        env.reset(options={"query": 0})
        results = [env.step(np.int64(action)) for action in taken]
        if results and results[-1][2]:
            endings.append((env.tree.layout.path(results[-1][4]["node"]), results[-1][1]))
            return
        for action in np.flatnonzero(env.action_masks()).tolist():
            play([*taken, action])

    play([])
    # A route of two calls with either answer, and one of a call that stops or is returned.
    assert len(endings) == 9 * 2 + 3 * 2
    assert len({path for path, _ in endings}) == 9 + 3


def test_masks_are_asked_for_through_wrappers_and_by_stable_baselines() -> None:
    tree = two_step_tree()
    made = gymnasium.make("hierrouter/Replay-v0", tree=tree, alpha=ALPHA, allow_stop=True)
    made.reset(seed=0)
    assert made.get_wrapper_attr("action_masks")().tolist() == [True] * 6
    many = DummyVecEnv([lambda: ReplayEnv(tree, ALPHA, True)] * 3)
    many.reset()
    many.step(np.array([0, 3, 1]))  # the second one begins anew
    masks = np.stack(many.env_method("action_masks"))
    assert masks.tolist() == [[True] * 3 + [False] * 3, [True] * 6, [True] * 3 + [False] * 3]


def test_maskable_ppo_learns_from_the_masks() -> None:
    """Where sb3-contrib is installed; it is no dependency."""
    contrib = pytest.importorskip("sb3_contrib")
    env = masked_env(2, True, True)
    model = contrib.MaskablePPO("MultiInputPolicy", env, n_steps=64, batch_size=32, device="cpu")
    model.learn(128)
    tree = env.tree
    value = evaluate(tree, model, ALPHA, allow_stop=True, allow_return=True, split="train")
    assert len(value) == len(tree)


def test_a_step_before_the_start_or_after_the_end_is_an_error(env: ReplayEnv) -> None:
    for begin in (lambda: None, lambda: [env.reset(seed=0), *(env.step(0) for _ in range(3))]):
        begin()
        with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
            env.step(np.int64(0))


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_that_is_not_there_is_an_error(env: ReplayEnv, action: int) -> None:
    env.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction, match=f"no action {action} among 3"):
        env.step(np.int64(action))


@pytest.mark.parametrize("asked", [-1, 999, [1], 1.5, "0"])
def test_a_query_that_is_not_there_is_an_error(env: ReplayEnv, asked: object) -> None:
    with pytest.raises(ValueError, match="query must be"):
        env.reset(options={"query": asked})


@pytest.mark.parametrize(("value", "expected"), [(3.0, 3), (-3.0, 3), (0.5, 1)])
def test_a_space_holds_every_vector_and_copies_none(value: float, expected: float) -> None:
    tree = random_tree(Layout.full(2, 2), 3, seed=0)
    [part] = tree.parts
    vectors = np.zeros((100_000, part.vectors.shape[1]), dtype=np.float32)
    vectors[7, 1] = value
    large = replace(tree, parts=(replace(part, vectors=vectors),))
    tracemalloc.start()
    embedding = feature_space(large)["embedding"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (embedding.low.min(), embedding.high.max()) == (-expected, expected)
    assert peak < vectors.nbytes / 2
