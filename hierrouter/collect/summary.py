"""What a collection tells: on its way, and at its end.

In: counts from the scheduler. Out: callbacks and plain values. Not covered: the words of the
command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hierrouter_cache.errors import WorldError

NAMED = 5  # changed queries; the others are counted


@dataclass
class Progress:
    """What a collection reports while it runs; the default ignores it all.

    Attributes:
        on_level: told the label and the number of calls before each model at each level.
        on_calls: told the calls, tokens and cost of what was just answered.
        on_lost: told how many calls were just given up.
        on_changed: told, before the first call, which queries were collected earlier with another
            text or other reference answers, as `dataset/id`.
    """

    on_level: Callable[[str, int], None] = lambda label, calls: None
    on_calls: Callable[[int, int, float], None] = lambda calls, tokens, cost: None
    on_lost: Callable[[int], None] = lambda calls: None
    on_changed: Callable[[Sequence[str]], None] = lambda names: None


@dataclass
class Counted:
    """Tells one callable how far each level is, as (label, done, total)."""

    tell: Callable[[str, int, int], None]
    label: str = ""
    done: int = 0
    total: int = 0

    def on_level(self, label: str, calls: int) -> None:
        """A model begins with a level."""
        self.label, self.done, self.total = label, 0, calls
        self.tell(label, 0, calls)

    def on_some(self, calls: int, *_: float) -> None:
        """Calls were answered, or given up."""
        self.done += calls
        self.tell(self.label, self.done, self.total)


@dataclass
class Summary:
    """What a collection did.

    Attributes:
        queries: queries in the plan.
        wanted: nodes and direct calls of all their trees.
        calls: model calls made now and answered.
        earlier: distinct calls that were in the cache before; the rest of `wanted` are nodes whose
            prompt is that of another node.
        tokens_in, tokens_out: of the calls made now.
        seconds: wall time in the models.
        failed: how many calls gave no answer after all attempts, by status.
        example: what the first of them said.
        missing: nodes and direct calls that are not there because of them.
        incomplete: queries that lack any.
    """

    queries: int
    wanted: int
    calls: int = 0
    earlier: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    failed: Counter[str] = field(default_factory=Counter)
    example: str = ""
    missing: int = 0
    incomplete: int = 0


def require_answers(summary: Summary) -> None:
    """Refuse to call a collection whole in which a call gave no answer.

    Raises:
        WorldError: with the number of failed calls of each status.
    """
    if not summary.failed:
        return
    counts = ", ".join(f"{count} {status}" for status, count in summary.failed.most_common())
    remedy = "everything else is safe, rerun the same command to ask again for just those"
    if set(summary.failed) == {"too_long"}:
        remedy = "give the model a smaller max_new_tokens, or shorter questions"
    elif not summary.calls + summary.earlier:
        remedy = "nothing was answered: look at the model's name and settings"
    raise WorldError(
        f"{summary.failed.total()} calls failed ({counts}), {summary.incomplete} of "
        f"{summary.queries} queries are incomplete: {summary.example[:110]}; {remedy}"
    )


def changed_line(names: Sequence[str]) -> str:
    """Which queries are not what they were when they were collected, in one line."""
    queries = "1 query" if len(names) == 1 else f"{len(names):,} queries"
    more = ", ..." if len(names) > NAMED else ""
    return (
        f"collect: {queries} changed: {', '.join(names[:NAMED])}{more}; "
        "asked anew, what was collected before stays"
    )
