"""Which run is shown, and what is said of it."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.collection.transfer import import_
from hierrouter.learning.config import PRESET_NOTES, Objective, preset
from hierrouter.learning.cross_fit import sweep_with_fallback
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.training import train
from hierrouter.pools.files import parse_pool
from hierrouter.pools.pool import Pool
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.opening import training_tree
from hierrouter.replay.tree import Tree
from hierrouter.runs.checkpoint import member_folder
from hierrouter.runs.freshness import how_it_fits, trained_on
from hierrouter.runs.look_log import LOOKS_FILE, count_test_looks, log_test_look, read_test_looks
from hierrouter.runs.selection import RETRAIN_HINT, latest_run, select_run
from hierrouter.runs.training import better_sweep
from hierrouter_cache.tree import Rate, RouteTree, reprice
from tests.conftest import environment
from tests.engines import Scripted
from tests.hierrouter.collection.examples import Rows, save, sums
from tests.hierrouter.collection.test_logs import ragged
from tests.hierrouter.learning import trainings
from tests.hierrouter.trees import planted_tree
from tests.warm import Warm

pytestmark = pytest.mark.usefixtures("place")


def trained(
    tree: RouteTree,
    name: str = "router",
    age: int = 0,
    alpha: float = trainings.ALPHA,
    objective: Objective | None = None,
) -> Path:
    """A finished run of `train`, after which so many others were finished."""
    folder = Path("runs") / name
    run = trainings.finished(
        train(tree, objective or Objective(alpha), trainings.EXACT_GLIMPSE, 0), folder
    )
    replace(run, seq=100 - age).write()
    return folder


def swept(tree: RouteTree, allow_stop: bool = False) -> Path:
    """A finished run of `sweep-alpha`."""
    folder, objective = Path("runs/sweep"), Objective(0.0, allow_stop)
    trainings.finished_sweep(
        folder, train_sweep(tree, trainings.GRID, objective, trainings.VALUE, seed=0)
    )
    return folder


def test_a_router_shown_as_it_was_trained_needs_no_remark() -> None:
    run = trained(trainings.small_tree())
    shown = select_run(trainings.small_tree(), None)
    assert (shown.run, shown.alpha, shown.remarks, shown.sweep) == (run, trainings.ALPHA, (), None)


@pytest.mark.parametrize("allow_stop", [False, True], ids=["", "which may stop early"])
@pytest.mark.parametrize("alpha", [0.2, 0.05], ids=["between", "of the grid"])
def test_a_sweep_s_router_is_shown_where_an_alpha_has_none(alpha: float, allow_stop: bool) -> None:
    tree = trainings.small_tree()
    trained(tree)
    run = swept(tree, allow_stop)
    shown = select_run(tree, alpha)
    assert shown.run == run and shown.trained
    assert shown.trained.objective == Objective(alpha, allow_stop)
    assert shown.remarks == (
        f"no run of `train` for alpha {alpha:g} on this tree; the sweep's router is shown, seed 0"
        + ", which may stop early" * allow_stop,
    )


def test_an_alpha_outside_of_a_grid_of_networks_is_remarked() -> None:
    tree = trainings.small_tree()
    sweep = train_sweep(tree, (0.01, 0.05), Objective(0.0), trainings.EXACT_GLIMPSE, seed=0)
    trainings.finished_sweep(Path("runs/sweep"), sweep)
    remark = "alpha {} lies outside of the sweep's, 0.01 to 0.05: the network of alpha {} stands"
    for alpha, nearest in ((0.2, 0.05), (0.0, 0.01)):
        expected = remark.format(f"{alpha:g}", nearest) + " for it"
        for named in (None, member_folder(Path("runs/sweep"), 0)):
            assert expected in select_run(tree, alpha, named).remarks
    assert not [text for text in select_run(tree, 0.03).remarks if "outside" in text]


def test_a_sweep_of_an_earlier_version_learns_the_best_routes_of_its_tree() -> None:
    """Its file has those at the alphas of the grid alone."""
    tree = trainings.small_tree()
    sweep = train_sweep(tree, (0.0, 9.0), Objective(0.0), trainings.VALUE, seed=0)
    sweep = sweep_with_fallback(sweep, tree)
    trainings.finished_sweep(Path("runs/sweep"), replace(sweep, fixed=None))
    for alpha in (0.05, 0.5, 3.0):
        shown = select_run(tree, alpha)
        assert shown.trained and shown.trained.constant == sweep.at(alpha).constant
        assert not [text for text in shown.remarks if "earlier version" in text]
    dear = reprice(tree, {name: Rate(1.0, 2.0) for name in tree.direct.models})
    assert any(sweep.constants)
    assert [text for text in select_run(dear, 0.5).remarks if "earlier version" in text]


def test_a_sweep_whose_routers_may_do_less_than_the_run_is_not_shown() -> None:
    tree, objective = trainings.small_tree(), Objective(trainings.ALPHA, allow_stop=True)
    run, sweep = trained(tree, objective=objective), swept(tree)
    shown = select_run(tree, 0.2)
    assert (shown.run, shown.sweep_run, shown.alpha) == (run, sweep, 0.2)
    assert shown.trained and shown.trained.objective == objective
    assert shown.remarks == (f"the router was trained at alpha {trainings.ALPHA:g}, shown at 0.2",)


def test_a_router_of_the_papers_preset_is_shown_with_the_recommendation() -> None:
    tree = trainings.small_tree()
    config = replace(preset("paper"), epochs=1, iterations=1, rollouts=16, minibatches=2, hidden=8)
    assert PRESET_NOTES["paper"].endswith("recommended: leave --preset out, or --seeds 5")
    for name, note in (("paper", (PRESET_NOTES["paper"],)), ("default", ())):
        run = Path("runs") / name
        trainings.finished(trainings.glimpse(tree, config=replace(config, preset=name)), run)
        assert select_run(tree, None, run).remarks == note


def test_a_checkpoint_that_was_named_is_shown_whatever_its_alpha() -> None:
    tree = trainings.small_tree()
    run, sweep = trained(tree), swept(tree, allow_stop=True)
    shown = select_run(tree, 0.2, run, with_sweep=True)
    assert (shown.run, shown.sweep_run) == (run, sweep)
    assert shown.remarks == (f"the router was trained at alpha {trainings.ALPHA:g}, shown at 0.2",)


def test_other_prices_and_other_data_are_told_apart() -> None:
    tree = trainings.small_tree()
    run = trained(tree)
    dear = reprice(tree, {name: Rate(1.0, 2.0) for name in tree.direct.models})
    assert select_run(dear, None).remarks == (
        "the router was trained under other prices than shown here",
        RETRAIN_HINT,
    )
    assert select_run(trainings.small_tree(seed=1), None, run).remarks == (
        "the router was trained on other data or scores than shown here",
        RETRAIN_HINT,
    )


def test_the_newest_run_that_sees_the_tree_so_is_taken_and_its_own_alpha_first() -> None:
    tree = trainings.small_tree()
    assert latest_run(tree, "train") == (None, "")
    trained(replace(tree, view="query"), "another view", 1)
    trained(replace(tree, encoder="elsewhere", content="f" * 32), "another encoder", 2)
    trained(trainings.small_tree(seed=1), "other data", 0)
    said = "runs/other data was trained on other models, questions or scores"
    assert latest_run(tree, "train") == (None, said)
    assert "--state and --encoder of a run" in select_run(tree, None).remarks[0]
    assert select_run(tree, None).remarks[1] == f"{said}; {RETRAIN_HINT}"
    old = trained(tree, "old", 9, alpha=0.1)
    new = trained(tree, "new", 5, alpha=0.2)
    others = "2 trained on other models, questions or scores, 1 trained with another --state"
    fits = f"the latest that fits this cache; newer: {others} or --encoder"
    assert latest_run(tree, "train") == (new, fits)
    assert latest_run(tree, "train", 0.1) == (old, f"{fits}, 1 trained for another alpha")
    trained(reprice(tree, {name: Rate(1.0, 2.0) for name in tree.direct.models}), "dear", 0)
    found, why = latest_run(tree, "train")
    assert found == new and "1 trained under other prices" in why


# --- the log of looks at the test fold: what counts, and what it stands

LOOK = {"tree": "t", "alpha": 0.5}


def folder(name: str = "runs/a") -> Path:
    made = Path(name)
    made.mkdir(parents=True)
    return made


def lines(run: Path) -> list[dict[str, Any]]:
    # A line that another process is just writing may look torn: an empty line then follows it.
    text = (run / LOOKS_FILE).read_text()
    return [json.loads(line) for line in text.splitlines() if line]


def test_a_look_says_when_and_at_what_and_the_same_again_is_no_new_one() -> None:
    run = folder()
    assert log_test_look([run], "report", LOOK) == []
    [line] = lines(run)
    assert line.keys() == {"alpha", "command", "routers", "sum", "time", "tree", "version"}
    assert (line["command"], line["routers"], line["tree"]) == ("report", ["a"], "t")
    assert line["time"].endswith("+00:00")
    before = (run / LOOKS_FILE).read_bytes()
    log_test_look([run], "report", LOOK)
    assert (run / LOOKS_FILE).read_bytes() == before
    log_test_look([run], "report", {**LOOK, "alpha": 1.0})
    log_test_look([run], "compare", LOOK)
    assert len(lines(run)) == 3


def test_one_look_at_two_runs_is_one_look() -> None:
    tree = trainings.small_tree()
    one, other = shown = [trained(tree, name) for name in "ab"]
    log_test_look(shown, "report", LOOK)
    assert lines(one) == lines(other)
    assert count_test_looks(tree, one) == {"this_router": 1, "all_routers": 1}
    log_test_look([other], "report", LOOK)
    assert count_test_looks(tree, one) == {"this_router": 1, "all_routers": 2}
    assert count_test_looks(tree, None) == {"this_router": 0, "all_routers": 2}


def test_looks_on_other_data_are_not_counted_under_other_prices_and_elsewhere_are() -> None:
    tree = trainings.small_tree()
    log_test_look([trained(trainings.small_tree(seed=1), "other")], "report", LOOK)
    assert count_test_looks(tree, None)["all_routers"] == 0
    dear = reprice(tree, {name: Rate(1.0, 2.0) for name in tree.direct.models})
    log_test_look([trained(dear, "dear")], "report", LOOK)
    assert count_test_looks(tree, None)["all_routers"] == 1
    away = folder("away")
    (away / "policy.safetensors").touch()
    log_test_look([away / "policy.safetensors"], "compare", LOOK)
    assert count_test_looks(tree, away) == {"this_router": 1, "all_routers": 2}


@pytest.mark.parametrize("torn", ['{"command": "rep', "[1]\n", "null\n", "\xff", "[" * 9999])
def test_what_a_kill_left_is_ignored_and_the_next_line_is_whole(torn: str) -> None:
    run = folder()
    log_test_look([run], "report", LOOK)
    with (run / LOOKS_FILE).open("ab") as log:
        log.write(torn.encode("latin-1"))
    assert len(read_test_looks(run)) == 1
    log_test_look([run], "compare", LOOK)
    assert len(read_test_looks(run)) == 2


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_log_that_cannot_be_written_is_told_and_stops_nothing(kind: str, place: Path) -> None:
    run, other = folder(), folder("runs/b")
    if kind == "folder":
        (run / LOOKS_FILE).mkdir()
    elif kind == "pipe":
        os.mkfifo(run / LOOKS_FILE)
    else:
        (place / "precious").write_text("kept\n")
        (run / LOOKS_FILE).symlink_to(place / "precious")
    [told] = log_test_look([run, other], "report", LOOK)
    assert told.startswith("this look at the test fold is not logged: runs/a/test_looks.jsonl: ")
    assert len(lines(other)) == 1 and read_test_looks(run) == set()
    assert kind != "link" or (place / "precious").read_text() == "kept\n"


def test_processes_that_log_at_once_lose_nothing(place: Path, warm: Warm) -> None:
    run = folder()
    code = (
        "import sys; from pathlib import Path\n"
        "from hierrouter.runs.look_log import log_test_look\n"
        "for n in range(50): log_test_look([Path('runs/a')], sys.argv[1], {'n': n})"
    )
    started = [warm.start("-c", code, name, cwd=place, env=environment()) for name in "xy"]
    assert [process.result().returncode for process in started] == [0, 0]
    assert len(lines(run)) == len(read_test_looks(run)) == 100


ROLES = """
[pool]
hops = 2
per_tokens = 1
encoder = "hashed-ngrams"
[[models]]
name = "small"
model = "org/small"
base_rate = 1
generation = { temperature = 0.7 }
[[actions]]
name = "plan"
model = "small"
instruction = "Plan."
after = []
[[actions]]
name = "guess"
model = "small"
instruction = "Guess."
after = []
[[actions]]
name = "solve"
model = "small"
instruction = "Solve."
after = ["plan", "guess"]
[[actions]]
name = "check"
model = "small"
instruction = "Check."
after = ["plan"]
"""


def test_other_routes_and_other_draws_are_told(tmp_path: Path) -> None:
    """The steps of the calls are the same: only where they are offered is not."""
    pool = parse_pool(ROLES, "roles.toml")
    cache = tmp_path / "cache"

    def collected(pool: Pool) -> Tree:
        fill_cache(pool, sums(4), cache, engines=Scripted())
        return OpenTree(cache=cache).run()

    first = trained_on(collected(pool))
    assert how_it_fits(first) == "yes"
    moved = replace(pool.roles[3], after=("guess",))
    second = trained_on(collected(replace(pool, roles=(*pool.roles[:3], moved))))
    assert (how_it_fits(first), how_it_fits(second)) == ("other routes", "yes")
    collected(replace(pool, draws=2))
    assert (how_it_fits(first), how_it_fits(second)) == ("other draws", "other routes")
    both = trained_on(OpenTree(cache=cache).run())
    assert how_it_fits(both) == "yes"
    assert how_it_fits(trained_on(OpenTree(cache=cache, draws=1).run())) == "other draws"
    collected(pool)
    assert (how_it_fits(first), how_it_fits(both)) == ("yes", "other draws")
    # The record of an earlier version knows neither.
    for name in ("routes", "draws"):
        del both["state"][name]
    assert how_it_fits(both) == "yes"


def test_a_run_on_a_log_fits_until_another_is_imported(tmp_path: Path) -> None:
    """Its scores are the given ones, as a plain command takes them."""

    def imported(rows: Rows) -> Tree:
        import_(save(rows, tmp_path / "log.parquet"), tmp_path / "cache")
        return OpenTree(cache=tmp_path / "cache", encoder="hashed-ngrams").run()

    rows = [row for row in ragged() if row["node"][-1] != "e"]
    first = trained_on(imported(rows))
    assert how_it_fits(first) == "yes"
    critic = {**rows[2], "node": "0f", "parent": "0a", "score": 1.0}
    second = trained_on(imported([*rows, critic]))
    assert (how_it_fits(first), how_it_fits(second)) == ("other models or settings", "yes")


def test_a_network_is_told_of_a_sweep_that_is_better() -> None:
    """Without a training; of a sweep that cannot be compared nothing is said."""
    tree = training_tree(trainings.small_tree())
    network = trainings.glimpse(tree, config=trainings.EXACT_GLIMPSE)
    assert better_sweep(network, tree) == ""
    tree = training_tree(
        replace(planted_tree(per_family=(20, 10, 1), dim=16, seed=1), encoder="planted")
    )
    network = trainings.glimpse(tree, config=trainings.EXACT_GLIMPSE)
    sweep = sweep_with_fallback(trainings.sweep_glimpse(tree), tree)
    trainings.finished_sweep(Path("runs/sweep"), sweep)
    line = better_sweep(network, tree)
    assert line.startswith("better here: value of the sweep runs/sweep, R +")
    assert "on validation; `hierrouter train --algo best`" in line
    assert better_sweep(sweep.at(trainings.ALPHA), tree) == ""
    dear = reprice(tree, {name: Rate(1.0, 2.0) for name in tree.direct.models})
    assert better_sweep(network, dear) == ""
    (Path("runs/sweep") / "run.json").write_text("{")
    assert better_sweep(network, tree) == ""
