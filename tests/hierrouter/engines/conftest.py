"""Fixtures of the engines' tests."""

import pytest


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for a server as in earnest, a hundredth as long."""
    from hierrouter.engines import health

    monkeypatch.setattr(health, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(health, "FIRST_BACKOFF_S", 0.005)
