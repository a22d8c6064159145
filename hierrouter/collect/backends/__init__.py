"""Who answers: one file an engine, chosen by name.

In: the name of an engine. Out: a `Backend` (`hierrouter.collect.generator`). A new engine is a new
file here, one branch in `backend`, and a run of the conformance suite in tests/contract.
"""

from __future__ import annotations

from hierrouter.collect.generator import Backend

IMPORTED = "imported"  # the backend of models whose answers came from elsewhere


def backend(name: str) -> Backend:
    """The engine of this name; heavy imports happen here and not before.

    Raises:
        KeyError: there is none; pool files are checked before (`hierrouter.pool_file`).
    """
    if name == "openai":
        from hierrouter.collect.backends.endpoint.engine import EndpointBackend

        return EndpointBackend()
    if name == "vllm":
        from hierrouter.collect.backends.vllm import VllmBackend

        return VllmBackend()
    if name != "transformers":
        raise KeyError(name)
    from hierrouter.collect.backends.local import TransformersBackend

    return TransformersBackend()
