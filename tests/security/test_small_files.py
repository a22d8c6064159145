"""No small file takes the machine: a little memory and time, one line, the right exit code."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from hierrouter.runs.folders import read_record
from tests.conftest import environment
from tests.warm import Warm

MEASURED = """
import resource, sys
from hierrouter_cli.__main__ import main
before = resource.getrusage(resource.RUSAGE_SELF)
try:
    main()
finally:
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
    print(f"used {(now.ru_maxrss - before.ru_maxrss) // 1024} MB {cpu:.2f} s", file=sys.stderr)
"""
POOL = '[pool]\nhops = 1\n[[models]]\nname = "a"\nmodel = "testbed:calc"\nbase_rate = 1\n'
ROW = '{"question": "q", "answer": "a"}\n'
WEIGHTS = "run/policy.safetensors"
MB, SECONDS = 200, 5.0


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda place: (place / name).write_text(content)


def sparse(file: Path, size: int = 1 << 34) -> None:
    file.touch()
    os.truncate(file, size)


def huge_checkpoint(place: Path) -> None:
    """Two gigabytes of zeros that take no room on the disk, under a header that is right."""
    save_file({"x": torch.zeros(1)}, place / WEIGHTS)
    shape = {"dtype": "F32", "shape": [1 << 29], "data_offsets": [0, 1 << 31]}
    header = json.dumps({"x": shape, "__metadata__": {"hierrouter": "x"}}).encode()
    file = place / WEIGHTS
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(file, 8 + len(header) + (1 << 31))


def parquet(question: pa.Array, answer: pa.Array, **options: Any) -> Callable[[Path], object]:
    table = pa.table({"question": question, "answer": answer})
    return lambda place: pq.write_table(table, place / "d.parquet", compression="zstd", **options)


def looks(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda place: (
        (place / "runs").mkdir(),
        make((place / "run").rename(place / "runs/run") / "test_looks.jsonl"),
    )


def again(kind: pa.DataType) -> Callable[[Path], object]:
    """A hundred megabytes that are one value, and no text."""
    value = b'"%s"' % (b"x" * 999_997)
    return lambda at: parquet(pa.array([value] * 100, kind), pa.array(["1"] * 100))(at)


def saved_model(place: Path) -> Path:
    """A folder that a pool names, with weights and settings; returns its tokenizer's file."""
    (place / "m").mkdir()
    (place / "pool.toml").write_text(POOL.replace("testbed:calc", "./m"))
    (place / "m/config.json").write_text("{}")
    save_file({"x": torch.zeros(1)}, place / "m/model.safetensors")
    return place / "m/tokenizer.json"


def many_asked(place: Path) -> None:
    found = read_record(place / "run")
    assert found
    file = place / "run/run.json"
    file.write_text(file.read_text().replace('"asked"', f'"more": {"[" * 1000}, "asked"', 1))
    sparse(file)


