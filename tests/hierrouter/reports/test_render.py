"""Texts and tables in a terminal, in Markdown, in LaTeX and in a sheet, whatever they hold."""

import csv
import io
import re
import shutil
import subprocess
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from hierrouter.reports.figures import latex_figure, net_reward_figure, report_figures, save
from hierrouter.reports.results import ReportData
from hierrouter.reports.tables import (
    lacking_for_paper,
    long_table,
    paper_tables,
    quality_table,
    report_tables,
)
from hierrouter.tables import (
    Column,
    Interval,
    Line,
    Table,
    as_csv,
    as_latex,
    as_markdown,
    as_rich,
    csv_text,
    fold_table,
    latex_text,
    markdown_text,
    money,
    one_line,
    safe_text,
)
from tests.hierrouter.reports.examples import HOSTILE, example, hostile, outcome, policies

FAMILIES = {
    "c0": "".join(map(chr, [*range(0x09), *range(0x0B, 0x20)])),
    "del": "\x7f",
    "c1": "".join(map(chr, range(0x80, 0xA0))),
    "bidi embedding": "\u202a\u202b\u202c\u202d\u202e",
    "bidi isolate": "\u2066\u2067\u2068\u2069",
    "bidi mark": "\u200e\u200f\u061c",
    "zero width": "\u200b\u200c\u200d\u2060\ufeff\u00ad",
    "separator": "\u2028\u2029",
    "tag": "\U000e0001\U000e0041",
    "surrogate": "\ud800\udfff",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_character_of_a_family_becomes_visible(family: str) -> None:
    for character in FAMILIES[family]:
        shown = safe_text(f"a{character}b")
        assert character not in shown
        assert shown.startswith("a\\") and shown.endswith("b")
        assert shown.isascii()


def test_escapes_name_the_code_point_and_ordinary_text_is_left_alone() -> None:
    assert safe_text("\x1b[31m\x9b\u202e\U000e0041") == "\\x1b[31m\\x9b\\u202e\\U000e0041"
    text = "naïve café\t中文 🙂 [/INST] [red] C:\\new\nline"
    assert safe_text(text) == text


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_invisible_survives_and_again_changes_nothing(text: str) -> None:
    shown = safe_text(text)
    left = {unicodedata.category(character) for character in shown if character not in "\n\t"}
    assert not left & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert safe_text(shown) == shown
    shown.encode("utf-8")


@given(st.floats(1e-12, 1e12))
def test_money_keeps_three_digits_however_small(amount: float) -> None:
    assert float(money(amount).replace(",", "")) == pytest.approx(amount, rel=0.0051)


def test_money_lines_and_cells_are_shown_plainly() -> None:
    shown = [money(amount) for amount in (0.000178, 0.0163, 1.2249, 27.1, 3404.4, 0.0, -0.5, 2e-12)]
    assert shown == ["0.000178", "0.0163", "1.22", "27.1", "3,404", "0", "-0.500", "2.00e-12"]
    assert one_line("a\n b\tc") == "a b c"
    assert [one_line(text, 4) for text in ("abcdef", "abcd")] == ["abc…", "abcd"]
    column = Column("x", digits=2, signed=True)
    cells = (-0.001, Interval(-1, 2.5), None, 7)
    assert [column.show(cell) for cell in cells] == ["+0.00", "[-1, +2.50]", "-", "7"]
    # A column without numbers has no best.
    assert Table("t", (Column("x", best="highest"),), (Line("g", (None,)),)).best() == frozenset()


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", " =", "\u00a0="])
def test_csv_formula_is_neutralised(start: str) -> None:
    assert csv_text(f"{start}1+1").startswith("'")
    assert csv_text("calc>text") == "calc>text"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("a_b & 5 % #1 $x$", r"a\_b \& 5 \% \#1 \$x\$"),
        ("~^<>|", r"\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\textbar{}"),
        ("[0.1, 0.2]", "{[}0.1, 0.2{]}"),
        ("\x1b\n\nx", r"\textbackslash{}x1b x"),
    ],
)
def test_latex_prints_the_text(text: str, expected: str) -> None:
    assert latex_text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", r"a\|b"),
        ("*a* _b_ `c`", r"\*a\* \_b\_ \`c\`"),
        ("[x](http://y)", r"\[x\](http://y)"),
        ("<script>&amp;", "&lt;script>&amp;amp;"),
        ("two\nlines", "two lines"),
    ],
)
def test_markdown_prints_the_text(text: str, expected: str) -> None:
    assert markdown_text(text) == expected


def printed(table: Table, width: int = 80, encoding: str = "utf-8") -> str:
    sink = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    Console(file=sink, width=width, color_system=None).print(as_rich(table, width))
    assert isinstance(sink.buffer, io.BytesIO)
    return sink.buffer.getvalue().decode(encoding)


