"""Engines: how models are called and how texts are embedded.

An engine is a `Backend`: it identifies the model of a `ModelSpec` and loads it as a `Generator`.
Both are small Protocols in `hierrouter.engines.generator`. To add an engine, write a module with a
`Backend` and add a branch to `backend`; CONTRIBUTING.md lists the remaining steps.
"""

from collections.abc import Callable, Iterable, Mapping

from hierrouter.engines.generator import Backend, Engines
from hierrouter.pools.pool import OPENAI, Identity, ModelSpec, Pool


def backend(name: str) -> Backend:
    """Return the engine with this name.

    An engine's heavy imports (torch, openai) happen in this call, not when this module is imported.

    Args:
        name: "openai" or "transformers"; names in pool files are checked earlier, in
            `hierrouter.pools.files`.

    Returns:
        A new backend.

    Raises:
        KeyError: no engine has this name.
    """
    if name == "openai":
        from hierrouter.engines.endpoint import EndpointBackend

        return EndpointBackend()
    if name == "transformers":
        from hierrouter.engines.local import TransformersBackend

        return TransformersBackend()
    raise KeyError(name)


def identify(models: Iterable[ModelSpec], engines: Engines = backend) -> dict[str, Identity]:
    """Identify each model without loading it.

    Args:
        models: the models of a pool.
        engines: returns the engine of a backend's name.

    Returns:
        The identity of each model, by the model's name.

    Raises:
        InputError: a local folder does not exist.
        WorldError: a hub model cannot be found.
    """
    return {model.name: engines(model.backend).identify(model) for model in models}


def identify_pool(pool: Pool, engines: Engines = backend) -> dict[str, Identity]:
    """Identify each model of a pool, and each action that is not answered as its model is.

    Args:
        pool: the models and their actions.
        engines: as for `identify`.

    Returns:
        The identities, by the names of models and actions.

    Raises:
        InputError: as `identify`.
        WorldError: as `identify`.
    """
    identities = identify(pool.all_models, engines)
    return {**identities, **identities_of_actions(pool, identities, served_by(engines))}


def served_by(engines: Engines = backend) -> Callable[[ModelSpec], Identity]:
    """Return the function that identifies a model on a server; see `identify`."""
    return lambda model: engines(OPENAI).identify(model)


def identities_of_actions(
    pool: Pool,
    identities: Mapping[str, Identity],
    identify_served: Callable[[ModelSpec], Identity | None],
) -> dict[str, Identity]:
    """Identify each action that is not answered as its model is.

    A server may refuse a setting of the action that the model does not have, or the reverse.

    Args:
        pool: the models and their actions.
        identities: of the models, by name.
        identify_served: identifies a model on a server with its settings; None is as its model.

    Returns:
        The identities, by the action's name; empty if all are those of the models.
    """
    own_identities = {}
    for action in pool.actions:
        # Only servers refuse settings.
        if action.model.backend != OPENAI or pool.own_generation(action) is None:
            continue
        identity = identify_served(action.model)
        if identity and identity != identities[action.model.name]:
            own_identities[action.name] = identity
    return own_identities
