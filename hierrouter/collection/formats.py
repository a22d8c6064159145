"""The formats of files that others keep, and what to know of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OWN = "jsonl"


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        imports, exports: whether it can be read, and written.
        lost: what of a cache it has no place for.
        notes: what a person must know of a cache that was made from it.
    """

    imports: bool = False
    exports: bool = False
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


FORMATS: Mapping[str, Format] = {
    OWN: Format(imports=True, exports=True),
    "table": Format(imports=True),
    "llmrouter": Format(
        imports=True,
        exports=True,
        lost=(
            "hops after the first",
            "further reference answers of a query",
            "the validation fold (it goes with train)",
            "latency",
            "prices and model descriptions (its llm_data file)",
        ),
    ),
    "routerbench": Format(
        imports=True,
        exports=True,
        lost=(
            "hops after the first",
            "reference answers",
            "token counts (their cost travels)",
            "folds",
            "latency",
        ),
        notes=(
            "no token counts in the file; tokens_out holds its cost in tiny units, so that C is "
            "the file's cost",
        ),
    ),
    "routellm": Format(
        exports=True,
        lost=(
            "hops after the first",
            "by how much a model won",
            "token counts, costs and latency",
            "reference answers",
            "the validation fold (it goes with train)",
            "model names (its training code knows a fixed list; add yours to MODEL_IDS)",
        ),
    ),
}
IMPORTS = tuple(name for name, format in FORMATS.items() if format.imports)
EXPORTS = tuple(name for name, format in FORMATS.items() if format.exports)
