import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hierrouter.learn.checkpoint import load_checkpoint, save_checkpoint
from hierrouter.learn.config import PPOConfig
from hierrouter.learn.ppo import train
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.errors import InputError
from tests.hierrouter.trees import planted_tree

TREE = planted_tree(per_family=(12, 4, 4), dim=16)
SHORT = PPOConfig(epochs=2, rollouts=64, hidden=16)
FILES = ("policy.safetensors", "policy.json")


@pytest.fixture(scope="module")
def trained() -> TrainedRouter:
    return train(TREE, 0.005, SHORT, seed=3, encoder="test")


@pytest.fixture
def folder(tmp_path: Path, trained: TrainedRouter) -> Path:
    save_checkpoint(trained, tmp_path / "run")
    return tmp_path / "run"


def test_what_is_loaded_is_what_was_saved(folder: Path, trained: TrainedRouter) -> None:
    for path in (folder, folder / "policy.safetensors"):
        loaded = load_checkpoint(path)
        assert replace(loaded, router=trained.router) == trained
        assert np.array_equal(loaded.probabilities(TREE), trained.probabilities(TREE))


def test_a_live_state_gets_what_the_table_says(trained: TrainedRouter) -> None:
    table = trained.probabilities(TREE)
    for node, stage in ((0, 0), (2, 1)):
        live = trained.decide(TREE.embedding[5, node], stage, TREE.cost[5, node])
        assert live == pytest.approx(table[5, node], abs=1e-6)


def test_same_seed_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        save_checkpoint(train(TREE, 0.005, SHORT, seed), tmp_path / name)
    a, b, c = ([(tmp_path / name / file).read_bytes() for file in FILES] for name in "abc")
    assert a == b
    assert a[0] != c[0]


def test_nothing_of_this_machine_is_in_a_checkpoint(folder: Path) -> None:
    described = json.loads((folder / "policy.json").read_text())
    assert {"models", "hops", "dim", "encoder", "alpha", "config", "seed"} <= described.keys()
    assert {"fingerprint", "history", "version"} <= described.keys()
    assert str(Path.home()) not in (folder / "policy.json").read_text()
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])


def pointer(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 1\n")


def page(file: Path) -> None:
    file.write_text("<html>404</html>")


class Touch:
    """Unpickling this writes a file."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, ("pwned", "w")


def evil(file: Path) -> None:
    file.write_bytes(pickle.dumps(Touch()))


def not_finite(file: Path) -> None:
    with safe_open(file, framework="pt") as opened:
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        header = opened.metadata()
    weights["second.weight"][0, 0] = float("nan")
    save_file(weights, file, header)


def stranger(file: Path) -> None:
    save_file({"weight": torch.zeros(2)}, file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "checkpoint not found: .*policy.safetensors"),
        (cut, "truncated"),
        (pointer, "git-lfs pointer"),
        (page, "not a safetensors"),
        (evil, "pickles are unsafe and refused"),
        (not_finite, "not finite"),
        (stranger, "not written by hierrouter"),
    ],
)
def test_a_bad_checkpoint_is_named(
    folder: Path,
    damage: Callable[[Path], None],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    damage(folder / "policy.safetensors")
    with pytest.raises(InputError, match=message):
        load_checkpoint(folder)
    assert not (folder / "pwned").exists()


def test_any_first_byte_of_the_length_is_fine(tmp_path: Path, trained: TrainedRouter) -> None:
    """The length of the header may start like a pickle does."""
    starts = set()
    for length in range(256):
        named = replace(trained, encoder="e" * length)
        save_checkpoint(named, tmp_path)
        starts.add((tmp_path / "policy.safetensors").read_bytes()[:1])
        assert load_checkpoint(tmp_path).encoder == named.encoder
        if b"\x80" in starts:
            return
    pytest.fail("no header length began with the pickle byte")


def test_a_router_for_another_tree_is_refused(trained: TrainedRouter) -> None:
    for other, message in [
        (planted_tree(per_family=(2, 1, 1), dim=16, models=4), "3 models.*the cache has 4"),
        (planted_tree(per_family=(2, 1, 1), dim=16, hops=3), "for 2 hops, the cache has 3"),
        (planted_tree(per_family=(2, 1, 1), dim=24), "embeddings of 16 numbers.*the cache has 24"),
    ]:
        with pytest.raises(InputError, match=message):
            trained.outcome(other)
