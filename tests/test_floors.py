"""A room imports only what lies below it, and nothing imports itself in the end."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {
    "hierrouter": "hierrouter",
    "hierrouter_cache": "cache/hierrouter_cache",
    "hierrouter_cli": "cli/hierrouter_cli",
}
# A room imports only rooms of lower floors, within functions too.
FLOORS = (
    {"cache", "hub", "paper"},
    {"declarations", "pools", "questions", "tables"},
    {"engines", "evaluation"},
    {"replay"},
    {"learning"},
    {"runs"},
    {"collection", "reports"},
    {"serving"},
    {"cli"},
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS, 1) for room in rooms}


def imported(path: Path, with_types: bool = True) -> set[str]:
    """What a file names in its imports, and takes from the modules there.

    Args:
        path: of the file.
        with_types: whether imports that only type checkers see count.
    """
    found = set()
    tree = ast.parse(path.read_text())
    if not with_types:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages(path: Path) -> set[str]:
    """The packages that a file imports from."""
    return {name.partition(".")[0] for name in imported(path)}


def room_of(module: str) -> str | None:
    """The room that a dotted name lies in; None for others' code and for our version."""
    package, *inside = module.split(".")
    if package in ("hierrouter_cache", "hierrouter_cli"):
        return package.removeprefix("hierrouter_")
    if package != "hierrouter" or inside == ["__version__"]:
        return None
    return inside[0] if inside and inside[0] in FLOOR else "the face"


def climbs(files: dict[str, Path]) -> list[str]:
    """Imports of a room that does not lie below."""
    found = []
    for module, path in files.items():
        here = room_of(module)
        if here in (None, "the face", "cli"):
            continue
        for name in sorted(imported(path)):
            there = room_of(name)
            if there and there != here and FLOOR.get(there, len(FLOORS)) >= FLOOR[here]:
                found.append(f"{module} imports {name}")
    return found


def test_a_room_imports_only_rooms_below_it() -> None:
    files = modules(*(ROOT / folder for folder in SOURCES.values()))
    assert ({room_of(module) for module in files} - {"the face"}) == set(FLOOR)
    assert climbs(files) == []


def test_an_import_that_climbs_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "plan.py"
    path.write_text("def plan():\n    import hierrouter\n    from hierrouter.runs import run\n")
    assert climbs({"hierrouter.pools.plan": path}) == [
        f"hierrouter.pools.plan imports hierrouter{end}" for end in ("", ".runs.run")
    ]


def test_the_cache_needs_no_torch() -> None:
    for path in (ROOT / SOURCES["hierrouter_cache"]).rglob("*.py"):
        assert not packages(path) & {"torch", "transformers", "tianshou"}, path


def modules(*roots: Path) -> dict[str, Path]:
    """The file of each module below these packages."""
    files = {path.relative_to(root.parent): path for root in roots for path in root.rglob("*.py")}
    return {
        ".".join(place.with_suffix("").parts).removesuffix(".__init__"): path
        for place, path in files.items()
    }


def circle(files: dict[str, Path]) -> list[str]:
    """Modules that import each other, within functions too; empty if there are none.

    Imports for types alone do not count: a declaration and what runs it name each other there.
    """
    graph = {}
    for name, path in files.items():
        # A package's version is there before anything that it imports; another name that is no
        # module is taken from the module before it.
        taken = {
            one
            for one in imported(path, with_types=False)
            if not one.rpartition(".")[2].startswith("__")
        }
        found = {one if one in files else one.rpartition(".")[0] for one in taken}
        graph[name] = found & set(files)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    found = modules(*(ROOT / folder for folder in SOURCES.values()))
    assert len(found) > 100
    assert circle(found) == []


def test_a_circle_is_seen_within_a_function(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "__init__.py").write_text("from house.room import door\n")
    (tmp_path / "house" / "room.py").write_text("def door():\n    import house\n")
    assert set(circle(modules(tmp_path / "house"))) == {"house", "house.room"}
