"""`hierrouter cache repair` where the last plan is damaged."""

import json
from pathlib import Path

from tests.conftest import Run, works

COLLECT = ["collect", "--datasets", "arith", "--cache", "cache"]
INFO = ["cache", "info", "--cache", "cache", "--format", "json"]


def test_the_last_plan_is_asked_for_and_not_replaced_by_an_older_one(
    tmp_path: Path, hierrouter: Run
) -> None:
    hierrouter(*COLLECT, "--limit", "2", cwd=tmp_path)
    hierrouter(*COLLECT, "--limit", "3", cwd=tmp_path)
    plan = max((tmp_path / "cache" / "parts").glob("plans-*"))
    data = bytearray(plan.read_bytes())
    data[len(data) // 2] ^= 1
    plan.write_bytes(data)

    repaired = works(hierrouter("cache", "repair", "--cache", "cache", cwd=tmp_path))
    assert f"the last plan was moved aside: {plan.name}; collect with" in repaired.stdout
    for command in (INFO, ["report", "--cache", "cache"]):
        refused = hierrouter(*command, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (3, "")
        assert plan.name in refused.stderr

    again = hierrouter(*COLLECT, "--limit", "3", cwd=tmp_path)
    assert "collected: 45 nodes" in again.stderr
    assert " 0 calls made" in again.stderr
    assert json.loads(hierrouter(*INFO, cwd=tmp_path).stdout)["queries"] == 3
