"""`import hierrouter` is all that a user needs: its names, its weight, and what they do."""

import ast
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hierrouter as hr
from tests.conftest import Run, once, spawned, works

NAMES = [
    "CacheError",
    "HierRouterError",
    "IncompleteTree",
    "InputError",
    "Interrupted",
    "Pool",
    "ReplayEnv",
    "Router",
    "Run",
    "SweepRun",
    "Tree",
    "WorldError",
    "__version__",
    "collect",
    "compare",
    "deploy",
    "evaluate",
    "explain",
    "explore",
    "export",
    "fixed_routes",
    "import_",
    "learn_from",
    "load_pool",
    "off_policy",
    "open",
    "oracle",
    "report",
    "savings",
    "scorer",
    "sweep",
    "train",
]
ALPHA = 0.3
FACE = Path(hr.__file__)


def test_the_names_of_the_face() -> None:
    assert hr.__all__ == NAMES
    assert set(NAMES) <= set(dir(hr))
    for name in NAMES:
        found = getattr(hr, name)
        if name != "__version__":
            assert callable(found), name
            assert found.__name__ == name
            assert found.__doc__, name


def test_every_name_is_typed() -> None:
    (block,) = [node for node in ast.parse(FACE.read_text()).body if isinstance(node, ast.If)]
    typed = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == hr._HOME
    assert {*typed, "__version__"} == set(NAMES)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'hierrouter' has no attribute 'trian'"):
        _ = hr.trian  # type: ignore[attr-defined]


