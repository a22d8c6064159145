"""The datasets there are, and their questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hierrouter.questions import testbed
from hierrouter.questions.folds import (
    near_line,
    near_pairs,
    refuse_leaks,
    refuse_twins,
    sample,
    with_folds,
)
from hierrouter.questions.query import Query
from hierrouter.questions.sources import (
    HUB,
    PAPER_DATASETS,
    SUFFIXES,
    count_rows,
    hub_queries,
    is_file,
    read_file,
)
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.tree import SPLITS

PAPER_LIMIT = 300  # examples a dataset, paper section 4
Note = Callable[[str], None]


@dataclass(frozen=True)
class KnownDataset:
    """A name, and where its questions would come from.

    Attributes:
        name: what a user types.
        origin: "testbed", "file" or "hub".
        place: the file, or the repository.
        questions: how many there are to draw from; None where as many as are asked for.
    """

    name: str
    origin: str
    place: str
    questions: int | None


def dataset_names() -> list[str]:
    """All names that `load_queries` knows besides file paths."""
    return ["testbed", *testbed.FAMILIES, *PAPER_DATASETS]


def known_datasets(data: Path) -> list[KnownDataset]:
    """Every name with its origin.

    Args:
        data: folder of the paper's datasets as files.

    Raises:
        InputError: a file there cannot be read.
    """
    known = [KnownDataset(name, "testbed", "", None) for name in testbed.FAMILIES]
    for name, source in HUB.items():
        file = _file_of(name, data)
        if file.exists():
            known.append(KnownDataset(name, "file", str(file), count_rows(file)))
        else:
            known.append(KnownDataset(name, "hub", source.place, source.questions))
    return known


def load_queries(
    names: Sequence[str],
    limit: int | None,
    seed: int,
    data: Path,
    on_note: Note = lambda line: None,
) -> list[Query]:
    """The queries of several datasets, in order, with their folds.

    Args:
        names: known names or paths of files; `testbed` stands for all its families.
        limit: at most so many queries a dataset, drawn with the seed; None is 300, or all of a
            file given by path.
        seed: of the draw and of the folds.
        data: folder of the paper's datasets as files.
        on_note: told, in a line each, which commit of the hub was used, and which questions of
            test are nearly the same as one in another fold.

    Raises:
        InputError: an unknown name, or a file with a bad row (named by its number).
        WorldError: the hub is needed and cannot be reached.
    """
    queries: list[Query] = []
    written: list[Query] = []  # by people: folds of the testbed share nothing by construction
    for name in _expand(names):
        if name in testbed.FAMILIES:
            queries += testbed.questions(name, seed=seed, limit=limit or PAPER_LIMIT)
            continue
        rows = read_file(Path(name)) if is_file(name) else _paper_dataset(name, data, on_note)
        # The paper's cap is for the paper's datasets; a file of one's own is taken whole.
        cap = limit or (len(rows) if is_file(name) else PAPER_LIMIT)
        drawn = with_folds(sample(rows, cap, seed), seed)
        queries += drawn
        written += drawn
    refuse_twins(queries)
    refuse_leaks(queries)
    if near := near_pairs(written):
        on_note(f"{near_line(near)}; `hierrouter datasets --near` shows them")
    return queries


def _paper_dataset(name: str, data: Path, on_note: Note) -> list[Query]:
    file = _file_of(name, data)
    if file.exists():
        return read_file(file)
    queries, place = hub_queries(name, str(file))
    on_note(f"{name}: from the hub, {place}")
    return queries


def _file_of(name: str, data: Path) -> Path:
    """The file of a dataset of the paper; the JSON lines where there is none."""
    files = [data / f"{name}{suffix}" for suffix in SUFFIXES]
    return next((file for file in files if file.exists()), files[0])


def _expand(names: Sequence[str]) -> list[str]:
    known = dataset_names()
    expanded: list[str] = []
    for name in names:
        if not name:
            raise InputError("empty dataset name: --datasets; separate names by one comma")
        if name not in known and not is_file(name):
            if Path(name).is_file():
                raise InputError(
                    f"not a kind of file that is read: {name}; make it .jsonl, one "
                    '{"question": ..., "answer": ...} a line, or .parquet with these columns'
                )
            raise InputError(
                f"unknown dataset: {name}; {suggestion(name, known)}or give a .jsonl or .parquet "
                "file"
            )
        expanded += testbed.FAMILIES if name == "testbed" else [name]
    return list(dict.fromkeys(expanded))


@dataclass(frozen=True)
class Described:
    """One dataset.

    Attributes:
        name: as its rows say.
        folds: number of questions of each fold.
        samples: the first questions.
    """

    name: str
    folds: Mapping[str, int]
    samples: tuple[Query, ...]


def describe(queries: Sequence[Query], samples: int) -> list[Described]:
    """Each dataset, in the order of the queries."""
    found: dict[str, list[Query]] = {}
    for query in queries:
        found.setdefault(query.dataset, []).append(query)
    described = []
    for name, questions in found.items():
        counts = Counter(query.split for query in questions)
        folds = {split: counts[split] for split in SPLITS}
        described.append(Described(name, folds, tuple(questions[:samples])))
    return described
