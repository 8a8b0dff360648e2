"""Fields of requests that the server ignores: each is named in the log, once."""

from __future__ import annotations

from collections.abc import Iterable

from aethermind.config.suggest import did_you_mean
from aethermind.log import get_logger

__all__ = ["IgnoredFields"]

_MOST_NAMES = 100
"""Names that are remembered and logged: clients can invent any number of them."""

_LONGEST_NAME = 80

_log = get_logger(__name__)


class IgnoredFields:
    """The unknown fields that requests to one server had. Mutable."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def warn_once(self, name: str, known: Iterable[str] = ()) -> None:
        """Log that the field `name` is ignored, with the one of `known` that may have been meant."""
        name = name[:_LONGEST_NAME]
        if name in self._names or len(self._names) == _MOST_NAMES:
            return
        self._names.add(name)
        _log.warning(
            "a request has the unknown field %r, which is ignored%s This is said once; with --strict-requests such "
            "requests are errors.",
            name,
            did_you_mean(name, known),
        )
