"""Ctrl-C in the middle of a query is Ctrl-C."""

import os
import signal
import threading
from pathlib import Path

import pytest

from hierrouter_cache.interrupts import interruptible
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.views import ask
from tests.cache import rows
from tests.cache.test_loading import KEYS, fill
from tests.cache.test_views import PRICES

LONG = "SELECT count(*) AS n FROM range(10000000000) AS a WHERE hash(a.range) % 7 = 3"


def interrupt(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_a_query_of_ours_ends(tmp_path: Path) -> None:
    fill(tmp_path)
    reader = CacheReader(tmp_path)
    interrupt(0.3)
    with pytest.raises(KeyboardInterrupt):
        reader.sql(LONG)
    assert reader.number("SELECT count(*) FROM calls") > 0


def test_a_query_of_the_users_ends(tmp_path: Path) -> None:
    fill(tmp_path)
    reader = CacheReader(tmp_path)
    interrupt(0.5)
    with pytest.raises(KeyboardInterrupt):
        ask(reader, rows.spec("ab", 2), KEYS, PRICES, LONG)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="stuck"), interruptible():
        raise RuntimeError("stuck")
