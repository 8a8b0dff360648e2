"""KV stores: places outside an engine that keep KV blocks under content hashes, for reuse by other engines."""

from __future__ import annotations

from aethermind.cache.stores.kv_store import KVStore, StoreAddress

__all__ = ["KVStore", "StoreAddress"]
