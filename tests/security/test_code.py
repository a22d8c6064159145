"""What our own code may not do, read from its text."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conftest import SOURCES

FILES = sorted(
    file for place in ("cache", "cli", "hierrouter") for file in (SOURCES / place).rglob("*.py")
)
UNPICKLES = {"pickle", "dill", "joblib", "cloudpickle", "shelve", "marshal", "yaml"}
RUNS = {"eval", "exec", "compile", "__import__"}
# Processes that are started: their commands are ours, what is asked goes through a pipe or is one
# argument that no shell reads.
STARTS = {
    "hierrouter/questions/formulas.py",
    "hierrouter/questions/programs.py",
    "hierrouter/collection/cluster.py",
}
# The one place where text is run: what a confined process does with a program in an answer. Both
# functions have other names there.
CONFINED = ("hierrouter/questions/confinement.py", "_run_program")
# Where a keyword would open what has to stay shut.
SHUT = {"trust_remote_code", "allow_pickle", "follow_redirects", "shell", "verify"}
UNEXPLAINED = re.compile(r"# noqa: S\d+(?!\d*(, [A-Z]+\d+)* - \w)")


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    assert len(FILES) > 100
    return {str(file.relative_to(SOURCES)): ast.parse(file.read_text()) for file in FILES}


def nodes(trees: dict[str, ast.AST], kind: type) -> Iterator[tuple[str, ast.AST]]:
    for name, tree in trees.items():
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, kind))


def test_nothing_is_unpickled(trees: dict[str, ast.AST]) -> None:
    for name, node in nodes(trees, (ast.Import, ast.ImportFrom)):
        modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
        assert not {module.split(".")[0] for module in modules} & UNPICKLES, name
    for name, node in nodes(trees, ast.Attribute):
        assert ast.unparse(node) not in ("torch.load", "np.fromfile", "pd.read_pickle"), name


def test_nothing_is_run_that_is_text(trees: dict[str, ast.AST]) -> None:
    for name, node in nodes(trees, ast.Call):
        called = ast.unparse(node.func)
        assert called not in RUNS, name
        assert not called.startswith(("os.system", "os.popen", "os.exec", "os.spawn")), name
        if called.startswith("subprocess."):
            assert name in STARTS


def test_programs_are_run_in_the_confined_process_only(trees: dict[str, ast.AST]) -> None:
    for name, node in nodes(trees, ast.FunctionDef):
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        assert not used & {"exec", "eval"} or (name, node.name) == CONFINED, name
    calls = [node for name, node in nodes(trees, ast.Call) if name == CONFINED[0]]
    assert len([node for node in calls if ast.unparse(node.func) == CONFINED[1]]) == 1


def test_what_is_shut_stays_shut(trees: dict[str, ast.AST]) -> None:
    found = 0
    for name, node in nodes(trees, ast.keyword):
        if node.arg in SHUT:
            found += 1
            assert isinstance(node.value, ast.Constant) and node.value.value is False, name
    for name, node in nodes(trees, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            is_flag = isinstance(key, ast.Constant) and key.value in SHUT
            text = value.value if isinstance(value, ast.Constant) else ""
            if is_flag and not str(text).startswith("hierrouter "):  # a command is called verify
                found += 1
                assert isinstance(value, ast.Constant) and value.value is False, name
    assert found >= 5


def test_every_exception_from_the_rules_of_security_says_why() -> None:
    excepted = [
        line for file in FILES for line in file.read_text().splitlines() if "noqa: S" in line
    ]
    assert len([line for line in excepted if re.search(r"noqa: S\d", line)]) > 10
    assert not [line.strip() for line in excepted if UNEXPLAINED.search(line)]
