"""What every baseline of the registry must do, whatever it is."""

from dataclasses import replace

import numpy as np
import pytest

from hierrouter.learning.baselines.registry import BASELINES, BUILT_IN, fault, typed
from tests.hierrouter.learning.baselines import known
from tests.hierrouter.learning.baselines.known import EMPTY, answered, fitted, folds

ALPHA = 0.05
# Two models, two hops: four routes of six calls, each first call shared by two.
SHARED = np.array(
    [[1, 0, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 1]], dtype=bool
)
ONE = np.array([0])

pytestmark = pytest.mark.filterwarnings("error")
# Of the slow ones fewer settings.
FEWER = {
    "MLP": {"steps": (5, 20), "penalties": (0.01,)},
    "matrix factorisation": {"steps": (5, 20)},
}
SUBJECTS = [replace(one, **FEWER.get(one.name, {})) for one in BUILT_IN]
each = pytest.mark.parametrize("baseline", SUBJECTS, ids=lambda one: typed(one.name))


def arms(queries=80, seed=0, quality=None):
    rng = np.random.default_rng(seed)
    looks = rng.integers(0, 4, (queries, 4))
    drawn = (rng.random((queries, 4)) < np.array([0.2, 0.4, 0.6, 0.8])[looks]).astype(float)
    return answered(
        drawn if quality is None else quality,
        rng.uniform(0.1, 1.0, 6),
        looks=looks,
        says=rng.integers(0, 3, (queries, 4)),
        question=rng.integers(0, 4, queries),
        calls=SHARED,
        seed=seed,
    )


@each
def test_it_pays_for_what_it_answers_and_reads_and_plays_the_same_in_any_company(baseline):
    train, validation, held_out = folds(arms())
    play, again = (fitted(baseline, train, validation, ALPHA).play for _ in range(2))
    played, repeated = play(held_out.seen), again(held_out.seen)
    assert fault(played, held_out.seen) == ""
    known.assert_reads_what_it_pays(play, held_out.seen)
    backwards = held_out.select(np.arange(len(held_out))[::-1])
    assert np.allclose(played.answer, play(backwards.seen).answer[::-1])
    assert np.allclose(played.answer[:1], play(held_out.select(ONE).seen).answer)
    assert np.array_equal(played.answer, repeated.answer)  # the same seed gives the same bits
    assert np.array_equal(played.called, repeated.called)


@each
def test_any_alpha_a_constant_quality_and_folds_of_one_query_and_of_none(baseline):
    train, validation, held_out = folds(arms())
    flat = [folds(arms(40, quality=np.full((40, 4), value)))[:2] for value in (0.0, 0.5)]
    for learned_from, chosen_on, alpha in [
        (train, validation, 0.0),
        (train, validation, 1e6),
        *((*pair, ALPHA) for pair in flat),
        (train.select(ONE), validation, ALPHA),
        (train, validation.select(ONE), ALPHA),
        (train, validation.select(EMPTY), ALPHA),
        (train.select(ONE), validation.select(EMPTY), ALPHA),
    ]:
        played = fitted(baseline, learned_from, chosen_on, alpha).play(held_out.seen)
        assert fault(played, held_out.seen) == ""


@each
def test_one_arm_is_always_taken(baseline):
    one = answered(np.ones((8, 1)), np.ones(1), question=np.arange(8) % 4)
    assert fitted(baseline, one).play(one.seen).answer.tolist() == [[1.0]] * 8


def test_each_has_a_name_of_its_own_and_a_source():
    assert len(BASELINES) == len(BUILT_IN)
    assert all(baseline.source for baseline in BUILT_IN)
    assert {typed(one.name) for one in BUILT_IN} == set(BASELINES)
