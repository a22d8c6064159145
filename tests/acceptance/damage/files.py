"""Pools, price files and what else lies in the folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from hierrouter.questions.testbed import model_path
from tests.acceptance.place import Place

LOCAL = """[[models]]
name = "a"
model = "{model}"
base_rate = 1
"""


def write(place: Place, name: str, text: str) -> None:
    (place.home / name).write_text(text)


def folder(place: Place, name: str) -> None:
    (place.home / name).mkdir()


def pool(place: Place, name: str, old: str, new: str, encoding: str = "utf-8") -> None:
    """A file like pool.toml, with the first `old` replaced."""
    text = (place.home / "pool.toml").read_text()
    assert old in text
    (place.home / name).write_text(text.replace(old, new, 1), encoding)


def pool_without_models(place: Place, name: str) -> None:
    text = (place.home / "pool.toml").read_text()
    (place.home / name).write_text(text[: text.index("[[models]]")])


def local_pool(place: Place, name: str, model: str) -> None:
    """A pool of one model that this machine has to run."""
    (place.home / name).write_text(LOCAL.format(model=model))


def nested(place: Place, name: str) -> None:
    """Lists in lists, deeper than a parser's stack."""
    (place.home / name).write_text("models = " + "[" * 100_000)


def model_with_code(place: Place, name: str) -> None:
    """A saved model that brings Python of its own."""
    folder = Path(shutil.copytree(model_path("calc"), place.home / name))
    config = json.loads((folder / "config.json").read_text()) | {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(place.home / 'pwned')!r}, 'w')")


def unwritable(place: Place, name: str) -> None:
    """A folder that nobody may write into; root may anywhere but in /sys."""
    if os.geteuid() == 0:
        (place.home / name).symlink_to("/sys/kernel")
    else:
        (place.home / name).mkdir(mode=0o555)
