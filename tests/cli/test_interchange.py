"""`hierrouter cache import` and `export` as a person runs them."""

import json
from pathlib import Path

import pytest

from tests.conftest import Run, works
from tests.hierrouter.collection.examples import chains, save, single_answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Path:
    """A folder with an imported table in `caches/default`."""
    folder = tmp_path_factory.mktemp("imported")
    save(single_answers(40), folder / "sums.parquet")
    done = works(hierrouter("cache", "import", "sums.parquet", cwd=folder))
    assert "context-free: later hops are the models' own answers" in done.stderr
    assert "model lab/tiny 1b is called lab-tiny-1b here" in done.stderr
    assert "caches/default: 240 calls, 240 scores new, 0 rows known already" in done.stdout
    return folder


def report(hierrouter: Run, folder: Path, cache: str, *flags: str) -> str:
    done = works(hierrouter("report", "--format", "json", "--cache", cache, *flags, cwd=folder))
    return done.stdout


def test_an_imported_table_is_trained_and_reported_on(folder: Path, hierrouter: Run) -> None:
    works(
        hierrouter("train", "--scorer", "accuracy", "--alpha", "0.1", "--epochs", "3", cwd=folder)
    )
    result = json.loads(report(hierrouter, folder, "caches/default", "--scorer", "accuracy"))
    assert result["provenance"]["context_free"]
    policies = {row["policy"]: row for row in result["rows"] if row["dataset"] == "all"}
    assert {"hierrouter", "oracle", "lab-large-10b>lab-tiny-1b"} <= set(policies)
    assert policies["lab-large-10b"]["quality"] == 1.0


def test_json_lines_give_the_same_report(folder: Path, hierrouter: Run) -> None:
    before = report(hierrouter, folder, "caches/default")  # also computes its scores
    done = hierrouter("cache", "export", "--out", "all.jsonl", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "all.jsonl\n")
    works(hierrouter("cache", "import", "all.jsonl", "--cache", "caches/defaulu", cwd=folder))
    assert report(hierrouter, folder, "caches/defaulu") == before.replace('default"', 'defaulu"')


@pytest.mark.parametrize("name", ["llmrouter", "routerbench", "routellm"])
def test_an_export_says_what_cannot_travel(folder: Path, hierrouter: Run, name: str) -> None:
    out = f"{name}.csv"
    flags = ["--format", name, "--scorer", "given", "--out", out]
    done = hierrouter("cache", "export", *flags, cwd=folder)
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    assert "direct calls of 40 queries x 2 models, score given" in done.stderr
    assert f"{name} has no place for: hops after the first" in done.stderr
    again = hierrouter("cache", "export", *flags, cwd=folder)
    assert again.returncode == 2
    assert "output exists" in again.stderr


def test_a_frame_without_references_says_so(folder: Path, hierrouter: Run) -> None:
    flags = ["--format", "routerbench", "--scorer", "given", "--out", "frame.parquet"]
    assert hierrouter("cache", "export", *flags, cwd=folder).returncode == 0
    done = works(hierrouter("cache", "import", "frame.parquet", "--cache", "frame", cwd=folder))
    assert "no reference answers in the file; use --scorer given" in done.stderr
    assert "no token counts in the file" in done.stderr
    done = hierrouter("report", "--cache", "frame", cwd=folder)
    assert done.returncode == 2
    assert "--scorer given" in done.stderr
    report(hierrouter, folder, "frame", "--scorer", "given")


def test_another_file_of_the_same_models_is_not_mixed(tmp_path: Path, hierrouter: Run) -> None:
    rows = single_answers()
    save(rows, tmp_path / "first.jsonl")
    save([{**row, "score": 1.0, "response": "always right"} for row in rows], tmp_path / "cot.csv")
    for name in ("first.jsonl", "cot.csv"):
        assert hierrouter("cache", "import", name, cwd=tmp_path).returncode == 0
    result = json.loads(report(hierrouter, tmp_path, "caches/default", "--scorer", "given"))
    policies = {row["policy"]: row for row in result["rows"] if row["dataset"] == "all"}
    assert policies["lab-tiny-1b"]["quality"] == 1.0
    done = hierrouter("cache", "import", "first.jsonl", cwd=tmp_path)
    assert "caches/default: nothing new, 120 rows known already" in done.stdout
    assert "train and report now open the models and queries of this file" in done.stderr
    done = hierrouter("cache", "import", "first.jsonl", cwd=tmp_path)
    assert "train and report now open" not in done.stderr


def test_a_file_by_hand_needs_no_digest_and_says_so(folder: Path, hierrouter: Run) -> None:
    assert hierrouter("cache", "export", "--out", "hand.jsonl", cwd=folder).returncode == 0
    done = hierrouter("cache", "import", "hand.jsonl", "--cache", "exported", cwd=folder)
    assert "sha256" not in done.stderr
    header, *lines = (folder / "hand.jsonl").read_text().splitlines(keepends=True)
    stated = json.loads(header)
    del stated["sha256"]
    (folder / "hand.jsonl").write_text(json.dumps(stated) + "\n" + "".join(lines))
    done = works(hierrouter("cache", "import", "hand.jsonl", "--cache", "by-hand", cwd=folder))
    assert "no sha256 in the header" in done.stderr


