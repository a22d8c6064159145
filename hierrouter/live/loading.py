"""The models of a pool, ready for one prompt at a time.

In: a pool. Out: `LiveModel`s. All are loaded and asked for at the start, so that what is missing is
known before the first question. A local model answers what waits for it in one batch (`batched`), a
served one is called once for each prompt (`served`). Not covered: which model is called (`router`).
"""

from __future__ import annotations

from hierrouter.collect.generator import Engines
from hierrouter.endpoint import OPENAI
from hierrouter.live.models import LiveModel
from hierrouter.pool import ModelSpec, Pool


def load_models(pool: Pool, engines: Engines) -> dict[str, LiveModel]:
    """Every model of the pool, by name, in the order of its actions; references are not called.

    Raises:
        InputError, WorldError: one cannot be loaded or reached; see its backend.
    """
    return {spec.name: _live(spec, engines) for spec in pool.models}


def _live(spec: ModelSpec, engines: Engines) -> LiveModel:
    generator = engines(spec.backend).load(spec)  # a served model is asked for here, too
    if spec.backend == OPENAI:
        from hierrouter.collect.backends.endpoint.engine import EndpointGenerator
        from hierrouter.live.served import ServedModel

        assert isinstance(generator, EndpointGenerator)
        return ServedModel(spec, generator.caller)
    from hierrouter.live.batched import BatchedModel

    return BatchedModel(spec.name, generator)
