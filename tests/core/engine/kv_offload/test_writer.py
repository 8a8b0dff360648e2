"""The writer stores cached blocks in the background, and nothing waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from tests.core.engine.kv_offload.stores import Store

from aethermind.engine.kv_offload.health import CircuitBreaker, KVStoreStats, WarnOnce
from aethermind.engine.kv_offload.writer import StoreWriter
from aethermind.errors import DeviceError


class Source:
    """Blocks hold what `content` says at the moment they are taken."""

    max_blocks = 3

    def __init__(self) -> None:
        self.content = {block: f"content {block}".encode() for block in range(20)}
        self._taken: list[bytes] = []

    def take(self, blocks: Sequence[int]) -> None:
        self._taken = [self.content[block] for block in blocks]

    def pack(self, index: int, key: bytes, block_size: int) -> bytes:
        return key + b": " + self._taken[index]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def key(block: int) -> bytes:
    return f"key {block}".encode()


class Writing:
    def __init__(self) -> None:
        self.store, self.source, self.stats, self.clock = Store(), Source(), KVStoreStats(), Clock()
        breaker = CircuitBreaker(WarnOnce("a store"), 10.0, self.clock)
        self.writer = StoreWriter(self.store, self.source, 16, breaker, self.stats)  # type: ignore[arg-type]


@pytest.fixture
def writing() -> Iterator[Writing]:
    writing = Writing()
    yield writing
    writing.store.gate.set()
    writing.writer.close()


def test_all_cached_blocks_are_written(writing: Writing) -> None:
    for block in range(10):
        writing.writer.block_cached(key(block), block)
    assert writing.writer.flush(60)
    assert writing.store.values == {key(block): key(block) + b": " + f"content {block}".encode() for block in range(10)}
    assert (writing.stats.num_stored, writing.stats.num_dropped) == (10, 0)


def test_blocks_in_the_store_are_not_written_again(writing: Writing) -> None:
    writing.writer.mark_stored([key(1)])
    for block in (0, 1):
        writing.writer.block_cached(key(block), block)
    assert writing.writer.flush(60)
    writing.writer.block_evicted(0)
    writing.writer.block_cached(key(0), 7)
    assert writing.writer.flush(60)
    assert list(writing.store.values) == [key(0)]
    writing.writer.mark_missing([key(1), key(9)])
    writing.writer.block_cached(key(1), 1)
    assert writing.writer.flush(60)
    assert list(writing.store.values) == [key(0), key(1)]


def test_an_evicted_block_is_dropped_and_its_new_content_not_written(writing: Writing) -> None:
    """A hanging store delays no request: blocks change their content meanwhile."""
    writing.store.gate.clear()
    writing.writer.block_cached(key(0), 0)
    while not writing.store.calls:
        pass
    for block in range(1, 8):
        writing.writer.block_cached(key(block), block)
    for block in (1, 2, 5, 19):
        writing.writer.block_evicted(block)
        writing.source.content[block] = b"something else"
    writing.store.gate.set()
    assert writing.writer.flush(60)
    assert set(writing.store.values) == {key(block) for block in (0, 3, 4, 6, 7)}
    assert not any(b"something" in value for value in writing.store.values.values())
    assert (writing.stats.num_stored, writing.stats.num_dropped) == (5, 3)


def test_a_failing_store_is_not_called_for_a_while(writing: Writing) -> None:
    writing.store.error = OSError("no")
    writing.writer.block_cached(key(0), 0)
    writing.writer.flush(60)
    assert (writing.stats.num_dropped, len(writing.store.calls)) == (1, 1)
    writing.store.error = None
    writing.writer.block_cached(key(1), 1)
    assert not writing.writer.flush(60), "waiting would be for nothing"
    assert len(writing.store.calls) == 1
    writing.clock.now += 2.0
    writing.writer.block_cached(key(2), 2)
    assert writing.writer.flush(60)
    assert set(writing.store.values) == {key(1), key(2)}


def test_a_device_that_fails_ends_writing(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step reports the error to its requests; no block remains queued."""

    def fail(_: Sequence[int]) -> None:
        raise DeviceError("a device is gone")

    monkeypatch.setattr(writing.source, "take", fail)
    writing.writer.block_cached(key(0), 0)
    writing.writer.flush(60)
    writing.writer.block_cached(key(1), 1)
    assert writing.writer.flush(60)
    assert (writing.stats.num_stored, writing.stats.num_dropped, writing.store.calls) == (0, 2, [])


def test_closing_drops_pending_blocks(writing: Writing) -> None:
    writing.store.error = OSError("no")
    for block in range(5):
        writing.writer.block_cached(key(block), block)
    while writing.stats.num_dropped < 1:
        pass
    writing.writer.close()
    assert (writing.stats.num_stored, writing.stats.num_dropped) == (0, 5)
