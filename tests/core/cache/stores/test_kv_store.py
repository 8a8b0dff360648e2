"""What holds for every store: values come back as they were, or not at all."""

from __future__ import annotations

import threading

from tests.core.cache.stores.conftest import OPENERS

from aethermind.cache.stores import KVStore, StoreAddress

KEYS = [bytes([i]) * 16 for i in range(8)]
VALUES = [bytes([i]) * (1000 + i) for i in range(8)]


def test_values_come_back_as_they_were(store: KVStore) -> None:
    assert store.get(KEYS) == [None] * 8
    store.put(list(zip(KEYS, VALUES, strict=True)))
    assert store.get(KEYS) == VALUES
    assert store.get([KEYS[3], b"unknown key ....", KEYS[0]]) == [VALUES[3], None, VALUES[0]]
    assert store.get([]) == []


def test_a_value_that_is_put_again_is_replaced(store: KVStore) -> None:
    store.put([(KEYS[0], b"damaged"), (KEYS[1], VALUES[1])])
    store.put([(KEYS[0], VALUES[0])])
    assert store.get(KEYS[:2]) == VALUES[:2]


def test_a_removed_value_is_not_found(store: KVStore) -> None:
    store.put(list(zip(KEYS, VALUES, strict=True)))
    store.remove([KEYS[2], b"unknown key ...."])
    assert store.get(KEYS[1:4]) == [VALUES[1], None, VALUES[3]]


def test_any_bytes_are_a_value(store: KVStore) -> None:
    values = [b"", bytes(range(256)), b"\r\n$-1\r\n", b"x" * 100_000]
    store.put(list(zip(KEYS, values, strict=False)))
    assert store.get(KEYS[:4]) == values


def test_another_process_finds_persistent_values(address: StoreAddress) -> None:
    first, second = (OPENERS[address.name](address) for _ in range(2))
    first.put([(KEYS[0], VALUES[0])])
    first.close()
    assert second.get(KEYS[:1]) == ([None] if address.name == "host" else VALUES[:1])
    second.close()


def test_one_thread_reads_while_another_writes(store: KVStore) -> None:
    """What is there is whole, whenever one looks."""
    value = bytes(50_000)
    is_over = threading.Event()

    def write() -> None:
        try:
            for _ in range(30):
                store.put([(key, value) for key in KEYS])
                store.remove(KEYS[::2])
        finally:
            is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not is_over.is_set():
        assert set(store.get(KEYS)) <= {None, value}
    writer.join()
    assert store.get(KEYS) == [None, value] * 4
