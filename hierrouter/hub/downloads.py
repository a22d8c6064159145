"""Progress of downloads from the Hugging Face hub, for whoever shows the other bars of a job.

The hub's client shows its own bars. They would be written over the bars of a command, so a
command has downloads shown by these, see `show_downloads`. Library code without a command leaves
the client's bars as they are.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

# Called with the bytes that are here, and the bytes in all. Threads of the client call it.
OnBytes = Callable[[int, int], None]
# Shows one download: it takes the name of the repository.
DownloadBar = Callable[[str], AbstractContextManager[OnBytes]]

_bars: list[DownloadBar] = []  # the last one shows downloads


@contextmanager
def show_downloads(bar: DownloadBar) -> Iterator[None]:
    """Have downloads shown by a bar while a block lasts, instead of by the hub's client.

    Args:
        bar: makes the context of one download.
    """
    _bars.append(bar)
    try:
        yield
    finally:
        _bars.remove(bar)


@contextmanager
def client_bars(repository: str) -> Iterator[type[Any] | None]:
    """Give what the hub's client takes as `tqdm_class` for one download.

    Args:
        repository: its name, for the bar.

    Yields:
        A class of bars that only report bytes; None, the client's own bars, if nobody else shows
        downloads.
    """
    if not _bars:
        yield None
        return
    with _bars[-1](repository) as on_bytes:
        yield _reporting_class(on_bytes)


def _reporting_class(on_bytes: OnBytes) -> type[Any]:
    """Return a class of the client's bars that reports bytes and writes nothing."""
    from huggingface_hub.utils.tqdm import tqdm

    class ReportingBar(tqdm):
        """A bar that is not shown. The one that counts the bytes on this disk reports them."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # The client has another bar for the bytes from the network, and one for files.
            is_network = str(kwargs.get("name", "")).endswith(".transfer")
            self._reports = kwargs.get("unit") == "B" and not is_network
            changes = {"disable": False, "file": io.StringIO()}
            super().__init__(*args, **{**kwargs, **changes})  # type: ignore[no-untyped-call]

        def display(self, *args: Any, **kwargs: Any) -> None:
            if self._reports and self.total:
                on_bytes(int(self.n), int(self.total))

    return ReportingBar
