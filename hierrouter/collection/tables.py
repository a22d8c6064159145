"""Read answers of models from tables, and group them by query."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.csv

from hierrouter.declarations.flags import ALL_DRAWS, FIRST_DRAW, MEAN_DRAW
from hierrouter.engines.bills import MAX_TOKEN_COUNT, NO_BILL, Bill, cost_number, read_usage
from hierrouter.pools.pool import MAX_ACTION_NAME, MAX_HOPS
from hierrouter.questions.datasets import refuse_leaks, with_folds
from hierrouter.questions.files import MAX_LINE_BYTES, json_lines, parquet_rows
from hierrouter.questions.query import Query
from hierrouter.questions.scoring import with_final_answer
from hierrouter.questions.sources import tests_of
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import sound_text
from hierrouter_cache.layout import MAX_CELLS, MAX_NODES, SEPARATOR, size_fault
from hierrouter_cache.tree import SPLITS

PICKLE_SUFFIXES = (".pkl", ".pickle", ".pt", ".pth")
# The columns that a table must have; `read_table` names the optional ones.
TABLE_COLUMNS = ("query_id", "question", "answer", "model", "response", "tokens_in", "tokens_out")

Route = tuple[str, ...]  # models called, in order


@dataclass(frozen=True)
class Answer:
    """One response of one model, in the file's own names.

    Attributes:
        where: file and row, for messages.
        query: that it answers.
        path: the models called, in order; the last one gave the response.
        prompt: of the last call.
        response: the text.
        tokens_in: tokens of the prompt.
        tokens_out: tokens of the response.
        latency_s: seconds; None if unknown.
        score: the file's own value for the response, in [0, 1]; None if it has none.
        ended: whether its source made no further call by design.
        draw: which of several runs of the query it is; None if the file does not number them.
        bill: further tokens and the cost that the file states.
    """

    where: str
    query: Query
    path: Route
    prompt: str
    response: str
    tokens_in: int
    tokens_out: int
    latency_s: float | None = None
    score: float | None = None
    ended: bool = False
    draw: str | None = None
    bill: Bill = NO_BILL

    @property
    def content(self) -> tuple[Any, ...]:
        """Whatever the file says of this response; equal for rows that repeat each other."""
        return (
            *(self.prompt, self.response, self.tokens_in, self.tokens_out),
            *(self.latency_s, self.score, self.ended),
        )

    def repeated(self) -> Answer:
        """The same answer as a further call repeats it, at no cost."""
        return replace(self, prompt="", tokens_in=0, tokens_out=0, latency_s=None, bill=NO_BILL)


@dataclass(frozen=True)
class Answers:
    """The answers of a file, by query.

    Attributes:
        queries: in the order of the file, with folds.
        models: names in the order of the file.
        by_path: the answers to each query, by path.
        repeated_rows: rows that repeat another one exactly and were counted once.
        draws: how many runs of a query there are at most; 1 if each was run once.
        rule: what was made of several draws, a word of `flags.DRAWS`; None without draws.
        runs: of a log, the number of runs that had each answer, by query and path; the paths then
            have a step of `log_step` for each call. None if the routes are those of a full tree.
        cost_unit: of a log that states costs and no tokens, the cost of a unit of `tokens_out`,
            which then holds costs; None if tokens are tokens.
    """

    queries: tuple[Query, ...]
    models: tuple[str, ...]
    by_path: tuple[Mapping[Route, Answer], ...]
    repeated_rows: int = 0
    draws: int = 1
    rule: str | None = None
    runs: tuple[Mapping[Route, int], ...] | None = None
    cost_unit: float | None = None

    @property
    def hops(self) -> int:
        """The length of the longest path; 1 if all answers are independent."""
        return max(len(path) for by_path in self.by_path for path in by_path)

    @property
    def lacking(self) -> Counter[str]:
        """Number of queries that a model has not answered at the first hop, if there are any."""
        return Counter(
            name for by_path in self.by_path for name in self.models if (name,) not in by_path
        )

    @property
    def has_tokens(self) -> bool:
        """Whether the file has counts of tokens."""
        return any(
            answer.tokens_in or answer.tokens_out
            for by_path in self.by_path
            for answer in by_path.values()
        )

    @property
    def has_texts(self) -> bool:
        """Whether some answer has a text; a table of means has none."""
        return any(answer.response for by_path in self.by_path for answer in by_path.values())

    @property
    def is_product(self) -> bool:
        """Whether each query has every model after every path that has not ended."""
        hops = self.hops
        for by_path in self.by_path:
            going_on = sum(
                len(path) < hops and not answer.ended for path, answer in by_path.items()
            )
            if len(by_path) != (1 + going_on) * len(self.models):
                return False
        return True

    @property
    def as_log(self) -> Answers:
        """The same, as a log of which each call was run once; its routes stay what they are."""
        runs = tuple(dict.fromkeys(by_path, 1) for by_path in self.by_path)
        numbered = tuple(
            {path: replace(answer, draw="0") for path, answer in by_path.items()}
            for by_path in self.by_path
        )
        return replace(self, by_path=numbered, runs=runs)

    @property
    def scores(self) -> list[float | None]:
        """The file's own score of each answer."""
        return [answer.score for by_path in self.by_path for answer in by_path.values()]


