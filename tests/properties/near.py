"""What is nearly right: sound JSON values and bytes with a few places changed."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

# Texts that some reader of text takes for more than text.
TEXTS = (
    *("", " ", "\x00", "\ud800", "\u2028", "\x1b[2J", "..", "../../x", "a>b", "stop", "nan"),
    *("[" * 3000, '{"a":' * 3000, "[{[]: 1}]", "['a']", '{"labels": 1}', '{"labels": ["A"]}'),
    *("1e999", "9" * 5000, "9" * 400 + "B", "9" * 5000 + "x7B"),
    *("3B", "A", "#### 1", r"\boxed{" * 50),
)
NUMBERS = (
    *(-1, 0, 1, 2, 2**31, 2**53 + 1, 2**63, 10**30, 10**400),
    *(0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf")),
)
TEXT = st.sampled_from(TEXTS) | st.text(max_size=20)
LEAF = st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.floats() | st.integers() | TEXT
VALUE = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
EDITS = 4


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a JSON value something else could stand."""
    yield before
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*before, name))


@st.composite
def edited(draw: st.DrawFn, sound: Any, values: st.SearchStrategy[Any] = VALUE) -> Any:
    """A JSON value with up to four places changed, taken out, or taken from elsewhere in it."""
    changed = copy.deepcopy(sound)
    for _ in range(draw(st.integers(0, EDITS))):
        if not changed:
            break
        *way, name = draw(st.sampled_from(list(places(changed))[1:]))
        inner = changed
        for step in way:
            inner = inner[step]
        match draw(st.sampled_from(("change", "change", "remove", "move", "add"))):
            case "change":
                inner[name] = draw(values)
            case "remove" if len(inner) > 1:
                del inner[name]
            case "move":
                items = inner.values() if isinstance(inner, dict) else inner
                inner[name] = copy.deepcopy(draw(st.sampled_from(list(items))))
            case "add" if isinstance(inner, dict):
                inner[draw(TEXT)] = draw(values)
    return changed


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """Bytes with up to four places flipped, cut out, put in or repeated."""
    data = bytearray(sound)
    for _ in range(draw(st.integers(0, EDITS))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("flip", "cut", "end", "insert", "repeat"))):
            case "flip" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 64))]
            case "end":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case "repeat":
                data[at:at] = data[max(0, at - 40) : at]
    return bytes(data)
