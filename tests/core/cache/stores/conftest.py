"""One store of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aethermind.cache.stores import KVStore, StoreAddress
from aethermind.cache.stores.disk_store import open_disk_store
from aethermind.cache.stores.kv_store import open_host_store
from aethermind.cache.stores.redis_store import open_redis_store

OPENERS = {"host": open_host_store, "disk": open_disk_store, "redis": open_redis_store}


@pytest.fixture(params=OPENERS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    """Where an empty store is."""
    kind = str(request.param)
    if kind == "redis":
        return StoreAddress.parse(request.getfixturevalue("redis_server").url)
    return StoreAddress.parse(f"disk:{tmp_path}?size=1MiB" if kind == "disk" else "host:1MiB")


@pytest.fixture
def store(address: StoreAddress) -> Iterator[KVStore]:
    store: KVStore = OPENERS[address.name](address)
    yield store
    store.close()