def gather(answers: Iterable[Answer], seed: int, draw: str | None = None) -> Answers:
    """Group answers by query, and draw folds if the file has none.

    A row is that of a dataset, an id, a path and a draw; the question's text is no key.

    Args:
        answers: of the file.
        seed: of the draw of folds.
        draw: what to make of several draws, a word of `flags.DRAWS`; None refuses several.

    Returns:
        The answers; a log if all draws are kept.

    Raises:
        InputError: a path with two answers and no `draw`, an answer whose earlier hop is missing or
            has ended, a query with two questions, or a question in both train and test; draws that
            do not fit together.
    """
    first: dict[tuple[str, str], Answer] = {}
    draws_by_query: dict[tuple[str, str], dict[Route, list[Answer]]] = {}
    models: dict[str, None] = {}
    repeated_rows = 0
    for answer in answers:
        query = answer.query
        earlier = first.setdefault((query.dataset, query.id), answer)
        if query != earlier.query:
            raise InputError(
                f"query {query.id} has two questions, answers or splits: {earlier.where} and "
                f"{answer.where}; give different queries different ids"
            )
        draws = draws_by_query.setdefault((query.dataset, query.id), {}).setdefault(answer.path, [])
        # Without a rule for draws, a row that says the same once more is an accident of the file.
        if draw is None and any(_is_repeated(answer, other) for other in draws):
            repeated_rows += 1
            continue
        draws.append(answer)
        models.setdefault(answer.path[-1])
    most_draws = max(
        (len(draws) for by_path in draws_by_query.values() for draws in by_path.values()), default=1
    )
    if draw == ALL_DRAWS:
        log = _log_of_draws(draws_by_query.values())
        return replace(_answers_of_log(log, tuple(models), first, seed), rule=draw)
    by_query = [_single_answers(by_path, draw) for by_path in draws_by_query.values()]
    for by_path in by_query:
        _require_chains(by_path)
    return Answers(
        _queries_of(first.values(), seed),
        tuple(models),
        tuple(by_query),
        repeated_rows,
        most_draws,
        draw if most_draws > 1 else None,
    )


def _queries_of(answers: Iterable[Answer], seed: int) -> tuple[Query, ...]:
    """The queries of a file with their folds, of which those with one text have their own calls.

    Args:
        answers: one of each query.
        seed: of the folds that the file does not state.

    Raises:
        InputError: a question is in test and in another fold.
    """
    queries = with_folds([answer.query for answer in answers], seed)
    refuse_leaks(queries)
    text_counts = Counter(query.question for query in queries)
    return tuple(replace(query, has_own_calls=text_counts[query.question] > 1) for query in queries)


# Logs: tables whose rows say which row they follow, whatever shape the routes have.

LOG_COLUMNS = ("query_id", "question", "action", "response", "node", "parent")
# Other names of columns that logs have.
LOG_NAMES = {"query_id": "task_id", "response": "text", "action": "model"}
MAX_LOG_ROWS = 1_000_000  # of a log; they take 2.6 GB of memory
# Columns that say how many tokens a call had.
TOKEN_COLUMNS = ("tokens_in", "tokens_out", "usage")
MIN_COST_EXPONENT = -9  # stated costs are counted in billionths of money, or in larger units


def cost_unit(largest: float) -> float:
    """The unit of stated costs, in money: 1e-9, or the least power of ten at which all costs fit.

    Args:
        largest: cost of the file, in money.
    """
    exponent = MIN_COST_EXPONENT
    while largest / float(f"1e{exponent}") > MAX_TOKEN_COUNT:
        exponent += 1
    return float(f"1e{exponent}")


def _stated_cost_unit(rows: Sequence[Row]) -> float | None:
    """The unit of the costs of a log that states costs and no tokens; None of another log.

    Raises:
        InputError: a cost is no number from 0 on.
    """
    if any(row.values.get(name) is not None for row in rows for name in TOKEN_COLUMNS):
        return None
    costs = [row.cost() for row in rows if row.values.get("cost") is not None]
    return cost_unit(max(costs)) if any(costs) else None


def log_step(action: str, draw: int) -> str:
    """Name one draw of an action in a path; the first draw has the name of the action."""
    return f"{action}\0{draw}" if draw else action


def is_log(path: Path) -> bool:
    """Whether the rows of a table say which row they follow: by a node, or by actions.

    Raises:
        InputError: the file is not readable, or has no rows.
    """
    names = next(read_rows(path)).values.keys()
    # The first row of a JSONL file may leave out what it follows; other tables have models.
    follows = names & {"path", "parent", "node"} or "model" not in names
    return ("action" in names and bool(follows)) or {"node", "parent"} <= names


def names_paths(path: Path) -> bool:
    """Whether a table has a column `path`, so that the routes may have any shape."""
    return "path" in next(read_rows(path)).values


@dataclass
class _LogRow:
    """One response of a log.

    Attributes:
        answer: the response; its path is that of the actions.
        action: the last action.
        parent: position of the row it follows; -1 for the question.
        runs: number of runs that had it.
        verdicts: sum of the scores of runs that ended with it, and their number.
        draw: the number that the file gives it; None without one.
        merged: further rows of the file that say the same, with the runs of each.
    """

    answer: Answer
    action: str
    parent: int
    runs: int
    verdicts: tuple[float, float]
    draw: int | None
    merged: list[tuple[Answer, int]] = field(default_factory=list)

    @property
    def mean_answer(self) -> Answer:
        """The response, with the means over its runs of tokens and seconds."""
        if not self.merged:
            return self.answer
        later_runs = sum(runs for _, runs in self.merged)
        rows = [(self.answer, self.runs - later_runs), *self.merged]

        def mean(name: str) -> float:
            return sum(getattr(answer, name) * runs for answer, runs in rows) / self.runs

        is_timed = all(answer.latency_s is not None for answer, _ in rows)
        return replace(
            self.answer,
            tokens_in=round(mean("tokens_in")),
            tokens_out=round(mean("tokens_out")),
            latency_s=mean("latency_s") if is_timed else None,
        )


