"""Anybody's policy is valued exactly: as if each of its episodes were walked by hand."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO

import hierrouter as hr
from hierrouter.evaluation.outcome import Actions
from hierrouter.evaluation.policies import own_policies, own_policy, policy_table
from hierrouter.learning.config import Objective
from hierrouter.learning.training import train
from hierrouter.replay.env import ReplayEnv
from hierrouter.replay.tree import Texts
from hierrouter.runs.checkpoint import save_checkpoint
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation.enumeration import cost, node, quality
from tests.hierrouter.evaluation.test_outcome import every_episode, random_table
from tests.hierrouter.learning.trainings import ALPHA as RUN_ALPHA
from tests.hierrouter.learning.trainings import EXACT_GLIMPSE, small_tree
from tests.hierrouter.trees import planted_tree, random_tree, showing_leaves, two_step_tree

ALPHA = 0.05
Act = Callable[[Mapping[str, Any]], Any]


def texts_of(tree: RouteTree) -> list[Texts]:
    """Texts in which some answers are "unknown", by a fixed rule."""
    texts = []
    for query in tree.query_ids:
        answers = [""]
        for number in range(1, tree.layout.nodes):
            is_known = (int(query[1:]) + number) % 3 > 0
            answers.append(f"{query}/{number}" if is_known else "unknown")
        texts.append(Texts(f"question {query}", (), tuple(answers)))
    return texts


def values_by_hand(tree: RouteTree, act: Act, stop: bool) -> list[tuple[float, float]]:
    """Q and C of a deterministic policy, by walking down the tree of each query."""
    models = tree.models
    stopping = [f"{name}>stop" for name in models] if stop else []
    values = []
    for query, texts in enumerate(texts_of(tree)):
        path: tuple[int, ...] = ()
        stopped = 0
        while len(path) < tree.hops and not stopped:
            prefixes = [path[: calls + 1] for calls in range(len(path))]
            observation = {
                "question": texts.question,
                "answers": tuple(texts.answers[node(tree, prefix)] for prefix in prefixes),
                "models": tuple(models[model] for model in path),
                "stage": len(path),
                "cost": cost(tree, query, path),
                "actions": (*models, *stopping),
            }
            stopped, model = divmod(int(act(observation)), len(models))
            path = (*path, model)
        values.append((quality(tree, query, path), cost(tree, query, path)))
    return values


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
    tree = random_tree(Layout.full(3, hops), 24, seed=hops)
    found = hr.evaluate(tree, rule, ALPHA, allow_stop=stop, texts=texts_of)
    expected, spent = np.array(values_by_hand(tree, rule, stop)).T
    np.testing.assert_allclose(found.quality, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.cost, spent, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.reward, expected - ALPHA * spent, rtol=0, atol=1e-12)
    assert (found.name, found.split) == ("rule", "train")


@pytest.mark.parametrize("stop", [False, True])
def test_a_model_of_stable_baselines_is_valued_as_its_episodes_are_played(stop: bool) -> None:
    tree = two_step_tree()
    train, fold = tree.split("train"), tree.split("validation")
    env = ReplayEnv(train, ALPHA, stop)
    model = PPO("MultiInputPolicy", env, n_steps=128, batch_size=32, seed=0, device="cpu")
    model.learn(256)
    played = ReplayEnv(fold, ALPHA, stop)
    rewards = []
    for query in range(len(fold)):
        seen, _ = played.reset(options={"query": query})
        ended = False
        while not ended:
            seen, reward, ended, _, _ = played.step(model.predict(seen, deterministic=True)[0])
        rewards.append(reward)
    found = hr.evaluate(tree, model, ALPHA)  # what it may do is read off the model
    assert (found.name, found.split) == ("PPO", "validation")
    np.testing.assert_allclose(found.reward, rewards, rtol=0, atol=1e-12)
    assert len(set(rewards)) > 1


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize(("models", "hops"), [(2, 3), (3, 2), (1, 2), (4, 1)])
def test_a_policy_that_draws_is_valued_over_every_path(models: int, hops: int, stop: bool) -> None:
    tree = random_tree(Layout.full(models, hops), 7, seed=models)
    routes, actions = tree.layout, Actions(tree.layout, stop)
    table = random_table(tree, hops, allow_stop=stop, legal=False)
    table *= np.random.default_rng(hops).random(table.shape) < 0.6  # much is never done
    table = (table + 1e-9) / (table + 1e-9).sum(axis=2, keepdims=True)

    def draw(seen: Mapping[str, Any]) -> list[float]:
        state = routes.node(tuple(tree.models.index(name) for name in seen["models"]))
        return table[tree.query_ids.index(seen["question"]), state].tolist()

    expected = np.zeros((2, len(tree)))
    for made, end in every_episode(actions):
        states = [routes.node(routes.path(end)[:hop]) for hop in range(len(made))]
        chance = np.prod([table[:, *one] for one in zip(states, made, strict=True)], axis=0)
        expected += chance * np.array([tree.score[:, end], tree.cost[:, end]])
    named = [Texts(name, (), ()) for name in tree.query_ids]
    for policy, exact in ((draw, 1e-12), (table, 1e-12), (table.astype(np.float32), 1e-6)):
        found = hr.evaluate(tree, policy, ALPHA, allow_stop=stop, texts=lambda _: named)
        np.testing.assert_allclose(found.quality, expected[0], rtol=0, atol=exact)
        np.testing.assert_allclose(found.cost, expected[1], rtol=0, atol=exact * 10)


def test_a_policy_is_asked_only_where_it_can_come_to_and_once() -> None:
    tree = random_tree(Layout.full(3, 3), 5, seed=0)
    asked: list[tuple[int, tuple[str, ...]]] = []

    def first(observation: Mapping[str, Any]) -> int:
        asked.append((observation["stage"], observation["models"]))
        return 0

    table = policy_table(tree, first, ALPHA, allow_stop=True)
    assert len(asked) == 5 * 3
    assert set(asked) == {(0, ()), (1, ("model-0",)), (2, ("model-0", "model-0"))}
    assert table.shape == (5, 13, 6)
    np.testing.assert_allclose(table.sum(axis=2), 1)


def test_an_observation_is_what_a_router_sees_and_the_texts() -> None:
    tree = random_tree(Layout.full(2, 2), 3, seed=2)
    seen: list[Mapping[str, Any]] = []

    def second(observation: Mapping[str, Any]) -> int:
        seen.append(observation)
        return 1

    hr.evaluate(tree, second, ALPHA)
    last = seen[-1]
    assert set(last) == {
        *("question", "answers", "models", "stage", "cost", "embedding", "alpha", "actions"),
        "offered",
    }
    assert last["offered"] == last["actions"][:2] == ("model-0", "model-1")
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


def test_a_tree_that_was_not_split_is_valued_on_validation_and_says_so() -> None:
    tree = planted_tree(per_family=(6, 4, 3))
    for fold in (None, "train", "test"):
        asked = hr.evaluate(tree, lambda seen: 1, ALPHA, split=fold)
        given = hr.evaluate(tree.split(fold or "validation"), lambda seen: 1, ALPHA)
        assert asked.split == given.split == (fold or "validation")
        assert asked.split in repr(asked)
        assert asked.query_ids == given.query_ids
        np.testing.assert_array_equal(asked.reward, given.reward)
    table = np.full((len(tree), tree.layout.inner, 3), 1 / 3)
    table[tree.splits.index("validation")] = [0, 0, 1]
    always = hr.evaluate(tree, lambda seen: 2, ALPHA)
    assert hr.evaluate(tree, table, ALPHA).reward[0] == pytest.approx(always.reward[0])


def test_names_are_direct_calls_routes_and_the_oracle() -> None:
    tree = planted_tree(per_family=(6, 4, 3)).split("test")
    direct = hr.evaluate(tree, "model-1", ALPHA)
    np.testing.assert_array_equal(direct.quality, tree.direct.score[:, 1])
    route = hr.evaluate(tree, "model-1>model-0", ALPHA)
    np.testing.assert_array_equal(route.quality, tree.score[:, tree.layout.node((1, 0))])
    early = hr.evaluate(tree, ">model-1", ALPHA)
    np.testing.assert_array_equal(early.cost, tree.cost[:, tree.layout.node((1,))])
    best = hr.evaluate(tree, "oracle", ALPHA)
    np.testing.assert_allclose(best.reward, tree.reward(ALPHA).max(axis=1))
    with pytest.raises(InputError, match=r"unknown policy: modle; give a model .*folder of a run"):
        hr.evaluate(tree, "modle", ALPHA)


def test_a_trained_router_or_its_folder_is_valued_at_its_own_alpha(tmp_path: Path) -> None:
    tree = small_tree()
    router = train(tree, Objective(RUN_ALPHA, allow_stop=True), EXACT_GLIMPSE, 0)
    save_checkpoint(router, tmp_path)
    fold = tree.split("validation")
    for policy in (router, tmp_path, str(tmp_path), hr.Run.load(tmp_path)):
        found = hr.evaluate(tree, policy)
        assert (found.name, found.alpha, found.split) == ("hierrouter", RUN_ALPHA, "validation")
        np.testing.assert_array_equal(found.reward, router.outcome(fold).reward(RUN_ALPHA))
    dear = hr.evaluate(tree, tmp_path, 3.0, allow_stop=True)
    np.testing.assert_array_equal(dear.reward, router.outcome(fold).reward(3.0))
    with pytest.raises(InputError, match="it may stop early, allow_stop is False; leave"):
        hr.evaluate(tree, router, allow_stop=False)
    with pytest.raises(InputError, match=r"write hr\.Run\.load\(path\)"):
        hr.Run(tmp_path)


def test_an_evaluation_shows_itself() -> None:
    found = hr.evaluate(planted_tree(per_family=(6, 4, 3)).split("test"), "model-1>model-0", 0.25)
    assert repr(found).startswith("<model-1>model-0 on 15 test queries at alpha 0.25: R ")
    frame = found.to_pandas()
    columns = ["query", "dataset", "split", "quality", "accuracy", "cost", "reward"]
    assert list(frame.columns) == columns
    for name in columns[3:]:
        assert frame[name].tolist() == getattr(found, name).tolist()


class Raising:
    name = "raising"

    def act(self, observation: Mapping[str, Any]) -> int:
        raise LookupError("no\nsuch thing")


def only_late(given: Any) -> Act:
    return lambda seen: given if seen["stage"] else 0


BAD = [
    (lambda seen: 3, "no such action: 3: .*stage 0; actions: 0 model-0, 1 .*, 2 model-2$"),
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
    (lambda seen: sys.exit("gone"), "policy failed: .*: SystemExit: gone; correct it, or leave"),
    (
        Raising(),
        "policy failed: raising: query q0, stage 0: LookupError: no such thing; correct it",
    ),
    (lambda seen: seen["question"], "no texts to read: this tree holds numbers only; open the"),
    (
        lambda seen: seen["qeustion"],
        "<lambda>: query q0, stage 0: KeyError: 'qeustion'; correct it",
    ),
    (Raising, "not a policy to be asked: raising, a class; give a function"),
    (7, "not a policy to be asked: int, int; give a function"),
    (hr.oracle(random_tree(Layout.full(3, 2), 4, seed=0), ALPHA), "not a policy to be asked: "),
    (np.ones((4, 4)), r"not a table of this tree: float64\[4, 4\]; .*float64\[4, 4, A\]"),
    (np.ones((4, 4, 2)) / 2, "table of 2 actions: table; there are 3: model-0, model-1, model-2"),
    (np.ones((4, 4, 3)), "policy gave no probabilities: 1 1 1: table: query q0, stage 0; "),
]


@pytest.mark.parametrize(("policy", "says"), BAD)
def test_what_is_no_policy_is_refused_in_one_line(policy: Any, says: str) -> None:
    tree = random_tree(Layout.full(3, 2), 4, seed=0)
    with pytest.raises(InputError, match=says) as refused:
        hr.evaluate(tree, policy, ALPHA)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
    assert (refused.value.__cause__ is not None) == ("Error: " in says or "Exit: " in says)


def test_all_actions_that_are_possible_are_named_up_to_a_dozen() -> None:
    tree = random_tree(Layout.full(7, 2), 1, seed=0)
    for policy, says in (
        (lambda seen: "m", "stage 0; actions: 0 model-0, .*, 11 model-4>stop, 2 more$"),
        (only_late("m"), "stage 1; actions: 0 model-0, .*, 6 model-6$"),
    ):
        with pytest.raises(InputError, match=says):
            hr.evaluate(tree, policy, ALPHA, allow_stop=True)


class FixedPrediction:
    """The interface of a Stable-Baselines3 model, with any return value.

    Args:
        action: what `predict` returns, or a function of the number of states.
    """

    def __init__(self, action: Any) -> None:
        self.action = action

    def predict(
        self, observation: Mapping[str, Any], deterministic: bool = False
    ) -> tuple[Any, None]:
        assert deterministic
        states = len(observation["stage"])
        return self.action(states) if callable(self.action) else self.action, None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            lambda n: np.full(n, 3),
            "no such action: 3: FixedPrediction: query q0, stage 0; actions: 0",
        ),
        (
            lambda n: np.full(n, 0.5),
            r"policy gave float64\[4\]: FixedPrediction: stage 0; predict must",
        ),
        (np.zeros(3, int), r"policy gave int64\[3\]: FixedPrediction: stage 0; .* of 4 states"),
        (
            lambda n: 1 / 0,
            "policy failed: FixedPrediction: stage 0: ZeroDivisionError: .*; train it on",
        ),
    ],
)
def test_what_a_model_predicts_is_checked(given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        hr.evaluate(random_tree(Layout.full(3, 2), 4, seed=0), FixedPrediction(given), ALPHA)


@pytest.mark.parametrize("policy", [lambda seen: 4, FixedPrediction(lambda n: np.full(n, 4))])
def test_nobody_is_asked_after_all_have_stopped(policy: Any) -> None:
    tree = random_tree(Layout.full(3, 3), 4, seed=0)
    found = hr.evaluate(tree, policy, ALPHA, allow_stop=True)
    np.testing.assert_array_equal(found.cost, tree.cost[:, 2])
    np.testing.assert_array_equal(found.quality, tree.score[:, 2])


def test_alpha_and_fold_are_checked() -> None:
    tree = random_tree(Layout.full(2, 2), 4, seed=0)
    with pytest.raises(InputError, match="no alpha to value a policy at"):
        hr.evaluate(tree, lambda seen: 0)
    for alpha in (-1, float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"alpha must be (finite|>= 0)"):
            hr.evaluate(tree, lambda seen: 0, alpha)
    with pytest.raises(InputError, match="the test fold is empty; this tree has train"):
        hr.evaluate(tree, lambda seen: 0, ALPHA, split="test")
    folds = replace(tree, splits=("train", "train", "test", "test"))
    with pytest.raises(InputError, match="validation fold is empty; this tree has test, train"):
        hr.evaluate(folds, lambda seen: 0, ALPHA)
    with pytest.raises(InputError, match="unknown split: val; known: train, validation, test"):
        hr.evaluate(tree, lambda seen: 0, ALPHA, split="val")


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
    tree = random_tree(Layout.full(2, 2), 4, seed=0)
    value = hr.evaluate(tree, found[1], ALPHA)
    assert value.name == "brought:second"
    np.testing.assert_array_equal(value.reward, hr.evaluate(tree, "model-1>model-1", ALPHA).reward)
    assert own_policy(rule).name == "rule"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("brought", "not an import path: 'brought'; write module:object"),
        ("./rules/brought.py:second", "a file is no import path: .*; write rules.brought:second"),
        ("nowhere_at_all:x", "policy cannot be made: nowhere_at_all:x: ModuleNotFoundError: "),
        ("brought:nothing", "policy cannot be made: brought:nothing: AttributeError: "),
        ("brought:Needing", "policy cannot be made: brought:Needing: TypeError: "),
        ("brought:number", "not a policy to be asked: brought:number, int; give a function"),
    ],
)
def test_an_import_path_that_leads_nowhere(module: str, path: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        own_policy(path)


def test_policies_are_a_list_a_mapping_by_name_or_one(module: str) -> None:
    for given, names in (
        ([rule, f"{module}:Always"], ["rule", "always the first"]),
        ({"mine": rule, "other": f"{module}:second"}, ["mine", "other"]),
        (rule, ["rule"]),
        (f"{module}:second", ["brought:second"]),
    ):
        assert [one.name for one in own_policies(given)] == names
    with pytest.raises(InputError, match="two policies of one name: always the first: brought:"):
        own_policies([f"{module}:Always", f"{module}:always"])


def test_probabilities_of_the_models_alone_never_stop() -> None:
    """A policy that knows nothing of stopping stands beside a router that may."""
    tree = random_tree(Layout.full(3, 2), queries=6, seed=0)
    short = np.random.default_rng(0).dirichlet(np.ones(3), (6, tree.layout.inner))
    whole = np.concatenate([short, np.zeros_like(short)], axis=2)
    expected = hr.evaluate(tree, whole, ALPHA, allow_stop=True).reward
    for policy in (short, lambda seen: short[int(seen["stage"]), 0]):
        found = policy_table(tree, policy, ALPHA, allow_stop=True)
        assert found.shape[2] == 6
        assert not found[..., 3:].any()
    np.testing.assert_array_equal(hr.evaluate(tree, short, ALPHA, allow_stop=True).reward, expected)


class LastLegal:
    """A model that asks which actions are legal, as MaskablePPO of sb3-contrib does."""

    def predict(self, observations: Any, deterministic: bool, action_masks: Any = None) -> Any:
        assert action_masks.dtype == np.bool_ and len(action_masks) == len(observations["stage"])
        legal = action_masks.shape[1] - 1 - action_masks[:, ::-1].argmax(axis=1)
        return legal, None


@pytest.mark.parametrize(
    ("stop", "returns", "calls"),
    [(False, False, 2), (True, False, 1), (False, True, 1), (True, True, 1)],
)
def test_a_model_that_asks_for_masks_gets_them(stop: bool, returns: bool, calls: int) -> None:
    """Without them it would return an answer before there is one, which is an error."""
    tree = showing_leaves(random_tree(Layout.full(3, 2), 6, seed=1))
    value = hr.evaluate(
        tree, LastLegal(), 0.1, allow_stop=stop, allow_return=returns, split="train"
    )
    node = tree.layout.node((2,) * calls)  # the last model, ended as soon as it may be
    np.testing.assert_allclose(value.reward, tree.node_reward(0.1)[:, node])
