"""The state of a service: damaged, missing, older, changed by two at once, and the gate in it."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import hierrouter as hr
from hierrouter.pools.pool import Endpoint
from hierrouter.runs.bundle import load_bundle, save_bundle
from hierrouter.runs.folders import SERVICE, WEIGHTS, unseal
from hierrouter.runs.integrity import inspect_files
from hierrouter.serving.http_app import signal_parent
from hierrouter.serving.versions import Service, change_service, load_service, save_service
from hierrouter_cache.errors import InputError, WorldError
from tests.servers import MODEL

REASON = "not shown to be better on 48 questions"
DAMAGE = r"service.json is damaged: .*service.json; `hierrouter deploy RUN` writes it anew"


def put_run(folder: Path, weights: bytes) -> str:
    """The folder of a run, of which nothing counts here but what its weights are."""
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(weights)
    return str(folder)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, one in service, one a candidate with a share, and one refused."""
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second", "third"):
        put_run(Path("trained", name), name.encode())
    service = (
        Service("trained/first")
        .try_out("trained/second", 0.25)
        .with_verdict("trained/third", REASON)
    )
    change_service(lambda _: service, Path("runs"))
    return Path("runs")


def test_no_flipped_bit_is_another_run_or_share(runs: Path) -> None:
    file = runs / SERVICE
    sound = file.read_bytes()
    dice = Random(0)
    for _ in range(400):
        data = bytearray(sound)
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        file.write_bytes(bytes(data))
        with pytest.raises(InputError, match=DAMAGE):
            load_service(runs)
        [(kind, named, _)] = inspect_files(Path("nowhere"), runs).faults
        assert (kind, named) == ("service", file)


def test_no_cut_is_another_run_or_share(runs: Path) -> None:
    sound = (runs / SERVICE).read_bytes()
    for length in range(len(sound)):
        (runs / SERVICE).write_bytes(sound[:length])
        with pytest.raises(InputError, match=DAMAGE):
            load_service(runs)


def without_checksum(file: Path) -> None:
    file.write_text(json.dumps(unseal(file.read_bytes())))


