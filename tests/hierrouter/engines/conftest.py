"""Fixtures of the engines' tests."""

import pytest


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for a server as in earnest, a hundredth as long."""
    from hierrouter.engines import endpoint_client

    monkeypatch.setattr(endpoint_client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(endpoint_client, "FIRST_BACKOFF_S", 0.005)
