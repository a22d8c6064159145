"""The formats of files that others keep, and what to know of each."""

from collections.abc import Mapping

OWN = "jsonl"
# What of a cache a format has no place for.
LOST: Mapping[str, tuple[str, ...]] = {
    "llmrouter": (
        "hops after the first",
        "further reference answers of a query",
        "the validation fold (it goes with train)",
        "latency",
        "prices and model descriptions (its llm_data file)",
    ),
    "routerbench": (
        "hops after the first",
        "reference answers",
        "token counts (their cost travels)",
        "folds",
        "latency",
    ),
    "routellm": (
        "hops after the first",
        "by how much a model won",
        "token counts, costs and latency",
        "reference answers",
        "the validation fold (it goes with train)",
        "model names (its training code knows a fixed list; add yours to MODEL_IDS)",
    ),
}
# What a person must know of a cache that was made from a file.
NOTES: Mapping[str, str] = {
    "routerbench": "no token counts in the file; tokens_out holds its cost in tiny units, so that "
    "C is the file's cost"
}
IMPORTS = (OWN, "table", "llmrouter", "routerbench")
EXPORTS = (OWN, *LOST)
