"""Logs whose routes have any shape: imported, opened whole, and valued as an enumeration does."""

from __future__ import annotations

import csv
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hierrouter as hr
from hierrouter.collection.transfer import export, import_
from hierrouter.evaluation.bounds import (
    best_ahead,
    best_fixed_route,
    oracle,
    rank_routes,
    split_oracle,
)
from hierrouter.evaluation.outcome import from_endings
from hierrouter.evaluation.policies import policy_endings
from hierrouter.replay.inspection import ask_cache, cache_info, holes_note
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Tree
from hierrouter.reports.explain import as_text
from hierrouter.reports.fold_report import report_on_fold
from hierrouter.reports.report import as_object
from hierrouter.reports.sentences import message, verdict
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.layout import NEWEST
from tests.hierrouter.collection.examples import DATA, Rows, save

MINT = DATA / "mint_tree_nodes_half.parquet"


def node(name: str, parent: str | None, action: str, text: str, **columns: Any) -> dict[str, Any]:
    """A row of the log of one question."""
    return {
        "query_id": "q0",
        "question": "What is 1+1?",
        "node": name,
        "parent": parent,
        "action": action,
        "response": text,
        "runs": 1,
        "score": None,
        **columns,
    }


def ragged(queries: int = 6) -> Rows:
    """A solver of two draws; a critic follows the second one, whose verdict may be absent."""
    rows = []
    for number in range(queries):
        query = {"query_id": f"q{number}", "question": f"What is {number}+1?"}
        rows += [
            node(f"{number}a", None, "solve", "first", runs=3, score=1.0, **query),
            node(f"{number}b", None, "solve", "second", score=0.0, **query),
            node(f"{number}c", f"{number}b", "critic", "no", **query),
            node(f"{number}d", f"{number}c", "solve", "third", score=1.0, **query),
            node(f"{number}e", f"{number}b", "other", "ends here", **query),
        ]
    return rows


def opened(rows: Rows, folder: Path) -> Tree:
    cache = folder / "cache"
    import_(save(rows, folder / "log.parquet"), cache)
    return OpenTree(cache=cache, encoder="hashed-ngrams").run()


def test_a_log_is_opened_with_the_routes_that_it_has(tmp_path: Path) -> None:
    tree = opened(ragged(), tmp_path)
    names = [tree.layout.name(number, tree.models) for number in range(1, tree.layout.nodes)]
    assert sorted(names) == sorted([">solve", ">solve", "solve>critic", "solve>critic>solve"])
    assert tree.layout.give_backs == (NEWEST,)  # the second answer is judged, and may go on
    assert tree.holes == {"ended without a verdict": 6}
    assert tree.weight is not None
    # Of the first call three runs of four had the first answer.
    first = tree.layout.level(1)
    assert sorted(tree.weight[:, first][0]) == [0.25, 0.75]
    assert tree.direct.models == ()
    assert tree.cost.max() == 3  # no tokens: cost counts calls
    assert np.isfinite(tree.embedding).all()


def test_calls_that_only_other_questions_have_are_counted_by_reason(tmp_path: Path) -> None:
    rows = ragged()
    query = {"query_id": "q0", "question": "What is 0+1?"}
    rows.append(node("0f", None, "plan", "a plan", score=0.5, **query))
    rows = [row for row in rows if row["node"] != "1d"]  # the critic is the last call there
    rows[[row["node"] for row in rows].index("1c")]["score"] = 1.0
    tree = opened(rows, tmp_path)
    # Five questions have no plan, and one no third call; nothing is said of draws.
    assert tree.holes == {"ended without a verdict": 6, "not offered": 5, "ended": 1}
    assert holes_note(tree).endswith(
        "; calls that other questions have are not offered: 5 where other calls were made and 1 "
        "where the runs ended"
    )
    info = cache_info(tmp_path / "cache")
    assert info["holes"] == {"not offered": 5, "ended": 1}
    assert (info["nodes"], info["missing_nodes"], info["complete_queries"]) == (30, 0, 6)
    [explained] = hr.explain(tree, "q1").queries
    assert explained.holes == {"not offered": 1, "ended": 1}
    words = "not offered: 1 where other calls were made and 1 where the runs ended"
    assert words in as_text(explained, 200)


def test_the_views_show_every_call_of_a_log_and_weigh_its_draws(tmp_path: Path) -> None:
    tree = opened(ragged(), tmp_path)
    cache = tmp_path / "cache"
    nodes = "SELECT route, hop, draw, weight, count(*) FROM nodes GROUP BY ALL ORDER BY ALL"
    assert [tuple(row.values()) for row in ask_cache(cache, nodes).to_pylist()] == [
        (">solve", 1, 0, 0.75, 6),  # three runs of four
        (">solve", 1, 1, 0.25, 6),
        ("solve>critic", 2, 0, 0.25, 6),
        ("solve>critic>solve", 3, 0, 0.25, 6),
        ("solve>other", 2, 0, 0.25, 6),
    ]
    # The share of the runs is no quality, and without a verdict there is no value.
    routes = "SELECT route, scorer, queries, value, total_cost FROM routes ORDER BY route"
    assert [tuple(row.values()) for row in ask_cache(cache, routes).to_pylist()] == [
        (">solve", "given", 6, 0.75, 1.0),
        ("solve>critic>solve", "given", 6, 1.0, 3.0),
    ]
    # The tree leaves out what no verdict follows.
    assert tree.sql(routes).equals(ask_cache(cache, routes))
    scorers = ask_cache(cache, "SELECT DISTINCT scorer FROM scores")
    assert scorers["scorer"].to_pylist() == ["given"]


