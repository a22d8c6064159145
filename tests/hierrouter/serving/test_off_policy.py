"""Logs of a tree, warnings, and what is printed."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import hierrouter as hr
from benchmarks.off_policy import Setting, logging_table
from benchmarks.off_policy import lines_of as episodes_of
from hierrouter.engines.encoders import HashedNgrams
from hierrouter.evaluation.outcome import greedy
from hierrouter.learning.config import Objective, training_config
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.training import train
from hierrouter.questions.answers import token_f1
from hierrouter.replay.open_tree import OpenTree
from hierrouter.replay.tree import Texts, Tree, load_texts
from hierrouter.runs.bundle import bundle_of, save_bundle
from hierrouter.runs.checkpoint import save_checkpoint
from hierrouter.serving.estimators import Log
from hierrouter.serving.logs import Episode, LogShape, Step, log_and_states, log_of, read_log
from hierrouter.serving.monitoring import RequestLog
from hierrouter.serving.off_policy import as_json, long_table, result_tables, value_from_log
from hierrouter.serving.router import RouteOptions, Router
from hierrouter.tables import as_csv, as_latex, as_markdown
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree
from tests.cli.conftest import Place
from tests.conftest import Run
from tests.hierrouter.learning.trainings import ALPHA, EXACT_GLIMPSE, decided, small_tree
from tests.hierrouter.serving.serving import lines_of

SOURCE: Mapping[str, object] = {"cache": "here"}


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    return small_tree()


@pytest.fixture(scope="module")
def router(tree: RouteTree) -> TrainedRouter:
    return train(tree, Objective(ALPHA, allow_stop=True), EXACT_GLIMPSE, 0)


class TreeEncoder:
    """Encodes the texts of `texts_of` as the embeddings of the tree."""

    description = "planted"

    def __init__(self, tree: RouteTree) -> None:
        self.tree = tree

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        parts = [text.split("\n\n") for text in texts]
        rows = np.array([self.tree.query_ids.index(question) for question, *_ in parts])
        nodes = np.array([int(answers[-1]) if answers else 0 for _, *answers in parts])
        return self.tree.embedding_at(rows, nodes)


def texts_of(tree: RouteTree) -> list[Texts]:
    """Texts of a tree: the question is the query's id, each answer the number of its node."""
    answers = "", *map(str, range(1, tree.layout.nodes))
    return [Texts(name, (), answers) for name in tree.query_ids]


def played(tree: RouteTree, router: TrainedRouter, kind: str, episodes: int) -> tuple[Setting, Log]:
    """A log of a policy around the router."""
    chances = router.probabilities(tree)
    target = greedy(chances, tree.base_rate)
    logging = logging_table(kind, router.actions, chances, target)
    setting = Setting(tree, router.actions, logging, target, ALPHA)
    return setting, setting.play(episodes, np.random.default_rng(0))


def written(log: Log, tree: RouteTree, folder: Path) -> list[Episode]:
    """The same from a file."""
    lines = episodes_of(log, tree, "mine", texts_of(tree))
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return read_log(folder / "log.jsonl", LogShape(tree.models, tree.hops, tree.rate))


def test_a_written_log_is_the_same(tree: RouteTree, router: TrainedRouter, tmp_path: Path) -> None:
    setting, log = played(tree, router, "uniform", 400)
    result = value_from_log(router, written(log, tree, tmp_path), ALPHA, SOURCE, TreeEncoder(tree))
    from_file = result.evaluation
    from_memory = setting.evaluate(log)
    assert from_file.estimates["SNIPS"].value == pytest.approx(from_memory.estimates["SNIPS"].value)
    assert from_file.overlap.effective == pytest.approx(from_memory.overlap.effective)
    low, high = from_memory.estimates["DR"].interval()  # its folds of questions are others
    assert low < from_file.estimates["DR"].value < high
    assert result.logged_by == {"mine": 400}


def episode(question: str, stop: bool = False, **changed: object) -> Episode:
    calls = tuple(Step(0, 0.5, stop, 1.0, "1") for _ in range(1 if stop else 2))
    return replace(Episode(question, calls, 0.5, where="log:7"), **changed)


def test_one_question_is_no_log(tree: RouteTree, router: TrainedRouter) -> None:
    with pytest.raises(InputError, match="at least 2 questions"):
        value_from_log(router, [episode("q0"), episode("q0")], ALPHA, SOURCE, TreeEncoder(tree))


