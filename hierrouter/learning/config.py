"""Objective and settings of a training.

Nothing here imports torch, so that the command line can check settings without waiting for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from hierrouter.declarations.checks import check_alpha
from hierrouter.paper import PAPER_CHECKPOINT_EVERY, PAPER_PPO
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.evaluation.outcome import Actions
    from hierrouter_cache.layout import Layout
    from hierrouter_cache.tree import AnyTree

# Called after each evaluation with the number of the epoch and a row of the learning curve: by name
# `train`, `validation` and what the learner says of the epoch.
OnEvaluation = Callable[[int, Mapping[str, float]], None]
# Called after each evaluation with epochs done, epochs in all, value on the train fold, and value
# on validation.
OnEpoch = Callable[[int, int, float, float], None]


def ignore_epoch(done: int, total: int, train: float, validation: float) -> None:
    """Do nothing: the `OnEpoch` of a training without a progress display."""


def ignore_evaluation(epoch: int, row: Mapping[str, float]) -> None:
    """Do nothing: the `OnEvaluation` of a training whose curve is not logged."""


@dataclass(frozen=True)
class Objective:
    """The decision problem, apart from the data (paper section 3.1).

    Attributes:
        alpha: reward lost per unit of cost, R = Q - alpha * C.
        allow_stop: whether an episode may end before L calls (paper appendix A).
        allow_return: whether an episode may end after any call with any answer of its route.

    Raises:
        InputError: alpha is not finite, below 0 or above `MAX_ALPHA`.
    """

    alpha: float
    allow_stop: bool = False
    allow_return: bool = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    @property
    def ends_early(self) -> bool:
        """Whether an episode may end before L calls, in one of the two ways."""
        return self.allow_stop or self.allow_return

    def layout(self, layout: Layout) -> Layout:
        """The layout of a tree, with the actions that this objective allows."""
        return layout.with_returns if self.allow_return else layout

    def view(self, tree: AnyTree) -> AnyTree:
        """A tree with the actions that this objective allows."""
        return tree.with_layout(self.layout(tree.layout))

    def actions(self, layout: Layout) -> Actions:
        """The actions that this objective allows on a layout."""
        from hierrouter.evaluation.outcome import Actions  # needs numpy

        return Actions(self.layout(layout), self.allow_stop)

    def as_object(self) -> dict[str, Any]:
        """The objective as JSON values, by name.

        `allow_return` is left out if it is False: files of versions without it have no such name.
        """
        values = asdict(self)
        if not self.allow_return:
            del values["allow_return"]
        return values


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings that all algorithms have.

    Attributes:
        learner: name of the class of algorithms.
        preset: name of the preset that the settings come from.
        keep_anyway: keep the router even if it shows no gain over a constant choice, see
            `cross_fit.with_fallback`.
    """

    learner: ClassVar[str]

    preset: str = "default"
    keep_anyway: bool = False

    @property
    def algo(self) -> str:
        """Name of the algorithm, as `--algo` takes it."""
        return self.learner


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(TrainConfig):
    """Settings of the paper's network and of its training.

    Attributes:
        can_be_saved: whether a training can be saved between two epochs and go on from there.
        epochs: length of the training; see the algorithm for the length of an epoch.
        learning_rate: Adam's, after the warm-up.
        adam_eps: Adam's epsilon.
        warmup_steps: gradient steps over which the learning rate rises from 0.
        decay: let the learning rate fall to 0 at the end, in a straight line.
        evaluate_every: epochs between exact evaluations of one router.
        patience: evaluations after which the training ends, if the value on validation has not
            risen by `min_gain` in them; 0 is never.
        min_gain: least gain of R that prolongs the training; weights that are better by less are
            kept all the same.
        hidden: width of both layers of the router.
        stage_dim: length of the learned stage embedding.
        knows_route: learn an embedding of each node, so that the router knows which models it has
            called, and not only how many; the paper's l_t is the stage alone.
        scale_embedding: multiply embeddings, which have length 1, by sqrt(dim), so that their
            components weigh as much as those of the other inputs.
        scale_cost: divide the cost so far by its root mean square over the states, because a
            network learns little from an input of thousandths, or of thousands; the paper's C_t
            is not scaled.
        plain_start: all layers start as torch makes them, the first one as one map of its complete
            input; otherwise the heads start small and orthogonal.
        embedding_noise: length of the random vector added to the embedding of each visited state,
            drawn anew on each visit of the training; keeps a router from memorising single
            questions.
        standardise_reward: subtract from each reward the mean of its query over all possible
            endings, and divide by the standard deviation over all queries and endings of the train
            fold. The best policy stays the best; differences between queries that no route can
            change are noise, and vanish.
    """

    can_be_saved: ClassVar[bool] = True

    epochs: int
    learning_rate: float = 3e-3
    adam_eps: float = 1e-5
    warmup_steps: int = 0
    decay: bool = True
    evaluate_every: int = 1
    patience: int = 0
    min_gain: float = 0.0
    hidden: int = 128
    stage_dim: int = 16
    knows_route: bool = True
    scale_embedding: bool = True
    scale_cost: bool = True
    plain_start: bool = False
    embedding_noise: float = 1.0
    standardise_reward: bool = True

    @property
    def is_scheduled(self) -> bool:
        """Whether an epoch depends on how many epochs there are in all.

        If not, a training of more epochs begins as one of fewer epochs does.
        """
        return self.decay


