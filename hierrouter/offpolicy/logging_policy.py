"""Policies that could have written a log.

In: what a user asks for, and a trained router's probabilities. Out: probabilities of actions at
every state: uniform, the router with some chance calls, or the router made bolder or shyer. Not
covered: playing them, see `simulate`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.evaluate.exact import greedy
from hierrouter_cache.errors import InputError

Kind = Literal["uniform", "epsilon", "temperature"]
USAGE = "uniform, epsilon=0.1 or temperature=2"


@dataclass(frozen=True)
class LoggingPolicy:
    """A way to choose calls, around a trained router.

    Attributes:
        kind: "uniform": every legal action alike; "epsilon": the router's own choice, and with this
            probability any legal action alike; "temperature": the router's probabilities to the
            power of 1 / temperature, scaled to sum to 1.
        number: epsilon, in [0, 1], or the temperature, above 0; 0 where there is neither.
    """

    kind: Kind
    number: float = 0.0

    @classmethod
    def named(cls, text: str) -> LoggingPolicy:
        """By what a user types.

        Raises:
            InputError: anything but `USAGE`, or a number out of range.
        """
        if text == "uniform":
            return cls("uniform")
        kind, _, number = text.partition("=")
        if kind == "epsilon":
            return cls("epsilon", _number(text, number, 0.0, 1.0))
        if kind == "temperature":
            return cls("temperature", _number(text, number, 0.01, 1e6))
        raise InputError(f"unknown logging policy: {text!r:.60}; give {USAGE}")

    def __str__(self) -> str:
        return self.kind if self.kind == "uniform" else f"{self.kind}={self.number:g}"

    def table(
        self, actions: Actions, router: NDArray[np.float64], base_rate: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """float64[queries, states, A], rows sum to 1: the policy at every state.

        Args:
            router: float64[queries, states, A], the router's own probabilities.
            base_rate: float64[M], cost per token, for ties; see `greedy`.
        """
        legal = actions.legal()
        alike = np.broadcast_to(legal / legal.sum(axis=1, keepdims=True), router.shape)
        if self.kind == "uniform":
            return alike
        if self.kind == "epsilon":
            return (1 - self.number) * greedy(router, base_rate) + self.number * alike
        # The likeliest action weighs 1, so that no power of small numbers makes all of them 0.
        tempered = (router / router.max(axis=-1, keepdims=True)) ** (1 / self.number)
        table: NDArray[np.float64] = tempered / tempered.sum(axis=-1, keepdims=True)
        return table


def _number(text: str, number: str, low: float, high: float) -> float:
    """A number from `low` to `high`.

    Raises:
        InputError: anything else.
    """
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InputError(f"no number from {low:g} to {high:g}: --simulate {text!r:.60}")
    return value
