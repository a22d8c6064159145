"""`--policy`: a policy of the user's own beside the router, in report and compare."""

from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO

from hierrouter.replay.env import ReplayEnv
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import load_texts
from hierrouter_cache.tree import RouteTree
from tests.cli.conftest import Place, over_all

ALPHA = 0.3
RULES = """
from stable_baselines3 import PPO

print("not a result")


def rule(observation):
    if observation["stage"] == 0:
        print("asked")
        return "text"
    return "facts" if observation["answers"][0] == "unknown" else "calc"


class Chance:
    name = "a draw"

    def act(self, observation):
        return [0.5, 0.5, 0.0]


trained = PPO.load("ppo.zip", device="cpu")
"""
POLICIES = "--policy rules:rule --policy rules:trained --policy rules:Chance"


@pytest.fixture(scope="module")
def ruled(work: Place) -> Place:
    """A copy of what a quickstart left, with policies."""
    (work / "rules.py").write_text(RULES)
    train = OpenTree(cache=work / "caches/default").run().split("train")
    env = ReplayEnv(train, ALPHA)
    model = PPO("MultiInputPolicy", env, n_steps=128, batch_size=32, seed=0, device="cpu")
    model.learn(128)
    model.save(work / "ppo.zip")
    return work


@pytest.fixture(scope="module")
def fold(ruled: Place) -> RouteTree:
    return OpenTree(cache=ruled / "caches/default").run().split("test")


@pytest.fixture(scope="module")
def expected(ruled: Place, fold: RouteTree) -> dict[str, float]:
    """Mean R of each policy, worked out on its own."""
    texts = load_texts(ruled / "caches/default", fold)
    calc, text, facts = (fold.models.index(name) for name in ("calc", "text", "facts"))
    by_rule = []
    for query, said in enumerate(texts):
        second = facts if said.answers[fold.layout.node((text,))] == "unknown" else calc
        end = fold.layout.node((text, second))
        by_rule.append(fold.score[query, end] - ALPHA * fold.cost[query, end])
    played, model, rewards = ReplayEnv(fold, ALPHA), PPO.load(ruled / "ppo.zip", device="cpu"), []
    for query in range(len(fold)):
        seen, _ = played.reset(options={"query": query})
        for _ in range(fold.hops):
            seen, reward, *_ = played.step(model.predict(seen, deterministic=True)[0])
        rewards.append(reward)
    ends = [fold.layout.node((one, two)) for one in (0, 1) for two in (0, 1)]
    drawn = (fold.score - ALPHA * fold.cost)[:, ends].mean(axis=1)
    means = (np.mean(values) for values in (by_rule, rewards, drawn))
    return dict(zip(("rules:rule", "rules:trained", "a draw"), map(float, means), strict=True))


def asked(place: Place, words: str) -> Any:
    return place.tells(f"{words} --alpha {ALPHA} {POLICIES}")


def best(fold: RouteTree) -> float:
    """Mean R of the oracle, which may stop where the quickstart's sweep may."""
    return float((fold.score - ALPHA * fold.cost)[:, 1:].max(axis=1).mean())


def test_reports_have_these_rows(ruled: Place, fold: RouteTree, expected: dict[str, float]) -> None:
    told = asked(ruled, "report")
    rows = over_all(told["rows"])
    for name, reward in expected.items():
        row = rows[name]
        assert row["kind"] == "baseline"
        assert row["reward"] == pytest.approx(reward, abs=1e-11)
        assert row["reward_low"] < row["reward"] < row["reward_high"]
        assert row["difference"] == pytest.approx(rows["hierrouter"]["reward"] - reward, abs=1e-9)
        lost = told["policy_regret"][name][-1]
        assert lost["dataset"] == "all"
        assert lost["shown"]["whole"]["mean"] == pytest.approx(best(fold) - reward, abs=1e-9)
    assert set(expected) <= {one["policy"] for one in told["comparisons"]}
    assert "policy_regret" not in ruled.tells("report")


def test_the_tables_show_them(ruled: Place) -> None:
    done = ruled.does(f"report --all {POLICIES} --format md")
    assert "not a result" not in done.stdout
    assert "asked" not in done.stdout
    regret = done.stdout.partition("Regret to the oracle, by the choice that caused it")[2]
    assert "rules:rule" in regret
    assert "a draw" in regret


def test_policies_are_rows_of_a_comparison(
    ruled: Place, fold: RouteTree, expected: dict[str, float]
) -> None:
    told = asked(ruled, "compare --baselines best-static")
    rows = {row["router"]: row for row in told["rows"]}
    lost = {one["second"]: one for one in told["values"] if one["value"] == "regret"}
    for name, reward in expected.items():
        row = rows[name]
        assert row["reward_low"] < row["reward"] < row["reward_high"]
        assert row["validation_reward"] is not None
        assert lost[name]["first"] == "anytime oracle"
        assert lost[name]["difference"] == pytest.approx(best(fold) - reward, abs=1e-9)
        assert lost[name]["difference_low"] < lost[name]["difference"]
    assert rows["rules:rule"]["source"] == "rules:rule"


def test_where_the_router_may_stop_policies_may(ruled: Place) -> None:
    ruled.does(f"train --algo exact --epochs 2 --allow-stop --out stopping --alpha {ALPHA}")
    (ruled / "short.py").write_text("def rule(seen):\n    return 'text>stop'\n")
    flags = "--checkpoint stopping --policy short:rule"
    rows = over_all(ruled.tells(f"report {flags}")["rows"])
    assert rows["short:rule"]["reward"] == pytest.approx(rows[">text"]["reward"], abs=1e-11)
    values = ruled.tells(f"compare --baselines random {flags}")["values"]
    assert [one["first"] for one in values if one["value"] == "regret"] == ["anytime oracle"]


def test_an_edit_of_the_file_is_another_look(ruled: Place) -> None:
    def looks(action: int) -> int:
        """How many there are when a rule that takes this action was shown."""
        (ruled / "edited.py").write_text(f"def rule(seen):\n    return {action}\n")
        ruled.does("report --policy edited:rule --format json")
        logs = ruled.folder.rglob("runs/**/test_looks.jsonl")
        return sum(len(log.read_text().splitlines()) for log in logs)

    before = looks(0)
    assert looks(0) == before
    assert looks(1) > before
