"""How sure models were of answers: stored with them, or found by reading them again."""

from pathlib import Path

import pyarrow as pa
import pytest

from hierrouter.collection.collect import collect
from hierrouter.replay.inspection import ask_cache
from hierrouter_cache.parts import CALLS
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter

SURE = "SELECT call, logprob_sum, logprob_min, logprob_tokens, tokens_out FROM nodes ORDER BY ALL"


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collect("arith,backcap", cache=tmp_path_factory.mktemp("sure") / "cache", limit=9)


def without(cache: Path, other: Path) -> None:
    """The same cache as one that was collected before any of this was stored."""
    reader, writer = CacheReader(cache), PartWriter(other)
    for kind in ("queries", "plans", "calls"):
        rows = reader.sql(f"SELECT * FROM {kind}")
        if kind == "calls":
            for name in ("logprob_sum", "logprob_min", "logprob_tokens"):
                nothing = pa.nulls(rows.num_rows, CALLS.field(name).type)
                rows = rows.set_column(rows.schema.get_field_index(name), name, nothing)
        writer.append(kind, rows)


def test_each_answer_is_stored_with_how_sure_its_model_was(collected: Path) -> None:
    for row in ask_cache(collected, SURE).to_pylist():
        assert row["logprob_sum"] <= row["logprob_min"] <= 0
        assert row["logprob_tokens"] == row["tokens_out"]


def test_models_read_again_what_was_stored_without(collected: Path, tmp_path: Path) -> None:
    """They find what they said of themselves when they answered; nothing is answered anew."""
    without(collected, tmp_path / "cache")
    notes: list[str] = []
    collect(cache=tmp_path / "cache", signals=True, on_note=notes.append)
    reader = CacheReader(tmp_path / "cache")
    assert reader.number("SELECT count(*) FROM calls_rows WHERE logprob_sum IS NOT NULL") == 0
    assert reader.number("SELECT count(*) FROM signals_rows") == reader.number(
        "SELECT count(*) FROM calls_rows"
    )
    first, again = (ask_cache(cache, SURE).to_pylist() for cache in (collected, tmp_path / "cache"))
    for one, other in zip(first, again, strict=True):
        assert one == {name: pytest.approx(value, abs=1e-3) for name, value in other.items()}
    collect(cache=tmp_path / "cache", signals=True)  # which finds nothing to do
    assert len(list((tmp_path / "cache/parts").glob("signals-*"))) == 3
