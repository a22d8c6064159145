"""Load datasets by name or from files, and cut their queries into folds."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hierrouter.hub.repository import short
from hierrouter.questions import shipped, sources
from hierrouter.questions.duplicates import near_duplicates_note
from hierrouter.questions.programs import signature_of
from hierrouter.questions.query import Query
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import digest
from hierrouter_cache.tree import SPLITS

PAPER_LIMIT = 300  # queries of a dataset, paper section 4
Note = Callable[[str], None]


@dataclass(frozen=True)
class KnownDataset:
    """A name that can be loaded, and where its questions would come from.

    Attributes:
        name: what a user types.
        origin: "testbed", "graded", "file" or "hub".
        place: path of the file, or repository of the hub; empty for shipped datasets.
        questions: how many questions it has; None if as many can be made as are asked for.
    """

    name: str
    origin: str
    place: str
    questions: int | None


def dataset_names() -> list[str]:
    """All names that `load_queries` accepts besides paths of files."""
    return [*shipped.DATASET_GROUPS, *shipped.GROUP_BY_FAMILY, *sources.PAPER_DATASETS]


def known_datasets(data: Path) -> list[KnownDataset]:
    """All names with their origins.

    Args:
        data: folder of the paper's datasets as files.

    Raises:
        InputError: a file in the folder cannot be read.
    """
    datasets = [
        KnownDataset(name, group, "", None) for name, group in shipped.GROUP_BY_FAMILY.items()
    ]
    for name, repository in sources.HUB_REPOSITORIES.items():
        file = _paper_file(name, data)
        if file.exists():
            datasets.append(KnownDataset(name, "file", str(file), sources.count_rows(file)))
        else:
            datasets.append(KnownDataset(name, "hub", repository.description, repository.questions))
    return datasets


def load_queries(
    names: Sequence[str],
    limit: int | None,
    seed: int,
    data: Path,
    on_note: Note = lambda line: None,
) -> list[Query]:
    """Load the queries of several datasets, in order, with their folds.

    Args:
        names: names of datasets or paths of files; `testbed` and `graded` mean all their families.
        limit: the largest number of queries of each dataset, drawn with the seed; None is 300, and
            no limit for a file given by its path.
        seed: of the draw and of the folds.
        data: folder of the paper's datasets as files.
        on_note: called with a line for each dataset from the hub (repository and commit), for each
            whose answers are numbers of choices, and with one on near-duplicates across folds.

    Raises:
        InputError: an unknown name, or a file with a bad row (named by its number).
        WorldError: the hub is needed and cannot be reached.
    """
    return draw_queries(names, limit, seed, data, on_note)[0]


def draw_queries(
    names: Sequence[str],
    limit: int | None,
    seed: int,
    data: Path,
    on_note: Note = lambda line: None,
    recorded: Mapping[str, str] | None = None,
    show_signature: bool = False,
    group_by: str | None = None,
) -> tuple[list[Query], dict[str, str]]:
    """Load the queries of several datasets, and tell which commits of the hub they are from.

    Args:
        names, limit, seed, data, on_note: as for `load_queries`, like the errors.
        recorded: commits of the hub's repositories to load, by id, as far as they are recorded.
        show_signature: whether questions with tests end with the function that the tests call; the
            draw and the folds are those of the questions without it.
        group_by: the field of the questions of files whose value takes the place of their dataset,
            also in `limit`. Some question of each file has it; the others, and those that come with
            the package or from the hub, keep their dataset.

    Returns:
        The queries, and the commit of each repository that was read, by its id.
    """
    queries: list[Query] = []
    commits: dict[str, str] = {}
    # From files and the hub. Shipped datasets are left out: their folds have nothing in common.
    external: list[Query] = []
    has_file = False
    for name in _expand_groups(names):
        if name in shipped.GROUP_BY_FAMILY:
            queries += shipped.questions(name, seed=seed, limit=limit or PAPER_LIMIT)
            continue
        is_own_file = sources.is_dataset_file(name)
        file = Path(name) if is_own_file else _paper_file(name, data)
        if is_own_file or file.exists():
            rows = sources.read_file(file, on_note, group_by)
            has_file = True
        else:
            repository = sources.HUB_REPOSITORIES[name].repository
            revision = commits.get(repository) or (recorded or {}).get(repository)
            rows, commit = sources.hub_queries(name, str(file), revision)
            commits[repository] = commit
            on_note(f"{name}: from the hub, {repository}@{short(commit)}, {sources.HUB_SPLIT}")
        # The paper's limit is for the paper's datasets; a user's own file is taken completely.
        default_limit = len(rows) if is_own_file else PAPER_LIMIT
        drawn = with_folds(sample(rows, limit or default_limit, seed), seed)
        queries += drawn
        external += drawn
    if group_by is not None and not has_file:
        raise InputError(
            f"no file is named whose questions could have the field {group_by!r:.60}: "
            "--group-by; leave it out, or name a file with --datasets"
        )
    if show_signature:
        queries = [with_signature(query) for query in queries]
        external = [with_signature(query) for query in external]
    refuse_repeated_ids(queries)
    refuse_leaks(queries)
    note = near_duplicates_note(external)
    if note is not None:
        on_note(note)
    return queries, commits


SIGNATURE_CUE = "Your code has to define:"


def with_signature(query: Query) -> Query:
    """The query with the functions that its tests call below its question, if it has any."""
    for answer in query.answers:
        signature = signature_of(answer, query.tests)
        if signature:
            return replace(query, question=f"{query.question}\n{SIGNATURE_CUE}\n{signature}")
    return query


def _paper_file(name: str, data: Path) -> Path:
    """The file of a dataset of the paper; the path of JSON lines if no file exists."""
    files = [data / f"{name}{suffix}" for suffix in sources.DATASET_SUFFIXES]
    return next((file for file in files if file.exists()), files[0])


def _expand_groups(names: Sequence[str]) -> list[str]:
    """The names with the families of each group instead of the group, each once."""
    accepted = dataset_names()
    expanded: list[str] = []
    for name in names:
        if not name:
            raise InputError("empty dataset name: --datasets; separate names by one comma")
        if name not in accepted and not sources.is_dataset_file(name):
            if Path(name).is_file():
                raise InputError(
                    f"not a kind of file that is read: {name}; make it .jsonl, one "
                    '{"question": ..., "answer": ...} a line, or .parquet with these columns'
                )
            raise InputError(
                f"unknown dataset: {name}; {suggestion(name, accepted)}or give a .jsonl or "
                ".parquet file"
            )
        if name in shipped.DATASET_GROUPS:
            expanded += shipped.DATASET_GROUPS[name].families
        else:
            expanded.append(name)
    return list(dict.fromkeys(expanded))


@dataclass(frozen=True)
class DatasetSummary:
    """A short description of one dataset.

    Attributes:
        name: of the dataset.
        folds: number of questions of each fold.
        samples: the first questions.
    """

    name: str
    folds: Mapping[str, int]
    samples: tuple[Query, ...]


def describe(queries: Sequence[Query], samples: int) -> list[DatasetSummary]:
    """Summarise each dataset, in the order of the queries.

    Args:
        queries: of any datasets.
        samples: how many questions of each dataset to include.
    """
    by_dataset: dict[str, list[Query]] = {}
    for query in queries:
        by_dataset.setdefault(query.dataset, []).append(query)
    summaries = []
    for name, members in by_dataset.items():
        counts = Counter(query.split for query in members)
        folds = {split: counts[split] for split in SPLITS}
        summaries.append(DatasetSummary(name, folds, tuple(members[:samples])))
    return summaries


TEST_SHARE = 0.3  # paper section 4
VALIDATION_SHARE = 0.2  # of the rest; our choice, the paper names no validation fold


def sample(queries: list[Query], limit: int, seed: int) -> list[Query]:
    """Draw at most `limit` of the queries of each dataset; they keep their order."""
    ids: dict[str, list[str]] = {}
    for query in queries:
        ids.setdefault(query.dataset, []).append(query.id)
    drawn = {dataset: _draw_ids(dataset, members, limit, seed) for dataset, members in ids.items()}
    return [query for query in queries if query.id in drawn[query.dataset]]


def drawn_ids(dataset: str, ids: Sequence[str], limit: int, seed: int) -> set[str]:
    """Return which of a dataset's queries `load_queries` takes with a smaller limit.

    Args:
        dataset: name of the dataset.
        ids: ids of its queries, drawn with a larger limit or without one.
        limit: the largest number of queries.
        seed: of the draw.

    Returns:
        The ids; they may be fewer than `limit`, if a shipped dataset has no more.
    """
    if dataset in shipped.GROUP_BY_FAMILY:
        turns = {id: shipped.turn_of(id, dataset) for id in ids}
        if None not in turns.values():
            return {id for id, turn in turns.items() if turn is not None and turn < limit}
    return _draw_ids(dataset, ids, limit, seed)


def _draw_ids(dataset: str, ids: Iterable[str], limit: int, seed: int) -> set[str]:
    names = {f"{dataset}/{id}": id for id in ids}
    return {names[name] for name in _draw(names, limit, "sample", seed)}


def with_folds(queries: list[Query], seed: int) -> list[Query]:
    """Cut the queries into folds by the text of their questions.

    Queries whose file names no split are cut into test and train. If there is no validation fold
    then, a part of train becomes one. Queries with the same text come into the same fold, because
    otherwise a router would see questions of test in training.
    """
    queries = _cut(queries, "", "test", TEST_SHARE, seed)
    if any(query.split == "validation" for query in queries):
        return queries
    return _cut(queries, "train", "validation", VALIDATION_SHARE, seed)


def _cut(queries: list[Query], source: str, fold: str, share: float, seed: int) -> list[Query]:
    """Move a share of the texts of one split to a fold, and the rest of them to train."""
    texts = {query.question for query in queries if query.split == source}
    # At least one text moves, if two are left for training.
    minimum = 1 if len(texts) > 2 else 0
    count = max(round(len(texts) * share), minimum)
    moved = _draw(texts, count, fold, seed)
    return [
        replace(query, split=fold if query.question in moved else "train")
        if query.split == source
        else query
        for query in queries
    ]


def _draw(names: Iterable[str], count: int, purpose: str, seed: int) -> set[str]:
    """Draw names: the ones with the smallest digests.

    A larger draw contains the smaller one, and an edited name moves no other. So the calls that
    were collected for an earlier draw are used again, and no question of test becomes one of train.
    """
    return set(sorted(names, key=lambda name: digest([purpose, seed, name]))[:count])


def refuse_repeated_ids(queries: list[Query]) -> None:
    """Refuse two queries with the same dataset and id.

    Two files may have the same rows; counted twice, they would be taken for independent ones.

    Raises:
        InputError: with the id.
    """
    counts = Counter((query.dataset, query.id) for query in queries)
    (dataset, id), count = max(counts.items(), key=lambda entry: entry[1])
    if count > 1:
        raise InputError(
            f"duplicate id {id} in dataset {dataset}: it comes from {count} places; "
            "name each file once, or give rows of different files different datasets"
        )


def refuse_leaks(queries: list[Query]) -> None:
    """Refuse a question that is in test and in another fold.

    Raises:
        InputError: with the question.
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
