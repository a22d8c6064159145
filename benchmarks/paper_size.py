"""A tree and routers of the paper's size, to measure with.

The tree is synthetic: 1,260 train queries, 3 models, 2 hops, 768 dimensions. Settings are those of
the paper's preset. The measurements are in `rollouts.py` and `training.py`.
"""

import measuring  # noqa: F401  makes `tests` importable
import numpy as np
import torch
from numpy.typing import NDArray

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.config import Objective, PPOConfig, preset
from hierrouter.learning.network import RouterNetwork, shape_for, state_table
from hierrouter.replay.env import Act
from tests.hierrouter.trees import planted_tree

ALPHA = 0.005
ENVS = 128  # environments side by side, as many as the paper has rollouts an iteration
DIM = 768


class PaperSize:
    """The tree, its states as tensors, and the paper's settings."""

    def __init__(self) -> None:
        config = preset("paper")
        assert isinstance(config, PPOConfig)
        self.config = config
        self.tree = planted_tree(families=10, per_family=(126, 0, 0), dim=DIM)
        self.actions = Actions(self.tree.layout)
        self.table = state_table(self.tree, Objective(ALPHA))

    def router(self) -> RouterNetwork:
        """Return a new, untrained network."""
        return RouterNetwork(shape_for(self.tree, self.actions, self.config))

    def sampler(self, router: RouterNetwork, rng: np.random.Generator) -> Act:
        """Return a function that draws actions for the numbers of states."""

        @torch.no_grad()
        def act(state: NDArray[np.int64]) -> NDArray[np.int64]:
            logits = router(self.table.rows(torch.from_numpy(state)))[0].numpy()
            actions: NDArray[np.int64] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
            return actions

        return act
