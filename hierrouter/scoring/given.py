"""Scores that came with imported answers.

In: nothing; the values were stored when the answers were imported. Out: `GIVEN`, a scorer whose
values can be read but not computed. Where Q is what the source said, right and wrong are too. Not
covered: importing (`hierrouter.interchange`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hierrouter.scoring.scorer import Scorer
from hierrouter_cache.errors import InputError


def _given(response: str, references: Sequence[str]) -> float:
    raise InputError(
        f"no score was imported with the response {response!r:.40}; "
        "take another --scorer, or import a file that has one for each answer"
    )


GIVEN = Scorer("given", "1", _given)
