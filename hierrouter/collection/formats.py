"""The formats of files that others keep, and what to know of each."""

from collections.abc import Mapping

OWN = "jsonl"
# What a person must know of a cache that was made from a file.
NOTES: Mapping[str, str] = {
    "routerbench": "no token counts in the file; tokens_out holds its cost in tiny units, so that "
    "C is the file's cost"
}
IMPORTS = (OWN, "table", "llmrouter", "routerbench")