def evaluated_epochs(config: TrainConfig, count: int) -> list[int]:
    """The number of the epoch after which each of the first `count` evaluations takes place.

    The last epoch is evaluated, too, if its turn has not come. The value model has no evaluations.
    """
    if not isinstance(config, NetworkConfig):
        return []
    turns = range(config.evaluate_every, config.evaluate_every * count + 1, config.evaluate_every)
    return [min(turn, config.epochs) for turn in turns]


GAE = "gae"
EXACT_ADVANTAGES = "exact"
ADVANTAGES = (GAE, EXACT_ADVANTAGES)


@dataclass(frozen=True, kw_only=True)
class PPOConfig(NetworkConfig):
    """Settings of PPO (paper appendix B), see `hierrouter.learning.ppo`.

    An iteration collects `rollouts` episodes and updates on them; an epoch is `iterations` of
    these. A gradient step is one mini-batch.

    Attributes:
        warm_start: epochs of learning by enumeration, see `hierrouter.learning.exact`, before the
            first iteration, with the learning rate of `ExactConfig`; not the paper's, which has 0.
            Only iterates after at least one epoch of PPO can be chosen.
        iterations: iterations per epoch.
        rollouts: episodes per iteration.
        minibatches: parts into which an iteration's transitions are cut.
        update_epochs: passes over an iteration's transitions.
        gamma: discount per hop.
        clip: the probability ratio is clipped to 1 +- `clip`.
        gae_lambda: lambda of generalised advantage estimation.
        advantages: "gae", the paper's: estimated from the sampled episodes and the critic. "exact",
            not the paper's: Q(s, a) - V(s) of the present policy, computed from the complete trees
            of the sampled queries. Only a replayed tree makes that possible, because all answers
            are known. Episodes are sampled, and the policy is updated, in the same way; the critic
            learns V(s), and `gamma` and `gae_lambda` have no effect.
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus at the start.
        entropy_end: its weight at the end; it changes linearly in between.
        max_grad_norm: longer gradients are clipped to this length.

    Raises:
        InputError: there is no such kind of advantages.
    """

    learner: ClassVar[str] = "ppo"

    epochs: int = 48
    patience: int = 7
    min_gain: float = 0.0005
    warm_start: int = 0
    iterations: int = 1
    rollouts: int = 1024
    minibatches: int = 32
    update_epochs: int = 2
    gamma: float = 1.0
    clip: float = 0.2
    gae_lambda: float = 0.95
    advantages: str = GAE
    value_coefficient: float = 0.1
    entropy_coefficient: float = 0.2
    entropy_end: float = 0.0
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        """Refuse an unknown kind of advantages.

        Raises:
            InputError: there is no such kind.
        """
        if self.advantages not in ADVANTAGES:
            raise InputError(
                f"advantages must be {' or '.join(ADVANTAGES)}, got {self.advantages:.40}: "
                "advantages of PPOConfig"
            )

    @property
    def is_scheduled(self) -> bool:
        """Whether learning rate or entropy bonus depend on the length of the training."""
        return self.decay or self.entropy_end != self.entropy_coefficient


IMPORT_PATH = re.compile(r"[\w.]+:[\w.<>]+")
MAX_IMPORT_PATH = 200  # characters


