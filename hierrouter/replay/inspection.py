"""What is in a cache, whether it is sound, and what a reader must know of it."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hierrouter.pools.files import stored_pool
from hierrouter.questions.query import stored_choices
from hierrouter.questions.scoring import SCORERS_BY_NAME
from hierrouter.replay.states import SIGNALS
from hierrouter.replay.stored_pool import load_planned_pool, open_pool
from hierrouter_cache.embeddings import embedding_files, require_sound
from hierrouter_cache.errors import CacheError, DamagedPart, InputError
from hierrouter_cache.kept import kept_trees, tree_fault
from hierrouter_cache.keys import Row, digest, part_fault, row_fault
from hierrouter_cache.parts import FORMAT
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.sql import ask
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.walk import Forest, Scores, walk

MANY = 0.05  # of a model's answers, cut at its cap of new tokens
COUNTS = 1e-3  # of R: what prices must move it by to be worth a thought

# How many calls have failed, by their last status, and were not answered since.
FAILED = (
    "SELECT status, count(*) AS n FROM failures f ANTI JOIN calls_rows c ON c.key = f.key "
    "GROUP BY status ORDER BY status"
)
OnRows = Callable[[int, int], None]


def data_notes(tree: RouteTree) -> list[str]:
    """What a reader must know of the data."""
    notes = []
    if tree.context_free:
        notes.append(
            "Later hops are independent answers of the models, as imported: "
            "no model saw an earlier answer."
        )
    if tree.left_out:
        notes.append(f"{left_out_note(tree)}.")
    if tree.pruned:
        notes.append(pruned_note(tree))
    capped = getattr(tree, "capped", {})  # of a tree that was opened
    if cut := [f"{share:.0%} of {name}" for name, share in capped.items() if share >= MANY]:
        notes.append(
            f"Many answers ended at their cap of new tokens and may be cut: {', '.join(cut)}; "
            "give these models more max_new_tokens in the pool file and collect again."
        )
    sure = getattr(tree, "sure", None)
    if sure is not None and sure < 1 and tree.view.endswith(SIGNALS):
        notes.append(
            f"How sure its model was is known of {sure:.0%} of the answers that a router looks at; "
            "of the others a state says that it is not known."
        )
    return notes


def left_out_note(tree: RouteTree) -> str:
    """How many queries are not here because of holes, and how they differ from those that are."""
    shift = getattr(tree, "shift", "")  # of a tree that was opened
    return f"{tree.left_out} queries are left out: their trees are incomplete; {shift}".rstrip("; ")


def population_shift(
    reader: CacheReader, lost: Forest, kept: Forest, scores: tuple[Scores, Scores]
) -> str:
    """How the queries that are left out differ from those kept, in words.

    Each call of theirs that is there is compared with the mean of the same call over those kept.
    """
    mine, others = (np.hstack([each.tree[:, 1:], each.direct]) for each in scores)
    apart = [np.asarray(row)[~np.isnan(row)] for row in mine - others.mean(axis=0)]
    apart = [row.mean() for row in apart if row.size]
    found = []
    if len(apart) > 1:
        mean, wide = np.mean(apart), 1.96 * np.std(apart, ddof=1) / len(apart) ** 0.5
        low, high = mean - wide, mean + wide
        fair = "not clearly better or worse than"
        if low > 0 or high < 0:
            fair = "better than" if low > 0 else "worse than"
        found.append(
            f"the answers that they have are {fair} those of the others at the same calls "
            f"({mean:+.3f} [{low:+.3f}, {high:+.3f}] in Q)"
        )
    names = ("dataset", "length(question) AS characters")
    ours, theirs = (reader.queries(each.keys, names).to_pylist() for each in (lost, kept))
    long, other = (np.mean([row["characters"] for row in rows]) for rows in (ours, theirs))
    found.append(f"their questions have {long:,.0f} characters, those of the others {other:,.0f}")
    gone = Counter(row["dataset"] for row in ours)
    every = gone + Counter(row["dataset"] for row in theirs)
    if len(every) > 1:
        shares = sorted(every, key=lambda name: gone[name] / every[name])
        ends = (f"{gone[name] / every[name]:.1%} of {name}" for name in (shares[-1], shares[0]))
        found.append(f"left out are {' and '.join(ends)}")
    return "; ".join(found)


def pruned_note(tree: RouteTree) -> str:
    """What an adaptive collection left out, and who learns from such trees."""
    assert tree.pruned is not None
    score, whole = tree.pruned.score[:, 1:], tree.splits.count("train")
    return (
        f"{np.isnan(score).sum():,} of {score.size:,} calls of {len(score):,} train queries were "
        "left out, because they hardly could be the best (collect --adaptive): the value model "
        f"learns from them all, everybody else from the {whole:,} whole trees of the train fold."
    )


def cost_notes(tree: RouteTree, alpha: float) -> list[str]:
    """Whether alpha is so small for these prices that cost decides nothing."""
    cost = tree.cost[:, tree.routes.leaves]
    spread = float(np.mean(cost.max(axis=1) - cost.min(axis=1)))
    if not alpha or not spread or alpha * spread >= COUNTS:
        return []
    return [
        f"At alpha {alpha:g} cost decides next to nothing: between the cheapest and the dearest "
        f"route of a query it moves R by {alpha * spread:.1g}. It moves R by 0.1 at alpha "
        f"{0.1 / spread:.1g}; `sweep-alpha` chooses alphas for these prices."
    ]


def cache_info(
    root: Path,
    pool: str | None = None,
    models: Sequence[str] | None = None,
    hops: int | None = None,
    incomplete: bool = False,
) -> dict[str, Any]:
    """Counts for the queries of the last collection, and its pool or another one.

    Raises CacheError: nothing there, or damaged; InputError: an unknown pool, model or number of
    hops. Returns format, queries, nodes (found of the trees, root excluded), direct (single-model
    calls found), complete_queries, missing_nodes, missing_direct, left_out (nodes that an adaptive
    collection left out, not missing), failed_calls (by status), calls
    (distinct model calls stored), parts, bytes, models, datasets, context_free (later hops saw no
    answer), a fingerprint of pool and queries; with `incomplete` under that name a list of {query,
    missing_nodes, missing_direct}.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    opened = open_pool(plan.pool, pool, models, hops)
    forest = walk(reader, opened.spec, plan.queries)
    datasets = reader.queries(forest.keys, ("dataset",))["dataset"]
    return {
        "format": FORMAT,
        "queries": len(forest.keys),
        "nodes": int(np.count_nonzero(forest.tree.found[:, 1:])),
        "direct": int(np.count_nonzero(forest.direct.found)),
        "complete_queries": int(np.count_nonzero(forest.complete)),
        "missing_nodes": int(np.count_nonzero(~forest.tree.found & ~forest.tree.pruned)),
        "missing_direct": int(np.count_nonzero(~forest.direct.found & ~forest.direct.pruned)),
        "left_out": int(np.count_nonzero(forest.tree.pruned)),
        "failed_calls": {row["status"]: row["n"] for row in reader.sql(FAILED).to_pylist()},
        "calls": reader.number("SELECT count(DISTINCT key) FROM calls_rows"),
        "parts": len(reader.parts),
        "bytes": sum(part.path.stat().st_size for part in reader.parts),
        "models": [model.name for model in opened.pool.models],
        "datasets": sorted(set(datasets.to_pylist())),
        "context_free": opened.pool.context_free,
        "fingerprint": digest([opened.pool.to_json(opened.identities), list(forest.keys)]),
        **({"incomplete": _incomplete(reader, forest)} if incomplete else {}),
    }


