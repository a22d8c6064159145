"""The learning curve of a report: which epoch was kept, on which folds, and where it is shown."""

import re
from pathlib import Path
from typing import Any

import pytest

from hierrouter.reports.drawing import as_svg
from hierrouter.reports.figures import curve_figure, export_figures, report_figures
from hierrouter.reports.page import as_html
from tests.hierrouter.reports.examples import example

VALIDATION = [0.1, 0.4, 0.4, 0.2]
TRAIN = [0.2, 0.3, 0.5, 0.6]
TWO_FOLDS = {"epoch": [3, 6, 9, 10], "train": TRAIN, "validation": VALIDATION}


def texts(history: dict[str, Any]) -> set[str]:
    """All text of the figure."""
    drawing = curve_figure(example(history=history))
    assert drawing
    return set(re.findall(r">([^<>]+)</text>", as_svg(drawing)))


def test_there_is_none_without_a_history(tmp_path: Path) -> None:
    report = example()
    assert curve_figure(report) is None
    assert "How did it learn?" not in as_html(report)
    assert "learning-curve.svg" not in {
        file.name for file in export_figures(report_figures(report), tmp_path, ["svg"])
    }


def test_the_kept_epoch_is_the_best_on_validation_then_on_train() -> None:
    drawing = curve_figure(example(history=TWO_FOLDS))
    assert drawing
    assert drawing.caption == (
        "The training of the router: exact R on the validation fold and on the train fold; the "
        "weights of epoch 9 were kept"
    )
    [ring] = drawing.figure.axes[0].collections
    assert ring.get_offsets().tolist() == [[9, 0.4]]
    assert {"validation", "train", "kept", "epoch"} <= texts(TWO_FOLDS)


@pytest.mark.parametrize(
    ("train", "lines"),
    [
        (VALIDATION, {"train"}),  # without a validation fold the train fold chooses
        ([None] * 4, {"validation"}),  # a run of an early version
    ],
    ids=["one fold", "train unknown"],
)
def test_one_line_is_drawn_for_one_column(train: list[float | None], lines: set[str]) -> None:
    shown = texts({**TWO_FOLDS, "train": train})
    assert shown & {"train", "validation"} == lines


def test_the_page_folds_it_and_figures_have_it_in_a_file(tmp_path: Path) -> None:
    report = example(history=TWO_FOLDS)
    page = as_html(report)
    _, folded = page.split("How did it learn?")
    assert "the weights of epoch 9 were kept" in folded.partition("</details>")[0]
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    files = {file.name for file in export_figures(report_figures(report), tmp_path, ["svg", "png"])}
    assert {"learning-curve.svg", "learning-curve.png"} <= files
    assert as_html(report) == page
