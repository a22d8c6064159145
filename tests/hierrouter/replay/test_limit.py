"""`--limit N` opens the questions that `collect --limit N` draws, also in a larger collection."""

from pathlib import Path

import pytest

import hierrouter as hr
from hierrouter.collection.scheduler import fill_cache
from hierrouter.questions.datasets import drawn_ids, load_queries, sample
from hierrouter.questions.query import Query
from hierrouter.questions.shipped import GROUP_BY_FAMILY, questions
from hierrouter_cache.errors import IncompleteTree, Interrupted
from tests.engines import Scripted
from tests.hierrouter.collection import examples

SMALL = 10
LARGE = 30
SEED = 42  # the default of `collect`


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file of a hundred questions."""
    return str(examples.save(examples.questions(100), tmp_path / "sums.jsonl"))


def draw(file: str, limit: int | None, seed: int = SEED) -> list[Query]:
    """The questions that `collect` takes from a file."""
    return load_queries([file], limit, seed, Path(file).parent)


def collect(queries: list[Query], root: Path, calls: int | None = None) -> None:
    """Collect some queries, all of them or until so many calls were made."""
    engine = Scripted()
    try:
        fill_cache(
            examples.POOL,
            queries,
            root,
            stop=lambda: calls is not None and engine.asked.total() >= calls,
            engines=engine,
        )
    except Interrupted:
        assert calls is not None


def ids(queries: list[Query]) -> list[str]:
    return [query.id for query in queries]


def test_the_questions_are_those_of_a_smaller_collection(file: str, tmp_path: Path) -> None:
    collect(draw(file, LARGE), tmp_path / "cache")
    tree = hr.open(tmp_path / "cache", limit=SMALL)
    assert list(tree.query_ids) == ids(draw(file, SMALL))
    assert list(tree.query_ids) != ids(draw(file, LARGE))[:SMALL]
    whole = hr.open(tmp_path / "cache")
    folds = dict(zip(whole.query_ids, whole.splits, strict=True))
    assert list(tree.splits) == [folds[id] for id in tree.query_ids]
    assert hr.open(tmp_path / "cache", limit=LARGE).fingerprint == whole.fingerprint


def test_a_whole_file_is_drawn_from_likewise(file: str, tmp_path: Path) -> None:
    collect(draw(file, None), tmp_path / "cache")
    assert list(hr.open(tmp_path / "cache", limit=7).query_ids) == ids(draw(file, 7))


@pytest.mark.parametrize("seed", [SEED, 7])
def test_an_unfinished_larger_collection_leaves_the_smaller_one(
    file: str, tmp_path: Path, seed: int
) -> None:
    """With its own folds, so that a router that learned from it still fits."""
    root = tmp_path / "cache"
    collect(draw(file, SMALL, seed), root)
    before = hr.open(root)
    collect(draw(file, LARGE, seed), root, calls=20)
    remedy = f"--limit {SMALL} opens the smaller collection"
    with pytest.raises(IncompleteTree, match=f"the tree is incomplete: .*; .*, {remedy}, --allow"):
        hr.open(root)
    after = hr.open(root, limit=SMALL)
    assert after.fingerprint == before.fingerprint
    assert (after.query_ids, after.splits) == (before.query_ids, before.splits)
    collect(draw(file, LARGE, seed), root)
    assert len(hr.open(root)) == LARGE
    assert hr.open(root, limit=SMALL).fingerprint == before.fingerprint


def test_no_smaller_collection_is_named_if_there_is_none(file: str, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    collect(draw(file, SMALL), root, calls=30)
    collect(draw(file, LARGE), root, calls=30)
    with pytest.raises(IncompleteTree) as error:
        hr.open(root)
    assert "smaller collection" not in str(error.value)
    with pytest.raises(IncompleteTree):
        hr.open(root, limit=SMALL)


def test_each_dataset_has_its_own_limit(tmp_path: Path) -> None:
    """One was collected before with this limit, one was not, and one has no more questions."""
    rows = examples.questions(100)
    files = {
        name: str(examples.save(rows[start:end], tmp_path / f"{name}.jsonl"))
        for name, start, end in (("one", 0, 40), ("two", 40, 80), ("few", 80, 85))
    }
    root = tmp_path / "cache"
    collect(draw(files["one"], SMALL), root)
    collect(load_queries(list(files.values()), LARGE, SEED, tmp_path), root)
    tree = hr.open(root, limit=SMALL)
    for name, file in files.items():
        rows_of = [row for row, dataset in enumerate(tree.datasets) if dataset == name]
        assert [tree.query_ids[row] for row in rows_of] == ids(draw(file, SMALL))
    part = hr.open(root, limit=SMALL, datasets="two,few")
    assert (set(part.datasets), len(part)) == ({"two", "few"}, SMALL + 5)


def test_a_file_of_several_datasets_is_drawn_from_dataset_by_dataset(tmp_path: Path) -> None:
    rows = [
        {**row, "dataset": "even" if number % 2 == 0 else "odd"}
        for number, row in enumerate(examples.questions(40))
    ]
    file = str(examples.save(rows, tmp_path / "mixed.jsonl"))
    drawn = draw(file, SMALL)
    assert [query.dataset for query in drawn].count("even") == SMALL
    assert len(drawn) == 2 * SMALL
    collect(draw(file, None), tmp_path / "cache")
    assert list(hr.open(tmp_path / "cache", limit=SMALL).query_ids) == ids(drawn)


@pytest.mark.parametrize("family", GROUP_BY_FAMILY)
def test_shipped_questions_come_in_turns(family: str) -> None:
    """Also if a finite family has no new question left for some turns."""
    every = ids(questions(family, limit=200))
    for limit in (1, 20, 150, 200):
        expected = set(ids(questions(family, limit=limit)))
        assert drawn_ids(family, every, limit, seed=0) == expected


def test_a_dataset_of_ones_own_may_have_the_name_of_a_shipped_one() -> None:
    queries = [Query(f"q{n}", "riddle", f"What is {n}?", (str(n),), "") for n in range(50)]
    expected = set(ids(sample(queries, SMALL, SEED)))
    assert drawn_ids("riddle", ids(queries), SMALL, SEED) == expected
    assert len(expected) == SMALL
