"""Files that are no table of ours are refused in one line."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hierrouter.collection.files import export_jsonl, import_jsonl, read_header
from hierrouter.collection.importers import guess_format
from hierrouter.collection.scheduler import fill_cache
from hierrouter.collection.tables import gather, read_rows, read_table
from hierrouter.engines.generator import Call, Failure, failures_table
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import CacheLocked, InputError
from hierrouter_cache.keys import next_context, plan_key
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.maintenance import compact
from hierrouter_cache.parts import CALLS_SCHEMA, IDENTITY_COLUMNS
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.engines import Scripted
from tests.hierrouter.collection.examples import (
    POOL,
    Rows,
    answers_of,
    keys,
    save,
    single_answers,
    stored,
    sums,
)

Spoil = Callable[[Rows], object]

BAD_ROWS: dict[str, tuple[Spoil, str]] = {
    "no tokens_out": (lambda rows: [row.pop("tokens_out") for row in rows], "tokens_out is miss"),
    "no model": (lambda rows: rows[3].update(model=" "), "model is blank: {file}: row 4"),
    "NaN tokens": (lambda rows: rows[0].update(tokens_in=float("nan")), "finite number, got nan"),
    "null tokens": (lambda rows: rows[0].update(tokens_in=None), "whole number from 0"),
    "negative tokens": (lambda rows: rows[1].update(tokens_in=-1), "got -1"),
    "half a token": (lambda rows: rows[1].update(tokens_out=0.5), "got 0.5"),
    "too many tokens": (lambda rows: rows[1].update(tokens_out=2**31), "got 2147483648"),
    "tokens in words": (lambda rows: rows[1].update(tokens_out="few"), "got 'few'"),
    "score of 2": (lambda rows: rows[2].update(score=2.0), "score must be from 0 to 1"),
    "no response": (lambda rows: rows[2].update(response=None), "response must be a text"),
    "a list": (lambda rows: rows[2].update(question=["a"]), "question must be a text"),
    "unknown split": (lambda rows: rows[2].update(split="tset"), "did you mean test?"),
    "a hop too deep": (
        lambda rows: rows[1].update(hop=10**6) or rows[0].update(hop=0),
        "hop 1000001 is beyond the limit",
    ),
    "hops from 2": (lambda rows: [row.update(hop=2) for row in rows], "hop must start at 0 or 1"),
    "no first hop": (
        lambda rows: rows[0].update(hop=0) or rows[1].update(hop=1),
        "hop 2 without its earlier hop",
    ),
    "another path": (lambda rows: rows[0].update(path="a>b"), "path a>b does not end at"),
    "twice": (
        lambda rows: rows.append({**rows[0], "response": "5"}),
        "2 answers of lab/tiny 1b to one query, sums/q0: {file}: row 1 and {file}: row 21; give "
        "different runs of it different ids, or say --draw all, --draw first or --draw mean",
    ),
    "draws": (
        lambda rows: [row.update(draw=row["model"] == "lab/large 10b") for row in rows],
        "draw must be a text, got",
    ),
    "score in percent": (
        lambda rows: rows[2].update(score=85),
        "score must be from 0 to 1, got 85: {file}: row 3; divide all of them by 100",
    ),
    "negative score": (
        lambda rows: rows[2].update(score=-1),
        "got -1: {file}: row 3; leave the cell empty if the answer has none",
    ),
    "two questions": (lambda rows: rows[1].update(question="?"), "query q0 has two questions"),
    "test is seen": (
        lambda rows: [
            row.update(question="Same?", split="test" if row["query_id"] == "q0" else "train")
            for row in rows
        ],
        "question in both train and test",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_table_is_one_line(tmp_path: Path, spoil: Spoil, message: str) -> None:
    rows = single_answers()
    spoil(rows)
    file = save(rows, tmp_path / "sums.jsonl")
    with pytest.raises(InputError) as error:
        gather(read_table(file), 42)
    assert message.format(file=file) in str(error.value)
    assert "\n" not in str(error.value)


BAD_FILES = {
    "empty.parquet": (b"", "file is empty"),
    "text.parquet": (b"no parquet at all", "not readable as parquet"),
    "binary.csv": (b"a,b\n\xff\xfe,1\n", "not readable as csv"),
    "ragged.csv": (b"a,b\n1,2,3\n", "not readable as csv"),
    "long.csv": (b"a,b\n1,2,3\n", r"long.csv: Expected 2 columns, got 3|Row #2: Exp"),
    "latin.csv": (b"a,b\n\xe9,1\n", "not UTF-8"),
    "wide.csv": ("a,b\n1,2\n".encode("utf-16"), "not UTF-8 but UTF-16"),
    "semicolon.csv": (b"a;b\n1,5;2\n", "separator looks like ;"),
    "tab.csv": (b"a\tb\n1\t2\n", "separator looks like a tab"),
    "twice.csv": (b"a,b,a\n1,2,3\n", "column 'a' stands twice"),
    "headless.jsonl": (b'{"kind": "query", "query_id": "q"}\n', "header line .* is gone"),
    "all": (b"{}\n", "a cache of ours: --format jsonl"),
    "header.csv": (b"query_id,question\n", "no rows"),
    "torn.jsonl": (b'{"query_id": 1}\n{"a": ', "torn.jsonl:2"),
    "array.jsonl": (b"[1, 2]\n", "not a JSON object"),
    "deep.jsonl": (b"[" * 100_000, "not JSON"),
    "latin.jsonl": (b'{"a": "\xe9"}\n', "not UTF-8"),
    "frame.pkl": (b"\x80\x04.", "a pickle can run any code"),
    "frame.xlsx": (b"PK", "unknown kind of file"),
    "other.jsonl": (b'{"name": "x"}\n', "columns of no known format"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str) -> None:
    content, message = BAD_FILES[name]
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        guess_format(file)
        list(read_rows(file))
    assert "\n" not in str(error.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a regular file"):
        list(read_rows(tmp_path))


def test_every_kind_of_file_says_the_same(tmp_path: Path) -> None:
    first, *others = (
        [
            (answer.query, answer.path, answer.response, answer.tokens_in, answer.score)
            for answer in read_table(save(single_answers(), tmp_path / f"sums.{kind}"))
        ]
        for kind in ("parquet", "csv", "jsonl")
    )
    assert len(first) == 20
    assert others == [first, first]


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    rows = single_answers(2)
    for row in rows:
        row["question"] += "\ud800"
    rows[0]["response"] = "\udfff"
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = next(iter(read_table(file)))
    assert first.query.question.endswith("\ufffd")
    assert first.response == "\ufffd"


def test_a_table_may_be_called_by_any_bytes(tmp_path: Path) -> None:
    """Its name is that of the dataset; half a character of it can be in no key."""
    file = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    rows = [{**row, "dataset": None} for row in single_answers(3)]
    query = gather(read_table(save(rows, file)), 42).queries[0]
    assert query.dataset == "caf\N{REPLACEMENT CHARACTER}"
    assert query.key


def test_folds_are_cut_by_question_unless_the_table_says(tmp_path: Path) -> None:
    cut = [query.split for query in answers_of(single_answers(), tmp_path).queries]
    assert sorted(set(cut)) == ["test", "train", "validation"]
    rows = [
        {**row, "split": "test" if row["query_id"] == "q3" else "train"} for row in single_answers()
    ]
    said = answers_of(rows, tmp_path).queries
    assert [query.id for query in said if query.split == "test"] == ["q3"]


Line = dict[str, Any]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with scores, of more rows than are written between two reports of progress."""
    root = tmp_path_factory.mktemp("collected")
    fill_cache(POOL, sums(80), root, engines=Scripted())
    OpenTree(cache=root).run()
    return root


