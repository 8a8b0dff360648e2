"""Cases whose reference depends on the release of transformers that the machine of a GPU happens to have."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

from packaging.version import Version

from aethermind.testing.families import ModelCase

__all__ = ["comparable"]

_RIGHT_SINCE = Version("5.23")
_WRONG_BEFORE = {
    "gpt_oss": "ignores swiglu_limit: the limit is always 7",
    "mamba2": "normalises all groups of a gated norm together",
}


def comparable(cases: Iterable[ModelCase]) -> list[ModelCase]:
    """Leave out the cases that this release of transformers computes otherwise than their checkpoints say."""
    if Version(version("transformers")) >= _RIGHT_SINCE:
        return list(cases)
    return [case for case in cases if case.name not in _WRONG_BEFORE]
