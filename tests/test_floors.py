"""A floor imports only what lies below it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "cache/hierrouter_cache": {"hierrouter", "hierrouter_cli", "torch", "transformers", "tianshou"},
    "hierrouter": {"hierrouter_cli"},
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_no_import_goes_up(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert len(files) > 5
    for path in files:
        assert not set(imports(path)) & FORBIDDEN[folder], path


def test_the_code_unpickles_nothing() -> None:
    for folder in ("cache", "cli", "hierrouter"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not set(imports(path)) & {"pickle", "dill", "joblib", "cloudpickle"}, path
            text = path.read_text()
            assert "torch.load(" not in text, path
            assert "allow_pickle=True" not in text, path
