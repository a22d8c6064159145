"""Add the rows of a file of any known format to a cache; the work of `transfer.Import`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hierrouter.collection import files, peers, storing, tables
from hierrouter.declarations.declaration import OnTask, ignore_task
from hierrouter.declarations.flags import ALL_DRAWS, FIRST_DRAW, IMPORTS, MEAN_DRAW, NOTES, OWN
from hierrouter.engines.bills import given_cost_notes
from hierrouter.pools.files import COST_IN_TOKENS
from hierrouter.pools.pool import Pool
from hierrouter.questions.audit import Audit, Response, audit_responses, draw_audited
from hierrouter.questions.duplicates import near_duplicates_note
from hierrouter.questions.scoring import GIVEN_SCORER
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import SEPARATOR
from hierrouter_cache.tree import Rate

# Reads a file's answers and, if the format has costs, the rate at which tokens have these costs.
Reader = Callable[[Path], tuple[Iterator[tables.Answer], Rate | None]]

READERS: Mapping[str, Reader] = {
    "table": lambda path: (tables.read_table(path), None),
    "llmrouter": lambda path: (peers.read_llmrouter(path), None),
    "routerbench": peers.read_routerbench,
}
MAX_LISTED_GAPS = 5  # models that lack answers, those that lack most first


@dataclass(frozen=True, repr=False)
class ImportResult:
    """The result of an import; it can be used as a path, which is the cache's folder.

    Attributes:
        cache: the cache's folder.
        format: of the file.
        merge: counts of new and known rows.
        answers: of a table; None for the project's own format.
        pool: the models of a table by their names in the cache, with prices.
        unpriced: whether every token of every model costs 1, because prices are unknown.
        digest_known: whether the project's own format had a digest, so that an edit is detected.
        duplicates_note: describes near-duplicates across the folds of a table; None if it has none.
        audit: of the answers of a table; None for the project's own format, or without texts.
    """

    cache: Path
    format: str
    merge: storing.Merge
    answers: tables.Answers | None = None
    pool: Pool | None = None
    unpriced: bool = False
    digest_known: bool = True
    duplicates_note: str | None = None
    audit: Audit | None = None

    @property
    def line(self) -> str:
        """One line: how many rows are new, and how many were known."""
        new = ", ".join(f"{count:,} {kind}" for kind, count in self.merge.added.items() if count)
        present = self.merge.present.total() - self.merge.repeated.total()
        return f"{self.cache}: {new or 'nothing'} new, {present:,} rows known already"

    @property
    def notes(self) -> list[str]:
        """Facts about the file for users of the cache, a line each."""
        notes = []
        if not self.digest_known:
            notes.append("no sha256 in the header, so nobody can tell whether a line was edited")
        if self.answers and self.pool:
            notes += _table_notes(self.format, self.answers, self.pool, self.unpriced)
        if self.audit:
            notes += filter(None, [self.audit.agreement_line, *self.audit.warnings])
        if self.duplicates_note:
            notes.append(self.duplicates_note)
        if self.merge.another_plan and not any(self.merge.added.values()):
            notes.append("train and report now open the models and queries of this file")
        for kind, count in self.merge.different.items():
            if count:
                notes.append(
                    f"{count:,} {kind} with another content under a key of the cache; what was "
                    "there stays"
                )
        return notes

    def __fspath__(self) -> str:
        return str(self.cache)

    def __repr__(self) -> str:
        return f"ImportResult({self.line})"


def _table_notes(format: str, answers: tables.Answers, pool: Pool, unpriced: bool) -> list[str]:
    """Describe a table of answers, with its gaps and what it does not say, a line each."""
    kind = "chains: only the paths that the file has, so open some with --models"
    if answers.runs is not None:
        kind = (
            f"a log: {sum(map(len, answers.by_path)):,} calls, "
            f"up to {answers.draws} draws of one; the routes are those of the file"
        )
    elif pool.context_free:
        kind = "context-free: later hops are the models' own answers, no model saw an earlier one"
    notes = [
        f"{format}, {len(answers.queries):,} queries x {len(pool.models)} models, "
        f"{pool.hops} hops; {kind}"
    ]
    for model in pool.models:
        if model.name != model.model:
            notes.append(f"model {model.model} is called {model.name} here")
    notes += _repetition_notes(answers)
    if answers.runs is None:
        notes += _gap_notes(answers, pool)
    if not answers.has_texts:
        notes.append("no texts of answers in the file: routes are compared, a router reads nothing")
    if answers.cost_unit is not None:
        notes += _stated_cost_notes(answers)
    elif not unpriced:
        notes += _given_cost_notes(answers, pool)
    has_references = all(query.answers for query in answers.queries)
    is_given = _default_scorer(answers) is not None
    if not has_references and is_given:
        notes.append("no reference answers in the file, so no other --scorer than given")
    elif not has_references:
        notes.append("no reference answers in the file; use --scorer given")
    elif is_given and answers.runs is None:
        notes.append("all answers have a given score: it is Q unless you name another --scorer")
    if unpriced and answers.runs is not None and not answers.has_tokens:
        notes.append("no tokens and no prices: cost counts calls; reprice with --prices")
    elif unpriced:
        notes.append("prices unknown: 1 per token for every model; reprice with --prices")
        notes.append("cost counts tokens; take a small alpha such as 1e-5")
    unscored = answers.scores.count(None)
    has_scores = unscored < len(answers.scores)
    if has_scores and has_references and not is_given:
        notes.append("it has given scores: --scorer given")
    if has_scores and unscored and answers.runs is None:
        notes.append(f"{unscored:,} answers have no score; --scorer given will refuse them")
    if format in NOTES:
        notes.append(NOTES[format])
    return notes


def _repetition_notes(answers: tables.Answers) -> list[str]:
    """Say what was made of repeated rows, runs and questions, a line each."""
    notes = []
    if answers.repeated_rows:
        notes.append(f"{answers.repeated_rows:,} rows repeat another exactly; each counts once")
    if answers.rule:
        made = {
            FIRST_DRAW: "the first run of each counts",
            MEAN_DRAW: "score, tokens and seconds are means of them, the text is the first",
            ALL_DRAWS: "each is a draw of its call",
        }
        notes.append(
            f"up to {answers.draws} runs of one query: {made[answers.rule]} (--draw {answers.rule})"
        )
    sharing = [query for query in answers.queries if query.has_own_calls]
    if sharing:
        texts = len({query.question for query in sharing})
        notes.append(
            f"{len(sharing):,} ids have the question of another, {texts:,} questions in all, e.g. "
            f"{sharing[0].dataset}/{sharing[0].id}: each keeps its own answers and scores, but "
            "intervals take them for independent questions"
        )
    return notes


def _stated_cost_notes(answers: tables.Answers) -> list[str]:
    """Say that C is what a log states, and how many calls cost nothing, as it has no cost there."""
    notes = [
        "no token counts in the file; tokens_out holds its cost in tiny units, so that C is the "
        "file's cost"
    ]
    calls = [answer for by_path in answers.by_path for answer in by_path.values()]
    without = sum(answer.bill.cost is None for answer in calls)
    if without:
        notes.append(
            f"{without:,} of {len(calls):,} calls have no cost in the file and count as 0: right "
            "where the cost of a route stands at its last call"
        )
    return notes


def _given_cost_notes(answers: tables.Answers, pool: Pool) -> list[str]:
    """Compare the costs that the file states with its tokens at the pool's rates."""
    rates = pool.rates()
    names = _names_in_pool(pool)
    costs: dict[str, tuple[float, float, int]] = {}
    for by_path in answers.by_path:
        for answer in by_path.values():
            bill = answer.bill
            name = names[answer.path[-1]]
            if bill.cost is None:
                continue
            given, own, calls = costs.get(name, (0.0, 0.0, 0))
            own += bill.cost_at(rates[name], answer.tokens_in, answer.tokens_out)
            costs[name] = (given + bill.cost, own, calls + 1)
    return list(given_cost_notes(costs, pool.currency))


