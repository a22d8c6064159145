"""A cache as SQL views, for queries that people write."""

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter_cache.errors import (
    CacheError,
    InputError,
    WorldError,
    reason_of,
    require_free_files,
)
from hierrouter_cache.reader import CacheReader, as_arrow, create_views, run_interruptible
from hierrouter_cache.tree import Rate, cost_of, rate_table, total_cost
from hierrouter_cache.walk import (
    RUNS_SCORER_KEY,
    Forest,
    Nodes,
    TreeSpec,
    node_weights,
    path_weights,
    stored_scores,
    walk,
)

VIEW_STATEMENTS = """
CREATE VIEW queries AS
    SELECT query, id, dataset, split, question, answers FROM asked JOIN cache.queries USING (query);
CREATE VIEW nodes AS
    SELECT q.query, q.id, q.dataset, q.split, n.route, n.hop, c.model, c.prompt, c.response,
        c.tokens_in, c.tokens_out, c.finish_reason, n.cost, n.total_cost, c.key AS call,
        c.logprob_sum, c.logprob_min, c.logprob_tokens,
        coalesce(c.seconds, c.latency_s) AS seconds, c.first_token_s,
        c.seconds IS NULL AND c.latency_s IS NOT NULL AS shared_time,
        c.tokens_cached, c.tokens_thoughts, c.cost_given, c.kind, c.usage, c.visible, n.draw,
        n.weight
    FROM found n JOIN asked USING (position) JOIN cache.queries q USING (query)
    JOIN cache.calls c ON hash(c.key) = n.call_hash;
CREATE VIEW scores AS
    SELECT n.query, n.id, n.dataset, n.split, n.route, n.hop,
        split_part(s.scorer, '@', 1) AS scorer, split_part(s.scorer, '@', 2) AS version,
        s.value, n.call, s.read_type, s.read_start, s.read_end,
        substring(n.response, s.read_start + 1, s.read_end - s.read_start) AS read, n.draw,
        n.weight
    FROM nodes n JOIN cache.queries q USING (query)
    JOIN cache.scores s ON s.call = n.call AND s."references" = q."references"
    WHERE s.scorer NOT IN (FROM no_quality);
CREATE VIEW verdicts AS
    WITH answered AS (
        SELECT n.*, q."references", left(sha256(q.question), 32) AS asked_digest,
            left(sha256(coalesce(n.visible, n.response)), 32) AS answer_digest,
            left(sha256(array_to_string(q.answers, chr(10))), 32) AS answers_digest
        FROM nodes n JOIN cache.queries q USING (query)
    ), judged AS (
        SELECT *, left(sha256('["judged","' || asked_digest || '","' || answer_digest || '"]'), 32)
            AS judged_context FROM answered
        UNION ALL
        SELECT *, left(sha256('["judged","' || asked_digest || '","' || answer_digest || '","'
            || answers_digest || '"]'), 32) AS judged_context FROM answered
    ), made AS (
        SELECT key, step, context, model, prompt, response, tokens_in, tokens_out, finish_reason,
            kind, coalesce(seconds, latency_s) AS seconds, judge_template AS template,
            judge_scale AS scale, judge_cost AS cost, cost_given, 'answered' AS status
        FROM cache.calls WHERE judge_template IS NOT NULL
        UNION ALL BY NAME
        SELECT key, step, context, model, judge_template AS template, status, detail
        FROM cache.failures ANTI JOIN cache.calls USING (key) WHERE judge_template IS NOT NULL
    )
    SELECT j.query, j.id, j.dataset, j.split, j.route, j.hop, m.model AS judge,
        left(m.step, 12) AS version, s.value, m.status, m.response AS verdict, m.finish_reason,
        m.kind, m.detail, m.scale, m.template, m.prompt, m.tokens_in, m.tokens_out, m.cost,
        m.cost_given, m.seconds, j.call, m.key AS judge_call
    FROM judged j JOIN made m ON m.context = j.judged_context
    LEFT JOIN cache.scores s ON s.call = j.call AND s."references" = j."references"
        AND s.scorer = 'judge@' || left(m.step, 12);
CREATE VIEW routes AS
    WITH of_query AS (  -- the draws of a route by their weights
        SELECT n.route, n.hop, s.scorer, n.query,
            sum(n.weight * s.value) / sum(n.weight) AS value,
            sum(n.weight * n.total_cost) / sum(n.weight) AS total_cost
        FROM nodes n JOIN cache.queries q USING (query)
        JOIN cache.scores s ON s.call = n.call AND s."references" = q."references"
        WHERE s.scorer NOT IN (FROM no_quality)
        GROUP BY n.route, n.hop, s.scorer, n.query
    )
    SELECT route, hop, split_part(scorer, '@', 1) AS scorer,
        split_part(scorer, '@', 2) AS version, count(*) AS queries, avg(value) AS value,
        avg(total_cost) AS total_cost
    FROM of_query GROUP BY route, hop, scorer;
CREATE VIEW spend AS
    WITH RECURSIVE reached AS (  -- where a call was made; equal questions are those of one dataset
        SELECT context, min(dataset) AS dataset, 1 AS hop FROM cache.queries GROUP BY context
        UNION
        SELECT c.outcome, r.dataset, r.hop + 1 FROM reached r JOIN cache.calls c USING (context)
        WHERE c.step NOT IN (FROM alone)
    ), made AS (
        SELECT key, step, context, model, tokens_in, tokens_out,
            coalesce(seconds, latency_s) AS seconds, tokens_cached, tokens_thoughts, cost_given,
            false AS failed
        FROM cache.calls WHERE judge_template IS NULL
        UNION ALL BY NAME
        SELECT key, step, context, model, 0 AS tokens_in, 0 AS tokens_out, true AS failed
        FROM cache.failures ANTI JOIN cache.calls USING (key) WHERE judge_template IS NULL
    )
    SELECT m.model, r.dataset, if(m.step IN (FROM alone), 0, r.hop) AS hop, m.tokens_in,
        m.tokens_out,
        p.rate_in * m.tokens_in + p.rate_out * m.tokens_out
            + (p.rate_cached - p.rate_in) * coalesce(m.tokens_cached, 0)
            + (p.rate_thoughts - p.rate_out) * coalesce(m.tokens_thoughts, 0)
            + if(m.failed, 0, p.rate_call) AS cost,
        m.seconds, m.failed, m.key AS call, m.tokens_cached, m.tokens_thoughts, m.cost_given
    FROM made m LEFT JOIN actions a USING (step)
    LEFT JOIN priced p ON p.model = coalesce(a.action, m.model)
    LEFT JOIN (
        SELECT context, min(dataset) AS dataset, min(hop) AS hop FROM reached GROUP BY context
    ) r USING (context);
"""