def test_a_group_without_a_name_has_no_heading() -> None:
    table = Table("T", (Column("A"), Column("B")), (Line("", ("a", 1.0)), Line("", ("b", 2.0))))
    assert len(as_markdown(table).strip().splitlines()) == 6  # title, blank, titles, rule, rows
    assert r"\multicolumn" not in as_latex(table)
    rule, *rows = printed(table).strip().splitlines()[-3:]
    assert set(rule) == {"─"}
    assert [row.split() for row in rows] == [["a", "1.000"], ["b", "2.000"]]


def test_terminal_shows_groups_values_and_note() -> None:
    text = printed(quality_table(example(), routes=1))
    parts = ("Quality Q (token_f1)", "Reference models", "HierRouter", "0.700", "The best 1 of 2")
    for part in parts:
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
    assert len(fold_table(table, 1_000)) == 1
    assert all(part.columns[0].title == "Policy" for part in fold_table(table, 40))


LONG_NAME = "meta-llama/Meta-Llama-3.1-70B-Instruct-Turbo-und-noch-länger-模型"


def priced(scale: float, name: str) -> ReportData:
    """`policies` at real prices: every cost so many times as large."""
    others = [replace(one, name=one.name.replace("a", name, 1)) for one in policies()[:-2]]
    chosen = [*others, *policies()[-2:]]
    return example([replace(one, cost=one.cost * scale) for one in chosen], resamples=20)


def cells_printed(lines: list[str], columns: int) -> list[list[str]]:
    """The rows of one printed block, read as a person would: cells are two blanks apart."""
    rows = []
    for line in lines:
        cells = re.split(r" {2,}", line.strip())
        if len(cells) == columns:
            rows.append(cells)
        else:
            assert len(cells) == 1, line  # a group, or the rest of a long name
    return rows


@pytest.mark.parametrize("width", [45, 60, 80, 200])
@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("name", ["a", LONG_NAME])
def test_columns_never_run_together(width: int, scale: float, name: str) -> None:
    for table in report_tables(priced(scale, name)):
        expected = [texts[1:] for texts in table.cell_texts()]
        found: list[list[str]] = [[] for _ in expected]
        blocks = printed(replace(table, note=""), width).rstrip().split("\n\n")[1:]
        for part, block in zip(fold_table(table, width), blocks, strict=True):
            lines = block.strip("\n").splitlines()
            assert "…" not in block and max(map(cell_len, lines)) <= width
            while "─" not in lines[0]:  # titles, perhaps in several lines
                lines = lines[1:]
            rows = cells_printed(lines[1:], len(part.columns))
            assert len(rows) == len(expected)
            for row, cells in zip(found, rows, strict=True):
                row += cells[1:]
        assert found == expected


@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e6])
def test_latex_and_markdown_have_each_cell_at_its_place(scale: float) -> None:
    for table in report_tables(priced(scale, LONG_NAME)):
        width = len(table.columns)
        latex = [line for line in as_latex(table).splitlines() if line.endswith(r" \\")]
        plain = [line for line in latex if "multicolumn" not in line]
        assert [line.count(" & ") for line in plain] == [width - 1] * (1 + len(table.rows))
        markdown = [line for line in as_markdown(table).splitlines() if line.startswith("| ")]
        assert {line.count(" | ") for line in markdown} == {width - 1}


def test_an_ascii_terminal_is_enough() -> None:
    for table in report_tables(example()):
        assert printed(table, encoding="ascii").isascii()


def test_terminal_is_safe_from_names() -> None:
    for table in report_tables(hostile(), routes=None):
        text = printed(table, 200)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert "[/INST] [red]x[i]" in printed(quality_table(hostile()), 200)


def test_markdown_is_a_table_whatever_the_names_and_latex_too_marks_the_best() -> None:
    for table in report_tables(hostile(), routes=None):
        lines = as_markdown(table).splitlines()
        for line in (line for line in lines if line.startswith("|")):
            assert len(re.findall(r"(?<!\\)\|", line)) == len(table.columns) + 1
        assert "<" not in "".join(lines)
    assert "| HierRouter | 0.600 | **0.800** | **0.700** |" in as_markdown(quality_table(example()))
    text = as_latex(quality_table(example()))
    assert r"HierRouter & 0.600 & \textbf{0.800} & \textbf{0.700} \\" in text
    assert r"\multicolumn{4}{l}{\textit{Reference models}} \\" in text


def test_latex_runs_nothing_and_balances() -> None:
    markup = "begin end centering caption label toprule midrule bottomrule multicolumn textit par"
    names = "smallskip footnotesize raggedright textbf textbackslash textless textgreater textbar"
    sizes = "resizebox ifdim width columnwidth else fi"
    for table in report_tables(hostile(), routes=None):
        text = as_latex(table)
        assert set(re.findall(r"\\([A-Za-z]+)", text)) <= {*f"{markup} {names} {sizes}".split()}
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
        bare = text.replace(r"\{", "").replace(r"\}", "")
        assert bare.count("{") == bare.count("}")
    assert r"\textbackslash{}input\{/etc/passwd\}" in as_latex(quality_table(hostile()))


