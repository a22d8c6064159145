"""Checkpoints: there and back, and every wrong file by its name."""

from __future__ import annotations

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
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hierrouter.learning.checkpoint import (
    DESCRIPTION,
    HEADER,
    WEIGHTS,
    describe,
    finish_sweep,
    load_checkpoint,
    member_folder,
    save_checkpoint,
)
from hierrouter.learning.config import Objective
from hierrouter.learning.sweep import Sweep
from hierrouter.learning.trained import TrainedRouter
from hierrouter.learning.training import train
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes
from tests.hierrouter.learning.runs import ALPHA, GLIMPSE, GRID, glimpse, small_tree, sweep_glimpse
from tests.hierrouter.trees import planted_tree, random_tree


@pytest.fixture(scope="module")
def trained() -> TrainedRouter:
    return glimpse(small_tree())


@pytest.fixture
def folder(trained: TrainedRouter, tmp_path: Path) -> Path:
    save_checkpoint(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("file", ["", WEIGHTS], ids=["folder", "file"])
def test_there_and_back(trained: TrainedRouter, folder: Path, file: str) -> None:
    loaded = load_checkpoint(folder / file)
    assert isinstance(loaded, TrainedRouter)
    assert replace(loaded, router=trained.router) == trained
    assert loaded.router.shape == trained.router.shape
    for name, value in trained.router.state_dict().items():
        assert torch.equal(loaded.router.state_dict()[name], value)
    tree = small_tree()
    np.testing.assert_array_equal(loaded.probabilities(tree), trained.probabilities(tree))


def test_the_description_is_for_people_and_scripts(trained: TrainedRouter, folder: Path) -> None:
    text = (folder / DESCRIPTION).read_text()
    found = json.loads(text)
    assert found == describe(trained)
    assert text == json.dumps(found, sort_keys=True, indent=2) + "\n"
    assert found["models"] == ["model-0", "model-1", "model-2"]
    assert found["config"]["preset"] == "default"
    assert str(folder) not in text


def test_a_budget_is_there_only_where_it_chose_alpha(
    trained: TrainedRouter, folder: Path, tmp_path: Path
) -> None:
    assert "budget" not in json.loads((folder / DESCRIPTION).read_text())
    save_checkpoint(replace(trained, budget=0.9), tmp_path / "budget")
    assert json.loads((tmp_path / "budget" / DESCRIPTION).read_text())["budget"] == 0.9
    for file, budget in ((folder, None), (tmp_path / "budget", 0.9)):
        loaded = load_checkpoint(file)
        assert isinstance(loaded, TrainedRouter) and loaded.budget == budget


@pytest.mark.parametrize("budget", [-1, float("nan"), float("inf"), "much"])
def test_an_impossible_budget_is_damage(
    trained: TrainedRouter, tmp_path: Path, budget: object
) -> None:
    text = json.dumps({**describe(trained), "budget": budget})
    file = tmp_path / "router.safetensors"
    save_file(trained.router.state_dict(), file, metadata={HEADER: text})
    with pytest.raises(InputError, match="checkpoint is damaged"):
        load_checkpoint(file)


def test_which_iterate_was_kept_is_told_where_it_is_known(
    trained: TrainedRouter, folder: Path, tmp_path: Path
) -> None:
    loaded = load_checkpoint(folder)
    assert trained.kept is not None and loaded.kept == trained.kept
    save_checkpoint(replace(trained, kept=None), tmp_path / "old")
    assert "kept" not in json.loads((tmp_path / "old" / DESCRIPTION).read_text())
    assert load_checkpoint(tmp_path / "old").kept is None


@pytest.mark.parametrize("kept", [-1, 1_000, 0.5, "last"])
def test_an_impossible_kept_iterate_is_damage(
    trained: TrainedRouter, tmp_path: Path, kept: object
) -> None:
    text = json.dumps({**describe(trained), "kept": kept})
    file = tmp_path / "router.safetensors"
    save_file(trained.router.state_dict(), file, metadata={HEADER: text})
    with pytest.raises(InputError, match="checkpoint is damaged"):
        load_checkpoint(file)


def test_saving_again_replaces_and_leaves_no_draft(trained: TrainedRouter, folder: Path) -> None:
    before = (folder / WEIGHTS).read_bytes()
    save_checkpoint(trained, folder)
    assert (folder / WEIGHTS).read_bytes() == before
    assert sorted(file.name for file in folder.iterdir()) == [DESCRIPTION, WEIGHTS]


def test_a_crash_between_the_files_leaves_a_whole_checkpoint(
    trained: TrainedRouter, folder: Path
) -> None:
    (folder / DESCRIPTION).write_text("of an older training")
    assert load_checkpoint(folder).origin == trained.origin


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])


