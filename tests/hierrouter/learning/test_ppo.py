"""Every step of a training by PPO, beside the same step written out by hand."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch

from hierrouter.evaluation.outcome import ending_reward
from hierrouter.learning import ppo
from hierrouter.learning.config import ExactConfig, Objective, PPOConfig
from hierrouter.learning.exact import ExactLearner
from hierrouter.learning.network import (
    RouterNetwork,
    TrainingFold,
    action_probabilities,
    reproducible,
    shape_for,
)
from hierrouter.learning.ppo import Actor, Critic, TreeAdvantages, Trunk
from hierrouter.learning.training import train
from hierrouter.replay.env import QueryStream, ReplayEnv
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import NEWEST, Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.learning.ppo_by_hand import ByHand, GradientStep, Update, adam, length, record
from tests.hierrouter.learning.trainings import small_tree
from tests.hierrouter.trees import planted_tree, ragged_tree, showing_leaves

ALPHA = 0.05
SEED = 3
# No two settings are equal and none is a default of Tianshou's, so that none can be mistaken for
# another. The steps are long enough for ratios to leave the clipped range, the gradients long
# enough to be clipped, and not all of them.
CONFIG = PPOConfig(
    epochs=2,
    iterations=2,
    rollouts=28,
    minibatches=4,
    update_epochs=3,
    gamma=0.8,
    gae_lambda=0.6,
    clip=0.05,
    value_coefficient=0.7,
    entropy_coefficient=0.3,
    entropy_end=0.09,
    max_grad_norm=0.35,
    learning_rate=0.02,
    adam_eps=1e-3,
    warmup_steps=14,
    decay=True,
    evaluate_every=2,
    patience=0,
    hidden=12,
    stage_dim=3,
    embedding_noise=0.75,
)
OBJECTIVES = {
    "calls": Objective(ALPHA),
    "stop": Objective(ALPHA, allow_stop=True),
    "return": Objective(ALPHA, allow_stop=True, allow_return=True),
}


@dataclass(frozen=True)
class Recording:
    """A training with its updates, and what they should be."""

    tree: RouteTree
    updates: list[Update]
    by_hand: ByHand

    @property
    def config(self) -> PPOConfig:
        return self.by_hand.config


@pytest.fixture(scope="module")
def tree() -> RouteTree:
    """Three hops, 21 queries to learn from, and different ones to choose on and to test on."""
    plain = planted_tree(families=3, per_family=(7, 3, 2), models=2, hops=3, dim=8)
    return showing_leaves(plain)


def recording(tree: RouteTree, objective: Objective, config: PPOConfig) -> Recording:
    with record() as updates:
        train(tree, objective, config, SEED)
    return Recording(tree, updates, ByHand(tree.split("train"), objective, config))


@pytest.fixture(scope="module", params=OBJECTIVES.values(), ids=OBJECTIVES)
def recorded(tree: RouteTree, request: pytest.FixtureRequest) -> Recording:
    return recording(tree, request.param, CONFIG)


# --- rollouts


def test_an_epoch_is_so_many_iterations_of_so_many_episodes(recorded: Recording) -> None:
    """An update has the episodes of one iteration alone: the buffer begins empty."""
    assert len(recorded.updates) == CONFIG.epochs * CONFIG.iterations
    lengths = set()
    for update in recorded.updates:
        assert len(update.episodes) == CONFIG.rollouts
        lengths |= {episode.stop - episode.start for episode in update.episodes}
    steps = recorded.by_hand.actions.steps
    ends_early = recorded.by_hand.objective.allow_stop
    assert lengths == (set(range(1, steps + 1)) if ends_early else {steps})


def test_queries_come_in_the_order_of_the_seeds_generator(recorded: Recording) -> None:
    """Without noise the generator has no other use; all come once before one comes twice."""
    quiet = recording(
        recorded.tree, recorded.by_hand.objective, replace(CONFIG, embedding_noise=0.0, epochs=1)
    )
    states = quiet.by_hand.actions.states
    stream = QueryStream(len(quiet.by_hand.fold), np.random.default_rng(SEED))
    for update in quiet.updates:
        first = [update.state[episode][0] for episode in update.episodes]
        expected = stream.draw(CONFIG.rollouts) * states
        assert first == expected.tolist()


def test_an_episode_is_one_of_the_environments(recorded: Recording) -> None:
    """State by state; paid at its end, by R standardised over the fold; nothing before."""
    objective = recorded.by_hand.objective
    fold = objective.view(recorded.by_hand.fold)
    actions = recorded.by_hand.actions
    env = ReplayEnv(fold, ALPHA, objective.allow_stop)
    possible = ending_reward(fold, ALPHA)[:, actions.endings]
    mean = possible.mean(axis=1)
    deviation = (possible - mean[:, None]).std()
    for update in recorded.updates:
        for episode in update.episodes:
            query = update.state[episode][0] // actions.states
            _, info = env.reset(options={"query": query})
            for row in range(len(update.state))[episode]:
                assert update.state[row] == info["state"]
                _, reward, ended, _, info = env.step(np.int64(update.action[row]))
                assert update.terminated[row] == ended
                paid = (reward - mean[query]) / deviation if ended else 0.0
                assert update.reward[row] == pytest.approx(paid, abs=1e-9)


def test_without_standardising_an_episode_is_paid_its_reward(tree: RouteTree) -> None:
    plain = recording(tree, OBJECTIVES["calls"], replace(CONFIG, standardise_reward=False))
    fold = plain.by_hand.fold
    states = plain.by_hand.actions.states
    leaves = fold.node_reward(ALPHA)
    for update in plain.updates:
        query, node = np.divmod(update.state[update.terminated], states)
        leaf = fold.layout.child(node, update.action[update.terminated])
        assert update.reward[update.terminated] == pytest.approx(leaves[query, leaf])
        assert not update.reward[~update.terminated].any()


def test_rollouts_draw_actions_from_the_policy(recorded: Recording) -> None:
    """Each action comes about as often as its probabilities add up to; illegal ones never."""
    legal = recorded.by_hand.actions.legal()
    states = recorded.by_hand.actions.states
    expected = np.zeros(legal.shape[1])
    variance = np.zeros(legal.shape[1])
    counts = np.zeros(legal.shape[1])
    for update in recorded.updates:
        chances = policy(recorded, update)
        assert legal[update.state % states, update.action].all()
        assert chances[~legal[update.state % states]].max(initial=0) == 0
        expected += chances.sum(axis=0)
        variance += (chances * (1 - chances)).sum(axis=0)
        counts += np.bincount(update.action, minlength=chances.shape[1])
    assert (np.abs(counts - expected) < 3 + 4 * np.sqrt(variance)).all()
    assert (variance > 1).all()


def test_a_new_router_chooses_nearly_evenly(recorded: Recording) -> None:
    first = recorded.updates[0]
    legal = recorded.by_hand.actions.legal()[first.state % recorded.by_hand.actions.states]
    assert np.exp(first.old_log) == pytest.approx(1 / legal.sum(axis=1), rel=0.05)


def policy(recorded: Recording, update: Update) -> np.ndarray:
    """float64[n, A]: probabilities of all actions in the rollouts of an update."""
    logs, _ = recorded.by_hand.router(update.weights, update.state, embeddings(update))
    return logs.detach().exp().numpy()


def embeddings(update: Update) -> np.ndarray:
    """float32[n, dim]: what the rollouts read of each state of an update."""
    return np.stack([update.embeddings[int(state)] for state in update.state])


# --- noise


def test_rollouts_read_noise_of_the_given_length_that_each_iteration_draws_anew(
    recorded: Recording,
) -> None:
    fold = recorded.by_hand.fold
    states = recorded.by_hand.actions.states
    noises: list[dict[int, np.ndarray]] = []
    for update in recorded.updates:
        visited = np.array(list(update.embeddings))
        plain = fold.embedding_at(*np.divmod(visited, states))
        noise = np.stack(list(update.embeddings.values())) - plain
        size = np.sqrt((noise**2).sum(axis=1).mean())
        assert size == pytest.approx(CONFIG.embedding_noise, rel=0.1)
        noises.append(dict(zip(visited.tolist(), noise, strict=True)))
    for early, late in itertools.pairwise(noises):
        both = set(early) & set(late)
        assert both
        assert all(np.abs(early[state] - late[state]).max() > 1e-3 for state in both)


def test_an_update_reads_what_its_rollouts_read(recorded: Recording) -> None:
    """Values and probabilities before the first gradient step are those of the rollouts."""
    for update in recorded.updates:
        logs, value = recorded.by_hand.router(update.weights, update.state, embeddings(update))
        expected = logs.detach().numpy()[np.arange(len(update.action)), update.action]
        assert update.old_log == pytest.approx(expected, abs=1e-4)
        assert update.value == pytest.approx(value.detach().numpy(), abs=1e-4)


# --- advantage


def test_advantages_are_generalised_advantages_of_whole_episodes(recorded: Recording) -> None:
    for update in recorded.updates:
        expected = recorded.by_hand.advantages(update, update.value)
        assert update.advantage == pytest.approx(expected, abs=1e-5)
        assert update.target == pytest.approx(expected + update.value, abs=1e-5)


# --- exact advantages


def plain_fold(objective: Objective) -> TrainingFold:
    """Six queries that have every node."""
    tree = planted_tree(families=2, per_family=(3, 1, 1), models=2, hops=3, dim=4)
    return TrainingFold.of(showing_leaves(tree).split("train"), objective)


def ragged_fold(objective: Objective, newest: bool = False, unjudged: float = 0.0) -> TrainingFold:
    """Eight queries that lack nodes, with two draws of a call, and maybe answers without a Q."""
    layout = Layout.grown(
        2, lambda path: [0, 1][len(path) :] if len(path) < 2 else [], lambda action: 1 + action
    )
    tree = showing_leaves(ragged_tree(layout, 8, seed=1, unjudged=unjudged))
    if newest:
        tree = tree.with_layout(tree.layout.with_give_backs((NEWEST,)))
    return TrainingFold.of(tree, objective)


FOLDS: dict[str, Callable[[], TrainingFold]] = {
    **{f"plain-{name}": partial(plain_fold, each) for name, each in OBJECTIVES.items()},
    **{f"ragged-{name}": partial(ragged_fold, each) for name, each in OBJECTIVES.items()},
    "ragged-newest": partial(ragged_fold, Objective(ALPHA), newest=True),
    "ragged-unjudged": partial(ragged_fold, OBJECTIVES["stop"], unjudged=0.3),
}


@dataclass(frozen=True)
class Walk:
    """Expected rewards of a policy, by a walk over the calls that a query has.

    Attributes:
        fold: the queries.
        policy: float64[queries, S, A].
        reward: float64[queries, endings].
    """

    fold: TrainingFold
    policy: np.ndarray
    reward: np.ndarray

    def value(self, query: int, node: int) -> float:
        """From a node on."""
        legal = self.fold.table.legal.reshape(self.policy.shape)
        if node >= self.fold.actions.states or not legal[query, node].any():
            return float(self.reward[query, node])
        chosen = np.flatnonzero(legal[query, node]).tolist()
        return sum(
            float(self.policy[query, node, action]) * self.after(query, node, action)
            for action in chosen
        )

    def after(self, query: int, node: int, action: int) -> float:
        """After an action, in the mean over the draws of its call."""
        actions = self.fold.actions
        layout = actions.layout
        if action >= actions.calls:
            return float(self.reward[query, layout.give_back[node, action - actions.calls]])
        if node >= layout.inner:
            return float(self.reward[query, node])
        draws = layout.draws_of_calls[node, action % layout.call_actions]
        total = 0.0
        for child in draws[draws >= 0].tolist():
            weight = self.fold.tree.weight
            chance = 1.0 if weight is None else float(weight[query, child])
            ends = action >= layout.call_actions
            total += chance * (
                float(self.reward[query, child]) if ends else self.value(query, child)
            )
        return total


@pytest.mark.parametrize("name", FOLDS)
def test_exact_advantages_are_those_of_all_episodes(name: str) -> None:
    """Of each legal action at each state with a choice, in any order, and of some states alone."""
    fold = FOLDS[name]()
    torch.manual_seed(0)
    router = RouterNetwork(shape_for(fold.tree, fold.actions, PPOConfig(hidden=8)))
    with torch.no_grad():
        router.policy.weight *= 500  # far from even
    policy = action_probabilities(router, fold.table)
    reward = fold.episode_reward(ALPHA, standardise=True)
    walk = Walk(fold, policy.reshape(len(fold.tree), fold.actions.states, -1), np.asarray(reward))
    legal = fold.table.legal.numpy()
    state, action = np.nonzero(legal & (legal.sum(axis=1, keepdims=True) > 1))
    assert np.ptp(policy[state, action]) > 0.25
    order = np.random.default_rng(0).permutation(len(state))
    for rows in (order, order[:3]):
        advantage, value = TreeAdvantages(router, fold, reward).of(state[rows], action[rows])
        for row, gain, level in zip(rows, advantage.tolist(), value.tolist(), strict=True):
            query, node = divmod(int(state[row]), fold.actions.states)
            if not fold.presence[query, node]:
                continue  # the query lacks the state, and no episode comes there
            assert level == pytest.approx(walk.value(query, node), abs=1e-5)
            after = walk.after(query, node, int(action[row]))
            assert gain == pytest.approx(after - level, abs=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_a_training_can_take_exact_advantages_and_is_else_the_same(
    tree: RouteTree, objective: Objective
) -> None:
    """Advantages and targets of the policy at the start of an update, on states without noise."""
    known = recording(tree, objective, replace(CONFIG, epochs=1, advantages="exact"))
    estimated = recording(tree, objective, replace(CONFIG, epochs=1))
    assert known.updates[0].state.tolist() == estimated.updates[0].state.tolist()
    assert known.updates[0].action.tolist() == estimated.updates[0].action.tolist()
    fold = TrainingFold.of(tree.split("train"), objective)
    router = RouterNetwork(shape_for(fold.tree, fold.actions, CONFIG))
    for update in known.updates:
        router.load_state_dict(update.weights)
        values = TreeAdvantages(router, fold, fold.episode_reward(ALPHA, standardise=True))
        advantage, value = values.of(update.state, update.action)
        assert update.advantage == pytest.approx(advantage.numpy(), abs=1e-5)
        assert update.target == pytest.approx(value.numpy(), abs=1e-5)
        for step in update.steps:
            terms = known.by_hand.terms(step, update.embeddings, step.before)
            weight = known.by_hand.entropy_weight(known.updates.index(update))
            factors = (1.0, CONFIG.value_coefficient, -weight)
            loss = sum(factor * float(term) for factor, term in zip(factors, terms, strict=True))
            assert step.loss == pytest.approx(loss, abs=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_a_warm_start_is_a_training_by_enumeration_before_the_first_episode(
    tree: RouteTree, objective: Objective
) -> None:
    """Updates begin with the weights that `exact` ends with; the generator goes on after it."""
    config = replace(CONFIG, warm_start=2, iterations=1, epochs=1)
    [update] = recording(tree, objective, config).updates
    fold = TrainingFold.of(tree.split("train"), objective)
    enumeration = ExactConfig(
        epochs=2, adam_eps=config.adam_eps, embedding_noise=config.embedding_noise
    )
    with reproducible(SEED):
        router = RouterNetwork(shape_for(fold.tree, fold.actions, config))
        learner = ExactLearner(router, fold, ALPHA, enumeration, np.random.default_rng(SEED))
        for _ in range(2):
            learner.epoch()
    for name, value in router.named_parameters():
        assert torch.equal(update.weights[name], value), name


@pytest.mark.parametrize("advantages", ["exact", "gae"])
def test_exact_advantages_take_few_trees_where_trees_are_large(
    tree: RouteTree, advantages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The episodes are as many, several on each of the next queries in their order."""
    states = Objective(ALPHA).actions(tree.layout).states
    monkeypatch.setattr(ppo, "MAX_TREE_STATES", 4 * states - 1)
    config = replace(CONFIG, advantages=advantages, embedding_noise=0.0, epochs=1)
    stream = QueryStream(21, np.random.default_rng(SEED))
    for update in recording(tree, Objective(ALPHA), config).updates:
        played = [int(update.state[episode.start]) // states for episode in update.episodes]
        queries = 3 if advantages == "exact" else CONFIG.rollouts
        assert played == np.resize(stream.draw(queries), CONFIG.rollouts).tolist()


def test_other_advantages_are_refused() -> None:
    with pytest.raises(InputError, match=r"^advantages must be gae or exact, got td: advantages"):
        PPOConfig(advantages="td")


# --- gradient steps


def test_an_update_passes_so_often_over_all_transitions_in_so_many_parts(
    recorded: Recording,
) -> None:
    """In another order each time, with the advantages and returns from before the first step."""
    orders = set()
    for update in recorded.updates:
        size = len(update.state) // CONFIG.minibatches
        assert len(update.steps) == CONFIG.update_epochs * CONFIG.minibatches
        for first in range(0, len(update.steps), CONFIG.minibatches):
            part = update.steps[first : first + CONFIG.minibatches]
            # The last one takes what is left over.
            assert [len(step.state) for step in part[:-1]] == [size] * (CONFIG.minibatches - 1)
            transitions = []
            for step in part:
                columns = (step.state, step.action, step.advantage.numpy(), step.target.numpy())
                transitions += zip(*(column.tolist() for column in columns), strict=True)
            columns = (update.state, update.action, update.advantage, update.target)
            everything = zip(*(column.tolist() for column in columns), strict=True)
            assert Counter(transitions) == Counter(everything)
            orders.add(tuple(transitions))
    assert len(orders) == len(recorded.updates) * CONFIG.update_epochs


def test_the_loss_is_the_clipped_one_with_value_and_entropy(recorded: Recording) -> None:
    """Loss and gradient; with advantages normalised in each mini-batch, and no other clipping."""
    clipped = 0
    for number, update in enumerate(recorded.updates):
        for step in update.steps:
            weights = {name: value.requires_grad_() for name, value in step.before.items()}
            terms = recorded.by_hand.terms(step, update.embeddings, weights)
            factors = (1.0, CONFIG.value_coefficient, -recorded.by_hand.entropy_weight(number))
            loss = sum(factor * term for factor, term in zip(factors, terms, strict=True))
            assert step.loss == pytest.approx(loss.item(), abs=1e-4)
            gradient = torch.autograd.grad(loss, list(weights.values()))
            for name, expected in zip(weights, gradient, strict=True):
                close = torch.allclose(step.gradient[name], expected.float(), rtol=1e-3, atol=2e-5)
                assert close, name
            for value in weights.values():
                value.requires_grad_(False)
            clipped += is_clipped(recorded, step, update)
    assert clipped > len(recorded.updates)


def is_clipped(recorded: Recording, step: GradientStep, update: Update) -> bool:
    """Whether another range of clipping would have given another loss."""
    wide = replace(recorded.by_hand, config=replace(CONFIG, clip=2 * CONFIG.clip))
    clipped, _, _ = recorded.by_hand.terms(step, update.embeddings, step.before)
    less_clipped, _, _ = wide.terms(step, update.embeddings, step.before)
    return abs(float(clipped - less_clipped)) > 1e-3


def test_the_weights_of_the_terms_are_the_given_ones_and_that_of_entropy_falls(
    recorded: Recording,
) -> None:
    """As the losses of each update tell them."""
    entropy_weights = []
    for update in recorded.updates:
        rows = [
            recorded.by_hand.terms(step, update.embeddings, step.before) for step in update.steps
        ]
        terms = np.array([[float(term) for term in row] for row in rows])
        losses = np.array([step.loss for step in update.steps])
        weights = np.linalg.lstsq(terms[:, 1:], losses - terms[:, 0], rcond=None)[0]
        assert weights[0] == pytest.approx(CONFIG.value_coefficient, abs=1e-3)
        entropy_weights.append(-weights[1])
    share = np.arange(len(entropy_weights)) / len(entropy_weights)
    fall = CONFIG.entropy_coefficient - CONFIG.entropy_end
    expected = CONFIG.entropy_coefficient - share * fall
    assert entropy_weights == pytest.approx(expected, abs=1e-3)


def test_a_gradient_that_is_too_long_is_clipped_as_a_whole(recorded: Recording) -> None:
    lengths = []
    for update in recorded.updates:
        for step in update.steps:
            lengths.append(length(step.gradient))
            factor = min(1.0, CONFIG.max_grad_norm / lengths[-1])
            for name, gradient in step.gradient.items():
                assert torch.allclose(step.clipped[name], factor * gradient, rtol=1e-4, atol=1e-7)
    assert min(lengths) < CONFIG.max_grad_norm < max(lengths) / 1.5


def test_the_learning_rate_rises_and_falls_step_by_step(recorded: Recording) -> None:
    rates = [step.rate for update in recorded.updates for step in update.steps]
    expected = [recorded.by_hand.rate(number) for number in range(len(rates))]
    assert rates == pytest.approx(expected, rel=1e-9)
    assert rates[0] == pytest.approx(CONFIG.learning_rate / CONFIG.warmup_steps)
    assert max(rates) > 10 * max(rates[0], rates[-1])


def test_without_decay_and_warm_up_the_learning_rate_stays(tree: RouteTree) -> None:
    config = replace(CONFIG, epochs=1, decay=False, warmup_steps=0)
    updates = recording(tree, OBJECTIVES["calls"], config).updates
    assert {step.rate for update in updates for step in update.steps} == {CONFIG.learning_rate}


def test_each_step_is_one_of_adam_on_all_weights(recorded: Recording) -> None:
    steps = [step for update in recorded.updates for step in update.steps]
    for step, weights in zip(steps, adam(steps, CONFIG.adam_eps), strict=True):
        for name, expected in weights.items():
            assert torch.allclose(step.after[name].double(), expected, rtol=0, atol=2e-6), name
    for name, value in steps[-1].after.items():
        assert not torch.equal(value, steps[0].before[name]), name
    for early, late in itertools.pairwise(recorded.updates):
        after = early.steps[-1].after  # the next rollouts are of these weights
        assert all(torch.equal(late.weights[name], value) for name, value in after.items())


# --- features that are kept for the critic


def small_trunk() -> tuple[RouterNetwork, Trunk, np.ndarray]:
    """A new router behind actor and critic, and some states."""
    tree = small_tree()
    fold = TrainingFold.of(tree, Objective(ALPHA))
    torch.manual_seed(0)
    router = RouterNetwork(shape_for(tree, fold.actions, PPOConfig(hidden=8)))
    return router, Trunk(router, fold.table.rows), np.arange(10)


def move_all_weights(router: RouterNetwork) -> None:
    """As a fused optimiser does it: without a trace in the version of a tensor."""
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.data += 0.5


def test_a_critic_takes_features_of_the_actor_once_and_no_old_ones() -> None:
    router, trunk, states = small_trunk()
    actor = Actor(trunk)
    critic = Critic(trunk)
    computed = []
    compute = router.features
    router.features = lambda rows: computed.append(len(rows.node)) or compute(rows)
    actor(states)
    fresh = critic(states)
    assert computed == [len(states)]  # the actor's were taken
    move_all_weights(router)
    later = critic(states)
    assert computed == [len(states)] * 2
    assert not torch.allclose(fresh, later)
    assert torch.equal(later, router(trunk.look_up(torch.from_numpy(states)))[1][:, None])


def test_an_actor_and_a_critic_of_other_states_take_no_kept_features() -> None:
    router, trunk, states = small_trunk()
    actor = Actor(trunk)
    critic = Critic(trunk)
    before, _ = actor(states)
    move_all_weights(router)
    after, _ = actor(states)
    assert not torch.allclose(before, after)
    other = states[::-1].copy()
    assert torch.equal(critic(other), router(trunk.look_up(torch.from_numpy(other)))[1][:, None])


def test_features_without_gradients_are_not_kept_for_a_critic_that_learns() -> None:
    router, trunk, states = small_trunk()
    actor = Actor(trunk)
    critic = Critic(trunk)
    with torch.no_grad():
        actor(states)
    critic(states).sum().backward()
    assert router.context.weight.grad is not None


# --- seeds


def test_each_generator_has_the_seed(tree: RouteTree) -> None:
    """Torch's draws weights and actions, and numpy's mini-batches; of queries see above."""
    config = replace(CONFIG, epochs=1, iterations=1)
    first: list[Update] = []
    for seed in (SEED, SEED + 1):
        with record() as updates:
            train(tree, OBJECTIVES["calls"], config, seed)
        first += updates
        [update] = updates
        order = np.random.RandomState(seed).permutation(len(update.state))
        size = len(update.state) // CONFIG.minibatches
        for number, step in enumerate(update.steps[: CONFIG.minibatches]):
            rows = order[number * size : (number + 1) * size]
            assert step.state.tolist() == update.state[rows].tolist()
    before, after = first
    assert not torch.equal(before.weights["second.weight"], after.weights["second.weight"])