@dataclass(frozen=True, kw_only=True)
class TianshouConfig(NetworkConfig):
    """Settings of a training with an algorithm of the user, see `hierrouter.learning.own_learner`.

    An iteration collects `rollouts` episodes and makes `update_epochs * minibatches` gradient
    steps: on these episodes, if the algorithm is an on-policy one, else on batches of the same size
    drawn from its memory. An epoch is `iterations` of these.

    Attributes:
        factory: import path of the function that makes the algorithm; it is never imported for it.
        source: digest of the function's source.
        iterations: iterations per epoch.
        rollouts: episodes per iteration.
        minibatches: parts into which an iteration's transitions are cut.
        update_epochs: passes over an iteration's transitions.
        memory: transitions that an off-policy algorithm learns from, the newest ones.
    """

    learner: ClassVar[str] = "tianshou"
    can_be_saved: ClassVar[bool] = False

    epochs: int = 48
    patience: int = 7
    min_gain: float = 0.0005
    embedding_noise: float = 0.0
    factory: str = ""
    source: str = ""
    iterations: int = 1
    rollouts: int = 1024
    minibatches: int = 32
    update_epochs: int = 2
    memory: int = 65_536

    @property
    def algo(self) -> str:
        """The import path of the factory."""
        return self.factory

    @staticmethod
    def is_factory(path: str) -> bool:
        """Whether a text has the form of an import path, `module:factory`."""
        return len(path) <= MAX_IMPORT_PATH and IMPORT_PATH.fullmatch(path) is not None


@dataclass(frozen=True, kw_only=True)
class ExactConfig(NetworkConfig):
    """Settings of learning by enumeration, see `hierrouter.learning.exact`.

    An epoch is one pass over the train fold, or several if the fold is small.

    Attributes:
        queries: queries per gradient step, each with its complete tree.
        steps: gradient steps per epoch, at least.
        temperature: temperature of the improved policy that the first steps move towards, in
            standard deviations of the reward.
        return_weight: weight of the expected return, which the last steps maximise.
    """

    learner: ClassVar[str] = "exact"

    epochs: int = 32
    patience: int = 10
    min_gain: float = 0.0005
    embedding_noise: float = 1.5
    queries: int = 32
    steps: int = 50
    temperature: float = 0.1
    return_weight: float = 1.0

    @property
    def is_scheduled(self) -> bool:
        """True: the loss passes over from one term to another in the course of the training."""
        return True


@dataclass(frozen=True, kw_only=True)
class ValueConfig(TrainConfig):
    """Settings of the value model, see `hierrouter.learning.value`.

    Attributes:
        queries: queries to learn from, at most.
        landmarks: queries among them that span the kernel, at most.
        components: main directions of a text's vectors that are read, at most.
        kernels: numbers of the kernels to choose from, see `regression.KERNELS`.
    """

    learner: ClassVar[str] = "value"
    kernels: ClassVar[tuple[int, ...]] = (0, 1, 2)

    queries: int = 16_384
    landmarks: int = 512
    components: int = 128


@dataclass(frozen=True, kw_only=True)
class RidgeConfig(ValueConfig):
    """Settings of the value model with wide kernels only, so that it is nearly linear."""

    learner: ClassVar[str] = "ridge"
    kernels: ClassVar[tuple[int, ...]] = (3, 4)


@dataclass(frozen=True, kw_only=True)
class TableConfig(TrainConfig):
    """Settings of a table of fixed routes, see `hierrouter.learning.policy_classes`.

    Attributes:
        folds: into how many parts the queries are cut: the grouping that decides on a query was
            chosen on the other parts.
    """

    folds: int = 10


@dataclass(frozen=True, kw_only=True)
class GroupsConfig(TableConfig):
    """Settings of a fixed route for each data set, or label of the user's own."""

    learner: ClassVar[str] = "groups"


@dataclass(frozen=True, kw_only=True)
class ClustersConfig(TableConfig):
    """Settings of a fixed route for each cluster of the questions' embeddings.

    Attributes:
        clusters: at most.
        questions: of a cluster on average, at least.
    """

    learner: ClassVar[str] = "clusters"

    clusters: int = 64
    questions: int = 8


@dataclass(frozen=True, kw_only=True)
class MeanConfig(TrainConfig):
    """Settings of the mean of several policy classes, each with its own default settings."""

    learner: ClassVar[str] = "mean"


