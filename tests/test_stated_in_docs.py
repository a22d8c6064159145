"""Tables of the pages state what the code says: columns, formats, defaults, names."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hierrouter.collection.files import LINES_FORMAT
from hierrouter.declarations import flags
from hierrouter.learning.baselines.registry import BASELINES_BY_NAME
from hierrouter.learning.config import ValueConfig
from hierrouter.pools.files import pool_names
from hierrouter.pools.pool import Endpoint, Generation
from hierrouter.questions.scoring import GIVEN_SCORER, SCORERS_BY_NAME
from hierrouter.replay.states import VIEW_TEXTS
from hierrouter.reports.comparison import COMPARISON_FORMAT
from hierrouter.reports.report import REPORT_FORMAT
from hierrouter.serving import DEFAULT_MAX_REQUESTS
from hierrouter_cache import sql
from hierrouter_cache.parts import ROW_SCHEMAS
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate
from tests.cache import rows
from tests.test_glossary import sources

DOCS = Path(__file__).parents[1] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text()


def section(name: str, title: str) -> str:
    """The text below a heading of a page, up to the next heading of its level."""
    level, _, _ = title.partition(" ")
    _, heading, text = page(name).partition(f"\n{title}\n")
    assert heading, title
    return text.partition(f"\n{level} ")[0]


def table(text: str, head: str) -> list[list[str]]:
    """The cells of a table's rows, by how its first line begins."""
    _, first_line, rest = text.partition(f"\n| {head}")
    assert first_line, head
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_columns_of_the_views(tmp_path: Path) -> None:
    reader = CacheReader(rows.fill(tmp_path / "cache"))
    spec = rows.spec("ab", 2)
    prices = {"a": Rate(1.0, 2.0), "b": Rate.base(1.0)}

    def columns(view: str) -> list[str]:
        answer = sql.ask(reader, spec, rows.KEYS, prices, f"SELECT * FROM {view}")
        return answer.column_names

    documented = {}
    for cells in table(page("cache.md"), "view | columns"):
        without_remarks = re.sub(r" \([^)]*\)", "", cells[1])
        documented[names(cells[0])[0]] = without_remarks.split(", ")
    spend = table(page("prices.md"), "column of `spend`")
    documented["spend"] = [name for cells in spend for name in cells[0].split(", ")]
    views = re.findall(r"CREATE VIEW (\w+)", sql.VIEW_STATEMENTS)
    assert list(documented) == views
    for view in views:
        assert sorted(documented[view]) == sorted(columns(view)), view


def test_the_kinds_of_parts() -> None:
    [kinds] = re.findall(r"The kinds are (.+?\.)\n\n", page("cache.md"), re.S)
    assert {name for name in names(kinds) if " " not in name} == set(ROW_SCHEMAS)


def test_the_formats_of_what_is_written() -> None:
    for title, number in (("## Report", REPORT_FORMAT), ("## Compare", COMPARISON_FORMAT)):
        assert f"\n| `format` | {number} |" in section("reference/json.md", title)
    assert f'"format": {LINES_FORMAT}' in page("interchange.md")


@pytest.mark.parametrize("title", ["## Explain", "## Collect", "## Off-policy"])
def test_keys_of_json_that_no_schema_holds_occur_in_the_code(title: str) -> None:
    text = section("reference/json.md", title)
    keys = {key.removesuffix("[]") for key in names(text) if re.fullmatch(r"[a-z_]+(\[\])?", key)}
    assert len(keys) > 10
    assert [key for key in sorted(keys) if not re.search(rf"\b{key}\b", sources())] == []


def test_the_keys_and_defaults_of_endpoints() -> None:
    defaults = {field.name: field.default for field in fields(Endpoint)}
    documented: dict[str, str] = {}
    for keys, default, _ in table(page("endpoints.md"), "key | default"):
        documented |= dict.fromkeys(names(keys), default)
    assert set(documented) <= set(defaults)
    for key, text in documented.items():
        default: Any = defaults[key]
        if re.fullmatch(r"[\d.]+|false", text):
            assert text == f"{default:g}" if default else text == str(default).lower(), key
        else:
            assert not default, key


def test_the_defaults_of_generation() -> None:
    documented = table(page("pools.md"), "key of a model's `generation`")
    assert {
        names(key)[0]: None if default == "none" else float(default)
        for key, default, _ in documented
    } == {
        field.name: None if field.default in ("", None) else field.default
        for field in fields(Generation)
    }


def test_the_names_of_scorers_views_algorithms_and_pools() -> None:
    scorers = [names(cells[0])[0] for cells in table(page("scorers.md"), "`--scorer`")]
    assert {*scorers} - {"JUDGE.toml", "module:function"} == {*SCORERS_BY_NAME, GIVEN_SCORER.name}
    views = [names(cells[0])[:1] for cells in table(page("train.md"), "`--state`")]
    assert [view[0] for view in views if view and "+s" not in view[0]][:4] == list(VIEW_TEXTS)
    algorithms = [names(cells[0])[0] for cells in table(page("train.md"), "`--algo`")]
    assert sorted({*algorithms} - {"module:factory"}) == sorted(flags.ALGORITHMS)
    assert all(f"`{name}`" in section("collect.md", "## Choose a pool") for name in pool_names())


def test_both_tables_of_baselines_have_a_row_for_each() -> None:
    differences = section("reference/baselines.md", "## How they differ from their sources")
    for text in (page("compare.md"), differences):
        listed = [name for cells in table(text, "`--baselines`") for name in names(cells[0])]
        assert listed == list(BASELINES_BY_NAME)


def test_numbers_that_the_pages_state() -> None:
    config = ValueConfig()
    assert f"at most {config.queries:,}." in page("train.md")
    assert f"With more than {config.landmarks} questions, {config.landmarks} of" in page("train.md")
    assert f"puts {len(BASELINES_BY_NAME)} usual routers" in page("compare.md")
    assert f"Beyond {DEFAULT_MAX_REQUESTS} requests at once" in page("live.md")