def gather_log(path: Path, seed: int) -> Answers:
    """Read a log: calls with the call, or the actions, that each of them follows.

    A row has `action` (or `model`, with `role` where a model has several) and either `node` and
    `parent`, or `path`, the names of the actions before. Equal responses to the same action after
    the same responses are one node with several runs; different ones are draws.

    Args:
        path: a file that `is_log`.
        seed: of the draw of folds.

    Raises:
        InputError: a bad row, or routes that are no trees.
    """
    rows = _read_log(path)
    actions = _log_actions(rows)
    unit = _stated_cost_unit(rows)
    parents = _parents_by_node(rows) if _has(rows, "node") else None
    if parents is None and _has(rows, "parent") and not _has(rows, "path"):
        raise InputError(f"column node is missing: {rows[0].where}; parent names nodes")
    has_draws = _has(rows, "draw")
    first: dict[tuple[str, str], Answer] = {}
    log: list[_LogRow] = []
    numbers: dict[tuple[str, str, Route], dict[int | tuple[int, str], int]] = {}
    order: Sequence[int] = range(len(rows))
    if parents is None:
        order = sorted(order, key=lambda number: len(_actions_before(rows[number])))
    position: dict[int, int] = {}  # in `log`, by position in the file
    for number in order:
        row = rows[number]
        query = _log_query(row, path.stem)
        draw = _log_draw(row) if has_draws else None
        if parents is None:
            parent = _parent_by_path(row, query, draw, numbers)
        else:
            parent = position.get(parents[number], -1)
        before: Route = () if parent < 0 else log[parent].answer.path
        if len(before) >= MAX_HOPS:
            raise InputError(f"route of more than {MAX_HOPS} calls: {row.where}; shorten the log")
        if parents is not None and "path" in row.values:
            _require_path(row, before, actions[number])
        answer = _log_answer(row, query, (*before, actions[number]), unit)
        earlier = first.setdefault((query.dataset, query.id), answer)
        if query != earlier.query:
            raise InputError(
                f"query {query.id} has two questions, answers or splits: {earlier.where} and "
                f"{row.where}; give different queries different ids"
            )
        if parent >= 0 and query != log[parent].answer.query:
            raise InputError(
                f"a call of query {query.id} follows one of another query, "
                f"{log[parent].answer.query.id}: {row.where}; correct parent"
            )
        position[number] = len(log)
        if parents is None:
            places = numbers.setdefault((query.dataset, query.id, answer.path), {})
            # Equal responses without numbers are one node.
            places.setdefault((parent, answer.response) if draw is None else draw, len(log))
        runs = row.count("runs", 1)
        if not runs:
            raise InputError(f"runs must be at least 1: {row.where}; leave the row out")
        log.append(_LogRow(answer, actions[number], parent, runs, _verdicts(row, runs), draw))
    answers = _answers_of_log(log, tuple(dict.fromkeys(actions)), first, seed)
    return replace(answers, cost_unit=unit)


def _read_log(path: Path) -> list[Row]:
    """The rows of a log; one that is too large is refused before it is in memory.

    Raises:
        InputError: it has too many rows or routes, or a row is bad.
    """
    rows: list[Row] = []
    count: _RouteCount | None = None
    for row in read_rows(path):
        rows.append(row)
        if len(rows) <= MAX_NODES:  # as many routes may be there
            continue
        if len(rows) > MAX_LOG_ROWS:
            raise InputError(f"more than {MAX_LOG_ROWS:,} rows: {row.where}; import fewer")
        if count is None:
            count = _RouteCount()
            for earlier in rows[:-1]:
                count.add(earlier)
        count.add(row)
    return rows


class _RouteCount:
    """Counts the least number of routes that the layout of a log has."""

    def __init__(self) -> None:
        self._routes: dict[Any, int] = {}  # by the number of the parent's route, and the action
        # By node: the number of its route, and what tells it from other nodes of the query.
        self._nodes: dict[str, tuple[int, int]] = {}
        self._nodes_of_query: dict[tuple[str, str], set[int]] = {}

    def add(self, row: Row) -> None:
        """Count a row.

        Raises:
            InputError: there are too many routes, or the row is bad.
        """
        action = row.label(_log_value(row, "action"))
        query = (str(row.values.get("dataset")), row.label(_log_value(row, "query_id")))
        has_nodes = "node" in row.values
        parent = (-1, 0)
        if not has_nodes:
            before = _actions_before(row)
            parent = (self._routes.setdefault(before, len(self._routes)) if before else -1, 0)
            key: Any = (*before, action)
        else:
            if row.values.get("parent") not in (None, ""):
                parent = self._nodes.get(row.label("parent"), parent)
            key = (parent[0], action)
        route = self._routes.setdefault(key, len(self._routes))
        node = hash((parent, action, row.values.get(_log_value(row, "response"))))
        if has_nodes:
            self._nodes[row.label("node")] = (route, node)
        nodes = self._nodes_of_query.setdefault(query, set())
        nodes.add(node)
        least = max(len(self._routes), len(nodes))
        if least > MAX_NODES or least * len(self._nodes_of_query) > MAX_CELLS:
            raise InputError(
                f"{least:,} distinct routes of {len(self._nodes_of_query):,} queries already: "
                f"{row.where}; at most {MAX_NODES:,}, and {MAX_CELLS:,} times queries: import fewer"
            )


