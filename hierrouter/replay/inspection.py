"""The contents of a cache, checks of its soundness, and notes for the readers of its data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hierrouter.declarations.declaration import OnCount, ignore_count
from hierrouter.paper import PAPER_SCORER
from hierrouter.pools.files import stored_pool
from hierrouter.pools.pool import Pool
from hierrouter.questions.query import stored_choices
from hierrouter.questions.scoring import REFERENCE_FORMS, SCORERS_BY_NAME, TEST_SCORER, ScorerInput
from hierrouter.replay.states import SIGNALS
from hierrouter.replay.stored_pool import load_planned_pool, open_pool
from hierrouter.replay.tree import Tree
from hierrouter_cache.embeddings import embedding_files, require_sound
from hierrouter_cache.errors import CacheError, DamagedPart, InputError
from hierrouter_cache.keys import Row, digest, part_fault, row_fault
from hierrouter_cache.parts import PART_FORMAT
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.saved_trees import list_saved_trees, saved_tree_fault
from hierrouter_cache.sql import ask
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.walk import UNJUDGED, Forest, Scores, TreeSpec, log_holes, stored_layout, walk

NOTABLE_CAPPED_SHARE = 0.05  # of a model's answers, cut off at its cap of new tokens
MAX_LISTED_MERGED = 3  # queries with one text in a note
NOTABLE_RIGHT_SHARE = 0.1  # of a dataset's answers
LOW_SCORE = 0.5  # of Q, for a right answer
NOTABLE_REWARD_SPREAD = 1e-3  # if cost moves R by less, it decides next to nothing

# The calls that failed and were not answered since, by their last status.
FAILED_CALLS_SQL = (
    "SELECT status, count(*) AS n FROM failures f ANTI JOIN calls_rows c ON c.key = f.key "
    "WHERE judge_template IS NULL GROUP BY status ORDER BY status"
)


# What Q is, if all answers of an imported table have a score and the user names no scorer.
GIVEN_BY_DEFAULT_NOTE = (
    "Q is the scores that came with the imported answers, because all of them have one; "
    "--scorer names another Q"
)
# The same for a log, of which only the answers have a score at which a run ended.
GIVEN_ENDS_NOTE = (
    "Q is the scores that came with the log: an answer at which runs ended has one, the others "
    "have none, and no route ends there"
)


def given_by_default_note(tree: RouteTree) -> str:
    """Return the note about scores that came with imported answers."""
    return GIVEN_BY_DEFAULT_NOTE if tree.can_end is None else GIVEN_ENDS_NOTE


def data_notes(tree: RouteTree) -> list[str]:
    """Write notes for the readers of results on this tree."""
    notes = []
    if tree.context_free:
        notes.append(
            "Later hops are independent answers of the models, as imported: "
            "no model saw an earlier answer."
        )
    if tree.left_out:
        notes.append(f"{left_out_note(tree)}.")
    if isinstance(tree, Tree) and tree.holes:
        notes.append(f"{holes_note(tree)}.")
    if tree.pruned:
        notes.append(pruned_note(tree))
    opened = tree if isinstance(tree, Tree) else None  # else it was made in memory
    if opened and opened.is_fitting_scorer:
        notes.append(f"{fitting_scorer_note(tree.scorer)}.")
    notes += low_score_notes(tree)
    if opened and opened.thoughts_note:
        notes.append(opened.thoughts_note)
    if opened and opened.merged:
        notes.append(f"{opened.merged}.")
    if opened and opened.given_by_default:
        notes.append(f"{given_by_default_note(tree)}.")
    unjudged = unjudged_note(tree)
    if unjudged:
        notes.append(unjudged)
    if tree.shared_time:
        notes.append(
            f"The seconds of {tree.shared_time:.0%} of the calls are shared time, as earlier "
            "versions recorded it: that of all calls which were stored together, in equal shares. "
            "One call takes longer where calls overlap."
        )
    return [*notes, *_notes_of_answers(opened)] if opened else notes


def _notes_of_answers(tree: Tree) -> list[str]:
    """Write notes on given costs, cut answers, and answers without a known confidence."""
    notes = [f"{note}." for note in tree.given_cost_notes()]
    notable = [
        f"{share:.0%} of {name}"
        for name, share in tree.capped.items()
        if share >= NOTABLE_CAPPED_SHARE
    ]
    if notable:
        notes.append(
            "Many answers ended at their cap of new tokens and may be cut: "
            f"{', '.join(notable)}; give these models more max_new_tokens in the pool file and "
            "collect again."
        )
    if tree.sure is not None and tree.sure < 1 and tree.view.endswith(SIGNALS):
        notes.append(
            f"The model's confidence is known for {tree.sure:.0%} of the answers that a router "
            "reads; for the others the state says that it is unknown."
        )
    return notes


def merged_note(reader: CacheReader, keys: Sequence[str]) -> str:
    """Name the imported queries that have the answers of another query with the same text.

    Imports of earlier versions stored one answer for each text of a question. Since then a query
    whose text is not the only one has its own calls, see `Query.has_own_calls`.

    Args:
        reader: the open cache.
        keys: of the queries of an imported plan.

    Returns:
        A sentence without a full stop; "" if there are none.
    """
    names_by_context: dict[str, list[str]] = {}
    for row in reader.queries(keys, ("dataset", "id", "context")).to_pylist():
        names_by_context.setdefault(row["context"], []).append(f"{row['dataset']}/{row['id']}")
    merged = [names for names in names_by_context.values() if len(names) > 1]
    if not merged:
        return ""
    count = sum(len(names) for names in merged)
    example = " and ".join(merged[0][:MAX_LISTED_MERGED])
    return (
        f"{count} queries have the answers and scores of the first one with their text, e.g. "
        f"{example}: an earlier version imported them as one; import the file again to keep each "
        "one's own"
    )


def unjudged_note(tree: RouteTree) -> str | None:
    """Name the datasets whose programs no test has judged; None if there are none."""
    rows = np.flatnonzero(np.isnan(tree.accuracy).any(axis=1))
    if not len(rows):
        return None
    names = ", ".join(dict.fromkeys(tree.datasets[row] for row in rows))
    return (
        f"No accuracy on {len(rows)} of {len(tree)} queries ({names}): their answers are programs, "
        "and only --run-code judges these by their tests."
    )


def fitting_scorer_note(scorer: str) -> str:
    """Say that a collection chose a scorer that fits a user's own files."""
    return (
        f"Q is {scorer}, as the references of these files are {REFERENCE_FORMS[scorer]}; the "
        f"paper's is --scorer {PAPER_SCORER}"
    )


