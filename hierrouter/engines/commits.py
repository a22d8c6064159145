"""Models of the hub at the commits that a plan or a run has recorded.

A pool names a model by hub id and perhaps by branch; which commit that was is a part of the model's
identity. A collection or training with one commit goes on with that commit if the branch moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hierrouter.engines.generator import Backend, Engines, Generator
from hierrouter.pools.pool import OPENAI, Identity, ModelSpec, Pool

# The commit of each model by its hub id and the revision that the pool names.
Commits = Mapping[tuple[str, str | None], str]


def recorded_commits(pool: Pool, identities: Mapping[str, Identity]) -> Commits:
    """Return the commits of the hub's models in a pool.

    Args:
        pool: as it was stored.
        identities: of its models, by name.
    """
    commits = {}
    for model in pool.all_models:
        hub_id, _, commit = identities.get(model.name, {}).get("weights", "").rpartition("@")
        if model.backend != OPENAI and hub_id == model.model:
            commits[model.model, model.revision] = commit
    return commits


def at_commit(spec: ModelSpec, commits: Commits) -> ModelSpec:
    """Return a model with the commit that is recorded for it, if there is one."""
    commit = commits.get((spec.model, spec.revision))
    if commit is None or spec.backend == OPENAI:
        return spec
    return replace(spec, revision=commit)


def with_commits(engines: Engines, commits: Commits) -> Engines:
    """Return engines that identify and load each model at its recorded commit."""
    return CommitEngines(engines, commits) if commits else engines


@dataclass(frozen=True)
class CommitEngines:
    """Engines whose models are at recorded commits; workers of a cluster get them pickled.

    Attributes:
        engines: identify and load the models.
        commits: that are recorded.
    """

    engines: Engines
    commits: Commits

    def __call__(self, name: str) -> Backend:
        """Return the engine of this name."""
        return CommitBackend(self.engines(name), self.commits)


@dataclass(frozen=True)
class CommitBackend:
    """An engine whose models are at recorded commits; see `Backend` for its methods.

    Attributes:
        backend: identifies and loads the models.
        commits: that are recorded.
    """

    backend: Backend
    commits: Commits

    def identify(self, spec: ModelSpec) -> Identity:
        """Identify a model at its commit."""
        return self.backend.identify(at_commit(spec, self.commits))

    def weight_bytes(self, spec: ModelSpec) -> int:
        """Return the size of a model at its commit, in bytes."""
        return self.backend.weight_bytes(at_commit(spec, self.commits))

    def load(self, spec: ModelSpec) -> Generator:
        """Load a model at its commit."""
        return self.backend.load(at_commit(spec, self.commits))