COLLECT = "collect --dry-run --pool pool.toml --datasets d.jsonl"
PARQUET = COLLECT.replace("jsonl", "parquet")
TRAINED = "route --dry-run --checkpoint run x"
BRACKETS = f'{{"format": 2, "a": [{"[]," * 4_000_000}[]]}}'
HOSTILE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "dotted keys": (COLLECT, text("pool.toml", "a." * 50_000 + "a = 1\n"), "more than 64 parts"),
    "quoted keys": (
        COLLECT,
        text("pool.toml", '"a b".' * 10_000 + "a = 1\n"),
        "more than 64 parts",
    ),
    "quoted keys behind quotes": (
        COLLECT,
        text("pool.toml", 'a = { b = """#\n"""", ' + '"\u2028 \\"".' * 9_000 + "a = 1 }\n"),
        "more than 64 parts",
    ),
    "dotted tables": (COLLECT, text("pool.toml", f"[{'a.' * 9000}a]\n" * 9), "more than 64 parts"),
    "a pool without end": (COLLECT, lambda at: sparse(at / "pool.toml"), "larger than"),
    "a pool that is a pipe": (
        COLLECT,
        lambda at: ((at / "pool.toml").unlink(), os.mkfifo(at / "pool.toml")),
        "not a plain file",
    ),
    "deep lists": (COLLECT, text("pool.toml", "a = " + "[" * 200_000), "nested too deeply"),
    "a data set that is a pipe": (
        COLLECT,
        lambda at: ((at / "d.jsonl").unlink(), os.mkfifo(at / "d.jsonl")),
        "not a plain file: d.jsonl",
    ),
    "a data set that is a device": (
        COLLECT,
        lambda at: ((at / "d.jsonl").unlink(), (at / "d.jsonl").symlink_to("/dev/zero")),
        "not a plain file: d.jsonl",
    ),
    "a line without end": (COLLECT, lambda at: sparse(at / "d.jsonl"), "line longer than"),
    "deep JSON": (COLLECT, text("d.jsonl", "[" * 500_000), "not JSON"),
    "many brackets": (
        COLLECT,
        text("d.jsonl", "[" + "[]," * 2_000_000 + "[]]"),
        "more than 1,000,000 values",
    ),
    "an id of no width": (COLLECT, text("d.jsonl", ROW[:-2] + ', "id": "\u200b"}'), "id is empty"),
    "a question of no width": (COLLECT, text("d.jsonl", ROW.replace('"q"', '"\u200b "')), "empty"),
    "a text in many rows": (
        PARQUET,
        parquet(
            pa.DictionaryArray.from_arrays([0] * 20_000, ["x" * 999_999]), pa.array(["1"] * 20_000)
        ),
        "values of over 67,108,864 bytes",
    ),
    "bytes in many rows": (PARQUET, again(pa.binary(999_999)), "values of over 67,108,864 bytes"),
    "JSON in many rows": (PARQUET, again(pa.json_()), "values of over 67,108,864 bytes"),
    "a list in one row": (
        PARQUET,
        parquet(pa.array(["a"]), pa.array([["1"] * 2_000_000])),
        "more than 1,000,000 values a row",
    ),
    "a text that unpacks": (
        PARQUET,
        parquet(pa.array(["x" * 20_000_000]), pa.array(["1"])),
        "bytes that unpack to 20,0",
    ),
    "a long beginning in many rows": (
        PARQUET,
        parquet(
            pa.array([f"{'x' * 999_999}{number % 7}" for number in range(500)]),
            pa.array(["1"] * 500),
            use_dictionary=False,
            column_encoding={"question": "DELTA_BYTE_ARRAY"},
        ),
        "values of over 67,108,864 bytes",
    ),
    "brackets in a list": (
        COLLECT.replace("jsonl", "json"),
        text("d.json", "[" + "[]," * 900_000 + "[]]"),
        "not a JSON object: d.json: row 1",
    ),
    "JSON without end": (
        COLLECT.replace("jsonl", "json"),
        lambda at: sparse(at / "d.json"),
        "JSON of over 67,108,864 bytes",
    ),
    "a tokenizer without end": (COLLECT, lambda at: sparse(saved_model(at)), "larger than"),
    "a tokenizer that is a pipe": (COLLECT, lambda at: os.mkfifo(saved_model(at)), "not a plain"),
    "a great many shards": (f"{COLLECT} --shard 1/99999999999999", lambda at: None, "not a shard"),
    "a checkpoint of gigabytes": (TRAINED, huge_checkpoint, "more numbers than any router"),
    "a checkpoint that is a pipe": (
        TRAINED,
        lambda at: ((at / WEIGHTS).unlink(), os.mkfifo(at / WEIGHTS)),
        "not a plain file",
    ),
    "a record of brackets": (TRAINED, text("run/run.json", BRACKETS), "run.json is damaged"),
    "a live file of brackets": (TRAINED, text("run/live.json", BRACKETS), "live.json is damaged"),
    **{
        f"a log of looks by {make.__name__}": ("verify", looks(make), "jsonl: 1 lines are not as")
        for make in (os.mkfifo, os.mkdir, sparse)
    },
    "a record without end": (TRAINED, many_asked, "larger than"),
    "a live file without end": (TRAINED, lambda at: sparse(at / "run/live.json"), "larger than"),
    "alphas beyond measure": (
        "sweep-alpha --alphas 0,1e308,1e-300",
        lambda at: None,
        "alpha must be",
    ),
    "an encoder without a name": ("train --encoder ''", lambda at: None, "encoder"),
    "a mirror without a name": ("cache push ''", lambda at: None, "mirror"),
    "SQL that writes": (
        "cache sql 'WITH x AS (INSERT INTO nodes VALUES (1) RETURNING 1) SELECT * FROM x'",
        lambda at: None,
        "SQL refused",
    ),
}


@pytest.mark.parametrize(("words", "make", "said"), HOSTILE.values(), ids=HOSTILE)
def test_a_small_hostile_file_is_refused_at_once(
    words: str,
    make: Callable[[Path], object],
    said: str,
    live_run: Path,
    testbed_cache: Path,
    tmp_path: Path,
    warm: Warm,
) -> None:
    (tmp_path / "pool.toml").write_text(POOL)
    (tmp_path / "d.jsonl").write_text(ROW)
    shutil.copytree(live_run, tmp_path / "run")
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches/default").symlink_to(testbed_cache)
    from hierrouter.runs.folders import Record

    Record(tmp_path / "run", "train", {}).write()
    make(tmp_path)
    given = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", words)]
    done = warm.start("-c", MEASURED, *given, cwd=tmp_path, env=environment()).result(timeout=60)
    *_, damaged, error, used = ["", *done.stderr.strip().splitlines()]
    assert done.returncode == (3 if words == "verify" else 2), done.stderr
    assert error.startswith("error: ") and said in (damaged if words == "verify" else error)
    memory, cpu = re.fullmatch(r"used (\d+) MB (\S+) s", used).groups()  # type: ignore[union-attr]
    assert int(memory) <= MB and float(cpu) <= SECONDS, used
