"""`hierrouter cache info`, `compact` and `repair`."""

from pathlib import Path

from hierrouter.replay.inspection import cache_info
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.cache import rows
from tests.cli.conftest import Place
from tests.holes import drop_five_leaves_of_three_queries


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
