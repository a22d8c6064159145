"""The best of several answers, by a learned scorer.

In: `Arms` with answers. Out: a router that asks the same few arms every time and gives the answer
with the highest expected quality; it pays for all of them. Source: best-of-n with a verifier (Cobbe
et al. 2021, arXiv 2110.14168), over different models instead of draws of one, as LLM-Blender ranks
them (Jiang et al. 2023, arXiv 2306.02561). The group is grown on the validation fold, arm by arm,
as long as that makes R higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from hierrouter.baselines.answer_scorer import AnswerScorer, Judge, fit_scorer
from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import DIGITS, Tuned, mean_reward
from hierrouter.baselines.static import best_arm, best_static


@dataclass(frozen=True)
class BestOf:
    """The answer with the highest score of a fixed group of arms; a tie goes to the cheapest.

    Attributes:
        largest: how many arms a group has at most.
    """

    largest: int = 4
    name: ClassVar[str] = "best-of ensemble"
    source: ClassVar[str] = "Cobbe et al. 2021, arXiv 2110.14168; LLM-Blender, arXiv 2306.02561"
    reads_answers: ClassVar[bool] = True

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        if not len(validation):
            return best_static(train, alpha)
        scorer = fit_scorer(train, rng)
        group = self._grown(scorer.judge(validation.seen), validation, alpha)
        return Tuned(partial(_play, group, scorer), {"arms": [train.names[arm] for arm in group]})

    def _grown(self, judge: Judge, arms: Arms, alpha: float) -> list[int]:
        """The best arm of a fold, and others as long as each makes its mean R higher."""
        by_cost = arms.cost.mean(axis=0).argsort(kind="stable").tolist()
        group = [best_arm(arms.reward(alpha), arms.cost)]
        value = float(arms.reward(alpha)[:, group].mean())
        while len(group) < min(self.largest, len(by_cost)):
            more = [arm for arm in by_cost if arm not in group]
            larger = [[arm for arm in by_cost if arm in {*group, one}] for one in more]
            values = [mean_reward(pick(one, judge), arms, alpha) for one in larger]
            best = int(np.round(values, DIGITS).argmax())
            if values[best] <= value + 10**-DIGITS:
                break
            group, value = larger[best], values[best]
        return group


def pick(group: Sequence[int], judge: Judge) -> Play:
    """The answer with the highest score of a group of arms, of equals the first."""
    queries = len(judge.seen)
    read = np.zeros((queries, judge.seen.arms), np.bool_)
    read[:, group] = True
    query = np.repeat(np.arange(queries), len(group))
    score = judge.score(query, np.tile(group, queries), read[query])
    best = score.reshape(queries, len(group)).argmax(axis=1)
    return Play.after(judge.seen, np.asarray(group)[best], read)


def _play(group: Sequence[int], scorer: AnswerScorer, seen: Seen) -> Play:
    return pick(group, scorer.judge(seen))
