"""The scorers there are, by name.

In: a name that a user typed. Out: a `Scorer`. Scores are stored under a scorer's key, name and
version, beside the calls, and can be computed again from stored responses. Not covered: judges
that call a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from hierrouter.pool import suggestion
from hierrouter.scoring.accuracy import accuracy
from hierrouter.scoring.boxed import boxed
from hierrouter.scoring.choice import choice
from hierrouter.scoring.given import GIVEN
from hierrouter.scoring.numeric import numeric
from hierrouter.scoring.own import own_scorer
from hierrouter.scoring.scorer import Scorer
from hierrouter.scoring.text import exact_match, token_f1
from hierrouter_cache.errors import InputError
from hierrouter_cache.fingerprint import digest

# Raise the number of a scorer whenever one of its values can change.
JUDGES = (
    Scorer("numeric", "1", numeric),
    Scorer("boxed", f"1-math-verify-{version('math-verify')}", boxed),
    Scorer("choice", "2", choice, with_choices=choice),
    Scorer("exact_match", "1", exact_match),
)
BUILT_IN = (
    Scorer("token_f1", "1", token_f1),
    # Its values are those of the others, so their versions are part of its own.
    Scorer(
        "accuracy",
        f"1-{digest([judge.key for judge in JUDGES])[:8]}",
        accuracy,
        with_choices=accuracy,
    ),
    *JUDGES,
)
SCORERS: Mapping[str, Scorer] = {scorer.name: scorer for scorer in BUILT_IN}


def scorer(name: str) -> Scorer:
    """The scorer of this name, or the user's own function at `module:function`.

    Raises:
        InputError: nothing of this name, or a function that cannot be used.
    """
    if name == GIVEN.name:
        return GIVEN
    if name in SCORERS:
        return SCORERS[name]
    if ":" in name:
        return own_scorer(name)
    known = suggestion(name, [*SCORERS, GIVEN.name])
    raise InputError(f"unknown scorer: {name}; {known}or give your own as module:function")
