"""Probabilities that hold: of choices that are said to be the best with 90 %, about 90 % are.

A regression predicts how probable it is that an action is the best one. For the action that a
router takes this is too low, because it takes what looks best, or too high, because kernel and
ridge were chosen on the same questions. Two numbers correct it: the log-odds are multiplied by a
slope, and an intercept is added (Platt scaling). They are learned from choices on questions that
the regression was made without.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

# Predictions of a regression nearer to 0 or 1 count as these: it may also leave the range.
LEAST_PROBABILITY = 0.01
# Strength of the penalty on the squares of intercept and (slope - 1): few questions change little.
PENALTY = 4.0


@dataclass(frozen=True)
class Calibration:
    """A correction of predicted probabilities.

    Attributes:
        intercept: added to the log-odds.
        slope: by which they are multiplied before.
    """

    intercept: float = 0.0
    slope: float = 1.0

    @classmethod
    def of(cls, predicted: Floats, happened: Booleans, weight: Floats) -> Calibration:
        """The likeliest correction, with a penalty that draws it towards none.

        Args:
            predicted: float64[n], probabilities; those below 0 and above 1 count as 0 and 1.
            happened: bool[n], whether what was predicted came true.
            weight: float64[n], how much each prediction counts; 1 is a question of its own.
        """
        # Imported here: only a fit needs scipy.
        from scipy.optimize import minimize
        from scipy.special import log_expit

        log_odds = _log_odds(predicted)
        sign = np.where(happened, 1.0, -1.0)

        def loss(change: Floats) -> float:
            corrected = change[0] + (1 + change[1]) * log_odds
            log_likelihood = weight @ log_expit(sign * corrected)
            return float(PENALTY / 2 * change @ change - log_likelihood)

        intercept, slope_change = minimize(loss, np.zeros(2), method="BFGS").x.tolist()
        return cls(intercept, 1 + slope_change)

    def __call__(self, predicted: Floats) -> Floats:
        """Correct probabilities, float64[...]; NaN stays NaN."""
        # Imported here: a decision needs no probability.
        from scipy.special import expit

        corrected: Floats = expit(self.intercept + self.slope * _log_odds(predicted))
        return corrected


def _log_odds(probability: Floats) -> Floats:
    likely = probability.clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    log_odds: Floats = np.log(likely / (1 - likely))
    return log_odds
