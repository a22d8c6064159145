"""Everybody at several alphas: all learners and baselines, several seeds each, in one table.

    python benchmarks/leaderboard.py [--cache caches/default] [--pool NAME] [--seeds 5]
        [--alphas auto|0.0025,0.01,0.04] [--baselines A,B] [--sets A,B] [--policy module:object]
        [--fold test] [--scorer given] [--encoder NAME] [--json FILE]

Everybody is trained and fitted anew at each alpha. `auto`: where routing matters most, see
`middle_alpha`, a quarter of it, and four times it. The first table ranks everybody by mean R; the
second says what a look at answers is worth. A module of --policy or --baselines is looked for where
the script is started.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hierrouter.evaluation.bounds import ANYTIME_ORACLE, best_fixed_route, oracle
from hierrouter.evaluation.budget import policy_break_points
from hierrouter.evaluation.outcome import Floats, Outcome, from_endings
from hierrouter.evaluation.policies import (
    OwnPolicy,
    own_policies,
    policy_endings,
    require_distinct_names,
)
from hierrouter.learning.baselines.answers import answers_for
from hierrouter.learning.baselines.arms import Baseline, require_sets, usable_sets
from hierrouter.learning.baselines.contest import contest
from hierrouter.learning.baselines.registry import baselines as named
from hierrouter.learning.baselines.simple import DatasetOracle
from hierrouter.learning.config import Objective, ValueConfig, training_config
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.training import train
from hierrouter.paper import PAPER_SCORER
from hierrouter.replay.inspection import data_notes
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.opening import training_tree
from hierrouter.replay.states import AGREEMENT, SIGNALS
from hierrouter.replay.tree import Tree
from hierrouter.reports.estimates import Bootstrap, Estimate, estimate_means
from hierrouter.tables import Cell, Column, Line, Table, as_markdown, interval, json_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

Opens = Callable[[str, bool], Tree]  # by view, and whether earlier answers may be given
OnPlaced = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Learner:
    """One way to train a router.

    Attributes:
        algo: see `hierrouter.learning.config.CONFIG_CLASSES`; "value" is one fit for all alphas.
        view: what it sees of a state.
        allow_return: whether it may give any answer of its route; all may stop early.
    """

    algo: str
    view: str
    allow_return: bool

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{self.algo}, sees {self.view}{', may return' if self.allow_return else ''}"

    @property
    def is_blind(self) -> bool:
        """Whether it sees no answer."""
        return self.view == "query"


LEARNERS = (
    Learner("exact", "query", allow_return=False),
    Learner("exact", "query+answer", allow_return=True),
    Learner("exact", "query+agreement", allow_return=True),
    Learner("exact", "query+signals", allow_return=False),
    Learner("exact", "query+signals", allow_return=True),
    Learner("exact", "query+answer+signals", allow_return=True),
    Learner("value", "query", allow_return=False),
    Learner("value", "query+signals", allow_return=True),
    Learner("ppo", "query", allow_return=False),
    Learner("ppo", "query+signals", allow_return=True),
)
AROUND = (0.25, 1.0, 4.0)  # alphas, in middle ones
LEARNED, BASELINES, OWN, BOUNDS = "HierRouter", "Baselines", "Policies of your own", "Bounds"
DEPLOYABLE = (LEARNED, BASELINES, OWN)
BEST_FIXED = "best fixed route"


@dataclass(frozen=True)
class Place:
    """One policy at every alpha.

    Attributes:
        name: how the table calls it.
        group: what kind of policy it is.
        is_blind: it sees the question alone.
        outcomes: what it does on each query at each alpha, the mean over the seeds.
        validation: mean R on the validation fold at each alpha; NaN where it is not known.
    """

    name: str
    group: str
    is_blind: bool
    outcomes: tuple[Outcome, ...]
    validation: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class Leaderboard:
    """What was found.

    Attributes:
        alphas: ascending.
        places: everybody, in the order in which they were tried.
        reward: float64[alphas, places, queries], R.
        bootstrap: how intervals are made.
        split: the fold shown.
        seeds: how many of each.
        tree: its fingerprint.
        notes: sentences that a reader must not miss.
    """

    alphas: tuple[float, ...]
    places: tuple[Place, ...]
    reward: Floats
    bootstrap: Bootstrap
    split: str
    seeds: int
    tree: str
    notes: tuple[str, ...] = ()

    def among(self, is_blind: bool, groups: Collection[str] = DEPLOYABLE) -> list[int]:
        """The policies that see the question alone, or those that see answers, by their numbers.

        `groups`: where they may come from; bounds are no policies. Raises InputError: there are
        none.
        """
        places = enumerate(self.places)
        known = [at for at, one in places if one.is_blind == is_blind and one.group in groups]
        if not known:
            raise InputError("nobody to compare: give --baselines")
        return known

    def chosen(self, at: int, is_blind: bool, groups: Collection[str] = DEPLOYABLE) -> int:
        """Of `among` the policy that is best on validation at an alpha, by its number.

        `at`: number of the alpha.
        """
        known = self.among(is_blind, groups)
        return max(known, key=lambda place: self.places[place].validation[at])

    def difference(self, at: int, first: int, second: int) -> Estimate:
        """Mean R of one policy less that of another at an alpha, paired by query."""
        reward = self.reward[at]
        return estimate_means(reward[[first]] - reward[[second]], self.bootstrap, 0)[0]

    def find(self, name: str) -> int:
        """The number of the policy of this name."""
        return [place.name for place in self.places].index(name)


def middle_alpha(tree: RouteTree) -> float:
    """Where routing matters most: 1, 2 or 5 times a power of ten.

    There the anytime oracle is furthest above the best fixed route on the train fold, among the
    alphas at which that route still earns something: beyond, only cost is left and the distance
    grows without end. Raises InputError: cost never decides anything.
    """
    train = tree.split("train")
    break_points = policy_break_points(train, allow_stop=True)
    if not len(break_points):
        raise InputError("cost decides nothing in this tree: all alphas are the same; use compare")
    low, high = (int(np.floor(np.log10(one))) for one in (break_points[0], break_points[-1]))
    found = [first * 10.0**power for power in range(low, high + 1) for first in (1, 2, 5)]
    fixed = [best_fixed_route(train, alpha, train, True).reward(alpha).mean() for alpha in found]
    gaps = [
        oracle(train, alpha, True).reward(alpha).mean() - earned if earned > 0 else -np.inf
        for alpha, earned in zip(found, fixed, strict=True)
    ]
    return float(f"{found[int(np.argmax(gaps))]:.1e}")


def leaderboard(
    opens: Opens,
    baselines: Sequence[Baseline],
    sets: Sequence[str],
    policies: Sequence[OwnPolicy] = (),
    *,
    alphas: Sequence[float] = (),
    seeds: int = 5,
    seed: int = 42,
    split: str = "test",
    learners: Sequence[Learner] = LEARNERS,
    on_placed: OnPlaced = lambda done, total, name: None,
) -> Leaderboard:
    """Train and fit everybody on the train fold, value everybody on one fold.

    Raises InputError: as `contest` and `train`.

    Args:
        opens: the tree, by view.
        baselines, sets, policies: as in `contest`.
        alphas: empty is a quarter of `middle_alpha`, that itself, and four times it.
        seeds: trainings of each learner, and fits of each baseline; from `seed` on.
        split: the fold that is shown.
        on_placed: told (done, total, name).
    """
    taken = [*(one.name for one in learners), *(one.name for one in baselines)]
    require_distinct_names(policies, [*taken, BEST_FIXED, ANYTIME_ORACLE])
    tree, notes = opens("query", False), []
    if opens(f"query+{AGREEMENT}", True).sure == 0:
        learners = [one for one in learners if not one.view.endswith(SIGNALS)]
        notes.append("Learners that see how sure models were are left out: nobody told.")
    # What cannot be opened is said before anything is trained.
    seen = {(one.view, one.allow_return) for one in learners}
    trees = {one: opens(*one) for one in sorted(seen)}
    alphas = tuple(sorted(alphas or [middle_alpha(tree) * part for part in AROUND]))
    each = range(seed, seed + seeds)
    total = len(learners) + len(alphas) * seeds
    places = []
    for done, learner in enumerate(learners, 1):
        seeing = trees[learner.view, learner.allow_return]
        places.append(_learned(learner, seeing, alphas, each, split))
        on_placed(done, total, learner.name)
    rivals = _rivals(tree, baselines, sets, alphas, each, split, len(learners), total, on_placed)
    fold = tree.split(split)
    places += [*rivals, *(_brought(one, tree, alphas, split) for one in policies)]
    fixed = [best_fixed_route(tree.split("train"), alpha, fold, True) for alpha in alphas]
    bounds = {BEST_FIXED: fixed, ANYTIME_ORACLE: [oracle(fold, alpha, True) for alpha in alphas]}
    places += [
        Place(name, BOUNDS, True, tuple(found), (np.nan,) * len(alphas))
        for name, found in bounds.items()
    ]
    reward = np.array(
        [[one.outcomes[at].reward(alpha) for one in places] for at, alpha in enumerate(alphas)]
    )
    return Leaderboard(
        alphas,
        tuple(places),
        reward,
        Bootstrap(),
        split,
        seeds,
        tree.fingerprint,
        (*data_notes(tree), *notes),
    )


def _learned(
    learner: Learner, tree: Tree, alphas: Sequence[float], seeds: range, split: str
) -> Place:
    """One learner, trained at each alpha; a sweep once for all."""
    learned_from = training_tree(tree)
    folds = tree.split(split), tree.split("validation")
    may = {"allow_stop": True, "allow_return": learner.allow_return}
    found: dict[float, list[tuple[Outcome, Outcome]]] = {alpha: [] for alpha in alphas}
    for seed in seeds[:1] if learner.algo == "value" else seeds:  # nothing in it is random
        for alpha, router in _trained(learner, learned_from, alphas, may, seed):
            found[alpha].append((router.outcome(folds[0]), router.outcome(folds[1])))
    shown = tuple(mean_outcome([one for one, _ in found[alpha]]) for alpha in alphas)
    tried = [
        float(np.mean([one.reward(alpha).mean() for _, one in found[alpha]])) for alpha in alphas
    ]
    return Place(learner.name, LEARNED, learner.is_blind, shown, tuple(tried))


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """One policy drawn anew for each query, as with several seeds: means within each query."""
    measured = [(outcome.quality, outcome.accuracy, outcome.cost) for outcome in outcomes]
    return Outcome(outcomes[0].name, outcomes[0].kind, *np.mean(measured, axis=0))


def _trained(
    learner: Learner, tree: Tree, alphas: Sequence[float], may: Mapping[str, bool], seed: int
) -> Iterator[tuple[float, TrainedRouter]]:
    config = training_config("default", learner.algo)
    if isinstance(config, ValueConfig):
        swept = train_sweep(tree, alphas, Objective(0.0, **may), config, seed)
        yield from ((alpha, swept.at(alpha)) for alpha in alphas)
        return
    for alpha in alphas:
        yield alpha, train(tree, Objective(alpha, **may), config, seed)


def _rivals(
    tree: Tree,
    baselines: Sequence[Baseline],
    sets: Sequence[str],
    alphas: Sequence[float],
    seeds: range,
    split: str,
    done: int,
    total: int,
    on_placed: OnPlaced,
) -> list[Place]:
    """Every baseline on every set of arms, fitted at each alpha with each seed."""
    answers = answers_for(tree.root, tree, baselines, usable_sets(tree, sets), tree.pool)
    held = []
    for alpha in alphas:
        by_seed = []
        for seed in seeds:
            found = contest(tree, alpha, baselines, sets, None, split, seed, answers)
            by_seed.append(
                [one for one in found.entries if one.arms and one.outcome.kind == "baseline"]
            )
            done += 1
            on_placed(done, total, f"baselines at alpha {alpha:g}")
        held.append(by_seed)
    places = []
    for at, entry in enumerate(held[0][0]):
        same = [[entries[at] for entries in by_seed] for by_seed in held]
        tried = [
            float(
                np.mean([np.nan if one.validation is None else one.validation for one in entries])
            )
            for entries in same
        ]
        shown = tuple(mean_outcome([one.outcome for one in entries]) for entries in same)
        name = f"{entry.outcome.name} on {entry.arms}"
        # Who is told the dataset sees more than the question.
        group = BOUNDS if entry.outcome.name == DatasetOracle.name else BASELINES
        places.append(Place(name, group, not entry.reads_answers, shown, tuple(tried)))
    return places


def _brought(policy: OwnPolicy, tree: Tree, alphas: Sequence[float], split: str) -> Place:
    """A policy of the user's own; nothing is fitted."""
    found: dict[str, list[Outcome]] = {}
    for name in (split, "validation"):
        fold = tree.split(name)
        ends = (policy_endings(fold, policy, alpha, True) for alpha in alphas)
        found[name] = [from_endings(fold, one, policy.name, "baseline") for one in ends]
    tried = (
        one.reward(alpha).mean() for one, alpha in zip(found["validation"], alphas, strict=True)
    )
    return Place(policy.name, OWN, False, tuple(found[split]), tuple(map(float, tried)))