def test_the_table_of_a_log_has_a_row_for_each_call_of_its_tree(tmp_path: Path) -> None:
    rows = [row for row in ragged() if row["node"] not in ("0c", "0d", "0e")]
    tree = opened(rows, tmp_path)
    assert tree.weight is not None
    table = tree.to_arrow(alpha=0.1).to_pylist()
    assert len(table) == 2 + 5 * 4
    of_first = [row for row in table if row["query"] == "q0"]
    columns = ("route", "model", "draw", "response", "weight", "quality", "reward")
    assert [tuple(row[name] for name in columns) for row in of_first] == [
        (">solve", "solve", 1, "second", 0.25, 0.0, pytest.approx(-0.1)),
        (">solve", "solve", 0, "first", 0.75, 1.0, pytest.approx(0.9)),
    ]
    critic = [row for row in table if row["route"] == "solve>critic"]
    assert {(row["weight"], row["quality"], row["reward"]) for row in critic} == {
        (0.25, None, None)
    }


def test_paths_and_parents_describe_the_same_log(tmp_path: Path) -> None:
    rows = [row for row in ragged() if row["action"] != "other"]
    paths = {"a": (None, 0), "b": (None, 1), "c": ("solve", 1), "d": ("solve>critic", 1)}
    by_path = []
    for row in rows:
        path, draw = paths[row["node"][-1]]
        columns = {name: row[name] for name in row if name not in ("node", "parent")}
        by_path.append({**columns, "path": path, "draw": draw})
    trees = []
    for name, table in (("nodes", rows), ("paths", by_path)):
        (tmp_path / name).mkdir()
        trees.append(opened(table, tmp_path / name))
    first, second = trees
    assert first.layout == second.layout
    assert np.array_equal(first.score, second.score)
    assert np.array_equal(first.weight, second.weight)  # type: ignore[arg-type]


def test_equal_responses_of_runs_are_one_node(tmp_path: Path) -> None:
    rows = ragged()
    twin = [{**row, "node": f"{row['node']}-again"} for row in rows if row["node"][-1] == "b"]
    tree = opened(rows + twin, tmp_path)
    assert tree.layout.nodes == 5
    assert tree.weight is not None
    assert sorted(tree.weight[0, tree.layout.level(1)]) == [0.4, 0.6]


