"""The router as an OpenAI-compatible server.

    app           routes of HTTP
    guard         key and size of a request
    errors        what an error looks like
    chat          a request for a completion, and its answer, whole or as a stream
    names         which alpha a model name asks for
    request_log   one JSON line a request, for off-policy estimates
    metrics       counters for Prometheus

Needs the extra `serve`. Routing itself is `hierrouter.live`.
"""
