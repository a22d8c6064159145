"""What of the hub is on this machine, as the hub's own client writes it, and what is asked for."""

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import spawned, works
from tests.hub import Files, Model, Reply, Request, hub, repository

FIRST, SECOND = "a" * 40, "b" * 40
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"[]",
    "1_Pooling/config.json": b"[{}]",
    "model.safetensors": b"x" * 100_000,
    "other.bin": b"y",
}
OURS = ["1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.json"]
COMPLETE = [*OURS[:3], "other.bin", OURS[3]]
NEWER = {**FILES, "model.safetensors": b"z"}
ROWS = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in (1, 2, 3)]
GSM8K = "openai/gsm8k"
# The words of these tests, for the client of the hub and for us.
WORDS = """
import json, sys
from huggingface_hub import snapshot_download
from hierrouter.engines.identity import holds_model, hub_commit
from hierrouter.hub.repository import HubError, Repository
from hierrouter.questions.sources import hub_queries
from hierrouter_cache.errors import HierRouterError

def said(action):
    try:
        return action()
    except (HubError, HierRouterError) as error:
        return f"{type(error).__name__}: {error}"

def download(name, revision=None, kind="model"):
    snapshot_download(name, revision=revision, repo_type=kind)

def resolve(name, revision=None):
    return said(lambda: Repository(name).resolve(revision, holds_model))

def fetch(name, commit):
    folder = said(lambda: Repository(name).fetch(commit, ["*.json", "model.safetensors"]))
    if isinstance(folder, str):
        return folder
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))

def ask(name, revision=None):
    return said(lambda: hub_commit(name, revision))

def questions(revision=None):
    found = said(lambda: hub_queries("gsm8k", "data/gsm8k.jsonl", revision))
    return found if isinstance(found, str) else [len(found[0]), found[1]]
"""


