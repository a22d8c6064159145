"""A cache as SQL views, for people's own questions."""

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter_cache.errors import CacheError, InputError, WorldError, reason_of
from hierrouter_cache.reader import CacheReader, as_arrow, create_views, interruptible
from hierrouter_cache.tree import Rate, cost_of, rate_table, total_cost
from hierrouter_cache.walk import Forest, Nodes, TreeSpec, walk

VIEWS = """
CREATE VIEW queries AS
    SELECT query, id, dataset, split, question, answers FROM asked JOIN cache.queries USING (query);
CREATE VIEW nodes AS
    SELECT q.query, q.id, q.dataset, q.split, n.route, n.hop, c.model, c.prompt, c.response,
        c.tokens_in, c.tokens_out, c.finish_reason, n.cost, n.total_cost, c.key AS call,
        c.logprob_sum, c.logprob_min, c.logprob_tokens
    FROM found n JOIN asked USING (position) JOIN cache.queries q USING (query)
    JOIN cache.calls c ON hash(c.key) = n.call_hash;
CREATE VIEW scores AS
    SELECT n.query, n.id, n.dataset, n.split, n.route, n.hop,
        split_part(s.scorer, '@', 1) AS scorer, split_part(s.scorer, '@', 2) AS version,
        s.value, n.call
    FROM nodes n JOIN cache.queries q USING (query)
    JOIN cache.scores s ON s.call = n.call AND s."references" = q."references";
CREATE VIEW routes AS
    SELECT route, hop, scorer, version, count(*) AS queries, avg(value) AS value,
        avg(total_cost) AS total_cost
    FROM scores JOIN nodes USING (query, route, hop) GROUP BY route, hop, scorer, version;
CREATE VIEW spend AS
    WITH RECURSIVE reached AS (  -- where a call was made; equal questions are those of one dataset
        SELECT context, min(dataset) AS dataset, 1 AS hop FROM cache.queries GROUP BY context
        UNION
        SELECT c.outcome, r.dataset, r.hop + 1 FROM reached r JOIN cache.calls c USING (context)
        WHERE c.step NOT IN (FROM alone)
    ), made AS (
        SELECT key, step, context, model, tokens_in, tokens_out, latency_s, false AS failed
        FROM cache.calls
        UNION ALL BY NAME
        SELECT key, step, context, model, 0 AS tokens_in, 0 AS tokens_out, true AS failed
        FROM cache.failures ANTI JOIN cache.calls USING (key)
    )
    SELECT m.model, r.dataset, if(m.step IN (FROM alone), 0, r.hop) AS hop, m.tokens_in,
        m.tokens_out, p.rate_in * m.tokens_in + p.rate_out * m.tokens_out AS cost,
        m.latency_s AS seconds, m.failed, m.key AS call
    FROM made m LEFT JOIN priced p USING (model)
    LEFT JOIN (
        SELECT context, min(dataset) AS dataset, min(hop) AS hop FROM reached GROUP BY context
    ) r USING (context);
"""


def ask(
    reader: CacheReader,
    spec: TreeSpec,
    keys: Sequence[str],
    prices: Mapping[str, Rate],
    question: str,
) -> pa.Table:
    """The answer to one SELECT.

    Raises InputError: it is not one SELECT, names what is not there, or reaches outside;
    CacheError: the parts went away meanwhile; WorldError: the answer needs more memory than there
    is.

    Args:
        spec: the pool whose routes are shown.
        prices: rate of every model of `spec`, direct ones included.
    """
    _check(question)
    forest = walk(reader, spec, keys)
    try:
        with duckdb.connect() as connection:  # of its own: what is locked stays so
            create_views(connection, reader.parts, "cache")
            interruptible(connection, lambda: _create_tables(connection, spec, forest, prices))
            # Leave the connection nothing but these files, for good.
            connection.execute("SET allowed_paths = ?", [[str(part.path) for part in reader.parts]])
            connection.execute("SET enable_external_access = false")
            connection.execute("SET python_enable_replacements = false")
            connection.execute("SET lock_configuration = true")
            answer = interruptible(connection, lambda: connection.sql(question).to_arrow_table())
    except duckdb.IOException as error:
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


