"""Collections that make more draws where they decide most."""

import hashlib
import json
import math
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from hierrouter.collection.adaptive import (
    MIN_GAIN,
    FurtherDraws,
    LeastDrawsMade,
    fill_with_further_draws,
    gains,
)
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines.generator import Response
from hierrouter.evaluation.bounds import best_ahead, oracle, split_oracle
from hierrouter.pools.files import with_draws
from hierrouter.replay.inspection import cache_info, verify_cache
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Tree
from hierrouter_cache.errors import Interrupted
from hierrouter_cache.layout import Layout
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import RouteTree
from tests.conftest import Run, Start, works
from tests.engines import Scripted
from tests.hierrouter.collection.examples import sums
from tests.hierrouter.collection.test_draws import DRAWN, warm_pool
from tests.hierrouter.trees import lucky_tree
from tests.servers import Reply, Server, completion, serving

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
MOST = 8


def unit(*parts: object) -> float:
    """A number from 0 to 1 that looks random, and is always the same for the same parts."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:13], 16) / 16**13


def planted_chance(prompt: str, name: str) -> float:
    """How likely a model is right at a prompt: often nearly always, or nearly never."""
    return math.sin(math.pi * unit("chance", prompt, name) / 2) ** 2


def lucky_script(model: str, prompt: str) -> Response:
    """Right with the planted chance, in each draw anew; of two hops the first gives no answer."""
    is_right = unit(model, prompt) < planted_chance(prompt, model[0])
    number = int(prompt.split()[2])
    return Response(str(2 * number) if is_right else "no", 10, 5, "stop")


ONE_HOP = replace(DRAWN, hops=1, stage_prompts=("",))  # direct calls are those of the first hop
SEVERAL = FurtherDraws()


@dataclass
class Planted:
    """A tree of which every call has eight draws, and the chances that they come from.

    Attributes:
        tree: all draws.
        chance: of an answer to be right: float64[queries, 3], or of two hops [queries, 3, 2, 3],
            by the first action, the kind of its response, and the second action.
        kind: int64[queries, nodes], of each response; the two kinds are equally likely.
    """

    tree: RouteTree
    chance: Floats
    kind: Integers

    @classmethod
    def drawn(cls, queries: int, hops: int, seed: int) -> "Planted":
        """Chances are often near 0 or 1: they have the arcsine law."""
        rng = np.random.default_rng(seed)
        layout = Layout.grown(
            3, lambda path: range(3) if len(path) < hops else (), lambda action: MOST
        )
        chance = rng.beta(0.5, 0.5, (queries, 3) if hops == 1 else (queries, 3, 2, 3))
        kind = rng.integers(0, 2, (queries, layout.nodes))
        score = np.zeros(kind.shape)
        for node in range(1, layout.nodes):
            parent = layout.parent[node]
            action = layout.action[node]
            before = (layout.action[parent], kind[:, parent]) if parent else ()
            if parent or hops == 1:
                is_right = rng.random(queries) < chance[np.arange(queries), *before, action]
                score[:, node] = is_right
        none = np.zeros(kind.shape, np.int64)
        tree = replace(
            lucky_tree(2, queries, 1, seed),
            models=("a", "b", "c"),
            callers=("a", "b", "c"),
            rate=np.ones((3, 2)),
            layout=layout,
            score=score,
            accuracy=score,
            tokens_in=none,
            tokens_out=none,
            seconds=none,
            tokens_cached=none,
            tokens_thoughts=none,
            parts=(),
            weight=None,
            can_end=None,
            sampled=None,
        )
        return cls(tree, chance, kind)

    def with_draws(self, present: Booleans) -> RouteTree:
        """The tree with some of its draws."""
        layout = self.tree.layout
        weight = present.astype(np.float64)
        for draws in layout.draws_of_calls.reshape(-1, layout.draws):
            count = weight[:, draws].sum(axis=1, keepdims=True)
            weight[:, draws] /= np.maximum(count, 1)
        return replace(self.tree, weight=weight)

    def of_each_call(self, draws: int) -> Booleans:
        """bool[queries, nodes]: the first draws of each call."""
        layout = self.tree.layout
        kept = layout.draw < draws
        for node in range(1, layout.nodes):
            kept[node] &= kept[layout.parent[node]]
        return np.tile(kept, (len(self.tree), 1))

    def chosen(self, calls: int) -> Booleans:
        """bool[queries, nodes]: two draws of each call, and further ones by their gains a call."""
        layout = self.tree.layout
        present = self.of_each_call(2)
        is_first = (layout.depth()[: layout.inner] == 0) & (layout.hops == 2)
        cost = np.where(is_first, 7, 1)[:, None]  # with two draws of what follows
        while present[:, 1:].sum() < calls:
            table = gains(self.with_draws(present), 0.0, most_draws=MOST) / cost
            left = min(calls - present[:, 1:].sum(), 0.25 * present[:, 1:].sum())
            order = np.argsort(-table, axis=None, kind="stable")
            order = order[table.ravel()[order] * cost.max() > MIN_GAIN]
            if not len(order):
                break
            for place in order:
                if left <= 0:
                    break
                query, node, action = np.unravel_index(place, table.shape)
                draws = layout.draws_of_calls[node, action]
                new = draws[~present[query, draws]][0]
                present[query, new] = True
                below = np.flatnonzero((layout.parent == new) & (layout.draw < 2))
                present[query, below] = True
                left -= 1 + len(below)
        return present

    def regret(self, present: Booleans) -> float:
        """What the choices by the means over these draws lose of the best possible ones."""
        layout = self.tree.layout
        tree = self.with_draws(present)
        assert tree.weight is not None
        value = self.tree.score.copy()
        means = {}
        for level in reversed(layout.levels):
            if level.calls:
                means[level.inner.start] = level.gather(value, 0.0, tree.weight)
                value[:, level.inner] = means[level.inner.start].max(axis=2)
        if layout.hops == 1:
            return float((self.chance.max(axis=1) - earned(self.chance, means[0][:, 0])).mean())
        total = np.zeros(self.chance.shape)
        rows = np.arange(len(tree))
        for column in range(means[1].shape[1]):
            node = 1 + column
            seen = rows[present[:, node]]
            cells = (seen, layout.action[node], self.kind[seen, node])
            total[cells] += means[1][seen, column]
        count = np.zeros(total.shape[:3])
        for node in range(1, layout.inner):
            seen = rows[present[:, node]]
            count[seen, layout.action[node], self.kind[seen, node]] += 1
        second = earned(self.chance, total / np.maximum(count, 1)[..., None]).mean(axis=2)
        best = self.chance.max(axis=3).mean(axis=2).max(axis=1)
        return float((best - earned(second, means[0][:, 0])).mean())


def earned(value: Floats, estimate: Floats) -> Floats:
    """The value of the action of the highest estimate, the mean of equal ones."""
    is_chosen = estimate >= estimate.max(axis=-1, keepdims=True) - 1e-12
    return (value * is_chosen).sum(axis=-1) / is_chosen.sum(axis=-1)


@pytest.mark.parametrize(("hops", "queries", "most_share"), [(1, 400, 0.75), (2, 60, 0.95)])
def test_further_draws_choose_better_than_equally_many_of_each_call(
    hops: int, queries: int, most_share: float
) -> None:
    """docs/decisions.md has the figures, and where they gain nothing."""
    regrets = []
    for seed in range(3):
        planted = Planted.drawn(queries, hops, seed)
        equal = planted.of_each_call(3)
        calls = int(equal[:, 1:].sum())
        chosen = planted.chosen(calls)
        assert chosen[:, 1:].sum() <= calls + 6
        regrets.append((planted.regret(equal), planted.regret(chosen)))
    of_equal, of_chosen = np.mean(regrets, axis=0)
    assert of_chosen < most_share * of_equal


def test_rounds_make_further_draws_and_nothing_twice(tmp_path: Path) -> None:
    queries = sums(40)
    engines = Scripted(lucky_script)
    pool = with_draws(ONE_HOP, "2..8")
    notes: list[str] = []
    summary = fill_with_further_draws(
        pool, queries, tmp_path, SEVERAL, engines=engines, on_note=notes.append
    )
    assert summary.calls == engines.asked.total()
    assert set(engines.asked.values()) == {1}
    assert notes[0].startswith("draws: round 1: ")
    tree = OpenTree(cache=tmp_path, state="stage").run()
    assert tree.weight is not None
    draws = (tree.weight[:, 1:] > 0).sum(axis=1)
    is_train = np.array(tree.splits) == "train"
    assert set(draws[~is_train]) == {6}  # their means decide nothing, and have no bias
    assert draws[is_train].max() > 12
    again = fill_with_further_draws(pool, queries, tmp_path, SEVERAL, engines=engines)
    assert again.calls == 0
    assert verify_cache(tmp_path)
    assert cache_info(tmp_path)["missing_nodes"] == 0
    # A call that has draws of an earlier collection gets the next one.
    fill_cache(with_draws(ONE_HOP, 3), queries, tmp_path, engines=engines)
    assert set(engines.asked.values()) == {1}


def expected_best(tree: Tree, row: int, node: int) -> float:
    """The best expected score from a node on, by plain recursion over the draws that are there."""
    layout = tree.layout
    assert tree.weight is not None
    values: dict[int, list[float]] = {}
    for child in range(1, layout.nodes):
        if layout.parent[child] == node and tree.weight[row, child] > 0:
            is_leaf = layout.depth()[child] == layout.hops
            value = tree.score[row, child] if is_leaf else expected_best(tree, row, child)
            values.setdefault(int(layout.action[child]), []).append(value)
    return max(sum(draws) / len(draws) for draws in values.values())


def test_a_tree_of_uneven_draws_opens_wherever_it_is_stopped(tmp_path: Path) -> None:
    queries = sums(6)
    pool = with_draws(replace(DRAWN, models=DRAWN.models[:2], stage_prompts=("",)), "2..4")
    engines = Scripted(lucky_script)
    least = 6 * len(queries) * 2 + 4 * len(queries) * 2  # of two models; equal texts are one

    def stop_at(calls: int) -> Callable[[], bool]:
        return lambda: engines.asked.total() >= calls

    limit = 40
    while True:
        try:
            fill_with_further_draws(
                pool, queries, tmp_path, SEVERAL, engines=engines, stop=stop_at(limit)
            )
        except LeastDrawsMade as error:
            assert error.summary.calls >= 0
        except Interrupted:
            limit += 20
            continue
        else:
            break
        tree = OpenTree(cache=tmp_path, state="stage").run()
        assert len(tree) == len(queries)
        limit += 7
    assert set(engines.asked.values()) == {1}
    assert engines.asked.total() > least / 2
    tree = OpenTree(cache=tmp_path, state="stage").run()
    assert tree.weight is not None
    present = tree.weight > 0
    counts = {int(count) for count in present[:, 1:].sum(axis=1)}
    assert len(counts) > 1, counts
    best = best_ahead(tree, 0.0)[:, 0]
    expected = [expected_best(tree, row, 0) for row in range(len(tree))]
    assert best == pytest.approx(expected, abs=1e-12)
    split = split_oracle(tree, 0.0)
    assert split is not None
    assert split.quality.mean() <= oracle(tree, 0.0).quality.mean()
    # Rows and views have the calls that a query has, and no others.
    assert tree.to_arrow().num_rows == present[:, 1:].sum() + 2 * len(tree)
    rows = tree.to_arrow().to_pylist()
    assert None not in [row["response"] for row in rows if not row["direct"]]
    assert tree.sql("SELECT count(*) AS n FROM nodes WHERE hop > 0")["n"].to_pylist() == [
        present[:, 1:].sum()
    ]
    fewer = OpenTree(cache=tmp_path, draws=2, state="stage").run()
    assert fewer.layout == with_draws(pool, 2).layout
    saved = OpenTree(cache=tmp_path, state="stage").run()
    assert saved.fingerprint == tree.fingerprint


def test_a_further_draw_gains_most_where_two_calls_are_close() -> None:
    tree = lucky_tree(2, 40, 2, 1)
    table = gains(tree, 0.0)
    assert table.shape == (40, tree.layout.inner, tree.layout.call_actions)
    assert (table >= 0).all()
    assert table.max() > 0
    assert not gains(tree, 0.0, most_draws=2).any()
    # By hand: means .5 and 1 of two draws each; the variance of the first is its own, .5, and that
    # of two draws like those of all questions.
    layout = Layout.grown(2, lambda path: () if path else (0, 1), lambda action: 2)
    score = np.array([[0.0, 0.0, 1.0, 1.0, 1.0]])
    small = replace(
        lucky_tree(2, 1, 1, 1),
        layout=layout,
        score=score,
        accuracy=score,
        tokens_in=np.zeros((1, 5), np.int64),
        tokens_out=np.zeros((1, 5), np.int64),
        seconds=np.zeros((1, 5)),
        tokens_cached=np.zeros((1, 5), np.int64),
        tokens_thoughts=np.zeros((1, 5), np.int64),
        weight=np.array([[1.0, 0.5, 0.5, 0.5, 0.5]]),
    )
    step = (0.5 / 6) ** 0.5
    ratio = -0.5 / step
    by_hand = step * (ratio * norm.cdf(ratio) + norm.pdf(ratio))
    assert gains(small, 0.0)[0, 0] == pytest.approx([by_hand, 0.0])


def test_a_dry_run_names_the_least_and_the_most_and_a_limit_ends_the_least(
    tmp_path: Path, hierrouter: Run
) -> None:
    file = warm_pool(tmp_path, hops=1, temperature=4.0)
    arguments = ("collect", "--datasets", "string,fact", "--limit", 6, "--pool", file)
    dry = works(hierrouter(*arguments, "--draws", "2..4", "--dry-run", cwd=tmp_path))
    assert (
        "draws: 144 calls with 2 draws of each, and at most 240 with 4 for train queries: further "
        "ones are decided in rounds, where they may change a choice"
    ) in " ".join(dry.stderr.split())
    assert not (tmp_path / "caches").exists()
    limited = hierrouter(*arguments, "--draws", "2..4", "--max-spend", 1e-6, cwd=tmp_path)
    assert limited.returncode == 130


SERVED_POOL = """[pool]
hops = 1
draws = 2
per_tokens = 1000
stage_prompts = [""]
encoder = "hashed-ngrams"
"""
SERVED_MODEL = """
[[models]]
name = "{name}"
model = "{name}"
base_rate = 0.01
backend = "openai"
generation = {{ max_new_tokens = 16, temperature = 0.7 }}
[models.endpoint]
base_url = "{url}"
deployment = "{name}"
concurrency = 4
"""


def lucky_server(name: str, prompt: str, before: int) -> Reply:
    """Right with the planted chance, in each draw anew."""
    number = int(prompt.partition("+")[0].split()[-1])
    is_right = unit(name, prompt, before) < planted_chance(prompt, name)
    return Reply(completion(str(2 * number) if is_right else "no", 10, 5, model=name))


def test_further_draws_of_servers_keep_to_the_limit_and_are_paid_once(
    tmp_path: Path, start: Start, hierrouter: Run
) -> None:
    questions = [
        {"id": f"q{n}", "question": f"compute {n}+{n}", "answer": f"{2 * n}"} for n in range(60)
    ]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    command = ("collect", "--datasets", "mine.jsonl", "--pool", "pool.toml", "--draws", "2..6")
    with ExitStack() as stack:
        text = SERVED_POOL
        servers = []
        for name in ("small", "large"):
            server = Server(partial(lucky_server, name))
            server.listing = Reply({"object": "list", "data": [{"id": name}]})
            servers.append(stack.enter_context(serving(server)))
            text += SERVED_MODEL.format(name=name, url=server.url)
        (tmp_path / "pool.toml").write_text(text)

        def asked() -> int:
            return sum(server.asked.total() for server in servers)

        price = 15 * 0.01 / 1000  # of a call, at rates per 1,000 tokens
        least = 2 * 2 * len(questions)
        # Killed, then stopped by a limit below the least draws, then by one above them.
        running = start(*command, cwd=tmp_path)
        while asked() < 40:
            assert running.poll() is None, running.said()
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        running.result()
        stopped = hierrouter(*command, "--max-spend", 120 * price, cwd=tmp_path)
        assert stopped.returncode == 130
        assert "the limit is reached" in stopped.stderr
        lost = asked() - len(CacheReader(tmp_path / "caches/default").sql("SELECT key FROM calls"))
        assert 0 <= lost <= 40 + 8  # answered and not committed when it was killed
        above = works(hierrouter(*command, "--max-spend", (least + 20) * price, cwd=tmp_path))
        assert "every call has its least draws" in " ".join(above.stderr.split())
        assert least + 20 <= asked() - lost <= least + 20 + 8  # those under way
        works(hierrouter(*command, cwd=tmp_path))
        made = asked()
        works(hierrouter(*command, cwd=tmp_path))
        assert asked() == made
    tree = OpenTree(cache=tmp_path / "caches/default").run()
    calls = (tree.weight[:, 1:] > 0).sum()
    assert least < calls < 6 * 2 * len(questions)
    is_train = np.array(tree.splits) == "train"
    assert ((tree.weight[~is_train, 1:] > 0).sum(axis=1) <= 4).all()
