"""Figures as files, for papers and slides.

In: a `Report` or a `Drawing`. Out: SVG, PDF (text as text, in TrueType) or PNG files on white with
near-black ink, the same bytes each time. Not covered: figures within the page (`page`).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure

from hierrouter.report.figure import INK, Drawing, settings
from hierrouter.report.figures import figures
from hierrouter.report.results import Report
from hierrouter.report.svg import as_svg
from hierrouter_cache.atomic_files import write_atomically
from hierrouter_cache.errors import InputError

FORMATS = ("svg", "pdf", "png")
DOTS_PER_INCH = 300
# What matplotlib would write of itself and of the time; without it bytes stay the same.
_NO_METADATA = {"pdf": {"CreationDate": None}, "png": {"Software": None}}


def export_figures(report: Report, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Every figure of the report in each format, `folder/<name>.<format>`.

    Raises:
        InputError: a format is unknown; nothing is written then.
        CacheError, WorldError: the folder cannot be written to.
    """
    check_formats(formats)
    return [
        save(drawing, folder / f"{drawing.name}.{format}")
        for drawing in figures(report)
        for format in dict.fromkeys(formats)
    ]


def check_formats(formats: Sequence[str]) -> None:
    """Refuse formats that figures are not written in, before there are figures.

    Raises:
        InputError: none is given, or one is unknown.
    """
    unknown = [format for format in formats if format not in FORMATS]
    if unknown or not formats:
        given = repr(unknown[0]) if unknown else "none"
        raise InputError(f"unknown format of figures: {given}; choose of {', '.join(FORMATS)}")


def save(drawing: Drawing, path: Path) -> Path:
    """Write one figure in the format of the path's ending; returns the path.

    Raises:
        InputError: the ending is unknown.
    """
    format = path.suffix.removeprefix(".")
    check_formats([format])
    write_atomically(path, _bytes(drawing, format))
    return path


def _bytes(drawing: Drawing, format: str) -> bytes:
    with _on_white(drawing.figure):
        if format == "svg":
            return as_svg(drawing, ink=INK).encode()
        sink = io.BytesIO()
        with settings(drawing.name):
            drawing.figure.savefig(
                sink, format=format, dpi=DOTS_PER_INCH, metadata=_NO_METADATA[format]
            )
        return sink.getvalue()


@contextmanager
def _on_white(figure: Figure) -> Iterator[None]:
    """The page's figures are transparent; in a file of its own a figure has paper."""
    figure.patch.set(facecolor="white", visible=True)
    try:
        yield
    finally:
        figure.patch.set_visible(False)
