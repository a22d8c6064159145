"""`--policy`: a policy of the user's own beside the router, in report, compare and explore."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO

from hierrouter.replay.env import ReplayEnv, ReplayVectorEnv
from hierrouter.replay.opening import open_tree
from hierrouter.replay.stable_baselines import StableBaselinesEnv
from hierrouter.replay.tree import load_texts
from hierrouter_cache.tree import RouteTree
from tests.conftest import Run, as_json, works

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
POLICIES = ("--policy", "rules:rule", "--policy", "rules:trained", "--policy", "rules:Chance")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A copy of what a quickstart left, with policies."""
    folder = shutil.copytree(home, tmp_path_factory.mktemp("policies") / "work")
    (folder / "rules.py").write_text(RULES)
    train = open_tree(folder / "caches" / "default").split("train")
    env = StableBaselinesEnv(ReplayVectorEnv(train, ALPHA, 8, observation="features"))
    model = PPO("MultiInputPolicy", env, n_steps=16, batch_size=32, seed=0, device="cpu")
    model.learn(512)
    model.save(folder / "ppo.zip")
    return folder


@pytest.fixture(scope="module")
def fold(work: Path) -> RouteTree:
    return open_tree(work / "caches" / "default").split("test")


@pytest.fixture(scope="module")
def expected(work: Path, fold: RouteTree) -> dict[str, float]:
    """Mean R of each policy, worked out on its own."""
    texts = load_texts(work / "caches" / "default", fold)
    calc, text, facts = (fold.models.index(name) for name in ("calc", "text", "facts"))
    ruled = []
    for query, said in enumerate(texts):
        first = fold.routes.node((text,))
        second = facts if said.answers[first] == "unknown" else calc
        end = fold.routes.node((text, second))
        ruled.append(fold.score[query, end] - ALPHA * fold.cost[query, end])
    played, model, rewards = ReplayEnv(fold, ALPHA), PPO.load(work / "ppo.zip", device="cpu"), []
    for query in range(len(fold)):
        seen, _ = played.reset(options={"query": query})
        for _ in range(fold.hops):
            seen, reward, *_ = played.step(model.predict(seen, deterministic=True)[0])
        rewards.append(reward)
    ends = [fold.routes.node((one, two)) for one in (0, 1) for two in (0, 1)]
    drawn = (fold.score - ALPHA * fold.cost)[:, ends].mean(axis=1)
    means = (np.mean(values) for values in (ruled, rewards, drawn))
    return dict(zip(("rules:rule", "rules:trained", "a draw"), map(float, means), strict=True))


def asked(hierrouter: Run, work: Path, command: str, *flags: str) -> Any:
    flags = (*flags, "--alpha", str(ALPHA), "--format", "json", *POLICIES)
    return as_json(hierrouter(command, *flags, cwd=work))


def best(fold: RouteTree) -> float:
    """Mean R of the oracle, which may stop where the quickstart's sweep may."""
    return float((fold.score - ALPHA * fold.cost)[:, 1:].max(axis=1).mean())


def test_policies_are_rows_of_a_report(
    work: Path, fold: RouteTree, expected: dict[str, float], hierrouter: Run
) -> None:
    told = asked(hierrouter, work, "report")
    rows = {row["policy"]: row for row in told["rows"] if row["dataset"] == "all"}
    for name, reward in expected.items():
        row = rows[name]
        assert row["kind"] == "baseline"
        assert row["reward"] == pytest.approx(reward, abs=1e-11)
        assert row["reward_low"] < row["reward"] < row["reward_high"]
        assert row["difference"] == pytest.approx(rows["hierrouter"]["reward"] - reward, abs=1e-9)
        lost = told["policy_regret"][name][-1]
        assert lost["dataset"] == "all"
        assert lost["shown"]["whole"]["mean"] == pytest.approx(best(fold) - reward, abs=1e-9)
        assert lost["generalisation"] is None
    names = [one["policy"] for one in told["comparisons"]]
    assert set(expected) <= set(names)


def test_a_report_without_policies_has_no_key_more(work: Path, hierrouter: Run) -> None:
    done = hierrouter("report", "--format", "json", cwd=work)
    assert "policy_regret" not in json.loads(done.stdout)


def test_the_tables_show_them(work: Path, hierrouter: Run) -> None:
    done = works(hierrouter("report", "--all", *POLICIES, "--format", "md", cwd=work))
    assert "not a result" not in done.stdout
    assert "asked" not in done.stdout
    regret = done.stdout.partition("Regret to the oracle, by the choice that caused it")[2]
    assert "rules:rule" in regret
    assert "a draw" in regret


def test_policies_are_rows_of_a_comparison(
    work: Path, fold: RouteTree, expected: dict[str, float], hierrouter: Run
) -> None:
    told = asked(hierrouter, work, "compare", "--baselines", "best-static")
    rows = {row["router"]: row for row in told["rows"]}
    lost = {one["second"]: one for one in told["values"] if one["value"] == "regret"}
    for name, reward in expected.items():
        row = rows[name]
        assert (row["kind"], row["arms"], row["reads_answers"]) == ("baseline", "", True)
        assert row["reward"] == pytest.approx(reward, abs=1e-11)
        assert row["reward_low"] < row["reward"] < row["reward_high"]
        assert row["validation_reward"] is not None
        assert lost[name]["first"] == "anytime oracle"
        assert lost[name]["difference"] == pytest.approx(best(fold) - reward, abs=1e-9)
        assert lost[name]["difference_low"] < lost[name]["difference"]
    assert rows["rules:rule"]["source"] == "rules:rule"


def test_where_the_router_may_stop_policies_may(work: Path, hierrouter: Run) -> None:
    flags = ("--algo", "exact", "--epochs", "2", "--allow-stop", "--alpha", str(ALPHA))
    works(hierrouter("train", *flags, "--out", "stopping", cwd=work))
    (work / "short.py").write_text("def rule(seen):\n    return 'text>stop'\n")
    found = ("--checkpoint", "stopping", "--policy", "short:rule", "--format", "json")
    told = json.loads(hierrouter("report", *found, cwd=work).stdout)
    rows = {row["policy"]: row for row in told["rows"] if row["dataset"] == "all"}
    assert rows["short:rule"]["reward"] == pytest.approx(rows["text>stop"]["reward"], abs=1e-11)
    told = json.loads(hierrouter("compare", "--baselines", "random", *found, cwd=work).stdout)
    assert [one["first"] for one in told["values"] if one["value"] == "regret"] == [
        "anytime oracle"
    ]


def test_policies_are_on_the_page_to_play_with(work: Path, hierrouter: Run) -> None:
    works(hierrouter("explore", *POLICIES, "--out", "page.html", cwd=work))
    page = (work / "page.html").read_text()
    data = re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page, re.S)
    assert data
    brought = json.loads(data[1])["brought"]
    assert [one["name"] for one in brought] == ["rules:rule", "rules:trained", "a draw"]
    assert "policies of your own" in page
    assert "a draw was asked at alpha" in page
    assert "its likeliest route is shown" in page


def test_an_edit_of_the_file_is_another_look(work: Path, hierrouter: Run) -> None:
    (work / "edited.py").write_text("def rule(seen):\n    return 0\n")

    def looks() -> int:
        return sum(
            len(log.read_text().splitlines()) for log in work.rglob("runs/**/test_looks.jsonl")
        )

    def look() -> None:
        works(hierrouter("report", "--policy", "edited:rule", "--format", "json", cwd=work))

    look()
    before = looks()
    look()
    assert looks() == before
    (work / "edited.py").write_text("def rule(seen):\n    return 1\n")
    look()
    assert looks() > before
