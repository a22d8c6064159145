"""`--scorer module:function` with a module in the working directory."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import Run, works


def test_a_module_in_the_working_directory_is_found(
    tmp_path: Path, testbed_cache: Path, hierrouter: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as the installed command starts
    shutil.copytree(testbed_cache, tmp_path / "cache")
    (tmp_path / "mine.py").write_text("def half(response, references):\n    return 0.5\n")
    flags = ["--cache", "cache", "--scorer", "mine:half"]
    works(hierrouter("train", "--dry-run", *flags, cwd=tmp_path))
