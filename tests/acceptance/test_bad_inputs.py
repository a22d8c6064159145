"""What bad input gets: the right exit code, one line that says what to do, and nothing is lost.

The table is bad_inputs.toml. After every row, whatever it is: no trace, no escape byte, nothing
outside the folder, no draft, no part changed; after one that is refused also nothing on stdout, no
call of a model, and every file as it was.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance import damage, keeps
from tests.acceptance.keeps import Happened, contents, parts
from tests.acceptance.place import Answering, Place, listing, make_place
from tests.acceptance.table import Row, read_rows
from tests.conftest import SOURCES, Run
from tests.servers import serving

ROWS = read_rows()
REFUSED = (2, 3)
LONGEST = 300
# `what is wrong: where; what to do`, or what must be; a wrong command line in Typer's words.
GRAMMAR = re.compile(r"[^;]+; [^;].*|.+ must .+: .+|(No such|Invalid value) .+")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Iterator[Place]:
    """A sound place, and what its report says."""
    with serving(Answering(listing=listing())) as server:
        place = make_place(tmp_path_factory.mktemp("made") / "home", hierrouter, server)
        place.noted["report"] = place.does("report", "--format", "json")
        yield place


@pytest.fixture
def place(made: Place, tmp_path: Path) -> Place:
    """A copy that a row may damage."""
    return made.copied(tmp_path / "home")


@pytest.mark.parametrize("row", [row for row in ROWS if row.run], ids=lambda row: row.id)
def test_bad_input(row: Row, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, *arguments in row.setup:
        getattr(damage, name)(place, *arguments)
    for variable, value in row.env.items():
        monkeypatch.setenv(variable, value)
    it = run(place, row.run)
    assert it.done.returncode == row.exit, it.done.stderr
    check_streams(it)
    check_files(it)
    if row.says:
        assert keeps.matches(f"error: {row.says}", it.done.stderr.splitlines()[-1])
    for name, *arguments in row.keep:
        getattr(keeps, name)(it, *arguments)


def run(place: Place, command: str) -> Happened:
    before, asked = contents(place), place.server.asked.total()
    done = place.run(*shlex.split(command), cwd=place.home)
    return Happened(place, done, before, contents(place), place.server.asked.total() - asked)


def check_streams(it: Happened) -> None:
    """Both streams are clean, and a failure is one line on stderr."""
    out, err, failed = it.done.stdout, it.done.stderr, it.done.returncode != 0
    assert not re.search(r"[\x1b\x9b]|Traceback", out + err)
    lines = err.splitlines()
    assert [line for line in lines if line.startswith("error:")] == lines[-1:] * failed
    if failed:
        assert out == ""
        assert len(lines[-1]) <= LONGEST


def check_files(it: Happened) -> None:
    """No draft is left, no part is lost, and what was refused has changed nothing at all."""
    drafts = [path for path in it.after if "/tmp/" in path or path.endswith(".tmp")]
    assert drafts == [path for path in it.before if path in drafts]
    assert parts(it.before).items() <= parts(it.after).items()
    if it.done.returncode in REFUSED:
        assert it.after == it.before
        assert it.calls == 0


@pytest.mark.parametrize("row", [row for row in ROWS if row.proven], ids=lambda row: row.id)
def test_proven_elsewhere(row: Row) -> None:
    for test in row.proven:
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (SOURCES / file).read_text("utf-8"), re.MULTILINE)


def test_every_id_stands_once() -> None:
    ids = [row.id for row in ROWS]
    assert sorted(set(ids)) == sorted(ids)


def test_a_line_says_what_to_do() -> None:
    assert [row.id for row in ROWS if row.says and not GRAMMAR.fullmatch(row.says)] == []