def test_a_log_that_stops_values_a_router_that_never_does(tree: RouteTree) -> None:
    steady = train(tree, Objective(ALPHA), EXACT_GLIMPSE, 0)
    stopping = [episode(name, stop=True) for name in tree.query_ids[:5]]
    going_on = [episode(name) for name in tree.query_ids[5:10]]
    episodes = [*stopping, *going_on]
    assert value_from_log(steady, episodes, ALPHA, {}, TreeEncoder(tree)).evaluation.episodes == 10
    log = log_of(episodes, steady, np.arange(10))
    assert (log.actions.count, log.length.tolist()) == (6, [1] * 5 + [2] * 5)
    assert log.action.tolist() == [[3, 0]] * 5 + [[0, 0]] * 5


def test_logged_texts_are_read_as_by_a_live_router(router: TrainedRouter) -> None:
    texts = [
        episode(f"what is {number}?", steps=steps)
        for number, steps in enumerate(
            [
                (Step(1, 0.5, False, 0.5, "a plan"), Step(2, 0.5, False, 0.25)),
                (Step(0, 0.5, True, 0.75),),
            ]
        )
    ]
    encoder = HashedNgrams(8)
    log, states = log_and_states(texts, router, encoder)
    assert log.alive.tolist() == [[True, True], [True, False]]
    contexts = ["what is 0?", "what is 0?\n\na plan", "what is 1?"]
    paths = [(), (1,), ()]
    spent = [0.0, 0.5, 0.0]
    for row, vector, path, cost in zip(
        states.row[log.alive], encoder.encode(contexts), paths, spent, strict=True
    ):
        np.testing.assert_array_equal(states.features[row, :8], vector)
        chances = decided(router, vector, path, cost)
        np.testing.assert_array_equal(states.target[row], greedy(chances, router.origin.base_rate))
    assert states.features[1, 8:].tolist() == [0, 1, 0, 1]  # model 1 was called, and C is the most


def test_warnings_are_given_and_unknown_figures_are_null(
    tree: RouteTree, router: TrainedRouter
) -> None:
    shy = [episode(name, stop=True) for name in tree.query_ids]
    result = value_from_log(router, shy, ALPHA, SOURCE, TreeEncoder(tree))
    notes = " ".join(result.notes)
    assert result.evaluation.overlap.share_never_taken > 0.9
    for words in ("the log never does there", "the weights average", "episodes are few"):
        assert words in notes
    read = json.loads(as_json(result))
    estimates = {item["estimator"]: item for item in read["estimates"]}
    assert (estimates["SNIPS"]["value"], estimates["SNIPS"]["low"]) == (None, None)
    assert "SNIPS,,,," in as_csv(long_table(result)).splitlines()
    assert "| SNIPS | - | - | - |" in as_markdown(result_tables(result)[0])


def test_all_formats_have_the_same_figures(
    tree: RouteTree, router: TrainedRouter, tmp_path: Path
) -> None:
    _, log = played(tree, router, "epsilon=0.5", 900)
    result = value_from_log(router, written(log, tree, tmp_path), ALPHA, SOURCE, TreeEncoder(tree))
    assert result.notes == ()
    estimated, overlap = result_tables(result)
    assert "from 900 episodes of " in estimated.title
    assert estimated.rows[0].group == "logged by mine (900)"
    read = json.loads(as_json(result))
    assert read["overlap"]["effective"] == pytest.approx(overlap.rows[0].cells[1])
    assert read["provenance"] == SOURCE
    sheet = csv.DictReader(io.StringIO(as_csv(long_table(result))))
    for row, line, cells in zip(read["estimates"], estimated.rows, sheet, strict=True):
        assert row["estimator"] == line.cells[0] == cells["estimator"]
        assert row["value"] == pytest.approx(line.cells[1])
        for name in ("value", "error", "low", "high"):
            assert float(cells[name]) == pytest.approx(row[name])
    for table in (estimated, overlap):
        assert as_latex(table).count(r"\begin{table}") == 1


