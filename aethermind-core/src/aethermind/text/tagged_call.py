"""The text of a call up to the tag that closes it, while it is written.

A tag counts outside the strings of the call's JSON only: what a model writes into a file or an e-mail may hold one.
"""

from __future__ import annotations

import re

__all__ = ["TaggedCall", "overlap"]

_IN_STRING = re.compile(r'\\.|"', re.DOTALL)


class TaggedCall:
    """Takes what stands behind an opening tag. Mutable; one for each tag."""

    def __init__(self, closing: str) -> None:
        """Wait for the tag `closing`."""
        self._closing = closing
        self._outside = re.compile(f'"|{re.escape(closing)}')
        self._is_in_string = False
        self._pieces: list[str] = []
        self._held = ""
        """What may be the beginning of a tag or of an escaped character."""

    @property
    def body(self) -> str:
        """What came before the tag, or so far."""
        return "".join((*self._pieces, self._held))

    def push(self, text: str) -> str | None:
        """Take more of the text; returns what stands behind the tag, None where it has not come."""
        held, place = self._held + text, 0
        while mark := (_IN_STRING if self._is_in_string else self._outside).search(held, place):
            place = mark.end()
            if mark[0] == self._closing:
                self._pieces.append(held[: mark.start()])
                self._held = ""
                return held[place:]
            if mark[0] == '"':
                self._is_in_string = not self._is_in_string
        undecided = held.endswith("\\") if self._is_in_string else overlap(held, self._closing)
        end = max(len(held) - undecided, place)
        self._pieces.append(held[:end])
        self._held = held[end:]
        return None


def overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
