"""Names of the file formats that can be imported and exported, and notes on them."""

from collections.abc import Mapping

OWN = "jsonl"  # the project's own format
# Notes for people on a cache that was made from a file, by format.
NOTES: Mapping[str, str] = {
    "routerbench": "no token counts in the file; tokens_out holds its cost in tiny units, so that "
    "C is the file's cost"
}
IMPORTS = (OWN, "table", "llmrouter", "routerbench")
# What of a cache a format has no place for, by the formats of other tools that are written.
LOSSES: Mapping[str, tuple[str, ...]] = {
    "llmrouter": (
        "hops after the first",
        "all but the first reference answer of a query",
        "the validation fold (it goes with train)",
        "log-probabilities, and why a response ended",
        "identities of models, and descriptions (llm_data.json has their ids)",
    ),
    "routerbench": (
        "hops after the first",
        "reference answers, and choices as such",
        "token counts (their cost remains)",
        "folds",
        "seconds, log-probabilities, and why a response ended",
        "identities and prices of models",
    ),
}
EXPORTS = (OWN, *LOSSES)
