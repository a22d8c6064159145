"""The flags of `collect` alone.

How models are called, and on which machines. Not covered: what is collected, see `options`.
"""

from __future__ import annotations

from typing import Annotated

from hierrouter_cli.completing import BACKENDS, DEVICES, one_of
from hierrouter_cli.options import choice, switch, value

CALLS = "How models are called"
MACHINES = "Several machines"

Backend = Annotated[
    str | None,
    value(
        "--backend",
        "NAME",
        f"{', '.join(BACKENDS)}: for all models; default: as the pool says.",
        CALLS,
        autocompletion=one_of(BACKENDS),
    ),
]
BaseUrl = Annotated[
    str | None, value("--base-url", "URL", "An OpenAI-compatible server with all models.", CALLS)
]
ApiKeyEnv = Annotated[
    str | None, value("--api-key-env", "VAR", "Environment variable that holds its key.", CALLS)
]
Timeout = Annotated[
    float | None, value("--timeout", "S", "Seconds for one call of a server.", CALLS)
]
Insecure = Annotated[
    bool, switch("--insecure", "Send the key over plain http to another machine.", CALLS)
]
Device = Annotated[
    str | None,
    value(
        "--device",
        "NAME",
        "auto, cpu, cuda, cuda:N or balanced; default: as the pool says.",
        CALLS,
        autocompletion=one_of(DEVICES),
    ),
]
DryRun = Annotated[
    bool, switch("--dry-run", "Print calls, tokens, time, cost and disk; call nothing.")
]
Yes = Annotated[bool, switch("--yes", "Start even a very large collection.")]
ShardOf = Annotated[
    str | None,
    value("--shard", "I/N", "Only share I of N of the queries, beside others.", MACHINES),
]
Engine = Annotated[
    str, choice("--engine", ("local", "ray"), "Here, or on a Ray cluster.", MACHINES)
]
Workers = Annotated[
    int | None,
    value(
        "--workers", "N", "Shards at work on Ray; default: one a GPU, or a core.", MACHINES, min=1
    ),
]
RayAddress = Annotated[
    str | None,
    value("--ray-address", "ADDRESS", "auto or ray://HOST:PORT; else one is started.", MACHINES),
]
Remote = Annotated[
    str | None,
    value("--remote", "URL", "Mirror of the cache: fetch first, copy parts.", MACHINES),
]
