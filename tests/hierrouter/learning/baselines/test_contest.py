"""Every baseline beside the learned router: sets of arms, who sees what, and what is a new look."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from hierrouter.evaluation.bounds import (
    ANYTIME_ORACLE,
    ONE_HOP_ORACLE,
    TREE_ORACLE,
    best_fixed_route,
    best_route_per_dataset,
    oracle,
)
from hierrouter.evaluation.outcome import FixedRoutes, fixed_route, fixed_routes
from hierrouter.evaluation.policies import own_policy
from hierrouter.learning.baselines import arms
from hierrouter.learning.baselines.arms import Answers, FitResult, Play, macro_arms, usable_sets
from hierrouter.learning.baselines.classifiers import NearestNeighbours
from hierrouter.learning.baselines.contest import contest, look_details
from hierrouter.learning.baselines.registry import OwnBaseline, one_thread
from hierrouter.learning.baselines.simple import BestStatic, DatasetOracle, Random
from hierrouter.learning.config import Objective
from hierrouter.learning.training import train
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import DirectCalls
from tests.hierrouter.learning.trainings import ALPHA, EXACT_GLIMPSE
from tests.hierrouter.trees import planted_tree, ragged_tree, showing_leaves

STATIC = (Random(), BestStatic(), DatasetOracle())
BOTH = ("A", "B")
SMALL = {"families": 2, "per_family": (4, 2, 2), "dim": 8}


@pytest.fixture(scope="module")
def tree():
    return planted_tree(per_family=(20, 8, 10))


def entry(found, name, arms):
    (one,) = [e for e in found.entries if (e.outcome.name, e.arms) == (name, arms)]
    return one


def test_a_policy_may_return_an_answer_where_the_router_may(tree):
    shown = showing_leaves(replace(tree, encoder="planted"))
    trained = train(shown, Objective(ALPHA, allow_return=True), EXACT_GLIMPSE, 0)
    rule = own_policy(lambda seen: "model-1" if not seen["stage"] else "return>1", "first answer")
    found = contest(shown, ALPHA, STATIC, trained=trained, policies=[rule])
    test = shown.split("test")
    node = test.layout.node((1,))
    first = entry(found, "first answer", "").outcome
    assert np.allclose(first.quality, test.score[:, node])
    assert np.allclose(first.cost, test.cost[:, node])


def test_policies_are_evaluated_as_the_bounds_are_and_no_baseline_beats_them(tree):
    told = []
    found = contest(tree, ALPHA, STATIC, on_fitted=lambda *progress: told.append(progress))
    train, test = tree.split("train"), tree.split("test")
    for name, bound in [
        ("best static", best_fixed_route(train, ALPHA, test)),
        ("dataset oracle", best_route_per_dataset(train, ALPHA, test)),
    ]:
        assert np.allclose(entry(found, name, "B").outcome.reward(ALPHA), bound.reward(ALPHA))
    assert np.allclose(entry(found, TREE_ORACLE, "").outcome.quality, oracle(test, ALPHA).quality)
    direct = test.direct.score[:, :3] - ALPHA * test.direct.cost[:, :3]
    rewards = {(e.outcome.name, e.arms): e.outcome.reward(ALPHA) for e in found.entries}
    assert np.allclose(rewards["random", "A"], direct.mean(axis=1))
    assert np.allclose(rewards[ONE_HOP_ORACLE, "A"], direct.max(axis=1))
    for (name, of), reward in rewards.items():
        bound = rewards[ONE_HOP_ORACLE, "A"] if of == "A" else rewards[TREE_ORACLE, ""]
        assert (reward <= bound + 1e-12).all() or name == ANYTIME_ORACLE
    assert (rewards[ANYTIME_ORACLE, ""] >= rewards[TREE_ORACLE, ""] - 1e-12).all()
    names = ["random", "best static", "dataset oracle"]
    assert [e.outcome.name for e in found.entries] == [
        *names,
        *names,
        ONE_HOP_ORACLE,
        TREE_ORACLE,
        ANYTIME_ORACLE,
    ]
    assert [(done, total) for done, total, _ in told] == [(n, 6) for n in range(1, 7)]
    assert told[-1][2] == "dataset oracle on B"


def test_what_a_baseline_draws_does_not_depend_on_the_others(tree):
    class Drawn(Random):
        name = "drawn"

        def fit(self, train, validation, alpha, rng):
            return FitResult(
                super().fit(train, validation, alpha, rng).play, {"drawn": rng.random()}
            )

    def drawn(*others, seed=42):
        found = contest(tree, ALPHA, (*others, Drawn()), seed=seed)
        return [entry(found, "drawn", name).settings["drawn"] for name in BOTH]

    assert drawn() == drawn(Random())
    assert len({*drawn(), *drawn(seed=1)}) == 4


class Cheat(BestStatic):
    """Takes the arm whose answer looks best, if it is shown any while it is tuned."""

    name = "cheat"

    def fit(self, train, validation, alpha, rng):
        self.seen = [train.seen, validation.seen]
        self.labels = train, validation
        honest = BestStatic().fit(train, validation, alpha, rng).play
        return arms.best_of(
            [({"peeks": False}, honest), ({"peeks": True}, self.peek)], validation, alpha
        )

    def peek(self, seen):
        self.seen.append(seen)
        said = seen.answers.row if seen.answers else np.zeros((len(seen), seen.arms))
        return Play.of(seen, said.argmax(axis=1))


class Reader(Cheat):
    name, reads_answers = "reader", True


@pytest.mark.parametrize("split", ["test", "validation"])
def test_nobody_sees_a_cost_and_answers_are_for_those_that_read_them(tree, split):
    """The answers of the best direct calls have the highest row of vectors."""
    rank = (tree.direct.score[:, :3] * 100).astype(np.int64)
    answers = {"A": Answers(np.zeros((101, 8), np.float32), rank, rank, rank, rank / 100)}
    taking_part = cheat, reader, _ = Cheat(), Reader(), BestStatic()
    found = contest(tree, 0.0, taking_part, ["A"], split=split, answers=answers)
    peeks = [entry(found, name, "A").settings["peeks"] for name in ("cheat", "reader")]
    assert peeks == [False, True]
    rewards = [entry(found, name, "A").outcome.reward(0.0) for name in ("cheat", "best static")]
    assert np.array_equal(*rewards)
    for seen in (*cheat.seen, *reader.seen):
        assert set(vars(seen)) == {"question", "datasets", "calls", "answers"}
    assert [seen.answers for seen in cheat.seen] == [None] * len(cheat.seen)
    assert len(reader.seen) > 3


def test_costs_and_scores_of_train_and_validation_alone_are_there_to_learn_from(tree):
    contest(tree, ALPHA, (cheat := Cheat(),), sets=("B",))
    for label, fold in zip(cheat.labels, ("train", "validation"), strict=True):
        whole = tree.split(fold)
        assert np.allclose(label.cost, whole.cost[:, tree.layout.leaves])
        assert np.array_equal(label.quality, whole.score[:, tree.layout.leaves])
        assert label.call_cost.shape == (len(whole), tree.layout.calls)


def test_an_entry_says_what_validation_said(tree):
    found = contest(tree, ALPHA, (BestStatic(),), split="validation")
    for name in BOTH:
        one = entry(found, "best static", name)
        assert one.validation == pytest.approx(one.outcome.reward(ALPHA).mean())
        assert one.validation_cost == pytest.approx(one.outcome.cost.mean())
    found = contest(planted_tree(per_family=(20, 0, 10)), ALPHA, (NearestNeighbours(),))
    assert "No validation fold: baselines take the first of their settings." in found.notes
    one = entry(found, "kNN", "B")
    assert (one.validation, one.validation_cost) == (None, None)


def test_without_texts_who_reads_answers_is_left_out_by_name(tree):
    found = contest(tree, ALPHA, (BestStatic(), Reader()))
    assert {e.outcome.name for e in found.entries if e.arms == "B"} == {"best static"}
    assert "Left out, because the texts of answers are not loaded: reader." in found.notes


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


def test_which_sets_a_tree_has(monkeypatch):
    tree = planted_tree(**SMALL)
    assert usable_sets(tree, BOTH) == BOTH
    assert (
        usable_sets(planted_tree(hops=1, **SMALL), BOTH) == BOTH
    )  # with an instruction of its own
    with pytest.raises(InputError, match="no arms to compare: --sets ; name one"):
        usable_sets(tree, [])
    with pytest.raises(InputError, match="set of arms given twice: A: --sets; names must differ"):
        arms.require_sets(["A", "A"])
    assert arms.MAX_ROUTE_ARMS > 125  # five models, three hops
    monkeypatch.setattr(arms, "MAX_ROUTE_ARMS", 8)
    assert arms.unusable_sets(tree, BOTH) == {
        "B": "9 routes, more than 8; take fewer --models or --hops"
    }
    with pytest.raises(InputError, match="no arms to compare: --sets B; set B: 9 routes"):
        usable_sets(tree, ["B"])


def test_without_direct_calls_set_a_is_left_out(tree):
    nothing = np.zeros((len(tree), 0))
    none = DirectCalls((), nothing, nothing, nothing, nothing, np.zeros((0, 2)))
    bare = replace(tree, direct=none)
    found = contest(bare, ALPHA, (BestStatic(),))
    assert found.sets == ("B",)
    assert "Set A is left out: no model of the pool was asked directly." in found.notes
    with pytest.raises(InputError, match="--sets A; set A: no model of the pool was asked"):
        contest(bare, ALPHA, (BestStatic(),), sets=("A",))


def threads():
    return {torch.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())}


class Counting(BestStatic):
    """Notes how many threads there are when it is fitted and when it plays."""

    name = "counting"

    def fit(self, train, validation, alpha, rng):
        found = [threads()]
        tuned = super().fit(train, validation, alpha, rng)

        def play(seen):
            found.append(threads())
            return tuned.play(seen)

        return FitResult(play, {"threads": found})


def test_fitting_and_playing_are_on_one_thread_and_afterwards_all_is_as_before():
    of_torch = torch.get_num_threads()
    with threadpool_limits(2):
        torch.set_num_threads(2)
        found = contest(planted_tree(**SMALL), ALPHA, (Counting(),), sets=("A",))
        assert found.entries[0].settings["threads"] == [{1}, {1}, {1}]
        with pytest.raises(ValueError, match="a test"), one_thread():
            raise ValueError("a test")
        assert threads() == {2}
    torch.set_num_threads(of_torch)


class Always(BestStatic):
    """Takes one and the same arm."""

    name = "always"

    def __init__(self, arm):
        self.arm = arm

    def fit(self, train, validation, alpha, rng):
        return FitResult(lambda seen: Play.of(seen, [self.arm] * len(seen)), {})


def look(*baselines):
    return look_details(contest(planted_tree(**SMALL), ALPHA, baselines), baselines)


def own(made):
    return OwnBaseline("mine:Always", made)


def test_an_edit_of_ones_own_that_changes_a_figure_is_another_look():
    first, again, second = (look(BestStatic(), own(Always(arm))) for arm in (0, 0, 1))
    assert first == again != second
    assert {**first, "own": {}} == {**second, "own": {}}  # nothing else tells them apart
    assert json.loads(json.dumps(first)) == first
    assert (first["baselines"], [*first["own"]]) == (["best static", "always"], ["always"])
    built_in = {"alpha": ALPHA, "baselines": ["best static"], "sets": ["A", "B"], "seed": 42}
    assert look(BestStatic()) == built_in
    # Nobody loaded the texts, and who was left out was not looked at.
    assert look(BestStatic(), own(Reader())) == built_in


def test_arms_of_a_tree_with_draws_are_routes_in_expectation() -> None:
    layout = Layout.grown(2, lambda path: (0, 1) if len(path) < 2 else (), lambda action: 2)
    tree = ragged_tree(layout, 6, seed=3, missing=0.0)
    set_b = macro_arms(tree)
    outcomes = {outcome.name: outcome for outcome in fixed_routes(tree)}
    assert list(set_b.names) == list(outcomes)
    assert len(set_b.names) == 4
    for arm, name in enumerate(set_b.names):
        played = Play.of(set_b.seen, np.full(len(tree), arm)).outcome(set_b, name)
        np.testing.assert_allclose(played.quality, outcomes[name].quality)
        np.testing.assert_allclose(played.cost, outcomes[name].cost)


def test_on_a_log_arms_are_routes_that_go_on_where_a_question_does_not_offer_them() -> None:
    layout = Layout.grown(2, lambda path: (0, 1) if len(path) < 2 else (), lambda action: 2)
    tree = ragged_tree(layout, 40, seed=3)
    tree = replace(tree, splits=("train",) * 20 + ("validation",) * 10 + ("test",) * 10)
    routes = arms.LogRoutes.of(tree, ALPHA)
    assert routes is not None
    for fold in ("train", "validation", "test"):
        part = tree.split(fold)
        set_b = macro_arms(part, None, routes)
        means = FixedRoutes(part, ranking=routes.ranking)
        for arm, end in enumerate(routes.node):
            played = Play.of(set_b.seen, np.full(len(part), arm)).outcome(set_b, "")
            expected = means.outcome(int(np.searchsorted(means.node, end)))
            assert set_b.names[arm] == expected.name
            np.testing.assert_allclose(played.quality, expected.quality)
            np.testing.assert_allclose(played.cost, expected.cost)
    result = contest(tree, ALPHA, (BestStatic(), NearestNeighbours(), Reader()), ("B",))
    [static] = [entry for entry in result.entries if entry.outcome.name == "best static"]
    assert static.arms == "B"
    best = fixed_route(tree.split("test"), routes.ranking[0], routes.ranking)
    np.testing.assert_allclose(static.outcome.reward(ALPHA), best.reward(ALPHA))
    assert any(note.startswith("Set B has the ") for note in result.notes)
    assert any("a question lacks routes: reader" in note for note in result.notes)


def test_where_all_questions_offer_all_routes_nothing_is_said_of_a_log(tree) -> None:
    assert arms.LogRoutes.of(tree, ALPHA) is None
    notes = contest(tree, ALPHA, (BestStatic(),)).notes
    assert not any("Set B has" in note for note in notes)
