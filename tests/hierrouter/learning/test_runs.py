"""The folders of runs."""

from pathlib import Path

import pytest

from hierrouter.learning.run_folders import new_run


def test_runs_that_begin_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [new_run("report", None) for _ in range(5)]
    assert len(set(found)) == 5
    assert all(run.is_dir() for run in found)