def ask_cache(root: Path, question: str) -> pa.Table:
    """The answer to one SELECT over the pool and queries of the last collection.

    Raises InputError: see `hierrouter_cache.sql.ask`, which lists the views; CacheError: nothing
    there, or damaged.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    pool, identities = load_planned_pool(plan.pool)
    return ask(reader, pool.tree_spec(identities), plan.queries, pool.rates(), question)


def _incomplete(reader: CacheReader, forest: Forest) -> list[dict[str, Any]]:
    """What each query lacks that lacks something, in the order of the plan."""
    lacking = forest.select(np.flatnonzero(~forest.complete))
    names = reader.queries(lacking.keys, ("dataset", "id")).to_pylist()
    nodes = np.count_nonzero(~lacking.tree.found, axis=1).tolist()
    direct = np.count_nonzero(~lacking.direct.found, axis=1).tolist()
    return [
        {"query": f"{name['dataset']}/{name['id']}", "missing_nodes": n, "missing_direct": d}
        for name, n, d in zip(names, nodes, direct, strict=True)
    ]


def verify_cache(
    root: Path, rescore: bool = False, on_rows: OnRows = lambda rows, total: None
) -> list[str]:
    """Check every file of a cache, and what its rows mean.

    Raises DamagedPart: a damaged file, see `hierrouter_cache.maintenance.damaged_files` for all; or
    values that no collection writes; CacheError: nothing there, or changed meanwhile. Returns what
    was checked and found, a line each.
    """
    reader = CacheReader(root, anew=True)
    vectors, trees = embedding_files(root), kept_trees(root)
    for file in vectors:
        require_sound(file)
    for tree in trees:
        if why := tree_fault(tree):
            raise DamagedPart(f"damaged tree: {tree}: {why}; delete it, it is made again")
    checked = _check_rows(reader, on_rows)
    plan = reader.latest_plan()
    forest = walk(reader, open_pool(plan.pool).spec, plan.queries)
    orphans = reader.number(
        "SELECT count(*) FROM calls_rows c ANTI JOIN (SELECT outcome AS context FROM "
        "calls_rows UNION ALL SELECT context FROM queries_rows) p ON p.context = c.context"
    )
    lines = [
        f"{len(reader.parts)} parts: every byte as its name says, the chain is whole",
        f"{checked} rows: every key is that of the row's content",
        f"{len(vectors)} embedding files, {len(trees)} kept trees: every byte as its name says",
        f"{np.count_nonzero(forest.complete)} of {len(forest.keys)} queries complete, "
        f"{np.count_nonzero(~forest.tree.found)} nodes missing",
        f"{orphans} orphans: calls whose parent answer or question is not in the cache",
    ]
    if rescore:
        lines += _check_scores(reader)
    return lines


def _check_rows(reader: CacheReader, on_rows: OnRows) -> int:
    """Look at every row of every part, the ones that are not served too; returns how many."""
    total = sum(part.rows for part in reader.parts)
    for part in reader.parts:
        try:
            fault = part_fault(part, _row_fault, lambda rows: on_rows(rows, total))
        except FileNotFoundError:
            raise CacheError(
                f"the cache was compacted meanwhile: {reader.root}; verify it again"
            ) from None
        if fault:
            raise DamagedPart(
                f"damaged part: {part.path.name}: {fault}; no version of this program wrote it, "
                "move it out of parts/ and collect again"
            )
    return total


def _row_fault(kind: str, row: Row) -> str | None:
    """`row_fault`, and whether the pool of a plan could be opened."""
    fault = row_fault(kind, row)
    if fault is None and kind == "plans":
        try:
            stored_pool(row["pool"], "its pool")
        except InputError as error:
            return str(error)
    return fault


def _check_scores(reader: CacheReader) -> list[str]:
    current = {scorer.key: scorer for scorer in SCORERS_BY_NAME.values()}
    rows = reader.sql(
        "SELECT DISTINCT s.call, s.scorer, s.value, c.response, q.answers, q.choices FROM scores s "
        'JOIN calls c ON c.key = s.call JOIN queries q ON q."references" = s."references"'
    ).to_pylist()
    ours = [row for row in rows if row["scorer"] in current]
    for row in ours:
        value = current[row["scorer"]](
            row["response"], row["answers"], stored_choices(row["choices"])
        )
        if value != row["value"]:
            raise DamagedPart(
                f"score {row['scorer']} of call {row['call']} is {row['value']}, "
                "not what its response gives; no version of this program stored it"
            )
    lines = [f"{len(ours)} scores: as computed again from the responses"]
    if others := len(rows) - len(ours):
        lines.append(
            f"{others} scores of other versions, users' functions or imports: not computed again"
        )
    return lines
