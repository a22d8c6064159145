"""How a router learned: the curve of a real training, and its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from hierrouter.evaluation.bounds import oracle
from hierrouter.learning.config import Objective
from hierrouter.learning.loop import Watch
from hierrouter.learning.trained import TrainedRouter
from hierrouter.learning.training import train
from hierrouter.reports.drawing import as_svg
from hierrouter.reports.figures import learning_figure
from hierrouter.reports.results import LearningCurve, learning_curve
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.learning.runs import ALPHA, EXACT_GLIMPSE
from tests.hierrouter.trees import random_tree

CURVE = LearningCurve(0.1, "validation", (2, 4, 5), (0.2, 0.6, 0.5), 4, 0.3, 0.9)


@pytest.fixture(scope="module")
def learned() -> tuple[TrainedRouter, RouteTree]:
    splits = ["train"] * 6 + ["validation"] * 3 + ["test"] * 3
    tree = replace(random_tree(Routes(2, 2), queries=12, seed=0), splits=tuple(splits))
    config = replace(EXACT_GLIMPSE, epochs=5, evaluate_every=2)
    return train(tree, Objective(ALPHA), config, 0), tree


def texts(curve: LearningCurve) -> set[str]:
    root = ET.fromstring(as_svg(learning_figure(curve)))
    return {element.text or "" for element in root.iter() if "text" in element.tag}


def test_the_curve_is_the_history_of_the_training(learned: tuple[TrainedRouter, RouteTree]) -> None:
    trained, tree = learned
    curve = learning_curve(trained, tree, "validation")
    assert curve is not None and curve.chosen is not None
    assert (curve.epochs, curve.reward) == ((2, 4, 5), trained.history)
    kept = curve.reward[curve.epochs.index(curve.chosen)]
    fold = tree.split("validation")
    assert kept == max(curve.reward)
    assert kept == pytest.approx(trained.outcome(fold).reward(ALPHA).mean())
    assert curve.oracle == pytest.approx(oracle(fold, ALPHA).reward(ALPHA).mean())
    assert curve.fixed is not None and curve.fixed <= curve.oracle


def test_bounds_of_another_tree_are_left_out(learned: tuple[TrainedRouter, RouteTree]) -> None:
    trained, tree = learned
    curve = learning_curve(trained, replace(tree, content="1" * 32), "validation")
    assert curve is not None
    assert curve.fixed is curve.oracle is None


def test_a_router_without_history_has_no_curve(learned: tuple[TrainedRouter, RouteTree]) -> None:
    trained, tree = learned
    assert learning_curve(replace(trained, history=()), tree, "validation") is None


def test_of_tied_epochs_the_one_that_was_kept_is_named() -> None:
    """With one query on validation most epochs tie there; train decides between them."""
    tree = random_tree(Routes(2, 2), queries=13, seed=6)
    tree = replace(tree, splits=("train",) * 12 + ("validation",))
    config = replace(EXACT_GLIMPSE, epochs=6, evaluate_every=1)
    found: list[tuple[float, float]] = []
    watch = Watch(on_epoch=lambda done, total, train, validation: found.append((validation, train)))
    trained = train(tree, Objective(ALPHA), config, 0, watch)
    curve = learning_curve(trained, tree, "validation")
    assert curve is not None
    best = max(found)
    assert best[0] in [validation for validation, _ in found[: found.index(best)]], "no tie"
    assert curve.chosen == found.index(best) + 1


def test_an_old_checkpoint_does_not_tell_which_epoch_was_kept(
    learned: tuple[TrainedRouter, RouteTree],
) -> None:
    trained, tree = learned
    curve = learning_curve(replace(trained, kept=None), tree, "validation")
    assert curve is not None and curve.chosen is None
    assert "kept" not in texts(curve)
    assert learning_figure(curve).caption.endswith("kept")


def test_bounds_are_drawn_where_they_are_known() -> None:
    assert {"oracle", "best fixed route", "hierrouter", "kept", "epochs"} <= texts(CURVE)
    assert not {"oracle", "best fixed route"} & texts(replace(CURVE, fixed=None, oracle=None))


def test_the_caption_names_the_epoch_that_was_kept() -> None:
    assert learning_figure(CURVE).caption.endswith("(4)")
