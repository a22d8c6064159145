"""`hierrouter report`: a model to hand over to, other views of the state, and prices."""

import csv
import io
import json
import re
from importlib import resources
from typing import Any

import pytest

from tests.cli.conftest import Place, over_all

PRICES = {
    "cheap": "calc = 0.002\nfacts = { in = 0.001, out = 0.004 }\n",
    "dear": "calc = 0.2\ntext = 0.3\nfacts = 0.1\n",
}


@pytest.fixture(scope="module")
def routed(bare: Place) -> Place:
    """A folder with a cache, a router, and a sweep that reads the question alone."""
    bare.does("train --algo exact --epochs 2 --out runs/router")
    bare.does("sweep-alpha --out runs/sweep --state query")
    return bare


def test_what_cannot_be_handed_over_is_refused(routed: Place) -> None:
    line = routed.refuses("report --defer-to fcats")
    assert line.startswith("error: no direct call of this model: fcats; did you mean facts")
    (routed / "empty").mkdir()
    empty = Place(routed / "empty", routed.run)
    line = empty.refuses("report --cache ../caches/default --defer-to facts")
    assert line.startswith("error: no router that could hand over to facts: ")


def test_a_report_of_a_router_that_hands_over_with_figures(routed: Place) -> None:
    files = "--figures pdf,svg --out page"
    done = routed.does(f"report --defer-to facts --defer-share 0.5 --all {files}")
    assert "Deferral to facts" in done.stdout
    assert "Deferral to facts" in (routed / "page/report.html").read_text()
    found = json.loads((routed / "page/report.json").read_text())
    deferral, rows = found["deferral"], over_all(found["rows"])
    assert (deferral["stronger"], deferral["share_allowed"]) == ("facts", 0.5)
    assert deferral["curve"][-1]["reward"] == rows["facts"]["reward"]
    both = rows["hierrouter, else facts"]
    assert both["reward"] == deferral["chosen"]["reward"]
    assert both["reward_low"] <= both["reward"] <= both["reward_high"]
    assert both["difference"] is not None
    drawn = [sorted((routed / "page").glob(f"*.{suffix}")) for suffix in ("pdf", "svg")]
    assert len(drawn[0]) == len(drawn[1]) > 0
    assert (
        len(list((routed / "page").iterdir())) == 2 * len(drawn[0]) + 3
    )  # page, JSON and contents
    assert all(file.read_bytes().startswith(b"%PDF") for file in drawn[0])
    assert f"report: {2 * len(drawn[0])} figures in page" in done.stderr


def test_the_papers_outputs_and_nothing_else(routed: Place) -> None:
    done = routed.does("report --style paper --format latex --out new/paper")
    assert done.stdout.count(r"\begin{table}") == 2
    for name in ("frontier", "net-reward"):
        assert rf"\includegraphics[width=\columnwidth]{{new/paper/{name}}}" in done.stdout
    files = {file.name for file in (routed / "new/paper").iterdir()}
    assert files == {"contents.json", "frontier.pdf", "net-reward.pdf"}
    assert "report: no reference models, with which the paper's tables begin" in done.stderr
    name = "HierRouter (learned by enumeration, epochs 2)"
    remark = f"HierRouter here: {name.partition('(')[2].rstrip(')')}, not the paper's PPO"
    assert done.stdout.count(f"{remark}}}\n") == done.stdout.count(f"\n{name} & ") + 1 == 3
    assert f"report: {remark}." in done.stderr
    line = routed.refuses("report --style paper --format json")
    assert "--style paper --format json; give --format text, md or latex, or " in line


def test_the_papers_outputs_for_readers_have_the_figures_numbers(routed: Place) -> None:
    shown = routed.does("report --style paper --format md").stdout
    titles = re.findall(r"^### Table (\d)\. (\w+)", shown, re.MULTILINE)
    assert titles == [("1", "Quality"), ("2", "Cost"), ("3", "Net")]


def test_one_fixed_route_is_said_wherever_the_papers_results_are(bare: Place) -> None:
    bare.does("train --algo value --models text --out fixed")
    done = bare.does("report --models text --style paper --format latex --checkpoint fixed")
    route = re.search(r"HierRouter is one fixed route here: (\S+) for every question", done.stdout)
    assert route
    assert done.stdout.count(r"HierRouter (one fixed route) & ") == 2
    assert done.stdout.count("HierRouter is one fixed route here: ") == 2 * 3
    assert "report: HierRouter is one fixed route here: no gain is shown" in done.stderr


def test_text_is_a_short_message_and_all_tables_come_with_a_flag_or_as_markdown(
    routed: Place,
) -> None:
    short = routed.does("report --cache caches/../caches/default --checkpoint runs/router")
    lines = short.stdout.splitlines()
    *shown, following, page = lines
    assert len(lines) <= 20 and max(map(len, shown)) <= 80 and "\x1b" not in short.stdout
    said = routed.tells("report")["message"]
    assert " ".join(short.stdout.split("\n\n")[0].split()) == said
    assert len([line for line in shown if line.startswith("  ")]) == 3
    assert following.endswith(" --cache caches/../caches/default --checkpoint runs/router")
    assert (routed / page.removeprefix("page: ")).read_text().startswith("<!doctype html>")
    full, sheet = routed.does("report --all").stdout, routed.does("report --format md").stdout
    titles = re.findall(r"^### (Table \d+\. \w+)", sheet, re.MULTILINE)
    assert len(titles) >= 9 and all(title in full for title in titles)
    assert full.index(titles[-1]) < full.index("page: ")
    done = routed.does("report --state query --format json")
    assert json.loads(done.stdout)["provenance"]["sweep"] == "runs/sweep"


