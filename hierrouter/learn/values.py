"""Values on whole trees, from the leaves to the root.

In: what episodes pay at each node, as tensors, and a policy. Out: Q(s, a) of every action at every
state, and the expected return, both exact; a gradient goes through them. Not covered: the same for
tables, with no gradient, see `hierrouter.evaluate.exact`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hierrouter.actions import Actions

# From a level and Q of its states, [queries, states of the level, A, ...], to the states' values.
StateValue = Callable[[int, Tensor], Tensor]


def action_values(actions: Actions, probabilities: Tensor, reward: Tensor) -> Tensor:
    """Q(s, a) of every action at every state: the expected reward after it, exactly.

    Args:
        actions: what may be done.
        probabilities: float32[queries, states, A], the policy that is followed afterwards.
        reward: float32[queries, nodes], paid where an episode ends.

    Returns:
        float32[queries, states, A].
    """
    level = actions.routes.level
    return _backed_up(
        actions, reward, lambda depth, values: (probabilities[:, level(depth)] * values).sum(dim=2)
    )


def best_and_random_values(actions: Actions, reward: Tensor) -> Tensor:
    """Q(s, a) where the best action is always taken afterwards, and where random ones are.

    Args:
        actions: what may be done.
        reward: float32[queries, nodes], paid where an episode ends.

    Returns:
        float32[queries, states, A, 2]; before the last call the two are the same.
    """

    def state_value(_: int, values: Tensor) -> Tensor:
        return torch.stack([values[..., 0].amax(dim=2), values[..., 1].mean(dim=2)], dim=2)

    return _backed_up(actions, reward[:, :, None].expand(-1, -1, 2), state_value)


def expected_return(actions: Actions, probabilities: Tensor, reward: Tensor) -> Tensor:
    """The value of a policy on each query, float32[queries].

    Args:
        actions: what may be done.
        probabilities: float32[queries, states, A].
        reward: float32[queries, nodes], paid where an episode ends.
    """
    routes, queries = actions.routes, len(reward)
    reached, total = torch.ones(queries, 1), torch.zeros(queries)
    for level in range(routes.hops):
        decided = reached[:, :, None] * probabilities[:, routes.level(level)]
        reached = decided[:, :, : routes.models].reshape(queries, -1)
        if actions.allow_stop:
            stopped = decided[:, :, routes.models :].reshape(queries, -1)
            total = total + (stopped * reward[:, routes.level(level + 1)]).sum(dim=1)
    return total + (reached * reward[:, routes.leaves]).sum(dim=1)


def _backed_up(actions: Actions, reward: Tensor, state_value: StateValue) -> Tensor:
    """Backward induction: Q of every action, where a state is worth what `state_value` says.

    Args:
        reward: float32[queries, nodes, ...], several kinds of reward side by side or one.
    """
    routes, queries = actions.routes, len(reward)
    levels: list[Tensor] = []
    value = reward[:, routes.leaves]
    for level in reversed(range(routes.hops)):
        values = value.reshape(queries, -1, routes.models, *value.shape[2:])
        if actions.allow_stop:
            stopping = reward[:, routes.level(level + 1)].reshape(values.shape)
            values = torch.cat([values, stopping], dim=2)
        levels.append(values)
        value = state_value(level, values)
    return torch.cat(levels[::-1], dim=1)
