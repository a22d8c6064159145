"""`hierrouter doctor`, and a hub that has not all models of a pool, or not for us."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import metadata, version
from pathlib import Path

import pytest
import torch

from hierrouter.engines import preflight
from hierrouter.engines.preflight import Weights, require_models, weights_notes
from hierrouter.pools.files import load_pool
from hierrouter_cache.errors import CacheError, HierRouterError, InputError, WorldError
from hierrouter_cli import doctor
from tests.cache.rows import take
from tests.cli.conftest import Place
from tests.conftest import COMMAND, Run, as_json, spawned
from tests.hub import COMMIT, Files, Model, hub
from tests.models import save_random_model

CACHE = Path("caches/default")
ROUTER = "runs/quickstart-train/policy.safetensors"


def a_part(place: Place) -> Path:
    return min((place / "caches/default/parts").glob("calls-*"))


def examined(place: Place, monkeypatch: pytest.MonkeyPatch) -> dict[str, doctor.Finding]:
    """What is found, by subject; of two disks the last one."""
    monkeypatch.chdir(place.folder)
    return {found.subject: found for found in doctor.examine(CACHE)}


def test_a_place_that_works_and_how_a_new_one_begins(home: Place, place: Place) -> None:
    before = sorted(home.folder.rglob("*"))
    told = home.tells("doctor")
    assert told["works"]
    found = {each["subject"]: each["state"] for each in told["findings"]}
    for subject in ("hierrouter", "packages", "cpu", "models", "disk", "cache", "router"):
        assert found[subject] == "ok", told
    assert sorted(home.folder.rglob("*")) == before, "nothing stays behind"
    lines = {line[9:25].strip(): line for line in place.does("doctor").stdout.splitlines()}
    assert lines["cache"].startswith("note") and "hierrouter quickstart" in lines["cache"]
    assert lines["router"].startswith("note") and "hierrouter train" in lines["router"]


def test_missing_calls_are_a_note(own: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (own / "caches/default/parts").glob("calls-*"):
        take(part)
    found = examined(own, monkeypatch)["cache"]
    assert (found.state, found.error) == ("note", None)
    assert "0 of 300 queries complete" in found.text
    assert "4,500 calls missing; `hierrouter collect --cache caches/default`" in found.text


def cut_a_part(place: Place) -> None:
    a_part(place).write_bytes(a_part(place).read_bytes()[:-1])


def cut_the_router(place: Place) -> None:
    (place / ROUTER).write_bytes((place / ROUTER).read_bytes()[:100])


def block_the_runs(place: Place) -> None:
    shutil.rmtree(place / "runs")
    (place / "runs").write_text("a file")


@pytest.mark.parametrize(
    ("harm", "subject", "kind", "said"),
    [
        (cut_a_part, "cache", CacheError, "damaged part: calls-.*: checksum mismatch; move it"),
        (cut_the_router, "router", InputError, "policy.safetensors"),
        (block_the_runs, "disk", WorldError, "runs cannot be written: .*/runs; give --out"),
    ],
)
def test_what_is_broken_is_a_problem_of_its_kind(
    harm: Callable[[Place], None],
    subject: str,
    kind: type[HierRouterError],
    said: str,
    own: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harm(own)
    problems = [one for one in examined(own, monkeypatch).values() if one.state == "problem"]
    assert problems[0].subject == subject
    with pytest.raises(kind, match=said):
        raise problems[0].error or ValueError


def test_the_first_of_several_problems_gives_the_code(own: Place, place: Place) -> None:
    a_part(own).write_bytes(b"")
    (own / ROUTER).write_bytes(b"")
    done = own.asks("doctor --format json")
    assert done.returncode == 3
    assert not json.loads(done.stdout)["works"]
    assert done.stderr.startswith("error: 2 problems, the first: damaged part: calls-")
    done = place.asks("doctor --cache /sys/kernel/cache")  # root cannot either
    assert done.returncode == 3
    assert done.stderr.startswith("error: the cache is not writable: /sys/kernel: ")


def test_a_broken_package_is_a_problem_of_the_world(cold: Run, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open')")
    done = cold("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert "problem  devices         cannot look: libtorch.so: cannot open; install" in done.stdout
    assert "ok       models" in done.stdout


def test_versions_are_told() -> None:
    ours, theirs, *_ = doctor.packages()
    assert ours.text.startswith(version("hierrouter"))
    assert f"torch {version('torch')}" in theirs.text


def test_every_extra_for_users_is_known() -> None:
    named = {*(metadata("hierrouter").get_all("Provides-Extra") or ()), *doctor.EXTRAS}
    assert named - {"dev", "docs"} == set(doctor.EXTRAS)
    _, _, *found = doctor.packages()
    assert [each.subject for each in found] == [f"extra {name}" for name in doctor.EXTRAS]


def test_cores_memory_and_every_gpu_are_told_and_a_hub_that_is_off() -> None:
    found = {each.subject: each.text for each in doctor.devices()}
    assert "cores" in found["cpu"] and "GiB" in found["cpu"]
    assert len(found) == 1 + (torch.cuda.device_count() or 1)
    (found,) = doctor.hub()
    assert (found.state, "OfflineModeIsEnabled" in found.text) == ("note", True)


def test_a_hub_is_reached_or_it_is_a_note() -> None:
    code = "from hierrouter_cli.doctor import hub; print(*[f.state + ' ' + f.text for f in hub()])"
    with hub({}, {doctor.PAPER_ENCODER: Model({COMMIT: {}})}) as address:
        for endpoint, said in (
            (address, "ok reached; models and datasets can be fetched\n"),
            ("http://127.0.0.1:9", "note not reached ("),
        ):
            done = spawned(sys.executable, "-c", code, HF_HUB_OFFLINE="0", HF_ENDPOINT=endpoint)
            assert done.stdout.startswith(said)


def test_shipped_models_that_are_missing_or_altered_are_a_problem(tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(doctor.MODELS, models)
    (found,) = doctor.shipped_models(models)
    assert found.state == "ok"
    file = models / "testbed" / "calc" / "tokenizer.json"
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(WorldError, match="damaged or missing: testbed/calc in "):
        list(doctor.shipped_models(models))
    (models / "testbed" / "text" / "model.safetensors").unlink()
    shutil.rmtree(models / "testbed" / "facts")
    lost = r"damaged or missing: testbed/calc, testbed/text, testbed/facts in .*; install"
    with pytest.raises(WorldError, match=lost):
        list(doctor.shipped_models(models))


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
        quiet = {**home, "HF_HUB_DISABLE_TELEMETRY": "1", **settings}
        return spawned(*COMMAND, *words.split(), cwd=self.folder, **quiet)

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


def test_a_hub_that_is_not_reached_is_no_error(place: Place) -> None:
    (place / "pool.toml").write_text(POOL % "open")
    assert "not reached from here" in place.does(DRY).stderr


def test_a_collection_goes_on_without_its_references(place: Place) -> None:
    short = "base_rate = 0.1\ngeneration = { max_new_tokens = 16 }"
    ours = POOL.replace("made/open", "testbed:text").replace("base_rate = 0.1", short)
    (place / "pool.toml").write_text(ours % "gated")
    place.does("collect --datasets arith --limit 3 --pool pool.toml --cache cache --no-references")
    assert place.tells("cache info --cache cache")["complete_queries"] == 3
    assert place.tells("collect --cache cache --dry-run")["total"]["most_calls"] == 0


def test_a_disk_or_a_memory_that_is_too_small_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = load_pool("paper")
    found = [Weights(pool.models[0].name, "m", 10**10, 10**15)]
    monkeypatch.setattr(preflight, "_hub_disk", lambda: (Path("/disk"), 9 * 10**9))
    with pytest.raises(WorldError, match=r"10\.0 GB of weights .* /disk has 9\.0 GB free; make"):
        require_models(pool, found)
    disk, memory = weights_notes(pool, found)
    assert disk == "10.0 GB of weights to download; /disk has 9.0 GB free"
    assert memory.startswith(f"{pool.models[0].name} takes 1000000.0 GB for its weights alone")
