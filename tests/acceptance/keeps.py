"""What must be true after a row, besides what is true after every row (`test_bad_inputs`).

Each check takes what happened first, and the further arguments that the row names.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from subprocess import CompletedProcess

from hierrouter_cache.chain import HASH_RECORD_FILE
from hierrouter_cache.reader import CacheReader
from tests.acceptance.place import ROWS, Place

Contents = Mapping[str, bytes | None]


@dataclass(frozen=True)
class Happened:
    """A row that has been run."""

    place: Place
    done: CompletedProcess[str]
    before: Contents  # of every file below the place, by its path; None for a folder
    after: Contents
    calls: int  # how often a model was asked


def contents(place: Place) -> Contents:
    """Every file and folder of a place and around it, by its path; links are not followed.

    Kept trees, and notes of what was hashed, are left out: commands write them anew for the copy.
    """
    around = place.home.parent
    return {
        str(path.relative_to(around)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else None
        for path in around.rglob("*")
        if path.name != HASH_RECORD_FILE and "/derived/trees" not in str(path)
    }


def parts(found: Contents) -> dict[str, bytes | None]:
    """The parts among some files, by name; one that was moved aside is still there."""
    return {
        PurePath(path).name: data
        for path, data in found.items()
        if path.endswith(".parquet") and PurePath(path).parent.name in ("parts", "quarantine")
    }


def matches(pattern: str, line: str) -> bool:
    """Whether a line is as in the table, where a star stands for anything."""
    return bool(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), line))


def tells(it: Happened, pattern: str) -> None:
    """A line on stderr says this."""
    assert any(matches(pattern, line) for line in it.done.stderr.splitlines()), it.done.stderr


def prints(it: Happened, text: str) -> None:
    """This stands on stdout."""
    assert text in it.done.stdout


def absent(it: Happened, *names: str) -> None:
    """Nothing of these names was made."""
    assert not [path for path in it.after if PurePath(path).name in names]


def calls(it: Happened, number: int) -> None:
    """The models were asked so often."""
    assert it.calls == number


def settled(it: Happened) -> None:
    """The same command once more asks no model, and knows of no change."""
    again = it.place.run(*it.done.args, cwd=it.place.home)
    assert again.returncode == 0
    assert " 0 calls made" in again.stderr
    assert "changed" not in again.stderr


def only_lost_calls(it: Happened) -> None:
    """The models were asked again for what was in the damaged part."""
    lost = re.search(r"-r(\d+)-", it.place.noted["damaged"])
    assert lost
    assert it.calls == int(lost[1])


def complete(it: Happened, queries: int = ROWS) -> None:
    """The tree of every query that was collected last is whole."""
    info = json.loads(it.place.does("cache", "info", "--format", "json"))
    assert (info["queries"], info["complete_queries"]) == (queries, queries)
    assert info["missing_nodes"] == 0


def once_a_key(it: Happened) -> None:
    """No call stands in two rows."""
    reader = CacheReader(it.place.cache)
    rows = reader.sql("SELECT count(*) AS n FROM calls_rows")["n"][0].as_py()
    assert rows == len(reader.responses())


def same_report(it: Happened) -> None:
    """A report says what it said before any damage, but for how long calls took that were lost."""
    shown = (it.place.does("report", "--format", "json"), it.place.noted["report"])
    now, before = ({**json.loads(one), "latency": None} for one in shown)
    assert now == before


def prints_same_report(it: Happened) -> None:
    """The command is a report, and says what it said before any damage."""
    assert it.done.stdout == it.place.noted["report"]


def quarantined(it: Happened) -> None:
    """The damaged part was moved aside, all others are where they were."""
    cache, damaged = "home/caches/default", it.place.noted["damaged"]
    new = it.after.keys() - it.before.keys()
    assert parts(it.before).keys() <= parts(it.after).keys()
    assert f"{cache}/parts/{damaged}" not in it.after
    assert {path for path in new if "/quarantine" in path or not path.startswith(cache)} == {
        f"{cache}/quarantine",
        f"{cache}/quarantine/{damaged}",
    }


def secret(it: Happened, text: str) -> None:
    """A secret stands where the user put it, and nowhere else."""
    assert text not in it.done.stdout + it.done.stderr
    new = {path: data for path, data in it.after.items() if it.before.get(path) != data}
    assert not any(text.encode() in data for data in new.values() if data)