@pytest.fixture(scope="module")
def live_log(testbed_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tree]:
    """A folder with a router that draws, and the log of its answers to all test questions, twice.

    The models answer themselves; their answers are those of the tree.
    """
    folder = tmp_path_factory.mktemp("savings")
    tree = OpenTree(cache=testbed_cache).run()
    config = replace(training_config("default", "exact", 1), keep_anyway=True)
    trained = train(tree, Objective(0.1, allow_stop=True), config, seed=1)
    for name in ("policy.weight", "policy.bias"):  # unsure of everything, and so draws everything
        trained.router.network.weights[name] *= np.float32(0.2)
    save_checkpoint(trained, folder / "run")
    save_bundle(bundle_of(testbed_cache, tree), folder / "run")
    fold = tree.select(np.arange(0, len(tree), 2))
    texts = load_texts(testbed_cache, fold) * 2
    for name, rng in (("drawn", np.random.default_rng(0)), ("greedy", None)):
        log = RequestLog(folder / name)
        with Router(folder / "run") as router:
            for number, text in enumerate(texts):
                result = router.route(text.question, RouteOptions(rng=rng))
                log.log_answer(f"{number}", "hierrouter", "run", result)
        log.close()
        lines = lines_of(folder / name)
        for line, text in zip(lines, texts, strict=True):
            line["quality"] = token_f1(line["answer"], text.references)
        lines[1:1] = [{"event": "changed"}, {"status": 502, "error": "x", "steps": []}]
        (folder / name).write_text("\n".join(map(json.dumps, lines)))
    return folder, fold


def test_savings_agree_with_the_tree(live_log: tuple[Path, Tree], hierrouter: Run) -> None:
    folder, fold = live_log
    workspace = Place(folder, hierrouter)
    rows = workspace.tells("off-policy --log drawn --checkpoint run --savings")["rows"]
    first = fold.layout.level(1)
    truth = {
        "C of 1,000": 1000 * fold.cost[:, first].mean(axis=0),
        "Q": fold.score[:, first].mean(axis=0),
    }
    answers = [line for line in lines_of(folder / "drawn") if line.get("status") == 200]
    spent = 1000 * np.mean([line["cost"] for line in answers])
    assert len(rows) == 9
    for row in rows:
        assert row["answers"] == len(answers) and row["never"] == 0
        if row["measure"] != "seconds":
            single = truth[row["measure"]][fold.models.index(row["model"])]
            assert row["low"] < row["router"] - single < row["high"], row
            assert row["single"] == pytest.approx(single, abs=0.15 * max(single, 0.5))
            assert row["difference"] == pytest.approx(row["router"] - row["single"])
    assert rows[0]["router"] == pytest.approx(spent)
    done = workspace.does("off-policy --log drawn --checkpoint run --savings")
    assert "off-policy: 1 lines are left out" in done.stderr
    assert "instead of calc alone" in done.stdout
    assert "The best alone at alpha 0.1 is " in done.stdout
    sheet = workspace.does("off-policy --log drawn --checkpoint run --savings --format csv").stdout
    assert sheet.startswith("model,measure,router,single,difference,low,high")


def test_python_gives_the_figures_of_the_command(
    live_log: tuple[Path, Tree], hierrouter: Run
) -> None:
    folder, _ = live_log
    workspace = Place(folder, hierrouter)
    log, run = folder / "drawn", folder / "run"
    flags = "off-policy --log drawn --checkpoint run"
    printed = workspace.tells(f"{flags} --savings")["rows"]
    for row, expected in zip(hr.savings(log, run=run), printed, strict=True):
        assert row == pytest.approx(expected)  # printed with fewer digits
    notes: list[str] = []
    result = hr.off_policy(log, run=run, on_note=notes.append)
    assert json.loads(as_json(result))["estimates"] == workspace.tells(flags)["estimates"]
    assert "1 lines are left out" in notes[-1]


def test_savings_that_the_log_cannot_tell_are_null(
    live_log: tuple[Path, Tree], tmp_path: Path, hierrouter: Run
) -> None:
    """Of one that draws nothing; what was never called has no figures, only what was spent."""
    workspace = Place(live_log[0], hierrouter)
    words = "off-policy --checkpoint run --savings --log"
    rows = workspace.tells(f"{words} greedy")["rows"]
    blind = [row for row in rows if row["difference"] is None]
    assert blind and all(row["never"] > 0 and row["low"] is None for row in blind)
    assert "The log cannot tell " in workspace.does(f"{words} greedy").stdout
    line = lines_of(workspace / "drawn")[0]
    for change, message in (
        ({}, "answers to 1 questions"),
        ({"steps": [1]}, "a step is no object"),
        ({"steps": [{**line["steps"][0], "chances": ["x"]}]}, "chance is 'x'"),
        ({"steps": [{**line["steps"][0], "cost": -1}]}, "cost is -1"),
    ):
        (tmp_path / "bad").write_text(json.dumps(line | change))
        assert message in workspace.refuses(words, tmp_path / "bad")