@pytest.fixture(scope="module")
def exported(collected: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("exported") / "cache.jsonl"
    export_jsonl(collected, file)
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


def test_a_collected_cache_comes_back(collected: Path, exported: Path, tmp_path: Path) -> None:
    back = tmp_path / "back"
    assert import_jsonl(exported, back).present.total() == 0
    for kind, names in IDENTITY_COLUMNS.items():
        for name in names:
            assert keys(back, kind, name) == keys(collected, kind, name), kind
    before, after = CacheReader(collected), CacheReader(back)
    assert after.latest_plan() == before.latest_plan()
    assert after.responses() == before.responses()
    assert OpenTree(cache=back).run().fingerprint == OpenTree(cache=collected).run().fingerprint
    export_jsonl(back, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == exported.read_bytes()
    parts = set((back / "parts").iterdir())
    assert import_jsonl(exported, back).added.total() == 0
    assert set((back / "parts").iterdir()) == parts


def test_a_cache_with_something_else_keeps_it(
    exported: Path, small: Path, tmp_path: Path, collected: Path
) -> None:
    import_jsonl(exported, tmp_path / "both")
    import_jsonl(small, tmp_path / "both")
    assert set(keys(collected)) < set(keys(tmp_path / "both"))
    assert CacheReader(tmp_path / "both").latest_plan() == (
        CacheReader(tmp_path / "small").latest_plan()
    )
    import_jsonl(exported, tmp_path / "both")  # the plan that was imported last is the latest
    assert (
        OpenTree(cache=tmp_path / "both").run().fingerprint
        == OpenTree(cache=collected).run().fingerprint
    )


def test_the_response_that_was_there_stays(small: Path, tmp_path: Path) -> None:
    """Two machines may answer one call differently; that is what a common key then holds."""
    call = CacheReader(tmp_path / "small").sql("SELECT * FROM calls").to_pylist()[0]
    other = {**call, "response": "other", "outcome": next_context(call["context"], "other")}
    PartWriter(tmp_path / "here").append(
        "calls", pa.Table.from_pylist([other], schema=CALLS_SCHEMA)
    )
    merge = import_jsonl(small, tmp_path / "here")
    assert (merge.present["calls"], merge.different["calls"]) == (1, 1)
    assert CacheReader(tmp_path / "here").responses()[call["key"]] == "other"


def test_only_the_last_status_of_a_failed_call_travels(small: Path, tmp_path: Path) -> None:
    root = tmp_path / "small"
    call = CacheReader(root).sql("SELECT key, step, context, model FROM calls").to_pylist()[0]
    failed = Call(call["key"], call["step"], call["context"], "prompt")
    for status in ("filtered", "error"):
        rows = failures_table(call["model"], [(failed, Failure(status, "why"))], 1)
        PartWriter(root).append("failures", rows)
    assert export_jsonl(root, tmp_path / "failed.jsonl")["failures"] == 1
    import_jsonl(tmp_path / "failed.jsonl", tmp_path / "back")
    assert CacheReader(tmp_path / "back").failures() == {call["key"]: "error"}


def test_plans_that_are_merged_meanwhile_are_exported(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    stored(answers_of(single_answers(200), tmp_path), root)
    compact(root)
    PartWriter(root).append("plans", CacheReader(root).sql("SELECT * FROM plans"))
    fewer: list[int] = []

    def compact_once(what: str, done: int, total: int) -> None:
        if not fewer:
            result = compact(root)
            fewer.append(result.parts_before - result.parts_after)

    assert export_jsonl(root, tmp_path / "all.jsonl", compact_once)["plans"] == 1
    assert fewer == [1]
    assert import_jsonl(tmp_path / "all.jsonl", tmp_path / "back").another_plan


def first(kind: str) -> Callable[[list[Line]], Line]:
    return lambda lines: next(line for line in lines if line["kind"] == kind)


def change(kind: str, /, **values: object) -> Callable[[list[Line]], object]:
    return lambda lines: first(kind)(lines).update(values)


def hops_in_words(lines: list[Line]) -> None:
    """The plan with a pool that no file could hold, under the key that is right for it."""
    lines[0].pop("sha256")
    plan = first("plan")(lines)
    stored = json.loads(plan["pool"])
    stored["pool"]["hops"] = "2"
    plan["pool"] = json.dumps(stored)
    plan["plan"] = plan_key(plan["pool"], plan["queries"])


BAD = {
    "response": (change("call", response="forged"), "outcome is not that of the row's content"),
    "question": (change("query", question="forged"), "query is not that of"),
    "score": (change("score", value=1.5), "value must be from 0 to 1, got 1.5"),
    "plan": (change("plan", queries=["0"]), "plan is not that of"),
    "NaN": (change("score", value=float("nan")), "value must be double, got nan"),
    "no float": (change("score", value=10**400), "value must be double"),
    "text": (change("call", tokens_in="5"), "tokens_in must be int32, got '5'"),
    "surrogate": (change("call", prompt="\ud800"), "prompt must be string"),
    "kind": (change("call", kind="cull"), "unknown kind 'cull'"),
    "column": (lambda lines: first("call")(lines).pop("key"), "key is missing"),
    "line": (lambda lines: lines[4].update(response="forged"), "edited.jsonl:5;"),
    "torn": (lambda lines: lines.pop(), "0 plans where the header says 1"),
    "doubled": (lambda lines: lines.append(lines[-1]), "2 plans where the header says 1"),
    "header": (lambda lines: lines.pop(0), "no header"),
    "format": (lambda lines: lines[0].update(format=99), "format 99, this version reads 1"),
    "digest": (lambda lines: lines[0].update(sha256=1), "sha256 must be a text"),
    "count": (lambda lines: lines[0].update(calls="many"), "calls must be a count"),
    "hops in words": (hops_in_words, "hops must be an integer, got '2'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_was_changed_is_refused_and_nothing_is_written(
    small: Path, collected: Path, name: str
) -> None:
    def content() -> list[bytes]:
        return [part.read_bytes() for part in sorted((collected / "parts").iterdir())]

    spoil, message = BAD[name]
    file, before = edited(small, spoil), content()
    for root in (collected, small.parent / "cache"):
        with pytest.raises(InputError) as error:
            import_jsonl(file, root)
        assert message in str(error.value)
        assert "\n" not in str(error.value)
        assert str(file) in str(error.value)
    assert content() == before
    assert not root.exists()


FORGED = {
    "value": change("score", value=0.25),
    "tokens": change("call", tokens_out=1),
    "prompt": change("call", prompt="forged"),
    "model": change("call", model="forged"),
    "order": lambda lines: lines.insert(1, lines.pop(2)),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_no_key_covers_is_covered_by_the_digest(small: Path, name: str) -> None:
    file = edited(small, FORGED[name])
    with pytest.raises(InputError, match="edited after the export"):
        import_jsonl(file, small.parent / "cache")
    assert not (small.parent / "cache").exists()
    import_jsonl(edited(file, lambda lines: lines[0].pop("sha256")), small.parent / "cache")


def test_the_digest_is_that_of_the_lines_below_the_header(small: Path) -> None:
    header, rest = small.read_bytes().split(b"\n", 1)
    assert json.loads(header)["sha256"] == hashlib.sha256(rest).hexdigest()
    assert read_header(small)[1] == hashlib.sha256(rest).hexdigest()
    small.write_bytes(small.read_bytes() + b"\n")
    with pytest.raises(InputError, match="edited after the export"):
        import_jsonl(small, small.parent / "cache")


def test_nothing_is_imported_while_a_collector_works(small: Path, tmp_path: Path) -> None:
    with collector_lock(tmp_path / "small"), pytest.raises(CacheLocked):
        import_jsonl(small, tmp_path / "small")


def test_an_import_that_was_interrupted_is_finished_by_the_next(
    exported: Path, collected: Path, tmp_path: Path
) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "import":
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            import_jsonl(exported, tmp_path / "back", stop)
    import_jsonl(exported, tmp_path / "back")
    assert keys(tmp_path / "back") == keys(collected)
    assert (
        OpenTree(cache=tmp_path / "back").run().fingerprint
        == OpenTree(cache=collected).run().fingerprint
    )