def leaderboard_tables(found: Leaderboard) -> tuple[Table, ...]:
    """R of everybody, the best first; then what the look at answers is worth and costs."""
    return ranks_table(found), looks_table(found)


def ranks_table(found: Leaderboard) -> Table:
    """R at each alpha with its interval, ordered by its mean over all of them."""
    columns, lines = [Column("Policy")], []
    for alpha in found.alphas:
        columns += [Column(f"R, alpha {alpha:.3g}", 4, best="highest"), Column("interval", 4)]
    columns.append(Column("mean", 4, best="highest"))
    means = found.reward.mean(axis=2)
    rows = [estimate_means(reward, found.bootstrap, 0) for reward in found.reward]
    for place in np.argsort(-means.mean(axis=0), kind="stable").tolist():
        cells: list[Cell] = [found.places[place].name]
        for row in rows:
            cells += [row[place].value, interval(row[place].low, row[place].high)]
        cells.append(float(means[:, place].mean()))
        is_bound = found.places[place].group == BOUNDS
        lines.append(Line("", tuple(cells), ranked=not is_bound))
    title = (
        f"Leaderboard, R = Q - alpha C on {found.reward.shape[2]} queries ({found.split} fold), "
        f"{found.seeds} seeds"
    )
    return Table(title, tuple(columns), tuple(lines), " ".join(found.notes))


