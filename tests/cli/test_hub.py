"""The paper's setting from a hub, and then without one: the commands of a person with a GPU."""

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hierrouter.engines.encoder_names import PAPER_ENCODER
from hierrouter.pools.files import load_pool
from hierrouter.questions.answers import agreement_key, token_f1
from hierrouter.questions.sources import HUB_REPOSITORIES
from hierrouter.replay.inspection import ask_cache
from hierrouter_cache.reader import CacheReader
from tests.cli.conftest import BRIEF
from tests.cli.conftest import COMMAND as BRIEF_COMMAND
from tests.conftest import COMMAND, SOURCES, calls_made, environment, refused, spawned, works
from tests.hub import Files, Reply, Request, hub, repository
from tests.hub_world import REASONER, THOUGHT, THOUGHT_ANSWER, paper_datasets, paper_models
from tests.warm import WarmProcess

COLLECT = "collect --datasets gsm8k,math"
MISSION = (COLLECT, "train --alpha 0.005", "sweep-alpha", "report")
CODER = load_pool("paper").models[0].model
UNREACHED = "the hub cannot be reached"


@dataclass
class Machine:
    """A machine whose hub's client knows one address; the hub there may be gone.

    Attributes:
        folder: where the commands are run.
        warm: starts them; each is a process of its own.
        settings: of its environment.
        faults: by a part of the paths for which the hub replies so.
        seen: requests that reached the hub.
    """

    folder: Path
    faults: dict[str, Reply] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    warm: WarmProcess | None = None

    def fail(self, request: Request) -> Reply | None:
        return next((reply for part, reply in self.faults.items() if part in request.path), None)

    def begin(self, url: str) -> None:
        home = str(self.folder / "home")
        self.settings = {"HF_HOME": home, "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"}
        self.warm = WarmProcess({**environment(), **self.settings}, SOURCES)

    def asks(self, words: str) -> subprocess.CompletedProcess[str]:
        """Run a command; whatever comes of it."""
        assert self.warm
        command = ("-c", BRIEF + BRIEF_COMMAND, *shlex.split(words))
        env = {**environment(), **self.settings}
        return self.warm.warm.start(*command, cwd=self.folder, env=env).result()

    def does(self, words: str) -> subprocess.CompletedProcess[str]:
        """Run a command that must not fail."""
        return works(self.asks(words))

    def tells(self, words: str) -> Any:
        """Run a command, and return what it prints as JSON."""
        return json.loads(self.does(f"{words} --format json").stdout)

    def states(self) -> set[str]:
        """What `pools` says of the weights, the tokenizers and the encoder of the paper's pool."""
        pool = self.tells("pools --pool paper")["paper"]
        found = {pool["encoder_files"]["files"]}
        for model in pool["listing"]:
            found |= {model["weights"], model["tokenizer"]}
            assert model["window"] == 8192
        return found


def message_of(report: subprocess.CompletedProcess[str]) -> str:
    """A report as it is printed, without the page's address."""
    return re.sub(r"page: .*", "", report.stdout)


def test_the_mission_on_a_hub_then_without_it_and_without_the_encoder(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "work")
    machine.folder.mkdir()
    models = paper_models(tmp_path / "world")
    try:
        with hub(paper_datasets(), models, machine.fail, machine.seen) as url:
            machine.begin(url)
            report = check_on_hub(machine, models[CODER].commits)
        check_without_hub(machine, report)
        check_without_encoder(machine, report)
    finally:
        if machine.warm:
            machine.warm.close()


