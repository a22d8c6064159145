"""The same policies under one price list.

In: what each policy does on each query under these prices, alpha. Out: `PricedRows`, mean C and R
over all queries with their intervals, from the resamples that `build` draws, and the share of the
gap closed. Not covered: datasets, Q and accuracy, which do not hang on prices (`build`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hierrouter.evaluate.outcome import Outcome
from hierrouter.report.build import columns_of
from hierrouter.report.certainty import Estimate
from hierrouter.report.gaps import gaps_closed
from hierrouter.report.intervals import estimates, stream_of_all
from hierrouter.report.results import Bootstrap
from hierrouter.report.rows import PricedRow, PricedRows


def priced_rows(
    name: str,
    datasets: Sequence[str],
    outcomes: Sequence[Outcome],
    alpha: float,
    bootstrap: Bootstrap | None = None,
) -> PricedRows:
    """Means of every policy under one price list.

    Args:
        name: of the price list.
        datasets: name of the dataset of each query.
        outcomes: policies over these queries, at costs under these prices.
        alpha: weight of cost in R = Q - alpha * C (paper section 3.1).
        bootstrap: how intervals are made.
    """
    columns = columns_of(datasets)
    rewards = {
        column: [(outcome.kind, float(outcome.reward(alpha)[at].mean())) for outcome in outcomes]
        for column, at in columns.items()
    }
    values = [*(one.cost for one in outcomes), *(one.reward(alpha) for one in outcomes)]
    found = estimates(np.array(values), bootstrap or Bootstrap(), stream_of_all(datasets))
    rows = (_row(one, *found[at :: len(outcomes)]) for at, one in enumerate(outcomes))
    return PricedRows(name, tuple(rows), gaps_closed(rewards))


def _row(outcome: Outcome, cost: Estimate, reward: Estimate) -> PricedRow:
    return PricedRow(
        policy=outcome.name,
        kind=outcome.kind,
        cost=cost.mean,
        reward=reward.mean,
        cost_low=cost.low,
        cost_high=cost.high,
        reward_low=reward.low,
        reward_high=reward.high,
    )