class World:
    """A hub, and a home for its client's cache.

    Attributes:
        models: of the hub.
        faults: by a part of the paths for which the hub replies so.
        requests: paths of the repositories that were asked for, since the last `does`.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.models: dict[str, Model] = {}
        self.faults: dict[str, Reply] = {}
        self.seen: list[Request] = []
        self.url = ""

    def fail(self, request: Request) -> Reply | None:
        return next((reply for part, reply in self.faults.items() if part in request.path), None)

    @property
    def requests(self) -> list[str]:
        # The client has requests of its own, on what it is run by.
        return [request.path for request in self.seen if request.path.count("/") > 2]

    def does(self, *lines: str, **settings: str) -> list[Any]:
        """The values of these lines, in a process of its own."""
        self.seen.clear()
        code = f"{WORDS}\nprint(json.dumps([{', '.join(lines)}]))"
        environment = {"HF_HOME": str(self.home), "HF_ENDPOINT": self.url, "HF_HUB_OFFLINE": "0"}
        found = works(spawned(sys.executable, "-c", code, **{**environment, **settings}))
        return list(json.loads(found.stdout.splitlines()[-1]))

    def without(self, *lines: str) -> tuple[list[Any], list[Any]]:
        """The same with the hub switched off, and with a hub that cannot be reached."""
        off = self.does(*lines, HF_HUB_OFFLINE="1")
        started = time.monotonic()
        out_of_reach = self.does(*lines, HF_ENDPOINT="http://127.0.0.1:9")
        assert time.monotonic() - started < 60  # with the client's retries it is minutes
        return off, out_of_reach


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path / "home")
    rows = {("main", "train"): ROWS, ("main", "test"): ROWS, ("socratic", "test"): ROWS}
    datasets: dict[str, Files] = {GSM8K: repository(rows)}
    with hub(datasets, found.models, found.fail, found.seen) as url:
        found.url = url
        yield found


def alike(both: tuple[list[Any], list[Any]]) -> list[Any]:
    """What is said with the hub switched off, which is the same as with one out of reach."""
    off, out_of_reach = both
    reasons = ("HF_HUB_OFFLINE is set", "the hub cannot be reached")
    assert json.dumps(off).replace(*reasons) == json.dumps(out_of_reach)
    return off


def test_what_is_here_by_branch_by_commit_and_by_our_own_download(world: World) -> None:
    names = ("made/branch", "made/commit", "made/ours")
    world.models |= {name: Model({FIRST: FILES}) for name in names}
    world.does(
        "download('made/branch')",
        f"download('made/commit', '{FIRST}')",
        "resolve('made/ours')",
        f"fetch('made/ours', '{FIRST}')",
    )
    folders = {name: world.home / f"hub/models--{name.replace('/', '--')}" for name in names}
    assert [(folder / "refs").is_dir() for folder in folders.values()] == [True, False, False]
    lines = []
    expected: list[Any] = []
    for name in names:
        lines += [f"resolve('{name}')", f"resolve('{name}', '{FIRST}')", f"ask('{name}')"]
        lines.append(f"fetch('{name}', '{FIRST}')")
        expected += [FIRST, FIRST, FIRST, OURS if name == "made/ours" else COMPLETE]
    assert world.does(*lines) == expected
    assert world.requests == []
    assert alike(world.without(*lines)) == expected


def test_a_branch_that_moved_changes_nothing_until_it_is_fetched(world: World) -> None:
    world.models["made/up"] = Model({FIRST: FILES})
    world.does("download('made/up')")
    world.models["made/up"] = Model({FIRST: FILES, SECOND: NEWER}, asked=1)
    assert world.does("resolve('made/up')") == [FIRST]
    assert world.requests == []
    found = world.does(
        "download('made/up')", *[f"resolve('made/up'{x})" for x in ("", f",'{FIRST}'")]
    )
    assert found[1:] == [SECOND, FIRST]


def test_several_commits_without_a_name_are_listed(world: World) -> None:
    world.models["made/up"] = Model({FIRST: FILES, SECOND: NEWER}, asked=1)
    world.does(f"download('made/up', '{FIRST}')", f"download('made/up', '{SECOND}')")
    found = alike(
        world.without("ask('made/up')", f"ask('made/up', '{SECOND}')", "ask('made/up', 'v1')")
    )
    assert found[0] == (
        f"WorldError: which commit is made/up@main? HF_HUB_OFFLINE is set; here are {FIRST}, "
        f"{SECOND}; give one of them as its revision"
    )
    assert found[1] == SECOND
    assert found[2].startswith("WorldError: which commit is made/up@v1? HF_HUB_OFFLINE is set; ")
    assert world.does("ask('made/up')") == [SECOND]  # the hub knows
    assert world.requests == ["/api/models/made/up"]


def test_only_what_is_missing_is_asked_for(world: World) -> None:
    world.models["made/up"] = Model({FIRST: FILES})
    world.does("download('made/up')")
    [pooling] = world.home.rglob("1_Pooling/config.json")
    pooling.resolve().unlink()
    pooling.unlink()
    assert alike(world.without(f"fetch('made/up', '{FIRST}')")) == [
        "HubError: HF_HUB_OFFLINE is set"
    ]
    world.models["made/up"].fetched.clear()
    assert world.does(f"fetch('made/up', '{FIRST}')") == [COMPLETE]
    assert world.models["made/up"].fetched == {"1_Pooling/config.json"}


HALF = (200, FILES["model.safetensors"][:50_000], {"Content-Length": "100000", "ETag": '"x"'})
OTHER = json.dumps({"id": "made/other", "sha": SECOND, "siblings": []}).encode()
FAULTS = {  # model: (part of the path, reply, what is said)
    "made/401": ("", (401, b"", {}), r"the hub refuses it \(HTTP 401\)"),
    "made/gated": (
        "",
        (403, b"", {"X-Error-Code": "GatedRepo"}),
        "it is gated: accept its licence",
    ),
    "made/404": ("", (404, b"", {"X-Error-Code": "RepoNotFound"}), "the hub does not have it"),
    "made/503": ("", (503, b"", {}), r"the hub is out of order \(HTTP 503\)"),
    "made/half": (f"/resolve/{FIRST}/model.safetensors", HALF, "the download broke off"),
    "made/other": (f"/revision/{FIRST}", (200, OTHER, {}), "with another commit, b{40}"),
}


def test_a_hub_that_does_not_help_is_said_and_can_be_mended(world: World) -> None:
    lines = []
    for name, (part, reply, _) in FAULTS.items():
        world.models[name] = Model({FIRST: FILES})
        world.faults[name + part] = reply
        lines.append(f"fetch('{name}', '{FIRST}')" if part else f"ask('{name}')")
    found = world.does(*lines)
    for said, (_, _, expected) in zip(found, FAULTS.values(), strict=True):
        assert re.search(expected, said), said
    assert not [*world.home.rglob("snapshots/*/model.safetensors")]
    world.faults.clear()
    assert world.does(*(f"fetch('{name}', '{FIRST}')" for name in FAULTS)) == [OURS] * len(FAULTS)


def test_a_data_set_is_read_again_by_its_commit(world: World) -> None:
    [[count, commit]] = world.does("questions()")
    assert count == len(ROWS)
    assert not (world.home / "hub/datasets--openai--gsm8k/refs").exists()
    again = ("questions()", f"questions('{commit}')")
    assert world.does(*again) == [[count, commit]] * 2
    assert world.requests == []
    off, out_of_reach = world.without(*again, f"questions('{SECOND}')")
    assert off[:2] == out_of_reach[:2] == [[count, commit]] * 2
    assert "HF_HUB_OFFLINE is set" in off[2]
    assert "cannot load from the hub: openai/gsm8k: the hub cannot be reached" in out_of_reach[2]


def test_a_data_set_that_the_client_fetched_is_enough_if_it_is_complete(world: World) -> None:
    world.does("download('openai/gsm8k', kind='dataset')")
    assert world.does("questions()")[0][0] == len(ROWS)
    assert world.requests == []
    [file] = world.home.rglob("main/test-*")
    file.unlink()
    for [said] in world.without("questions()"):
        assert "openai/gsm8k" in said and "data/gsm8k.jsonl" in said
    assert world.does("questions()")[0][0] == len(ROWS)