def ask(
    reader: CacheReader,
    spec: TreeSpec,
    keys: Sequence[str],
    prices: Mapping[str, Rate],
    statement: str,
) -> pa.Table:
    """Run one SELECT over the views.

    Args:
        reader: the open cache.
        spec: the pool whose routes the views show.
        keys: keys of the queries that the views show.
        prices: rate of every model of `spec`, direct ones included.
        statement: the SELECT.

    Returns:
        All rows of the answer.

    Raises:
        InputError: it is not one SELECT, it names unknown views or columns, it reads other files,
            or two columns of the answer have the same name.
        CacheError: parts were removed meanwhile.
        WorldError: the answer needs more memory than there is, or too many files are open.
    """
    _require_select(statement)
    forest = walk(reader, spec, keys)
    try:
        # A separate database: its configuration is locked below.
        with duckdb.connect() as connection:
            create_views(connection, reader.parts, "cache")
            run_interruptible(
                connection,
                lambda: _create_tables(
                    connection, spec, forest, _path_weights(reader, spec, forest), prices
                ),
            )
            # From here on the statement can read these files and nothing else.
            connection.execute("SET allowed_paths = ?", [[str(part.path) for part in reader.parts]])
            connection.execute("SET enable_external_access = false")
            connection.execute("SET python_enable_replacements = false")
            connection.execute("SET lock_configuration = true")
            answer = run_interruptible(
                connection, lambda: connection.sql(statement).to_arrow_table()
            )
    except duckdb.IOException as error:
        require_free_files(error)
        raise CacheError(f"the cache has changed: {reader.root}; ask again") from error
    except duckdb.OutOfMemoryException as error:
        raise WorldError(
            f"not enough memory to answer: {reader.root}: {reason_of(error)}; ask for less"
        ) from error
    except duckdb.Error as error:
        reason = reason_of(error, 200)
        raise InputError(f"SQL refused: {reason}; views: nodes, queries, scores, routes") from None
    if len(set(answer.column_names)) < answer.num_columns:
        raise InputError("two columns have the same name: cache sql; tell them apart with AS")
    return answer