def _names_in_pool(pool: Pool) -> dict[str, str]:
    """The names of the models in the pool, by those of the file."""
    return {model.model: model.name for model in pool.models}


def _gap_notes(answers: tables.Answers, pool: Pool) -> list[str]:
    """Say of which models answers are missing, and what to do about it."""
    lacking = answers.lacking
    if not lacking:
        return []
    names = _names_in_pool(pool)
    notes = [
        f"{count:,} queries lack an answer of {names.get(model, model)}"
        for model, count in lacking.most_common(MAX_LISTED_GAPS)
    ]
    unlisted = len(lacking) - MAX_LISTED_GAPS
    others = f"{unlisted} more models lack some; " if unlisted > 0 else ""
    notes.append(
        f"{others}leave models out with --without, or these queries with --allow-incomplete"
    )
    return notes


def import_cache(path: Path, root: Path, on_progress: OnTask = ignore_task) -> ImportResult:
    """Add an exported cache, a file in the project's own format, to a cache.

    Args:
        path: the file.
        root: the cache's folder, made if it does not exist.
        on_progress: called with ("check" or "import", done, total).

    Raises:
        InputError: a bad line; nothing was written.
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed.
    """
    _, digest = files.read_header(path)
    merge = files.import_jsonl(path, root, on_progress)
    return ImportResult(root, OWN, merge, digest_known=digest is not None)


