"""Places outside an engine where blocks of keys and values are kept by what they hold, so that others find them."""

from __future__ import annotations

from aethermind.cache.stores.address import StoreAddress
from aethermind.cache.stores.kv_store import KVStore

__all__ = ["KVStore", "StoreAddress"]