def _require_select(statement: str) -> None:
    """Require that a text is one SELECT.

    Raises:
        InputError: it is not SQL, several statements, or another statement.
    """
    try:
        types = [parsed.type for parsed in duckdb.extract_statements(statement)]
    except duckdb.Error as error:
        reason = reason_of(error, 200)
        raise InputError(
            f"SQL not understood: {reason}; views: nodes, queries, scores, routes"
        ) from None
    # EXPLAIN ANALYZE would run the statement that it explains, and COPY could overwrite a part.
    if types != [duckdb.StatementType.SELECT]:
        raise InputError(
            f"SQL must be one SELECT: cache sql {statement[:60]!r}; "
            "the cache is read-only, views: nodes, queries, scores, routes"
        )


def _create_tables(
    connection: duckdb.DuckDBPyConnection,
    spec: TreeSpec,
    forest: Forest,
    weight: NDArray[np.float64],
    prices: Mapping[str, Rate],
) -> None:
    """Create the tables and views that a statement can name."""
    route_names, calls = _list_calls(spec, forest, weight, prices)
    # A direct call without an instruction has the step of a call of the first hop; it then counts
    # as a call of the first hop.
    direct_steps = sorted({step for _, step in spec.direct}.difference(*spec.steps))
    actions = spec.action_by_step
    # Parameters are lists, because Arrow tables of texts would import pandas, see `as_numpy`.
    statements: dict[str, Sequence[Any]] = {
        "asked AS SELECT unnest(range(len($1))) AS position, unnest($1::VARCHAR[]) AS query": [
            list(forest.keys)
        ],
        "priced AS SELECT unnest($1::VARCHAR[]) AS model, unnest($2::DOUBLE[]) AS rate_in, "
        "unnest($3::DOUBLE[]) AS rate_out, unnest($4::DOUBLE[]) AS rate_cached, "
        "unnest($5::DOUBLE[]) AS rate_thoughts, unnest($6::DOUBLE[]) AS rate_call": [
            [*prices],
            *_rate_columns(prices),
        ],
        "alone AS SELECT unnest($1::VARCHAR[]) AS step": [direct_steps],
        "no_quality AS SELECT $1::VARCHAR AS scorer": [RUNS_SCORER_KEY],
        "actions AS SELECT unnest($1::VARCHAR[]) AS step, unnest($2::VARCHAR[]) AS action": [
            [*actions],
            [*actions.values()],
        ],
        "found AS SELECT *, ($1::VARCHAR[])[place] AS route FROM arriving": [route_names],
    }
    connection.register("arriving", calls)
    for statement, parameters in statements.items():
        connection.execute(f"CREATE TABLE {statement}", parameters)
    connection.unregister("arriving")
    connection.execute(VIEW_STATEMENTS)


