"""`--allow-return` from the training to the answer."""

import pytest

from tests.cli.conftest import Place, over_all

RETURNING = "train --algo exact --epochs 2 --alpha 0.02 --allow-return --out runs/returning"


@pytest.fixture(scope="module")
def trained(bare: Place) -> Place:
    assert bare.does(RETURNING).stdout == "runs/returning\n"
    return bare


def test_reports_open_what_the_checkpoint_sees(trained: Place) -> None:
    shown = trained.tells("report --checkpoint runs/returning")
    assert shown["provenance"]["allow_return"] is True
    assert [row["calls"] for row in shown["depths"]] == [1, 2]
    assert sum(row["share"] for row in shown["depths"]) == pytest.approx(1)
    rows = over_all(shown["rows"])
    assert rows["hierrouter"]["reward"] <= rows["oracle"]["reward"]
    assert ">calc" in rows  # shorter routes are compared, too
    told = trained.does("explain --worst 1 --checkpoint runs/returning --split train").stdout
    assert "Regret" in told


def test_without_the_flag_the_router_is_not_shown_and_it_says_why(trained: Place) -> None:
    done = trained.does("report --format json")
    assert "no router trained on this tree" in done.stderr
    assert '"hierrouter"' not in done.stdout
    assert '"hierrouter"' in trained.does("report --format json --allow-return").stdout


def test_an_earlier_answer_is_routed(trained: Place) -> None:
    (trained / "asked.jsonl").write_text('{"question": "compute 12+7"}\n')
    ask = "route 'compute 12+7' --checkpoint runs/returning"
    found = trained.tells(ask)
    number = found["returned"]["answer"]
    assert found["answer"] == found["steps"][number - 1]["response"]
    done = trained.does(ask)
    assert done.stdout.strip() == found["answer"]
    assert f"answer {number} of {len(found['steps'])} at alpha 0.02" in done.stderr


def test_it_is_refused_where_it_cannot_be(trained: Place) -> None:
    for command in ("explore", "report --defer-to calc"):
        said = trained.refuses(f"{command} --checkpoint runs/returning")
        assert "--allow-return" in said
    planned = trained.does("sweep-alpha --allow-return --dry-run").stdout
    assert planned.startswith("sweep-alpha: 6 alphas")