def test_an_incomplete_table_of_models_and_paths_is_a_log(tmp_path: Path) -> None:
    rows = []
    for number in range(6):
        for path in ("a", "a>b", "b"):
            rows.append(
                {
                    "query_id": f"q{number}",
                    "question": f"{number}?",
                    "answer": "1",
                    "model": path[-1],
                    "path": path,
                    "response": path,
                    "score": number % 2,
                    "tokens_in": 3,
                    "tokens_out": 4,
                }
            )
    tree = opened(rows, tmp_path)
    assert tree.layout.nodes == 4
    assert tree.offered is None or tree.offered.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parent": "nowhere"}, "parent nowhere is missing: .* row 2"),
        ({"parent": "0d"}, "a cycle: .* row 2"),
        ({"parent": "1a"}, "parent 1a comes later: .* row 2"),
        ({"node": "0a"}, "node 0a stands twice"),
        ({"parent": "0b", "node": "0b"}, "a cycle"),
        ({"model": "another"}, "action solve has two models"),
        ({"draw": None}, "a draw without a number"),
        ({"score": 2.0}, "score must be from 0 to 1"),
        ({"runs": 0}, "runs must be at least 1"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_stored(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    rows: Rows = [{**row, "model": row["action"], "draw": 0} for row in ragged()]
    for number, row in enumerate(rows):
        row["draw"] = number % 5
    rows[1] = {**rows[1], **change}
    with pytest.raises(InputError, match=message) as refused:
        import_(save(rows, tmp_path / "log.parquet"), tmp_path / "cache")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "cache").exists()


def test_a_call_of_another_question_and_an_open_path_are_refused(tmp_path: Path) -> None:
    rows = ragged()
    rows[7] = {**rows[7], "parent": "0b"}
    with pytest.raises(InputError, match=r"follows one of another query, q0: .* row 8"):
        import_(save(rows, tmp_path / "log.parquet"), tmp_path / "cache")
    rows = [{"query_id": "q", "question": "?", "action": "a", "path": "b", "response": "r"}]
    with pytest.raises(InputError, match=r"nothing leads to path b of query q: .* row 1"):
        import_(save(rows, tmp_path / "paths.parquet"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def refusal(rows: Rows, folder: Path, suffix: str = ".jsonl") -> str:
    """Why a log is not imported; nothing is left of it."""
    with pytest.raises(InputError) as refused:
        import_(save(rows, folder / f"log{suffix}"), folder / "cache")
    assert "\n" not in str(refused.value)
    assert not (folder / "cache").exists()
    return str(refused.value)


def test_rows_may_leave_out_columns_that_are_empty(tmp_path: Path) -> None:
    rows = [{name: row[name] for name in row if row[name] is not None} for row in ragged()]
    assert "parent" not in rows[0]
    (tmp_path / "few").mkdir()
    (tmp_path / "all").mkdir()
    import_(save(rows, tmp_path / "few" / "log.jsonl"), tmp_path / "few" / "cache")
    few = OpenTree(cache=tmp_path / "few" / "cache", encoder="hashed-ngrams").run()
    every = opened(ragged(), tmp_path / "all")
    assert few.layout == every.layout
    assert np.array_equal(few.score, every.score)


def test_a_column_that_some_rows_lack_is_no_guess(tmp_path: Path) -> None:
    rows = [{name: row[name] for name in row if name != "node"} for row in ragged()]
    assert "column node is missing: " in refusal(rows, tmp_path)
    rows = ragged()
    del rows[2]["node"]
    assert "node must be a text, got None: " in refusal(rows, tmp_path)
    rows = ragged()
    rows[0]["draw"] = 0
    assert "row 2; number it from 0" in refusal(rows, tmp_path)


def test_a_path_without_numbers_follows_the_only_draw(tmp_path: Path) -> None:
    row = {"query_id": "q", "question": "?", "score": 1.0}
    first = {**row, "action": "plan", "response": "p"}
    second = {**row, "action": "solve", "path": "plan", "response": "s"}
    # Two runs with one plan are one node, so that it is clear what follows.
    import_(save([first, first, second], tmp_path / "log.jsonl"), tmp_path / "cache")
    other = {**first, "response": "another plan"}
    (tmp_path / "two").mkdir()
    assert "2 draws of path plan of query q" in refusal([first, other, second], tmp_path / "two")


def test_a_path_beside_a_parent_must_agree(tmp_path: Path) -> None:
    rows = ragged()
    paths = {"a": "", "b": "", "c": "solve", "d": "solve>critic", "e": ["solve", "other"]}
    for row in rows:
        row["path"] = paths[row["node"][-1]]  # the last one has its own action, too
    import_(save(rows, tmp_path / "log.jsonl"), tmp_path / "cache")
    rows[3]["path"] = "critic>solve"
    (tmp_path / "other").mkdir()
    message = refusal(rows, tmp_path / "other")
    assert "path critic>solve contradicts parent, which follows solve>critic: " in message


LOGGED_ACTIONS = ("solve", "critic")


@st.composite
def small_logs(draw: st.DrawFn) -> Rows:
    """Rows of one or two questions; a parent is perhaps missing, or comes later."""
    rows = []
    for number in range(draw(st.integers(1, 2))):
        count = draw(st.integers(1, 7))
        for position in range(count):
            last = position if draw(st.integers(0, 29)) else count  # rarely what is not there yet
            before = draw(st.integers(-1, last - 1))
            row = node(
                f"{number}-{position}",
                None if before < 0 else f"{number}-{before}",
                draw(st.sampled_from(LOGGED_ACTIONS)),
                draw(st.sampled_from(("x", "y"))),
                query_id=f"q{number}",
                question=f"{number}?",
                runs=draw(st.integers(1, 3)),
                score=draw(st.none() | st.sampled_from((0.0, 0.25, 1.0))),
            )
            rows.append(row)
    return rows


@dataclass
class Merged:
    """A node of an enumeration: what runs have in common up to a response."""

    runs: int = 0
    right: float = 0.0
    judged: int = 0
    after: dict[str, dict[str, Merged]] = field(default_factory=dict)  # by action and response

    def is_kept(self) -> bool:
        """Whether a verdict follows."""
        return bool(self.judged or any(child.is_kept() for child in self.children()))

    def children(self) -> list[Merged]:
        return [child for draws in self.after.values() for child in draws.values()]

    def best(self) -> float:
        """The highest expected score, if the policy may stop at a verdict."""
        values = [self.right / self.judged] if self.judged else []
        for draws in self.after.values():
            kept = [child for child in draws.values() if child.is_kept()]
            if kept:
                runs = sum(child.runs for child in kept)
                values.append(sum(child.runs * child.best() for child in kept) / runs)
        return max(values)

    def all_kept(self) -> list[Merged]:
        below = [kept for child in self.children() for kept in child.all_kept()]
        return [self, *below] if self.is_kept() else []


def enumerated(rows: Rows) -> dict[str, Merged] | None:
    """The trees of a log by question; None if a parent does not come before its child."""
    roots: dict[str, Merged] = {}
    nodes: dict[str, Merged] = {}
    for row in rows:
        if row["parent"] is None:
            parent = roots.setdefault(row["query_id"], Merged())
        elif row["parent"] in nodes:
            parent = nodes[row["parent"]]
        else:
            return None
        draws = parent.after.setdefault(row["action"], {})
        merged = draws.setdefault(row["response"], Merged())
        merged.runs += row["runs"]
        if row["score"] is not None:
            merged.right += row["runs"] * row["score"]
            merged.judged += row["runs"]
        nodes[row["node"]] = merged
    return roots


@settings(max_examples=25, deadline=None)
@given(small_logs())
def test_any_small_log_is_refused_or_has_the_values_of_an_enumeration(rows: Rows) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = enumerated(rows)
        if expected is None:
            refusal(rows, folder)
            return
        import_(save(rows, folder / "log.parquet"), folder / "cache")
        opening = OpenTree(cache=folder / "cache", state="stage", scorer="given")
        kept = {query: root for query, root in expected.items() if root.is_kept()}
        if not kept:
            with pytest.raises(IncompleteTree, match="no route ends with a verdict"):
                opening.run()
            return
        tree = opening.run()
        assert set(tree.query_ids) == set(kept)
        assert tree.left_out == len(expected) - len(kept)
        assert tree.weight is not None
        assert tree.can_end is not None
        values = best_ahead(tree, 0.0)
        for row, query in enumerate(tree.query_ids):
            nodes = kept[query].all_kept()[1:]  # without the root
            assert int((tree.weight[row, 1:] > 0).sum()) == len(nodes)
            assert int(tree.can_end[row].sum()) == sum(node.judged > 0 for node in nodes)
            scores = sum(node.right / node.judged for node in nodes if node.judged)
            assert tree.score[row].sum() == pytest.approx(scores, abs=1e-9)
            assert values[row, 0] == pytest.approx(kept[query].best(), abs=1e-9)


@pytest.fixture(scope="module")
def mint(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    if not MINT.is_file():
        pytest.skip("the log is not here")
    cache = tmp_path_factory.mktemp("mint") / "cache"
    import_(MINT, cache)
    return OpenTree(cache=cache, encoder="hashed-ngrams", state="stage").run()


class Enumeration:
    """MINT's trees as plain dictionaries: rows by name, and the draws after each row and model."""

    def __init__(self) -> None:
        rows = pq.read_table(MINT).to_pylist()
        self.rows = {row["node"]: row for row in rows}
        self.tasks = list(dict.fromkeys((row["dataset"], row["task_id"]) for row in rows))
        self.order = list(dict.fromkeys(row["model"] for row in rows))
        parents = {row["parent"] for row in rows}
        self.kept = {
            row["node"]
            for row in rows
            if row["node"] in parents or row["ends_right"] + row["ends_wrong"]
        }
        self.after: dict[Any, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            if row["node"] in self.kept:
                before = row["parent"] or (row["dataset"], row["task_id"])
                self.after[before][row["model"]].append(row["node"])

    def score(self, name: str) -> float | None:
        """The share of the runs that ended at a row and were right; None if none ended there."""
        row = self.rows[name]
        ends = row["ends_right"] + row["ends_wrong"]
        return row["ends_right"] / ends if ends else None

    def mean(self, draws: list[str], values: list[float]) -> float:
        """The mean over the draws of a call, by their numbers of runs."""
        runs = [self.rows[draw]["runs"] for draw in draws]
        pairs = zip(runs, values, strict=True)
        return sum(count * value for count, value in pairs) / sum(runs)

    def best(self, name: Any) -> float:
        """The highest expected score from a row on, if the policy may stop at a verdict."""
        values = [
            self.mean(draws, [self.best(draw) for draw in draws])
            for draws in self.after.get(name, {}).values()
        ]
        own = self.score(name) if name in self.rows else None
        return max(values if own is None else [*values, own])

    def children(self, name: Any) -> dict[str, list[str]]:
        """The draws of each call after a row, or after a task; the most frequent ones first."""
        return {
            model: sorted(draws, key=lambda draw: -self.rows[draw]["runs"])
            for model, draws in self.after.get(name, {}).items()
        }

    def reward(self, name: str, alpha: float) -> float | None:
        """R of a run that ends at a row: a call costs 1. None if no run ended there."""
        score = self.score(name)
        depth: int = self.rows[name]["depth"]
        return None if score is None else score - alpha * depth

    def clairvoyant(self, name: Any, alpha: float) -> dict[float, float]:
        """The distribution of the best R from a row on, if it is known which draws come."""
        own = self.reward(name, alpha) if name in self.rows else None
        best: dict[float, float] = {-np.inf if own is None else own: 1.0}
        for draws in self.after.get(name, {}).values():
            one: dict[float, float] = defaultdict(float)
            runs = sum(self.rows[draw]["runs"] for draw in draws)
            for draw in draws:
                for value, share in self.clairvoyant(draw, alpha).items():
                    one[value] += share * self.rows[draw]["runs"] / runs
            both: dict[float, float] = defaultdict(float)
            for value, share in best.items():
                for other, other_share in one.items():
                    both[max(value, other)] += share * other_share
            best = both
        return best


Route = tuple[str, ...]  # models, in order


class Plans:
    """Fixed routes of MINT, each a policy for all tasks: by plain recursion over dictionaries."""

    def __init__(self, log: Enumeration, alpha: float) -> None:
        self.log = log
        self.alpha = alpha
        found: dict[Route, None] = {}
        for task in log.tasks:
            self._walk(task, (), found)
        self.routes = list(found)
        self._beside: dict[Any, float] = {}

    def _walk(self, name: Any, path: Route, found: dict[Route, None]) -> None:
        for model, draws in self.log.after.get(name, {}).items():
            found[*path, model] = None
            for draw in draws:
                self._walk(draw, (*path, model), found)

    def _by_chance(self, name: Any, path: Route) -> float:
        if name not in self._beside:
            steps = [
                self.log.mean(draws, [self._by_chance(draw, (*path, model)) for draw in draws])
                for model, draws in self.log.after.get(name, {}).items()
            ]
            own = self.log.reward(name, self.alpha) if name in self.log.rows else None
            steps += [] if own is None else [own]
            self._beside[name] = sum(steps) / len(steps)
        return self._beside[name]

    def followed(self, name: Any, route: Route, step: int = 0) -> float:
        """How often a task offers a route up to an end."""
        after = self.log.after.get(name, {})
        if not after:
            return 1.0
        if step == len(route):
            return float(self.log.score(name) is not None)
        draws = after.get(route[step], [])
        shares = [self.followed(draw, route, step + 1) for draw in draws]
        return self.log.mean(draws, shares) if draws else 0.0

    def value(self, name: Any, route: Route, ranking: list[Route], path: Route = ()) -> float:
        """Expected R of a route; off it by the ranking, or by chance if that is empty."""
        after = self.log.after.get(name, {})
        own = self.log.reward(name, self.alpha) if name in self.log.rows else None
        if not after:
            assert own is not None
            return own
        for plan in [route, *ranking]:
            if plan[: len(path)] != path:
                continue
            if plan == path:
                if own is not None:
                    return own
            elif plan[len(path)] in after:
                model = plan[len(path)]
                draws = after[model]
                # A plan that has been left does not come back, so what follows goes by the rest.
                rest = [self.value(draw, route, ranking, (*path, model)) for draw in draws]
                return self.log.mean(draws, rest)
        assert not ranking
        return self._by_chance(name, path)

    def mean(self, tasks: list[Any], route: Route, ranking: list[Route]) -> float:
        """Mean R over some tasks, rounded so that equal policies are equal."""
        return round(float(np.mean([self.value(task, route, ranking) for task in tasks])), 12)

    def best(self, tasks: list[Any]) -> tuple[Route, list[Route]]:
        """The best fixed route on some tasks and the ranking, as docs/metrics.md defines them."""
        alone = {route: self.mean(tasks, route, []) for route in self.routes}
        # Costs are part of R at an alpha above 0; equal R of equal costs goes to the longer route.
        ranking = sorted(self.routes, key=lambda route: (-alone[route], -len(route)))
        shares = {route: sum(self.followed(task, route) for task in tasks) for route in self.routes}
        listed = [r for r in self.routes if shares[r] >= max(shares.values()) / 2 - 1e-9]
        values = {route: self.mean(tasks, route, ranking) for route in listed}
        return max(listed, key=lambda route: (values[route], len(route))), ranking


def test_every_row_of_mint_is_a_node_or_a_hole(mint: Tree) -> None:
    log = Enumeration()
    assert mint.weight is not None
    assert mint.can_end is not None
    assert len(mint) == len(log.tasks) == 231
    assert int((mint.weight > 0)[:, 1:].sum()) == len(log.kept) == 19_845
    assert mint.holes["ended without a verdict"] == len(log.rows) - len(log.kept)
    scores = [log.score(name) for name in log.kept]
    judged = [score for score in scores if score is not None]
    assert int(mint.can_end.sum()) == len(judged) == 3_175
    assert mint.score.sum() == pytest.approx(sum(judged), abs=1e-9)
    right = sum(score > 0 for score in judged)
    assert int((mint.score[mint.can_end] > 0).sum()) == right == 1_046


def test_the_best_policy_that_sees_each_question_is_that_of_an_enumeration(mint: Tree) -> None:
    log = Enumeration()
    values = dict(
        zip(zip(mint.datasets, mint.query_ids, strict=True), range(len(mint)), strict=True)
    )
    expected = np.array([log.best(task) for task in log.tasks])
    rows = [values[task] for task in log.tasks]
    offered = best_ahead(mint, 0.0)[rows, 0]
    assert expected.max() <= 1
    np.testing.assert_allclose(offered, expected, atol=1e-9)


def test_a_router_is_trained_on_a_log_without_a_route_for_all(mint: Tree, tmp_path: Path) -> None:
    run = hr.train(mint, algo="ppo", epochs=1, out=tmp_path / "run")
    reached = run.reached
    assert reached is not None
    assert reached.fixed is not None
    assert 0 <= reached.reward <= reached.oracle
    assert "best fixed route" in str(reached)
    loaded = hr.Run.load(tmp_path / "run")
    constant = loaded.trained.constant
    if constant is None:
        assert reached.low is not None
        assert reached.low > 0
    else:
        assert reached.reward == pytest.approx(reached.fixed, abs=1e-12)
        assert "the next best route where that is not offered" in loaded.trained.why_constant
        assert len(constant.others) == 182
    assert loaded.trained.actions.names(mint.models)[-1] == "stop"


# What a cache says of a log.


def test_info_and_views_have_the_logs_own_actions_draws_and_nodes(tmp_path: Path) -> None:
    rows = ragged()
    tree = opened(rows, tmp_path)
    info = cache_info(tmp_path / "cache", incomplete=True)
    assert (info["queries"], info["complete_queries"], info["incomplete"]) == (6, 6, [])
    assert (info["nodes"], info["missing_nodes"], info["layout_nodes"]) == (len(rows), 0, 5)
    assert (info["draws"], info["hops"], info["direct"]) == (2, 3, 0)
    assert info["models"] == ["solve", "critic", "other"]
    found = ask_cache(
        tmp_path / "cache",
        "SELECT n.route, n.hop, n.draw, n.response, s.value FROM nodes n LEFT JOIN scores s "
        "ON s.call = n.call AND s.query = n.query AND s.scorer = 'given' WHERE n.id = 'q3' "
        "ORDER BY n.hop, n.draw, n.route",
    ).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (">solve", 1, 0, "first", 1.0),
        (">solve", 1, 1, "second", 0.0),
        ("solve>critic", 2, 0, "no", None),
        ("solve>other", 2, 0, "ends here", None),
        ("solve>critic>solve", 3, 0, "third", 1.0),
    ]
    assert tree.layout.calls == 4  # without what no verdict follows


@pytest.mark.parametrize("name", ["llmrouter", "routerbench"])
def test_a_log_is_not_exported_as_direct_calls_and_wholly_as_lines(
    name: str, tmp_path: Path
) -> None:
    tree = opened(ragged(), tmp_path)
    out = tmp_path / ("frame.parquet" if name == "routerbench" else "folder")
    with pytest.raises(InputError, match=r"a log has no direct calls, .*--format jsonl exports"):
        export(tmp_path / "cache", out, format=name)
    assert not out.exists()
    export(tmp_path / "cache", tmp_path / "all.jsonl")
    import_(tmp_path / "all.jsonl", tmp_path / "copy")
    copy = OpenTree(cache=tmp_path / "copy", encoder="hashed-ngrams").run()
    assert copy.layout == tree.layout
    assert copy.fingerprint == tree.fingerprint
    assert cache_info(tmp_path / "copy")["nodes"] == cache_info(tmp_path / "cache")["nodes"]


# Tables of the published means of routes: the benchmarks are their questions.

AGENTOPT = DATA / "agentopt_81.csv"
Means = dict[str, dict[tuple[str, str], tuple[float, float]]]  # score, cost by benchmark and route


def as_log(means: Means) -> Rows:
    """A log of planners without a score, and of the solver after each; costs are of routes."""
    rows: Rows = []
    for benchmark, routes in means.items():
        question = dict.fromkeys(("dataset", "query_id", "question"), benchmark)
        question |= {"split": "test", "response": ""}
        for planner in dict.fromkeys(first for first, _ in routes):
            rows.append({**question, "action": planner, "path": None, "score": None, "cost": None})
        for (first, second), (score, cost) in routes.items():
            last = {"action": second, "path": first, "score": score, "cost": cost}
            rows.append({**question, **last})
    return rows


def made_means() -> Means:
    """Two benchmarks of 3 planners and 2 solvers, of which the planner decides more."""
    rng = np.random.default_rng(5)
    planners = {"plan-a": 0.1, "plan-b": 0.4, "plan-c": 0.5}
    solvers = {"solve-x": 0.1, "solve-y": 0.2}
    return {
        benchmark: {
            (planner, solver): (first + second + 0.1 * rng.random(), 0.01 * rng.random())
            for planner, first in planners.items()
            for solver, second in solvers.items()
        }
        for benchmark in ("games", "riddles")
    }


def published_means() -> Means:
    """AgentOpt's 81 routes on each of two benchmarks; costs are published of 200 questions."""
    if not AGENTOPT.is_file():
        pytest.skip("the table is not here")
    means: Means = {}
    with AGENTOPT.open(newline="") as file:
        for row in csv.DictReader(file):
            route = f"plan-{row['first']}", f"solve-{row['second']}"
            values = float(row["accuracy"]), float(row["cost_usd_200"]) / 200
            means.setdefault(row["pipeline"], {})[route] = values
    assert [len(routes) for routes in means.values()] == [81, 81]
    return means


def shares_by_hand(routes: dict[tuple[str, str], tuple[float, float]]) -> list[float]:
    """Shares of both main effects and of the interaction, as a textbook has them."""
    scores = {route: score for route, (score, _) in routes.items()}
    grand = fmean(scores.values())
    effects = []
    for position in (0, 1):
        names = dict.fromkeys(route[position] for route in scores)
        means = [fmean(scores[r] for r in scores if r[position] == name) for name in names]
        effects.append(fmean([(mean - grand) ** 2 for mean in means]))
    whole = fmean([(score - grand) ** 2 for score in scores.values()])
    return [effect / whole for effect in effects] + [1 - sum(effects) / whole]


@pytest.mark.parametrize("make", [made_means, published_means], ids=lambda make: make.__name__)
def test_a_table_of_means_opens_with_its_costs_and_says_which_hop_decides(
    make: Callable[[], Means], tmp_path: Path
) -> None:
    means = make()
    path = save(as_log(means), tmp_path / "log.csv")
    imported = import_(path, tmp_path / "cache")
    told = " ".join(imported.notes)
    assert "C is the file's cost" in told
    assert "no texts of answers in the file" in told
    assert "empty answers" not in told
    tree = OpenTree(cache=tmp_path / "cache", encoder="hashed-ngrams").run()
    report = report_on_fold(tree, 0.0, None, None, {})
    written = as_object(report)
    rows = {(row["dataset"], row["policy"]): row for row in written["rows"]}
    for benchmark, routes in means.items():
        for (first, second), (score, cost) in routes.items():
            plain = [re.sub(r"[^A-Za-z0-9._:-]+", "-", name) for name in (first, second)]
            row = rows[benchmark, ">".join(plain)]
            assert row["quality"] == pytest.approx(score, abs=1e-12)
            assert row["cost"] == pytest.approx(cost, abs=5e-10)  # billionths
            assert row["quality_low"] is None  # one value has no interval
    for shares in written["variance"][: len(means)]:
        expected = shares_by_hand(means[shares["dataset"]])
        assert [*shares["hops"], shares["interaction"]] == pytest.approx(expected, abs=1e-9)
    assert message(report).startswith("2 questions are too few for a router, and for intervals: ")
    assert verdict(report) == "few"


def test_a_table_of_means_is_explained_and_compared_without_a_router(tmp_path: Path) -> None:
    """Its questions are all in the test fold: the others are empty, and there are no intervals."""
    import_(save(as_log(made_means()), tmp_path / "log.csv"), tmp_path / "cache")
    tree = OpenTree(cache=tmp_path / "cache", encoder="hashed-ngrams").run()
    import hierrouter as hr

    with pytest.raises(InputError, match="too few queries to train on: 0 train, 0 validation"):
        hr.train(tree, out=tmp_path / "run")
    rows = as_log(made_means())
    folds = {"games": "train", "riddles": "test"}
    split = [{**row, "split": folds[row["query_id"]]} for row in rows]
    import_(save(split, tmp_path / "split.csv"), tmp_path / "other")
    other = OpenTree(cache=tmp_path / "other", encoder="hashed-ngrams").run()
    report = report_on_fold(other, 0.0, None, None, {})
    fixed = next(row for row in report.ladder if row.rung == "best fixed route")
    games = made_means()["games"]
    assert fixed.policy == ">".join(max(games, key=lambda route: games[route][0]))
    standings = hr.compare(other, baselines=["best-static"], out=tmp_path / "compare")
    assert {row.reward_low for row in standings.rows} == {None}


def test_agentopt_is_as_published(tmp_path: Path) -> None:
    rows = [row for row in as_log(published_means()) if row["dataset"] == "HotpotQA"]
    import_(save(rows, tmp_path / "log.parquet"), tmp_path / "cache")
    tree = OpenTree(cache=tmp_path / "cache", encoder="hashed-ngrams").run()
    report = report_on_fold(tree, 0.0, None, None, {})
    best = report.best("route")
    assert best is not None
    assert best.policy == "plan-Ministral-3-8B>solve-Claude-Opus-4.6"
    assert (round(best.quality, 3), round(200 * best.cost, 2)) == (0.743, 2.64)
    routes = {row.policy: row.quality for row in report.overall if row.kind == "route"}
    same = [
        quality
        for route, quality in routes.items()
        if len({name.partition("-")[2] for name in route.split(">")}) == 1
    ]
    assert (len(routes), len(same), round(max(same), 3)) == (81, 9, 0.682)
    opus = routes["plan-Claude-Opus-4.6>solve-Claude-Opus-4.6"]
    assert round(opus, 3) == 0.317
    shares = report.variance[0]
    assert [round(share, 2) for share in shares.hops] == [0.61, 0.24]
    assert round(shares.interaction, 2) == 0.16


def test_runs_of_one_route_are_one_node_with_their_mean_cost(tmp_path: Path) -> None:
    rows = as_log(made_means())
    last = rows[-1]
    again = {**last, "score": last["score"] - 0.2, "cost": last["cost"] + 0.004}
    import_(save([*rows, again], tmp_path / "log.csv"), tmp_path / "cache")
    tree = OpenTree(cache=tmp_path / "cache", encoder="hashed-ngrams").run()
    assert tree.layout.draws == 1
    node = tree.layout.node([tree.models.index(last[name]) for name in ("path", "action")])
    query = tree.query_ids.index(last["query_id"])
    assert tree.score[query, node] == pytest.approx(last["score"] - 0.1)
    assert tree.cost[query, node] == pytest.approx(last["cost"] + 0.002, abs=1e-9)


@pytest.mark.parametrize("cost", ["-1.0", "dear", "nan"])
def test_a_cost_that_is_none_is_refused_by_its_row(cost: str, tmp_path: Path) -> None:
    rows = [{**row, "cost": row["cost"] and str(row["cost"])} for row in as_log(made_means())]
    rows[5]["cost"] = cost
    with pytest.raises(InputError, match=r"cost must be a number from 0 on, got .*: row 6;"):
        import_(save(rows, tmp_path / "log.csv"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_stated_costs_beside_tokens_are_compared_and_a_price_beside_costs_is_refused(
    tmp_path: Path,
) -> None:
    rows = as_log(made_means())
    path = save(rows, tmp_path / "log.csv")
    with pytest.raises(InputError, match=r"--price; leave it out"):
        import_(path, tmp_path / "cache", prices={"solve-x": 1.0})
    with_tokens = [{**row, "tokens_in": 3, "tokens_out": 4} for row in rows]
    imported = import_(save(with_tokens, tmp_path / "tokens.csv"), tmp_path / "other")
    assert "C is the file's cost" not in " ".join(imported.notes)
    tree = OpenTree(cache=tmp_path / "other", encoder="hashed-ngrams").run()
    assert tree.cost.max() == 14  # a token costs 1


def test_a_ragged_log_has_no_share_of_a_hop(tmp_path: Path) -> None:
    rows = as_log(made_means())
    import_(save(rows[:-1], tmp_path / "log.csv"), tmp_path / "cache")
    tree = OpenTree(cache=tmp_path / "cache", encoder="hashed-ngrams").run()
    assert report_on_fold(tree, 0.0, None, None, {}).variance == ()
    riddles = tree.select(np.array([tree.query_ids.index("games")]))
    assert len(report_on_fold(riddles, 0.0, None, None, {}).variance) == 2


def rows_of(tree: Tree, log: Enumeration) -> list[int]:
    """The position in a tree of each task of the log that it has."""
    numbers = {pair: n for n, pair in enumerate(zip(tree.datasets, tree.query_ids, strict=True))}
    return [numbers[task] for task in log.tasks if task in numbers]


def tasks_of(tree: Tree, log: Enumeration) -> list[Any]:
    known = set(zip(tree.datasets, tree.query_ids, strict=True))
    return [task for task in log.tasks if task in known]


@pytest.mark.parametrize("alpha", [0.0, 0.01])
def test_the_clairvoyant_oracle_is_that_of_an_enumeration(mint: Tree, alpha: float) -> None:
    log = Enumeration()
    expected = [
        sum(value * share for value, share in log.clairvoyant(task, alpha).items())
        for task in log.tasks
    ]
    reward = oracle(mint, alpha).reward(alpha)[rows_of(mint, log)]
    np.testing.assert_allclose(reward, expected, atol=1e-9)


def test_the_best_fixed_route_is_that_of_an_enumeration(mint: Tree) -> None:
    """Chosen on the train fold, valued on the test fold."""
    alpha = 0.0137  # no two routes of different costs have an equal R
    log = Enumeration()
    plans = Plans(log, alpha)
    train = mint.split("train")
    test = mint.split("test")
    assert len(plans.routes) == 183
    route, ranking = plans.best(tasks_of(train, log))
    best, *others = rank_routes(train, alpha)
    names = [name.replace("|", "-") for name in route]
    assert [mint.models[action] for action in mint.layout.path(best)] == names
    assert len(others) == 182
    reward = best_fixed_route(train, alpha, test).reward(alpha)[rows_of(test, log)]
    expected = [plans.value(task, route, ranking) for task in tasks_of(test, log)]
    np.testing.assert_allclose(reward, expected, atol=1e-9)


def test_a_rule_is_worth_what_an_enumeration_says(mint: Tree) -> None:
    """Ask a large critic about a short answer, a small one about a long one; end where one can."""
    log = Enumeration()
    large = "gpt-4-0613|no_GT-textual"
    small = "claude-instant-1|no_GT-textual"

    def choice(text: str, offered: list[str]) -> str:
        preferred = (large, small) if len(text) < 600 else (small, large)
        for model in (*preferred, *log.order):
            if model in offered:
                return model
        raise AssertionError

    def value(name: Any) -> float:
        own = log.score(name) if name in log.rows else None
        if own is not None:
            return own
        after = log.after[name]
        text = log.rows[name]["text"] if name in log.rows else ""
        draws = after[choice(text, list(after))]
        return log.mean(draws, [value(draw) for draw in draws])

    def rule(observation: Mapping[str, Any]) -> str:
        offered = observation["offered"]
        if "stop" in offered:
            return "stop"
        names = {model.replace("|", "-"): model for model in log.order}
        text = observation["answers"][-1] if observation["answers"] else ""
        chosen = choice(text, [names[name] for name in offered])
        return chosen.replace("|", "-")

    endings = policy_endings(mint, rule, 0.0, allow_stop=False)
    outcome = from_endings(mint, endings, "rule", "baseline")
    expected = [value(task) for task in log.tasks]
    np.testing.assert_allclose(outcome.quality[rows_of(mint, log)], expected, atol=1e-9)


def alternating(halves: Any, _: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws of even position in one half, the others in the other; a single one in both."""
    result = [np.zeros(halves.runs.shape), np.zeros(halves.runs.shape)]
    for table in halves.layout.draws_of_calls:
        nodes = np.maximum(table, 0)  # by action and draw; the root is no draw
        runs = np.where(nodes > 0, halves.runs[:, nodes], 0)
        present = runs > 0
        position = present.cumsum(axis=2) - 1
        is_single = present.sum(axis=2, keepdims=True) == 1
        for half, weight in enumerate(result):
            part = np.where(is_single | (position % 2 == half), runs, 0)
            total = np.maximum(part.sum(axis=2, keepdims=True), 1)
            weight[:, nodes[nodes > 0]] = (part / total)[:, nodes > 0]
    return result[0], result[1]


def test_the_split_oracle_is_that_of_an_enumeration(
    mint: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With halves that are not random: everything but the lot is computed anew."""
    monkeypatch.setattr("hierrouter.evaluation.bounds._Halves.split", alternating)
    alpha = 0.0137
    log = Enumeration()
    order = [name.replace("-no_GT", "|no_GT").replace("-GT", "|GT") for name in mint.models]
    order = [name if name in log.order else name.replace("-no|", "|") for name in order]
    assert sorted(order) == sorted(log.order)
    routes: dict[Any, Route] = dict.fromkeys(log.tasks, ())
    owner: dict[Any, Any] = {task: task for task in log.tasks}
    names: list[Any] = [*log.tasks]
    for name in names:
        for model, draws in log.children(name).items():
            for draw in draws:
                routes[draw] = (*routes[name], model)
                owner[draw] = owner[name]
                names.append(draw)
    found: list[list[tuple[float, float]]] = []  # by half: (Q, C) of the rule for each task
    for half in (0, 1):
        believed: dict[Any, tuple[float, float]] = {}  # Q and C by the draws that choose
        true: dict[Any, tuple[float, float]] = {}  # by the other ones
        for depth in range(9, -1, -1):
            level = [name for name in names if len(routes[name]) == depth]
            totals: dict[Route, dict[Any, list[float]]] = defaultdict(
                lambda: defaultdict(lambda: [0, 0.0, 0.0])
            )
            for name in level:
                for model, draws in log.children(name).items():
                    cell = totals[*routes[name], model][owner[name]]
                    for draw in draws:
                        cell[0] += 1
                        cell[1] += believed[draw][0]
                        cell[2] += believed[draw][1]
            sums = {
                route: [sum(cell[part] for cell in cells.values()) for part in range(3)]
                for route, cells in totals.items()
            }
            for name in level:
                after = log.children(name)
                own = log.score(name) if name in log.rows else None
                if not after:
                    assert own is not None
                    believed[name] = true[name] = (own, float(depth))
                    continue
                options: list[Any] = []  # R and C for the choice, position, and both values
                for model, draws in after.items():
                    single = len(draws) == 1
                    parts = [
                        [draw for n, draw in enumerate(draws) if single or n % 2 == h]
                        for h in (half, 1 - half)
                    ]
                    seen, judged = (
                        tuple(log.mean(part, [values[draw][m] for draw in part]) for m in (0, 1))
                        for part, values in zip(parts, (believed, true), strict=True)
                    )
                    reward = seen[0] - alpha * seen[1]
                    if single:
                        route = (*routes[name], model)
                        mine = totals[route][owner[name]]
                        count, quality, cost = (sums[route][part] - mine[part] for part in range(3))
                        seen = (quality / count, cost / count) if count else (0.0, 0.0)
                        reward = seen[0] - alpha * seen[1] if count else -1e12
                    key = (-round(reward, 12), round(seen[1], 12), order.index(model))
                    options.append((key, seen, judged))
                if own is not None:
                    end = (own, float(depth))
                    key = (-round(own - alpha * depth, 12), round(end[1], 12), len(order))
                    options.append((key, end, end))
                _, believed[name], true[name] = min(options)
        found.append([true[task] for task in log.tasks])
    expected = np.mean(found, axis=0)
    split = split_oracle(mint, alpha)
    assert split is not None
    rows = rows_of(mint, log)
    np.testing.assert_allclose(split.quality[rows], expected[:, 0], atol=1e-9)
    np.testing.assert_allclose(split.cost[rows], expected[:, 1], atol=1e-9)
    clairvoyant = oracle(mint, alpha).reward(alpha)
    assert split.reward(alpha).mean() < clairvoyant.mean()