def low_score_notes(tree: RouteTree) -> list[str]:
    """Note the datasets in which most answers that are right have a low score of Q."""
    score = np.hstack([tree.score[:, 1:], tree.direct.score])  # the root, node 0, is no call
    is_right = np.hstack([tree.accuracy[:, 1:], tree.direct.accuracy]) == 1
    datasets = np.array(tree.datasets)
    notes = []
    for dataset in dict.fromkeys(tree.datasets):
        rows = datasets == dataset
        right_scores = score[rows][is_right[rows]]
        share = float(is_right[rows].mean())
        if share < NOTABLE_RIGHT_SHARE or np.mean(right_scores < LOW_SCORE) <= 0.5:
            continue
        notes.append(
            f"Q is {score[rows].mean():.3f} on {dataset}, where {share:.1%} of the answers are "
            f"right by accuracy: {tree.scorer} scores most right answers below {LOW_SCORE:g}; "
            "--scorer accuracy tells right from wrong."
        )
    return notes


HOLES_REASON = "their trees are incomplete"


def left_out_note(tree: RouteTree) -> str:
    """Say how many queries are left out because of holes, and how they differ from the others."""
    shift = tree.shift if isinstance(tree, Tree) else ""
    reason = tree.left_out_reason if isinstance(tree, Tree) else HOLES_REASON
    return f"{tree.left_out} queries are left out: {reason}; {shift}".rstrip("; ")


def holes_words(holes: Mapping[str, int]) -> str:
    """Say how many calls of a log some queries lack, see `hierrouter_cache.walk.log_holes`."""
    words = {"not offered": "other calls were made", "ended": "the runs ended"}
    counts = " and ".join(f"{count:,} where {words[reason]}" for reason, count in holes.items())
    return f"calls that other questions have are not offered: {counts}"


def holes_note(tree: Tree) -> str:
    """Say how many calls of an imported log are left out, or not offered, and why."""
    reasons = dict(tree.holes)
    left_out = reasons.pop(UNJUDGED, 0)
    notes = []
    if left_out:
        notes.append(
            "calls of the log that no route to a verdict goes through are left out: "
            f"{left_out:,} {UNJUDGED}"
        )
    if reasons:
        notes.append(holes_words(reasons))
    return "; ".join(notes)


