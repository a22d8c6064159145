"""What is in the wheel and in the source distribution."""

import tarfile
import zipfile
from pathlib import Path

import pytest

import hierrouter
from tests.conftest import SOURCES

pytest.importorskip("hatchling")
PACKAGES = {".": "hierrouter", "cache": "hierrouter_cache", "cli": "hierrouter_cli"}


def wheel_of(sources: Path, folder: Path) -> zipfile.ZipFile:
    from hatchling.builders.wheel import WheelBuilder

    (built,) = WheelBuilder(str(sources)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(built)


def files_of(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return wheel_of(SOURCES, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel: zipfile.ZipFile) -> None:
    files = {
        path.relative_to(SOURCES / root).as_posix()
        for root, package in PACKAGES.items()
        for path in (SOURCES / root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files_of(wheel) == files
    assert {f"{package}/py.typed" for package in PACKAGES.values()} <= files


def test_the_wheel_says_version_license_and_readme(wheel: zipfile.ZipFile) -> None:
    stem = f"hierrouter-{hierrouter.__version__}.dist-info"
    metadata = wheel.read(f"{stem}/METADATA").decode()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert metadata.endswith((SOURCES / "README.md").read_text())
    assert wheel.read(f"{stem}/licenses/LICENSE") == (SOURCES / "LICENSE").read_bytes()


def test_the_wheel_comes_from_a_source_distribution(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    from hatchling.builders.sdist import SdistBuilder

    (built,) = SdistBuilder(str(SOURCES)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(built) as archive:
        archive.extractall(tmp_path, filter="data")
    sources = Path(built.removesuffix(".tar.gz"))
    assert files_of(wheel_of(sources, tmp_path)) == files_of(wheel)
    for name in ("constraints.txt", "CHANGELOG.md", "docs/cli.md", "tests/conftest.py"):
        assert (sources / name).is_file()
