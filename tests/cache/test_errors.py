"""The error tree in the docstring of `hierrouter_cache.errors` is the one of the source."""

import ast
import builtins
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hierrouter_cache import errors
from hierrouter_cli.app import _exit_code

ROOT = Path(__file__).parents[2]
PACKAGES = (
    ROOT / "hierrouter",
    ROOT / "cache" / "hierrouter_cache",
    ROOT / "cli" / "hierrouter_cli",
)
# "  * Name [exit code] (module): what happened"
ENTRY_PATTERN = re.compile(
    r"^(?P<indent> *)\* (?P<name>\w+)(?: \[(?P<code>\d+)\])?(?: \((?P<module>[\w.]+)\))?: \S",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Entry:
    """One exception class.

    Attributes:
        module: name of its module.
        parent: name of its base class; "Exception" in the docstring if it is not indented.
    """

    module: str
    parent: str


def module_name(package: Path, path: Path) -> str:
    """Return the dotted name of a file of a package."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def defined_classes(*packages: Path) -> dict[str, Entry]:
    """Return all exception classes that packages define, by name."""
    classes: dict[str, Entry] = {}
    for package in packages:
        for path in package.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and node.bases:
                    parent = ast.unparse(node.bases[0]).rpartition(".")[2]
                    classes[node.name] = Entry(module_name(package, path), parent)

    def is_exception(name: str) -> bool:
        if name in classes:
            return is_exception(classes[name].parent)
        builtin = getattr(builtins, name, None)
        return isinstance(builtin, type) and issubclass(builtin, BaseException)

    return {name: entry for name, entry in classes.items() if is_exception(name)}


def drawn_classes(docstring: str) -> dict[str, Entry]:
    """Return the exception classes that a docstring draws as a tree, by name."""
    classes: dict[str, Entry] = {}
    ancestors: list[str] = []
    for match in ENTRY_PATTERN.finditer(docstring):
        level = len(match["indent"]) // 2
        parent = ancestors[level - 1] if level else "Exception"
        assert match["name"] not in classes, match["name"]
        classes[match["name"]] = Entry(match["module"] or errors.__name__, parent)
        ancestors[level:] = [match["name"]]
    return classes


def test_the_docstring_draws_all_exception_classes() -> None:
    assert errors.__doc__
    drawn = drawn_classes(errors.__doc__)
    assert drawn == defined_classes(*PACKAGES)
    assert len(drawn) > 15


def test_the_docstring_gives_the_exit_codes_of_the_command_line() -> None:
    assert errors.__doc__
    codes = {match["name"]: match["code"] for match in ENTRY_PATTERN.finditer(errors.__doc__)}
    for name, entry in drawn_classes(errors.__doc__).items():
        error_class = getattr(import_module(entry.module), name)
        if issubclass(error_class, errors.HierRouterError):
            assert codes[name] == str(_exit_code(error_class.__new__(error_class))), name
        else:
            assert codes[name] is None, name


def test_an_exception_class_that_is_not_drawn_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    path = tmp_path / "package" / "module.py"
    path.write_text(
        "class First(ValueError): ...\nclass Second(First): ...\nclass Other(dict): ...\n"
    )
    expected = {
        "First": Entry("package.module", "ValueError"),
        "Second": Entry("package.module", "First"),
    }
    assert defined_classes(tmp_path / "package") == expected
