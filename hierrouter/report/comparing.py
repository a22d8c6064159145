"""A finished comparison: the usual routers beside the learned one.

`compare` fits the baselines and values everybody on one fold; what it returns shows itself as text,
and writes the same files as the command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hierrouter.baselines.answers import answers_for
from hierrouter.baselines.arms import Answers
from hierrouter.baselines.baseline import Baseline
from hierrouter.baselines.contest import OnFitted, contest
from hierrouter.baselines.look import look_of
from hierrouter.baselines.registry import baselines as baselines_named
from hierrouter.baselines.sets import require_sets, usable_sets
from hierrouter.comparison import cost_unit
from hierrouter.evaluate.policies import OwnPolicy
from hierrouter.learn.config import PAPER_SEED
from hierrouter.provenance import provenance
from hierrouter.replay.tree import Tree
from hierrouter.report.contest_rows import as_json, long_table
from hierrouter.report.contest_tables import contest_tables, named_tables
from hierrouter.report.contests import Standings, standings
from hierrouter.report.finished import ROWS, as_own, table_named
from hierrouter.report.render import as_markdown
from hierrouter.report.table import Table
from hierrouter.shown import Shown, shown_router
from hierrouter.trees import listed
from hierrouter_cache.atomic_files import write_atomically


@dataclass(frozen=True, repr=False)
class Compared:
    """What a comparison found.

    Attributes:
        result: every figure, as plain values.
        look: what was looked at, for the log of looks at the test fold; JSON values.
    """

    result: Standings
    look: Mapping[str, Any]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a reader must not miss."""
        return self.result.contest.notes

    @cached_property
    def tables(self) -> dict[str, Table]:
        """Every table by name; "rows" is the long one, a line for each router and set of arms."""
        return {**named_tables(self.result), ROWS: long_table(self.result)}

    def table(self, name: str = "reward") -> Table:
        """One of `tables`.

        Raises:
            InputError: there is none of this name.
        """
        return table_named(name, self.tables)

    def to_json(self) -> str:
        """The comparison as one JSON object; its keys are a contract, see docs/compare.md."""
        return as_json(self.result)

    def write(self, folder: Path) -> Path:
        """The JSON and the tables as Markdown in `folder`; returns the JSON."""
        tables = "\n".join(as_markdown(table) for table in contest_tables(self.result))
        write_atomically(folder / "compare.md", tables.encode())
        page = folder / "compare.json"
        write_atomically(page, self.to_json().encode())
        return page

    def __repr__(self) -> str:
        return repr(self.table())


def compare(
    tree: Tree,
    run: str | os.PathLike[str] | None = None,
    *,
    alpha: float | None = None,
    split: str = "test",
    baselines: str | Sequence[str] | None = None,
    sets: str | Sequence[str] = ("A", "B"),
    policies: Sequence[Any] = (),
    seed: int = PAPER_SEED,
    progress: OnFitted | None = None,
) -> Compared:
    """Fit the baselines on the train fold, and compare them with the learned router.

    Looks at the test fold are logged by the command line only.

    Args:
        tree: all folds.
        run: of `train`, or its folder; default: the newest that learned from the tree.
        alpha: price of cost; default: the one that the router was trained for.
        split: the fold to compare on.
        baselines: names, or `module:Class`, as a list or as "a,b"; None is all of ours.
        sets: what they choose from: "A" one direct call, "B" whole routes.
        policies: of your own, to be valued beside them; see `hierrouter.evaluate.policies`.
        seed: of what baselines draw.
        progress: told (done, total, name) after each fit.

    Raises:
        InputError: something does not fit together, or there is nothing to compare on.
        CacheError: the cache that the tree was opened from is gone or damaged.
    """
    chosen, wanted = baselines_named(listed(baselines)), require_sets(listed(sets) or [])
    answers = answers_for(tree.root, tree, chosen, usable_sets(tree, wanted), tree.pool)
    shown = shown_router(tree, alpha, None if run is None else Path(run))
    own = as_own(policies)
    return compared(tree, shown, chosen, wanted, answers, split, seed, progress, own)


def compared(
    tree: Tree,
    shown: Shown,
    chosen: Sequence[Baseline],
    sets: Sequence[str],
    answers: Mapping[str, Answers] | None,
    split: str,
    seed: int,
    on_fitted: OnFitted | None = None,
    policies: Sequence[OwnPolicy] = (),
) -> Compared:
    """Hold the contest, and work out its intervals; see `contest` for the arguments and errors."""
    held = contest(
        tree,
        shown.alpha,
        chosen,
        sets,
        shown.trained,
        split,
        seed,
        answers,
        on_fitted or _nobody,
        policies,
    )
    source = provenance(tree, tree.root, shown.run, shown.trained, None, {})
    result = standings(held, tree.scorer, source, cost_unit=cost_unit([tree]))
    return Compared(result, look_of(held, chosen, policies))


def _nobody(done: int, total: int, name: str) -> None:
    """Whoever is not told."""
