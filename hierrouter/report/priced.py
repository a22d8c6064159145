"""The same policies under one price list.

In: what each policy does on each query under these prices, alpha. Out: `PricedRows`, mean C and R
over all queries and the share of the gap closed. Not covered: intervals, which the report gives
under its own prices (`build`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hierrouter.evaluate.outcome import Outcome
from hierrouter.report.build import columns_of
from hierrouter.report.gaps import gaps_closed
from hierrouter.report.results import PricedRow, PricedRows


def priced_rows(
    name: str, datasets: Sequence[str], outcomes: Sequence[Outcome], alpha: float
) -> PricedRows:
    """Means of every policy under one price list.

    Args:
        name: of the price list.
        datasets: name of the dataset of each query.
        outcomes: policies over these queries, at costs under these prices.
        alpha: weight of cost in R = Q - alpha * C (paper section 3.1).
    """
    rewards = {
        column: [(outcome.kind, float(outcome.reward(alpha)[at].mean())) for outcome in outcomes]
        for column, at in columns_of(datasets).items()
    }
    return PricedRows(
        name, tuple(_row(outcome, alpha) for outcome in outcomes), gaps_closed(rewards)
    )


def _row(outcome: Outcome, alpha: float) -> PricedRow:
    return PricedRow(
        policy=outcome.name,
        kind=outcome.kind,
        cost=float(outcome.cost.mean()),
        reward=float(outcome.reward(alpha).mean()),
    )
