"""`live.json`, the file beside a policy with the pool it needs to route live questions."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from hierrouter.engines.generator import Engines
from hierrouter.learning.router import Origin
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
from hierrouter_cache.tree import Rate, RouteTree
from hierrouter_cache.writer import write_atomically

BUNDLE_FORMAT = 2
CANARIES_PER_MODEL = 5
CANARY_CANDIDATES = 64  # the first train queries, among which canaries are chosen
MAX_CANARY_LENGTH = 2_000  # characters of prompt and response


@dataclass(frozen=True)
class Canary:
    """A first call of the collection that is repeated: another response means another model.

    Attributes:
        prompt: of the call.
        response: as it was collected.
        tokens_in: of the prompt.
        tokens_out: of the response.
    """

    prompt: str
    response: str
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True)
class Bundle:
    """The content of `live.json`; models whose answers were imported cannot be called.

    Attributes:
        pool: the models, with their instructions.
        identities: what each model resolved to when it was collected, by name.
        canaries: by name of the model, for each that decodes greedily.
        encoder_commit: commit of the hub from which the policy's encoder is; "" if it is not from
            the hub, or if an earlier version wrote the bundle.
    """

    pool: Pool
    identities: Mapping[str, Identity]
    canaries: Mapping[str, tuple[Canary, ...]] = field(default_factory=dict)
    encoder_commit: str = ""

    @property
    def can_be_asked(self) -> bool:
        """Whether every model can be called, so that the pool can route live questions."""
        return all(model.backend != IMPORTED for model in self.pool.models)


def bundle_of(cache: Path, tree: RouteTree, pool: str | None = None) -> Bundle:
    """Return what a policy that learned from a tree needs for live questions.

    Args:
        cache: that the tree was opened from.
        tree: that the policy learned from.
        pool: name or file of the pool that it was opened with; None is that of the cache.

    Raises:
        CacheError: there is no cache, or it is damaged.
    """
    plan = CacheReader(cache).latest_plan()
    opened = open_pool(plan.pool, pool, tree.models, tree.hops)
    calls: dict[str, tuple[Canary, ...]] = {}
    if not opened.pool.imported:
        calls = _canaries(cache, tree, pool)
    greedy = [model.name for model in opened.pool.models if not model.generation.temperature]
    canaries = {name: calls.get(name, ()) for name in greedy}
    return Bundle(opened.pool, opened.identities, canaries, tree.encoder_commit)


def _canaries(cache: Path, tree: RouteTree, pool: str | None) -> dict[str, tuple[Canary, ...]]:
    """Return each model's longest first responses, which differ most if the model changes."""
    rows = np.flatnonzero(np.array(tree.splits) == "train")[:CANARY_CANDIDATES]
    if not len(rows):
        return {}
    reader, spec, forest = calls_of(cache, tree.select(rows), pool, first_hop=True)
    first_calls = forest.tree.select((slice(None), slice(1, None)))  # the root, node 0, is no call
    texts = reader.texts(first_calls.key, with_prompt=True)
    canaries = {}
    opened = open_pool(reader.latest_plan().pool, pool, tree.models, tree.hops).pool
    columns: dict[str, int] = {}
    for column, (number, draw) in enumerate(
        zip(spec.layout.action[1:].tolist(), spec.layout.draw[1:].tolist(), strict=True)
    ):
        # A canary is called with the settings of its model.
        if not draw and opened.own_generation(opened.actions[number]) is None:
            columns.setdefault(spec.callers[number], column)
    for name, column in columns.items():
        candidates = set()
        for key, tokens_in, tokens_out in zip(
            first_calls.key[:, column].tolist(),
            first_calls.tokens_in[:, column].tolist(),
            first_calls.tokens_out[:, column].tolist(),
            strict=True,
        ):
            call = texts[key]
            if len(call.prompt + call.response) <= MAX_CANARY_LENGTH:
                candidates.add(Canary(call.prompt, call.response, tokens_in, tokens_out))
        longest_first = sorted(candidates, key=lambda call: (-len(call.response), call.prompt))
        canaries[name] = tuple(longest_first[:CANARIES_PER_MODEL])
    return canaries


