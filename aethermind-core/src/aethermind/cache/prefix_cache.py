"""Prefix caching: the contract with the KV cache, and a prefix cache that finds full blocks by a chain of hashes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Protocol

from aethermind.cache.block_pool import BlockPool

__all__ = ["HashedPrefixCache", "NoPrefixCache", "PrefixCache", "PrefixCacheListener", "chain_hash"]


class PrefixCache(Protocol):
    """Finds blocks by the tokens they hold, and keeps one reference of its own to each cached block.

    An `extra_key` stands for all that the content depends on besides tokens and model, such as images in the prompt.
    Blocks are shared only within one `extra_key`.
    """

    @property
    def num_evictable(self) -> int:
        """Blocks that only the prefix cache references, which `evict` can free."""
        ...

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> Sequence[int]:
        """Return the full blocks of the longest cached prefix of `token_ids`, in order, without a new reference."""
        ...

    def publish(self, token_ids: Sequence[int], blocks: Sequence[int], extra_key: bytes = b"") -> None:
        """Record that `blocks`, all full, hold `token_ids`; acquire those that are to be cached."""
        ...

    def evict(self, num_blocks: int) -> None:
        """Free up to `num_blocks` blocks that no sequence references, the least valuable first."""
        ...


class NoPrefixCache:
    """A prefix cache that caches nothing."""

    __slots__ = ()

    @property
    def num_evictable(self) -> int:
        """Always 0."""
        return 0

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> Sequence[int]:
        """Return no blocks."""
        return ()

    def publish(self, token_ids: Sequence[int], blocks: Sequence[int], extra_key: bytes = b"") -> None:
        """Do nothing."""

    def evict(self, num_blocks: int) -> None:
        """Free nothing."""


_TOKEN_TYPE = "q"
_TOKEN_BYTES = array(_TOKEN_TYPE).itemsize


def chain_hash(parent: bytes, content: bytes) -> bytes:
    """Return the key of a block: a 16-byte hash of its content and, through `parent`, of all blocks before it."""
    return blake2b(parent + content, digest_size=16).digest()


class PrefixCacheListener(Protocol):
    """A listener for blocks that enter and leave a prefix cache."""

    def block_cached(self, key: bytes, block: int) -> None:
        """`block` was cached under `key`; it is full, and is not written until `block_evicted`."""
        ...

    def block_evicted(self, block: int) -> None:
        """`block` is about to leave the cache; once this returns, sequences may write to it."""
        ...


class CachedBlock:
    """A cached block: its tokens, and as `parent` the block before it (for a first block: the extra key)."""

    __slots__ = ("block", "key", "num_pins", "parent", "tokens")

    def __init__(self, key: bytes, parent: CachedBlock | bytes, tokens: bytes, block: int) -> None:
        self.num_pins = 0
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.block = block


class HashedPrefixCache:
    """Caches every published full block, and evicts the least recently used first.

    An entry is found by its hash, and used only if its tokens equal those looked up and its parent is the entry found
    before it: a hash collision costs a reuse, never a wrong answer. An entry whose parent was evicted can no longer be
    reached; it is replaced when its tokens are published again, or evicted later. Sequences release their last block
    first, so the end of a prefix is usually evicted before its beginning. Not thread-safe.
    """

    __slots__ = ("_block_size", "_by_block", "_by_key", "_hash", "_pool", "_root", "listener", "salt")

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        salt: bytes = b"",
        *,
        hash: Callable[[bytes, bytes], bytes] = chain_hash,
    ) -> None:
        """Cache blocks of `pool`, each of `block_size` tokens.

        `salt` stands for all that the content of a block depends on besides tokens: model, adapter, quantisation,
        tenant.
        """
        self._pool = pool
        self._block_size = block_size
        self._hash = hash
        self.listener: PrefixCacheListener | None = None
        """Receives blocks that are cached and evicted from now on."""
        self.salt = salt
        self._root = hash(b"", salt)
        self._by_key: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}

    @property
    def num_blocks(self) -> int:
        """Cached blocks, including those in use by sequences."""
        return len(self._by_key)

    @property
    def num_evictable(self) -> int:
        """Cached blocks that no sequence uses."""
        return self._pool.num_idle

    def keys(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[bytes]:
        """Return the keys of the full blocks of `token_ids`, in order, whether they are cached or not."""
        content, stride = array(_TOKEN_TYPE, token_ids).tobytes(), self._block_size * _TOKEN_BYTES
        ends = range(stride, len(content) + 1, stride)
        chain = accumulate(
            (content[end - stride : end] for end in ends), self._hash, initial=self._first_key(extra_key)
        )
        return list(chain)[1:]

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[int]:
        """Return the full blocks of the longest cached prefix of `token_ids`, in order, without a new reference."""
        return [entry.block for entry in self._known(token_ids, extra_key)]

    def pin(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[CachedBlock]:
        """Evict the blocks of that prefix after all others, until `unpin`. Pins are counted."""
        entries = self._known(token_ids, extra_key)
        for entry in entries:
            entry.num_pins += 1
        return entries

    def unpin(self, pinned: Sequence[CachedBlock]) -> None:
        """Undo a `pin`, given its result. Blocks that were evicted since are allowed."""
        for entry in pinned:
            entry.num_pins -= 1
            if not entry.num_pins:
                self._pool.promote(entry.block)

    def _known(self, token_ids: Sequence[int], extra_key: bytes) -> list[CachedBlock]:
        entries: list[CachedBlock] = []
        if not self._by_key:
            return entries
        parent: CachedBlock | bytes = extra_key
        key = self._first_key(extra_key)
        for end in range(self._block_size, len(token_ids) + 1, self._block_size):
            tokens = array(_TOKEN_TYPE, token_ids[end - self._block_size : end]).tobytes()
            key = self._hash(key, tokens)
            entry = self._by_key.get(key)
            if entry is None or entry.tokens != tokens or entry.parent != parent:
                break
            entries.append(entry)
            parent = entry
        return entries

    def publish(self, token_ids: Sequence[int], blocks: Sequence[int], extra_key: bytes = b"") -> None:
        """Cache `blocks`, all full and in use, under `token_ids`.

        Of two blocks with the same content, the one that is in use or was used last is kept.
        """
        content, stride = array(_TOKEN_TYPE, token_ids).tobytes(), self._block_size * _TOKEN_BYTES
        parent: CachedBlock | bytes = extra_key
        key = self._first_key(extra_key)
        for index, block in enumerate(blocks):
            tokens = content[index * stride : (index + 1) * stride]
            key = self._hash(key, tokens)
            entry = self._by_key.get(key)
            if entry is not None and (entry.tokens != tokens or entry.parent != parent):
                self._forget(entry)
                entry = None
            if entry is None:
                entry = self._by_key[key] = CachedBlock(key, parent, tokens, block)
                self._keep(entry, block)
            elif entry.block != block and self._pool.is_idle(entry.block):
                self._drop(entry.block)
                self._keep(entry, block)
            parent = entry

    def evict(self, num_blocks: int) -> None:
        """Free up to `num_blocks` blocks that no sequence uses, the least recently used first, pinned ones last."""
        for _ in range(min(num_blocks, self._pool.num_idle)):
            self._forget(self._next_to_evict())

    def _next_to_evict(self) -> CachedBlock:
        """Return the next block to evict. A pinned block is demoted once, however often others are evicted later."""
        while True:
            entry = self._by_block[self._pool.eviction_candidate()]
            if not (entry.num_pins and self._pool.demote(entry.block)):
                return entry

    def _first_key(self, extra_key: bytes) -> bytes:
        return self._hash(self._root, extra_key) if extra_key else self._root

    def _forget(self, entry: CachedBlock) -> None:
        del self._by_key[entry.key]
        self._drop(entry.block)

    def _keep(self, entry: CachedBlock, block: int) -> None:
        entry.block = block
        self._by_block[block] = entry
        self._pool.keep(block)
        if self.listener is not None:
            self.listener.block_cached(entry.key, block)

    def _drop(self, block: int) -> None:
        if self.listener is not None:
            self.listener.block_evicted(block)
        del self._by_block[block]
        self._pool.drop(block)
