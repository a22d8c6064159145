"""Training: it learns, repeats itself bit for bit, and looks at no test query."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hierrouter.evaluate.bounds import best_fixed_route, best_route_per_dataset, gap_closed, oracle
from hierrouter.learn.checkpoint import save_checkpoint
from hierrouter.learn.config import PRESETS, preset
from hierrouter.learn.ppo import train
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.errors import InputError
from tests.conftest import SOURCES, environment
from tests.hierrouter.learn.runs import ALPHA, GLIMPSE, glimpse, small_tree
from tests.hierrouter.trees import planted_tree

PRINT_DIGEST = """
import sys
from pathlib import Path
from tests.hierrouter.learn.test_ppo import digest
from tests.hierrouter.learn.runs import glimpse, small_tree
print(digest(glimpse(small_tree()), Path(sys.argv[1])))
"""


def digest(trained: TrainedRouter, folder: Path) -> str:
    """Of both files of a checkpoint."""
    save_checkpoint(trained, folder)
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()


def test_ppo_closes_the_gap_that_only_a_second_look_can_close() -> None:
    tree = planted_tree()
    chosen_on, fold = tree.split("train"), tree.split("test")
    trained = train(tree, ALPHA, replace(preset("default"), epochs=12), seed=0)
    reward = trained.outcome(fold).reward(ALPHA).mean()
    fixed = best_fixed_route(chosen_on, ALPHA, fold).reward(ALPHA).mean()
    closed = gap_closed(reward, fixed, oracle(fold, ALPHA).reward(ALPHA).mean())
    assert closed is not None
    assert closed >= 0.9
    blind = best_route_per_dataset(chosen_on, ALPHA, fold).reward(ALPHA).mean()
    assert reward > blind + 0.05


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    tree = small_tree()
    first = digest(glimpse(tree), tmp_path / "first")
    torch.manual_seed(99)
    np.random.seed(99)
    assert digest(glimpse(tree), tmp_path / "second") == first
    assert digest(glimpse(tree, seed=1), tmp_path / "other") != first


def test_another_process_gives_the_same_bytes(tmp_path: Path) -> None:
    here = digest(glimpse(small_tree()), tmp_path / "here")
    there = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST, str(tmp_path / "there")],
        cwd=SOURCES,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here


def test_global_generators_and_threads_are_left_alone() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(1).item(), np.random.random()
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    np.random.seed(5)
    glimpse(small_tree())
    assert (torch.rand(1).item(), np.random.random()) == expected
    assert torch.get_num_threads() == threads


def test_the_test_fold_has_no_influence(tmp_path: Path) -> None:
    tree = small_tree()
    hidden = np.array(tree.splits) == "test"
    spoilt = replace(
        tree,
        score=np.where(hidden[:, None], np.nan, tree.score),
        vectors=np.where(
            np.repeat(hidden, tree.routes.states)[:, None], np.float32(np.nan), tree.vectors
        ),
    )
    with_it, without_it = tmp_path / "with", tmp_path / "without"
    assert digest(glimpse(tree), with_it) == digest(glimpse(spoilt), without_it)


def test_the_best_iterate_on_validation_is_kept() -> None:
    tree = planted_tree(per_family=(12, 6, 3), dim=16)
    config = replace(GLIMPSE, epochs=8, rollouts=128)
    trained = train(tree, ALPHA, config, seed=0)
    reached = trained.outcome(tree.split("validation")).reward(ALPHA).mean()
    assert len(trained.history) == 8
    assert reached == max(trained.history)


def test_progress_reports_exact_values() -> None:
    tree, seen = small_tree(), []
    trained = train(tree, ALPHA, GLIMPSE, 0, on_progress=lambda *values: seen.append(values))
    assert [(done, total) for done, total, _, _ in seen] == [(1, 3), (2, 3), (3, 3)]
    assert tuple(validation for *_, validation in seen) == trained.history


def test_checkpoints_and_evaluations_come_when_planned() -> None:
    config = replace(GLIMPSE, epochs=7, iterations=2, evaluate_every=3, checkpoint_every=2)
    evaluated, saved = [], []
    train(
        small_tree(),
        ALPHA,
        config,
        0,
        on_progress=lambda done, *_: evaluated.append(done),
        on_checkpoint=lambda trained: saved.append(len(trained.history)),
    )
    assert evaluated == [6, 12, 14]  # iterations; the last epoch always counts
    assert saved == [0, 1, 2]  # evaluations known after epochs 2, 4 and 6


def test_without_a_validation_fold_the_train_fold_chooses() -> None:
    tree = small_tree().split("train")
    trained = glimpse(tree)
    assert trained.outcome(tree).reward(ALPHA).mean() == max(trained.history)


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf")])
def test_alpha_must_be_a_number(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha must be a finite number >= 0"):
        train(small_tree(), alpha, GLIMPSE, 0)


def test_there_must_be_something_to_train_on() -> None:
    with pytest.raises(InputError, match="train fold is empty"):
        glimpse(small_tree().split("test"))


def test_the_papers_preset_has_the_papers_numbers() -> None:
    paper = PRESETS["paper"]
    assert (paper.gamma, paper.gae_lambda, paper.clip) == (0.99, 0.95, 0.2)
    assert (paper.value_coefficient, paper.entropy_coefficient) == (0.5, 0.01)
    assert (paper.learning_rate, paper.adam_eps, paper.max_grad_norm) == (1e-4, 1e-4, 0.3)
    assert (paper.iterations, paper.rollouts) == (8, 128)
    assert (paper.minibatches, paper.update_epochs) == (16, 4)
    assert (paper.epochs, paper.warmup_steps) == (200, 100)
    assert (paper.evaluate_every, paper.checkpoint_every) == (3, 5)
    assert all(config.preset == name for name, config in PRESETS.items())


def test_an_unknown_preset_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown preset: papper; known: default, paper"):
        preset("papper")
