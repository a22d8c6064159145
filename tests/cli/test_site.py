"""The pages as a site: nothing dangles, nothing is forgotten, nothing is out of date."""

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.acceptance.table import read_rows
from tests.cli import flags_page
from tests.cli.pages import DOCS, PAGES
from tests.conftest import SOURCES, spawned

ROOMS = ("hierrouter", "cache", "cli")
CONFIG = SOURCES / "mkdocs.yml"


def anchors(page: Path) -> set[str]:
    """What a heading of a page is reached by."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
            place, _, anchor = link.partition("#")
            target = page.parent / place if place else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"
            # A page of the site links to no file outside of it.
            assert page == PAGES[0] or target.resolve().is_relative_to(DOCS), f"{page.name}: {link}"


def test_the_page_of_decisions_lists_all_of_them() -> None:
    page = DOCS / "decisions.md"
    listed = re.findall(r"^ *- \[(.+)\]\(#.+\)$", page.read_text(), re.M)
    assert len(listed) > 100
    assert listed == re.findall(r"^##+ (.+)$", page.read_text(), re.M)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = Counter(_leaves(yaml.safe_load(CONFIG.read_text())["nav"]))
    assert listed == Counter(str(page.relative_to(DOCS)) for page in PAGES[1:])


def _leaves(of: object) -> Iterator[str]:
    if isinstance(of, str):
        yield of
    elif isinstance(of, dict):
        yield from _leaves(list(of.values()))
    elif isinstance(of, list):
        for one in of:
            yield from _leaves(one)


def test_the_page_of_flags_is_what_the_commands_say() -> None:
    """Else `python -m tests.cli.flags_page` writes it anew."""
    assert flags_page.PAGE.read_text() == flags_page.text()


def messages() -> Iterator[tuple[int, str]]:
    """(exit code, message) of the page of error messages; an ellipsis stands for anything."""
    page = (DOCS / "errors.md").read_text()
    for section in page.split("\n## Exit code ")[1:]:
        for _, message in re.findall(r"^\| (`+) ?(.+?) ?\1 \|", section, re.M):
            yield int(section.split(":")[0]), message


def test_every_message_that_is_explained_is_given() -> None:
    """By a row of the acceptance tests, with its exit code, or at least somewhere in the code."""
    rows = read_rows()
    sources = [path.read_text() for room in ROOMS for path in (SOURCES / room).rglob("*.py")]
    code = re.sub(r'"\n *f?"', "", "".join(sources))  # a message may stand in several lines
    explained = list(messages())
    assert len(explained) == 23
    for exit_code, message in explained:
        shape = re.compile(".*".join(map(re.escape, message.split("…"))))
        tried = [row for row in rows if row.exit == exit_code and shape.fullmatch(row.says)]
        assert tried or all(part in code for part in message.split("…")), message


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    shutil.copytree(DOCS, tmp_path / "docs")
    settings = CONFIG.read_text()
    sources = f"paths: [{SOURCES}, {SOURCES / 'cache'}]"
    (tmp_path / CONFIG.name).write_text(settings.replace("paths: [., cache]", sources))
    done = spawned(sys.executable, "-m", "zensical", "build", "--strict", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {path.stem for path in (tmp_path / "build" / "site").rglob("*.html")}
    assert built >= {page.stem for page in PAGES[1:]}
    assert "R = Q - alpha" in (tmp_path / "build/site/reference/trees.html").read_text()
