"""Every baseline beside the learned router."""

from dataclasses import replace

import numpy as np
import pytest

from hierrouter.evaluation.bounds import ONE_HOP, best_fixed_route, best_route_per_dataset, oracle
from hierrouter.learning.baselines.arms import Answers, Play, Tuned, best_of
from hierrouter.learning.baselines.classifiers import NearestNeighbours
from hierrouter.learning.baselines.contest import ANYTIME, TREE, contest
from hierrouter.learning.baselines.simple import BestStatic, DatasetOracle, Random
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import DirectCalls
from tests.hierrouter.learning.runs import small_tree
from tests.hierrouter.trees import planted_tree

ALPHA = 0.005
STATIC = (Random(), BestStatic(), DatasetOracle())


@pytest.fixture(scope="module")
def tree():
    return planted_tree(per_family=(20, 8, 10))


def entry(found, name, arms):
    (one,) = [e for e in found.entries if (e.outcome.name, e.arms) == (name, arms)]
    return one


def without_direct_calls(tree):
    nothing = np.zeros((len(tree), 0))
    return replace(
        tree, direct=DirectCalls((), nothing, nothing, nothing, nothing, np.zeros((0, 2)))
    )


def test_routes_are_valued_as_the_bounds_are(tree):
    found, train, test = contest(tree, ALPHA, STATIC), tree.split("train"), tree.split("test")
    for name, bound in [
        ("best static", best_fixed_route(train, ALPHA, test)),
        ("dataset oracle", best_route_per_dataset(train, ALPHA, test)),
    ]:
        assert np.allclose(entry(found, name, "B").outcome.reward(ALPHA), bound.reward(ALPHA))
    assert np.allclose(entry(found, TREE, "").outcome.quality, oracle(test, ALPHA).quality)


def test_direct_calls_are_set_a(tree):
    found, test = contest(tree, ALPHA, STATIC), tree.split("test")
    reward = test.direct.score[:, :3] - ALPHA * test.direct.cost[:, :3]
    assert np.allclose(entry(found, "random", "A").outcome.reward(ALPHA), reward.mean(axis=1))
    assert np.allclose(entry(found, ONE_HOP, "A").outcome.reward(ALPHA), reward.max(axis=1))


def test_no_baseline_beats_the_oracle_of_its_set(tree):
    found = contest(tree, ALPHA, (*STATIC, NearestNeighbours()))
    rewards = {(e.outcome.name, e.arms): e.outcome.reward(ALPHA) for e in found.entries}
    for (name, arms), reward in rewards.items():
        bound = rewards[ONE_HOP, "A"] if arms == "A" else rewards[TREE, ""]
        assert (reward <= bound + 1e-12).all() or name == ANYTIME
    assert (rewards[ANYTIME, ""] >= rewards[TREE, ""] - 1e-12).all()


def test_what_a_baseline_draws_does_not_depend_on_the_others(tree):
    class Drawn:
        name, source, reads_answers = "drawn", "a test", False

        def fit(self, train, validation, alpha, rng):
            return Tuned(Random().fit(train, validation, alpha, rng).play, {"drawn": rng.random()})

    alone, beside = contest(tree, ALPHA, (Drawn(),)), contest(tree, ALPHA, (Random(), Drawn()))
    drawn = {name: entry(beside, "drawn", name).settings["drawn"] for name in "AB"}
    assert drawn == {name: entry(alone, "drawn", name).settings["drawn"] for name in "AB"}
    assert drawn["A"] != drawn["B"]
    other = contest(tree, ALPHA, (Drawn(),), seed=1)
    assert entry(other, "drawn", "A").settings["drawn"] != drawn["A"]


def test_a_baseline_sees_no_other_fold(tree):
    class Watching:
        name, source, reads_answers = "watching", "a test", False

        def fit(self, train, validation, alpha, rng):
            self.sizes = len(train), len(validation)
            return BestStatic().fit(train, validation, alpha, rng)

    watching = Watching()
    contest(tree, ALPHA, (watching,))
    assert watching.sizes == (tree.splits.count("train"), tree.splits.count("validation"))


class Cheat(BestStatic):
    """Takes the arm whose answer looks best, if it is shown any while it is tuned."""

    name = "cheat"

    def fit(self, train, validation, alpha, rng):
        self.seen = [train.seen, validation.seen]
        self.labels = train, validation
        honest = BestStatic().fit(train, validation, alpha, rng).play
        return best_of(
            [({"peeks": False}, honest), ({"peeks": True}, self.peek)], validation, alpha
        )

    def peek(self, seen):
        self.seen.append(seen)
        said = seen.answers.row if seen.answers else np.zeros((len(seen), seen.arms))
        return Play.of(seen, said.argmax(axis=1))


