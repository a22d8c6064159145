"""What every baseline of the registry must do, whatever it is; how it is named."""

import re
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from hierrouter.learning.baselines.registry import (
    BASELINES_BY_NAME,
    BUILT_IN_BASELINES,
    baselines,
    fault,
    flag_name,
)
from hierrouter_cache.errors import InputError
from tests.conftest import SOURCES
from tests.hierrouter.learning.baselines import known
from tests.hierrouter.learning.baselines.known import EMPTY, answered, fitted, folds, planted_arms

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
SUBJECTS = [replace(one, **FEWER.get(one.name, {})) for one in BUILT_IN_BASELINES]
each = pytest.mark.parametrize("baseline", SUBJECTS, ids=lambda one: flag_name(one.name))


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
    assert len(BASELINES_BY_NAME) == len(BUILT_IN_BASELINES)
    assert all(baseline.source for baseline in BUILT_IN_BASELINES)
    assert {flag_name(one.name) for one in BUILT_IN_BASELINES} == set(BASELINES_BY_NAME)


# --- baselines by name, and one's own by import path

OWN = """
import numpy as np
from hierrouter.learning.baselines.arms import Play, FitResult

class Wrong:
    name, source, reads_answers = "wrong", "a test", False
    def fit(self, train, validation, alpha, rng):
        return FitResult(lambda seen: Play.of(seen, np.zeros(len(seen), int)), {{}})
    {wrong}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a module with a class that does something wrong, and gives its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(wrong):
        name = f"own_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(OWN.format(wrong=wrong))
        sys.modules.pop(name, None)
        return name

    return write


@contextmanager
def refused_in_a_line(*said):
    with pytest.raises(InputError) as error:
        yield
    text = str(error.value)
    assert "\n" not in text
    assert len(text) <= 300
    assert all(one in text for one in said), text


def test_the_docs_name_every_one_and_no_other():
    _, _, table = (SOURCES / "docs" / "compare.md").read_text().partition("| `--baselines` |")
    assert re.findall(r"^\| `([a-z-]+)` \|", table.partition("\n\n")[0], re.M) == list(
        BASELINES_BY_NAME
    )


def test_names_are_typed_with_dashes_and_keep_their_order_and_none_is_all():
    assert baselines() == BUILT_IN_BASELINES
    assert [one.name for one in baselines(["knn", "best-static"])] == ["kNN", "best static"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["ridg"], "unknown baseline: ridg; did you mean ridge?"),
        (["knn", ""], "unknown baseline: ; known: random, best-static,"),
        (["knn", "knn"], "baseline given twice: knn"),
        (["nowhere:Thing"], "cannot be made: nowhere:Thing: ModuleNotFoundError"),
        ([":Thing"], "not an import path: ':Thing'"),
        (["json:Nothing"], "cannot be made: json:Nothing: AttributeError"),
        (["json:JSONDecoder"], "baseline lacks name: json:JSONDecoder"),
    ],
)
def test_wrong_names_are_one_line(names, said):
    with refused_in_a_line(said):
        baselines(names)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("name = None", "baseline lacks name"),
        ("reads_answers = 'no'", "baseline lacks reads_answers"),
        ("def fit(self, train): pass", "write def fit(self, train, validation, alpha, rng)"),
        ("def __init__(self, size): pass", "made without arguments"),
    ],
)
def test_what_is_no_baseline_is_refused_when_it_is_named(own, wrong, said):
    with refused_in_a_line(said):
        baselines([f"{own(wrong)}:Wrong"])


PLAYS = "def fit(self, train, validation, alpha, rng): return FitResult(lambda seen: {play}, {{}})"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("def fit(self, *a): return 3", "gave no FitResult"),
        ("def fit(self, *a): return 1 / 0", "fit: ZeroDivisionError"),
        ("def fit(self, *a): return FitResult(print, {'a': {1}})", "settings as JSON: TypeError"),
        ("def fit(self, *a): return FitResult(print, None)", "gave no settings"),
        (
            "def fit(self, *a): return FitResult(print, {'a': np.nan})",
            "settings as JSON: ValueError",
        ),
        (PLAYS.format(play="3"), "it gave no Play"),
        (PLAYS.format(play="Play([[1, 0, 0]] * 6, [[1, 0, 0]] * 6)"), "play: "),
        (PLAYS.format(play="seen.rewards"), "play: AttributeError"),
        (PLAYS.format(play="Play.of(seen, np.array([0]))"), "answer is (1, 3), not (6, 3)"),
        (PLAYS.format(play="Play.mixed(seen, np.ones((6, 3)) / 2)"), "do not add up to 1"),
        (PLAYS.format(play="Play.mixed(seen, np.full((6, 3), np.nan))"), "is no probability"),
        (PLAYS.format(play="Play(np.eye(3)[[0] * 6], np.zeros((6, 3)))"), "calls were not made"),
    ],
)
def test_what_ones_own_does_wrong_is_one_line_with_its_path(own, wrong, said):
    (one,) = baselines([f"{own(wrong)}:Wrong"])
    arms = planted_arms(6)
    with refused_in_a_line(said, ":Wrong"):
        fitted(one, arms).play(arms.seen)
