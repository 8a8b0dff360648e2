"""A store in memory keeps to its size."""

from __future__ import annotations

from aethermind.cache.stores import StoreAddress
from aethermind.cache.stores.kv_store import HostStore, open_host_store


def test_the_least_recently_used_value_is_evicted_first() -> None:
    store = HostStore(30)
    store.put([(key, bytes(10)) for key in (b"a", b"b", b"c")])
    store.get([b"a"])
    store.put([(b"d", bytes(10))])
    assert store.get([b"a", b"b", b"c", b"d"]) == [bytes(10), None, bytes(10), bytes(10)]
    store.put([(b"e", bytes(25))])
    assert store.num_bytes == 25
    store.put([(b"f", bytes(31))])
    assert (store.num_bytes, store.get([b"e", b"f"])) == (0, [None, None])


def test_its_size_has_a_default() -> None:
    store = open_host_store(StoreAddress.parse("host"))
    store.put([(b"a", bytes(1000))])
    assert store.num_bytes == 1000