def _has(rows: Sequence[Row], column: str) -> bool:
    """Whether a log has a column; in a JSONL file some rows may leave it out."""
    return any(column in row.values for row in rows)


def _log_value(row: Row, name: str) -> str:
    """The column of a log's row that has this meaning."""
    if name in row.values:
        return name
    other = LOG_NAMES[name]
    if other in row.values:
        return other
    raise InputError(f"column {name} is missing: {row.where}; it has {', '.join(row.values)}")


def _log_actions(rows: Sequence[Row]) -> list[str]:
    """The action of each row: its name, or that of its model, perhaps with a role."""
    column = _log_value(rows[0], "action")
    names = [row.label(column).strip() for row in rows]
    for name, row in zip(names, rows, strict=True):
        if "\0" in name or SEPARATOR in name:
            raise InputError(f"an action's name must not have {SEPARATOR}: {row.where}; rename it")
        if len(name) > MAX_ACTION_NAME:
            raise InputError(
                f"an action's name has {len(name):,} characters, at most {MAX_ACTION_NAME}: "
                f"{row.where}; shorten it"
            )
    if column == "action":
        for other in ("model", "role"):
            if _has(rows, other):
                _require_one(other, names, rows)
    elif _has(rows, "role"):
        roles: dict[str, set[str]] = {}
        for name, row in zip(names, rows, strict=True):
            roles.setdefault(name, set()).add(row.label("role", "-"))
        names = [
            f"{row.label('role', '-')}@{name}" if len(roles[name]) > 1 else name
            for name, row in zip(names, rows, strict=True)
        ]
        for name, row in zip(names, rows, strict=True):
            if SEPARATOR in name:
                raise InputError(f"a role must not have {SEPARATOR}: {row.where}; rename it")
    return names


