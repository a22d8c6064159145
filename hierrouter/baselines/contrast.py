"""Contrastive losses of questions and arms.

In: how near they lie to each other, and what arms gain. Out: a number to make small. Both are from
RouterDC (Chen et al. 2024, arXiv 2409.19886). Not covered: who learns with them (`dual_encoder`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def arm_loss(likeness: Tensor, reward: Tensor, positives: int) -> Tensor:
    """Contrast of each of a question's best arms with its worse ones.

    Args:
        likeness: float32[queries, arms].
        reward: float32[queries, arms].
        positives: how many arms are best; the others are negatives.
    """
    order = reward.argsort(dim=1, descending=True, stable=True)
    best, worst = order[:, :positives], order[:, positives:]
    against = likeness.gather(1, worst).logsumexp(dim=1, keepdim=True)
    loss = functional.softplus(against - likeness.gather(1, best)).mean(dim=1)
    spread = reward.gather(1, best).mean(dim=1) - reward.gather(1, worst).mean(dim=1)
    return (spread * loss).sum() / spread.sum().clamp(min=torch.finfo(spread.dtype).tiny)


def question_loss(place: Tensor, group: Tensor) -> Tensor:
    """Contrast of questions of the same group with all others.

    Args:
        place: float32[queries, rank], of length 1.
        group: int[queries].
    """
    likeness = (place @ place.T).fill_diagonal_(-torch.inf)
    same = (group[:, None] == group[None, :]).fill_diagonal_(False)
    share = torch.log_softmax(likeness, dim=1).masked_fill(~same, 0)
    return -(share.sum(dim=1) / same.sum(dim=1).clamp(min=1)).mean()
