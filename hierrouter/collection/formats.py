"""Names of the file formats that can be imported, and notes on them."""

from collections.abc import Mapping

OWN = "jsonl"  # the project's own format
# Notes for people on a cache that was made from a file, by format.
NOTES: Mapping[str, str] = {
    "routerbench": "no token counts in the file; tokens_out holds its cost in tiny units, so that "
    "C is the file's cost"
}
IMPORTS = (OWN, "table", "llmrouter", "routerbench")
