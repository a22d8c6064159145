"""A cache goes out as JSON lines and comes back the same."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hierrouter.interchange.jsonl import export_jsonl, import_jsonl
from hierrouter.trees import open_tree
from hierrouter_cache.errors import CacheLocked, InputError, NoCache
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.schema import IDENTITY
from hierrouter_cache.writer import collector_lock
from tests.hierrouter.interchange.examples import answers_of, keys, single_answers, stored

Line = dict[str, Any]


@pytest.fixture
def exported(testbed_cache: Path, tmp_path: Path) -> Path:
    open_tree(testbed_cache)  # so that there are scores
    file = tmp_path / "cache.jsonl"
    export_jsonl(testbed_cache, file)
    return file


@pytest.fixture
def small(tmp_path: Path) -> Path:
    stored(answers_of(single_answers(2), tmp_path), tmp_path / "small")
    export_jsonl(tmp_path / "small", tmp_path / "small.jsonl")
    return tmp_path / "small.jsonl"


def edited(file: Path, change: Callable[[list[Line]], object]) -> Path:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    change(lines)
    other = file.with_name("edited.jsonl")
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return other


def test_a_collected_cache_comes_back_with_the_same_keys(
    testbed_cache: Path, exported: Path, tmp_path: Path
) -> None:
    merge = import_jsonl(exported, tmp_path / "back")
    assert merge.present.total() == 0
    for kind, names in IDENTITY.items():
        for name in names:
            assert keys(tmp_path / "back", kind, name) == keys(testbed_cache, kind, name), kind
    before, after = CacheReader(testbed_cache), CacheReader(tmp_path / "back")
    assert after.latest_plan() == before.latest_plan()
    assert after.responses() == before.responses()
    assert open_tree(tmp_path / "back").fingerprint == open_tree(testbed_cache).fingerprint


def test_a_second_export_has_the_same_bytes(exported: Path, tmp_path: Path) -> None:
    import_jsonl(exported, tmp_path / "back")
    export_jsonl(tmp_path / "back", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == exported.read_bytes()


def test_importing_twice_adds_nothing(exported: Path, tmp_path: Path) -> None:
    import_jsonl(exported, tmp_path / "back")
    before = sorted((tmp_path / "back" / "parts").iterdir())
    assert import_jsonl(exported, tmp_path / "back").added.total() == 0
    assert sorted((tmp_path / "back" / "parts").iterdir()) == before


def test_a_cache_with_something_else_keeps_it(
    exported: Path, small: Path, tmp_path: Path, testbed_cache: Path
) -> None:
    import_jsonl(exported, tmp_path / "both")
    import_jsonl(small, tmp_path / "both")
    assert set(keys(testbed_cache)) < set(keys(tmp_path / "both"))
    assert CacheReader(tmp_path / "both").latest_plan() == (
        CacheReader(tmp_path / "small").latest_plan()
    )
    import_jsonl(exported, tmp_path / "both")  # the plan that was imported last is the latest
    assert open_tree(tmp_path / "both").fingerprint == open_tree(testbed_cache).fingerprint


def test_the_response_that_was_there_stays(small: Path, tmp_path: Path) -> None:
    rows = single_answers(2)
    rows[0]["response"] = "another one"
    stored(answers_of(rows, tmp_path), tmp_path / "other")
    merge = import_jsonl(small, tmp_path / "other")
    assert merge.different["calls"] == 2  # at the first hop, and after the other model
    assert merge.added["calls"] == 2  # what stands below the response that is not there
    assert "another one" in CacheReader(tmp_path / "other").responses().values()


def first(kind: str) -> Callable[[list[Line]], Line]:
    return lambda lines: next(line for line in lines if line["kind"] == kind)


def change(kind: str, /, **values: object) -> Callable[[list[Line]], object]:
    return lambda lines: first(kind)(lines).update(values)


BAD = {
    "response": (change("call", response="forged"), "outcome is not that of the line's content"),
    "context": (change("call", context="0" * 32), "key is not that of"),
    "question": (change("query", question="forged"), "query is not that of"),
    "answers": (change("query", answers=["forged"]), "query is not that of"),
    "references": (change("query", references="0"), "references is not that of"),
    "score": (change("score", value=1.5), "value is not that of"),
    "plan": (change("plan", queries=["0"]), "plan is not that of"),
    "pool": (change("plan", pool="{}"), "pool is not that of"),
    "NaN": (change("score", value=float("nan")), "value must be double, got nan"),
    "text": (change("call", tokens_in="5"), "tokens_in must be int32, got '5'"),
    "bool": (change("call", tokens_in=True), "tokens_in must be int32, got True"),
    "int64": (change("call", tokens_out=2**31), "tokens_out must be int32"),
    "negative": (change("call", tokens_out=-1), "tokens_out must be int32"),
    "null": (change("call", response=None), "response must be string"),
    "list": (change("query", answers=[1]), "answers must be list"),
    "surrogate": (change("call", prompt="\ud800"), "prompt must be string"),
    "kind": (change("call", kind="cull"), "unknown kind 'cull'"),
    "column": (lambda lines: first("call")(lines).pop("key"), "key is missing"),
    "torn": (lambda lines: lines.pop(), "0 plans where the header says 1"),
    "doubled": (lambda lines: lines.append(lines[-1]), "2 plans where the header says 1"),
    "header": (lambda lines: lines.pop(0), "no header"),
    "format": (lambda lines: lines[0].update(format=99), "format 99, this version reads 1"),
    "count": (lambda lines: lines[0].update(calls="many"), "calls must be a count"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_was_changed_is_refused_and_nothing_is_written(small: Path, name: str) -> None:
    spoil, message = BAD[name]
    file = edited(small, spoil)
    root = small.parent / "cache"
    with pytest.raises(InputError) as error:
        import_jsonl(file, root)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)
    assert not root.exists()


def test_the_number_of_the_line_is_named(small: Path) -> None:
    file = edited(small, lambda lines: lines[4].update(response="forged"))
    with pytest.raises(InputError, match=r"edited\.jsonl:5;"):
        import_jsonl(file, small.parent / "cache")


def test_a_bad_file_leaves_a_cache_as_it_was(small: Path, testbed_cache: Path) -> None:
    def content() -> str:
        parts = sorted((testbed_cache / "parts").iterdir())
        return hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()

    before = content()
    with pytest.raises(InputError):
        import_jsonl(edited(small, change("plan", pool="{}")), testbed_cache)
    assert content() == before


def test_nothing_is_imported_while_a_collector_works(small: Path, tmp_path: Path) -> None:
    with collector_lock(tmp_path / "small"), pytest.raises(CacheLocked):
        import_jsonl(small, tmp_path / "small")


def test_an_export_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoCache):
        export_jsonl(tmp_path / "none", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_an_import_that_was_interrupted_is_finished_by_the_next(
    exported: Path, testbed_cache: Path, tmp_path: Path
) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "import":
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            import_jsonl(exported, tmp_path / "back", stop)
    import_jsonl(exported, tmp_path / "back")
    assert keys(tmp_path / "back") == keys(testbed_cache)
    assert open_tree(tmp_path / "back").fingerprint == open_tree(testbed_cache).fingerprint
