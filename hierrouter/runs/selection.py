"""Select the finished run that a command shows, and say why it is that one."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hierrouter import __version__
from hierrouter.learning.config import Objective
from hierrouter.learning.cross_fit import sweep_with_fallback
from hierrouter.learning.router import TrainedRouter, training_remarks
from hierrouter.learning.sweep import TrainedSweep
from hierrouter.paper import PAPER_ALPHA
from hierrouter.pools.pool import price_table
from hierrouter.replay.open_tree import OpenTree
from hierrouter.runs import folders
from hierrouter.runs.checkpoint import load_checkpoint, load_seeds, load_sweep
from hierrouter.runs.look_log import count_test_looks
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.tree import RouteTree

RETRAIN_HINT = "`hierrouter report --retrain`, with the same flags, trains it again"


@dataclass(frozen=True)
class SweepBeside:
    """A sweep whose frontier is shown beside that of the selected one.

    Attributes:
        name: what tells it apart: its algorithm, and its seed if it is of the selected run.
        run: its folder.
        sweep: its routers.
        is_other_seed: whether it is another seed of the selected run.
    """

    name: str
    run: Path
    sweep: TrainedSweep
    is_other_seed: bool = False


@dataclass(frozen=True)
class SelectedRun:
    """The router that a command shows.

    Attributes:
        run: its folder; the sweep's folder for a sweep's router. None if there is none.
        trained: the router; None if nothing has learned from the tree.
        alpha: that it is shown at.
        sweep_run: folder of the sweep that was read; None if none was, or there is none.
        sweep: the routers of that sweep; of several seeds those of the best.
        remarks: sentences, without a full stop, on what a reader would not expect.
        why: why this run was selected, in words; empty if the user named it.
        beside: the other seeds of that sweep; then, unless the user named it, the latest sweep of
            each other algorithm that learned from exactly this tree and may do the same.
        unembedded: why the states have no vectors, so that no router can be shown; "" if they have.
    """

    run: Path | None
    trained: TrainedRouter | None
    alpha: float
    sweep_run: Path | None = None
    sweep: TrainedSweep | None = None
    remarks: tuple[str, ...] = ()
    why: str = ""
    beside: tuple[SweepBeside, ...] = ()
    unembedded: str = ""

    @property
    def runs(self) -> tuple[Path | None, ...]:
        """The folders of all runs that are shown, that of the router first."""
        return self.run, self.sweep_run, *(beside.run for beside in self.beside)

    def required(self) -> tuple[Path, TrainedRouter]:
        """Return the folder and the router.

        Raises:
            InputError: there is none.
            WorldError: none can be shown.
        """
        if self.unembedded:
            raise WorldError(f"no router can be shown: {self.unembedded}")
        if self.run is None or self.trained is None:
            raise InputError(
                f"no router was trained on this tree: none in {folders.RUNS}; run "
                "`hierrouter train`, or give --checkpoint"
            )
        return self.run, self.trained


def select_run(
    tree: RouteTree,
    alpha: float | None,
    checkpoint: Path | None = None,
    sweep_run: Path | None = None,
    with_sweep: bool = False,
) -> SelectedRun:
    """Select the newest router that learned from the tree.

    A sweep's router is selected if there is no other router for this alpha.

    Args:
        tree: that the router is shown on.
        alpha: None is the alpha that the router was trained for.
        checkpoint: the user's choice; no other router is shown for it.
        sweep_run: the user's choice, instead of the latest sweep; its router is shown, unless
            `with_sweep`.
        with_sweep: read the sweep beside the router of a run.

    Raises:
        InputError: a checkpoint or a sweep that cannot be read, or is for another tree.
    """
    names_sweep_alone = sweep_run is not None and not with_sweep
    run = checkpoint
    why = ""
    if checkpoint is None and not names_sweep_alone:
        run, why = latest_run(tree, "train", alpha)
    policy = load_checkpoint(run) if run else None
    if isinstance(policy, TrainedSweep):
        policy = _with_fixed_choices(policy, tree)
    trained = policy.for_alpha(alpha) if policy else None
    if alpha is not None:
        shown_alpha = alpha
    else:
        shown_alpha = trained.alpha if trained else PAPER_ALPHA

    remarks = list(filter(None, [policy.remark(shown_alpha)])) if policy else []
    needs_sweep = checkpoint is None and (trained is None or trained.alpha != shown_alpha)
    sweep = None
    beside: tuple[SweepBeside, ...] = ()
    if needs_sweep or with_sweep:
        is_named = sweep_run is not None
        if sweep_run is None:
            sweep_run, _ = latest_run(tree, "sweep-alpha")
        sweep = _with_fixed_choices(load_sweep(sweep_run), tree) if sweep_run else None
        if with_sweep and sweep_run and sweep:
            beside = _other_seeds(sweep_run, tree)
            if not is_named:
                beside += tuple(_other_algorithms(tree, sweep))
    swept = sweep.matching(trained, shown_alpha) if needs_sweep and sweep else None
    if swept:
        stops_unlike_run = (
            trained is not None and swept.objective.allow_stop > trained.objective.allow_stop
        )
        remark = f"the sweep's router is shown, seed {swept.origin.seed}"
        if stops_unlike_run:
            remark += ", which may stop early"
        why = ""
        if not names_sweep_alone:
            remark = f"no run of `train` for alpha {shown_alpha:g} on this tree; {remark}"
            why = "the latest sweep"
        remarks.append(remark)
        assert sweep
        remarks += filter(None, [sweep.remark(shown_alpha)])
        run = sweep_run
        trained = swept

    if trained:
        fitted = trained.fitted_to(tree)
        if fitted is not trained:
            remarks.append("the router learned on other routes of the same actions")
        trained = fitted
        remarks += training_remarks(trained, shown_alpha, tree)
        if trained.origin.fingerprint != tree.fingerprint:
            remarks.append(RETRAIN_HINT)
    else:
        what = "no router can be shown" if tree.unembedded else "no router trained on this tree"
        remedy = tree.unembedded or "`hierrouter train`, or the --state and --encoder of a run"
        remarks.append(f"{what}; baselines only ({remedy})")
        if why and not tree.unembedded:
            remarks.append(f"{why}; {RETRAIN_HINT}")
    return SelectedRun(
        run,
        trained,
        shown_alpha,
        sweep_run,
        sweep,
        tuple(remarks),
        why,
        beside,
        unembedded=tree.unembedded,
    )


def _with_fixed_choices(sweep: TrainedSweep, tree: RouteTree) -> TrainedSweep:
    """Return a sweep that knows the best fixed route at every alpha.

    The file of an earlier version does not have them. They are computed anew on the tree that the
    sweep learned from, if this is it.
    """
    origin = sweep.origin
    is_its_tree = (origin.fingerprint, origin.view, origin.encoder, origin.second) == (
        tree.fingerprint,
        tree.view,
        tree.encoder,
        tree.second,
    )
    if sweep.fixed or not any(sweep.constants) or not is_its_tree or tree.unembedded:
        return sweep
    return sweep_with_fallback(sweep, tree)


def _other_seeds(run: Path, tree: RouteTree) -> tuple[SweepBeside, ...]:
    """The seeds of a sweep beside the best."""
    return tuple(
        SweepBeside(
            name=f"{sweep.origin.config.algo}, seed {sweep.origin.seed}",
            run=run,
            sweep=_with_fixed_choices(sweep, tree),
            is_other_seed=True,
        )
        for sweep in load_seeds(run)[1:]
    )


def _other_algorithms(tree: RouteTree, selected: TrainedSweep) -> Iterator[SweepBeside]:
    """The latest sweep of each algorithm but the selected one's.

    Only those count that learned from exactly the tree, and may do what the selected one may.
    """
    algos_shown = {selected.origin.config.algo}
    for record in folders.finished_runs("sweep-alpha"):
        distance, _ = _distance(record.result, tree, None)
        algo = str(record.result["algo"])
        objective = Objective(**record.result["objective"])
        may_do_the_same = replace(objective, alpha=selected.objective.alpha) == selected.objective
        if distance == 0 and may_do_the_same and algo not in algos_shown:
            algos_shown.add(algo)
            other = _with_fixed_choices(load_sweep(record.folder), tree)
            yield SweepBeside(algo, record.folder, other)


def as_trained(opening: OpenTree, run: Path | None) -> OpenTree:
    """Return an opening with the settings of a run, except those that the user has given.

    Args:
        opening: with the user's settings.
        run: the run to show, which may have seen the states otherwise; None changes nothing.

    Raises:
        InputError: there is no such run, or it is damaged.
    """
    if run is None:
        return opening
    policy = load_checkpoint(run)
    price_of_second = opening.price_of_second
    if price_of_second is None:
        price_of_second = policy.origin.second
    return replace(
        opening,
        encoder=opening.encoder or policy.origin.encoder,
        state=opening.state or policy.origin.view,
        price_of_second=price_of_second,
        allow_return=opening.allow_return or policy.objective.allow_return,
    )


def latest_run(
    tree: RouteTree, command: str, alpha: float | None = None
) -> tuple[Path | None, str]:
    """Return the newest finished run that learned from exactly this tree and view, and why.

    If there is none, return the newest one that learned from the tree under other prices. If there
    is none of these either, return None, and how the newest run was trained.

    Args:
        tree: to be shown.
        command: "train" or "sweep-alpha".
        alpha: runs for this alpha come before newer ones for another.

    Raises:
        InputError: the record of a run is damaged.
    """
    runs = folders.finished_runs(command)
    distances = [_distance(run.result, tree, alpha) for run in runs]
    if not distances:
        return None, ""
    if min(distances)[0] == UNUSABLE:
        return None, f"{runs[0].folder} was trained {distances[0][1]}"
    nearest = distances.index(min(distances))  # of equal ones the first, which is the newest
    why = f"the latest {distances[nearest][1]}"
    newer = Counter(how for _, how in distances[:nearest])
    if newer:
        others = ", ".join(f"{count} trained {how}" for how, count in newer.items())
        why += f"; newer: {others}"
    return runs[nearest].folder, why


UNUSABLE = 4  # distance of a run that cannot be shown on a tree


def _distance(result: Mapping[str, Any], tree: RouteTree, alpha: float | None) -> tuple[int, str]:
    """Return how much a run differs from the requested one, as a number from 0 and in words."""
    objective = result.get("objective", {})
    fingerprint = str(result["fingerprint"])
    allows_return = bool(objective.get("allow_return"))
    if tree.numbers:  # a tree that shows the last response has more of them
        sees_same_states = tree.shows_leaves == allows_return
    else:
        sees_same_states = tree.shows_leaves >= allows_return
    if not tree.same_content(fingerprint):
        return UNUSABLE, "on other models, questions or scores"
    if not sees_same_states or (result["view"], result["encoder"]) != (tree.view, tree.encoder):
        return UNUSABLE, "with another --state or --encoder"
    if float(result.get("second", 0.0)) != tree.second:
        return UNUSABLE, "with another --price-of-second"
    has_other_alpha = alpha is not None and objective.get("alpha") != alpha
    if fingerprint != tree.fingerprint:
        return 2 + has_other_alpha, "under other prices"
    if has_other_alpha:
        return 1, "for another alpha"
    return 0, "that fits this cache"


def provenance(
    tree: RouteTree,
    cache: Path,
    trained_in: Path | None,
    trained: TrainedRouter | None,
    swept_in: Path | None,
    price_lists: Mapping[str, RouteTree],
    sweep: TrainedSweep | None = None,
) -> dict[str, object]:
    """Return the sources of a report, as JSON values: cache, prices, and how the router was made.

    Args:
        tree: that is reported on.
        cache: the folder that it was opened from.
        trained_in: folder of the run of the router; None if there is none.
        trained: the router.
        swept_in: folder of the sweep that is shown; None if there is none.
        price_lists: the same tree under other prices, by name.
        sweep: the routers of that sweep.
    """
    return {
        "version": __version__,
        "cache": str(cache),
        "tree": tree.fingerprint,
        "prices": price_table(tree),
        "price_lists": {name: price_table(priced) for name, priced in price_lists.items()},
        "left_out": tree.left_out,
        "context_free": tree.context_free,
        "checkpoint": str(trained_in) if trained_in else None,
        "sweep": str(swept_in) if swept_in else None,
        **({"sweep_algo": sweep.origin.config.algo} if sweep else {}),
        "seed": trained.origin.seed if trained else None,
        "algo": trained.origin.config.algo if trained else None,
        "preset": trained.origin.config.preset if trained else None,
        "encoder": tree.encoder,
        "view": tree.view,
        "trained_alpha": trained.alpha if trained else None,
        "allow_stop": trained.objective.allow_stop if trained else None,
        **({"allow_return": True} if trained and trained.objective.allow_return else {}),
        "budget": trained.budget if trained else None,
        "trained_on": trained.origin.fingerprint if trained else None,
        "test_looks": count_test_looks(tree, trained_in),
    }
