"""What the page holds, as one JSON value.

In: `Explored`. Out: dictionaries, lists and packed arrays that `templates/data.js` reads. An array
over queries and nodes has a row for each node, so that the page walks along queries. All foreign
text has passed `safe_text`. Not covered: where it stands in the page.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.comparison import cost_unit
from hierrouter.explore.data import Explored
from hierrouter.explore.learned import Learned
from hierrouter.explore.packing import numbers, whole_numbers
from hierrouter.report.build import columns_of
from hierrouter.report.results import ALL
from hierrouter.report.text import safe_text
from hierrouter.tree_texts import Texts
from hierrouter_cache.tree import DirectCalls, RouteTree

LONGEST_TEXT = 4_000  # characters of one answer
CUT = " […]"


def as_object(explored: Explored) -> dict[str, Any]:
    """The whole of it."""
    fold = explored.fold
    datasets = list(dict.fromkeys(fold.datasets))
    train = explored.tree.split("train")
    return {
        "split": explored.split,
        "scorer": safe_text(fold.scorer),
        "unit": cost_unit([fold]),
        "models": [safe_text(name) for name in fold.models],
        "hops": fold.hops,
        "datasets": [safe_text(name) for name in datasets],
        "queries": {
            "id": [safe_text(name) for name in fold.query_ids],
            "dataset": whole_numbers(np.array([datasets.index(name) for name in fold.datasets])),
        },
        "nodes": _calls(fold),
        "direct": _calls(fold.direct)
        | {
            "models": [safe_text(name) for name in fold.direct.models],
            "inPool": [name in fold.models for name in fold.direct.models],
        },
        "train": _train(train, datasets) if len(train) else None,
        "alphas": list(explored.alphas),
        "start": explored.start,
        "routers": [_router(learned) for learned in explored.learned],
        "brought": [
            {"name": safe_text(one.name), "node": whole_numbers(one.node)}
            for one in explored.brought
        ],
        "texts": {str(row): _texts(texts) for row, texts in explored.texts.items()},
        "notes": [safe_text(note) for note in explored.notes],
    }


def _calls(of: RouteTree | DirectCalls) -> dict[str, Any]:
    """What calls are worth and took, a row for each node or model."""
    return {
        "score": numbers(of.score.T),
        "accuracy": numbers(of.accuracy.T),
        "tokensIn": whole_numbers(of.tokens_in.T),
        "tokensOut": whole_numbers(of.tokens_out.T),
        "rate": of.rate.tolist(),
    }


def _train(train: RouteTree, datasets: list[str]) -> dict[str, Any]:
    """What each node is worth on the train fold, by dataset; all queries last.

    Enough to choose a fixed route at any alpha and price. A dataset without queries has null.
    """
    rows = columns_of(train.datasets)
    return {"columns": [_means(train, rows.get(name)) for name in (*datasets, ALL)]}


def _means(train: RouteTree, rows: NDArray[np.int64] | None) -> dict[str, Any] | None:
    if rows is None:
        return None
    return {
        "score": train.score[rows].mean(axis=0).tolist(),
        "tokensIn": train.tokens_in[rows].mean(axis=0).tolist(),
        "tokensOut": train.tokens_out[rows].mean(axis=0).tolist(),
    }


def _router(learned: Learned) -> dict[str, Any]:
    return {
        "name": learned.name,
        "note": learned.note,
        "stop": learned.allow_stop,
        "start": whole_numbers(learned.start),
        "counts": whole_numbers(np.array([len(changed) for changed in learned.changed])),
        "query": whole_numbers(np.concatenate(learned.changed)),
        "node": whole_numbers(np.concatenate(learned.node)),
    }


def _texts(texts: Texts) -> dict[str, Any]:
    return {
        "question": _cut(texts.question),
        "references": [_cut(reference) for reference in texts.references],
        "answers": [_cut(answer) for answer in texts.answers],
    }


def _cut(text: str) -> str:
    safe = safe_text(text)
    return safe if len(safe) <= LONGEST_TEXT else safe[:LONGEST_TEXT] + CUT
