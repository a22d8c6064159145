"""The datasets there are, their questions, and the folds that these are cut into."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hierrouter.questions import shipped, sources
from hierrouter.questions.duplicates import near_duplicates_note
from hierrouter.questions.query import Query
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import digest
from hierrouter_cache.tree import SPLITS

PAPER_LIMIT = 300  # examples a dataset, paper section 4
Note = Callable[[str], None]


@dataclass(frozen=True)
class KnownDataset:
    """A name, and where its questions would come from.

    Attributes:
        origin: "testbed", "graded", "file" or "hub".
        questions: how many there are to draw from; None where as many as are asked for.
    """

    name: str
    origin: str
    place: str
    questions: int | None


def dataset_names() -> list[str]:
    """All names that `load_queries` knows besides file paths."""
    return [*shipped.GROUPS, *shipped.FAMILIES, *sources.PAPER_DATASETS]


def known_datasets(data: Path) -> list[KnownDataset]:
    """Every name with its origin.

    Raises InputError: a file there cannot be read.
    """
    known = [KnownDataset(name, group, "", None) for name, group in shipped.FAMILIES.items()]
    for name, source in sources.HUB.items():
        file = _file_of(name, data)
        if file.exists():
            known.append(KnownDataset(name, "file", str(file), sources.count_rows(file)))
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

    Raises InputError: an unknown name, or a file with a bad row (named by its number); WorldError:
    the hub is needed and cannot be reached.

    Args:
        names: known names or paths of files; `testbed` and `graded` stand for all their families.
        limit: at most so many queries a dataset, drawn with the seed; None is 300, or all of a
            file given by path.
        seed: of the draw and of the folds.
        data: folder of the paper's datasets as files.
        on_note: called with a line for each dataset from the hub (repository and commit), and with
            one on near-duplicates across folds.
    """
    queries: list[Query] = []
    # Of files and the hub; the folds of the shipped datasets share nothing by construction.
    imported: list[Query] = []
    for name in _expand(names):
        if name in shipped.FAMILIES:
            queries += shipped.questions(name, seed=seed, limit=limit or PAPER_LIMIT)
            continue
        is_own = sources.is_file(name)
        file = Path(name) if is_own else _file_of(name, data)
        if is_own or file.exists():
            rows = sources.read_file(file)
        else:
            rows, place = sources.hub_queries(name, str(file))
            on_note(f"{name}: from the hub, {place}")
        # The paper's cap is for the paper's datasets; a file of one's own is taken whole.
        cap = limit or (len(rows) if is_own else PAPER_LIMIT)
        drawn = with_folds(sample(rows, cap, seed), seed)
        queries += drawn
        imported += drawn
    refuse_twins(queries)
    refuse_leaks(queries)
    note = near_duplicates_note(imported)
    if note is not None:
        on_note(note)
    return queries


def _file_of(name: str, data: Path) -> Path:
    """The file of a dataset of the paper; the JSON lines where there is none."""
    files = [data / f"{name}{suffix}" for suffix in sources.SUFFIXES]
    return next((file for file in files if file.exists()), files[0])


def _expand(names: Sequence[str]) -> list[str]:
    known = dataset_names()
    expanded: list[str] = []
    for name in names:
        if not name:
            raise InputError("empty dataset name: --datasets; separate names by one comma")
        if name not in known and not sources.is_file(name):
            if Path(name).is_file():
                raise InputError(
                    f"not a kind of file that is read: {name}; make it .jsonl, one "
                    '{"question": ..., "answer": ...} a line, or .parquet with these columns'
                )
            raise InputError(
                f"unknown dataset: {name}; {suggestion(name, known)}or give a .jsonl or .parquet "
                "file"
            )
        expanded += shipped.GROUPS[name].TASKS if name in shipped.GROUPS else [name]
    return list(dict.fromkeys(expanded))


@dataclass(frozen=True)
class Described:
    """One dataset.

    Attributes:
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
    counts = Counter((query.dataset, query.split) for query in queries)
    return [
        Described(name, {split: counts[name, split] for split in SPLITS}, tuple(asked[:samples]))
        for name, asked in found.items()
    ]


TEST_SHARE = 0.3  # paper section 4
VALIDATION_SHARE = 0.2  # of what is not test; ours, the paper names no validation fold


def sample(queries: list[Query], limit: int, seed: int) -> list[Query]:
    """At most `limit` of the queries, in their order."""
    chosen = _draw(map(_name, queries), limit, "sample", seed)
    return [query for query in queries if _name(query) in chosen]


def with_folds(queries: list[Query], seed: int) -> list[Query]:
    """Cut test where the file does not say, then validation out of train; by question text.

    Queries with the same text always fall into the same fold, or test would be seen in training.
    """
    queries = _cut(queries, "", "test", TEST_SHARE, seed)
    if any(query.split == "validation" for query in queries):
        return queries
    return _cut(queries, "train", "validation", VALIDATION_SHARE, seed)


def _cut(queries: list[Query], of: str, fold: str, share: float, seed: int) -> list[Query]:
    """A share of the texts of one fold go to another one, the rest of them to train."""
    texts = {query.question for query in queries if query.split == of}
    # At least one where that leaves two for training.
    count = max(round(len(texts) * share), 1 if len(texts) > 2 else 0)
    split = dict.fromkeys(texts, "train") | dict.fromkeys(_draw(texts, count, fold, seed), fold)
    return [
        replace(query, split=split[query.question]) if query.split == of else query
        for query in queries
    ]


def _draw(names: Iterable[str], count: int, purpose: str, seed: int) -> set[str]:
    """So many of the names, the ones with the smallest digests.

    A larger draw holds the smaller one, and an edited name moves no other: what was collected for
    the old draw is used again, and what was tested on does not slip into training.
    """
    return set(sorted(names, key=lambda name: digest([purpose, seed, name]))[:count])


def refuse_twins(queries: list[Query]) -> None:
    """Refuse two queries of one name.

    Two files may hold the same rows; counted twice, they would pass for independent. Raises
    InputError: with the name.
    """
    counts = Counter((query.dataset, query.id) for query in queries)
    (dataset, name), times = max(counts.items(), key=lambda item: item[1])
    if times > 1:
        raise InputError(
            f"duplicate id {name} in dataset {dataset}: it comes from {times} places; "
            "name each file once, or give rows of different files different datasets"
        )


def refuse_leaks(queries: list[Query]) -> None:
    """Refuse a question that stands in test and in another fold.

    Raises InputError: with the question.
    """
    folds: dict[str, Counter[str]] = {}
    for query in queries:
        folds.setdefault(query.question, Counter())[query.split] += 1
    for question, splits in folds.items():
        if splits["test"] and len(splits) > 1:
            raise InputError(
                f"question in both {' and '.join(sorted(splits, reverse=True))}, they must not "
                f"overlap: {question[:80]!r}; remove it from one of them"
            )


def _name(query: Query) -> str:
    return f"{query.dataset}/{query.id}"
