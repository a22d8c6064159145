"""Which pool a cache is opened with, and what its models resolve to.

In: the pool of the last plan, perhaps another one, fewer models or hops. Out: `OpenedPool`. What
was collected stays readable after an upgrade of the engine: a model whose weights and dtype are
those of the plan is the plan's model. Not covered: finding its calls (`hierrouter_cache.walk`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from hierrouter.collect.identity import named_folder, weights_of
from hierrouter.collect.scheduler import identify
from hierrouter.pool import Identity, ModelSpec, Pool, pool_from_json
from hierrouter.pool_file import load_pool
from hierrouter_cache.walk import TreeSpec


@dataclass(frozen=True)
class OpenedPool:
    """The pool to open.

    Attributes:
        pool: its models and hops; `context_free` is that of its models.
        identities: what each model resolves to, by name.
        stored: the pool of the plan.
        changed: which models are not called as they were collected; empty where all are.
    """

    pool: Pool
    identities: Mapping[str, Identity]
    stored: Pool
    changed: str

    @property
    def spec(self) -> TreeSpec:
        """The pool as content keys."""
        return self.pool.tree_spec(self.identities)


def opened_pool(
    plan: str,
    name: str | None = None,
    models: Sequence[str] | None = None,
    hops: int | None = None,
) -> OpenedPool:
    """The plan's pool, or the one of this name or file, or a part of either.

    Args:
        plan: the pool of a plan, as JSON.
        name: a pool's name or TOML file; None is the plan's.
        models: names of some models, in action order; None is all of them.
        hops: at most the pool's; None is all of them.

    Raises:
        InputError: an unknown pool, model or number of hops, or a folder that is no model.
        WorldError: a model that the plan does not know and that cannot be found.
    """
    stored, known = pool_from_json(plan)
    part = (stored if name is None else load_pool(name)).sub_pool(models, hops)
    identities = known if name is None else _identities(part, stored, known)
    opened = [identities[model.name] for model in part.models]
    context_free = any(identity.get("context_free") == "yes" for identity in opened)
    changed = _what_changed(stored, known, part, identities)
    return OpenedPool(replace(part, context_free=context_free), identities, stored, changed)


def _identities(pool: Pool, stored: Pool, known: Mapping[str, Identity]) -> dict[str, Identity]:
    """What the models of `pool` resolve to; asks for the engine only where a model is new."""
    same = {model.name: model for model in stored.everyone}
    found = {
        model.name: known[model.name]
        if _unseen(model, same.get(model.name))
        else _with_weights_of(model, known)
        for model in pool.everyone
    }
    new = identify(model for model in pool.everyone if found[model.name] is None)
    return {name: identity or new[name] for name, identity in found.items()}


def _unseen(model: ModelSpec, stored: ModelSpec | None) -> bool:
    """Whether it is the stored model but for its price, and not a folder that is here.

    Such a one needs to be neither here nor reachable. The files of a folder may have changed.
    """
    if stored is None or _source(model) != _source(stored):
        return False
    folder = named_folder(model)
    return folder is None or not folder.is_dir()


def _source(model: ModelSpec) -> tuple[str | None, ...]:
    return (model.model, model.revision, model.dtype, model.backend)


def _with_weights_of(model: ModelSpec, known: Mapping[str, Identity]) -> Identity | None:
    """The identity in the plan that has this model's weights and dtype."""
    wanted = (weights_of(model), model.dtype)
    same = (item for item in known.values() if (item.get("weights"), item.get("dtype")) == wanted)
    return next(same, None)


def _what_changed(
    stored: Pool, known: Mapping[str, Identity], pool: Pool, identities: Mapping[str, Identity]
) -> str:
    """Which models of `pool` are not called as they were when the cache was collected."""
    before = {model.name: model for model in stored.everyone}
    notes = []
    for model in pool.everyone:
        name = model.name
        if name not in before:
            notes.append(f"{name} is new")
            continue
        changes = _changes(before[name], model)
        if identities[name].get("weights") != known[name].get("weights"):
            changes.append("weights")
        if changes:
            notes.append(f"{name}: {', '.join(changes)} changed")
    levels = range(min(pool.hops, stored.hops))
    if any(pool.instruction(level) != stored.instruction(level) for level in levels):
        notes.append("stage_prompts changed")
    if pool.hops > stored.hops:
        notes.append(f"{pool.hops} hops, collected were {stored.hops}")
    return "; ".join(notes)


def _changes(old: ModelSpec, new: ModelSpec) -> list[str]:
    before, now = asdict(old.generation), new.generation.settings
    changed = [name for name in now if before[name] != now[name]]
    fields = ("model", "revision", "dtype", "backend")
    return changed + [name for name in fields if getattr(old, name) != getattr(new, name)]
