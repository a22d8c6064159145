"""`hierrouter cache import` and `export` as a person runs them."""

import json

import pytest

from tests.cli.conftest import Place, over_all
from tests.conftest import Run
from tests.hierrouter.collection.examples import chains, save, single_answers
from tests.properties.test_importers import routerbench_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Place:
    """A folder with an imported table in `caches/default`."""
    place = Place(tmp_path_factory.mktemp("imported"), hierrouter)
    save(single_answers(40), place / "sums.parquet")
    done = place.does("cache import sums.parquet")
    assert "context-free: later hops are the models' own answers" in done.stderr
    assert "model lab/tiny 1b is called lab-tiny-1b here" in done.stderr
    assert "caches/default: 240 calls, 240 scores new, 0 rows known already" in done.stdout
    return place


def test_an_imported_table_is_trained_and_reported_on(folder: Place) -> None:
    train = "train --scorer accuracy --alpha 0.1 --epochs 3"
    line = folder.refuses(train, code=1)
    assert "all-mpnet-base-v2 is not on this machine" in line and "--encoder hashed-ngrams" in line
    folder.does(f"{train} --encoder hashed-ngrams")
    assert "no router can be shown" in folder.does("report --scorer accuracy").stderr
    result = folder.tells("report --scorer accuracy --encoder hashed-ngrams")
    assert result["provenance"]["context_free"]
    policies = over_all(result["rows"])
    assert {"hierrouter", "oracle", "lab-large-10b>lab-tiny-1b"} <= set(policies)
    assert policies["lab-large-10b"]["quality"] == 1.0


def test_json_lines_give_the_same_report(folder: Place) -> None:
    ask = "report --format json --cache caches/"
    before = folder.does(f"{ask}default").stdout  # also computes its scores
    assert folder.does("cache export --out all.jsonl").stdout == "all.jsonl\n"
    done = folder.does("cache import all.jsonl --cache caches/defaulu")
    assert "sha256" not in done.stderr
    assert folder.does(f"{ask}defaulu").stdout == before.replace('default"', 'defaulu"')
    header, *lines = (folder / "all.jsonl").read_text().splitlines(keepends=True)
    stated = json.loads(header)
    del stated["sha256"]
    (folder / "hand.jsonl").write_text(json.dumps(stated) + "\n" + "".join(lines))
    done = folder.does("cache import hand.jsonl --cache by-hand")
    assert "no sha256 in the header" in done.stderr


@pytest.mark.parametrize(("format", "out"), [("llmrouter", "rows"), ("routerbench", "frame.csv")])
def test_an_export_to_another_tool_says_what_it_has_no_place_for(
    folder: Place, format: str, out: str
) -> None:
    encoder = "--encoder hashed-ngrams" if format == "llmrouter" else ""
    export = f"cache export --format {format} --scorer given {encoder} --out {out}"
    done = folder.does(export)
    assert done.stdout == f"{out}\n"
    assert "direct calls of 40 queries x 2 models, score given\n" in done.stderr
    assert f"{format} has no place for: hops after the first; " in done.stderr
    assert "output exists" in folder.refuses(export)
    back = folder.does(f"cache import {out} --cache caches/{format}")
    assert f"import: {format}, 40 queries x 2 models, 2 hops" in back.stderr
    folder.does(f"report --cache caches/{format} --scorer given --format json")


def test_a_scorer_of_ones_own_prints_nothing_into_an_export(folder: Place) -> None:
    (folder / "mine.py").write_text(
        "def length(response, references):\n    print('hm')\n    return 1"
    )
    done = folder.does("cache export --format routerbench --scorer mine:length --out own.parquet")
    assert done.stdout == "own.parquet\n"
    assert "score mine:length" in done.stderr


