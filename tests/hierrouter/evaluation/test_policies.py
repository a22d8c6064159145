"""Anybody's policy is valued exactly: as if each of its episodes were walked by hand."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import PPO

import hierrouter.replay  # noqa: F401  registers the environment
from hierrouter.evaluation.policies import (
    Evaluation,
    evaluate,
    own_policies,
    own_policy,
    policy_table,
)
from hierrouter.learning.config import Objective
from hierrouter.learning.training import train
from hierrouter.replay.env import ReplayEnv, ReplayVectorEnv
from hierrouter.replay.stable_baselines import StableBaselinesEnv
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.enumeration import cost, node, quality
from tests.hierrouter.learning.runs import ALPHA as RUN_ALPHA
from tests.hierrouter.learning.runs import EXACT_GLIMPSE, small_tree
from tests.hierrouter.trees import planted_tree, random_tree, two_step_tree

ALPHA = 0.05
Act = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Said:
    """Texts of one query."""

    question: str
    answers: tuple[str, ...]


def said(tree: RouteTree) -> list[Said]:
    """Texts in which some answers are "unknown", by a rule of their own."""
    return [
        Said(
            f"question {query}",
            tuple(
                "" if not at else "unknown" if (int(query[1:]) + at) % 3 == 0 else f"{query}/{at}"
                for at in range(tree.routes.nodes)
            ),
        )
        for query in tree.query_ids
    ]


def by_hand(tree: RouteTree, act: Act, stop: bool, alpha: float) -> tuple[list[float], list[float]]:
    """Q and C of a policy that draws nothing, each query walked down its tree."""
    texts, models = said(tree), tree.models
    found: tuple[list[float], list[float]] = ([], [])
    for query in range(len(tree)):
        path: tuple[int, ...] = ()
        while len(path) < tree.hops:
            seen = {
                "question": texts[query].question,
                "answers": tuple(
                    texts[query].answers[node(tree, path[: calls + 1])]
                    for calls in range(len(path))
                ),
                "models": tuple(models[one] for one in path),
                "stage": len(path),
                "cost": cost(tree, query, path),
                "alpha": alpha,
                "actions": (*models, *(f"{one}>stop" for one in models if stop)),
            }
            stopped, model = divmod(int(act(seen)), len(models))
            path = (*path, model)
            if stopped:
                break
        found[0].append(quality(tree, query, path))
        found[1].append(cost(tree, query, path))
    return found


def rule(observation: Mapping[str, Any]) -> int:
    """Ten lines that read answers, models, cost and the question."""
    actions = observation["actions"]
    if observation["stage"] == 0:
        return 1 if "3" in observation["question"] else 0
    assert len(observation["answers"]) == len(observation["models"]) == observation["stage"]
    if observation["answers"][0] == "unknown":
        return 2
    if observation["cost"] > 2 and len(actions) > 3:
        return 3 + actions.index(observation["models"][-1])
    return 0


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_rule_that_reads_answers_is_valued_as_by_hand(stop: bool, hops: int) -> None:
    tree = random_tree(Routes(3, hops), 24, seed=hops)
    found = evaluate(tree, rule, ALPHA, allow_stop=stop, texts=said)
    expected, spent = by_hand(tree, rule, stop, ALPHA)
    np.testing.assert_allclose(found.quality, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.cost, spent, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        found.reward, np.array(expected) - ALPHA * np.array(spent), rtol=0, atol=1e-12
    )
    assert (found.name, found.split) == ("rule", "train")


@pytest.mark.parametrize("stop", [False, True])
def test_a_model_of_stable_baselines_is_valued_as_its_episodes_are_played(stop: bool) -> None:
    tree = two_step_tree()
    train, fold = tree.split("train"), tree.split("validation")
    env = StableBaselinesEnv(ReplayVectorEnv(train, ALPHA, 8, stop, observation="features"))
    model = PPO("MultiInputPolicy", env, n_steps=16, batch_size=32, seed=0, device="cpu")
    model.learn(256)
    played = ReplayEnv(fold, ALPHA, stop)
    rewards = []
    for query in range(len(fold)):
        seen, _ = played.reset(options={"query": query})
        ended = False
        while not ended:
            seen, reward, ended, _, _ = played.step(model.predict(seen, deterministic=True)[0])
        rewards.append(reward)
    found = evaluate(tree, model, ALPHA)  # what it may do is read off the model
    assert (found.name, found.split) == ("PPO", "validation")
    np.testing.assert_allclose(found.reward, rewards, rtol=0, atol=1e-12)
    assert len(set(rewards)) > 1


def expected_by_paths(
    tree: RouteTree, table: np.ndarray, stop: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Q and C over every sequence of actions, each with its probability."""
    models = len(tree.models)
    totals = np.zeros((2, len(tree)))
    for query in range(len(tree)):
        for calls in range(1, tree.hops + 1):
            for path in itertools.product(range(models), repeat=calls):
                chance = 1.0
                for made in range(calls):
                    row = table[query, node(tree, path[:made]) if made else 0]
                    last, ends = made == calls - 1, made == tree.hops - 1
                    taken = row[path[made]] if not last or ends else 0.0
                    if stop and last:
                        taken += row[models + path[made]]
                    chance *= taken
                totals[0, query] += chance * quality(tree, query, path)
                totals[1, query] += chance * cost(tree, query, path)
    return totals[0], totals[1]