WORTH = (
    "Those compared were chosen on the validation fold. What a look costs is alpha times the cost "
    "of the better answers; where the difference in R is not above 0, a look does not pay. "
    "Learners that see the question alone still see what their first call has cost, as the paper's "
    "state does, and so the length of its answer. The dataset oracle is told the dataset, which no "
    "router is: a bound, not among those compared."
)


def looks_table(found: Leaderboard) -> Table:
    """At each alpha: the best policy that sees answers against the best that sees none."""
    columns = (
        Column("Alpha", 3),
        Column("sees answers"),
        Column("sees the question alone"),
        Column("Q more", 4, signed=True),
        Column("alpha C more", 4, signed=True),
        Column("R more", 4, signed=True),
        Column("interval", 4, signed=True),
        Column("of what was open", 3),
    )
    lines = []
    for at, alpha in enumerate(found.alphas):
        seeing, blind = found.chosen(at, False), found.chosen(at, True)
        one, other = (found.places[place].outcomes[at] for place in (seeing, blind))
        more = found.difference(at, seeing, blind)
        left = float(
            np.mean(found.reward[at, found.find(ANYTIME_ORACLE)] - found.reward[at, blind])
        )
        cells = (
            *(alpha, found.places[seeing].name, found.places[blind].name),
            float(np.mean(one.quality - other.quality)),
            alpha * float(np.mean(one.cost - other.cost)),
            *(more.value, interval(more.low, more.high)),
            None if more.value is None or left <= 0 else more.value / left,
        )
        lines.append(Line("", cells))
    return Table("What a look at answers is worth", columns, tuple(lines), WORTH)


