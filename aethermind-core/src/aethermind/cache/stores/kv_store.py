"""What a store is: bytes under keys. What the bytes mean is the business of those who write and read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["KVStore"]


class KVStore(Protocol):
    """Keeps values for others, in this process or elsewhere, and may forget any of them at any time.

    Keys are 16 bytes and say all that a value depends on (model, tokens, tenant), so the value of a key never changes:
    writers need no agreement. Values come back as they were written or are found out, because they carry a checksum.

    Any exception means that the store cannot be reached or used at the moment. Whoever calls lives with it: the store
    is left alone for a while and asked again, so a store connects when it is asked, and not before. Calls come from
    two threads, one that reads and one that writes, and may take long.
    """

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        ...

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Keep (key, value) pairs, giving up what was used least recently where a limit would be exceeded."""
        ...

    def remove(self, keys: Sequence[bytes]) -> None:
        """Forget values; keys without one do not matter."""
        ...

    def close(self) -> None:
        """Give connections and files back. Values stay where others can find them."""
        ...
