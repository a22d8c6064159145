"""`hierrouter serve` and `hierrouter deploy`: a server that routes, and which router it has."""

from __future__ import annotations

import signal
from dataclasses import asdict
from functools import partial

from hierrouter.serving.deploy import Deploy
from hierrouter.serving.open_router import OpenRouter
from hierrouter.serving.serve import Serve
from hierrouter_cli import console, declared
from hierrouter_cli.declared import with_flags

INTERRUPTED_CODE = 130


@with_flags
def serve(*, opening: OpenRouter, serving: Serve) -> None:
    """Answer OpenAI's chat completions with the live models of the pool.

    The router is that of --checkpoint, else the one that `deploy` put in service, else the newest
    of `train`; one of a sweep answers every alpha, as the model `hierrouter@0.02`. A model's server
    that is down at the start is reported; SIGHUP, or POST /admin/reload, takes the router that is
    deployed by then. --defer-to is calibrated on the questions of --cache, as in a report, at each
    listed alpha.
    """
    say = partial(console.say_of, "serve")
    try:
        serving.run(opening, say, console.log_to_stderr)
    except KeyboardInterrupt:  # the usual end of a server, not an error
        # Here already, because this exit skips the end of `app.main`, which does the same.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        say("ended")
        raise SystemExit(INTERRUPTED_CODE) from None


@with_flags
def deploy(*, deploying: Deploy, format: declared.ShortFormat = "text") -> None:
    """Set which router servers answer with: in service, or as a candidate beside it.

    Servers that were started without --checkpoint take it at their next reload (SIGHUP, or POST
    /admin/reload) and lose no request. Without arguments it shows what was set last.
    """
    service = deploying.run()
    if format == "json":
        console.put_json(asdict(service))
        return
    console.put(f"in service: {service.run}\n")
    if service.candidate is not None:
        role = f"answers {service.share:.0%}" if service.share else "a shadow"
        console.put(f"candidate:  {service.candidate}, {role}\n")
    if service.before:
        console.put(f"before:     {', '.join(reversed(service.before))}\n")