def shorter_by_one(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def page(file: Path) -> None:
    file.write_text("<!DOCTYPE html><html>not found</html>")


def lfs_pointer(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 1\n")


def pickled(file: Path) -> None:
    file.write_bytes(pickle.dumps({"weights": [1.0]}))


def torch_zip(file: Path) -> None:
    torch.save({"weights": torch.ones(1)}, file)


def spoil(file: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata=metadata)


def not_a_number(file: Path) -> None:
    spoil(file, lambda weights: weights["policy.bias"].fill_(float("nan")))


def weight_missing(file: Path) -> None:
    spoil(file, lambda weights: weights.pop("policy.bias"))


def weight_reshaped(file: Path) -> None:
    spoil(file, lambda weights: weights.update({"context.weight": torch.ones(2, 3)}))


def somebody_elses(file: Path) -> None:
    save_file({"x": torch.ones(1)}, file)


def older(file: Path) -> None:
    save_file({"x": torch.ones(1)}, file, metadata={"hierrouter": '{"format": 1}'})


def newer(file: Path) -> None:
    save_file({"x": torch.ones(1)}, file, metadata={"hierrouter": '{"format": 99}'})


def without_format(file: Path) -> None:
    save_file({"x": torch.ones(1)}, file, metadata={"hierrouter": '{"format": "2"}'})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "truncated, damaged or not a safetensors file"),
        (shorter_by_one, "truncated, damaged or not a safetensors file"),
        (empty, "truncated, damaged or not a safetensors file"),
        (page, "truncated, damaged or not a safetensors file"),
        (lfs_pointer, "git-lfs pointer, not a safetensors file"),
        (pickled, "not a safetensors file: .*pickles are unsafe and refused"),
        (torch_zip, "not a safetensors file: .*pickles are unsafe and refused"),
        (not_a_number, r"not finite \(NaN\)"),
        (weight_missing, "weights and description do not fit"),
        (weight_reshaped, "weights and description do not fit"),
        (somebody_elses, "not written by hierrouter"),
        (older, r"has format 1, this version reads 2: .*; train again$"),
        (newer, r"has format 99, this version reads 2: .*; upgrade hierrouter$"),
        (without_format, "weights and description do not fit"),
    ],
)
def test_a_wrong_file_is_named_for_what_it_is(
    folder: Path, damage: Callable[[Path], None], message: str
) -> None:
    file = folder / WEIGHTS
    damage(file)
    with pytest.raises(InputError, match=message) as caught:
        load_checkpoint(folder)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def redescribe(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with safe_open(file, framework="pt") as opened:
        found = json.loads(opened.metadata()[HEADER])
    change(found)
    save_file(load_file(file), file, metadata={HEADER: json.dumps(found)})


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["objective"].update(allow_stop=True),
        lambda found: found["objective"].update(max_cost=1.0),
        lambda found: found.update(hops=3),
        lambda found: found.update(hops=2.0),
        lambda found: found["models"].pop(),
        lambda found: found["rate"].pop(),
        lambda found: found["rate"][0].pop(),
        lambda found: found["rate"][0].__setitem__(0, float("nan")),
        lambda found: found.update(encoder=None),
        lambda found: found.update(view=3),
        lambda found: found.update(seed="0"),
        lambda found: found["shape"].pop("plain_start"),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    redescribe(folder / WEIGHTS, lambda found: None)
    load_checkpoint(folder)
    redescribe(folder / WEIGHTS, change)
    with pytest.raises(InputError, match="weights and description do not fit") as caught:
        load_checkpoint(folder)
    assert str(folder / WEIGHTS) in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: redescribe(file, lambda found: found["objective"].update(max_cost=None)),
        lambda file: spoil(file, lambda tensors: tensors.pop("ceilings.growth")),
        lambda file: spoil(
            file, lambda tensors: tensors.update({"ceilings.longest": torch.ones(3, dtype=int)})
        ),
    ],
    ids=["no limit", "half", "other nodes"],
)
def test_ceilings_that_do_not_fit_are_refused(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    save_checkpoint(train(small_tree(), Objective(0.0, max_cost=2.0), GLIMPSE, 0), tmp_path)
    load_checkpoint(tmp_path)
    damage(tmp_path / WEIGHTS)
    with pytest.raises(InputError, match="weights and description do not fit"):
        load_checkpoint(tmp_path)


def test_an_impossible_objective_names_the_file(folder: Path) -> None:
    redescribe(folder / WEIGHTS, lambda found: found["objective"].update(alpha=-1.0))
    message = "checkpoint is damaged, alpha must be a finite number >= 0, got -1.0: .*; train again"
    with pytest.raises(InputError, match=message) as caught:
        load_checkpoint(folder)
    assert str(folder / WEIGHTS) in str(caught.value)


@pytest.mark.parametrize("conditioned", [True, False])
def test_the_folder_of_a_sweep_names_a_checkpoint_in_it(tmp_path: Path, conditioned: bool) -> None:
    tree = small_tree()
    one, every = glimpse(tree), sweep_glimpse(tree)
    for seed in (0, 1):
        member = member_folder(tmp_path, seed, None if conditioned else ALPHA)
        save_checkpoint(every if conditioned else one, member)
    found = Sweep(GRID, (every, every)) if conditioned else Sweep((ALPHA,), ((one,), (one,)))
    finish_sweep(tmp_path, found, [0, 1])
    member = member_folder(tmp_path, 0, None if conditioned else ALPHA)
    with pytest.raises(InputError, match=f"folder of a sweep: .*; .*: {re.escape(str(member))}$"):
        load_checkpoint(tmp_path)
    load_checkpoint(member)


def test_a_missing_checkpoint_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"checkpoint not found: .*nope\.safetensors"):
        load_checkpoint(tmp_path / "nope.safetensors")
    with pytest.raises(InputError, match="checkpoint not found"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (planted_tree(models=2, per_family=(1, 1, 1), dim=8), "other models: 3 models .* has 2"),
        (random_tree(Routes(3, 1), 2, seed=0), "for 2 hops, the cache has 1"),
        (planted_tree(per_family=(1, 1, 1), dim=6), "8 numbers .planted., the cache has 6"),
        (
            replace(small_tree(), view="query"),
            "another view .*: context, opened was query; .*--state context",
        ),
        (
            replace(small_tree(), encoder="x"),
            "another encoder: planted, opened was x; .*--encoder planted",
        ),
    ],
    ids=["models", "hops", "dim", "view", "encoder"],
)
def test_a_router_reads_only_trees_like_its_own(
    trained: TrainedRouter, tree: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        trained.outcome(tree)  # type: ignore[arg-type]
