"""Tables in a terminal, in Markdown, in LaTeX and in a sheet."""

from __future__ import annotations

import csv
import io
import re

import pytest
from rich.console import Console

from hierrouter.reports.tables import long_table, quality_table, report_tables
from hierrouter.tables import Table, as_csv, as_latex, as_markdown, as_rich, folded
from tests.hierrouter.reports.examples import HOSTILE, example, hostile, outcome


def printed(table: Table, width: int = 80, encoding: str = "utf-8") -> str:
    sink = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    Console(file=sink, width=width, color_system=None).print(as_rich(table, width))
    assert isinstance(sink.buffer, io.BytesIO)
    return sink.buffer.getvalue().decode(encoding)


def test_terminal_shows_groups_values_and_note() -> None:
    text = printed(quality_table(example(), routes=1))
    for part in (
        "Quality Q (token_f1)",
        "Reference models",
        "hierrouter",
        "0.700",
        "The best 1 of 2",
    ):
        assert part in text


def test_wide_tables_are_folded_not_cut() -> None:
    datasets = [f"dataset-{number}" for number in range(12)]
    report = example([outcome("a", "single", [number / 12 for number in range(12)])], datasets)
    table = quality_table(report)
    for width in (40, 80, 120):
        text = printed(table, width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        assert all(f"{number / 12:.3f}" in text for number in range(12))
    assert len(folded(table, 1_000)) == 1
    assert all(part.columns[0].title == "Policy" for part in folded(table, 40))


def test_an_ascii_terminal_is_enough() -> None:
    for table in report_tables(example()):
        assert printed(table, encoding="ascii").isascii()


def test_terminal_is_safe_from_names() -> None:
    for table in report_tables(hostile(), routes=None):
        text = printed(table, 200)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert "[/INST] [red]x[i]" in printed(quality_table(hostile()), 200)


def test_markdown_is_a_table_whatever_the_names() -> None:
    for table in report_tables(hostile(), routes=None):
        lines = as_markdown(table).splitlines()
        rows = [line for line in lines if line.startswith("|")]
        for line in rows:
            assert len(re.findall(r"(?<!\\)\|", line)) == len(table.columns) + 1
        assert "<" not in "".join(lines)


def test_markdown_marks_the_best() -> None:
    assert "| hierrouter | 0.600 | **0.800** | **0.700** |" in as_markdown(quality_table(example()))


def test_latex_runs_nothing_and_balances() -> None:
    for table in report_tables(hostile(), routes=None):
        text = as_latex(table)
        commands = set(re.findall(r"\\([A-Za-z]+)", text))
        assert commands <= {
            "begin",
            "end",
            "centering",
            "caption",
            "toprule",
            "midrule",
            "bottomrule",
            "multicolumn",
            "textit",
            "textbf",
            "par",
            "smallskip",
            *(f"text{name}" for name in ("backslash", "less", "greater", "bar")),
        }
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
        bare = text.replace(r"\{", "").replace(r"\}", "")
        assert bare.count("{") == bare.count("}")
    assert r"\textbackslash{}input\{/etc/passwd\}" in as_latex(quality_table(hostile()))


def test_latex_marks_the_best_and_groups() -> None:
    text = as_latex(quality_table(example()))
    assert r"hierrouter & 0.600 & \textbf{0.800} & \textbf{0.700} \\" in text
    assert r"\multicolumn{4}{l}{\textit{Reference models}} \\" in text


@pytest.mark.parametrize("table", [quality_table(hostile()), long_table(hostile())])
def test_csv_cells_are_inert(table: Table) -> None:
    for cells in csv.reader(io.StringIO(as_csv(table))):
        for cell in cells:
            number = re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell)
            assert number or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
            assert "\x1b" not in cell


def test_csv_reads_back() -> None:
    report = example()
    rows = list(csv.DictReader(io.StringIO(as_csv(long_table(report)))))
    assert len(rows) == len(report.rows)
    assert float(rows[0]["reward"]) == pytest.approx(report.rows[0].reward, rel=1e-11)
    assert next(row for row in rows if row["kind"] == "router")["difference"] == ""
    names = {row["policy"] for row in csv.DictReader(io.StringIO(as_csv(long_table(hostile()))))}
    assert "'=1+1" in names and HOSTILE[0] in names
