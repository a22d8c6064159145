"""Who answers a prompt, and who embeds a text.

An engine is a `Backend`: it says what a model resolves to, and loads it as a `Generator`. Both are
small Protocols in `hierrouter.engines.generator`; a new one is a module, and a branch in `backend`.
CONTRIBUTING.md names the rest.
"""

from collections.abc import Iterable

from hierrouter.engines.generator import Backend, Engines
from hierrouter.pools.pool import Identity, ModelSpec


def backend(name: str) -> Backend:
    """The engine of this name; heavy imports happen here and not before.

    Raises KeyError: there is none; pool files are checked before (`hierrouter.pools.files`).
    """
    if name == "openai":
        from hierrouter.engines.endpoint import EndpointBackend

        return EndpointBackend()
    if name != "transformers":
        raise KeyError(name)
    from hierrouter.engines.local import TransformersBackend

    return TransformersBackend()


def identify(models: Iterable[ModelSpec], engines: Engines = backend) -> dict[str, Identity]:
    """What each model resolves to, by name; loads none of them.

    Raises InputError: a local folder that is not there; WorldError: a hub model that cannot be
    found.
    """
    return {model.name: engines(model.backend).identify(model) for model in models}
