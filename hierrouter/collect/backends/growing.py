"""The text of an answer while its tokens come.

In: one token after the other. Out: what each adds to the text that will be the answer's. Not
covered: which tokens are generated (`static`).
"""

from __future__ import annotations

from collections.abc import Callable

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the first bytes of a character, decoded


class GrowingText:
    """An answer as its tokens come; white space at its ends is left out, as it is in the answer.

    Args:
        text: of tokens.
        ends: tokens that end a response.

    Attributes:
        shown: all that was told so far.
    """

    def __init__(self, text: Callable[[list[int]], str], ends: frozenset[int]) -> None:
        self._text = text
        self._ends = ends
        self._over = False
        # Read already; how a token is written depends on the last ones.
        self._before: list[int] = []
        self._new: list[int] = []
        self._space = ""
        self.shown = ""

    def told(self, token: int) -> str:
        """What one more token adds; nothing while a character is not whole, or after the end."""
        self._over = self._over or token in self._ends
        if self._over:
            return ""
        self._new.append(token)
        old, whole = self._text(self._before), self._text([*self._before, *self._new])
        if whole.endswith(UNFINISHED) or not whole.startswith(old):
            return ""
        self._before, self._new = self._new, []
        more = self._space + whole[len(old) :]
        if not self.shown:
            more = more.lstrip()
        self._space = more[len(more.rstrip()) :]
        more = more.rstrip()
        self.shown += more
        return more
