"""`constraints.txt` and `requirements.lock` name all that `.[dev]` brings, in the same versions."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import SOURCES

PIN = re.compile(r"^([\w.-]+)==(\S+)( \\)?$", re.M)
# Clients that bring many packages, and that no other test needs.
NOT_LOCKED = {"mlflow", "wandb"}
ABOUT = tomllib.loads((SOURCES / "pyproject.toml").read_text())["project"]


def pins(file: str) -> dict[str, str]:
    """Version by name."""
    text = (SOURCES / file).read_text()
    return {canonicalize_name(found[1]): found[2] for found in PIN.finditer(text)}


def direct(*extras: str) -> list[Requirement]:
    """What the project itself asks for, with these extras."""
    lists = [ABOUT["dependencies"], *(ABOUT["optional-dependencies"][extra] for extra in extras)]
    return [Requirement(line) for lines in lists for line in lines]


def brought(asked: list[Requirement]) -> set[str]:
    """The names of these and of all that they bring here, found in what is installed."""
    waiting = [(one.name, extra) for one in asked for extra in ("", *one.extras)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extra = waiting.pop()
        name = canonicalize_name(name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        for one in map(Requirement, lines):
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                waiting += [(one.name, inner) for inner in ("", *one.extras)]
    return {name for name, _ in seen}


def test_both_name_the_same_versions_but_for_torch() -> None:
    constraints = pins("constraints.txt")
    assert constraints.pop("torch")
    assert pins("requirements.lock") == constraints


def test_the_versions_are_ones_that_the_project_asks_for() -> None:
    constraints = pins("constraints.txt")
    for asked in direct(*(ABOUT["optional-dependencies"].keys() - NOT_LOCKED)):
        assert asked.specifier.contains(constraints[canonicalize_name(asked.name)]), asked


def test_nothing_is_missing() -> None:
    found = brought(direct("dev"))
    assert len(found) > len(direct("dev"))
    missing = found - set(pins("constraints.txt"))
    of_cuda = ("cuda-", "nvidia-", "triton")  # what torch brings where there is a GPU
    assert {name for name in missing if not name.startswith(of_cuda)} == set()


def test_each_pin_of_the_lock_has_hashes_and_no_address() -> None:
    text = (SOURCES / "requirements.lock").read_text()
    entries = re.split(r"\n(?=[a-z0-9])", text.partition("\n")[2])
    assert len(entries) == len(pins("requirements.lock"))
    for entry in entries:
        name, *hashes = entry.replace("\\\n", "").split()
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), name
    assert "://" not in text
