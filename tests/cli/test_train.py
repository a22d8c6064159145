"""The flags of `train`, `sweep-alpha` and `report`, on a collected cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run, as_json, works
from tests.hierrouter.collection.examples import save, single_answers

SHORT = ("--epochs", "2")


@pytest.fixture(scope="module")
def stopping(bare: Path, hierrouter: Run) -> Path:
    """A run of a router that may stop, learned by enumeration, with its curve."""
    flags = ["--algo", "exact", "--allow-stop", "--alpha", "0.1", "--tensorboard", *SHORT]
    return trained(hierrouter, bare, "stopping", *flags)


@pytest.fixture(scope="module")
def question_only(bare: Path, hierrouter: Run) -> Path:
    """A run of a router that sees the question alone."""
    return trained(hierrouter, bare, "question", "--state", "query", *SHORT)


@pytest.fixture(scope="module")
def sweep(bare: Path, hierrouter: Run) -> Path:
    """A sweep of two alphas and two seeds."""
    flags = ["--alphas", "0,0.1", "--seeds", "2", "--seed", "7", "--out", "sweep", *SHORT]
    done = works(hierrouter("sweep-alpha", *flags, cwd=bare))
    assert "2 alphas (0, 0.1), exact, 2 seeds" in done.stderr
    assert done.stdout.splitlines()[-1] == "sweep"
    return bare / "sweep"


def trained(run: Run, bare: Path, out: str, *flags: str) -> Path:
    done = run("train", "--out", out, *flags, cwd=bare)
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    assert json.loads((bare / out / "run.json").read_text())["command"] == "train"
    return bare / out


def described(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "policy.json").read_text())
    return found


def report(run: Run, bare: Path, *flags: str | Path) -> dict[str, Any]:
    return as_json(run("report", "--format", "json", *flags, cwd=bare))


def refused(run: Run, bare: Path, *flags: str | Path) -> str:
    done = run("report", "--format", "json", *flags, cwd=bare)
    assert (done.returncode, done.stdout) == (2, "")
    line: str = done.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    return line


def test_enumeration_and_stop_are_in_the_checkpoint_and_the_report(
    bare: Path, stopping: Path, hierrouter: Run
) -> None:
    found = described(stopping)
    assert (found["algo"], found["objective"]) == (
        "exact",
        {"alpha": 0.1, "allow_stop": True, "max_cost": None},
    )
    assert found["config"]["epochs"] == 2
    shown = report(hierrouter, bare, "--checkpoint", stopping)
    assert shown["alpha"] == 0.1
    told = ("algo", "allow_stop", "max_cost", "view")
    assert [shown["provenance"][name] for name in told] == ["exact", True, None, "context"]
    routes = {row["policy"] for row in shown["rows"] if row["kind"] == "route"}
    assert routes >= {"calc>stop", "text>calc"}  # of one call and of two


def test_the_curve_is_there_for_tensorboard(stopping: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    events = event_accumulator.EventAccumulator(str(stopping / "tensorboard")).Reload()
    curve = [(event.step, event.value) for event in events.Scalars("value/validation")]
    history = described(stopping)["history"]
    assert curve == [(n + 1, pytest.approx(value)) for n, value in enumerate(history)]
    assert len(events.Scalars("value/train")) == 2


def test_a_report_opens_the_view_of_its_checkpoint(
    bare: Path, question_only: Path, hierrouter: Run
) -> None:
    assert described(question_only)["view"] == "query"
    shown = report(hierrouter, bare, "--checkpoint", question_only)
    assert shown["provenance"]["view"] == "query"
    assert "hierrouter" in {row["policy"] for row in shown["rows"]}


def test_another_view_is_refused(bare: Path, question_only: Path, hierrouter: Run) -> None:
    line = refused(hierrouter, bare, "--checkpoint", question_only, "--state", "context")
    assert "reads another view of the state: query, opened was context" in line
    assert "--state query" in line


def test_another_pool_is_refused(bare: Path, question_only: Path, hierrouter: Run) -> None:
    line = refused(hierrouter, bare, "--checkpoint", question_only, "--models", "calc,text")
    assert "for other models: 3 models (calc, text, facts), the cache has 2 (calc, text)" in line


def test_other_hops_are_refused(bare: Path, question_only: Path, hierrouter: Run) -> None:
    line = refused(hierrouter, bare, "--checkpoint", question_only, "--hops", "1")
    assert "for 2 hops, the cache has 1" in line


def test_another_encoder_is_refused(bare: Path, question_only: Path, hierrouter: Run) -> None:
    from hierrouter.learning.checkpoint import load_checkpoint, save_checkpoint

    loaded = load_checkpoint(question_only)
    strange = replace(loaded, origin=replace(loaded.origin, encoder="elsewhere"))
    save_checkpoint(strange, bare / "strange")
    flags = ["--checkpoint", "strange", "--encoder", "hashed-ngrams"]
    line = refused(hierrouter, bare, *flags)
    assert "reads another encoder: elsewhere, opened was hashed-ngrams" in line


def test_a_budget_finds_its_alpha(bare: Path, hierrouter: Run) -> None:
    done = works(hierrouter("train", "--budget", "1.1", "--out", "budget", *SHORT, cwd=bare))
    found = described(bare / "budget")
    line = next(line for line in done.stderr.splitlines() if line.startswith("budget 1.1: "))
    assert f"alpha {found['objective']['alpha']:.4g};" in line
    assert found["budget"] == 1.1
    shown = report(hierrouter, bare, "--checkpoint", "budget", "--split", "validation")
    [router] = [row for row in shown["rows"] if (row["kind"], row["dataset"]) == ("router", "all")]
    assert router["cost"] <= 1.1
    assert f"C {router['cost']:.3f}" in line
    assert shown["provenance"]["budget"] == 1.1
    [note] = [note for note in shown["notes"] if "mean cost of 1.1 a query" in note]
    assert f"it costs {router['cost']:.4g}, " in note


def test_an_impossible_budget_is_refused_before_the_training(bare: Path, hierrouter: Run) -> None:
    done = hierrouter("train", "--budget", "0.001", "--out", "poor", cwd=bare)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no policy is that cheap: a mean cost of 0.001" in done.stderr.splitlines()[-1]
    assert not list((bare / "poor").rglob("*.safetensors"))


def test_a_limit_for_each_query_is_told_and_kept(bare: Path, hierrouter: Run) -> None:
    done = works(hierrouter("train", "--max-cost", "1.2", "--out", "limit", *SHORT, cwd=bare))
    assert "at most 1.2 a query" in done.stderr
    assert "of queries cost more than 1.2" in done.stderr
    assert described(bare / "limit")["objective"]["max_cost"] == 1.2
    shown = report(hierrouter, bare, "--checkpoint", "limit")
    assert shown["provenance"]["max_cost"] == 1.2


def test_a_sweep_answers_an_alpha_that_was_not_trained(
    bare: Path, sweep: Path, hierrouter: Run
) -> None:
    assert sorted(folder.name for folder in sweep.glob("seed-*")) == ["seed-7", "seed-8"]
    before = sorted(bare.rglob("*.safetensors"))
    flags = ["--sweep", "sweep", "--alpha", "0.02", "--format", "json"]
    done = works(hierrouter("report", *flags, cwd=bare))
    assert "no run of `train` for alpha 0.02 on this tree; the sweep's network" in done.stderr
    shown = json.loads(done.stdout)
    assert (shown["alpha"], shown["provenance"]["trained_alpha"]) == (0.02, 0.02)
    assert "hierrouter" in {row["policy"] for row in shown["rows"]}
    learned = [row["alpha"] for row in shown["frontier"] if row["kind"] == "router"]
    assert learned == [0, 0.1]
    assert sorted(bare.rglob("*.safetensors")) == before


def test_a_sweep_by_ppo_is_one_training_an_alpha(bare: Path, hierrouter: Run) -> None:
    flags = ["--algo", "ppo", "--alphas", "0.1,0", "--out", "by-ppo", *SHORT]
    works(hierrouter("sweep-alpha", *flags, cwd=bare))
    found = [described(run.parent) for run in sorted((bare / "by-ppo").rglob("policy.json"))]
    assert [(one["algo"], one["objective"]["alpha"]) for one in found] == [("ppo", 0), ("ppo", 0.1)]


def test_the_same_alpha_twice_is_trained_once(bare: Path, hierrouter: Run) -> None:
    done = hierrouter("sweep-alpha", "--alphas", "0.1,0.01,0.1", "--dry-run", cwd=bare)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sweep-alpha: 2 alphas (0.01, 0.1), exact, 1 seed" in done.stdout


def test_a_dry_run_trains_nothing(bare: Path, hierrouter: Run) -> None:
    flags = ["--allow-stop", "--max-cost", "3", "--algo", "exact", "--dry-run", "--out", "none"]
    done = hierrouter("train", *flags, cwd=bare)
    assert (done.returncode, done.stderr) == (0, "")
    told = "train: alpha 0.005, may stop early, at most 3 a query, exact, preset default, seed 42: "
    assert done.stdout.startswith(told) and done.stdout.count("\n") == 1
    assert not (bare / "none").exists()


def imported(hierrouter: Run, folder: Path, test_score: float) -> Path:
    """A cache of sums with scores as given; those of the test fold are all the same."""
    rows = [
        {**row, "split": ("train", "train", "validation", "test")[number // 2 % 4]}
        for number, row in enumerate(single_answers(40))
    ]
    folder.mkdir()
    given = [{**row, "score": test_score} if row["split"] == "test" else row for row in rows]
    save(given, folder / "sums.parquet")
    works(hierrouter("cache", "import", "sums.parquet", cwd=folder))
    return folder


TRAININGS = {
    "ppo": ("train",),
    "exact": ("train", "--algo", "exact", "--max-cost", "30"),
    "budget": ("train", "--budget", "30"),
    "sweep": ("sweep-alpha",),
}


@pytest.fixture(scope="module")
def two_worlds(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> list[Path]:
    """The same cache twice, but for the scores of the test fold."""
    folder = tmp_path_factory.mktemp("worlds")
    return [imported(hierrouter, folder / f"all-{score:g}", score) for score in (0.0, 1.0)]


@pytest.mark.parametrize("command", TRAININGS.values(), ids=TRAININGS)
def test_other_scores_of_the_test_fold_change_no_byte_of_a_policy(
    command: tuple[str, ...], two_worlds: list[Path], hierrouter: Run
) -> None:
    made = []
    for folder in two_worlds:
        out = folder / "-".join(command)
        flags = ["--scorer", "given", "--out", out.name, *SHORT]
        done = works(hierrouter(*command, *flags, cwd=folder))
        assert "10 validation)" in done.stderr and "test" not in done.stderr
        files = [
            path for path in sorted(out.rglob("*")) if path.suffix in (".json", ".safetensors")
        ]
        made.append({path.relative_to(out): path.read_bytes() for path in files})
    names = [json.loads(found[Path("run.json")])["asked"]["fingerprint"] for found in made]
    assert names[0] != names[1]  # which names the whole tree, and is all that differs
    for found, name in zip(made, names, strict=True):
        for path in found:
            found[path] = found[path].replace(name.encode(), b"the tree")
    assert made[0] == made[1]
