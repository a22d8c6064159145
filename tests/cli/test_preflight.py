"""`collect --dry-run` and `doctor --pool` on a hub that has not all the models, or not for us."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierrouter.engines import preflight
from hierrouter.engines.preflight import Weights, require_models, weights_notes
from hierrouter.pools.files import load_pool
from hierrouter_cache.errors import WorldError
from tests.cli.conftest import Place
from tests.conftest import COMMAND, as_json, environment
from tests.hub import COMMIT, Files, Model, hub
from tests.models import save_random_model

TOKEN = "hf_of_somebody_who_accepted"
POOL = """
[pool]
hops = 1
[[models]]
name = "one"
model = "made/open"
base_rate = 0.1
[[models]]
name = "testbed"
model = "testbed:calc"
base_rate = 0.1
[[references]]
name = "two"
model = "made/gated"
base_rate = 0.2
[[references]]
name = "three"
model = "made/%s"
base_rate = 0.2
"""
DRY = "collect --datasets arith --limit 3 --pool pool.toml --cache cache --dry-run"
GATED = "model two (made/gated) is gated: accept its licence at {}/made/gated, then"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = save_random_model(tmp_path_factory.mktemp("models") / "m", "llama", 1)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Node:
    """A machine whose hub is here."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self.models = {
            "made/open": Model({COMMIT: files}),
            "made/gated": Model({COMMIT: files}, token=TOKEN),
        }
        self.pool("open")

    def pool(self, third: str) -> None:
        (self.folder / "pool.toml").write_text(POOL % third)

    def asks(self, words: str, address: str, **settings: str) -> subprocess.CompletedProcess[str]:
        home = {"HF_ENDPOINT": address, "HF_HOME": str(self.folder / "home"), "HF_HUB_OFFLINE": "0"}
        return subprocess.run(
            [*COMMAND, *words.split()],
            cwd=self.folder,
            env={**environment(), **home, "HF_HUB_DISABLE_TELEMETRY": "1", **settings},
            capture_output=True,
            text=True,
        )

    @property
    def downloaded(self) -> set[str]:
        return set().union(*(model.fetched for model in self.models.values()))


@pytest.fixture
def node(tmp_path: Path, files: Files) -> Iterator[Node]:
    yield Node(tmp_path, files)


def test_a_dry_run_names_what_is_gated_or_missing_and_downloads_nothing(node: Node) -> None:
    node.pool("nowhere")
    with hub({}, node.models) as address:
        done = node.asks(DRY, address)
        line, first = done.stderr.splitlines()[-1], GATED.format(address)
        assert done.returncode == 1
        assert line.startswith(f"error: 2 models cannot be had (two, three), the first: {first}")
        assert line.endswith("or set HF_TOKEN; or --no-references")
        assert "note: model three (made/nowhere) is not on the hub" in done.stderr
        assert "3 queries" in done.stdout
        left_out = node.asks(f"{DRY} --no-references --format json", address)
    found = as_json(left_out)
    assert node.downloaded == set()
    assert not list(node.folder.rglob("*.safetensors"))
    size = len(node.models["made/open"].commits[COMMIT]["model.safetensors"])
    assert [each["name"] for each in found["weights"]] == ["one", "testbed"]
    assert [each["download"] for each in found["weights"]] == [size, 0]
    assert {stage["label"].split()[-1] for stage in found["stages"]} == {"one", "testbed"}


def test_with_the_token_of_who_accepted_the_licence_nothing_is_gated(node: Node) -> None:
    with hub({}, node.models) as address:
        assert node.asks(DRY, address, HF_TOKEN=TOKEN).returncode == 0
        other = node.asks(DRY, address, HF_TOKEN="hf_of_nobody")
    assert (other.returncode, f"error: {GATED.format(address)}" in other.stderr) == (1, True)
    assert node.downloaded == set()


def test_the_doctor_says_it_of_each_model(node: Node) -> None:
    with hub({}, node.models) as address:
        done = node.asks("doctor --pool pool.toml --format json", address)
    found = {each["subject"]: each for each in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    assert [found[name]["state"] for name in ("one", "two", "testbed")] == ["ok", "problem", "ok"]
    assert found["two"]["text"].startswith(GATED.format(address))
    assert "to download" in found["one"]["text"] and "here" in found["testbed"]["text"]
    assert node.downloaded == set()


def test_a_hub_that_is_not_reached_is_no_error(place: Place) -> None:
    (place / "pool.toml").write_text(POOL % "open")
    done = place.does(DRY)
    assert "not reached from here" in done.stderr


def test_a_collection_goes_on_without_its_references(place: Place) -> None:
    short = "base_rate = 0.1\ngeneration = { max_new_tokens = 16 }"
    ours = POOL.replace("made/open", "testbed:text").replace("base_rate = 0.1", short)
    (place / "pool.toml").write_text(ours % "gated")
    words = "collect --datasets arith --limit 3 --pool pool.toml --cache cache --no-references"
    place.does(words)
    rows = place.tells("cache info --cache cache")
    assert rows["complete_queries"] == 3
    assert place.tells("collect --cache cache --dry-run")["total"]["calls"]["most"] == 0


def test_a_disk_or_a_memory_that_is_too_small_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = load_pool("paper")
    found = [Weights(pool.models[0].name, "m", 10**10, 10**15)]
    monkeypatch.setattr(preflight, "_hub_disk", lambda: (Path("/disk"), 9 * 10**9))
    with pytest.raises(WorldError, match=r"10\.0 GB of weights .* /disk has 9\.0 GB free; make"):
        require_models(pool, found)
    disk, memory = weights_notes(pool, found)
    assert disk == "10.0 GB of weights to download; /disk has 9.0 GB free"
    assert memory.startswith(f"{pool.models[0].name} takes 1000000.0 GB for its weights alone")
