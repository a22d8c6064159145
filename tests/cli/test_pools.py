"""`hierrouter pools`: what comes with the package, and what a person's own pool says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hierrouter.pools.files import load_pool
from hierrouter.reports.plans import listed
from tests.cli.conftest import Place
from tests.conftest import environment

POOL = """
[pool]
hops = 1
stage_prompts = ["Solve it."]
[[models]]
name = "near"
model = "testbed:calc"
base_rate = 0.5
[[models]]
name = "far"
model = "org/far-7B"
rate_in = 0.1
rate_out = 0.3
[[references]]
name = "big"
model = "org/big"
parameters = "70B"
"""
CONFIG = '{"max_position_embeddings": 4096}'


def hub_with(folder: Path, files: dict[str, str]) -> None:
    """A hub cache with these files of org/far-7B."""
    saved = folder / "models--org--far-7B"
    snapshot = saved / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (saved / "refs").mkdir()
    (saved / "refs" / "main").write_text("abc")
    for name, text in files.items():
        (snapshot / name).write_text(text)


def test_the_shipped_pools_are_listed(place: Place) -> None:
    found = place.tells("pools")
    assert list(found) == ["cpu", "paper", "testbed"]
    assert [model["weights"] for model in found["testbed"]["listing"]] == ["here"] * 3
    assert [model["role"] for model in found["paper"]["listing"]].count("reference") == 2
    sizes = [model["parameters"] for model in found["cpu"]["listing"]]
    assert 4 * sum(sizes) < 6e9  # bytes in float32: 8 GB of memory hold them and their batches
    text = place.does("pools").stdout
    for pool in found.values():
        for model in pool["listing"]:
            assert model["model"] in text


@pytest.mark.parametrize(
    ("files", "weights", "window"),
    [
        ({}, "not here", None),
        ({"config.json": CONFIG}, "in part", 4096),
        ({"config.json": CONFIG, "model.safetensors": ""}, "here", 4096),
        (
            {
                "config.json": '{"text_config": {"max_position_embeddings": 8192}}',
                "model.safetensors.index.json": '{"weight_map": {"a": "1.safetensors", '
                '"b": "2.safetensors"}}',
                "1.safetensors": "",
            },
            "in part",
            8192,
        ),
    ],
)
def test_what_of_a_hub_model_is_here(
    tmp_path: Path,
    files: dict[str, str],
    weights: str,
    window: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub_with(tmp_path / "hub", files)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "p.toml").write_text(POOL)
    far = {model.name: model for model in listed(load_pool(str(tmp_path / "p.toml")))}["far"]
    assert (far.weights, far.window) == (weights, window)
    assert (far.rate_in, far.rate_out, far.parameters) == (0.1, 0.3, 7e9)


def test_a_pool_of_yours_is_shown_with_its_instructions(place: Place) -> None:
    (place / "p.toml").write_text(POOL)
    shown = place.does("pools --pool p.toml").stdout
    for word in ("near", "0.1/0.3", "70B", "hop 1: Solve it.", "references"):
        assert word in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("base_rate", "base_rat"), "did you mean base_rate"),
        (("testbed:calc", "./nowhere"), "model folder not found: nowhere"),
    ],
)
def test_a_pool_of_yours_is_checked(place: Place, change: tuple[str, str], message: str) -> None:
    (place / "p.toml").write_text(POOL.replace(*change, 1))
    assert message in place.refuses("pools --pool p.toml")


def test_no_network_is_asked(tmp_path: Path) -> None:
    """Every socket is refused, and the hub is not set to offline."""
    (tmp_path / "p.toml").write_text(POOL)
    code = (
        "import sys\n"
        "def refuse(event, args):\n"
        "    if event.startswith('socket.connect') or event == 'socket.getaddrinfo':\n"
        "        raise SystemExit('network: ' + str(args))\n"
        "sys.addaudithook(refuse)\n"
        "sys.argv = ['hierrouter', 'pools', '--pool', 'p.toml']\n"
        "from hierrouter_cli.app import main\nmain()\n"
    )
    env = {key: value for key, value in environment().items() if key != "HF_HUB_OFFLINE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**env, "HF_HUB_CACHE": os.fspath(tmp_path / "hub")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "not here" in done.stdout
