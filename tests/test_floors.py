"""A floor imports only what lies below it, and nothing imports itself in the end."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
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


def modules(*roots: Path) -> dict[str, Path]:
    """The file of each module below these packages."""
    files = {path.relative_to(root.parent): path for root in roots for path in root.rglob("*.py")}
    return {
        ".".join(place.with_suffix("").parts).removesuffix(".__init__"): path
        for place, path in files.items()
    }


def circle(files: dict[str, Path]) -> list[str]:
    """Modules that import each other, within functions too; empty where there are none."""
    graph = {}
    for name, path in files.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                if all(alias.name.startswith("__") for alias in node.names):
                    continue  # a package's version is there before anything that it imports
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
                # A name that is no module is taken from the module before it.
                if any(f"{node.module}.{alias.name}" not in files for alias in node.names):
                    found.add(node.module)
        graph[name] = found & set(files)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    roots = (*FORBIDDEN, "cli/hierrouter_cli")
    found = modules(*(ROOT / folder for folder in roots))
    assert len(found) > 100
    assert circle(found) == []


def test_a_circle_is_seen_within_a_function(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "__init__.py").write_text("from house.room import door\n")
    (tmp_path / "house" / "room.py").write_text("def door():\n    import house\n")
    assert set(circle(modules(tmp_path / "house"))) == {"house", "house.room"}


def test_the_code_unpickles_nothing() -> None:
    for folder in ("cache", "cli", "hierrouter"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not set(imports(path)) & {"pickle", "dill", "joblib", "cloudpickle"}, path
            text = path.read_text()
            assert "torch.load(" not in text, path
            assert "allow_pickle=True" not in text, path
