"""Opening a part of a cache: fewer models, hops or queries, another scorer, holes."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hierrouter as hr
from hierrouter.questions import scoring
from hierrouter.questions.scoring import scorer
from hierrouter.questions.sources import canonical_dataset
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.opening import training_tree
from hierrouter_cache.errors import IncompleteTree, InputError
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import planted_tree
from tests.holes import drop_calls, drop_five_leaves_of_three_queries

TESTBED = Path(hr.load_pool.__code__.co_filename).with_name("testbed.toml").read_text()


def test_fewer_models_or_hops_are_a_sub_tree(cache: Path, tmp_path: Path) -> None:
    whole = hr.open(cache)
    part = hr.open(cache, models="facts,calc")
    assert part.models == part.direct.models == ("facts", "calc")
    assert np.array_equal(
        part.score[:, part.layout.node((0, 1))], whole.score[:, whole.layout.node((2, 0))]
    )
    assert np.array_equal(hr.open(cache, hops=1).score, whole.score[:, :4])
    settings, *models = TESTBED.split("[[models]]")
    assert len(models) == 3
    (tmp_path / "two.toml").write_text("[[models]]".join([settings, *models[:2]]))
    by_file = hr.open(cache, pool=tmp_path / "two.toml")
    assert by_file.fingerprint == hr.open(cache, models=["calc", "text"]).fingerprint


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"models": "calcc"}, "unknown model: calcc; did you mean calc"),
        ({"models": "calc,calc"}, "duplicate model calc"),
        ({"hops": 3}, "hops must be 1 to 2"),
        ({"scorer": "numerik"}, "numerik"),
        ({"datasets": "nope"}, "dataset not in the cache: nope"),
    ],
)
def test_what_is_not_there_is_named(
    testbed_cache: Path, selection: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        hr.open(testbed_cache, **selection)


def stored_scores(cache: Path, name: str, view: str = "scores") -> int:
    query = f"SELECT * FROM {view} WHERE scorer = ?"
    return CacheReader(cache).sql(query, [scorer(name).key]).num_rows


def test_another_scorer_is_computed_once_from_stored_responses_and_kept(cache: Path) -> None:
    told: list[str] = []
    first = hr.open(cache, scorer="numeric", progress=lambda what, *_: told.append(what))
    assert "score" in told
    told.clear()
    again = hr.open(cache, scorer="numeric", progress=lambda what, *_: told.append(what))
    assert told == []
    assert again.fingerprint == first.fingerprint
    assert first.scorer == "numeric"
    assert first.fingerprint != hr.open(cache).fingerprint
    assert stored_scores(cache, "numeric") >= CacheReader(cache).sql("SELECT * FROM calls").num_rows
    # Nor is a score computed twice where accuracy is Q.
    hr.open(cache, scorer="accuracy")
    assert stored_scores(cache, "accuracy", "scores_rows") == stored_scores(cache, "accuracy") > 0


def test_scores_of_another_version_are_computed_anew_and_a_note_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def notes_of_opening() -> list[str]:
        notes: list[str] = []
        OpenTree(cache=cache).run(on_note=notes.append)
        return [note for note in notes if "scored again" in note]

    assert notes_of_opening() == []
    earlier = scorer("token_f1")
    later = replace(earlier, version=f"{earlier.version}9", function=lambda *_: 0.25)
    monkeypatch.setitem(scoring.SCORERS_BY_NAME, "token_f1", later)
    assert notes_of_opening() == [
        f"note: responses are scored again, by {later.key} (the cache had {earlier.key}): "
        "other versions read them otherwise"
    ]
    assert (hr.open(cache).direct.score == 0.25).all()
    assert notes_of_opening() == []
    monkeypatch.undo()
    assert notes_of_opening() == []  # its scores are still there
    assert not (hr.open(cache).direct.score == 0.25).all()


def test_prices_replace_those_of_the_pool(cache: Path) -> None:
    tree = hr.open(cache, prices={"calc": {"in": 1.0, "out": 3.0}})
    node = tree.layout.node((0,))
    expected = tree.tokens_in[:, node] + 3 * tree.tokens_out[:, node]
    assert np.array_equal(tree.cost[:, node], expected)
    assert tree.fingerprint != hr.open(cache).fingerprint


def test_holes_are_refused_with_their_number_or_left_out(cache: Path) -> None:
    drop_five_leaves_of_three_queries(cache)
    with pytest.raises(IncompleteTree, match=r"3 of 200 queries lack 5 nodes.*--allow-incomplete"):
        hr.open(cache)
    tree = hr.open(cache, allow_incomplete=True)
    assert (len(tree), tree.left_out) == (197, 3)
    assert "not clearly better or worse than those of the others at the same calls" in tree.shift
    assert re.search(r"their questions have \d+ characters, those of the others \d+;", tree.shift)
    part = hr.open(cache, allow_incomplete=True, hops=1)
    assert (len(part), part.left_out, part.shift) == (200, 0, "")


def test_who_is_left_out_is_compared_with_who_is_kept(cache: Path) -> None:
    whole = hr.open(cache)
    rows = whole.sql(
        "SELECT call, any_value(dataset) AS dataset, any_value(id) AS id, "
        "any_value(route) AS route FROM nodes "
        "GROUP BY call HAVING count(*) = 1 AND any_value(hop) = 2 ORDER BY call"
    ).to_pylist()
    leaf = {
        (row["dataset"], row["id"]): row for row in rows
    }  # one of each query that has such a one
    place = {
        name: row for row, name in enumerate(zip(whole.datasets, whole.query_ids, strict=True))
    }
    ease = whole.score[:, 1:].mean(axis=1)
    hard = sorted(leaf, key=lambda name: (ease[place[name]], name))[:20]
    drop_calls(cache, {leaf[name]["call"] for name in hard})
    tree = hr.open(cache, allow_incomplete=True)
    values = np.hstack([whole.score[:, 1:], whole.direct.score])
    kept = values[[row for name, row in place.items() if name not in hard]].mean(axis=0)
    names = [whole.layout.name(node, whole.models) for node in range(1, whole.layout.nodes)]
    apart = np.array([values[place[name]] - kept for name in hard])
    apart[range(20), [names.index(leaf[name]["route"]) for name in hard]] = np.nan
    assert tree.left_out == 20
    found = (
        f"worse than those of the others at the same calls ({np.nanmean(apart, axis=1).mean():+.3f}"
    )
    assert tree.shift.startswith(f"the answers that they have are {found} ")


def test_a_changed_setting_is_named(testbed_cache: Path, tmp_path: Path) -> None:
    pool = TESTBED.replace("max_new_tokens = ", "max_new_tokens = 9")
    (tmp_path / "changed.toml").write_text(pool)
    with pytest.raises(IncompleteTree, match=r"not collected with this configuration.*max_new_tok"):
        hr.open(testbed_cache, pool=tmp_path / "changed.toml")


def arrays(value: object) -> Iterator[np.ndarray]:
    """Every array that a value leads to, views and what they are views of, cached ones too."""
    if isinstance(value, np.ndarray):
        yield value
        yield from arrays(value.base)
    elif isinstance(value, tuple):
        for item in value:
            yield from arrays(item)
    elif is_dataclass(value):
        names = {*(field.name for field in fields(value)), *vars(value)}
        yield from arrays(tuple(getattr(value, name) for name in names))


def marked(tree: RouteTree, mark: float) -> RouteTree:
    """The tree with a mark in place of every measured number of the test fold."""
    test = np.array(tree.splits) == "test"

    def of(values: np.ndarray) -> np.ndarray:
        return np.where(test[:, None], np.array(mark, values.dtype), values)

    names = ("score", "accuracy", "tokens_in", "tokens_out")
    direct = replace(tree.direct, **{name: of(getattr(tree.direct, name)) for name in names})
    return replace(tree, direct=direct, **{name: of(getattr(tree, name)) for name in names})


def test_a_training_reaches_nothing_of_the_test_fold() -> None:
    whole = marked(planted_tree(per_family=(4, 2, 3)), 12345.0)
    assert whole.cost.max() > 1 and any((found == 12345).any() for found in arrays(whole))
    part = training_tree(whole)
    assert (part.splits.count("train"), part.splits.count("validation")) == (20, 10)
    assert "test" not in part.splits and len(part) == 30
    part.cost, part.direct.cost  # noqa: B018 - computed on demand, and kept
    assert not any((found == 12345).any() for found in arrays(part))
    assert part.fingerprint == whole.fingerprint
    assert all(
        np.array_equal(getattr(part.split(fold), name), getattr(whole.split(fold), name))
        for fold in ("train", "validation")
        for name in ("score", "cost", "embedding")
    )


@pytest.mark.parametrize("fold", ["train", "validation"])
def test_a_training_needs_both_folds(fold: str) -> None:
    tree = planted_tree(per_family=(2, 2, 2))
    without = tree.select(np.flatnonzero(np.array(tree.splits) != fold))
    with pytest.raises(InputError, match=f"too few queries to train on: .*\\b0 {fold}"):
        training_tree(without)


@pytest.mark.parametrize("name", ["mine.parquet", "folder/mine.jsonl", "arc_easy.jsonl", "mine"])
def test_a_dataset_is_opened_by_the_name_it_was_collected_by(tmp_path: Path, name: str) -> None:
    answer = {"question": "q", "answer": "a", "model": "m", "tokens_in": 1, "tokens_out": 1}
    answer |= {"dataset": canonical_dataset(Path(name).stem), "response": "a"}
    rows = [json.dumps(answer | {"query_id": f"{n}", "question": f"q {n}"}) for n in range(20)]
    (tmp_path / "answers.jsonl").write_text("\n".join(rows))
    hr.import_(tmp_path / "answers.jsonl", tmp_path / "cache", format="table")
    assert len(hr.open(tmp_path / "cache", datasets=[name])) == 20