def import_answers(
    path: Path,
    format: str,
    root: Path,
    hops: int | None,
    seed: int,
    rates: Mapping[str, Rate],
    on_progress: OnTask = ignore_task,
    draw: str | None = None,
) -> ImportResult:
    """Add the answers of models in a file to a cache.

    Args:
        path: the file.
        format: one of `READERS`.
        root: the cache's folder, made if it does not exist.
        hops: of the trees; None is 2, or the hops of the file's chains.
        seed: of the folds, if the file has none.
        rates: prices by name of a model.
        on_progress: called with ("import", done, total).
        draw: what to make of several runs of a query, a word of `flags.DRAWS`; None refuses
            several.

    Raises:
        InputError: a bad row, or an argument that does not fit the format; nothing was written.
        CacheError: the cache is damaged, in use by a collector, or cannot be written.
        WorldError: the disk is full or failed.
    """
    rows, rate_of_format = READERS[format](path)
    log = tables.gather_log(path, seed) if format == "table" and tables.is_log(path) else None
    if log is not None and log.cost_unit is not None:
        rate_of_format = Rate.base(log.cost_unit)
    if rate_of_format and rates:
        raise InputError(
            f"a {format} file says what calls cost and has no token counts: --price; leave it out"
        )
    if log is not None:
        answers = log
    else:
        answers = tables.gather(rows, seed, draw)
        is_single = answers.runs is None and hops is None
        names_paths = is_single and format == "table" and tables.names_paths(path)
        if names_paths and answers.hops > 1 and not answers.is_product:
            answers = answers.as_log
    if log is not None and draw not in (None, ALL_DRAWS):
        raise InputError(f"a log keeps all its draws: --draw {draw}; leave it out")
    if answers.runs is not None and hops is not None:
        raise InputError(f"the routes are those of the file: --hops {hops}; leave it out")
    pool = storing.pool_of(answers, hops)
    if rate_of_format:
        rates = dict.fromkeys((model.name for model in pool.models), rate_of_format)
    counts_calls = not rates and answers.runs is not None and not answers.has_tokens
    unpriced = not rates and (counts_calls or bool(storing.names_without_size(pool)))
    if counts_calls:
        rates = dict.fromkeys((model.name for model in pool.models), storing.CALL_RATE)
    pool = storing.with_prices(pool, rates)
    duplicates_note = near_duplicates_note(answers.queries)
    counts_tokens = rate_of_format is None and (answers.runs is None or answers.has_tokens)
    audit = _audit(answers, pool, counts_tokens) if answers.has_texts else None
    decided = _decisions(answers, rate_of_format is None)
    store = storing.store_answers if answers.runs is None else storing.store_log
    merge = store(answers, pool, root, on_progress, decided)
    return ImportResult(
        root, format, merge, answers, pool, unpriced, duplicates_note=duplicates_note, audit=audit
    )


