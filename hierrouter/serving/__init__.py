"""New questions, routed live, and what their log says."""

MAX_REQUESTS = 256  # under way at once, unless another number is asked for
