"""`hierrouter cache info`, `compact`, `repair` and `sql`."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest

from hierrouter.replay.inspection import cache_info
from hierrouter.tables import COLUMN_GAP, MIN_WRAPPED_WIDTH, rows_as_text
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.cache import rows
from tests.cli.conftest import Place
from tests.holes import drop_five_leaves_of_three_queries
from tests.terminal import on_terminal


def test_queries_with_holes_are_named_and_a_part_of_the_pool_can_be_whole(bare: Place) -> None:
    drop_five_leaves_of_three_queries(bare / "caches/default")
    lacking = cache_info(bare / "caches/default", incomplete=True)["incomplete"]
    assert bare.tells("cache info --incomplete")["incomplete"] == lacking
    first, *_ = bare.does("cache info --incomplete").stdout.splitlines()[-3:]
    nodes = lacking[0]["missing_nodes"]
    assert first == f"{lacking[0]['query']}: {nodes} nodes, 0 direct calls missing"
    assert "incomplete" not in bare.does("cache info").stdout
    info = bare.tells("cache info --pool testbed --models calc,text --hops 1")
    assert (info["models"], info["complete_queries"]) == (["calc", "text"], 200)
    assert "did you mean calc" in bare.refuses("cache info --models calcc")


def fill(root: Path) -> Path:
    writer = PartWriter(root)
    return [writer.append("calls", rows.calls(("m", f"c{n}", "r"))) for n in range(3)][1]


def test_cache_compact_says_what_it_did_in_one_line(place: Place) -> None:
    fill(place / "c")
    done = place.does("cache compact --cache c")
    assert done.stdout.startswith("3 parts -> 1, ")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    assert len(CacheReader(place / "c").responses()) == 3


def test_cache_compact_refuses_what_it_cannot_do(place: Place) -> None:
    assert "no cache" in place.refuses("cache compact --cache nowhere", code=3)
    part = fill(place / "c")
    with collector_lock(place / "c"):
        assert "another collector" in place.refuses("cache compact --cache c", code=3)
    part.write_bytes(b"")
    assert part.name in place.refuses("cache compact --cache c", code=3)


def test_a_last_plan_that_is_gone_or_renamed_is_named_by_every_command(place: Place) -> None:
    for limit in (2, 3):
        place.does(f"collect --datasets arith --cache c --limit {limit}")
    first, last = sorted((place / "c/parts").glob("plans-*"))
    aside = last.rename(place / "aside")
    for command in ("verify", "cache info", "report"):
        done = place.asks(f"{command} --cache c")
        assert (done.returncode, last.name in done.stderr) == (3, True)
    aside.rename(last)
    assert "chain" in place.does("verify --cache c").stdout
    later = first.rename(first.with_name(first.name.replace("plans-00000", "plans-00009")))
    damaged = place.asks("verify --cache c")
    assert damaged.returncode == 3
    assert f"{later.name}: renamed: it was written as {first.name}" in damaged.stderr
    assert f"{first.name}: missing" in damaged.stderr


def test_a_damaged_last_plan_is_asked_for_and_not_replaced_by_an_older_one(place: Place) -> None:
    collect = "collect --datasets arith --cache c --limit"
    for limit in (2, 3):
        place.does(f"{collect} {limit}")
    plan = max((place / "c/parts").glob("plans-*"))
    data = bytearray(plan.read_bytes())
    data[len(data) // 2] ^= 1
    plan.write_bytes(data)
    max((place / "c/parts").glob("scores-*")).unlink()
    repaired = place.does("cache repair --cache c")
    assert f"the last plan was given up: {plan.name}; collect with" in repaired.stdout
    assert "1 damaged parts moved, 1 missing ones given up" in repaired.stdout
    for command in ("cache info", "report"):
        assert plan.name in place.refuses(f"{command} --cache c", code=3)
    again = place.does(f"{collect} 3")
    assert "collected: 45 nodes" in again.stderr
    assert " 0 calls made" in again.stderr
    assert place.tells("cache info --cache c")["queries"] == 3


EVERY_NODE = "SELECT id, route, prompt, response, cost FROM nodes ORDER BY id, route, cost"


def test_no_row_and_no_cell_of_sql_is_cut(bare: Place) -> None:
    expected = bare.asks_cache("", EVERY_NODE)
    assert len(expected) > 1_000
    assert max(len(row["prompt"]) for row in expected) > 80
    done = bare.does("cache sql", EVERY_NODE)
    header, rule, *lines = done.stdout.splitlines()
    assert header.split() == ["id", "route", "prompt", "response", "cost"]
    assert set(rule) == {"-", " "}
    assert len(lines) == len(expected)
    for line, row in zip(lines, expected, strict=True):
        for name in ("id", "route", "prompt", "response"):
            assert " ".join(row[name].split()) in line
        assert float(line.split()[-1]) == pytest.approx(row["cost"], rel=1e-11)
    assert done.stderr == ""
    told = bare.does("cache sql --format csv", EVERY_NODE).stdout
    for row, expected_row in zip(csv.DictReader(io.StringIO(told)), expected, strict=True):
        assert row["prompt"].removeprefix("'") == expected_row["prompt"]


def test_values_in_lists_are_json(bare: Place) -> None:
    question = "SELECT list(value) FROM (VALUES ('NaN'::DOUBLE), (2)) AS rows(value)"
    assert bare.asks_cache("", question) == [{'list("value")': [None, 2.0]}]
    nested = "SELECT {'a': sum(v)} AS s FROM (VALUES (1), (2)) AS rows(v)"
    assert bare.asks_cache("", nested) == [{"s": {"a": 3}}]


LONG_TEXT = "what is the capital of kanen, and who told you so? " * 9 + "end"
ROWS = pa.table(
    {
        "id": ["one", "two"],
        "prompt": [LONG_TEXT, "first line\n  second line"],
        "response": ["x" * 300, "äöü" * 3],
        "cost": [0.1 + 0.2, 123456.789],
        "count": pa.array([7, None], pa.int64()),
    }
)


def letters(text: str) -> str:
    """All of it but white space, in which layouts differ."""
    return "".join(text.split())


@pytest.mark.parametrize("width", [400, 100, 60, 30, 12])
def test_a_terminal_of_any_width_shows_all(width: int) -> None:
    text = rows_as_text(ROWS, width)
    assert max(map(len, text.splitlines())) <= width
    columns = [ROWS[name].to_pylist() for name in ("id", "prompt", "response")]
    shown = letters(text)
    for value in (value for column in columns for value in column):
        # Of a text that is broken into lines each piece is there, in a table between other cells.
        pieces = [value[start : start + 4] for start in range(0, len(value) - 4, 4)]
        assert all(letters(piece) in shown or width < 100 for piece in pieces)
        assert not set(letters(value)) - set(shown)
    assert shown.count("x") >= 300
    assert "0.3" in shown and "123456.789" in shown


def test_too_many_columns_become_a_list() -> None:
    text = rows_as_text(ROWS, MIN_WRAPPED_WIDTH * 2 + COLUMN_GAP)
    first, second = text.split("row 2\n")
    assert first.startswith("row 1\nid        one\nprompt    what is the capital")
    assert letters(LONG_TEXT) in letters(first)
    assert "second line" in second
    assert "count\n" in second  # a value that is missing


def test_a_wide_terminal_and_a_pipe_have_one_line_a_row() -> None:
    plain = ROWS.select(["id", "cost", "count"])
    expected = [
        "id         cost  count",
        "---  ----------  -----",
        "one         0.3      7",
        "two  123456.789",
    ]
    assert rows_as_text(plain, 80) == rows_as_text(plain, None)
    assert rows_as_text(plain, 80).splitlines() == expected
    piped = rows_as_text(ROWS, None).splitlines()
    assert len(piped) == 4
    assert "first line second line" in piped[-1]
    assert LONG_TEXT in piped[2]


def test_no_rows_are_a_header() -> None:
    for width in (None, 80, 3):
        assert "prompt" in rows_as_text(ROWS.slice(0, 0), width) or width == 3


def test_text_of_others_steers_no_terminal() -> None:
    hostile = pa.table({"\x1b[31m": ["\x1b]0;title\x07", "[red]x[/red]"]})
    for width in (None, 80, 10):
        text = rows_as_text(hostile, width)
        assert "\x1b" not in text and "\x07" not in text
        assert "[red]" in text


def test_json_of_sql_is_an_object_a_line(bare: Place) -> None:
    done = bare.does("cache sql --format json", "SELECT id FROM queries LIMIT 2")
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 2


def test_sql_fits_the_terminal_that_it_is_shown_on(bare: Place) -> None:
    question = "SELECT id, prompt, response FROM nodes WHERE hop = 2 ORDER BY id, route LIMIT 3"
    expected = bare.asks_cache("", question)
    for width in (120, 40):
        shown = on_terminal("cache", "sql", question, cwd=bare.folder, width=width)
        assert max(map(len, shown.splitlines())) <= width
        for row in expected:
            assert set(row["prompt"].split()) <= set(shown.split())
