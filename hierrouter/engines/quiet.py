"""Keep the libraries that load models from showing their bars and lines."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Load models without bars for weights, shards and files while a block lasts.

    They would be written over the bars of a command. Afterwards the libraries show again what they
    showed before: a caller's own downloads keep their bars. Files of the hub are fetched before,
    see `hierrouter.hub.downloads`.
    """
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    shows_loading = logging.is_progress_bar_enabled()
    shows_downloads = not are_progress_bars_disabled()
    verbosity = logging.get_verbosity()
    with warnings.catch_warnings():
        # The hub's client warns if the user's environment switches its bars on or off for good.
        warnings.simplefilter("ignore")
        logging.disable_progress_bar()
        disable_progress_bars()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if shows_loading:
                logging.enable_progress_bar()
            # transformers switches the bars of the hub's client with its own.
            if shows_downloads:
                enable_progress_bars()
            else:
                disable_progress_bars()