def drawn_table(tree: RouteTree, stop: bool, seed: int) -> np.ndarray:
    """Random probabilities, many of them 0."""
    rng = np.random.default_rng(seed)
    shape = (len(tree), tree.routes.states, len(tree.models) * (2 if stop else 1))
    table = rng.random(shape) * (rng.random(shape) < 0.6) + 1e-9
    return table / table.sum(axis=2, keepdims=True)


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize(("models", "hops"), [(2, 3), (3, 2), (1, 2), (4, 1)])
def test_a_policy_that_draws_is_valued_over_every_path(models: int, hops: int, stop: bool) -> None:
    tree = random_tree(Routes(models, hops), 7, seed=models)
    table = drawn_table(tree, stop, seed=hops)
    place = {(query, way): at for query, way, at in ways(tree)}
    index = {name: at for at, name in enumerate(tree.query_ids)}

    class Drawing:
        def act(self, observation: Mapping[str, Any]) -> Any:
            way = tuple(tree.models.index(name) for name in observation["models"])
            query = index[observation["question"]]
            return table[query, place[query, way]].tolist()

    named = [Said(name, ("",) * tree.routes.nodes) for name in tree.query_ids]
    expected, spent = expected_by_paths(tree, table, stop)
    for policy in (Drawing(), table, table.astype(np.float32)):
        found = evaluate(tree, policy, ALPHA, allow_stop=stop, texts=lambda _: named)
        exact = 1e-6 if getattr(policy, "dtype", None) == np.float32 else 1e-12
        np.testing.assert_allclose(found.quality, expected, rtol=0, atol=exact)
        np.testing.assert_allclose(found.cost, spent, rtol=0, atol=exact * 10)


def ways(tree: RouteTree) -> list[tuple[int, tuple[int, ...], int]]:
    """Each query and state: the models called so far, and the number of the state."""
    return [
        (query, tree.routes.path(at), at)
        for query in range(len(tree))
        for at in range(tree.routes.states)
    ]


def test_a_policy_is_asked_only_where_it_can_come_to_and_once() -> None:
    tree = random_tree(Routes(3, 3), 5, seed=0)
    asked: list[tuple[int, tuple[str, ...]]] = []

    def first(observation: Mapping[str, Any]) -> int:
        asked.append((observation["stage"], observation["models"]))
        return 0

    table = policy_table(tree, first, ALPHA, allow_stop=True)
    assert len(asked) == 5 * 3
    assert set(asked) == {(0, ()), (1, ("model-0",)), (2, ("model-0", "model-0"))}
    assert table.shape == (5, 13, 6)
    np.testing.assert_allclose(table.sum(axis=2), 1)


def test_stopping_with_the_last_call_is_not_stopping() -> None:
    tree = random_tree(Routes(2, 2), 6, seed=1)
    stops = policy_table(tree, lambda seen: [0.1, 0.2, 0.3, 0.4], ALPHA, allow_stop=True)
    np.testing.assert_allclose(stops[:, 0], np.tile([0.1, 0.2, 0.3, 0.4], (6, 1)))
    np.testing.assert_allclose(stops[:, 1:], np.tile([0.4, 0.6, 0, 0], (6, 2, 1)))
    value = evaluate(tree, lambda seen: 2 if seen["stage"] else 1, ALPHA, allow_stop=True)
    same = evaluate(tree, lambda seen: 0 if seen["stage"] else 1, ALPHA)
    np.testing.assert_array_equal(value.reward, same.reward)


