"""Public tables of real answers, where they lie beside the sources."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hierrouter.collection.tables import gather, read_table
from hierrouter.replay.opening import Selection, open_tree
from tests.hierrouter.collection.examples import DATA, stored

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no tables beside the sources")
SINGLE = {"depth1_gsm8k_openai4_200": 4, "depth1_mbpp_mapcoder3_100": 3}


@pytest.mark.parametrize("name", SINGLE)
def test_single_answers_keep_the_sources_verdict(tmp_path: Path, name: str) -> None:
    file = DATA / f"{name}.parquet"
    stored(gather(read_table(file), 42), tmp_path / "cache")
    tree = open_tree(tmp_path / "cache", Selection(scorer="given"))
    rows = pq.read_table(file).to_pylist()
    assert len(tree.models) == SINGLE[name]
    assert tree.context_free
    assert tree.direct.score.sum() == sum(row["score"] for row in rows)
    assert tree.direct.tokens_out.sum() == sum(row["tokens_out"] for row in rows)
    if "gsm8k" in name:
        ours = open_tree(tmp_path / "cache").direct.accuracy
        assert np.array_equal(ours, tree.direct.accuracy)


def test_real_chains_open_one_model_at_a_time(tmp_path: Path) -> None:
    file = DATA / "multihop_math_dylan_60.parquet"
    stored(gather(read_table(file), 42), tmp_path / "cache")
    rows = pq.read_table(file).to_pylist()
    for agent in range(3):
        selection = Selection(models=[f"gpt-3.5-turbo-agent{agent}"], scorer="given")
        tree = open_tree(tmp_path / "cache", selection)
        assert (len(tree), tree.context_free) == (60, False)
        for hop in (0, 1):
            wanted = sum(row["score"] for row in rows if (row["agent"], row["hop"]) == (agent, hop))
            assert tree.score[:, hop + 1].sum() == wanted
