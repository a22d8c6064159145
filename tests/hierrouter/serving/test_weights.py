"""Weights and overlap, against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.off_policy import Setting
from hierrouter.serving.estimators import NeverTaken, Overlap, Weights
from hierrouter.serving.logs import states_in_tree
from tests.hierrouter.serving.worlds import bandit, expected_returns, played, world


def overlap_of(setting: Setting, episodes: int = 2_000) -> Overlap:
    found = played(setting, episodes)
    return Overlap.of(found.log, found.states)


def test_a_weight_is_the_product_of_the_ratios_on_the_way() -> None:
    setting = world(hops=3, allow_stop=True)
    log, _, weights, _ = vars(played(setting, 40)).values()
    for episode, position in enumerate(log.query):
        product = 1.0
        for hop in range(log.length[episode]):
            place = position, log.node[episode, hop], log.action[episode, hop]
            assert weights.before[episode, hop] == pytest.approx(product)
            product *= setting.target[place] / setting.logging[place]
            assert weights.so_far[episode, hop] == pytest.approx(product)
        assert weights.whole[episode] == pytest.approx(product)


def test_effective_episodes_and_the_largest_weight() -> None:
    setting = bandit(np.zeros((50, 2)), logging=[0.8, 0.2], target=[0.2, 0.8])
    found = overlap_of(setting)
    rare = (setting.play(2_000, np.random.default_rng(0)).action == 1).sum()
    total, squares = 4 * rare + (2_000 - rare) / 4, 16 * rare + (2_000 - rare) / 16
    assert found.effective == pytest.approx(total**2 / squares)
    assert (found.largest, found.mean) == pytest.approx((4, total / 2_000))


def test_the_policy_that_logged_has_all_of_its_episodes() -> None:
    setting = world(queries=20)
    found = overlap_of(replace(setting, target=setting.logging), 100)
    assert (found.effective, found.largest, found.mean) == pytest.approx((100, 1, 1))
    assert (found.misses, found.never_taken) == (False, ())


def test_what_the_log_never_does_is_named_with_its_share() -> None:
    setting = world(queries=50, models=3)
    logging = setting.logging.copy()
    logging[:, 0] = [0.5, 0.5, 0.0]
    logging[:, 1] = [0.0, 0.5, 0.5]
    found = overlap_of(replace(setting, logging=logging), 20_000)
    chances = setting.target
    expected = {(0, 2): chances[:, 0, 2].mean()}
    expected[1, 0] = (chances[:, 0, 0] * chances[:, 1, 0]).mean()
    shares = {(item.node, item.action): item.share for item in found.never_taken}
    assert shares == pytest.approx(expected, rel=0.1)
    assert found.share_never_taken == pytest.approx(sum(expected.values()), rel=0.1)
    assert found.misses


def test_what_it_does_elsewhere_but_not_here_shows_in_the_mean_weight() -> None:
    setting = bandit(np.zeros((2, 2)), logging=[0.5, 0.5], target=[0.5, 0.5])
    found = overlap_of(replace(setting, logging=np.array([[[1.0, 0.0]], [[0.0, 1.0]]])))
    assert (found.never_taken, found.misses, found.mean) == ((), True, 0.5)


@pytest.mark.parametrize(("share", "named"), [(0.0005, False), (0.002, True)])
def test_rare_things_are_not_worth_a_warning(share: float, named: bool) -> None:
    setting = bandit(np.zeros((20, 2)), logging=[1.0, 0.0], target=[1 - share, share])
    expected = (NeverTaken(0, 1, pytest.approx(share)),) if named else ()
    assert overlap_of(setting).never_taken == expected


def test_a_policy_that_never_stops_has_no_weight_where_the_log_stops() -> None:
    setting = world(queries=20, allow_stop=True)
    log = played(setting, 200).log
    going_on = world(queries=20).target  # M columns
    whole = Weights.of(log, states_in_tree(log, setting.tree, going_on)).whole
    stopped = log.length < 2
    assert stopped.any()
    assert not whole[stopped].any()
    assert whole[~stopped].all()


def test_expected_returns_are_those_of_the_tree() -> None:
    setting = world(queries=5, hops=3)
    first = (setting.target[:, 0] * expected_returns(setting)[:, 0]).sum(axis=1)
    assert first.mean() == pytest.approx(setting.truth)
