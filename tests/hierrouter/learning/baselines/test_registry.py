"""Baselines by name, and one's own by import path."""

import re
import sys
from contextlib import contextmanager

import pytest

from hierrouter.learning.baselines.registry import BASELINES, BUILT_IN, baselines
from hierrouter_cache.errors import InputError
from tests.conftest import SOURCES
from tests.hierrouter.learning.baselines.known import fitted, planted_arms

OWN = """
import numpy as np
from hierrouter.learning.baselines.arms import Play, Tuned

class Wrong:
    name, source, reads_answers = "wrong", "a test", False
    def fit(self, train, validation, alpha, rng):
        return Tuned(lambda seen: Play.of(seen, np.zeros(len(seen), int)), {{}})
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
    assert re.findall(r"^\| `([a-z-]+)` \|", table.partition("\n\n")[0], re.M) == list(BASELINES)


def test_names_are_typed_with_dashes_and_keep_their_order_and_none_is_all():
    assert baselines() == BUILT_IN
    assert [one.name for one in baselines(["knn", "best-static"])] == ["kNN", "best static"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["ridg"], "unknown baseline: ridg; did you mean ridge?"),
        (["knn", ""], "unknown baseline: ; known: random, cheapest,"),
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


PLAYS = "def fit(self, train, validation, alpha, rng): return Tuned(lambda seen: {play}, {{}})"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("def fit(self, *a): return 3", "gave no Tuned"),
        ("def fit(self, *a): return 1 / 0", "fit: ZeroDivisionError"),
        ("def fit(self, *a): return Tuned(print, {'a': {1}})", "settings as JSON: TypeError"),
        ("def fit(self, *a): return Tuned(print, None)", "gave no settings"),
        ("def fit(self, *a): return Tuned(print, {'a': np.nan})", "settings as JSON: ValueError"),
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