def _check(question: str) -> None:
    try:
        kinds = [statement.type for statement in duckdb.extract_statements(question)]
    except duckdb.Error as error:
        reason = reason_of(error, 200)
        raise InputError(
            f"SQL not understood: {reason}; views: nodes, queries, scores, routes"
        ) from None
    # Nothing but SELECT: EXPLAIN ANALYZE runs what it explains, and COPY could write over a part.
    if kinds != [duckdb.StatementType.SELECT]:
        raise InputError(
            f"SQL must be one SELECT: cache sql {question[:60]!r}; "
            "the cache is read-only, views: nodes, queries, scores, routes"
        )


def _create_tables(
    connection: duckdb.DuckDBPyConnection,
    spec: TreeSpec,
    forest: Forest,
    prices: Mapping[str, Rate],
) -> None:
    names, found = _found(spec, forest, prices)
    rate_in, rate_out = rate_table([*prices], prices).T.tolist()
    # A direct call without instruction may be one of the first hop: then it is that.
    alone = sorted({step for _, step in spec.direct}.difference(*spec.steps))
    # Lists, and no Arrow tables of texts: see `as_numpy`.
    made: dict[str, Sequence[Any]] = {
        "asked AS SELECT unnest(range(len($1))) AS position, unnest($1::VARCHAR[]) AS query": [
            list(forest.keys)
        ],
        "priced AS SELECT unnest($1::VARCHAR[]) AS model, unnest($2::DOUBLE[]) AS rate_in, "
        "unnest($3::DOUBLE[]) AS rate_out": [[*prices], rate_in, rate_out],
        "alone AS SELECT unnest($1::VARCHAR[]) AS step": [alone],
        "found AS SELECT *, ($1::VARCHAR[])[place] AS route FROM arriving": [names],
    }
    connection.register("arriving", found)
    for what, values in made.items():
        connection.execute(f"CREATE TABLE {what}", values)
    connection.unregister("arriving")
    connection.execute(VIEWS)


def _found(
    spec: TreeSpec, forest: Forest, prices: Mapping[str, Rate]
) -> tuple[list[str], pa.Table]:
    """Names of direct calls and routes; a row a call that is there, whose name is at `place`."""
    routes = spec.routes
    direct = [name for name, _ in spec.direct]
    cost = cost_of(forest.direct.tokens_in, forest.direct.tokens_out, rate_table(direct, prices))
    alone = _rows(forest.direct, 1, np.zeros(len(direct), np.int64), cost, cost)
    nodes = range(1, routes.nodes)
    rate = rate_table(spec.models, prices)
    total = total_cost(routes, forest.tree.tokens_in, forest.tree.tokens_out, rate)[:, 1:]
    tree = forest.tree.at((slice(None), slice(1, None)))
    called = [routes.action(node) for node in nodes]
    cost = cost_of(tree.tokens_in, tree.tokens_out, rate[called])
    names = [routes.name(node, spec.models) for node in nodes]
    rows = _rows(tree, 1 + len(direct), routes.depth()[1:], cost, total)
    return [*direct, *names], pa.concat_tables([alone, rows])


def _rows(
    nodes: Nodes,
    first: int,
    hops: NDArray[np.int64],
    cost: NDArray[np.float64],
    total: NDArray[np.float64],
) -> pa.Table:
    position, column = np.nonzero(nodes.found)
    columns = {
        "position": position,
        "place": first + column,
        "hop": hops[column],
        "call_hash": nodes.key[position, column],
        "cost": cost[position, column],
        "total_cost": total[position, column],
    }
    return pa.table({name: as_arrow(values) for name, values in columns.items()})
