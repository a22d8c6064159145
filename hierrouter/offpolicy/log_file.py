"""The file of a log: JSON lines, one episode a line.

In: a file that a server or `hierrouter off-policy --keep` wrote. Out: `Episode`s, the first bad
line named by its number; and back. Not covered: what a line holds, see `log_line`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from hierrouter.interchange.files import write_json_lines
from hierrouter.json_lines import json_lines
from hierrouter.offpolicy.log_line import Episode, LogShape, episode_of, line_of
from hierrouter_cache.errors import InputError


def read_log(path: Path, shape: LogShape) -> list[Episode]:
    """Every episode of a log.

    Raises:
        InputError: the file cannot be read or has no episodes, its first bad line, or lines with
            texts beside lines without.
    """
    episodes = [episode_of(line, f"{path}:{number}", shape) for number, line in json_lines(path)]
    if not episodes:
        raise InputError(f"a log without episodes: {path}; one JSON object a line")
    texts = [episode.question is not None for episode in episodes]
    if any(texts) and not all(texts):
        bare = episodes[texts.index(False)]
        raise InputError(
            f"no question: {bare.where}; other lines have one, give it in every line or in none"
        )
    return episodes


def has_texts(path: Path) -> bool:
    """Whether the first episode of a log carries its question.

    Raises:
        InputError: the file cannot be read, or its first line is no object.
    """
    return any(line.get("question") is not None for _, line in islice(json_lines(path), 1))


def write_log(episodes: Iterable[Episode], models: Sequence[str], path: Path) -> None:
    """Write a log that `read_log` reads, whole or not at all.

    Raises:
        WorldError: the disk is full or failed.
    """
    write_json_lines((line_of(episode, models) for episode in episodes), path)