def of_six_datasets(**fields: str) -> ReportData:
    """As wide as the paper's tables: its datasets in another order, and its models' names."""
    datasets = ("arc-challenge", "arc-easy", "math", "mbpp", "gsm8k", "mmlu")
    models = {
        "Qwen2.5-14B-Instruct": "reference",
        "Llama-3.1-8B-Instruct": "reference",
        "Qwen2.5-Coder-3B-Instruct": "single",
        "DeepSeek-R1-Distill-Qwen-1.5B": "single",
        "Phi-3.5-mini-instruct": "single",
        "hierrouter": "router",
    }
    shares = [at / 20 for at in range(len(datasets))]
    outcomes = [outcome(name, kind, shares) for name, kind in models.items()]
    return example(outcomes, datasets, **fields)


@pytest.mark.parametrize(
    ("fields", "name", "remark"),
    [
        ({"training": "the paper's PPO"}, "HierRouter", ""),
        (
            {"training": "value model"},
            "HierRouter (value model)",
            "HierRouter here: value model, not the paper's PPO",
        ),
        (
            {"training": "the paper's PPO", "fixed_route": "a>b"},
            "HierRouter (one fixed route)",
            "HierRouter is one fixed route here: a>b for every question",
        ),
    ],
)
def test_only_the_papers_router_has_its_name_alone(
    fields: dict[str, str], name: str, remark: str
) -> None:
    report = of_six_datasets(**fields)
    drawing = net_reward_figure(report)
    assert name in [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert drawing.caption.endswith(remark or "intervals")
    for table in paper_tables(report):
        assert table.rows[-1].cells[0] == name
        assert table.title.endswith(remark or "is better")
        caption = re.search(r"\\caption\[.*\]\{(.*)\}", as_latex(table))
        assert caption and caption[1].endswith(latex_text(remark or "is better"))


def test_the_papers_tables_have_its_rows_and_columns_and_no_others() -> None:
    report = of_six_datasets()
    quality, cost, reward = paper_tables(report)
    titles = ["MMLU", "GSM8K", "MBPP", "MATH", "ARC-Easy", "ARC-Challenge"]
    assert [column.title for column in quality.columns] == ["Policy", *titles]
    kinds = ["Reference models"] * 2 + ["Pool models (direct calls)"] * 3 + ["Router"]
    for table in (quality, cost, reward):
        assert [row.group for row in table.rows] == kinds
        assert table.rows[-1].cells[0] == "HierRouter"
    assert quality.rows[0].cells[1:] == (0.25, 0.2, 0.15, 0.1, 0.05, 0.0)
    assert reward.rows[0].cells[1] == pytest.approx(0.25 - 0.1)
    assert quality.title == "Quality Q (token_f1) on 6 test questions, higher is better"
    assert cost.title == "Cost C (money per question) on 6 test questions, lower is better"
    assert (quality.heading[:8], cost.heading[:8]) == ("Table 1.", "Table 2.")
    assert r"\caption[{Quality" in as_latex(quality) and r"\label{tab:quality}" in as_latex(quality)
    assert lacking_for_paper(report) == ()
    bare = example([outcome("a", "single", [0.5] * 4), outcome("a>b", "route", [0.5] * 4)])
    assert [said.split(",")[0] for said in lacking_for_paper(bare)] == [
        "no reference models",
        "no router",
        "no questions of MMLU",
    ]
    assert [row.cells[0] for row in paper_tables(bare)[0].rows] == ["a"]


ARTICLE = (
    r"\documentclass[10pt%s]{article}\usepackage{booktabs,graphicx}\begin{document}%s\end{document}"
)


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs LaTeX")
@pytest.mark.parametrize("columns", ["", ",twocolumn"])
def test_latex_compiles_and_no_box_is_overfull(columns: str, tmp_path: Path) -> None:
    report = of_six_datasets()
    drawings = report_figures(report)
    for drawing in drawings:
        save(drawing, tmp_path / f"{drawing.name}.pdf")
    named = of_six_datasets(training="PPO, preset default")
    tables = [*paper_tables(report), *paper_tables(named)]
    tables += [*report_tables(hostile(), routes=None), *report_tables(report)]
    figures = [latex_figure(drawing, drawing.name) for drawing in drawings]
    body = "\n\\clearpage\n".join([*map(as_latex, tables), *figures])
    (tmp_path / "paper.tex").write_text(ARTICLE % (columns, body))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2_000:]
    assert "Overfull" not in (tmp_path / "paper.log").read_text(errors="replace")


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
