"""Majority vote.

In: `Arms` with answers. Out: a router that asks the same few arms every time and gives the answer
that most of them agree on, equal after the normalisation of `exact_match`; it pays for all of them.
Source: self-consistency (Wang et al. 2022, arXiv 2203.11171), over different models instead of
draws of one, as in More Agents Is All You Need (Li et al. 2024, arXiv 2402.05120). Which arms is
chosen on the validation fold, among all small groups of those that are best alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import ClassVar

import numpy as np

from hierrouter.baselines.answer_scorer import read_answers
from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import DIGITS, Tuned, best_of
from hierrouter.baselines.static import best_static


@dataclass(frozen=True)
class MajorityVote:
    """A vote among a fixed group of arms; a tie goes to the cheapest arm of the group.

    Attributes:
        sizes: of the groups; of two arms the cheaper one would always win.
        shortlist: how many arms the groups are made of.
    """

    sizes: tuple[int, ...] = (1, 3, 5)
    shortlist: int = 9
    name: ClassVar[str] = "majority vote"
    source: ClassVar[str] = "Wang et al. 2022, arXiv 2203.11171; Li et al. 2024, arXiv 2402.05120"
    reads_answers: ClassVar[bool] = True

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        if not len(validation):
            return best_static(train, alpha)
        cost = validation.cost.mean(axis=0)
        value = np.round(validation.reward(alpha).mean(axis=0), DIGITS)
        shortlist = np.lexsort((cost, -value))[: self.shortlist]
        by_cost = shortlist[cost[shortlist].argsort(kind="stable")].tolist()
        candidates = [
            ({"arms": [train.names[arm] for arm in group]}, partial(vote, group))
            for size in self.sizes
            for group in combinations(by_cost, size)
        ]
        return best_of(candidates, validation, alpha)


def vote(group: Sequence[int], seen: Seen) -> Play:
    """What most of a group of arms say.

    Args:
        group: arms, of which the first stands for those that say the same, and wins a tie.
    """
    said = read_answers(seen).group[:, group]
    votes = (said[:, :, None] == said[:, None, :]).sum(axis=2)
    read = np.zeros((len(seen), seen.arms), np.bool_)
    read[:, group] = True
    return Play.after(seen, np.asarray(group)[votes.argmax(axis=1)], read)
