"""The file of a log: JSON lines, one episode a line.

In: a file that a server or `hierrouter off-policy --keep` wrote. Out: `Episode`s, the first bad
line named by its number; and back. Not covered: what a line holds, see `log_line`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hierrouter.interchange.files import write_json_lines
from hierrouter.json_lines import json_lines
from hierrouter.offpolicy.log_line import Episode, LogShape, episode_of, line_of
from hierrouter_cache.errors import InputError


def read_log(
    path: Path, shape: LogShape, on_left_out: Callable[[str], None] = lambda said: None
) -> list[Episode]:
    """Every episode of a log.

    Args:
        on_left_out: told how many lines of a server are none: questions without an answer, and
            routes that went on with another model than the policy chose.

    Raises:
        InputError: the file cannot be read or has no episodes, its first bad line, or lines with
            texts beside lines without.
    """
    episodes, left_out = [], 0
    for number, line in json_lines(path):
        if _is_episode(line):
            episodes.append(episode_of(line, f"{path}:{number}", shape))
        else:
            left_out += 1
    if left_out:
        on_left_out(
            f"{left_out} lines are left out: a model gave no answer; what the router would earn on "
            "such questions is not in the estimate"
        )
    if not episodes:
        raise InputError(f"a log without episodes: {path}; one JSON object a line")
    texts = [episode.question is not None for episode in episodes]
    if any(texts) and not all(texts):
        bare = episodes[texts.index(False)]
        raise InputError(
            f"no question: {bare.where}; other lines have one, give it in every line or in none"
        )
    return episodes


def _is_episode(line: Mapping[str, Any]) -> bool:
    """Whether the policy's own choices led to the end, as far as a server says."""
    steps = line.get("steps")
    made = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return line.get("status") in (None, 200) and not any(step.get("instead_of") for step in made)


def has_texts(path: Path) -> bool:
    """Whether the first episode of a log carries its question.

    Raises:
        InputError: the file cannot be read, or its first line is no object.
    """
    episodes = (line for _, line in json_lines(path) if _is_episode(line))
    return any(line.get("question") is not None for line in islice(episodes, 1))


def write_log(episodes: Iterable[Episode], models: Sequence[str], path: Path) -> None:
    """Write a log that `read_log` reads, whole or not at all.

    Raises:
        WorldError: the disk is full or failed.
    """
    write_json_lines((line_of(episode, models) for episode in episodes), path)
