"""The numbers at the top of the page.

In: a `Report`. Out: a few `Headline`s. Not covered: all other numbers (`tables`).
"""

from __future__ import annotations

from dataclasses import dataclass

from hierrouter.report.results import ALL, Report, Row


@dataclass(frozen=True)
class Headline:
    """One number at the top of the page, what it is, and what it is compared with."""

    label: str
    value: str
    detail: str


def headlines(report: Report) -> tuple[Headline, ...]:
    """What a reader in a hurry wants to know; baselines only where nothing has been trained."""
    router, single = report.router, report.best("single")
    if router is None:
        bounds = [single, report.best("route"), report.best("oracle")]
        labels = ["Best pool model", "Best fixed route", "Oracle"]
        return tuple(
            Headline(f"{label}, R", f"{row.reward:.3f}", f"{row.policy}, {_span(row)}")
            for label, row in zip(labels, bounds, strict=True)
            if row is not None
        )
    found = [Headline("Net reward R of HierRouter", f"{router.reward:.3f}", _span(router))]
    closed, route, factor = (
        report.gap_closed.get("all"),
        report.best("route"),
        report.quality_factor,
    )
    if closed is not None:
        found.append(
            Headline(
                "Gap closed",
                _share(closed),
                f"{_share_span(report)}of the {report.gap('all'):.3f} from the best fixed route to "
                "the oracle",
            )
        )
    if route is not None and route.difference is not None:
        found.append(
            Headline(
                "R over the best fixed route",
                f"{route.difference:+.3f}",
                f"{route.policy}, the best one on these queries, "
                f"[{route.difference_low:+.3f}, {route.difference_high:+.3f}]",
            )
        )
    best = report.best("single", by="quality")
    if factor is not None and best is not None:
        found.append(
            Headline(
                "Quality over the best pool model",
                f"{factor:.2f}×",
                f"Q {router.quality:.3f} against {best.quality:.3f} of {best.policy}",
            )
        )
    return tuple(found)


def _span(row: Row) -> str:
    return f"[{row.reward_low:.3f}, {row.reward_high:.3f}] over {row.n} queries"


def _share_span(report: Report) -> str:
    """The interval of the share of the gap closed, where it has bounds."""
    ends = report.gap_closed_intervals.get(ALL)
    return f"[{_share(ends[0])}, {_share(ends[1])}] " if ends else ""


def _share(share: float) -> str:
    """In percent; what is not quite all of it is not called so."""
    return "> 99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"
