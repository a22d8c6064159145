"""The router as an OpenAI-compatible server.

    app           routes of HTTP
    guard         key and size of a request
    errors        what an error looks like
    answering     one completion, whole or as a stream
    chat          a request for it, and the bodies of the answer
    names         which alpha a model name asks for
    request_log   one JSON line a question, for off-policy estimates
    metrics       counters for Prometheus

Needs the extra `serve`. Routing itself is `hierrouter.live`.
"""

MAX_REQUESTS = 256  # under way at once, unless another number is asked for
