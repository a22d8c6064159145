"""Programs in answers: no accuracy unless they are run, and the same figures everywhere."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hierrouter as hr
from hierrouter.questions import programs
from hierrouter.questions.programs import NoConfinement
from hierrouter.questions.scoring import TEST_SCORER, scorer
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.reader import CacheReader
from tests.cli.conftest import Place
from tests.conftest import refused, spawned
from tests.hierrouter.collection.examples import save
from tests.hierrouter.questions.test_programs import skip_without_namespaces

ADD = "def add(a, b):\n    return a + b"
TESTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]
PROGRAMS = {"good": f"Here it is:\n```python\n{ADD}\n```", "bad": ADD.replace("+", "-")}
SUMS = {"good": "The answer is 4.", "bad": "4"}


def rows(count: int = 6, tests: bool = True) -> list[dict[str, Any]]:
    """Answers of two models, to questions for a program and to sums; all folds have both."""
    made: list[dict[str, Any]] = []
    for number in range(count):
        for dataset, answer, texts in (("code", ADD, PROGRAMS), ("sums", "4", SUMS)):
            for model, response in texts.items():
                row = {
                    "query_id": f"{dataset}-{number}",
                    "dataset": dataset,
                    "question": f"{dataset} {number}",
                    "answer": answer,
                    "model": model,
                    "response": response,
                    "tokens_in": 3,
                    "tokens_out": 5 + number,
                    "split": ("train", "validation", "test")[number % 3],
                }
                if tests and dataset == "code":
                    row["tests"] = TESTS
                made.append(row)
    return made


@pytest.fixture
def cache(place: Place) -> Path:
    hr.import_(save(rows(), place / "answers.jsonl"), place / "cache")
    return place / "cache"


@pytest.fixture
def confined() -> None:
    skip_without_namespaces()


def verdicts(cache: Path) -> int:
    return CacheReader(cache).number(
        f"SELECT count(*) FROM scores WHERE scorer = '{TEST_SCORER.key}'"
    )


def test_a_program_is_not_right_or_wrong_by_its_text() -> None:
    for response in (ADD, PROGRAMS["good"], "no"):
        assert np.isnan(scorer("accuracy")(response, [ADD]))
        assert scorer("accuracy")(response, [ADD, "no"]) == (response == "no")
    assert scorer("exact_match")(ADD, [ADD]) == 1  # whoever asks for it by name gets it


def test_without_the_flag_accuracy_is_absent_everywhere(
    cache: Path, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "JudgeProcess", None)  # nothing may be run
    tree = hr.open(cache)
    is_code = np.array(tree.datasets) == "code"
    assert np.isnan(tree.direct.accuracy[is_code]).all()
    assert tree.direct.accuracy[~is_code].tolist() == [[1, 1]] * 6
    assert tree.to_arrow()["accuracy"].null_count == 6 * (2 + 6)
    report = hr.report(tree, split="test", out=tmp_path / "report")
    figures = json.loads(report.to_json())
    means = {(row["policy"], row["dataset"]): row["accuracy"] for row in figures["rows"]}
    assert means["good", "code"] is means["bad>good", "code"] is means["oracle", "code"] is None
    assert means["good", "sums"] == means["good", "all"] == 1
    assert all(row["quality"] is not None for row in figures["rows"])
    [note] = [note for note in figures["notes"] if "--run-code" in note]
    assert note.startswith("No accuracy on 6 of 12 queries (code): their answers are programs")
    table = str(report.table("accuracy"))
    assert re.search(r"oracle +- +1\.000 +1\.000", table)
    assert not re.search(r"(?i)\bnan\b", table + report.to_json() + str(report.table("rows")))
    assert "right 1.0000" in repr(hr.evaluate(tree, "good", 0.01))
    assert "right –" in repr(hr.evaluate(hr.open(cache, datasets="code"), "good", 0.01))
    assert "not judged" in str(hr.explain(tree, "code/code-0"))
    explained = place.does("explain code/code-0 --cache cache --format json").stdout
    assert explained.count('"accuracy": null') == 6
    for command in ("compare --encoder hashed-ngrams", "report"):
        done = place.does(f"{command} --cache cache --split test --format json")
        assert "NaN" not in done.stdout
        assert '"accuracy": null' in done.stdout or command != "report"


def test_accuracy_as_q_needs_the_flag(cache: Path, place: Place, tmp_path: Path) -> None:
    needed = (
        "answers of code are programs, so their accuracy is not known: --scorer accuracy; "
        "run them: --run-code"
    )
    with pytest.raises(InputError, match=needed):
        hr.open(cache, scorer="accuracy")
    assert hr.open(cache, scorer="accuracy", datasets="sums").score[:, 1].tolist() == [1] * 6
    for command in ("report", "train", "export --format routerbench --out x.csv"):
        words = f"{'cache ' * ('export' in command)}{command} --cache cache --scorer accuracy"
        assert needed in place.refuses(words)
    hr.import_(save(rows(tests=False), tmp_path / "bare.jsonl"), tmp_path / "bare")
    with pytest.raises(InputError, match="these have no tests: collect with --datasets once more"):
        hr.open(tmp_path / "bare", scorer="accuracy", run_code=True)


@pytest.mark.usefixtures("confined")
def test_with_the_flag_programs_are_run_once_and_verdicts_are_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = hr.open(cache, run_code=True)
    is_code = np.array(tree.datasets) == "code"
    assert tree.direct.models == ("good", "bad")
    assert tree.direct.accuracy[is_code].tolist() == [[1, 0]] * 6
    assert tree.direct.accuracy[~is_code].tolist() == [[1, 1]] * 6
    assert verdicts(cache) == 36  # one for each call; equal answers are run once
    assert TEST_SCORER.key == f"tests@{programs.JUDGE_VERSION}-run-code-py{programs.PYTHON}"
    # Verdicts are read with and without the flag, and by every command.
    monkeypatch.setattr(programs, "JudgeProcess", None)
    for run_code in (True, False):
        again = hr.open(cache, run_code=run_code, scorer="accuracy")
        np.testing.assert_array_equal(again.accuracy, tree.accuracy)
        np.testing.assert_array_equal(again.score, tree.accuracy)
    assert "No accuracy" not in hr.report(again, out=tmp_path / "report").to_json()


@pytest.mark.usefixtures("confined")
def test_verdicts_on_some_answers_give_a_query_no_accuracy(cache: Path) -> None:
    hr.open(cache, models="good", run_code=True)
    assert verdicts(cache) == 12  # of the direct calls and of the nodes, which share theirs
    tree = hr.open(cache)
    assert np.isnan(tree.accuracy[np.array(tree.datasets) == "code"][:, 1:]).all()
    alone = hr.open(cache, models="good")
    assert alone.direct.accuracy.tolist() == [[1]] * 12


@pytest.mark.usefixtures("confined")
def test_verify_runs_programs_again_if_asked(cache: Path, place: Place) -> None:
    hr.open(cache, run_code=True)
    done = place.does("verify --cache cache --rescore")
    assert "36 scores of other versions" in done.stdout
    done = place.does("verify --cache cache --rescore --run-code")
    assert "scores of other versions" not in done.stdout
    assert "--run-code is for --rescore; add it" in place.refuses("verify --cache cache --run-code")


def test_where_programs_cannot_be_confined_none_runs(
    cache: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> list[object]:
        raise NoConfinement("unshare: Operation not permitted")

    monkeypatch.setattr("hierrouter.questions.scoring.judge", refuse)
    with pytest.raises(WorldError, match="so none was run: --run-code: unshare: Operation not"):
        hr.open(cache, run_code=True)
    assert verdicts(cache) == 0


@pytest.mark.usefixtures("cache", "confined")
def test_without_user_namespaces_a_command_refuses_to_run_programs(place: Place) -> None:
    command = [sys.executable, "-m", "hierrouter_cli", "report", "--cache", "cache", "--run-code"]
    limit = "/proc/sys/user/max_user_namespaces"
    within = ["unshare", "-Ur", "sh", "-c", f'echo 0 > {limit}; exec "$@"', "sh"]
    line = refused(spawned(*within, *command, cwd=place.folder), 1)
    assert line == (
        "error: programs cannot be confined here, so none was run: --run-code: unshare: No space "
        "left on device; take Linux 5.14 or later with user namespaces, or leave it out, see "
        "docs/security.md"
    )
    assert verdicts(place / "cache") == 0


@pytest.mark.usefixtures("confined")
def test_collect_runs_programs_and_keeps_a_signature_in_the_plan(place: Place) -> None:
    questions = [
        {"question": f"Add {n}.", "answer": ADD, "test_list": TESTS, "test_setup_code": ""}
        for n in range(5)
    ]
    save(questions, place / "mine.jsonl")
    collect = "collect --datasets mine.jsonl --pool testbed --cache cache"
    place.does(f"{collect} --show-signature --run-code")
    assert verdicts(place / "cache") > 0
    asked = place.asks_cache(
        "--cache cache", "SELECT DISTINCT right(question, 39) AS q FROM queries"
    )
    assert asked == [{"q": ".\nYour code has to define:\ndef add(a, b):"[-39:]}]
    place.does("collect --cache cache")  # the plan has the questions as they were shown
    line = place.refuses("collect --cache cache --show-signature")
    assert "give --datasets with it" in line
    plain = hr.open(place / "cache")
    assert plain.accuracy[:, 1:].max() == 0  # the testbed's models write no programs


@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        (["assert add("], "tests is no Python, line 1"),
        ([5], "tests must be a program, or a list of statements"),
        ("x = \0", "tests is no Python"),
        ({"a": 1}, "tests must be a program"),
    ],
)
def test_tests_that_are_no_python_are_bad_rows(place: Place, tests: Any, problem: str) -> None:
    save([{"question": "q", "answer": ADD, "tests": tests}], place / "x.jsonl")
    line = place.refuses("datasets --datasets x.jsonl")
    assert problem in line
    assert "x.jsonl:1" in line