@dataclass(frozen=True, kw_only=True)
class BestConfig(TrainConfig):
    """Settings of the choice among policy classes, see `hierrouter.learning.cross_fit.train_best`.

    Attributes:
        classes: names of the algorithms, separated by commas, the simplest first: of equally good
            ones it is taken.
    """

    learner: ClassVar[str] = "best"

    classes: str = "groups,clusters,ridge,value,mean,exact"

    @property
    def names(self) -> list[str]:
        """The names of the algorithms."""
        return self.classes.split(",")

    @property
    def for_sweep(self) -> BestConfig:
        """The same choice for many alphas: without networks, whose sweeps take minutes."""
        names = [name for name in self.names if not issubclass(CONFIG_CLASSES[name], NetworkConfig)]
        return replace(self, classes=",".join(names))

    @property
    def configs(self) -> dict[str, TrainConfig]:
        """The settings of each algorithm, by name."""
        return {
            name: replace(preset("default", name), keep_anyway=self.keep_anyway)
            for name in self.names
        }


# PPO with what only a replayed tree makes possible: from episodes alone it learns nothing of how
# sure an answer is, see docs/decisions.md.
TREE_PPO = PPOConfig(
    epochs=10,
    patience=5,
    learning_rate=5e-4,
    embedding_noise=1.5,
    warm_start=16,
    advantages=EXACT_ADVANTAGES,
    entropy_coefficient=0.05,
)

PRESET_CONFIGS: dict[tuple[str, str], TrainConfig] = {
    ("default", "ppo"): TREE_PPO,
    ("default", "exact"): ExactConfig(),
    ("default", "value"): ValueConfig(),
    ("default", "ridge"): RidgeConfig(),
    ("default", "groups"): GroupsConfig(),
    ("default", "clusters"): ClustersConfig(),
    ("default", "mean"): MeanConfig(),
    ("default", "best"): BestConfig(),
    ("paper", "ppo"): PPOConfig(preset="paper", patience=0, **PAPER_PPO),
}
# What is recommended beside a preset, in one line.
PRESET_NOTES = {
    "paper": "preset paper has the numbers as printed, with which two of five seeds failed on the "
    "testbed (docs/experiments.md); recommended: leave --preset out, or --seeds 5"
}
# Epochs between two checkpoints, by preset; 0 makes none.
CHECKPOINTS_EVERY = {"default": 0, "paper": PAPER_CHECKPOINT_EVERY}
CONFIG_CLASSES: dict[str, type[TrainConfig]] = {
    "ppo": PPOConfig,
    "exact": ExactConfig,
    "value": ValueConfig,
    "ridge": RidgeConfig,
    "groups": GroupsConfig,
    "clusters": ClustersConfig,
    "mean": MeanConfig,
    "best": BestConfig,
}


def config_class(algo: str) -> type[TrainConfig]:
    """The class of the settings of an algorithm; an import path is a factory of the user.

    Raises:
        KeyError: there is no such algorithm.
    """
    return TianshouConfig if TianshouConfig.is_factory(algo) else CONFIG_CLASSES[algo]


def preset(name: str, algo: str = "ppo") -> TrainConfig:
    """The preset of this name for an algorithm.

    Raises:
        InputError: there is no such algorithm, or it has no such preset.
    """
    if TianshouConfig.is_factory(algo):
        if name != "default":
            raise InputError(f"unknown preset: {name}; known for {algo}: default")
        return TianshouConfig(factory=algo)
    if algo not in CONFIG_CLASSES:
        raise InputError(f"unknown algorithm: {algo}; known: {', '.join(sorted(CONFIG_CLASSES))}")
    names = sorted(preset_name for preset_name, owner in PRESET_CONFIGS if owner == algo)
    if name not in names:
        raise InputError(f"unknown preset: {name}; known for {algo}: {', '.join(names)}")
    return PRESET_CONFIGS[name, algo]


PAPER_TRAINING = "the paper's PPO"
ALGORITHM_TITLES = {
    "ppo": "PPO",
    "exact": "learned by enumeration",
    "value": "value model",
    "ridge": "ridge regressions",
    "groups": "a route for each group",
    "clusters": "a route for each cluster",
    "mean": "mean of several",
    "best": "best of the policy classes",
}
MAX_NAMED_SETTINGS = 3


