"""Whatever is typed: an exit code that is documented, one line of error, and nothing is lost.

Commands that go on for minutes are only run where they check and stop, or where there is no cache.
"""

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hierrouter_cli.app import _run
from tests.cli.test_help import COMMANDS, context
from tests.hierrouter.pools.examples import GOOD
from tests.properties.test_parts import contents, sound

CODES = (0, 1, 2, 3)
LONG = "x" * 300
VALUES = (
    *("", " ", "-1", "0", "1", "2", "0.005", "0.1", "nan", "inf", "1e400", "9" * 400, "0x1", "1_0"),
    *("a", "a,b", "a,,b", "b,a", "a,a", "A", "d", "d/0", "d/9", "0,0.1", "auto", "test", "train"),
    *("json", "text", "csv", "md", "latex", "token_f1", "accuracy", "given", "os:system", "a:b:c"),
    *("cache", "other", "nope/nope", LONG, f"{LONG}.jsonl", "../up", "\udce9", "\u202e", "x\ny"),
    *("p.toml", "near.jsonl", "out.jsonl", "near.parquet", "prices.toml", ".", "/", "file://x"),
    *("a=1", "a=1:2", "a=", "=1", "a=-1", "a=nan", "a=1:2:3", "c=1", "s3://", "nope://x"),
    *("select 1", "select * from nodes", "select", "drop table nodes", "select * from 'p.toml'"),
    *("http://[", "--", "-", "--help", "-h", "--debug"),
    *("context", "query", "stage", "ppo", "exact", "uniform"),
)
# With these each command stops before it works for long.
DRY = "--dry-run"
STOPPING = {
    "collect": [*("--cache", "nope/nope", "--datasets", "near.jsonl"), "--pool", "p.toml", DRY],
    **{command: [DRY] for command in ("train", "sweep-alpha", "route")},
}
SLOW = {"compare", "report", "quickstart", "serve", "explore"}
READ_ONLY = {"cache info", "verify", "cache sql", "cache export", "cache push", "datasets"}
LINE = '{"query_id": "1", "question": "?", "answer": "1", "model": "m-1b", "response": "1", '
LINE += '"tokens_in": 1, "tokens_out": 1}\n'


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A folder with a cache and the files that values name; the current one meanwhile."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "home"
        shutil.copytree(sound(), folder / "cache")
        (folder / "p.toml").write_text(GOOD)
        (folder / "prices.toml").write_text("[prices]\na = 1\n")
        (folder / "near.jsonl").write_text(LINE)
        (folder / "near.parquet").write_text("none")
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def flags(command: str) -> list[tuple[str, bool]]:
    """(name, whether it takes a value) of each flag of a command."""
    return [
        (name, not getattr(flag, "is_flag", False))
        for flag in context(command).command.params
        for name in flag.opts
        if name.startswith("-") and name != "--epochs"
    ]


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """(command, arguments)."""
    command = draw(st.sampled_from(COMMANDS))
    value = st.sampled_from(VALUES) | st.text(max_size=6).filter(lambda text: "\0" not in text)
    words: list[str] = []
    for name, takes in draw(st.lists(st.sampled_from(flags(command)), max_size=3)):
        words += [name, draw(value)] if takes else [name]
    for _ in range(draw(st.integers(0, 2))):
        words.insert(draw(st.integers(0, len(words))), draw(value))
    if command in SLOW:  # it might work for minutes
        words.append("--no-such-flag")
    elif "--cache" in dict(flags(command)) and draw(st.booleans()):
        words += ["--cache", "cache"]
    return command, [*STOPPING.get(command, ()), *words]


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@example(("cache info", ["--cache", LONG]))
@example(("cache import", [f"{LONG}.jsonl"]))
@given(lines())
def test_any_command_line_ends_as_documented(line: tuple[str, list[str]]) -> None:
    command, words = line
    out, err = io.StringIO(), io.StringIO()
    with home() as folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        before = contents(folder / "cache")
        code = _run([*command.split(), *words], False)
        after = contents(folder / "cache")
        around = {path.name for path in folder.parent.iterdir()}
    said = err.getvalue()
    assert code in CODES, said
    assert "unexpected:" not in said and "Traceback" not in said
    if code:
        lines = said.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    if command in READ_ONLY:
        assert after == before
    if command != "cache compact":
        assert before.items() <= after.items()
    assert around - {"up"} == {"home"}