def test_an_observation_is_what_a_router_sees_and_the_texts() -> None:
    tree = random_tree(Routes(2, 2), 3, seed=2)
    seen: list[Mapping[str, Any]] = []

    def second(observation: Mapping[str, Any]) -> int:
        seen.append(observation)
        return 1

    evaluate(tree, second, ALPHA)
    last = seen[-1]
    assert set(last) == {
        *("question", "answers", "models", "stage", "cost", "embedding", "alpha", "actions")
    }
    assert (last["stage"], last["models"], last["alpha"]) == (1, ("model-1",), ALPHA)
    np.testing.assert_array_equal(last["embedding"], tree.embedding[2, 2])
    assert last["embedding"].dtype == np.float32
    assert last["cost"] == tree.cost[2, 2]
    assert "tree" not in repr(last)
    assert "query q2, stage 1" in repr(last)
    with pytest.raises(InputError, match="no texts to read"):
        last["question"]
    with pytest.raises(KeyError):
        last["answer"]


def test_the_texts_of_a_tree_are_taken_where_it_has_them_and_only_when_read() -> None:
    class WithTexts(RouteTree):
        @property
        def texts(self) -> list[Said]:
            loaded.append(len(self))
            return said(self)

    loaded: list[int] = []
    plain = random_tree(Routes(3, 2), 9, seed=4)
    tree = WithTexts(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
    evaluate(tree, lambda seen: 0, ALPHA)
    assert not loaded
    found = evaluate(tree, rule, ALPHA)
    assert loaded == [9]
    np.testing.assert_array_equal(found.reward, evaluate(plain, rule, ALPHA, texts=said).reward)


def test_a_tree_that_was_not_split_is_valued_on_validation_and_says_so() -> None:
    tree = planted_tree(per_family=(6, 4, 3))
    found = evaluate(tree, lambda seen: 1, ALPHA)
    assert found.split == "validation"
    assert "validation" in repr(found)
    np.testing.assert_array_equal(
        found.reward, evaluate(tree.split("validation"), lambda seen: 1, ALPHA).reward
    )
    assert found.query_ids == tree.split("validation").query_ids
    for fold in ("train", "test"):
        asked = evaluate(tree, lambda seen: 1, ALPHA, split=fold)
        given = evaluate(tree.split(fold), lambda seen: 1, ALPHA)
        assert asked.split == given.split == fold
        np.testing.assert_array_equal(asked.reward, given.reward)
    table = np.full((len(tree), tree.routes.states, 3), 1 / 3)
    table[tree.splits.index("validation")] = [0, 0, 1]
    assert evaluate(tree, table, ALPHA).reward[0] == pytest.approx(
        evaluate(tree, lambda seen: 2, ALPHA).reward[0]
    )


def test_names_are_direct_calls_routes_and_the_oracle() -> None:
    tree = planted_tree(per_family=(6, 4, 3)).split("test")
    direct = evaluate(tree, "model-1", ALPHA)
    np.testing.assert_array_equal(direct.quality, tree.direct.score[:, 1])
    route = evaluate(tree, "model-1>model-0", ALPHA)
    np.testing.assert_array_equal(route.quality, tree.score[:, tree.routes.node((1, 0))])
    early = evaluate(tree, "model-1>stop", ALPHA)
    np.testing.assert_array_equal(early.cost, tree.cost[:, tree.routes.node((1,))])
    best = evaluate(tree, "oracle", ALPHA)
    np.testing.assert_allclose(best.reward, tree.reward(ALPHA).max(axis=1))
    with pytest.raises(InputError, match=r"unknown policy: modle; give a model .*or oracle"):
        evaluate(tree, "modle", ALPHA)


def test_a_trained_router_is_valued_at_its_own_alpha() -> None:
    tree = small_tree()
    router = train(tree, Objective(RUN_ALPHA, allow_stop=True), EXACT_GLIMPSE, 0)
    found, fold = evaluate(tree, router), tree.split("validation")
    assert (found.name, found.alpha, found.split) == ("hierrouter", RUN_ALPHA, "validation")
    np.testing.assert_array_equal(found.reward, router.outcome(fold).reward(RUN_ALPHA))
    dear = evaluate(tree, router, 3.0, allow_stop=True)
    np.testing.assert_array_equal(dear.reward, router.outcome(fold).reward(3.0))
    with pytest.raises(InputError, match="it may stop early, allow_stop is False; leave"):
        evaluate(tree, router, allow_stop=False)


def test_an_evaluation_shows_itself() -> None:
    tree = planted_tree(per_family=(6, 4, 3)).split("test")
    found = evaluate(tree, "model-1>model-0", 0.25)
    assert isinstance(found, Evaluation)
    assert repr(found).startswith("<model-1>model-0 on 15 test queries at alpha 0.25: R ")
    frame = found.to_pandas()
    columns = ["query", "dataset", "split", "quality", "accuracy", "cost", "reward"]
    assert list(frame.columns) == columns
    assert frame["reward"].mean() == pytest.approx(found.mean_reward)
    assert frame["quality"].mean() == pytest.approx(found.mean_quality)
    assert frame["cost"].mean() == pytest.approx(found.mean_cost)


class Raising:
    name = "raising"

    def act(self, observation: Mapping[str, Any]) -> int:
        raise LookupError("no\nsuch thing")


def only_late(given: Any) -> Act:
    return lambda seen: given if seen["stage"] else 0


BAD = [
    (lambda seen: 3, "policy gave no such action: 3: <lambda>: query q0, stage 0; actions: 0 "),
    (lambda seen: -1, "no such action: -1: <lambda>: query q0, stage 0"),
    (lambda seen: "modle", "no such action: 'modle': <lambda>: query q0, stage 0"),
    (lambda seen: None, "policy gave None: <lambda>: query q0, stage 0; give an action from 0 "),
    (lambda seen: True, "policy gave True: "),
    (lambda seen: 1.0, "policy gave 1.0: "),
    (lambda seen: [0.5, 0.5], r"policy gave \[0.5, 0.5\]: .* or 3 probabilities"),
    (lambda seen: ["a", "b", "c"], r"policy gave \['a', 'b', 'c'\]: "),
    (only_late([0.5, 0.4, 0.2]), "no probabilities: 0.5 0.4 0.2: <lambda>: query q0, stage 1; "),
    (lambda seen: [1.5, -0.5, 0], "policy gave no probabilities: 1.5 -0.5 0: "),
    (lambda seen: [np.nan, 1, 0], "policy gave no probabilities: nan 1 0: "),
    (lambda seen: [np.inf, -np.inf, 1], "policy gave no probabilities: inf -inf 1: "),
    (Raising(), "policy failed: raising: query q0, stage 0: LookupError: no such thing; mend it"),
    (lambda seen: seen["answers"], "no texts to read: this tree holds numbers only; open the"),
    (lambda seen: seen["qeustion"], "<lambda>: query q0, stage 0: KeyError: 'qeustion'; mend it"),
    (Raising, "not a policy to be asked: raising, a class; give a function"),
    (7, "not a policy to be asked: int, int; give a function"),
    (np.ones((4, 4)), r"not a table of this tree: float64\[4, 4\]; .*float64\[4, 4, A\]"),
    (np.ones((4, 4, 2)) / 2, "table of 2 actions: table; there are 3: model-0, model-1, model-2"),
    (np.ones((4, 4, 3)), "policy gave no probabilities: 1 1 1: table: query q0, stage 0; "),
]


@pytest.mark.parametrize(("policy", "says"), BAD)
def test_what_is_no_policy_is_refused_in_one_line(policy: Any, says: str) -> None:
    tree = random_tree(Routes(3, 2), 4, seed=0)
    with pytest.raises(InputError, match=says) as refused:
        evaluate(tree, policy, ALPHA)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_what_a_policy_raised_is_chained() -> None:
    tree = random_tree(Routes(3, 2), 4, seed=0)
    with pytest.raises(InputError) as refused:
        evaluate(tree, Raising(), ALPHA)
    assert isinstance(refused.value.__cause__, LookupError)


class Predicting:
    """As Stable-Baselines3 has it, and as it should not be."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def predict(self, seen: Mapping[str, Any], deterministic: bool = False) -> tuple[Any, None]:
        assert deterministic
        given = self.given(len(seen["stage"])) if callable(self.given) else self.given
        return given, None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda n: np.full(n, 3), "no such action: 3: Predicting: query q0, stage 0; actions: 0"),
        (lambda n: np.full(n, 0.5), r"policy gave float64\[4\]: Predicting: stage 0; predict must"),
        (np.zeros(3, int), r"policy gave int64\[3\]: Predicting: stage 0; .* of 4 states"),
        (lambda n: 1 / 0, "policy failed: Predicting: stage 0: ZeroDivisionError: .*; train it on"),
    ],
)
def test_what_a_model_predicts_is_checked(given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        evaluate(random_tree(Routes(3, 2), 4, seed=0), Predicting(given), ALPHA)


@pytest.mark.parametrize("policy", [lambda seen: 4, Predicting(lambda n: np.full(n, 4))])
def test_nobody_is_asked_after_all_have_stopped(policy: Any) -> None:
    tree = random_tree(Routes(3, 3), 4, seed=0)
    found = evaluate(tree, policy, ALPHA, allow_stop=True)
    np.testing.assert_array_equal(found.cost, tree.cost[:, 2])
    np.testing.assert_array_equal(found.quality, tree.score[:, 2])


def test_alpha_and_fold_are_checked() -> None:
    tree = random_tree(Routes(2, 2), 4, seed=0)
    with pytest.raises(InputError, match="no alpha to value a policy at"):
        evaluate(tree, lambda seen: 0)
    for alpha in (-1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="alpha must be a finite number >= 0"):
            evaluate(tree, lambda seen: 0, alpha)
    with pytest.raises(InputError, match="the test fold is empty; this tree has train"):
        evaluate(tree, lambda seen: 0, ALPHA, split="test")
    folds = replace(tree, splits=("train", "train", "test", "test"))
    with pytest.raises(InputError, match="validation fold is empty; this tree has test, train"):
        evaluate(folds, lambda seen: 0, ALPHA)


MODULE = """
class Always:
    name = "always the first"
    def act(self, observation):
        return 0
class Needing:
    def __init__(self, what):
        pass
def second(observation):
    return 1
number = 7
always = Always()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "brought.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "brought"
    sys.modules.pop("brought", None)


def test_a_policy_is_found_at_its_import_path(module: str) -> None:
    found = own_policies([f"{module}:Always", f"{module}:second"])
    assert [one.name for one in found] == ["always the first", "brought:second"]
    assert found[0].version == found[1].version != ""
    tree = random_tree(Routes(2, 2), 4, seed=0)
    value = evaluate(tree, found[1], ALPHA)
    assert value.name == "brought:second"
    np.testing.assert_array_equal(value.reward, evaluate(tree, "model-1>model-1", ALPHA).reward)
    assert own_policy(rule).name == "rule"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("brought", "not an import path: 'brought'; write --policy module:object"),
        ("nowhere_at_all:x", "policy cannot be made: nowhere_at_all:x: ModuleNotFoundError: "),
        ("brought:nothing", "policy cannot be made: brought:nothing: AttributeError: "),
        ("brought:Needing", "policy cannot be made: brought:Needing: TypeError: "),
        ("brought:number", "not a policy to be asked: brought:number, int; give a function"),
    ],
)
def test_an_import_path_that_leads_nowhere(module: str, path: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        own_policy(path)


def test_two_policies_of_one_name(module: str) -> None:
    with pytest.raises(InputError, match="two policies of one name: always the first: brought:"):
        own_policies([f"{module}:Always", f"{module}:always"])


def test_gymnasium_knows_the_environment() -> None:
    tree = two_step_tree()
    made = gymnasium.make("hierrouter/Replay-v0", tree=tree, alpha=ALPHA)
    assert isinstance(made.unwrapped, ReplayEnv)
    played, twin = made.reset(seed=3), ReplayEnv(tree, ALPHA).reset(seed=3)
    assert played[1] == twin[1]
    many = gymnasium.make_vec(
        "hierrouter/Replay-v0",
        num_envs=4,
        vectorization_mode="vector_entry_point",
        tree=tree,
        alpha=ALPHA,
        allow_stop=True,
    )
    assert isinstance(many.unwrapped, ReplayVectorEnv)


def test_probabilities_of_the_models_alone_never_stop() -> None:
    """A policy that knows nothing of stopping stands beside a router that may."""
    tree = random_tree(Routes(3, 2), queries=6, seed=0)
    short = np.random.default_rng(0).dirichlet(np.ones(3), (6, tree.routes.states))
    whole = np.concatenate([short, np.zeros_like(short)], axis=2)
    expected = evaluate(tree, whole, ALPHA, allow_stop=True).reward
    for policy in (short, lambda seen: short[int(seen["stage"]), 0]):
        found = policy_table(tree, policy, ALPHA, allow_stop=True)
        assert found.shape[2] == 6
        assert not found[..., 3:].any()
    np.testing.assert_array_equal(evaluate(tree, short, ALPHA, allow_stop=True).reward, expected)
