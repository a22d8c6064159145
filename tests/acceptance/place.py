"""The folder on which a bad input is tried, and the server that answers for its models.

A collected cache of twelve questions, three models and two hops, a trained router, and the files
that both came from. It is made once, through the installed command, and copied for each row.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hierrouter_cache.keys import digest
from tests.conftest import Run
from tests.servers import Reply, Server, completion

MODELS = ("small", "middle", "large")
DATASETS = ("gsm8k", "math")
ROWS = 6
FOLDS = ("train", "train", "train", "validation", "test", "test")
POOL = """[pool]
hops = 2
stage_prompts = [""]
encoder = "hashed-ngrams"
"""
MODEL = """
[[models]]
name = "{name}"
model = "{name}"
base_rate = {rate}
backend = "openai"
generation = {{ max_new_tokens = 16 }}
[models.endpoint]
base_url = "{url}"
deployment = "test"
"""
COLLECT = ("collect", "--pool", "pool.toml", "--datasets", ",".join(DATASETS))
TRAIN = ("train", "--algo", "exact", "--epochs", "2", "--out", "trained")


class Answering(Server):
    """Answers for every model of the pool; some sums are right."""

    def completed(self, request: dict[str, Any]) -> Reply:
        super().completed(request)
        model = request["model"]
        answer = said(model, request["messages"][0]["content"])
        return Reply(completion(answer, len(answer), 3, model=model))


def said(model: str, prompt: str) -> str:
    """What a model answers: the sum, if the numbers suit it, else a word of its own."""
    found = re.search(r"(\d+)\+(\d+)", prompt)
    word = digest([model, prompt])[:6]
    if found is None or int(word, 16) % len(MODELS) > MODELS.index(model):
        return word
    return str(int(found[1]) + int(found[2]))


def listing() -> Reply:
    """The models that the server says it has."""
    return Reply({"object": "list", "data": [{"id": name} for name in MODELS]})


@dataclass
class Place:
    """Where a row happens."""

    home: Path  # where the command runs
    run: Run
    server: Server  # counts the calls
    noted: dict[str, Any] = field(default_factory=dict)  # what a set-up tells the checks

    @property
    def cache(self) -> Path:
        return self.home / "caches" / "default"

    @property
    def parts(self) -> Path:
        return self.cache / "parts"

    def part(self, kind: str = "calls") -> Path:
        """The first part of a kind."""
        return min(self.parts.glob(f"{kind}-*"))

    def does(self, *arguments: str) -> str:
        """Run a command that must succeed; its stdout."""
        done = self.run(*arguments, cwd=self.home)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def copied(self, folder: Path) -> Place:
        """The same in another folder."""
        home = Path(shutil.copytree(self.home, folder))
        return Place(home, self.run, self.server, dict(self.noted))


def questions(dataset: str) -> list[dict[str, Any]]:
    """The rows of a dataset."""
    return [
        {
            "id": f"q{n}",
            "question": f"{dataset}: what is {n}+{n} ?",
            "answer": str(2 * n),
            "split": FOLDS[n - 1],
        }
        for n in range(1, ROWS + 1)
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def pool_text(url: str) -> str:
    entries = (
        MODEL.format(name=name, rate=rate, url=url) for rate, name in enumerate(MODELS, start=1)
    )
    return POOL + "".join(entries)


def make_place(home: Path, run: Run, server: Server) -> Place:
    """Collect and train."""
    place = Place(home, run, server)
    (home / "data").mkdir(parents=True)
    for name in DATASETS:
        write_rows(home / "data" / f"{name}.jsonl", questions(name))
    (home / "pool.toml").write_text(pool_text(server.url))
    place.does(*COLLECT)
    place.does(*TRAIN)
    return place
