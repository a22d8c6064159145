"""`hierrouter off-policy` and `learn-from`: estimates from a log, and learning from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from hierrouter.serving.evaluate_log import OffPolicy
from hierrouter.serving.learn_from import LearnFrom
from hierrouter_cli import console, declared
from hierrouter_cli.declared import with_flags


@with_flags
def off_policy(
    *,
    estimating: OffPolicy,
    savings: Annotated[
        bool,
        declared.switch("--savings", "What the logged router cost, less each model by itself."),
    ] = False,
    format: declared.Format = "text",
) -> None:
    """Estimate what a trained router would earn, from episodes that another policy played.

    No model is called, and no cache is needed: the log has the texts. The router is that of the
    newest `train`, or of --checkpoint.
    """
    say = partial(console.say_of, "off-policy")
    if savings:
        rows, alpha = estimating.savings(say)
        _put_savings(rows, alpha, format)
        return
    result = estimating.run(say, console.bar)
    from hierrouter.serving.off_policy import as_json, long_table, result_tables

    console.put_as(format, result, as_json, long_table, result_tables)


def _put_savings(rows: Sequence[Mapping[str, Any]], alpha: float, format: str) -> None:
    from hierrouter.serving.estimators import INTERVAL_LEVEL
    from hierrouter.serving.off_policy import savings_table
    from hierrouter.tables import Column, Line, Table, json_text

    console.put_as(
        format,
        rows,
        lambda rows: json_text({"level": INTERVAL_LEVEL, "rows": rows}, "rows"),
        lambda rows: Table(
            "savings",
            tuple(map(Column, rows[0])),
            tuple(Line("", tuple(row.values())) for row in rows),
        ),
        lambda rows: [savings_table(rows, alpha)],
    )


@with_flags
def learn_from(*, learning: LearnFrom, format: declared.ShortFormat = "text") -> None:
    """Collect a sample of the questions of a log, learn from it, and compare with the old router.

    The new router and the one in service (see `deploy`) are compared on questions that neither of
    them learned from. One that is not shown to be better can only be deployed as a shadow.
    """
    from hierrouter_cli.collect import make_calls
    from hierrouter_cli.train import callbacks_with_bars

    say = partial(console.say_of, "learn-from")
    result = learning.run(make_calls, say, callbacks_with_bars())
    if format == "json":
        console.put_json(result.as_object())
        return
    console.put(f"{result.candidate}: {result.verdict}\n")
    if result.verdict.is_better:
        say(f"next, `hierrouter deploy {result.candidate} --shadow`")
