"""Named scorers: the quality Q of a response.

In: a response and its reference answers. Out: a number in [0, 1], from stored text alone. Not
covered: judges that call a model.
"""

from hierrouter.scoring.registry import SCORERS, scorer
from hierrouter.scoring.scorer import Scorer, score_all
from hierrouter.scoring.text import exact_match, token_f1

__all__ = ["SCORERS", "Scorer", "exact_match", "score_all", "scorer", "token_f1"]