def population_shift(
    reader: CacheReader, left_out: Forest, remaining: Forest, scores: tuple[Scores, Scores]
) -> str:
    """Describe how the queries that are left out differ from the remaining ones.

    The quality of each call that they do have is compared with the mean of the same call over the
    remaining queries.

    Args:
        reader: an open cache.
        left_out: the calls of the queries that are left out.
        remaining: the calls of the remaining queries.
        scores: the scores of the calls of both, in this order.
    """
    statements = []
    # Column 0 of the tree, the root, is no call.
    left_out_scores, remaining_scores = (
        np.hstack([part.tree[:, 1:], part.direct]) for part in scores
    )
    deviations = left_out_scores - remaining_scores.mean(axis=0)
    # One number per query, because the calls of one query are not independent.
    query_deviations = []
    for row in deviations:
        present = row[~np.isnan(row)]
        if present.size:
            query_deviations.append(present.mean())
    if len(query_deviations) > 1:
        mean = np.mean(query_deviations)
        margin = 1.96 * np.std(query_deviations, ddof=1) / len(query_deviations) ** 0.5
        low = mean - margin
        high = mean + margin
        if low > 0:
            comparison = "better than"
        elif high < 0:
            comparison = "worse than"
        else:
            comparison = "not clearly better or worse than"
        statements.append(
            f"the answers that they have are {comparison} those of the others at the same calls "
            f"({mean:+.3f} [{low:+.3f}, {high:+.3f}] in Q)"
        )
    columns = ("dataset", "length(question) AS characters")
    left_out_rows = reader.queries(left_out.keys, columns).to_pylist()
    remaining_rows = reader.queries(remaining.keys, columns).to_pylist()
    left_out_length = np.mean([row["characters"] for row in left_out_rows])
    remaining_length = np.mean([row["characters"] for row in remaining_rows])
    statements.append(
        f"their questions have {left_out_length:,.0f} characters, "
        f"those of the others {remaining_length:,.0f}"
    )
    left_out_counts = Counter(row["dataset"] for row in left_out_rows)
    counts = left_out_counts + Counter(row["dataset"] for row in remaining_rows)
    if len(counts) > 1:
        shares = {name: left_out_counts[name] / count for name, count in counts.items()}
        by_share = sorted(counts, key=lambda name: shares[name])
        extremes = (f"{shares[name]:.1%} of {name}" for name in (by_share[-1], by_share[0]))
        statements.append(f"left out are {' and '.join(extremes)}")
    return "; ".join(statements)


def pruned_note(tree: RouteTree) -> str:
    """Say what an adaptive collection left out, and which algorithms learn from such trees."""
    assert tree.pruned is not None
    score = tree.pruned.score[:, 1:]  # the root is no call
    complete = tree.splits.count("train")
    return (
        f"{np.isnan(score).sum():,} of {score.size:,} calls of {len(score):,} train queries were "
        "left out, because they could hardly be the best (collect --adaptive): the value model "
        f"learns from all of them, other algorithms from the {complete:,} whole trees of the train "
        "fold."
    )