def check_on_hub(machine: Machine, coder: Any) -> subprocess.CompletedProcess[str]:
    """The mission's commands as they are written; the first one after two faults of the hub."""
    assert machine.states() == {"not here"}
    machine.faults["openai/gsm8k"] = (503, b"", {})
    line = refused(machine.asks(COLLECT), code=1)
    assert "openai/gsm8k: the hub is out of order (HTTP 503): try again later" in line
    [[commit, files]] = coder.items()
    weights = files["model.safetensors"]
    half = (200, weights[: len(weights) // 2], {"Content-Length": str(len(weights))})
    machine.faults = {f"/resolve/{commit}/model.safetensors": half}
    line = refused(machine.asks(COLLECT), code=1)
    assert f"model {CODER} cannot be downloaded: the download broke off" in line
    assert "in part" in machine.states()
    machine.faults.clear()

    collected, *_, report = [machine.does(words) for words in MISSION]
    made, kept = calls_made(collected.stderr)
    assert made > 0
    assert kept > 0  # by other models, before the fault
    assert "No router is trained here" not in report.stdout
    machine.seen.clear()
    assert calls_made(machine.does(COLLECT).stderr)[0] == 0
    assert [request.path for request in machine.seen if "agent" not in request.path] == []
    return report


def check_without_hub(machine: Machine, report: subprocess.CompletedProcess[str]) -> None:
    """All of it again, and a question; a new cache takes the commits that are there."""
    assert machine.states() == {"here"}
    collected, *_, again = [machine.does(words) for words in MISSION]
    assert calls_made(collected.stderr)[0] == 0
    assert message_of(again) == message_of(report)
    assert len(machine.tells('route "What is 2+2?"')["steps"]) == 2
    machine.does(f"{COLLECT} --limit 3 --cache new")
    off = {**machine.settings, "HF_HUB_OFFLINE": "1"}
    done = works(spawned(*COMMAND, "route", "What is 3+3?", cwd=machine.folder, **off))
    assert done.stdout.strip()
    commits = [
        json.loads(CacheReader(machine.folder / cache).latest_plan().pool)["datasets"]
        for cache in ("caches/default", "new")
    ]
    assert commits[0] == commits[1]
    assert list(commits[0]) == ["EleutherAI/hendrycks_math", "openai/gsm8k"]


def check_without_encoder(machine: Machine, report: subprocess.CompletedProcess[str]) -> None:
    """With stored vectors it is needed for new texts alone; without them, that is said."""
    folder = machine.folder / "home/hub" / f"models--{PAPER_ENCODER.replace('/', '--')}"
    folder.rename(machine.folder / "away")
    assert "not here" in machine.states()
    machine.does("train --alpha 0.005")
    assert message_of(machine.does("report")) == message_of(report)
    line = refused(machine.asks('route "What is 2+2?"'), code=1)
    assert "encoder paper@" in line
    assert f"{UNREACHED}; give a saved model's folder, or --encoder hashed-ngrams" in line

    shutil.move(machine.folder / "caches/default/derived", machine.folder / "derived")
    done = machine.does("report")
    assert "No router is trained here" not in done.stdout + done.stderr
    assert "No router can be shown here, because its encoder could not be loaded" in done.stdout
    assert f"encoder paper is not on this machine: {UNREACHED}" in done.stderr
    assert UNREACHED in refused(machine.asks("train --alpha 0.005"), code=1)
    (machine.folder / "away").rename(folder)
    assert message_of(machine.does("report")) == message_of(report)


SUMS = [(70, 2), (30, 42), (20, 31), (10, 62), (15, 40), (50, 22)]
THOUGHT_TEXT = "".join(THOUGHT)
ANSWER_TEXT = "".join(THOUGHT_ANSWER)
ROUTE = "deepseek-r1-distill-1.5b>qwen2.5-coder-3b"


def sums_on_hub() -> Files:
    """gsm8k as it is published, with sums of which some are what the thinking model answers."""
    rows = [
        {"question": f"What is {left} and {right}?", "answer": f"#### {left + right}"}
        for left, right in SUMS
    ]
    return repository({("main", "train"): rows[:1], ("main", "test"): rows})


def test_a_model_that_thinks_aloud_is_read_and_paid_right_to_the_token(tmp_path: Path) -> None:
    """The paper's pool keeps its thoughts; a pool that drops them differs in nothing else."""
    machine = Machine(tmp_path / "work")
    machine.folder.mkdir()
    text = (SOURCES / "hierrouter/pools/paper.toml").read_text()
    (machine.folder / "drop.toml").write_text(text.replace("[pool]", '[pool]\nthoughts = "drop"'))
    models = paper_models(tmp_path / "world", thinks=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "world" / REASONER)
    try:
        with hub({HUB_REPOSITORIES["gsm8k"].repository: sums_on_hub()}, models) as url:
            machine.begin(url)
            for pool, cache in (("paper", "keep"), ("drop.toml", "drop")):
                machine.does(
                    f"collect --datasets gsm8k --pool {pool} --cache {cache} "
                    "--no-references --encoder hashed-ngrams"
                )
                check_thoughts(machine, cache, tokenizer)
    finally:
        if machine.warm:
            machine.warm.close()


def check_thoughts(machine: Machine, cache: str, tokenizer: Any) -> None:
    """First hop and second hop of the model that thinks; with keep and with drop."""
    first = ROUTE.partition(">")[0]
    folder = machine.folder / cache
    nodes = ask_cache(
        folder,
        "SELECT n.*, question, answers FROM nodes n JOIN queries USING (query) ORDER BY n.id",
    ).to_pylist()
    rows = ask_cache(folder, "SELECT * FROM scores").to_pylist()
    scores = {(row["call"], row["scorer"]): row for row in rows}
    of_reasoner = [node for node in nodes if node["route"] == f">{first}"]
    assert len(of_reasoner) == len(SUMS)
    for node in of_reasoner:
        assert node["response"] == THOUGHT_TEXT + ANSWER_TEXT
        prompt = [{"role": "user", "content": node["prompt"]}]
        tokens = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
        # Thoughts are paid for, and so is the end token.
        assert node["tokens_in"] == len(tokens)
        assert node["tokens_out"] == len(THOUGHT) + len(THOUGHT_ANSWER) + 1
        assert node["cost"] == pytest.approx(0.002e-3 * (len(tokens) + 7))
        total = node["answers"][0].removeprefix("#### ")
        accuracy = scores[node["call"], "accuracy"]
        assert accuracy["value"] == float(total == ANSWER_TEXT)
        assert (accuracy["read_type"], accuracy["read"]) == ("number", ANSWER_TEXT)
        assert accuracy["read_start"] == len(THOUGHT_TEXT)
        visible = ANSWER_TEXT if cache == "drop" else node["response"]
        assert node["visible"] == (ANSWER_TEXT if cache == "drop" else None)
        quality = scores[node["call"], "token_f1"]["value"]
        assert quality == token_f1(visible, node["answers"])
        assert quality == (float(total == ANSWER_TEXT) if cache == "drop" else 0.0)
        assert agreement_key(visible) == ANSWER_TEXT
        [following] = [
            other for other in nodes if other["route"] == ROUTE and other["query"] == node["query"]
        ]
        solve = load_pool("paper").instruction(1)
        assert following["prompt"] == f"{node['question']}\n\n{visible}\n\n{solve}"