def test_chains_are_opened_one_model_at_a_time(tmp_path: Path, hierrouter: Run) -> None:
    save(chains(20), tmp_path / "debate.csv")
    done = works(hierrouter("cache", "import", "debate.csv", cwd=tmp_path))
    assert "chains: only the paths that the file has" in done.stderr
    assert hierrouter("report", cwd=tmp_path).returncode == 3
    result = json.loads(report(hierrouter, tmp_path, "caches/default", "--models", "lab-tiny-1b"))
    assert not result["provenance"]["context_free"]


def test_prices_by_flag_and_prices_unknown(tmp_path: Path, hierrouter: Run) -> None:
    rows = [{**row, "model": row["model"].split()[0]} for row in single_answers()]
    save(rows, tmp_path / "sums.jsonl")
    done = hierrouter("cache", "import", "sums.jsonl", cwd=tmp_path)
    assert "prices unknown: 1 per token for every model" in done.stderr
    assert "cost counts tokens; take a small alpha such as 1e-5" in done.stderr
    assert "it has given scores: --scorer given" in done.stderr
    flags = ["--price", "lab-tiny=0.5", "--price", "lab-large=1:2", "--cache", "priced"]
    done = hierrouter("cache", "import", "sums.jsonl", *flags, cwd=tmp_path)
    assert "prices unknown" not in done.stderr
    ones = ["--price", "lab-tiny=1", "--price", "lab-large=1", "--cache", "ones"]
    done = hierrouter("cache", "import", "sums.jsonl", *ones, cwd=tmp_path)
    assert done.returncode == 0
    assert "prices unknown" not in done.stderr
    result = json.loads(report(hierrouter, tmp_path, "priced"))
    assert result["provenance"]["prices"]["lab-large"]["out"] == 2


BAD = {
    "no such file": (["none.parquet"], "file not found"),
    "unknown format": (["sums.parquet", "--format", "tables"], "did you mean table?"),
    "another format": (["sums.parquet", "--format", "llmrouter"], "task_name must be a text"),
    "hops of a cache": (["all.jsonl", "--hops", "2"], "jsonl holds a whole cache"),
    "too many hops": (["sums.parquet", "--hops", "15"], "take fewer --hops"),
    "unknown price": (["sums.parquet", "--price", "tiny=1"], "unknown model: tiny"),
    "a pickle": (["frame.pkl"], "a pickle can run any code"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2(folder: Path, hierrouter: Run, name: str) -> None:
    arguments, message = BAD[name]
    (folder / "frame.pkl").write_bytes(b"\x80\x04.")
    (folder / "all.jsonl").write_text('{"kind": "cache"}\n')
    done = hierrouter("cache", "import", *arguments, "--cache", "new", cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (folder / "new").exists()


def test_an_export_without_a_cache_is_exit_3(tmp_path: Path, hierrouter: Run) -> None:
    done = hierrouter("cache", "export", "--out", "all.jsonl", cwd=tmp_path)
    assert done.returncode == 3
    assert list(tmp_path.iterdir()) == []


def test_imported_models_cannot_be_called(folder: Path, hierrouter: Run) -> None:
    """Neither through a pool file, nor by going on with what was imported."""
    (folder / "pool.toml").write_text(
        '[[models]]\nname = "a"\nmodel = "lab/a"\nbase_rate = 1.0\nbackend = "imported"\n'
    )
    done = hierrouter("collect", "--pool", "pool.toml", "--limit", "2", cwd=folder)
    assert done.returncode == 2
    assert "unknown backend imported: pool.toml, model a; known: transformers" in done.stderr
    done = hierrouter("collect", cwd=folder)
    assert done.returncode == 2
    assert "caches/default holds was imported, and its models cannot be called" in done.stderr


def test_missing_scores_and_equal_answers_are_told_apart(tmp_path: Path, hierrouter: Run) -> None:
    rows = [{**row, "response": "same", "tokens_out": 1} for row in single_answers()]
    rows[3]["score"] = None
    save(rows, tmp_path / "sums.jsonl")
    done = hierrouter("cache", "import", "sums.jsonl", cwd=tmp_path)
    assert "1 answers have no score; --scorer given will refuse them" in done.stderr
    assert ", 0 rows known already" in done.stdout


def test_an_export_of_json_lines_is_named_so(folder: Path, hierrouter: Run) -> None:
    done = hierrouter("cache", "export", "--out", "everything", cwd=folder)
    assert (done.returncode, (folder / "everything").exists()) == (2, False)
    assert "jsonl is written as .jsonl" in done.stderr