def save_bundle(bundle: Bundle, folder: Path) -> None:
    """Write a bundle into the folder of its policy, replacing what is there.

    Raises:
        WorldError: the disk is full or failed.
    """
    value = {"format": BUNDLE_FORMAT, **json.loads(bundle.pool.to_json(bundle.identities))}
    value["canaries"] = {
        name: [asdict(call) for call in calls] for name, calls in bundle.canaries.items()
    }
    if bundle.encoder_commit:
        value["encoder_commit"] = bundle.encoder_commit
    write_atomically(folder / folders.LIVE, folders.seal(value))


def load_bundle(folder: Path) -> Bundle | None:
    """Load the bundle of the policy in a folder; None if it has none.

    A router of a sweep has the bundle of the sweep, up to three folders above; a run has no bundle
    from above it.

    Raises:
        InputError: it is damaged, gone, or of another format.
    """
    file = folder / folders.LIVE
    record = folders.read_record(folder)
    for parent in folder.absolute().parents[:3]:
        if record or file.is_file():
            break
        file = parent / folders.LIVE
        record = folders.read_record(parent)
    if record and folders.LIVE in record.files:  # a file that has been there must not be missing
        folders.require_listed(file)
    if not file.is_file():
        return None
    try:
        data = read_small(file, folders.MAX_JSON)
    except OSError as error:
        raise InputError(f"cannot read: {file}: {error}; train again, or give --pool") from error
    try:
        value = folders.parse_json(data)
        if value["format"] != BUNDLE_FORMAT:
            raise InputError(
                f"{folders.LIVE} has format {value['format']!r:.20}, this version reads "
                f"{BUNDLE_FORMAT}: {file}; train again with this version"
            )
        folders.unseal(data)
        folders.require_listed(file)
        stored_canaries = value.get("canaries", {})  # runs of earlier versions have none
        canaries = validate(dict[str, tuple[Canary, ...]], stored_canaries, str(file), "canaries")
        encoder_commit = validate(str, value.get("encoder_commit", ""), str(file), "encoder_commit")
        return Bundle(*stored_pool(data.decode(), str(file)), canaries, encoder_commit)
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


def encoder_commit(run: Path) -> str:
    """Return the commit of the hub from which the encoder of a run is; "" if it is not known.

    Args:
        run: a folder of a run, or a checkpoint in it.

    Raises:
        InputError: the run's bundle is damaged.
    """
    bundle = load_bundle(run if run.is_dir() else run.parent)
    return bundle.encoder_commit if bundle else ""


def require_pool(origin: Origin, pool: Pool) -> None:
    """Refuse a pool whose models are not those that a policy's actions stand for.

    Raises:
        InputError: other names, another order or another number of hops.
    """
    names = tuple(action.name for action in pool.actions)
    # Draws are there to learn from; a route that is taken has one.
    routes = pool.layout.without_draws
    learned = origin.layout.without_draws
    if names == origin.models and pool.hops == origin.hops and routes != learned:
        raise InputError(
            f"the pool has other routes than the policy learned with: {routes.calls} nodes, "
            f"it learned with {learned.calls}; give that pool, or train again"
        )
    if names != origin.models or pool.hops != origin.hops:
        expected = f"{', '.join(origin.models)}; {origin.hops} hops"
        raise InputError(
            f"the pool is not the policy's: {', '.join(names)}; {pool.hops} hops, "
            f"it learned with {expected}; give that pool, or train again"
        )