def telling(tree):
    """Answers of which those of the best direct calls have the highest row of vectors."""
    rank = (tree.direct.score[:, :3] * 100).astype(np.int64)
    return {"A": Answers(np.zeros((101, 8), np.float32), rank, rank, rank)}


@pytest.mark.parametrize("split", ["test", "validation"])
def test_a_router_that_reads_no_answer_sees_the_same_on_every_fold(tree, split):
    cheat = Cheat()
    found = contest(tree, ALPHA, (cheat, BestStatic()), ["A"], split=split, answers=telling(tree))
    assert entry(found, "cheat", "A").settings == {"peeks": False}
    rewards = [entry(found, name, "A").outcome.reward(ALPHA) for name in ("cheat", "best static")]
    assert np.array_equal(*rewards)
    for seen in cheat.seen:
        assert set(vars(seen)) == {"question", "datasets", "calls", "answers"}
        assert seen.answers is None


def test_one_that_reads_answers_sees_them_and_no_cost_either(tree):
    class Reader(Cheat):
        name, reads_answers = "reader", True

    found = contest(tree, 0.0, (reader := Reader(),), ["A"], answers=telling(tree))
    assert entry(found, "reader", "A").settings == {"peeks": True}
    assert len(reader.seen) > 3
    for seen in reader.seen:
        assert set(vars(seen)) == {"question", "datasets", "calls", "answers"}


def test_costs_and_scores_of_train_and_validation_are_there_to_learn_from(tree):
    contest(tree, ALPHA, (cheat := Cheat(),), sets=("B",))
    for label, fold in zip(cheat.labels, ("train", "validation"), strict=True):
        whole = tree.split(fold)
        assert np.allclose(label.cost, whole.cost[:, tree.routes.leaves])
        assert np.array_equal(label.quality, whole.score[:, tree.routes.leaves])
        assert label.call_cost.shape == (len(whole), tree.routes.calls)


def test_an_entry_says_what_validation_said(tree):
    found = contest(tree, ALPHA, (BestStatic(),), split="validation")
    for name in "AB":
        one = entry(found, "best static", name)
        assert one.validation == pytest.approx(one.outcome.reward(ALPHA).mean())
        assert one.validation_cost == pytest.approx(one.outcome.cost.mean())


def test_without_direct_calls_set_a_is_left_out(tree):
    bare = without_direct_calls(tree)
    found = contest(bare, ALPHA, (BestStatic(),))
    assert found.sets == ("B",)
    assert "Set A is left out: no model of the pool was asked directly." in found.notes
    with pytest.raises(InputError, match="--sets A; set A: no model of the pool was asked"):
        contest(bare, ALPHA, (BestStatic(),), sets=("A",))


def test_without_texts_who_reads_answers_is_left_out_by_name(tree):
    class Reader(BestStatic):
        name, reads_answers = "reader", True

    found = contest(tree, ALPHA, (BestStatic(), Reader()))
    assert {e.outcome.name for e in found.entries if e.arms == "B"} == {"best static"}
    assert "Left out, because nobody loaded the texts of answers: reader." in found.notes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"splits": "validation"}, "no query to fit baselines on: the train fold is empty"),
        ({"splits": "train"}, "no query to compare them on: the test fold is empty"),
        ({"parts": (), "view": "stage"}, "this view shows no text: --state stage"),
    ],
)
def test_what_cannot_be_compared_is_refused(tree, change, said):
    if "splits" in change:
        change = {"splits": (change["splits"],) * len(tree)}
    with pytest.raises(InputError, match=said):
        contest(replace(tree, **change), ALPHA, STATIC)


def test_an_empty_validation_fold_is_said():
    tree = planted_tree(per_family=(20, 0, 10))
    found = contest(tree, ALPHA, (NearestNeighbours(),))
    assert "No validation fold: baselines take the first of their settings." in found.notes
    assert entry(found, "kNN", "B").validation is None
    assert entry(found, "kNN", "B").validation_cost is None


def test_the_order_is_that_of_the_baselines_then_router_then_oracles(tree):
    told = []
    found = contest(tree, ALPHA, STATIC, on_fitted=lambda *progress: told.append(progress))
    names = ["random", "best static", "dataset oracle"]
    assert [e.outcome.name for e in found.entries] == [*names, *names, ONE_HOP, TREE, ANYTIME]
    assert [(done, total) for done, total, _ in told] == [(n, 6) for n in range(1, 7)]
    assert told[-1][2] == "dataset oracle on B"


def test_one_query_a_fold_is_enough():
    tree = small_tree()
    rows = [tree.splits.index(fold) for fold in ("train", "validation", "test")]
    found = contest(tree.select(np.array(rows)), ALPHA, (*STATIC, NearestNeighbours()))
    assert all(len(e.outcome.quality) == 1 for e in found.entries)
