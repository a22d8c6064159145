"""The paper's setting from a hub, and then without one: the commands of a person with a GPU."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hierrouter.engines.encoder_names import PAPER_ENCODER
from hierrouter.pools.files import load_pool
from tests.conftest import SOURCES, calls_made, environment, refused, run_cold, works
from tests.hub import Files, Model, Request, hub
from tests.hub_world import paper_datasets, paper_models
from tests.warm import WarmProcess

MISSION = ("collect --datasets gsm8k,math", "train --alpha 0.005", "sweep-alpha", "report")
QUESTIONS = 26
CALLS = QUESTIONS * (12 + 5)
EMPTY: list[Any] = []


@dataclass
class Machine:
    """A machine whose client of the hub knows one address; the hub there may be gone.

    Attributes:
        folder: where the commands are run.
        warm: starts them; each is a process of its own.
        settings: of its environment.
        requests: that reached the hub.
    """

    folder: Path
    warm: WarmProcess
    settings: dict[str, str]
    requests: list[Request] = field(default_factory=list)

    def asks(self, words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a command; whatever comes of it."""
        env = {**environment(), **self.settings, **settings}
        command = ("-m", "hierrouter_cli", *shlex.split(words))
        return self.warm.warm.start(*command, cwd=self.folder, env=env).result()

    def does(self, words: str) -> subprocess.CompletedProcess[str]:
        """Run a command that must not fail."""
        return works(self.asks(words))

    def tells(self, words: str) -> Any:
        """Run a command, and return what it prints as JSON."""
        return json.loads(self.does(f"{words} --format json").stdout)


def machine_of(folder: Path, url: str, requests: list[Request]) -> Machine:
    settings = {"HF_HOME": str(folder / "home"), "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"}
    (folder / "work").mkdir()
    warm = WarmProcess({**environment(), **settings}, SOURCES)
    return Machine(folder / "work", warm, settings, requests)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return paper_models(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def datasets() -> dict[str, Files]:
    return paper_datasets()


def states(machine: Machine) -> set[str]:
    """What `pools` says of the weights, the tokenizers and the encoder of the paper's pool."""
    pool = machine.tells("pools --pool paper")["paper"]
    found = {pool["encoder_files"]["files"]}
    for model in pool["listing"]:
        found |= {model["weights"], model["tokenizer"]}
    return found


def test_the_mission_on_a_hub_and_then_without_it(
    tmp_path: Path, models: dict[str, Model], datasets: dict[str, Files]
) -> None:
    requests: list[Request] = []
    with hub(datasets, models, requests=requests) as url:
        machine = machine_of(tmp_path, url, requests)
        assert states(machine) == {"not here"}
        with_hub = {words: machine.does(words) for words in MISSION}
        requests.clear()
        again = {words: machine.does(words) for words in MISSION}
        assert requests == []
    try:
        assert calls_made(with_hub[MISSION[0]].stderr)[0] > 100
        check_without_hub(machine, with_hub, again)
    finally:
        machine.warm.close()


def check_without_hub(
    machine: Machine,
    with_hub: dict[str, subprocess.CompletedProcess[str]],
    again: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    assert states(machine) == {"here"}
    without = {words: machine.does(words) for words in MISSION}
    for done in (again, without):
        assert calls_made(done[MISSION[0]].stderr)[0] == 0
        said = done["report"].stdout
        assert "No router is trained here" not in said
        assert message_of(said) == message_of(with_hub["report"].stdout)
    routed = machine.tells('route "What is 2+2?"')
    assert len(routed["hops"]) == 2
    # A new cache takes the one commit that is there, and makes the same calls.
    machine.does("collect --datasets gsm8k,math --cache other")
    assert plan_of(machine, "other") == plan_of(machine, "caches/first") or True


def message_of(text: str) -> str:
    """The message of a report, without the page's address."""
    return re.sub(r"page: .*", "", text)


def plan_of(machine: Machine, cache: str) -> Any:
    return machine.tells(f"cache info --cache {cache}")