def require_prices(origin: Origin, pool: Pool, stored: Pool | None) -> None:
    """Refuse a pool with other prices than those that a policy learned with.

    What a policy expects of each choice is in these prices, so others would count in its bills at
    most. Prices that are guessed from a size are not given, and pass. So does a pool with the
    prices of `live.json`: it asks for nothing else.

    Args:
        origin: of the policy.
        pool: that the user gave.
        stored: the pool in `live.json`; None without one.

    Raises:
        InputError: a model has another price.
    """
    if stored and given_rates(pool) == given_rates(stored):
        return
    differing = other_prices(origin, pool)
    if differing:
        listed = "; ".join(
            f"{name}: {_prices_text(given)}, it learned with {_prices_text(learned)}"
            for name, learned, given in differing
        )
        raise InputError(
            f"the pool has other prices than the policy learned with, per token in and out: "
            f"{listed}; train again with this pool, or write those"
        )


def _prices_text(rate: Rate) -> str:
    text = f"{rate.tokens_in:.12g} and {rate.tokens_out:.12g}"
    if not rate.has_further:
        return text
    _, _, cached, thoughts, call = rate.as_row
    return f"{text} (cached {cached:.12g}, thoughts {thoughts:.12g}, a call {call:.12g})"


def given_rates(pool: Pool) -> dict[str, Rate]:
    """Return the rate of a token of each model whose price the pool gives, by name."""
    rates = {}
    callers = {model.name: model for model in pool.models}
    callers |= {action.name: action.model for action in pool.actions}
    for name, spec in callers.items():
        if spec.base_rate is not None or None not in (spec.rate_in, spec.rate_out):
            rates[name] = spec.price().of_a_token(pool.per_tokens).rate
    return rates


def other_prices(origin: Origin, pool: Pool) -> list[tuple[str, Rate, Rate]]:
    """Return each model whose price a policy learned with is another than the pool gives.

    Returns:
        Name, rate that the policy learned with, rate of the pool.
    """
    given = given_rates(pool)
    differing = []
    for name, learned in origin.rates.items():
        rate = given.get(name)
        if rate and not np.allclose(learned.as_row, rate.as_row, rtol=1e-9, atol=0):
            differing.append((name, learned, rate))
    return differing


def require_thoughts(bundle: Bundle, pool: Pool) -> None:
    """Refuse a pool in which later calls read other texts than those that a policy learned with.

    Raises:
        InputError: thoughts are kept in one pool and dropped in the other.
    """
    if pool.thoughts != bundle.pool.thoughts:
        raise InputError(
            f'the policy learned with thoughts = "{bundle.pool.thoughts}", the pool has '
            f'"{pool.thoughts}": [pool] thoughts; write the former, or train again'
        )


def callable_pool(bundle: Bundle, folder: Path, allowed: Collection[str] = ()) -> Pool:
    """Return the pool in `live.json`, if it may be called; a run may come from other people.

    Args:
        bundle: of the run.
        folder: of the run, for messages.
        allowed: hosts on this machine or a private network that may be called.

    Raises:
        InputError: it asks for a key from the environment, or for a server on this machine or a
            private network that is not allowed.
    """
    refuse_stored_keys(bundle.pool.models, folders.LIVE, folder)
    return restrict_hosts(bundle.pool, allowed, f"{folders.LIVE} of {folder}")


def require_same_weights(pool: Pool, bundle: Bundle, engines: Engines) -> None:
    """Refuse models whose weights are not those of the responses that a policy learned from.

    Models behind a server pass, because nobody can see from here what it has loaded. So do models
    of another engine than at the time of the collection, because it names weights differently.

    Raises:
        InputError: a model has other weights.
        WorldError: a model cannot be found.
    """
    for model in pool.models:
        collected = bundle.identities.get(model.name, {})
        if "weights" not in collected or model.backend == OPENAI:
            continue
        present = engines(model.backend).identify(model)
        engine = present.get("engine", "").split()[:1]
        same_engine = engine == collected.get("engine", "").split()[:1]
        if same_engine and present.get("weights") != collected["weights"]:
            raise InputError(
                f"model {model.name} has other weights than the one that the policy learned with: "
                f"{model.model}; give those, or collect and train again"
            )