def test_a_frame_without_references_says_so(folder: Place) -> None:
    save(routerbench_rows(), folder / "frame.parquet")
    done = folder.does("cache import frame.parquet --cache frame")
    assert "no reference answers in the file, so no other --scorer than given" in done.stderr
    assert "no token counts in the file" in done.stderr
    assert "--scorer given" in folder.refuses("report --cache frame --scorer token_f1")
    named = folder.does("report --cache frame --scorer given --format json").stdout
    assert json.loads(named)["scorer"] == "given"
    by_default = folder.does("report --cache frame --format json")
    assert json.loads(by_default.stdout)["rows"] == json.loads(named)["rows"]
    assert "note: Q is the scores that came with the imported answers" in by_default.stderr


def test_a_gap_is_named_with_its_model_which_can_be_left_out(place: Place) -> None:
    rows = single_answers(40)
    kept = [row for at, row in enumerate(rows) if "large" not in row["model"] or at % 4 != 1]
    lost = len(rows) - len(kept)
    save(kept, place / "sums.jsonl")
    done = place.does("cache import sums.jsonl")
    assert f"import: {lost} queries lack an answer of lab-large-10b\n" in done.stderr
    assert (
        "leave models out with --without, or these queries with --allow-incomplete" in done.stderr
    )
    line = place.refuses("report --scorer accuracy", code=3)
    assert line.startswith("error: the table that was imported is incomplete: ")
    assert f"no answer of lab-large-10b in {lost}; import one that has them" in line
    assert "collect" not in line
    found = place.tells("report --scorer accuracy --without lab-large-10b")
    assert {row["policy"] for row in found["rows"]} >= {"lab-tiny-1b", "lab-tiny-1b>lab-tiny-1b"}
    assert "lab-large-10b" not in str(found["rows"])
    whole = place.refuses("report --scorer accuracy --without lab-large-10b,lab-tiny-1b")
    assert whole.startswith("error: no model is left: --without lab-large-10b,lab-tiny-1b")
    line = place.refuses("report --without lab-larg-10b")
    assert line == "error: unknown model: lab-larg-10b; did you mean lab-large-10b?"


def test_all_folds_can_be_shown_and_are_no_test(folder: Place) -> None:
    found = folder.tells("report --split all --scorer accuracy")
    assert {row["n"] for row in found["rows"] if row["dataset"] == "all"} == {40}
    assert found["notes"][0].endswith("so this is no test.")
    assert folder.refuses("report --split al") == "error: unknown split: al; did you mean all?"


def test_another_file_of_the_same_models_is_not_mixed(place: Place) -> None:
    rows = single_answers()
    save(rows, place / "first.jsonl")
    save([{**row, "score": 1.0, "response": "always right"} for row in rows], place / "cot.csv")
    place.does("cache import first.jsonl")
    place.does("cache import cot.csv")
    assert over_all(place.tells("report --scorer given")["rows"])["lab-tiny-1b"]["quality"] == 1.0
    opened = "train and report now open the models and queries of this file"
    done = place.does("cache import first.jsonl")
    assert "caches/default: nothing new, 120 rows known already" in done.stdout
    assert opened in done.stderr
    assert opened not in place.does("cache import first.jsonl").stderr


def test_chains_are_opened_one_model_at_a_time(place: Place) -> None:
    save(chains(20), place / "debate.csv")
    done = place.does("cache import debate.csv")
    assert "chains: only the paths that the file has" in done.stderr
    place.refuses("report", code=3)
    assert not place.tells("report --models lab-tiny-1b")["provenance"]["context_free"]