def test_without_a_router_the_next_step_is_a_training(bare: Place) -> None:
    (bare / "elsewhere").mkdir(exist_ok=True)
    place = Place(bare / "elsewhere", bare.run)
    done = place.does("report --cache ../caches/default")
    assert done.stdout.strip().startswith("No router is trained here: ")
    assert "next: hierrouter train --allow-stop --cache ../caches/default" in done.stdout


@pytest.mark.parametrize(
    ("given", "bad"), [("svg,gif", "gif"), ("svg,../x", "../x"), ("PDF", "PDF"), ("svg,", "")]
)
def test_an_unknown_format_of_figures_is_refused_before_any_work(
    place: Place, given: str, bad: str
) -> None:
    line = place.refuses(f"report --figures {given}")  # where no cache is
    assert line == f"error: unknown format of figures: {bad!r}; choose of svg, pdf, png"


def test_two_price_lists_stand_side_by_side(routed: Place) -> None:
    for name, text in PRICES.items():
        (routed / f"{name}.toml").write_text(f"[prices]\n{text}")
    flags = "--prices cheap.toml --prices dear.toml"
    done = routed.does(f"report {flags} --all --out several")
    assert "C, cheap" in done.stdout and "R, dear" in done.stdout
    assert "the router was trained under other prices than shown here" in done.stderr
    page = (routed / "several/report.html").read_text("utf-8")
    assert page.count("What if prices change?") == 1 and "C, cheap" in page
    both = json.loads((routed / "several/report.json").read_text())
    assert both["cost_unit"] == "money per question"
    assert both["notes"] == ["HierRouter was trained under other prices than cheap, dear."]
    cheap, dear = (over_all(prices["rows"]) for prices in both["price_lists"])
    assert "hierrouter" in cheap
    assert all(cheap[policy]["cost"] < dear[policy]["cost"] for policy in cheap)
    assert figures(over_all(both["rows"])) == figures(cheap)
    for prices, name in zip(both["price_lists"], PRICES, strict=True):
        alone = routed.tells(f"report --prices {name}.toml")
        assert prices["name"] == name
        assert figures(over_all(prices["rows"])) == figures(over_all(alone["rows"]))
        assert prices["gap_closed"] == alone["gap_closed"]
        assert alone["price_lists"] == []
    done = routed.does(f"report --format csv {flags}")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {row["prices"] for row in rows} == {*PRICES}
    oracle = {row["policy"]: row for row in rows if row["prices"] == "dear"}["oracle"]
    assert float(oracle["reward"]) == dear["oracle"]["reward"]
    assert (oracle["dataset"], oracle["quality"]) == ("all", "")
    assert float(oracle["reward_low"]) < float(oracle["reward"])


def figures(rows: dict[str, dict[str, Any]]) -> dict[str, tuple[float, float]]:
    return {policy: (row["cost"], row["reward"]) for policy, row in rows.items()}


def test_provenance_says_who_gave_a_price(routed: Place) -> None:
    (routed / "given.toml").write_text(f"[prices]\n{PRICES['cheap']}")
    found = routed.tells("report --prices given.toml --price calc=1:2")
    assert found["provenance"]["prices"] == {
        "calc": {"in": 1.0, "out": 2.0, "source": "--price"},
        "text": {"in": 0.02, "out": 0.02, "source": "pool"},
        "facts": {"in": 0.001, "out": 0.004, "source": "price file given.toml"},
    }
    found = routed.tells("report")
    assert found["cost_unit"] == "money per question"
    assert found["notes"] == []
    assert found["provenance"]["trained_on"] == found["provenance"]["tree"]
    assert "hierrouter" in over_all(found["rows"])


def test_a_price_by_size_is_said_aloud(routed: Place) -> None:
    text = (resources.files("hierrouter.pools") / "testbed.toml").read_text()
    sized = text.replace(
        'parameters = "0.377M"\ndtype = "float32"\nbase_rate = 0.02\n',
        'parameters = "3B"\ndtype = "float32"\n',
    )
    assert sized != text
    (routed / "sized.toml").write_text(sized)
    done = routed.does("report --pool sized.toml --format json")
    said = "price of text unknown: 0.003 per token by its size (3B); give base_rate or --price"
    assert said in done.stderr.splitlines()
    given = json.loads(done.stdout)["provenance"]["prices"]
    assert given["text"] == {"in": 0.003, "out": 0.003, "source": "size (3B)"}
    done = routed.does("report --pool sized.toml --price text=1 --format json")
    assert "unknown" not in done.stderr