def _require_one(column: str, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Require that each action has one model, or one role.

    Args:
        column: "model" or "role".
        names: of the action of each row.
        rows: of the log.

    Raises:
        InputError: an action has two.
    """
    values: dict[str, tuple[str, Row]] = {}
    for name, row in zip(names, rows, strict=True):
        value = row.label(column, "") if row.values.get(column) is not None else ""
        earlier, where = values.setdefault(name, (value, row))
        if earlier != value:
            raise InputError(
                f"action {name:.60} has two {column}s, {earlier or 'none':.60} and "
                f"{value or 'none':.60}: {where.where} and {row.where}; give each its own action"
            )


def _parents_by_node(rows: Sequence[Row]) -> list[int]:
    """The position of the row that each row follows; -1 for none."""
    numbers: dict[str, int] = {}
    for number, row in enumerate(rows):
        node = row.label("node")
        if node in numbers:
            raise InputError(
                f"node {node:.60} stands twice: {rows[numbers[node]].where} and {row.where}; "
                "rename one"
            )
        numbers[node] = number
    parents = []
    for row in rows:
        name = None if row.values.get("parent") in (None, "") else row.label("parent")
        if name is not None and name not in numbers:
            raise InputError(
                f"parent {name:.60} is missing: {row.where}; add its row, or correct it"
            )
        parents.append(-1 if name is None else numbers[name])
    for number, parent in enumerate(parents):
        if parent < number:
            continue
        if _is_on_cycle(number, parents):
            raise InputError(
                f"a node follows itself, a cycle: {rows[number].where}; correct parent"
            )
        raise InputError(
            f"parent {rows[number].label('parent'):.60} comes later: {rows[number].where} and "
            f"{rows[parent].where}; put parents first"
        )
    return parents


def _is_on_cycle(number: int, parents: Sequence[int]) -> bool:
    visited = set()
    node = number
    while node >= 0 and node not in visited:
        visited.add(node)
        node = parents[node]
    return node >= 0


def _actions_before(row: Row) -> Route:
    """The names of the actions before a row's own: a list, or names that are joined."""
    value = row.values.get("path")
    if value is None or value == "":
        return ()
    names = value if isinstance(value, list) else row.words("path").split(SEPARATOR)
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(f"path must be names of actions, got {value!r:.40}: {row.where}")
    return tuple(name.strip() for name in names)


def _require_path(row: Row, before: Route, action: str) -> None:
    """Require that the path of a row with a parent, if it has one, is that of the parent.

    Raises:
        InputError: it is another one.
    """
    path = _actions_before(row)
    if row.values.get("path") is not None and path not in (before, (*before, action)):
        raise InputError(
            f"path {SEPARATOR.join(path) or 'of no action':.60} contradicts parent, which follows "
            f"{SEPARATOR.join(before) or 'no action':.60}: {row.where}; leave one column out"
        )


def _parent_by_path(
    row: Row,
    query: Query,
    draw: int | None,
    numbers: Mapping[tuple[str, str, Route], Mapping[int | tuple[int, str], int]],
) -> int:
    """The position of the row that a row with a path follows: one of its draw, or the only one."""
    before = _actions_before(row)
    if not before:
        return -1
    draws = numbers.get((query.dataset, query.id, before), {})
    if not draws:
        raise InputError(
            f"nothing leads to path {SEPARATOR.join(before):.60} of query {query.id:.60}: "
            f"{row.where}; "
            "add the row of its last action"
        )
    if draw is not None and draw in draws:
        return draws[draw]
    if len(draws) == 1:
        return next(iter(draws.values()))
    raise InputError(
        f"{len(draws)} draws of path {SEPARATOR.join(before):.60} of query {query.id:.60}, and it "
        f"is not clear which one this row follows: {row.where}; number them in a column draw"
    )


def _log_query(row: Row, dataset: str) -> Query:
    answers: tuple[str, ...] = ()
    if row.values.get("answer") is not None:
        reference = row.label("answer")
        answers = with_final_answer((reference,), row.label("final_answer", reference))
    return Query(
        id=row.label(_log_value(row, "query_id")),
        dataset=row.label("dataset", dataset),
        question=row.words("question"),
        answers=answers,
        split=_split(row),
        tests=tests_of(row.values, row.where),
    )


def _log_draw(row: Row) -> int:
    if row.values.get("draw") is None:
        raise InputError(f"a draw without a number: {row.where}; number it from 0")
    return row.count("draw")


def _log_answer(row: Row, query: Query, path: Route, unit: float | None) -> Answer:
    """The response of a row.

    Args:
        row: the row.
        query: that it answers.
        path: the actions, the row's own last.
        unit: cost of a unit of `tokens_out`, see `Answers.cost_unit`; None counts tokens.
    """
    bill = row.bill()
    tokens_out = row.count("tokens_out", bill.tokens_out or 0)
    if unit is not None:
        tokens_out = round((bill.cost or 0.0) / unit)
    return Answer(
        where=row.where,
        query=query,
        path=path,
        prompt=row.text("prompt", ""),
        response=row.text(_log_value(row, "response"), ""),
        tokens_in=row.count("tokens_in", bill.tokens_in or 0),
        tokens_out=tokens_out,
        latency_s=row.seconds("latency_s"),
        bill=bill,
    )


def _verdicts(row: Row, runs: int) -> tuple[float, float]:
    """The sum of the scores of the runs that ended with a row's response, and their number."""
    score = row.share("score") if row.values.get("score") is not None else row.share("right")
    if score is not None:
        return score * runs, float(runs)
    right = row.count("ends_right", 0)
    count = right + row.count("ends_wrong", 0)
    if count > runs:
        raise InputError(f"{count} of {runs} runs end here: {row.where}; correct the counts")
    return float(right), float(count)


def _answers_of_log(
    log: Sequence[_LogRow],
    actions: Sequence[str],
    first: Mapping[tuple[str, str], Answer],
    seed: int,
) -> Answers:
    """Make trees of the rows of a log, see `gather_log`; parents come before their children."""
    merged: dict[tuple[str, str, int, str, str | int | None], int] = {}
    node_of_row: list[int] = []
    nodes: list[_LogRow] = []
    for row in log:
        query = row.answer.query
        parent = node_of_row[row.parent] if row.parent >= 0 else -1
        # Numbered draws without a text are not equal: the file does not have their texts.
        is_told_by_number = row.draw is not None and not row.answer.response
        told_by = row.draw if is_told_by_number else row.answer.response
        key = (query.dataset, query.id, parent, row.action, told_by)
        if key in merged:
            node = nodes[merged[key]]
            node.runs += row.runs
            node.merged.append((row.answer, row.runs))
            node.verdicts = (node.verdicts[0] + row.verdicts[0], node.verdicts[1] + row.verdicts[1])
        else:
            merged[key] = len(nodes)
            nodes.append(replace(row, parent=parent))
        node_of_row.append(merged[key])
    _number_draws(nodes)
    by_query: dict[tuple[str, str], dict[Route, Answer]] = {name: {} for name in first}
    runs_by_query: dict[tuple[str, str], dict[Route, int]] = {name: {} for name in first}
    routes: list[Route] = []
    for node in nodes:
        before = routes[node.parent] if node.parent >= 0 else ()
        route = (*before, log_step(node.action, node.draw or 0))
        routes.append(route)
        total, count = node.verdicts
        answer = replace(
            node.mean_answer, score=total / count if count else None, draw=str(node.draw or 0)
        )
        name = (answer.query.dataset, answer.query.id)
        by_query[name][route] = answer
        runs_by_query[name][route] = node.runs
    distinct = set(routes)
    inner = len({route[:-1] for route in distinct})
    draws = 1 + max(node.draw or 0 for node in nodes)
    fault = size_fault(len(first), len(distinct), inner, len(actions), draws)
    if fault:
        raise InputError(f"the log is too large: {fault}; import fewer rows")
    return Answers(
        _queries_of(first.values(), seed),
        tuple(actions),
        tuple(by_query.values()),
        repeated_rows=0,
        draws=draws,
        runs=tuple(runs_by_query.values()),
    )


def _number_draws(nodes: Sequence[_LogRow]) -> None:
    """Number the draws of each call from 0: by the file's numbers, or the most frequent first.

    So the draws that most queries have share their numbers, and the layout stays small.
    """
    siblings: dict[tuple[Any, ...], list[_LogRow]] = {}
    for node in nodes:
        query = node.answer.query
        siblings.setdefault((query.dataset, query.id, node.parent, node.action), []).append(node)
    for draws in siblings.values():
        has_numbers = all(node.draw is not None for node in draws)
        numbered: dict[int | None, _LogRow] = {}
        for node in draws if has_numbers else ():
            other = numbered.setdefault(node.draw, node)
            if other is not node:
                raise InputError(
                    f"two responses of draw {node.draw} of {node.action:.60}: "
                    f"{other.answer.where} and {node.answer.where}; number them"
                )
        draws.sort(
            key=lambda node: node.draw if has_numbers and node.draw is not None else -node.runs
        )
        for number, node in enumerate(draws):
            node.draw = number


def _is_repeated(answer: Answer, other: Answer) -> bool:
    return answer.draw == other.draw and answer.content == other.content


def _require_chains(by_path: Mapping[Route, Answer]) -> None:
    """Require of each later hop that the file has the earlier one, and that it has not ended."""
    for path, answer in by_path.items():
        if len(path) > 1:
            _require_open(by_path.get(path[:-1]), answer)


def _require_open(earlier: Answer | None, answer: Answer) -> None:
    """Require that the file has the earlier hop of an answer, and that it has not ended."""
    path = answer.path
    if earlier is None:
        raise InputError(
            f"hop {len(path)} without its earlier hop {' > '.join(path[:-1])}: "
            f"{answer.where}; add that row"
        )
    if earlier.ended:
        raise InputError(
            f"hop {len(path)} after one that ended: {answer.where}; remove either `ended` "
            "or that row"
        )


# Several runs of one query: one answer is made of them.


def _single_answers(
    draws_by_path: Mapping[Route, list[Answer]], rule: str | None
) -> dict[Route, Answer]:
    """One answer for each path of a query.

    Args:
        draws_by_path: the answers of a query, by path, in the order of the file.
        rule: a word of `flags.DRAWS`, or None.

    Raises:
        InputError: a path has several answers and there is no rule, a path has two answers of one
            draw, or means are asked for of chains of which a run is shorter than the others.
    """
    if rule is None:
        for path, draws in draws_by_path.items():
            if len(draws) > 1:
                _refuse_draws(path, draws)
        return {path: draws[0] for path, draws in draws_by_path.items()}
    numbered_by_path = {path: _numbered(path, draws) for path, draws in draws_by_path.items()}
    single: dict[Route, Answer] = {}
    for path, numbered in numbered_by_path.items():
        # A chain goes on in the run in which it began: the first one of its first model.
        chain = numbered_by_path.get(path[:1], numbered)
        if len(chain) != len(numbered):
            _require_numbers(path, draws_by_path[path], rule)
        answer = numbered.get(next(iter(chain)))
        if answer is not None:
            single[path] = _mean(list(numbered.values())) if rule == MEAN_DRAW else answer
    return single


def _log_of_draws(draws_by_query: Iterable[Mapping[Route, list[Answer]]]) -> list[_LogRow]:
    """The answers of a file as rows of a log; a later hop follows the earlier one of its run.

    Args:
        draws_by_query: for each query the answers by path, as in `_single_answers`.

    Raises:
        InputError: a path has two answers of one draw, or a run lacks an earlier hop.
    """
    log: list[_LogRow] = []
    for draws_by_path in draws_by_query:
        positions: dict[tuple[Route, tuple[int, str]], int] = {}  # in `log`, by path and draw
        for path in sorted(draws_by_path, key=len):
            for place, (number, answer) in enumerate(_numbered(path, draws_by_path[path]).items()):
                parent = positions.get((path[:-1], number), -1)
                if len(path) > 1:
                    _require_open(log[parent].answer if parent >= 0 else None, answer)
                positions[path, number] = len(log)
                verdicts = (0.0, 0.0) if answer.score is None else (answer.score, 1.0)
                log.append(_LogRow(answer, answer.path[-1], parent, 1, verdicts, place))
    return log


def _require_numbers(path: Route, draws: Sequence[Answer], rule: str) -> None:
    """Refuse a hop that not all runs of a query have, if it is not clear which runs those are."""
    query = draws[0].query
    problem = f"not all runs of query {query.id} have hop {len(path)}: {draws[0].where}"
    if rule == MEAN_DRAW:
        raise InputError(f"{problem}; their means would mix runs, say --draw {FIRST_DRAW}")
    if any(answer.draw is None for answer in draws):
        raise InputError(f"{problem}; number the runs in a column draw")


def _refuse_draws(path: Route, draws: Sequence[Answer]) -> NoReturn:
    first, second = draws[:2]
    query = first.query
    raise InputError(
        f"{len(draws)} answers of {' > '.join(path)} to one query, {query.dataset}/{query.id}: "
        f"{first.where} and {second.where}; give different runs of it different ids, or say "
        f"--draw {ALL_DRAWS}, --draw {FIRST_DRAW} or --draw {MEAN_DRAW}"
    )


def _numbered(path: Route, draws: Sequence[Answer]) -> dict[tuple[int, str], Answer]:
    """The draws of a path by their numbers, in this order; the file's order if it has none."""
    numbered: dict[tuple[int, str], Answer] = {}
    for position, answer in enumerate(draws):
        label = str(position) if answer.draw is None else answer.draw
        # Numbers in their own order, 2 before 10, then other names in that of the alphabet.
        is_number = label.isascii() and label.isdigit() and len(label) <= MAX_DRAW_DIGITS
        number = (int(label), "") if is_number else (MAX_DRAWS, label)
        if number in numbered:
            raise InputError(
                f"two answers of {' > '.join(path)} to query {answer.query.id} have the draw "
                f"{label}: {numbered[number].where} and {answer.where}; number them"
            )
        numbered[number] = answer
    return dict(sorted(numbered.items()))


MAX_DRAW_DIGITS = 9
MAX_DRAWS = 10**MAX_DRAW_DIGITS


def _mean(draws: Sequence[Answer]) -> Answer:
    """The first answer with the means of all; a mean is None if one of its values is missing."""
    return replace(
        draws[0],
        tokens_in=round(fmean(answer.tokens_in for answer in draws)),
        tokens_out=round(fmean(answer.tokens_out for answer in draws)),
        latency_s=_mean_of([answer.latency_s for answer in draws]),
        score=_mean_of([answer.score for answer in draws]),
        bill=_mean_bill([answer.bill for answer in draws]),
    )


def _mean_bill(bills: Sequence[Bill]) -> Bill:
    """The means of some bills; a mean is None if one of its values is missing."""
    cached = _mean_of([bill.cached for bill in bills])
    thoughts = _mean_of([bill.thoughts for bill in bills])
    return Bill(
        cached=None if cached is None else round(cached),
        thoughts=None if thoughts is None else round(thoughts),
        cost=_mean_of([bill.cost for bill in bills]),
    )


def _mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of some values; None if one of them is missing."""
    present = [value for value in values if value is not None]
    return fmean(present) if len(present) == len(values) else None


def read_table(path: Path) -> Iterator[Answer]:
    """The answers of a table, row by row.

    Beside `TABLE_COLUMNS` it may have dataset, final_answer, prompt, split, score, latency_s, hop,
    path, ended, draw, tests, cost, usage. Where a row has no tokens_in or tokens_out, they are
    those of its usage.

    Args:
        path: a .parquet, .csv or .jsonl file; its name is the dataset's if there is no such column.

    Yields:
        An answer a row.

    Raises:
        InputError: a column is missing, or a row is bad.
    """
    hops = [row.count("hop") for row in read_rows(path) if row.values.get("hop") is not None]
    first_hop = min(hops, default=0)  # tables number their hops from 0 or from 1
    if first_hop > 1:
        raise InputError(f"hop must start at 0 or 1, got {first_hop}: {path}")
    for row in read_rows(path):
        required = TABLE_COLUMNS if "usage" not in row.values else TABLE_COLUMNS[:-2]
        missing = [name for name in required if name not in row.values]
        if missing:
            raise InputError(
                f"column {missing[0]} is missing: {row.where}; it has {', '.join(row.values)}"
            )
        yield _answer(row, path.stem, first_hop)


def _answer(row: Row, dataset: str, first_hop: int) -> Answer:
    question = row.words("question")
    reference = row.label("answer")
    bill = row.bill()
    return Answer(
        where=row.where,
        query=Query(
            id=row.label("query_id"),
            dataset=row.label("dataset", dataset),
            question=question,
            answers=with_final_answer((reference,), row.label("final_answer", reference)),
            split=_split(row),
            tests=tests_of(row.values, row.where),
        ),
        path=_path(row, row.label("model"), first_hop),
        prompt=row.text("prompt", question),
        response=row.text("response"),
        tokens_in=row.count("tokens_in", bill.tokens_in),
        tokens_out=row.count("tokens_out", bill.tokens_out),
        latency_s=row.seconds("latency_s"),
        score=row.share("score"),
        ended=row.flag("ended"),
        draw=row.draw(),
        bill=bill,
    )


def _split(row: Row) -> str:
    split = row.text("split", "")
    if split and split not in SPLITS:
        raise InputError(
            f"unknown split {split!r:.40}: {row.where}; {suggestion(split, SPLITS)}".rstrip("; ")
        )
    return split


def _path(row: Row, model: str, first_hop: int) -> Route:
    has_hop = row.values.get("hop") is not None
    length = row.count("hop") - first_hop + 1 if has_hop else 1
    if length > MAX_HOPS:
        raise InputError(f"hop {length} is beyond the limit: {row.where}; {MAX_HOPS} hops at most")
    if row.values.get("path") is None:
        return (model,) * length
    path = tuple(name.strip() for name in row.words("path").split(SEPARATOR))
    if path[-1] != model or (has_hop and len(path) != length):
        raise InputError(
            f"path {'>'.join(path)} does not end at this model and hop: {row.where}; "
            "it lists the models called, the row's own last"
        )
    return path


@dataclass(frozen=True)
class Row:
    """One row of a table; its methods read and check a value of a column.

    Each method raises an InputError with the file and the row if the value does not fit.

    Attributes:
        where: file and row, for messages.
        values: by column; None for an empty cell.
    """

    where: str
    values: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """A text, with lone surrogates replaced; `default` if the cell is empty."""
        value = self.values.get(name)
        if value is None and default is not None:
            return sound_text(default)  # perhaps the name of a file, which may hold any bytes
        if not isinstance(value, str):
            raise InputError(f"{name} must be a text, got {value!r:.40}: {self.where}")
        return sound_text(value)

    def words(self, name: str, default: str | None = None) -> str:
        """A text that is not blank."""
        text = self.text(name, default)
        if not text.strip():
            raise InputError(f"{name} is blank: {self.where}; give a text")
        return text

    def label(self, name: str, default: str | None = None) -> str:
        """A text that is a name; a whole number is read as its digits."""
        value = self.values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.words(name, default)

    def draw(self) -> str | None:
        """The number or name of a run; None if the cell is empty."""
        value = self.values.get("draw")
        if value is None:
            return None
        return str(int(value)) if _is_whole_float(value) else self.label("draw")

    def number(self, name: str) -> float | None:
        """A finite number; None if the cell is empty."""
        value = self.values.get(name)
        if value is None:
            return None
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"{name} must be a finite number, got {value!r:.40}: {self.where}")
        return number

    def seconds(self, name: str) -> float | None:
        """A finite number from 0 on; None if the cell is empty."""
        value = self.number(name)
        if value is not None and value < 0:
            raise InputError(
                f"{name} must not be negative, got {value:g}: {self.where}; leave it empty"
            )
        return value

    def bill(self) -> Bill:
        """The cost, and the usage object of a server, which may be written as JSON.

        What is neither is ignored: other programs have columns of these names, too.
        """
        usage = self.values.get("usage")
        if isinstance(usage, str):
            try:
                usage = json.loads(usage)
            except (ValueError, RecursionError):
                usage = None
        try:
            bill = read_usage(usage)
        except ValueError as error:
            raise InputError(f"usage is no bill, {error}: {self.where}; leave it empty") from None
        cost = self._cost()
        return bill if cost is None else replace(bill, cost=cost)

    def _cost(self) -> float | None:
        """The cost of the call; None if the cell has no number from 0 on.

        Every cell of a CSV file is a text, so a text of a number is one, too.
        """
        value = self.values.get("cost")
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return None
        return cost_number(value)

    def cost(self) -> float:
        """The stated cost of the call, where costs are what C is; the cell is not empty."""
        cost = self._cost()
        if cost is None:
            raise InputError(
                f"cost must be a number from 0 on, got {self.values.get('cost')!r:.40}: "
                f"{self.where}; leave the cell empty if nothing is known"
            )
        return cost

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number >= 0 that a cache can hold; `default` if the cell is empty."""
        value = self.number(name)
        if value is None and default is not None:
            return default
        if value is None or not value.is_integer() or not 0 <= value <= MAX_TOKEN_COUNT:
            raise InputError(
                f"{name} must be a whole number from 0 to {MAX_TOKEN_COUNT:,}, "
                f"got {self.values.get(name)!r:.40}: {self.where}"
            )
        return int(value)

    def flag(self, name: str) -> bool:
        """A boolean, or the word for it; false if the cell is empty."""
        value = self.values.get(name)
        word = str(value).lower()
        if word not in ("true", "false", "none"):
            raise InputError(f"{name} must be true or false, got {value!r:.40}: {self.where}")
        return word == "true"

    def share(self, name: str) -> float | None:
        """A number from 0 to 1, or a boolean for 1 and 0; None if the cell is empty."""
        word = str(self.values.get(name)).strip().lower()
        if word in ("true", "false"):
            return float(word == "true")
        value = self.number(name)
        if value is not None and not 0 <= value <= 1:
            remedy = "leave the cell empty if the answer has none"
            if 1 < value <= 100:
                remedy = "divide all of them by 100 if all are percentages, else correct this one"
            raise InputError(f"{name} must be from 0 to 1, got {value:g}: {self.where}; {remedy}")
        return value


def _is_whole_float(value: object) -> bool:
    """Whether it is what pandas makes of a whole number in a column with empty cells."""
    return isinstance(value, float) and value.is_integer()


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file; its suffix tells the format.

    Raises:
        InputError: the file has another suffix, is not readable, or has no rows.
    """
    readers = {".parquet": parquet_rows, ".csv": _csv_rows, ".jsonl": json_lines}
    require_file(path)
    reader = readers.get(path.suffix)
    if reader is None:
        raise InputError(
            f"unknown kind of file: {path}; known: {', '.join(readers)}; "
            "a cache of ours: --format jsonl"
        )
    number = 0
    try:
        for number, (_, values) in enumerate(reader(path), start=1):
            yield Row(f"{path}: row {number}", values)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        where = f"{path}: after row {number}" if number else f"{path}"
        raise InputError(
            f"not readable as {path.suffix[1:]}: {where}: {_cause(error)}; save it again"
        ) from None
    if not number:
        raise InputError(f"no rows: {path}; give one for each answer")


def _cause(error: Exception) -> str:
    """Why a file could not be read: a few words, without the bytes of the file."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "invalid UTF8" in reason:
        return "not UTF-8"
    columns = re.search(r"(Row #\d+: )?Expected \d+ columns, got \d+", reason)
    return columns[0] if columns else reason[:120]


def require_file(path: Path) -> None:
    """Require a regular file that is neither empty nor a pickle.

    Raises:
        InputError: the path is something else.
    """
    if path.suffix in PICKLE_SUFFIXES:
        raise InputError(
            f"a pickle can run any code and is not read: {path}; save the frame as .parquet or .csv"
        )
    if not path.exists():
        raise InputError(f"file not found: {path}; name one that exists")
    if not path.is_file():
        raise InputError(f"not a regular file: {path}; name a file")
    if not path.stat().st_size:
        raise InputError(f"file is empty: {path}; save it again")


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    _require_commas(path)
    read_options = pa.csv.ReadOptions(block_size=MAX_LINE_BYTES)
    parse_options = pa.csv.ParseOptions(newlines_in_values=True)
    with pa.csv.open_csv(path, read_options=read_options, parse_options=parse_options) as batches:
        names = batches.schema.names
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(f"column {repeated[0]!r:.80} stands twice: {path}; rename or remove one")
    # Read every cell as a text: an answer "007" is no number.
    convert_options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    with pa.csv.open_csv(path, read_options, parse_options, convert_options) as batches:
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)


def _require_commas(path: Path) -> None:
    """Require that the first line of a file looks like a CSV in UTF-8 with commas."""
    with path.open("rb") as file:
        first_line = file.readline(MAX_LINE_BYTES)
    if first_line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"not UTF-8 but UTF-16: {path}; save it as UTF-8")
    for separator, name in ((b";", ";"), (b"\t", "a tab")):
        if separator in first_line and b"," not in first_line:
            raise InputError(f"the separator looks like {name}: {path}; save it with commas")
