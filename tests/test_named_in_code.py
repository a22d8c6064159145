"""Names of modules, classes and functions in docstrings and comments exist."""

import ast
import io
import pkgutil
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_glossary import PACKAGES, ROOT

DOTTED_NAME = re.compile(r"(?<![\w./-])hierrouter(?:_cache|_cli)?(?:\.[A-Za-z_]\w*)+")
# In backticks, a class or constant of a module of the same folder: `states.STATE_VIEWS`.
NEIGHBOUR_NAME = re.compile(r"`([a-z]\w*)\.([A-Z]\w*)")


def prose(code: str) -> str:
    """The docstrings and comments of a module."""
    texts = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.append(str(node.value.value))
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            texts.append(token.string)
    return "\n".join(texts)


def named(code: str, package: Path) -> Iterator[str]:
    """The dotted names in a module's docstrings and comments; `package` is the module's folder."""
    text = prose(code)
    parts = package.parts[1:] if package.parts[0] in ("cache", "cli") else package.parts
    yield from DOTTED_NAME.findall(text)
    for module, name in NEIGHBOUR_NAME.findall(text):
        if (ROOT / package / f"{module}.py").is_file():
            yield ".".join((*parts, module, name))


def exists(name: str) -> bool:
    """Whether an imported name, or a field of a dataclass without a default, has that name."""
    try:
        pkgutil.resolve_name(name)
    except AttributeError:
        owner, _, field = name.rpartition(".")
        if not exists(owner):
            return False
        return field in getattr(pkgutil.resolve_name(owner), "__annotations__", {})
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("package", PACKAGES)
def test_dotted_names_in_docstrings_and_comments_exist(package: str) -> None:
    wrong = []
    count = 0
    for path in sorted((ROOT / package).rglob("*.py")):
        module = path.relative_to(ROOT)
        for name in named(path.read_text(), module.parent):
            count += 1
            if not exists(name):
                wrong.append(f"{module}: {name}")
    assert wrong == []
    assert count > 0


def test_a_wrong_name_is_noticed() -> None:
    replay = Path("hierrouter/replay")
    code = (
        '"""See `hierrouter.replay.states.VIEWS`, `states.NUMBERS`."""\nx = 1  # hierrouter.left\n'
    )
    names = list(named(code, replay))
    assert names == [
        "hierrouter.replay.states.VIEWS",
        "hierrouter.left",
        "hierrouter.replay.states.NUMBERS",
    ]
    assert not any(exists(name) for name in names)
    assert exists("hierrouter.replay.states.STATE_VIEWS")
    assert exists("hierrouter.learning.router.Origin.view")
