"""`hierrouter compare`: the usual routers beside the learned one."""

from __future__ import annotations

from hierrouter.replay.open_tree import OpenTree
from hierrouter.reports.jobs import Compare
from hierrouter_cli import console, options
from hierrouter_cli.declared import with_flags
from hierrouter_cli.selecting import check_job, open_tree, quiet_bar


@with_flags
def compare(*, opening: OpenTree, comparing: Compare, format: options.Format = "text") -> None:
    """Fit the baselines on the train fold, and compare them with the learned router.

    Text also writes everything as JSON; the other formats write it only where --out says.
    """
    with console.bar("start"):  # the import of whatever learns takes seconds
        from hierrouter.reports.comparison import as_json, contest_tables, long_table
        from hierrouter.runs.selection import as_trained

    check_job(comparing)
    tree = open_tree(as_trained(opening, comparing.checkpoint))
    standings = comparing.evaluate(tree, console.say, lambda: quiet_bar("fit"))
    console.put_as(format, standings, as_json, long_table, contest_tables)
    if comparing.out or format == "text":
        console.say(f"compare: {standings.save(comparing.out)}")
