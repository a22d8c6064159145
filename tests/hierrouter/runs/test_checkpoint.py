"""Checkpoints: there and back, and every wrong file by its name."""

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hierrouter.learning.config import PPOConfig, TrainConfig
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.runs import checkpoint
from hierrouter.runs.checkpoint import (
    HEADER_KEY,
    load_checkpoint,
    read_tensors,
    save_checkpoint,
    write_tensors,
)
from hierrouter.runs.folders import WEIGHTS
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning import trainings
from tests.hierrouter.trees import planted_tree, random_tree

Change = Callable[[dict[str, Any]], object]
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def trained() -> TrainedRouter:
    return trainings.glimpse(trainings.small_tree())


@pytest.fixture
def folder(trained: TrainedRouter, tmp_path: Path) -> Path:
    save_checkpoint(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("config", [trainings.GLIMPSE, trainings.VALUE], ids=["ppo", "value"])
def test_there_and_back(tmp_path: Path, config: TrainConfig) -> None:
    tree = trainings.small_tree()
    trained = trainings.glimpse(tree, config=config)
    save_checkpoint(trained, tmp_path)
    for path in (tmp_path, tmp_path / WEIGHTS):
        loaded = load_checkpoint(path)
        assert isinstance(loaded, TrainedRouter)
        assert replace(loaded, router=trained.router) == trained
        for other in (tree, replace(tree, content="f" * 32)):  # learned from, and new
            expected = trained.probabilities(other)
            np.testing.assert_array_equal(loaded.probabilities(other), expected)
    described = json.loads(read_tensors(tmp_path / WEIGHTS)[1])
    assert described == json.loads(json.dumps(checkpoint.describe(trained)))


@pytest.mark.parametrize("budget", [0.9, None])
def test_the_description_is_for_people_and_scripts(
    trained: TrainedRouter, tmp_path: Path, budget: float | None
) -> None:
    save_checkpoint(replace(trained, budget=budget), tmp_path)
    text = read_tensors(tmp_path / WEIGHTS)[1]
    found = json.loads(text)
    assert found["models"] == ["model-0", "model-1", "model-2"]
    assert found["config"]["preset"] == "default"
    assert ("budget" in found, found.get("budget")) == (budget is not None, budget)
    assert load_checkpoint(tmp_path).budget == budget
    assert str(tmp_path) not in text


def spoil(file: Path, change: Change) -> None:
    """As somebody writes it who knows how checksums are made."""
    weights, text = read_tensors(file)
    change(weights)
    write_tensors(file, weights, text)


CUT = "truncated, damaged or not a safetensors file"
PICKLE = "not a safetensors file: .*pickles are unsafe and refused"
UNFIT = "weights and description do not fit"
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 1\n"
NAN, TWO_BY_THREE = float("nan"), np.ones((2, 3), np.float32)
DAMAGES: dict[str, tuple[str, Damage]] = {
    "truncated": (CUT, lambda file: file.write_bytes(file.read_bytes()[:1000])),
    "shorter by one": (CUT, lambda file: file.write_bytes(file.read_bytes()[:-1])),
    "empty": (CUT, lambda file: file.write_bytes(b"")),
    "page": (CUT, lambda file: file.write_text("<!DOCTYPE html><html>not found</html>")),
    "pointer": (
        "git-lfs pointer, not a safetensors file",
        lambda file: file.write_text(LFS_POINTER),
    ),
    "pickle": (PICKLE, lambda file: file.write_bytes(pickle.dumps({"weights": [1.0]}))),
    "torch's": (PICKLE, lambda file: torch.save({"weights": torch.ones(1)}, file)),
    "no number": (
        r"not finite \(NaN\)",
        lambda file: spoil(file, lambda weights: weights["policy.bias"].fill(NAN)),
    ),
    "no weight": (UNFIT, lambda file: spoil(file, lambda weights: weights.pop("policy.bias"))),
    "reshaped": (
        UNFIT,
        lambda file: spoil(file, lambda weights: weights.update({"context.weight": TWO_BY_THREE})),
    ),
    "half a float": (
        "of a type that no router has",
        lambda file: spoil(file, lambda found: found.update(x=np.ones(1, np.float16))),
    ),
    "somebody else's": (
        "not written by hierrouter",
        lambda file: save_file({"x": torch.ones(1)}, file),
    ),
    "of before": (
        "of an earlier version: .*: checksum mismatch",
        lambda file: save_file({"x": torch.ones(1)}, file, metadata={HEADER_KEY: '{"format": 2}'}),
    ),
    "older": (
        r"has format 1, this version reads 7: .*; train again$",
        lambda file: write_tensors(file, {}, '{"format": 1}'),
    ),
    "newer": (
        r"has format 99, this version reads 7: .*; upgrade hierrouter$",
        lambda file: write_tensors(file, {}, '{"format": 99}'),
    ),
    "no format": (UNFIT, lambda file: write_tensors(file, {}, '{"format": "2"}')),
}


@pytest.mark.parametrize(("message", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_a_wrong_file_is_named_for_what_it_is(folder: Path, damage: Damage, message: str) -> None:
    file = folder / WEIGHTS
    damage(file)
    with pytest.raises(InputError, match=message) as caught:
        load_checkpoint(folder)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def redescribe(file: Path, change: Change) -> None:
    tensors, text = read_tensors(file)
    found = json.loads(text)
    change(found)
    write_tensors(file, tensors, json.dumps(found))


def test_a_checkpoint_of_before_that_names_the_kept_iterate_is_read(folder: Path) -> None:
    before = load_checkpoint(folder)
    redescribe(folder / WEIGHTS, lambda found: found.update(kept=0))
    assert checkpoint.describe(load_checkpoint(folder)) == checkpoint.describe(before)


def test_a_checkpoint_of_before_warm_starts_and_exact_advantages_has_none(folder: Path) -> None:
    before = load_checkpoint(folder)

    def of_before(found: dict[str, Any]) -> None:
        del found["config"]["advantages"]
        del found["config"]["warm_start"]

    redescribe(folder / WEIGHTS, of_before)
    config = load_checkpoint(folder).origin.config
    assert isinstance(config, PPOConfig)
    assert (config.advantages, config.warm_start) == ("gae", 0)
    assert checkpoint.describe(load_checkpoint(folder)) == checkpoint.describe(before)


WRONG: tuple[dict[str, Any], ...] = (
    *({"hops": 3}, {"hops": 2.0}, {"encoder": None}, {"view": 3}, {"seed": "0"}),
    *({"budget": budget} for budget in (-1, NAN, float("inf"), "much")),
)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["objective"].update(allow_stop=True),
        lambda found: found["objective"].update(max_cost=1.0),
        lambda found: found["objective"].update(alpha=-1.0),
        *(lambda found, wrong=wrong: found.update(wrong) for wrong in WRONG),
        lambda found: found["models"].pop(),
        lambda found: found["rate"].pop(),
        lambda found: found["rate"][0].pop(),
        lambda found: found["rate"][0].__setitem__(0, NAN),
        lambda found: found["shape"].pop("plain_start"),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(folder: Path, change: Change) -> None:
    redescribe(folder / WEIGHTS, lambda found: None)
    load_checkpoint(folder)
    redescribe(folder / WEIGHTS, change)
    with pytest.raises(InputError, match=f"{UNFIT}|alpha must be (finite|>= 0)") as caught:
        load_checkpoint(folder)
    assert str(caught.value).startswith("checkpoint is damaged, ")
    assert str(caught.value).endswith(f": {folder / WEIGHTS}; train again")


def changed(name: str, change: Callable[[Any], Any]) -> Damage:
    """One tensor is another."""
    return lambda file: spoil(file, lambda held: held.update({name: change(held[name])}))


def told(**other: Any) -> Damage:
    """The description says something else."""
    return lambda file: redescribe(file, lambda found: found.update(other))


def fixed_choices(**hull: Any) -> dict[str, Any]:
    """Those of a sweep of `trainings.GRID`, as JSON values."""
    return {
        "hull": {"node": [9], "quality": [0.5], "cost": [0.1], **hull},
        "alphas": list(trainings.GRID),
        "constants": [None] * len(trainings.GRID),
    }


MODEL_DAMAGES: dict[str, Damage] = {
    "a state is gone": lambda file: spoil(file, lambda held: held.pop("state3.weight")),
    "a text is gone": lambda file: spoil(file, lambda held: held.pop("text0.basis")),
    "fewer landmarks": changed("state1.weight", lambda weight: weight[1:].copy()),
    "fewer actions": changed("state1.weight", lambda weight: weight[:, 1:].copy()),
    "fewer components": changed("text0.basis", lambda basis: basis[:, 1:].copy()),
    "another length of a text": changed("text0.mean", lambda mean: mean[1:].copy()),
    "columns between columns": changed("state1.columns", lambda held: held.astype(np.float32)),
    "columns that nothing has": changed("state1.columns", lambda columns: columns + 1),
    "half a kernel": changed("state1.kernel", lambda kernel: (kernel + 0.5).astype(np.float32)),
    "no kernel of ours": changed("state1.kernel", lambda kernel: kernel + 99),
    "numbers between numbers": changed("numbers", lambda held: held.astype(np.float32)),
    "no temperature": changed("state0.temperature", np.zeros_like),
    "a query that is all": changed("state0.leverage", np.ones_like),
    "a query that is less than nothing": changed("state0.leverage", np.negative),
    "fewer queries": changed("learned", lambda learned: learned[1:].copy()),
    "queries out of order": changed("learned", lambda learned: learned[::-1].copy()),
    "no knot": told(knots=[]),
    "descending knots": told(knots=[0.1, 0.0]),
    "knots below 0": told(knots=[-1.0]),
    "fewer knots": lambda file: redescribe(file, lambda found: found["knots"].pop()),
    "no text": told(texts=0),
    "more texts": told(texts=2),
    "a word for a number": told(texts="1"),
    "another algorithm": told(algo="exact"),
    "more may be done": lambda file: redescribe(
        file, lambda found: found["objective"].update(allow_stop=True)
    ),
    "no grid": told(alphas=[]),
    "constants of another grid": told(constants=[None]),
    "a fixed route of no tree": told(fixed=fixed_choices(node=[9_999])),
    "a fixed route without a cost": told(fixed=fixed_choices(cost=[])),
    "a fixed route of no worth": told(fixed=fixed_choices(quality=["much"])),
    "no fixed route": told(fixed=fixed_choices(node=[], quality=[], cost=[])),
    "gains at no alpha": told(fixed={**fixed_choices(), "alphas": [], "constants": []}),
    "gains of another grid": told(fixed={**fixed_choices(), "alphas": [0.0, 1.0, 2.0]}),
    "gains out of order": told(fixed={**fixed_choices(), "alphas": [0.05, 0.005, 0.0]}),
    "fewer gains": told(fixed={**fixed_choices(), "constants": [None]}),
    "fixed choices without a hull": told(fixed={"alphas": [], "constants": []}),
}


@pytest.fixture(scope="module")
def swept() -> TrainedSweep:
    return trainings.sweep_glimpse(trainings.small_tree())


@pytest.mark.parametrize("damage", MODEL_DAMAGES.values(), ids=MODEL_DAMAGES)
def test_unfit_parts_of_a_value_model_are_refused(
    swept: TrainedSweep, tmp_path: Path, damage: Damage
) -> None:
    save_checkpoint(swept, tmp_path)
    redescribe(tmp_path / WEIGHTS, lambda found: found.update(fixed=fixed_choices()))
    load_checkpoint(tmp_path)
    damage(tmp_path / WEIGHTS)
    with pytest.raises(InputError, match=UNFIT):
        load_checkpoint(tmp_path)


def test_the_folder_of_a_sweep_names_a_checkpoint_in_it(tmp_path: Path) -> None:
    member = checkpoint.member_folder(tmp_path, 0)
    trainings.finished_sweep(tmp_path, trainings.sweep_glimpse(trainings.small_tree()))
    with pytest.raises(InputError, match=f"folder of a sweep: .*; .*: {re.escape(str(member))}$"):
        load_checkpoint(tmp_path)
    load_checkpoint(member)


def test_a_missing_checkpoint_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "nope.safetensors", tmp_path):
        with pytest.raises(InputError, match="checkpoint not found"):
            load_checkpoint(path)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (planted_tree(models=2, per_family=(1, 1, 1), dim=8), "other models: 3 models .* has 2"),
        (random_tree(Layout.full(3, 1), 2, seed=0), "for 2 hops, the cache has 1"),
        (planted_tree(per_family=(1, 1, 1), dim=6), "8 numbers .planted., the cache has 6"),
        (
            replace(trainings.small_tree(), view="query"),
            "context, opened was query; .*--state context",
        ),
        (
            replace(trainings.small_tree(), encoder="x"),
            "planted, opened was x; .*--encoder planted",
        ),
    ],
    ids=["models", "hops", "dim", "view", "encoder"],
)
def test_routers_refuse_other_trees(trained: TrainedRouter, tree: RouteTree, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trained.outcome(tree)
