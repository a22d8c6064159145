"""Packages that are there, missing or too old."""

from importlib.metadata import version
from importlib.util import find_spec

import pytest
from packaging.requirements import Requirement

from hierrouter_cache.errors import WorldError
from hierrouter_cli import doctor_checks


def test_the_versions_are_told() -> None:
    ours, theirs = doctor_checks.packages()
    assert ours.text.startswith(version("hierrouter"))
    assert f"torch {version('torch')}" in theirs.text


def test_what_is_missing_or_too_old_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = [Requirement("no-such-package"), Requirement("numpy>=999"), Requirement("rich")]
    monkeypatch.setattr(doctor_checks, "requirements", lambda: wanted)
    with pytest.raises(WorldError) as caught:
        list(doctor_checks.packages())
    assert str(caught.value) == (
        f"no-such-package is not installed, numpy {version('numpy')} is installed, >=999 is "
        "needed; pip install --upgrade hierrouter"
    )


def test_an_extra_that_is_not_installed_is_a_note() -> None:
    found = {each.subject: each for each in doctor_checks.extras()}
    assert list(found) == [f"extra {name}" for name in doctor_checks.EXTRAS]
    if find_spec("vllm") is None:
        assert found["extra vllm"].state == "note"
        assert "pip install 'hierrouter[vllm]'" in found["extra vllm"].text


def test_every_extra_for_users_is_known() -> None:
    from importlib.metadata import metadata

    named = {*(metadata("hierrouter").get_all("Provides-Extra") or ()), *doctor_checks.EXTRAS}
    assert named - {"dev", "docs"} == set(doctor_checks.EXTRAS)
