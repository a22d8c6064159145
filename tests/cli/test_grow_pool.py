"""One more model in a pool: what was there before is served as it was, byte for byte."""

import json
from importlib import resources
from pathlib import Path

from tests.conftest import Run, works

FOURTH = """
[[models]]
name = "brief"
model = "testbed:facts"
dtype = "float32"
base_rate = 0.01
generation = { max_new_tokens = 4 }
"""


def test_the_report_of_three_models_is_the_same_after_a_fourth(
    tmp_path: Path, hierrouter: Run
) -> None:
    three = (resources.files("hierrouter.pools") / "testbed.toml").read_text()
    (tmp_path / "four.toml").write_text(three + FOURTH)
    questions = ["--datasets", "riddle,story", "--limit", "10"]
    ask = ["report", "--pool", "testbed", "--format", "json"]
    assert hierrouter("collect", *questions, cwd=tmp_path).returncode == 0
    before = hierrouter(*ask, cwd=tmp_path)
    works(hierrouter("collect", *questions, "--pool", "four.toml", cwd=tmp_path))
    after = hierrouter(*ask, cwd=tmp_path)
    assert before.stdout
    assert after.stdout == before.stdout
    by_names = hierrouter("report", "--models", "calc,text,facts", "--format", "json", cwd=tmp_path)
    assert json.loads(by_names.stdout)["rows"] == json.loads(before.stdout)["rows"]
    whole = json.loads(hierrouter("report", "--format", "json", cwd=tmp_path).stdout)
    assert len([row for row in whole["rows"] if row["kind"] == "route"]) > len(
        [row for row in json.loads(before.stdout)["rows"] if row["kind"] == "route"]
    )