def training_title(config: TrainConfig) -> str:
    """Say briefly how a router was trained: `PAPER_TRAINING` if by every setting of the paper.

    Otherwise it is the algorithm, the preset if the algorithm has several, and the settings that
    are not those of the preset. `keep_anyway` is left out: it chooses what becomes of a router, and
    changes no training.
    """
    preset_config = PRESET_CONFIGS.get((config.preset, config.algo), config)
    changed = [
        field.name
        for field in fields(config)
        if field.name != "keep_anyway"
        and getattr(config, field.name) != getattr(preset_config, field.name, None)
    ]
    if preset_config is PRESET_CONFIGS["paper", "ppo"] and not changed:
        return PAPER_TRAINING
    parts = [ALGORITHM_TITLES.get(config.algo, config.algo)]
    presets = [name for name, algo in PRESET_CONFIGS if algo == config.algo]
    if len(presets) > 1:
        parts.append(f"preset {config.preset}")
    parts += [f"{name} {getattr(config, name)}" for name in changed[:MAX_NAMED_SETTINGS]]
    if len(changed) > MAX_NAMED_SETTINGS:
        parts.append(f"{len(changed) - MAX_NAMED_SETTINGS} more changes")
    return ", ".join(parts)


def algorithm(name: str | None, budget: object, alpha: object) -> str:
    """The algorithm to train with: by default PPO, or the value model if there is a budget.

    Args:
        name: the requested algorithm, if any.
        budget: the requested budget, if any.
        alpha: the requested alpha, if any.

    Raises:
        InputError: a budget with another algorithm, or with an alpha.
    """
    if budget is None:
        return name or "ppo"
    if name not in (None, "value"):
        raise InputError(
            f"a budget needs a router for every alpha: --budget with --algo {name}; "
            "leave --algo out"
        )
    if alpha is not None:
        raise InputError("--budget and --alpha contradict each other; give one of them")
    return "value"


def training_config(
    name: str, algo: str, epochs: int | None = None, seeds: int = 1, keep_anyway: bool = False
) -> TrainConfig:
    """The settings of a training.

    Args:
        name: name of the preset.
        algo: name of the algorithm.
        epochs: instead of the preset's.
        seeds: how many trainings.
        keep_anyway: see `TrainConfig`; the paper's preset always does.

    Raises:
        InputError: an unknown preset or algorithm, fewer than 1 epoch, or epochs or several seeds
            for an algorithm that has none.
    """
    config = preset(name, algo)
    if keep_anyway:
        config = replace(config, keep_anyway=True)
    if isinstance(config, NetworkConfig):
        if epochs is None:
            return config
        if epochs < 1:
            raise InputError(f"epochs must be at least 1, got {epochs}")
        return replace(config, epochs=epochs)
    for flag, is_requested in (("--epochs", epochs is not None), ("--seeds", seeds > 1)):
        if is_requested and isinstance(config, BestConfig):
            raise InputError(
                f"{flag} with --algo {algo}: each policy class has its own settings; "
                f"leave {flag} out"
            )
        if is_requested:
            raise InputError(
                f"{flag} with --algo {algo}: it is one fit, with nothing random in it; "
                f"leave {flag} out"
            )
    return config


# A training for all alphas plays this many times the episodes of one for a single alpha in an
# iteration, or reads as many times the queries in a gradient step.
SWEEP_ROWS = 4
# It does not stop on a plateau, because alphas reach theirs at different times. So the presets that
# do have other settings for it: by algorithm.
SWEEP_SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {
        "epochs": 36,
        "update_epochs": 1,
        # From episodes alone, as these were tuned.
        "warm_start": 0,
        "advantages": GAE,
        "learning_rate": 3e-3,
        "embedding_noise": 1.0,
        "entropy_coefficient": 0.2,
    },
    "exact": {"epochs": 16},
}
SWEEP_EVALUATE_EVERY = 2  # an evaluation is one for each alpha


def sweep_config(
    name: str, algo: str, epochs: int | None = None, seeds: int = 1, keep_anyway: bool = False
) -> TrainConfig:
    """The settings of a training for many alphas.

    See `training_config` for arguments and errors; a factory of the user is no algorithm here.
    """
    if algo not in CONFIG_CLASSES:
        raise InputError(f"unknown algorithm: {algo}; known: {', '.join(sorted(CONFIG_CLASSES))}")
    config = training_config(name, algo, epochs, seeds, keep_anyway)
    if isinstance(config, BestConfig):
        return config.for_sweep
    if not isinstance(config, NetworkConfig):
        return config
    if config.patience:
        config = replace(
            config, patience=0, evaluate_every=SWEEP_EVALUATE_EVERY, **SWEEP_SETTINGS[algo]
        )
        if epochs is not None:
            config = replace(config, epochs=epochs)
    if isinstance(config, PPOConfig):
        config = replace(config, rollouts=SWEEP_ROWS * config.rollouts)
    if isinstance(config, ExactConfig):
        config = replace(config, queries=SWEEP_ROWS * config.queries)
    return config