def _default_scorer(answers: tables.Answers) -> str | None:
    """The scorer that Q comes from unless the user names one; None is the usual one.

    Given scores are taken if all answers have one, and if they tell answers from one another.
    """
    scores = set(answers.scores)
    if answers.runs is not None:  # what no run ended with has no score
        scores.discard(None)
    return GIVEN_SCORER.name if None not in scores and len(scores) > 1 else None


def _decisions(answers: tables.Answers, counts_tokens: bool) -> dict[str, str]:
    """What was decided for this import, as the plan stores it; see `stored_import`.

    Args:
        answers: of the file.
        counts_tokens: whether the file has counts of tokens, and not costs.
    """
    decided = {
        "draw": answers.rule,
        "scorer": _default_scorer(answers),
        "tokens": None if counts_tokens else COST_IN_TOKENS,
    }
    return {name: value for name, value in decided.items() if value is not None}


def _audit(answers: tables.Answers, pool: Pool, counts_tokens: bool) -> Audit:
    """Audit the answers of a file, or a draw of many.

    Args:
        answers: of the file.
        pool: their models.
        counts_tokens: whether the file has counts of tokens, and not costs.
    """
    names = _names_in_pool(pool)
    rows = [
        (query, path, answer)
        for query, by_path in zip(answers.queries, answers.by_path, strict=True)
        for path, answer in by_path.items()
    ]
    drawn = draw_audited(
        [(f"{query.dataset}/{query.id}", SEPARATOR.join(path)) for query, path, _ in rows]
    )
    responses = []
    for query, _, answer in (rows[position] for position in drawn):
        response = Response(
            query=f"{query.dataset}/{query.id}",
            dataset=query.dataset,
            model=names[answer.path[-1]],
            question=query.question,
            references=query.answers,
            choices=query.choices,
            prompt=answer.prompt,
            text=answer.response,
            verdict=answer.score,
            is_cut=False,
            tokens_in=answer.tokens_in,
            tokens_out=answer.tokens_out,
            where=answer.where,
        )
        responses.append(response)
    return audit_responses(responses, len(rows), counts_tokens=counts_tokens)


def guess_format(path: Path) -> str:
    """Recognise the format of a file by the columns of its first row.

    Raises:
        InputError: the file is not readable, or has the columns of no known format.
    """
    if path.is_dir():
        return "llmrouter"
    row = next(tables.read_rows(path)).values
    if row.get("kind") == files.HEADER_KIND:
        return OWN
    if row.get("kind") in tuple(files.LINE_KINDS):
        raise InputError(
            f'the header line {{"kind": "{files.HEADER_KIND}", ...}} is gone: {path}; export again'
        )
    if {"model_name", "task_name"} <= set(row):
        return "llmrouter"
    if any(name.endswith((peers.RESPONSE_SUFFIX, peers.COST_SUFFIX)) for name in row):
        return "routerbench"
    if set(row) & {*tables.TABLE_COLUMNS, *tables.LOG_COLUMNS}:
        return "table"
    raise InputError(
        f"columns of no known format: {path}: {', '.join(row):.80}; see docs/interchange.md or "
        f"name one: --format {'|'.join(IMPORTS)}"
    )