def cost_notes(tree: RouteTree, alpha: float) -> list[str]:
    """Note if alpha is so small for these prices that cost decides nothing."""
    cost = tree.cost[:, tree.layout.leaves]
    spread = float(np.mean(cost.max(axis=1) - cost.min(axis=1)))
    if not alpha or not spread or alpha * spread >= NOTABLE_REWARD_SPREAD:
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
    """Count what a cache has for the queries of its last collection.

    Args:
        root: the cache.
        pool: a pool's name or TOML file; None is the pool of the last collection.
        models: names of some models; None is all of them.
        hops: at most those of the pool; None is all of them.
        incomplete: whether to list the queries with missing calls.

    Returns:
        format, queries, nodes (found in the trees, root excluded), direct (single-model calls
        found), complete_queries, missing_nodes, missing_direct, left_out (nodes that an adaptive
        collection left out, not missing), holes (calls that are not there, by reason: "pruned" by
        an adaptive collection, "failed", "not collected"; of a log, whose queries lack nothing,
        "not offered" or "ended", see `log_holes`), failed_calls (by status), calls (distinct model
        calls stored), parts, bytes, models, datasets, context_free (later hops saw no answer), a
        fingerprint of pool and queries. Of a log, which lacks nothing, also layout_nodes (the
        distinct calls of its routes, draws included), hops, and draws (the most of a call); its
        models are its actions. With `incomplete` under that name a list of {query,
        missing_nodes, missing_direct}.

    Raises:
        CacheError: there is no cache, or it is damaged.
        InputError: an unknown pool, model or number of hops.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    opened = open_pool(plan.pool, pool, models, hops)
    is_log = opened.pool.as_stored
    spec = _stored_spec(reader, opened.pool, opened.spec, plan.queries)
    forest = walk(reader, spec, plan.queries)
    is_complete = forest.complete
    if is_log:  # which has the calls that were made, and lacks none
        is_complete = np.count_nonzero(forest.tree.present[:, 1:], axis=1) > 0
    datasets = reader.queries(forest.keys, ("dataset",))["dataset"]
    tree = forest.tree
    missing_nodes = int(np.count_nonzero(~(tree.present | tree.pruned | tree.spare)))
    missing_direct = int(np.count_nonzero(~forest.direct.present & ~forest.direct.pruned))
    failed_calls = {row["status"]: row["n"] for row in reader.sql(FAILED_CALLS_SQL).to_pylist()}
    if is_log:
        holes = log_holes(spec.layout, forest.tree.present)
        missing_nodes = 0
    else:
        missing = missing_nodes + missing_direct
        failed = min(sum(failed_calls.values()), missing)
        left_out = np.count_nonzero(forest.tree.pruned) + np.count_nonzero(forest.direct.pruned)
        reasons = {"pruned": int(left_out), "failed": failed, "not collected": missing - failed}
        holes = {reason: count for reason, count in reasons.items() if count}
    info = {
        "format": PART_FORMAT,
        "queries": len(forest.keys),
        "nodes": int(np.count_nonzero(forest.tree.present[:, 1:])),
        "direct": int(np.count_nonzero(forest.direct.present)),
        "complete_queries": int(np.count_nonzero(is_complete)),
        "missing_nodes": missing_nodes,
        "missing_direct": missing_direct,
        "left_out": int(np.count_nonzero(forest.tree.pruned)),
        "holes": holes,
        "failed_calls": failed_calls,
        "calls": reader.number(
            "SELECT count(DISTINCT key) FROM calls_rows WHERE judge_template IS NULL"
        ),
        "parts": len(reader.parts),
        "bytes": sum(part.path.stat().st_size for part in reader.parts),
        "models": [model.name for model in opened.pool.models],
        "datasets": sorted(set(datasets.to_pylist())),
        "context_free": opened.pool.context_free,
        "fingerprint": digest([opened.pool.to_json(opened.identities), list(forest.keys)]),
    }
    if is_log:
        info["layout_nodes"] = spec.layout.calls
        info["hops"] = spec.layout.hops
        info["draws"] = spec.layout.draws
    if incomplete:
        info["incomplete"] = _incomplete_queries(
            reader, forest.select(np.flatnonzero(~is_complete))
        )
    return info


def _stored_spec(reader: CacheReader, pool: Pool, spec: TreeSpec, keys: Sequence[str]) -> TreeSpec:
    """The spec of a pool; that of a log has the routes that the cache has."""
    return stored_layout(reader, spec, keys) if pool.as_stored else spec


def ask_cache(root: Path, question: str) -> pa.Table:
    """Answer one SELECT over the pool and queries of the last collection.

    Args:
        root: the cache.
        question: the SELECT; `hierrouter_cache.sql` lists the views.

    Raises:
        InputError: see `hierrouter_cache.sql.ask`.
        CacheError: there is no cache, or it is damaged.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    pool, identities = load_planned_pool(plan.pool)
    spec = _stored_spec(reader, pool, pool.tree_spec(identities), plan.queries)
    return ask(reader, spec, plan.queries, pool.rates(), question)


def _incomplete_queries(reader: CacheReader, incomplete: Forest) -> list[dict[str, Any]]:
    """Count the missing calls of queries that lack some, in the order of the plan."""
    rows = reader.queries(incomplete.keys, ("dataset", "id")).to_pylist()
    is_there = incomplete.tree.present | incomplete.tree.spare
    nodes = np.count_nonzero(~is_there, axis=1).tolist()
    direct = np.count_nonzero(~incomplete.direct.present, axis=1).tolist()
    return [
        {
            "query": f"{row['dataset']}/{row['id']}",
            "missing_nodes": missing_nodes,
            "missing_direct": missing_direct,
        }
        for row, missing_nodes, missing_direct in zip(rows, nodes, direct, strict=True)
    ]