def linked_nowhere(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("harm", [without_checksum, linked_nowhere, a_pipe, a_folder])
def test_what_was_not_written_here_is_damage_and_the_remedy_works(
    runs: Path, harm: Callable[[Path], None]
) -> None:
    file = runs / SERVICE
    harm(file)
    with pytest.raises(InputError, match=DAMAGE):
        load_service(runs)
    with pytest.raises(InputError, match=DAMAGE):
        change_service(lambda present: present or Service("trained/second"), runs)
    service, kept = change_service(
        lambda present: present or Service("trained/second"), runs, anew=True
    )
    assert load_service(runs) == service == Service("trained/second")
    assert kept and os.path.lexists(kept)
    assert not inspect_files(Path("nowhere"), runs).faults


OLDER = [
    {"run": "trained/first", "before": []},
    {"run": "trained/first", "candidate": None, "share": 0.0, "before": ["trained/second"]},
    {
        "run": "trained/first",
        "candidate": "trained/second",
        "share": 0.5,
        "before": [],
        "refused": {},
    },
]


@pytest.mark.parametrize("values", OLDER)
@pytest.mark.parametrize("indent", [None, 1])
def test_an_older_file_is_read_and_gets_its_checksum_with_the_next_change(
    runs: Path, values: dict[str, object], indent: int | None
) -> None:
    (runs / SERVICE).write_text(json.dumps(values, indent=indent))
    service = load_service(runs)
    assert service and service.run == "trained/first"
    assert not inspect_files(Path("nowhere"), runs).faults
    changed, _ = change_service(lambda present: present.put("trained/third"), runs)
    assert load_service(runs) == changed
    assert unseal((runs / SERVICE).read_bytes())["digests"]["trained/first"]


@pytest.mark.parametrize("is_older", [False, True])
def test_a_refused_run_is_refused_under_every_name(runs: Path, is_older: bool) -> None:
    service = load_service(runs)
    assert service
    if is_older:
        service = replace(service, digests={})
    Path("trained/latest").symlink_to("third")
    shutil.copytree(Path("trained/third"), Path("trained/copy"))
    names = [
        "trained/third",
        "./trained/third",
        "runs/../trained/third",
        str(Path("trained/third").resolve()),
    ]
    for name in (*names, "trained/latest", "trained/copy", f"trained/third/{WEIGHTS}"):
        assert service.refusal(name) == REASON, name
    assert service.refusal("trained/second") == ""
    if not is_older:  # what is gone cannot be compared with
        Path("trained/third").rename(Path("trained/renamed"))
        assert service.refusal("trained/renamed") == REASON
    assert service.with_verdict("trained/copy", "").refusal("trained/copy") == ""


def test_another_run_under_the_name_of_a_refused_one_is_not_refused(runs: Path) -> None:
    service = load_service(runs)
    assert service
    Path("trained/third", WEIGHTS).write_bytes(b"trained again")
    assert service.refusal("trained/third") == ""


def test_a_run_that_was_exchanged_under_its_name_is_not_the_one_deployed(runs: Path) -> None:
    Path("trained/latest").symlink_to("first")
    service, _ = change_service(
        lambda present: present.put("trained/latest"), runs, "trained/latest"
    )
    service.require_unchanged("trained/latest")
    assert service.before == ()  # it was in service under its other name
    Path("trained/latest").unlink()
    Path("trained/latest").symlink_to("second")
    with pytest.raises(InputError, match=r"trained/latest is not the run that was deployed"):
        service.require_unchanged("trained/latest")
    again, _ = change_service(lambda present: present.put("trained/latest"), runs, "trained/latest")
    again.require_unchanged("trained/latest")
    assert again.before == ()  # what was in service before has no name any more


def test_changes_at_once_are_all_there(runs: Path) -> None:
    names = [put_run(Path(f"trained/{number}"), bytes([number])) for number in range(16)]

    def deploy(name: str) -> None:
        change_service(lambda present: present.put(name), runs, name)

    threads = [threading.Thread(target=deploy, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service = load_service(runs)
    assert service
    assert {service.run, *service.before} == {"trained/first", *names}
    assert service.refusal("trained/third") == REASON


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder")
    for write in (
        lambda: save_service(Service("a"), tmp_path / "runs"),
        lambda: change_service(lambda _: Service("a"), tmp_path / "runs"),
    ):
        with pytest.raises(WorldError, match=r"cannot write: .*runs/service.json: File exists"):
            write()


@pytest.mark.parametrize("key", [None, "SECRET_OF_A_CLUSTER"])
def test_a_pool_on_servers_of_ones_own_can_be_deployed(
    live_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """No server is asked: which may be called is decided where one is started."""
    shutil.copytree(live_run, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    stored = load_bundle(tmp_path / "run")
    assert stored
    endpoint = Endpoint("http://127.0.0.1:9/v1", api_key_env=key)
    models = tuple(
        replace(model, model=MODEL, backend="openai", endpoint=endpoint)
        for model in stored.pool.models
    )
    save_bundle(replace(stored, pool=replace(stored.pool, models=models)), tmp_path / "run")
    notes: list[str] = []
    assert hr.deploy("run", on_note=notes.append).run == "run"
    [note] = notes
    assert note.startswith("servers have to be told: ")
    if key is None:
        notes.clear()
        hr.deploy("run", shadow=True, allow_endpoints="127.0.0.1", on_note=notes.append)
        assert notes == []
    with pytest.raises(InputError, match="the pool is not the policy's"):
        hr.deploy("run", pool="graded")


def test_a_signal_goes_to_the_process_that_started_this_one_alone() -> None:
    assert signal_parent(os.getppid(), 0)
    for stranger in (1, os.getpid()):
        assert stranger == os.getppid() or not signal_parent(stranger, 0)
    gone = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(gone, 0)
    assert not signal_parent(gone, 0)