def _path_weights(reader: CacheReader, spec: TreeSpec, forest: Forest) -> NDArray[np.float64]:
    """Return float64[queries, nodes], the probability of a node's draws once its route is taken."""
    layout = spec.layout
    present = forest.tree.present
    if layout.draws == 1:
        return present.astype(np.float64)
    shares = stored_scores(reader, forest, RUNS_SCORER_KEY).tree
    return path_weights(layout, node_weights(layout, present, shares))


def _list_calls(
    spec: TreeSpec, forest: Forest, weight: NDArray[np.float64], prices: Mapping[str, Rate]
) -> tuple[list[str], pa.Table]:
    """List the calls of a forest that are in the cache.

    Args:
        spec: the calls that there may be.
        forest: those of some queries.
        weight: float64[queries, nodes], the probability of each node's draws.
        prices: rate of every model and action.

    Returns:
        (names of direct calls and routes, one row for each call). The column `place` of a row is
        the position of its name in the list, counted from 1 as in SQL.
    """
    layout = spec.layout
    direct_names = [name for name, _ in spec.direct]
    direct_rates = rate_table(direct_names, prices)
    direct_cost = _cost(forest.direct, direct_rates)
    direct_hops = np.zeros(len(direct_names), np.int64)
    direct_draws = np.array(
        [direct_names[:at].count(name) for at, name in enumerate(direct_names)], np.int64
    )
    counts = np.array([direct_names.count(name) for name in direct_names], np.int64)
    direct_weight = np.broadcast_to(1.0 / counts, direct_cost.shape)
    direct_rows = _call_rows(
        forest.direct, 1, direct_hops, direct_draws, direct_weight, direct_cost, direct_cost
    )
    nodes = range(1, layout.nodes)  # the root is no call
    rates = rate_table(spec.models, prices)
    total = total_cost(
        layout,
        forest.tree.tokens_in,
        forest.tree.tokens_out,
        rates,
        forest.tree.tokens_cached,
        forest.tree.tokens_thoughts,
    )[:, 1:]
    tree = forest.tree.select((slice(None), slice(1, None)))
    actions = [layout.action[node] for node in nodes]
    cost = _cost(tree, rates[actions])
    route_names = [layout.name(node, spec.models) for node in nodes]
    first_place = 1 + len(direct_names)
    rows = _call_rows(
        tree, first_place, layout.depth()[1:], layout.draw[1:], weight[:, 1:], cost, total
    )
    return [*direct_names, *route_names], pa.concat_tables([direct_rows, rows])


def _cost(nodes: Nodes, rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[queries, columns], the cost of each call, see `cost_of`."""
    return cost_of(
        nodes.tokens_in, nodes.tokens_out, rates, nodes.tokens_cached, nodes.tokens_thoughts
    )


def _rate_columns(prices: Mapping[str, Rate]) -> list[list[float]]:
    """Return the five prices of `rate_table` as columns, also where no model has further ones."""
    rows = (rate.as_row for rate in prices.values())
    return [list(column) for column in zip(*rows, strict=True)]


def _call_rows(
    nodes: Nodes,
    first_place: int,
    hops: NDArray[np.int64],
    draws: NDArray[np.int64],
    weight: NDArray[np.float64],
    cost: NDArray[np.float64],
    total: NDArray[np.float64],
) -> pa.Table:
    """Return one row for each call that is in the cache.

    Args:
        nodes: the calls.
        first_place: the place of the first column's name.
        hops: int64[columns], hop of each call; 0 for direct calls.
        draws: int64[columns], which of the draws of its call each column is.
        weight: float64[queries, columns], probability of the call's draws.
        cost: float64[queries, columns], cost of each call.
        total: float64[queries, columns], cost of each call and all calls before it.
    """
    position, column = np.nonzero(nodes.present)
    columns = {
        "position": position,
        "place": first_place + column,
        "hop": hops[column],
        "draw": draws[column],
        "weight": weight[position, column],
        "call_hash": nodes.key[position, column],
        "cost": cost[position, column],
        "total_cost": total[position, column],
    }
    return pa.table({name: as_arrow(values) for name, values in columns.items()})
