"""Whether a server serves a model.

In: a client, the model's name. Out: nothing, or an `Outage` that names what is served. Asked once
before the first call, so that a wrong address, key or name is known at once. Not covered: who then
answers; each answer is checked too (`completion`).
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from hierrouter.collect.backends.endpoint.client import Client
from hierrouter.collect.backends.endpoint.patience import GaveUp, Patience
from hierrouter.collect.backends.endpoint.refusals import Broken, NotThere, Unreachable
from hierrouter.collect.generator import Outage, never

LISTING_S = 30.0  # whatever time a completion may take
ATTEMPTS = 2
NAMED = 5  # models of a server, in a message


async def require_served(client: Client, model: str) -> None:
    """Ask for the list of models; a server that has none is not asked further.

    Raises:
        Outage: there is no server, it refuses the key, or this model is not on its list.
    """
    ask = partial(_listed, client)
    patience = Patience(ATTEMPTS, ATTEMPTS + 1, never, ask)
    try:
        names = await patience.tried(ask)
    except GaveUp as error:
        raise Outage(str(error)) from None
    # `transformers serve` lists what it has from the hub, but serves folders as well; Ollama
    # takes a name without its tag.
    if not names or Path(model).is_absolute() or {model, f"{model}:latest"} & set(names):
        return
    close = get_close_matches(model, names, NAMED, 0.0)
    more = f" and {len(names) - len(close)} more" if len(names) > len(close) else ""
    raise Outage(
        f"model {model} is not served at {client.address}, which serves "
        f"{', '.join(f'{name:.30}' for name in close)}{more}"
    )


async def _listed(client: Client) -> list[str]:
    """Names of the served models; empty where the server does not tell."""
    try:
        body = await client.list_models(LISTING_S)
    except (NotThere, Broken):  # `transformers serve` breaks here where it has no hub cache
        return []
    except Unreachable as error:
        raise Outage(f"{error}; start the server, or correct base_url") from None
    if not isinstance(body, str):
        return []
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise Outage(
            f"unexpected answer from {client.address}: no JSON; is base_url right "
            "(it often ends in /v1)?"
        ) from None
    entries = parsed.get("data") if isinstance(parsed, dict) else None
    listed = entries if isinstance(entries, list) else []
    found = [entry.get("id") for entry in listed if isinstance(entry, dict)]
    return [name for name in found if isinstance(name, str)]
