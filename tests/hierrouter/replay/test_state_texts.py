import pytest

from hierrouter.engines.generator import context_text
from hierrouter.replay.opening import DEFAULT_VIEW, VIEWS, state_texts
from hierrouter_cache.errors import InputError


@pytest.mark.parametrize(
    ("view", "before", "after"),
    [
        ("context", ("q",), (context_text("q", ["first", "second"]),)),
        ("query+answer", ("q", ""), ("q", "second")),
        ("query", ("q",), ("q",)),
        ("stage", (), ()),
    ],
)
def test_what_each_view_shows(view: str, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    assert state_texts(view, "q", []) == before
    assert state_texts(view, "q", ["first", "second"]) == after


def test_the_paper_sees_the_whole_context() -> None:
    assert DEFAULT_VIEW == "context"
    assert list(VIEWS) == ["context", "query+answer", "query", "stage"]


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ("contxt", "unknown state view: contxt; did you mean context"),
        ("", r"unknown state view: ; known: context, query\+answer, query, stage$"),
    ],
)
def test_an_unknown_view_is_named(view: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        state_texts(view, "q", [])
