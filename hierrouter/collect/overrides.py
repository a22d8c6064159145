"""Flags that change how every model of a pool is run.

In: a pool, what the command line says. Out: another pool, checked like a pool file. Not covered:
which models there are and what they cost (`hierrouter.pool_file`, `hierrouter.pricing`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hierrouter.endpoint import OPENAI, Endpoint
from hierrouter.pool import ModelSpec, Pool, suggestion
from hierrouter.pool_file import CALLED, check_device
from hierrouter_cache.errors import InputError


def overridden(
    pool: Pool,
    *,
    backend: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    timeout_s: float | None = None,
    insecure: bool | None = None,
    device: str | None = None,
) -> Pool:
    """The pool with every model run this way; None leaves a setting as it is.

    Args:
        pool: as read.
        backend: who runs the models; "openai" where a base_url is given.
        base_url, api_key_env, timeout_s, insecure: see `Endpoint`.
        device: see `ModelSpec`.

    Raises:
        InputError: a value that a pool file could not have either, or flags that contradict.
    """
    if backend is not None and backend not in CALLED:
        raise InputError(
            f"unknown backend: --backend {backend}; {suggestion(backend, CALLED)}".rstrip("; ")
        )
    if base_url is not None and backend not in (None, OPENAI):
        raise InputError(
            f"--base-url needs --backend {OPENAI}, got --backend {backend}; leave one of them out"
        )
    if device is not None:
        check_device(device, "--device")
    given = {
        "base_url": None if base_url is None else base_url.rstrip("/"),
        "api_key_env": api_key_env,
        "timeout_s": timeout_s,
        "insecure": insecure,
    }
    called = {
        "backend": backend or (OPENAI if base_url is not None else None),
        "device": device,
    }
    used = {backend} if backend else {OPENAI} if base_url else {m.backend for m in pool.everyone}
    if _stated(given) and OPENAI not in used:
        raise InputError(
            "no model of the pool is answered for by a server: --base-url, --api-key-env, "
            "--timeout and --insecure are for backend openai; leave them out"
        )
    if device is not None and used == {OPENAI}:
        raise InputError(
            f"all models of the pool run on servers: --device {device} has no effect; leave it out"
        )
    models, references = (
        tuple(_changed(model, _stated(called), _stated(given)) for model in group)
        for group in (pool.models, pool.references)
    )
    return replace(pool, models=models, references=references)


def _stated(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _changed(model: ModelSpec, called: dict[str, Any], endpoint: dict[str, Any]) -> ModelSpec:
    model = replace(model, **called)
    if model.backend != OPENAI or not endpoint:
        return model
    changed = replace(model.endpoint or Endpoint(), **endpoint)
    changed.check(f"model {model.name} endpoint")
    return replace(model, endpoint=changed)