def test_prices_by_flag_and_prices_unknown(place: Place) -> None:
    rows = [{**row, "model": row["model"].split()[0]} for row in single_answers()]
    save([{**row, "response": "same", "tokens_out": 1} for row in rows], place / "sums.jsonl")
    done = place.does("cache import sums.jsonl")
    assert ", 0 rows known already" in done.stdout  # equal answers are told apart
    assert "prices unknown: 1 per token for every model" in done.stderr
    assert "cost counts tokens; take a small alpha such as 1e-5" in done.stderr
    assert "all answers have a given score: it is Q unless you name another --scorer" in done.stderr
    rows[3]["score"] = None
    save(rows, place / "sums.jsonl")
    flags = "--price lab-tiny=0.5 --price lab-large=1:2 --cache priced"
    done = place.does(f"cache import sums.jsonl {flags}")
    assert "prices unknown" not in done.stderr
    assert "1 answers have no score; --scorer given will refuse them" in done.stderr
    assert place.tells("report --cache priced")["provenance"]["prices"]["lab-large"]["out"] == 2
    flags = "--price lab-tiny=1 --price lab-large=1 --cache ones"
    assert "prices unknown" not in place.does(f"cache import sums.jsonl {flags}").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sums.parquet --format llmrouter", "task_name must be a text"),
        ("whole.jsonl --hops 2", "jsonl holds a whole cache"),
        ("sums.parquet --hops 15", "take fewer --hops"),
        ("sums.parquet --price tiny=1", "unknown model: tiny"),
        ("frame.pkl", "a pickle can run any code"),
    ],
)
def test_bad_input_is_one_line(folder: Place, words: str, said: str) -> None:
    (folder / "frame.pkl").write_bytes(b"\x80\x04.")
    (folder / "whole.jsonl").write_text('{"kind": "cache"}\n')
    done = folder.asks(f"cache import {words} --cache new")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert not (folder / "new").exists()


def test_what_cannot_be_exported_is_refused(folder: Place, place: Place) -> None:
    place.refuses("cache export --out all.jsonl", code=3)
    assert list(place.folder.iterdir()) == []
    assert "jsonl is written as .jsonl" in folder.refuses("cache export --out everything")
    assert not (folder / "everything").exists()


def test_imported_models_cannot_be_called(folder: Place) -> None:
    """Neither through a pool file, nor by going on with what was imported."""
    (folder / "pool.toml").write_text(
        '[[models]]\nname = "a"\nmodel = "lab/a"\nbase_rate = 1.0\nbackend = "imported"\n'
    )
    line = folder.refuses("collect --pool pool.toml --limit 2")
    assert "unknown backend imported: pool.toml, model a; known: transformers" in line
    line = folder.refuses("collect")
    assert "caches/default holds was imported, and its models cannot be called" in line


def test_a_report_audits_answers_and_given_scores(place: Place) -> None:
    rows = single_answers(40)
    for row in rows[:6]:
        row["score"] = 1 - row["score"]
    rows[10] |= {"response": "502 Bad Gateway", "score": 0}
    save(rows, place / "sums.jsonl")
    place.does("cache import sums.jsonl")
    done = place.does("report --format json --out audited")
    result = json.loads(done.stdout)
    assert result["scorer"] == "given"
    audit = result["audit"]
    assert (audit["n"], audit["total"]) == (80, 80)
    agreements = {row["model"]: row["share"] for row in audit["agreements"]}
    assert agreements == {"lab-tiny-1b": 37 / 40, "lab-large-10b": 37 / 40}
    assert sorted(row["query"] for row in audit["disagreements"]) == [
        *("sums/q0", "sums/q0", "sums/q1", "sums/q1", "sums/q2", "sums/q2")
    ]
    assert {row["model"]: row["error_page"] for row in audit["models"]} == {
        "lab-tiny-1b": 1,
        "lab-large-10b": 0,
    }
    notes = " ".join(result["notes"])
    assert "Sums: accuracy agrees with the given scores on only 0.925 of 80 answers" in notes
    assert "sums/q5 of lab-tiny-1b: '502 Bad Gateway'; these calls failed" in notes
    page = (place / "audited" / "report.html").read_text()
    assert "Can the answers and their scores be trusted?" in page
    assert "Disagreements of accuracy with the given scores" in page
    tables = place.does("report --all").stdout
    assert "Agreement of accuracy with the given scores" in tables