def long_table(found: Leaderboard) -> Table:
    """A line for each policy and alpha."""
    columns = (
        "policy",
        "group",
        "sees_answers",
        "alpha",
        "quality",
        "cost",
        "reward",
        "validation",
    )
    lines = [
        Line("", (one.name, one.group, not one.is_blind, alpha, *_means(one, at, alpha)))
        for one in found.places
        for at, alpha in enumerate(found.alphas)
    ]
    return Table("Rows", tuple(Column(name, digits=9) for name in columns), tuple(lines))


def _means(one: Place, at: int, alpha: float) -> tuple[float | None, ...]:
    outcome, tried = one.outcomes[at], one.validation[at]
    means = (outcome.quality, outcome.cost, outcome.reward(alpha))
    return (*(float(values.mean()) for values in means), None if np.isnan(tried) else tried)


def as_json(found: Leaderboard) -> str:
    """One object: settings, and a row for each policy and alpha."""
    table = long_table(found)
    names = [column.title for column in table.columns]
    held: dict[str, Any] = {
        "alphas": found.alphas,
        "bootstrap": {**asdict(found.bootstrap), "cluster": "query"},
        "rows": [dict(zip(names, row.cells, strict=True)) for row in table.rows],
        "notes": found.notes,
        "seeds": found.seeds,
        "split": found.split,
        "tree": found.tree,
    }
    return json_text(held, "leaderboard")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("caches/default"))
    parser.add_argument("--pool", help="default: that of the cache")
    parser.add_argument("--alphas", default="auto", help="auto, or some with commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=42, help="the first of them")
    parser.add_argument("--baselines", help="default: all")
    parser.add_argument("--sets", default="A,B")
    parser.add_argument("--policy", action="append", default=[], metavar="MODULE:OBJECT")
    parser.add_argument("--fold", choices=("train", "validation", "test"), default="test")
    parser.add_argument("--scorer", default=PAPER_SCORER)
    parser.add_argument("--encoder")
    parser.add_argument("--json", type=Path, help="where a row for each policy and alpha goes")
    args = parser.parse_args()
    sys.path.append(str(Path.cwd()))
    alphas = () if args.alphas == "auto" else tuple(map(float, args.alphas.split(",")))

    @functools.cache
    def opens(view: str, allow_return: bool) -> Tree:
        selection = OpenTree(
            pool=args.pool,
            encoder=args.encoder,
            scorer=args.scorer,
            state=view,
            allow_return=allow_return,
        )
        return replace(selection, cache=args.cache).run()

    def on_placed(done: int, total: int, name: str) -> None:
        print(f"{done} of {total}: {name}", file=sys.stderr, flush=True)

    found = leaderboard(
        opens,
        named(args.baselines.split(",") if args.baselines else None),
        require_sets(args.sets.split(",")),
        own_policies(args.policy),
        alphas=alphas,
        seeds=args.seeds,
        seed=args.seed,
        split=args.fold,
        on_placed=on_placed,
    )
    for table in leaderboard_tables(found):
        print(as_markdown(table))
    if args.json:
        args.json.write_text(as_json(found))


if __name__ == "__main__":
    main()