def verify_cache(
    root: Path, rescore: bool = False, on_rows: OnCount = ignore_count, run_code: bool = False
) -> list[str]:
    """Check every file of a cache and the meaning of its rows.

    Args:
        root: the cache.
        rescore: whether to compute the scores again.
        on_rows: progress callback, called with (rows checked, rows in all).
        run_code: with `rescore`, whether to run the programs in responses again.

    Returns:
        The results of the checks, one per line.

    Raises:
        DamagedPart: a file is damaged, see `hierrouter_cache.maintenance.damaged_files` for all of
            them; or it has values that no collection writes.
        CacheError: there is no cache, or it changed during the check.
    """
    reader = CacheReader(root, rehash=True)
    vectors = embedding_files(root)
    trees = list_saved_trees(root)
    for file in vectors:
        require_sound(file)
    for tree in trees:
        fault = saved_tree_fault(tree)
        if fault:
            raise DamagedPart(f"damaged tree: {tree}: {fault}; delete it, it is made again")
    checked = _check_rows(reader, on_rows)
    plan = reader.latest_plan()
    forest = walk(reader, open_pool(plan.pool).spec, plan.queries)
    orphans = reader.number(
        "SELECT count(*) FROM calls_rows c ANTI JOIN (SELECT outcome AS context FROM "
        "calls_rows UNION ALL SELECT context FROM queries_rows) p ON p.context = c.context "
        "WHERE judge_template IS NULL"
    )
    lines = [
        f"{len(reader.parts)} parts: every byte as its name says, the chain is whole",
        f"{checked} rows: every key is that of the row's content",
        f"{len(vectors)} embedding files, {len(trees)} kept trees: every byte as its name says",
        f"{np.count_nonzero(forest.complete)} of {len(forest.keys)} queries complete, "
        f"{np.count_nonzero(~forest.tree.present)} nodes missing",
        f"{orphans} orphans: calls whose parent answer or question is not in the cache",
    ]
    if rescore:
        lines += _check_scores(reader, run_code)
    return lines


def _check_rows(reader: CacheReader, on_rows: OnCount) -> int:
    """Check every row of every part, superseded rows included.

    Args:
        reader: an open cache.
        on_rows: progress callback, called with (rows checked, rows in all).

    Returns:
        The number of rows.

    Raises:
        DamagedPart: a row has values that no collection writes.
        CacheError: the cache was compacted during the check.
    """
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
    """Describe what is wrong with a row, as `row_fault`; the pool of a plan must open as well."""
    fault = row_fault(kind, row)
    if fault is None and kind == "plans":
        try:
            stored_pool(row["pool"], "its pool")
        except InputError as error:
            return str(error)
    return fault


def _check_scores(reader: CacheReader, run_code: bool) -> list[str]:
    """Compute scores again and compare them with the stored ones.

    Args:
        reader: an open cache.
        run_code: whether to run the programs in responses again.

    Returns:
        The results, one per line.

    Raises:
        DamagedPart: a score differs.
        WorldError: programs cannot be confined on this machine.
    """
    scorers = {scorer.key: scorer for scorer in SCORERS_BY_NAME.values()}
    rows = reader.sql(
        "SELECT DISTINCT s.call, s.scorer, s.value, coalesce(c.visible, c.response) AS response, "
        "q.answers, q.choices, q.tests, q.answer_type FROM scores s "
        'JOIN calls c ON c.key = s.call JOIN queries q ON q."references" = s."references"'
    ).to_pylist()
    current = [row for row in rows if row["scorer"] in scorers]
    for row in current:
        scorer = scorers[row["scorer"]]
        value = scorer(
            row["response"],
            row["answers"],
            stored_choices(row["choices"]),
            answer_type=row["answer_type"] or "",
        )
        if value != row["value"]:
            raise DamagedPart(
                f"score {row['scorer']} of call {row['call']} is {row['value']}, "
                "not what its response gives; no version of this program stored it"
            )
    judged = [row for row in rows if row["scorer"] == TEST_SCORER.key] if run_code else []
    verdicts = TEST_SCORER.values(
        [ScorerInput(row["response"], tests=tuple(row["tests"])) for row in judged]
    )
    for row, value in zip(judged, verdicts, strict=True):
        if value != row["value"]:
            raise DamagedPart(
                f"the verdict on the program of call {row['call']} is {row['value']}, and now "
                f"{value}; verify it again, a time limit may have ended it"
            )
    count = len(current) + len(judged)
    lines = [f"{count} scores: as computed again from the responses"]
    others = len(rows) - count
    if others:
        lines.append(
            f"{others} scores of other versions, users' functions or imports: not computed again"
        )
    return lines