def test_the_import_loads_nothing_else() -> None:
    code = "import sys; had = set(sys.modules); import hierrouter; print(set(sys.modules) - had)"
    done = works(spawned(sys.executable, "-c", code))
    tops = {name.partition(".")[0] for name in ast.literal_eval(done.stdout)}
    assert tops - sys.stdlib_module_names == {"hierrouter"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache and two runs, made from Python."""

    def build(folder: Path) -> None:
        (folder / "runs").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            cache = hr.collect("arith,string", pool="testbed", cache="caches/mine", limit=20)
            tree = hr.open(cache)
            hr.train(tree, alpha=ALPHA, allow_stop=True, epochs=4, out="runs/mine")
            hr.sweep(tree, [0.1, ALPHA], allow_stop=True, out="runs/sweep")

    return once(tmp_path_factory, "face", build)


@pytest.fixture
def tree(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hr.Tree]:
    monkeypatch.chdir(place)
    yield hr.open("caches/mine")


def test_a_tree_shows_itself(tree: hr.Tree) -> None:
    folds = {name: tree.splits.count(name) for name in ("train", "validation", "test")}
    said = ", ".join(f"{count} {name}" for name, count in folds.items())
    assert repr(tree) == (
        f"Tree(40 queries ({said}), 3 models (calc, text, facts), 2 hops, Q is token_f1)"
    )
    assert tree.models == ("calc", "text", "facts")
    part = tree.split("train")
    assert isinstance(part, hr.Tree)
    assert (part.root, len(part)) == (Path("caches/mine"), folds["train"])
    assert part.texts[0].question
    again = hr.open(Path("caches/mine"), models="calc,text", hops=1, prices={"calc": 2, "text": 1})
    assert (again.models, again.hops, again.rate[0].tolist()) == (("calc", "text"), 1, [2.0, 2.0])


def test_a_tree_as_a_table(tree: hr.Tree) -> None:
    table = tree.to_arrow(alpha=ALPHA)
    assert table.num_rows == len(tree) * (12 + 3)
    assert " ".join(table.column_names) == (
        "query dataset split route hop model response tokens_in tokens_out cost quality accuracy "
        "direct draw reward"
    )
    frame = tree.to_pandas(alpha=ALPHA)
    nodes = frame[~frame["direct"]]
    assert np.array_equal(nodes["quality"], tree.score[:, 1:].ravel())
    assert np.array_equal(nodes["cost"], tree.cost[:, 1:].ravel())
    assert np.allclose(nodes["reward"], tree.node_reward(ALPHA)[:, 1:].ravel(), atol=1e-12)
    assert frame[frame["direct"]]["route"].tolist() == ["calc", "text", "facts"] * len(tree)
    answers = nodes["response"].to_numpy().reshape(len(tree), 12)
    assert answers[5].tolist() == list(tree.texts[5].answers[1:])
    leaves = nodes[(nodes["hop"] == 2) & (nodes["route"] == "text>calc")]
    fixed = next(route for route in hr.fixed_routes(tree) if route.name == "text>calc")
    assert leaves["quality"].tolist() == fixed.quality.tolist()


def test_sql_sees_the_tree_that_is_asked(tree: hr.Tree) -> None:
    asked = "SELECT count(*) AS n, max(cost) AS dear FROM nodes WHERE hop > 0"
    whole, part = tree.sql(asked).to_pylist()[0], tree.split("test").sql(asked).to_pylist()[0]
    assert whole["n"] == 12 * len(tree)
    assert part["n"] == 12 * tree.splits.count("test")
    dear = hr.open("caches/mine", prices=dict.fromkeys(tree.models, 1000)).sql(asked).to_pylist()[0]
    assert dear["dear"] > whole["dear"]
    with pytest.raises(hr.InputError, match="SQL must be one SELECT"):
        tree.sql("DROP TABLE nodes")


def test_runs_show_what_they_reach(tree: hr.Tree) -> None:
    run = hr.Run.load("runs/mine", tree)
    bound = hr.oracle(tree.split("validation"), ALPHA, allow_stop=True).reward(ALPHA).mean()
    assert (run.alpha, run.algo) == (ALPHA, "ppo")
    assert repr(run).startswith("Run(runs/mine: alpha 0.3, may stop early, ppo, preset default")
    assert f"oracle {bound:.3f})" in repr(run)
    result = hr.evaluate(tree, run)
    assert run.reached
    assert result.reward.mean() == pytest.approx(run.reached.reward, abs=1e-12)
    swept = hr.SweepRun.load("runs/sweep", tree)
    assert swept.alphas == (0.1, ALPHA)
    assert "alpha      Q      C      R    (30 held-out questions)" in repr(swept)


def test_a_run_goes_on_as_on_the_command_line(
    tree: hr.Tree, place: Path, hierrouter: Run, tmp_path: Path
) -> None:
    told: list[tuple[object, ...]] = []
    flags: dict[str, Any] = {"alpha": ALPHA, "allow_stop": True, "epochs": 4}
    out = tmp_path / "again"
    run = hr.train(tree, **flags, out=out, progress=lambda *values: told.append(values))
    labels = ["train 0.3", *(f"train 0.3, judged {fold}/3" for fold in (1, 2, 3))]
    assert [values[:3] for values in told] == [
        (label, done, 4) for label in labels for done in (1, 2, 3, 4)
    ]
    same = ("--alpha", str(ALPHA), "--allow-stop", "--epochs", "4", "--out", run.folder)
    done = works(hierrouter("train", "--cache", "caches/mine", *same, cwd=place))
    assert f"train 0.3: already there, {run.folder}" in done.stderr
    assert f"trained: {run.reached}" in done.stderr
    for name in ("policy.safetensors", "live.json"):
        assert (run.folder / name).read_bytes() == (place / "runs" / "mine" / name).read_bytes()


def test_of_several_seeds_the_best_on_validation_comes_back(tree: hr.Tree, tmp_path: Path) -> None:
    best = hr.train(tree, alpha=ALPHA, epochs=1, seed=5, seeds=2, out=tmp_path / "two")
    assert [run.folder.name for run in best.seeds] == ["two-seed-5", "two-seed-6"]
    reached = [run.reached.reward for run in best.seeds if run.reached]
    assert best.reached and best.reached.reward == max(reached)
    done = [json.loads((run.folder / "run.json").read_text())["seq"] for run in best.seeds]
    assert done[reached.index(max(reached))] == max(done)
    with pytest.raises(hr.InputError, match="must be at least 1: seeds=0"):
        hr.train(tree, seeds=0)


def test_a_value_model_is_a_run_and_takes_neither_epochs_nor_seeds(
    tree: hr.Tree, tmp_path: Path
) -> None:
    run = hr.train(tree, alpha=ALPHA, algo="value", out=tmp_path / "value")
    assert repr(run).startswith(f"Run({tmp_path}/value: alpha 0.3, value, preset default, seed 42;")
    assert "on 30 held-out questions (best fixed route" in repr(run)
    test = tree.split("test")
    assert np.array_equal(hr.Run.load(run, tree).outcome(test).cost, run.outcome(test).cost)
    for refused in ({"epochs": 2}, {"seeds": 2}):
        [flag] = refused
        with pytest.raises(hr.InputError, match=f"--{flag} with --algo value"):
            hr.train(tree, budget=1.0, **refused)


JSON = ("--format", "json")
SHOWN = ("--cache", "caches/mine", "--checkpoint", "runs/mine", "--split", "validation")


def test_a_report_is_that_of_the_command_line(tree: hr.Tree, place: Path, hierrouter: Run) -> None:
    report = hr.report(tree, "runs/mine", split="validation")
    done = works(hierrouter("report", *SHOWN, *JSON, cwd=place))
    assert report.to_json() == done.stdout
    rows = json.loads(done.stdout)["rows"]
    (router,) = [row for row in rows if row["kind"] == "router" and row["dataset"] == "all"]
    result = hr.evaluate(tree, hr.Run.load("runs/mine"), split="validation")
    assert router["reward"] == pytest.approx(result.reward.mean(), abs=1e-11)
    quality = report.table("quality")
    assert quality.title == "Quality Q (token_f1), higher is better"
    assert "HierRouter" in str(quality)
    assert mean_reward(report, "hierrouter") == pytest.approx(router["reward"], abs=1e-11)
    assert report.to_html(place / "report.html").read_text().startswith("<!doctype html>")
    with pytest.raises(hr.InputError, match="unknown table: qualty; did you mean quality"):
        report.table("qualty")


def mean_reward(found: Any, policy: str) -> float:
    """Mean R of a policy over all queries, off the long table of a report or a comparison."""
    frame = found.to_arrow().to_pandas()
    wanted = {"section": "policies", "policy": policy, "dataset": "all", "metric": "reward"}
    (value,) = frame[(frame[list(wanted)] == list(wanted.values())).all(axis=1)]["value"]
    return float(value)


def by_digits(seen: Mapping[str, Any]) -> str:
    """A rule: numbers are for calc, and the rest for text."""
    return "calc>stop" if any(map(str.isdigit, seen["question"])) else "text>stop"


def test_a_rule_stands_beside_the_router(tree: hr.Tree) -> None:
    fold = tree.split("validation")
    calls = {name: tree.models.index(name) + 1 for name in ("calc", "text")}  # nodes of one call
    ends = [calls["calc" if name == "arith" else "text"] for name in fold.datasets]
    by_hand = fold.node_reward(ALPHA)[range(len(fold)), ends].mean()
    assert any(char.isdigit() for one in fold.texts for char in one.question)
    result = hr.evaluate(fold, by_digits, alpha=ALPHA, allow_stop=True)
    assert result.reward.mean() == pytest.approx(by_hand, abs=1e-12)
    report = hr.report(tree, "runs/mine", split="validation", policies=[by_digits])
    compared = hr.compare(
        tree, "runs/mine", split="validation", baselines="best-static", policies=[by_digits]
    )
    for found in (report, compared):
        assert mean_reward(found, "by_digits") == pytest.approx(by_hand, abs=1e-12)
        assert "by_digits" in repr(found)


def test_a_comparison_is_that_of_a_command(tree: hr.Tree, place: Path, hierrouter: Run) -> None:
    found = hr.compare(tree, "runs/mine", split="validation", baselines=["best-static", "knn"])
    done = works(hierrouter("compare", *SHOWN, *JSON, "--baselines", "best-static,knn", cwd=place))
    both = [json.loads(text) for text in (found.to_json(), done.stdout)]
    for held in both:
        held["rows"] = [{**row, "fit_cpu_seconds": 0} for row in held["rows"]]
    assert both[0] == both[1]
    assert "HierRouter" in str(found.table())


def test_an_explanation_is_that_of_the_command_line(
    tree: hr.Tree, place: Path, hierrouter: Run
) -> None:
    worst = hr.explain(tree, run="runs/mine", worst=3)
    flags = ("--cache", "caches/mine", "--checkpoint", "runs/mine", *JSON)
    assert worst.to_json() == works(hierrouter("explain", "--worst", "3", *flags, cwd=place)).stdout
    name = f"{tree.datasets[0]}/{tree.query_ids[0]}"
    explanation = hr.explain(tree, name, "runs/mine")
    assert explanation.queries[0].name == name
    assert explanation.to_json() == works(hierrouter("explain", name, *flags, cwd=place)).stdout
    assert name in repr(explanation)
    with pytest.raises(hr.InputError, match="no query; give query= or worst=N"):
        hr.explain(tree)
    with pytest.raises(hr.InputError, match="split='test' is for worst="):
        hr.explain(tree, name, split="test")


def test_pages_and_figures_are_written_where_they_are_asked_for(
    tree: hr.Tree, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    page = hr.explore(tree, "runs/mine", split="validation", texts=3, out=out)
    assert page == out and page.read_text("utf-8").startswith("<!doctype html>")
    with pytest.raises(hr.InputError, match="output exists"):
        hr.explore(tree, "runs/mine", split="validation", out=out)
    folder = tmp_path / "report"
    hr.report(tree, "runs/mine", split="validation", figures="svg", out=folder)
    assert {"report.html", "report.json", "frontier.svg"} <= {
        file.name for file in folder.iterdir()
    }
    hr.compare(
        tree, "runs/mine", split="validation", baselines="random", out=tmp_path / "comparison"
    )
    assert (tmp_path / "comparison" / "compare.json").is_file()
    with pytest.raises(hr.InputError, match=r"to hand over to: defer_share=0\.3; give"):
        hr.report(tree, "runs/mine", defer_share=0.3)
    with pytest.raises(hr.InputError, match="unknown format of figures: 'gif'"):
        hr.report(tree, "runs/mine", figures=["gif"])


def test_a_look_at_the_test_fold_is_logged(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(place, tmp_path / "copy"))
    tree = hr.open("caches/mine")
    query = tree.query_ids[int(tree.rows("test")[0])]
    notes: list[str] = []
    for _ in range(2):  # the same look again adds no line
        hr.report(tree, "runs/mine", on_note=notes.append)
        hr.explain(tree, query, "runs/mine")
    lines = Path("runs/mine/test_looks.jsonl").read_text().splitlines()
    assert [json.loads(line)["command"] for line in lines] == ["report", "explain"]
    assert any(
        note.startswith("report: test fold at alpha 0.3; checkpoint runs/m") for note in notes
    )


def test_of_many_queries_some_of_each_fold_are_compared(
    tree: hr.Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = min(len(tree.rows("train")), len(tree.rows("validation"))) - 2
    monkeypatch.setattr("hierrouter.reports.comparison.MAX_QUERIES_PER_FOLD", most)
    found = hr.compare(tree, "runs/mine", split="validation", baselines="best-static,cascade")
    assert found.queries == most
    assert any(f"of {len(tree)} queries, evenly spread" in note for note in found.notes)
    fold = tree.split("validation")
    kept = fold.select(np.linspace(0, len(fold) - 1, most).astype(int))
    mine = hr.Run.load("runs/mine").trained.outcome(kept).reward(ALPHA).mean()
    assert mean_reward(found, "hierrouter") == pytest.approx(mine)


def test_a_run_answers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    with hr.Router(hr.Run.load("runs/mine")) as router:
        routed = router.route("compute 12+7")
    assert routed.answer
    assert routed.hops


def test_a_scorer_by_its_name() -> None:
    score = hr.scorer("accuracy")
    assert (score("the answer is 19", ["19"]), score("20", ["19"])) == (1.0, 0.0)


def test_a_cache_goes_out_and_comes_in(tree: hr.Tree, tmp_path: Path) -> None:
    hr.export("caches/mine", tmp_path / "tree.jsonl")
    received = hr.import_(tmp_path / "tree.jsonl", tmp_path / "copy")
    assert hr.open(received).fingerprint == tree.fingerprint


def test_what_is_wrong_is_said_in_one_line(tree: hr.Tree, tmp_path: Path) -> None:
    with pytest.raises(hr.CacheError, match="nothing"):
        hr.open(tmp_path / "nothing")
    with pytest.raises(hr.InputError, match="unknown model: clac; did you mean calc"):
        hr.open("caches/mine", models=["clac"])
    with pytest.raises(hr.InputError, match=r"alpha must be (finite|>= 0)"):
        hr.train(tree, alpha=-1.0, out=tmp_path / "run")
    with pytest.raises(hr.InputError, match="--budget and --alpha contradict"):
        hr.train(tree, alpha=0.1, budget=1.0)
    with pytest.raises(hr.InputError, match="unknown dataset: gsm9k"):
        hr.collect("gsm9k", cache=tmp_path / "cache")
    with pytest.raises(hr.InputError, match="unknown format: csv"):
        hr.import_(tmp_path / "in", format="csv")
