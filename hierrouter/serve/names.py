"""Model names that a client may ask for, and their alphas.

In: a policy, names that the user gave. Out: `Names`: a name to its alpha. `hierrouter` is the
default; `hierrouter@0.02` any alpha that the policy answers; `hierrouter:cheap` a name for one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hierrouter.live.policy import LivePolicy
from hierrouter.pool import suggestion
from hierrouter_cache.errors import InputError

BASE = "hierrouter"


class UnknownModel(InputError):
    """A client asked for a model that is not served."""


@dataclass(frozen=True)
class Names:
    """What is served.

    Attributes:
        alphas: of each name that is listed; None is the policy's own.
        any_alpha: whether `hierrouter@X` takes any X.
    """

    alphas: Mapping[str, float | None]
    any_alpha: bool

    @classmethod
    def of(
        cls,
        policy: LivePolicy,
        alpha: float | None = None,
        named: Mapping[str, float] | None = None,
    ) -> Names:
        """The names of a policy; one for every alpha has `cheap`, `balanced` and `best`, too.

        Args:
            alpha: of the plain name; None is the policy's own.
            named: alphas by name, without what stands before the colon.

        Raises:
            InputError: an alpha that the policy does not answer.
        """
        grid = policy.alphas
        own = {"best": grid[0], "balanced": grid[len(grid) // 2], "cheap": grid[-1]}
        short = (own if policy.any_alpha else {}) | dict(named or {})
        for value in (alpha, *short.values()):
            policy.at(value, None)
        alphas = {f"{BASE}:{name}": value for name, value in short.items()}
        return cls({BASE: alpha, **alphas}, policy.any_alpha)

    def alpha(self, name: str) -> float | None:
        """The alpha that a name asks for; None is the policy's own.

        Raises:
            UnknownModel: there is no such name.
        """
        if name in self.alphas:
            return self.alphas[name]
        base, _, text = name.partition("@")
        if base == BASE and text and self.any_alpha:
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if math.isfinite(value) and value >= 0:
                return value
        hint = suggestion(name[:80], self.alphas).rstrip("; ")
        more = f"; any alpha as {BASE}@ALPHA" if self.any_alpha else ""
        raise UnknownModel(f"model not found: {name[:80]!r}; {hint}{more}")
