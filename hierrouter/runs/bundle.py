"""`live.json`, beside a policy: the pool it needs to route live questions."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from hierrouter.engines.generator import Engines
from hierrouter.learning.training import Origin
from hierrouter.pools.files import stored_pool
from hierrouter.pools.pool import (
    IMPORTED,
    OPENAI,
    Identity,
    Pool,
    refuse_stored_keys,
    restrict_hosts,
)
from hierrouter.pools.validation import validate
from hierrouter.replay.stored_pool import open_pool
from hierrouter.replay.tree import calls_of
from hierrouter.runs import folders
from hierrouter_cache.errors import InputError, read_small
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.writer import write_atomically

FORMAT = 2
CANARIES, AMONG = 5, 64  # of each model; the first so many train questions
LONGEST = 2_000  # characters of one, prompt and answer


@dataclass(frozen=True)
class Canary:
    """A first call of the collection, to be made again: another answer is another model."""

    prompt: str
    response: str
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True)
class Bundle:
    """What stands in `live.json`; models whose answers were imported cannot be asked.

    Attributes:
        pool: the models, with the instructions they are given.
        identities: what each resolved to when it was collected, by name.
        canaries: by name, of each model that does not draw its answers.
    """

    pool: Pool
    identities: Mapping[str, Identity]
    canaries: Mapping[str, tuple[Canary, ...]] = field(default_factory=dict)

    @property
    def can_be_asked(self) -> bool:
        """Whether every model can be called, so that the pool can route live questions."""
        return all(model.backend != IMPORTED for model in self.pool.models)


def bundle_of(cache: Path, tree: RouteTree, pool: str | None = None) -> Bundle:
    """What a policy that learned from a tree needs.

    Raises CacheError: nothing there, or damaged.
    """
    plan = CacheReader(cache).latest_plan()
    opened = open_pool(plan.pool, pool, tree.models, tree.hops)
    greedy = [one.name for one in opened.pool.models if not one.generation.temperature]
    kept = {} if opened.pool.imported else _canaries(cache, tree, pool)
    return Bundle(opened.pool, opened.identities, {name: kept.get(name, ()) for name in greedy})


def _canaries(cache: Path, tree: RouteTree, pool: str | None) -> dict[str, tuple[Canary, ...]]:
    """Of each model its longest first answers: they say most about it."""
    rows = np.flatnonzero(np.array(tree.splits) == "train")[:AMONG]
    if not len(rows):
        return {}
    reader, _, forest = calls_of(cache, tree.select(rows), pool, first_hop=True)
    made = forest.tree.select((slice(None), slice(1, None)))
    texts, found = reader.texts(made.key, with_prompt=True), dict[str, tuple[Canary, ...]]()
    for at, name in enumerate(tree.models):
        columns = (values[:, at].tolist() for values in (made.key, made.tokens_in, made.tokens_out))
        calls = {
            Canary(texts[key].prompt, texts[key].response, tokens_in, tokens_out)
            for key, tokens_in, tokens_out in zip(*columns, strict=True)
        }
        short = [one for one in calls if len(one.prompt + one.response) <= LONGEST]
        found[name] = tuple(sorted(short, key=lambda one: (-len(one.response), one.prompt)))
    return {name: calls[:CANARIES] for name, calls in found.items()}


def save_bundle(bundle: Bundle, folder: Path) -> None:
    """Write it into the folder of the policy, replacing what is there.

    Raises WorldError: the disk is full or failed.
    """
    found = {"format": FORMAT, **json.loads(bundle.pool.to_json(bundle.identities))}
    found["canaries"] = {name: [*map(asdict, calls)] for name, calls in bundle.canaries.items()}
    write_atomically(folder / folders.LIVE, folders.sealed(found))


def load_bundle(folder: Path) -> Bundle | None:
    """The bundle of the policy in a folder; None where it has none.

    A router of a sweep has that of the sweep, one or two folders above; no run has one from above
    it. Raises InputError: it is damaged, gone, or of another format.
    """
    file = folder / folders.LIVE
    record = folders.record_of(folder)
    for parent in folder.absolute().parents[:2]:
        if record or file.is_file():
            break
        file = parent / folders.LIVE
        record = folders.record_of(parent)
    if record and folders.LIVE in record.files:  # one that has been there is not absent
        folders.require_listed(file)
    if not file.is_file():
        return None
    try:
        data = read_small(file, folders.MAX_JSON)
    except OSError as error:
        raise InputError(f"cannot read: {file}: {error}; train again, or give --pool") from error
    try:
        found = folders.parsed(data)
        if found["format"] != FORMAT:
            raise InputError(
                f"{folders.LIVE} has format {found['format']!r:.20}, this version reads "
                f"{FORMAT}: {file}; train again with this version"
            )
        folders.unsealed(data)
        folders.require_listed(file)
        kept = found.get("canaries", {})  # none in runs of before
        canaries = validate(dict[str, tuple[Canary, ...]], kept, str(file), "canaries")
        return Bundle(*stored_pool(data.decode(), str(file)), canaries)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise InputError(
            f"{folders.LIVE} is damaged: {file}; train again, or give --pool"
        ) from error


def require_pool(origin: Origin, pool: Pool) -> None:
    """Refuse a pool whose models are not those that a policy's actions mean.

    Raises InputError: other names, another order or another number of hops.
    """
    names = tuple(model.name for model in pool.models)
    if names != origin.models or pool.hops != origin.hops:
        wanted = f"{', '.join(origin.models)}; {origin.hops} hops"
        raise InputError(
            f"the pool is not the policy's: {', '.join(names)}; {pool.hops} hops, "
            f"it learned with {wanted}; give that pool, or train again"
        )


def called_pool(bundle: Bundle, folder: Path, allowed: Collection[str] = ()) -> Pool:
    """The pool in `live.json`, to be called; a run may come from others.

    Raises InputError: it wants a key from the environment, or a server on this machine or a private
    network that is not among those that are allowed.
    """
    refuse_stored_keys(bundle.pool.models, folders.LIVE, folder)
    return restrict_hosts(bundle.pool, allowed, f"{folders.LIVE} of {folder}")


def require_same_weights(pool: Pool, bundle: Bundle, engines: Engines) -> None:
    """Refuse models that are not those of the answers that a policy learned from.

    What a server has loaded nobody can tell from here, and where another engine answers than did at
    that time, its names of weights are other ones: both are taken as they are. Raises InputError: a
    model has other weights; WorldError: it cannot be found.
    """
    for spec in pool.models:
        known = bundle.identities.get(spec.name, {})
        if "weights" not in known or spec.backend == OPENAI:
            continue
        now = engines(spec.backend).identify(spec)
        same_engine = now.get("engine", "").split()[:1] == known.get("engine", "").split()[:1]
        if same_engine and now.get("weights") != known["weights"]:
            raise InputError(
                f"model {spec.name} has other weights than the one that the policy learned with: "
                f"{spec.model}; give those, or collect and train again"
            )
